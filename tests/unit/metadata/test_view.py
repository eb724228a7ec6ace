"""The view of live brokers, of the controller and of partitions with eligible leader replicas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    broker_json,
    broker_path,
    controller_epoch_json,
    controller_json,
    incarnation_of,
    ops_create_skeleton,
    registered_json,
    registered_path,
    state_path,
    to_json,
    topic_path,
)
from ottla.broker.metadata.store import Changed, MalformedNode, Node
from ottla.broker.metadata.view import (
    LOG_LOST,
    NO_LEADER,
    ClusterView,
    ControllerView,
    LogEnd,
    PartitionView,
    TopicView,
    changed_partitions,
)
from ottla.model.types import Endpoint

INSIDE = Endpoint("INSIDE", "b1", 9092)
OUTSIDE = Endpoint("OUTSIDE", "::1", 9093)
LIFE = bytes(range(8))


def alive(broker_id: int, created: int, **fields: object) -> Changed:
    options = {"rack": None, "incarnation": LIFE, "timestamp_ms": 1000, **fields}
    return Changed(broker_path(broker_id), Node(broker_json([INSIDE, OUTSIDE], **options), 0, created))  # type: ignore[arg-type]


def stored(topic: TopicView) -> list[Changed]:
    return [
        Changed(topic_path(topic.name), Node(topic.assignment_json(), 0)),
        Changed(state_path(topic.name), Node(topic.state_json(), 0)),
    ]


def topic_of(partitions: Iterable[PartitionView]) -> TopicView:
    return TopicView(name="orders", topic_id=bytes(16), partitions=tuple(partitions))


def test_registered_broker_is_read_back_with_its_epoch() -> None:
    view = ClusterView()
    changes = view.apply([alive(1, 77, rack="r1", features={"metadata.version": (1, 5)})])
    assert changes.brokers and not changes.controller and not changes.topics and not changes.broker_settings
    assert view.brokers == {
        1: BrokerView(
            broker_id=1, epoch=77, endpoints=(INSIDE, OUTSIDE), rack="r1", incarnation=LIFE,
            features={"metadata.version": (1, 5)},
        )
    }  # fmt: skip
    assert view.brokers[1].endpoint("OUTSIDE") == OUTSIDE
    assert view.brokers[1].endpoint("OTHER") is None


def test_registration_has_the_fields_of_kafka() -> None:
    value = json.loads(broker_json([INSIDE], rack=None, incarnation=LIFE, timestamp_ms=5))
    assert value == {
        "version": 5, "host": "b1", "port": 9092, "endpoints": ["INSIDE://b1:9092"], "rack": None, "timestamp": "5",
        "listener_security_protocol_map": {"INSIDE": "INSIDE"}, "features": {}, "incarnation": LIFE.hex(),
    }  # fmt: skip


def test_dead_broker_and_broker_that_registered_again_are_changes_of_the_brokers() -> None:
    view = ClusterView()
    view.apply([alive(2, 5), alive(1, 6)])
    assert list(view.brokers) == [1, 2]
    assert not view.apply([alive(1, 6)]).brokers, "nothing changed"
    assert view.apply([alive(1, 9)]).brokers and view.brokers[1].epoch == 9
    assert view.apply([Changed(broker_path(1), None)]).brokers and list(view.brokers) == [2]


def test_version_of_the_latest_start_is_known_for_dead_brokers_too() -> None:
    view = ClusterView()
    changes = view.apply([Changed(registered_path(3), Node(registered_json(LIFE), 4))])
    assert view.registered == {3: 4} and not changes.brokers
    assert incarnation_of(registered_json(LIFE)) == LIFE
    view.apply([Changed(registered_path(3), None)])
    assert view.registered == {}


def test_node_of_an_earlier_start_is_not_a_live_broker() -> None:
    view = ClusterView()
    view.apply([alive(1, 5), Changed(registered_path(1), Node(registered_json(LIFE), 0))])
    assert list(view.brokers) == [1]
    changes = view.apply([Changed(registered_path(1), Node(registered_json(b"next"), 1))])
    assert changes.brokers and not view.brokers, "its process has ended, its session has not expired"
    assert view.apply([alive(1, 9, incarnation=b"next")]).brokers and view.brokers[1].epoch == 9


def test_controller_has_the_version_of_its_epoch_node() -> None:
    view = ClusterView()
    view.apply([Changed(op.path, Node(b"", 0)) for op in ops_create_skeleton(())])
    elected = [
        Changed(CONTROLLER, Node(controller_json(2, 1000), 0, 8)),
        Changed(CONTROLLER_EPOCH, Node(controller_epoch_json(2), 1)),
    ]
    assert view.apply(elected).controller
    assert view.controller == ControllerView(broker_id=2, epoch=1)
    assert not view.apply([alive(2, 9)]).controller
    assert view.apply([Changed(CONTROLLER_EPOCH, Node(controller_epoch_json(2), 2))]).controller, "elected again"
    assert view.apply([Changed(CONTROLLER, None)]).controller
    assert view.controller is None


def test_state_with_eligible_leader_replicas_is_read_back() -> None:
    plain = PartitionView(leader=1, leader_epoch=2, replicas=(1, 2, 3), isr=(1, 2))
    lost = PartitionView(
        leader=NO_LEADER, leader_epoch=4, replicas=(1, 2, 3), isr=(1,), partition_epoch=9, elr=(3, 2),
        unclean=(LogEnd(1, 4, 100), LogEnd(2, -1, LOG_LOST)),
    )  # fmt: skip
    topic = topic_of([plain, lost, plain])
    view = ClusterView()
    view.apply(stored(topic))
    assert view.topics["orders"] == topic
    rows = json.loads(topic.state_json())
    assert rows["version"] == 3 and [len(row) for row in rows["partitions"]] == [4, 6, 4]


def test_state_without_eligible_leader_replicas_stays_in_version_2() -> None:
    state = json.loads(topic_of([PartitionView(leader=1, leader_epoch=2, replicas=(1, 2), isr=(1, 2))]).state_json())
    assert state == {"version": 2, "partitions": [[1, 2, [1, 2], 0]]}


@pytest.mark.parametrize(
    "row", [[0, 3, [0], 1, []], [0, 3, [0], 1, [], [[1, 2]]], [0, 3, [0], 1, [], [], 0], [0, 3, [0], 1, 5, []]]
)
def test_row_of_version_3_with_wrong_columns_is_malformed(row: list[object]) -> None:
    with pytest.raises(MalformedNode):
        ClusterView().apply([Changed(state_path("t"), Node(to_json({"version": 3, "partitions": [row]}), 0))])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (broker_path(1), b"{}"),
        (broker_path(1), b'{"endpoints":[],"incarnation":"00"}'),
        (broker_path(1), b'{"endpoints":["x"],"incarnation":"00"}'),
        ("/brokers/ids/x", broker_json([INSIDE], rack=None, incarnation=LIFE, timestamp_ms=5)),
        (registered_path(1), b'{"incarnation":"xyz"}'),
        (CONTROLLER, b"7"),
    ],
)
def test_damaged_node_of_a_broker_is_named(path: str, value: bytes) -> None:
    with pytest.raises(MalformedNode, match=path):
        ClusterView().apply([Changed(path, Node(value, 0))])


def test_partitions_that_do_not_change_keep_their_objects_and_others_are_as_in_a_new_view() -> None:
    """A topic of thousands of partitions costs what changes in it. Fields are changed in random order."""
    rng = Random(7)
    partitions = [PartitionView(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3)) for _ in range(20)]
    view = ClusterView()

    def nodes(topic: TopicView) -> list[Changed]:
        return [
            Changed(topic_path("t"), Node(topic.assignment_json(), 0)),
            Changed(state_path("t"), Node(topic.state_json(), 0)),
        ]

    view.apply(nodes(TopicView(name="t", topic_id=bytes(16), partitions=tuple(partitions))))
    for step in range(200):
        before = view.topics["t"]
        number = rng.randrange(len(partitions))
        isr = tuple(rng.sample((1, 2, 3), rng.randrange(1, 4)))
        fields: dict[str, Any] = rng.choice(
            [{"leader": 2}, {"isr": isr}, {"elr": (3,)}, {"unclean": (LogEnd(1, 2, step),)}, {"min_isr": step}, {}]
        )
        partitions[number] = partitions[number].changed(**fields)
        changed = TopicView(name="t", topic_id=bytes(16), partitions=tuple(partitions))
        (pair,) = view.apply(nodes(changed)[1:]).topics
        after = view.topics["t"]
        assert after.partitions == tuple(partitions)
        has_elr = {n for n, each in enumerate(partitions) if each.elr or each.unclean}
        assert pair[1] is not None
        assert set(changed_partitions(*pair)) <= {number, *has_elr}
        assert number in changed_partitions(before, after)
    fresh = ClusterView()
    fresh.apply(nodes(changed))
    assert fresh.topics == view.topics
    moved = replace(changed, topic_id=b"1" * 16)
    ((old, new),) = view.apply(nodes(moved)).topics
    assert new is not None
    assert list(changed_partitions(old, new)) == list(range(20))
