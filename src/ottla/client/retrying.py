"""Retries of the blocking client: whether a failed attempt is repeated, and the wait between the attempts at a task."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from ottla.client.errors import UNKNOWN_TOPIC_CODES, BrokerError, ClientError, TimedOut, Unreachable

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
#: limit for one attempt, whatever the timeout: a paused leader has a successor by then
ATTEMPT_S_MAX: Final = 15.0
#: a topic that the broker does not know may be new; a misspelled name should not cost the whole timeout
_UNKNOWN_TOPIC_S_MAX: Final = 5.0


class Retry:
    """The attempts at one task: each has a deadline, and the pauses between them double from 20 ms to 1 s.

    while True:
        try:
            return attempt()
        except ClientError as error:
            retry.pause_or_raise(error)
    """

    def __init__(
        self,
        task: str,
        timeout_s: float,
        *,
        attempt_s_max: float = ATTEMPT_S_MAX,
        ended: threading.Event | None = None,
    ) -> None:
        """There are no further attempts after another thread has set `ended`."""
        self._task = task
        self._timeout_s = timeout_s
        self._attempt_s = max(min(timeout_s / 2, attempt_s_max), 1.0)
        self._ended = ended
        self.progress()

    def progress(self) -> None:
        """Begin the timeout again, because the task made progress."""
        self._started = time.monotonic()
        self._pause_s = _PAUSE_S_MIN
        self._unknown_since: float | None = None

    @property
    def deadline(self) -> float:
        return self._started + self._timeout_s

    def attempt_deadline(self) -> float:
        """Return when an attempt that starts now must end.

        A broker that does not answer leaves time for another one.
        """
        return min(self.deadline, time.monotonic() + self._attempt_s)

    def pause_or_raise(self, error: ClientError) -> None:
        """Wait before the next attempt. Raise if there is none."""
        pause_s = self._next_pause_s(error, time.monotonic())
        if self._ended is None:
            time.sleep(pause_s)
        elif self._ended.wait(pause_s):
            raise error

    def _next_pause_s(self, error: ClientError, now: float) -> float:
        """Return the pause before the next attempt. Raise if there is none: the error, or TimedOut."""
        if not error.retriable:
            raise error
        until = self.deadline
        if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC_CODES:
            self._unknown_since = self._unknown_since or now
            until = min(until, self._unknown_since + _UNKNOWN_TOPIC_S_MAX)
        else:
            self._unknown_since = None
        left_s = until - now
        if left_s < _PAUSE_S_MIN:
            if isinstance(error, Unreachable) or until < self.deadline:
                raise error
            raise TimedOut(f"{self._task}: no success within {self._timeout_s:g} s; last: {error}") from error
        # The jitter keeps clients that failed together from retrying together. Leave time for the last attempt itself.
        pause_s = min(self._pause_s * random.uniform(0.8, 1.2), left_s / 2)
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return pause_s
