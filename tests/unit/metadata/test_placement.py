"""Placement of new replicas, and plans that move few of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.metadata.nodes import broker_json, broker_path
from ottla.broker.metadata.placement import (
    Move,
    ordered_brokers,
    place_replicas,
    plan_balance,
    plan_decommission,
    racks_of,
)
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.topic_plans import NewTopic, plan_create_partitions, plan_create_topic
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.model.errors import InvalidReplicationFactor
from ottla.model.types import Endpoint, TopicPartition

Lists = Mapping[TopicPartition, tuple[int, ...]]


def view_of(topics: Mapping[str, Iterable[tuple[int, ...]]], racks: Mapping[int, str | None]) -> ClusterView:
    view = ClusterView()
    for each, rack in racks.items():
        value = broker_json([Endpoint("P", "h", 1)], rack=rack, incarnation=b"a", timestamp_ms=0)
        view.apply([Changed(broker_path(each), Node(value, 0, each))])
    for name, lists in topics.items():
        partitions = tuple(PartitionView(leader=ids[0], leader_epoch=0, replicas=ids, isr=ids) for ids in lists)
        view.topics[name] = TopicView(name=name, topic_id=name.encode().ljust(16, b"0"), partitions=partitions)
    return view


def lists_of(view: ClusterView) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic.name, number): each.replicas
        for topic in view.topics.values()
        for number, each in enumerate(topic.partitions)
    }


def moved(before: Lists, moves: Iterable[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {**before, **{move.partition: move.new for move in moves}}


def spread(lists: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> tuple[int, int]:
    """Return the largest difference between two brokers in replicas and in preferred leaders."""
    lists = list(lists)
    loads, leaders = Counter(each for ids in lists for each in ids), Counter(ids[0] for ids in lists)
    brokers = list(brokers)
    return tuple(max(c[b] for b in brokers) - min(c[b] for b in brokers) for c in (loads, leaders))  # type: ignore[return-value]


# -- new topics -------------------------------------------------------------------------------------------------------


def test_placement_without_racks_is_that_of_kafka() -> None:
    assert place_replicas([0, 1, 2, 3, 4], 10, 3) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_placement_with_racks_is_that_of_kafka() -> None:
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert ordered_brokers(list(racks), racks) == [0, 3, 1, 5, 4, 2]
    assert place_replicas(list(racks), 7, 3, racks=racks) == [
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2),
    ]  # fmt: skip


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.data())
def test_replicas_are_in_as_many_racks_as_possible(
    rack_count: int, per_rack: int, count: int, data: st.DataObject
) -> None:
    racks = {number: f"r{number % rack_count}" for number in range(rack_count * per_rack)}
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 50))
    placed = place_replicas(list(racks), count, factor, start, shift=shift, racks=racks)
    for ids in placed:
        assert len(set(ids)) == factor
        assert len({racks[each] for each in ids}) == min(factor, rack_count)
    leaders = Counter(ids[0] for ids in placed)
    assert max(leaders.values()) - min(leaders[each] for each in racks) <= 1


def test_racks_do_not_count_if_a_broker_has_none() -> None:
    view = view_of({}, {1: "a", 2: None})
    assert racks_of(view, [1, 2]) == {} and racks_of(view, [1]) == {1: "a"} and racks_of(view, [1, 7]) == {}


def test_new_topic_uses_the_racks_and_starts_at_random() -> None:
    view = view_of({}, {1: "a", 2: "a", 3: "b", 4: "b"})
    firsts = set()
    for number in range(20):
        wanted = NewTopic(name="t", partition_count=4, replication_factor=2, assignments={}, config={})
        topic = plan_create_topic(
            view, list(view.brokers), wanted, topic_id=Random(number).randbytes(16), default_partitions=1,
            default_replication_factor=1,
        )  # fmt: skip
        firsts.add(topic.partitions[0].leader)
        for each in topic.partitions:
            assert len({view.brokers[broker].rack for broker in each.replicas}) == 2
        larger = plan_create_partitions(view, topic, list(view.brokers), 8, None)
        assert spread([each.replicas for each in larger.partitions], view.brokers) == (0, 0), "it continues"
    assert firsts == {1, 2, 3, 4}


# -- plans ------------------------------------------------------------------------------------------------------------


def test_new_broker_gets_its_share_and_no_other_replica_moves() -> None:
    view = view_of({"t": place_replicas([1, 2, 3], 12, 3)}, dict.fromkeys((1, 2, 3, 4)))
    moves = plan_balance(view)
    after = moved(lists_of(view), moves)
    assert spread(after.values(), (1, 2, 3, 4)) == (0, 0)
    assert sum(len(move.added) for move in moves) == 9, "36 replicas on four brokers"
    assert {each for move in moves for each in move.added} == {4}
    assert plan_balance(view_of({"t": after.values()}, dict.fromkeys((1, 2, 3, 4)))) == [], "a balanced cluster stays"


def test_leaders_are_balanced_by_order_alone() -> None:
    view = view_of({"t": [(1, 2, 3)] * 9}, dict.fromkeys((1, 2, 3)))
    moves = plan_balance(view)
    assert spread(moved(lists_of(view), moves).values(), (1, 2, 3)) == (0, 0)
    assert all(not move.added for move in moves)


def test_replicas_of_dead_brokers_stay_where_they_are() -> None:
    view = view_of({"t": [(1, 9), (2, 9), (1, 9), (1, 9)]}, dict.fromkeys((1, 2)))
    assert all(9 in move.new for move in plan_balance(view))


def test_decommissioned_broker_is_empty_and_only_its_replicas_move() -> None:
    view = view_of({"t": place_replicas([1, 2, 3, 4], 16, 2)}, dict.fromkeys((1, 2, 3, 4)))
    moves = plan_decommission(view, [4])
    before, after = lists_of(view), moved(lists_of(view), moves)
    assert not any(4 in ids for ids in after.values())
    assert all(4 in move.old and len(move.added) == 1 for move in moves)
    assert all(len(set(ids)) == 2 for ids in after.values())
    assert len(moves) == sum(4 in ids for ids in before.values())
    assert max(spread(after.values(), (1, 2, 3))) <= 1


def test_decommission_keeps_the_racks_apart() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    view = view_of({"t": place_replicas(list(racks), 12, 2, racks=racks)}, racks)
    for ids in moved(lists_of(view), plan_decommission(view, [4])).values():
        assert {racks[each] for each in ids} == {"a", "b"}


def test_decommission_is_refused_if_too_few_brokers_remain() -> None:
    view = view_of({"t": [(1, 2, 3)]}, dict.fromkeys((1, 2, 3)))
    with pytest.raises(InvalidReplicationFactor, match="t-0 has 3 replicas, but only 2 brokers would remain"):
        plan_decommission(view, [3])


def test_partitions_that_are_being_reassigned_are_not_moved() -> None:
    view = view_of({"t": [(1, 2)] * 4}, dict.fromkeys((1, 2, 3)))
    topic = view.topics["t"]
    moving = PartitionView(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2), adding=(3,))
    view.topics["t"] = TopicView(name="t", topic_id=topic.topic_id, partitions=(moving, *topic.partitions[1:]))
    assert all(move.partition.partition != 0 for move in plan_balance(view))


@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 10_000))
def test_plans_are_balanced_minimal_and_keep_racks_apart(count: int, factor: int, seed: int) -> None:
    random = Random(seed)
    factor = min(factor, count)
    racks = dict.fromkeys(range(count)) if seed % 2 else {each: f"r{each % 3}" for each in range(count)}
    lists = [tuple(random.sample(range(count), factor)) for _ in range(random.randint(1, 30))]
    view = view_of({"t": lists}, racks)
    before, moves = lists_of(view), plan_balance(view)
    after = moved(before, moves)
    assert all(len(set(ids)) == factor for ids in after.values())
    for name, ids in after.items():
        assert len({racks[each] for each in ids}) >= len({racks[each] for each in before[name]})
    if seed % 2:
        replicas, _ = spread(after.values(), range(count))
        assert replicas <= 1
        average = len(lists) * factor / count
        loads = Counter(each for ids in lists for each in ids)
        surplus = sum(max(0, loads[each] - int(average)) for each in range(count))
        assert sum(len(move.added) for move in moves) <= surplus
