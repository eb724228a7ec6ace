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

from collections.abc import Iterable, Iterator
from typing import Protocol

from ottla.broker.coordinators.outcome import CoordinatorContext, Moment
from ottla.broker.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from ottla.model.errors import ErrorCode
from ottla.wire import ZERO_UUID
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: from this version on, OffsetCommit and OffsetFetch have topic ids instead of names
TOPIC_IDS_FROM = 10
_NO_OFFSET = -1
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
        self,
        request: OffsetCommitRequest,
        topics: list[OffsetCommitRequestTopic],
        context: CoordinatorContext,
        now: Moment,
    ) -> tuple[list[CoordinatorRecord], list[OffsetCommitResponseTopic]]:
        """Return the records and the response for ``topics``, whose names and partitions must exist."""
        expire_timestamp = -1
        if request.retention_time != -1:
            expire_timestamp = min(max(now.wall_ms + request.retention_time, 0), _INT64_MAX)
        metadata_max = context.settings.offset_metadata_max_bytes
        records, responses = [], []
        for topic in topics:
            rows = []
            for row in topic.partitions:
                metadata = row.committed_metadata or ""
                if len(metadata) > metadata_max:
                    rows.append(_commit_result(row, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                    continue
                value = OffsetCommitValue(
                    offset=row.committed_offset, leader_epoch=row.committed_leader_epoch, metadata=metadata,
                    commit_timestamp=now.wall_ms, expire_timestamp=expire_timestamp,
                )  # fmt: skip
                key = OffsetCommitKey(request.group_id, topic.name, row.partition_index)
                records.append(CoordinatorRecord(key, value))
                rows.append(_commit_result(row, ErrorCode.NONE))
            responses.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows))
        return records, responses

    # -- fetch ----------------------------------------------------------------------------------------------------

    def fetch(
        self, request: OffsetFetchRequestGroup, version: int, context: CoordinatorContext, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Return the committed offsets of a group: those of ``request.topics``, or all of them if it is None.

        A partition without a committed offset has the offset -1 and no error. With ``require_stable``, a partition
        with a pending offset has the error UNSTABLE_OFFSET_COMMIT, which clients retry.
        """
        committed = self.by_group.get(request.group_id, {})
        if request.topics is None:
            topics = list(_fetch_all_topics(committed, version, context))
        else:
            topics = [_fetch_topic(committed, topic, version, context) for topic in request.topics]
        if require_stable and self._pending:
            self._replace_unstable(request.group_id, topics, version, context)
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def _replace_unstable(
        self, group_id: str, topics: list[OffsetFetchResponseTopics], version: int, context: CoordinatorContext
    ) -> None:
        """Replace the offset of each partition that has a pending offset by the error UNSTABLE_OFFSET_COMMIT."""
        for topic in topics:
            name = topic.name if version < TOPIC_IDS_FROM else context.topics.topic_name(topic.topic_id) or ""
            for row in topic.partitions:
                if self.is_pending(group_id, name, row.partition_index):
                    row.committed_offset, row.committed_leader_epoch, row.metadata = _NO_OFFSET, -1, ""
                    row.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT

    # -- delete ---------------------------------------------------------------------------------------------------

    def delete(
        self, request: OffsetDeleteRequest, group: Subscriber | None, context: CoordinatorContext
    ) -> tuple[list[CoordinatorRecord], OffsetDeleteResponse]:
        """Return the tombstones and the response of OffsetDelete.

        Offsets of topics that the group subscribes to are not deleted. ``group`` is None if the group does not exist;
        then no topic counts as subscribed.
        """
        committed = self.by_group.get(request.group_id, {})
        records, responses = [], []
        for topic in request.topics:
            subscribed = group is not None and group.is_subscribed(topic.name)
            count = context.topics.partition_count(topic.name) or 0
            rows = []
            for row in topic.partitions:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
                if not 0 <= row.partition_index < count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif not code and (
                    (topic.name, row.partition_index) in committed
                    or self.is_pending(request.group_id, topic.name, row.partition_index)
                ):
                    records.append(_tombstone(request.group_id, topic.name, row.partition_index))
                rows.append(OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=code))
            if rows:
                responses.append(OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
        return records, OffsetDeleteResponse(topics=responses)

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


def existing_topics(
    request: OffsetCommitRequest, version: int, context: CoordinatorContext
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """Return the part of a commit whose partitions exist, and the error response for the other partitions."""
    existing, refused = [], []
    for topic in request.topics:
        name: str | None = topic.name
        if version >= TOPIC_IDS_FROM:
            name = context.topics.topic_name(topic.topic_id)
        count = context.topics.partition_count(name) if name is not None else None
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if count is None and version >= TOPIC_IDS_FROM:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        known: list[OffsetCommitRequestPartition] = []
        missing: list[OffsetCommitRequestPartition] = []
        for row in topic.partitions:
            (known if 0 <= row.partition_index < (count or 0) else missing).append(row)
        if known:
            existing.append(OffsetCommitRequestTopic(name=name or "", topic_id=topic.topic_id, partitions=known))
        if missing:
            rows = [_commit_result(row, unknown) for row in missing]
            refused.append(OffsetCommitResponseTopic(name=name or "", topic_id=topic.topic_id, partitions=rows))
    return existing, refused


def refuse_commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    """Return a response with the same error code for every partition."""
    return OffsetCommitResponse(topics=refused_topics(request.topics, code))


def refused_topics(topics: Iterable[OffsetCommitRequestTopic], code: int) -> list[OffsetCommitResponseTopic]:
    """Return response topics with the same error code for every partition."""
    return [
        OffsetCommitResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=[_commit_result(row, code) for row in topic.partitions]
        )
        for topic in topics
    ]


def merge_answers(parts: Iterable[OffsetCommitResponseTopic]) -> OffsetCommitResponse:
    """Return a response with one entry per topic, which has the committed and the refused partitions."""
    topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}
    for part in parts:
        topics.setdefault((part.name, part.topic_id), []).extend(part.partitions)
    return OffsetCommitResponse(topics=[
        OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=rows)
        for (name, topic_id), rows in topics.items()
    ])  # fmt: skip


def plain_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """Return the OffsetCommit request with the same group, member and offsets as a TxnOffsetCommit request."""
    return OffsetCommitRequest(
        group_id=request.group_id, generation_id_or_member_epoch=request.generation_id, member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(name=topic.name, partitions=[
                OffsetCommitRequestPartition(
                    partition_index=row.partition_index, committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch, committed_metadata=row.committed_metadata,
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ],
    )  # fmt: skip


def transactional_answer(answer: OffsetCommitResponse) -> TxnOffsetCommitResponse:
    """Return the TxnOffsetCommit response with the same error codes as an OffsetCommit response."""
    return TxnOffsetCommitResponse(topics=[
        TxnOffsetCommitResponseTopic(name=topic.name, partitions=[
            TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=row.error_code)
            for row in topic.partitions
        ])
        for topic in answer.topics
    ])  # fmt: skip


def _commit_result(row: OffsetCommitRequestPartition, code: int) -> OffsetCommitResponsePartition:
    return OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)


def _tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)


def _fetch_result(partition: int, value: OffsetCommitValue | None, code: int = 0) -> OffsetFetchResponsePartitions:
    """Return the response for one partition; ``code`` applies only if there is no committed offset."""
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=_NO_OFFSET, committed_leader_epoch=-1, metadata="",
            error_code=code,
        )  # fmt: skip
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=value.offset, committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )  # fmt: skip


def _fetch_topic(
    committed: dict[tuple[str, int], OffsetCommitValue],
    topic: OffsetFetchRequestTopics,
    version: int,
    context: CoordinatorContext,
) -> OffsetFetchResponseTopics:
    """Return the response for one topic of the request, with UNKNOWN_TOPIC_ID if no topic has its id."""
    name: str | None = topic.name
    code = ErrorCode.NONE
    if version >= TOPIC_IDS_FROM:
        name = context.topics.topic_name(topic.topic_id)
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
    rows = [_fetch_result(number, committed.get((name or "", number)), code) for number in topic.partition_indexes]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def _fetch_all_topics(
    committed: dict[tuple[str, int], OffsetCommitValue], version: int, context: CoordinatorContext
) -> Iterator[OffsetFetchResponseTopics]:
    """Yield the response for each topic with committed offsets."""
    by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for (topic, partition), value in committed.items():
        by_topic.setdefault(topic, []).append(_fetch_result(partition, value))
    for topic, rows in by_topic.items():
        topic_id = context.topics.topic_id(topic)
        if topic_id is None and version >= TOPIC_IDS_FROM:
            continue  # the topic is being deleted, and these versions identify a topic only by its id
        yield OffsetFetchResponseTopics(name=topic, topic_id=topic_id or ZERO_UUID, partitions=rows)
