"""Validation of the defaults of fields, as the parser of Java Avro 1.12 does it for a new schema.

Java validates a default twice: when it has read the field, and when it has replaced names that were used before their
definition. For the first validation, a name that is not defined yet is a record without fields. For the second, a
record whose fields are not complete yet cannot have a default that is an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ottla.schemas.avro.json_text import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Json, write
from ottla.schemas.avro.nodes import Array, Field, Map, Named, Node, NoDefault, Record, Union, Unresolved
from ottla.schemas.avro.problem import Problem
from ottla.schemas.schema import DEPTH_MAX, Budget, SchemaTooComplex

_LEAVES: Final[dict[str, Callable[[Json], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and INT_MIN <= value <= INT_MAX,
    "long": lambda value: type(value) is int and LONG_MIN <= value <= LONG_MAX,
    "float": lambda value: type(value) is int or type(value) is float,
    "double": lambda value: type(value) is int or type(value) is float,
    "bytes": lambda value: isinstance(value, str),
    "string": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, str),
    "fixed": lambda value: isinstance(value, str),
}


def check_default(field: Field, budget: Budget, complete: set[int] | None = None) -> None:
    """Raise Problem if the field's default does not fit its type.

    `complete` holds the identities of the records whose fields are known; None: all are.
    """
    if not isinstance(field.default, NoDefault) and not _fits(field.type, field.default, budget, complete, 0):
        raise Problem(f"the default {write(field.default)[:80]} of field {field.name} is not valid for its type")


def fits(node: Node, value: Json, budget: Budget) -> bool:
    """Return whether a value is a valid default of a type of a complete schema."""
    return _fits(node, value, budget, None, 0)


def _fits(node: Node, value: Json | NoDefault, budget: Budget, complete: set[int] | None, depth: int) -> bool:
    if isinstance(value, NoDefault):
        return False
    if isinstance(node, Unresolved) and node.target is not None:
        node = node.target
    leaf = _LEAVES.get(node.type)
    if leaf is not None:
        return leaf(value)
    budget.spend()
    if depth > DEPTH_MAX:
        raise SchemaTooComplex(f"defaults depend on each other through more than {DEPTH_MAX} levels")
    if isinstance(node, Union):
        return any(_fits(branch, value, budget, complete, depth + 1) for branch in node.branches)
    if isinstance(node, Array):
        return isinstance(value, list) and all(_fits(node.items, item, budget, complete, depth + 1) for item in value)
    if not isinstance(value, dict):
        return False
    if isinstance(node, Map):
        return all(_fits(node.items, member, budget, complete, depth + 1) for member in value.values())
    if isinstance(node, Unresolved):
        return True
    assert isinstance(node, Record)
    if complete is not None and id(node) not in complete:
        raise Problem(f"an object is a default inside of its own type, record {node.name.full}")
    return all(
        _fits(field.type, value.get(field.name, field.default), budget, complete, depth + 1) for field in node.fields
    )


def check_resolved_defaults(named: Iterable[Named], root: Node, budget: Budget) -> None:
    """Validate all defaults in the order in which Java replaces names by their definitions. Raise Problem.

    The targets of unresolved names must be known.
    """
    order = _ResolutionOrder(budget)
    for node in named:
        order.visit(node, 0)
    order.visit(root, 0)


class _ResolutionOrder:
    """Visits records in the order of Java's SchemaResolver, and validates defaults when a record is complete."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._begun: set[int] = set()
        self._complete: set[int] = set()

    def visit(self, start: Node, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise SchemaTooComplex(f"names are used before their definition through more than {DEPTH_MAX} levels")
        visited: set[int] = set()
        pending: list[tuple[Node, bool]] = [(start, False)]
        while pending:
            node, is_end = pending.pop()
            if is_end:
                assert isinstance(node, Record)
                self._end(node)
                continue
            # Everything that an earlier visit from the outside has reached is complete.
            if id(node) in visited or (depth == 0 and id(node) in self._complete):
                continue
            self._budget.spend()
            if isinstance(node, Unresolved):
                self._visit_target(node, depth)
            elif isinstance(node, Record):
                visited.add(id(node))
                self._begun.add(id(node))
                pending.append((node, True))
                pending += [(child, False) for child in reversed(node.children())]
            else:
                pending += [(child, False) for child in node.children()]

    def _visit_target(self, node: Unresolved, depth: int) -> None:
        if id(node) in self._begun:
            return
        target = node.target
        assert target is not None
        if id(target) not in self._begun:
            self.visit(target, depth + 1)
        self._begun.add(id(node))

    def _end(self, record: Record) -> None:
        if id(record) in self._complete:
            return
        for field in record.fields:
            check_default(field, self._budget, self._complete)
        self._complete.add(id(record))
