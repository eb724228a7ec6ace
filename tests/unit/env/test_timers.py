"""The timer wheel, on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from ottla.env.timers import TICK_S, Expiring, TimerWheel


class Handle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """The part of an event loop that the wheel uses. Like asyncio's, it calls back at the earliest on time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.handles: list[Handle] = []
        self.wake_ups = 0
        self.failures: list[Exception] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.handles.append(Handle(when, callback))
        return self.handles[-1]

    def run_until(self, end: float) -> None:
        while due := [handle for handle in self.handles if not handle.cancelled and handle.when <= end]:
            handle = min(due, key=lambda each: each.when)
            self.handles.remove(handle)
            self.now = max(self.now, handle.when)
            self.wake_ups += 1
            try:
                handle.callback()
            except RuntimeError as error:
                self.failures.append(error)
        self.now = end


class Timer:
    def __init__(self, loop: FakeLoop, name: str = "", *, fails: bool = False) -> None:
        self.timer_bucket: dict[Expiring, None] | None = None
        self.fired_at: list[float] = []
        self.name = name
        self._loop, self._fails = loop, fails

    def expire(self) -> None:
        self.fired_at.append(self._loop.now)
        if self._fails:
            raise RuntimeError(self.name)


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def wheel(loop: FakeLoop) -> TimerWheel:
    any_loop: Any = loop
    return TimerWheel(any_loop)


@pytest.mark.parametrize("seed", range(3))
def test_timers_fire_once_within_two_ticks_and_never_early(loop: FakeLoop, wheel: TimerWheel, seed: int) -> None:
    random = Random(seed)
    wanted: list[tuple[float, Timer]] = []
    removed: list[Timer] = []
    for _ in range(500):
        timer, delay = Timer(loop), random.choice((0.0, random.random() * 0.01, random.random() * 3))
        wheel.add(timer, delay)
        if random.random() < 0.3:
            wheel.remove(timer)
            removed.append(timer)
        else:
            wanted.append((loop.now + delay, timer))
        loop.run_until(loop.now + random.random() * 0.01)
    loop.run_until(loop.now + 4)
    for deadline, timer in wanted:
        (at,) = timer.fired_at
        assert deadline <= at <= deadline + 2 * TICK_S
    assert not any(timer.fired_at for timer in removed)


def test_timer_added_later_but_due_earlier_fires_first(loop: FakeLoop, wheel: TimerWheel) -> None:
    later, earlier = Timer(loop), Timer(loop)
    wheel.add(later, 0.1)
    wheel.add(earlier, 0.01)
    loop.run_until(loop.now + 0.05)
    assert (len(earlier.fired_at), len(later.fired_at)) == (1, 0)
    loop.run_until(loop.now + 1)
    assert (len(earlier.fired_at), len(later.fired_at)) == (1, 1)


def test_timer_that_raises_does_not_hold_back_the_others(loop: FakeLoop, wheel: TimerWheel) -> None:
    timers = [Timer(loop, "same bucket"), Timer(loop, "bad", fails=True), Timer(loop, "same bucket")]
    for timer in timers:
        wheel.add(timer, 0.01)
    later = Timer(loop)
    wheel.add(later, 0.06)
    loop.run_until(loop.now + 1)
    assert [len(timer.fired_at) for timer in (*timers, later)] == [1, 1, 1, 1]
    assert [str(error) for error in loop.failures] == ["bad"]


def test_timer_may_add_itself_again_when_it_fires(loop: FakeLoop, wheel: TimerWheel) -> None:
    class Again(Timer):
        def expire(self) -> None:
            super().expire()
            if len(self.fired_at) < 5:
                wheel.add(self, 0.0)

    timer = Again(loop)
    wheel.add(timer, 0.0)
    loop.run_until(loop.now + 1)
    assert len(timer.fired_at) == 5
    assert loop.wake_ups <= 6


def test_long_polls_that_leave_early_cost_few_wake_ups(loop: FakeLoop, wheel: TimerWheel) -> None:
    """A thousand a second, each in a bucket of its own: empty buckets are dropped together."""
    for _ in range(5000):
        timer = Timer(loop)
        wheel.add(timer, 0.5)
        loop.run_until(loop.now + 0.001)
        wheel.remove(timer)
    assert loop.wake_ups <= 5 / 0.5 + 1
    loop.run_until(loop.now + 1)
    assert not wheel._buckets and not wheel._ticks
    assert not [handle for handle in loop.handles if not handle.cancelled], "nothing waits, but a timer is set"


def test_timers_fire_on_a_real_loop() -> None:
    async def scenario() -> None:
        running: Any = asyncio.get_running_loop()
        fired = running.create_future()

        class Last(Timer):
            def expire(self) -> None:
                fired.set_result(running.time())

        started = running.time()
        TimerWheel(running).add(Last(running), 0.01)
        assert await fired >= started + 0.01

    asyncio.run(scenario())


def test_timer_that_is_set_again_for_this_moment_fires_in_a_later_call() -> None:
    """The loop calls back a little before the tick. A timer set again then must not fire again in the same call."""
    loop = FakeLoop()
    wheel = TimerWheel(cast("asyncio.AbstractEventLoop", loop))

    class Repeating(Timer):
        def expire(self) -> None:
            super().expire()
            assert len(self.fired_at) < 10, "the call does not end"
            wheel.add(self, 0.0)

    timer = Repeating(loop)
    wheel.add(timer, 0.0)
    (handle,) = loop.handles
    loop.now = handle.when - TICK_S / 10_000
    handle.callback()
    assert len(timer.fired_at) == 1
