"""The timer wheel."""

from __future__ import annotations

import asyncio

from ottla.env.timers import Expiring, TimerWheel


class Timer:
    def __init__(self, fired: list[str], name: str, *, fails: bool = False) -> None:
        self.timer_bucket: dict[Expiring, None] | None = None
        self.fired, self.name, self.fails = fired, name, fails

    def expire(self) -> None:
        self.fired.append(self.name)
        if self.fails:
            raise RuntimeError(self.name)


def test_timers_fire_in_order_and_never_early() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wheel, fired = TimerWheel(loop), list[str]()
        started = loop.time()
        for name, delay in (("late", 0.08), ("soon", 0.02)):
            wheel.add(Timer(fired, name), delay)
        while len(fired) < 2:
            await asyncio.sleep(0.005)
        assert fired == ["soon", "late"]
        assert loop.time() - started >= 0.08

    asyncio.run(scenario())


def test_removed_timer_does_not_fire() -> None:
    async def scenario() -> None:
        wheel, fired = TimerWheel(asyncio.get_running_loop()), list[str]()
        gone, kept = Timer(fired, "gone"), Timer(fired, "kept")
        wheel.add(gone, 0.01)
        wheel.add(kept, 0.01)
        wheel.remove(gone)
        while not fired:
            await asyncio.sleep(0.005)
        assert fired == ["kept"]

    asyncio.run(scenario())


def test_one_timer_that_fails_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[object] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        wheel, fired = TimerWheel(loop), list[str]()
        wheel.add(Timer(fired, "bad", fails=True), 0.01)
        wheel.add(Timer(fired, "good"), 0.06)
        while "good" not in fired:
            await asyncio.sleep(0.005)
        assert len(failures) == 1

    asyncio.run(scenario())


def test_a_timer_added_later_but_due_earlier_fires_first() -> None:
    async def scenario() -> None:
        wheel, fired = TimerWheel(asyncio.get_running_loop()), list[str]()
        wheel.add(Timer(fired, "later"), 0.1)
        wheel.add(Timer(fired, "earlier"), 0.01)
        while len(fired) < 2:
            await asyncio.sleep(0.005)
        assert fired == ["earlier", "later"]

    asyncio.run(scenario())
