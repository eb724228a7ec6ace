"""How a command ends: the exit codes, and the one line a person gets when it fails.

0 ok   1 failed   2 wrong usage   3 not found   4 not reachable or not healthy in time   130 interrupted
"""

from __future__ import annotations

from typing import IO, Any

import click

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_HEALTHY = 4
INTERRUPTED = 130


class Failure(click.ClickException):
    """The command could not do what was asked. The message is one line and says what to do next."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=file is None)


class NotFound(Failure):
    """A topic, partition, broker or file that was named does not exist."""

    exit_code = NOT_FOUND


class NotHealthy(Failure):
    """The cluster did not answer, or not in time."""

    exit_code = NOT_HEALTHY
