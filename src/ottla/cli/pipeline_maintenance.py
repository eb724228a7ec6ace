"""`ottla pipeline compact` and `vacuum`: maintenance of a pipeline's Delta tables. Needs no Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.options import Parsed
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.cli.pipeline_project import Choice, environment_options
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.pipeline import Declaration
    from ottla.pipeline.maintenance import Table


def _parse_size(text: str) -> int:
    from ottla.pipeline.duration import parse_size_bytes

    return parse_size_bytes(text)


def _parse_duration(text: str) -> int:
    from ottla.pipeline.duration import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise ValueError(f"{error}; write 7d or 12h") from None


_table = click.option(
    "--table", "names", metavar="[ZONE/]NAME", multiple=True, help="Only this table; can be repeated.  [default: all]"
)
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
_Row = dict[str, Any]


@click.command("compact")
@click.argument("file", metavar="PATH", type=click.Path())
@environment_options
@_table
@click.option(
    "--target-file-size",
    "size_bytes",
    metavar="SIZE",
    type=Parsed("size", _parse_size),
    help="Size of the new files, such as 128MB.",
)
@_dry_run
@output_option(TABLE, JSON, YAML)
def compact(
    *, file: str, choice: Choice, names: tuple[str, ...], size_bytes: int | None, dry_run: bool, output: str
) -> None:
    """Compact small files of a pipeline's Delta tables into larger ones.

    Works while the pipeline runs: no row changes, and flows that read the tables do not get their rows again. With
    --dry-run, shows the number of files and their mean size.
    """
    declaration = choice.load_or_report(file)

    def work(table: Table) -> _Row:
        from ottla.pipeline.maintenance import compact_table, file_sizes

        if dry_run:
            sizes = file_sizes(table)
            return {"table": table.name, "files": len(sizes), "mean_bytes": sum(sizes) // max(len(sizes), 1)}
        done = compact_table(table, target_file_size_bytes=size_bytes)
        return {"table": table.name, "files_before": done.files_before, "files_after": done.files_after}

    columns = (
        (Column("TABLE", "table"), Column("FILES", "files"), Column("MEAN BYTES", "mean_bytes"))
        if dry_run
        else (Column("TABLE", "table"), Column("REPLACED FILES", "files_before"), Column("NEW FILES", "files_after"))
    )
    _for_each(declaration, names, work, columns, output)


@click.command("vacuum")
@click.argument("file", metavar="PATH", type=click.Path())
@environment_options
@_table
@click.option(
    "--retain",
    "retain_ms",
    metavar="DURATION",
    type=Parsed("duration", _parse_duration),
    help="Keep files that were replaced within this time, such as 7d.  [default: that of the table, else 7d]",
)
@_dry_run
@output_option(TABLE, JSON, YAML)
def vacuum(
    *, file: str, choice: Choice, names: tuple[str, ...], retain_ms: int | None, dry_run: bool, output: str
) -> None:
    """Delete files of a pipeline's Delta tables that only old versions have.

    Works while the pipeline runs. A --retain that would delete files which a flow still needs is refused.
    """
    declaration = choice.load_or_report(file)

    def work(table: Table) -> _Row:
        from ottla.pipeline.declaration import VACUUM_RETAIN_MS
        from ottla.pipeline.duration import format_duration
        from ottla.pipeline.layout import Layout
        from ottla.pipeline.maintenance import vacuum_table

        set_ms = table.vacuum.retain_ms if table.vacuum is not None else VACUUM_RETAIN_MS
        done = vacuum_table(
            declaration, Layout.of(declaration), table, retain_ms=retain_ms or set_ms, dry_run=dry_run,
            extend=retain_ms is None,
        )  # fmt: skip
        return {"table": table.name, "files": done.files, "retained": format_duration(done.retained_ms)}

    heading = "FILES TO DELETE" if dry_run else "DELETED FILES"
    columns = (Column("TABLE", "table"), Column(heading, "files"), Column("RETAINED", "retained"))
    _for_each(declaration, names, work, columns, output)


def _for_each(
    declaration: Declaration,
    names: tuple[str, ...],
    work: Callable[[Table], _Row],
    columns: tuple[Column, ...],
    output: str,
) -> None:
    """Do the work for each chosen table that exists, and print the results. Raise Failure if one could not be done."""
    from deltalake.exceptions import DeltaError

    from ottla.model.errors import OttlaError

    rows, failures = [], []
    for table in _choose(declaration, names):
        try:
            if table.location.exists():
                rows.append(work(table))
        except (DeltaError, OttlaError, OSError) as error:
            failures.append(str(error) if isinstance(error, OttlaError) else f"{table.name}: {error}")
    print_rows(rows, columns, output, empty="no table exists yet")
    if failures:
        for line in failures:
            click.echo(escape_controls(line, keep=""), err=True)
        raise Failure(f"{len(failures)} tables were not changed; each line above has the remedy")


def _choose(declaration: Declaration, names: tuple[str, ...]) -> list[Table]:
    from ottla.pipeline.layout import Layout
    from ottla.pipeline.maintenance import tables_of

    tables = {table.name: table for table in tables_of(declaration, Layout.of(declaration))}
    if not names:
        return list(tables.values())
    chosen = []
    for name in names:
        found = [one for one in tables if name in (one, one.partition("/")[2])]
        if not found:
            raise NotFound(f"the pipeline has no Delta table {name!r}; it has {', '.join(tables)}")
        chosen += [tables[one] for one in found]
    return chosen
