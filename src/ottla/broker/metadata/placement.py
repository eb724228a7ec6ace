"""On which brokers the replicas of partitions are placed, as pure functions.

New topics are placed as in Kafka. The first replicas go round robin over the brokers from a random start. The other
replicas follow at a distance that grows by one whenever the round robin begins again, so that the partitions of one
broker have their other replicas on different brokers. If all brokers have a rack, the list of brokers alternates
between the racks, and no rack gets a second replica of a partition before each rack has one. If only some have a rack,
racks do not count.

`ottla.admin.moves` has the plans that move replicas of existing topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.metadata.view import ClusterView


def racks_of(view: ClusterView, brokers: Iterable[int]) -> dict[int, str]:
    """Return the racks of brokers; empty if one of them has none, because then racks do not count."""
    racks = {each: view.brokers[each].rack if each in view.brokers else None for each in brokers}
    known = {each: rack for each, rack in racks.items() if rack is not None}
    return known if len(known) == len(racks) else {}


def place_replicas(
    brokers: Sequence[int],
    count: int,
    factor: int,
    start: int = 0,
    *,
    shift: int = 0,
    first: int = 0,
    racks: Mapping[int, str] | None = None,
) -> list[tuple[int, ...]]:
    """Return the replicas of ``count`` partitions; the first replica of each is the preferred leader.

    ``start`` is the position of the first replica of partition 0 in ``ordered_brokers``, and ``shift`` the first
    distance of the other replicas; both are random for a new topic. ``first`` is the number of the first partition.
    ``racks`` has a rack for every broker, or is empty. The caller has checked that there are ``factor`` brokers.
    """
    ordered = ordered_brokers(brokers, racks or {})
    total = len(ordered)
    placed = []
    for number in range(first, first + count):
        leader = (start + number) % total
        distance = shift + number // total
        if racks:
            placed.append(_in_racks(ordered, racks, leader, distance, factor))
        else:
            others = ((leader + 1 + (distance + each) % (total - 1)) % total for each in range(factor - 1))
            placed.append((ordered[leader], *(ordered[each] for each in others)))
    return placed


def ordered_brokers(brokers: Sequence[int], racks: Mapping[int, str]) -> list[int]:
    """Return the brokers in the order in which replicas are placed: neighbours are in different racks if possible."""
    if not racks:
        return list(brokers)
    by_rack: dict[str, list[int]] = {}
    for each in sorted(brokers):
        by_rack.setdefault(racks[each], []).append(each)
    lists = [by_rack[rack] for rack in sorted(by_rack)]
    return [each[row] for row in range(max(map(len, lists))) for each in lists if row < len(each)]


def _in_racks(ordered: list[int], racks: Mapping[int, str], leader: int, distance: int, factor: int) -> tuple[int, ...]:
    """Return the replicas of one partition: as many racks as possible, then as many brokers as possible."""
    total = len(ordered)
    rack_count = len(set(racks.values()))
    chosen = [ordered[leader]]
    used = {racks[chosen[0]]}
    step = 0
    while len(chosen) < factor:
        each = ordered[(leader + 1 + (distance * rack_count + step) % (total - 1)) % total]
        if each not in chosen and (racks[each] not in used or len(used) == rack_count):
            chosen.append(each)
            used.add(racks[each])
        step += 1
    return tuple(chosen)
