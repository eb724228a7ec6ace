"""Times and spans of time in the forms in which people write them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

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


def parse_time_ms(text: str, now_ms: int) -> int:
    """Return a point in time in milliseconds. Raise ValueError for other texts."""
    if re.fullmatch(r"\d{1,16}", text):
        return int(text)
    span = re.fullmatch(r"-(\d{1,9})(ms|s|m|h|d)", text)
    if span is not None:
        return now_ms - int(span[1]) * _UNITS_MS[span[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write milliseconds, ISO 8601 such as 2026-01-31T12:00:00Z, or -90m"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
