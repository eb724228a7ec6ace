"""`ottla log`: print the files of a log, of Ottla or of Apache Kafka, without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure
from ottla.cli.output import JSON, TEXT, output_option, print_json_line
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.cli.segment_files import Entry, RecordEntry


@click.group("log")
def command() -> None:
    """Read segment files without a broker."""


@command.command("dump")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records", "--print-data", "with_data", is_flag=True, help="Decode batches and print keys and values.")
@click.option("--deep", is_flag=True, help="Decode batches and print one line per record, without keys and values.")
@output_option(TEXT, JSON, default=TEXT)
def dump(paths: tuple[str, ...], with_data: bool, deep: bool, output: str) -> None:
    """Print the contents of segments, indexes, snapshots and checkpoints.

    A PATH is such a file, the directory of a partition or a data directory. Truncated and corrupt entries are
    reported with their position, and the exit code is then 1.
    """
    from ottla.cli.segment_files import PROBLEM, find_files

    problems = 0
    try:
        for path in paths:
            for found in find_files(path, open_records=with_data or deep):
                if output == TEXT:
                    click.echo(f"Dumping {found.path}")
                for entry in found.read(found.path):
                    kind, fields = _kind_and_fields(entry, with_data)
                    problems += kind == PROBLEM
                    if output == JSON:
                        print_json_line({"file": found.path, "kind": kind, **fields})
                    else:
                        click.echo(_format_entry(kind, fields))
    except ValueError as error:
        raise Failure(f"{error}; name a partition's directory or a file in it") from None
    if problems:
        raise Failure(f"{problems} problems found; they are marked 'problem' above with position and reason")


def _kind_and_fields(entry: Entry | RecordEntry, with_data: bool) -> tuple[str, dict[str, Any]]:
    from ottla.cli.segment_files import RecordEntry, record_fields

    if isinstance(entry, RecordEntry):
        return "record", record_fields(entry, with_data=with_data)
    return entry.kind, entry.fields


def _format_entry(kind: str, fields: dict[str, Any]) -> str:
    text = " ".join(f"{name}: {_format_field(value)}" for name, value in fields.items())
    marks = {"record": "| ", "problem": "problem at "}
    return marks.get(kind, "") + escape_controls(text, keep="")


def _format_field(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value)
