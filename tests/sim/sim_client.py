"""The connection of a simulated client, and the records that it reads and writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sim_host import PORT
from sim_network import ClientStream

from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, TRANSACTIONAL, checksum, read_header
from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch, iterate_records
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire import Message
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from sim_world import World

GROUP, TRANSACTION = 0, 1
#: a request without a reply after this time is lost; the client closes the connection
_REQUEST_TIMEOUT_S = 4.0

#: errors after which a client sends the same request again
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class Lost(Exception):
    """No reply came, so the client does not know whether the request had an effect."""


class DamagedBatch(Exception):
    """The broker returned a batch with a wrong checksum."""


class Client:
    """A client on a host of its own, with one connection at a time to each broker."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = Random(f"{world.seed}/{name}")
        self._streams: dict[int, ClientStream] = {}
        self._correlation_id = 0
        #: how many connections were made
        self.connects = 0

    async def ask(self, request: Message, version: int, *, broker: int = 1) -> Any:
        """Send a request and return its reply. Raise Lost."""
        (reply,) = await self.ask_all([request], version, broker=broker)
        return reply

    async def ask_all(self, requests: Sequence[Message], version: int, *, broker: int = 1) -> list[Any]:
        """Send requests without waiting in between, and return their replies. Raise Lost if any of them has none."""
        stream = await self._stream(broker)
        waiting = []
        for request in requests:
            self._correlation_id += 1
            frame = request_bytes(request, version, self._correlation_id, self.name)
            self.world.trace(f"{self.name} asks {self._correlation_id} {_name(request)}")
            waiting.append((request.API_KEY, self._correlation_id, stream.request(frame)))
        replies = []
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                for api_key, correlation_id, future in waiting:
                    frame = await future
                    self.world.trace(f"{self.name} gets {correlation_id}, {len(frame)} bytes, {crc32(frame):08x}")
                    replies.append(read_answer(frame, api_key, version, correlation_id))
        except (TimeoutError, OSError) as error:
            stream.close()
            self._streams.pop(broker, None)
            self.world.trace(f"{self.name} lost its connection")
            raise Lost(f"{type(error).__name__}: {error}") from None
        return replies

    async def _stream(self, broker: int) -> ClientStream:
        stream = self._streams.get(broker)
        if stream is not None and not stream.is_lost:
            return stream
        try:
            stream = await self.world.network.connect(self.name, f"broker-{broker}", PORT)
        except OSError as error:
            raise Lost(str(error)) from None
        self.connects += 1
        self._streams[broker] = stream
        return stream

    async def find_coordinator(self, key: str, kind: int) -> None:
        """Wait until the coordinator of a key is available."""
        while True:
            try:
                reply = await self.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
                if not reply.coordinators[0].error_code:
                    return
            except Lost:
                pass
            await self.pause(0.1)

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))

    @property
    def is_over(self) -> bool:
        """Whether the client must start no new work."""
        return self.world.is_over


def _name(request: Message) -> str:
    return type(request).__name__.removesuffix("Request")


def batch(values: Sequence[str], timestamp: int, **fields: Any) -> bytes:
    """Return a batch with these values; some are padded, so that batches have different sizes."""
    records = [Record(timestamp=timestamp, key=b"k", value=_padded(value)) for value in values]
    return build_batch(records, **fields)


def _padded(value: str) -> bytes:
    """Return one value in four with up to three kilobytes more, which are several sectors of a disk."""
    data = value.encode()
    number = crc32(data)
    return data if number & 3 else data + b"." * (number % 3000)


def batches(data: bytes) -> Iterator[tuple[Any, bytes]]:
    """Yield the header and the bytes of each complete batch."""
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        if position + header.size_bytes > len(data):
            return
        yield header, data[position : position + header.size_bytes]
        position += header.size_bytes


def committed_records(
    data: bytes, aborted: Sequence[tuple[int, int]], position: int
) -> tuple[list[tuple[int, str]], int, int]:
    """Return the committed records from ``position`` on, the next position, and the epoch of the last batch.

    ``aborted`` has the producer ids of aborted transactions with their first offsets, as Fetch returns them.
    """
    waiting = sorted(aborted, key=lambda each: each[1])
    open_aborted: set[int] = set()
    records: list[tuple[int, str]] = []
    epoch = -1
    for header, content in batches(data):
        if checksum(content) != header.crc:
            raise DamagedBatch(f"offset {header.base_offset}: the checksum does not match")
        while waiting and waiting[0][1] <= header.last_offset:
            open_aborted.add(waiting.pop(0)[0])
        epoch = header.leader_epoch
        if header.attributes & CONTROL:
            marker = read_marker(content)
            if marker is not None and not marker.commit:
                open_aborted.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in open_aborted):
            for record in iterate_records(content):
                if record.offset >= position:
                    records.append((record.offset, (record.value or b"").rstrip(b".").decode()))
        position = max(position, header.next_offset)
    return records, position, epoch
