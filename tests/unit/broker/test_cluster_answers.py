"""What a broker of a cluster of three answers about the cluster."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import (
    OWN_ID,
    UNUSED,
    broker_changes,
    make_context,
    make_metadata,
    make_view,
    no_replicas,
    partition,
    topic_changes,
)

from ottla.broker.cluster.metadata_apis import MetadataApis
from ottla.broker.coordination.find_coordinator import CoordinatorApis
from ottla.broker.metadata.nodes import broker_path, registered_json, registered_path, unregistered_json
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.view import ClusterView
from ottla.broker.partitions.partition import Role
from ottla.model.errors import ErrorCode
from ottla.model.types import Endpoint
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest

NODES = [(0, "host-0", 9092, "rack-0"), (1, "dialled", 9092, "rack-1"), (2, "host-2", 9094, "rack-2")]


class Apis:
    """The APIs of broker OWN_ID. It has no replica unless a test gives it one."""

    def __init__(self, view: ClusterView, partition_for: Callable[[str], int] = lambda key: 0) -> None:
        self.shared, self.replicas = make_metadata(view), no_replicas()
        numbers: Any = SimpleNamespace(partition_for=partition_for)
        about_cluster = MetadataApis(metadata=self.shared, replicas=self.replicas, topics=UNUSED, clock=UNUSED)
        self.metadata: Callable[..., Any] = about_cluster.metadata
        self.describe_cluster = about_cluster.describe_cluster
        self.describe_topic_partitions = about_cluster.describe_topic_partitions
        self.find_coordinator: Callable[..., Any] = CoordinatorApis(
            metadata=self.shared, replicas=self.replicas, topics=UNUSED, groups=numbers, transactions=numbers
        ).find_coordinator


def ask_metadata(view: ClusterView, version: int = 9, *, listener: str = "PLAINTEXT") -> Any:
    return Apis(view).metadata(MetadataRequest(topics=None), make_context(version, listener=listener))


def only_partition(view: ClusterView, version: int = 9, **fields: str) -> Any:
    (topic,) = ask_metadata(view, version, **fields).topics
    (row,) = topic.partitions
    return row


def with_topic(view: ClusterView, *partitions: Any, name: str = "t") -> ClusterView:
    view.apply(topic_changes(name, partitions or [partition(0, [0, 1, 2])]))
    return view


def test_metadata_lists_the_live_brokers_with_racks_and_the_controller() -> None:
    answer = ask_metadata(make_view())
    assert [(row.node_id, row.host, row.port, row.rack) for row in answer.brokers] == NODES
    assert answer.controller_id == 2


def test_describe_cluster_lists_the_same_brokers() -> None:
    request = DescribeClusterRequest(endpoint_type=1)
    answer = Apis(make_view()).describe_cluster(request, make_context(2))
    assert [(row.broker_id, row.host, row.port, row.rack) for row in answer.brokers] == NODES
    assert answer.controller_id == 2


def test_describe_cluster_lists_registered_brokers_that_are_not_alive_as_fenced() -> None:
    view = make_view()
    view.apply(broker_changes(4, rack="rack-4"))
    view.apply(broker_changes(5, listeners=["EXTERNAL"]))
    view.apply([Changed(broker_path(each), None) for each in (2, 4, 5)])
    view.apply([Changed(registered_path(6), Node(registered_json(b"6"), 0, 1))])  # of an earlier release
    request = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
    answer = Apis(view).describe_cluster(request, make_context(2))
    assert [(each.broker_id, each.host, each.port, each.rack, each.is_fenced) for each in answer.brokers] == [
        (0, "host-0", 9092, "rack-0", False),
        (1, "dialled", 9092, "rack-1", False),
        (2, "host-2", 9094, "rack-2", True),
        (4, "host-4", 9096, "rack-4", True),
    ]
    request.include_fenced_brokers = False
    alive = Apis(view).describe_cluster(request, make_context(2))
    assert [(each.broker_id, each.is_fenced) for each in alive.brokers] == [(0, False), (1, False)]
    unregistered = unregistered_json(registered_json(b"4", [Endpoint("PLAINTEXT", "h", 1)]))
    view.apply([Changed(registered_path(4), Node(unregistered, 1, 1))])
    request.include_fenced_brokers = True
    answer = Apis(view).describe_cluster(request, make_context(2))
    assert [each.broker_id for each in answer.brokers] == [0, 1, 2]


def test_addresses_are_those_of_the_listener_of_the_client() -> None:
    answer = ask_metadata(make_view(), listener="EXTERNAL")
    assert [(row.host, row.port) for row in answer.brokers] == [
        ("host-0", 19092),
        ("dialled", 19092),
        ("host-2", 19094),
    ]


def test_broker_that_is_not_alive_is_not_listed() -> None:
    view = make_view()
    view.apply([Changed(broker_path(2), None)])
    answer = ask_metadata(view)
    assert [row.node_id for row in answer.brokers] == [0, 1]


def test_broker_answers_as_controller_while_none_is_elected() -> None:
    assert ask_metadata(make_view(controller=None)).controller_id == OWN_ID


def test_broker_answers_alone_before_any_broker_has_registered() -> None:
    row = only_partition(with_topic(make_view((), controller=None), partition(7, [1, 7])))
    assert (row.error_code, row.leader_id, row.offline_replicas) == (0, 7, ())
    answer = ask_metadata(make_view((), controller=None))
    assert [(row.node_id, row.host) for row in answer.brokers] == [(OWN_ID, "dialled")]
    assert answer.controller_id == OWN_ID


def test_partition_has_leader_isr_and_epoch_of_the_view() -> None:
    row = only_partition(with_topic(make_view(), partition(2, [0, 1, 2], [2, 1])))
    assert (row.error_code, row.leader_id, row.leader_epoch) == (0, 2, 5)
    assert (row.replica_nodes, row.isr_nodes, row.offline_replicas) == ((0, 1, 2), (2, 1), ())


def test_replica_of_a_dead_broker_is_offline() -> None:
    row = only_partition(with_topic(make_view((0, 1)), partition(0, [0, 1, 2])))
    assert (row.error_code, row.leader_id, row.offline_replicas) == (0, 0, (2,))


@pytest.mark.parametrize("leader", [-1, 2])
def test_partition_whose_leader_is_not_alive_has_no_leader(leader: int) -> None:
    row = only_partition(with_topic(make_view((0, 1)), partition(leader, [2, 0], [2])))
    assert (row.error_code, row.leader_id, row.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 5)
    assert (row.isr_nodes, row.offline_replicas) == ((2,), (2,))


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_leader_without_the_listener_of_the_client_is_reported(version: int, code: ErrorCode) -> None:
    view = with_topic(make_view((0, 1)), partition(2, [2]))
    view.apply(broker_changes(2, listeners=["PLAINTEXT"]))
    row = only_partition(view, version, listener="EXTERNAL")
    assert (row.error_code, row.leader_id) == (code, -1)


def test_first_version_leaves_offline_replicas_out_and_reports_them() -> None:
    row = only_partition(with_topic(make_view((0, 1)), partition(0, [0, 1, 2])), version=0)
    assert (row.error_code, row.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, 0)
    assert (row.replica_nodes, row.isr_nodes) == ([0, 1], [0, 1])


@pytest.mark.parametrize(("role", "offline"), [(Role.OFFLINE, (OWN_ID,)), (Role.FOLLOWER, ())])
def test_partition_that_this_broker_shall_lead_and_does_not_has_no_leader(role: Role, offline: tuple[int, ...]) -> None:
    """Its disk has failed, or another broker may have been elected while it did not reach the store."""
    view = with_topic(make_view(), partition(OWN_ID, [OWN_ID, 0]))
    apis = Apis(view)
    apis.replicas.topics = {b"t": {0: SimpleNamespace(role=role, offline=role is Role.OFFLINE)}}
    answer = apis.metadata(MetadataRequest(topics=None), make_context(9))
    (row,) = answer.topics[0].partitions
    assert (row.error_code, row.leader_id, row.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, offline)


def test_coordinator_that_was_suspended_is_not_available() -> None:
    view = with_topic(make_view(), partition(OWN_ID, [OWN_ID, 0]), name="__consumer_offsets")
    apis = Apis(view)
    apis.replicas.find = lambda topic, number: SimpleNamespace(role=Role.FOLLOWER)
    answer = apis.find_coordinator(FindCoordinatorRequest(coordinator_keys=["g"]), make_context(4))
    assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_partition_of_a_leader_that_has_just_ended_has_no_leader() -> None:
    """librdkafka asks again at once. With the former leader in the answer it would wait for a second."""
    view = with_topic(make_view(), partition(0, [0, 1, 2]), partition(2, [2, 0, 1]), name="__consumer_offsets")
    apis = Apis(view)
    apis.shared.just_lost = lambda: frozenset([0])
    answer = apis.metadata(MetadataRequest(topics=None), make_context(9))
    first, second = answer.topics[0].partitions
    assert (first.error_code, first.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (second.error_code, second.leader_id) == (0, 2)
    found = apis.find_coordinator(FindCoordinatorRequest(coordinator_keys=["g"]), make_context(4))
    assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_broker_that_is_cut_off_sends_clients_away(is_cut_off: bool) -> None:
    """A client that is connected to this broker alone must ask another one, which knows the new leaders."""
    view = with_topic(make_view(), partition(OWN_ID, [OWN_ID, 0]), name="__consumer_offsets")
    apis = Apis(view)
    apis.shared.is_cut_off = is_cut_off
    for handler, request in (
        (apis.metadata, MetadataRequest(topics=None)),
        (apis.describe_cluster, DescribeClusterRequest()),
        (apis.find_coordinator, FindCoordinatorRequest(coordinator_keys=["g"])),
    ):
        context = make_context(4)
        handler(request, context)
        assert context.connection.is_closed is is_cut_off, handler.__name__


def test_described_partitions_have_eligible_leader_replicas() -> None:
    view = with_topic(make_view((0, 1)), partition(0, [0, 1, 2], [0], elr=(1, 2)), partition(2, [2, 0], [2]))
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], response_partition_limit=10)
    answer = Apis(view).describe_topic_partitions(request, make_context(0))
    first, second = answer.topics[0].partitions
    assert (first.error_code, first.leader_id, first.isr_nodes) == (0, 0, (0,))
    assert (first.eligible_leader_replicas, first.offline_replicas) == ((1, 2), (2,))
    assert (second.error_code, second.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


@pytest.mark.parametrize(("kind", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state")])
def test_coordinator_is_the_leader_of_the_partition_of_the_internal_topic(kind: int, topic: str) -> None:
    view = with_topic(make_view((0, 1)), *(partition(leader, [leader]) for leader in (0, 1, 2)), name=topic)
    apis = Apis(view, {"a": 0, "b": 1, "c": 2}.__getitem__)
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b", "c"])
    answer = apis.find_coordinator(request, make_context(4))
    rows = [(row.key, row.node_id, row.host, row.port, row.error_code) for row in answer.coordinators]
    assert rows == [
        ("a", 0, "host-0", 9092, 0),
        ("b", 1, "dialled", 9092, 0),
        ("c", -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]
