"""The server-side assignors of the consumer protocol: who should read which partition. Pure functions.

``uniform``  as even as the subscriptions allow; a partition moves only if that makes the assignment more even.
``range``    each topic is cut into contiguous ranges in the order of the members, so that equal partition numbers of
             topics of equal size meet at one member (co-partitioning). It does not try to leave partitions in place.

Both are deterministic. Racks are not looked at. A topic that has no partition count does not exist: nobody gets it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.coordinator.records import TopicPartitions


class MemberSpec(NamedTuple):
    """What an assignor has to know of a member."""

    topic_ids: frozenset[bytes]
    instance_id: str | None = None


#: members, the target so far by member, partitions by topic -> the new target of every member
Assignor = Callable[
    [Mapping[str, MemberSpec], Mapping[str, TopicPartitions], Mapping[bytes, int]], dict[str, TopicPartitions]
]

_Partition = tuple[bytes, int]

#: Each round of moves roughly halves what is uneven (UniformHeterogeneousAssignmentBuilder has the same bound).
_BALANCE_ROUNDS_MAX: Final = 16


def uniform(
    members: Mapping[str, MemberSpec], target: Mapping[str, TopicPartitions], partition_counts: Mapping[bytes, int]
) -> dict[str, TopicPartitions]:
    """Even and sticky."""
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
    """Contiguous and co-partitioned. Static members come first, so that their ranges outlive dynamic ones."""
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


#: by the names that ``group.consumer.assignors`` and clients know
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


def topic_partitions(partitions: Iterable[_Partition]) -> TopicPartitions:
    """As the records have them: topics and partitions in order."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(sorted(by_topic[topic_id]))) for topic_id in sorted(by_topic))


def _subscribers(
    order: Sequence[str], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> dict[bytes, list[str]]:
    """Topic -> members, in this order; only topics that exist."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topic_ids:
            if topic_id in partition_counts:
                subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _uniform_keep(
    members: Mapping[str, MemberSpec], target: Mapping[str, TopicPartitions], partition_counts: Mapping[bytes, int]
) -> dict[str, list[_Partition]]:
    """What every member may keep of what it was given before, in order."""
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
    """All members may have everything: each gets its quota, and the few extra ones stay with those who have more."""
    everything = [
        (topic_id, partition)
        for topic_id in sorted(topic_ids & partition_counts.keys())
        for partition in range(partition_counts[topic_id])
    ]
    quota, extra = divmod(len(everything), len(held))
    rich = sorted(held, key=lambda member_id: -len(held[member_id]))[:extra]
    quotas = dict.fromkeys(held, quota) | dict.fromkeys(rich, quota + 1)
    for member_id, mine in held.items():
        del mine[quotas[member_id] :]
    taken = {place for mine in held.values() for place in mine}
    unfilled = [member_id for member_id in held if len(held[member_id]) < quotas[member_id]]
    free = iter([place for place in everything if place not in taken])
    # One each in turn, so that a topic is spread over many members rather than given to one.
    while unfilled:
        for member_id in unfilled:
            held[member_id].append(next(free))
        unfilled = [member_id for member_id in unfilled if len(held[member_id]) < quotas[member_id]]


def _uniform_mixed_topics(
    held: dict[str, list[_Partition]], members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> None:
    """Members want different topics: hand out the free partitions to whoever has least, then move while it helps."""
    load = {member_id: len(mine) for member_id, mine in held.items()}
    owner = {place: member_id for member_id, mine in held.items() for place in mine}
    subscribers = _subscribers(sorted(members), members, partition_counts)
    # Topics with the most partitions per subscriber leave the least choice, so they go first.
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
    """Move partitions of this topic from those who have most to those who have least. Returns how many moved."""
    mine: dict[str, list[int]] = {}
    for partition in range(partition_counts[topic_id]):
        mine.setdefault(owner[topic_id, partition], []).append(partition)
    givers = [(-load[member_id], member_id) for member_id in mine]
    takers = [(load[member_id], member_id) for member_id in subscribers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    moves = 0
    while givers:
        most, giver = givers[0]
        least, taker = takers[0]
        if -most - least <= 1:
            break
        # A member stands in both heaps; whichever entry is out of date is put right before it is believed.
        if load[taker] != least:
            heapq.heapreplace(takers, (load[taker], taker))
        elif load[giver] != -most:
            heapq.heapreplace(givers, (-load[giver], giver))
        else:
            owner[topic_id, mine[giver].pop()] = taker
            load[giver] -= 1
            load[taker] += 1
            moves += 1
            heapq.heapreplace(takers, (load[taker], taker))
            if mine[giver]:
                heapq.heapreplace(givers, (-load[giver], giver))
            else:
                heapq.heappop(givers)
    return moves
