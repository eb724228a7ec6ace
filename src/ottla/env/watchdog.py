"""Reports an event loop that does not turn, for example because a disk hangs.

The event loop writes to files itself. A disk that hangs instead of failing therefore stops it, and a loop that stands
still cannot report that. So a thread looks whether the loop has set a timestamp lately. If it has not, the thread finds
the file of the disk call in the stack of the loop's thread, which costs nothing while the loop turns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import ottla.env.disk
from ottla.env.tasks import keep_thread

log = logging.getLogger(__name__)

#: how long the loop may stand still before it is reported
STALL_S = 5.0
_INTERVAL_S = 0.5


class LoopWatchdog:
    """Watches the event loop of the thread that calls ``start``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        stall_s: float = STALL_S,
        interval_s: float = _INTERVAL_S,
        monotonic: Callable[[], float] = time.monotonic,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        """``report`` is called in a thread with the length of a stall so far and the place where the loop is."""
        self._loop = loop
        self._stall_s = stall_s
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._report = report or _report
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        #: when the loop set the timestamp, and when the thread looked at it
        self._turned_at = self._checked_at = monotonic()
        #: the timestamp of the stall that was reported
        self._reported: float | None = None
        #: the longest time that the loop did not turn, also because the process was paused
        self.longest_s = 0.0

    def start(self) -> None:
        """Begin to watch the loop, which is the one of this thread."""
        self._thread_id = threading.get_ident()
        self._turned_at = self._checked_at = self._monotonic()
        self._timer = self._loop.call_later(self._interval_s, self.turn)
        keep_thread(self._watch, "watchdog").start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def turn(self) -> None:
        """Set the timestamp. Runs on the loop."""
        now = self._monotonic()
        self.longest_s = max(self.longest_s, now - self._turned_at - self._interval_s)
        if self._reported == self._turned_at:
            log.warning("the event loop turns again after seconds=%.1f", now - self._turned_at)
        self._turned_at = now
        self._timer = self._loop.call_later(self._interval_s, self.turn)

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.check()

    def check(self) -> None:
        """Report a stall, once. Runs in the thread."""
        now, turned_at = self._monotonic(), self._turned_at
        # After a pause of the process the loop has had no time to turn.
        was_paused = now - self._checked_at > 4 * self._interval_s
        self._checked_at = now
        if was_paused or now - turned_at < self._stall_s or self._reported == turned_at:
            return
        self._reported = turned_at
        self._report(now - turned_at, _place_of(sys._current_frames().get(self._thread_id)))


def _report(seconds: float, place: str) -> None:
    log.error(
        "the event loop stands still, no partition of this broker is served seconds=%.0f in=%s; if that is a file, "
        "check its disk (dmesg, iostat). If the disk hangs for good, end the broker with kill -9, remove the directory "
        "from log.dirs, or replace the disk, and start the broker again", seconds, place,
    )  # fmt: skip


def _place_of(frame: FrameType | None) -> str:
    """Return the file that a thread reads or writes; the line of its code if it does not use the disk."""
    line = "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    while frame is not None:
        if frame.f_code.co_filename == ottla.env.disk.__file__:
            values = frame.f_locals
            used = next((values[name] for name in ("fd", "path") if name in values), None)
            if used is None and values.get("args"):
                used = values["args"][0]
            if used is not None:
                return _name_of(used)
        frame = frame.f_back
    return line


def _name_of(used: object) -> str:
    if not isinstance(used, int):
        return str(used)
    try:
        return os.readlink(f"/proc/self/fd/{used}")
    except OSError:
        return f"file descriptor {used}"
