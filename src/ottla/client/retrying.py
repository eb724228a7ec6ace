"""The blocking face of retries: waits between the attempts at a task."""

from __future__ import annotations

import random
import threading
import time

from ottla.client.errors import ClientError
from ottla.client.protocol.retries import ATTEMPT_S_MAX, RetrySchedule


class Retry:
    """The attempts at one task.

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
        self._ended = ended
        self._schedule = RetrySchedule(task, timeout_s, attempt_s_max=attempt_s_max, now=time.monotonic())

    def progress(self) -> None:
        """Begin the timeout again, because the task made progress."""
        self._schedule.restart(time.monotonic())

    @property
    def deadline(self) -> float:
        return self._schedule.deadline

    def attempt_deadline(self) -> float:
        """Return when an attempt that starts now must end."""
        return self._schedule.attempt_until(time.monotonic())

    def pause_or_raise(self, error: ClientError) -> None:
        """Wait before the next attempt. Raise if there is none."""
        # The jitter keeps clients that failed together from retrying together.
        pause_s = self._schedule.pause_s(error, time.monotonic(), random.uniform(0.8, 1.2))
        if self._ended is None:
            time.sleep(pause_s)
        elif self._ended.wait(pause_s):
            raise error
