"""The limits of connections: number, time and size of a head, pipelining, clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from web_fixtures import read_answer, run, serving, until

from ottla.edge.web import connections
from ottla.edge.web.connections import ConnectionLimits, _OneWrite

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(scope["path"])(scope, receive, send)


class Held:
    """An app whose requests to /0 wait for an event."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        if scope["path"] == "/0":
            await self.release.wait()
        await Response(scope["path"])(scope, receive, send)


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nhost:", b"G"])
def test_half_sent_head_is_closed_after_the_setup_time(head: bytes) -> None:
    async def check() -> None:
        async with serving(echo, ConnectionLimits(setup_s=0.05)) as served:
            reader, writer = await served.connect(head)
            assert await reader.read() == b""
            writer.close()
            assert served.table.closed["setup"] == 1
            await until(lambda: not served.table.open and not served.table.waiting)

    run(check())


def test_idle_connection_is_kept_and_the_next_head_has_its_own_time() -> None:
    async def check() -> None:
        async with serving(echo, ConnectionLimits(setup_s=30.0)) as served:
            reader, writer = await served.connect(GET % 1)
            assert (await read_answer(reader))[2] == b"/1"
            [connection] = served.table.waiting
            assert connection._head_timer is None
            writer.write(b"GET /2 HT")
            await until(lambda: connection._head_timer is not None)
            writer.write(b"TP/1.1\r\nhost: x\r\n\r\n")
            assert (await read_answer(reader))[2] == b"/2"
            assert connection._head_timer is None
            writer.close()

    run(check())


def test_oldest_waiting_connection_makes_room_for_a_new_one() -> None:
    async def check() -> None:
        app = Held()
        async with serving(app, ConnectionLimits(connections_max=3)) as served:
            busy, busy_writer = await served.connect(GET % 0)
            await until(lambda: app.requests == 1)
            old, old_writer = await served.connect(b"GET /")
            await until(lambda: len(served.table.open) == 2)
            idle, idle_writer = await served.connect()
            await until(lambda: len(served.table.open) == 3)
            new, new_writer = await served.connect(GET % 1)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await old.readexactly(1)
            assert (await read_answer(new))[2] == b"/1"
            app.release.set()
            assert (await read_answer(busy))[2] == b"/0"
            idle_writer.write(GET % 2)
            assert (await read_answer(idle))[2] == b"/2"
            assert served.table.closed["connections"] == 1
            for writer in (busy_writer, old_writer, idle_writer, new_writer):
                writer.close()

    run(check())


def test_new_connection_is_closed_if_all_are_busy() -> None:
    async def check() -> None:
        app = Held()
        async with serving(app, ConnectionLimits(connections_max=2)) as served:
            busy = [await served.connect(GET % 0) for _ in range(2)]
            await until(lambda: app.requests == 2)
            reader, writer = await served.connect()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            app.release.set()
            for each, _ in busy:
                assert (await read_answer(each))[0] == 200
            for each in (writer, *(writer for _, writer in busy)):
                each.close()

    run(check())


@pytest.mark.parametrize("pieces", [1, 50])
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
@pytest.mark.parametrize("line", [b"GET /%s HTTP/1.1\r\nhost: x", b"GET / HTTP/1.1\r\nhost: %s"])
def test_large_head_is_refused(pieces: int, end: bytes, line: bytes) -> None:
    async def check() -> None:
        async with serving(echo, ConnectionLimits(head_bytes_max=1000)) as served:
            head = line % (b"x" * 2000) + end
            reader, writer = await served.connect()
            await until(lambda: served.table.open)
            [connection] = served.table.open
            step = len(head) // pieces
            for position in range(0, len(head), step):
                writer.write(head[position : position + step])
                sent = min(position + step, len(head))
                # A client that sends after the refusal may get a reset instead of the answer.
                await until(lambda sent=sent: connection._head_bytes >= sent or served.table.closed["head"])
                if served.table.closed["head"]:
                    break
            status, headers, body = await read_answer(reader)
            assert (status, headers["connection"], json.loads(body)["error_code"]) == (431, "close", 431)
            writer.close()

    run(check())


def test_head_with_too_many_headers_is_refused() -> None:
    async def check() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect(b"GET /1 HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 600 + b"\r\n")
            assert (await read_answer(reader))[0] == 431
            writer.close()

    run(check())


def test_head_below_the_limit_and_a_large_body_are_accepted() -> None:
    async def check() -> None:
        async with serving(echo, ConnectionLimits(head_bytes_max=1000)) as served:
            head = b"POST /1 HTTP/1.1\r\nhost: %s\r\ncontent-length: 5000\r\n\r\n" % (b"x" * 900)
            reader, writer = await served.connect(head + b"y" * 5000)
            assert (await read_answer(reader))[0] == 200
            writer.write(GET % 2)
            assert (await read_answer(reader))[2] == b"/2"
            writer.close()

    run(check())


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("no", 413)(scope, receive, send)


def test_client_that_still_sends_a_refused_body_gets_the_answer_and_can_go_on() -> None:
    async def check() -> None:
        async with serving(refuse) as served:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (10 << 20)
            reader, writer = await served.connect(head)
            assert (await read_answer(reader))[0] == 413
            writer.write(bytes(10 << 20) + GET % 1)
            await writer.drain()
            assert (await read_answer(reader))[0] == 413
            writer.close()

    run(check())


def test_refused_body_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_DISCARDED_BYTES_MAX", 100_000)

    async def check() -> None:
        async with serving(refuse) as served:
            reader, writer = await served.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n")
            assert (await read_answer(reader))[0] == 413
            while not served.table.closed["body"]:
                with contextlib.suppress(ConnectionError):
                    writer.write(bytes(50_000))
                    await writer.drain()
                await asyncio.sleep(0.001)
            await until(lambda: not served.table.open)
            writer.close()

    run(check())


def test_refused_body_that_does_not_arrive_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_DISCARD_S_MAX", 0.05)

    async def check() -> None:
        async with serving(refuse) as served:
            reader, writer = await served.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n")
            assert (await read_answer(reader))[0] == 413
            assert await reader.read() == b""
            assert served.table.closed["body"] == 1
            writer.close()

    run(check())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def check() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect(b"".join(GET % number for number in range(10)))
            assert [(await read_answer(reader))[2] for _ in range(10)] == [b"/%d" % number for number in range(10)]
            writer.close()

    run(check())


def test_too_many_pipelined_requests_end_the_connection() -> None:
    async def check() -> None:
        app = Held()
        async with serving(app) as served:
            reader, writer = await served.connect(GET % 0 * 1000)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            assert served.table.closed["pipeline"] == 1
            app.release.set()
            writer.close()

    run(check())


_POST = b"POST /1 HTTP/1.1\r\nhost: x\r\n"
#: requests whose end another server may see elsewhere, and those that are no HTTP/1.1
MALFORMED = {
    "no request": b"HELLO\r\n\r\n",
    "length and chunks": _POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": _POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    "two equal lengths": _POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nabcde",
    "negative length": _POST + b"content-length: -1\r\n\r\n",
    "signed length": _POST + b"content-length: +5\r\n\r\nabcde",
    "long length": _POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
    "unknown encoding": _POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "encoding before chunked": _POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "no number of a chunk": _POST + b"transfer-encoding: chunked\r\n\r\nx\r\n",
    "long number of a chunk": _POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n",
    "chunk without end": _POST + b"transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "space before colon": _POST + b"content-length : 5\r\n\r\nabcde",
    "folded header": _POST + b"a: b\r\n c: d\r\ncontent-length: 0\r\n\r\n",
    "zero byte": b"GET /1 HTTP/1.1\r\nhost: x\0y\r\n\r\n",
    "line feed": b"GET /1 HTTP/1.1\nhost: x\n\n",
    "carriage return": b"GET /1 HTTP/1.1\r\nhost: x\ra: b\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version": b"GET /1 HTTP/9.9\r\nhost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "long method": b"A" * 5000 + b" /1 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_refused_and_ends_the_connection(name: str) -> None:
    """What follows on the connection could be the rest of the request, so it is not read as another one."""

    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await Response(scope["path"])(scope, receive, send)

    async def check() -> None:
        async with serving(app) as served:
            reader, writer = await served.connect(MALFORMED[name] + GET % 2)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
            assert answer.count(b"HTTP/1.1 ") == 1
            assert "/2" not in seen
            writer.close()

    run(check())


def test_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_PAUSE_S_MAX", 0.05)

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await asyncio.sleep(0)) is None and served.table.open:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    async def check() -> None:
        nonlocal served
        async with serving(flood) as served:
            _, writer = await served.connect()
            writer.transport.pause_reading()
            writer.write(GET % 1)
            await until(lambda: served.table.closed["write"] == 1)
            assert not served.table.open
            writer.transport.abort()

    served: connections.Any = None
    run(check())


class _Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.writes.append(b"closed")


def test_head_and_body_of_an_answer_are_one_write() -> None:
    async def check() -> None:
        written: Any = _Written()
        transport = _OneWrite(written, asyncio.get_running_loop())
        transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
        transport.write(b"body")
        transport.write(b"more")
        assert written.writes == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"more"]
        # The head of a stream does not wait for its first bytes, and that of an answer without a body is sent.
        transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert len(written.writes) == 2
        await asyncio.sleep(0)
        assert written.writes[2:] == [b"HTTP/1.1 204 No Content\r\n\r\n"]
        transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        transport.close()
        await asyncio.sleep(0)
        assert written.writes[3:] == [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"closed"]

    run(check())
