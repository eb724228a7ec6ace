"""`ottla quota`: list and change the quotas of users, client ids and addresses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.connection import ClusterOptions, connection_options, parse_pairs
from ottla.cli.failure import NotFound
from ottla.cli.options import gathered_options, validate_only_option
from ottla.cli.output import Column, output_option, print_rows

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

#: names by type of entity; None for the default
Names = Mapping[str, str | None]

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
#: how the default of a type is shown
_DEFAULT = "<default>"
_EXACT, _IS_DEFAULT = 0, 1
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
        (_USER, user, default_user), (_CLIENT_ID, client_id, default_client_id), (_IP, ip, default_ip),
    ):  # fmt: skip
        if name is not None and is_default:
            raise click.UsageError(f"name only one of --{kind} and --default-{kind}")
        if name is not None or is_default:
            names[kind] = name
    if _IP in names and len(names) > 1:
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


@command.command("list")
@_entity_options
@connection_options
@output_option()
def list_quotas(names: Names, connection: ClusterOptions, output: str) -> None:
    """Print quotas: all, or those of a user, a client id or an address."""
    from ottla.cli.cluster import ClusterClient

    with ClusterClient(connection) as client:
        rows = _describe(client, names, strict=False)
    print_rows(rows, _COLUMNS, output, "entity")


@command.command("set")
@click.argument("rates", metavar="QUOTA=VALUE...", nargs=-1, required=True, callback=_parse_rates)
@_entity_options
@validate_only_option
@connection_options
@output_option()
def set_quotas(rates: dict[str, float], names: Names, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Set quotas of a user, a client id, both together, or an address. Other quotas are not changed."""
    from ottla.cli.cluster import ClusterClient

    _require(names)
    with ClusterClient(connection) as client:
        _alter(client, names, rates, dry_run=dry_run)
    status = "would set" if dry_run else "set"
    rows = [{**_fields(names), "quota": name, "value": rate, "status": status} for name, rate in rates.items()]
    print_rows(rows, _CHANGE_COLUMNS, output, "entity")


@command.command("remove")
@click.argument("quotas", metavar="[QUOTA...]", nargs=-1)
@_entity_options
@validate_only_option
@connection_options
@output_option()
def remove(quotas: tuple[str, ...], names: Names, dry_run: bool, connection: ClusterOptions, output: str) -> None:
    """Remove quotas of a user, a client id, both together, or an address: those named, or all."""
    from ottla.cli.cluster import ClusterClient

    _require(names)
    with ClusterClient(connection) as client:
        known = {row["quota"]: row for row in _describe(client, names, strict=True)}
        wanted = list(quotas or known)
        if missing := [name for name in wanted if name not in known]:
            raise NotFound(f"{_title(names)} has no quota {', '.join(missing)}; see 'ottla quota list'")
        if not wanted:
            raise NotFound(f"{_title(names)} has no quotas; see 'ottla quota list'")
        _alter(client, names, dict.fromkeys(wanted), dry_run=dry_run)
    status = "would remove" if dry_run else "removed"
    print_rows([{**known[name], "status": status} for name in wanted], _CHANGE_COLUMNS, output, "entity")


def _require(names: Names) -> None:
    if not names:
        raise click.UsageError("name a user, a client id or an address: --user, --client-id, --ip or their defaults")


def _describe(client: ClusterClient, names: Names, *, strict: bool) -> list[dict[str, Any]]:
    """Return a row for each quota. With ``strict`` only those of exactly this entity."""
    from ottla.cli.error_codes import check
    from ottla.cli.output import shown
    from ottla.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    components = [
        ComponentData(entity_type=kind, match_type=_IS_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in names.items()
    ]
    reply = client.ask_any(DescribeClientQuotasRequest(components=components, strict=strict))
    check(reply.error_code, "quotas", reply.error_message)
    rows = []
    for entry in reply.entries or ():
        named = {
            part.entity_type: None if part.entity_name is None else shown(part.entity_name) for part in entry.entity
        }
        rows += [{**_fields(named), "quota": shown(each.key), "value": _plain(each.value)} for each in entry.values]
    return sorted(rows, key=lambda row: (row["ip"] or "", row["user"] or "", row["client_id"] or "", row["quota"]))


def _alter(client: ClusterClient, names: Names, rates: Mapping[str, float | None], *, dry_run: bool) -> None:
    """Set quotas of an entity; None removes one. Raise a Failure if the cluster refuses that."""
    from ottla.cli.error_codes import check
    from ottla.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntityData,
        AlterClientQuotasRequestEntryData,
        OpData,
    )

    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()],
    )
    for row in client.ask_any(AlterClientQuotasRequest(entries=[entry], validate_only=dry_run)).entries:
        check(row.error_code, f"quotas of {_title(names)}", row.error_message)


def _fields(names: Names) -> dict[str, Any]:
    values = {kind: _DEFAULT if name is None else name for kind, name in names.items()}
    entity = ",".join(f"{kind}={name}" for kind, name in values.items())
    return {"entity": entity, "user": values.get(_USER), "client_id": values.get(_CLIENT_ID), "ip": values.get(_IP)}


def _title(names: Names) -> str:
    from ottla.cli.output import shown

    return ", ".join(f"{kind} {_DEFAULT if name is None else shown(name)}" for kind, name in names.items())


def _plain(value: float) -> float:
    """Return whole numbers without a fraction."""
    return int(value) if value.is_integer() else value
