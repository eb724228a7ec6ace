"""Numbers, lists and spans of time as people read them in one line of a report."""

from __future__ import annotations

from collections.abc import Iterable


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> [format_count(number, "record") for number in (0, 1, 2)]
    ['0 records', '1 record', '2 records']
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_first(items: Iterable[object], count_max: int = 3) -> str:
    """Return the first items with commas, and the number of the others.

    >>> format_first("abcde")
    'a, b, c and 2 more'
    """
    texts = list(map(str, items))
    more = f" and {len(texts) - count_max} more" if len(texts) > count_max else ""
    return f"{', '.join(texts[:count_max])}{more}"


def format_duration_ms(span_ms: int) -> str:
    """Return a duration in its two largest units.

    >>> [format_duration_ms(span) for span in (0, 450, 12_340, 192_000, 7_500_000, 273_600_000)]
    ['0', '450ms', '12.3s', '3m12s', '2h05m', '3d04h']
    """
    if span_ms < 1000:
        return f"{span_ms}ms" if span_ms else "0"
    if span_ms < 60_000:
        return f"{span_ms // 100 / 10:.1f}s"
    if span_ms < 3_600_000:
        return f"{span_ms // 60_000}m{span_ms // 1000 % 60:02d}s"
    if span_ms < 86_400_000:
        return f"{span_ms // 3_600_000}h{span_ms // 60_000 % 60:02d}m"
    return f"{span_ms // 86_400_000}d{span_ms // 3_600_000 % 24:02d}h"


def format_bytes(size: float) -> str:
    """Return a size with a unit of 1024.

    >>> [format_bytes(size) for size in (512, 1536, 3 << 30, 5 << 50)]
    ['512 B', '1.5 KiB', '3.0 GiB', '5120.0 TiB']
    """
    if size < 1024:
        return f"{size:g} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
