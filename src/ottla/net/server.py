"""Listeners, limits on connections, and the turn.

A turn is one iteration of the event loop in which something happens. It begins with the first readable socket or
completed job and ends before the loop waits again: libuv serves all readable sockets first and runs ``call_soon``
callbacks after them. At the end of a turn, 1 files are written and 2 replies are sent. This order guarantees that
nothing is acknowledged that is not in a file.

A connection is *fresh* until its client has authenticated, or has sent a request where no login is needed. Any machine
can open such connections, so they must not keep others out: when a limit is reached, a fresh connection is closed for
the new one (`fresh.py`). Connections that are not fresh are only closed for those of other brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ottla.env.clock import Clock
from ottla.env.log_limit import LogLimit
from ottla.env.metrics import Histogram
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection, Handler
from ottla.net.fresh import FreshConnections
from ottla.net.network import Listener, Network, SocketNetwork
from ottla.net.tls import TlsServer

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: connections that are closed in one iteration of the loop because they were not set up in time
_ENDED_MAX = 50
#: the longest time between two searches for idle connections
_SWEEP_S = 5.0
#: A fresh connection that is closed keeps its descriptor until the end of the turn. So new ones may have this many of
#: the descriptors that are kept for files, and no more than half of them.
_DESCRIPTORS_ABOVE_MAX = 64


class ConnectionLimits(NamedTuple):
    """How many connections may be open."""

    total: int
    #: from one address
    per_host: int
    #: by the name of the listener; ``total`` for others
    per_listener: Mapping[str, int] = MappingProxyType({})
    #: the listener of other brokers, for whose connections others are closed (KIP-402); None if it is the only one
    protected: str | None = None


class Server:
    """The listeners and connections of this process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        request_bytes_max: int,
        limits: ConnectionLimits,
        idle_ms_max: int,
        in_flight_max: int,
        before_replies: Callable[[], bool],
        latency: dict[int, Histogram],
        network: Network | None = None,
    ) -> None:
        # Settings
        self._loop = loop
        self.network: Network = network or SocketNetwork()
        self.call_soon = loop.call_soon
        #: the event loop's clock has a resolution of one millisecond
        self.monotonic = clock.monotonic
        self.request_bytes_max = request_bytes_max
        self._limits = limits
        #: infinite if connections.max.idle.ms is negative
        self.idle_s_max = idle_ms_max / 1000 if idle_ms_max >= 0 else float("inf")
        self.in_flight_max = in_flight_max
        self._before_replies = before_replies
        #: by API key: the time from each request to its reply
        self.latency = latency

        # Connections
        #: a dict and not a set, so that the order of connections is the order in which they were accepted
        self.connections: dict[Connection, None] = {}
        self.peers = self.network.watch_peers(loop)
        self._per_host: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._listeners: list[Listener] = []
        #: what is done with new connections, by the name of their listener
        self._begin: dict[str, Callable[[Connection], None]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = min(_SWEEP_S, max(self.idle_s_max / 2, 0.1))
        #: connections that are not set up yet (TLS, authentication), in the order in which they were accepted, and when
        #: their time is over. The first one of an OrderedDict is found at once after many others were removed.
        self.unready: OrderedDict[Connection, float] = OrderedDict()
        #: called for each connection that is admitted
        self.on_admitted: Callable[[Connection], None] | None = None
        self.fresh: FreshConnections[Connection] = FreshConnections()
        #: those that were closed for new ones
        self.evicted_connections = 0
        #: those of them whose descriptors are still in use
        self._leaving: set[Connection] = set()
        #: connections for which there are descriptors, as far as it is known
        self._descriptors_room: float = math.inf
        self.refused_connections = 0
        self.accepted = 0
        self.refused_frames = 0

        # The turn
        self.in_turn = False
        self.turn_started = self.now = clock.monotonic()
        self.touched: list[Connection] = []

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(
        self,
        listener: Listener,
        handle: Handler,
        name: str = "",
        *,
        tls: TlsServer | None = None,
        begin: Callable[[Connection], None] | None = None,
    ) -> None:
        """Accept connections, with TLS if ``tls`` is given. ``name`` is the name of the listener.

        ``begin`` is called for each connection that is accepted.
        """
        if begin is not None:
            self._begin[name] = begin
        else:
            handle = self.first_handler(handle)
        factory = tls.factory(self, handle, name) if tls else lambda: Connection(self, handle, name)
        await listener.serve(self._loop, factory)
        self._listeners.append(listener)
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
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.stop_intake()

    def admit(self, connection: Connection) -> bool:
        """Register a new connection. Return False if a limit on connections is exceeded."""
        host, listener = connection.peer_host, connection.listener
        if not self._has_room(connection):
            self.refused_connections += 1
            log.warning(
                "connection refused peer=%s listener=%s open=%d of_listener=%d from_peer=%d", host, listener,
                len(self.connections), self._per_listener[listener], self._per_host[host],
            )  # fmt: skip
            return False
        self.connections[connection] = None
        self.fresh.add(connection)
        self.accepted += 1
        connection.number = self.accepted
        self._per_host[host] += 1
        self._per_listener[listener] += 1
        connection.last_active = self.monotonic()
        if (begin := self._begin.get(connection.listener)) is not None:
            begin(connection)
        if self.on_admitted is not None:
            self.on_admitted(connection)
        self._close_excess()
        return True

    def _has_room(self, connection: Connection) -> bool:
        """Return whether a connection can be admitted, after fresh ones were closed for it if necessary."""
        host, listener, limits = connection.peer_host, connection.listener, self._limits
        above = self._note_descriptor(connection.transport.get_extra_info("socket").fileno())
        if above >= min(self.network.descriptors_for_clients() // 14, _DESCRIPTORS_ABOVE_MAX):
            return False
        of_listener_max = limits.per_listener.get(listener, limits.total)
        total = self._descriptors_room if listener == limits.protected else min(limits.total, self._descriptors_room)
        while True:
            is_listener_full = self._per_listener[listener] >= of_listener_max
            is_host_full = self._per_host[host] >= limits.per_host
            if not (is_listener_full or is_host_full or len(self.connections) >= total):
                return True
            if not self._evict_fresh(listener if is_listener_full else None, host if is_host_full else None):
                is_full = len(self.connections) >= limits.total and listener != limits.protected
                return not (is_listener_full or is_host_full or is_full or above >= 0)

    def _note_descriptor(self, number: int) -> int:
        """Note how many connections there is room for, and return how far a descriptor is above those for clients.

        The kernel assigns the lowest free number, so all descriptors below this one are in use.
        """
        above = number - self.network.descriptors_for_clients()
        if above >= 0:
            self._descriptors_room = float(max(len(self.connections) + len(self._leaving) - above, 0))
        return above

    def _evict_fresh(self, listener: str | None, host: str | None) -> bool:
        """Close a fresh connection, of a listener and of an address if they are given; return False if none is."""
        found = self.fresh.next_to_leave(listener, host)
        if found is None:
            return False
        self.evicted_connections += 1
        log.warning(
            "connection closed for a new one, it has not authenticated or sent a request peer=%s listener=%s",
            found.peer_host, found.listener,
        )  # fmt: skip
        found.abort()
        self.forget(found)  # now, so that it does not count any more
        self._leaving.add(found)
        return True

    def first_handler(self, handle: Handler) -> Handler:
        """Return the handler of new connections that need no login: after their first request they are not fresh."""

        def handle_first(connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int) -> None:
            self.fresh.discard(connection)
            connection.exchange_handler(handle)
            handle(connection, buffer, view, start, end)

        return handle_first

    def limit_connections(self, limits: ConnectionLimits) -> None:
        """Use other limits. As in Kafka a smaller total closes connections, a smaller limit of a listener does not."""
        self._limits = limits
        self._close_excess()

    def _close_excess(self) -> None:
        """Close those connections above the total that were used least recently, but not those of other brokers."""
        excess = len(self.connections) - self._limits.total
        if excess <= 0:
            return
        excess -= sum(connection.closing for connection in self.connections)
        others = [each for each in self.connections if each.listener != self._limits.protected and not each.closing]
        for connection in sorted(others, key=lambda each: each.last_active)[: max(excess, 0)]:
            log.warning("connection closed, there are more than max.connections peer=%s", connection.peer_host)
            connection.abort()

    def forget(self, connection: Connection) -> None:
        self._leaving.discard(connection)
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.fresh.discard(connection)
        self.unready.pop(connection, None)
        self._per_listener[connection.listener] -= 1
        self._per_host[connection.peer_host] -= 1
        if not self._per_host[connection.peer_host]:
            del self._per_host[connection.peer_host]

    def expect_setup(self, connection: Connection, within_s: float) -> None:
        """Close the connection unless ``set_up`` is called for it in time. The time is the same for all connections."""
        if not self.unready:
            self._loop.call_later(within_s, self._end_unready)
        self.unready[connection] = self.monotonic() + within_s

    def set_up(self, connection: Connection) -> None:
        """The client has completed its handshake, and its login if the listener needs one."""
        self.unready.pop(connection, None)
        if connection.listener in self._begin:
            self.fresh.discard(connection)

    def _end_unready(self) -> None:
        """Close connections whose time is over, a few of them in one iteration of the loop."""
        now = self.monotonic()
        for _ in range(_ENDED_MAX):
            if not self.unready:
                return
            connection, deadline = next(iter(self.unready.items()))
            if deadline > now:
                break
            log.info("connection closed, it was not set up in time peer=%s", connection.peer_host)
            del self.unready[connection]
            connection.abort()
        if self.unready:
            deadline = next(iter(self.unready.values()))
            self._loop.call_later(max(deadline - now, 0.0), self._end_unready)

    def _sweep(self) -> None:
        """Close connections that sent no request for too long and wait for none.

        Watch those that are not read from, for whatever reason, so that their end is noticed too.
        """
        self._descriptors_room = math.inf  # files may have been closed
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
