"""A TCP server with one task for each connection. Once it is closed, no socket of it is open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

#: turns of the event loop after which a connection that was accepted has its task
_TURNS_OF_ACCEPT: Final = 4
#: for a client that does not read the end of its reply
_CLOSE_S_MAX: Final = 1.0


class ConnectionServer:
    """Runs ``serve(reader, writer)`` for each connection and closes the connection when that ends."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, **options: Any) -> str:
        """Listen, with the options of ``asyncio.start_server``. Return the address as ``host:port``."""
        self._server = await asyncio.start_server(self._accepted, **options)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Accept no connection, end all tasks and abort all connections."""
        server, self._server = self._server, None
        if server is None:
            return
        # asyncio forgets a socket that was accepted just before ``Server.close``, without closing it. So first stop
        # accepting, then wait until every accepted socket has its task. (uvloop closes such sockets, and refuses this.)
        loop = asyncio.get_running_loop()
        for listening in server.sockets:
            with contextlib.suppress(RuntimeError):
                loop.remove_reader(listening)
        await _turns(_TURNS_OF_ACCEPT)
        server.close()
        for task in self._connections:
            task.cancel()
        while self._connections:
            await asyncio.wait(list(self._connections))
        await _turns(1)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would start its task later, and cancel it before it could close the connection.
        task = asyncio.ensure_future(self._run(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._ended)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer)
        writer.close()
        async with asyncio.timeout(_CLOSE_S_MAX):
            await writer.wait_closed()

    def _ended(self, task: asyncio.Task[None]) -> None:
        # ``abort`` also ends a connection whose client does not read: ``close`` would wait for it.
        self._connections.pop(task).transport.abort()
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, OSError):
            asyncio.get_running_loop().call_exception_handler({"message": "a connection failed", "exception": error})


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
