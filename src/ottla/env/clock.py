"""Time, passed in so that a test can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that people read and that may jump, one that only runs forward."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; goes into records, never into timers."""

    def monotonic(self) -> float:
        """Seconds that never go back; all timers and timeouts use it."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
