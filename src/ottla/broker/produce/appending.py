"""The append of one batch: which partition it is for, whether this client may write to it now, and its result."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ottla.broker.access.permissions import Access
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import INTERNAL_TOPICS
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.produce.replies import PRODUCE
from ottla.broker.produce.request import Request
from ottla.broker.transactions.transactional_batches import TransactionalBatches
from ottla.model.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    NotLeaderOrFollower,
    Refused,
    StorageError,
)
from ottla.model.settings import TopicSettings
from ottla.model.types import FrameBuffer
from ottla.security.acls import ResourceType
from ottla.wire.produce import TOPIC_IDS_FROM, PartitionData, PartitionResult

#: first version in which batches may be compressed with zstd
ZSTD_FROM = 7
_ZSTD = 4
_unpack_attributes = Struct(">h").unpack_from

#: after these errors the client sends the same batch again: too few replicas, the coordinator cannot say yet, or the
#: batch could not be opened or validated in time
_RETRIED = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT)


class Appender:
    """Finds the partitions of batches and appends the batches to their logs."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        access: Access,
        wall_ms: Callable[[], int],
        transactional: TransactionalBatches,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._access = access
        self._wall_ms = wall_ms
        self._transactional = transactional

    def find(
        self, request: Request, topic: bytes, data: PartitionData, buffer: FrameBuffer, *, quiet: bool = False
    ) -> Partition:
        """Return the partition of a batch. Raise the KafkaError to answer with if this broker does not lead it.

        ``quiet`` is for callers that do not answer with the error: the batch is looked up again before the reply.
        """
        if self._access.authorizer is not None:
            self._check_access(request, topic, quiet=quiet)
        acks, by_id, replicas = request.parsed.acks, request.version >= TOPIC_IDS_FROM, self._replicas
        if not -1 <= acks <= 1:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}")
        try:
            partition = replicas.leader_of(topic, data.partition, by_id=by_id)
        except NotLeaderOrFollower as error:
            if self._is_internal(topic, by_id=by_id):
                raise _internal_topic() from None  # as in Kafka, every broker gives this answer
            # This broker may begin to lead before the next batch of the producer arrives.
            replica = (replicas.topics_by_id if by_id else replicas.topics).get(topic, {}).get(data.partition)
            if replica is not None:
                note_refused(replica, error, buffer, data.start, data.end)
            raise
        if partition.name.topic in INTERNAL_TOPICS:
            raise _internal_topic()
        if data.start < 0:
            raise InvalidRecord("no batch in the request")
        return partition

    def _is_internal(self, topic: bytes, *, by_id: bool) -> bool:
        if not by_id:
            return topic.decode(errors="replace") in INTERNAL_TOPICS
        known = self._metadata.view.topics_by_id.get(topic)
        return known is not None and known.name in INTERNAL_TOPICS

    def _check_access(self, request: Request, topic: bytes, *, quiet: bool) -> None:
        """Raise the KafkaError for a topic or a transaction that this client may not write to.

        The result is remembered with the partition, because a change of ACLs raises the generation of the replicas.
        """
        connection, transactional_id = request.connection, request.parsed.transactional_id
        if transactional_id is not None and not self._access.may(
            connection, PRODUCE, ResourceType.TRANSACTIONAL_ID, transactional_id, quiet=quiet
        ):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        by_id = request.version >= TOPIC_IDS_FROM
        known = self._metadata.view.topics_by_id.get(topic) if by_id else None
        if known is not None or not by_id:
            name = known.name if known is not None else topic.decode(errors="replace")
            self._access.check_topic(connection, PRODUCE, name, quiet=quiet)

    def append(
        self,
        partition: Partition,
        request: Request,
        data: PartitionData,
        buffer: FrameBuffer,
        view: memoryview,
        *,
        opened: TopicSettings | None = None,
    ) -> tuple[PartitionResult, int]:
        """Append the batch at ``data``. Return its result and the offset after it. Raise KafkaError or NeedsOpening.

        ``opened`` are the settings with which the batch was opened elsewhere. `ProduceApi` has a faster form of this
        for requests that start with the remembered bytes.
        """
        now_ms, transactional_id = self._wall_ms(), request.parsed.transactional_id
        try:
            if request.parsed.acks == -1:
                partition.check_enough_replicas()
            if request.version < ZSTD_FROM:
                check_codec(buffer, data.start, data.end)
            if transactional_id is not None:
                self._transactional.check(
                    partition, transactional_id, buffer, data.start, data.end, version=request.version
                )
            base, end_offset = self._replicas.append(
                partition, buffer, view, data.start, data.end, now_ms,
                transactional=transactional_id is not None, opened=opened,
            )  # fmt: skip
        except KafkaError as error:
            note_refused(partition, error, buffer, data.start, data.end)
            raise
        log = partition.log
        append_time = now_ms if log.settings.log_append_time else -1
        return PartitionResult(data.partition, 0, base, append_time, log.log_start_offset), end_offset


def check_codec(buffer: FrameBuffer, start: int, end: int) -> None:
    """Raise Refused for a batch that is compressed with zstd, before ``ZSTD_FROM``."""
    if end - start >= 23 and _unpack_attributes(buffer, start + 21)[0] & 7 == _ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")


def note_refused(partition: Partition, error: KafkaError, buffer: FrameBuffer, start: int, end: int) -> None:
    """Let the log expect a batch again that was refused for a reason that passes."""
    log = partition.log
    is_retried = isinstance(error, StorageError | NotLeaderOrFollower) or error.code in _RETRIED
    if is_retried and log.failure is None:
        try:
            producers = log.producers
        except OSError:
            return  # a log whose producers cannot be loaded accepts no batch
        log.refused.note(buffer, start, end, producers)


def _internal_topic() -> InvalidTopic:
    return InvalidTopic("only the broker itself writes to its internal topics")
