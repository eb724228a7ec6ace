"""The parser: from the text of a schema to its nodes, with the verdicts of the parser of Java Avro 1.12.

As in Java, a type may be used before its definition. Such a mention is an `Unresolved` node until the text is read to
its end. A type may be defined a second time if both definitions are equal.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.schemas.avro import json_text, names
from ottla.schemas.avro.defaults import check_default, check_resolved_defaults
from ottla.schemas.avro.equality import same_schema
from ottla.schemas.avro.json_text import INT_MAX, Json, check_value
from ottla.schemas.avro.logical_types import first_properties, logical_type
from ottla.schemas.avro.nodes import (
    NO_DEFAULT,
    PRIMITIVES,
    Array,
    Container,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    Named,
    Node,
    NoDefault,
    Properties,
    Record,
    Union,
    Unresolved,
)
from ottla.schemas.avro.problem import Problem
from ottla.schemas.schema import DEPTH_MAX, Budget, SchemaTooComplex

_RESERVED: Final = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
_RESERVED_OF_ENUM: Final = _RESERVED | {"default"}
_RESERVED_OF_FIELD: Final = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_ORDERS: Final = frozenset({"ascending", "descending", "ignore"})
#: the largest array of Java
_FIXED_SIZE_MAX: Final = INT_MAX - 8
#: the texts that Java's Double.parseDouble accepts, after white space is trimmed
_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?|(0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)"
    r"[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)


class Parser:
    """Parses texts one after the other; a text can use the types of the texts before it."""

    __slots__ = ("_budget", "_containers", "_has_cycles", "_has_objects", "_is_new", "_records", "_unresolved", "named")

    def __init__(self, is_new: bool, budget: Budget) -> None:
        self._is_new = is_new
        self._budget = budget
        #: all types that have a name, by their full names
        self.named: dict[str, Named] = {}
        #: nodes of the current text
        self._records: list[Record] = []
        self._containers: list[Container | Union] = []
        self._unresolved: list[Unresolved] = []
        #: whether a type was used before its definition
        self._has_cycles = False
        #: whether the default of a field is an object or list
        self._has_objects = False

    def parse(self, text: str) -> Node:
        """Return the schema. Raise InvalidSchema."""
        json = json_text.read(text)
        self._records, self._containers, self._unresolved = [], [], []
        try:
            root = self._schema(json, None, 1)
            if isinstance(root, Unresolved):
                raise Problem(f"the type {root.written!r} is not defined")
            self._find_targets(json)
            if self._is_new and self._has_objects and self._has_cycles:
                check_resolved_defaults(self.named.values(), root, self._budget)
            if self._unresolved:
                self._replace_unresolved()
        except Problem as problem:
            raise problem.as_invalid_schema() from None
        return self.named[root.name.full] if isinstance(root, Named) else root

    def check_stored_names(self, root: Node) -> None:
        """Raise InvalidSchema if a name is not valid; for schemas that are not new."""
        try:
            names.check_stored_names(root, self._budget)
        except Problem as problem:
            raise problem.as_invalid_schema() from None

    # Each definition inside of another one takes two calls: this one, and the one for its type.
    def _schema(self, json: Json, space: str | None, depth: int) -> Node:
        if isinstance(json, str):
            return Node(json) if json in PRIMITIVES else self._find(json, space)
        if depth > DEPTH_MAX:
            raise SchemaTooComplex(f"definitions are nested more than {DEPTH_MAX} levels deep")
        if isinstance(json, list):
            return self._union(json, space, depth)
        if not isinstance(json, dict):
            raise Problem(f"a schema is a name, an object or a list, not {json_text.write(json)[:40]}")
        type_name = json.get("type")
        if not isinstance(type_name, str):
            raise Problem('an object needs a "type" that is a string')
        if type_name in PRIMITIVES:
            node = Node(type_name)
            if len(json) > 1:
                self._set_properties(node, json, _RESERVED)
            return node
        if type_name in ("record", "error"):
            return self._record(json, space, depth, type_name == "error")
        if type_name == "array":
            return self._container(Array, json, space, depth)
        if type_name == "map":
            return self._container(Map, json, space, depth)
        if type_name == "enum":
            return self._enum(json, space)
        return self._fixed(json, space) if type_name == "fixed" else self._find(type_name, space)

    def _find(self, name: str, space: str | None) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        full_name = name if space is None or "." in name else f"{space}.{name}"
        found = self.named.get(full_name) or self.named.get(name)
        if found is None:
            unresolved = Unresolved(full_name, name)
            self._unresolved.append(unresolved)
            return unresolved
        return found

    def _record(self, json: dict[str, Json], space: str | None, depth: int, is_error: bool) -> Record:
        name = self._name(json, space)
        fields_json = json.get("fields")
        if not isinstance(fields_json, list):
            raise Problem(f'record {name.full} needs a list "fields"')
        fields: list[Field] = []
        for position, field_json in enumerate(fields_json):
            try:
                if not isinstance(field_json, dict) or "type" not in field_json:
                    raise Problem('a field is an object with "name" and "type"')
                try:
                    type_ = self._schema(field_json["type"], name.space, depth + 1)
                except Problem as problem:
                    problem.inside("type")
                    raise
                fields.append(self._field(field_json, type_))
            except Problem as problem:
                problem.inside("fields", str(position))
                raise
        node = Record(name, _optional_text(json, "doc"), fields, is_error)
        if len(node.fields_by_name) < len(fields):
            raise Problem(f"record {name.full} has two fields with the same name")
        self._records.append(node)
        self._set_properties(node, json, _RESERVED)
        self._define(node, json)
        return node

    def _field(self, json: dict[str, Json], type_: Node) -> Field:
        name = json.get("name")
        if not isinstance(name, str):
            raise Problem('a field needs a "name" that is a string')
        if self._is_new:
            names.check_new_name(name, "field name")
        order = json.get("order", "ascending")
        # "order": null is an error, as it is in Java.
        if not isinstance(order, str) or order.upper().lower() not in _ORDERS:
            raise Problem(f'"order" is ascending, descending or ignore, not {json_text.write(order)[:40]}')
        default: Json | NoDefault = json.get("default", NO_DEFAULT)
        if isinstance(default, str) and type_.type in ("float", "double"):
            default = _parse_double(default)
        elif isinstance(default, dict | list):
            self._has_objects = True
            check_value(default, self._budget)
        field = Field(name, type_, _optional_text(json, "doc"), default, order.upper().lower())
        if self._is_new and default is not NO_DEFAULT:
            check_default(field, self._budget)
        if "aliases" in json:
            field.aliases = _aliases(json["aliases"])
        if not json.keys() <= _RESERVED_OF_FIELD:
            field.properties = {key: value for key, value in json.items() if key not in _RESERVED_OF_FIELD}
            check_value(field.properties, self._budget)
        return field

    def _enum(self, json: dict[str, Json], space: str | None) -> Enum:
        name = self._name(json, space)
        symbols = json.get("symbols")
        if not isinstance(symbols, list):
            raise Problem(f'enum {name.full} needs a list "symbols"')
        texts: list[str] = []
        for symbol in symbols:
            if not isinstance(symbol, str):
                raise Problem(f"a symbol of enum {name.full} is not a string: {json_text.write(symbol)[:40]}")
            if self._is_new:
                names.check_new_name(symbol, "symbol")
            texts.append(symbol)
        if len(set(texts)) < len(texts):
            raise Problem(f"enum {name.full} has two equal symbols")
        default = _optional_text(json, "default")
        if default is not None and default not in texts:
            raise Problem(f"the default {default!r} of enum {name.full} is not one of its symbols")
        node = Enum(name, _optional_text(json, "doc"), texts, default)
        self._set_properties(node, json, _RESERVED_OF_ENUM)
        self._define(node, json)
        return node

    def _fixed(self, json: dict[str, Json], space: str | None) -> Fixed:
        name = self._name(json, space)
        size = json.get("size")
        if type(size) is not int or not 0 <= size <= _FIXED_SIZE_MAX:
            raise Problem(f'fixed {name.full} needs a "size" from 0 to {_FIXED_SIZE_MAX:,}')
        node = Fixed(name, _optional_text(json, "doc"), size)
        self._set_properties(node, json, _RESERVED)
        self._define(node, json)
        return node

    def _container(self, kind: type[Container], json: dict[str, Json], space: str | None, depth: int) -> Container:
        if kind.attribute not in json:
            raise Problem(f'{"an array" if kind is Array else "a map"} needs "{kind.attribute}"')
        try:
            node = kind(self._schema(json[kind.attribute], space, depth + 1))
        except Problem as problem:
            problem.inside(kind.attribute)
            raise
        self._containers.append(node)
        if len(json) > 2:
            self._set_properties(node, json, _RESERVED)
        return node

    def _union(self, json: list[Json], space: str | None, depth: int) -> Union:
        branches: list[Node] = []
        for position, branch in enumerate(json):
            try:
                branches.append(self._schema(branch, space, depth + 1))
            except Problem as problem:
                problem.inside(str(position))
                raise
        node = Union(branches)
        _check_branches(node)
        self._containers.append(node)
        return node

    def _name(self, json: dict[str, Json], space: str | None) -> Name:
        written = json.get("name")
        if not isinstance(written, str):
            raise Problem(f'{json["type"]} needs a "name" that is a string')
        own_space = json.get("namespace")
        name = Name(written, own_space if isinstance(own_space, str) else space)
        if self._is_new:
            names.check_new_name(name.name, "name")
        if name.full in PRIMITIVES:
            raise Problem(f"a type cannot be named {name.full} like a primitive type")
        return name

    def _define(self, node: Named, json: dict[str, Json]) -> None:
        """Set the aliases of a type and make its name known."""
        name = node.name
        if "aliases" in json:
            aliases = {alias.full: alias for alias in (Name(text, name.space) for text in _aliases(json["aliases"]))}
            node.aliases = tuple(aliases.values())
            if self._is_new:
                for alias in node.aliases:
                    names.check_new_name(alias.name, "alias")
        if self._is_new and name.space is not None:
            for part in name.space.split("."):
                names.check_new_name(part, "namespace")
        known = self.named.setdefault(name.full, node)
        if known is not node and not same_schema(node, known, self._budget):
            raise Problem(f"the type {name.full} is defined twice, with different definitions")

    def _set_properties(self, node: Node, json: dict[str, Json], reserved: frozenset[str]) -> None:
        if json.keys() <= reserved:
            return
        properties: Properties = {key: value for key, value in json.items() if key not in reserved}
        has_large_integer = not check_value(properties, self._budget)
        is_copied = isinstance(node, Record | Container)
        if has_large_integer and is_copied:
            raise Problem(f"a property of this {node.type} has an integer of more than 64 bits")
        node.properties = properties
        if "logicalType" in properties:
            node.logical_type = logical_type(node)
            if node.logical_type is not None and is_copied:
                # Java copies these nodes, and the attributes of the logical type come first in the copy.
                node.properties = first_properties(node) | properties

    def _find_targets(self, json: Json) -> None:
        """Find the definitions of names that were used before. Raise Problem if there is none."""
        for unresolved in self._unresolved:
            self._has_cycles = True
            unresolved.target = self.named.get(unresolved.full_name)
            if unresolved.target is None:
                problem = Problem(f"the type {unresolved.full_name!r} is not defined")
                problem.inside(*_place_of(json, unresolved.written))
                raise problem

    def _replace_unresolved(self) -> None:
        for record in self._records:
            for field in record.fields:
                field.type = _replacement(field.type)
        for node in self._containers:
            if isinstance(node, Union):
                node.branches = [_replacement(branch) for branch in node.branches]
                _check_branches(node)
            else:
                node.items = _replacement(node.items)


def _replacement(node: Node) -> Node:
    return node.target if isinstance(node, Unresolved) and node.target is not None else node


def _check_branches(union: Union) -> None:
    """Raise Problem if a branch is a union, or if two branches have the same name or type."""
    seen: set[str] = set()
    for branch in union.branches:
        if isinstance(branch, Unresolved):
            continue
        if isinstance(branch, Union):
            raise Problem("a union cannot directly contain a union")
        name = branch.name.full if isinstance(branch, Named) else branch.type
        if name in seen:
            raise Problem(f"the union has two branches of type {name}")
        seen.add(name)


def _optional_text(json: dict[str, Json], key: str) -> str | None:
    value = json.get(key)
    return value if isinstance(value, str) else None


def _aliases(json: Json) -> tuple[str, ...]:
    if not isinstance(json, list):
        raise Problem('"aliases" is not a list')
    texts: dict[str, None] = {}
    for alias in json:
        if not isinstance(alias, str):
            raise Problem(f"an alias is not a string: {json_text.write(alias)[:40]}")
        texts[alias] = None
    return tuple(texts)


def _parse_double(text: str) -> float:
    trimmed = text.strip(json_text.TRIMMED)
    if _DOUBLE.fullmatch(trimmed) is None:
        raise Problem(f"the default {text[:40]!r} is not a number")
    if trimmed.lstrip("+-")[:2] in ("0x", "0X"):
        try:
            return float.fromhex(trimmed.rstrip("fFdD") if "p" in trimmed.lower() else trimmed)
        except OverflowError:
            return float("-inf") if trimmed[0] == "-" else float("inf")
    return float(trimmed if trimmed.endswith("Infinity") else trimmed.rstrip("fFdD"))


def _place_of(json: Json, name: str) -> tuple[str, ...]:
    """Return the steps to the first place of the text where a type has this name."""
    pending: list[tuple[Json, tuple[str, ...]]] = [(json, ())]
    while pending:
        value, place = pending.pop()
        if value == name and place[-1:] != ("name",):
            return place
        if isinstance(value, dict):
            pending += [(value[key], (*place, key)) for key in ("type", "fields", "items", "values") if key in value]
        elif isinstance(value, list):
            pending += [(item, (*place, str(position))) for position, item in enumerate(value)]
    return ()
