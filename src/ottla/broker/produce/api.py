"""Produce: append the batches of a request to logs, and reply when they are as durable as ``acks`` asks for.

This is the second of the hot modules. ``handle`` gets every Produce request. A client that writes to one partition
sends the same bytes in front of every batch, so the connection caches them with the partition, the acks and a template
of the reply (``_Shortcut``). A request that starts with these bytes is not parsed; librdkafka's always do. All other
requests take the general path, which costs a few microseconds more. Any change of topics invalidates the cache.

Some topics need the records of a batch validated or recompressed (`log/opening.py`). If that takes long, it is done in
another process, and the schema registry may have to be asked about schema ids (`schema_validation.py`). The connection
is muted meanwhile, so that its requests keep their order; other clients are served. When the result arrives, the
partition is looked up and the batch is validated again, because the topic may have changed.

The time of the reply: with acks=0 there is none, and an error closes the connection. With acks=1 it is sent at the end
of the turn, when the batch is in the file. With acks=all it is sent after the sync, unless the topic is configured not
to wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling, with_throttle_time
from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import INTERNAL_TOPICS
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.transactions.checks import TransactionChecks, find_inconsistency, term_of
from ottla.broker.transactions.runtime import TransactionRuntime
from ottla.broker.transactions.transactional_batches import (
    IMPLICIT_FROM,
    Beginnings,
    TransactionalBatches,
    begun_by,
    is_in_transaction,
)
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.env.clock import Clock
from ottla.env.tasks import Tasks
from ottla.log.opening import NeedsOpening, Opening
from ottla.model.batch import read_header
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
from ottla.model.settings_registry import NO_VALIDATION
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection, Slot
from ottla.security.acls import ResourceType
from ottla.security.quotas import Quota
from ottla.wire.frame import read_client_id
from ottla.wire.produce import (
    FLEXIBLE_FROM,
    LEADERS_FROM,
    TOPIC_IDS_FROM,
    PartitionData,
    PartitionResult,
    ProduceRequest,
    ReplyTemplate,
    build_produce_reply,
    parse_produce,
    throttle_position,
)

_PRODUCE = 0
#: first version in which batches may be compressed with zstd
_ZSTD_FROM = 7
_ZSTD = 4
_unpack_int32 = Struct(">i").unpack_from
_unpack_attributes = Struct(">h").unpack_from
_TAGS_BEHIND_BATCH = b"\0\0\0"

#: after these errors the client sends the same batch again: too few replicas, the coordinator cannot say yet, or the
#: batch could not be opened or validated in time
_RETRIED = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT)

#: results by topic: its name, or its id from v13 on
Topics = list[tuple[bytes, list[PartitionResult]]]


class _Shortcut:
    """The parts of a request to a single partition that the next request of the connection is likely to repeat."""

    __slots__ = (
        "acks", "begins_transactions", "flexible", "generation", "hints", "partition", "prefix", "prefix_end",
        "template", "timeout_s", "transactional_id", "version",
    )  # fmt: skip

    def __init__(
        self, generation: int, version: int, prefix: bytes, partition: Partition, acks: int, timeout_ms: int,
        template: ReplyTemplate, transactional_id: str | None, hints: LeaderHints,
    ) -> None:  # fmt: skip
        self.generation = generation
        self.version = version
        #: the frame's bytes between the correlation id and the length of the batch
        self.prefix = prefix
        self.prefix_end = 8 + len(prefix)
        self.flexible = version >= FLEXIBLE_FROM
        self.partition = partition
        self.acks = acks
        self.timeout_s = timeout_ms / 1000
        self.template = template
        self.hints = hints
        #: None outside of a transaction
        self.transactional_id = transactional_id
        #: KIP-890: the coordinator is asked about the first batch of a transaction
        self.begins_transactions = transactional_id is not None


class _OneWriter(Slot):
    """A request for one partition that waits for the write or the sync of its batch; it is its own reply slot."""

    __slots__ = ("_correlation_id", "_reply", "_shortcut", "deadline")

    def __init__(
        self, connection: Connection, started: float, reply: bytes, shortcut: _Shortcut, correlation_id: int
    ) -> None:
        self.connection = connection
        self.api_key = _PRODUCE
        self.started = started
        self.data = self.parts = None
        self._reply = reply
        self._shortcut = shortcut
        self._correlation_id = correlation_id
        self.deadline = started + shortcut.timeout_s

    def on_write_complete(self, error_code: int) -> None:
        if error_code:
            partition, version = self._shortcut.partition, self._shortcut.version
            key = partition.topic_id if version >= TOPIC_IDS_FROM else partition.topic_name
            topics = [(key, [PartitionResult(partition.name.partition, error_code)])]
            (throttle_ms,) = _unpack_int32(self._reply, throttle_position(self._reply, version))
            self.fill(
                _error_reply(self.connection, self._correlation_id, version, topics, self._shortcut.hints, throttle_ms)
            )
        else:
            self.fill(self._reply)

    def tell_throttle_time(self, throttle_ms: int) -> None:
        """Let the reply name the time for which the connection is muted."""
        position = throttle_position(self._reply, self._shortcut.version)
        self._reply = with_throttle_time(self._reply, position, throttle_ms)


class _ManyWriter(Slot):
    """A request for several partitions, or one that fails at once; it is completed when the last of them is."""

    __slots__ = (
        "_correlation_id", "_hints", "_incomplete", "_throttle_ms", "_topics", "_version", "deadline", "has_errors",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, correlation_id: int, version: int, topics: Topics, deadline: float,
        hints: LeaderHints,
    ) -> None:  # fmt: skip
        super().__init__(connection, _PRODUCE, connection.turn_started)
        self._throttle_ms = 0
        self._correlation_id = correlation_id
        self._version = version
        self._topics = topics
        #: partitions that wait, plus one until every batch of the request has been handled
        self._incomplete = 1
        self._hints = hints
        self.has_errors = False
        self.deadline = deadline

    def expect(self, topic: int, place: int) -> _PartWriter:
        self._incomplete += 1
        return _PartWriter(self, topic, place)

    def complete(self, topic: int, place: int, error_code: int) -> None:
        if error_code:
            self.has_errors = True
            results = self._topics[topic][1]
            results[place] = PartitionResult(results[place].partition, error_code)
        self.complete_one()

    def complete_one(self) -> None:
        self._incomplete -= 1
        if not self._incomplete:
            self.fill(self._build())

    def tell_throttle_time(self, throttle_ms: int) -> None:
        """Let the reply name the time for which the connection is muted. Called before the reply is sent."""
        self._throttle_ms = throttle_ms
        if self.data is not None:
            self.data = self._build()

    def _build(self) -> bytes:
        correlation_id, version, topics, throttle_ms = (
            self._correlation_id, self._version, self._topics, self._throttle_ms,
        )  # fmt: skip
        if self.has_errors:
            return _error_reply(self.connection, correlation_id, version, topics, self._hints, throttle_ms)
        return build_produce_reply(correlation_id, version, topics, throttle_ms=throttle_ms)


class _PartWriter:
    """One partition of a ``_ManyWriter``."""

    __slots__ = ("_place", "_topic", "_whole", "deadline")

    def __init__(self, whole: _ManyWriter, topic: int, place: int) -> None:
        self._whole = whole
        self._topic = topic
        self._place = place
        self.deadline = whole.deadline

    def on_write_complete(self, error_code: int) -> None:
        self._whole.complete(self._topic, self._place, error_code)


class _Unopened(NamedTuple):
    """A batch that waits to be opened, or that follows such a batch in the same request."""

    topic: int
    place: int
    key: bytes
    partition: int
    #: a copy: the frame's buffer belongs to the next frame
    batch: bytearray
    #: None for a batch that only waits for an earlier one of the request
    opening: Opening | None
    #: the leader epoch of the partition when the request arrived
    leader_epoch: int


class _Beginning:
    """What the first batch of a transaction has used of its client's quotas when it begins to wait."""

    __slots__ = ("spent_s", "throttle_ms")

    def __init__(self) -> None:
        self.throttle_ms = 0
        #: time for which the request was handled; None if no quota counts it
        self.spent_s: float | None = None


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
        self._metadata = metadata
        self._replicas = replicas
        self._wall_ms = clock.wall_ms
        self._monotonic = clock.monotonic
        self._hints = LeaderHints(metadata, replicas)
        self._access = access
        self._throttling = throttling
        self._schemas = schemas
        self._checks = checks
        self._transactional = TransactionalBatches(metadata, checks, transactions)
        self._tasks = Tasks()
        #: the newest request that began a transaction and waits for the coordinator
        self._beginning = _Beginning()

    def apis(self) -> Mapping[int, ServedApi]:
        return {0: ServedApi(3, 13, advertised_min=0)}

    def handle(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int, version: int,
        correlation_id: int,
    ) -> None:  # fmt: skip
        """Handle the frame ``buffer[start:end]``."""
        shortcut = connection.cache
        if (
            shortcut.__class__ is not _Shortcut
            or shortcut.generation != self._replicas.generation
            or shortcut.version != version
            or buffer[start + 8 : start + shortcut.prefix_end] != shortcut.prefix
        ):
            self._handle_general(connection, buffer, view, start, end, version, correlation_id)
            return
        position = start + shortcut.prefix_end
        if shortcut.flexible:
            byte = buffer[position]
            position += 1
            size = byte & 0x7F
            shift = 7
            while byte > 0x7F and shift < 35:
                byte = buffer[position]
                position += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            batch_end = position + size - 1
            if not size or end - batch_end != 3 or buffer[batch_end:end] != _TAGS_BEHIND_BATCH:
                self._handle_general(connection, buffer, view, start, end, version, correlation_id)
                return
        else:
            (size,) = _unpack_int32(buffer, position)
            position += 4
            batch_end = position + size
            if batch_end != end or size < 0:
                self._handle_general(connection, buffer, view, start, end, version, correlation_id)
                return
        if shortcut.begins_transactions and not is_in_transaction(shortcut.partition, buffer, position, batch_end):
            self._handle_general(connection, buffer, view, start, end, version, correlation_id)
            return
        self._append_one(connection, shortcut, buffer, view, position, batch_end, correlation_id)

    def handle_counted(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int, version: int,
        correlation_id: int,
    ) -> None:  # fmt: skip
        """Handle a frame and count it: there are quotas of produced bytes or of request time."""
        throttling = self._throttling
        started = throttling.monotonic()
        connection.client_id = read_client_id(buffer, start + 8, end)
        throttle_ms = throttling.take(Quota.PRODUCE, connection, end - start)
        before, earlier = connection.newest_slot, self._beginning
        self.handle(connection, buffer, view, start, end, version, correlation_id)
        if (beginning := self._beginning) is not earlier:
            beginning.throttle_ms, beginning.spent_s = throttle_ms, throttling.monotonic() - started
        else:
            self._tell_throttle_time(connection, before, throttle_ms, started)

    def _tell_throttle_time(
        self, connection: Connection, before: Slot | None, throttle_ms: int, started: float
    ) -> None:
        """Count the time of a request, and let its reply name the throttle time.

        ``before`` is the newest slot before the request. With acks=0 there is no other, and as in Kafka the time is not
        counted.
        """
        slot = connection.newest_slot
        if slot is before:
            return
        throttle_ms = max(throttle_ms, self._throttling.take_time(connection, started))
        if throttle_ms and isinstance(slot, _OneWriter | _ManyWriter):
            slot.tell_throttle_time(throttle_ms)

    def _append_one(
        self, connection: Connection, shortcut: _Shortcut, buffer: FrameBuffer, view: memoryview, start: int, end: int,
        correlation_id: int,
    ) -> asyncio.Task[None] | None:  # fmt: skip
        """Append the only batch of a request, in the partition that was found before. Return the task that opens it."""
        partition, acks, version = shortcut.partition, shortcut.acks, shortcut.version
        replicas = self._replicas
        now_ms = self._wall_ms()
        try:
            if acks == -1 and len(partition.replicas) > 1:
                partition.check_enough_replicas()
            if version < _ZSTD_FROM:
                _check_codec(buffer, start, end)
            if shortcut.transactional_id is None:
                base_offset, end_offset = replicas.append(partition, buffer, view, start, end, now_ms)
            else:
                self._transactional.check(partition, shortcut.transactional_id, buffer, start, end, version)
                base_offset, end_offset = replicas.append(
                    partition, buffer, view, start, end, now_ms, transactional=True
                )
        except NeedsOpening as needs:
            key = partition.topic_id if version >= TOPIC_IDS_FROM else partition.topic_name
            timeout_ms = int(shortcut.timeout_s * 1000)
            request = ProduceRequest(shortcut.transactional_id, acks, timeout_ms, [])
            batch, epoch = bytearray(view[start:end]), partition.leader_epoch
            unopened = _Unopened(0, 0, key, partition.name.partition, batch, needs.opening, epoch)
            topics = [(key, [PartitionResult(partition.name.partition)])]
            whole = self._begin_reply(connection, request, version, correlation_id, topics)
            return self._open_then_append(connection, request, version, whole, topics, [unopened], failed=False)
        except KafkaError as error:
            _note_refused(partition, error, buffer, start, end)
            if acks == 0:
                connection.close()
                return None
            key = partition.topic_id if version >= TOPIC_IDS_FROM else partition.topic_name
            results = [(key, [_refusal(partition.name.partition, error)])]
            whole = _ManyWriter(connection, correlation_id, version, results, 0.0, self._hints)
            connection.enqueue(whole)
            _end_reply(connection, whole, failed=True)
            return None
        if acks == 0:
            replicas.acks_zero += 1
            connection.touch()  # a reply would, and there is none: the connection is not idle
            return None
        log = partition.log
        append_time = now_ms if log.settings.log_append_time else -1
        reply = shortcut.template.fill(correlation_id, base_offset, append_time, log.log_start_offset)
        writer = _OneWriter(connection, connection.turn_started, reply, shortcut, correlation_id)
        connection.enqueue(writer)
        replicas.wait(partition, partition.until(acks), end_offset, writer)
        return None

    # -- the general path -----------------------------------------------------------------------------------------

    def _handle_general(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int, version: int,
        correlation_id: int, *, is_added: bool = False,
    ) -> asyncio.Task[None] | None:  # fmt: skip
        """Handle a request. Return the task that opens and appends some of its batches, None if there is none.

        With ``is_added`` the coordinator was asked about the batches that begin a transaction.
        """
        request = parse_produce(buffer, start, end, version)
        if request.transactional_id is not None and not is_added:
            coordinator = self._transactional.other_coordinator(request.transactional_id)
            is_asked = version >= IMPLICIT_FROM or coordinator is not None
            beginnings = self._to_add(connection, request, buffer, version) if is_asked else {}
            if beginnings:
                # Later requests of this connection must not be handled before this one.
                connection.mute()
                frame = bytes(view[start:end])
                self._beginning = beginning = _Beginning()
                work = self._add_then_handle(
                    connection, frame, version, correlation_id, request.transactional_id, beginnings, coordinator,
                    beginning,
                )  # fmt: skip
                self._tasks.start(work, "begin a transaction")
                return None
        shortcut = self._learn(connection, buffer, start, request, version)
        if shortcut is not None:
            data = request.topics[0][1][0]
            return self._append_one(connection, shortcut, buffer, view, data.start, data.end, correlation_id)
        return self._append_many(connection, buffer, view, request, version, correlation_id)

    def _append_many(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, request: ProduceRequest, version: int,
        correlation_id: int,
    ) -> asyncio.Task[None] | None:  # fmt: skip
        """Append the batches of a request in order. If one has to be opened first, those behind it wait for it.

        Return the task that does so, None if no batch is opened.
        """
        topics: Topics = []
        whole = self._begin_reply(connection, request, version, correlation_id, topics)
        failed = False
        unopened: list[_Unopened] = []
        inconsistent = find_inconsistency(request, buffer)
        for number, (key, partitions) in enumerate(request.topics):
            results: list[PartitionResult] = []
            topics.append((key, results))
            for place, data in enumerate(partitions):
                opening: Opening | None = None
                try:
                    if inconsistent is not None:
                        raise inconsistent
                    partition = self._find(connection, key, data, request, version, buffer)
                    if not unopened:
                        result, end_offset = self._append(partition, buffer, view, data, request, version)
                        results.append(result)
                        self._expect(whole, number, place, partition, request, end_offset)
                        continue
                except NeedsOpening as needs:
                    opening = needs.opening
                except KafkaError as error:
                    failed = True
                    results.append(_refusal(data.partition, error))
                    continue
                results.append(PartitionResult(data.partition))
                batch = bytearray(view[data.start : data.end])
                epoch = partition.leader_epoch
                unopened.append(_Unopened(number, place, key, data.partition, batch, opening, epoch))
        if unopened:
            return self._open_then_append(connection, request, version, whole, topics, unopened, failed=failed)
        _end_reply(connection, whole, failed=failed)
        return None

    def _begin_reply(
        self, connection: Connection, request: ProduceRequest, version: int, correlation_id: int,
        topics: Topics,
    ) -> _ManyWriter | None:  # fmt: skip
        """Reserve the slot of the reply; return None for acks=0."""
        if not request.acks:
            return None
        deadline = self._monotonic() + request.timeout_ms / 1000
        whole = _ManyWriter(connection, correlation_id, version, topics, deadline, self._hints)
        connection.enqueue(whole)
        return whole

    def _expect(
        self, whole: _ManyWriter | None, topic: int, place: int, partition: Partition, request: ProduceRequest,
        end_offset: int,
    ) -> None:  # fmt: skip
        """Let the reply wait until the batch is as durable as ``acks`` asks for."""
        if whole is None:
            return
        writer = whole.expect(topic, place)
        self._replicas.wait(partition, partition.until(request.acks), end_offset, writer)

    # -- batches that are opened elsewhere ------------------------------------------------------------------------

    def _open_then_append(
        self, connection: Connection, request: ProduceRequest, version: int, whole: _ManyWriter | None,
        topics: Topics, unopened: list[_Unopened], *, failed: bool,
    ) -> asyncio.Task[None]:  # fmt: skip
        # Later requests of this connection must not be handled before this one.
        connection.mute()
        work = self._append_opened(connection, request, version, whole, topics, unopened, failed)
        return self._tasks.start(work, "open batches")

    async def _append_opened(
        self, connection: Connection, request: ProduceRequest, version: int, whole: _ManyWriter | None,
        topics: Topics, unopened: list[_Unopened], failed: bool,
    ) -> None:  # fmt: skip
        """Open and append these batches in order, also if the client has disconnected."""
        completed = False
        try:
            for each in unopened:
                try:
                    partition, result, end_offset = await self._open_and_append(connection, each, request, version)
                except KafkaError as error:
                    failed = True
                    topics[each.topic][1][each.place] = _refusal(each.partition, error)
                    continue
                topics[each.topic][1][each.place] = result
                if whole is not None:
                    whole.deadline = self._monotonic() + request.timeout_ms / 1000
                self._expect(whole, each.topic, each.place, partition, request, end_offset)
            connection.touch()
            _end_reply(connection, whole, failed=failed)
            completed = True
        finally:
            if not completed:
                connection.abort()  # its slot is reserved and will not be filled
            connection.unmute()

    async def _open_and_append(
        self, connection: Connection, each: _Unopened, request: ProduceRequest, version: int
    ) -> tuple[Partition, PartitionResult, int]:
        opening = each.opening
        while True:
            batch = each.batch
            if opening is not None:
                batch = await self._open(connection, each, opening, request, version)
            data = PartitionData(each.partition, 0, len(batch))
            partition = self._find(connection, each.key, data, request, version, batch)
            if partition.leader_epoch != each.leader_epoch:
                # Another broker led meanwhile. The log may have lost the batches that the producer sent before this
                # one, and without them this would be the first batch of the producer.
                error = NotLeaderOrFollower("another broker has led the partition meanwhile; send the batch again")
                _note_refused(partition, error, batch, 0, len(batch))
                raise error
            connection.touch()  # begins a turn, at whose end the batch is written
            opened = None if opening is None else opening.settings
            try:
                result, end_offset = self._append(partition, batch, memoryview(batch), data, request, version, opened)
            except NeedsOpening as needs:  # this is the first attempt, or the topic's settings have changed
                opening = needs.opening
                continue
            return partition, result, end_offset

    async def _open(
        self, connection: Connection, each: _Unopened, opening: Opening, request: ProduceRequest, version: int
    ) -> bytearray:
        """Return the batch that the topic stores. Raise the KafkaError for the reply."""
        batch = each.batch
        data = PartitionData(each.partition, 0, len(batch))
        partition = self._find(connection, each.key, data, request, version, batch)
        try:
            if opening.rules is not None:
                count = read_header(batch).record_count
                batch = bytearray(await self._replicas.opener.open_batch(batch, opening.rules, count) or batch)
            if opening.settings.schema_action != NO_VALIDATION:
                validate = self._schemas.validate
                batch = bytearray(await validate(batch, partition, opening.settings, request.acks, connection.touch))
            return batch
        except KafkaError as error:
            _note_refused(partition, error, each.batch, 0, len(each.batch))
            raise

    def _learn(
        self, connection: Connection, buffer: FrameBuffer, start: int, request: ProduceRequest, version: int
    ) -> _Shortcut | None:
        """Cache and return a shortcut for requests like this one; None unless it is for a single, known partition."""
        if len(request.topics) != 1 or len(request.topics[0][1]) != 1:
            return None
        key, (data,) = request.topics[0]
        try:
            partition = self._find(connection, key, data, request, version, buffer, quiet=True)
        except KafkaError:
            return None
        # The length of the batch is between the partition's number and the batch.
        size = data.end - data.start
        length_bytes = 4 if version < FLEXIBLE_FROM else max((size + 1).bit_length() + 6, 7) // 7
        prefix = bytes(buffer[start + 8 : data.start - length_bytes])
        template = ReplyTemplate(key, data.partition, version)
        shortcut = _Shortcut(
            self._replicas.generation, version, prefix, partition, request.acks, request.timeout_ms, template,
            request.transactional_id, self._hints,
        )  # fmt: skip
        connection.cache = shortcut
        return shortcut

    def _find(
        self, connection: Connection, key: bytes, data: PartitionData, request: ProduceRequest, version: int,
        buffer: FrameBuffer, *, quiet: bool = False,
    ) -> Partition:  # fmt: skip
        """Return the partition of a batch. Raise the KafkaError to answer with if this broker does not lead it.

        ``quiet`` is for callers that do not answer with the error: the batch is looked up again before the reply.
        """
        if self._access.authorizer is not None:
            self._check_access(connection, key, request, version, quiet=quiet)
        if not -1 <= request.acks <= 1:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
        by_id = version >= TOPIC_IDS_FROM
        try:
            partition = self._replicas.leader_of(key, data.partition, by_id=by_id)
        except NotLeaderOrFollower as error:
            if self._is_internal(key, by_id=by_id):
                raise _internal_topic() from None  # as in Kafka, every broker gives this answer
            # This broker may begin to lead before the next batch of the producer arrives.
            replica = (self._replicas.topics_by_id if by_id else self._replicas.topics).get(key, {}).get(data.partition)
            if replica is not None:
                _note_refused(replica, error, buffer, data.start, data.end)
            raise
        if partition.name.topic in INTERNAL_TOPICS:
            raise _internal_topic()
        if data.start < 0:
            raise InvalidRecord("no batch in the request")
        return partition

    def _is_internal(self, key: bytes, *, by_id: bool) -> bool:
        if not by_id:
            return key.decode(errors="replace") in INTERNAL_TOPICS
        topic = self._metadata.view.topics_by_id.get(key)
        return topic is not None and topic.name in INTERNAL_TOPICS

    def _check_access(
        self, connection: Connection, key: bytes, request: ProduceRequest, version: int, *, quiet: bool
    ) -> None:
        """Raise the KafkaError for a topic or a transaction that this client may not write to.

        The result is cached with the partition, because a change of ACLs raises the generation of the replicas.
        """
        transactional_id = request.transactional_id
        if transactional_id is not None and not self._access.may(
            connection, _PRODUCE, ResourceType.TRANSACTIONAL_ID, transactional_id, quiet=quiet
        ):
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        by_id = version >= TOPIC_IDS_FROM
        topic = self._metadata.view.topics_by_id.get(key) if by_id else None
        if topic is not None or not by_id:
            name = topic.name if topic is not None else key.decode(errors="replace")
            self._access.check_topic(connection, _PRODUCE, name, quiet=quiet)

    def _append(
        self, partition: Partition, buffer: FrameBuffer, view: memoryview, data: PartitionData, request: ProduceRequest,
        version: int, opened: TopicSettings | None = None,
    ) -> tuple[PartitionResult, int]:  # fmt: skip
        now_ms = self._wall_ms()
        try:
            if request.acks == -1:
                partition.check_enough_replicas()
            if version < _ZSTD_FROM:
                _check_codec(buffer, data.start, data.end)
            if request.transactional_id is not None:
                self._transactional.check(partition, request.transactional_id, buffer, data.start, data.end, version)
            base, end_offset = self._replicas.append(
                partition, buffer, view, data.start, data.end, now_ms,
                transactional=request.transactional_id is not None, opened=opened,
            )  # fmt: skip
        except KafkaError as error:
            _note_refused(partition, error, buffer, data.start, data.end)
            raise
        append_time = now_ms if partition.log.settings.log_append_time else -1
        return PartitionResult(data.partition, 0, base, append_time, partition.log.log_start_offset), end_offset

    def _to_add(self, connection: Connection, request: ProduceRequest, buffer: FrameBuffer, version: int) -> Beginnings:
        """Return the partitions in which batches of this request begin a transaction."""
        beginnings: Beginnings = {}
        for key, partitions in request.topics:
            for data in partitions:
                try:
                    partition = self._find(connection, key, data, request, version, buffer, quiet=True)
                except KafkaError:
                    continue
                producer = begun_by(partition, buffer, data.start, data.end)
                if producer is not None:
                    beginnings.setdefault(producer, {})[partition.name] = term_of(partition)
        return beginnings

    async def _add_then_handle(
        self, connection: Connection, frame: bytes, version: int, correlation_id: int, transactional_id: str,
        beginnings: Beginnings, coordinator: int | None, beginning: _Beginning,
    ) -> None:  # fmt: skip
        """Add the partitions to the transaction, then handle the request until its batches are appended or refused."""
        try:
            with self._checks.request() as checks:
                await self._transactional.add(checks, coordinator, transactional_id, beginnings, version)
                if connection.closing:
                    return
                connection.touch()  # begins a turn, at whose end the batch is written
                buffer, before, started = bytearray(frame), connection.newest_slot, self._monotonic()
                opening = self._handle_general(
                    connection, buffer, memoryview(buffer), 0, len(buffer), version, correlation_id, is_added=True
                )
                if beginning.spent_s is not None:
                    self._tell_throttle_time(connection, before, beginning.throttle_ms, started - beginning.spent_s)
                if opening is not None:
                    await asyncio.wait([opening])
        finally:
            connection.unmute()

    async def stop(self) -> None:
        await self._tasks.stop()


def _note_refused(partition: Partition, error: KafkaError, buffer: FrameBuffer, start: int, end: int) -> None:
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


def _check_codec(buffer: FrameBuffer, start: int, end: int) -> None:
    if end - start >= 23 and _unpack_attributes(buffer, start + 21)[0] & 7 == _ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")


def _end_reply(connection: Connection, whole: _ManyWriter | None, *, failed: bool) -> None:
    """Complete a request whose batches have all been handled, except for those that wait for a write or a sync."""
    if whole is not None:
        whole.has_errors |= failed
        whole.complete_one()
    elif failed:
        connection.close()
    else:
        connection.touch()


def _error_reply(
    connection: Connection, correlation_id: int, version: int, topics: Topics, hints: LeaderHints, throttle_ms: int
) -> bytes:
    """Return a reply with errors. It names the leaders of partitions that other brokers lead (KIP-951)."""
    if version < LEADERS_FROM:
        return build_produce_reply(correlation_id, version, topics, throttle_ms=throttle_ms)
    leaders = []
    by_id = version >= TOPIC_IDS_FROM
    for key, results in topics:
        for place, result in enumerate(results):
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader = hints.leader_of(key, result.partition, by_id=by_id)
                leaders.append(leader)
                results[place] = result._replace(leader=leader)
    nodes = hints.addresses(leaders, connection) if leaders else []
    return build_produce_reply(correlation_id, version, topics, nodes, throttle_ms)


def _refusal(index: int, error: KafkaError) -> PartitionResult:
    return PartitionResult(index, int(error.code), record_errors=error.record_errors, message=str(error) or None)
