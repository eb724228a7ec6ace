"""Schemas of tables: which rows fit a table, and which columns they add to it. Pure.

A schema is a document in Spark's JSON form, which Delta has in its log, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.model.errors import OttlaError

#: {"name", "type", "nullable", "metadata"}
Field = Mapping[str, Any]
#: {"type": "struct", "fields": [...]}
Schema = Mapping[str, Any]

#: columns that a keyed table with history has besides those of its rows
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
HISTORY_COLUMNS: Final = (VALID_FROM, VALID_TO, IS_CURRENT)
#: the column that the change feed of a keyed table adds, as Delta calls it
CHANGE_TYPE: Final = "_change_type"
#: a column of the first type takes values of the others without loss
_WIDENS: Final[Mapping[str, tuple[str, ...]]] = {
    "short": ("byte",),
    "integer": ("byte", "short"),
    "long": ("byte", "short", "integer"),
    "double": ("float", "byte", "short", "integer"),
}
_DECIMAL = re.compile(r"decimal\((\d+), *(-?\d+)\)")
#: characters that Delta's readers take for syntax
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_TYPES: Final = (
    "byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip
_NOT_FOR_PARTITIONS: Final = ("binary", "float", "double")


class SchemaMismatch(OttlaError):
    """Rows and table do not fit; the text says in which column, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    #: what the table has afterwards
    table: Schema
    #: the columns of the rows, with the types of the table
    rows: Schema
    #: fields that the table does not have yet; a struct that grows is in it with what it gains
    added: tuple[Field, ...]


def prepare_new(rows: Schema, partition_by: Sequence[str]) -> Schema:
    """Return the schema of a new table for these rows. All columns are nullable, because later rows may lack them.

    Raise SchemaMismatch if a table cannot have one of the columns.
    """
    names = [field["name"] for field in rows["fields"]]
    lowered = [name.lower() for name in names]
    for name in names:
        if lowered.count(name.lower()) > 1:
            raise SchemaMismatch(f"the column {name} occurs twice: rename one of them")
        if _BAD_NAME.search(name):
            raise SchemaMismatch(f"a table's column cannot be called {name!r}: use letters, digits and underscores")
    for field in rows["fields"]:
        _check_type(field["name"], field["type"])
    check_partition_columns(rows, partition_by)
    if len(partition_by) == len(names):
        raise SchemaMismatch("all columns are partition columns: leave one out of partitionBy")
    return {"type": "struct", "fields": [nullable(field) for field in rows["fields"]]}


def check_partition_columns(schema: Schema, partition_by: Iterable[str]) -> None:
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for column in partition_by:
        if column not in types:
            raise SchemaMismatch(
                f"partitionBy names the column {column}, which the rows do not have ({', '.join(types)}): add it to "
                "them first, such as withColumn('day', to_date('timestamp'))"
            )
        if not isinstance(types[column], str) or types[column] in _NOT_FOR_PARTITIONS:
            raise SchemaMismatch(f"the column {column} of type {type_text(types[column])} cannot partition a table")


def merge(table: Schema, rows: Schema, *, grow: bool) -> Merged:
    """Return how rows fit a table. Columns that the rows lack are null. Raise SchemaMismatch."""
    fields, used, added = _merge_fields(table["fields"], rows["fields"], grow=grow, path="")
    return Merged(
        table={"type": "struct", "fields": fields}, rows={"type": "struct", "fields": used}, added=tuple(added)
    )


def _merge_fields(
    table: Sequence[Field], rows: Sequence[Field], *, grow: bool, path: str
) -> tuple[list[Field], list[Field], list[Field]]:
    """Return the fields of the table afterwards, those of the rows in the table's types, and the new ones."""
    fields = {field["name"].lower(): field for field in table}
    used, added = [], []
    for row in rows:
        name = f"{path}{row['name']}"
        known = fields.get(row["name"].lower())
        if known is None:
            if not grow:
                raise SchemaMismatch(
                    f"the table has no column {name}: set mergeSchema to true to add it, or drop it from the rows"
                )
            _check_type(name, row["type"])
            if not path and _BAD_NAME.search(row["name"]):
                raise SchemaMismatch(f"a table's column cannot be called {name!r}: use letters, digits and underscores")
            known = nullable(row)
            fields[row["name"].lower()] = known
            used.append(known)
            added.append(known)
            continue
        merged, seen, gained = _merge_types(known["type"], row["type"], grow=grow, path=name)
        fields[row["name"].lower()] = {**known, "type": merged}
        used.append({**known, "type": seen})
        if gained:
            added.append({**known, "type": merged})
    return list(fields.values()), used, added


def _merge_types(table: Any, rows: Any, *, grow: bool, path: str) -> tuple[Any, Any, bool]:
    if isinstance(table, Mapping) and isinstance(rows, Mapping) and table["type"] == rows["type"]:
        kind = table["type"]
        if kind == "struct":
            fields, _, added = _merge_fields(table["fields"], rows["fields"], grow=grow, path=f"{path}.")
            merged = {**table, "fields": fields}
            # Values inside of nested columns are written with all fields, so that all files agree.
            return merged, merged, bool(added)
        inner = ("elementType",) if kind == "array" else ("keyType", "valueType")
        merged, gained = dict(table), False
        for each in inner:
            part = _merge_types(table[each], rows[each], grow=False, path=f"{path}.{each}")
            merged[each], gained = part[0], gained or part[2]
        return merged, merged, gained
    if _takes(table, rows):
        return table, table, False
    raise SchemaMismatch(
        f"the column {path} of the table is {type_text(table)}, that of the rows is {type_text(rows)}: cast it"
    )


def _takes(table: Any, rows: Any) -> bool:
    if table == rows or rows == "void" or (isinstance(table, str) and rows in _WIDENS.get(table, ())):
        return True
    if not isinstance(table, str) or not isinstance(rows, str):
        return False
    wide, narrow = _DECIMAL.fullmatch(table), _DECIMAL.fullmatch(rows)
    if wide is None or narrow is None:
        return False
    digits, scale = int(wide[1]) - int(narrow[1]), int(wide[2]) - int(narrow[2])
    return scale >= 0 and digits >= scale


def nullable(field: Field) -> Field:
    """Return the field, with all fields inside of it, nullable and without metadata."""
    return {"name": field["name"], "type": _nullable_type(field["type"]), "nullable": True, "metadata": {}}


def _nullable_type(kind: Any) -> Any:
    if not isinstance(kind, Mapping):
        return kind
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [nullable(field) for field in kind["fields"]]}
    if kind["type"] == "array":
        return {"type": "array", "elementType": _nullable_type(kind["elementType"]), "containsNull": True}
    if kind["type"] != "map":
        return kind
    return {
        "type": "map",
        "keyType": _nullable_type(kind["keyType"]),
        "valueType": _nullable_type(kind["valueType"]),
        "valueContainsNull": True,
    }


def _check_type(path: str, kind: Any) -> None:
    if isinstance(kind, Mapping):
        for field in kind.get("fields", ()):
            _check_type(f"{path}.{field['name']}", field["type"])
        for inner in ("elementType", "keyType", "valueType"):
            if inner in kind:
                _check_type(path, kind[inner])
        if kind["type"] not in ("struct", "array", "map"):
            raise SchemaMismatch(f"the column {path} has a type that tables do not have, {kind['type']}: cast it")
    elif kind not in _TYPES and _DECIMAL.fullmatch(kind) is None:
        advice = "give it a type, such as cast('string')" if kind == "void" else "cast it"
        raise SchemaMismatch(f"the column {path} has a type that tables do not have, {kind}: {advice}")


def type_text(kind: Any) -> str:
    """Return a type in the form of Spark SQL."""
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind["type"] == "struct":
        fields = ", ".join(f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "array":
        return f"array<{type_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
    return str(kind["type"])
