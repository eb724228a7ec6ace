"""`ottla pipeline`: create, validate and draw pipelines between topics and tables. Other files run them."""

from __future__ import annotations

import os
from importlib import resources
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli import (
    pipeline_maintenance,
    pipeline_plan,
    pipeline_quarantine,
    pipeline_run,
    pipeline_sql,
    pipeline_test,
)
from ottla.cli.output import JSON, TEXT, YAML, format_count, output_option, print_data
from ottla.cli.pipeline_project import Choice, check_extra, environment_options
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.pipeline import Declaration, Problem

_TEMPLATES = ("shop",)
_INIT_DEFAULT = "shop.yaml"

_FILE = click.Path(dir_okay=False)
_PATH = click.Path()
_allow_code = click.option(
    "--allow-code", is_flag=True, help="Execute Python files and Python steps, which can do anything that you can."
)


@click.group("pipeline")
def command() -> None:
    """Declare, validate and run pipelines on Spark."""


# The commands below need no Spark. Those that need it are in other files, and import it when they run, so that help
# stays fast.
for _command in (pipeline_run.run, pipeline_run.status, pipeline_run.stop, pipeline_run.backfill, pipeline_sql.sql):
    command.add_command(_command)
for _command in (pipeline_quarantine.quarantine, pipeline_quarantine.redrive):
    command.add_command(_command)
for _command in (pipeline_plan.plan, pipeline_test.test, pipeline_maintenance.compact, pipeline_maintenance.vacuum):
    command.add_command(_command)


@command.command("init")
@click.argument("file", metavar="[FILE]", type=_FILE, default=_INIT_DEFAULT)
@click.option(
    "--template", type=click.Choice(_TEMPLATES), default="shop", show_default=True, help="The example to write."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: str, template: str, force: bool) -> None:
    """Write an example pipeline to FILE; the default is shop.yaml."""
    text = resources.files("ottla.pipeline").joinpath("templates", f"{template}.yaml").read_text(encoding="utf-8")
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as target:
            target.write(text.replace(_INIT_DEFAULT, os.path.basename(file)))
    except FileExistsError:
        raise Failure(f"{file} already exists; choose another file, or add --force to overwrite it") from None
    click.echo(f"Wrote {file}. Next: ottla pipeline explain {file}")


@command.command("validate")
@click.argument("files", metavar="PATH...", type=_PATH, nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Also let Spark analyse every query: takes seconds and needs Java.")
@environment_options
@_allow_code
@output_option(TEXT, JSON, YAML, default=TEXT)
def validate(files: tuple[str, ...], choice: Choice, deep: bool, allow_code: bool, output: str) -> None:
    """Report all problems of pipelines, without starting them.

    Each problem is one line: file, line, column, problem and remedy. The exit code is 1 if there is a problem.

    A PATH is a YAML file, which is only read, a Python file that creates a Pipeline, or a project directory with a file
    pipeline.yaml or pipeline.py. A Python file is a program and is executed; so are Python steps with --deep. Both need
    --allow-code.
    """
    problems: list[Problem] = []
    results = []
    for file in files:
        declaration, found = _check(file, choice, deep, allow_code)
        problems += found
        results.append({"file": file, "problems": [_problem_fields(problem) for problem in found]})
        if output == TEXT:
            for problem in found:
                click.echo(escape_controls(str(problem), keep=""))
            if declaration is not None and not found:
                flows, sources = len(declaration.flows), len(declaration.sources)
                click.echo(f"{file}: ok, {format_count(sources, 'source')}, {format_count(flows, 'flow')}")
    if output != TEXT:
        print_data(results, output)
    if problems:
        raise Failure(f"{format_count(len(problems), 'problem')} found; each line above has the remedy")


@command.command("explain")
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@_allow_code
@output_option(TEXT, JSON, YAML, default=TEXT)
def explain(file: str, choice: Choice, allow_code: bool, output: str) -> None:
    """Draw a pipeline: its sources, its flows by zone, what they read, expect and write.

    PATH is a file or a project directory. A Python file is executed, which needs --allow-code. YAML is only read.
    """
    from ottla.cli.pipeline_drawing import describe, draw

    picture = describe(_declaration_of(file, choice, allow_code))
    if output == TEXT:
        draw(picture)
    else:
        print_data(picture, output)


@command.command("graph")
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid"]),
    default="mermaid",
    show_default=True,
    help="Format of the graph.",
)
@click.option("--out", type=_FILE, help="Write to this file instead of standard output; an existing one is replaced.")
@_allow_code
def graph(file: str, choice: Choice, form: str, out: str | None, allow_code: bool) -> None:
    """Write the graph of a pipeline as Mermaid text: sources, flows in the frames of their zones, topics.

    GitHub, GitLab and many editors draw Mermaid in Markdown files; mmdc converts it to SVG or PNG. PATH is a file or a
    project directory. A Python file is executed, which needs --allow-code. YAML is only read.
    """
    from ottla.pipeline.graph_mermaid import draw_mermaid

    picture = draw_mermaid(_declaration_of(file, choice, allow_code))
    if out is None:
        click.echo(picture, nl=False)
        return
    try:
        with open(out, "w", encoding="utf-8") as target:
            target.write(picture)
    except OSError as error:
        raise Failure(f"{out} cannot be written: {str(error.strerror).lower()}; choose another --out") from None
    click.echo(f"Wrote {out}.")


@command.command("export")
@click.argument("file", metavar="PATH", type=_PATH)
@click.option("--to", "target", type=click.Choice(["sdp"]), required=True, help="sdp: Spark Declarative Pipelines.")
@click.option("--out", metavar="DIR", help="Directory of the project.  [default: NAME-sdp]")
@click.option("--force", is_flag=True, help="Overwrite files in a directory that is not empty.")
@environment_options
@_allow_code
@output_option(TEXT, JSON, YAML, default=TEXT)
def export(
    *, file: str, target: str, out: str | None, force: bool, choice: Choice, allow_code: bool, output: str
) -> None:
    """Convert a pipeline into a project for Spark Declarative Pipelines.

    Prints one line, with the reason, for each part that the project has in another form (changed) or does not have (not
    exported). The exit code is 1 if a part is not exported; the project is written in any case.

    PATH is a file or a project directory. A Python file is executed, which needs --allow-code. YAML is only read.
    """
    check_extra("pyarrow")
    from ottla.cli.pipeline_export import export_to_sdp

    export_to_sdp(_declaration_of(file, choice, allow_code), out, force, output)


def _declaration_of(file: str, choice: Choice, allow_code: bool) -> Declaration:
    """Return the declaration in a file. Print its problems and raise Failure if it has any."""
    declaration, problems = _check(file, choice, deep=False, allow_code=allow_code)
    if declaration is None:
        for problem in problems:
            click.echo(escape_controls(str(problem), keep=""), err=True)
        raise Failure(f"{file} has {format_count(len(problems), 'problem')}; correct them, then try again")
    return declaration


def _check(file: str, choice: Choice, deep: bool, allow_code: bool) -> tuple[Declaration | None, list[Problem]]:
    from ottla.pipeline import BadDeclaration
    from ottla.pipeline.checks import DeepCheckMissing, deep_check
    from ottla.pipeline.declaration import PythonStep
    from ottla.pipeline.load import top_file

    try:
        top = top_file(file)
        if top.endswith(".py") and not allow_code:
            raise Failure(f"{top} is a Python program that would be executed; add --allow-code if you trust it")
        declaration = choice.load(top)
    except BadDeclaration as bad:
        return None, list(bad.problems)
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} does not exist; 'ottla pipeline init' writes an example") from None
    if not deep:
        return declaration, []
    step = next((one for flow in declaration.flows.values() for one in flow.steps if isinstance(one, PythonStep)), None)
    if step is not None and not allow_code:
        raise Failure(
            f"{step.place}: --deep would execute the Python step {step.function}; add --allow-code if you trust it"
        )
    try:
        if declaration.needs_registry:
            declaration = choice.load(top, needs_secrets=True)
        return declaration, list(deep_check(declaration))
    except BadDeclaration as bad:
        return None, list(bad.problems)
    except DeepCheckMissing as error:
        raise Failure(str(error)) from None


def _problem_fields(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "what": problem.what,
        "instead": problem.instead,
    }
