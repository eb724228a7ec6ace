"""A view of a cluster that a test makes by hand, and the services of one of its brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.request_fixtures import request_context

from ottla.broker.access import ALL_ALLOWED
from ottla.broker.services import Services
from ottla.cluster.schema import (
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
from ottla.cluster.store import Changed, Node
from ottla.cluster.view import ClusterView, PartitionView, TopicView
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


def make_services(view: ClusterView, **fields: Any) -> Any:
    """Return the services of broker OWN_ID, which knows this view. It has no replica unless ``fields`` give it one."""
    settings = BrokerSettings.parse({"log.dirs": "unused", "broker.id": str(OWN_ID)})
    services: Any = SimpleNamespace(
        broker_id=OWN_ID, cluster_id="cluster", view=view, settings=settings, started_settings=settings,
        replicas=SimpleNamespace(topics={}, find=lambda topic, number: None), advertised={}, access=ALL_ALLOWED,
        is_cut_off=False, just_lost=frozenset, **fields,
    )  # fmt: skip
    services.endpoint_for = lambda context: Services.endpoint_for(services, context)
    return services


def make_context(version: int, *, listener: str = "PLAINTEXT") -> Any:
    """Return the context of a request from a client that dialled ``dialled:LISTENERS[listener]``."""
    return request_context(version, listener=listener, port=LISTENERS.get(listener, 1))
