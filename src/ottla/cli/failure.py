"""How a command ends: its exit code, and one line on standard error for each failure.

0 ok   1 failed   2 wrong usage   3 not found   4 not reachable or not healthy in time   130 interrupted
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
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


def exit_if_failed(failures: Iterable[Failure]) -> None:
    """Print each failure, and end the command with the exit code of the first; return if there is none."""
    listed = list(failures)
    for failure in listed:
        failure.show()
    if listed:
        sys.exit(listed[0].exit_code)


def confirm(action: str, question: str) -> None:
    """Ask the user. Raise Abort if the answer is no, UsageError if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{action} needs --yes, because standard input is not a terminal")
    click.confirm(question, abort=True, err=True)
