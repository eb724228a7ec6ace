"""Committed offsets of the groups of one shard. Pure: decisions out of what was replayed, nothing else.

An offset is stored per group, topic and partition. ``replay`` is the only writer. What expires, and when:

    simple group (never had members)      an offset goes ``offsets.retention.minutes`` after its commit
    group that has become Empty           all offsets go that long after it became so
    group with members                    an offset of a topic that no member subscribes to, that long after its commit
    topic deleted                         at once
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ottla.coordinator.outcome import Moment, World
from ottla.coordinator.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
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

#: OffsetCommit and OffsetFetch name topics by id from here on
TOPIC_IDS_FROM = 10
_NO_OFFSET = -1
_MINUTE_MS = 60_000
_INT64_MAX = (1 << 63) - 1


class Subscriber(Protocol):
    """What expiry has to know of a group."""

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
    """group -> (topic, partition) -> what was committed."""

    def __init__(self) -> None:
        self.by_group: dict[str, dict[tuple[str, int], OffsetCommitValue]] = {}
        #: producer id -> what it commits when its transaction is, and where in the log it said so
        self._pending: dict[int, dict[OffsetCommitKey, tuple[int, OffsetCommitValue]]] = {}
        #: where the value that counts was said, for keys that are pending: of two commits the later record counts,
        #: whichever transaction ends first
        self._said_at: dict[OffsetCommitKey, int] = {}
        #: counts records; only the order means anything
        self._position = 0

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        self._position += 1
        if self._pending:
            self._said_at[key] = self._position
        self._set(key, value)

    def _set(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self.by_group.setdefault(key.group, {})[key.topic, key.partition] = value
        elif (of_group := self.by_group.get(key.group)) is not None:
            of_group.pop((key.topic, key.partition), None)
            if not of_group:
                del self.by_group[key.group]

    def replay_pending(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._position += 1
        self._pending.setdefault(producer_id, {})[key] = self._position, value

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for key, (position, value) in self._pending.pop(producer_id, {}).items():
            if commit and position > self._said_at.get(key, 0):
                self._said_at[key] = position
                self._set(key, value)
        if not self._pending:
            self._said_at.clear()

    def pending(self) -> dict[int, dict[OffsetCommitKey, OffsetCommitValue]]:
        """What would count if its transaction were committed now."""
        return {
            producer_id: {key: value for key, (at, value) in rows.items() if at > self._said_at.get(key, 0)}
            for producer_id, rows in self._pending.items()
        }

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is not over commits this offset, too."""
        key = OffsetCommitKey(group_id, topic, partition)
        return any(key in of_producer for of_producer in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        return any(key.group == group_id for of_producer in self._pending.values() for key in of_producer)

    # -- commit ---------------------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic], world: World, now: Moment
    ) -> tuple[list[CoordinatorRecord], list[OffsetCommitResponseTopic]]:
        """Records and answers for ``topics``, whose names and partitions are known to exist."""
        expire_timestamp = -1
        if request.retention_time != -1:
            expire_timestamp = min(max(now.wall_ms + request.retention_time, 0), _INT64_MAX)
        metadata_max = world.settings.offset_metadata_max_bytes
        records, answers = [], []
        for topic in topics:
            rows = []
            for row in topic.partitions:
                metadata = row.committed_metadata or ""
                if len(metadata) > metadata_max:
                    rows.append(_committed(row, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                    continue
                value = OffsetCommitValue(
                    offset=row.committed_offset, leader_epoch=row.committed_leader_epoch, metadata=metadata,
                    commit_timestamp=now.wall_ms, expire_timestamp=expire_timestamp,
                )  # fmt: skip
                key = OffsetCommitKey(request.group_id, topic.name, row.partition_index)
                records.append(CoordinatorRecord(key, value))
                rows.append(_committed(row, ErrorCode.NONE))
            answers.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows))
        return records, answers

    # -- fetch ----------------------------------------------------------------------------------------------------

    def fetch(
        self, request: OffsetFetchRequestGroup, version: int, world: World, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """No commit is no error: the offset is -1. Null asks for everything that the group has committed.

        Who requires stable offsets is told to come back where a transaction may still move one.
        """
        committed = self.by_group.get(request.group_id, {})
        if request.topics is None:
            topics = list(_everything(committed, version, world))
        else:
            topics = [_of_topic(committed, topic, version, world) for topic in request.topics]
        if require_stable and self._pending:
            self._hide_unstable(request.group_id, topics, version, world)
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def _hide_unstable(
        self, group_id: str, topics: list[OffsetFetchResponseTopics], version: int, world: World
    ) -> None:
        for topic in topics:
            name = topic.name if version < TOPIC_IDS_FROM else world.topics.topic_name(topic.topic_id) or ""
            for row in topic.partitions:
                if self.is_pending(group_id, name, row.partition_index):
                    row.committed_offset, row.committed_leader_epoch, row.metadata = _NO_OFFSET, -1, ""
                    row.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT

    # -- delete ---------------------------------------------------------------------------------------------------

    def delete(
        self, request: OffsetDeleteRequest, group: Subscriber | None, world: World
    ) -> tuple[list[CoordinatorRecord], OffsetDeleteResponse]:
        """Offsets of topics that somebody reads stay. Without a group only what does not exist can be answered."""
        committed = self.by_group.get(request.group_id, {})
        records, answers = [], []
        for topic in request.topics:
            is_read = group is not None and group.is_subscribed(topic.name)
            count = world.topics.partition_count(topic.name) or 0
            rows = []
            for row in topic.partitions:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
                if not 0 <= row.partition_index < count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif not code and (
                    (topic.name, row.partition_index) in committed
                    or self.is_pending(request.group_id, topic.name, row.partition_index)
                ):
                    records.append(_tombstone(request.group_id, topic.name, row.partition_index))
                rows.append(OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=code))
            if rows:
                answers.append(OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
        return records, OffsetDeleteResponse(topics=answers)

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Everything that the group has committed, removed."""
        return [_tombstone(group_id, *place) for place in self.by_group.get(group_id, {})]

    def without_topics(self, deleted: Iterable[str]) -> list[CoordinatorRecord]:
        names = set(deleted)
        return [
            _tombstone(group_id, topic, partition)
            for group_id, committed in self.by_group.items()
            for topic, partition in committed
            if topic in names
        ]

    def expired(self, group_id: str, group: Subscriber, retention_minutes: int, now: Moment) -> list[CoordinatorRecord]:
        """The offsets of a group that have outlived their retention."""
        if group.group_type == "classic" and group.state not in ("Empty", "Stable"):
            return []  # in the middle of a rebalance nobody can say what is subscribed
        if group.group_type == "classic" and group.state == "Stable" and group.subscribed_topics() is None:
            return []  # not a consumer's group: what its members read is theirs to know
        retention_ms = retention_minutes * _MINUTE_MS
        since_empty = (
            group.state_since_ms
            if group.group_type == "classic" and group.state == "Empty" and group.protocol_type is not None
            else -1
        )
        gone = []
        for (topic, partition), value in self.by_group.get(group_id, {}).items():
            if group.is_subscribed(topic) or self.is_pending(group_id, topic, partition):
                continue
            since = since_empty if since_empty >= 0 else value.commit_timestamp
            expires_at = value.expire_timestamp if value.expire_timestamp >= 0 else since + retention_ms
            if now.wall_ms >= expires_at:
                gone.append(_tombstone(group_id, topic, partition))
        return gone


def existing_topics(
    request: OffsetCommitRequest, version: int, world: World
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """The part of a commit that names partitions which exist, and the refusal of the rest."""
    good, refused = [], []
    for topic in request.topics:
        name: str | None = topic.name
        if version >= TOPIC_IDS_FROM:
            name = world.topics.topic_name(topic.topic_id)
        count = world.topics.partition_count(name) if name is not None else None
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if count is None and version >= TOPIC_IDS_FROM:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        known: list[OffsetCommitRequestPartition] = []
        missing: list[OffsetCommitRequestPartition] = []
        for row in topic.partitions:
            (known if 0 <= row.partition_index < (count or 0) else missing).append(row)
        if known:
            good.append(OffsetCommitRequestTopic(name=name or "", topic_id=topic.topic_id, partitions=known))
        if missing:
            rows = [_committed(row, unknown) for row in missing]
            refused.append(OffsetCommitResponseTopic(name=name or "", topic_id=topic.topic_id, partitions=rows))
    return good, refused


def refuse_commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    """The same code for every partition."""
    return OffsetCommitResponse(topics=refused_topics(request.topics, code))


def refused_topics(topics: Iterable[OffsetCommitRequestTopic], code: int) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=[_committed(row, code) for row in topic.partitions]
        )
        for topic in topics
    ]


def merge_answers(parts: Iterable[OffsetCommitResponseTopic]) -> OffsetCommitResponse:
    """One answer per topic, although some of its partitions were refused and others not."""
    topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}
    for part in parts:
        topics.setdefault((part.name, part.topic_id), []).extend(part.partitions)
    return OffsetCommitResponse(topics=[
        OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=rows)
        for (name, topic_id), rows in topics.items()
    ])  # fmt: skip


def plain_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """The same commit outside of a transaction."""
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
    return TxnOffsetCommitResponse(topics=[
        TxnOffsetCommitResponseTopic(name=topic.name, partitions=[
            TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=row.error_code)
            for row in topic.partitions
        ])
        for topic in answer.topics
    ])  # fmt: skip


def _committed(row: OffsetCommitRequestPartition, code: int) -> OffsetCommitResponsePartition:
    return OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)


def _tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)


def _fetched(partition: int, value: OffsetCommitValue | None, code: int = 0) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=_NO_OFFSET, committed_leader_epoch=-1, metadata="",
            error_code=code,
        )  # fmt: skip
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=value.offset, committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )  # fmt: skip


def _of_topic(
    committed: dict[tuple[str, int], OffsetCommitValue], topic: OffsetFetchRequestTopics, version: int, world: World
) -> OffsetFetchResponseTopics:
    name: str | None = topic.name
    code = ErrorCode.NONE
    if version >= TOPIC_IDS_FROM:
        name = world.topics.topic_name(topic.topic_id)
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
    rows = [_fetched(number, committed.get((name or "", number)), code) for number in topic.partition_indexes]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def _everything(
    committed: dict[tuple[str, int], OffsetCommitValue], version: int, world: World
) -> Iterator[OffsetFetchResponseTopics]:
    by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for (topic, partition), value in committed.items():
        by_topic.setdefault(topic, []).append(_fetched(partition, value))
    for topic, rows in by_topic.items():
        topic_id = world.topics.topic_id(topic)
        if topic_id is None and version >= TOPIC_IDS_FROM:
            continue  # it is being deleted, and there is no other name for it in this version
        yield OffsetFetchResponseTopics(name=topic, topic_id=topic_id or ZERO_UUID, partitions=rows)
