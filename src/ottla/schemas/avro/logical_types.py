"""Logical types: which ones are valid for a type. An invalid one is ignored and stays as a property.

The types are those of Java Avro 1.12 and the two that Confluent adds: `map` for an array of records with key and value,
and `variant` for a record of metadata and value.
"""

from __future__ import annotations

import math
from typing import Final

from ottla.schemas.avro.json_text import INT_MAX, INT_MIN, Json
from ottla.schemas.avro.nodes import Array, Fixed, Node, Properties, Record

#: logical types that are valid for one primitive type and have no other conditions
_PRIMITIVE: Final = {
    "big-decimal": "bytes",
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
}
#: with one of these properties, Java ignores a logical type
_EXCLUDING: Final = ("avro.java.string", "java-class", "java-key-class", "java-element-class")


def logical_type(node: Node) -> str | None:
    """Return the logical type that the properties of `node` name, or None if it is not valid for the node."""
    properties = node.properties
    name = properties.get("logicalType")
    if not isinstance(name, str) or any(isinstance(properties.get(key), str) for key in _EXCLUDING):
        return None
    if name in _PRIMITIVE:
        return name if node.type == _PRIMITIVE[name] else None
    if name == "uuid":
        is_valid = node.type == "string" or (isinstance(node, Fixed) and node.size == 16)
    elif name == "duration":
        is_valid = isinstance(node, Fixed) and node.size == 12
    elif name == "decimal":
        is_valid = _is_decimal(node)
    elif name == "map":
        is_valid = isinstance(node, Array) and _is_key_and_value(node.items)
    elif name == "variant":
        is_valid = isinstance(node, Record) and _is_variant(node)
    else:
        is_valid = False
    return name if is_valid else None


def first_properties(node: Node) -> Properties:
    """Return the properties that Java writes first for the valid logical type of `node`."""
    assert node.logical_type is not None
    first: Properties = {"logicalType": node.logical_type}
    if node.logical_type == "decimal":
        first["precision"] = node.properties["precision"]
        if node.properties.get("scale", 0) != 0:
            first["scale"] = node.properties["scale"]
    return first


def _is_decimal(node: Node) -> bool:
    precision, scale = _int(node.properties.get("precision")), _int(node.properties.get("scale", 0))
    if precision is None or scale is None:
        return False
    if isinstance(node, Fixed):
        bits = (8 * node.size - 1 - INT_MIN) % (1 << 32) + INT_MIN  # overflows as Java's int does
        precision_max = math.floor(math.log10(2) * bits)
    elif node.type == "bytes":
        precision_max = INT_MAX
    else:
        return False
    return 0 < precision <= precision_max and 0 <= scale <= precision


def _int(value: Json) -> int | None:
    return value if type(value) is int and INT_MIN <= value <= INT_MAX else None


def _is_key_and_value(items: Node) -> bool:
    return isinstance(items, Record) and [field.name for field in items.fields] == ["key", "value"]


def _is_variant(node: Record) -> bool:
    types = {field.name: field.type.type for field in node.fields}
    return types == {"metadata": "bytes", "value": "bytes"}
