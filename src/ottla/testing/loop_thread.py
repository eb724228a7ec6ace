"""An event loop in a thread, and outgoing connections: shared by the proxies of tests."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

START_S_MAX = 60.0


class LoopThread:
    """Runs ``serve`` in a thread until ``close``. A subclass calls ``start`` at the end of its constructor."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        #: created in the thread, before ``serve``
        self._closing: asyncio.Event
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def serve(self) -> None:
        """Listen, call ``started``, serve until ``closed`` returns, then close all connections."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread. Return when ``serve`` has called ``started``."""
        self._thread.start()
        assert self._ready.wait(START_S_MAX), f"the {self._thread.name} could not listen"

    def started(self) -> None:
        self._ready.set()

    async def closed(self) -> None:
        """Return after ``close`` was called."""
        await self._closing.wait()

    def close(self) -> None:
        """End every connection and the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        async def serve() -> None:
            self._closing = asyncio.Event()
            await self.serve()

        try:
            self.loop.run_until_complete(serve())
        finally:
            self.loop.close()


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Return a new connection, None if nothing listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        return await asyncio.open_connection(host, int(port))
    except OSError:
        return None
