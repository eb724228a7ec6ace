"""A faulty network between clients and a broker: requests that arrive late, twice or never, and lost replies.

    with FaultProxy(seed=1) as proxy:
        broker = BrokerProcess.start(settings={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.target = broker.bootstrap
        proxy.faults = Faults(apis={END_TXN}, rate=0.2)

Clients connect to the proxy, which opens a connection to the broker for each of them. A fault concerns a whole request
of a chosen API. Each fault is one that a network and a client with a timeout can cause, so that the broker must handle
it:

    DELAY           the request, and all later ones on its connection, are delayed
    DUPLICATE       the request arrives twice on its connection, the second time at once or after later requests
    LOSE_REQUEST    the connection is closed, and the request never arrives
    LOSE_ANSWER     the request arrives, and the connection is closed before its reply
    ARRIVE_LATE     the connection of the client is closed at once. The request arrives later; the client may have
                    repeated it on a new connection by then, and sent further ones

The seed determines the sequence of faults. Which request gets which fault depends on the timing of the clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, NamedTuple

from ottla.env.connections import ConnectionServer
from ottla.testing.loop_thread import LoopThread, dial
from ottla.wire.frame import REQUEST_START, read_client_id

PRODUCE = 0
FETCH = 1
FIND_COORDINATOR = 10
INIT_PRODUCER_ID = 22
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
TXN_OFFSET_COMMIT = 28
#: the requests of a transactional producer
TRANSACTIONAL_APIS = frozenset(
    {PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT}
)

_SIZE = Struct(">i")
_FRAME_BYTES_MAX = 100 << 20
_LINGER_S = 0.2
_DISCONNECTED = (ConnectionError, asyncio.IncompleteReadError, OSError)


class Fault(Enum):
    DELAY = "delay"
    DUPLICATE = "duplicate"
    LOSE_REQUEST = "lose request"
    LOSE_ANSWER = "lose answer"
    ARRIVE_LATE = "arrive late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which faults may happen to which requests."""

    apis: Collection[int] = TRANSACTIONAL_APIS
    #: the part of the requests that get a fault
    rate: float = 0.1
    kinds: tuple[Fault, ...] = tuple(Fault)
    #: faults that never happen to requests of these APIs
    spared: Collection[tuple[Fault, int]] = ()
    delay_s_max: float = 0.5
    #: only requests of clients whose id begins with this
    client_prefix: str = ""


class Happened(NamedTuple):
    t: float
    client_id: str
    api_key: int
    fault: Fault


class FaultProxy(LoopThread):
    """Listens on a port, in a thread, until it is closed."""

    def __init__(self, target: str = "", *, seed: int = 0, port: int = 0) -> None:
        super().__init__("fault proxy")
        #: the address of the broker; may be changed at any time
        self.target = target
        #: None if there are no faults
        self.faults: Faults | None = None
        #: all faults that have happened
        self.happened: list[Happened] = []
        #: the number of late or duplicate requests that have not arrived yet
        self.under_way = 0
        self.address = ""
        self.rng = random.Random(seed)
        self._port = port
        self.start()

    async def serve(self) -> None:
        server = ConnectionServer(lambda reader, writer: _Link(self, reader, writer).run())
        self.address = await server.start(host="127.0.0.1", port=self._port)
        self.started()
        await self.closed()
        await server.close()

    def draw(self, api_key: int, client_id: str) -> Fault | None:
        """Return the fault for a request; None if it has none."""
        faults = self.faults
        if faults is None or api_key not in faults.apis or not client_id.startswith(faults.client_prefix):
            return None
        if self.rng.random() >= faults.rate:
            return None
        fault = self.rng.choice(faults.kinds)
        if (fault, api_key) in faults.spared:
            return None
        self.happened.append(Happened(time.monotonic(), client_id, api_key, fault))
        return fault

    def draw_delay_s(self) -> float:
        return self.rng.uniform(0, self.faults.delay_s_max if self.faults is not None else 0)


class _Cut(Exception):
    """Both connections, that of the client and that to the broker, must be closed."""


class _Link:
    """One client and its connection to the broker."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_reader = reader
        self._client = writer
        self._broker_reader: asyncio.StreamReader
        self._broker: asyncio.StreamWriter
        #: for the correlation id of each duplicate request: whether each of its replies is dropped
        self._dropped: dict[int, list[bool]] = {}
        self._cut_at_answer: set[int] = set()
        self._client_is_closed = False
        self._repeats: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        dialled = await dial(self._proxy.target)
        if dialled is None:
            self._client.close()
            return
        self._broker_reader, self._broker = dialled
        requests = asyncio.ensure_future(_until_disconnected(self._pass_requests()))
        answers = asyncio.ensure_future(_until_disconnected(self._pass_answers()))
        try:
            await asyncio.wait((requests, answers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Close the connections before waiting: the proxy may cancel this task while it waits for the others.
            for writer in (self._client, self._broker):
                writer.close()
            for task in (requests, answers, *self._repeats):
                task.cancel()
            try:
                await asyncio.gather(requests, answers, *self._repeats, return_exceptions=True)
                async with asyncio.timeout(_LINGER_S):
                    await self._broker.wait_closed()
            finally:
                # A paused broker does not read what was sent to it.
                self._broker.transport.abort()

    async def _pass_requests(self) -> None:
        while True:
            frame = await _read_frame(self._client_reader)
            api_key, _, correlation_id = REQUEST_START.unpack_from(frame)
            client_id = read_client_id(frame, REQUEST_START.size, len(frame))
            fault = self._proxy.draw(api_key, client_id)
            if fault is Fault.LOSE_REQUEST:
                raise _Cut
            if fault is Fault.ARRIVE_LATE:
                await self._arrive_late(frame)
            if fault is Fault.DELAY:
                await asyncio.sleep(self._proxy.draw_delay_s())
            if fault is Fault.LOSE_ANSWER:
                self._cut_at_answer.add(correlation_id)
            await self._send(frame)
            if fault is Fault.DUPLICATE:
                self._repeat(frame, correlation_id)

    async def _arrive_late(self, frame: bytes) -> None:
        """Close the connection of the client, send the request to the broker later, and drop the reply."""
        delay_s = self._proxy.draw_delay_s()
        self._client_is_closed = True
        self._client.close()
        self._proxy.under_way += 1
        try:
            await asyncio.sleep(delay_s)
            await self._send(frame)
            # Close the connection later, because a broker may drop the requests of a closed connection.
            await asyncio.sleep(_LINGER_S)
        finally:
            self._proxy.under_way -= 1
        raise _Cut

    def _repeat(self, frame: bytes, correlation_id: int) -> None:
        self._dropped[correlation_id] = [False, True]
        delay_s = 0.0 if self._proxy.rng.random() < 0.5 else self._proxy.draw_delay_s()

        async def send_again() -> None:
            self._proxy.under_way += 1
            try:
                await asyncio.sleep(delay_s)
                await self._send(frame)
            except _DISCONNECTED:
                pass  # the connection was closed before the duplicate was due
            finally:
                self._proxy.under_way -= 1

        task = asyncio.ensure_future(send_again())
        self._repeats.add(task)
        task.add_done_callback(self._repeats.discard)

    async def _send(self, frame: bytes) -> None:
        self._broker.write(_SIZE.pack(len(frame)) + frame)
        await self._broker.drain()

    async def _pass_answers(self) -> None:
        while True:
            frame = await _read_frame(self._broker_reader)
            (correlation_id,) = _SIZE.unpack_from(frame)
            if correlation_id in self._cut_at_answer:
                raise _Cut
            is_dropped = self._dropped.get(correlation_id)
            if self._client_is_closed or (is_dropped and is_dropped.pop(0)):
                continue
            self._client.write(_SIZE.pack(len(frame)) + frame)
            await self._client.drain()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if not REQUEST_START.size // 2 <= size <= _FRAME_BYTES_MAX:
        raise _Cut
    return await reader.readexactly(size)


async def _until_disconnected(work: Coroutine[Any, Any, None]) -> None:
    with suppress(_Cut, *_DISCONNECTED):
        await work
