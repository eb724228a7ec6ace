"""Options that belong together, and options that several commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import click

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """The type of an option whose text a function turns into a value. A ValueError of it is wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def gathered_options(argument: str, gather: Function, *options: Decorator) -> Decorator:
    """Return a decorator that adds these options to a command. The command gets one argument instead of them.

    `gather` has a parameter for each option, and returns the argument from their values.
    """
    names = tuple(inspect.signature(gather).parameters)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name in names}
            return function(*args, **values, **{argument: gather(**given)})

        return add_options(*options)(command)

    return decorate


def add_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds these options to a command, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


#: for changes that the cluster can check without making them
validate_only_option = click.option(
    "--dry-run", is_flag=True, help="Validate the request in the cluster; change nothing."
)
#: for deletions
deletion_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


log_format_option = click.option(
    "--log-format",
    "log_format",
    type=click.Choice(["text", "json"]),
    help="Form of the log on standard error: a line of text, or a JSON object, for each event.  [default: text]",
)


def filter_option(flag: str, argument: str, choices: Sequence[str], text: str) -> Decorator:
    """Return an option that lists only the objects with one of these values."""
    choice = click.Choice(choices, case_sensitive=False)
    return click.option(flag, argument, type=choice, multiple=True, help=f"{text} Repeatable.")
