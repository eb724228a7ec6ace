"""How the states of topics are divided into multis."""

from __future__ import annotations

import pytest

from ottla.broker.metadata.multis import check_state_size, in_one_multi, names_by_multi
from ottla.broker.metadata.store import MULTI_BYTES_MAX
from ottla.broker.metadata.unclean_marks import mark_unclean
from ottla.broker.metadata.view import ClusterView, LogEnd, PartitionView, TopicView
from ottla.model.errors import PolicyViolation


def topic_with(partitions: int, *, name: str = "t", replicas: tuple[int, ...] = (1,)) -> TopicView:
    partition = PartitionView(
        leader=replicas[0], leader_epoch=25, replicas=replicas, isr=replicas, partition_epoch=140, min_isr=2
    )
    return TopicView(name=name, topic_id=bytes(16), partitions=(partition,) * partitions)


def topics_with(sizes: list[int]) -> list[TopicView]:
    return [topic_with(size, name=f"t{number}") for number, size in enumerate(sizes)]


@pytest.mark.parametrize(("sizes", "fitting"), [([1] * 3, 3), ([1] * 600, 500), ([4000, 1000, 1], 2), ([9000, 1], 1)])
def test_topics_of_one_multi_have_a_limited_number_of_partitions(sizes: list[int], fitting: int) -> None:
    topics = topics_with(sizes)
    assert in_one_multi(topics) == topics[:fitting]


def test_names_are_divided_by_the_partitions_of_their_topics() -> None:
    view = ClusterView()
    view.topics |= {topic.name: topic for topic in topics_with([4000, 1000, 1, 6000, 2])}
    names = ["t0", "t1", "gone", "t2", "t3", "t4"]
    assert list(names_by_multi(view, names, 100)) == [["t0", "t1"], ["t2"], ["t3"], ["t4"]]
    assert list(names_by_multi(view, names, 1)) == [["t0"], ["t1"], ["t2"], ["t3"], ["t4"]]


@pytest.mark.parametrize("replicas", [(1, 2, 3), (1001, 1002, 1003), (1, 2, 3, 4, 5)])
def test_largest_topic_fits_into_a_multi_when_all_its_replicas_are_marked(replicas: tuple[int, ...]) -> None:
    """Each broker writes the ends of its logs after a power failure; one that could not would never start."""
    with pytest.raises(PolicyViolation, match="partitions at most") as refusal:
        check_state_size(ClusterView(), topic_with(20_000, replicas=replicas))
    largest = int(str(refusal.value).split(" may have ")[1].split()[0])
    marked = topic_with(largest, replicas=replicas)
    check_state_size(ClusterView(), marked)
    for broker in replicas:
        ends = {number: LogEnd(broker, 25, 12_345_678_901) for number in range(largest)}
        marked = mark_unclean(marked, broker, ends) or marked
    assert all(len(each.unclean) == len(replicas) for each in marked.partitions)
    assert len(marked.state_json()) < MULTI_BYTES_MAX


def test_broker_that_is_alone_has_larger_topics() -> None:
    check_state_size(ClusterView(), topic_with(20_000))
    view = ClusterView()
    view.registered |= {1: 0, 2: 0}
    with pytest.raises(PolicyViolation):
        check_state_size(view, topic_with(20_000))
