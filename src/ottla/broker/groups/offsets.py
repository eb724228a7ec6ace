"""Committed offsets of the groups of one shard. Pure: no I/O.

There is one offset per group, topic and partition. Only ``replay`` and ``end_transaction`` change committed offsets.
When an offset expires:

    simple group (never had members)      ``offsets.retention.minutes`` after the commit of the offset
    group in the state Empty              ``offsets.retention.minutes`` after the group became Empty
    group with members                    ``offsets.retention.minutes`` after the commit, if no member subscribes to the
                                          topic; else never
    deleted topic                         immediately
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ottla.broker.coordinators.outcome import CoordinatorContext, Moment, Topics
from ottla.broker.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from ottla.broker.groups.requests import (
    FetchedOffset,
    FetchedTopic,
    FetchTopic,
    OffsetCommit,
    OffsetFetch,
    OffsetResult,
    OffsetTopic,
)
from ottla.model.errors import ErrorCode
from ottla.wire import ZERO_UUID

_MINUTE_MS = 60_000
_INT64_MAX = (1 << 63) - 1


class Subscriber(Protocol):
    """The properties of a group that decide which of its offsets expire."""

    @property
    def state(self) -> str: ...

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def group_type(self) -> str: ...

    @property
    def state_since_ms(self) -> int: ...

    def subscribed_topics(self) -> set[str] | None: ...

    def is_subscribed(self, topic: str) -> bool: ...


class Offsets:
    """The committed offsets of all groups, and the pending offsets of ongoing transactions."""

    def __init__(self) -> None:
        #: group -> (topic, partition) -> committed offset
        self.by_group: dict[str, dict[tuple[str, int], OffsetCommitValue]] = {}
        #: producer id -> offsets that it commits with its transaction, each with the number of its record
        self._pending: dict[int, dict[OffsetCommitKey, tuple[int, OffsetCommitValue]]] = {}
        #: key -> number of the record with the committed value, while offsets are pending. The later of two records
        #: wins, even if its transaction ends first
        self._committed_by: dict[OffsetCommitKey, int] = {}
        #: number of replayed records; gives each record a number, of which only the order matters
        self._records_replayed = 0

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply a record that belongs to no transaction. A record without a value deletes the offset."""
        self._records_replayed += 1
        if self._pending:
            self._committed_by[key] = self._records_replayed
        self._set(key, value)

    def _set(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self.by_group.setdefault(key.group, {})[key.topic, key.partition] = value
        elif (of_group := self.by_group.get(key.group)) is not None:
            of_group.pop((key.topic, key.partition), None)
            if not of_group:
                del self.by_group[key.group]

    def replay_pending(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """Apply a record of a transaction: the offset is pending until the transaction ends."""
        self._records_replayed += 1
        self._pending.setdefault(producer_id, {})[key] = self._records_replayed, value

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker: commit or discard the pending offsets of this producer."""
        for key, (number, value) in self._pending.pop(producer_id, {}).items():
            if commit and number > self._committed_by.get(key, 0):
                self._committed_by[key] = number
                self._set(key, value)
        if not self._pending:
            self._committed_by.clear()

    def pending(self) -> dict[int, dict[OffsetCommitKey, OffsetCommitValue]]:
        """Return, per producer id, the pending offsets that a commit of its transaction would apply now."""
        return {
            producer_id: {
                key: value for key, (number, value) in rows.items() if number > self._committed_by.get(key, 0)
            }
            for producer_id, rows in self._pending.items()
        }

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an ongoing transaction has a pending offset for this partition."""
        key = OffsetCommitKey(group_id, topic, partition)
        return any(key in of_producer for of_producer in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        return any(key.group == group_id for of_producer in self._pending.values() for key in of_producer)

    # -- commit ---------------------------------------------------------------------------------------------------

    def commit(
        self, commit: OffsetCommit, topics: Sequence[OffsetTopic], context: CoordinatorContext, now: Moment
    ) -> tuple[list[CoordinatorRecord], list[OffsetResult]]:
        """Return the records and the results for ``topics``, whose names and partitions must exist."""
        expire_timestamp = -1
        if commit.retention_ms != -1:
            expire_timestamp = min(max(now.wall_ms + commit.retention_ms, 0), _INT64_MAX)
        metadata_max = context.settings.offset_metadata_max_bytes
        records, results = [], []
        for topic in topics:
            name = topic.name or ""
            for row in topic.rows:
                code = ErrorCode.NONE
                if len(row.metadata) > metadata_max:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    value = OffsetCommitValue(
                        offset=row.offset,
                        leader_epoch=row.leader_epoch,
                        metadata=row.metadata,
                        commit_timestamp=now.wall_ms,
                        expire_timestamp=expire_timestamp,
                    )
                    records.append(CoordinatorRecord(OffsetCommitKey(commit.group_id, name, row.partition), value))
                results.append(OffsetResult(name, topic.topic_id, row.partition, code))
        return records, results

    # -- fetch ----------------------------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetch, topics: Topics) -> list[FetchedTopic]:
        """Return the committed offsets of a group: those of ``request.topics``, or all of them if it is None.

        A partition without a committed offset has no value and no error. With ``require_stable``, a partition with a
        pending offset has the error UNSTABLE_OFFSET_COMMIT, which clients retry.
        """
        committed = self.by_group.get(request.group_id, {})
        if request.topics is None:
            fetched = list(_fetch_all_topics(committed, topics, by_id=request.by_id))
        else:
            fetched = [_fetch_topic(committed, topic, topics) for topic in request.topics]
        if request.require_stable and self._pending:
            return [self._without_unstable(request.group_id, topic, topics) for topic in fetched]
        return fetched

    def _without_unstable(self, group_id: str, topic: FetchedTopic, topics: Topics) -> FetchedTopic:
        """Replace the offset of each partition that has a pending offset by the error UNSTABLE_OFFSET_COMMIT."""
        name = topic.name or topics.topic_name(topic.topic_id) or ""
        return topic._replace(
            offsets=[
                FetchedOffset(row.partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if self.is_pending(group_id, name, row.partition)
                else row
                for row in topic.offsets
            ]
        )

    # -- delete ---------------------------------------------------------------------------------------------------

    def delete(
        self, group_id: str, partitions: Mapping[str, Sequence[int]], group: Subscriber | None, topics: Topics
    ) -> tuple[list[CoordinatorRecord], list[OffsetResult]]:
        """Return the tombstones and the results of OffsetDelete.

        Offsets of topics that the group subscribes to are not deleted. ``group`` is None if the group does not exist;
        then no topic counts as subscribed.
        """
        committed = self.by_group.get(group_id, {})
        records, results = [], []
        for topic, numbers in partitions.items():
            subscribed = group is not None and group.is_subscribed(topic)
            count = topics.partition_count(topic) or 0
            for number in numbers:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
                if not 0 <= number < count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif not code and ((topic, number) in committed or self.is_pending(group_id, topic, number)):
                    records.append(_tombstone(group_id, topic, number))
                results.append(OffsetResult(topic, ZERO_UUID, number, code))
        return records, results

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Return a tombstone for each committed offset of the group."""
        return [_tombstone(group_id, topic, partition) for topic, partition in self.by_group.get(group_id, {})]

    def without_topics(self, deleted: Iterable[str]) -> list[CoordinatorRecord]:
        """Return a tombstone for each committed offset of the deleted topics, in all groups."""
        names = set(deleted)
        return [
            _tombstone(group_id, topic, partition)
            for group_id, committed in self.by_group.items()
            for topic, partition in committed
            if topic in names
        ]

    def expired(self, group_id: str, group: Subscriber, retention_minutes: int, now: Moment) -> list[CoordinatorRecord]:
        """Return a tombstone for each committed offset of the group that has expired."""
        if group.group_type == "classic" and group.state not in ("Empty", "Stable"):
            return []  # during a rebalance the subscriptions of the members are not known
        if group.group_type == "classic" and group.state == "Stable" and group.subscribed_topics() is None:
            return []  # not a consumer group, for example Connect: its subscriptions are not known
        retention_ms = retention_minutes * _MINUTE_MS
        empty_since_ms = (
            group.state_since_ms
            if group.group_type == "classic" and group.state == "Empty" and group.protocol_type is not None
            else -1
        )
        expired = []
        for (topic, partition), value in self.by_group.get(group_id, {}).items():
            if group.is_subscribed(topic) or self.is_pending(group_id, topic, partition):
                continue
            since_ms = empty_since_ms if empty_since_ms >= 0 else value.commit_timestamp
            expires_at_ms = value.expire_timestamp if value.expire_timestamp >= 0 else since_ms + retention_ms
            if now.wall_ms >= expires_at_ms:
                expired.append(_tombstone(group_id, topic, partition))
        return expired


def existing_topics(requested: Sequence[OffsetTopic], topics: Topics) -> tuple[list[OffsetTopic], list[OffsetResult]]:
    """Return the part of a commit whose partitions exist, with names, and the errors of the other partitions."""
    existing, refused = [], []
    for topic in requested:
        by_id = topic.name is None
        name = topics.topic_name(topic.topic_id) if topic.name is None else topic.name
        count = topics.partition_count(name) if name is not None else None
        known = [row for row in topic.rows if 0 <= row.partition < (count or 0)]
        if known:
            existing.append(OffsetTopic(name, topic.topic_id, known))
        if len(known) < len(topic.rows):
            is_unknown_id = count is None and by_id
            code = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused += [
                OffsetResult(name or "", topic.topic_id, row.partition, code)
                for row in topic.rows
                if not 0 <= row.partition < (count or 0)
            ]
    return existing, refused


def refused_offsets(topics: Sequence[OffsetTopic], code: ErrorCode) -> list[OffsetResult]:
    """Return the same error code for every partition."""
    return [
        OffsetResult(topic.name or "", topic.topic_id, row.partition, code) for topic in topics for row in topic.rows
    ]


def _tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)


def _fetch_result(partition: int, value: OffsetCommitValue | None, code: ErrorCode = ErrorCode.NONE) -> FetchedOffset:
    """Return the result for one partition; ``code`` applies only if there is no committed offset."""
    return FetchedOffset(partition, value, code if value is None else ErrorCode.NONE)


def _fetch_topic(
    committed: dict[tuple[str, int], OffsetCommitValue], topic: FetchTopic, topics: Topics
) -> FetchedTopic:
    """Return the offsets of one topic of the request, with UNKNOWN_TOPIC_ID if no topic has its id."""
    name = topics.topic_name(topic.topic_id) if topic.name is None else topic.name
    code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
    rows = [_fetch_result(number, committed.get((name or "", number)), code) for number in topic.partitions]
    return FetchedTopic(topic.name or "", topic.topic_id, rows)


def _fetch_all_topics(
    committed: dict[tuple[str, int], OffsetCommitValue], topics: Topics, *, by_id: bool
) -> Iterator[FetchedTopic]:
    """Yield the offsets of each topic with committed offsets."""
    by_topic: dict[str, list[FetchedOffset]] = {}
    for (topic, partition), value in committed.items():
        by_topic.setdefault(topic, []).append(_fetch_result(partition, value))
    for topic, rows in by_topic.items():
        topic_id = topics.topic_id(topic)
        if topic_id is None and by_id:
            continue  # the topic is being deleted, and the reply identifies a topic only by its id
        yield FetchedTopic(topic, topic_id or ZERO_UUID, rows)
