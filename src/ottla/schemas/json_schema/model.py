"""The kinds of schemas that a comparison distinguishes: Confluent compares these, not the text.

A node is one kind with its keywords. One schema of the text can be several kinds at once: `{"type": "string", "enum":
["a"]}` is a `CombinedNode` of a `StringNode` and an `EnumNode`. `classic.py` and `modern.py` make the nodes of a schema
from its keywords, without looking into the schemas inside of it. `Nodes` makes those when a comparison asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, Self

from ottla.schemas.json_schema.text import JsonValue, value_key

#: the value of a keyword that a schema does not have; None is JSON's null
MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda _: "MISSING"})()


@dataclass(slots=True, eq=False)
class Node:
    """One kind of schema. Two nodes are the same if they are one object."""

    #: the keywords that made this node, or the whole schema
    raw: JsonValue = MISSING
    id: JsonValue = None
    title: JsonValue = None
    description: JsonValue = None
    default: JsonValue = MISSING
    #: the extension "connect.type" of Kafka Connect
    connect_type: JsonValue = None
    _key: str | None = None

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

    @property
    def key(self) -> str:
        """A text that nodes of one kind with the same keywords share."""
        if self._key is None:
            self._key = value_key(self.raw)
        return self._key


class EmptyNode(Node):
    """`{}`, or a schema whose keywords restrict nothing."""

    __slots__ = ()


class TrueNode(EmptyNode):
    """`true`."""

    __slots__ = ()


class FalseNode(Node):
    """`false`."""

    __slots__ = ()


class BooleanNode(Node):
    """`{"type": "boolean"}`."""

    __slots__ = ()


class NullNode(Node):
    """`{"type": "null"}`."""

    __slots__ = ()


class ConditionalNode(Node):
    """`if`, `then` and `else`."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class ConstNode(Node):
    value: JsonValue = None


@dataclass(slots=True, eq=False)
class EnumNode(Node):
    values: list[JsonValue] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class NotNode(Node):
    schema: JsonValue = None


@dataclass(slots=True, eq=False)
class ReferenceNode(Node):
    #: the text of `$ref`
    reference: str = ""
    #: the schema that it names
    target: JsonValue = None


@dataclass(slots=True, eq=False)
class CombinedNode(Node):
    """`allOf`, `anyOf` or `oneOf`, an array as `type`, or several kinds at once (`allOf`)."""

    criterion: str = "allOf"
    make_parts: Callable[[], list[Node]] = list
    #: made by modern.py for several keywords beside each other, not by a keyword
    is_generated: bool = False
    _parts: list[Node] | None = None

    @property
    def parts(self) -> list[Node]:
        if self._parts is None:
            self._parts = self.make_parts()
        return self._parts


@dataclass(slots=True, eq=False)
class Mergeable(Node):
    """A kind whose keywords modern.py collects one by one."""

    def merged_with(self, other: Self) -> Self:
        """Return a node with the keywords of both; of a keyword that both have, the other's counts."""
        values: dict[str, Any] = {}
        for each in fields(self):
            mine, its = getattr(self, each.name), getattr(other, each.name)
            absent = _DEFAULTS[type(self)][each.name]
            if isinstance(absent, dict) or each.name == "raw":
                values[each.name] = {**mine, **its}
            elif isinstance(absent, list):
                values[each.name] = mine + its
            else:
                values[each.name] = mine if its is absent else its
        values["_key"] = None
        return type(self)(**values)


@dataclass(slots=True, eq=False)
class StringNode(Mergeable):
    min_length: JsonValue = None
    max_length: JsonValue = None
    pattern: str | None = None


@dataclass(slots=True, eq=False)
class NumberNode(Mergeable):
    minimum: JsonValue = None
    maximum: JsonValue = None
    exclusive_minimum: JsonValue = None
    exclusive_maximum: JsonValue = None
    multiple_of: JsonValue = None
    requires_integer: bool = False


@dataclass(slots=True, eq=False)
class ObjectNode(Mergeable):
    properties: dict[str, JsonValue] = field(default_factory=dict)
    pattern_properties: dict[str, JsonValue] = field(default_factory=dict)
    #: in the order of the text
    required: list[str] = field(default_factory=list)
    permits_additional: bool = True
    additional: JsonValue = None
    unevaluated: JsonValue = None
    min_properties: JsonValue = None
    max_properties: JsonValue = None
    property_dependencies: dict[str, frozenset[str]] = field(default_factory=dict)
    schema_dependencies: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ArrayNode(Mergeable):
    #: the schema of all items
    all_items: JsonValue = None
    #: the schemas of the first items, one by one (a tuple)
    items: list[JsonValue] = field(default_factory=list)
    permits_additional: bool = True
    additional: JsonValue = None
    unevaluated: JsonValue = None
    min_items: JsonValue = None
    max_items: JsonValue = None
    unique_items: bool = False
    min_contains: JsonValue = None
    max_contains: JsonValue = None


def _defaults(kind: type[Node]) -> dict[str, Any]:
    node = kind()
    return {each.name: getattr(node, each.name) for each in fields(node)}


_DEFAULTS: Final[Mapping[type, dict[str, Any]]] = {
    kind: _defaults(kind) for kind in (StringNode, NumberNode, ObjectNode, ArrayNode)
}


class Nodes(Protocol):
    """Makes the node of a schema of the text, the same one each time."""

    def node(self, schema: JsonValue) -> Node: ...

    def target(self, reference: str, schema: JsonValue) -> JsonValue: ...


#: JSON's types -> the kind of node, and the keywords that belong to it
TYPE_KINDS: Final[Mapping[str, type[Node]]] = {
    "string": StringNode,
    "integer": NumberNode,
    "number": NumberNode,
    "boolean": BooleanNode,
    "null": NullNode,
    "array": ArrayNode,
    "object": ObjectNode,
}


#: keyword -> the kind and the field that has its value
FIELDS: Final[Mapping[str, tuple[type[Mergeable], str]]] = {
    "minLength": (StringNode, "min_length"),
    "maxLength": (StringNode, "max_length"),
    "pattern": (StringNode, "pattern"),
    "minimum": (NumberNode, "minimum"),
    "maximum": (NumberNode, "maximum"),
    "exclusiveMinimum": (NumberNode, "exclusive_minimum"),
    "exclusiveMaximum": (NumberNode, "exclusive_maximum"),
    "multipleOf": (NumberNode, "multiple_of"),
    "properties": (ObjectNode, "properties"),
    "patternProperties": (ObjectNode, "pattern_properties"),
    "required": (ObjectNode, "required"),
    "minProperties": (ObjectNode, "min_properties"),
    "maxProperties": (ObjectNode, "max_properties"),
    "dependentSchemas": (ObjectNode, "schema_dependencies"),
    "unevaluatedProperties": (ObjectNode, "unevaluated"),
    "unevaluatedItems": (ArrayNode, "unevaluated"),
    "minItems": (ArrayNode, "min_items"),
    "maxItems": (ArrayNode, "max_items"),
    "uniqueItems": (ArrayNode, "unique_items"),
}

#: the keywords of CombinedNode, in the order in which Confluent reads them
CRITERIA: Final = ("allOf", "oneOf", "anyOf")
