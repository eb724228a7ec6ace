"""The HTTP server of the metrics page: what it answers, and the limits that keep it from harming the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ottla.env import metrics_server
from ottla.env.metrics_server import CONNECTIONS_PER_HOST_MAX, REQUEST_BYTES_MAX, MetricsServer
from ottla.model.types import Endpoint

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Fixture:
    """A server, and pages that a test fills."""

    def __init__(self) -> None:
        self.filled = 0
        self.page = [b"one 1\n", b"two 2\n"]
        self.may_fill = asyncio.Event()
        self.may_fill.set()
        self.server = MetricsServer(Endpoint("HTTP", "127.0.0.1", 0), self.fill)

    async def fill(self) -> list[bytes]:
        await self.may_fill.wait()
        self.filled += 1
        return list(self.page)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    async def ask(self, request: bytes = GET) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    await fixture.server.start()
    try:
        yield fixture
    finally:
        fixture.may_fill.set()
        await fixture.server.close()


def run(scenario: Callable[[Fixture], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), serving() as fixture:
            await scenario(fixture)

    asyncio.run(main())


def status_of(answer: bytes) -> bytes:
    return answer.split(b" ")[1]


def test_page_is_served_whole_and_the_connection_is_closed() -> None:
    async def scenario(fixture: Fixture) -> None:
        head, _, body = (await fixture.ask()).partition(b"\r\n\r\n")
        assert (status_of(head), body) == (b"200", b"one 1\ntwo 2\n")
        assert b"Content-Length: 12\r\n" in head
        assert b"Content-Type: text/plain; version=0.0.4" in head

    run(scenario)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200"),
        (b"HEAD /metrics HTTP/1.1", b"200"),
        (b"GET /other HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"nonsense", b"405"),
    ],
)
def test_status_of_a_request(request_line: bytes, status: bytes) -> None:
    async def scenario(fixture: Fixture) -> None:
        answer = await fixture.ask(request_line + b"\r\n\r\n")
        assert status_of(answer) == status
        if request_line.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n")

    run(scenario)


@pytest.mark.parametrize(
    ("host", "status"),
    [(b"localhost:9404", b"200"), (b"[::1]", b"200"), (b"evil.example", b"403"), (b"a\r\nHost: localhost", b"403")],
)
def test_server_on_loopback_answers_no_web_page_of_another_host(host: bytes, status: bytes) -> None:
    async def scenario(fixture: Fixture) -> None:
        assert status_of(await fixture.ask(b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % host)) == status

    run(scenario)


def test_request_that_is_too_long_is_refused() -> None:
    async def scenario(fixture: Fixture) -> None:
        answer = await fixture.ask(b"GET /metrics HTTP/1.1\r\nx: " + b"x" * REQUEST_BYTES_MAX + b"\r\n\r\n")
        assert status_of(answer) == b"431"

    run(scenario)


def test_client_that_does_not_finish_its_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S_MAX", 0.05)

    async def scenario(fixture: Fixture) -> None:
        reader, writer = await fixture.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_client_that_does_not_read_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "ANSWER_S_MAX", 0.05)

    async def scenario(fixture: Fixture) -> None:
        fixture.page = [b"x" * 1_000_000] * 20
        reader, writer = await fixture.connect()
        writer.write(GET)
        while fixture.server._connections or not fixture.filled:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        del reader

    run(scenario)


def test_connection_beyond_the_limit_of_an_address_is_closed_until_there_is_room() -> None:
    async def scenario(fixture: Fixture) -> None:
        held = [await fixture.connect() for _ in range(CONNECTIONS_PER_HOST_MAX)]
        with contextlib.suppress(ConnectionError):
            assert await fixture.ask() == b""
        assert fixture.server.refused == 1
        for _, writer in held:
            writer.transport.abort()
        while fixture.server._connections:
            await asyncio.sleep(0.001)
        assert status_of(await fixture.ask()) == b"200"

    run(scenario)


def test_requests_that_arrive_while_a_page_is_filled_share_the_next_one() -> None:
    async def scenario(fixture: Fixture) -> None:
        fixture.may_fill.clear()
        first = asyncio.create_task(fixture.ask())
        while not fixture.server._pages._task:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(fixture.ask()) for _ in range(4)]
        while fixture.server._connections.total() < 5:
            await asyncio.sleep(0.001)
        fixture.may_fill.set()
        answers = await asyncio.gather(first, *others)
        assert all(status_of(answer) == b"200" for answer in answers)
        assert fixture.filled <= 3

    run(scenario)


def test_clients_that_read_slowly_hold_no_more_than_two_pages() -> None:
    async def scenario(fixture: Fixture) -> None:
        fixture.page = [b"x" * 1_000_000] * 20
        held = []
        for _ in range(6):
            reader, writer = await fixture.connect()
            writer.write(GET)
            await reader.readexactly(10)
            held.append((reader, writer))
        assert fixture.filled == 2
        for _, writer in held:
            writer.transport.abort()

    run(scenario)


def test_page_that_cannot_be_filled_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fixture: Fixture) -> None:
        fixture.page = None  # type: ignore[assignment]
        assert status_of(await fixture.ask()) == b"500"
        fixture.page = [b"one 1\n"]
        assert status_of(await fixture.ask()) == b"200"

    run(scenario)
    assert "the metrics page cannot be filled" in caplog.text
