"""Connections to other brokers, on real sockets: order of replies, loss, refusal, limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, cast

import pytest
import uvloop

from ottla.client import async_connections
from ottla.client.async_connections import AsyncBrokerConnection, BrokerClients, PeerSecurity, PeerUnreachable
from ottla.model.errors import AuthenticationFailed
from ottla.model.types import Endpoint
from ottla.net.network import SocketNetwork
from ottla.wire import decode, encode
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_SIZE = Struct(">i")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(correlation_id: int, body: bytes = b"") -> list[bytes]:
    return [Struct(">hhih").pack(3, 9, correlation_id, -1), body]


def framed(reply: bytes) -> bytes:
    return _SIZE.pack(len(reply)) + reply


async def read_request(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(4))
    return await reader.readexactly(size)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply to each request with its correlation id and its body."""
    try:
        while True:
            frame = await read_request(reader)
            writer.write(framed(frame[4:8] + frame[10:]))
    except asyncio.IncompleteReadError:
        writer.close()


def run(answer: Answer, test: Callable[[BrokerClients, Endpoint], Awaitable[Any]]) -> None:
    """Run ``test`` against a server that handles each of its connections with ``answer``."""

    async def main() -> None:
        handlers: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.add(asyncio.current_task())  # type: ignore[arg-type]
            try:
                await answer(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", server.sockets[0].getsockname()[1])
        clients = BrokerClients(asyncio.get_running_loop(), SocketNetwork(), client_id="broker-1")
        try:
            async with asyncio.timeout(60):
                await test(clients, endpoint)
        finally:
            clients.close()
            server.close()
            for task in handlers:
                task.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_connection_that_ends_while_it_is_opened_is_an_error_of_the_network() -> None:
    """The event loop has closed the socket when ``create_connection`` returns, as after a reset by an ended process."""

    class Ending(asyncio.BufferedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast(asyncio.Transport, transport).abort()

    async def test(_: BrokerClients, endpoint: Endpoint) -> None:
        with pytest.raises(ConnectionResetError):
            await SocketNetwork().connect(endpoint, Ending)

    run(echo, test)


def test_replies_arrive_in_the_order_of_the_requests() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        futures = [connection.send(request(n, b"x" * n)) for n in range(100)]
        for n, future in enumerate(futures):
            assert bytes(await future) == _SIZE.pack(n) + b"x" * n
        assert connection.in_flight == 0

    run(echo, test)


@pytest.mark.parametrize("size", [1, 200_000, 300_000, 1 << 20, 5 << 20])
def test_reply_larger_than_the_receive_buffer_arrives_whole(size: int) -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        bodies = [bytes([n]) * size for n in range(3)]
        replies = [await future for future in [connection.send(request(n, body)) for n, body in enumerate(bodies)]]
        assert [bytes(reply[4:]) for reply in replies] == bodies

    run(echo, test)


def test_memory_of_a_reply_is_used_again_when_no_view_refers_to_it() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        first = await connection.send(request(1, b"a" * 1_000_000))
        second = await connection.send(request(2, b"b" * 1_000_000))
        assert first.obj is not second.obj
        memory = second.obj
        del first, second
        third = await connection.send(request(3, b"c" * 900_000))
        assert third.obj is memory
        assert bytes(third[4:]) == b"c" * 900_000

    run(echo, test)


def test_replies_in_small_pieces_are_joined() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            frame = await read_request(reader)
            for byte in framed(frame[4:8] + b"reply"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
        await reader.read()

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        for future in [connection.send(request(n)) for n in range(3)]:
            assert bytes(await future)[4:] == b"reply"

    run(answer, test)


def test_requests_without_a_reply_fail_when_the_connection_is_lost() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await read_request(reader)
        writer.write(framed(frame[4:8]))
        await read_request(reader)

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        first, second, third = (connection.send(request(n)) for n in range(3))
        assert bytes(await first) == _SIZE.pack(0)
        for future in (second, third):
            with pytest.raises(PeerUnreachable) as raised:
                await future
            assert not raised.value.refused
        await connection.lost
        with pytest.raises(PeerUnreachable):
            await connection.send(request(4))

    run(answer, test)


@pytest.mark.parametrize("end", ["end of the stream", "error"])
def test_lost_connection_is_noticed_before_the_loop_reports_it(end: str) -> None:
    """Requests of clients that arrive in the same iteration of the loop see that the broker has ended."""

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        waiting = connection.send(request(1))
        assert not connection.is_lost
        if end == "error":
            assert connection._transport is not None
            connection._transport.abort()  # what the transport does itself after an error
        else:
            connection.eof_received()
            assert connection.lost.done()
        assert connection.is_lost
        with pytest.raises(PeerUnreachable):
            await waiting

    run(echo, test)


def test_connection_that_is_closed_here_fails_its_requests() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        future = connection.send(request(1))
        connection.close()
        with pytest.raises(PeerUnreachable, match="closed"):
            await future
        assert connection.lost.done()

    run(echo, test)


@pytest.mark.parametrize("reply", [
    _SIZE.pack(-1), _SIZE.pack(3) + b"abc", _SIZE.pack(async_connections.REPLY_BYTES_MAX + 1), framed(b"\0\0\0\7"),
])  # fmt: skip
def test_invalid_reply_closes_the_connection(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(reply)
        await reader.read()

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        connection = await clients.open(endpoint)
        with pytest.raises(PeerUnreachable):
            await connection.send(request(1))
        assert connection.lost.done()

    run(answer, test)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_refused_connection_is_distinguished_from_a_lost_one(host: str) -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = Endpoint("PLAINTEXT", host, unused.getsockname()[1])
            with pytest.raises(PeerUnreachable) as raised:
                await clients.open(nobody)
            assert raised.value.refused
            with pytest.raises(PeerUnreachable) as raised:
                await clients.ask(nobody, ApiVersionsRequest(), 3)
            assert raised.value.refused

    run(echo, test)


def test_host_without_an_address_is_unreachable() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        with pytest.raises(PeerUnreachable) as raised:
            await clients.open(Endpoint("PLAINTEXT", "no-such-host.invalid", 9092))
        assert not raised.value.refused

    run(echo, test)


# -- shared connections -------------------------------------------------------------------------------------------


class ApiServer:
    """Answers ApiVersions and Metadata requests."""

    def __init__(self) -> None:
        self.connections = 0
        self.client_ids: set[bytes] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            frame = await read_request(reader)
            key, version, _, length = Struct(">hhih").unpack_from(frame)
            self.client_ids.add(frame[10 : 10 + length])
            if key == 18:
                decode(ApiVersionsRequest, version, frame, 11 + length)
                body = encode(ApiVersionsResponse(error_code=7), version)  # header version 0
            else:
                asked, _ = decode(MetadataRequest, version, frame, 11 + length)
                assert asked.topics is None
                body = b"\0" + encode(MetadataResponse(cluster_id="c"), version)
            writer.write(framed(frame[4:8] + body))


def test_requests_share_one_connection() -> None:
    server = ApiServer()

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        asked = [clients.ask(endpoint, ApiVersionsRequest(), 3) for _ in range(5)]
        asked += [clients.ask(endpoint, MetadataRequest(topics=None), 12) for _ in range(5)]
        replies: list[Any] = await asyncio.gather(*asked)
        assert [reply.error_code for reply in replies[:5]] == [7] * 5
        assert [reply.cluster_id for reply in replies[5:]] == ["c"] * 5

    run(server, test)
    assert server.connections == 1
    assert server.client_ids == {b"broker-1"}


def test_lost_shared_connection_is_opened_again() -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        frame = await read_request(reader)
        writer.write(framed(frame[4:8] + encode(ApiVersionsResponse(), 3)))
        await read_request(reader)

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        await clients.ask(endpoint, ApiVersionsRequest(), 3)
        with pytest.raises(PeerUnreachable):
            await clients.ask(endpoint, ApiVersionsRequest(), 3)
        await clients.ask(endpoint, ApiVersionsRequest(), 3)

    run(answer, test)
    assert connections == 2


def test_request_without_a_reply_in_time_closes_the_shared_connection() -> None:
    silent = True

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if silent:
            await reader.read()
        await ApiServer()(reader, writer)

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        nonlocal silent
        with pytest.raises(PeerUnreachable, match="did not answer"):
            await clients.ask(endpoint, ApiVersionsRequest(), 3, timeout_s=0.02)
        silent = False
        await clients.ask(endpoint, ApiVersionsRequest(), 3)

    run(answer, test)


def test_malformed_reply_is_reported() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await read_request(reader)
        writer.write(framed(frame[4:8] + b"\0\0"))
        await reader.read()

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        with pytest.raises(PeerUnreachable, match="malformed"):
            await clients.ask(endpoint, ApiVersionsRequest(), 3)

    run(answer, test)


def test_cancelled_request_does_not_disturb_others() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        first = asyncio.ensure_future(clients.ask(endpoint, ApiVersionsRequest(), 3))
        second = asyncio.ensure_future(clients.ask(endpoint, ApiVersionsRequest(), 3))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()

    run(ApiServer(), test)


def test_closed_clients_fail_requests_and_open_no_connection() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        asked = asyncio.ensure_future(clients.ask(endpoint, ApiVersionsRequest(), 3))
        await asyncio.sleep(0)
        clients.close()
        with pytest.raises(PeerUnreachable):
            await asked
        with pytest.raises(PeerUnreachable):
            await clients.ask(endpoint, ApiVersionsRequest(), 3)
        connection: AsyncBrokerConnection = await clients.open(endpoint)
        assert connection.lost.done()

    run(ApiServer(), test)


# -- logins ------------------------------------------------------------------------------------------------------------


class Login:
    """A login of one message."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def first(self) -> bytes:
        if self._number < 0:
            raise AuthenticationFailed("no token from the issuer")
        return b"login %d" % self._number

    async def answer(self, challenge: bytes) -> bytes | None:
        return None


class Broker:
    """Answers logins, each with the lifetime of its session, and Metadata requests while a session lasts."""

    def __init__(self, *lifetimes_ms: int) -> None:
        self._lifetimes_ms = list(lifetimes_ms)
        self.logins: list[bytes] = []
        self.connections = 0
        self.all_done = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            frame = await read_request(reader)
            key, correlation_id = int.from_bytes(frame[:2]), frame[4:8]
            if key == SaslHandshakeRequest.API_KEY:
                writer.write(framed(correlation_id + encode(SaslHandshakeResponse(mechanisms=["PLAIN"]), 1)))
            elif key == SaslAuthenticateRequest.API_KEY:
                start = 10 + len("broker-1") + 1
                self.logins.append(bytes(decode(SaslAuthenticateRequest, 2, frame, start)[0].auth_bytes))
                lifetime_ms = self._lifetimes_ms.pop(0)
                answer = SaslAuthenticateResponse(auth_bytes=b"", session_lifetime=lifetime_ms)
                writer.write(framed(correlation_id + b"\0" + encode(answer, 2)))
                if not self._lifetimes_ms:
                    self.all_done.set()
            else:
                writer.write(framed(correlation_id + b"\0" + encode(MetadataResponse(brokers=[], topics=[]), 12)))


def logging_in(*numbers: int) -> PeerSecurity:
    left = iter(numbers)
    return PeerSecurity(None, "PLAIN", lambda endpoint: Login(next(left)))


def test_broker_authenticates_again_on_its_connection_before_the_session_ends() -> None:
    broker = Broker(20, 20, 0)

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        clients._security = logging_in(1, 2, 3)
        connection = await clients.open(endpoint)
        await broker.all_done.wait()
        # The connection was not lost, and no further login is planned.
        await connection.send(clients._requests.frame(MetadataRequest(topics=[]), 12)[1])
        assert not connection.is_lost and not clients._logins
        assert broker.logins == [b"login 1", b"login 2", b"login 3"] and broker.connections == 1

    run(broker, test)


def test_connection_is_closed_if_the_second_login_fails() -> None:
    broker = Broker(20)

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        clients._security = logging_in(1, -1)
        connection = await clients.open(endpoint)
        await connection.lost
        with pytest.raises(PeerUnreachable, match=r"authenticate again \(no token from the issuer\)"):
            await connection.send(request(7))
        assert not clients._logins

    run(broker, test)


def test_broker_without_a_token_opens_no_connection() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        clients._security = logging_in(-1)
        with pytest.raises(PeerUnreachable, match="no token from the issuer"):
            await clients.open(endpoint)
        assert all(connection.is_lost for connection in clients._open)

    run(Broker(), test)


def test_malformed_reply_to_a_login_closes_the_connection() -> None:
    async def malformed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed((await read_request(reader))[4:8]))
        await reader.read()

    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        clients._security = logging_in(1)
        with pytest.raises(PeerUnreachable, match="malformed reply"):
            await clients.open(endpoint)
        assert all(connection.is_lost for connection in clients._open)

    run(malformed, test)


def test_login_that_is_planned_ends_with_the_clients() -> None:
    async def test(clients: BrokerClients, endpoint: Endpoint) -> None:
        clients._security = logging_in(1, 2)
        connection = await clients.open(endpoint)
        clients.close()
        assert connection.is_lost
        clients._log_in_again(connection, 1.0)
        assert not clients._logins

    run(Broker(3_600_000), test)
