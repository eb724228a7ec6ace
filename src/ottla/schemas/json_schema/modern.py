"""Drafts 2019-09 and 2020-12: the node of a schema.

Here each keyword stands for itself, also beside `$ref`. Confluent makes one node for each keyword and joins them:
keywords of the same kind become one node, and kinds that do not fit become parts of an `allOf`.

Three things differ from Confluent, because its result is wrong. It joins in the order of the text, so that a schema
can be incompatible with itself in another order. It opens the `allOf` that it made for one part of an `anyOf` or
`oneOf`, so that `{"type": "string", "enum": ["a"]}` counts as two alternatives. And unknown keywords beside them make
it forget `unevaluatedProperties` and `contains`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from ottla.schemas.json_schema.drafts import Draft
from ottla.schemas.json_schema.model import (
    CRITERIA,
    FIELDS,
    MISSING,
    TYPE_KINDS,
    ArrayNode,
    CombinedNode,
    ConditionalNode,
    ConstNode,
    EmptyNode,
    EnumNode,
    Mergeable,
    Node,
    Nodes,
    NotNode,
    NumberNode,
    ObjectNode,
    ReferenceNode,
)
from ottla.schemas.json_schema.text import JsonValue

_Schema = dict[str, JsonValue]


def make_node(schema: _Schema, draft: Draft, nodes: Nodes) -> Node:
    """Return the node of a schema that is an object."""
    joined: Node | None = None
    for node in _in_fixed_order(_keyword_nodes(schema, draft, nodes)):
        joined = node if joined is None else _join(joined, node)
    if joined is None:
        joined = EmptyNode()
    elif _is_generated(joined, "allOf") and len(joined.parts) == 1:
        joined = joined.parts[0]
    joined.raw = schema
    joined.title = schema.get("title")
    joined.description = schema.get("description")
    default = schema.get("default")
    joined.default = MISSING if default is None else default
    joined.connect_type = schema.get("connect.type")
    return joined


def _in_fixed_order(keyword_nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in an order that does not depend on the text: the type, then the kinds that it has."""
    types: list[Node] = []
    by_kind: dict[type[Node], Mergeable] = {}
    others: list[Node] = []
    for node in keyword_nodes:
        if "type" in node.raw:
            types.append(node)
        elif isinstance(node, Mergeable):
            kind = type(node)
            by_kind[kind] = by_kind[kind].merged_with(node) if kind in by_kind else node
        else:
            others.append(node)
    own = [kind for node in types for kind in _kinds_of(node)]
    return [*types, *sorted(by_kind.values(), key=lambda node: type(node) not in own), *others]


def _kinds_of(node: Node) -> list[type[Node]]:
    return [type(part) for part in node.parts] if isinstance(node, CombinedNode) else [type(node)]


def _keyword_nodes(schema: _Schema, draft: Draft, nodes: Nodes) -> Iterator[Node]:
    """Yield one node for each keyword."""
    dynamic = "$dynamicRef" if draft is Draft.DRAFT_2020_12 else "$recursiveRef"
    if dynamic in schema:
        yield _reference(dynamic, schema, nodes)
    for keyword in schema:
        node = _keyword_node(keyword, schema, draft, nodes)
        if node is not None:
            yield node


def _keyword_node(keyword: str, schema: _Schema, draft: Draft, nodes: Nodes) -> Node | None:
    value = schema[keyword]
    raw = {keyword: value}
    if keyword in ("properties", "patternProperties") and not value:
        # Confluent makes one node for each property.
        return None
    if keyword in FIELDS:
        return _field_node(keyword, value)
    if keyword == "$ref":
        return _reference("$ref", schema, nodes)
    if keyword == "type":
        if isinstance(value, str):
            return _of_type(value)
        typed = [_of_type(name) for name in value]
        return CombinedNode(criterion="anyOf", make_parts=lambda: typed, is_generated=True, raw=raw)
    if keyword in CRITERIA:
        return _combined(keyword, value, raw, nodes)
    if keyword == "enum":
        return EnumNode(values=value, raw=raw)
    if keyword == "const":
        return ConstNode(value=value, raw=raw)
    if keyword == "not":
        return NotNode(schema=value, raw=raw)
    if keyword == "if":
        return ConditionalNode(raw={each: schema[each] for each in ("if", "then", "else") if each in schema})
    if keyword == "propertyNames":
        return ObjectNode(raw=raw)
    if keyword == "additionalProperties":
        return ObjectNode(
            permits_additional=value is not False, additional=None if isinstance(value, bool) else value, raw=raw
        )
    if keyword == "dependentRequired":
        needed = {name: frozenset(names) for name, names in value.items() if names}
        return ObjectNode(property_dependencies=needed, raw=raw)
    return _array_keyword_node(keyword, schema, draft)


def _array_keyword_node(keyword: str, schema: _Schema, draft: Draft) -> Node | None:
    value = schema[keyword]
    raw = {keyword: value}
    if keyword == "contains":
        return ArrayNode(min_contains=schema.get("minContains", 1), max_contains=schema.get("maxContains"), raw={**raw})
    if keyword == "prefixItems" and draft is Draft.DRAFT_2020_12:
        return ArrayNode(items=value, raw=raw)
    if keyword == "items" and isinstance(value, list):
        return ArrayNode(items=value, raw=raw)
    # In 2019-09 `additionalItems` follows an array of items, in 2020-12 `items` follows `prefixItems`.
    first = schema.get("items" if draft is Draft.DRAFT_2019_09 else "prefixItems")
    if keyword == "items" and value is True:
        return ArrayNode(raw=raw)
    if keyword == "items" and value is not False and not (isinstance(first, list) and first):
        return ArrayNode(all_items=value, raw=raw)
    if keyword == "items" or (keyword == "additionalItems" and isinstance(first, list)):
        return ArrayNode(
            permits_additional=value is not False, additional=None if isinstance(value, bool) else value, raw=raw
        )
    return None


def _field_node(keyword: str, value: JsonValue) -> Mergeable:
    kind, name = FIELDS[keyword]
    node = kind(raw={keyword: value})
    setattr(node, name, value)
    return node


def _of_type(name: str) -> Node:
    node = TYPE_KINDS[name](raw={"type": name})
    if isinstance(node, NumberNode):
        node.requires_integer = name == "integer"
    return node


def _reference(keyword: str, schema: _Schema, nodes: Nodes) -> ReferenceNode:
    reference = schema[keyword]
    return ReferenceNode(reference=reference, target=nodes.target(reference, schema), raw={keyword: reference})


def _combined(criterion: str, schemas: list[JsonValue], raw: _Schema, nodes: Nodes) -> CombinedNode:
    def parts() -> list[Node]:
        made = [nodes.node(each) for each in schemas]
        return [part for node in made for part in _opened(node)] if criterion == "allOf" else made

    return CombinedNode(criterion=criterion, make_parts=parts, raw=raw)


def _join(left: Node, right: Node) -> Node:
    if isinstance(left, Mergeable) and type(left) is type(right):
        return left.merged_with(right)
    for types, other in ((left, right), (right, left)):
        if _is_generated(types, "anyOf") and any(type(part) is type(other) for part in types.parts):
            return _generated("anyOf", _merge_into(list(types.parts), other), (left, right))
    parts: list[Node] = []
    for part in (*_opened(left), *_opened(right)):
        parts = _merge_into(parts, part)
    return _generated("allOf", parts, (left, right))


def _merge_into(parts: list[Node], node: Node) -> list[Node]:
    for place, part in enumerate(parts):
        if isinstance(part, Mergeable) and type(part) is type(node):
            parts[place] = part.merged_with(node)
            return parts
    return [*parts, node]


def _opened(node: Node) -> Iterable[Node]:
    return node.parts if _is_generated(node, "allOf") else (node,)


def _generated(criterion: str, parts: list[Node], sources: tuple[Node, Node]) -> CombinedNode:
    raw = {keyword: value for source in sources for keyword, value in source.raw.items()}
    return CombinedNode(criterion=criterion, make_parts=lambda: parts, is_generated=True, raw=raw)


def _is_generated(node: Node, criterion: str) -> TypeGuard[CombinedNode]:
    return isinstance(node, CombinedNode) and node.is_generated and node.criterion == criterion
