"""Shows on standard error the stages of a start that takes seconds, and how long each has taken.

Starting Spark ... 4 s          on a terminal, renewed in place every second
Starting Spark ...              elsewhere, one line when the stage begins
Starting Spark: 6.2 s           both, when the stage has ended
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ottla.model.printable import escape_controls

_TICK_S = 1.0
_ERASE = "\r\x1b[K"


class Stages:
    """Shows stages, one after another."""

    def __init__(self, stream: TextIO, *, in_place: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._in_place = in_place
        self._now = now

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show a stage until the block ends. After an exception its time is not shown."""
        began = self._now()
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_TICK_S):
                self._write(in_place(f"{text} ... {self._now() - began:.0f} s"))

        ticker = threading.Thread(target=tick, name="stage", daemon=True)
        if self._in_place:
            self._write(in_place(f"{text} ..."))
            ticker.start()
        else:
            self._write(f"{text} ...\n")
        last = "\n" if self._in_place else ""
        try:
            yield
            last = f"{_ERASE if self._in_place else ''}{text}: {self._now() - began:.1f} s\n"
        finally:
            ended.set()
            if self._in_place:
                ticker.join()
            self._write(last)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def stages() -> Iterator[Stages]:
    """Yield stages on standard error. They also reach it while file descriptor 2 is redirected to a file."""
    if not sys.stderr.isatty():
        yield Stages(sys.stderr, in_place=False)
        return
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as stream:
        yield Stages(stream, in_place=True)


def in_place(line: str) -> str:
    """Return what replaces the current line of a terminal. It is cut, because a line that wraps cannot be replaced."""
    return f"{_ERASE}{escape_controls(line, keep='')[: shutil.get_terminal_size().columns - 1]}"
