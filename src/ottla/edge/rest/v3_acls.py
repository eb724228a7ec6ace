"""Version 3: ACLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.client.cluster import Cluster
from ottla.edge.rest import resources
from ottla.edge.rest.admin import ask_any, ask_controller, check
from ottla.edge.rest.bodies import TEXT_BYTES_MAX, Fields, read_required
from ottla.edge.rest.errors import BAD_REQUEST, INVALID_PAYLOAD, bad_request, unprocessable
from ottla.edge.rest.proxy import KAFKA_ERRORS, Proxy, answer, list_schema, no_content, request_schema
from ottla.edge.rest.resources import Links
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.json_schemas import NULLABLE_TEXT, TEXT, enum_of, list_of, object_of
from ottla.security.acls import CLUSTER_NAME, PatternType, Permission, ResourceType
from ottla.security.acls import Operation as AclOperation
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.describe_acls import DescribeAclsRequest

_VERSION_MIN: Final = 1
_CREATE_MAX: Final = 1000
#: the fields of an ACL, in the order of Confluent's links
_ENUMS: Final[Mapping[str, type[IntEnum]]] = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission": Permission,
}
_FIELDS: Final = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")

_DATA: Final = {"title": "KafkaAcl", **object_of({
    "kind": {"const": "KafkaAcl"}, "metadata": object_of({"self": TEXT}, {"resource_name": NULLABLE_TEXT}),
    "cluster_id": TEXT, **dict.fromkeys(_FIELDS, TEXT),
})}  # fmt: skip
_NEW: Final = request_schema({name: enum_of(*_ENUMS[name].__members__) if name in _ENUMS else TEXT for name in _FIELDS})


class AclRoutes:
    """Handlers of ACLs."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        query = [
            Parameter(name, f"Only ACLs with this {name.replace('_', ' ')}.", _NEW["properties"][name])
            for name in _FIELDS
        ]
        found = object_of({"data": list_of(_DATA)})
        errors = {**KAFKA_ERRORS, 422: "The body is empty (42206), or a field is missing."}
        row = partial(self._proxy.operation, tag="ACL (v3)", errors=errors)
        several = request_schema({"data": list_of(_NEW)})
        return [
            row("acls.list", "GET acls", self.search, "Search ACLs", list_schema(_DATA), query=query),
            row("acls.create", "POST acls", self.create, "Create an ACL", body=_NEW, answers={201: None}),
            row("acls.delete", "DELETE acls", self.delete, "Delete the ACLs that match, and return them", found,
                query=query),
            row("acls.batch-create", "POST acls:batch", self.create_batch, "Create several ACLs", body=several),
        ]  # fmt: skip

    async def search(self, request: Request, links: Links) -> Response:
        wanted = _filter(request, default="ANY")
        found = await self._proxy.call(request, _describe, _request_filter(wanted))
        url = resources.acl_url(links, wanted)
        rows = [resources.acl(links, each) for each in sorted(found, key=_order)]
        return answer({"kind": "KafkaAclList", "metadata": {"self": url, "next": None}, "data": rows})

    async def create(self, request: Request, links: Links) -> Response:
        acl = _new_acl(await read_required(request))
        await self._proxy.call(request, _create, [acl])
        return Response(status_code=201, headers={"location": resources.acl_url(links, acl)})

    async def create_batch(self, request: Request, links: Links) -> Response:
        fields = await read_required(request)
        if not fields.has("data"):
            raise unprocessable("Payload error. data is required.", INVALID_PAYLOAD)
        entries = fields.objects("data")
        if len(entries) > _CREATE_MAX:
            raise bad_request(f"data has more than {_CREATE_MAX} entries")
        await self._proxy.call(request, _create, [_new_acl(each) for each in entries])
        return no_content()

    async def delete(self, request: Request, links: Links) -> Response:
        wanted = _filter(request, default="UNKNOWN")
        deleted = await self._proxy.call(request, _delete, _request_filter(wanted))
        return answer({"data": [resources.acl(links, each) for each in sorted(deleted, key=_order)]})


def _filter(request: Request, *, default: str) -> dict[str, str]:
    """Return the filter in the query. Raise HttpError 400 for UNKNOWN, because it would select by mistake."""
    wanted = {}
    for name in _FIELDS:
        text = request.query_params.get(name, default if name in _ENUMS else "")
        if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
            raise bad_request(f"{name} is longer than {TEXT_BYTES_MAX:,} bytes")
        if name in _ENUMS:
            text = text.upper()
            if text == "UNKNOWN":
                raise bad_request(f"{name} cannot be {'unspecified or ' if default == 'UNKNOWN' else ''}UNKNOWN")
            if text not in _ENUMS[name].__members__:
                raise HttpError(404, 404, f"HTTP 404 Not Found: {name} has no value {text[:80]}")
        wanted[name] = text
    return wanted


def _new_acl(fields: Fields) -> dict[str, str]:
    """Return an ACL of a body. Raise HttpError 400 for a value that only a filter may have."""
    acl = {}
    for name in _FIELDS:
        if name not in _ENUMS:
            acl[name] = fields.text(name)
            continue
        acl[name] = fields.choice(name, ("UNKNOWN", *_ENUMS[name].__members__))
        if acl[name] in ("UNKNOWN", "ANY", "MATCH"):
            raise bad_request(f"{name} cannot be {acl[name]}")
    if acl["resource_type"] == "CLUSTER" and acl["resource_name"] != CLUSTER_NAME:
        raise HttpError(400, BAD_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    return acl


def _order(acl: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(acl[name] for name in _FIELDS)


def _request_filter(wanted: Mapping[str, str]) -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType[wanted["resource_type"]],
        "resource_name_filter": wanted["resource_name"] or None,
        "pattern_type_filter": PatternType[wanted["pattern_type"]],
        "principal_filter": wanted["principal"] or None,
        "host_filter": wanted["host"] or None,
        "operation": AclOperation[wanted["operation"]],
        "permission_type": Permission[wanted["permission"]],
    }


def _acl(resource: Any, entry: Any) -> dict[str, str]:
    return {
        "resource_type": _word(ResourceType, resource.resource_type),
        "resource_name": resource.resource_name,
        "pattern_type": _word(PatternType, resource.pattern_type),
        "principal": entry.principal,
        "host": entry.host,
        "operation": _word(AclOperation, entry.operation),
        "permission": _word(Permission, entry.permission_type),
    }


def _word(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in kind._value2member_map_ else "UNKNOWN"


def _describe(cluster: Cluster, fields: Mapping[str, Any]) -> list[dict[str, str]]:
    def read(found: Any) -> list[dict[str, str]]:
        check(found.error_code, "ACLs", found.error_message)
        return [_acl(resource, entry) for resource in found.resources for entry in resource.acls]

    return ask_any(cluster, "ACLs", DescribeAclsRequest(**fields), read, _VERSION_MIN)


def _create(cluster: Cluster, acls: Sequence[Mapping[str, str]]) -> None:
    creations = [
        AclCreation(
            resource_type=ResourceType[acl["resource_type"]], resource_name=acl["resource_name"],
            resource_pattern_type=PatternType[acl["pattern_type"]], principal=acl["principal"], host=acl["host"],
            operation=AclOperation[acl["operation"]], permission_type=Permission[acl["permission"]],
        )
        for acl in acls
    ]  # fmt: skip

    def read(found: Any) -> None:
        for result in found.results:
            check(result.error_code, "ACL", result.error_message)

    ask_controller(cluster, "ACLs", CreateAclsRequest(creations=creations), read)


def _delete(cluster: Cluster, fields: Mapping[str, Any]) -> list[dict[str, str]]:
    def read(found: Any) -> list[dict[str, str]]:
        (result,) = found.filter_results
        check(result.error_code, "ACLs", result.error_message)
        for each in result.matching_acls:
            check(each.error_code, "ACL", each.error_message)
        return [_acl(each, each) for each in result.matching_acls]

    return ask_controller(cluster, "ACLs", DeleteAclsRequest(filters=[DeleteAclsFilter(**fields)]), read)
