"""Placement of new replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.metadata.nodes import broker_json, broker_path
from ottla.broker.metadata.placement import ordered_brokers, place_replicas, racks_of
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.topic_plans import NewTopic, plan_create_partitions, plan_create_topic
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.model.types import Endpoint


def view_of(topics: Mapping[str, Iterable[tuple[int, ...]]], racks: Mapping[int, str | None]) -> ClusterView:
    view = ClusterView()
    for each, rack in racks.items():
        value = broker_json([Endpoint("P", "h", 1)], rack=rack, incarnation=b"a", timestamp_ms=0)
        view.apply([Changed(broker_path(each), Node(value, 0, each))])
    for name, lists in topics.items():
        partitions = tuple(PartitionView(leader=ids[0], leader_epoch=0, replicas=ids, isr=ids) for ids in lists)
        view.topics[name] = TopicView(name=name, topic_id=name.encode().ljust(16, b"0"), partitions=partitions)
    return view


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
