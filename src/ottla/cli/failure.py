"""How a command ends with failures: a line on standard error for each of them, and the exit code of the first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from ottla.admin.failure import Failure


def show(failure: Failure) -> None:
    """Print a failure on standard error."""
    click.echo(f"error: {failure.message}", err=True)


def exit_if_failed(failures: Iterable[Failure]) -> None:
    """Print each failure, and end the command with the exit code of the first; return if there is none."""
    listed = list(failures)
    for failure in listed:
        show(failure)
    if listed:
        sys.exit(listed[0].exit_code)


def warn_incomplete(failures: Sequence[Failure]) -> None:
    """Print why a list that was printed is not complete, and end the command with the exit code of the first reason."""
    for failure in failures:
        click.echo(f"warning: {failure.message}", err=True)
    if failures:
        sys.exit(failures[0].exit_code)


def confirm(action: str, question: str) -> None:
    """Ask the user. Raise Abort if the answer is no, UsageError if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{action} needs --yes, because standard input is not a terminal")
    click.confirm(question, abort=True, err=True)
