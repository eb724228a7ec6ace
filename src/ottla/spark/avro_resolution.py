"""Whether values of one Avro schema (writer) can be resolved to another (reader), found before a value is read.

The rules are those of Avro's specification: fields match by name or by an alias of the reader, numbers are promoted to
wider ones, fields that the writer does not have need a default. Some mismatches depend on the value: a branch of the
writer's union that the reader does not have, a symbol that the reader's enum does not have. They are accepted here if
another branch or symbol can be resolved, and the decoder rejects the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import fastavro

_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
#: numbers of these types have different units, and the decoder does not convert one to the other
_TIMES_OF_DAY: Final = ("time-millis", "time-micros")


def why_unresolvable(writer: Any, reader: Any) -> str | None:
    """Return why no value of the writer's schema can be resolved to the reader's; None if values can be resolved."""
    return _compare(fastavro.schema.expand_schema(writer), fastavro.schema.expand_schema(reader), "the value")


def _compare(writer: Any, reader: Any, where: str) -> str | None:
    if isinstance(writer, list):
        causes = [_compare(branch, reader, where) for branch in _without_null(writer)]
        return None if None in causes else causes[0]
    if isinstance(reader, list):
        branches = reader if writer == "null" else _without_null(reader)
        causes = [_compare(writer, branch, where) for branch in branches]
        return None if None in causes else causes[0]
    kind, wanted = _kind(writer), _kind(reader)
    if kind == wanted == "record":
        return _compare_names(writer, reader, where) or _compare_fields(writer, reader, where)
    if kind == wanted and kind in ("enum", "fixed"):
        return _compare_names(writer, reader, where) or _compare_content(kind, writer, reader, where)
    if kind == wanted == "array":
        return _compare(writer["items"], reader["items"], f"an item of {where}")
    if kind == wanted == "map":
        return _compare(writer["values"], reader["values"], f"a value of {where}")
    if kind != wanted and wanted not in _PROMOTIONS.get(kind, ()):
        return f"{where} is written as {kind} and read as {wanted}"
    units = {_logical_type(writer), _logical_type(reader)}
    if units == set(_TIMES_OF_DAY):
        return f"{where} is written as {_logical_type(writer)} and read as {_logical_type(reader)}"
    return None


def _compare_names(writer: Any, reader: Any, where: str) -> str | None:
    written = _short(writer["name"])
    if written in map(_short, (reader["name"], *reader.get("aliases", ()))):
        return None
    return f"{where} is a {written} and the reader's type is {_short(reader['name'])}; add an alias there"


def _compare_fields(writer: Any, reader: Any, where: str) -> str | None:
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        name = next((one for one in (field["name"], *field.get("aliases", ())) if one in written), None)
        if name is None:
            if "default" not in field:
                return f"{where} has no field {field['name']}, and the reader has no default for it"
            continue
        cause = _compare(written[name]["type"], field["type"], f"the field {field['name']}")
        if cause is not None:
            return cause
    return None


def _compare_content(kind: str, writer: Any, reader: Any, where: str) -> str | None:
    if kind == "fixed" and writer["size"] != reader["size"]:
        return f"{where} has {writer['size']} bytes and the reader expects {reader['size']}"
    if kind == "enum" and "default" not in reader and not set(writer["symbols"]) & set(reader["symbols"]):
        return f"{where} has no symbol that the reader knows"
    return None


def _without_null(union: list[Any]) -> list[Any]:
    """Return the branches that are not null, or the only branch, which may be null."""
    return [branch for branch in union if branch != "null"] or union


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return "record" if kind == "error" else str(kind)


def _logical_type(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _short(name: str) -> str:
    return name.rpartition(".")[2]
