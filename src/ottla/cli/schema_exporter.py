"""`ottla schema exporter`: copy the schemas of a registry to another one, continuously."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from ottla.cli.connection import load_properties, parse_pairs
from ottla.cli.options import gathered_options
from ottla.cli.output import Column, output_option, print_data, print_rows
from ottla.cli.registry_options import registry_options
from ottla.cli.watch import WatchCommand

if TYPE_CHECKING:
    from ottla.client.registry import SchemaRegistry

_URL = "schema.registry.url"
_CONTEXT_TYPES = ("AUTO", "CUSTOM", "NONE", "DEFAULT")
_COLUMNS = (
    Column("NAME", "name"), Column("STATE", "state"), Column("OFFSET", "offset"), Column("CHANGED", "changed"),
    Column("TRACE", "trace"),
)  # fmt: skip
_MEMBER_COLUMNS = (Column("MEMBER", "member"), Column("VALUE", "value"))


@click.group("exporter")
def command() -> None:
    """Copy the schemas of a registry to another one, continuously ("schema linking").

    The leader of the registry copies them, also after this command has ended. Ids and versions stay the same.
    """


class Definition(NamedTuple):
    """The options that describe an exporter, as the registry takes them."""

    #: members of the definition, apart from `config`
    body: dict[str, Any]
    #: properties of the destination's client
    config: dict[str, str]


def _definition(
    *,
    subjects: str | None,
    subject_format: str | None,
    context_type: str | None,
    context_name: str | None,
    config: dict[str, str],
    config_file: str | None,
) -> Definition:
    body = {
        "subjects": subjects.split(",") if subjects else None, "subjectRenameFormat": subject_format,
        "contextType": context_type.upper() if context_type else None, "context": context_name,
    }  # fmt: skip
    filed = load_properties(config_file) if config_file is not None else {}
    return Definition({name: value for name, value in body.items() if value is not None}, {**filed, **config})


#: the options that describe an exporter; the command gets a `definition`
_definition_options = gathered_options(
    "definition",
    _definition,
    click.option(
        "--subjects",
        metavar="NAME,...",
        help="Subjects, prefixes (orders*), contexts (.test); :*: for all.  [default: *]",
    ),
    click.option(
        "--subject-format",
        metavar="FORMAT",
        help="Names at the destination, such as dc1_${subject}.  [default: ${subject}]",
    ),
    click.option(
        "--context-type", type=click.Choice(_CONTEXT_TYPES, case_sensitive=False),
        help="Context at the destination: one named after this registry (AUTO), that of --context-name (CUSTOM), that "
        "of the source (NONE), or the default context (DEFAULT).  [default: AUTO]",
    ),
    click.option("--context-name", metavar="NAME", help="Context for --context-type CUSTOM."),
    click.option(
        "-C", "--config", "config", metavar="KEY=VALUE", multiple=True, callback=parse_pairs,
        help="A property of the destination's client, such as basic.auth.user.info. Repeatable.",
    ),
    click.option(
        "--config-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
        help="Read such properties from a file of KEY=VALUE lines, so that other users cannot see a password.",
    ),
)  # fmt: skip


@command.command("list", cls=WatchCommand)
@registry_options
@output_option()
def list_exporters(registry: SchemaRegistry, output: str) -> None:
    """Print the exporters with their states and offsets."""
    names = registry.ask("GET", "/exporters")
    print_rows([_status(registry, name) for name in names], _COLUMNS, output, "name")


@command.command("create")
@click.argument("name")
@click.argument("destination", metavar="URL")
@_definition_options
@registry_options
@output_option()
def create(name: str, destination: str, definition: Definition, registry: SchemaRegistry, output: str) -> None:
    """Create an exporter that copies to the registry at URL. It starts at once."""
    registry.ask(
        "POST", "/exporters", {"name": name, "config": {**definition.config, _URL: destination}, **definition.body}
    )
    print_rows([_status(registry, name)], _COLUMNS, output, "name")


@command.command("describe")
@click.argument("name")
@registry_options
@output_option()
def describe(name: str, registry: SchemaRegistry, output: str) -> None:
    """Print the definition of an exporter, without secrets."""
    value = registry.ask("GET", _path(name))
    if output == "table":
        members = {**{key: row for key, row in value.items() if key != "config"}, **value["config"]}
        rows = [{"member": key, "value": row} for key, row in members.items()]
        print_rows(rows, _MEMBER_COLUMNS, output, "member")
    else:
        print_data(value, output)


@command.command("status", cls=WatchCommand)
@click.argument("name")
@registry_options
@output_option()
def status(name: str, registry: SchemaRegistry, output: str) -> None:
    """Print the state and the offset of an exporter. TRACE is the error that keeps it from copying."""
    print_rows([_status(registry, name)], _COLUMNS, output, "name")


@command.command("update")
@click.argument("name")
@click.option(
    "--to",
    "destination",
    metavar="URL",
    help="New URL of the destination. Give its secrets again with --config-file.",
)
@_definition_options
@registry_options
@output_option()
def update(name: str, destination: str | None, definition: Definition, registry: SchemaRegistry, output: str) -> None:
    """Change the given options of a paused exporter. It continues at its offset; see `reset`."""
    body, config = definition
    change = config if destination is None else {**config, _URL: destination}
    if change:
        body = {**body, "config": {**registry.ask("GET", f"{_path(name)}/config"), **change}}
    registry.ask("PUT", _path(name), body)
    print_rows([_status(registry, name)], _COLUMNS, output, "name")


def _state_command(verb: str, text: str) -> click.Command:
    """Return a command that changes the state of an exporter, as the registry names it, and prints the new one."""

    @click.command(verb, help=text)
    @click.argument("name")
    @registry_options
    @output_option()
    def change(name: str, registry: SchemaRegistry, output: str) -> None:
        registry.ask("PUT", f"{_path(name)}/{verb}")
        print_rows([_status(registry, name)], _COLUMNS, output, "name")

    return change


command.add_command(_state_command("pause", "Stop copying. The exporter keeps its offset."))
command.add_command(_state_command("resume", "Let a paused exporter continue."))
command.add_command(
    _state_command("reset", "Let a paused exporter compare and copy everything again when it is resumed.")
)


@command.command("delete")
@click.argument("name")
@registry_options
def delete(name: str, registry: SchemaRegistry) -> None:
    """Delete an exporter. The schemas that it has copied stay at the destination."""
    registry.ask("DELETE", _path(name))
    click.echo(f"deleted {name}")


def _status(registry: SchemaRegistry, name: str) -> dict[str, Any]:
    value = registry.ask("GET", f"{_path(name)}/status")
    changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value["ts"] / 1000))
    return {**value, "changed": changed, "trace": value.get("trace") or None}


def _path(name: str) -> str:
    return f"/exporters/{quote(name, safe='')}"
