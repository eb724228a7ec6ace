"""Output of commands: tables for people, JSON, YAML and CSV for programs, names alone for the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from ottla.cli.csv_rows import format_csv
from ottla.model.figures import format_count as format_count
from ottla.model.figures import format_first as format_first
from ottla.model.printable import escape_controls, shown

TABLE = "table"
JSON = "json"
YAML = "yaml"
NAME = "name"
#: the format of commands that print text instead of rows
TEXT = "text"
CSV = "csv"
#: CSV in which no value is a formula of a spreadsheet
CSV_SAFE = "csv-safe"
CSV_FORMATS = (CSV, CSV_SAFE)
FORMATS = (TABLE, JSON, YAML, NAME)

#: a row: fields named as in version 3 of the REST API, with values that JSON can represent
Row = Mapping[str, Any]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Column(NamedTuple):
    """A column of a table: its heading, and the field of a row that it shows."""

    heading: str
    field: str


def output_option(*formats: str, default: str = TABLE) -> Callable[[_Function], _Function]:
    """Add -o/--output with these formats, and CSV for a table; the function gets an `output`."""
    offered = formats or FORMATS
    if TABLE in offered:
        offered = (
            *(each for each in offered if each != NAME),
            *CSV_FORMATS,
            *(each for each in offered if each == NAME),
        )
    return click.option(
        "-o",
        "--output",
        type=click.Choice(offered),
        default=default,
        show_default=True,
        help="Output format.",
    )


def print_rows(
    rows: Sequence[Row],
    columns: Sequence[Column],
    output: str,
    name_field: str = "",
    *,
    empty: str = "",
    fields: Sequence[str] = (),
) -> None:
    """Print rows in the chosen format. Instead of a table without rows print `empty`, if it is given.

    `fields` are the fields of the rows, if they are not those of the columns: CSV without rows has them too. Names are
    escaped, because a name with a newline would look like two names to the next command.
    """
    if output == TABLE:
        click.echo(format_table(columns, rows) if rows or not empty else empty)
    elif output == NAME:
        for row in rows:
            click.echo(shown(str(row[name_field])))
    elif output in CSV_FORMATS:
        print_csv(rows, output, fields or (() if rows else [column.field for column in columns]))
    else:
        print_data(list(rows), output)


def print_descriptions(
    rows: Sequence[Row],
    format_description: Callable[[dict[str, Any]], str],
    output: str,
    name_field: str,
    *,
    detail: str = "",
) -> None:
    """Print descriptions in the chosen format, for people with an empty line between two of them.

    CSV has a line for each item of the list `detail`, if it is given, with the name in front.
    """
    if output == TABLE:
        click.echo("\n\n".join(format_description(dict(row)) for row in rows), nl=bool(rows))
    elif output in CSV_FORMATS and detail:
        print_csv([{name_field: row[name_field], **item} for row in rows for item in row[detail]], output, [name_field])
    else:
        print_rows(rows, (), output, name_field)


def print_csv(rows: Iterable[Row], output: str, fields: Sequence[str] = ()) -> None:
    """Print rows as CSV. On a terminal, control characters in the values are escaped."""
    lines = "".join(format_csv(rows, fields, safe=output == CSV_SAFE))
    click.echo(escape_controls(lines, keep="\r\n\t") if sys.stdout.isatty() else lines, nl=False)


def print_data(data: Any, output: str) -> None:
    """Print any plain structure as JSON or YAML, or an object or a list of objects as CSV."""
    if output in CSV_FORMATS:
        print_csv(data if isinstance(data, list) else [data], output)
    elif output == YAML:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False)
        click.echo(text, nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_json_line(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False, separators=(",", ":")))


def abandon_stdout() -> None:
    """Discard further output, because the process that read it has ended. Python would fail at exit otherwise."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())


def format_table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return a table: columns two spaces apart, numbers aligned to the right, everything else to the left."""
    raw = [[row.get(column.field) for column in columns] for row in rows]
    cells = [[format_cell(value) for value in line] for line in raw]
    headings = [column.heading for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    numeric = [bool(raw) and all(_is_number_or_none(line[at]) for line in raw) for at in range(len(columns))]
    lines = []
    for line in (headings, *cells):
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numeric, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def format_cell(value: object) -> str:
    """Return the text of a cell: a dash for None, a list with commas, control characters as escapes."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return escape_controls(str(value), keep="")


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def format_fields(fields: Mapping[str, object]) -> str:
    """Return a line for each field, with the values below each other."""
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in fields.items())
