"""Work outside the event loop: threads for system calls that block, and tasks whose failures are logged.

All tasks and threads of the services are started here, so that none of them ends without a message: an exception that
its code does not expect is reported with its traceback. Work that must go on for as long as the process runs is started
again after a pause (``Tasks.keep``, ``keep_thread``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from ottla.env.log_limit import LogLimit

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

Work = Callable[[], None]
Done = Callable[[OSError | None], None]

#: threads of ``run_all``, which the broker uses once, at its stop
_RUN_ALL_THREADS = 16
#: the pause before work is started again that has failed unexpectedly
RESTART_S = 1.0

_T = TypeVar("_T")


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
            except Exception as raised:
                # Otherwise the caller would wait for ever: it handles this as a failure of the disk.
                log.exception("job failed in an unforeseen way thread=%s", threading.current_thread().name)
                error = OSError(errno.EIO, f"{type(raised).__name__}: {raised}")
            try:
                self._loop.call_soon_threadsafe(self._report, done, error)
            except RuntimeError:  # the event loop is closed, so no caller waits for the result
                return

    def _report(self, done: Done, error: OSError | None) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._idle is not None:
            self._idle.set()
        done(error)


def report(what: str, error: BaseException) -> None:
    """Log an unexpected exception with its traceback: through the event loop, because a simulation fails then."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        log.error(what, exc_info=error)  # in a thread
    else:
        loop.call_exception_handler({"message": what, "exception": error})


def attempt(work: Callable[[], _T], name: str) -> _T | None:
    """Return the result of one of several pieces of periodic work; None after an unexpected exception.

    The exception is reported, and the other pieces go on.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - it is reported
        report(f"periodic work failed name={name}", error)
        return None


def start_task(
    coroutine: Coroutine[Any, Any, _T], name: str, *, expected: tuple[type[Exception], ...] = ()
) -> asyncio.Task[_T]:
    """Start a task, which the caller must refer to until it ends. Report its exception unless it is ``expected``.

    Those that wait for the task handle the exceptions that are expected.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)

    def ended(task: asyncio.Task[_T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, expected):
            report(f"task failed name={name}", error)

    task.add_done_callback(ended)
    return task


async def run_again(make: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Await the coroutine that ``make`` returns. After an unexpected exception report it, pause, and begin again."""
    while True:
        try:
            return await make()
        except Exception as error:  # noqa: BLE001 - it is reported
            report(f"task failed and is started again name={name}", error)
        await asyncio.sleep(RESTART_S)


def keep_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread, which is not started yet, that calls ``work``.

    After an unexpected exception it logs the traceback, pauses, and calls ``work`` again. It does not delay the end of
    the process.
    """

    def run() -> None:
        while True:
            try:
                return work()
            except Exception:
                log.exception("thread failed and goes on name=%s", name)
            time.sleep(RESTART_S)

    return threading.Thread(target=run, name=name, daemon=True)


class Tasks:
    """The tasks of one owner, which stops them together. Unexpected exceptions are reported."""

    def __init__(self) -> None:
        #: a dict and not a set, so that tasks end in the order in which they were started
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(
        self, coroutine: Coroutine[Any, Any, _T], name: str, *, expected: tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[_T]:
        """Start a task, and return it for those that end it before ``stop``. See ``start_task``."""
        task = start_task(coroutine, name, expected=expected)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task

    def keep(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Start a task for work that must go on until ``stop``. See ``run_again``."""
        return self.start(run_again(make, name), name)

    async def stop(self) -> None:
        while self._tasks:  # a task that ends may start another one
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))
