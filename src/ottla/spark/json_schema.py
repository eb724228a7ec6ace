"""JSON values with a schema of a registry to Arrow columns and back. No Spark.

| JSON Schema                            | column                                                                    |
|----------------------------------------|---------------------------------------------------------------------------|
| boolean, integer, number               | boolean, bigint, double                                                   |
| string                                 | string                                                                    |
| string of format date-time, date       | timestamp in UTC, date                                                    |
| string with contentEncoding base64     | binary                                                                    |
| object with properties, array          | struct, array                                                             |
| object with additionalProperties only  | map                                                                       |
| a type and null                        | the type                                                                  |
| anything else                          | string, as JSON                                                           |

JSON names its fields, so the writer schema of a value is not needed to read it; its id must only be one that the
registry has. Properties that the reader schema does not have are left out, and missing ones are null. A value whose
types do not fit the columns is rejected. Other constraints, such as ``minimum`` and ``required``, are not checked.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final, NoReturn

import pyarrow as pa

from ottla.schemas.data.framing import frame
from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.schema import Budget, InvalidSchema, Resolved
from ottla.spark.wire_format import Cause, Rejected, SchemaRefused, SchemaSource, ValueDecoder

_INT64: Final = range(-(2**63), 2**63)
_NULL: Final = "null"
_COMBINED: Final = ("anyOf", "oneOf")

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """The type of a value, how it comes out of JSON and how it goes into it. Neither function gets None."""

    type: pa.DataType
    read: Convert
    write: Convert
    nullable: bool = False


class JsonDecoder(ValueDecoder[None]):
    """Decodes JSON. The writer schema of an id is not needed: the registry must only know the id."""

    def __init__(self, source: SchemaSource, references: Mapping[str, str], *, framed: bool) -> None:
        """Raise SchemaRefused if values of the reader schema have no column."""
        super().__init__(source, framed=framed)
        column = _column_of(source.latest(), references)
        self.type, self._read_column = column.type, column.read

    def _resolve(self, schema_id: int, schema: str | bytes) -> None:
        return None

    def _build(self, rows: list[Any]) -> pa.Array:
        return pa.array(rows, self.type)

    def _read(self, payload: bytes, writer: None) -> Any:
        try:
            document = json.loads(payload, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Rejected(Cause.NOT_JSON, str(error)) from None
        if document is None:
            raise Rejected(Cause.NULL_VALUE)
        try:
            return self._read_column(document)
        except _Misfit as misfit:
            raise Rejected(Cause.TYPE_MISMATCH, str(misfit)) from None


class JsonEncoder:
    """Encodes rows as JSON; with a schema id, each value has Confluent's framing."""

    def __init__(self, schema: str | bytes, references: Mapping[str, str], *, schema_id: int | None) -> None:
        column = _column_of(schema, references)
        self.type, self._write = column.type, column.write
        self._schema_id = schema_id

    def encode(self, rows: pa.Array) -> pa.Array:
        """Return the rows as JSON. Null columns are left out, unless the schema requires them and permits null."""
        return pa.array([self._encode_one(row) for row in rows.to_pylist(maps_as_pydicts="strict")], pa.binary())

    def _encode_one(self, row: Any) -> bytes | None:
        if row is None:
            return None
        try:
            text = json.dumps(self._write(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            payload = text.encode()
        except (ValueError, TypeError, KeyError) as error:
            raise SchemaRefused(f"a row does not fit the JSON schema ({error}): select and cast its columns") from None
        return payload if self._schema_id is None else frame(self._schema_id, payload)


def _column_of(schema: str | bytes, references: Mapping[str, str]) -> _Column:
    """Return the column of the values of a schema. Raise SchemaRefused if they have none."""
    text = schema if isinstance(schema, str) else schema.decode()
    try:
        documents = Documents(text, Resolved(texts=references), Budget())
        column = _Mapping(documents).map(documents.root)
    except InvalidSchema as error:
        raise SchemaRefused(f"the JSON schema cannot be used: {error}") from None
    if column.type == pa.null():
        raise SchemaRefused("the JSON schema permits nothing but null, so its values have no column")
    return column


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# -- schemas --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Mapping:
    """The columns of the schemas in some documents."""

    documents: Documents
    #: schemas that are being mapped, by identity: a schema inside of itself has no columns
    open: list[int] = field(default_factory=list)

    def map(self, schema: Any) -> _Column:
        if not isinstance(schema, dict):
            return _ANY
        if id(schema) in self.open:
            raise SchemaRefused("the JSON schema contains itself: columns cannot, so decode its values on your own")
        self.open.append(id(schema))
        try:
            return self._map(schema)
        finally:
            self.open.pop()

    def _part(self, schema: Any) -> _Column:
        """Return the column of a part of a value. Tables have no column without a type."""
        column = self.map(schema)
        return _ANY if column.type == pa.null() else column

    def _map(self, schema: dict[str, Any]) -> _Column:
        parts = list(self._parts(schema))
        for part in parts:
            for keyword in _COMBINED:
                if keyword in part and "properties" not in part:
                    return _united([self.map(each) for each in part[keyword]])
        kinds = _kinds(parts)
        nullable = _NULL in kinds
        kinds -= {_NULL}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) != 1:
            return replace(_NOTHING if nullable and not kinds else _ANY, nullable=nullable)
        return replace(self._of_kind(kinds.pop(), parts), nullable=nullable)

    def _parts(self, schema: Any) -> Iterator[dict[str, Any]]:
        """Yield a schema, the schema that it refers to, and the schemas that it combines with allOf."""
        if not isinstance(schema, dict):
            return
        yield schema
        others = list(schema.get("allOf", ()))
        if isinstance(schema.get("$ref"), str):
            others.append(self.documents.target(schema["$ref"], self.documents.scope_of(schema)))
        for other in others:
            if id(other) in self.open:
                raise SchemaRefused("the JSON schema contains itself: columns cannot, so decode its values on your own")
            self.open.append(id(other))
            yield from self._parts(other)
            self.open.pop()

    def _of_kind(self, kind: str, parts: Sequence[dict[str, Any]]) -> _Column:
        if kind == "string":
            return _string(parts)
        if kind == "array":
            items = next((part["items"] for part in parts if "items" in part), True)
            tuples = isinstance(items, list) or any("prefixItems" in part for part in parts)
            return _array(_ANY if tuples else self._part(items))
        if kind == "object":
            return self._object(parts)
        return _SIMPLE.get(kind, _ANY)

    def _object(self, parts: Sequence[dict[str, Any]]) -> _Column:
        properties = {name: schema for part in parts for name, schema in part.get("properties", {}).items()}
        required = {name for part in parts for name in _names(part.get("required"))}
        if properties:
            return _struct({name: self._part(schema) for name, schema in properties.items()}, required)
        additional = next((part["additionalProperties"] for part in parts if "additionalProperties" in part), None)
        return _map_of(self._part(additional)) if isinstance(additional, dict) else _ANY


def _kinds(parts: Sequence[dict[str, Any]]) -> set[str]:
    """Return JSON's types that values may have, as far as the schema says; empty if it says nothing."""
    for part in parts:
        if "type" in part:
            found = part["type"]
            return {found} if isinstance(found, str) else set(found)
    for part in parts:
        values = part.get("enum") or ([part["const"]] if "const" in part else ())
        if values:
            return {_kind_of(value) for value in values}
        if "properties" in part or "additionalProperties" in part:
            return {"object"}
        if "items" in part:
            return {"array"}
    return set()


def _names(value: Any) -> Sequence[str]:
    # In draft 3, required is a boolean.
    return value if isinstance(value, list) else ()


def _kind_of(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "number"


def _united(columns: Sequence[_Column]) -> _Column:
    """Return the column of values that fit one of several schemas."""
    nullable = any(column.nullable or column.type == pa.null() for column in columns)
    others = [column for column in columns if column.type != pa.null()]
    if not others:
        return _NOTHING
    types = [column.type for column in others]
    if all(kind == types[0] for kind in types):
        # Equal types may still be read differently: a text, and a value that is kept as JSON.
        same = len(others) == 1 or not any(column.read is _ANY.read for column in others)
        return replace(others[0] if same else _ANY, nullable=nullable)
    if all(kind in (pa.int64(), pa.float64()) for kind in types):
        return replace(_SIMPLE["number"], nullable=nullable)
    return replace(_ANY, nullable=nullable)


# -- values ---------------------------------------------------------------------------------------------------------


class _Misfit(Exception):
    """A value that does not fit its column."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        #: names of fields and indexes of items, from the outermost one on
        self.path: list[str] = []

    def __str__(self) -> str:
        place = "".join(each if each.startswith("[") else f".{each}" for each in self.path).removeprefix(".")
        return f"{place}: {self.args[0]}" if place else str(self.args[0])


def _mismatch(value: Any, wanted: str) -> _Misfit:
    kind = _kind_of(value)
    return _Misfit(f"{'an' if kind[0] in 'aeio' else 'a'} {kind} is not {wanted}")


def _inside(convert: Convert, where: str, value: Any) -> Any:
    """Convert a part of a value."""
    try:
        return None if value is None else convert(value)
    except _Misfit as misfit:
        misfit.path.insert(0, where)
        raise


def _read_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, "a boolean")
    return value


def _read_integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(value, "an integer")
    if value not in _INT64:
        raise _Misfit("the integer has more than 64 bits")
    return value


def _read_number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _mismatch(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise _Misfit("the number is too large")
    return number


def _read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch(value, "a string")
    return value


def _read_time(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(_read_string(value))
    except ValueError as error:
        raise _Misfit(str(error)) from None
    if moment.tzinfo is None:
        raise _Misfit("the time has no time zone")
    return moment


def _write_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _read_date(value: Any) -> date:
    try:
        return date.fromisoformat(_read_string(value))
    except ValueError as error:
        raise _Misfit(str(error)) from None


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_read_string(value), validate=True)
    except binascii.Error as error:
        raise _Misfit(f"no base64: {error}") from None


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _as_it_is(value: Any) -> Any:
    return value


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_ANY: Final = _Column(pa.string(), _compact, json.loads, nullable=True)
_NOTHING: Final = _Column(pa.null(), _as_it_is, _as_it_is, nullable=True)
_SIMPLE: Final[Mapping[str, _Column]] = {
    "boolean": _Column(pa.bool_(), _read_boolean, _as_it_is),
    "integer": _Column(pa.int64(), _read_integer, _as_it_is),
    "number": _Column(pa.float64(), _read_number, _as_it_is),
    _NULL: _NOTHING,
}
_TIME: Final = _Column(pa.timestamp("us", "UTC"), _read_time, _write_time)
_FORMATS: Final[Mapping[str, _Column]] = {
    "date-time": _TIME,
    "date": _Column(pa.date32(), _read_date, date.isoformat),
}
_BYTES: Final = _Column(pa.binary(), _read_bytes, _write_bytes)
_STRING: Final = _Column(pa.string(), _read_string, _as_it_is)


def _string(parts: Sequence[dict[str, Any]]) -> _Column:
    if any(part.get("contentEncoding") == "base64" for part in parts):
        return _BYTES
    return next((_FORMATS[part["format"]] for part in parts if part.get("format") in _FORMATS), _STRING)


def _array(item: _Column) -> _Column:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _mismatch(value, "an array")
        return [_inside(item.read, f"[{at}]", each) for at, each in enumerate(value)]

    def write(value: Sequence[Any]) -> list[Any]:
        return [None if each is None else item.write(each) for each in value]

    return _Column(pa.list_(item.type), read, write)


def _map_of(item: _Column) -> _Column:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object")
        return {name: _inside(item.read, name, each) for name, each in value.items()}

    def write(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: None if each is None else item.write(each) for name, each in value.items()}

    return _Column(pa.map_(pa.string(), item.type), read, write)


def _struct(columns: Mapping[str, _Column], required: set[str]) -> _Column:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object")
        return {name: _inside(column.read, name, value.get(name)) for name, column in columns.items()}

    def write(value: Mapping[str, Any]) -> dict[str, Any]:
        made = {name: columns[name].write(each) for name, each in value.items() if each is not None}
        for name in required & columns.keys() - made.keys():
            if not columns[name].nullable:
                raise ValueError(f"{name} is null, and the schema requires it")
            made[name] = None
        return made

    return _Column(pa.struct([(name, column.type) for name, column in columns.items()]), read, write)
