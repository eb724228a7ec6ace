"""A view of a cluster that a test makes by hand, and the metadata of one of its brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.request_fixtures import request_context

from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    broker_json,
    broker_path,
    controller_epoch_json,
    controller_json,
    registered_json,
    registered_path,
    state_path,
    topic_path,
)
from ottla.broker.metadata.store import Changed, MetadataStore, Node
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.broker.transactions.transaction_apis import TransactionApis
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint

OWN_ID = 1
#: listener -> the port of broker 0 on it; broker N has the port + N
LISTENERS = {"PLAINTEXT": 9092, "EXTERNAL": 19092}


def broker_changes(
    broker_id: int, *, rack: str | None = None, listeners: Iterable[str] = LISTENERS, version: int = 0,
    features: Mapping[str, tuple[int, int]] | None = None,
) -> list[Changed]:  # fmt: skip
    """Return the changes of a broker that registers."""
    endpoints = [Endpoint(name, f"host-{broker_id}", LISTENERS[name] + broker_id) for name in listeners]
    incarnation = bytes([broker_id, version])
    value = broker_json(endpoints, rack=rack, incarnation=incarnation, timestamp_ms=0, features=features)
    return [
        Changed(registered_path(broker_id), Node(registered_json(incarnation, endpoints, rack), version, 1)),
        Changed(broker_path(broker_id), Node(value, 0, 100 + broker_id)),
    ]


def controller_changes(broker_id: int, epoch: int = 1) -> list[Changed]:
    """Return the changes of the election of a controller."""
    return [
        Changed(CONTROLLER, Node(controller_json(broker_id, 0), 0, 200)),
        Changed(CONTROLLER_EPOCH, Node(controller_epoch_json(broker_id), epoch, 1)),
    ]


def partition(leader: int, replicas: Sequence[int], isr: Sequence[int] | None = None, **fields: Any) -> PartitionView:
    return PartitionView(
        leader=leader, leader_epoch=5, replicas=tuple(replicas), isr=tuple(replicas if isr is None else isr), **fields
    )


def topic_changes(name: str, partitions: Sequence[PartitionView], config: Mapping[str, str] | None = None) -> Any:
    topic = TopicView(name=name, topic_id=name.encode().ljust(16, b"-")[:16], partitions=tuple(partitions))
    return [
        Changed(topic_path(name), Node(topic.assignment_json(), 0, 1)),
        Changed(state_path(name), Node(topic.state_json(), 0, 1)),
    ]


def make_view(brokers: Iterable[int] = (0, 1, 2), *, controller: int | None = 2) -> ClusterView:
    """Return a view with these brokers alive, each in a rack of its own, and this controller."""
    view = ClusterView()
    for broker_id in brokers:
        view.apply(broker_changes(broker_id, rack=f"rack-{broker_id}"))
    if controller is not None:
        view.apply(controller_changes(controller))
    return view


#: in place of a part that a test does not use: an access to it fails
UNUSED: Any = object()


def make_metadata(
    view: ClusterView | None = None, *, broker_id: int = OWN_ID, store: MetadataStore = UNUSED,
    properties: Mapping[str, str] | None = None, new_id: Callable[[], bytes] = lambda: bytes(16),
) -> ClusterMetadata:  # fmt: skip
    """Return the metadata of a broker that knows this view, by default an empty one."""
    settings = BrokerSettings.parse({"log.dirs": "unused", "broker.id": str(broker_id), **(properties or {})})
    return ClusterMetadata(store, settings, cluster_id="cluster", new_id=new_id, view=view)


def make_transaction_apis(**parts: Any) -> TransactionApis:
    """Return the APIs of transactions with these parts; the others are not used."""
    names = (
        "metadata", "replicas", "groups", "transactions", "markers", "checks", "awaited_commits", "producer_ids",
    )  # fmt: skip
    return TransactionApis(**{**dict.fromkeys(names, UNUSED), **parts})


def no_replicas() -> Any:
    """Return the replicas of a broker that has none. A test may add some."""
    return SimpleNamespace(topics={}, find=lambda topic, number: None)


def make_context(version: int, *, listener: str = "PLAINTEXT") -> Any:
    """Return the context of a request from a client that dialled ``dialled:LISTENERS[listener]``."""
    return request_context(version, listener=listener, port=LISTENERS.get(listener, 1))
