"""`ottla pipeline plan`: what a run would do with each flow. `run` and `backfill` use the same decisions and words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure
from ottla.cli.output import JSON, TABLE, YAML, Column, format_table, output_option, print_data
from ottla.cli.pipeline_project import Choice, environment_options
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.pipeline import Declaration
    from ottla.pipeline.problems import StartRefused
    from ottla.pipeline.start_plan import StartPlan

_COLUMNS = (Column("FLOW", "flow"), Column("PLAN", "plan"), Column("WHY", "why"))

keep_option = click.option(
    "--keep-checkpoint",
    "keep",
    metavar="FLOW",
    multiple=True,
    help="Continue this flow with its checkpoint although the plan says that it needs a new one; can be repeated.",
)


@click.command("plan")
@click.argument("file", metavar="PATH", type=click.Path())
@environment_options
@output_option(TABLE, JSON, YAML)
def plan(file: str, choice: Choice, output: str) -> None:
    """Show what 'run' would do with each flow, before Spark starts: which edits keep the state, and which do not.

    Compares the pipeline with the version that wrote its checkpoints and tables. Starts and changes nothing. PATH
    is a file or a project directory; a Python file is executed.

    The exit code is 0 if 'run' would start, and 1 if it would refuse to.
    """
    declaration = choice.load_or_report(file)
    if declaration.needs_registry:
        declaration = choice.load_pinned(file)
    found = _plan_of(declaration, choice.command("backfill", file))
    if output == TABLE:
        _show(found)
    else:
        print_data(list(_rows(found)), output)
    if found.refused:
        names = ", ".join(one.flow for one in found.refused)
        raise Failure(f"'ottla pipeline run' would not start: {names}; the remedies are shown above")


def check_start(declaration: Declaration, backfill: str, keep: tuple[str, ...] = ()) -> None:
    """Show edits that keep the state. Raise Failure if a flow cannot continue with its checkpoint or table."""
    from ottla.pipeline.openlineage_transport import target_of
    from ottla.pipeline.problems import StartRefused

    # Report a wrong OPENLINEAGE_CONFIG before Spark starts.
    target_of(declaration, os.environ)
    unknown = [name for name in keep if name not in declaration.flows]
    if unknown:
        raise click.UsageError(
            f"--keep-checkpoint: there is no flow {unknown[0]!r}; the flows are {', '.join(declaration.flows)}"
        )
    found = _plan_of(declaration, backfill)
    try:
        found.check(keep)
    except StartRefused as refused:
        raise report_refused(refused) from None
    for one in found.decisions:
        if one.plan in ("keeps state", "needs a new checkpoint"):
            for reason in one.reasons:
                click.echo(escape_controls(f"flow {one.flow} keeps state: {reason}", keep=""), err=True)
        elif one.plan == "new":
            # The first reason says where the flow starts; only the others are warnings.
            for reason in one.reasons[1:]:
                click.echo(escape_controls(f"flow {one.flow} is new: {reason}", keep=""), err=True)


def report_refused(refused: StartRefused) -> Failure:
    """Show why flows cannot start, one per line. Return the failure that ends the command."""
    for line in str(refused).splitlines():
        click.echo(escape_controls(line, keep=""), err=True)
    return Failure("the pipeline was not started; each line above has the remedy")


def _plan_of(declaration: Declaration, backfill: str) -> StartPlan:
    from ottla.pipeline.start_plan import plan_start

    try:
        return plan_start(declaration, backfill)
    except OSError as error:
        raise Failure(f"the checkpoints cannot be read: {error}; correct 'checkpoints' in {declaration.file}") from None


def _rows(found: StartPlan) -> Iterator[dict[str, Any]]:
    for one in found.decisions:
        yield {"flow": one.flow, "plan": one.plan, "reasons": list(one.reasons), "remedy": one.remedy or None}
    for name in found.removed:
        yield {"flow": name, "plan": "removed", "reasons": [_REMOVED], "remedy": None}


_REMOVED = "no longer declared; its checkpoint and table stay as they are"


def _show(found: StartPlan) -> None:
    rows = []
    for row in _rows(found):
        first, *others = row["reasons"] or [""]
        rows.append({"flow": row["flow"], "plan": row["plan"], "why": first})
        rows += [{"flow": "", "plan": "", "why": reason} for reason in others]
    click.echo(format_table(_COLUMNS, rows))
    for one in found.refused:
        click.echo(escape_controls(f"\n{one.flow}: {one.remedy}", keep="\n"))
