"""The assignors: complete, even, sticky, the same every time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.assignors import ASSIGNORS, Assignor, MemberSpec, range_, uniform
from ottla.broker.groups.records import TopicPartitions

Places = set[tuple[bytes, int]]
TOPICS = [number.to_bytes(16, "big") for number in range(1, 6)]
A, B, C = TOPICS[:3]

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), min_size=1)
subscriptions = st.frozensets(st.sampled_from(TOPICS))
mixed = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(MemberSpec, subscriptions), max_size=8)
same = st.builds(
    lambda names, topics: {name: MemberSpec(topics) for name in names},
    st.frozensets(st.sampled_from("abcdefgh"), min_size=1),
    subscriptions,
)


def places(partitions: TopicPartitions) -> Places:
    return {(topic_id, number) for topic_id, numbers in partitions for number in numbers}


def members(**topics: list[bytes]) -> dict[str, MemberSpec]:
    return {name: MemberSpec(frozenset(ids)) for name, ids in topics.items()}


def moved(before: Mapping[str, TopicPartitions], after: Mapping[str, TopicPartitions]) -> int:
    """Partitions that somebody had and somebody else has now."""
    owner = {place: name for name, partitions in before.items() for place in places(partitions)}
    return sum(owner.get(place, name) != name for name, partitions in after.items() for place in places(partitions))


# -- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(specs=mixed, old_specs=mixed, partition_counts=counts, old_counts=counts)
def test_every_partition_goes_to_exactly_one_subscriber(
    assignor: Assignor,
    specs: dict[str, MemberSpec],
    old_specs: dict[str, MemberSpec],
    partition_counts: dict[bytes, int],
    old_counts: dict[bytes, int],
) -> None:
    target = assignor(old_specs, {}, old_counts)
    result = assignor(specs, target, partition_counts)
    wanted = frozenset[bytes]().union(*(spec.topic_ids for spec in specs.values()))
    expected = [(topic, n) for topic in wanted for n in range(partition_counts.get(topic, 0))]
    assert sorted(place for partitions in result.values() for place in places(partitions)) == sorted(expected)
    assert set(result) == set(specs)
    for name, partitions in result.items():
        assert {topic for topic, _ in partitions} <= specs[name].topic_ids


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(specs=mixed, partition_counts=counts)
def test_order_of_the_members_does_not_matter(
    assignor: Assignor, specs: dict[str, MemberSpec], partition_counts: dict[bytes, int]
) -> None:
    backwards = dict(reversed(specs.items()))
    assert assignor(specs, {}, partition_counts) == assignor(backwards, {}, partition_counts)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(specs=mixed, partition_counts=counts)
def test_nothing_moves_when_nothing_changed(
    assignor: Assignor, specs: dict[str, MemberSpec], partition_counts: dict[bytes, int]
) -> None:
    first = assignor(specs, {}, partition_counts)
    assert assignor(specs, first, partition_counts) == first


# -- uniform ----------------------------------------------------------------------------------------------------------


@given(specs=same, old_specs=mixed, partition_counts=counts)
def test_members_with_equal_subscriptions_differ_by_one_at_most(
    specs: dict[str, MemberSpec], old_specs: dict[str, MemberSpec], partition_counts: dict[bytes, int]
) -> None:
    result = uniform(specs, uniform(old_specs, {}, partition_counts), partition_counts)
    sizes = [len(places(partitions)) for partitions in result.values()]
    assert max(sizes) - min(sizes) <= 1


@given(specs=same, old_specs=mixed, partition_counts=counts)
def test_members_with_equal_subscriptions_keep_all_that_their_quota_allows(
    specs: dict[str, MemberSpec], old_specs: dict[str, MemberSpec], partition_counts: dict[bytes, int]
) -> None:
    before = uniform(old_specs, {}, partition_counts)
    after = uniform(specs, before, partition_counts)
    topic_ids = next(iter(specs.values())).topic_ids
    keepable = {name: len({place for place in places(before.get(name, ())) if place[0] in topic_ids}) for name in specs}
    quota, extra = divmod(sum(partition_counts.get(topic, 0) for topic in topic_ids), len(specs))
    best = sum(min(count, quota) for count in keepable.values())
    best += min(extra, sum(count > quota for count in keepable.values()))
    kept = sum(len(places(before.get(name, ())) & places(after[name])) for name in specs)
    assert kept == best


@given(specs=mixed, old_specs=mixed, partition_counts=counts)
def test_no_single_move_would_make_it_more_even(
    specs: dict[str, MemberSpec], old_specs: dict[str, MemberSpec], partition_counts: dict[bytes, int]
) -> None:
    result = uniform(specs, uniform(old_specs, {}, partition_counts), partition_counts)
    size = {name: len(places(partitions)) for name, partitions in result.items()}
    for giver, partitions in result.items():
        for topic_id, _ in partitions:
            for taker, spec in specs.items():
                if topic_id in spec.topic_ids:
                    assert size[giver] - size[taker] <= 1


def test_newcomer_takes_only_its_share() -> None:
    before = uniform(members(a=[A], b=[A]), {}, {A: 9})
    after = uniform(members(a=[A], b=[A], c=[A]), before, {A: 9})
    assert moved(before, after) == 3


def test_leavers_partitions_are_spread_and_nothing_else_moves() -> None:
    before = uniform(members(a=[A], b=[A], c=[A]), {}, {A: 9})
    after = uniform(members(a=[A], b=[A]), {name: before[name] for name in "ab"}, {A: 9})
    assert moved(before, after) == 3
    assert sorted(len(places(partitions)) for partitions in after.values()) == [4, 5]


def test_topics_are_spread_over_members() -> None:
    result = uniform(members(a=[A, B], b=[A, B]), {}, {A: 2, B: 2})
    assert result == {"a": ((A, (0,)), (B, (0,))), "b": ((A, (1,)), (B, (1,)))}


def test_member_with_more_choice_leaves_the_scarce_topic_to_others() -> None:
    result = uniform(members(a=[A], b=[A, B], c=[B, C]), {}, {A: 4, B: 2, C: 2})
    assert sorted(len(places(partitions)) for partitions in result.values()) == [2, 3, 3]


# -- range ------------------------------------------------------------------------------------------------------------


def test_range_is_contiguous_and_co_partitioned() -> None:
    result = range_(members(a=[A, B], b=[A, B]), {}, {A: 3, B: 3})
    assert result == {"a": ((A, (0, 1)), (B, (0, 1))), "b": ((A, (2,)), (B, (2,)))}


def test_range_counts_only_subscribers_of_each_topic() -> None:
    result = range_(members(a=[A], b=[A, B], c=[B]), {}, {A: 4, B: 3})
    assert result == {"a": ((A, (0, 1)),), "b": ((A, (2, 3)), (B, (0, 1))), "c": ((B, (2,)),)}


def test_range_with_more_members_than_partitions_leaves_some_without() -> None:
    assert range_(members(a=[A], b=[A], c=[A]), {}, {A: 2})["c"] == ()


def test_static_members_come_first_in_a_range() -> None:
    specs = {"a": MemberSpec(frozenset([A])), "z": MemberSpec(frozenset([A]), "instance")}
    assert range_(specs, {}, {A: 2}) == {"z": ((A, (0,)),), "a": ((A, (1,)),)}
