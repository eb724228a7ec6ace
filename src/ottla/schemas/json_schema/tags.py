"""Tags inside of a JSON schema: the member `confluent:tags` of a schema, an array of strings.

A record is an object schema, a field is a property. Confluent's path names the schemas on the way to it: "object" and
the name of a property or definition, "array" for the schema of all items, "allof.0" for the first part of a combined
schema, and so on. The parts of a combined schema are numbered in an order of their own, not in that of the text.
References are not followed: what a definition holds is reached by the path of the definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.schemas.json_schema.model import (
    ArrayNode,
    CombinedNode,
    ConditionalNode,
    ConstNode,
    EnumNode,
    Node,
    NotNode,
    ObjectNode,
)
from ottla.schemas.json_schema.nodes import SchemaNodes
from ottla.schemas.json_schema.text import JsonValue, print_json
from ottla.schemas.schema import Entity, InvalidSchema
from ottla.schemas.tags import JsonTags, TagsByEntity

TAGS: Final = JsonTags(lambda tag: None)
_RECORD: Final = "sr_record"
_FIELD: Final = "sr_field"
_Schema = dict[str, JsonValue]


def tagged_entities(nodes: SchemaNodes) -> dict[Entity, frozenset[str]]:
    """Return the tags of each record and field that has some."""
    return TAGS.of_entities(_entities(nodes))


def change_tags(nodes: SchemaNodes, add: TagsByEntity, remove: TagsByEntity) -> None:
    """Add and remove tags in the schemas themselves. Raise InvalidSchema if there is no such record or field."""
    schemas = dict(_entities(nodes))

    def find(entity: Entity) -> _Schema:
        schema = schemas.get(Entity(entity.kind.lower(), entity.path))
        if schema is None:
            raise InvalidSchema(f"the schema has no {entity.kind} at the path {entity.path!r}")
        return schema

    TAGS.change(find, add, remove)


def _entities(nodes: SchemaNodes) -> Iterator[tuple[Entity, _Schema]]:
    """Yield each record and field with the schema of the text that has its tags."""
    #: node, the schema of the text that it belongs to, the path before it, and whether that is the path of a field
    pending: list[tuple[Node, JsonValue, str, bool]] = [(nodes.root, nodes.root.raw, "", False)]
    while pending:
        node, schema, scope, is_field = pending.pop()
        if isinstance(node, CombinedNode):
            for index, part in enumerate(sorted(node.parts, key=_order)):
                owner = part.raw if nodes.has(part.raw) else schema
                pending.append((part, owner, f"{scope}{node.criterion.lower()}.{index}.", False))
        elif isinstance(node, ArrayNode) and node.all_items is not None:
            pending.append((nodes.node(node.all_items), node.all_items, f"{scope}array.", False))
        elif isinstance(node, NotNode):
            pending.append((nodes.node(node.schema), node.schema, f"{scope}not.", False))
        elif isinstance(node, ConditionalNode):
            for keyword in ("if", "then", "else"):
                if keyword in node.raw:
                    inside = node.raw[keyword]
                    pending.append((nodes.node(inside), inside, f"{scope}conditional.{keyword}.", False))
        elif isinstance(node, ObjectNode):
            path = f"{scope}object"
            if not is_field:
                yield Entity(_RECORD, path), schema
            for name, inside in node.properties.items():
                if isinstance(inside, dict):
                    yield Entity(_FIELD, f"{path}.{name}"), inside
                pending.append((nodes.node(inside), inside, f"{path}.{name}.", True))
            for group in ("definitions", "$defs"):
                members: Any = schema.get(group)
                for name, inside in members.items() if isinstance(members, dict) else ():
                    if nodes.has(inside):
                        pending.append((nodes.node(inside), inside, f"{path}.{group}.{name}.", False))


def _order(node: Node) -> tuple[object, ...]:
    """Return the key by which Confluent sorts the parts of a combined schema."""
    names: list[str] = []
    required: list[str] = []
    if isinstance(node, ObjectNode):
        names, required = sorted(node.properties), sorted(node.required)
    elif isinstance(node, EnumNode):
        names = sorted(map(print_json, node.values))
    elif isinstance(node, ConstNode):
        names = [print_json(node.value)]
    elif isinstance(node, CombinedNode):
        names = [node.criterion.lower()]
    default = print_json(node.default) if node.has_default else ""
    kind = type(node).__name__.removesuffix("Node").lower()
    return (kind, node.title or "", node.description or "", default, len(names), names, len(required), required)
