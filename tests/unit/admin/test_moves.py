"""Plans that move few replicas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.admin.cluster import BrokerState, ClusterState
from ottla.admin.failure import Failure, NotFound
from ottla.admin.moves import Move, check_leaving, parse_plan, plan_balance, plan_decommission, plan_leaders, plan_moves
from ottla.admin.topic_state import PartitionState
from ottla.client.protocol.metadata import Node
from ottla.model.types import TopicPartition

Lists = Mapping[TopicPartition, tuple[int, ...]]


def state_of(topics: Mapping[str, Iterable[tuple[int, ...]]], racks: Mapping[int, str | None]) -> ClusterState:
    brokers = {each: BrokerState(node=Node(each, "h", 1), rack=rack) for each, rack in racks.items()}
    partitions = [
        PartitionState(name=TopicPartition(name, number), leader=ids[0], replicas=ids, isr=ids)
        for name, lists in topics.items()
        for number, ids in enumerate(lists)
    ]
    return ClusterState(cluster_id="c", controller_id=1, brokers=brokers, partitions=partitions)


def round_robin(brokers: Sequence[int], count: int, factor: int) -> list[tuple[int, ...]]:
    """Return the replicas of partitions that are spread evenly."""
    twice = [*brokers, *brokers]
    return [tuple(twice[number % len(brokers) :][:factor]) for number in range(count)]


def lists_of(state: ClusterState) -> dict[TopicPartition, tuple[int, ...]]:
    return {each.name: each.replicas for each in state.partitions}


def moved(before: Lists, moves: Iterable[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {**before, **{move.partition: move.new for move in moves}}


def spread(lists: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> tuple[int, int]:
    """Return the largest difference between two brokers in replicas and in preferred leaders."""
    lists = list(lists)
    loads, leaders = Counter(each for ids in lists for each in ids), Counter(ids[0] for ids in lists)
    brokers = list(brokers)
    return tuple(max(c[b] for b in brokers) - min(c[b] for b in brokers) for c in (loads, leaders))  # type: ignore[return-value]


def test_new_broker_gets_its_share_and_no_other_replica_moves() -> None:
    state = state_of({"t": round_robin([1, 2, 3], 12, 3)}, dict.fromkeys((1, 2, 3, 4)))
    moves = plan_balance(state)
    after = moved(lists_of(state), moves)
    assert spread(after.values(), (1, 2, 3, 4)) == (0, 0)
    assert sum(len(move.added) for move in moves) == 9, "36 replicas on four brokers"
    assert {each for move in moves for each in move.added} == {4}
    assert plan_balance(state_of({"t": after.values()}, dict.fromkeys((1, 2, 3, 4)))) == [], "a balanced cluster stays"


def test_leaders_are_balanced_by_order_alone() -> None:
    state = state_of({"t": [(1, 2, 3)] * 9}, dict.fromkeys((1, 2, 3)))
    moves = plan_balance(state)
    assert spread(moved(lists_of(state), moves).values(), (1, 2, 3)) == (0, 0)
    assert all(not move.added for move in moves)


def test_brokers_that_do_not_run_get_no_leaders() -> None:
    state = state_of({"t": [(1, 9), (1, 9), (1, 2), (1, 2)]}, dict.fromkeys((1, 2)))
    after = moved(lists_of(state), plan_leaders(state))
    assert [ids[0] for ids in after.values()].count(9) == 0
    assert spread(after.values(), (1, 2))[1] == 0


def test_replicas_of_dead_brokers_stay_where_they_are() -> None:
    state = state_of({"t": [(1, 9), (2, 9), (1, 9), (1, 9)]}, dict.fromkeys((1, 2)))
    assert all(9 in move.new for move in plan_balance(state))


def test_decommissioned_broker_is_empty_and_only_its_replicas_move() -> None:
    state = state_of({"t": round_robin([1, 2, 3, 4], 16, 2)}, dict.fromkeys((1, 2, 3, 4)))
    moves = plan_decommission(state, [4])
    before, after = lists_of(state), moved(lists_of(state), moves)
    assert not any(4 in ids for ids in after.values())
    assert all(4 in move.old and len(move.added) == 1 for move in moves)
    assert all(len(set(ids)) == 2 for ids in after.values())
    assert len(moves) == sum(4 in ids for ids in before.values())
    assert max(spread(after.values(), (1, 2, 3))) <= 1


def test_decommission_keeps_the_racks_apart() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    state = state_of({"t": [(1, 3), (3, 2), (2, 4), (4, 1)] * 3}, racks)
    for ids in moved(lists_of(state), plan_decommission(state, [4])).values():
        assert {racks[each] for each in ids} == {"a", "b"}


def test_decommission_is_refused_if_too_few_brokers_remain() -> None:
    state = state_of({"t": [(1, 2, 3)]}, dict.fromkeys((1, 2, 3)))
    with pytest.raises(Failure, match="t-0 has 3 replicas, but only 2 brokers would remain"):
        plan_decommission(state, [3])


def test_partitions_that_are_being_reassigned_are_not_moved() -> None:
    state = state_of({"t": [(1, 2)] * 4}, dict.fromkeys((1, 2, 3)))
    name = TopicPartition("t", 0)
    state.partitions[0] = PartitionState(name=name, leader=1, replicas=(1, 2, 3), isr=(1, 2), adding=(3,))
    assert all(move.partition.partition != 0 for move in plan_balance(state))


@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 10_000))
def test_plans_are_balanced_minimal_and_keep_racks_apart(count: int, factor: int, seed: int) -> None:
    random = Random(seed)
    factor = min(factor, count)
    racks = dict.fromkeys(range(count)) if seed % 2 else {each: f"r{each % 3}" for each in range(count)}
    lists = [tuple(random.sample(range(count), factor)) for _ in range(random.randint(1, 30))]
    state = state_of({"t": lists}, racks)
    before, moves = lists_of(state), plan_balance(state)
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


def test_moves_to_named_replicas_leave_out_what_does_not_change() -> None:
    state = state_of({"t": [(1, 2), (2, 3)]}, dict.fromkeys((1, 2, 3)))
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert plan_moves(state, {first: (1, 2), second: (3, 1)}) == [Move(second, (2, 3), (3, 1))]
    with pytest.raises(NotFound, match="partition 7 of topic t does not exist"):
        plan_moves(state, {TopicPartition("t", 7): (1,)})


def test_broker_that_leaves_exists_and_its_replicas_are_not_being_moved() -> None:
    state = state_of({"t": [(1, 9), (2, 3)]}, dict.fromkeys((1, 2, 3)))
    check_leaving(state, [9])
    with pytest.raises(NotFound, match="broker 8"):
        check_leaving(state, [8])
    name = TopicPartition("t", 1)
    state.partitions[1] = PartitionState(name=name, leader=2, replicas=(2, 3), isr=(2,), adding=(3,))
    with pytest.raises(Failure, match="partition 1 of topic t is being moved"):
        check_leaving(state, [3])


def test_files_of_kafka_reassign_partitions_are_read() -> None:
    text = json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]})
    assert parse_plan(text) == {TopicPartition("orders", 0): (2, 1)}
    for wrong in ("", "[]", '{"partitions": [{"topic": "orders"}]}'):
        with pytest.raises(ValueError, match="it is not of the form"):
            parse_plan(wrong)
