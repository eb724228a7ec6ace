"""A real ZooKeeper for tests of the metadata store: clients connect through a proxy that injects faults.

Sessions have a long timeout, so that a busy machine does not expire them. A test that needs an expired session gets it
by ``expire_session``, which closes the session in the name of its client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from ottla.broker.metadata.store import MetadataStore, Op, SessionState, Written
from ottla.cli.zookeeper_server import Server, ServerProcess, ZooKeeperFailed, java_command

if TYPE_CHECKING:
    from ottla.broker.metadata.zookeeper.store import ZooKeeperStore

T = TypeVar("T")

SESSION_S = 40.0
_MULTI = 14
_SIZE = Struct("!i")
_REQUEST_START = Struct("!ii")
_CONNECT_REQUEST = Struct("!iqiq")
_CONNECT_RESPONSE = Struct("!iiqi")
_CLOSE_SESSION = _SIZE.pack(8) + _REQUEST_START.pack(1, -11)
_CONNECTION_LOST = (OSError, asyncio.IncompleteReadError)


@contextmanager
def running_zookeeper(directory: Path) -> Iterator[str]:
    """Run a server and yield its address. Skip the test if Java or pyspark is missing."""
    try:
        java_command(directory)
    except ZooKeeperFailed as failure:
        pytest.skip(f"no ZooKeeper: {failure}")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    settings = {"snapCount": "1000000"}
    process = ServerProcess(
        Server(data=directory, port=port, tick_ms=100, settings=settings, java_options=["-Dzookeeper.forceSync=no"])
    )
    try:
        process.wait_until_ready()
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


class ZooKeeper:
    """A new chroot in the server for each test: a Place, and Servers."""

    _numbers = count(1)

    def __init__(self, address: str) -> None:
        self.address = address
        self.chroot = f"/test-{next(self._numbers)}"
        self._clients: dict[str, _Client] = {}
        self._all_clients: list[_Client] = []
        self._crashed_sessions: list[SessionKey] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened = 0

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            try:
                return await main
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for client in self._all_clients:
                    await client.close()

        return asyncio.run(run())

    async def open(self) -> MetadataStore:
        return await self._connect(self.address, SESSION_S)

    async def _connect(self, address: str, session_s: float) -> ZooKeeperStore:
        from ottla.broker.metadata.zookeeper.store import ZooKeeperStore

        return await ZooKeeperStore.open(f"{address}{self.chroot}", session_timeout_s=session_s)

    async def open_client(self, client: str, *, session_s: float = SESSION_S) -> MetadataStore:
        proxy = Proxy(self.address)
        port = await proxy.start()
        store = await self._connect(f"127.0.0.1:{port}", session_s)
        self._clients[client] = _Client(store, proxy)
        self._all_clients.append(self._clients[client])
        if self._crashed_sessions:
            store.multi = self._expire_after(store.multi)
        return store

    def _expire_after(self, multi: Callable[[Sequence[Op]], Awaitable[Written]]) -> Any:
        """Return a multi after which the sessions of crashed clients expire."""

        async def multi_then_expire(ops: Sequence[Op]) -> Written:
            try:
                return await multi(ops)
            finally:
                while self._crashed_sessions:
                    await expire_session(self.address, self._crashed_sessions.pop())

        return multi_then_expire

    def cut(self, client: str) -> None:
        self._start(self._cut(self._clients[client]))

    async def _cut(self, client: _Client) -> None:
        """Stop all messages. The client notices after a moment; only then its session expires."""
        proxy = client.proxy
        proxy.pause()
        await asyncio.sleep(0.05)
        proxy.close_links()
        while client.store.session.state is SessionState.ESTABLISHED:
            await asyncio.sleep(0.01)
        assert proxy.session is not None
        await expire_session(self.address, proxy.session)
        await proxy.healed.wait()
        proxy.resume()

    def heal(self, client: str) -> None:
        self._clients[client].proxy.healed.set()

    def break_connection(self, client: str) -> None:
        self._clients[client].proxy.close_links()

    def lose_answer(self, client: str, *, applied: bool) -> None:
        self._clients[client].proxy.lose_answer_of_multi = applied

    def expire(self, client: str) -> None:
        self._start(self._expire(self._clients[client].proxy))

    async def _expire(self, proxy: Proxy) -> None:
        proxy.pause()
        proxy.close_links()
        assert proxy.session is not None
        await expire_session(self.address, proxy.session)
        proxy.resume()

    def crash(self, client: str) -> None:
        proxy = self._clients.pop(client).proxy
        proxy.pause()
        proxy.close_links()
        assert proxy.session is not None
        self._crashed_sessions.append(proxy.session)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Client(NamedTuple):
    store: ZooKeeperStore
    proxy: Proxy

    async def close(self) -> None:
        await self.store.close()
        await self.proxy.close()


class SessionKey(NamedTuple):
    """With these a client proves that a session is its own."""

    session_id: int
    password: bytes


async def expire_session(address: str, session: SessionKey) -> None:
    """Attach to the session and close it. For its client it has then expired."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = _CONNECT_REQUEST.pack(0, 0, 60_000, session.session_id)
    request += _SIZE.pack(len(session.password)) + session.password + b"\0"
    writer.write(_SIZE.pack(len(request)) + request + _CLOSE_SESSION)
    await reader.read()
    writer.close()


class Proxy:
    """Listens for one client of ZooKeeper and injects faults into its connections."""

    def __init__(self, address: str) -> None:
        self._address = address
        #: of the last connection
        self.session: SessionKey | None = None
        #: the next multi arrives or not, and its answer is lost; None: no fault
        self.lose_answer_of_multi: bool | None = None
        self.healed = asyncio.Event()
        self._passing = asyncio.Event()
        self._passing.set()
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen on a free port and return it."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.close_links()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pause(self) -> None:
        """Pass no message on, and open no connection to the server."""
        self.healed.clear()
        self._passing.clear()

    def resume(self) -> None:
        self.close_links()
        self._passing.set()

    def close_links(self) -> None:
        for link in self._links:
            for writer in link:
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._passing.is_set():
            writer.transport.abort()
            return
        host, _, port = self._address.rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        link = (writer, server_writer)
        self._links.add(link)
        #: request ids of multis whose answers are lost
        lost: set[int] = set()
        directions = [
            asyncio.ensure_future(self._pass_requests(reader, server_writer, lost)),
            asyncio.ensure_future(self._pass_answers(server_reader, writer, lost)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for end in link:
                end.transport.abort()
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        with suppress(*_CONNECTION_LOST):
            writer.write(await self._next_frame(reader))
            while True:
                frame = await self._next_frame(reader)
                xid, opcode = _REQUEST_START.unpack_from(frame, _SIZE.size)
                if opcode == _MULTI and self.lose_answer_of_multi is not None:
                    applied, self.lose_answer_of_multi = self.lose_answer_of_multi, None
                    if not applied:
                        return
                    lost.add(xid)
                writer.write(frame)

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        with suppress(*_CONNECTION_LOST):
            frame = await self._next_frame(reader)
            _, timeout_ms, session_id, size = _CONNECT_RESPONSE.unpack_from(frame, _SIZE.size)
            start = _SIZE.size + _CONNECT_RESPONSE.size
            if timeout_ms > 0:  # otherwise the session has expired
                self.session = SessionKey(session_id, frame[start : start + size])
            while True:
                writer.write(frame)
                frame = await self._next_frame(reader)
                (xid,) = _SIZE.unpack_from(frame, _SIZE.size)
                if xid in lost:
                    return

    async def _next_frame(self, reader: asyncio.StreamReader) -> bytes:
        size = await reader.readexactly(_SIZE.size)
        frame = size + await reader.readexactly(_SIZE.unpack(size)[0])
        await self._passing.wait()
        return frame
