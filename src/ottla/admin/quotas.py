"""The quotas of users, client ids and addresses: list and change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.admin.client import AdminClient
from ottla.admin.error_codes import check
from ottla.model.printable import shown
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

#: names by type of entity; None for the default
Names = Mapping[str, str | None]

USER, CLIENT_ID, IP = "user", "client-id", "ip"
#: how the default of a type is shown
DEFAULT = "<default>"
_EXACT, _IS_DEFAULT = 0, 1


def describe(client: AdminClient, names: Names, *, strict: bool) -> list[dict[str, Any]]:
    """Return a row for each quota. With ``strict`` only those of exactly this entity."""
    components = [
        ComponentData(entity_type=kind, match_type=_IS_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in names.items()
    ]
    reply = client.ask_any(DescribeClientQuotasRequest(components=components, strict=strict))
    check(reply.error_code, "quotas", reply.error_message)
    return rows_of(reply)


def rows_of(reply: DescribeClientQuotasResponse) -> list[dict[str, Any]]:
    """Return a row for each quota in a reply without an error."""
    rows = []
    for entry in reply.entries or ():
        named = {
            part.entity_type: None if part.entity_name is None else shown(part.entity_name) for part in entry.entity
        }
        rows += [{**fields(named), "quota": shown(each.key), "value": _plain(each.value)} for each in entry.values]
    return sorted(rows, key=lambda row: (row["ip"] or "", row["user"] or "", row["client_id"] or "", row["quota"]))


def alter(client: AdminClient, names: Names, rates: Mapping[str, float | None], *, dry_run: bool) -> None:
    """Set quotas of an entity; None removes one. Raise a Failure if the cluster refuses that."""
    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()],
    )
    for row in client.ask_any(AlterClientQuotasRequest(entries=[entry], validate_only=dry_run)).entries:
        check(row.error_code, f"quotas of {title(names)}", row.error_message)


def fields(names: Names) -> dict[str, Any]:
    values = {kind: DEFAULT if name is None else name for kind, name in names.items()}
    entity = ",".join(f"{kind}={name}" for kind, name in values.items())
    return {"entity": entity, "user": values.get(USER), "client_id": values.get(CLIENT_ID), "ip": values.get(IP)}


def title(names: Names) -> str:

    return ", ".join(f"{kind} {DEFAULT if name is None else shown(name)}" for kind, name in names.items())


def _plain(value: float) -> float:
    """Return whole numbers without a fraction."""
    return int(value) if value.is_integer() else value
