"""The operations on schemas and subjects. `routes.py` has their paths and documentation.

Every path exists a second time below `/contexts/{context}`: names of subjects are then names in that context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.registry import changes, compatibility, errors
from ottla.edge.registry.answers import (
    Bodies,
    answer,
    answer_bytes,
    association_json,
    flag,
    formatted,
    page,
    parameter,
    registered_json,
    schema_json,
    version_json,
)
from ottla.edge.registry.associations.table import LIFECYCLES, Filter
from ottla.edge.registry.forwarding import Forwarding, LeaderUnreachable, with_position
from ottla.edge.registry.records import RULE_LISTS, Json, Record, SchemaVersion, references_json
from ottla.edge.registry.requests import NewSchema, TagChange, parse_body, parse_context, parse_id, parse_version
from ottla.edge.registry.service import NotLeader, Registration, Registry
from ottla.edge.registry.state import State, has_prefix, merge_rule_sets
from ottla.edge.registry.subjects import DEFAULT_CONTEXT, Subject, beside, is_valid, normalize
from ottla.edge.web.app import HttpError
from ottla.schemas.schema import SchemaType

#: a leader that ended, its successor, and one more
_LEADERS_TRIED: Final = 3
#: how long an answer waits for the records of a change that the leader has made
_APPLIED_S_MAX: Final = 5.0

_T = TypeVar("_T")


class Handlers:
    """What the operations share."""

    def __init__(self, registry: Registry, forwarding: Forwarding) -> None:
        self.registry = registry
        self.forwarding = forwarding

    @property
    def state(self) -> State:
        return self.registry.state

    def subject(self, request: Request, name: str = "subject", *, follows_alias: bool = True) -> str:
        """Return the subject of the path, in the context of the path."""
        text = normalize(in_context(request, request.path_params[name]))
        return (self.state.alias_of(text) or text) if follows_alias else text

    async def change(
        self,
        request: Request,
        decide: Callable[[Json], tuple[_T, list[Record]]],
        respond: Callable[[_T], Response] | None = None,
    ) -> Response:
        """Make a change here if this instance is the leader, otherwise let the leader make it.

        `decide` gets the body of the request, empty for DELETE. Its result is the answer, or `respond` returns it.
        """
        data = await request.body()
        body = {} if request.method == "DELETE" else parse_body(data)

        async def make() -> Response:
            made = await self.registry.change(lambda: decide(body), len(data))
            return answer(request, made) if respond is None else respond(made)

        return await self.at_leader(request, make)

    async def at_leader(self, request: Request, make: Callable[[], Awaitable[Response]]) -> Response:
        """Return the answer of the leader: `make` makes it here, or raises NotLeader."""
        data = await request.body()
        for _ in range(_LEADERS_TRIED):
            try:
                return with_position(request, await make(), self.registry.position)
            except NotLeader as error:
                leader = error.leader
            try:
                response, position = await self.forwarding.send(leader, request, data)
            except LeaderUnreachable:
                await self.registry.replace_leader(leader)
                continue
            # The client may ask this instance for its change next.
            await self.registry.wait_until(partial(self._has_applied, position), _APPLIED_S_MAX)
            return response
        raise errors.forwarding_failed(f"the leader {leader.url} cannot be reached; try again")

    def _has_applied(self, position: int) -> bool:
        return self.registry.position >= position

    async def formatted(self, request: Request, row: SchemaVersion) -> str:
        """Return the text of a version in the format of the request. Raise HttpError 42201 if it is unknown."""
        name = request.query_params.get("format", "")
        if not name.strip():
            return row.text
        return await self.registry.compute(lambda: formatted(self.registry.parser, row, name), len(row.text))

    async def extras(self, request: Request, row: SchemaVersion) -> Json:
        """Return members of an answer that the request asks for: qualified references, and tags (`*`: all)."""
        value: Json = {}
        if parameter(request, "referenceFormat") == "qualified" and row.references:
            value["references"] = references_json(
                replace(each, subject=beside(row.subject, each.subject)) for each in row.references
            )
        wanted = request.query_params.getlist("findTags")
        if not wanted:
            return value
        tagged = await self.registry.compute(
            lambda: self.registry.parser.parse_version(row).tagged_entities(), len(row.text)
        )
        found: list[Json] = []
        for entity, tags in tagged.items():
            matching = sorted(tag for tag in tags if "*" in wanted or tag in wanted)
            if matching:
                place = {"entityPath": entity.path, "entityType": entity.kind}
                found.append({"schemaEntity": place, "tags": matching})
        return value | {"schemaTags": found}

    def find_version(self, subject: str, version: int, *, deleted: bool) -> SchemaVersion:
        """Return a version of a subject. Raise HttpError 40401 or 40402 if it does not exist."""
        for name in _candidates(self.state, subject):
            row = self.state.get(name, version, deleted=deleted)
            if row is not None:
                return row
        if not self.state.has_subject(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        raise errors.version_not_found(version)


def in_context(request: Request, subject: str) -> str:
    """Return a name with the context of the path, unless it has its own."""
    context = request.path_params.get("context")
    if context is None or subject.startswith((":.", ":*:")):
        return subject
    return parse_context(context) + subject


def _candidates(state: State, subject: str) -> Iterator[str]:
    """Return a subject, and those with the same name in other contexts if it is in the default context."""
    yield subject
    parsed = Subject.parse(subject)
    if parsed.context == DEFAULT_CONTEXT and parsed.name:
        for context in state.context_names():
            other = str(Subject(context, parsed.name))
            if context != DEFAULT_CONTEXT and state.has_subject(other, deleted=True):
                yield other


class SchemaHandlers(Handlers):
    """Operations on schemas by id and guid."""

    def __init__(self, registry: Registry, forwarding: Forwarding) -> None:
        super().__init__(registry, forwarding)
        self._bodies = Bodies(schema_json)

    async def types(self, request: Request) -> Response:
        return answer(request, [SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO])

    async def list_schemas(self, request: Request) -> Response:
        prefix = in_context(request, request.query_params.get("subjectPrefix", ""))
        deleted, latest_only = flag(request, "deleted"), flag(request, "latestOnly")
        aliases = self.state.aliases() if flag(request, "aliases") else {}
        rows: list[SchemaVersion] = []
        for subject in self._listed_subjects(prefix, deleted=deleted, aliases=aliases):
            versions = self.state.versions(subject, deleted=deleted)
            rows += versions[-1:] if latest_only else versions
        rule_type = request.query_params.get("ruleType", "")
        if rule_type:
            rows = [row for row in rows if _has_rule(row.rule_set, rule_type)]
        associations = _wanted_associations(self.state, request)
        if associations is not None:
            rows = [row for row in rows if associations(row.subject) is not None]
        found = []
        for row in page(request, rows):
            names = {"aliases": aliases[row.subject]} if row.subject in aliases else {}
            links = associations(row.subject) if associations is not None else None
            found.append(version_json(row) | names | ({"associations": links} if links else {}))
        return answer(request, found)

    def _listed_subjects(self, prefix: str, *, deleted: bool, aliases: dict[str, list[str]]) -> list[str]:
        subjects = self.state.subjects(prefix, deleted=deleted)
        named = [target for target, names in aliases.items() if any(has_prefix(name, prefix) for name in names)]
        return sorted({*subjects, *(target for target in named if self.state.has_subject(target, deleted=deleted))})

    async def by_id(self, request: Request) -> Response:
        row = await self._find_id(request)
        if not request.scope["query_string"] or request.query_params.keys() <= {"subject"}:
            return self._bodies.answer(request, row)
        value = schema_json(row, await self.formatted(request, row))
        if flag(request, "fetchMaxId"):
            value["maxId"] = self.state.id_max(Subject.parse(row.subject).context)
        return answer(request, value | await self.extras(request, row))

    async def text_by_id(self, request: Request) -> Response:
        row = await self._find_id(request)
        return answer_bytes(request, (await self.formatted(request, row)).encode())

    async def subjects_of_id(self, request: Request) -> Response:
        rows = await self._versions_of_id(request)
        return answer(request, page(request, sorted({row.subject for row in rows})))

    async def versions_of_id(self, request: Request) -> Response:
        # Sorted, so that the pages of a client fit together when a version is deleted in between.
        rows = sorted((row.subject, row.version) for row in await self._versions_of_id(request))
        found = [{"subject": subject, "version": version} for subject, version in page(request, rows)]
        return answer(request, found)

    async def _versions_of_id(self, request: Request) -> list[SchemaVersion]:
        row = await self._find_id(request)
        context = Subject.parse(row.subject).context
        return self.state.versions_of_id(context, row.id, deleted=flag(request, "deleted"))

    async def _find_id(self, request: Request) -> SchemaVersion:
        schema_id = parse_id(request.path_params["id"])
        if not request.scope["query_string"] and "context" not in request.path_params:
            row = self.state.by_id(DEFAULT_CONTEXT, schema_id)
            if row is not None:
                return row
        subject = in_context(request, request.query_params.get("subject", ""))
        row = self._lookup_id(schema_id, subject)
        if row is None:
            await self.registry.refresh()
            row = self._lookup_id(schema_id, subject)
        if row is None:
            raise errors.schema_not_found(schema_id)
        return row

    def _lookup_id(self, schema_id: int, text: str) -> SchemaVersion | None:
        subject = Subject.parse(self.state.alias_of(normalize(text)) or text)
        rows = self.state.versions_of_id(subject.context, schema_id, deleted=True)
        if not subject.name or subject.context != DEFAULT_CONTEXT:
            return self.state.by_id(subject.context, schema_id)
        for row in rows:
            if row.subject == str(subject):
                return row
        for context in self.state.context_names():
            for row in self.state.versions_of_id(context, schema_id, deleted=True):
                if row.subject == str(Subject(context, subject.name)):
                    return row
        return self.state.by_id(DEFAULT_CONTEXT, schema_id)

    async def by_guid(self, request: Request) -> Response:
        row = (await self._find_guid(request))[0][1]
        return answer(request, schema_json(row, await self.formatted(request, row)))

    async def ids_of_guid(self, request: Request) -> Response:
        found = await self._find_guid(request)
        return answer(request, [{"context": context, "id": row.id} for context, row in found])

    async def _find_guid(self, request: Request) -> list[tuple[str, SchemaVersion]]:
        """Return the schemas with a guid by context. Raise the error if there are none up to the end of the topic."""
        guid = request.path_params["guid"].lower()
        found = self._lookup_guid(guid)
        if not found:
            await self.registry.refresh()
            found = self._lookup_guid(guid)
        if not found:
            raise errors.schema_not_found(guid)
        return found

    def _lookup_guid(self, guid: str) -> list[tuple[str, SchemaVersion]]:
        found = []
        for context in self.state.context_names():
            schema_id = self.state.id_of_guid(context, guid)
            row = None if schema_id is None else self.state.by_id(context, schema_id)
            if row is not None:
                found.append((context, row))
        return found


class SubjectHandlers(Handlers):
    """Operations on subjects and their versions."""

    def __init__(self, registry: Registry, forwarding: Forwarding) -> None:
        super().__init__(registry, forwarding)
        self._bodies = Bodies(version_json)

    async def list_subjects(self, request: Request) -> Response:
        # Without a context, the list of subjects covers all contexts, and that of schemas only the default context.
        default = "" if "context" in request.path_params else ":*:"
        prefix = in_context(request, request.query_params.get("subjectPrefix", default))
        deleted, only = flag(request, "deleted"), flag(request, "deletedOnly")
        return answer(request, page(request, self.state.subjects(prefix, deleted=deleted, deleted_only=only)))

    async def lookup(self, request: Request) -> Response:
        data = await request.body()
        new, subject = NewSchema.parse(parse_body(data)), self.subject(request)
        deleted = flag(request, "deleted")

        def find() -> SchemaVersion | None:
            for name in _candidates(self.state, subject):
                try:
                    row = changes.find(
                        self.state, self.registry.parser, name, new, normalize=self._normalizes(request, subject),
                        deleted=deleted,
                    )  # fmt: skip
                except HttpError:
                    if name == subject:
                        raise
                    row = None  # what the schema refers to does not exist in the other context
                if row is not None:
                    return row
            return None

        row = await self.registry.compute(find, len(data))
        if row is None:
            await self.registry.refresh()
            row = await self.registry.compute(find, len(data))
        if row is None:
            known = self.state.has_subject(subject, deleted=deleted)
            raise errors.no_such_schema() if known else errors.subject_not_found(subject)
        return answer(request, version_json(row, await self.formatted(request, row)))

    def _normalizes(self, request: Request, subject: str) -> bool:
        return flag(request, "normalize") or self.state.config_in_scope(subject).get("normalize") is True

    async def register(self, request: Request) -> Response:
        subject = self.subject(request)
        if not is_valid(subject):
            raise errors.invalid_subject(subject)
        format_name = request.query_params.get("format", "")

        data = await request.body()
        sent = NewSchema.parse(parse_body(data))

        def decide(others: Sequence[SchemaVersion]) -> Registration:
            row, records = changes.register(
                self.state, self.registry.parser, subject, sent,
                normalize=self._normalizes(request, subject), force=flag(request, "force"), others=others,
            )  # fmt: skip
            text = formatted(self.registry.parser, row, format_name) if format_name else None
            return Registration(row, records, text)

        def respond(row: SchemaVersion, text: str | None) -> Response:
            # With the time of the record, which is known since it was read back.
            row = self.state.get(row.subject, row.version) or row
            return answer(request, registered_json(row, None if sent.changes_tags else sent, text))

        async def make() -> Response:
            made = await self.registry.register(subject, decide, len(data))
            return respond(made.row, made.text)

        known = await self._registered_already(request, subject, sent)
        if known is not None:
            response = respond(known, await self.formatted(request, known) if format_name else None)
            return with_position(request, response, self.registry.position)
        return await self.at_leader(request, make)

    async def _registered_already(self, request: Request, subject: str, new: NewSchema) -> SchemaVersion | None:
        """Return the version of a schema that is registered: any instance can answer that."""
        config = self.state.config_in_scope(subject)
        if new.changes_tags or _completes_schemas(config) or new.version > 0 or not new.text.strip():
            return None
        normalize, find = self._normalizes(request, subject), changes.is_latest if new.version else changes.find
        found = await self.registry.compute(
            lambda: find(self.state, self.registry.parser, subject, new, normalize=normalize), len(new.text)
        )
        return found if found is not None and new.id in (-1, found.id) else None

    async def delete(self, request: Request) -> Response:
        subject, permanent = self.subject(request), flag(request, "permanent")
        return await self.change(request, lambda _: changes.delete_subject(self.state, subject, permanent=permanent))

    async def versions(self, request: Request) -> Response:
        subject = self.subject(request)
        deleted, only, negative = (flag(request, name) for name in ("deleted", "deletedOnly", "deletedAsNegative"))
        if not self.state.has_subject(subject, deleted=deleted or only):
            raise errors.subject_not_found(subject)
        rows = self.state.versions(subject, deleted=deleted or only or negative)
        if only and not negative:
            rows = [row for row in rows if row.is_deleted]
        numbers = [-row.version if negative and row.is_deleted else row.version for row in rows]
        return answer(request, page(request, numbers))

    async def version(self, request: Request) -> Response:
        row = self._version_of(request)
        if not request.scope["query_string"]:
            return self._bodies.answer(request, row)
        value = version_json(row, await self.formatted(request, row))
        return answer(request, value | await self.extras(request, row))

    async def text(self, request: Request) -> Response:
        row = self._version_of(request)
        return answer_bytes(request, (await self.formatted(request, row)).encode())

    def _version_of(self, request: Request) -> SchemaVersion:
        version = parse_version(request.path_params["version"])
        return self.find_version(self.subject(request), version, deleted=flag(request, "deleted"))

    async def delete_version(self, request: Request) -> Response:
        subject, version = self.subject(request), parse_version(request.path_params["version"])
        permanent = flag(request, "permanent")
        return await self.change(
            request, lambda _: changes.delete_version(self.state, subject, version, permanent=permanent)
        )

    async def referenced_by(self, request: Request) -> Response:
        version = parse_version(request.path_params["version"])
        row = self.find_version(self.subject(request), version, deleted=True)
        rows = self.state.referrers(row.subject, row.version, deleted=flag(request, "deleted"))
        return answer(request, page(request, list(dict.fromkeys(other.id for other in rows))))

    async def latest_with_metadata(self, request: Request) -> Response:
        subject = self.subject(request)
        keys, values = request.query_params.getlist("key"), request.query_params.getlist("value")
        wanted = dict(zip(keys, values, strict=False))
        rows = self.state.versions(subject, deleted=flag(request, "deleted"))
        for row in reversed(rows):
            properties = (row.metadata or {}).get("properties")
            if properties is not None and wanted.items() <= properties.items():
                return answer(request, version_json(row, await self.formatted(request, row)))
        raise errors.no_such_schema() if rows else errors.subject_not_found(subject)

    async def tags(self, request: Request) -> Response:
        subject, version = self.subject(request), parse_version(request.path_params["version"])

        def decide(body: Json) -> tuple[SchemaVersion, list[Record]]:
            row = self.find_version(subject, version, deleted=False)
            new = NewSchema.parse(
                {"schema": row.text, "schemaType": row.schema_type, "references": references_json(row.references)}
                | {"schemaTagsToAdd": body.get("tagsToAdd"), "schemaTagsToRemove": body.get("tagsToRemove")}
                | {name: body[name] for name in ("metadata", "ruleSet") if name in body}
            )
            sent = TagChange.parse(body)
            # The rules are those of the version before the new one, also if an older version gets the tags.
            before = self.state.get(subject, sent.new_version - 1 if sent.new_version > 1 else -1)
            rules = _changed_rules(None if before is None else before.rule_set, new.rule_set, sent)
            return changes.change_tags(
                self.state, self.registry.parser, subject, row, new, rules=rules, version=sent.new_version
            )

        return await self.change(request, decide, lambda row: answer(request, registered_json(row)))

    async def check(self, request: Request) -> Response:
        """Check a schema against one version, or against all that the configuration names."""
        data = await request.body()
        new, subject = NewSchema.parse(parse_body(data)), self.subject(request)
        version = request.path_params.get("version")
        if version is None:
            rows = self.state.versions(subject)
        else:
            number = parse_version(version)
            row = self.state.get(subject, number)
            if row is None and number != -1:
                raise errors.version_not_found(number)
            rows = [] if row is None else [row]

        def check() -> list[str]:
            config = self.state.config_in_scope(subject)
            parsed = self.registry.parser.parse(
                subject, new.schema_type, new.text, new.references, is_new=config.get("validateNewSchemas") is not False
            )
            if self._normalizes(request, subject):
                parsed = parsed.normalized()
            return compatibility.check(self.registry.parser, config, parsed, new.metadata, rows)

        try:
            reasons = await self.registry.compute(check, len(data))
        except HttpError as error:
            if error.error_code != errors.invalid_schema.code or not flag(request, "verbose"):
                raise
            reasons = [error.message]
        value: Json = {"is_compatible": not reasons}
        if flag(request, "verbose"):
            value["messages"] = reasons
        return answer(request, value)


def _completes_schemas(config: Json) -> bool:
    names = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")
    return any(config.get(name) for name in names)


def _changed_rules(old: Json | None, new: Json | None, sent: TagChange) -> Json | None:
    merge, remove = sent.rules_to_merge, sent.rules_to_remove
    if merge is None and remove is None:
        return new
    if new is not None:
        raise errors.invalid_rule_set("ruleSet cannot be given together with rulesToMerge or rulesToRemove")
    rules = merge_rule_sets(old, merge)
    if rules is None or not remove:
        return rules
    changed = [kind for kind in RULE_LISTS if rules.get(kind)]
    return rules | {kind: [rule for rule in rules[kind] if rule.get("name") not in remove] for kind in changed}


def _wanted_associations(state: State, request: Request) -> Callable[[str], list[Json] | None] | None:
    """Return what finds the associations of a subject that the parameters select; None if they select none.

    The function returns None for a subject that is left out. The lifecycle NONE selects subjects without associations.
    """
    query = request.query_params
    lifecycles = set(query.getlist("lifecycle"))
    if not lifecycles and not {"resourceType", "associationType"} & query.keys():
        return None
    if not lifecycles <= {*LIFECYCLES, "NONE"}:
        raise errors.path_not_found()
    selected = Filter(query.get("resourceType"), query.getlist("associationType"))

    def find(subject: str) -> list[Json] | None:
        rows = selected.select(state.associations.of_subject(subject))
        if not rows:
            return [] if "NONE" in lifecycles else None
        matching = [row for row in rows if not lifecycles or row.lifecycle in lifecycles]
        return [association_json(row) for row in matching] or None

    return find


def _has_rule(rule_set: Json | None, rule_type: str) -> bool:
    rules: list[Any] = [rule for kind in RULE_LISTS for rule in (rule_set or {}).get(kind) or ()]
    return any(rule.get("type") == rule_type for rule in rules)
