"""Drafts 4, 6 and 7: the node of a schema.

Confluent reads these drafts with the Java library Everit, and its verdicts follow from what that library makes of a
schema: `$ref` hides the keywords beside it; a keyword of strings beside `"type": "object"` makes a second kind; an
array as `type` makes one kind for each element, each with the keywords of its type.
"""

from __future__ import annotations

from typing import Final

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
    Node,
    Nodes,
    NotNode,
    NumberNode,
    ObjectNode,
    ReferenceNode,
    StringNode,
)
from ottla.schemas.json_schema.text import JsonValue

_Schema = dict[str, JsonValue]

_ARRAY: Final = ("items", "additionalItems", "minItems", "maxItems", "uniqueItems")
_OBJECT: Final = (
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "patternProperties",
    "additionalProperties",
)
_NUMBER: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING: Final = ("minLength", "maxLength", "pattern", "format")
_CONDITIONAL: Final = ("if", "then", "else")


def keywords_of(kind: type[Node], draft: Draft) -> tuple[str, ...]:
    """Return the keywords that belong to a kind of node in this draft."""
    later = draft is not Draft.DRAFT_4
    if kind is ArrayNode:
        return (*_ARRAY, "contains") if later else _ARRAY
    if kind is ObjectNode:
        return (*_OBJECT, "propertyNames") if later else _OBJECT
    if kind is ConditionalNode:
        return _CONDITIONAL if draft is Draft.DRAFT_7 else ()
    return {NumberNode: _NUMBER, StringNode: _STRING}.get(kind, ())


def make_node(schema: _Schema, draft: Draft, nodes: Nodes) -> Node:
    """Return the node of a schema that is an object."""
    if "$ref" in schema:
        reference = schema["$ref"]
        node: Node = ReferenceNode(reference=reference, target=nodes.target(reference, schema))
    else:
        kinds = _kinds(schema, draft, nodes)
        if not kinds:
            node = EmptyNode()
        elif len(kinds) == 1:
            node = kinds[0]
        else:
            node = CombinedNode(criterion="allOf", make_parts=lambda: kinds)
    node.raw = schema
    node.id = schema.get(draft.id_keyword)
    node.title = schema.get("title")
    node.description = schema.get("description")
    node.default = schema.get("default", MISSING)
    node.connect_type = schema.get("connect.type")
    return node


def _kinds(schema: _Schema, draft: Draft, nodes: Nodes) -> list[Node]:
    """Return the kinds of a schema, in the order in which Everit finds them. Each takes its keywords away."""
    left = dict(schema)

    def take(*keywords: str) -> _Schema:
        return {keyword: left.pop(keyword) for keyword in keywords if keyword in left}

    kinds: list[Node] = []
    if "enum" in left:
        kinds.append(EnumNode(values=left["enum"], raw=take("enum")))
    for criterion in CRITERIA:
        if criterion in left:
            kinds.append(_combined(criterion, left[criterion], take(criterion), nodes))
    if "not" in left:
        kinds.append(NotNode(schema=left["not"], raw=take("not")))
    if "const" in left and draft is not Draft.DRAFT_4:
        kinds.append(ConstNode(value=left["const"], raw=take("const")))
    if "type" in left:
        types = left["type"]
        raw = take("type")
        names = types if isinstance(types, list) else [types]
        own = {kind: take(*keywords_of(kind, draft)) for kind in dict.fromkeys(map(TYPE_KINDS.__getitem__, names))}
        typed = [_of_type(name, own[TYPE_KINDS[name]], draft) for name in names]
        if isinstance(types, list):
            kinds.append(CombinedNode(criterion="anyOf", make_parts=lambda: typed, raw=raw))
            for each in own.values():
                raw.update(each)
        else:
            kinds.extend(typed)
    for kind in (ArrayNode, ObjectNode, NumberNode, StringNode, ConditionalNode):
        own_keywords = take(*keywords_of(kind, draft))
        if own_keywords:
            kinds.append(_of_kind(kind, own_keywords, draft))
    return kinds


def _combined(criterion: str, schemas: list[JsonValue], raw: _Schema, nodes: Nodes) -> CombinedNode:
    return CombinedNode(criterion=criterion, make_parts=lambda: [nodes.node(each) for each in schemas], raw=raw)


def _of_type(name: str, keywords: _Schema, draft: Draft) -> Node:
    node = _of_kind(TYPE_KINDS[name], keywords, draft)
    if isinstance(node, NumberNode):
        node.requires_integer = name == "integer"
    node.raw = {"type": name, **keywords}
    return node


def _of_kind(kind: type[Node], keywords: _Schema, draft: Draft) -> Node:
    node = kind(raw=keywords)
    for keyword, value in keywords.items():
        if keyword in FIELDS:
            setattr(node, FIELDS[keyword][1], value)
    if isinstance(node, ArrayNode):
        _complete_array(node, keywords)
    elif isinstance(node, ObjectNode):
        _complete_object(node, keywords)
    elif isinstance(node, NumberNode) and draft is Draft.DRAFT_4:
        # Its exclusive limits are booleans, which Confluent does not compare.
        node.exclusive_minimum = node.exclusive_maximum = None
    return node


def _complete_object(node: ObjectNode, keywords: _Schema) -> None:
    additional = keywords.get("additionalProperties", True)
    dependencies = keywords.get("dependencies", {})
    node.permits_additional = additional is not False
    node.additional = None if isinstance(additional, bool) else additional
    node.property_dependencies = {
        name: frozenset(needed) for name, needed in dependencies.items() if isinstance(needed, list) and needed
    }
    node.schema_dependencies = {name: each for name, each in dependencies.items() if not isinstance(each, list)}


def _complete_array(node: ArrayNode, keywords: _Schema) -> None:
    items = keywords.get("items")
    additional = keywords.get("additionalItems", True)
    if isinstance(items, list):
        node.items = items
    else:
        node.all_items = items
    # A schema for all items leaves no additional ones.
    node.permits_additional = additional is not False or node.all_items is not None
    node.additional = None if isinstance(additional, bool) else additional
