"""Plans that move replicas of existing topics, as few as possible, and that let other replicas lead.

A plan is a list of moves; showing it is the preview, and starting a reassignment for each move executes it. Planning is
pure. Works with Ottla and with Apache Kafka.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.admin.cluster import ClusterAdmin, ClusterState, Election
from ottla.admin.failure import Failure, NotFound
from ottla.admin.topic_state import PartitionState
from ottla.model.types import TopicPartition


class Move(NamedTuple):
    """A partition and its replicas before and after; only the brokers in ``added`` get data."""

    partition: TopicPartition
    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.new if each not in self.old)


def plan_balance(state: ClusterState, brokers: Collection[int] | None = None) -> list[Move]:
    """Return the moves after which brokers differ by one replica and one preferred leader at most, as far as possible.

    ``brokers`` are the brokers to balance, new ones included; by default the live ones. Replicas on other brokers stay.
    A replica moves only from a broker to one that has at least two fewer, and never into a rack that has a replica of
    the partition already, unless it comes from such a rack. Partitions that are being reassigned do not move.
    """
    plan = _Plan(state, state.brokers if brokers is None else brokers)
    plan.even_replicas()
    plan.even_leaders()
    return plan.moves()


def plan_leaders(state: ClusterState) -> list[Move]:
    """Return the changes of the order of replicas after which the brokers lead evenly. No data moves."""
    plan = _Plan(state, state.brokers)
    plan.even_leaders()
    return plan.moves()


def plan_decommission(state: ClusterState, leaving: Collection[int]) -> list[Move]:
    """Return the moves after which the brokers in ``leaving`` have no replicas. No other replica moves.

    Each replica goes to the broker with the fewest replicas in a rack that the partition does not use yet, if there is
    one. Raise Failure if a partition has more replicas than brokers remain.
    """
    plan = _Plan(state, state.brokers.keys() - set(leaving))
    plan.replace(set(leaving))
    return plan.moves()


def plan_moves(state: ClusterState, targets: Mapping[TopicPartition, tuple[int, ...]]) -> list[Move]:
    """Return the moves to these replicas, without those that change nothing. Raise NotFound."""
    replicas = {each.name: each.replicas for each in state.partitions}
    for name in targets:
        if name not in replicas:
            raise NotFound(f"partition {name.partition} of topic {name.topic} does not exist; see 'ottla topic list'")
    return [Move(name, replicas[name], target) for name, target in targets.items() if target != replicas[name]]


def parse_plan(text: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the targets of a file of kafka-reassign-partitions. Raise ValueError if it has another form."""
    try:
        rows = json.loads(text)["partitions"]
        return {TopicPartition(str(r["topic"]), int(r["partition"])): tuple(map(int, r["replicas"])) for r in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'it is not of the form {{"partitions": [{{"topic": ..., "partition": ..., "replicas": [...]}}]}} ({error})'
        ) from None


def check_leaving(state: ClusterState, brokers: Iterable[int]) -> None:
    """Raise a Failure if one of these brokers does not exist, or its replicas are just being moved."""
    for number in brokers:
        if number not in state.brokers and not any(number in each.replicas for each in state.partitions):
            raise NotFound(f"broker {number} is not in the cluster and has no replicas; see 'ottla cluster brokers'")
    for each in state.partitions:
        if each.is_reassigned and set(each.replicas) & set(brokers):
            raise Failure(
                f"partition {each.name.partition} of topic {each.name.topic} is being moved; wait until "
                "'ottla cluster reassign' shows no moves, then run this again"
            )


def move_row(move: Move) -> dict[str, Any]:
    """Return a move as values of JSON."""
    return {
        "topic_name": move.partition.topic,
        "partition_id": move.partition.partition,
        "replicas": list(move.old),
        "new_replicas": list(move.new),
        "adding": list(move.added),
    }


def needs_election(each: PartitionState, *, unclean: bool) -> bool:
    """Return whether an election changes the leader: a preferred one that may lead, or an unclean one without any."""
    if unclean:
        return each.leader is None
    return each.leader != each.preferred and each.preferred in each.isr


def finish_moves(admin: ClusterAdmin, moves: Sequence[Move]) -> dict[TopicPartition, Failure]:
    """Let the preferred replicas of the moved partitions lead. Return the moves that did not end as planned."""
    admin.elect(Election.PREFERRED, [move.partition for move in moves])
    planned = {move.partition: move.new for move in moves}

    def differing(state: ClusterState) -> set[TopicPartition]:
        return {each.name for each in state.partitions if planned.get(each.name, each.replicas) != each.replicas}

    failed = differing(admin.wait_for(lambda state: not differing(state)))
    return {
        move.partition: Failure(
            f"partition {move.partition.partition} of topic {move.partition.topic} has other replicas than planned: "
            "the move was cancelled or replaced; run this again"
        )
        for move in moves
        if move.partition in failed
    }


class _Plan:
    """Replica lists that are changed step by step, and the load of each broker."""

    def __init__(self, state: ClusterState, brokers: Collection[int]) -> None:
        self._brokers = sorted(brokers)
        self._racks = _racks_of(state, self._brokers)
        self._old: dict[TopicPartition, tuple[int, ...]] = {
            each.name: each.replicas for each in state.partitions if not each.is_reassigned
        }
        self._new = {name: list(replicas) for name, replicas in self._old.items()}
        #: (giver, receiver) -> position in the giver's partitions before which none can move to the receiver
        self._scanned: dict[tuple[int, int], int] = {}
        self._load: Counter[int] = Counter(dict.fromkeys(self._brokers, 0))
        self._leaders: Counter[int] = Counter(dict.fromkeys(self._brokers, 0))
        for partition in state.partitions:
            self._load.update(partition.replicas)
            self._leaders[partition.preferred] += 1

    def moves(self) -> list[Move]:
        pairs = ((name, old, tuple(self._new[name])) for name, old in self._old.items())
        return [Move(name, old, new) for name, old, new in pairs if old != new]

    def replace(self, leaving: set[int]) -> None:
        """Replace every replica on these brokers."""
        for name, replicas in self._new.items():
            for each in [each for each in replicas if each in leaving]:
                free = [other for other in self._brokers if other not in replicas]
                if not free:
                    raise Failure(
                        f"{name} has {len(replicas)} replicas, but only {len(self._brokers)} brokers would remain; "
                        "start more brokers first, or delete the topic"
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
        balanced = frozenset(self._brokers)
        for _ in range(len(self._brokers) + 1):
            has_changed = False
            for name, replicas in self._new.items():
                # A broker that is not balanced, because it does not run, is no better leader for having few.
                own = [each for each in replicas if each in balanced] or replicas
                best = min(own, key=lambda each: (self._leaders[each], each))
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


def _racks_of(state: ClusterState, brokers: Iterable[int]) -> dict[int, str]:
    """Return the racks of brokers; empty if one of them has none, because then racks do not count."""
    racks = {each: state.brokers[each].rack if each in state.brokers else None for each in brokers}
    known = {each: rack for each, rack in racks.items() if rack is not None}
    return known if len(known) == len(racks) else {}
