"""`ottla pipeline export`: write a project, and report the parts that are changed or not exported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ottla.admin.failure import Failure
from ottla.cli.output import TEXT, format_count, print_data
from ottla.model.printable import escape_controls
from ottla.pipeline.sdp import project as sdp_project
from ottla.pipeline.sdp.export import export as export_declaration
from ottla.pipeline.sdp.notes import Note

if TYPE_CHECKING:
    from ottla.pipeline import Declaration


def export_to_sdp(declaration: Declaration, out: str | None, force: bool, output: str) -> None:
    """Write the project and print the result. Raise Failure if the directory has files or a part is not exported."""
    project = export_declaration(declaration)
    directory = out or f"{declaration.name}-sdp"
    try:
        files = sdp_project.write_project(declaration, project, directory, force=force)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise Failure(f"{error.filename} cannot be written: {reason}; choose another --out") from None
    missing = sdp_project.missing_modules(declaration, project)
    if output == TEXT:
        for note in project.notes:
            click.echo(escape_controls(str(note), keep=""))
        for module in missing:
            click.echo(f"The module {module} is not beside {declaration.file}; install it where Spark runs.")
        click.echo(
            f"Wrote {format_count(len(files), 'file')} to {directory}. Next: {os.path.join(directory, 'README.md')}"
        )
    else:
        result = {
            "directory": directory,
            "files": files,
            "notes": [_fields(note) for note in project.notes],
            "modules": missing,
            "command": sdp_project.command(declaration),
        }
        print_data(result, output)
    left_out = sum(note.left_out for note in project.notes)
    if left_out:
        raise Failure(f"{format_count(left_out, 'part')} not exported; the lines above say why")


def _fields(note: Note) -> dict[str, object]:
    place = note.place
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "exported": not note.left_out,
        "what": note.what,
        "why": note.why,
    }
