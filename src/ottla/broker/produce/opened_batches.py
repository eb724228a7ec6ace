"""Batches that have to be opened before they are appended.

Some topics need the records of a batch validated or recompressed (`log/opening.py`). If that takes long, it is done in
another process, and the schema registry may have to be asked about schema ids (`schema_validation.py`). The connection
is muted meanwhile, so that its requests keep their order; other clients are served. When the result arrives, the
partition is looked up and the batch is validated again, because the topic may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.produce.appending import Appender, note_refused
from ottla.broker.produce.replies import CollectedReply
from ottla.broker.produce.request import Request
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.log.opening import NeedsOpening, Opening
from ottla.model.batch import read_header
from ottla.model.errors import KafkaError, NotLeaderOrFollower
from ottla.model.settings_registry import NO_VALIDATION
from ottla.wire.produce import PartitionData, PartitionResult


class UnopenedBatch(NamedTuple):
    """A batch that waits to be opened, or that follows such a batch in the same request."""

    #: its place in the reply
    topic_place: int
    place: int
    topic: bytes
    partition: int
    #: a copy: the frame's buffer belongs to the next frame
    batch: bytearray
    #: None for a batch that only waits for an earlier one of the request
    opening: Opening | None
    #: the leader epoch of the partition when the request arrived
    leader_epoch: int


class OpenedBatches:
    """Opens batches and appends them."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        schemas: SchemaValidation,
        appender: Appender,
        monotonic: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._schemas = schemas
        self._appender = appender
        self._monotonic = monotonic

    async def append_all(self, request: Request, reply: CollectedReply, batches: Sequence[UnopenedBatch]) -> None:
        """Open and append these batches in order, also if the client has disconnected. The connection is muted."""
        connection, acks, completed = request.connection, request.parsed.acks, False
        try:
            for each in batches:
                try:
                    partition, result, end_offset = await self._open_and_append(request, each)
                except KafkaError as error:
                    reply.refuse(each.topic_place, each.place, error)
                    continue
                reply.topics[each.topic_place][1][each.place] = result
                if acks:
                    reply.deadline = self._monotonic() + request.parsed.timeout_ms / 1000
                    writer = reply.writer(each.topic_place, each.place)
                    self._replicas.commits.wait(partition, partition.until(acks), end_offset, writer)
            connection.touch()
            reply.end()
            completed = True
        finally:
            if not completed:
                connection.abort()  # its slot is reserved and will not be filled
            connection.unmute()

    async def _open_and_append(self, request: Request, each: UnopenedBatch) -> tuple[Partition, PartitionResult, int]:
        opening = each.opening
        while True:
            batch = each.batch
            if opening is not None:
                batch = await self._open(request, each, opening)
            data = PartitionData(each.partition, 0, len(batch))
            partition = self._appender.find(request, each.topic, data, batch)
            if partition.leader_epoch != each.leader_epoch:
                # Another broker led meanwhile. The log may have lost the batches that the producer sent before this
                # one, and without them this would be the first batch of the producer.
                error = NotLeaderOrFollower("another broker has led the partition meanwhile; send the batch again")
                note_refused(partition, error, batch, 0, len(batch))
                raise error
            request.connection.touch()  # begins a turn, at whose end the batch is written
            opened = None if opening is None else opening.settings
            try:
                result, end_offset = self._appender.append(
                    partition, request, data, batch, memoryview(batch), opened=opened
                )
            except NeedsOpening as needs:  # this is the first attempt, or the topic's settings have changed
                opening = needs.opening
                continue
            return partition, result, end_offset

    async def _open(self, request: Request, each: UnopenedBatch, opening: Opening) -> bytearray:
        """Return the batch that the topic stores. Raise the KafkaError for the reply."""
        batch = each.batch
        partition = self._appender.find(request, each.topic, PartitionData(each.partition, 0, len(batch)), batch)
        try:
            if opening.rules is not None:
                count = read_header(batch).record_count
                batch = bytearray(await self._replicas.opener.open_batch(batch, opening.rules, count) or batch)
            if opening.settings.schema_action != NO_VALIDATION:
                validate, touch = self._schemas.validate, request.connection.touch
                batch = bytearray(await validate(batch, partition, opening.settings, request.parsed.acks, touch))
            return batch
        except KafkaError as error:
            note_refused(partition, error, each.batch, 0, len(each.batch))
            raise
