"""Positions in a partition on the command line, in the syntax of kcat and rpk.

    beginning start    the first record              end          the end of the log
    N                  that offset                   -N           N records before the end
    @TIME s@TIME       first record at or after      e@TIME       stop before the first record at or after
    FROM:TO            from one position to another; either may be omitted

TIME is milliseconds since 1970, ISO 8601 (UTC if it has no time zone), or a duration before now such as -90m.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from ottla.model.times import parse_time_ms as parse_time_ms

#: the key of a partition
Name = TypeVar("Name")
Kind = Literal["beginning", "end", "offset", "before-end", "time"]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition; `value` is an offset, a count of records or a time in ms."""

    kind: Kind
    value: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """What to read: from `start` up to, not including, `end`; without an end, for ever."""

    start: Position
    end: Position | None = None


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """What to read of one partition, in offsets."""

    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset of a partition, and the offset after its last record."""

    start: int
    end: int


def parse_span(texts: tuple[str, ...], now_ms: int) -> Span:
    """Return the span of one or more positions; kcat writes start and end as two. Raise ValueError for other texts."""
    start: Position | None = None
    end: Position | None = None
    for text in texts:
        one_start, one_end = _parse_one(text.strip(), now_ms)
        if (one_start and start) or (one_end and end):
            raise ValueError(f"{text!r} is a second {'start' if one_start and start else 'stop'}; give one of each")
        start, end = start or one_start, end or one_end
    return Span(start or Position("beginning"), end)


def resolve_span(
    span: Span,
    bounds: Mapping[Name, LogBounds],
    offsets_at: Callable[[int], Mapping[Name, int | None]],
) -> dict[Name, PartitionSpan]:
    """Return the offsets of a span. `offsets_at` returns the first offset at or after a time, or None."""
    starts = _resolve(span.start, bounds, offsets_at)
    ends = _resolve(span.end, bounds, offsets_at) if span.end is not None else dict.fromkeys(bounds)
    return {name: PartitionSpan(starts[name], ends[name]) for name in bounds}


def _resolve(
    position: Position,
    bounds: Mapping[Name, LogBounds],
    offsets_at: Callable[[int], Mapping[Name, int | None]],
) -> dict[Name, int]:
    match position.kind:
        case "beginning":
            return {name: log.start for name, log in bounds.items()}
        case "end":
            return {name: log.end for name, log in bounds.items()}
        case "offset":
            return {name: max(position.value, log.start) for name, log in bounds.items()}
        case "before-end":
            return {name: max(log.end - position.value, log.start) for name, log in bounds.items()}
        case "time":
            found = offsets_at(position.value)
            # No record is at or after this time: the next record will be at the end.
            return {name: log.end if (at := found[name]) is None else at for name, log in bounds.items()}


def _parse_one(text: str, now_ms: int) -> tuple[Position | None, Position | None]:
    if text.startswith("s@"):
        return _time(text[2:], now_ms), None
    if text.startswith("e@"):
        return None, _time(text[2:], now_ms)
    if text.startswith("@"):
        return _parse_times(text[1:], now_ms)
    first, colon, second = text.partition(":")
    if not colon:
        return _parse_place(first), None
    if second.startswith("@"):
        return _parse_place(first) if first else None, _time(second[1:], now_ms)
    return _parse_place(first) if first else None, _parse_place(second) if second else None


def _parse_times(text: str, now_ms: int) -> tuple[Position | None, Position | None]:
    # An ISO time has colons of its own, so every colon is tried as the one between start and end.
    cuts = [match.start() for match in re.finditer(":", text)]
    for cut in (len(text), *cuts):
        first, second = text[:cut], text[cut + 1 :]
        try:
            start = _time(first, now_ms) if first else None
            if second in ("end", "start", "beginning"):
                end: Position | None = _parse_place(second)
            else:
                end = _time(second.removeprefix("@"), now_ms) if second else None
        except ValueError:
            continue
        if start or end:
            return start, end
    return _time(text, now_ms), None


def _time(text: str, now_ms: int) -> Position:
    return Position("time", parse_time_ms(text, now_ms))


def _parse_place(text: str) -> Position:
    if text in ("beginning", "start"):
        return Position("beginning")
    if text == "end":
        return Position("end")
    if re.fullmatch(r"\d{1,19}", text):
        return Position("offset", int(text))
    if re.fullmatch(r"-\d{1,19}", text):
        return Position("before-end", -int(text))
    raise ValueError(f"{text!r} is not a position: write beginning, end, N, -N, @TIME, s@TIME, e@TIME or FROM:TO")
