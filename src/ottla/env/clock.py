"""Clocks, passed in as an argument so that a test can control the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The wall clock, which may be set forward or back, and the monotonic clock."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970. For record timestamps; never for timers."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. All timers and timeouts use them. They may stop during a suspend."""

    def since_boot(self) -> float:
        """Return seconds that never decrease and go on during a suspend, if the system has such a clock.

        For leases: other machines go on while this one is suspended. Never compare them with those of ``monotonic``.
        """


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.since_boot = boot_clock()


def boot_clock() -> Callable[[], float]:
    """Return the clock that goes on during a suspend, or ``time.monotonic`` if the system has none."""
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None:
        return time.monotonic
    try:
        time.clock_gettime(number)
    except OSError:
        return time.monotonic
    return partial(time.clock_gettime, number)
