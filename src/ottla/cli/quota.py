"""`ottla quota`: list and change the quotas of users, client ids and addresses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from ottla.admin.failure import NotFound
from ottla.cli.connection import ClusterOptions, connection_options, parse_pairs
from ottla.cli.options import gathered_options, validate_only_option
from ottla.cli.output import Column, output_option, print_rows
from ottla.cli.watch import WatchCommand

if TYPE_CHECKING:
    from ottla.admin.quotas import Names

_COLUMNS = (
    Column("USER", "user"), Column("CLIENT ID", "client_id"), Column("IP", "ip"), Column("QUOTA", "quota"),
    Column("VALUE", "value"),
)  # fmt: skip
_CHANGE_COLUMNS = (*_COLUMNS, Column("STATUS", "status"))


def _names(
    *,
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> Names:
    names: dict[str, str | None] = {}
    for kind, name, is_default in (
        ("user", user, default_user), ("client-id", client_id, default_client_id), ("ip", ip, default_ip),
    ):  # fmt: skip
        if name is not None and is_default:
            raise click.UsageError(f"name only one of --{kind} and --default-{kind}")
        if name is not None or is_default:
            names[kind] = name
    if "ip" in names and len(names) > 1:
        raise click.UsageError(
            "quotas of addresses do not depend on users and client ids; leave out --user and --client-id, or --ip"
        )
    return names


#: --user, --client-id, --ip and their defaults; the command gets `names`
_entity_options = gathered_options(
    "names",
    _names,
    click.option("--user", metavar="NAME", help="The quotas of this user."),
    click.option("--default-user", is_flag=True, help="The quotas of each user that has none of its own."),
    click.option("--client-id", metavar="ID", help="The quotas of this client id."),
    click.option("--default-client-id", is_flag=True, help="The quotas of each client id that has none of its own."),
    click.option("--ip", metavar="ADDRESS", help="The quotas of this address."),
    click.option("--default-ip", is_flag=True, help="The quotas of each address that has none of its own."),
)


def _parse_rates(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    rates = {}
    for name, text in parse_pairs(ctx, parameter, texts).items():
        try:
            rates[name] = float(text)
        except ValueError:
            rates[name] = math.nan
        if not rates[name] > 0 or math.isinf(rates[name]):
            raise click.BadParameter(
                f"{name}={text}: the value is not a number above 0; a quota is removed with 'ottla quota remove'",
                ctx,
                parameter,
            )
    return rates


@click.group("quota")
def command() -> None:
    """List and change the quotas of users, client ids and addresses.

    Quotas of users and client ids: producer_byte_rate and consumer_byte_rate (bytes per second), request_percentage
    (of the time of one CPU), controller_mutation_rate (partitions created or deleted per second). Quota of addresses:
    connection_creation_rate (connections per second). Each broker applies them on its own.
    """


@command.command("list", cls=WatchCommand)
@_entity_options
@connection_options
@output_option()
def list_quotas(names: Names, connection: ClusterOptions, output: str) -> None:
    """Print quotas: all, or those of a user, a client id or an address."""
    from ottla.admin import quotas
    from ottla.cli.cluster import opened_client

    with opened_client(connection) as client:
        rows = quotas.describe(client, names, strict=False)
    print_rows(rows, _COLUMNS, output, "entity")


@command.command("set")
@click.argument("rates", metavar="QUOTA=VALUE...", nargs=-1, required=True, callback=_parse_rates)
@_entity_options
@validate_only_option
@connection_options
@output_option()
def set_quotas(rates: dict[str, float], names: Names, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Set quotas of a user, a client id, both together, or an address. Other quotas are not changed."""
    from ottla.admin import quotas
    from ottla.cli.cluster import ClusterClient

    _require(names)
    with ClusterClient(connection) as client:
        quotas.alter(client, names, rates, dry_run=dry_run)
    status = "would set" if dry_run else "set"
    rows = [{**quotas.fields(names), "quota": name, "value": rate, "status": status} for name, rate in rates.items()]
    print_rows(rows, _CHANGE_COLUMNS, output, "entity")


@command.command("remove")
@click.argument("named", metavar="[QUOTA...]", nargs=-1)
@_entity_options
@validate_only_option
@connection_options
@output_option()
def remove(named: tuple[str, ...], names: Names, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Remove quotas of a user, a client id, both together, or an address: those named, or all."""
    from ottla.admin import quotas
    from ottla.cli.cluster import ClusterClient

    _require(names)
    with ClusterClient(connection) as client:
        known = {row["quota"]: row for row in quotas.describe(client, names, strict=True)}
        wanted = list(named or known)
        if missing := [name for name in wanted if name not in known]:
            raise NotFound(f"{quotas.title(names)} has no quota {', '.join(missing)}; see 'ottla quota list'")
        if not wanted:
            raise NotFound(f"{quotas.title(names)} has no quotas; see 'ottla quota list'")
        quotas.alter(client, names, dict.fromkeys(wanted), dry_run=dry_run)
    status = "would remove" if dry_run else "removed"
    print_rows([{**known[name], "status": status} for name in wanted], _CHANGE_COLUMNS, output, "entity")


def _require(names: Names) -> None:
    if not names:
        raise click.UsageError("name a user, a client id or an address: --user, --client-id, --ip or their defaults")
