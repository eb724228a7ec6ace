"""What the controller decides about topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.nodes import SKELETON, ops_create_skeleton, state_path, to_json, topic_path
from ottla.broker.metadata.placement import place_replicas
from ottla.broker.metadata.store import Changed, Create, Delete, MalformedNode, Node, Put
from ottla.broker.metadata.topic_plans import (
    DELETIONS_MAX,
    NewTopic,
    bump_leader_epochs,
    check_topic_name,
    ops_create_topic,
    ops_delete_topic,
    ops_update_topic,
    plan_create_partitions,
    plan_create_topic,
)
from ottla.broker.metadata.view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.model.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
)
from ottla.model.types import Endpoint, topic_id_text

ID = bytes(range(16))


def plan(view: ClusterView, name: str = "orders", **wanted: object) -> TopicView:
    fields = {"partition_count": 3, "replication_factor": 1, "assignments": {}, "config": {}, **wanted}
    topic = NewTopic(name=name, **fields)  # type: ignore[arg-type]
    return plan_create_topic(view, [0], topic, topic_id=ID, default_partitions=7, default_replication_factor=1)


def view_with(*topics: TopicView) -> ClusterView:
    view = empty_view()
    for topic in topics:
        apply(view, ops_create_topic(view, topic))
    return view


def empty_view() -> ClusterView:
    view = ClusterView()
    apply(view, ops_create_skeleton(()))
    return view


def apply(view: ClusterView, ops: list[object]) -> None:
    changes = []
    for op in ops:
        if isinstance(op, Create | Put):
            changes.append(Changed(op.path, Node(op.value, view.versions.get(op.path, -1) + 1)))
        elif isinstance(op, Delete):
            changes.append(Changed(op.path, None))
    view.apply(changes)


def test_what_is_created_is_what_the_view_shows() -> None:
    topic = plan(ClusterView(), config={"retention.ms": "5"})
    assert view_with(topic).topics["orders"] == topic
    assert view_with(topic).topics_by_id[ID] == topic


def test_minus_one_means_the_brokers_default() -> None:
    assert len(plan(ClusterView(), partition_count=-1).partitions) == 7


def test_deleted_topic_is_removed_from_the_view() -> None:
    topic = plan(ClusterView())
    view = view_with(topic)
    apply(view, ops_delete_topic(view, topic, 1000, ID))
    assert not view.topics and not view.topics_by_id


def test_deletion_is_recent_for_ten_seconds() -> None:
    topic = plan(ClusterView())
    view = view_with(topic)
    assert not view.recently_deleted("orders", 50_000)
    apply(view, ops_delete_topic(view, topic, 50_000, ID))
    assert view.recently_deleted("orders", 50_000) and view.recently_deleted("orders", 59_999)
    assert view.recently_deleted("orders", 49_000), "the clock of the broker that deleted it was ahead"
    assert not view.recently_deleted("orders", 60_000) and not view.recently_deleted("other", 50_000)


def test_second_deletion_of_a_name_replaces_the_first() -> None:
    topic = plan(ClusterView())
    view = view_with(topic)
    for now_ms in (1000, 20_000):
        apply(view, ops_create_topic(view, topic))
        apply(view, ops_delete_topic(view, topic, now_ms, ID))
    assert view.deletions == {"orders": 20_000}


def test_number_of_recorded_deletions_is_bounded() -> None:
    view = empty_view()
    for number in range(DELETIONS_MAX + 10):
        apply(view, ops_delete_topic(view, plan(view, f"t{number}"), 1000, ID))
    assert len(view.deletions) == DELETIONS_MAX
    assert next(iter(view.deletions)) == "t10", "the oldest are removed first"


def test_outdated_deletions_are_removed_by_later_ones() -> None:
    view = empty_view()
    for number in range(20):
        apply(view, ops_delete_topic(view, plan(view, f"t{number}"), 1000, ID))
    for number in range(20, 24):
        apply(view, ops_delete_topic(view, plan(view, f"t{number}"), 50_000, ID))
    assert list(view.deletions) == ["t20", "t21", "t22", "t23"]


def test_deletion_is_still_known_after_a_restart(tmp_path: Path) -> None:
    async def delete_then_reload() -> ClusterView:
        topic, view = plan(ClusterView()), ClusterView()
        store = EmbeddedStore.open(tmp_path / "metadata.db")
        await store.multi(ops_create_skeleton(await store.load("/")))
        await store.multi(ops_create_topic(await load_view(store), topic))
        await store.multi(ops_delete_topic(await load_view(store), topic, 1000, ID))
        await store.close()
        store = EmbeddedStore.open(tmp_path / "metadata.db")
        nodes = await store.load("/")
        await store.close()
        assert ops_create_skeleton(nodes) == []
        view.apply([Changed(path, node) for path, node in nodes.items()])
        return view

    assert asyncio.run(delete_then_reload()).deletions == {"orders": 1000}


def test_skeleton_of_an_older_version_is_completed() -> None:
    old = ("/cluster", "/brokers", "/brokers/topics", "/config", "/config/topics", "/config/brokers")
    created = {op.path for op in ops_create_skeleton(old) if isinstance(op, Create)}
    assert created == set(SKELETON) - set(old)


def test_broker_that_is_being_stopped_leads_a_new_partition_only_if_there_is_no_other() -> None:
    view = empty_view()
    endpoint = Endpoint("PLAINTEXT", "localhost", 9092)
    for number in (1, 2):
        view.brokers[number] = BrokerView(broker_id=number, epoch=1, endpoints=(endpoint,), rack=None, incarnation=b"x")
        view.registered[number] = 1
    view.leaving = {1}
    [both] = plan(view, assignments={0: (1, 2)}, partition_count=-1, replication_factor=-1).partitions
    [alone] = plan(view, assignments={0: (1,)}, partition_count=-1, replication_factor=-1).partitions
    assert (both.leader, both.isr, both.replicas) == (2, (2,), (1, 2))
    assert (alone.leader, alone.isr) == (1, (1,))


def test_new_partitions_follow_the_old_ones() -> None:
    topic = plan(ClusterView())
    larger = plan_create_partitions(ClusterView(), topic, [0], 5, None)
    view = view_with(topic)
    apply(view, ops_update_topic(view, larger, ID))
    assert len(view.topics["orders"].partitions) == 5
    assert view.topics["orders"].partitions[:3] == topic.partitions


def test_leader_epochs_go_up_after_a_stop_that_was_not_clean() -> None:
    topic = plan(ClusterView())
    assert [p.leader_epoch for p in bump_leader_epochs(topic, 0).partitions] == [1, 1, 1]


def test_unclean_stop_of_a_broker_changes_no_epochs_of_partitions_that_others_lead() -> None:
    first, second, third = plan(ClusterView()).partitions
    topic = replace(plan(ClusterView()), partitions=(first, second.changed(leader=1), third.changed(leader=NO_LEADER)))
    assert [p.leader_epoch for p in bump_leader_epochs(topic, 0).partitions] == [1, 0, 0]
    assert bump_leader_epochs(topic, 7) == topic


def test_partition_state_is_read_back_as_it_was_stored() -> None:
    moving = PartitionView(
        leader=NO_LEADER, leader_epoch=7, replicas=(4, 5, 1), isr=(1,), partition_epoch=12, adding=(4, 5), removing=(1,)
    )
    topic = plan(ClusterView())
    topic = replace(topic, partitions=(*topic.partitions, moving))
    assert view_with(topic).topics["orders"].partitions == topic.partitions


def test_state_of_version_1_is_read_with_partition_epoch_0() -> None:
    view = view_with(plan(ClusterView(), partition_count=1))
    state = to_json({"version": 1, "partitions": [[0, 3, [0]]]})
    assignment = to_json({"version": 3, "topic_id": topic_id_text(ID), "partitions": {"0": [0]}})
    view.apply([Changed(topic_path("orders"), Node(assignment, 1)), Changed(state_path("orders"), Node(state, 1))])
    (partition,) = view.topics["orders"].partitions
    assert partition == PartitionView(leader=0, leader_epoch=3, replicas=(0,), isr=(0,), partition_epoch=0)


@pytest.mark.parametrize("row", [[0, 3], [0, 3, [0], 1, 1], [0, 3, 0], ["x", 3, [0]]])
def test_row_of_partition_state_with_wrong_columns_is_malformed(row: list[object]) -> None:
    view = view_with(plan(ClusterView(), partition_count=1))
    with pytest.raises(MalformedNode):
        view.apply([Changed(state_path("orders"), Node(to_json({"version": 2, "partitions": [row]}), 1))])


def test_every_change_of_a_partition_increases_its_partition_epoch() -> None:
    topic = bump_leader_epochs(plan(ClusterView()), 0)
    assert [p.partition_epoch for p in topic.partitions] == [1, 1, 1]
    larger = plan_create_partitions(ClusterView(), topic, [0], 4, None)
    assert [p.partition_epoch for p in larger.partitions] == [1, 1, 1, 0], "old partitions do not change"


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"partition_count": 0}, InvalidPartitions),
        ({"partition_count": -2}, InvalidPartitions),
        ({"partition_count": 10_001}, PolicyViolation),
        ({"replication_factor": 0}, InvalidReplicationFactor),
        ({"replication_factor": 2}, InvalidReplicationFactor),
        ({"assignments": {0: [0]}}, InvalidRequest),
        ({"assignments": {1: [0]}, "partition_count": -1, "replication_factor": -1}, InvalidReplicaAssignment),
        ({"assignments": {0: [0, 0]}, "partition_count": -1, "replication_factor": -1}, InvalidReplicaAssignment),
        ({"assignments": {0: []}, "partition_count": -1, "replication_factor": -1}, InvalidReplicaAssignment),
        ({"assignments": {0: [9]}, "partition_count": -1, "replication_factor": -1}, InvalidReplicaAssignment),
    ],
)
def test_impossible_topics_are_refused(wanted: dict[str, object], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        plan(ClusterView(), **wanted)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 250, "a\0"])
def test_names_that_are_no_topic(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    view = view_with(plan(ClusterView(), "a.b"))
    with pytest.raises(InvalidTopic):
        plan(view, "a_b")
    with pytest.raises(TopicAlreadyExists):
        plan(view, "a.b")


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (3, None, InvalidPartitions),
        (2, None, InvalidPartitions),
        (20_000, None, PolicyViolation),
        (5, [[0]], InvalidReplicaAssignment),
        (4, [[1]], InvalidReplicaAssignment),
    ],
)
def test_impossible_growth_is_refused(count: int, assignments: list[list[int]] | None, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        plan_create_partitions(ClusterView(), plan(ClusterView()), [0], count, assignments)


@given(st.integers(1, 8), st.integers(1, 60), st.data())
def test_replicas_are_distinct_and_leaders_even(brokers: int, count: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    placed = place_replicas(list(range(brokers)), count, factor)
    assert all(len(set(ids)) == factor for ids in placed)
    leaders = [ids[0] for ids in placed]
    loads = [leaders.count(broker) for broker in range(brokers)]
    assert max(loads) - min(loads) <= 1
