"""A bad network between clients and a broker: requests that come late, twice or never, answers that get lost.

    with FaultProxy(seed=1) as proxy:
        broker = BrokerProcess.start(settings={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.target = broker.bootstrap
        proxy.faults = Faults(apis={END_TXN}, rate=0.2)

Clients dial the proxy, which dials the broker once for each of them. It knows frames: a fault happens to a whole
request of a chosen API, never to bytes in the middle. What it does is what a network and a client that gives up can
do together, so the broker has to bear it:

    DELAY           the request, and all behind it on its connection, waits
    DUPLICATE       the request arrives twice on its connection, the second time at once or after later ones
    LOSE_REQUEST    the connection ends, the request never arrives
    LOSE_ANSWER     the request arrives, then the connection ends without its answer
    ARRIVE_LATE     the client's connection ends at once; the request arrives a while later, when the client may
                    have asked again on a new connection, and gone on

Draws come from the seed; which request meets which draw depends on how the clients run.
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
#: everything that a transactional producer asks for
TRANSACTIONAL_APIS = frozenset(
    {PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT}
)

_SIZE = Struct(">i")
_FRAME_BYTES_MAX = 100 << 20
_LINGER_S = 0.2
_GONE = (ConnectionError, asyncio.IncompleteReadError, OSError)


class Fault(Enum):
    DELAY = "delay"
    DUPLICATE = "duplicate"
    LOSE_REQUEST = "lose request"
    LOSE_ANSWER = "lose answer"
    ARRIVE_LATE = "arrive late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What may happen to whom."""

    apis: Collection[int] = TRANSACTIONAL_APIS
    #: the part of their requests that something happens to
    rate: float = 0.1
    kinds: tuple[Fault, ...] = tuple(Fault)
    #: what never happens to these
    spared: Collection[tuple[Fault, int]] = ()
    delay_s_max: float = 0.5
    #: only clients whose id begins so
    client_prefix: str = ""


class Happened(NamedTuple):
    t: float
    client_id: str
    api_key: int
    fault: Fault


class FaultProxy(LoopThread):
    """Listens on a port of its own, in a thread of its own, until it is closed."""

    def __init__(self, target: str = "", *, seed: int = 0, port: int = 0) -> None:
        super().__init__("fault proxy")
        #: the broker; may be set later, and changed
        self.target = target
        #: None: everything passes
        self.faults: Faults | None = None
        #: every fault so far
        self.happened: list[Happened] = []
        #: requests that are still to arrive, late or once more
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
        """What happens to this request."""
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
    """Both sides of a connection end here."""


class _Link:
    """One client and its connection to the broker."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_reader = reader
        self._client = writer
        self._broker_reader: asyncio.StreamReader
        self._broker: asyncio.StreamWriter
        #: by correlation id whether its next answers are kept from the client; nothing noted: none is
        self._swallowed: dict[int, list[bool]] = {}
        self._cut_at_answer: set[int] = set()
        self._client_is_gone = False
        self._repeats: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        dialled = await dial(self._proxy.target)
        if dialled is None:
            self._client.close()
            return
        self._broker_reader, self._broker = dialled
        requests = asyncio.ensure_future(_until_gone(self._pass_requests()))
        answers = asyncio.ensure_future(_until_gone(self._pass_answers()))
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
                # A broker that stands still does not take what was sent to it.
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
        """The client is gone when the request reaches the broker, and nobody waits for the answer."""
        delay_s = self._proxy.draw_delay_s()
        self._client_is_gone = True
        self._client.close()
        self._proxy.under_way += 1
        try:
            await asyncio.sleep(delay_s)
            await self._send(frame)
            # The connection outlives the request for a while: a broker may forget those of one that has ended.
            await asyncio.sleep(_LINGER_S)
        finally:
            self._proxy.under_way -= 1
        raise _Cut

    def _repeat(self, frame: bytes, correlation_id: int) -> None:
        self._swallowed[correlation_id] = [False, True]
        delay_s = 0.0 if self._proxy.rng.random() < 0.5 else self._proxy.draw_delay_s()

        async def send_again() -> None:
            self._proxy.under_way += 1
            try:
                await asyncio.sleep(delay_s)
                await self._send(frame)
            except _GONE:
                pass  # the connection ended before the time of this request came
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
            fates = self._swallowed.get(correlation_id)
            if self._client_is_gone or (fates and fates.pop(0)):
                continue
            self._client.write(_SIZE.pack(len(frame)) + frame)
            await self._client.drain()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if not REQUEST_START.size // 2 <= size <= _FRAME_BYTES_MAX:
        raise _Cut
    return await reader.readexactly(size)


async def _until_gone(work: Coroutine[Any, Any, None]) -> None:
    with suppress(_Cut, *_GONE):
        await work
