"""The kinds that a schema is made of: one node for each kind, in both generations of drafts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.json_schema.model import ArrayNode, CombinedNode, Node, NumberNode, ObjectNode, StringNode
from ottla.schemas.json_schema.nodes import SchemaNodes
from ottla.schemas.schema import NO_REFERENCES, Budget, InvalidSchema

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
MODERN = "https://json-schema.org/draft/2020-12/schema"


def nodes_of(schema: dict[str, Any] | bool, draft: str = DRAFT_7) -> SchemaNodes:
    text = json.dumps({"$schema": draft, **schema} if isinstance(schema, dict) else schema)
    return SchemaNodes(Documents(text, NO_REFERENCES, Budget()))


def kinds(node: Node) -> Any:
    """Return the name of the kind; for a combination its keyword and the kinds of its parts."""
    if isinstance(node, CombinedNode):
        return {node.criterion: [kinds(part) for part in node.parts]}
    return type(node).__name__.removesuffix("Node")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "True"),
        (False, "False"),
        ({}, "Empty"),
        ({"title": "t", "unknown": 1}, "Empty"),
        ({"type": "string"}, "String"),
        ({"minLength": 1}, "String"),
        ({"type": "integer"}, "Number"),
        ({"type": "object", "minLength": 1}, {"allOf": ["Object", "String"]}),
        ({"type": ["string", "null"], "minLength": 1}, {"anyOf": ["String", "Null"]}),
        ({"type": "string", "enum": ["a"]}, {"allOf": ["Enum", "String"]}),
        ({"oneOf": [{"type": "null"}, True], "required": ["a"]}, {"allOf": [{"oneOf": ["Null", "True"]}, "Object"]}),
        ({"if": {}, "then": {}}, "Conditional"),
        ({"const": 1}, "Const"),
        ({"$ref": "#/definitions/a", "type": "string", "definitions": {"a": {}}}, "Reference"),
    ],
)
def test_kinds_of_a_schema_of_draft_7(schema: dict[str, Any], expected: Any) -> None:
    assert kinds(nodes_of(schema).root) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, "Empty"),
        ({"properties": {}}, "Empty"),
        ({"type": "object", "properties": {"a": True}, "required": ["a"]}, "Object"),
        ({"type": "string", "enum": ["a"], "maxLength": 3}, {"allOf": ["String", "Enum"]}),
        ({"type": ["string", "null"], "minLength": 1}, {"anyOf": ["String", "Null"]}),
        ({"minLength": 1, "type": ["string", "null"]}, {"anyOf": ["String", "Null"]}),
        ({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {}}}, {"allOf": ["String", "Reference"]}),
        (
            {"enum": [1], "minLength": 1, "type": ["null", "string"], "minimum": 1},
            {"allOf": [{"anyOf": ["Null", "String"]}, "Number", "Enum"]},
        ),
        (
            {"minimum": 1, "type": ["null", "string"], "minLength": 1, "enum": [1]},
            {"allOf": [{"anyOf": ["Null", "String"]}, "Number", "Enum"]},
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, "Reference"),
        ({"allOf": [{"type": "string", "enum": ["a"]}, {"not": {}}]}, {"allOf": ["String", "Enum", "Not"]}),
        ({"anyOf": [{"type": "string", "enum": ["a"]}]}, {"anyOf": [{"allOf": ["String", "Enum"]}]}),
        ({"if": {}, "then": {}}, "Conditional"),
        ({"then": {}}, "Empty"),
        ({"format": "date"}, "Empty"),
        ({"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"}}}, "Reference"),
    ],
)
def test_kinds_of_a_schema_of_draft_2020_12(schema: dict[str, Any], expected: Any) -> None:
    assert kinds(nodes_of(schema, MODERN).root) == expected


def test_draft_4_ignores_keywords_of_later_drafts() -> None:
    assert kinds(nodes_of({"const": 1, "if": {}, "contains": {}, "propertyNames": {}}, DRAFT_4).root) == "Empty"
    node = nodes_of({"maximum": 5, "exclusiveMaximum": True}, DRAFT_4).root
    assert isinstance(node, NumberNode)
    assert node.exclusive_maximum is None


def test_keywords_of_one_kind_become_one_node() -> None:
    node = nodes_of({"type": "string", "title": "t", "maxLength": 3, "pattern": "a"}, MODERN).root
    assert isinstance(node, StringNode)
    assert (node.max_length, node.pattern, node.title) == (3, "a", "t")


@pytest.mark.parametrize("draft", [DRAFT_7, MODERN])
def test_object_has_its_keywords(draft: str) -> None:
    node = nodes_of({"properties": {"a": {}}, "additionalProperties": {"type": "null"}, "required": ["a"]}, draft).root
    assert isinstance(node, ObjectNode)
    assert (node.properties, node.required, node.additional) == ({"a": {}}, ["a"], {"type": "null"})


def test_items_mean_what_they_mean_in_their_draft() -> None:
    classic = nodes_of({"items": [{}], "additionalItems": False}).root
    modern = nodes_of({"items": False, "prefixItems": [{}]}, MODERN).root
    for node in (classic, modern):
        assert isinstance(node, ArrayNode)
        assert (node.items, node.permits_additional, node.all_items) == ([{}], False, None)


def test_same_schema_has_the_same_node() -> None:
    nodes = nodes_of({"definitions": {"a": {"type": "null"}}, "properties": {"x": {"$ref": "#/definitions/a"}}})
    root = nodes.root
    assert isinstance(root, ObjectNode)
    assert nodes.resolve(nodes.node(root.properties["x"])) is nodes.resolve(nodes.node(root.properties["x"]))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}}},
        {"$schema": MODERN, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_reference_that_leads_only_to_itself_is_rejected(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema, match="leads only to itself"):
        nodes_of(schema)
