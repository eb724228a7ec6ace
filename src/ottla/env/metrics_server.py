"""The HTTP server of ``/metrics``, on the broker's event loop.

The port has no authentication, so every resource is bounded: the number of connections, the size and the duration of a
request, the time that a client may take to read the reply, and the CPU time and memory of all requests together. One
page is filled at a time and takes at most a third of the loop's time; requests that arrive meanwhile share the next
page. Each connection serves one request.

A server on loopback refuses requests that name another host: see `model/http_host.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.env.advice import listen_advice
from ottla.env.connections import ConnectionServer
from ottla.env.log_limit import LogLimit
from ottla.env.tasks import start_task
from ottla.model.errors import StartError
from ottla.model.http_host import is_refused
from ottla.model.types import Endpoint

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

CONNECTIONS_MAX: Final = 16
#: of these from one address, so that one client cannot keep all others away
CONNECTIONS_PER_HOST_MAX: Final = 8
REQUEST_BYTES_MAX: Final = 8 << 10
#: from the connection to the end of the request's header
REQUEST_S_MAX: Final = 10.0
#: from the first to the last byte of the reply
ANSWER_S_MAX: Final = 30.0
#: pages that are being sent; with as many of them, further requests get the newest one instead of a new page
_PAGES_MAX: Final = 2
#: pause after a page was filled, as a multiple of the time that it took
_PAUSE_FACTOR: Final = 2.0
_BACKLOG: Final = 16

Pieces = list[bytes]
Fill = Callable[[], Awaitable[Pieces]]

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """Serves the page that ``fill`` returns under ``/metrics`` and ``/``."""

    def __init__(self, endpoint: Endpoint, fill: Fill) -> None:
        """Listen at once; raises StartError if the address cannot be used."""
        self._socket = _listen(endpoint)
        self._host = endpoint.host
        self._bound_address: str = self._socket.getsockname()[0]
        self.port: int = self._socket.getsockname()[1]
        self._pages = _Pages(fill)
        self._server: ConnectionServer | None = None
        #: by client address
        self._connections: Counter[str] = Counter()
        #: connections over the limit, closed without a reply
        self.refused = 0

    async def start(self) -> None:
        self._server = ConnectionServer(self._admit)
        await self._server.start(sock=self._socket, limit=REQUEST_BYTES_MAX, backlog=_BACKLOG)

    async def close(self) -> None:
        if self._server is None:
            self._socket.close()
            return
        await self._pages.close()
        await self._server.close()
        self._server = None

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("?",))[0])
        if self._connections.total() >= CONNECTIONS_MAX or self._connections[host] >= CONNECTIONS_PER_HOST_MAX:
            self.refused += 1
            writer.transport.abort()
            return
        self._connections[host] += 1
        try:
            await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client was too slow or closed the connection
        finally:
            self._connections[host] -= 1
            self._connections += Counter()  # drops addresses without a connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _answer(writer, "431 Request Header Fields Too Large", [b"the request is too long\n"])
            return
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if is_refused(_hosts(head), bound_address=self._bound_address, listening_host=self._host):
            await _answer(writer, "403 Forbidden", [b"the host of the request is not that of this server\n"])
        elif method not in (b"GET", b"HEAD"):
            await _answer(writer, "405 Method Not Allowed", [b"use GET\n"])
        elif path not in (b"/metrics", b"/"):
            await _answer(writer, "404 Not Found", [b"metrics are at /metrics\n"])
        else:
            pieces = await self._pages.newest()
            try:
                if pieces:
                    await _answer(writer, "200 OK", pieces, with_body=method == b"GET")
                else:
                    await _answer(writer, "500 Internal Server Error", [b"see the broker's log\n"])
            finally:
                self._pages.sent(pieces)


class _Pages:
    """Fills one page at a time, for all requests that wait for one."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._next: asyncio.Future[Pieces] | None = None
        self._task: asyncio.Task[None] | None = None
        self._newest: Pieces = []
        #: requests that are being answered with a page, by the page's identity
        self._readers: dict[int, int] = {}

    async def newest(self) -> Pieces:
        """Return a page that was begun after this call; an older one while slow readers hold too many.

        It is empty if it could not be filled. The caller must call ``sent`` with it.
        """
        if len(self._readers) >= _PAGES_MAX:
            pieces = self._newest
        else:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                if self._task is None:
                    self._task = start_task(self._run(), "metrics")
            pieces = await asyncio.shield(self._next)
        self._readers[id(pieces)] = self._readers.get(id(pieces), 0) + 1
        return pieces

    def sent(self, pieces: Pieces) -> None:
        self._readers[id(pieces)] -= 1
        if not self._readers[id(pieces)]:
            del self._readers[id(pieces)]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._next is not None:
                waiting, self._next = self._next, None
                started = loop.time()
                try:
                    self._newest = await self._fill()
                except Exception:
                    log.exception("the metrics page cannot be filled")
                    self._newest = []
                waiting.set_result(self._newest)
                await asyncio.sleep(_PAUSE_FACTOR * (loop.time() - started))
        finally:
            self._task = None


def _hosts(head: bytes) -> list[str]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [value.decode("latin-1").strip() for name, _, value in lines if name.strip().lower() == b"host"]


async def _answer(writer: asyncio.StreamWriter, status: str, pieces: Pieces, *, with_body: bool = True) -> None:
    size = sum(map(len, pieces))
    head = f"HTTP/1.1 {status}\r\nContent-Type: {_TEXT}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(ANSWER_S_MAX):
        writer.write(head.encode())
        for piece in pieces if with_body else ():
            writer.write(piece)
            await writer.drain()
        await writer.drain()


def _listen(endpoint: Endpoint) -> socket.socket:
    host = endpoint.host or "0.0.0.0"
    try:
        family = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        text = f"cannot serve metrics on {endpoint}: host is unknown ({error.strerror}); check --metrics"
        raise StartError(text) from None
    try:
        return socket.create_server((host, endpoint.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        advice = listen_advice(error, host=endpoint.host, port=endpoint.port, option="--metrics")
        raise StartError(f"cannot serve metrics on {endpoint}: {advice}") from None
