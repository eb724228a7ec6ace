"""Fetch: file regions out of the log, at once or when there are enough of them.

The third of the hot modules. A fetch that finds enough answers at once. Otherwise it parks: one object that hangs in
each partition it waits for, in a bucket of the timer wheel and on its connection; no task, no thread, no polling. It
leaves when the bytes written since add up to what the client asked for, when its time is over, or when its connection
ends.

Records go into the reply as they lie in the file. What is small is read into it; what is large stays a region of the
file that the connection sends by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from ottla.broker.services import Services
from ottla.broker.sessions import FetchedPartition, FetchSession, FetchSessions
from ottla.env.timers import Expiring
from ottla.log.segment import FileRegion
from ottla.model.errors import ErrorCode, KafkaError, OffsetOutOfRange, Refused
from ottla.net.connection import Connection, Part, Slot
from ottla.replica.partition import Partition
from ottla.wire.fetch import TOPIC_IDS_FROM, FetchRequest, ReplyShape, frame_start, parse_fetch, reply_shape

_FETCH = 1
#: a region up to this size is read into the reply; a larger one is sent from its file
_INLINE_BYTES_MAX = 64 << 10
#: how many bytes of records one reply may hold in memory because its regions are small
_INLINE_TOTAL_BYTES_MAX = 1 << 20
_NOWHERE: dict[int, Partition] = {}


class FetchApi:
    """Fetch (1) v4-v17."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = services.replicas.topics
        self._topics_by_id = services.replicas.topics_by_id
        self._time = services.loop.time
        self.wheel = services.wheel
        self.sessions = FetchSessions(
            services.settings.max_incremental_fetch_session_cache_slots, _random_ids(services.broker_id)
        )
        self.bytes_out = 0
        self.parked = 0

    def handle(
        self, connection: Connection, buffer: bytearray, view: memoryview, start: int, end: int, version: int,
        correlation_id: int,
    ) -> None:  # fmt: skip
        """Handle the frame ``buffer[start:end]``."""
        request = parse_fetch(buffer, start, end, version)
        slot = connection.reserve(_FETCH)
        shape = reply_shape(version)
        try:
            session, wanted, news_only = self.sessions.begin(request, version >= TOPIC_IDS_FROM, self._time())
        except Refused as error:
            _fill(slot, correlation_id, shape.reply_start(0, error.code, 0), [], shape)
            return
        fetch = _Fetch(self, slot, shape, correlation_id, request, session, wanted, news_only)
        if not fetch.answer_if_enough():
            fetch.park(connection)

    def find(self, wanted: FetchedPartition, by_id: bool) -> Partition:
        topics = self._topics_by_id if by_id else self._topics
        partition = topics.get(wanted.topic, _NOWHERE).get(wanted.number)
        if partition is None:
            unknown_id = by_id and wanted.topic not in topics
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)
        return partition

    def unreadable(self, wanted: FetchedPartition, by_id: bool, error: OSError) -> _Read:
        """Return the answer for a partition of which a file could not be read."""
        self._services.replicas.note_read_error(self.find(wanted, by_id).name, error)
        return _Read(wanted, ErrorCode.KAFKA_STORAGE_ERROR)

    @property
    def size_bytes_max(self) -> int:
        return self._services.settings.fetch_max_bytes


class _Fetch:
    """One fetch, from its arrival to its reply."""

    __slots__ = (
        "_api", "_bytes", "_connection", "_correlation_id", "_min_bytes", "_news_only", "_partitions", "_request",
        "_session", "_shape", "_slot", "_wanted", "timer_bucket",
    )  # fmt: skip

    def __init__(
        self, api: FetchApi, slot: Slot, shape: ReplyShape, correlation_id: int, request: FetchRequest,
        session: FetchSession | None, wanted: list[FetchedPartition], news_only: bool,
    ) -> None:  # fmt: skip
        self._api = api
        self._slot = slot
        self._shape = shape
        self._correlation_id = correlation_id
        self._request = request
        self._session = session
        self._wanted = wanted
        self._news_only = news_only
        self._min_bytes = min(request.min_bytes, request.size_bytes_max)

        # While parked
        self.timer_bucket: dict[Expiring, None] | None = None
        self._connection: Connection | None = None
        self._partitions: list[Partition] = []
        self._bytes = 0

    # -- waiting --------------------------------------------------------------------------------------------------

    def answer_if_enough(self) -> bool:
        """Answer unless there is a reason to wait: time, partitions, no error, and too few bytes."""
        reads, size_bytes, failed = self._read()
        wait_ms = self._request.max_wait_ms
        if wait_ms > 0 and self._wanted and not failed and size_bytes < self._min_bytes:
            self._bytes = size_bytes
            return False
        self._answer(reads)
        return True

    def park(self, connection: Connection) -> None:
        by_id = self._shape.topic_ids
        self._partitions = [self._api.find(wanted, by_id) for wanted in self._wanted]
        for partition in self._partitions:
            partition.park(self, read_committed=self._request.read_committed)
        self._connection = connection
        connection.on_close[self.cancel] = None
        self._api.wheel.add(self, self._request.max_wait_ms / 1000)
        self._api.parked += 1

    def on_committed(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes >= self._min_bytes:
            self._leave_and_answer()

    def on_stable(self) -> None:
        if self._connection is not None:
            _, self._bytes, failed = self._read()
            if failed or self._bytes >= self._min_bytes:
                self._leave_and_answer()

    def on_gone(self) -> None:
        self._leave_and_answer()

    def expire(self) -> None:
        self._leave_and_answer()

    def cancel(self) -> None:
        """The client is gone and nobody wants the answer, or it closed its side and wants what there is."""
        connection = self._connection
        self._leave()
        if connection is not None and not connection.closing:
            self._answer(self._read()[0])

    def _leave_and_answer(self) -> None:
        if self._connection is not None:
            self._leave()
            self._answer(self._read()[0])

    def _leave(self) -> None:
        if self._connection is None:
            return
        self._connection.on_close.pop(self.cancel, None)
        self._connection = None
        self._api.wheel.remove(self)
        self._api.parked -= 1
        for partition in self._partitions:
            partition.unpark(self)
        self._partitions = []

    # -- reading --------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[_Read], int, bool]:
        """Look at every partition once: what to say of each, bytes of records in all, whether any failed."""
        reads: list[_Read] = []
        total, failed = 0, False
        left = min(self._request.size_bytes_max, self._api.size_bytes_max)
        by_id, read_committed = self._shape.topic_ids, self._request.read_committed
        for wanted in self._wanted:
            try:
                partition = self._api.find(wanted, by_id)
                read = _read_partition(partition, wanted, left, at_least_one=not total, read_committed=read_committed)
            except KafkaError as error:
                read = _Read(wanted, int(error.code))
                if isinstance(error, OffsetOutOfRange):
                    read.log_start_offset = partition.log.log_start_offset
            except OSError as error:
                read = self._api.unreadable(wanted, by_id, error)
            if read.error_code or read.diverging is not None:
                failed = True
            if read.region is not None:
                total += read.region.size_bytes
                left = max(left - read.region.size_bytes, 0)
            reads.append(read)
        return reads, total, failed

    def _answer(self, reads: list[_Read]) -> None:
        if self._session is not None:
            reads = self._within_session(reads)
        shape = self._shape
        session_id = self._session.session_id if self._session is not None else 0
        start = shape.reply_start(0, 0, session_id)
        try:
            self._api.bytes_out += _fill(self._slot, self._correlation_id, start, reads, shape)
        except OSError as error:
            unreadable, by_id = self._api.unreadable, shape.topic_ids
            reads = [unreadable(read.wanted, by_id, error) if read.region is not None else read for read in reads]
            _fill(self._slot, self._correlation_id, start, reads, shape)

    def _within_session(self, reads: list[_Read]) -> list[_Read]:
        session = self._session
        assert session is not None
        kept = []
        for read in reads:
            size_bytes = read.region.size_bytes if read.region is not None else 0
            news = read.wanted.is_news(read.error_code, read.high_watermark, read.log_start_offset, size_bytes)
            if news or not self._news_only or read.diverging is not None:
                kept.append(read)
            if size_bytes:
                session.move_to_end(read.wanted)
        return kept


class _Read:
    """What a reply says of one partition."""

    __slots__ = (
        "aborted", "diverging", "error_code", "high_watermark", "last_stable_offset", "log_start_offset", "region",
        "wanted",
    )  # fmt: skip

    def __init__(self, wanted: FetchedPartition, error_code: int = 0) -> None:
        self.wanted = wanted
        self.error_code = error_code
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        #: the transactions whose records are to be left out; None for a reader that does not care
        self.aborted: list[tuple[int, int]] | None = None
        self.region: FileRegion | None = None
        #: the epoch and offset up to which the reader's history is ours
        self.diverging: tuple[int, int] | None = None


def _read_partition(
    partition: Partition, wanted: FetchedPartition, left: int, *, at_least_one: bool, read_committed: bool
) -> _Read:
    request = wanted.request
    partition.check_leader_epoch(request.current_leader_epoch)
    log = partition.log
    read = _Read(wanted)
    read.high_watermark = partition.high_watermark
    read.last_stable_offset = partition.last_stable_offset
    read.log_start_offset = log.log_start_offset
    if request.last_fetched_epoch >= 0:
        if request.last_fetched_epoch == partition.leader_epoch:
            # It may not have written anything yet, and then the history does not know it.
            epoch, end_offset = partition.leader_epoch, log.log_end_offset
        else:
            epoch, end_offset = log.epochs.end_offset_for(request.last_fetched_epoch, log.log_end_offset)
        if epoch < 0:
            raise OffsetOutOfRange(f"leader epoch {request.last_fetched_epoch} is unknown here")
        if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
            read.diverging = epoch, end_offset
            return read
    if read_committed:
        read.aborted = []
    size_bytes_max = min(request.size_bytes_max, left)
    if size_bytes_max <= 0 and not at_least_one:
        return read
    end_offset = read.last_stable_offset if read_committed else read.high_watermark
    read.region = log.read(request.fetch_offset, size_bytes_max, end_offset, at_least_one=at_least_one)
    if read_committed and read.region is not None:
        read.aborted = log.aborted_within(request.fetch_offset, read.region, end_offset)
    return read


def _fill(slot: Slot, correlation_id: int, start: bytes, reads: list[_Read], shape: ReplyShape) -> int:
    """Put the reply together and give it to the connection. Returns the bytes of records in it."""
    parts: list[Part] = []
    out: list[bytes] = [start]
    size = records_bytes = inlined = 0
    topics = list(_by_topic(reads)) if len(reads) > 1 else [(reads[0].wanted.topic, reads)] if reads else []
    out.append(shape.count(len(topics)))
    for topic, its_reads in topics:
        out.append(shape.topic(topic))
        out.append(shape.count(len(its_reads)))
        for read in its_reads:
            region = read.region
            length = region.size_bytes if region is not None else 0
            out.append(
                shape.partition_start(
                    read.wanted.number, read.error_code, read.high_watermark, read.last_stable_offset,
                    read.log_start_offset, length, read.aborted,
                )
            )  # fmt: skip
            if region is not None:
                records_bytes += length
                if length <= _INLINE_BYTES_MAX and inlined < _INLINE_TOTAL_BYTES_MAX:
                    inlined += length
                    out.append(region.read())
                else:
                    parts.append(b"".join(out))
                    parts.append(region)
                    size += len(parts[-2]) + length  # type: ignore[arg-type]
                    out = []
            out.append(shape.partition_end(read.diverging))
        out.append(shape.partition_tail)
    out.append(shape.partition_tail)
    last = b"".join(out)
    head = frame_start(correlation_id, size + len(last))
    if parts:
        parts.append(last)
        first = parts.pop(0)
        assert isinstance(first, bytes)
        slot.fill(head + first, parts)
    else:
        slot.fill(head + last)
    return records_bytes


def _by_topic(reads: list[_Read]) -> Iterator[tuple[bytes, list[_Read]]]:
    """Neighbours of the same topic share its entry."""
    group: list[_Read] = []
    for read in reads:
        if group and group[0].wanted.topic != read.wanted.topic:
            yield group[0].wanted.topic, group
            group = []
        group.append(read)
    if group:
        yield group[0].wanted.topic, group


def _random_ids(seed: int) -> Iterator[int]:
    # Session ids need to be hard to confuse, not hard to guess: a connection is authorized by itself.
    source = random.Random(seed)
    while True:
        yield source.randrange(1, 1 << 31)
