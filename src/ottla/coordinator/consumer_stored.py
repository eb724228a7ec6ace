"""What the log says of a consumer group: the last value of each of its keys, and what follows from them.

``replay`` is the only writer. Records only set, so replaying one twice changes nothing, and the order of records with
different keys matters to nobody. A ``Draft`` builds on that: it replays the records of a decision while it is being
made, so that each step sees what the steps before it decided, and takes them back at the end by replaying what was
there before. The decision becomes true when its records were appended and are replayed for good.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from ottla.coordinator.outcome import Topics
from ottla.coordinator.reconcile import NEWCOMER, is_reconciled
from ottla.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    Key,
    TopicPartitions,
    Value,
)

_T = TypeVar("_T")


class StoredGroup:
    """The durable state of one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: None before the group's first epoch
        self.epoch_value: ConsumerGroupMetadataValue | None = None
        self.assignment_value: ConsumerGroupTargetAssignmentMetadataValue | None = None
        #: who is a member: by member id, what it says of itself
        self.members: dict[str, ConsumerGroupMemberMetadataValue] = {}
        self.targets: dict[str, ConsumerGroupTargetAssignmentMemberValue] = {}
        self.currents: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = {}
        self.regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}

        # Follows from the above
        #: instance id -> member id
        self.static_members: dict[str, str] = {}
        #: (topic id, partition) -> who owns it, be it assigned or pending revocation
        self.owners: dict[tuple[bytes, int], str] = {}
        #: members that speak the classic protocol, and by how many of them a protocol is supported
        self.classic_count = 0
        self.classic_protocols: Counter[str] = Counter()
        #: expression -> members that are subscribed to it
        self.regex_subscribers: Counter[str] = Counter()

    # -- the one writer -------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        key, value = record
        match key:
            case ConsumerGroupMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMetadataValue)
                self.epoch_value = value
            case ConsumerGroupMemberMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
                self._replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
                self.assignment_value = value
            case ConsumerGroupTargetAssignmentMemberKey():
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
                _put(self.targets, key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
                self._replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
                _put(self.regexes, key.regular_expression, value)
            case ConsumerGroupPartitionMetadataKey():
                pass  # what it held is in the metadata hash since 4.1
            case _:
                raise AssertionError(f"no record of a consumer group: {key}")

    def _replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        old = self.members.get(member_id)
        if old is not None:
            self._count_member(old, -1)
            if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        if value is not None:
            self._count_member(value, +1)
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id
        _put(self.members, member_id, value)

    def _count_member(self, value: ConsumerGroupMemberMetadataValue, step: int) -> None:
        if value.subscribed_topic_regex:
            self.regex_subscribers[value.subscribed_topic_regex] += step
        if value.classic_member_metadata is not None:
            self.classic_count += step
            for name, _ in value.classic_member_metadata.supported_protocols:
                self.classic_protocols[name] += step

    def _replay_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        for place in _places(self.currents.get(member_id)):
            if self.owners.get(place) == member_id:
                del self.owners[place]
        for place in _places(value):
            self.owners[place] = member_id
        _put(self.currents, member_id, value)

    def value(self, key: Key) -> Value | None:
        """The last value of the key."""
        match key:
            case ConsumerGroupMetadataKey():
                return self.epoch_value
            case ConsumerGroupMemberMetadataKey():
                return self.members.get(key.member_id)
            case ConsumerGroupTargetAssignmentMetadataKey():
                return self.assignment_value
            case ConsumerGroupTargetAssignmentMemberKey():
                return self.targets.get(key.member_id)
            case ConsumerGroupCurrentMemberAssignmentKey():
                return self.currents.get(key.member_id)
            case ConsumerGroupRegularExpressionKey():
                return self.regexes.get(key.regular_expression)
            case _:
                return None

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """A group starts at 1, as in Kafka since 4.3, so that its first members are at 2."""
        return self.epoch_value.epoch if self.epoch_value is not None else 1

    @property
    def metadata_hash(self) -> int:
        return self.epoch_value.metadata_hash if self.epoch_value is not None else 0

    @property
    def assignment_epoch(self) -> int:
        return self.assignment_value.assignment_epoch if self.assignment_value is not None else 0

    @property
    def is_gone(self) -> bool:
        """Nothing of it is in the log, or never was."""
        return not (
            self.epoch_value or self.assignment_value or self.members or self.targets or self.currents or self.regexes
        )

    @property
    def state(self) -> str:
        """One of Kafka's words for it, as clients see them."""
        if self.is_gone:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        epoch = self.assignment_epoch
        return "Stable" if all(is_reconciled(self.current(each), epoch) for each in self.members) else "Reconciling"

    def current(self, member_id: str) -> ConsumerGroupCurrentMemberAssignmentValue:
        return self.currents.get(member_id, NEWCOMER)

    def owned(self, member_id: str) -> TopicPartitions:
        """What the member may still read: its assignment, and what it was asked to give back and has not."""
        by_topic: dict[bytes, set[int]] = {}
        for topic_id, number in _places(self.currents.get(member_id)):
            by_topic.setdefault(topic_id, set()).add(number)
        return tuple((topic_id, tuple(sorted(numbers))) for topic_id, numbers in sorted(by_topic.items()))

    def target(self, member_id: str) -> TopicPartitions:
        value = self.targets.get(member_id)
        return value.topic_partitions if value is not None else ()

    def topics_of(self, member: ConsumerGroupMemberMetadataValue) -> frozenset[str]:
        """By name and by expression; an expression that is not resolved matches nothing."""
        names = frozenset(member.subscribed_topic_names)
        regex = self.regexes.get(member.subscribed_topic_regex or "")
        return names.union(regex.topics) if regex is not None else names

    def subscribed_topics(self) -> set[str]:
        # Most members of a group say the same, so that only what differs is looked at.
        subscriptions = {member.subscribed_topic_names for member in self.members.values()}
        names = {name for subscription in subscriptions for name in subscription}
        for expression, count in self.regex_subscribers.items():
            if count and (regex := self.regexes.get(expression)) is not None:
                names.update(regex.topics)
        return names

    def tombstones(self) -> list[CoordinatorRecord]:
        """All that removes the group from the log. The epoch goes last: until then there is a group."""
        return [CoordinatorRecord(key, None) for key in self._keys()]

    def member_tombstones(self, member_id: str) -> list[CoordinatorRecord]:
        group = self.group_id
        return [
            CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group, member_id), None),
            CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group, member_id), None),
            CoordinatorRecord(ConsumerGroupMemberMetadataKey(group, member_id), None),
        ]

    def _keys(self) -> Iterator[Key]:
        group = self.group_id
        yield from (ConsumerGroupCurrentMemberAssignmentKey(group, each) for each in self.currents)
        yield from (ConsumerGroupTargetAssignmentMemberKey(group, each) for each in self.targets)
        yield ConsumerGroupTargetAssignmentMetadataKey(group)
        yield from (ConsumerGroupMemberMetadataKey(group, each) for each in self.members)
        yield from (ConsumerGroupRegularExpressionKey(group, each) for each in self.regexes)
        # Kafka up to 4.0 may have written one, which we did not keep.
        yield ConsumerGroupPartitionMetadataKey(group)
        yield ConsumerGroupMetadataKey(group)


class Draft:
    """A decision in the making. While it is open, the group is as the decision would leave it."""

    def __init__(self, stored: StoredGroup) -> None:
        self._stored = stored
        self._undo: list[CoordinatorRecord] = []
        self.records: list[CoordinatorRecord] = []

    def emit(self, key: Key, value: Value | None) -> None:
        self.add(CoordinatorRecord(key, value))

    def add(self, record: CoordinatorRecord) -> None:
        self._undo.append(CoordinatorRecord(record.key, self._stored.value(record.key)))
        self.records.append(record)
        self._stored.replay(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for record in reversed(self._undo):
            self._stored.replay(record)


def metadata_hash(names: set[str], topics: Topics) -> int:
    """Changes when a topic of these comes, goes, or gets partitions; fits an int64. No topics hash to 0, as in Kafka.

    Kafka hashes something else. A group that moves over from there gets one more epoch on its first heartbeat.
    """
    state = b"".join(
        b"%b\0%b%d\0" % (name.encode(), topic_id, topics.partition_count(name) or 0)
        for name in sorted(names)
        if (topic_id := topics.topic_id(name)) is not None
    )
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big", signed=True) if state else 0


def _places(value: ConsumerGroupCurrentMemberAssignmentValue | None) -> Iterator[tuple[bytes, int]]:
    if value is not None:
        for partitions in (value.assigned_partitions, value.partitions_pending_revocation):
            for topic_id, numbers in partitions:
                for number in numbers:
                    yield topic_id, number


def _put(values: dict[str, _T], name: str, value: _T | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
