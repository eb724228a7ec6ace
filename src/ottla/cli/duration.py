"""Times and spans of time, as people write and read them."""

from __future__ import annotations

import time
from datetime import datetime

from ottla.model.figures import format_duration_ms as format_duration_ms
from ottla.model.times import parse_duration_ms as parse_duration_ms


def format_local_time(time_ms: int) -> str:
    """Return a time with seconds, in the time zone of this machine.

    Return the number if no calendar has this time: the timestamps of records can be anything.
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def current_time_ms() -> int:
    """Return the time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
