"""`ottla profile`: named connections, so that commands need no options for their cluster and registry."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ottla.cli import profiles
from ottla.cli.connection import parse_pairs, split_addresses
from ottla.cli.failure import confirm
from ottla.cli.options import Parsed, yes_option
from ottla.cli.output import Column, format_fields, output_option, print_descriptions, print_rows
from ottla.cli.profiles import PROFILE_NAME, Profile, Profiles

_LIST_COLUMNS = (
    Column("NAME", "name"), Column("CURRENT", "is_current"), Column("BOOTSTRAP", "bootstrap.servers"),
    Column("REGISTRY", "registry"),
)  # fmt: skip
#: names of librdkafka for the address
_ADDRESS_NAMES = ("bootstrap.servers", "metadata.broker.list")


@click.group("profile")
def command() -> None:
    """Name connections, and choose the one that commands use.

    A profile has the address of a cluster, properties of its clients, and the address of a schema registry. It is used
    with --profile NAME, with OTTLA_PROFILE=NAME, or after `ottla profile use NAME`. An empty OTTLA_PROFILE turns
    profiles off. Profiles are in ottla/profiles.json in the configuration directory, which only its owner can read.
    """


@command.command("list")
@output_option()
def list_profiles(output: str) -> None:
    """List profiles."""
    found = profiles.load()
    rows = [
        {"name": name, "is_current": name == found.current, **_addresses(found.by_name[name])}
        for name in sorted(found.by_name)
    ]
    print_rows(rows, _LIST_COLUMNS, output, "name", empty="no profiles; 'ottla profile set NAME' creates one")


@command.command("show")
@click.argument("name", metavar="[NAME]", required=False, type=PROFILE_NAME)
@output_option()
def show(name: str | None, output: str) -> None:
    """Print a profile, or the current one. Passwords and other secrets are never shown."""
    found = profiles.load()
    name = name or found.current
    if name is None:
        raise click.UsageError("no profile is in use; give a NAME, see 'ottla profile list'")
    row = {"name": name, "is_current": name == found.current, **_masked_fields(found.get(name))}
    print_descriptions([row], _format_profile, output, "name")


@command.command("use")
@click.argument("name", metavar="[NAME]", required=False, type=PROFILE_NAME)
@click.option("--none", is_flag=True, help="Use no profile.")
def use(name: str | None, none: bool) -> None:
    """Use a profile in all commands that do not name another one."""
    if (name is None) != none:
        raise click.UsageError("give either a NAME or --none")

    def apply(found: Profiles) -> Profiles:
        if name is not None:
            found.get(name)
        return replace(found, current=name)

    profiles.change(apply)
    click.echo("no profile is in use" if name is None else f"using profile {name}")


@command.command("set")
@click.argument("name", metavar="NAME", type=Parsed("profile", profiles.check_name))
@click.option("-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT,...", help="Bootstrap servers.")
@click.option(
    "--command-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read client properties from this file in each command.",
)
@click.option(
    "-X", "properties", metavar="KEY=VALUE", multiple=True, callback=parse_pairs,
    help="Set a property of the clients, such as security.protocol. Repeatable.",
)  # fmt: skip
@click.option("-r", "--registry", metavar="URL,...", help="Schema registry.")
@click.option(
    "-R", "registry_properties", metavar="KEY=VALUE", multiple=True, callback=parse_pairs,
    help="Set a property of the registry's client. Repeatable.",
)  # fmt: skip
@click.option(
    "--secret", "secrets", metavar="KEY", multiple=True,
    help="Ask for the value of a property of the clients, or read it from a line of standard input. Repeatable.",
)  # fmt: skip
@click.option(
    "--registry-secret", "registry_secrets", metavar="KEY", multiple=True,
    help="The same for a property of the registry's client. Repeatable.",
)  # fmt: skip
@click.option("--unset", metavar="KEY", multiple=True, help="Remove a property or a field. Repeatable.")
@click.option("--use", "is_used", is_flag=True, help="Use the profile from now on.")
def set_profile(
    *,
    name: str,
    bootstrap: str | None,
    command_config: Path | None,
    properties: dict[str, str],
    registry: str | None,
    registry_properties: dict[str, str],
    secrets: tuple[str, ...],
    registry_secrets: tuple[str, ...],
    unset: tuple[str, ...],
    is_used: bool,
) -> None:
    """Create a profile, or change what is given of one that exists.

    Give passwords with --secret, because other users can see the arguments of a command.
    """
    properties = properties | {key: _read_secret(key) for key in secrets}
    registry_properties = registry_properties | {key: _read_secret(key) for key in registry_secrets}
    for key in _ADDRESS_NAMES:
        bootstrap = properties.pop(key, None) if bootstrap is None else bootstrap
    if bootstrap is not None:
        split_addresses(bootstrap)

    def apply(found: Profiles) -> Profiles:
        old = found.by_name.get(name, Profile())
        for key in unset:
            old = profiles.without(old, key)
        new = Profile(
            bootstrap=bootstrap or old.bootstrap,
            command_config=str(command_config.resolve()) if command_config is not None else old.command_config,
            properties={**old.properties, **properties},
            registry=registry or old.registry,
            registry_properties={**old.registry_properties, **registry_properties},
        )
        return Profiles(by_name={**found.by_name, name: new}, current=name if is_used else found.current)

    profiles.change(apply)
    click.echo(f"set profile {name}{' and using it' if is_used else ''}")


@command.command("delete")
@click.argument("name", metavar="NAME", type=PROFILE_NAME)
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a profile."""
    profiles.load().get(name)
    if not yes:
        confirm("deleting profiles", f"Delete profile {name}?")

    def apply(found: Profiles) -> Profiles:
        found.get(name)
        rest = {each: profile for each, profile in found.by_name.items() if each != name}
        return Profiles(by_name=rest, current=None if found.current == name else found.current)

    profiles.change(apply)
    click.echo(f"deleted profile {name}")


def _read_secret(key: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(key, hide_input=True, err=True))
    line = sys.stdin.readline()
    if not line.rstrip("\r\n"):
        raise click.UsageError(f"standard input has no line for {key}")
    return line.rstrip("\r\n")


def _addresses(profile: Profile) -> dict[str, Any]:
    registry = profile.registry
    return {
        "bootstrap.servers": profile.bootstrap,
        "registry": None if registry is None else profiles.masked("registry", registry),
    }


def _masked_fields(profile: Profile) -> dict[str, Any]:
    return {
        title: {key: profiles.masked(key, text) for key, text in value.items()}
        if isinstance(value, dict)
        else profiles.masked(title, value)
        for title, value in profiles.fields_of(profile).items()
    }


def _format_profile(row: dict[str, Any]) -> str:
    pairs: dict[str, object] = {"NAME": row["name"], "CURRENT": "yes" if row["is_current"] else "no"}
    for title in profiles.FIELDS.values():
        value = row.get(title)
        if isinstance(value, dict):
            prefix = "registry: " if title.startswith("registry") else ""
            pairs |= {prefix + key: text for key, text in value.items()}
        elif value is not None:
            pairs[title.upper().replace(".", " ")] = value
    return format_fields(pairs)
