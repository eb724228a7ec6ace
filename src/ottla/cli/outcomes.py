"""Print the outcome of a change for each of several names."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ottla.admin.topic_state import Outcome
from ottla.cli.failure import exit_if_failed
from ottla.cli.output import TABLE, print_rows
from ottla.model.printable import shown


def report_outcomes(outcomes: Sequence[Outcome], done: str, output: str, *, noun: str, name_field: str) -> None:
    """Print what was done. If names have failed, print why, and end the command with the exit code of the first."""
    succeeded = [outcome.name for outcome in outcomes if outcome.failure is None]
    if output == TABLE:
        for name in succeeded:
            click.echo(f"{done} {noun} {shown(name)}")
    else:
        print_rows([{name_field: name, "result": done} for name in succeeded], (), output, name_field)
    exit_if_failed(outcome.failure for outcome in outcomes if outcome.failure is not None)
