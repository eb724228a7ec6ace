"""Histograms, and the metrics page in Prometheus' text format.

The broker counts in plain integers on its event loop; nothing is locked or looked up per request. A page is filled on
the same loop when a client asks for ``/metrics`` (`metrics_server.py`), in slices of a few milliseconds, so that other
requests are served in between. A page holds at most ``series_max`` series. The rest is counted, and the page says how
many were left out.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, Literal

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_BOUND_LABELS: Final = (*map(str, LATENCY_BOUNDS_S), "+Inf")

#: how long a page may be filled before other work gets its turn
SLICE_S: Final = 0.002
#: lines that are joined to one piece of a page
_PIECE_LINES: Final = 1000

Kind = Literal["counter", "gauge", "histogram"]


class Histogram:
    """Counts of latencies by bucket. The last bucket counts those above all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class Page:
    """The text of one reply to ``/metrics``. The series of one name follow each other."""

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._series = 0
        #: series that the page has no room for
        self.left_out = 0
        self._families: dict[str, _Family] = {}

    @property
    def is_full(self) -> bool:
        """Whether further series are only counted; a caller that knows their number may add it to ``left_out``."""
        return self._series >= self._series_max

    def counter(self, name: str, text: str, value: float, labels: str = "") -> None:
        self._add("counter", f"{name}_total", text, labels, value)

    def gauge(self, name: str, text: str, value: float, labels: str = "") -> None:
        self._add("gauge", name, text, labels, value)

    def histogram(self, name: str, text: str, value: Histogram, labels: str = "") -> None:
        counts = list(value.counts)
        series = len(counts) + 2
        if self._series + series > self._series_max:
            self.left_out += series
            return
        self._series += series
        family = self._family("histogram", name, text)
        comma = "," if labels else ""
        total = 0
        for bound, count in zip(_BOUND_LABELS, counts, strict=True):
            total += count
            family.add(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}\n')
        braces = f"{{{labels}}}" if labels else ""
        family.add(f"{name}_count{braces} {total}\n")
        family.add(f"{name}_sum{braces} {value.sum_s}\n")

    def pieces(self) -> list[bytes]:
        """Return the text, in pieces of at most a few hundred kilobytes."""
        left_out = _Family("gauge", "ottla_metrics_series_left_out", "Series that this page has no room for.")
        left_out.add(f"ottla_metrics_series_left_out {self.left_out}\n")
        return [piece for family in (*self._families.values(), left_out) for piece in family.pieces()]

    def _add(self, kind: Kind, name: str, text: str, labels: str, value: float) -> None:
        if self._series >= self._series_max:
            self.left_out += 1
            return
        self._series += 1
        number = str(value) if value == value else "NaN"
        self._family(kind, name, text).add(f"{name}{{{labels}}} {number}\n" if labels else f"{name} {number}\n")

    def _family(self, kind: Kind, name: str, text: str) -> _Family:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind, name, text)
        return family


class _Family:
    """All series of one name."""

    __slots__ = ("_joined", "_lines")

    def __init__(self, kind: Kind, name: str, text: str) -> None:
        self._lines = [f"# HELP {name} {text}\n# TYPE {name} {kind}\n"]
        self._joined: list[bytes] = []

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= _PIECE_LINES:
            self._join()

    def pieces(self) -> list[bytes]:
        self._join()
        return self._joined

    def _join(self) -> None:
        if self._lines:
            self._joined.append("".join(self._lines).encode())
            self._lines.clear()


def label_text(**labels: str | int) -> str:
    """Return labels as they stand between the braces of a series."""
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text


async def in_slices(steps: Iterator[None]) -> None:
    """Run an iterator to its end and let the event loop do other work every ``SLICE_S``.

    Each step must be short. State that the steps read may change between two of them.
    """
    until = time.monotonic() + SLICE_S
    for _ in steps:
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + SLICE_S
