"""A real broker with real connections, whose bytes do not pass through sockets.

async with MemoryBroker(tmp_path) as broker:
    frame = await broker.connect("User:alice").ask(request, version)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, Self

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.net.connection import Connection
from ottla.security.acls import Authorizer
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire import Message

_SIZE = Struct(">i")
#: a reply that has not come after this time is never sent
_TIMEOUT_S = 60.0
SUPER_USER = "User:root"


class MemoryNetwork:
    """In place of ``ottla.net.network.SocketNetwork``."""

    def __init__(self) -> None:
        self.factory: Callable[[], Any] | None = None
        self.transports: dict[int, MemoryTransport] = {}

    # -- the listener ---------------------------------------------------------------------------------------------

    port = 9092

    def bind(self, endpoint: Endpoint, **_: int) -> Any:
        return self

    async def serve(self, loop: asyncio.AbstractEventLoop, factory: Callable[[], Any]) -> None:
        self.factory = factory

    def close(self) -> None:
        self.factory = None

    # -- what connections use -------------------------------------------------------------------------------------

    async def connect(self, endpoint: Endpoint, factory: Callable[[], Any]) -> asyncio.Transport:
        raise ConnectionRefusedError("this broker is alone")

    def watch_peers(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self

    def add(self, connection: Connection, fd: int) -> None:
        """Part of ``Peers``: no client of a test closes its side while a request of it is parked."""

    def remove(self, connection: Connection, fd: int) -> None:
        pass

    def descriptors_for_clients(self) -> int:
        return 1 << 30

    def direct_socket(self, socket_fd: int) -> MemoryTransport:
        return self.transports[socket_fd]

    def sendfile(self, socket_fd: int, file_fd: int, position: int, size: int, /) -> int:
        data = os.pread(file_fd, size, position)
        self.transports[socket_fd].write(data)
        return len(data)

    def pread(self, file_fd: int, size: int, position: int, /) -> bytes:
        return os.pread(file_fd, size, position)


class MemoryTransport:
    """The transport of one connection, its socket, and the client at the other end."""

    def __init__(self, network: MemoryNetwork, principal: str, host: str) -> None:
        assert network.factory is not None
        self._fd = len(network.transports) + 1
        network.transports[self._fd] = self
        self._host = host
        self._received = bytearray()
        self._replied: asyncio.Future[bytes] | None = None
        self._correlation_id = 0
        self.is_closed = False
        self.connection: Connection = network.factory()
        self.connection.connection_made(self)  # type: ignore[arg-type]
        self.connection.principal = principal

    # -- the client -----------------------------------------------------------------------------------------------

    async def ask(self, request: Message, version: int) -> bytes:
        """Send a request and return the frame of its reply, without its size. Raise ConnectionError if it is closed."""
        return await self.begin(request, version)

    def begin(self, request: Message, version: int, *, correlation_id: int = 7) -> asyncio.Future[bytes]:
        """Send a request and return the future of its reply. The next request is sent after that."""
        assert self._replied is None or self._replied.done()
        self._replied = asyncio.get_running_loop().create_future()
        frame = request_bytes(request, version, correlation_id)
        data = memoryview(_SIZE.pack(len(frame)) + frame)
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]
        return self._replied

    async def decoded(self, request: Message, version: int) -> Any:
        async with asyncio.timeout(_TIMEOUT_S):
            return read_answer(await self.ask(request, version), request.API_KEY, version, 7)

    def write(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) >= _SIZE.size + size:
                frame = bytes(self._received[_SIZE.size : _SIZE.size + size])
                del self._received[: _SIZE.size + size]
                assert self._replied is not None
                self._replied.set_result(frame)

    # -- the transport and its socket -----------------------------------------------------------------------------

    def send(self, data: bytes, flags: int) -> int:
        self.write(data)
        return len(data)

    def fileno(self) -> int:
        return self._fd

    def detach(self) -> int:
        return self._fd

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return self
        return ("127.0.0.1", MemoryNetwork.port) if name == "sockname" else (self._host, 50_000)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self._replied is not None and not self._replied.done():
                self._replied.set_exception(ConnectionResetError("the broker closed the connection"))
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class MemoryBroker:
    """A broker with ACLs. ``User:root`` is its super user."""

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None) -> None:
        self._settings = BrokerSettings.parse({
            "log.dirs": str(data), "listeners": f"PLAINTEXT://127.0.0.1:{MemoryNetwork.port}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": SUPER_USER, "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1",
            **(settings or {}),
        })  # fmt: skip
        self._network = MemoryNetwork()

    async def __aenter__(self) -> Self:
        network: Any = self._network
        environment = system_environment(
            self._settings, asyncio.get_running_loop(), network=network, freeze=lambda: None
        )
        self.broker = Broker(self._settings, environment)
        await self.broker.start()
        self.root = self.connect(SUPER_USER)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.broker.stop()

    @property
    def authorizer(self) -> Authorizer:
        authorizer = self.broker.local.access.authorizer
        assert authorizer is not None
        return authorizer

    def connect(self, principal: str, host: str = "10.0.0.1") -> MemoryTransport:
        return MemoryTransport(self._network, principal, host)
