"""Times and spans of time, as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import datetime

from ottla.model.figures import format_duration_ms as format_duration_ms

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SHORT = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,3})\d*)?S)?)?", re.ASCII | re.IGNORECASE)
#: ten thousand years: a time that is longer ago is in no calendar
_MS_MAX = 10_000 * 366 * 86_400_000


def parse_duration_ms(text: str) -> int:
    """Return a duration in ISO 8601 such as PT1H30M, or in the short form 1h30m. Raise ValueError for other texts.

    >>> [parse_duration_ms(text) for text in ("PT1H30M", "1h30m", "P7D", "PT0.25S")]
    [5400000, 5400000, 604800000, 250]
    """
    match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    parts = list(match.groups()) if match is not None else []
    if match is not None and match.re is _ISO and match[5]:
        # The digits are a fraction of a second: .5 are 500 ms.
        parts[4] = match[5].ljust(3, "0")
    if not any(parts):
        raise ValueError(f"{text!r} is not a duration: write 1h30m, 7d, 250ms, or ISO 8601 such as PT1H30M")
    total = sum(int(part or 0) * unit for part, unit in zip(parts, _UNITS_MS.values(), strict=True))
    if total > _MS_MAX:
        raise ValueError(f"{text!r} is longer than ten thousand years; write a shorter duration")
    return total


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
