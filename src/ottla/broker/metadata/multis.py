"""How the states of topics are divided into multis, which must not exceed ZooKeeper's limit of 1 MB. Pure.

A state grows while it exists: after a power failure of all brokers it has the end of every replica's log. So topics are
counted by their partitions, and a topic whose state could become too large for a multi of its own is not created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ottla.broker.metadata.store import MULTI_BYTES_MAX
from ottla.broker.metadata.view import ClusterView, LogEnd, PartitionView, TopicView
from ottla.model.errors import PolicyViolation

#: topics and partitions whose states are written in one multi
TOPICS_PER_MULTI = 500
PARTITIONS_PER_MULTI = 5_000
#: the rest of a multi: paths, versions and checks
_STATE_BYTES_MAX = MULTI_BYTES_MAX * 9 // 10
#: as large as they become in the life of a partition
_EPOCH, _OFFSET = 10**6, 10**13


def in_one_multi(topics: Sequence[TopicView], topics_max: int = TOPICS_PER_MULTI) -> list[TopicView]:
    """Return the first topics, at least one, whose states fit into one multi."""
    partitions = 0
    for count, topic in enumerate(topics[:topics_max]):
        partitions += len(topic.partitions)
        if count and partitions > PARTITIONS_PER_MULTI:
            return list(topics[:count])
    return list(topics[:topics_max])


def names_by_multi(view: ClusterView, names: Iterable[str], topics_max: int) -> Iterator[list[str]]:
    """Divide the names of topics so that the states of each part fit into one multi."""
    topics = [topic for name in names if (topic := view.topics.get(name)) is not None]
    while topics:
        multi = in_one_multi(topics, topics_max)
        yield [topic.name for topic in multi]
        topics = topics[len(multi) :]


def check_state_size(view: ClusterView, topic: TopicView) -> None:
    """Raise PolicyViolation if the state of a topic could become too large for the metadata store."""
    if len(view.registered) < 2 and topic.replication_factor == 1:
        return  # a broker that is alone marks no logs
    largest = _largest(max(topic.partitions, key=lambda partition: max(partition.replicas)))
    if len(topic.partitions) * largest > _STATE_BYTES_MAX:
        raise PolicyViolation(
            f"a topic with {len(topic.partitions[0].replicas)} replicas may have {_STATE_BYTES_MAX // largest} "
            "partitions at most: the metadata store keeps the state of all partitions of a topic in one node"
        )


def _largest(partition: PartitionView) -> int:
    """Return how many bytes the state of a partition may take."""
    ends = tuple(LogEnd(each, _EPOCH, _OFFSET) for each in partition.replicas)
    large = replace(
        partition, leader=max(partition.replicas), leader_epoch=_EPOCH, isr=partition.replicas, unclean=ends,
        partition_epoch=_EPOCH,
    )  # fmt: skip
    both, one = (
        len(TopicView(name="", topic_id=bytes(16), partitions=(large,) * count).state_json()) for count in (2, 1)
    )
    return both - one
