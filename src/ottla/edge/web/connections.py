"""The connections of an HTTP server, and the limits that uvicorn does not have.

uvicorn reads requests and sends answers. It has no limit for the number of connections, for the time and the size of a
request's head, for pipelined requests, and for the time that a client takes to read its answer. A connection is in one
of these states:

    handshake   TLS only. At most `handshakes_max`; with another one, the oldest is ended. It ends after `setup_s`.
    waiting     for the head of a request: new, idle, or with a part of the head. A new connection and a head that has
                begun have `setup_s`; an idle connection has uvicorn's keep-alive time.
    busy        a request is being answered. The body's limits are those of `app.py`. A client that reads nothing for
                `WRITE_PAUSE_S_MAX` is disconnected.

At most `connections_max` connections are open. With another one, the oldest that is waiting is closed; if all are busy,
the new one is closed. So clients that open connections and send nothing cannot keep others away. The limit leaves file
descriptors for the service itself, for example for its connections to the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ottla.env.tasks import start_task

log = logging.getLogger(__name__)

#: a client that reads none of its answer for this long is disconnected
WRITE_PAUSE_S_MAX: Final = 60.0
#: bytes and time for the rest of a body that was refused. A client that is still sending does not see an answer if its
#: connection is closed at once
_DISCARDED_BYTES_MAX: Final = 64 << 20
_DISCARD_S_MAX: Final = 30.0
#: requests of a connection that wait for the answer of an earlier one
_PIPELINE_MAX: Final = 16
#: headers of a request; browsers and load balancers send about 30
_HEADERS_MAX: Final = 500
#: how the head of an answer begins
_HEAD: Final = b"HTTP/1.1 "
#: time for an idle client to close TLS too when the server stops. Most do not read while they are idle
_TLS_CLOSE_S_MAX: Final = 1.0
#: connections that are accepted before other work has its turn
_ACCEPTS_MAX: Final = 100
#: file descriptors that clients never get: one of four, and at least as many as can be accepted before connections that
#: make room for others have ended
_DESCRIPTORS_KEPT_MIN: Final = 128
#: pause after the process ran out of file descriptors
_ACCEPT_PAUSE_S: Final = 1.0
#: a vanished client is noticed after 60 + 6 * 10 seconds
_KEEP_ALIVE_OPTIONS: Final = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1), ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 60),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10), ("TCP_KEEPCNT", socket.IPPROTO_TCP, 6),
    ("TCP_NODELAY", socket.IPPROTO_TCP, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one server."""

    connections_max: int = 10_000
    handshakes_max: int = 400
    #: for the TLS handshake, and then for the head of a request
    setup_s: float = 10.0
    #: bytes of a request's head: its first line and its headers
    head_bytes_max: int = 64 << 10

    def within(self, descriptors: int) -> ConnectionLimits:
        """Return the limits for a process that may have this many file descriptors.

        Handshakes get at most half of the connections: those that wait for one do not make room for others.

        >>> [ConnectionLimits().within(number).connections_max for number in (256, 1024, 1 << 20)]
        [128, 768, 10000]
        """
        room = max(descriptors - max(descriptors // 4, _DESCRIPTORS_KEPT_MIN), 1)
        connections_max = min(self.connections_max, room)
        handshakes_max = min(self.handshakes_max, max(connections_max // 2, 1))
        return replace(self, connections_max=connections_max, handshakes_max=handshakes_max)


@dataclass(slots=True)
class ConnectionTable:
    """The connections of one server."""

    limits: ConnectionLimits
    open: set[HttpConnection] = field(default_factory=set)
    #: those that were accepted and are not open yet
    pending: int = 0
    #: those that wait for a request, the oldest first
    waiting: dict[HttpConnection, None] = field(default_factory=dict)
    #: connections that were closed because of a limit, by its name
    closed: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("connections", "handshakes", "setup", "head", "body", "pipeline", "write"), 0
        )
    )

    def make_room(self) -> bool:
        """Return whether another connection can be opened. Close the oldest waiting one if there are too many."""
        if len(self.open) + self.pending < self.limits.connections_max:
            return True
        self.closed["connections"] += 1
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        oldest.abort()
        return True


class _OneWrite:
    """The transport of a connection. The head of an answer is sent together with the first bytes of its body.

    uvicorn writes them one after the other, and each write is a system call and a packet.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            # The body of a stream may come much later, and an answer may have none.
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class HttpConnection(HttpToolsProtocol):
    """One connection: uvicorn's protocol with limits."""

    def __init__(self, table: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        #: whether it is open, which follows the TLS handshake
        self.is_made = False
        #: ends the connection if the head of a request, or the rest of a refused body, does not arrive in time
        self._head_timer: asyncio.TimerHandle | None = None
        #: ends the connection if the client does not read
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_head = True
        self._head_bytes = 0
        self._discarded_bytes = 0
        #: the client's certificate in DER; None without one
        self._certificate: bytes | None = None

    def shutdown(self) -> None:
        """Close the connection if it is idle, otherwise after its answer. uvicorn calls this when the server stops."""
        super().shutdown()
        if self.transport.is_closing() and not self.flow.write_paused:
            # The server would wait for the client's close of TLS for as long as it waits for answers.
            self.loop.call_later(_TLS_CLOSE_S_MAX, self.transport.abort)

    def abort(self) -> None:
        self._leave()
        if self.transport is not None:
            self.transport.abort()

    def _leave(self) -> None:
        self._table.open.discard(self)
        self._table.waiting.pop(self, None)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None

    def _close_because(self, limit: str) -> None:
        self._table.closed[limit] += 1
        self.abort()

    # -- the socket -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _OneWrite(transport, self.loop)))
        self.is_made = True
        self._table.pending -= 1
        self._table.open.add(self)
        self._await_head()
        self._start_head_timer()
        tls = transport.get_extra_info("ssl_object")
        self._certificate = None if tls is None else tls.getpeercert(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_head and self._head_bytes > self._table.limits.head_bytes_max:
            self._refuse_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_writing(self, size: int) -> None:
        def check() -> None:
            now = self.transport.get_write_buffer_size()
            if now >= size:
                self._close_because("write")
            else:
                self._watch_writing(now)

        self._write_timer = self.loop.call_later(WRITE_PAUSE_S_MAX, check)

    # -- requests ---------------------------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._is_head, self._head_bytes = True, 0
        if not self.transport.is_closing():
            self._table.waiting[self] = None

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._table.limits.setup_s, self._close_because, "setup")

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_head = True
        self._start_head_timer()
        if self._certificate is not None:
            self.scope["client_certificate"] = self._certificate  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._cancel_head_timer()
        self._is_head = False
        self._table.waiting.pop(self, None)
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._table.limits.head_bytes_max or len(self.headers) > _HEADERS_MAX:
            self._refuse_head()
            raise _Refused
        if len(self.pipeline) >= _PIPELINE_MAX:
            self._close_because("pipeline")
            raise _Refused
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > _DISCARDED_BYTES_MAX:
                self._close_because("body")
                raise _Refused
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle.response_complete:
            self._cancel_head_timer()
        super().on_message_complete()
        # Bytes that follow are the head of the next request.
        self._is_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline or self.transport.is_closing():
            return
        self._table.waiting[self] = None
        if self.cycle.more_body:
            self._discarded_bytes = 0
            self._head_timer = self.loop.call_later(_DISCARD_S_MAX, self._close_because, "body")

    def _refuse_head(self) -> None:
        self._table.closed["head"] += 1
        self._end_with(431, b"Request Header Fields Too Large", b"the head of the request is too large")

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._end_with(400, b"Bad Request", b"the request is not HTTP/1.1")

    def _end_with(self, status: int, phrase: bytes, message: bytes) -> None:
        """Send an error outside of the app, and close the connection."""
        body = b'{"error_code":%d,"message":"%s"}' % (status, message)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (status, phrase, len(body), body)
        )
        self.transport.close()


class _Refused(httptools.HttpParserError):
    """Ends the parsing of bytes of a connection that was closed."""


class Acceptor:
    """Accepts the connections of one listening socket. uvicorn closes it like a server of asyncio."""

    def __init__(
        self,
        sock: socket.socket,
        table: ConnectionTable,
        make: Callable[[], HttpConnection],
        tls: ssl.SSLContext | None,
        *,
        backlog: int,
    ) -> None:
        """Listen at once. Raise OSError if the address is in use."""
        self._socket, self._table, self._make, self._tls = sock, table, make, tls
        self._loop = asyncio.get_running_loop()
        #: connections whose TLS handshake is in progress, the oldest first
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
        if self._pause is not None:
            self._pause.cancel()
        self._socket.close()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("connections are not accepted error=%s", error.strerror)
                self._loop.remove_reader(self._socket.fileno())
                self._pause = self._loop.call_later(
                    _ACCEPT_PAUSE_S, self._loop.add_reader, self._socket.fileno(), self._accept
                )
                return
            if not self._table.make_room():
                sock.close()
                continue
            self._start(sock)

    def _start(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for name, level, value in _KEEP_ALIVE_OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(level, option, value)
        if self._tls is not None and len(self._handshakes) >= self._table.limits.handshakes_max:
            self._table.closed["handshakes"] += 1
            oldest = next(iter(self._handshakes))
            # Now, because many connections can be accepted before the task ends.
            del self._handshakes[oldest]
            oldest.cancel()
        connection = self._make()
        task = start_task(self._connect(sock, connection), "accept a connection")
        self._handshakes[task] = None
        self._table.pending += 1

        def forget(task: asyncio.Task[None]) -> None:
            self._handshakes.pop(task, None)
            if not connection.is_made:
                self._table.pending -= 1
                sock.close()

        task.add_done_callback(forget)

    async def _connect(self, sock: socket.socket, connection: HttpConnection) -> None:
        timeout = None if self._tls is None else self._table.limits.setup_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            # The client is no client of TLS, or was too slow, or its certificate is not accepted.
            log.debug("connection failed error=%s", error)
