"""Reads the batches of one partition as the broker has them on disk. Batches are neither copied nor decoded.

The next Fetch is sent before the caller processes the batches of the last one, so that broker and reader work at the
same time. Replies are received into memory that is used again when the caller no longer refers to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from types import TracebackType
from typing import Final, NamedTuple, Self

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.connection import BrokerConnection
from ottla.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLost,
    OffsetOutOfRange,
    TimedOut,
    TopicReplaced,
)
from ottla.client.protocol.frames import ReplyMemory, body_position
from ottla.client.protocol.metadata import Leader
from ottla.client.retrying import Retry
from ottla.model.batch import HEADER_BYTES, LENGTH_END, LENGTH_MIN, MAGIC
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import ZERO_UUID, WireError
from ottla.wire.fetch import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from ottla.wire.frame import read_uvarint, skip_tags
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FETCH_BYTES_DEFAULT: Final = 2 << 20
_FETCH_BYTES_MAX: Final = 128 << 20
_VERSION_MAX: Final = 17
_LOG_START_FROM: Final = 5
_PREFERRED_FROM: Final = 11
#: time that a broker may take in addition to the wait in the request
_ANSWER_S: Final = 10.0

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_ERROR_AFTER_THROTTLE: Final = Struct(">ih")
_PARTITION: Final = Struct(">ihqq")
_INT64: Final = Struct(">q")
_ABORTED: Final = Struct(">qq")
#: base offset, length, leader epoch, magic
_BATCH_START: Final = Struct(">qiib")
_LAST_OFFSET_DELTA: Final = 23


class Aborted(NamedTuple):
    """An aborted transaction: the records of a producer from this offset up to its marker are not valid."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """Complete batches, and the offsets of the partition when the broker sent them."""

    data: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[Aborted, ...]


class PartitionReader:
    """Iterates over the batches of a partition from offset `start` to `end`.

    The first batch may begin before `start`, and the last may end after `end`: batches are not cut. Raises TimedOut if
    no batch arrives within the cluster's timeout before `end` is reached.
    """

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        wait_ms: int = 500,
    ) -> None:
        self.tp = tp
        #: the next offset to read; the next batch may begin before it
        self.position = start
        self._end = end
        self._cluster = cluster
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._wait_ms = wait_ms
        self._memory = ReplyMemory()
        self._topic_id: bytes | None = None
        self._connection: BrokerConnection | None = None

    def close(self) -> None:
        """Stop reading. A reader that has reached its end is closed already."""
        if self._connection is not None:
            self._cluster.give_back(self._connection)
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Fetched]:
        return self

    def __next__(self) -> Fetched:
        if self.position >= self._end:
            self.close()
            raise StopIteration
        retry = Retry(f"records of {self.tp}", self._cluster.timeout_s, ended=self._cluster.ended)
        while True:
            try:
                fetched = self._fetch(retry)
                if len(fetched.data):
                    break
            except ClientError as error:
                self.close()
                self._cluster.forget(self.tp.topic)
                retry.pause_or_raise(error)
                continue
            if time.monotonic() >= retry.deadline:
                self.close()
                raise TimedOut(
                    f"{self.tp}: nothing came at offset {self.position} within {self._cluster.timeout_s:g} s, though "
                    f"offsets up to {self._end} are wanted; the partition ends at {fetched.high_watermark}, its ended "
                    f"transactions at {fetched.last_stable_offset}: end the open ones, or read up to there"
                )
        if self.position < self._end:
            self._send_ahead(retry)
        return fetched

    def _send_ahead(self, retry: Retry) -> None:
        assert self._connection is not None
        try:
            self._send(self._connection, self._leader(retry.attempt_deadline()), retry.attempt_deadline())
        except ClientError:
            # The batches that have arrived are valid. The next call gets the error again, and handles it.
            self.close()

    def _fetch(self, retry: Retry) -> Fetched:
        """Return the batches at the position, none if none arrived in time. Advance the position."""
        deadline = retry.attempt_deadline()
        if self._connection is None or not self._connection.in_flight:
            leader = self._leader(deadline)
            connection = self._connection = self._connection or self._cluster.borrow(leader.node, deadline)
            self._send(connection, leader, deadline)
        connection = self._connection
        by = time.monotonic() + self._wait_ms / 1000 + min(_ANSWER_S, self._cluster.timeout_s)
        sent, frame = connection.receive_frame(by, self._memory)
        try:
            code, fetched = parse_fetch_reply(frame, body_position(frame, sent), sent.version)
        except (WireError, StructError, IndexError) as error:
            connection.close()
            raise ConnectionLost(str(connection.node), str(error)) from None
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range()
        if code:
            raise BrokerError(code, f"records of {self.tp}")
        size, following = whole_batches(fetched.data)
        if not size and len(fetched.data):
            self._ask_for_more(len(fetched.data))
        if size and following <= self.position:
            raise ConnectionLost(str(connection.node), f"it sent records before offset {self.position} again")
        self.position = max(self.position, following)
        return fetched._replace(data=fetched.data[:size])

    def _leader(self, deadline: float) -> Leader:
        leader = self._cluster.leader(self.tp, deadline)
        if self._topic_id is None:
            self._topic_id = leader.topic_id
        if self._topic_id != leader.topic_id:
            raise TopicReplaced(self.tp.topic)
        return leader

    def _send(self, connection: BrokerConnection, leader: Leader, deadline: float) -> None:
        partition = FetchPartition(
            partition=self.tp.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self.position,
            partition_max_bytes=self._fetch_bytes,
        )
        topic = FetchTopic(topic=self.tp.topic, topic_id=leader.topic_id, partitions=[partition])
        request = FetchRequest(
            max_wait=self._wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation,
            topics=[topic],
        )
        highest = _VERSION_MAX if leader.topic_id != ZERO_UUID else TOPIC_IDS_FROM - 1
        connection.send(request, deadline=deadline, version_max=highest)

    def _out_of_range(self) -> OffsetOutOfRange:
        # Over other connections, because that of the reader may be closed.
        earliest = self._cluster.list_offsets({self.tp: EARLIEST}, isolation=Isolation.READ_UNCOMMITTED)
        latest = self._cluster.list_offsets({self.tp: LATEST}, isolation=Isolation.READ_UNCOMMITTED)
        return OffsetOutOfRange(self.tp, self.position, earliest[self.tp].offset, latest[self.tp].offset)

    def _ask_for_more(self, size: int) -> None:
        """Ask for larger replies: an old broker may cut the first batch if it is larger than the limit."""
        if self._fetch_bytes >= _FETCH_BYTES_MAX:
            raise ClientError(f"{self.tp}: the batch at offset {self.position} is too large to be read")
        self._fetch_bytes = min(max(self._fetch_bytes, size) * 2, _FETCH_BYTES_MAX)


def parse_fetch_reply(frame: memoryview, position: int, version: int) -> tuple[int, Fetched]:
    """Return the error code and the content of a reply for one partition. The records are not copied.

    Raise WireError, IndexError or struct.error if the reply is malformed.
    """
    end = len(frame)
    flexible = version >= FLEXIBLE_FROM
    if version >= SESSIONS_FROM:
        _, code = _ERROR_AFTER_THROTTLE.unpack_from(frame, position)
        position += 10
        if code:
            return code, _NOTHING
    else:
        position += 4
    topics, position = _read_count(frame, position, flexible)
    if topics != 1:
        raise WireError(f"{topics} topics where one was asked for")
    if version >= TOPIC_IDS_FROM:
        position += 16
    else:
        length, position = _read_length(frame, position, flexible)
        position += length
    partitions, position = _read_count(frame, position, flexible)
    if partitions != 1:
        raise WireError(f"{partitions} partitions where one was asked for")
    _, code, high_watermark, last_stable = _PARTITION.unpack_from(frame, position)
    position += _PARTITION.size
    log_start = -1
    if version >= _LOG_START_FROM:
        (log_start,) = _INT64.unpack_from(frame, position)
        position += 8
    aborted, position = _read_aborted(frame, position, flexible)
    if version >= _PREFERRED_FROM:
        position += 4
    size, position = _read_count(frame, position, flexible)
    size = max(size, 0)
    if position + size > end:
        raise WireError("records do not end within the reply")
    return code, Fetched(frame[position : position + size], high_watermark, last_stable, log_start, aborted)


_NOTHING: Final = Fetched(memoryview(b""), -1, -1, -1, ())


def _read_aborted(frame: memoryview, position: int, flexible: bool) -> tuple[tuple[Aborted, ...], int]:
    count, position = _read_count(frame, position, flexible)
    if count * _ABORTED.size > len(frame) - position:
        raise WireError(f"{count} aborted transactions in {len(frame) - position} bytes")
    rows = []
    for _ in range(count):
        rows.append(Aborted(*_ABORTED.unpack_from(frame, position)))
        position += _ABORTED.size
        if flexible:
            position = skip_tags(frame, position, len(frame))
    return tuple(rows), position


def _read_count(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Return a number of elements or bytes, -1 for null, and the position after it."""
    if flexible:
        count, position = read_uvarint(frame, position)
        return count - 1, position
    (count,) = _INT32.unpack_from(frame, position)
    return count, position + 4


def _read_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        return _read_count(frame, position, flexible)
    (length,) = _INT16.unpack_from(frame, position)
    return length, position + 2


def whole_batches(data: memoryview) -> tuple[int, int]:
    """Return the size of the complete batches, and the offset after the last of them; -1 if there is none."""
    position, following, end = 0, -1, len(data)
    start, delta = _BATCH_START.unpack_from, _INT32.unpack_from
    while end - position >= HEADER_BYTES:
        base_offset, length, _, magic = start(data, position)
        if magic != MAGIC or length < LENGTH_MIN:
            raise ClientError(f"a batch of format {magic} is too old, or damaged; read it with another client")
        behind = position + LENGTH_END + length
        if behind > end:
            break
        following = base_offset + delta(data, position + _LAST_OFFSET_DELTA)[0] + 1
        position = behind
    return position, following
