"""Work that would block the event loop if it all ran in one iteration.

The loop serves every socket that is readable before it looks at the clock again, so a hundred clients that each send
work of 10 ms make everybody wait for a second. Small work runs at once and is not counted. Larger work asks ``may_run``
first: a bounded amount runs in each iteration, and the rest is added here and runs in order of arrival, some
milliseconds in each of the iterations that follow. Between two iterations the loop serves its sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: units of work per iteration that run at once; the callers count partitions, or bytes of a request divided by 32
UNITS_MAX = 2_000
#: deferred work starts within this time in one iteration; the last job may end later
SLICE_S = 0.01
#: rows of a large request that are handled in one iteration
SLICE_ROWS = 500


async def between_slices(row: int) -> None:
    """Let the event loop serve others if a slice ends before the row with this number."""
    if row and row % SLICE_ROWS == 0:
        await asyncio.sleep(0)


class Deferred:
    """A queue of jobs on the event loop, a slice of them per iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._units_left = UNITS_MAX
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_armed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def may_run(self, units: int) -> bool:
        """Return whether work of this size may run in this iteration; otherwise ``add`` it."""
        if units > self._units_left:
            return False
        self._units_left -= units
        self._arm()
        return True

    def add(self, job: Callable[[], None]) -> None:
        """Run the job in one of the next iterations, after those that were added before."""
        self._jobs.append(job)
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_soon(self._yield)

    def _yield(self) -> None:
        # Replies to what was just read leave by a callback behind this one. They must not wait for a job.
        self._loop.call_soon(self._iterate)

    def _iterate(self) -> None:
        self._is_armed = False
        self._units_left = UNITS_MAX
        jobs = self._jobs
        deadline = self._monotonic() + SLICE_S
        try:
            # Jobs that are added meanwhile belong to the next iteration.
            for _ in range(len(jobs)):
                jobs.popleft()()
                if self._monotonic() >= deadline:
                    break
        finally:
            # Whatever one job did wrong, the others still run.
            if jobs:
                self._arm()
