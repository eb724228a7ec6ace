"""What a verb prints: aligned tables for people, JSON and YAML for programs, bare names for the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

TABLE = "table"
JSON = "json"
YAML = "yaml"
NAME = "name"
#: what a verb that streams prints when it prints no structure
TEXT = "text"
FORMATS = (TABLE, JSON, YAML, NAME)

#: one row: field names as in REST v3, values as JSON has them
Row = Mapping[str, Any]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Column(NamedTuple):
    """A column of a table: its heading, and the field of the row it shows."""

    heading: str
    field: str


def output_option(*formats: str, default: str = TABLE) -> Callable[[_Function], _Function]:
    """Add -o/--output with these formats; the function gets an `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats or FORMATS),
        default=default,
        show_default=True,
        help="Output format.",
    )


def print_rows(rows: Sequence[Row], columns: Sequence[Column], output: str, name_field: str = "") -> None:
    """Print a list in the asked format."""
    if output == TABLE:
        click.echo(format_table(columns, rows))
    elif output == NAME:
        for row in rows:
            click.echo(row[name_field])
    else:
        print_data(list(rows), output)


def print_data(data: Any, output: str) -> None:
    """Print any plain structure as JSON or YAML."""
    if output == YAML:
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
    """Align cells in columns two spaces apart: numbers to the right, everything else to the left."""
    raw = [[row.get(column.field) for column in columns] for row in rows]
    cells = [[format_cell(value) for value in line] for line in raw]
    headings = [column.heading for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    numeric = [bool(raw) and all(_is_number_or_nothing(line[at]) for line in raw) for at in range(len(columns))]
    lines = []
    for line in (headings, *cells):
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numeric, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def format_cell(value: object) -> str:
    """The text of one cell: nothing is a dash, a list has commas, no value breaks its line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return escape_controls(str(value), keep="")


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """Return the text with control characters as escapes, so that data cannot control the terminal.

    >>> escape_controls("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    # Terminals act on C0, DEL and C1. Other characters that are not printable, such as special spaces, stay.
    return "".join(
        f"\\x{ord(sign):02x}" if (sign < " " or "\x7f" <= sign <= "\x9f") and sign not in keep else sign
        for sign in text
    )


def _is_number_or_nothing(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def shown(name: str) -> str:
    """Return a name or text from the cluster with all control characters as escapes, for one line of a terminal."""
    return escape_controls(name, keep="")


def print_named(rows: Sequence[Row], columns: Sequence[Column], output: str, name_field: str) -> None:
    """Print rows whose names may contain control characters.

    With `-o name` they are escaped, because a name with a newline would look like two names to the next command.
    """
    if output == NAME:
        rows = [{name_field: shown(row[name_field])} for row in rows]
    print_rows(rows, columns, output, name_field)
