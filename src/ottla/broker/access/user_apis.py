"""Users with SCRAM credentials, and quotas of users, client ids and addresses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ottla.broker.access.throttling import Throttling
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.access_nodes import CLIENTS, IPS, USERS, credentials_in, entity_path, quotas_in, sanitize
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import config_json
from ottla.broker.metadata.store import Check, Create, Op, Put
from ottla.broker.metadata.view import AccessChanges, ClusterView
from ottla.broker.request import RequestContext
from ottla.env.deferred import between_slices
from ottla.env.metrics import Page, label_text
from ottla.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, Refused
from ottla.security.principals import is_name
from ottla.security.quotas import DEFAULT, Entity, Quota, is_address
from ottla.security.salts import ITERATIONS_MIN
from ottla.security.scram import ITERATIONS_MAX, Mechanism, ScramCredential
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NAME_CHARS_MAX = 256
_SALT_BYTES_MAX = 256
#: users, client ids and addresses with settings, so that the store is not filled
_ENTITIES_MAX = 100_000
_EXACT, _IS_DEFAULT, _ANY = 0, 1, 2
#: returns the settings of an entity after a change
Changing = Callable[[Mapping[str, str]], dict[str, str]]
_USER, _CLIENT, _IP = "user", "client-id", "ip"
#: quotas of addresses, and of users and client ids
_IP_QUOTAS = frozenset({Quota.CONNECTION.value})
_CLIENT_QUOTAS = frozenset(each.value for each in Quota) - _IP_QUOTAS
#: quotas that are whole numbers, and their maximum
_WHOLE_QUOTAS = {Quota.PRODUCE.value: 2**63 - 1, Quota.FETCH.value: 2**63 - 1, Quota.CONNECTION.value: 2**31 - 1}
#: as in Kafka, a number that is as close to a whole number is one
_FRACTION_MAX = 1e-6


class UserApis(Component):
    """The APIs of users and quotas."""

    def __init__(self, *, metadata: ClusterMetadata, throttling: Throttling) -> None:
        self._metadata = metadata
        self._throttling = throttling

    def metrics(self, page: Page) -> Iterator[None]:
        throttling = self._throttling
        for quota in Quota:
            labels = label_text(quota=quota.value)
            page.counter("ottla_throttled", "Times a quota was exceeded.", throttling.throttled[quota], labels)
            page.counter("ottla_throttle_seconds", "Throttle time of clients.", throttling.throttle_s[quota], labels)
        text = "Connections that are muted because of quotas."
        page.gauge("ottla_connections_muted", text, throttling.muted)
        yield

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            48: ServedApi(0, 1, self.describe_client_quotas, large_reply=True),
            49: ServedApi(0, 1, self.alter_client_quotas),
            50: ServedApi(0, 0, self.describe_user_scram_credentials, large_reply=True),
            51: ServedApi(0, 0, self.alter_user_scram_credentials),
        }

    def on_access(self, changed: AccessChanges) -> None:
        for about in changed:
            if isinstance(about, Entity):
                self._throttling.put(about, quotas_in(self._metadata.view.access.configs.get(about, {})))

    # -- SCRAM --------------------------------------------------------------------------------------------------------

    def describe_user_scram_credentials(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        """DescribeUserScramCredentials (50) v0. Null or no users asks for all. Keys are never shown."""
        if not context.may_cluster():
            return DescribeUserScramCredentialsResponse(error_code=_REFUSED, error_message=None)
        known = self._metadata.view.access.credentials
        names = [user.name for user in request.users or ()] or sorted(known)
        results = []
        for name, count in Counter(names).items():
            result = DescribeUserScramCredentialsResult(user=name, error_message=None)
            if count > 1:
                result.error_code = ErrorCode.DUPLICATE_RESOURCE
                result.error_message = "the request names this user more than once"
            elif name not in known:
                result.error_code = ErrorCode.RESOURCE_NOT_FOUND
                result.error_message = "this user has no SCRAM credentials"
            else:
                result.credential_infos = [
                    CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                    for mechanism, credential in sorted(known[name].items())
                ]
            results.append(result)
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        """AlterUserScramCredentials (51) v0. The changes of one user are all made, or none."""
        deletions, upsertions = _by_name(request.deletions), _by_name(request.upsertions)
        results = []
        for row, name in enumerate({**deletions, **upsertions}):
            await between_slices(row)
            deleted, upserted = deletions.get(name, []), upsertions.get(name, [])
            result = AlterUserScramCredentialsResult(user=name, error_message=None)
            try:
                if not context.may_cluster():
                    raise Refused(_REFUSED)
                if len({row.mechanism for row in (*deleted, *upserted)}) < len(deleted) + len(upserted):
                    raise Refused(ErrorCode.DUPLICATE_RESOURCE, "the request changes a credential more than once")
                await self._alter_user(name, deleted, upserted)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error) or None
            results.append(result)
        return AlterUserScramCredentialsResponse(results=results)

    async def _alter_user(self, name: str, deletions: Sequence[Any], upsertions: Sequence[Any]) -> None:
        if not is_name(name) or len(name) > _NAME_CHARS_MAX:
            text = f"the name of a user has 1 to {_NAME_CHARS_MAX} characters, and no control characters"
            raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
        deleted = [_mechanism(row.mechanism) for row in deletions]
        changed: dict[str, str] = {}
        for row in upsertions:
            mechanism = _mechanism(row.mechanism)
            if not ITERATIONS_MIN <= row.iterations <= ITERATIONS_MAX:
                text = f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
                raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
            # As in Kafka the salted password may have any length, because only keys that are made from it are stored.
            if not row.salt or len(row.salt) > _SALT_BYTES_MAX or not row.salted_password:
                text = f"a salt of 1 to {_SALT_BYTES_MAX} bytes and a salted password are needed"
                raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
            credential = ScramCredential.from_salted(
                mechanism, bytes(row.salt), bytes(row.salted_password), row.iterations
            )
            changed[mechanism.title] = credential.text()

        def change(config: Mapping[str, str]) -> dict[str, str]:
            known = credentials_in(config)
            if missing := [each for each in deleted if each not in known]:
                raise Refused(ErrorCode.RESOURCE_NOT_FOUND, f"this user has no credential of {missing[0].title}")
            removed = {each.title for each in deleted}
            return {**{key: text for key, text in config.items() if key not in removed}, **changed}

        await self._change(Entity(name), change)

    # -- quotas -------------------------------------------------------------------------------------------------------

    def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        """DescribeClientQuotas (48) v0-v1. v1 flexible."""
        if not context.may_cluster():
            return DescribeClientQuotasResponse(error_code=_REFUSED, error_message=None, entries=None)
        try:
            filters = _filters(request.components)
        except KafkaError as error:
            return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
        entries = []
        for entity, config in self._metadata.view.access.configs.items():
            values = quotas_in(config)
            if values and _matches(entity, filters, strict=request.strict):
                entries.append(EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in _parts(entity).items()],
                    values=[ValueData(key=key, value=value) for key, value in sorted(values.items())],
                ))  # fmt: skip
        return DescribeClientQuotasResponse(error_message="", entries=entries)

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, context: RequestContext
    ) -> AlterClientQuotasResponse:
        """AlterClientQuotas (49) v0-v1. v1 flexible. The changes of one entity are all made, or none."""
        # As in Kafka the last name of a type counts.
        names = [{each.entity_type: each.entity_name for each in entry.entity} for entry in request.entries]
        counts = Counter(tuple(sorted(each.items(), key=repr)) for each in names)
        results: dict[object, AlterClientQuotasResponseEntryData] = {}
        for entry, named in zip(request.entries, names, strict=True):
            key = tuple(sorted(named.items(), key=repr))
            result = results[key] = AlterClientQuotasResponseEntryData(
                error_message=None,
                entity=[
                    AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=name)
                    for kind, name in named.items()
                ],
            )
            try:
                if not context.may_cluster():
                    raise Refused(_REFUSED)
                if counts[key] > 1:
                    raise InvalidRequest("the request changes the quotas of an entity more than once")
                await self._alter_quotas(_entity(named), entry.ops, validate_only=request.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error) or None
        return AlterClientQuotasResponse(entries=list(results.values()))

    async def _alter_quotas(self, entity: Entity, ops: Sequence[OpData], *, validate_only: bool) -> None:
        allowed = _IP_QUOTAS if entity.ip is not None else _CLIENT_QUOTAS
        for op in ops:
            if not op.remove:
                _check_quota(op.key, op.value, allowed)
        if len({op.key for op in ops}) != len(ops):
            raise InvalidRequest("the request changes a quota more than once")

        def change(config: Mapping[str, str]) -> dict[str, str]:
            changed = dict(config)
            for op in ops:
                if op.key in allowed:
                    changed.pop(op.key, None)
                    if not op.remove:
                        changed[op.key] = repr(op.value)
            return changed

        if not validate_only:
            await self._change(entity, change)

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _change(self, entity: Entity, change: Changing) -> None:
        """Change the settings of an entity. Its node stays when it has none left, so that its version only rises."""
        path = entity_path(entity)

        def decide(view: ClusterView) -> tuple[Sequence[Op], None]:
            before = view.access.configs.get(entity, {})
            after = change(before)
            if after == before:
                return [], None
            if not before and len(view.access.configs) >= _ENTITIES_MAX:
                raise PolicyViolation(f"{_ENTITIES_MAX} users, client ids and addresses have settings already")
            version = view.versions.get(path)
            if version is not None:
                return [Put(path, config_json(after), version)], None
            root = IPS if entity.ip is not None else CLIENTS if entity.user is None else USERS
            parents = _missing_parents(view, entity)
            return [Check(root, view.versions[root]), *parents, Create(path, config_json(after))], None

        await self._metadata.write(decide)


def _mechanism(number: int) -> Mechanism:
    try:
        return Mechanism(number)
    except ValueError:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {number}") from None


def _filters(components: Sequence[ComponentData]) -> dict[str, ComponentData]:
    """Return the filters by type of entity. Raise a KafkaError if they are not valid."""
    found: dict[str, ComponentData] = {}
    for each in components:
        if not each.entity_type:
            raise InvalidRequest("a filter has no entity type")
        if each.entity_type not in (_USER, _CLIENT, _IP):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"there are no quotas of {each.entity_type!r}")
        if each.entity_type in found:
            raise InvalidRequest(f"the filter names {each.entity_type} more than once")
        if each.match_type not in (_EXACT, _IS_DEFAULT, _ANY) or (each.match_type == _EXACT) == (each.match is None):
            raise InvalidRequest("a filter matches a name, the default, or everything")
        found[each.entity_type] = each
    if _IP in found and len(found) > 1:
        raise InvalidRequest("quotas of addresses do not depend on users and client ids")
    return found


def _parts(entity: Entity) -> dict[str, str | None]:
    """Return the names of an entity by type; None for the default."""
    named = {_USER: entity.user, _CLIENT: entity.client_id, _IP: entity.ip}
    return {kind: None if name == DEFAULT else name for kind, name in named.items() if name is not None}


def _matches(entity: Entity, filters: Mapping[str, ComponentData], *, strict: bool) -> bool:
    parts = _parts(entity)
    if (strict and parts.keys() != filters.keys()) or not filters.keys() <= parts.keys():
        return False
    for kind, wanted in filters.items():
        name = parts[kind]
        if wanted.match_type == _EXACT and name != wanted.match:
            return False
        if wanted.match_type == _IS_DEFAULT and name is not None:
            return False
    return True


def _check_quota(name: str, value: float, allowed: frozenset[str]) -> None:
    """Raise InvalidRequest if there is no such quota for the entity, or if the value is not valid."""
    if name not in allowed:
        raise InvalidRequest(f"{name!r} is no quota of this entity; use one of {', '.join(sorted(allowed))}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"{name} must be a number above 0")
    if name in _WHOLE_QUOTAS:
        if value > _WHOLE_QUOTAS[name]:
            raise InvalidRequest(f"{name} must not be above {_WHOLE_QUOTAS[name]}")
        if abs(value - round(value)) > _FRACTION_MAX:
            raise InvalidRequest(f"{name} must be a whole number")


def _entity(names: Mapping[str, str | None]) -> Entity:
    """Return the entity with these names. Raise InvalidRequest if it cannot have quotas."""
    if not names or not names.keys() <= {_USER, _CLIENT, _IP} or (_IP in names and len(names) > 1):
        raise InvalidRequest("a quota is for a user, a client-id, both of them, or an ip")
    for name in names.values():
        if name is not None and not 0 < len(name) <= _NAME_CHARS_MAX:
            raise InvalidRequest(f"names have 1 to {_NAME_CHARS_MAX} characters")
        if name == DEFAULT:
            raise InvalidRequest(f"{DEFAULT} is no name; leave the name out to set the default")
    if (address := names.get(_IP)) is not None and not is_address(address):
        raise InvalidRequest(f"{address!r} is no IP address")
    known = {kind: DEFAULT if name is None else name for kind, name in names.items()}
    return Entity(known.get(_USER), known.get(_CLIENT), known.get(_IP))


def _missing_parents(view: ClusterView, entity: Entity) -> list[Op]:
    """Return the operations that create the nodes above that of a user and client id."""
    if entity.user is None or entity.client_id is None:
        return []
    user = f"{USERS}/{sanitize(entity.user)}"
    values = {user: config_json({}), f"{user}/clients": b""}
    return [Create(path, value) for path, value in values.items() if path not in view.versions]


def _by_name(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the rows of each user. To look at all rows for each of thousands of users would take seconds."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found
