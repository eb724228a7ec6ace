"""Thousands of timeouts for the price of one timer.

A long poll parks with a deadline and nearly always leaves before it. Buckets of 20 ms make both cheap: adding and
removing touch one dict, and the loop holds a single timer, none when nothing waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK_S = 0.02


class Expiring(Protocol):
    """Something with a deadline. It keeps its bucket so that it can be taken out."""

    timer_bucket: dict[Expiring, None] | None

    def expire(self) -> None: ...


class TimerWheel:
    """Deadlines on the loop's own clock, each kept to within a tick, never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Expiring, None]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed_tick = 0

    def add(self, timer: Expiring, delay_s: float) -> None:
        tick = int((self._loop.time() + delay_s) / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
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
        now = int(self._loop.time() / TICK_S)
        try:
            for tick in sorted(tick for tick in self._buckets if tick <= now):
                bucket = self._buckets.pop(tick)
                while bucket:
                    timer, _ = bucket.popitem()
                    timer.timer_bucket = None
                    timer.expire()
        finally:
            # Whatever one timer did wrong, the others still expire.
            if self._buckets:
                self._arm(min(self._buckets))
