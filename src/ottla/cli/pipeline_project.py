"""The options --env and --param of `ottla pipeline` commands, and loading a pipeline with them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.options import gathered_options
from ottla.model import extras
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.pipeline import BadDeclaration, Declaration


def check_extra(*modules: str) -> None:
    """Raise Failure if one of these modules of the extra `spark` is not installed."""
    if missing := [each for each in modules if importlib.util.find_spec(each) is None]:
        raise Failure(extras.missing(missing[0], extras.SPARK))


@dataclass(frozen=True, slots=True)
class Choice:
    """The environment and the parameters that a command line chooses."""

    environment: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    def load(self, path: str, *, needs_secrets: bool = False) -> Declaration:
        """Load a pipeline. Raise BadDeclaration, or NotFound if there is no such file."""
        from ottla.pipeline import Arguments, load

        arguments = Arguments(
            environment=self.environment,
            parameters=self.parameters,
            variables=os.environ,
            needs_secrets=needs_secrets,
        )
        try:
            return load(path, arguments)
        except FileNotFoundError as error:
            raise NotFound(f"{error.filename} does not exist; 'ottla pipeline init' writes an example") from None

    def load_or_report(self, path: str, *, needs_secrets: bool = False) -> Declaration:
        """Load a pipeline; print its problems and raise Failure if it has any."""
        from ottla.pipeline import BadDeclaration

        try:
            return self.load(path, needs_secrets=needs_secrets)
        except BadDeclaration as bad:
            raise report(bad) from None

    def load_pinned(self, path: str, *, continues: bool = True) -> Declaration:
        """Load a pipeline with its secrets, and with the schemas that its registry has now. Raise Failure.

        With `continues`, batches that the last run did not complete keep their schemas.
        """
        declaration = self.load_or_report(path, needs_secrets=True)
        if not declaration.needs_registry:
            return declaration
        from ottla.pipeline.pinned_schemas import pin_schemas

        try:
            return pin_schemas(declaration, continues=continues)
        except OSError as error:
            raise Failure(str(error)) from None

    def command(self, verb: str, path: str) -> str:
        """Return a command to show: the same pipeline in the same environment."""
        env = f" --env {self.environment}" if self.environment is not None else ""
        return f"ottla pipeline {verb} {path}{env}"


def report(bad: BadDeclaration) -> Failure:
    """Print the problems of a pipeline, and return the failure of the command."""
    for problem in bad.problems:
        click.echo(escape_controls(str(problem), keep=""), err=True)
    return Failure("the pipeline was not started; each line above has the remedy")


def _pairs(parameters: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in parameters:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--param {one!r} is not of the form NAME=VALUE")
        if name in pairs:
            raise click.UsageError(f"--param {name} is given twice; give it once")
        pairs[name] = value
    return pairs


#: --env and --param; the command gets a `choice`
environment_options = gathered_options(
    "choice",
    lambda environment, parameters: Choice(environment, _pairs(parameters)),
    click.option("--env", "environment", metavar="NAME", help="The environment of the pipeline to use."),
    click.option(
        "--param", "parameters", metavar="NAME=VALUE", multiple=True,
        help="The value of a parameter of the pipeline; can be repeated.",
    ),
)  # fmt: skip
