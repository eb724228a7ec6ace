"""Produce: append the batches of a request to logs that this broker leads, and reply when they are as durable as asked.

    frame ──► Shortcut.batch_start ──────────────────────► _append_one ──► TemplateReply ──► sent when it is durable
          └─► parse_produce ──┬─► one known partition ─────────┘
                              ├─► several, or an error ──► _append_many ──► CollectedReply ──► sent when all are
                              │                                └─► OpenedBatches: batches to be opened first
                              └─► the first batch of a transaction ──► FirstBatches: asks the coordinator, then appends

This is a hot module. ``handle`` gets every Produce request. One that starts with the bytes of the one before it is not
parsed (`request.py`); all others take the general path, which costs a few microseconds more.

Only the leader of a partition takes its batches. Other brokers answer NOT_LEADER_OR_FOLLOWER and name the leader, and
an error in one partition does not concern the others. The time of the reply:

* With acks=0 there is none, and an error closes the connection.
* With acks=1 it is sent at the end of the turn, when the leader has written the batch to the file. While the lease of
  this broker is over, another broker may lead, so the reply waits for the in-sync replicas as with acks=all.
* With acks=all a batch is refused if fewer replicas than ``min.insync.replicas`` are in sync. The reply is sent when
  all in-sync replicas have the batch and that many of them have synced it. Topics with ``flush.acks.all=false`` do not
  wait for a sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling
from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.produce.appending import ZSTD_FROM, Appender, check_codec, note_refused
from ottla.broker.produce.first_batches import BeginningRequest, FirstBatches
from ottla.broker.produce.opened_batches import OpenedBatches, UnopenedBatch
from ottla.broker.produce.replies import PRODUCE, CollectedReply, TemplateReply
from ottla.broker.produce.request import Request, Shortcut, prefix_of
from ottla.broker.transactions.checks import TransactionChecks, find_inconsistency
from ottla.broker.transactions.runtime import TransactionRuntime
from ottla.broker.transactions.transactional_batches import TransactionalBatches, is_in_transaction
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.env.clock import Clock
from ottla.env.tasks import Tasks
from ottla.log.opening import NeedsOpening, Opening
from ottla.model.errors import KafkaError
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.security.quotas import Quota
from ottla.wire.frame import read_client_id
from ottla.wire.produce import PartitionResult, parse_produce

#: None if there is no reply
Reply = TemplateReply | CollectedReply | None


class ProduceApi(Component):
    """Produce (0) v3-v13. Below v3 the connection is closed, although v0 is advertised: see dispatch."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        clock: Clock,
        access: Access,
        throttling: Throttling,
        schemas: SchemaValidation,
        checks: TransactionChecks,
        transactions: TransactionRuntime,
    ) -> None:
        self._replicas = replicas
        self._wall_ms = clock.wall_ms
        self._monotonic = clock.monotonic
        self._hints = LeaderHints(metadata, replicas)
        self._throttling = throttling
        self._checks = checks
        self._transactional = TransactionalBatches(metadata, checks, transactions)
        self._appender = Appender(
            metadata=metadata,
            replicas=replicas,
            access=access,
            wall_ms=clock.wall_ms,
            transactional=self._transactional,
        )
        self._opened = OpenedBatches(
            replicas=replicas, schemas=schemas, appender=self._appender, monotonic=clock.monotonic
        )
        self._first_batches = FirstBatches(self._transactional, self._appender)
        self._tasks = Tasks()

    def apis(self) -> Mapping[int, ServedApi]:
        return {PRODUCE: ServedApi(3, 13, advertised_min=0)}

    def handle(
        self,
        connection: Connection,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> Reply | BeginningRequest:
        """Handle the frame ``buffer[start:end]``. Return its reply, or the request if it waits for the coordinator."""
        shortcut = connection.cache
        if (
            shortcut.__class__ is Shortcut
            and shortcut.generation == self._replicas.generation
            and shortcut.version == version
        ):
            batch_start, batch_end = shortcut.batch_start(buffer, start, end), end - shortcut.tail_bytes
            if batch_start >= 0 and (
                shortcut.transactional_id is None
                or is_in_transaction(shortcut.partition, buffer, batch_start, batch_end)
            ):
                return self._append_one(connection, shortcut, buffer, view, batch_start, batch_end, correlation_id)
        request = Request(connection, version, correlation_id, parse_produce(buffer, start, end, version))
        if request.parsed.transactional_id is not None:
            beginning = self._first_batches.find(request, buffer, view[start:end])
            if beginning is not None:
                # Later requests of this connection must not be handled before this one.
                connection.mute()
                self._tasks.start(self._add_then_append(beginning), "begin a transaction")
                return beginning
        return self._append_all(request, buffer, view, start)

    def handle_counted(
        self,
        connection: Connection,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Handle a frame and count it: there are quotas of produced bytes or of request time."""
        throttling = self._throttling
        started = throttling.monotonic()
        connection.client_id = read_client_id(buffer, start + 8, end)
        throttle_ms = throttling.take(Quota.PRODUCE, connection, end - start)
        handled = self.handle(connection, buffer, view, start, end, version, correlation_id)
        if isinstance(handled, BeginningRequest):
            handled.throttle_ms, handled.spent_s = throttle_ms, throttling.monotonic() - started
        else:
            self._tell_throttle_time(handled, throttle_ms, started)

    def _tell_throttle_time(self, reply: Reply, throttle_ms: int, started: float) -> None:
        """Count the time of a request, and let its reply name the throttle time.

        Without a reply, the time is not counted, as in Kafka.
        """
        if reply is None or (isinstance(reply, CollectedReply) and not reply.wants_reply):
            return
        throttle_ms = max(throttle_ms, self._throttling.take_time(reply.connection, started))
        if throttle_ms:
            reply.tell_throttle_time(throttle_ms)

    # -- one partition --------------------------------------------------------------------------------------------

    def _append_one(
        self,
        connection: Connection,
        shortcut: Shortcut,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        correlation_id: int,
    ) -> Reply:
        """Append the only batch of a request, in the partition that was found before."""
        partition, acks = shortcut.partition, shortcut.acks
        replicas = self._replicas
        now_ms = self._wall_ms()
        try:
            if acks == -1 and len(partition.replicas) > 1:
                partition.check_enough_replicas()
            if shortcut.version < ZSTD_FROM:
                check_codec(buffer, start, end)
            if shortcut.transactional_id is None:
                base_offset, end_offset = replicas.append(partition, buffer, view, start, end, now_ms)
            else:
                self._transactional.check(
                    partition, shortcut.transactional_id, buffer, start, end, version=shortcut.version
                )
                base_offset, end_offset = replicas.append(
                    partition, buffer, view, start, end, now_ms, transactional=True
                )
        except NeedsOpening as needs:
            request, batch = shortcut.request(connection, correlation_id), bytearray(view[start:end])
            return self._open_one(request, shortcut, batch, needs.opening)
        except KafkaError as error:
            note_refused(partition, error, buffer, start, end)
            return self._refuse_one(shortcut.request(connection, correlation_id), shortcut, error)
        if acks == 0:
            replicas.acks_zero += 1
            connection.touch()  # a reply would, and there is none: the connection is not idle
            return None
        log = partition.log
        append_time = now_ms if log.settings.log_append_time else -1
        filled = shortcut.template.fill(correlation_id, base_offset, append_time, log.log_start_offset)
        reply = TemplateReply(connection, shortcut, filled, correlation_id)
        connection.enqueue(reply)
        replicas.commits.wait(partition, partition.until(acks), end_offset, reply)
        return reply

    def _refuse_one(self, request: Request, shortcut: Shortcut, error: KafkaError) -> Reply:
        reply = self._new_reply(request)
        reply.topics.append((shortcut.topic, [PartitionResult(shortcut.partition.name.partition)]))
        reply.refuse(0, 0, error)
        reply.end()
        return reply

    def _open_one(self, request: Request, shortcut: Shortcut, batch: bytearray, opening: Opening) -> Reply:
        reply, partition = self._new_reply(request), shortcut.partition
        reply.topics.append((shortcut.topic, [PartitionResult(partition.name.partition)]))
        epoch, number = partition.leader_epoch, partition.name.partition
        self._open_then_append(request, reply, [UnopenedBatch(0, 0, shortcut.topic, number, batch, opening, epoch)])
        return reply

    # -- the general path -----------------------------------------------------------------------------------------

    def _append_all(self, request: Request, buffer: FrameBuffer, view: memoryview, start: int) -> Reply:
        """Append the batches of a parsed request, whose frame begins at ``start``."""
        topics = request.parsed.topics
        if len(topics) != 1 or len(topics[0][1]) != 1:
            return self._append_many(request, buffer, view)
        topic, (data,) = topics[0]
        try:
            partition = self._appender.find(request, topic, data, buffer, quiet=True)
        except KafkaError:
            return self._append_many(request, buffer, view)
        prefix = prefix_of(data, buffer, start, request.version)
        shortcut = Shortcut(request, prefix, partition, self._replicas.generation, self._hints)
        connection = request.connection
        connection.cache = shortcut  # the next request is likely to be for the same partition
        return self._append_one(connection, shortcut, buffer, view, data.start, data.end, request.correlation_id)

    def _append_many(self, request: Request, buffer: FrameBuffer, view: memoryview) -> Reply:
        """Append the batches of a request in order. If one has to be opened first, those behind it wait for it."""
        reply, acks = self._new_reply(request), request.parsed.acks
        unopened: list[UnopenedBatch] = []
        inconsistent = find_inconsistency(request.parsed, buffer)
        for number, (topic, partitions) in enumerate(request.parsed.topics):
            results: list[PartitionResult] = []
            reply.topics.append((topic, results))
            for place, data in enumerate(partitions):
                opening: Opening | None = None
                try:
                    if inconsistent is not None:
                        raise inconsistent
                    partition = self._appender.find(request, topic, data, buffer)
                    if not unopened:
                        result, end_offset = self._appender.append(partition, request, data, buffer, view)
                        results.append(result)
                        if acks:
                            writer = reply.writer(number, place)
                            self._replicas.commits.wait(partition, partition.until(acks), end_offset, writer)
                        continue
                except NeedsOpening as needs:
                    opening = needs.opening
                except KafkaError as error:
                    results.append(PartitionResult(data.partition))
                    reply.refuse(number, place, error)
                    continue
                results.append(PartitionResult(data.partition))
                batch, epoch = bytearray(view[data.start : data.end]), partition.leader_epoch
                unopened.append(UnopenedBatch(number, place, topic, data.partition, batch, opening, epoch))
        if unopened:
            self._open_then_append(request, reply, unopened)
        else:
            reply.end()
        return reply

    def _new_reply(self, request: Request) -> CollectedReply:
        return CollectedReply(request, self._hints, self._monotonic() + request.parsed.timeout_ms / 1000)

    def _open_then_append(self, request: Request, reply: CollectedReply, unopened: list[UnopenedBatch]) -> None:
        # Later requests of this connection must not be handled before this one.
        request.connection.mute()
        reply.opening = self._tasks.start(self._opened.append_all(request, reply, unopened), "open batches")

    # -- the first batch of a transaction -------------------------------------------------------------------------

    async def _add_then_append(self, beginning: BeginningRequest) -> None:
        """Add the partitions to the transaction, then handle the request until its batches are appended or refused."""
        connection, version = beginning.request.connection, beginning.request.version
        try:
            with self._checks.request() as checks:
                await self._first_batches.add(beginning, checks)
                if connection.closing:
                    return
                connection.touch()  # begins a turn, at whose end the batch is written
                buffer, started = bytearray(beginning.frame), self._monotonic()
                request = beginning.request._replace(parsed=parse_produce(buffer, 0, len(buffer), version))
                reply = self._append_all(request, buffer, memoryview(buffer), 0)
                if beginning.spent_s is not None:
                    self._tell_throttle_time(reply, beginning.throttle_ms, started - beginning.spent_s)
                if isinstance(reply, CollectedReply) and reply.opening is not None:
                    await asyncio.wait([reply.opening])
        finally:
            connection.unmute()

    async def stop(self) -> None:
        await self._tasks.stop()
