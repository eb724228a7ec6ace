"""Traces: what a span is for the rest of the code, W3C's `traceparent`, and which requests are traced. Pure.

`env/otel.py` exports spans with OpenTelemetry. Without tracing none of the two is imported by a broker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from ottla.model.types import FrameBuffer

#: the name of the record header, and of the HTTP header
TRACEPARENT: Final = b"traceparent"
#: version, trace id, span id, flags; a higher version may have more behind them
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACEPARENT_BYTES: Final = 55
_SAMPLED: Final = 1
#: lengths of the header's name and value in a record: zigzag numbers, so twice the length
_NAME_LENGTH: Final = 2 * len(TRACEPARENT)
_VALUE_LENGTH: Final = 2 * _TRACEPARENT_BYTES

Attributes = Mapping[str, str | int | float | bool]


class Context(NamedTuple):
    """What names a span for other processes."""

    trace_id: int
    span_id: int
    is_sampled: bool = True


class Span(Protocol):
    """A part of a trace that has begun."""

    @property
    def context(self) -> Context: ...

    def end(self, at_ns: int, error: str = "") -> None:
        """End the span. ``error`` says what failed, empty for nothing."""


class Spans(Protocol):
    """Begins spans and exports them after their end. No call waits."""

    def wants(self, parent: Context | None) -> bool:
        """Return whether to trace a request: one with a parent if its sender traces it, others by chance."""

    def begin(self, name: str, at_ns: int, attributes: Attributes, parent: Context | None = None) -> Span: ...

    def close(self) -> None:
        """Export the spans that have ended, for at most some seconds. Called once, when the process ends."""


def parse_traceparent(text: bytes) -> Context | None:
    """Return what a `traceparent` says; None if it is not valid.

    >>> parse_traceparent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is_sampled
    True
    >>> parse_traceparent(b"00-00000000000000000000000000000000-b7ad6b7169203331-01")
    """
    match = _TRACEPARENT.match(text)
    if match is None or match[1] == b"ff" or (len(text) > _TRACEPARENT_BYTES and (match[1] == b"00")):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Context(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def find_traceparent(records: FrameBuffer | bytes, start: int, end: int) -> Context | None:
    """Return the first `traceparent` header in records that are not compressed; None without one.

    The bytes are searched, not parsed: the length of the name stands before it, that of the value behind it. Bytes in
    the value of a record may look the same; then a client has named a trace in another way.
    """
    position = records.find(TRACEPARENT, start + 1, end)
    while position >= 0:
        value = position + len(TRACEPARENT) + 1
        if (
            value + _TRACEPARENT_BYTES <= end
            and records[position - 1] == _NAME_LENGTH
            and records[value - 1] == _VALUE_LENGTH
        ):
            context = parse_traceparent(bytes(records[value : value + _TRACEPARENT_BYTES]))
            if context is not None:
                return context
        position = records.find(TRACEPARENT, position + 1, end)
    return None


class Sampling:
    """Chooses requests: a share of them, all that clients trace, and no more per second than a limit."""

    def __init__(
        self, ratio: float, per_second_max: int, *, random: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._ratio = ratio
        self._per_second_max = per_second_max
        self._random = random
        self._monotonic = monotonic
        self._second = -1
        self._count = 0

    def wants(self, parent: Context | None) -> bool:
        if not parent.is_sampled if parent is not None else self._random() >= self._ratio:
            return False
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._per_second_max
