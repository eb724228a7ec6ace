"""Work outside the event loop: threads for system calls that block, and tasks whose failures are logged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

log = logging.getLogger(__name__)

Work = Callable[[], None]
Done = Callable[[OSError | None], None]


class ThreadPool:
    """A few threads that sync and delete files, and report each result on the event loop.

    An executor with futures costs several times more per job, and a job here is one system call. Threads are started
    when they are first needed, so that an idle broker has none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int, name: str) -> None:
        self._loop = loop
        self._threads_max = threads_max
        self._name = name
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: jobs that were submitted and have not reported their result; only the thread of the event loop changes it
        self._in_flight = 0
        self._idle: asyncio.Event | None = None

    def submit(self, work: Work, done: Done) -> None:
        """Run ``work`` in a thread, then ``done(error)`` on the event loop. ``work`` may raise only OSError."""
        self._in_flight += 1
        if self._in_flight > len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((work, done))

    async def drain(self) -> None:
        """Wait until all submitted jobs have reported their result."""
        while self._in_flight:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, done = job
            error: OSError | None = None
            try:
                work()
            except OSError as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._report, done, error)
            except RuntimeError:  # the event loop is closed, so no caller waits for the result
                return

    def _report(self, done: Done, error: OSError | None) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._idle is not None:
            self._idle.set()
        done(error)


class Tasks:
    """The tasks of one owner, which stops them together. The exception of a failed task is logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed name=%s", task.get_name(), exc_info=error)
