"""On which brokers the replicas of partitions are placed, as pure functions.

New topics are placed as in Kafka. The first replicas go round robin over the brokers from a random start. The other
replicas follow at a distance that grows by one whenever the round robin begins again, so that the partitions of one
broker have their other replicas on different brokers. If all brokers have a rack, the list of brokers alternates
between the racks, and no rack gets a second replica of a partition before each rack has one. If only some have a rack,
racks do not count.

Plans for existing topics move as few replicas as possible. A plan is a list of moves; printing it is the preview, and
starting a reassignment for each move executes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.broker.metadata.view import ClusterView
from ottla.model.errors import InvalidReplicationFactor
from ottla.model.types import TopicPartition


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


# -- plans for existing topics ----------------------------------------------------------------------------------------


class Move(NamedTuple):
    """A partition and its replicas before and after; only the brokers in ``added`` get data."""

    partition: TopicPartition
    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.new if each not in self.old)


def plan_balance(view: ClusterView, brokers: Collection[int] | None = None) -> list[Move]:
    """Return the moves after which brokers differ by one replica and one preferred leader at most, as far as possible.

    ``brokers`` are the brokers to balance, new ones included; by default the live ones. Replicas on other brokers stay.
    A replica moves only from a broker to one that has at least two fewer, and never into a rack that has a replica of
    the partition already, unless it comes from such a rack. Partitions that are being reassigned do not move.
    """
    plan = _Plan(view, view.brokers if brokers is None else brokers)
    plan.even_replicas()
    plan.even_leaders()
    return plan.moves()


def plan_decommission(view: ClusterView, leaving: Collection[int]) -> list[Move]:
    """Return the moves after which the brokers in ``leaving`` have no replicas. No other replica moves.

    Each replica goes to the broker with the fewest replicas in a rack that the partition does not use yet, if there is
    one. Raise InvalidReplicationFactor if a partition has more replicas than brokers remain.
    """
    plan = _Plan(view, view.brokers.keys() - set(leaving))
    plan.replace(set(leaving))
    return plan.moves()


class _Plan:
    """Replica lists that are changed step by step, and the load of each broker."""

    def __init__(self, view: ClusterView, brokers: Collection[int]) -> None:
        self._brokers = sorted(brokers)
        self._racks = racks_of(view, self._brokers)
        self._old: dict[TopicPartition, tuple[int, ...]] = {
            TopicPartition(topic.name, number): partition.replicas
            for topic in view.topics.values()
            for number, partition in enumerate(topic.partitions)
            if not partition.adding and not partition.removing
        }
        self._new = {name: list(replicas) for name, replicas in self._old.items()}
        #: (giver, receiver) -> position in the giver's partitions before which none can move to the receiver
        self._scanned: dict[tuple[int, int], int] = {}
        self._load: Counter[int] = Counter(dict.fromkeys(self._brokers, 0))
        self._leaders: Counter[int] = Counter(dict.fromkeys(self._brokers, 0))
        for topic in view.topics.values():
            for partition in topic.partitions:
                self._load.update(partition.replicas)
                self._leaders[partition.replicas[0]] += 1

    def moves(self) -> list[Move]:
        pairs = ((name, old, tuple(self._new[name])) for name, old in self._old.items())
        return [Move(name, old, new) for name, old, new in pairs if old != new]

    def replace(self, leaving: set[int]) -> None:
        """Replace every replica on these brokers."""
        for name, replicas in self._new.items():
            for each in [each for each in replicas if each in leaving]:
                free = [other for other in self._brokers if other not in replicas]
                if not free:
                    raise InvalidReplicationFactor(
                        f"{name} has {len(replicas)} replicas, but only {len(self._brokers)} brokers would remain"
                    )
                rest = [other for other in replicas if other != each]
                best = min(free, key=lambda other: (self._uses_rack(rest, other), self._load[other], other))
                self._move(name, each, best)
            if self._old[name][0] in leaving:
                self._lead(name, min(replicas, key=lambda other: self._leaders[other]))

    def even_replicas(self) -> None:
        """Move replicas from brokers with many to brokers with few until they differ by one at most."""
        places: dict[int, list[TopicPartition]] = {each: [] for each in self._brokers}
        for name, replicas in self._new.items():
            for each in replicas:
                if each in places:
                    places[each].append(name)
        receivers = set(self._brokers)
        while receivers:
            to = min(receivers, key=lambda each: (self._load[each], each))
            if not self._take_one(to, places):
                receivers.remove(to)

    def _take_one(self, to: int, places: dict[int, list[TopicPartition]]) -> bool:
        """Move one replica to a broker. Return False if no broker with two more replicas has one that may move."""
        for giver in sorted(places, key=lambda each: (-self._load[each], each)):
            if self._load[giver] - self._load[to] < 2:
                return False
            names = places[giver]
            position = self._scanned.get((giver, to), 0)
            while position < len(names):
                name = names[position]
                replicas = self._new[name]
                rest = [each for each in replicas if each != giver]
                if to not in replicas and not self._uses_rack(rest, to, instead_of=giver):
                    names[position] = names[-1]
                    names.pop()
                    places[to].append(name)
                    self._move(name, giver, to)
                    self._scanned[giver, to] = position
                    return True
                position += 1
            self._scanned[giver, to] = position
        return False

    def even_leaders(self) -> None:
        """Change the order of replicas, which moves no data, until preferred leaders differ by one at most.

        A leadership may have to pass through several brokers, so the loop ends when a round changes nothing.
        """
        for _ in range(len(self._brokers) + 1):
            has_changed = False
            for name, replicas in self._new.items():
                best = min(replicas, key=lambda each: (self._leaders[each], each))
                if self._leaders[replicas[0]] - self._leaders[best] >= 2:
                    self._lead(name, best)
                    has_changed = True
            if not has_changed:
                return

    def _uses_rack(self, replicas: Sequence[int], broker: int, *, instead_of: int | None = None) -> bool:
        """Return whether a replica on ``broker`` shares its rack with another one.

        It does not count if the replica on ``instead_of`` shares a rack already: then the partition is not worse off.
        """
        if not self._racks:
            return False
        racks = {self._racks.get(each) for each in replicas}
        if instead_of is not None and self._racks.get(instead_of) in racks:
            return False
        return self._racks[broker] in racks

    def _move(self, name: TopicPartition, giver: int, to: int) -> None:
        replicas = self._new[name]
        position = replicas.index(giver)
        replicas[position] = to
        self._load[giver] -= 1
        self._load[to] += 1
        if position == 0:
            self._leaders[giver] -= 1
            self._leaders[to] += 1

    def _lead(self, name: TopicPartition, broker: int) -> None:
        replicas = self._new[name]
        self._leaders[replicas[0]] -= 1
        self._leaders[broker] += 1
        replicas.remove(broker)
        replicas.insert(0, broker)
