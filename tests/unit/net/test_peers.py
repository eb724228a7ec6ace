"""A client that closes its connection is noticed while the broker does not read from it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.env.clock import SystemClock
from ottla.env.metrics import Histogram
from ottla.net.connection import Connection, Slot
from ottla.net.network import SocketListener
from ottla.net.server import ConnectionLimits, Server

REQUEST = struct.pack(">ihhi", 8, 11, 0, 1)
#: a client closes in milliseconds; a test that waits longer fails
WAIT_S = 20.0


class Parking:
    """A server whose requests wait until ``on_close`` answers them."""

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self.server = server
        self.address = address
        self.requests: asyncio.Queue[Slot] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    def handle(self, connection: Connection, buffer: bytearray, view: memoryview, start: int, end: int) -> None:
        slot = connection.reserve(11)
        connection.mute()

        def release() -> None:
            connection.on_close.pop(release, None)
            self.ended.put_nowait("released")
            slot.fill(b"reply")
            asyncio.get_running_loop().call_soon(connection.unmute)

        connection.on_close[release] = None
        connection.watch_peer()
        self.requests.put_nowait(slot)

    async def connect(self) -> socket.socket:
        client = socket.create_connection(self.address)
        client.sendall(REQUEST)
        await asyncio.wait_for(self.requests.get(), WAIT_S)
        return client

    async def all_closed(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.server.connections:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def parking() -> AsyncIterator[Parking]:
    loop = asyncio.get_running_loop()
    latency: dict[int, Histogram] = defaultdict(Histogram)
    server = Server(
        loop, clock=SystemClock(), request_bytes_max=1 << 20, limits=ConnectionLimits(1000, 1000),
        idle_ms_max=-1, in_flight_max=100, before_replies=lambda: True, latency=latency,
    )  # fmt: skip
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    fixture = Parking(server, listening.getsockname()[:2])
    await server.start(SocketListener(listening), fixture.handle)
    try:
        yield fixture
    finally:
        await server.stop(0.0)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["close", "reset"])
def test_closed_client_is_noticed_while_its_request_waits(end: Callable[[socket.socket], None]) -> None:
    async def scenario() -> None:
        async with parking() as fixture:
            end(await fixture.connect())
            assert await asyncio.wait_for(fixture.ended.get(), WAIT_S) == "released"
            await fixture.all_closed()

    asyncio.run(scenario())


def test_closed_client_is_noticed_behind_unread_requests() -> None:
    async def scenario() -> None:
        async with parking() as fixture:
            client = await fixture.connect()
            client.sendall(REQUEST * 3)
            client.close()
            assert await asyncio.wait_for(fixture.ended.get(), WAIT_S) == "released"
            await fixture.all_closed()

    asyncio.run(scenario())


def test_client_that_closed_only_its_sending_side_gets_all_its_replies() -> None:
    async def scenario() -> None:
        async with parking() as fixture:
            client = await fixture.connect()
            client.sendall(REQUEST * 3)
            client.shutdown(socket.SHUT_WR)
            received = await asyncio.to_thread(_receive_all, client)
            assert received == b"reply" * 4
            client.close()

    asyncio.run(scenario())


def test_many_clients_that_close_together_are_all_noticed() -> None:
    async def scenario() -> None:
        async with parking() as fixture:
            clients = [await fixture.connect() for _ in range(100)]
            for client in clients:
                client.close()
            for _ in clients:
                await asyncio.wait_for(fixture.ended.get(), WAIT_S)
            await fixture.all_closed()

    asyncio.run(scenario())


def test_descriptor_of_a_closed_connection_is_watched_again_for_the_next_one() -> None:
    async def scenario() -> None:
        async with parking() as fixture:
            for _ in range(3):
                (await fixture.connect()).close()
                await asyncio.wait_for(fixture.ended.get(), WAIT_S)
                await fixture.all_closed()

    asyncio.run(scenario())


def _receive_all(client: socket.socket) -> bytes:
    received = b""
    while chunk := client.recv(4096):
        received += chunk
    return received
