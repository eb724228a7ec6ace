"""A timer wheel: thousands of timeouts with a single timer of the event loop.

A parked request has a deadline and nearly always completes before it. Deadlines are therefore kept in buckets of one
millisecond: adding and removing a timeout changes one dict, and the event loop has one timer, or none if no timeout is
set. A bucket that became empty causes no wake-up unless it is the earliest one; it is deleted when the loop's timer is
set again.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Protocol

TICK_S = 0.001
#: a time that is this fraction of a tick below a whole tick counts as that tick: division rounds
_ROUNDING = 1e-3


class Expiring(Protocol):
    """An object with a deadline. It keeps its bucket so that it can be removed."""

    timer_bucket: dict[Expiring, None] | None

    def expire(self) -> None: ...


class TimerWheel:
    """Timeouts on the clock of the event loop. Each expires at most two ticks late and never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Expiring, None]] = {}
        #: a heap of the keys of ``_buckets``
        self._ticks: list[int] = []
        self._handle: asyncio.TimerHandle | None = None
        self._armed_tick = 0

    def add(self, timer: Expiring, delay_s: float) -> None:
        # Rounded as in ``_fire``: a timer that is added there is never due in the same call.
        tick = int((self._loop.time() + delay_s) / TICK_S + _ROUNDING) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
            if self._handle is None or tick < self._armed_tick:
                self._arm(tick)
        bucket[timer] = None
        timer.timer_bucket = bucket

    @staticmethod
    def remove(timer: Expiring) -> None:
        bucket = timer.timer_bucket
        if bucket is not None:
            bucket.pop(timer, None)
            timer.timer_bucket = None

    def _arm(self, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_tick = tick
        self._handle = self._loop.call_at(tick * TICK_S, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = int(self._loop.time() / TICK_S + _ROUNDING)
        ticks, buckets = self._ticks, self._buckets
        try:
            while ticks and ticks[0] <= now:
                bucket = buckets[ticks[0]]
                if not bucket:
                    del buckets[heappop(ticks)]
                    continue
                timer, _ = bucket.popitem()
                timer.timer_bucket = None
                timer.expire()
        finally:
            # If ``expire`` raised, the other timers that are due expire in the next iteration of the loop.
            self._arm_earliest()

    def _arm_earliest(self) -> None:
        ticks, buckets = self._ticks, self._buckets
        while ticks and not buckets[ticks[0]]:
            del buckets[heappop(ticks)]
        if ticks and (self._handle is None or ticks[0] < self._armed_tick):
            self._arm(ticks[0])
