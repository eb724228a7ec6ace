"""Whether a failed attempt is repeated, and after which pause. The caller has the clock and waits."""

from __future__ import annotations

from typing import Final

from ottla.client.errors import UNKNOWN_TOPIC_CODES, BrokerError, ClientError, TimedOut, Unreachable

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
#: limit for one attempt, whatever the timeout: a paused leader has a successor by then
ATTEMPT_S_MAX: Final = 15.0
#: a topic that the broker does not know may be new; a misspelled name should not cost the whole timeout
_UNKNOWN_TOPIC_S_MAX: Final = 5.0


class RetrySchedule:
    """The attempts at one task: each has a deadline, and the pauses between them double from 20 ms to 1 s."""

    def __init__(self, task: str, timeout_s: float, *, attempt_s_max: float = ATTEMPT_S_MAX, now: float) -> None:
        self._task = task
        self._timeout_s = timeout_s
        self._attempt_s = max(min(timeout_s / 2, attempt_s_max), 1.0)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Begin the timeout again, because the task made progress."""
        self._started = now
        self._pause_s = _PAUSE_S_MIN
        self._unknown_since: float | None = None

    @property
    def deadline(self) -> float:
        return self._started + self._timeout_s

    def attempt_until(self, now: float) -> float:
        """Return when an attempt must end, so that a broker that does not answer leaves time for another one."""
        return min(self.deadline, now + self._attempt_s)

    def pause_s(self, error: ClientError, now: float, jitter: float) -> float:
        """Return the pause before the next attempt, times `jitter`. Raise if there is none: the error, or TimedOut."""
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
        # The last attempt needs some time of its own.
        pause_s = min(self._pause_s * jitter, left_s / 2)
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return pause_s
