"""`ottla pipeline quarantine` and `redrive`: rejected records by cause, and sending them to their topics again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.duration import format_local_time
from ottla.cli.failure import confirm
from ottla.cli.options import yes_option
from ottla.cli.output import JSON, TABLE, YAML, Column, format_count, output_option, print_rows
from ottla.cli.pipeline_project import Choice, check_extra, environment_options
from ottla.model.printable import shown

if TYPE_CHECKING:
    from ottla.pipeline.declaration import Declaration

_CAUSES = (
    Column("TABLE", "table"),
    Column("ROWS", "rows"),
    Column("NEWEST", "newest"),
    Column("CAUSE", "cause"),
)
_SENT = (Column("TOPIC", "topic_name"), Column("PARTITION", "partition_id"), Column("RECORDS", "records"))
#: rows that are looked at for those that were not sent yet
_SCANNED_MAX = 100_000


@click.command("quarantine")
@click.argument("path", metavar="PATH", type=click.Path())
@environment_options
@output_option(TABLE, JSON, YAML)
def quarantine(path: str, choice: Choice, output: str) -> None:
    """Count the rejected records of a pipeline by cause.

    Needs neither Spark nor a broker, and works while the pipeline runs. 'ottla pipeline redrive' sends records again.
    """
    check_extra("pyarrow")
    from ottla.quarantine.tables import NoTables, read_causes

    rows: list[dict[str, Any]] = []
    try:
        for name, place in _tables(choice.load_or_report(path)).items():
            rows += [
                {"table": name, "rows": each.count, "cause": each.text, "newest_ms": each.last_ms}
                for each in read_causes(place)
            ]
    except NoTables as error:
        raise Failure(str(error)) from None
    rows.sort(key=lambda row: -row["rows"])
    if output == TABLE:
        rows = [
            {**row, "newest": None if row["newest_ms"] is None else format_local_time(row["newest_ms"])} for row in rows
        ]
    print_rows(rows, _CAUSES, output, fields=() if output == TABLE else ("table", "rows", "cause", "newest_ms"))


@click.command("redrive")
@click.argument("path", metavar="PATH", type=click.Path())
@click.option("--table", "name", metavar="NAME", required=True, help="Quarantine table, as 'quarantine' prints it.")
@click.option("--cause", metavar="TEXT", required=True, help="Send the records that were rejected for this cause.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Send at most N records.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send nothing.")
@yes_option
@environment_options
@output_option(TABLE, JSON, YAML)
def redrive(
    *, path: str, name: str, cause: str, limit: int, dry_run: bool, yes: bool, choice: Choice, output: str
) -> None:
    """Send rejected records to the topics that they came from, again.

    A record keeps its key, value, headers and partition, and gets the header ottla.replay.count. One that fails again
    is sent three times at most, and no row is sent twice: the topic _ottla_redrives has a mark for each. All readers of
    the topics get the records again.
    """
    check_extra("pyarrow")
    from ottla.admin.client import AdminClient
    from ottla.quarantine.redrive import carry_out, make_plan
    from ottla.quarantine.tables import NoTables, read_rows

    declaration = choice.load_or_report(path, needs_secrets=True)
    place = _tables(declaration).get(name)
    if place is None:
        raise NotFound(f"there is no quarantine table {shown(name)}; see 'ottla pipeline quarantine {shown(path)}'")
    with AdminClient(declaration.brokers, declaration.properties, timeout_s=30, client_id="ottla-redrive") as client:
        try:
            rows = read_rows(place, cause, newest=False, count_max=_SCANNED_MAX)
            plan = make_plan(client, rows, count_max=limit)
        except NoTables as error:
            raise Failure(str(error)) from None
        for reason, count in plan.left_out.items():
            click.echo(f"note: {format_count(count, 'row')} left out: {reason}", err=True)
        if plan.has_more:
            click.echo(f"note: these are the first {limit}; run the command again for the others", err=True)
        if not plan.records:
            raise NotFound("nothing is left to send again")
        if not dry_run:
            total = format_count(len(plan.records), "record")
            if not yes:
                topics = ", ".join(sorted({shown(each.topic) for each in plan.by_place}))
                confirm("sending records again", f"Send {total} to {topics}? All readers get them again.")
            carry_out(client, plan)
        done = [
            {"topic_name": each.topic, "partition_id": each.partition, "records": len(records), "sent": not dry_run}
            for each, records in sorted(plan.by_place.items())
        ]
    print_rows(done, _SENT, output)
    if dry_run:
        click.echo("nothing was sent; leave out --dry-run to send this", err=True)


def _tables(declaration: Declaration) -> dict[str, str]:
    from ottla.pipeline.layout import Layout
    from ottla.quarantine.tables import find_tables

    return find_tables([Layout.of(declaration).storage])
