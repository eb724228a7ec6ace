"""Connections between brokers in the simulated network."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from random import Random
from struct import Struct
from typing import Any

import pytest
from sim_loop import Life, VirtualLoop, run_in_life
from sim_network import HostNetwork, SimulatedNetwork

from ottla.client.async_connections import BrokerClients, PeerUnreachable
from ottla.model.types import Endpoint
from ottla.testing.disk import MemoryDisk

_SIZE = Struct(">i")
SERVER = Endpoint("PLAINTEXT", "server", 9092)


class EchoServer:
    """Replies to each request with its correlation id and its body, unless it is ``silent``."""

    def __init__(self) -> None:
        self.silent = False
        self.requests = 0
        self.lost = 0
        self._received = bytearray(1 << 16)
        self._pending = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._received)

    def buffer_updated(self, nbytes: int) -> None:
        self._pending += self._received[:nbytes]
        while len(self._pending) >= 4 and len(self._pending) >= 4 + _SIZE.unpack_from(self._pending)[0]:
            size = _SIZE.unpack_from(self._pending)[0]
            frame, self._pending = self._pending[4 : 4 + size], self._pending[4 + size :]
            self.requests += 1
            if not self.silent:
                reply = frame[4:8] + frame[10:]
                self._transport.write(_SIZE.pack(len(reply)) + reply)


def request(correlation_id: int, body: bytes = b"") -> list[bytes]:
    return [Struct(">hhih").pack(3, 9, correlation_id, -1), body]


Test = Callable[[SimulatedNetwork, BrokerClients, EchoServer], Awaitable[None]]


def run(test: Test, *, seed: int = 1) -> VirtualLoop:
    loop = VirtualLoop()
    try:
        network = SimulatedNetwork(loop, Random(seed), lambda line: None)
        server = EchoServer()

        async def main() -> None:
            listener = HostNetwork(network, "server", MemoryDisk()).bind(SERVER)
            await listener.serve(loop, lambda: server)
            clients = BrokerClients(loop, HostNetwork(network, "client", MemoryDisk()), client_id="broker-1")
            await test(network, clients, server)
            clients.close()

        loop.run_until_complete(main())
    finally:
        loop.close()
    return loop


@pytest.mark.parametrize("seed", range(5))
def test_broker_gets_replies_of_another_broker(seed: int) -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        connection = await clients.open(SERVER)
        futures = [connection.send(request(n, b"x" * n)) for n in range(50)]
        for n, future in enumerate(futures):
            assert bytes(await future) == _SIZE.pack(n) + b"x" * n

    run(test, seed=seed)


def test_connection_to_a_host_without_a_process_is_refused() -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        network.end_host("server", lose_bytes=False)
        with pytest.raises(PeerUnreachable) as raised:
            await clients.open(SERVER)
        assert raised.value.refused

    run(test)


def test_cut_delays_a_reply_and_prevents_a_new_connection() -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        loop = asyncio.get_running_loop()
        connection = await clients.open(SERVER)
        network.cut("server", "client")
        future = connection.send(request(1))
        with pytest.raises(PeerUnreachable) as raised:
            await clients.open(SERVER)
        assert not raised.value.refused
        assert server.requests == 1
        assert not future.done()
        healed = loop.time()
        network.heal("server", "client")
        assert bytes(await future) == _SIZE.pack(1)
        assert loop.time() > healed

    run(test)


@pytest.mark.parametrize("lose_bytes", [False, True])
def test_end_of_the_server_loses_the_connection(lose_bytes: bool) -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        server.silent = True
        connection = await clients.open(SERVER)
        future = connection.send(request(1))
        await asyncio.sleep(1)
        network.end_host("server", lose_bytes=lose_bytes)
        with pytest.raises(PeerUnreachable):
            await future
        await connection.lost

    run(test)


def test_reset_loses_the_connection_on_both_sides() -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        connection = await clients.open(SERVER)
        network.reset_some(1.0)
        await connection.lost
        await asyncio.sleep(1)
        assert server.lost == 1

    run(test)


@pytest.mark.parametrize("lose_bytes", [False, True])
def test_killed_broker_gets_no_reply_and_its_peer_notices_the_end(lose_bytes: bool) -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        loop: Any = asyncio.get_running_loop()
        life = Life("client")
        replies: list[bytes] = []

        async def ask() -> None:
            connection = await clients.open(SERVER)
            for n in range(1000):
                replies.append(bytes(await connection.send(request(n))))

        run_in_life(life, lambda: loop.create_task(ask()))
        while not replies:
            await asyncio.sleep(0.001)
        loop.end_life(life)
        network.end_host("client", lose_bytes=lose_bytes)
        count = len(replies)
        await asyncio.sleep(10)
        assert len(replies) == count
        assert server.lost == 1

    run(test)


def test_callbacks_of_a_connection_run_in_the_context_of_its_process() -> None:
    async def test(network: SimulatedNetwork, clients: BrokerClients, server: EchoServer) -> None:
        name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")
        seen: list[str] = []

        async def ask() -> None:
            name.set("mine")
            connection = await clients.open(SERVER)
            connection.lost.add_done_callback(lambda _: seen.append(name.get()))
            network.reset_some(1.0)
            await connection.lost

        await asyncio.create_task(ask())
        assert seen == ["mine"]

    run(test)
