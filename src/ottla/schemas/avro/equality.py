"""Equality of schemas: as Java Avro compares them, and with their documentation and aliases, as a lookup needs it."""

from __future__ import annotations

from ottla.schemas.avro import json_text
from ottla.schemas.avro.nodes import NO_DEFAULT, Enum, Field, Fixed, Named, Node, NoDefault, Record, Unresolved
from ottla.schemas.schema import Budget


def same_schema(left: Node, right: Node, budget: Budget) -> bool:
    """Return whether two schemas are equal for Java Avro, which ignores documentation, aliases and enum defaults."""
    return _all_pairs(left, right, budget, with_documentation=False)


def same_schema_and_documentation(left: Node, right: Node, budget: Budget) -> bool:
    """Return whether two schemas are equal, and also their documentation, aliases and enum defaults."""
    return _all_pairs(left, right, budget, with_documentation=True)


def _all_pairs(left: Node, right: Node, budget: Budget, *, with_documentation: bool) -> bool:
    """Compare the nodes of two schemas pair by pair, without recursion; each pair of records once."""
    pending = [(left, right)]
    compared: set[tuple[int, int]] = set()
    while pending:
        left, right = pending.pop()
        if left is right:
            continue
        budget.spend()
        if type(left) is not type(right) or left.type != right.type or isinstance(left, Unresolved):
            return False
        if isinstance(left, Record):
            pair = (id(left), id(right))
            if pair in compared:
                continue
            compared.add(pair)
        if not _same_node(left, right):
            return False
        if with_documentation and not _same_documentation(left, right):
            return False
        children, other_children = left.children(), right.children()
        if len(children) != len(other_children):
            return False
        pending += zip(children, other_children, strict=True)
    return True


def _same_node(left: Node, right: Node) -> bool:
    if (left.properties or right.properties) and not json_text.equal(left.properties, right.properties):
        return False
    if isinstance(left, Named) and isinstance(right, Named) and left.name.full != right.name.full:
        return False
    if isinstance(left, Record) and isinstance(right, Record):
        return len(left.fields) == len(right.fields) and all(map(_same_field, left.fields, right.fields))
    if isinstance(left, Enum) and isinstance(right, Enum):
        return left.symbols == right.symbols
    return not (isinstance(left, Fixed) and isinstance(right, Fixed)) or left.size == right.size


def _same_field(left: Field, right: Field) -> bool:
    return (
        left.name == right.name
        and left.order == right.order
        and _same_default(left.default, right.default)
        and (not (left.properties or right.properties) or json_text.equal(left.properties, right.properties))
    )


def _same_default(left: json_text.Json | NoDefault, right: json_text.Json | NoDefault) -> bool:
    if isinstance(left, NoDefault) or isinstance(right, NoDefault):
        return left is NO_DEFAULT and right is NO_DEFAULT
    return json_text.equal(left, right)


def _same_documentation(left: Node, right: Node) -> bool:
    if not (isinstance(left, Named) and isinstance(right, Named)):
        return True
    if left.doc != right.doc or left.alias_texts() != right.alias_texts():
        return False
    if isinstance(left, Enum) and isinstance(right, Enum):
        return left.default == right.default
    if isinstance(left, Record) and isinstance(right, Record):
        return all(
            field.doc == other.doc and set(field.aliases) == set(other.aliases)
            for field, other in zip(left.fields, right.fields, strict=True)
        )
    return True
