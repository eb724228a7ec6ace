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
import heapq
import warnings
from collections.abc import Callable
from typing import Any

#: the process that the running code belongs to; None for the world outside of processes
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)

#: the time at which every run starts
START_S = 1000.0
#: so many rounds of callbacks at one moment mean that they schedule each other without end
_ROUNDS_MAX = 100_000
#: timers within this time of now are due: it covers the rounding of sums of floats
_CLOCK_RESOLUTION_S = 1e-9


class Life:
    """One run of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.is_paused = False
        #: callbacks that became due while the process was paused, in their order
        self.waiting: list[asyncio.Handle] = []
        #: the number of the last timer that was made before the pause
        self.timers_before_pause = 0


class Stuck(Exception):
    """Nothing is scheduled, or callbacks schedule each other without end at one moment."""


class _Timer(asyncio.TimerHandle):
    """asyncio's handle, made without its debugging aids. The loop orders timers itself."""

    __slots__ = ("number",)

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: VirtualLoop,
        context: contextvars.Context, number: int = 0,
    ) -> None:  # fmt: skip
        #: in the order in which timers were made; 0 for a callback without a delay
        self.number = number
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = self._scheduled = False
        self._source_traceback = self._repr = None


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's event loop on a virtual clock.

    It replaces the parts of asyncio's loop that a run spends most of its time in: timers are tuples, which Python
    compares faster than handles, and a callback is called without the detours for threads and debugging.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        #: timers by their time and by the order in which they were made
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
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

    def _run_once(self) -> None:
        """Run the callbacks that are ready. If there are none, advance the clock to the next timer."""
        ready, timers = self._ready, self._timers
        if ready:
            self._advance(self._now)
        else:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is scheduled any more")
            self._advance(timers[0][0])
        due = self._now + _CLOCK_RESOLUTION_S
        while timers and timers[0][0] < due:
            ready.append(heapq.heappop(timers)[2])
        # A callback that schedules another one leaves it for the next round.
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            life = context.get(LIFE)
            if life is not None:
                if life.is_over:
                    continue
                if life.is_paused:
                    life.waiting.append(handle)
                    continue
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.on_exception(f"callback {handle._callback}", error)

    def _advance(self, when: float) -> None:
        if when > self._now:
            self._now, self._rounds = when, 0
            return
        self._now += self.round_s
        self._rounds += 1
        if self._rounds > _ROUNDS_MAX:
            raise Stuck(f"no time passes any more; the next callbacks are {list(self._ready)[:3]}")

    def _process_events(self, event_list: list[Any]) -> None:
        raise AssertionError("a simulation has no selector")

    def _write_to_self(self) -> None:
        raise AssertionError("a thread called the event loop, but a simulation has no threads")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the handle is dropped when its time comes

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = _Timer(self._now, callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        self._timer_number += 1
        handle = _Timer(when, callback, args, self, context, self._timer_number)
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

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
        """Run nothing any more that the code of this life has scheduled."""
        life.is_over = True
        life.waiting.clear()

    def pause_life(self, life: Life) -> None:
        """Run no callback of this life until ``resume_life``."""
        life.is_paused = True
        life.timers_before_pause = self._timer_number

    def resume_life(self, life: Life, *, late_s: float = 0.0) -> None:
        """Run the callbacks of this life again; ``late_s`` is the time in which its timers stood still."""
        life.is_paused = False
        if late_s:
            self._delay_timers(life, late_s)
        # First, because callbacks that are due in the current round became due later than these.
        self._ready.extendleft(reversed(life.waiting))
        life.waiting.clear()

    def _delay_timers(self, life: Life, seconds: float) -> None:
        """Delay the timers that were made before the pause and had not become due then."""
        last = life.timers_before_pause
        late = [each for each in life.waiting if isinstance(each, _Timer) and 0 < each.number <= last]
        life.waiting = [each for each in life.waiting if not (isinstance(each, _Timer) and 0 < each.number <= last)]
        timers = [(handle._when + seconds, handle.number, handle) for handle in late]
        for when, number, handle in self._timers:
            is_late = number <= last and handle._context.get(LIFE) is life
            timers.append((when + seconds if is_late else when, number, handle))
        heapq.heapify(timers)
        self._timers[:] = timers

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
        # Futures of killed processes are garbage-collected later, some with an exception that no code has seen.
        self.on_exception = lambda text, error: None
        with warnings.catch_warnings():
            # A killed process may have created coroutines that it did not start.
            warnings.simplefilter("ignore", RuntimeWarning)
            for coroutine in self._coroutines:
                with contextlib.suppress(Exception):
                    coroutine.close()
            self._coroutines.clear()
        self._tasks.clear()
        super().close()


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
