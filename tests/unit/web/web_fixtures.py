"""A server in the test's own event loop, and raw connections to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from starlette.types import ASGIApp

from ottla.edge.web.connections import ConnectionLimits, ConnectionTable
from ottla.edge.web.server import BoundSocket, Listener, bind, serve

#: a wait that fails a test that would hang
WAIT_S = 120.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(coroutine, WAIT_S))


class Served:
    """A server that accepts connections."""

    def __init__(self, port: int, table: ConnectionTable) -> None:
        self.port = port
        self.table = table

    async def connect(
        self, head: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        hostname = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=hostname)
        writer.write(head)
        return reader, writer


@asynccontextmanager
async def serving(
    app: ASGIApp, limits: ConnectionLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Served]:
    listener, sock = bind(Listener("http", "127.0.0.1", 0))
    table, stop, started = ConnectionTable(limits or ConnectionLimits()), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        serve(app, [BoundSocket(sock, tls)], stop, started=started.set, connections=table)
    )  # fmt: skip
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield Served(listener.port, table)
    finally:
        stop.set()
        await task
        sock.close()


async def until(condition: Any) -> None:
    """Wait for a condition that other tasks of the loop make true."""
    while not condition():
        await asyncio.sleep(0.005)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one answer with a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0")))
