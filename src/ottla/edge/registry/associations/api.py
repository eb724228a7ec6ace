"""The operations on associations: which subject has the schemas of a topic's keys or values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.registry import errors
from ottla.edge.registry.answers import answer, association_json, flag, page, resource_json
from ottla.edge.registry.api import Handlers, in_context
from ottla.edge.registry.associations import changes
from ottla.edge.registry.associations.changes import Put
from ottla.edge.registry.associations.requests import (
    CREATE,
    DELETE,
    ResolveSubject,
    Resource,
    Run,
    parse_operations,
    parse_put,
    parse_query,
    parse_requests,
)
from ottla.edge.registry.associations.table import LIFECYCLES, TOPIC, Filter
from ottla.edge.registry.records import Association, Json, Record, SchemaVersion
from ottla.edge.registry.requests import parse_body, parse_context
from ottla.edge.registry.service import NotLeader
from ottla.edge.registry.subjects import normalize
from ottla.edge.web.app import HttpError

#: the status of an answer that has a status for each of several requests
_MULTI_STATUS: Final = 207


class AssociationHandlers(Handlers):
    """Operations on associations."""

    async def of_subject(self, request: Request) -> Response:
        subject = normalize(in_context(request, request.path_params["subject"]))
        return _list(request, self.state.associations.of_subject(subject))

    async def of_name(self, request: Request) -> Response:
        name, namespace = request.path_params["resourceName"], request.path_params["resourceNamespace"]
        return _list(request, self.state.associations.of_name(name, namespace))

    async def of_id(self, request: Request) -> Response:
        return _list(request, self.state.associations.of_id(request.path_params["resourceId"]))

    async def create(self, request: Request) -> Response:
        return await self._put(request, lambda body: body, is_create=True)

    async def create_or_update(self, request: Request) -> Response:
        resource_id = request.path_params["resourceId"]

        def with_id(body: Json) -> Json:
            if body.get("resourceId") not in (None, resource_id):
                raise errors.invalid_association("resourceId", "the path names another one")
            return body | {"resourceId": resource_id}

        return await self._put(request, with_id, is_create=False)

    async def _put(self, request: Request, complete: Callable[[Json], Json], *, is_create: bool) -> Response:
        dry_run = flag(request, "dryRun")

        def decide(body: Json) -> tuple[tuple[Resource, list[Put]], list[Record]]:
            body = complete(body)
            resource = Resource.parse(body, dry_run=dry_run)
            wanted = parse_put(body, resource, self._resolver(request), is_create=is_create)
            rows, records = changes.put(
                self.state, self.registry.parser, resource, wanted, is_create=is_create, dry_run=dry_run
            )
            return (resource, rows), records

        def respond(result: tuple[Resource, list[Put]]) -> Response:
            resource, rows = result
            return answer(request, resource_json(_names(resource), [self._with_time(row) for row in rows]))

        return await self.change(request, decide, respond)

    def _with_time(self, row: Put) -> Put:
        """Return a result with the time of the schema's record, which is known since it was read back."""
        if row.registered is None:
            return row
        return row._replace(registered=self.state.get(row.registered.subject, row.registered.version))

    def _resolver(self, request: Request) -> ResolveSubject:
        """Return what gives a subject of the body the context of the path or of the parameter `context`."""
        context = request.query_params.get("context")
        prefix = "" if context is None else parse_context(context)

        def resolve(name: str) -> str:
            named = name if name.startswith((":.", ":*:")) else prefix + name
            subject = normalize(in_context(request, named))
            return self.state.alias_of(subject) or subject

        return resolve

    async def delete(self, request: Request) -> Response:
        resource_id, selected = request.path_params["resourceId"], _filter(request)
        cascade, dry_run = flag(request, "cascadeLifecycle"), flag(request, "dryRun")

        def decide(body: Json) -> tuple[None, list[Record]]:
            if not selected.select(self.state.associations.of_id(resource_id)):
                raise errors.association_not_found(resource_id)
            records = changes.delete(self.state, resource_id, selected, cascade=cascade, dry_run=dry_run)
            return None, records

        return await self.change(request, decide, lambda _: Response(status_code=204))

    # Several requests in one

    async def batch_get(self, request: Request) -> Response:
        with_schemas = flag(request, "includeSchemas")
        results = []
        for body in parse_requests(parse_body(await request.body())):
            try:
                results.append({"result": self._query(body, with_schemas=with_schemas)})
            except HttpError as error:
                results.append(_error(error))
        return answer(request, {"results": results}, _MULTI_STATUS)

    def _query(self, body: Json, *, with_schemas: bool) -> Json:
        names, selected = parse_query(body)
        if names["resourceId"]:
            rows = selected.select(self.state.associations.of_id(names["resourceId"]))
        else:
            found = self.state.associations.of_name(names["resourceName"], names["resourceNamespace"])
            rows = selected.select(found)
        # A name may be that of two topics, one after the other: only one resource is answered.
        first = rows[0] if rows else None
        rows = [row for row in rows if first is not None and row.resource_id == first.resource_id]
        named = {
            "resourceName": first.resource_name if first else names["resourceName"],
            "resourceNamespace": first.resource_namespace if first else names["resourceNamespace"],
            "resourceId": first.resource_id if first else names["resourceId"],
            "resourceType": selected.resource_type,
        }
        return resource_json(named, [(row, self.state.latest(row.subject) if with_schemas else None) for row in rows])

    async def batch_change(self, request: Request) -> Response:
        """Make the changes of each request. The answer has the result of each, which may be an error."""
        data = await request.body()
        bodies = parse_requests(parse_body(data))
        dry_run, resolve = flag(request, "dryRun"), self._resolver(request)

        async def make() -> Response:
            results: list[Json] = []
            for body in bodies:
                try:
                    results.append({"result": await self._change_one(body, resolve, dry_run=dry_run)})
                except HttpError as error:
                    results.append(_error(error))
                except NotLeader:
                    if not results:
                        raise
                    results.append(_error(errors.leader_unknown()))
            return answer(request, {"results": results}, _MULTI_STATUS)

        return await self.at_leader(request, make)

    async def _change_one(self, body: Json, resolve: ResolveSubject, *, dry_run: bool) -> Json:
        resource = Resource.parse(body, dry_run=dry_run)
        registered: dict[str, SchemaVersion] = {}
        for run in parse_operations(body, resource, resolve):
            size_chars = sum(len(row.schema.text) for row in run.wanted if row.schema is not None)
            decide = partial(self._run, resource, run, dry_run=dry_run)
            rows = await self.registry.change(decide, size_chars)
            for association, version in map(self._with_time, rows):
                if version is not None:
                    registered[association.association_type] = version
        found = [] if dry_run or resource.id is None else self.state.associations.of_id(resource.id)
        rows_now: list[Association] = Filter(resource.type).select(found)
        return resource_json(_names(resource), [(row, registered.get(row.association_type)) for row in rows_now])

    def _run(self, resource: Resource, run: Run, *, dry_run: bool) -> tuple[list[Put], list[Record]]:
        if run.kind == DELETE:
            assert run.unwanted is not None
            selected = Filter(resource.type, [run.unwanted.association_type])
            return [], changes.delete(
                self.state, resource.id or "", selected, cascade=run.unwanted.cascade, dry_run=dry_run
            )
        return changes.put(
            self.state, self.registry.parser, resource, run.wanted, is_create=run.kind == CREATE, dry_run=dry_run
        )


def _names(resource: Resource) -> Json:
    return {
        "resourceName": resource.name, "resourceNamespace": resource.namespace, "resourceId": resource.id,
        "resourceType": resource.type,
    }  # fmt: skip


def _filter(request: Request) -> Filter:
    query = request.query_params
    lifecycle = query.get("lifecycle")
    if lifecycle is not None and lifecycle not in LIFECYCLES:
        raise errors.path_not_found()
    return Filter(query.get("resourceType") or TOPIC, query.getlist("associationType"), lifecycle)


def _list(request: Request, rows: Collection[Association]) -> Response:
    return answer(request, [association_json(row) for row in page(request, _filter(request).select(rows))])


def _error(error: HttpError) -> Json:
    return {"error": error.as_json()}
