"""Work outside the event loop: threads for system calls that block, and tasks whose failures are logged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol

log = logging.getLogger(__name__)

Work = Callable[[], None]
Done = Callable[[OSError | None], None]

#: threads of ``run_all``, which the broker uses once, at its stop
_RUN_ALL_THREADS = 16


class Threads(Protocol):
    """Threads for system calls that block. A simulation replaces them."""

    def submit(self, work: Work, done: Done) -> None:
        """Run ``work`` in a thread, then ``done(error)`` on the event loop. ``work`` may raise only OSError."""

    def run_all(self, works: Sequence[Work]) -> None:
        """Run all of ``works`` and return when they have ended. Raise the error of the first one that failed."""

    async def drain(self) -> None:
        """Wait until all submitted jobs have reported their result."""

    def close(self) -> None:
        """End the threads."""


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
        self._in_flight += 1
        if self._in_flight > len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((work, done))

    def run_all(self, works: Sequence[Work]) -> None:
        # Many concurrent syncs take little more time than one.
        with ThreadPoolExecutor(_RUN_ALL_THREADS) as threads:
            for ended in [threads.submit(work) for work in works]:
                ended.result()

    async def drain(self) -> None:
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
        #: a dict and not a set, so that tasks end in the order in which they were started
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task, and return it for those that end it before ``stop``."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed name=%s", task.get_name(), exc_info=error)
