"""The events of a demonstration, with the time since its start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Entry(NamedTuple):
    """One event, `elapsed_s` after the start."""

    elapsed_s: float
    text: str
    style: str = ""

    @property
    def time(self) -> str:
        """
        >>> Entry(83.9, "").time
        '01:23'
        """
        return format_elapsed(self.elapsed_s)


class Journal:
    """Events in the order of time. A demonstration has a few dozen."""

    def __init__(self, now: Callable[[], float] = time.monotonic, echo: Callable[[Entry], None] | None = None) -> None:
        self._now = now
        self._started = now()
        #: receives each entry at once
        self._echo = echo
        self.entries: list[Entry] = []

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._started

    def add(self, text: str, style: str = "") -> None:
        entry = Entry(self.elapsed_s, text, style)
        self.entries.append(entry)
        if self._echo is not None:
            self._echo(entry)


def format_elapsed(elapsed_s: float) -> str:
    """
    >>> format_elapsed(3_725)
    '62:05'
    """
    return f"{int(elapsed_s) // 60:02d}:{int(elapsed_s) % 60:02d}"
