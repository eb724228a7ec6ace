"""Patience: how long to wait before the next attempt, and when to give up."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from ottla.client.errors import UNKNOWN_TOPIC_CODES, BrokerError, ClientError, TimedOut, Unreachable

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
#: one attempt may take this long, whatever the timeout: a paused leader has a successor by then
ATTEMPT_S_MAX: Final = 15.0
#: an unknown topic may have been made a moment ago; a name that is wrong should not cost the whole timeout
_UNKNOWN_TOPIC_S_MAX: Final = 5.0


class Retry:
    """The attempts at one undertaking.

    while True:
        try:
            return attempt()
        except ClientError as error:
            retry.pause_or_raise(error)
    """

    def __init__(
        self,
        undertaking: str,
        timeout_s: float,
        attempt_s_max: float = ATTEMPT_S_MAX,
        ended: threading.Event | None = None,
    ) -> None:
        """There are no further attempts when `ended` is set, by any thread."""
        self._ended = ended
        self._undertaking = undertaking
        self._timeout_s = timeout_s
        self._attempt_s = max(min(timeout_s / 2, attempt_s_max), 1.0)
        self.progress()

    def progress(self) -> None:
        """Something was achieved: the time starts anew."""
        self._started = time.monotonic()
        self._pause_s = _PAUSE_S_MIN
        self._unknown_since: float | None = None

    @property
    def deadline(self) -> float:
        return self._started + self._timeout_s

    def attempt_deadline(self) -> float:
        """Return when one attempt must end, so that a broker that does not answer leaves time for another one."""
        return min(self.deadline, time.monotonic() + self._attempt_s)

    def pause_or_raise(self, error: ClientError) -> None:
        """Wait before the next attempt, or raise what the last one ended in."""
        if not error.retriable:
            raise error
        now = time.monotonic()
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
            raise TimedOut(f"{self._undertaking}: no success within {self._timeout_s:g} s; last: {error}") from error
        # Clients that failed together do not come back together; the last attempt needs some time of its own.
        pause_s = min(self._pause_s * random.uniform(0.8, 1.2), left_s / 2)
        if self._ended is None:
            time.sleep(pause_s)
        elif self._ended.wait(pause_s):
            raise error
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
