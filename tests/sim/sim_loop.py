"""An event loop with virtual time: it waits for nothing, and it has neither sockets nor threads.

When no callback is ready, the loop sets its clock to the time of the earliest timer. Callbacks run in the order that
asyncio guarantees, so a run depends only on the random numbers that network, disk and clients draw.

A ``Life`` is one run of a process, from its start to its end. Callbacks inherit the life of the code that scheduled
them through their ``contextvars`` context. After ``end_life`` none of them runs any more: this is how a process is
killed between two callbacks. Between ``pause_life`` and ``resume_life`` they wait while time passes, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

#: the process that the running code belongs to; None for the world outside of processes
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)

#: the time at which every run starts
START_S = 1000.0
#: so many rounds of callbacks at one moment mean that they schedule each other without end
_ROUNDS_MAX = 100_000


class Life:
    """One run of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.is_paused = False
        #: callbacks that became due while the process was paused, in their order
        self.waiting: list[asyncio.Handle] = []


class Stuck(Exception):
    """Nothing is scheduled, or callbacks schedule each other without end at one moment."""


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's event loop on a virtual clock."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        # Timers within this time of now are due: it covers the rounding of sums of floats.
        self._clock_resolution = 1e-9
        self._selector = self
        self._coroutines: list[Any] = []
        self._tasks: list[asyncio.Task[Any]] = []
        #: called with the exception of a callback
        self.on_exception: Callable[[str, BaseException], None] = lambda text, error: None
        #: the time that a round of callbacks takes
        self.round_s = 0.0
        #: rounds of callbacks since the clock last advanced
        self._rounds = 0
        #: the virtual duration of a call in an executor
        self.executor_delay: Callable[[], float] = lambda: 0.001

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Take the place of the selector: advance the clock instead of waiting."""
        if timeout is None:
            raise Stuck("nothing is scheduled any more")
        self._rounds = 0 if timeout else self._rounds + 1
        if self._rounds > _ROUNDS_MAX:
            raise Stuck(f"no time passes any more; the next callbacks are {list(self._ready)[:3]}")
        self._now += timeout or self.round_s
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise AssertionError("a thread called the event loop, but a simulation has no threads")

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        life = context.get(LIFE)
        if life is not None and life.is_over:
            handle = asyncio.Handle(callback, args, self, context)
            handle.cancel()
            return handle
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        life = context.get(LIFE)
        if life is not None and life.is_over:
            handle = asyncio.TimerHandle(when, callback, args, self, context)
            handle.cancel()
            return handle
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``func`` on this thread after a virtual delay."""
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.executor_delay(), run)
        return future

    def end_life(self, life: Life) -> None:
        """Cancel everything that the code of this life has scheduled."""
        life.is_over = True
        life.waiting.clear()
        for handle in [*self._ready, *self._scheduled]:
            if handle._context.get(LIFE) is life:
                handle.cancel()

    def pause_life(self, life: Life) -> None:
        """Run no callback of this life until ``resume_life``."""
        life.is_paused = True
        if not isinstance(self._ready, _PausableQueue):
            # Only now, because the check of every callback costs time.
            self._ready = _PausableQueue(self._ready)
            self._ready.nothing = asyncio.Handle(lambda: None, (), self)
            self._ready.nothing.cancel()

    def resume_life(self, life: Life) -> None:
        life.is_paused = False
        self._ready.extend(life.waiting)
        life.waiting.clear()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        # The tasks of a killed process never end. asyncio would report that when they are garbage-collected.
        task._log_destroy_pending = False
        self._coroutines.append(coro)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.on_exception(str(context.get("message")), error)

    def report_failed_tasks(self) -> None:
        """Call ``on_exception`` for each task that ended with an exception that no code has seen."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task._log_traceback:
                task._log_traceback = False
                error = task.exception()
                assert error is not None
                self.on_exception(f"task {task.get_name()}", error)

    def close(self) -> None:
        """Close the loop and the coroutines of all tasks, so that none is closed during another run."""
        with warnings.catch_warnings():
            # A killed process may have created coroutines that it did not start.
            warnings.simplefilter("ignore", RuntimeWarning)
            for coroutine in self._coroutines:
                with contextlib.suppress(Exception):
                    coroutine.close()
            self._coroutines.clear()
        self._tasks.clear()
        super().close()


class _PausableQueue(deque[asyncio.Handle]):
    """The callbacks that are ready. Those of a paused life are put aside when their turn comes."""

    #: a cancelled handle, which the loop skips
    nothing: asyncio.Handle

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        life = handle._context.get(LIFE)
        if life is None or not life.is_paused or handle.cancelled():
            return handle
        life.waiting.append(handle)
        return self.nothing


class ContextLoop:
    """Schedules callbacks so that they belong to one life, whoever calls; None is the world outside of processes."""

    def __init__(self, loop: VirtualLoop, life: Life | None) -> None:
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(LIFE.set, life)
        self.time = loop.time
        self.create_future = loop.create_future

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(callback, *args, context=self._context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback, *args, context=self._context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_at(when, callback, *args, context=self._context)


def run_in_life(life: Life | None, call: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that all that it schedules belongs to ``life``."""
    context = contextvars.copy_context()
    context.run(LIFE.set, life)
    return context.run(call, *args)
