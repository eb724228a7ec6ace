"""What a campaign prints: lines that stay, a line of progress, and one line of verdict.

report = Report("cluster-kills")
report.progress(3, 20, "kills")           # redrawn on a terminal, elsewhere a line every ten seconds
report.say("broker 2 was killed")
report.figure("54,321 records acknowledged")
report.problem("an acknowledged record is lost")
report.verdict()                          # FAIL cluster-kills in 143 s: 1 problem, ...
report.exit_code
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

PASS, FAIL, CANNOT_RUN = 0, 1, 2
_BAR_CHARACTERS = 24
_PROGRESS_S = 10.0
_SHOWN_MAX = 5
_ERASE_LINE = "\r\x1b[K"


class CannotRun(Exception):
    """Something that a campaign needs is missing. The text says what, and how to get it."""


class Report:
    """Collects the figures and the problems of one campaign, and prints as it goes."""

    def __init__(self, name: str = "campaign", out: IO[str] | None = None) -> None:
        self.name = name
        #: what was measured and counted, for the verdict
        self.figures: list[str] = []
        #: what must not have happened; empty if the campaign has passed
        self.problems: list[str] = []
        self.missing = ""
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty()
        self._started = time.monotonic()
        self._bar = ""
        self._printed_s = self._started

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, line: str) -> None:
        """Print a line above the progress."""
        erase = _ERASE_LINE if self._bar else ""
        self._out.write(f"{erase}{line}\n{self._bar}")
        self._out.flush()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Show how much of the campaign is over."""
        part = min(done / total, 1.0) if total else 1.0
        left_s = self.seconds / part - self.seconds if part else 0.0
        text = f"{done}/{total} {unit}, {self.seconds:.0f} s" + (f", about {left_s:.0f} s left" if left_s >= 1 else "")
        if self._is_terminal:
            filled = round(part * _BAR_CHARACTERS)
            self._bar = f"[{'#' * filled}{'.' * (_BAR_CHARACTERS - filled)}] {text}"
            self._out.write(_ERASE_LINE + self._bar)
            self._out.flush()
        elif time.monotonic() - self._printed_s >= _PROGRESS_S:
            self._printed_s = time.monotonic()
            self.say(text)

    def figure(self, text: str) -> None:
        """Add a count or a measurement to the verdict."""
        self.figures.append(text)

    def problem(self, text: str) -> None:
        """Print what must not have happened; the campaign fails."""
        self.problems.append(text)
        self.say(f"FAILED: {text}")

    def problems_found(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.problem(line)

    @property
    def exit_code(self) -> int:
        if self.missing:
            return CANNOT_RUN
        return FAIL if self.problems else PASS

    def verdict(self) -> str:
        """Print the one line that says how the campaign ended, and return it."""
        if self._bar:
            self._out.write(_ERASE_LINE)
            self._bar = ""
        if self.missing:
            line = f"CANNOT RUN {self.name}: {self.missing}"
        else:
            counted = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
            first = [f"{counted}, the first: {self.problems[0].splitlines()[0]}"] if self.problems else []
            found = "; ".join([*first, *self.figures])
            line = f"{'FAIL' if self.problems else 'PASS'} {self.name} in {self.seconds:.0f} s"
            line += f": {found}" if found else ""
        self.say(line)
        return line


def shorten(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and how many there are if some are left out."""
    return [*lines[:_SHOWN_MAX], *([f"... {len(lines)} in all"] if len(lines) > _SHOWN_MAX else [])]


def shorten_each(found: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the first lines of each kind of anomaly, behind their number."""
    return {name: [f"{len(lines)} in all", *lines[:_SHOWN_MAX]] for name, lines in found.items()}


def percentiles(seconds: Iterable[float]) -> str:
    """Return the median, the 99th percentile and the longest of some times, of which there must be one."""
    times = sorted(seconds)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return f"p50 {times[len(times) // 2]:.2f} s, p99 {p99:.2f} s, max {times[-1]:.2f} s"
