"""`ottla config`: read and change the settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import NotFound
from ottla.cli.connection import ClusterOptions, connection_options, parse_pairs
from ottla.cli.names import TOPIC_NAME
from ottla.cli.options import gathered_options, validate_only_option
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_data, print_rows

if TYPE_CHECKING:
    from ottla.admin.config_requests import Scope
    from ottla.admin.topic_state import ConfigValue
    from ottla.cli.cluster import ClusterClient

_COLUMNS = (
    Column("KEY", "name"),
    Column("VALUE", "value"),
    Column("SOURCE", "source"),
    Column("DEFAULT", "is_default"),
)
_SYNONYM_COLUMN = Column("SYNONYMS", "synonyms_text")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of settings: a topic, one broker, or all brokers."""

    topic: str | None
    broker: int | None

    def __str__(self) -> str:
        if self.topic is not None:
            return f"topic {self.topic}"
        return f"broker {self.broker}" if self.broker is not None else "broker defaults"

    def describe(self, cluster: ClusterClient) -> list[ConfigValue]:
        return cluster.describe_config(*self._resource(cluster))

    def alter(self, cluster: ClusterClient, values: dict[str, str], deleted: tuple[str, ...], *, dry_run: bool) -> None:
        scope, name = self._resource(cluster)
        cluster.alter_config(scope, name, values, deleted, dry_run=dry_run)

    def _resource(self, cluster: ClusterClient) -> tuple[Scope, str]:
        """Return the scope and the name of the settings. Raise NotFound if there is no such topic or broker."""
        if self.topic is not None:
            # Some brokers answer a request for the settings of an unknown topic with no setting.
            cluster.topic(self.topic)
            return "topic", self.topic
        if self.broker is None:
            return "broker", ""
        cluster.check_broker(self.broker)
        return "broker", str(self.broker)


def _owner(topic: str | None, broker: int | None, broker_defaults: bool) -> Owner:
    if [topic is not None, broker is not None, broker_defaults].count(True) != 1:
        raise click.UsageError("name exactly one of --topic NAME, --broker ID and --broker-defaults")
    return Owner(topic, broker)


#: --topic, --broker and --broker-defaults, one of which must be given; the command gets an `owner`
_owner_options = gathered_options(
    "owner",
    _owner,
    click.option("--topic", metavar="NAME", type=TOPIC_NAME, help="The settings of this topic."),
    click.option("--broker", metavar="ID", type=click.IntRange(min=0), help="The settings of this broker."),
    click.option("--broker-defaults", is_flag=True, help="The dynamic settings that all brokers share."),
)


@click.group("config")
def command() -> None:
    """Read and change the settings of topics and brokers."""


@command.command("get")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_owner_options
@connection_options
@output_option(TABLE, JSON, YAML)
def get(keys: tuple[str, ...], owner: Owner, connection: ClusterOptions, output: str) -> None:
    """Print the values of settings, one per line, in the order of the arguments."""
    known = {entry.name: entry for entry in owner.describe(connection.connect())}
    missing = [key for key in keys if key not in known]
    if missing:
        raise NotFound(f"{owner} has no setting {', '.join(missing)}; see 'ottla config describe'")
    if output == TABLE:
        for key in keys:
            click.echo(known[key].value or "")
    else:
        print_data([_row(known[key]) for key in keys], output)


@command.command("describe")
@_owner_options
@click.option("--changed", is_flag=True, help="Show only settings that differ from their default.")
@click.option("--synonyms", is_flag=True, help="Show all sources of each setting in order of precedence.")
@connection_options
@output_option()
def describe(owner: Owner, changed: bool, synonyms: bool, connection: ClusterOptions, output: str) -> None:
    """Print all settings with their values and the sources of the values."""
    entries = owner.describe(connection.connect())
    rows = [_row(entry, synonyms) for entry in entries if not (changed and entry.is_default)]
    if synonyms and output == TABLE:
        for row in rows:
            row["synonyms_text"] = [f"{s['source']}:{s['name']}={s['value']}" for s in row["synonyms"]]
    print_rows(rows, (*_COLUMNS, _SYNONYM_COLUMN) if synonyms else _COLUMNS, output, "name")


@command.command("set")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True, callback=parse_pairs)
@_owner_options
@validate_only_option
@connection_options
@output_option()
def set_values(pairs: dict[str, str], owner: Owner, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Change settings. Other settings are not changed."""
    owner.alter(connection.connect(), pairs, (), dry_run=dry_run)
    _report(owner, [f"{key}={value}" for key, value in pairs.items()], "would set" if dry_run else "set", output)
    if owner.topic is None:
        _warn_of_unknown(pairs)


@command.command("unset")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_owner_options
@validate_only_option
@connection_options
@output_option()
def unset(keys: tuple[str, ...], owner: Owner, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Reset settings to their defaults."""
    owner.alter(connection.connect(), {}, keys, dry_run=dry_run)
    _report(owner, list(keys), "would unset" if dry_run else "unset", output)


def _warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of names that are not settings. Brokers store them for plug-ins, so a misspelled name is not an error."""
    from ottla.model.setting_types import unknown_name
    from ottla.model.settings import BROKER_SETTINGS, unknown_settings

    for name in unknown_settings(names):
        click.echo(f"warning: {name} is stored and has no effect: {unknown_name(name, BROKER_SETTINGS)}", err=True)


def _report(owner: Owner, changes: list[str], done: str, output: str) -> None:
    if output == TABLE:
        for change in changes:
            click.echo(f"{done} {change} for {owner}")
    else:
        rows = [{"name": change.partition("=")[0], "owner": str(owner), "result": done} for change in changes]
        print_rows(rows, (), output, "name")


def _row(entry: ConfigValue, with_synonyms: bool = False) -> dict[str, Any]:
    row = asdict(entry)
    del row["synonyms"]
    if with_synonyms:
        row["synonyms"] = [{"name": each.name, "value": each.value, "source": each.source} for each in entry.synonyms]
    return row
