"""The server-side assignors of the consumer protocol: they assign partitions to members. Pure functions.

``uniform``  as even as the subscriptions allow, and sticky: a partition moves only if that makes the assignment more
             even.
``range``    splits each topic into contiguous ranges in the order of the members, so that equal partition numbers of
             topics of equal size go to the same member (co-partitioning). It is not sticky.

Both are deterministic and ignore racks. A topic without a partition count does not exist and is not assigned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.broker.groups.records import TopicPartitions


class MemberSpec(NamedTuple):
    """The properties of a member that an assignor uses."""

    topic_ids: frozenset[bytes]
    instance_id: str | None = None


#: (members, current target assignment by member, partition count by topic) -> new target assignment by member
Assignor = Callable[
    [Mapping[str, MemberSpec], Mapping[str, TopicPartitions], Mapping[bytes, int]], dict[str, TopicPartitions]
]

_Partition = tuple[bytes, int]

#: Each round of moves roughly halves the imbalance (UniformHeterogeneousAssignmentBuilder has the same bound).
_BALANCE_ROUNDS_MAX: Final = 16


def uniform(
    members: Mapping[str, MemberSpec], target: Mapping[str, TopicPartitions], partition_counts: Mapping[bytes, int]
) -> dict[str, TopicPartitions]:
    """Return an even and sticky assignment."""
    if not members:
        return {}
    subscriptions = {spec.topic_ids for spec in members.values()}
    held = _uniform_keep(members, target, partition_counts)
    if len(subscriptions) == 1:
        _uniform_same_topics(held, subscriptions.pop(), partition_counts)
    else:
        _uniform_mixed_topics(held, members, partition_counts)
    return {member_id: topic_partitions(partitions) for member_id, partitions in held.items()}


def range_(
    members: Mapping[str, MemberSpec], target: Mapping[str, TopicPartitions], partition_counts: Mapping[bytes, int]
) -> dict[str, TopicPartitions]:
    """Return a co-partitioned assignment of contiguous ranges.

    Static members come first, so that dynamic members which join or leave do not shift their ranges as much.
    """
    order = sorted(members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or "", each))
    ranges: dict[str, list[tuple[bytes, tuple[int, ...]]]] = {member_id: [] for member_id in members}
    for topic_id, subscribers in sorted(_subscribers(order, members, partition_counts).items()):
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + quota + (index < extra)
            if start < end:
                ranges[member_id].append((topic_id, tuple(range(start, end))))
            start = end
    return {member_id: tuple(topics) for member_id, topics in ranges.items()}


#: by the name in ``group.consumer.assignors`` and in requests
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


def topic_partitions(partitions: Iterable[_Partition]) -> TopicPartitions:
    """Return the partitions grouped by topic as the records store them, topics and partitions sorted."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(sorted(by_topic[topic_id]))) for topic_id in sorted(by_topic))


def _subscribers(
    order: Sequence[str], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[bytes, list[str]]:
    """Return the subscribed members of each existing topic, in the given order."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topic_ids:
            if topic_id in partition_counts:
                subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _uniform_keep(
    members: Mapping[str, MemberSpec], target: Mapping[str, TopicPartitions], partition_counts: Mapping[bytes, int]
) -> dict[str, list[_Partition]]:
    """Return the partitions of its current target that each member may keep: they exist and it subscribes to them."""
    held: dict[str, list[_Partition]] = {}
    taken: set[_Partition] = set()
    for member_id in sorted(members):
        topic_ids = members[member_id].topic_ids
        mine = held[member_id] = []
        for topic_id, partitions in target.get(member_id, ()):
            count = partition_counts.get(topic_id, 0) if topic_id in topic_ids else 0
            for partition in partitions:
                place = (topic_id, partition)
                if partition < count and place not in taken:
                    taken.add(place)
                    mine.append(place)
    return held


def _uniform_same_topics(
    held: dict[str, list[_Partition]], topic_ids: frozenset[bytes], partition_counts: Mapping[bytes, int]
) -> None:
    """Fill ``held`` up to equal quotas when all members subscribe to the same topics.

    If the number of partitions is not divisible, the members that hold most keep one more than the others.
    """
    partitions = [
        (topic_id, partition)
        for topic_id in sorted(topic_ids & partition_counts.keys())
        for partition in range(partition_counts[topic_id])
    ]
    quota, extra = divmod(len(partitions), len(held))
    with_extra = sorted(held, key=lambda member_id: -len(held[member_id]))[:extra]
    quotas = dict.fromkeys(held, quota) | dict.fromkeys(with_extra, quota + 1)
    for member_id, mine in held.items():
        del mine[quotas[member_id] :]
    taken = {place for mine in held.values() for place in mine}
    unfilled = [member_id for member_id in held if len(held[member_id]) < quotas[member_id]]
    free = iter([place for place in partitions if place not in taken])
    # Assign one partition to each member in turn, so that a topic is spread over many members.
    while unfilled:
        for member_id in unfilled:
            held[member_id].append(next(free))
        unfilled = [member_id for member_id in unfilled if len(held[member_id]) < quotas[member_id]]


def _uniform_mixed_topics(
    held: dict[str, list[_Partition]], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> None:
    """Fill ``held`` when members subscribe to different topics.

    Assign each free partition to the subscriber with the fewest partitions, then move partitions until a round moves
    none.
    """
    load = {member_id: len(mine) for member_id, mine in held.items()}
    owner = {place: member_id for member_id, mine in held.items() for place in mine}
    subscribers = _subscribers(sorted(members), members, partition_counts)
    # Topics with the most partitions per subscriber come first, because they leave the fewest alternatives.
    order = sorted(
        subscribers, key=lambda each: (-partition_counts[each] / len(subscribers[each]), len(subscribers[each]), each)
    )
    for topic_id in order:
        queue = [(load[member_id], member_id) for member_id in subscribers[topic_id]]
        heapq.heapify(queue)
        for partition in range(partition_counts[topic_id]):
            if (topic_id, partition) not in owner:
                count, member_id = queue[0]
                owner[topic_id, partition] = member_id
                load[member_id] = count + 1
                heapq.heapreplace(queue, (count + 1, member_id))
    for _ in range(_BALANCE_ROUNDS_MAX):
        moves = [_balance_topic(topic_id, subscribers[topic_id], partition_counts, owner, load) for topic_id in order]
        if not any(moves):
            break
    for mine in held.values():
        mine.clear()
    for place, member_id in owner.items():
        held[member_id].append(place)


def _balance_topic(
    topic_id: bytes,
    subscribers: Sequence[str],
    partition_counts: Mapping[bytes, int],
    owner: dict[_Partition, str],
    load: dict[str, int],
) -> int:
    """Move partitions of this topic from the members with the most to those with the fewest. Return how many moved."""
    mine: dict[str, list[int]] = {}
    for partition in range(partition_counts[topic_id]):
        mine.setdefault(owner[topic_id, partition], []).append(partition)
    sources = [(-load[member_id], member_id) for member_id in mine]
    destinations = [(load[member_id], member_id) for member_id in subscribers]
    heapq.heapify(sources)
    heapq.heapify(destinations)
    moves = 0
    while sources:
        most, source = sources[0]
        least, destination = destinations[0]
        if -most - least <= 1:
            break
        # A member is in both heaps, so a move makes its entry in the other heap stale: correct stale entries first.
        if load[destination] != least:
            heapq.heapreplace(destinations, (load[destination], destination))
        elif load[source] != -most:
            heapq.heapreplace(sources, (-load[source], source))
        else:
            owner[topic_id, mine[source].pop()] = destination
            load[source] -= 1
            load[destination] += 1
            moves += 1
            heapq.heapreplace(destinations, (load[destination], destination))
            if mine[source]:
                heapq.heapreplace(sources, (-load[source], source))
            else:
                heapq.heappop(sources)
    return moves
