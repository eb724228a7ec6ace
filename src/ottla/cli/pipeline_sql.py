"""`ottla pipeline sql`: a query over the tables of a pipeline, without Spark."""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.output import JSON, TABLE, YAML, Column, format_table, output_option, print_data
from ottla.cli.pipeline_project import Choice, environment_options

_ROWS_MAX = 100


@click.command("sql")
@click.argument("path", metavar="PATH", type=click.Path())
@click.argument("query", metavar="QUERY")
@click.option(
    "--limit", type=click.IntRange(min=1), default=_ROWS_MAX, show_default=True, help="Maximum number of rows to print."
)
@environment_options
@output_option(TABLE, JSON, YAML)
def sql(path: str, query: str, limit: int, choice: Choice, output: str) -> None:
    """Execute a SQL query over the tables of a pipeline.

    Needs neither Spark nor a broker, and works while the pipeline runs. The tables have the names that they have in
    PATH. The SQL dialect is that of DataFusion.
    """
    from ottla.pipeline.query import run_query

    result = run_query(choice.load_or_report(path), query, limit)
    rows = [{name: _plain(value) for name, value in row.items()} for row in result.rows]
    if output == TABLE:
        click.echo(format_table([Column(name.upper(), name) for name in result.columns], rows))
        if result.has_more:
            click.echo(f"There are more rows: --limit prints more than {limit}.", err=True)
    else:
        print_data(rows, output)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
