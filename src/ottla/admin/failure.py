"""Failures of a request to a cluster: one line that says what to do next, and the exit code of a command.

0 ok   1 failed   2 wrong usage   3 not found   4 not reachable or not healthy in time   130 interrupted
"""

from __future__ import annotations

from ottla.model.errors import OttlaError

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_HEALTHY = 4
INTERRUPTED = 130


class Failure(OttlaError):
    """The request could not be done. The message is one line and says what to do next."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(Failure):
    """A topic, partition, broker or file that was named does not exist."""

    exit_code = NOT_FOUND


class NotHealthy(Failure):
    """The cluster did not answer, or not in time."""

    exit_code = NOT_HEALTHY
