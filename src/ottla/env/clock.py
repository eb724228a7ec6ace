"""Clocks, passed in as an argument so that a test can control the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The wall clock, which may be set forward or back, and the monotonic clock."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970. For record timestamps; never for timers."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. All timers and timeouts use them."""


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
