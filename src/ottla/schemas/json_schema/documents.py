"""The documents of one schema, its own text and the texts of its references, and what each `$ref` in them names.

No document is ever fetched. A reference resolves to a place in the same document (`#/definitions/x`, `#anchor`, the
`$id` of a schema inside of it) or to a text that was registered under the name in the reference; every other one is an
error that names it. References to the meta-schemas of the drafts resolve to a schema for any object or boolean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

from ottla.schemas.json_schema.drafts import Draft, draft_by_address, draft_of
from ottla.schemas.json_schema.patterns import Patterns
from ottla.schemas.json_schema.text import JsonValue, parse_json
from ottla.schemas.json_schema.validity import Inside, Pointer, Validity
from ottla.schemas.schema import DEPTH_MAX, TEXT_BYTES_MAX, Budget, InvalidSchema, Resolved, SchemaTooComplex

#: keyword -> the drafts that have it
_REFERENCES: Final = {
    "$ref": frozenset(Draft),
    "$recursiveRef": frozenset((Draft.DRAFT_2019_09,)),
    "$dynamicRef": frozenset((Draft.DRAFT_2020_12,)),
}
_NOWHERE: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Where a schema stands: what its relative references are relative to."""

    #: the root of the text
    document: JsonValue
    #: the nearest enclosing schema with an `$id`, or the root
    resource: JsonValue
    #: the address of the resource; "" if it has none
    base: str
    draft: Draft


class Documents:
    """All schemas of a text and of its references, checked, and with each reference resolved."""

    def __init__(self, text: str, resolved: Resolved, budget: Budget) -> None:
        """Raise InvalidSchema if a text is no valid schema, or if a reference names nothing."""
        self._budget = budget
        self.patterns = Patterns()
        self._validity = Validity(budget, self.patterns)
        #: address of a resource -> its schema
        self._resources: dict[str, JsonValue] = {}
        #: (address of a resource, name) -> schema with this anchor
        self._anchors: dict[tuple[str, str], JsonValue] = {}
        #: id() of each schema that is an object -> its scope; the documents keep the objects alive
        self._scopes: dict[int, Scope] = {}
        #: references that were found and are not yet resolved: text and scope
        self._open: list[tuple[str, Scope]] = []
        self._with_reference: list[dict[str, JsonValue]] = []
        self._targets: dict[tuple[str, Scope], JsonValue] = {}

        if len(text) + sum(map(len, resolved.texts.values())) > TEXT_BYTES_MAX:
            raise SchemaTooComplex(f"the schema and its references have more than {TEXT_BYTES_MAX >> 20} MB")
        self.root: JsonValue = parse_json(text)
        draft = draft_of(self.root)
        if not isinstance(self.root, (dict, bool)):
            raise InvalidSchema("a JSON schema must be an object or a boolean")
        base = self._add_document(self.root, "", draft)
        for name, other in resolved.texts.items():
            self._add_reference(name, other, base, draft)
        while self._open:
            reference, scope = self._open.pop()
            self.target(reference, scope)

    def scope_of(self, schema: dict[str, JsonValue]) -> Scope:
        return self._scopes[id(schema)]

    def has(self, schema: dict[str, JsonValue]) -> bool:
        """Return whether this object is a schema of the documents, not an equal one."""
        return id(schema) in self._scopes

    def schemas_with_reference(self) -> list[dict[str, JsonValue]]:
        return self._with_reference

    def target(self, reference: str, scope: Scope) -> JsonValue:
        """Return the schema that a reference in this scope names. Raise InvalidSchema if there is none."""
        key = (reference, scope)
        if key not in self._targets:
            self._budget.spend(5)
            self._targets[key] = self._find(reference, scope)
        return self._targets[key]

    def dynamic_anchor(self, base: str, name: str) -> dict[str, JsonValue] | None:
        """Return the schema with this `$dynamicAnchor` in the resource with this address; None if it has none."""
        found = self._anchors.get((base, name))
        return found if isinstance(found, dict) and found.get("$dynamicAnchor") == name else None

    def _add_document(self, document: JsonValue, address: str, draft: Draft) -> str:
        """Index a document; return its address: its own `$id`, or the given one."""
        scope = Scope(document, document, address, draft)
        self._resources.setdefault(address, document)
        self._walk(document, None, scope)
        return self._scopes[id(document)].base if isinstance(document, dict) else address

    def _add_reference(self, name: str, text: str, base: str, draft: Draft) -> None:
        try:
            document = parse_json(text)
            if not isinstance(document, (dict, bool)):
                raise InvalidSchema("a JSON schema must be an object or a boolean")
            address = _join(base, name).rstrip("#")
            self._resources[address] = self._resources[name] = document
            self._add_document(document, address, draft_of(document, draft))
        except SchemaTooComplex:
            raise
        except InvalidSchema as error:
            raise InvalidSchema(f"in the reference {name!r}: {error}") from None

    def _walk(self, schema: JsonValue, place: Pointer | None, scope: Scope) -> None:
        """Check a schema and all schemas inside of it, and index their scopes, ids, anchors and references."""
        pending: list[tuple[Inside, Scope, int]] = [(Inside(schema, place), scope, 0)]  # type: ignore[arg-type]
        while pending:
            (schema, place), scope, depth = pending.pop()
            if isinstance(schema, dict):
                if id(schema) in self._scopes:
                    continue
                scope = self._index(schema, scope)
            if depth > DEPTH_MAX:
                raise SchemaTooComplex(f"the schema has more than {DEPTH_MAX} levels; use references")
            inside = self._validity.schemas_inside(schema, place, scope.draft)
            pending.extend((found, scope, depth + 1) for found in inside)

    def _index(self, schema: dict[str, JsonValue], scope: Scope) -> Scope:
        # Before 2019-09, `$ref` hides its neighbours, also an `$id`.
        own_id = schema.get(scope.draft.id_keyword)
        if isinstance(own_id, str) and (scope.draft.is_modern or "$ref" not in schema):
            if own_id.startswith("#"):
                self._anchors[scope.base, own_id[1:]] = schema
            else:
                address = _join(scope.base, own_id).rstrip("#")
                self._resources[address] = schema
                scope = Scope(scope.document, schema, address, scope.draft)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str) and scope.draft.is_modern:
                self._anchors[scope.base, name] = schema
        self._scopes[id(schema)] = scope
        for keyword, drafts in _REFERENCES.items():
            reference = schema.get(keyword)
            if isinstance(reference, str) and scope.draft in drafts:
                self._open.append((reference, scope))
                self._with_reference.append(schema)
        return scope

    def _find(self, reference: str, scope: Scope) -> JsonValue:
        address, _, fragment = reference.partition("#")
        found = _NOWHERE
        for resource, base in self._resources_at(address, scope):
            if not fragment:
                found = resource
            elif fragment.startswith("/"):
                found = _at_pointer(resource, fragment)
            else:
                found = self._anchors.get((base, unquote(fragment)), _NOWHERE)
            if found is not _NOWHERE:
                break
        if found is _NOWHERE:
            self._raise_unresolved(reference, address, scope)
        if isinstance(found, dict) and id(found) not in self._scopes:
            # A place that no keyword calls a schema, such as "#/components/x", is one because a reference names it.
            owner = self._scopes.get(id(scope.resource), scope) if not address else scope
            self._walk(found, Pointer(None, reference), Scope(owner.document, owner.resource, owner.base, scope.draft))
        elif not isinstance(found, (dict, bool)):
            raise InvalidSchema(f"the reference {reference!r} names a value that is not a schema")
        return found

    def _resources_at(self, address: str, scope: Scope) -> list[tuple[JsonValue, str]]:
        """Return the schemas that an address may mean, with the address under which their anchors are known."""
        if not address:
            return [(scope.resource, scope.base), (scope.document, self._base_of(scope.document, scope.base))]
        found: list[tuple[JsonValue, str]] = []
        for candidate in (_join(scope.base, address), address, address.removeprefix("./")):
            if candidate in self._resources:
                resource = self._resources[candidate]
                found.append((resource, self._base_of(resource, candidate)))
        draft = draft_by_address(address)
        if not found and draft is not None:
            found.append((_meta_schema(draft), address))
        return found

    def _base_of(self, resource: JsonValue, default: str) -> str:
        scope = self._scopes.get(id(resource)) if isinstance(resource, dict) else None
        return scope.base if scope is not None else default

    def _raise_unresolved(self, reference: str, address: str, scope: Scope) -> None:
        if not address:
            raise InvalidSchema(f"the reference {reference!r} names nothing in the schema")
        if urlsplit(_join(scope.base, address)).scheme in ("http", "https", "ftp", "file"):
            raise InvalidSchema(
                f"the reference {reference!r} is outside of the schema and is not fetched; "
                f"register its schema and list it in the references under the name {address!r}"
            )
        raise InvalidSchema(f"the reference {reference!r} is neither in the schema nor among its references")


def _meta_schema(draft: Draft) -> JsonValue:
    return {"type": "object"} if draft is Draft.DRAFT_4 else {"type": ["object", "boolean"]}


def _at_pointer(document: JsonValue, pointer: str) -> JsonValue:
    """Return the value at a JSON pointer, or _NOWHERE. "#/$defs/x" also finds a schema in "definitions"."""
    value = document
    for place, token in enumerate(pointer.split("/")[1:]):
        name = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            if place == 0 and name == "$defs" and isinstance(value.get("definitions"), dict):
                own = value.get("$defs", {})
                value = {**value["definitions"], **own} if isinstance(own, dict) else own
                continue
            value = value.get(name, _NOWHERE)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return _NOWHERE
        if value is _NOWHERE:
            return _NOWHERE
    return value


def _join(base: str, reference: str) -> str:
    """Return an absolute address for a reference: RFC 3986, also for schemes that Python's urljoin does not know."""
    try:
        if urlsplit(reference).scheme or not base:
            return reference
        scheme, separator, rest = base.partition("://")
        if not separator:
            # A base such as "urn:x" has no path, and "dir/a.json" is a path.
            return reference if urlsplit(base).scheme else urljoin(base, reference)
        joined = urljoin(f"http://{rest}", reference)
        return f"{scheme}://{joined.partition('://')[2]}"
    except ValueError:
        raise InvalidSchema(f"{reference!r} is not a valid address") from None
