"""Listeners, limits on connections, and the turn.

A turn is one iteration of the event loop in which something happens. It begins with the first readable socket or
completed job and ends before the loop waits again: libuv serves all readable sockets first and runs ``call_soon``
callbacks after them. At the end of a turn, 1 files are written and 2 replies are sent. This order guarantees that
nothing is acknowledged that is not in a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable

from ottla.env.advice import listen_advice
from ottla.env.clock import Clock
from ottla.env.metrics import Histogram
from ottla.model.errors import StartError
from ottla.model.types import Endpoint
from ottla.net.connection import Connection, Handler
from ottla.net.peers import PeerWatch

log = logging.getLogger(__name__)

#: the longest time between two searches for idle connections
_SWEEP_S = 5.0
#: descriptors that are reserved for the files of logs
_DESCRIPTORS_KEPT_MAX = 256


def bind(endpoint: Endpoint, *, backlog: int, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a listening socket. Raise StartError, which says what to do, if the address cannot be used.

    Accepted connections inherit the sizes of the kernel's buffers; -1 lets the kernel choose. docs/performance.md has
    measurements of these sizes.
    """
    host = endpoint.host or "0.0.0.0"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartError(f"listener {endpoint}: host is unknown ({error.strerror}); check --listener") from None
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
        if size != -1:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
    try:
        sock.bind(address)
        # Listen at once, so that a second broker on this port fails before it opens any data.
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise StartError(
            f"cannot listen on {endpoint}: "
            f"{listen_advice(error, host=endpoint.host, port=endpoint.port, option='--listener')}"
        ) from None
    return sock


class Server:
    """The listeners and connections of this process."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, clock: Clock, request_bytes_max: int, connections_max: int,
        connections_max_per_ip: int, idle_ms_max: int, in_flight_max: int, before_replies: Callable[[], bool],
        latency: dict[int, Histogram],
    ) -> None:  # fmt: skip
        # Settings
        self._loop = loop
        self.call_soon = loop.call_soon
        #: the event loop's clock has a resolution of one millisecond
        self.monotonic = clock.monotonic
        self.request_bytes_max = request_bytes_max
        self.connections_max = connections_max
        self.connections_max_per_ip = connections_max_per_ip
        #: infinite if connections.max.idle.ms is negative
        self.idle_s_max = idle_ms_max / 1000 if idle_ms_max >= 0 else float("inf")
        self.in_flight_max = in_flight_max
        self._before_replies = before_replies
        #: by API key: the time from each request to its reply
        self.latency = latency

        # Connections
        self.connections: set[Connection] = set()
        self.peers = PeerWatch(loop)
        self._per_host: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = min(_SWEEP_S, max(self.idle_s_max / 2, 0.1))
        self.refused_connections = 0
        self._accepted = 0
        self.refused_frames = 0

        # The turn
        self.in_turn = False
        self.turn_started = self.now = clock.monotonic()
        self.touched: list[Connection] = []

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self, sock: socket.socket, handle: Handler) -> None:
        server = await self._loop.create_server(lambda: Connection(self, handle), sock=sock)
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)

    async def stop(self, drain_s: float) -> None:
        """1 accept no connection  2 wait up to ``drain_s`` for requests in flight  3 close all connections."""
        self.refuse_new()
        deadline = self._loop.time() + drain_s
        while any(connection.in_flight for connection in self.connections) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close() if not connection.in_flight else connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self.connections:
                    await asyncio.sleep(0.005)
        self.peers.close()

    def refuse_new(self) -> None:
        """Accept no further connection, and no further request from the existing ones."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.stop_intake()

    def admit(self, connection: Connection) -> bool:
        """Register a new connection. Return False if a limit on connections is exceeded."""
        host = connection.peer_host
        of_host = self._per_host.get(host, 0)
        if (
            len(self.connections) >= self.connections_max
            or of_host >= self.connections_max_per_ip
            or connection.transport.get_extra_info("socket").fileno() >= _descriptors_for_clients()
        ):
            self.refused_connections += 1
            log.warning("connection refused peer=%s open=%d from_peer=%d", host, len(self.connections), of_host)
            return False
        self.connections.add(connection)
        self._accepted += 1
        connection.number = self._accepted
        self._per_host[host] = of_host + 1
        connection.last_active = self.monotonic()
        return True

    def forget(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        left = self._per_host.get(connection.peer_host, 1) - 1
        if left:
            self._per_host[connection.peer_host] = left
        else:
            self._per_host.pop(connection.peer_host, None)

    def _sweep(self) -> None:
        """Close connections that sent no request for too long and wait for none.

        Watch those that are not read from, for whatever reason, so that their end is noticed too.
        """
        try:
            oldest = self.monotonic() - self.idle_s_max
            for connection in list(self.connections):
                if connection.last_active < oldest and not connection.in_flight:
                    # ``close`` would wait for ever for a client that does not take its replies.
                    connection.abort() if connection.sending else connection.close()
                elif not connection.reading:
                    connection.watch_peer()
        finally:
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)

    # -- the turn -------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        self.in_turn = True
        self.turn_started = self.monotonic()
        self._loop.call_soon(self.end_turn)

    def ensure_turn(self) -> None:
        """Begin a turn if there is none, so that records appended outside of a request are written."""
        if not self.in_turn:
            self.begin_turn()

    def end_turn(self) -> None:
        # 1 write files; after an unexpected failure nothing may be acknowledged any more
        if not self._before_replies():
            return
        # 2 send replies; this may resume held requests, which belong to the next turn
        self.in_turn = False
        touched, self.touched = self.touched, []
        now = self.now = self.monotonic()
        for connection in touched:
            connection.last_active = now
            connection.flush()


def _descriptors_for_clients() -> int:
    """Return the first descriptor number that clients may not have.

    The kernel assigns the lowest free number, so a number from here on means that few descriptors are left for logs.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit - min(limit // 8, _DESCRIPTORS_KEPT_MAX)
