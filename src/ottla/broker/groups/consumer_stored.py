"""The durable state of a consumer group: the last value of each of its keys, and indexes derived from these values.

``replay`` is the only writer. A record sets the value of its key, so replaying it twice changes nothing, and the order
of records with different keys does not matter. A ``Draft`` uses this: it replays the records of a heartbeat as they are
emitted, so that each step sees the results of the steps before it. At the end it replays the previous values, which
restores the state. The records are replayed again, permanently, after they were appended to the log.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from ottla.broker.client import MaySee
from ottla.broker.coordinators.outcome import Moment, R, Topics
from ottla.broker.groups.context import GroupOutcome
from ottla.broker.groups.journal import Cause, Rebalance
from ottla.broker.groups.reconcile import NEW_MEMBER, is_reconciled
from ottla.broker.groups.records import (
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
        #: member id -> subscription and properties
        self.members: dict[str, ConsumerGroupMemberMetadataValue] = {}
        self.targets: dict[str, ConsumerGroupTargetAssignmentMemberValue] = {}
        self.currents: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = {}
        self.regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}

        # Derived from the values above
        #: instance id -> member id
        self.static_members: dict[str, str] = {}
        #: (topic id, partition) -> id of the member to which it is assigned, or from which its revocation is pending
        self.owners: dict[tuple[bytes, int], str] = {}
        #: number of classic members, and by protocol name the number of classic members that support it
        self.classic_count = 0
        self.classic_protocols: Counter[str] = Counter()
        #: regular expression -> number of members that are subscribed to it
        self.regex_subscribers: Counter[str] = Counter()

    # -- replay ---------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Set the value of the record's key, or remove it if the record is a tombstone."""
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
                pass  # Kafka replaced this record by the metadata hash in 4.1
            case _:
                raise AssertionError(f"not a record of a consumer group: {key}")

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
        for partition in _owned_partitions(self.currents.get(member_id)):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        for partition in _owned_partitions(value):
            self.owners[partition] = member_id
        _put(self.currents, member_id, value)

    def value(self, key: Key) -> Value | None:
        """Return the last value of the key; None if it has none."""
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

    # -- read -----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Return the group epoch. It starts at 1, as in Kafka since 4.3, so the first members have epoch 2."""
        return self.epoch_value.epoch if self.epoch_value is not None else 1

    @property
    def metadata_hash(self) -> int:
        return self.epoch_value.metadata_hash if self.epoch_value is not None else 0

    @property
    def assignment_epoch(self) -> int:
        return self.assignment_value.assignment_epoch if self.assignment_value is not None else 0

    @property
    def has_no_records(self) -> bool:
        """Return whether the group has no values: it was deleted, or its first record was not replayed yet."""
        return not (
            self.epoch_value or self.assignment_value or self.members or self.targets or self.currents or self.regexes
        )

    @property
    def state(self) -> str:
        """Return the name of the group's state in Kafka's protocol."""
        if self.has_no_records:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        epoch = self.assignment_epoch
        return "Stable" if all(is_reconciled(self.current(each), epoch) for each in self.members) else "Reconciling"

    def current(self, member_id: str) -> ConsumerGroupCurrentMemberAssignmentValue:
        return self.currents.get(member_id, NEW_MEMBER)

    def owned(self, member_id: str) -> TopicPartitions:
        """Return the partitions that the member owns: those assigned and those pending revocation."""
        by_topic: dict[bytes, set[int]] = {}
        for topic_id, number in _owned_partitions(self.currents.get(member_id)):
            by_topic.setdefault(topic_id, set()).add(number)
        return tuple((topic_id, tuple(sorted(numbers))) for topic_id, numbers in sorted(by_topic.items()))

    def target(self, member_id: str) -> TopicPartitions:
        value = self.targets.get(member_id)
        return value.topic_partitions if value is not None else ()

    def topics_of(self, member: ConsumerGroupMemberMetadataValue) -> frozenset[str]:
        """Return the topics of a member, by name and by regular expression. An unresolved expression has no topics."""
        names = frozenset(member.subscribed_topic_names)
        regex = self.regexes.get(member.subscribed_topic_regex or "")
        return names.union(regex.topics) if regex is not None else names

    def subscribed_topics(self) -> set[str]:
        """Return the topics of all members."""
        # Most members of a group have equal subscriptions, so deduplicate the subscriptions first.
        subscriptions = {member.subscribed_topic_names for member in self.members.values()}
        names = {name for subscription in subscriptions for name in subscription}
        for expression, count in self.regex_subscribers.items():
            if count and (regex := self.regexes.get(expression)) is not None:
                names.update(regex.topics)
        return names

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the tombstones of all records of the group. The group epoch is last: it keeps the group existing."""
        return [CoordinatorRecord(key, None) for key in self._keys()]

    def member_tombstones(self, member_id: str) -> list[CoordinatorRecord]:
        """Return the tombstones of all records of a member."""
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
        # Kafka up to 4.0 may have appended such a record; ``replay`` ignores it.
        yield ConsumerGroupPartitionMetadataKey(group)
        yield ConsumerGroupMetadataKey(group)


class Draft:
    """What one request or expiry decides. Inside the ``with`` block its records are replayed; its end undoes them."""

    def __init__(self, stored: StoredGroup, now: Moment, may_see: MaySee | None = None) -> None:
        self._stored = stored
        self._undo: list[CoordinatorRecord] = []
        self.now = now
        #: returns whether the client may know a topic; None if it may know all
        self.may_see = may_see
        self.members_before = len(stored.members)
        self.records: list[CoordinatorRecord] = []
        #: why the group epoch goes up
        self.causes: list[Cause] = []
        #: rebalances that end
        self.rebalances: list[Rebalance] = []

    def outcome(self, result: R | None = None) -> GroupOutcome[R]:
        """Return the decisions, with the result of the request."""
        return GroupOutcome(records=self.records, result=result, rebalances=self.rebalances)

    def emit(self, key: Key, value: Value | None) -> None:
        """Add a record with this key and value."""
        self.add(CoordinatorRecord(key, value))

    def add(self, record: CoordinatorRecord) -> None:
        """Add a record and replay it until the draft ends."""
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
    """Return an int64 that changes if one of these topics is created, deleted or gets partitions; 0 without topics.

    Kafka computes a different hash. A group from Kafka's log bumps its epoch on the first heartbeat.
    """
    state = b"".join(
        b"%b\0%b%d\0" % (name.encode(), topic_id, topics.partition_count(name) or 0)
        for name in sorted(names)
        if (topic_id := topics.topic_id(name)) is not None
    )
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big", signed=True) if state else 0


def _owned_partitions(value: ConsumerGroupCurrentMemberAssignmentValue | None) -> Iterator[tuple[bytes, int]]:
    """Yield (topic id, partition) for each partition that is assigned or pending revocation."""
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
