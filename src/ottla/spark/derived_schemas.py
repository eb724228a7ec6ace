"""The schema of values or keys, in the language of a registry, from the types of their columns. Pure.

For topics that are written without a schema of their own. Every field may be null and has null as its default, so that
rows with more or fewer columns are compatible.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

from ottla.spark.wire_format import SchemaRefused

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_AVRO: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: Final[dict[pa.DataType, dict[str, Any]]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int8(): {"type": "integer"},
    pa.int16(): {"type": "integer"},
    pa.int32(): {"type": "integer"},
    pa.int64(): {"type": "integer"},
    pa.float32(): {"type": "number"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    pa.date32(): {"type": "string", "format": "date"},
    pa.timestamp("us", "UTC"): {"type": "string", "format": "date-time"},
}


def derived_schema(schema_type: str, rows: pa.DataType, name: str) -> str:
    """Return the text of a schema for rows of a type. Raise SchemaRefused if the type has no counterpart.

    `name` becomes the name of the record, with other characters than letters, digits and _ replaced.
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    record = plain if _NAME.fullmatch(plain) else f"_{plain}"
    if schema_type == "AVRO":
        return json.dumps(_avro(rows, record))
    if schema_type == "JSON":
        head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": record}
        return json.dumps({**head, **_json(rows)})
    raise SchemaRefused(
        "the numbers of Protobuf's fields cannot be derived from columns: write with a schema of your own, or with a "
        "version that is registered"
    )


def _avro_record(rows: pa.DataType, name: str) -> dict[str, Any]:
    fields = []
    for each in rows:
        if not _NAME.fullmatch(each.name):
            raise SchemaRefused(
                f"{each.name!r} is not the name of a field in Avro: rename the column to letters, digits and _"
            )
        fields.append({"name": each.name, "type": ["null", _avro(each.type, f"{name}_{each.name}")], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _avro(kind: pa.DataType, name: str) -> Any:
    if kind in _AVRO:
        return _AVRO[kind]
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _avro_record(kind, name)
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro(kind.value_type, f"{name}_item")]}
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "values": ["null", _avro(kind.item_type, f"{name}_value")]}
    raise SchemaRefused(f"Avro has no type for {kind}: cast the column, or write with a schema of your own")


def _json_object(rows: pa.DataType) -> dict[str, Any]:
    return {"type": "object", "properties": {each.name: _nullable(_json(each.type)) for each in rows}}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema], "default": None}


def _json(kind: pa.DataType) -> dict[str, Any]:
    if kind in _JSON:
        return _JSON[kind]
    if pa.types.is_struct(kind):
        return _json_object(kind)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(_json(kind.value_type))}
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "object", "additionalProperties": _nullable(_json(kind.item_type))}
    raise SchemaRefused(
        f"JSON Schema has no type for {kind}: cast the column, for example to double or string, or write with a "
        "schema of your own"
    )
