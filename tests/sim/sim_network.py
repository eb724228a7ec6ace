"""A network in memory: byte streams between named hosts, with delays, cuts and resets.

A connection is two pipes. A pipe delivers bytes in order; each write arrives after a delay that is drawn from the seed.
While the way from one host to another is cut, bytes wait, as TCP repeats lost packets, and arrive after the cut heals.
A cut has a direction, so one-way cuts exist. A connection that is reset, or whose host lost its power, loses the bytes
that have not arrived.

``HostNetwork`` is what a broker gets in place of ``ottla.net.network.SocketNetwork``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Any

from sim_loop import VirtualLoop

from ottla.model.types import Endpoint

_SIZE = Struct(">i")
#: a connection attempt without an answer fails after this time
_CONNECT_TIMEOUT_S = 2.0

Trace = Callable[[str], None]


class SimulatedNetwork:
    """All hosts and connections of a run."""

    def __init__(self, loop: VirtualLoop, rng: Random, trace: Trace) -> None:
        self._loop = loop
        self._rng = rng
        self._trace = trace
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._cuts: set[tuple[str, str]] = set()
        #: pairs of hosts of which the first one has a wrong route to the second one
        self._refused: dict[tuple[str, str], None] = {}
        self._links: dict[Link, None] = {}
        self._numbers = 0
        #: the mean delay of a packet
        self.delay_s = 0.0005

    # -- faults ---------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Deliver nothing from ``source`` to ``target`` until ``heal``."""
        self._trace(f"cut {source} -> {target}")
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        if (source, target) in self._cuts:
            self._trace(f"heal {source} -> {target}")
            self._cuts.remove((source, target))
            for link in list(self._links):
                link.wake(source, target)

    def refuse(self, source: str, target: str) -> None:
        """Refuse connections from ``source`` to ``target`` until ``accept``, as if ``source`` had a wrong address."""
        self._trace(f"connections are refused {source} -> {target}")
        self._refused[source, target] = None
        for link in list(self._links):
            if (link.client_host, link.server_host) == (source, target):
                link.reset()

    def accept(self, source: str, target: str) -> None:
        """Accept connections from ``source`` to ``target`` again."""
        if self._refused.pop((source, target), 0) is None:
            self._trace(f"connections are accepted {source} -> {target}")

    def heal_all(self) -> None:
        for pair in list(self._refused):
            self.accept(*pair)
        for source, target in sorted(self._cuts):
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def reset_some(self, share: float) -> None:
        """Reset this share of all connections."""
        for link in list(self._links):
            if self._rng.random() < share:
                self._trace(f"reset connection {link.client_host} - {link.server_host}")
                link.reset()

    def end_host(self, host: str, *, lose_bytes: bool) -> None:
        """The process of a host ended; without power its peers lose the bytes that are still on their way."""
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        for link in list(self._links):
            if link.server_host == host:
                link.server_died(lose_bytes=lose_bytes)
            elif link.client_host == host:
                link.client_died(lose_bytes=lose_bytes)

    # -- connections ----------------------------------------------------------------------------------------------

    def delay(self) -> float:
        """Return the delay of one packet: mostly short, sometimes a hundred times as long."""
        scale = 100 if self._rng.random() < 0.01 else 1
        return self._rng.expovariate(1 / self.delay_s) * scale

    def listen(self, host: str, port: int, listener: SimulatedListener) -> None:
        assert (host, port) not in self._listeners, f"{host}:{port} is in use"
        self._listeners[host, port] = listener

    def stop_listening(self, host: str, port: int, listener: SimulatedListener) -> None:
        if self._listeners.get((host, port)) is listener:
            del self._listeners[host, port]

    async def connect(self, source: str, target: str, port: int) -> ClientStream:
        """Connect a client; raise OSError if no process listens or no answer comes."""
        link = await self._open(source, target, port, ClientStream)
        assert isinstance(link.client, ClientStream)
        return link.client

    async def connect_protocol(
        self, source: str, target: str, port: int, factory: Callable[[], Any]
    ) -> OutgoingTransport:
        """Connect a process, whose protocol object ``factory`` creates; raise OSError as ``connect`` does."""
        link = await self._open(source, target, port, OutgoingTransport)
        assert isinstance(link.client, OutgoingTransport)
        link.client.open(factory())
        return link.client

    async def _open(self, source: str, target: str, port: int, make_client: Callable[[Link], Any]) -> Link:
        deadline = self._loop.time() + _CONNECT_TIMEOUT_S
        await asyncio.sleep(self.delay())
        while self.is_cut(source, target) or self.is_cut(target, source):
            if self._loop.time() >= deadline:
                raise TimeoutError(f"no answer from {target}")
            await asyncio.sleep(0.2)
        listener = self._listeners.get((target, port))
        if listener is None or listener.factory is None or (source, target) in self._refused:
            raise ConnectionRefusedError(f"{target}:{port} refuses the connection")
        self._numbers += 1
        link = Link(self, self._loop, self._numbers, source, target, listener, make_client)
        self._links[link] = None
        await asyncio.sleep(self.delay())
        return link

    def forget(self, link: Link) -> None:
        self._links.pop(link, None)

    def random(self) -> float:
        return self._rng.random()


class Pipe:
    """The bytes from one end of a connection to the other."""

    def __init__(
        self, network: SimulatedNetwork, loop: VirtualLoop, source: str, target: str,
        deliver: Callable[[bytes | None], None], context: contextvars.Context,
    ) -> None:  # fmt: skip
        self._network = network
        self._loop = loop
        self._source = source
        self._target = target
        self._deliver = deliver
        #: what the receiver schedules belongs to the receiver, whoever sent the bytes
        self._context = context
        #: (arrival, bytes); None instead of bytes is the end of the stream
        self._chunks: deque[tuple[float, bytes | None]] = deque()
        self._last_arrival = 0.0
        self.is_closed = False

    def send(self, data: bytes | None) -> None:
        if self.is_closed:
            return
        pieces = [data]
        if data is not None and len(data) > 8 and self._network.random() < 0.05:
            middle = 1 + int(self._network.random() * (len(data) - 1))
            pieces = [data[:middle], data[middle:]]
        for piece in pieces:
            self._last_arrival = max(self._loop.time() + self._network.delay(), self._last_arrival)
            self._chunks.append((self._last_arrival, piece))
            self._loop.call_at(self._last_arrival, self._pump, context=self._context)

    def wake(self) -> None:
        """Deliver after a cut what waited."""
        if self._chunks:
            self._loop.call_later(0.2 * self._network.random(), self._pump, context=self._context)

    def close(self) -> None:
        self.is_closed = True
        self._chunks.clear()

    def _pump(self) -> None:
        chunks = self._chunks
        while chunks and chunks[0][0] <= self._loop.time() and not self._network.is_cut(self._source, self._target):
            _, data = chunks.popleft()
            self._deliver(data)


class Link:
    """One connection: the end of the client, the transport of the server, and the two pipes between them."""

    def __init__(
        self, network: SimulatedNetwork, loop: VirtualLoop, number: int, client_host: str, server_host: str,
        listener: SimulatedListener, make_client: Callable[[Link], Any],
    ) -> None:  # fmt: skip
        self._network = network
        self.loop = loop
        self.client_host = client_host
        self.server_host = server_host
        assert listener.factory is not None
        #: what the client schedules belongs to the process that connects; simulated clients belong to none
        self._client_context = contextvars.copy_context()
        self.client = make_client(self)
        self.server = ServerTransport(self, listener, number)
        self._to_server = Pipe(network, loop, client_host, server_host, self.server.receive, listener.context)
        self._to_client = Pipe(network, loop, server_host, client_host, self.client.receive, self._client_context)
        loop.call_soon(self.server.open, context=listener.context)

    def send_to_server(self, data: bytes | None) -> None:
        self._to_server.send(data)

    def send_to_client(self, data: bytes | None) -> None:
        self._to_client.send(data)

    def wake(self, source: str, target: str) -> None:
        if (source, target) == (self.client_host, self.server_host):
            self._to_server.wake()
        elif (source, target) == (self.server_host, self.client_host):
            self._to_client.wake()

    def reset(self) -> None:
        """Both ends lose the connection and all bytes that have not arrived."""
        self._network.forget(self)
        self._to_server.close()
        self._to_client.close()
        self.loop.call_later(self._network.delay(), self.client.lose, context=self._client_context)
        self.server.lose()

    def server_died(self, *, lose_bytes: bool) -> None:
        """The server's process ended: the kernel still sends what the process had written, unless the power failed."""
        self._network.forget(self)
        self._to_server.close()
        if lose_bytes:
            self._to_client.close()
            # The client learns it from the machine that runs again, or from its own timeout.
            self.loop.call_later(3 * self._network.random(), self.client.lose, context=self._client_context)
        else:
            self._to_client.send(None)

    def client_died(self, *, lose_bytes: bool) -> None:
        """The process that connected ended. After a power failure, bytes that are on their way may still arrive."""
        self._to_client.close()
        if lose_bytes:
            if self._network.random() < 0.5:
                self._to_server.close()
            self.loop.call_later(3 * self._network.random(), self._client_is_gone, context=contextvars.Context())
        else:
            self._to_server.send(None)

    def _client_is_gone(self) -> None:
        """The server learns it from the machine that runs again, or from its own timeout."""
        self._network.forget(self)
        self._to_server.close()
        self.server.lose()

    def client_closed(self) -> None:
        self._to_server.send(None)
        self._to_client.close()

    def server_closed(self) -> None:
        self._network.forget(self)
        self._to_client.send(None)
        self._to_server.close()


class ClientStream:
    """A client's end: sends requests and receives the replies in their order."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop = link.loop
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self.is_lost = False

    def request(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future gets the reply without its size, or ConnectionError."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self.is_lost:
            future.set_exception(ConnectionResetError("the connection is lost"))
            return future
        self._waiting.append(future)
        self._link.send_to_server(_SIZE.pack(len(frame)) + frame)
        return future

    def receive(self, data: bytes | None) -> None:
        if data is None:
            self.lose()
            return
        self._received += data
        while len(self._received) >= 4:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < 4 + size:
                break
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(frame)

    def lose(self) -> None:
        self.is_lost = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionResetError("the connection is lost"))
                future.exception()  # a caller that was cancelled does not read it

    def close(self) -> None:
        if not self.is_lost:
            self._link.client_closed()
            self.lose()


class SimulatedListener:
    """A port of a host; see ``ottla.net.network.Listener``."""

    def __init__(self, network: SimulatedNetwork, host: str, port: int) -> None:
        self._network = network
        self._host = host
        self.port = port
        self.factory: Callable[[], Any] | None = None
        #: callbacks of the server run in the context of the process that listens
        self.context = contextvars.copy_context()
        network.listen(host, port, self)
        self.transports: dict[int, ServerTransport] = {}

    async def serve(self, loop: asyncio.AbstractEventLoop, factory: Callable[[], Any]) -> None:
        self.factory = factory

    def close(self) -> None:
        self._network.stop_listening(self._host, self.port, self)


class SimulatedTransport:
    """One end of a connection of a process: what protocol objects use of a transport."""

    def __init__(self, link: Link, context: contextvars.Context) -> None:
        self._link = link
        self._loop = link.loop
        #: callbacks run in the context of the process that this end belongs to
        self._context = context
        self._received = bytearray()
        self._has_ended = False
        self._is_paused = False
        self._is_closed = False
        self._protocol: Any = None

    # -- from the network -----------------------------------------------------------------------------------------

    def receive(self, data: bytes | None) -> None:
        if self._is_closed:
            return
        if data is None:
            self._has_ended = True
            self._peer_closed()
        else:
            self._received += data
        self._feed()

    def _peer_closed(self) -> None:
        pass

    def _feed(self) -> None:
        if self._is_paused or self._is_closed:
            return
        if self._received:
            buffer = self._protocol.get_buffer(-1)
            size = min(len(buffer), len(self._received))
            buffer[:size] = self._received[:size]
            del self._received[:size]
            self._protocol.buffer_updated(size)
            if self._received or self._has_ended:
                self._loop.call_soon(self._feed, context=self._context)
        elif self._has_ended:
            self._has_ended = False
            if not self._protocol.eof_received():
                self.close()

    def lose(self) -> None:
        """The connection was reset."""
        if not self._is_closed:
            self._is_closed = True
            error = ConnectionResetError("reset by the network")
            self._loop.call_soon(self._report_lost, error, context=self._context)

    def _report_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # -- of the transport -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._is_closed:
            self._send(bytes(data))

    def _send(self, data: bytes) -> None:
        raise NotImplementedError

    def _closed(self) -> None:
        raise NotImplementedError

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._received or self._has_ended:
            self._loop.call_soon(self._feed, context=self._context)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._closed()
            self._loop.call_soon(self._report_lost, None, context=self._context)

    def abort(self) -> None:
        self.close()


class OutgoingTransport(SimulatedTransport):
    """The end of a connection that a broker opened."""

    def __init__(self, link: Link) -> None:
        super().__init__(link, contextvars.copy_context())

    def open(self, protocol: Any) -> None:
        """Give the connection its protocol object. Raise ConnectionResetError if the connection is already lost."""
        if self._is_closed:
            raise ConnectionResetError("reset by the network")
        self._protocol = protocol
        protocol.connection_made(self)
        self._loop.call_soon(self._feed, context=self._context)

    def receive(self, data: bytes | None) -> None:
        if self._protocol is not None:
            super().receive(data)
        elif data is None:
            self._has_ended = True

    def _send(self, data: bytes) -> None:
        self._link.send_to_server(data)

    def _closed(self) -> None:
        self._link.client_closed()

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass


class ServerTransport(SimulatedTransport):
    """The broker's end: what ``ottla.net.connection.Connection`` uses of a transport and of its socket."""

    def __init__(self, link: Link, listener: SimulatedListener, number: int) -> None:
        super().__init__(link, listener.context)
        self._listener = listener
        self._number = number
        #: set by ``SimulatedPeers``: called when the client closes while the connection is not read from
        self.on_peer_closed: Callable[[], None] | None = None

    def open(self) -> None:
        assert self._listener.factory is not None
        self._listener.transports[self._number] = self
        self._protocol = self._listener.factory()
        self._protocol.connection_made(self)

    def _peer_closed(self) -> None:
        if self._is_paused and self.on_peer_closed is not None:
            self.on_peer_closed()

    def _report_lost(self, error: Exception | None) -> None:
        self._listener.transports.pop(self._number, None)
        super()._report_lost(error)

    def _send(self, data: bytes) -> None:
        self._link.send_to_client(data)

    def _closed(self) -> None:
        self._link.server_closed()

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return self
        return ("broker", self._listener.port) if name == "sockname" else (self._link.client_host, 50_000)

    # -- of the socket --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._number

    def send(self, data: bytes, flags: int) -> int:
        self.write(data)
        return len(data)

    def detach(self) -> int:
        return self._number


class SimulatedPeers:
    """In place of ``PeerWatch``."""

    def __init__(self, network: HostNetwork) -> None:
        self._network = network

    def add(self, connection: Any, fd: int) -> None:
        transport = self._network.transport(fd)
        if transport is not None:
            transport.on_peer_closed = lambda: connection.peer_closed(reads_nothing=False)
            if transport._has_ended:
                transport.on_peer_closed()

    def remove(self, connection: Any, fd: int) -> None:
        transport = self._network.transport(fd)
        if transport is not None:
            transport.on_peer_closed = None

    def close(self) -> None:
        pass


class HostNetwork:
    """The network as one run of one broker sees it; see ``ottla.net.network.Network``."""

    def __init__(self, network: SimulatedNetwork, host: str, disk: Any) -> None:
        self._network = network
        self._host = host
        self._listeners: list[SimulatedListener] = []
        self.pread = disk.pread

    def bind(self, endpoint: Endpoint, **_: int) -> SimulatedListener:
        listener = SimulatedListener(self._network, self._host, endpoint.port)
        self._listeners.append(listener)
        return listener

    async def connect(self, endpoint: Endpoint, factory: Callable[[], Any]) -> OutgoingTransport:
        """Connect to another broker. Raise OSError if no process listens or no answer comes."""
        return await self._network.connect_protocol(self._host, endpoint.host, endpoint.port, factory)

    def transport(self, fd: int) -> ServerTransport | None:
        return next((each.transports[fd] for each in self._listeners if fd in each.transports), None)

    def watch_peers(self, loop: asyncio.AbstractEventLoop) -> SimulatedPeers:
        return SimulatedPeers(self)

    def descriptors_for_clients(self) -> int:
        return 1 << 30

    def direct_socket(self, socket_fd: int) -> ServerTransport:
        transport = self.transport(socket_fd)
        assert transport is not None
        return transport

    def sendfile(self, socket_fd: int, file_fd: int, position: int, size: int, /) -> int:
        if size > 1 and self._network.random() < 0.1:
            size //= 2
        data = bytes(self.pread(file_fd, size, position))
        self.direct_socket(socket_fd).write(data)
        return len(data)
