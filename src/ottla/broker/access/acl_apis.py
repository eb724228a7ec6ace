"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ottla.broker.access.permissions import Access
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.access_nodes import LITERAL_ACLS, acl_path, acls_json
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import count_change
from ottla.broker.metadata.store import Check, Create, Delete, Op, Put
from ottla.broker.metadata.view import AccessChanges, ClusterView
from ottla.broker.request import RequestContext
from ottla.env.metrics import Page, label_text
from ottla.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, Refused
from ottla.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.wire import APIS
from ottla.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ottla.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

#: longest name of a resource, a principal or a host in an ACL
_NAME_CHARS_MAX = 1024
#: ACLs of one resource, so that clients cannot fill the store
_ENTRIES_MAX = 2000
_DISABLED = "there is no authorizer; set authorizer.class.name"


class AclApis(Component):
    """The APIs of ACLs."""

    def __init__(self, *, metadata: ClusterMetadata, access: Access) -> None:
        self._metadata = metadata
        self._access = access

    def metrics(self, page: Page) -> Iterator[None]:
        """Add what was refused. Labels have values of the broker's own tables, never of clients."""
        for (api_key, resource), count in self._access.refused.items():
            labels = label_text(api=APIS[api_key].name, resource=resource.name)
            page.counter("ottla_authorization_refused", "Uses of a resource that ACLs refused.", count, labels)
        yield

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            29: ServedApi(1, 3, self.describe_acls, large_reply=True),
            30: ServedApi(1, 3, self.create_acls),
            31: ServedApi(1, 3, self.delete_acls),
        }

    def on_access(self, changed: AccessChanges) -> None:
        if (authorizer := self._access.authorizer) is not None:
            for about in changed:
                if isinstance(about, Pattern):
                    authorizer.put(about, self._metadata.view.access.acls.get(about, ()))

    def describe_acls(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        """DescribeAcls (29) v1-v3. v1 patterns. v2 flexible."""
        authorizer = self._access.authorizer
        if authorizer is None:
            return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_DISABLED)
        if not context.may_cluster():
            return DescribeAclsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None)
        try:
            wanted = _filter(request)
        except KafkaError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=str(error))
        return DescribeAclsResponse(
            error_message=None,
            resources=[
                DescribeAclsResource(
                    resource_type=pattern.resource_type, resource_name=pattern.name, pattern_type=pattern.pattern_type,
                    acls=[
                        AclDescription(
                            principal=each.principal, host=each.host, operation=each.operation,
                            permission_type=each.permission,
                        )
                        for each in sorted(entries)
                    ],
                )
                for pattern, entries in authorizer.find(wanted)
            ],
        )  # fmt: skip

    async def create_acls(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        """CreateAcls (30) v1-v3. v1 patterns. v2 flexible. ACLs that exist already are no error."""
        refusal = self._refusal(context)
        if refusal is not None:
            row = AclCreationResult(error_code=refusal.code, error_message=str(refusal) or None)
            return CreateAclsResponse(results=[row for _ in request.creations])
        results: list[AclCreationResult] = []
        wanted: dict[Pattern, list[tuple[int, Entry]]] = {}
        for place, creation in enumerate(request.creations):
            result = AclCreationResult(error_message=None)
            results.append(result)
            try:
                pattern, entry = _acl(creation)
                wanted.setdefault(pattern, []).append((place, entry))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error)
        for pattern, added in wanted.items():
            try:
                await self._change(pattern, add=[entry for _, entry in added])
            except KafkaError as error:
                for place, _ in added:
                    results[place].error_code, results[place].error_message = error.code, str(error)
        return CreateAclsResponse(results=results)

    def _refusal(self, context: RequestContext) -> KafkaError | None:
        if self._access.authorizer is None:
            return Refused(ErrorCode.SECURITY_DISABLED, _DISABLED)
        return None if context.may_cluster() else Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    async def delete_acls(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        """DeleteAcls (31) v1-v3. v1 patterns. v2 flexible. Deletes what each filter matches, and lists it."""
        authorizer = self._access.authorizer
        refusal = self._refusal(context)
        if refusal is not None or authorizer is None:
            code, text = (refusal.code, str(refusal) or None) if refusal is not None else (0, None)
            row = DeleteAclsFilterResult(error_code=code, error_message=text)
            return DeleteAclsResponse(filter_results=[row for _ in request.filters])
        results = []
        for each in request.filters:
            result = DeleteAclsFilterResult(error_message=None)
            results.append(result)
            try:
                found = list(authorizer.find(_filter(each)))
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error)
                continue
            matching: list[DeleteAclsMatchingAcl] = []
            for pattern, entries in found:
                code, message = 0, None
                try:
                    await self._change(pattern, remove=entries)
                except KafkaError as error:
                    code, message = error.code, str(error)
                matching += (_deleted(pattern, entry, code, message) for entry in sorted(entries))
            result.matching_acls = matching
        return DeleteAclsResponse(filter_results=results)

    async def _change(self, pattern: Pattern, *, add: Iterable[Entry] = (), remove: Iterable[Entry] = ()) -> None:
        """Change the ACLs of one pattern. Raise a KafkaError if that is not possible."""
        path, change_id = acl_path(pattern), self._metadata.new_id()
        added, removed = frozenset(add), frozenset(remove)

        def decide(view: ClusterView) -> tuple[Sequence[Op], None]:
            before = view.access.acls.get(pattern, frozenset())
            after = (before | added) - removed
            if after == before:
                return [], None
            if len(after) > _ENTRIES_MAX:
                raise PolicyViolation(f"one resource can have {_ENTRIES_MAX} ACLs at most")
            version, deletions = view.versions.get(path), view.versions[LITERAL_ACLS]
            if not after:
                assert version is not None
                return [count_change(LITERAL_ACLS, deletions, change_id), Delete(path, version)], None
            # ACLs that were deleted and created again have the same version as before: the count of deletions differs.
            value = acls_json(after)
            put = Create(path, value) if version is None else Put(path, value, version)
            return [Check(LITERAL_ACLS, deletions), put], None

        await self._metadata.write(decide)


def _filter(request: Any) -> AclFilter:
    """Return the filter of DescribeAcls or DeleteAcls. Raise InvalidRequest."""
    try:
        return AclFilter(
            ResourceType(request.resource_type_filter), request.resource_name_filter,
            PatternType(request.pattern_type_filter), request.principal_filter, request.host_filter,
            Operation(request.operation), Permission(request.permission_type),
        )  # fmt: skip
    except ValueError as error:
        raise InvalidRequest(f"the filter is not understood: {error}") from None


def _acl(creation: AclCreation) -> tuple[Pattern, Entry]:
    """Return an ACL that a client wants to create. Raise InvalidRequest if there is no such ACL."""
    try:
        pattern = Pattern(
            ResourceType(creation.resource_type), creation.resource_name, PatternType(creation.resource_pattern_type)
        )
        entry = Entry(
            creation.principal, creation.host, Operation(creation.operation), Permission(creation.permission_type)
        )
    except ValueError as error:
        raise InvalidRequest(f"the ACL is not understood: {error}") from None
    if pattern.resource_type is ResourceType.ANY or pattern.pattern_type in (PatternType.ANY, PatternType.MATCH):
        raise InvalidRequest("an ACL is for one type of resource, and for a literal name or a prefix")
    if entry.operation is Operation.ANY or entry.permission is Permission.ANY:
        raise InvalidRequest("an ACL allows or denies one operation, or all of them")
    if not pattern.name or max(map(len, (pattern.name, entry.principal, entry.host))) > _NAME_CHARS_MAX:
        raise InvalidRequest(f"names in an ACL have 1 to {_NAME_CHARS_MAX} characters")
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise InvalidRequest(f"the only resource of the type cluster is {CLUSTER_NAME}")
    kind, colon, name = entry.principal.partition(":")
    if not (kind and colon and name) or not entry.host:
        raise InvalidRequest("write the principal as User:NAME, and * for all hosts")
    return pattern, entry


def _deleted(pattern: Pattern, entry: Entry, code: int, message: str | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=code, error_message=message, resource_type=pattern.resource_type, resource_name=pattern.name,
        pattern_type=pattern.pattern_type, principal=entry.principal, host=entry.host, operation=entry.operation,
        permission_type=entry.permission,
    )  # fmt: skip
