"""`kafka-configs` for users, clients and addresses: quotas, and SCRAM credentials of users."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ottla.admin import quotas, users
from ottla.cli.kafka.connection import Admin
from ottla.cli.kafka.errors import IllegalArgument, RequestError, ToolError, check
from ottla.cli.kafka.java import double, hash_order, joined, map_order
from ottla.cli.kafka.tool import print_line
from ottla.model.errors import ErrorCode
from ottla.model.hashing import java_hash
from ottla.security.scram import Mechanism
from ottla.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from ottla.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

_USERS, _CLIENTS, _IPS = "users", "clients", "ips"
_KINDS = {_USERS: quotas.USER, _CLIENTS: quotas.CLIENT_ID, _IPS: quotas.IP}
_TITLES = {quotas.USER: "user-principal", quotas.CLIENT_ID: "client-id", quotas.IP: "ip"}
_QUOTAS = frozenset({"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"})
_IP_QUOTAS = frozenset({"connection_creation_rate"})
_MECHANISMS = {f"SCRAM-SHA-{size}": Mechanism[f"SCRAM_SHA_{size}"] for size in (256, 512)}
_EXACT, _DEFAULT, _ANY = 0, 1, 2
_ITERATIONS_MIN = 4096
_CREDENTIAL = re.compile(r"(?:iterations=(-?[0-9]*),)?password=(.*)", re.DOTALL)

#: the name of each part of an entity by its kind; None for the default
_Entity = tuple[tuple[str, str | None], ...]


# Changes


def alter(admin: Admin, entity: Mapping[str, str], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Change the quotas of users, clients or addresses, or the credentials of a user. "" names a default."""
    if _IPS in entity:
        unknown = [key for key in (*added, *deleted) if key not in _IP_QUOTAS]
        if unknown:
            raise IllegalArgument(
                "Only connection quota configs can be added for 'ips' using --bootstrap-server. Unexpected config "
                f"names: {joined(unknown)}"
            )
        _alter_quotas(admin, entity, added, deleted)
        return
    is_user_alone = _CLIENTS not in entity
    allowed = {*_QUOTAS, *_MECHANISMS} if is_user_alone else _QUOTAS
    _check_names("added", added, allowed, is_user_alone=is_user_alone)
    _check_names("deleted", deleted, allowed, is_user_alone=is_user_alone)
    if not {*added, *deleted} & {*_MECHANISMS}:
        _alter_quotas(admin, entity, added, deleted)
        return
    if "" in entity.values():
        raise IllegalArgument(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials using "
            "--bootstrap-server."
        )
    if {*added, *deleted} & _QUOTAS:
        raise IllegalArgument(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using --bootstrap-server."
        )
    _alter_credentials(admin, entity[_USERS], added, deleted)


def _check_names(verb: str, names: Collection[str], allowed: Collection[str], *, is_user_alone: bool) -> None:
    unknown = [name for name in names if name not in allowed]
    if unknown:
        what, kind = ("quota and SCRAM credential", _USERS) if is_user_alone else ("quota", _CLIENTS)
        raise IllegalArgument(
            f"Only {what} configs can be {verb} for '{kind}' using --bootstrap-server. Unexpected config names: "
            f"List({', '.join(unknown)})"
        )


def _alter_quotas(admin: Admin, entity: Mapping[str, str], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    from ottla.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntityData,
        AlterClientQuotasRequestEntryData,
        OpData,
    )

    old = next(iter(_quotas(admin, list(entity), list(entity.values())).values()), {})
    invalid = [key for key in deleted if key not in old]
    if invalid:
        raise ToolError(f"Invalid config(s): {joined(invalid)}")
    operations = [OpData(key=key, value=_rate(key, value), remove=False) for key, value in added.items()]
    operations += [OpData(key=key, value=0.0, remove=True) for key in deleted]
    parts = [
        AlterClientQuotasRequestEntityData(entity_type=_KINDS[kind], entity_name=name or None)
        for kind, name in entity.items()
    ]
    entry = AlterClientQuotasRequestEntryData(entity=parts, ops=operations)
    for row in admin.ask_any(AlterClientQuotasRequest(entries=[entry])).entries:
        check(row.error_code, row.error_message)


def _rate(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise IllegalArgument(f"Cannot parse quota configuration value for {key}: {text}") from None


def _alter_credentials(admin: Admin, user: str, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    credentials = []
    for name, text in added.items():
        found = _CREDENTIAL.fullmatch(text)
        if found is None:
            raise IllegalArgument(f"Invalid credential property {name.replace('-', '_')}={text}")
        iterations = int(found[1]) if found[1] not in (None, "", "-1") else _ITERATIONS_MIN
        if iterations < _ITERATIONS_MIN:
            raise IllegalArgument(
                f"Iterations {iterations} is less than the minimum {_ITERATIONS_MIN} required for {name}"
            )
        credentials += users.credentials_of(found[2].encode(), [_MECHANISMS[name]], iterations)
    if deleted:
        users.delete(admin, {user: [_MECHANISMS[name] for name in deleted]})
    if credentials:
        users.upsert(admin, user, credentials)


# Descriptions


def describe(admin: Admin, kinds: Sequence[str], names: Sequence[str]) -> None:
    """Print quotas, and the credentials of users."""
    for entity, values in _quotas(admin, kinds, names).items():
        parts = dict(entity)
        shown = [
            f"the default {title}" if parts[kind] is None else f"{title} '{parts[kind]}'"
            for kind, title in _TITLES.items()
            if kind in parts
        ]
        rates = [f"{key}={double(values[key])}" for key in hash_order(values, len(values))]
        print_line(f"Quota configs for {', '.join(shown)} are {', '.join(rates)}")
    if _USERS in kinds and _CLIENTS not in kinds and "" not in names:
        _describe_credentials(admin, names)


def _quotas(admin: Admin, kinds: Sequence[str], names: Sequence[str]) -> dict[_Entity, dict[str, float]]:
    if len(names) > len(kinds):
        raise IllegalArgument("More entity names specified than entity types")
    components = []
    for at, kind in enumerate(kinds):
        name = names[at] if at < len(names) else None
        match = _ANY if name is None else _EXACT if name else _DEFAULT
        components.append(ComponentData(entity_type=_KINDS[kind], match_type=match, match=name or None))
    reply = admin.ask_any(DescribeClientQuotasRequest(components=components, strict=True))
    check(reply.error_code, reply.error_message)
    found: dict[_Entity, dict[str, float]] = {}
    for entry in reply.entries or ():
        entity = tuple((part.entity_type, part.entity_name) for part in entry.entity)
        found[entity] = {each.key: each.value for each in entry.values}
    return {entity: found[entity] for entity in map_order({each: _hash(each) for each in found}, len(found) or 1)}


def _hash(entity: _Entity) -> int:
    """Return ClientQuotaEntity.hashCode of Java."""
    return 31 + sum(java_hash(kind) ^ (0 if name is None else java_hash(name)) for kind, name in entity)


def _describe_credentials(admin: Admin, names: Sequence[str]) -> None:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    answer: Any = admin.ask_any(request)
    check(answer.error_code, answer.error_message)
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if result.error_code:
            error = RequestError(result.error_code, result.error_message)
            print_line(
                f"Error retrieving SCRAM credential configs for user-principal '{result.user}': "
                f"{error.java_class.rpartition('.')[2]}: {error}"
            )
            continue
        titles = {each: name for name, each in _MECHANISMS.items()}
        infos = [
            f"{titles[Mechanism(each.mechanism)]}=iterations={each.iterations}" for each in result.credential_infos
        ]
        print_line(f"SCRAM credential configs for user-principal '{result.user}' are {', '.join(infos)}")
