"""Durations and sizes in a declaration: `10s`, `1h30m`, or in words as Spark writes them, `10 minutes`."""

from __future__ import annotations

import re

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_WORDS = {
    "d": "d", "day": "d", "days": "d",
    "h": "h", "hour": "h", "hours": "h",
    "m": "m", "min": "m", "minute": "m", "minutes": "m",
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "ms": "ms", "millisecond": "ms", "milliseconds": "ms",
}  # fmt: skip
_PART = re.compile(r"(\d{1,9})\s*([a-z]+)\s*", re.ASCII)
_MS_MAX = 366 * 86_400_000


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration. Raise ValueError if the text is not one.

    >>> [parse_duration_ms(text) for text in ("10s", "1h30m", "10 minutes", "500ms")]
    [10000, 5400000, 600000, 500]
    """
    total = position = 0
    smaller_than: int | None = None
    folded = text.strip().lower()
    while position < len(folded):
        part = _PART.match(folded, position)
        unit = _WORDS.get(part[2]) if part is not None else None
        if part is None or unit is None:
            raise ValueError(f"{text!r} is not a duration")
        unit_ms = _UNITS_MS[unit]
        if smaller_than is not None and unit_ms >= smaller_than:
            raise ValueError(f"{text!r} is not a duration: units go from large to small")
        smaller_than = unit_ms
        total += int(part[1]) * unit_ms
        position = part.end()
    if smaller_than is None:
        raise ValueError("an empty text is not a duration")
    if total > _MS_MAX:
        raise ValueError(f"{text!r} is longer than a year")
    return total


def format_duration(span_ms: int) -> str:
    """Return the duration as a declaration writes it.

    >>> [format_duration(span) for span in (600_000, 5_400_000, 1500)]
    ['10m', '1h30m', '1s500ms']
    """
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        count, span_ms = divmod(span_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


_SIZE = re.compile(r"(\d{1,12})\s*(b|kb|kib|mb|mib|gb|gib)", re.ASCII)
_SIZES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size_bytes(text: str) -> int:
    """Return the bytes of a size; a kilobyte has 1024, as in Spark and Delta. Raise ValueError if it is not a size.

    >>> [parse_size_bytes(text) for text in ("128MB", "1 GiB", "512b")]
    [134217728, 1073741824, 512]
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write 64MB or 1GB")
    return int(match[1]) * _SIZES[match[2][0]]
