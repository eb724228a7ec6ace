"""The ACLs of a cluster: list, create and delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ottla.admin.client import AdminClient
from ottla.admin.error_codes import check
from ottla.security.acls import Operation, PatternType, Permission, ResourceType
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

#: first versions with patterns
_VERSION_MIN = 1


class Acl(NamedTuple):
    """One ACL, or a filter that selects ACLs; None and ANY select all."""

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def row(self) -> dict[str, Any]:
        """Return the ACL as REST v3 shows it."""
        return {
            "resource_type": self.resource_type.name, "resource_name": self.resource_name,
            "pattern_type": self.pattern_type.name, "principal": self.principal, "host": self.host,
            "operation": self.operation.name, "permission": self.permission.name,
        }  # fmt: skip


def describe(client: AdminClient, filters: Sequence[Acl]) -> set[Acl]:
    """Return the ACLs that one of the filters selects."""
    found: set[Acl] = set()
    for each in filters:
        answer = client.ask_any(describe_request(each), _VERSION_MIN)
        check(answer.error_code, "the ACLs", answer.error_message)
        found |= acls_of(answer)
    return found


def describe_request(selected: Acl) -> DescribeAclsRequest:
    """Return a request for the ACLs that a filter selects."""
    return DescribeAclsRequest(**_filter(selected))


def acls_of(answer: DescribeAclsResponse) -> set[Acl]:
    """Return the ACLs in a reply without an error."""
    return {_acl(resource, acl) for resource in answer.resources for acl in resource.acls}


def create(client: AdminClient, acls: Sequence[Acl]) -> None:
    creations = [
        AclCreation(
            resource_type=each.resource_type, resource_name=each.resource_name or "",
            resource_pattern_type=each.pattern_type, principal=each.principal or "", host=each.host or "",
            operation=each.operation, permission_type=each.permission,
        )
        for each in acls
    ]  # fmt: skip
    answer = client.ask_any(CreateAclsRequest(creations=creations), _VERSION_MIN)
    for acl, result in zip(acls, answer.results, strict=True):
        check(result.error_code, _subject(acl), result.error_message)


def delete(client: AdminClient, filters: Sequence[Acl]) -> set[Acl]:
    """Delete the ACLs that one of the filters selects, and return them."""
    rows = [DeleteAclsFilter(**_filter(each)) for each in filters]
    answer = client.ask_any(DeleteAclsRequest(filters=rows), _VERSION_MIN)
    deleted: set[Acl] = set()
    for wanted, result in zip(filters, answer.filter_results, strict=True):
        check(result.error_code, _subject(wanted), result.error_message)
        for each in result.matching_acls:
            acl = _acl(each, each)
            check(each.error_code, _subject(acl), each.error_message)
            deleted.add(acl)
    return deleted


def _filter(acl: Acl) -> dict[str, Any]:
    """Return the fields of a filter in a request."""
    return {
        "resource_type_filter": acl.resource_type, "resource_name_filter": acl.resource_name,
        "pattern_type_filter": acl.pattern_type, "principal_filter": acl.principal, "host_filter": acl.host,
        "operation": acl.operation, "permission_type": acl.permission,
    }  # fmt: skip


def _acl(resource: Any, entry: Any) -> Acl:
    return Acl(
        ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type),
        entry.principal, entry.host, Operation(entry.operation), Permission(entry.permission_type),
    )  # fmt: skip


def _subject(acl: Acl) -> str:
    return f"the ACLs of {acl.resource_type.name.lower()} {acl.resource_name}"
