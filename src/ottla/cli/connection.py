"""The options with which commands find their cluster.

The first of these that has a property wins: its own flag, -X, --command-config, a profile that --profile names, the
environment, another profile, the default. See `profiles` for the profile of a command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.cli import java_properties
from ottla.cli.options import gathered_options
from ottla.cli.profiles import Choice, chosen, profile_option

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

BOOTSTRAP_ENVIRONMENT = "OTTLA_BOOTSTRAP_SERVER"
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_S_DEFAULT = 10.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The address of a cluster, the properties of its clients, and the limit for each request."""

    bootstrap: str
    #: whether the user named an address; if not, it is the default
    bootstrap_named: bool
    #: librdkafka properties, without bootstrap.servers
    properties: Mapping[str, str]
    timeout_s: float

    def connect(self) -> ClusterClient:
        """Return a client of the cluster, see `cluster.connect`. The client is imported only when a command uses it."""
        from ottla.cli.cluster import connect

        return connect(self)


def parse_pairs(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """A click callback for repeatable KEY=VALUE options."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE", ctx, parameter)
        pairs[key.strip()] = value
    return pairs


def _connection(
    bootstrap_server: str | None, properties: dict[str, str], command_config: str | None, timeout: float
) -> ClusterOptions:
    filed = load_properties(command_config) if command_config is not None else {}
    return make_connection(bootstrap_server, properties, filed, timeout, choice=chosen())


#: -b, -X, --command-config, --timeout and --profile; the command gets a `connection`
connection_options = gathered_options(
    "connection",
    _connection,
    click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"Bootstrap servers.  [env: {BOOTSTRAP_ENVIRONMENT}; default: {BOOTSTRAP_DEFAULT}]",
    ),
    click.option(
        "-X",
        "properties",
        metavar="KEY=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="Set a librdkafka property, such as security.protocol. Repeatable.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Read client properties from a file of KEY=VALUE lines.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        help="Time limit for each request to the cluster.",
    ),
    profile_option,
)


def make_connection(
    bootstrap: str | None,
    properties: Mapping[str, str],
    filed: Mapping[str, str],
    timeout_s: float,
    *,
    choice: Choice | None = None,
) -> ClusterOptions:
    merged = {**filed, **properties}
    given = bootstrap or _pop_address(merged)
    if choice is None:
        named = given or os.environ.get(BOOTSTRAP_ENVIRONMENT)
    else:
        own, address = choice_properties(choice)
        named, is_used = choice.address(given, address, BOOTSTRAP_ENVIRONMENT)
        merged = {**own, **merged} if is_used else merged
    return ClusterOptions(
        bootstrap=named or BOOTSTRAP_DEFAULT,
        bootstrap_named=named is not None,
        properties=_translate_java(merged),
        timeout_s=timeout_s,
    )


def choice_properties(choice: Choice) -> tuple[dict[str, str], str | None]:
    """Return the properties of a profile and of the file that it names, and the address. Its own take precedence."""
    path = choice.profile.command_config
    properties = {**(load_properties(path) if path is not None else {}), **choice.profile.properties}
    address = _pop_address(properties)
    return properties, choice.profile.bootstrap or address


def _pop_address(properties: dict[str, str]) -> str | None:
    found = [properties.pop(name, None) for name in ("bootstrap.servers", "metadata.broker.list")]
    return found[0] or found[1]


def load_properties(path: str) -> dict[str, str]:
    """Read a properties file, see `java_properties`. Raise UsageError for a line without a value."""
    return _or_misuse(java_properties.load, path)


def split_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Return the addresses in `host:port,...`. Raise UsageError if one of them is not of this form."""
    # Imported by commands that connect to a cluster.
    from ottla.client.errors import PropertyRefused
    from ottla.client.protocol.metadata import parse_bootstrap

    try:
        return parse_bootstrap(bootstrap)
    except PropertyRefused as error:
        raise click.UsageError(str(error)) from None


def _translate_java(properties: dict[str, str]) -> dict[str, str]:
    return _or_misuse(java_properties.translate, properties)


def _or_misuse(function: Callable[[_T], dict[str, str]], argument: _T) -> dict[str, str]:
    try:
        return function(argument)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
