"""Avro values to Arrow columns and back. No Spark.

| Avro                                   | column                                                                    |
|----------------------------------------|---------------------------------------------------------------------------|
| boolean, int, long, float, double      | the same                                                                  |
| string, enum, uuid                     | string                                                                    |
| bytes, fixed                           | binary                                                                    |
| decimal                                | decimal                                                                   |
| date                                   | date                                                                      |
| timestamp-millis, -micros              | timestamp in UTC; local-timestamp-*: without time zone                    |
| time-millis, time-micros               | int, bigint                                                               |
| record, array, map                     | struct, array, map                                                        |
| union with null                        | the other type                                                            |
| union of numbers                       | the wider one                                                             |
| any other union                        | struct of member0, member1, ... of which one is set, as Spark's own does  |

Values are resolved from the schema that they were written with to the one that rows have, by Avro's rules: defaults,
promotions of numbers, aliases (``avro_resolution``). Timestamps in milliseconds and microseconds are converted.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from ottla.spark.avro_resolution import why_unresolvable
from ottla.spark.wire_format import (
    Cause,
    Rejected,
    SchemaRefused,
    SchemaSource,
    ValueDecoder,
    frame,
)

#: fastavro raises these for bytes that do not fit a schema
_DAMAGE: Final = (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error, SchemaResolutionError)
#: fastavro quotes whole schemas
_DETAIL_CHARS_MAX: Final = 200
_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
#: types of the whole numbers of a logical type: as they are stored, and as columns have them
_LOGICAL: Final[Mapping[str, tuple[pa.DataType, pa.DataType]]] = {
    "date": (pa.date32(), pa.date32()),
    "timestamp-millis": (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
    "timestamp-micros": (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
    "local-timestamp-millis": (pa.timestamp("ms"), pa.timestamp("us")),
    "local-timestamp-micros": (pa.timestamp("us"), pa.timestamp("us")),
}
#: left as whole numbers and texts, because Arrow would convert the objects of fastavro back
_KEPT_RAW: Final = (*_LOGICAL, "time-millis", "time-micros", "uuid", "duration")
_TIMESTAMPS: Final = tuple(name for name in _LOGICAL if name != "date")
_INNER: Final = ("type", "fields", "items", "values")
_WIDER: Final = ({"int", "long"}, {"float", "double"})

Convert = Callable[[Any], Any]


class AvroDecoder(ValueDecoder[Any]):
    """Decodes Avro. Of a writer schema it keeps the schema as fastavro takes it, None if it is the reader schema.

    Raises SchemaRefused if the reader schema, or the writer schema of an id that is known in advance, cannot be used.
    """

    def __init__(self, source: SchemaSource, *, framed: bool) -> None:
        super().__init__(source, framed=framed)
        self._document = _parse(source.latest())
        mapping = _Mapping(self._document)
        #: as values come out of fastavro, and as columns have them
        self._stored, self.type, self._convert = mapping.stored, mapping.type, mapping.convert
        self._reader = _without_logical_types(self._document)
        self._resolve_known_ids()

    def _build(self, rows: list[Any]) -> pa.Array:
        return pa.array(rows, self._stored).cast(self.type)

    def _read(self, value: bytes, writer: Any) -> Any:
        stream = io.BytesIO(value)
        try:
            if writer is None:
                row = fastavro.schemaless_reader(stream, self._reader, None, **_NAMED)
            else:
                row = fastavro.schemaless_reader(stream, writer, self._reader, **_NAMED)
        except EOFError as error:
            raise Rejected(Cause.TRUNCATED, str(error)) from None
        except _DAMAGE as error:
            raise Rejected(Cause.TYPE_MISMATCH, str(error)[:_DETAIL_CHARS_MAX]) from None
        left = len(value) - stream.tell()
        if left:
            raise Rejected(Cause.TYPE_MISMATCH, f"{left} bytes are left")
        return self._convert(row) if self._convert is not None else row

    def _resolve(self, schema_id: int, schema: str | bytes) -> Any:
        """Return a writer schema as fastavro takes it, or None. Raise SchemaRefused if it does not resolve."""
        try:
            document = _parse(schema)
        except SchemaRefused as error:
            raise SchemaRefused(f"schema id {schema_id}: {error}") from None
        if document == self._document:
            return None
        why = why_unresolvable(document, self._document)
        if why is not None:
            raise SchemaRefused(f"schema id {schema_id}: its values cannot be resolved to the reader schema: {why}")
        units = {name.rpartition("-")[2] for name in _logical_types((document, self._document)) & {*_TIMESTAMPS}}
        # With equal units, whole numbers need no conversion. Else fastavro makes times of them, in the writer's unit.
        return _without_logical_types(document, _KEPT_RAW if len(units) < 2 else tuple({*_KEPT_RAW} - {*_TIMESTAMPS}))


class AvroEncoder:
    """Encodes rows as Avro values; with a schema id, each value has Confluent's framing."""

    def __init__(self, schema: str | bytes, *, schema_id: int | None) -> None:
        document = _parse(schema)
        mapping = _Mapping(document)
        self.type, self._stored = mapping.type, mapping.stored
        self._schema = _without_logical_types(document)
        self._schema_id = schema_id

    def encode(self, rows: pa.Array) -> pa.Array:
        """Return the rows as Avro values. Fields with a default may be missing. Raise SchemaRefused."""
        kind = self._stored
        if pa.types.is_struct(kind):
            kind = pa.struct([field for field in kind if rows.type.get_field_index(field.name) >= 0])
        # Milliseconds take what is left of microseconds; whole numbers are far cheaper than Python's times.
        numbers = rows.cast(kind, safe=False).cast(_as_numbers(kind))
        return pa.array([self._encode_one(row) for row in numbers.to_pylist(maps_as_pydicts="strict")], pa.binary())

    def _encode_one(self, row: Any) -> bytes | None:
        if row is None:
            return None
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._schema, row)
        except (*_DAMAGE, AttributeError) as error:
            raise SchemaRefused(f"a row does not fit the Avro schema ({error}): select and cast its columns") from None
        return stream.getvalue() if self._schema_id is None else frame(self._schema_id, stream.getvalue())


class _Mapping:
    """The Arrow types of a schema, and a conversion of its values where Arrow cannot do it."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self.stored, self.type, self.convert = self._map(schema, "")

    def _map(self, schema: Any, namespace: str) -> tuple[pa.DataType, pa.DataType, Convert | None]:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema], _PRIMITIVES[schema], None
            return self._reference(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._map(kind, namespace)
        logical = schema.get("logicalType")
        if kind in ("record", "error", "enum", "fixed"):
            name = _full_name(schema["name"], schema.get("namespace", namespace))
            self._named[name] = (schema, namespace)
            if kind in ("record", "error"):
                return self._record(schema, name)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            decimal = pa.decimal128(schema["precision"], schema.get("scale", 0))
            return decimal, decimal, None
        if logical in _LOGICAL and kind in ("int", "long"):
            return (*_LOGICAL[logical], None)
        if kind == "enum":
            return pa.string(), pa.string(), None
        if kind == "fixed":
            return pa.binary(), pa.binary(), None
        if kind == "array":
            stored, final, convert = self._map(schema["items"], namespace)
            return pa.list_(stored), pa.list_(final), None if convert is None else _each_item(convert)
        if kind == "map":
            stored, final, convert = self._map(schema["values"], namespace)
            each = None if convert is None else _each_value(convert)
            return pa.map_(pa.string(), stored), pa.map_(pa.string(), final), each
        return self._map(kind, namespace)

    def _reference(self, name: str, namespace: str) -> tuple[pa.DataType, pa.DataType, Convert | None]:
        full = _full_name(name, namespace)
        if full in self._open:
            raise SchemaRefused(f"the Avro type {full} contains itself: columns cannot, so decode it on your own")
        if full not in self._named:
            raise SchemaRefused(f"the Avro type {full} is not in the schema: add its definition")
        schema, outer = self._named[full]
        return self._map(schema, outer)

    def _record(self, schema: Any, name: str) -> tuple[pa.DataType, pa.DataType, Convert | None]:
        self._open.append(name)
        namespace = name.rpartition(".")[0]
        parts = {field["name"]: self._map(field["type"], namespace) for field in schema.get("fields", ())}
        self._open.pop()
        converts = {field: part[2] for field, part in parts.items() if part[2] is not None}

        def convert(row: dict[str, Any]) -> dict[str, Any]:
            for field, each in converts.items():
                row[field] = each(row[field])
            return row

        return (
            pa.struct([(field, part[0]) for field, part in parts.items()]),
            pa.struct([(field, part[1]) for field, part in parts.items()]),
            convert if converts else None,
        )

    def _union(self, schema: list[Any], namespace: str) -> tuple[pa.DataType, pa.DataType, Convert | None]:
        branches = [branch for branch in schema if branch != "null"]
        if not branches:
            return pa.null(), pa.null(), None
        if len(branches) == 1:
            stored, final, convert = self._map(branches[0], namespace)
            return stored, final, None if convert is None else _unless_none(convert)
        if all(isinstance(branch, str) for branch in branches) and any(set(branches) <= wider for wider in _WIDER):
            kind = pa.int64() if "long" in branches else pa.float64()
            return kind, kind, None
        parts = [self._map(branch, namespace) for branch in branches]
        names = [_branch_name(branch, namespace) for branch in branches]
        return (
            pa.struct([(f"member{index}", part[0]) for index, part in enumerate(parts)]),
            pa.struct([(f"member{index}", part[1]) for index, part in enumerate(parts)]),
            _unless_none(_to_member(names, [part[2] for part in parts])),
        )


#: fastavro then names the type of a value of a union with several named types
_NAMED: Final[Mapping[str, Any]] = {"return_named_type": True, "return_named_type_override": True}
_PYTHON_NAMES: Final[Mapping[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "float", "double"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map", "record"),
}


def _to_member(names: Sequence[str], converts: Sequence[Convert | None]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            wanted: tuple[str, ...] = (value[0],)
            value = value[1]
        else:
            wanted = _PYTHON_NAMES.get(type(value), ())
        index = next((names.index(name) for name in wanted if name in names), None)
        if index is None:
            # A single named type comes without its name.
            index = next((index for index, name in enumerate(names) if name not in _PRIMITIVES), None)
        if index is None:
            raise Rejected(Cause.TYPE_MISMATCH, f"a union of {', '.join(names)} has no type {type(value).__name__}")
        each = converts[index]
        return {f"member{index}": value if each is None else each(value)}

    return convert


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    """Return the type with whole numbers in place of times."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _as_numbers(kind.item_type))
    return kind


def _each_item(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _each_value(convert: Convert) -> Convert:
    return lambda entries: {key: convert(value) for key, value in entries.items()}


def _unless_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _branch_name(branch: Any, namespace: str) -> str:
    if isinstance(branch, str):
        return branch if branch in _PRIMITIVES else _full_name(branch, namespace)
    if "name" in branch:
        return _full_name(branch["name"], branch.get("namespace", namespace))
    return str(branch["type"])


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _parse(schema: str | bytes) -> Any:
    """Return the schema as a document. Raise SchemaRefused if it is not valid."""
    try:
        document = json.loads(schema)
        fastavro.parse_schema(document)
    except json.JSONDecodeError as error:
        raise SchemaRefused(f"the Avro schema is not JSON: {error}") from None
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise SchemaRefused(f"the Avro schema cannot be used: {error!r}") from None
    return json.loads(schema)


def _logical_types(part: Any) -> set[str]:
    """Return the names of all logical types in a schema, or in a tuple of schemas."""
    if isinstance(part, list | tuple):
        return set().union(*map(_logical_types, part))
    if not isinstance(part, dict):
        return set()
    inner = _logical_types([value for key, value in part.items() if key in _INNER])
    return inner | ({part["logicalType"]} if isinstance(part.get("logicalType"), str) else set())


def _without_logical_types(document: Any, dropped: Collection[str] = _KEPT_RAW) -> Any:
    """Return the parsed schema without these logical types."""

    def strip(part: Any) -> Any:
        if isinstance(part, list):
            return [strip(each) for each in part]
        if not isinstance(part, dict):
            return part
        kept = {key: strip(value) if key in _INNER else value for key, value in part.items()}
        if kept.get("logicalType") in dropped:
            del kept["logicalType"]
        return kept

    return fastavro.parse_schema(strip(document))
