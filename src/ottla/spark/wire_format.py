"""Values with a schema id (framing), and the schemas that they were written with.

A schema source maps schema ids to the schemas that the values were written with (writer schemas), and names the one
schema that all rows have (reader schema). A value that cannot be decoded is rejected with a cause, which begins with
one of ``Cause``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from ottla.model.errors import OttlaError
from ottla.schemas.data import framing
from ottla.schemas.data.framing import BadFrame, Fault

frame = framing.frame
#: what a decoder keeps of a writer schema
Writer = TypeVar("Writer")


class Cause(StrEnum):
    """Why a value was rejected. Details may follow after a colon."""

    NULL_VALUE = "null value"
    TRUNCATED = "truncated"
    BAD_MAGIC = "bad magic"
    UNKNOWN_ID = "unknown schema id"
    TYPE_MISMATCH = "type mismatch"
    NOT_JSON = "not JSON"


_CAUSES = {
    Fault.TRUNCATED: Cause.TRUNCATED,
    Fault.BAD_MAGIC: Cause.BAD_MAGIC,
    Fault.BAD_INDEXES: Cause.TYPE_MISMATCH,
}


class Rejected(OttlaError):
    """One value that cannot be decoded."""

    def __init__(self, cause: Cause, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else str(cause))
        self.cause = cause
        self.detail = detail

    def with_schema_id(self, schema_id: int) -> Rejected:
        """Return the same rejection with the schema id of the value in its details."""
        where = f"schema id {schema_id}"
        return Rejected(self.cause, f"{where}: {self.detail}" if self.detail else where)


class SchemaRefused(OttlaError):
    """A schema that cannot be used; the text says what to do."""


class SchemaSource(Protocol):
    """Schemas of a topic's values. Spark pickles it for the tasks."""

    def find(self, schema_id: int) -> str | bytes | None:
        """Return the writer schema of an id, as text or as compiled bytes; None if the id is not known."""

    def latest(self) -> str | bytes:
        """Return the reader schema. Values without framing were written with it too."""

    def ids(self) -> Collection[int] | None:
        """Return the known ids, whose schemas are checked in advance; None if ids are looked up one by one."""


@dataclass(frozen=True, slots=True)
class OneSchema:
    """One schema for values without framing.

    Framed values need ``any_id``: then every schema id is accepted and decoded with this schema. That is wrong as soon
    as a producer registers a second, different schema: Avro values decode to other values, without an error.
    """

    schema: str | bytes
    any_id: bool = False

    def find(self, schema_id: int) -> str | bytes | None:
        return self.schema if self.any_id else None

    def latest(self) -> str | bytes:
        return self.schema

    def ids(self) -> Collection[int] | None:
        return None if self.any_id else ()


@dataclass(frozen=True, slots=True)
class SchemasById:
    """The writer schema of each known id. Without a ``reader`` schema, rows have the schema of the highest id."""

    schemas: Mapping[int, str | bytes]
    reader: str | bytes | None = None

    def __post_init__(self) -> None:
        if not self.schemas:
            raise SchemaRefused("the mapping from schema ids to schemas is empty: add the ids of the topic")

    def find(self, schema_id: int) -> str | bytes | None:
        return self.schemas.get(schema_id)

    def latest(self) -> str | bytes:
        return self.schemas[max(self.schemas)] if self.reader is None else self.reader

    def ids(self) -> Collection[int] | None:
        return self.schemas.keys()


def ids_to_check(source: SchemaSource) -> Collection[int]:
    """Return the ids whose writer schemas are known in advance. Raise SchemaRefused if no id would be accepted."""
    ids = source.ids()
    if ids is None:
        return ()
    if not ids:
        raise SchemaRefused(
            "the values are framed and no schema id is known: give SchemasById, "
            "or OneSchema with any_id=True to decode every id with one schema"
        )
    return ids


class ValueDecoder(Generic[Writer]):
    """Decodes the values of one topic to rows of one type, that of the reader schema.

    Subclasses set `type` and define how a writer schema is resolved, how a value is read, and how rows become a column.
    """

    #: of the rows
    type: pa.DataType

    def __init__(self, source: SchemaSource, *, framed: bool) -> None:
        self._source = source
        self._framed = framed
        #: by schema id
        self._writers: dict[int, Writer] = {}
        #: why the writer schema of an id cannot be used
        self._refused: dict[int, str] = {}

    def decode(self, values: pa.Array) -> tuple[pa.Array, list[str | None]]:
        """Return a column of the rows' type and the causes of rejected values, whose rows are null."""
        rows: list[Any] = []
        causes: list[str | None] = []
        for value in values.to_pylist():
            row, cause = None, None
            try:
                row = self._decode_one(value)
            except Rejected as rejected:
                cause = str(rejected)
            rows.append(row)
            causes.append(cause)
        return _build_array(rows, causes, self._build), causes

    def _resolve(self, schema_id: int, schema: str | bytes) -> Writer:
        """Return what is needed to read values of a writer schema. Raise SchemaRefused if they cannot be read."""
        raise NotImplementedError

    def _read(self, payload: bytes, writer: Writer | None) -> Any:
        """Return a row. `writer` is None for values without framing. Raise Rejected."""
        raise NotImplementedError

    def _build(self, rows: list[Any]) -> pa.Array:
        """Return rows as a column."""
        raise NotImplementedError

    def _resolve_known_ids(self) -> None:
        """Resolve the writer schemas that are known in advance. Raise SchemaRefused if one cannot be used."""
        for schema_id in ids_to_check(self._source) if self._framed else ():
            found = self._source.find(schema_id)
            assert found is not None, f"the source does not find its schema id {schema_id}"
            self._writers[schema_id] = self._resolve(schema_id, found)

    def _decode_one(self, value: bytes | None) -> Any:
        if value is None:
            raise Rejected(Cause.NULL_VALUE)
        if not self._framed:
            return self._read(value, None)
        schema_id, payload = unframe(value)
        writer = self._writer(schema_id)
        try:
            return self._read(payload, writer)
        except Rejected as rejected:
            raise rejected.with_schema_id(schema_id) from None

    def _writer(self, schema_id: int) -> Writer:
        if schema_id in self._refused:
            raise Rejected(Cause.TYPE_MISMATCH, self._refused[schema_id])
        if schema_id not in self._writers:
            try:
                found = self._source.find(schema_id)
                if found is None:
                    raise Rejected(Cause.UNKNOWN_ID, str(schema_id))
                self._writers[schema_id] = self._resolve(schema_id, found)
            except SchemaRefused as error:
                self._refused[schema_id] = str(error)
                raise Rejected(Cause.TYPE_MISMATCH, str(error)) from None
        return self._writers[schema_id]


def without_absent(values: pa.Array, causes: list[str | None]) -> list[str | None]:
    """Return the causes of a column in which null is no error. A record need not have a key, for example."""
    if not values.null_count:
        return causes
    return [cause if is_valid else None for cause, is_valid in zip(causes, values.is_valid().to_pylist(), strict=True)]


def _build_array(rows: list[Any], causes: list[str | None], build: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Return decoded rows as a column. Reject rows that the column cannot hold, such as times out of range."""
    try:
        return build(rows)
    except (pa.ArrowException, OverflowError, ValueError):
        for index, row in enumerate(rows):
            try:
                build([row])
            except (pa.ArrowException, OverflowError, ValueError) as error:
                rows[index], causes[index] = None, str(Rejected(Cause.TYPE_MISMATCH, str(error)))
        return build(rows)


def read_schema(path: str) -> OneSchema:
    """Return the schema in a file, for values without framing. Raise SchemaRefused if protoc refuses it."""
    return OneSchema(read_schema_file(path))


def read_schema_file(path: str) -> str | bytes:
    """Return the schema of a file: .avsc and .json as text, .proto compiled, others as bytes of a FileDescriptorSet.

    A .proto file may import files that lie beside it or in directories there. Raise SchemaRefused if protoc does.
    """
    data = Path(path).read_bytes()
    if path.endswith(".proto"):
        from ottla.spark.proto_compiler import compile_proto

        return compile_proto(data.decode(), str(Path(path).parent))
    return data.decode() if path.endswith((".avsc", ".json")) else data


def unframe(value: bytes) -> tuple[int, bytes]:
    """Return the schema id of a value and the bytes after it. Raise Rejected if the value has no valid header."""
    try:
        return framing.unframe(value)
    except BadFrame as error:
        raise _rejected(error) from None


def decode_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes and the bytes after them. Raise Rejected if they are not complete."""
    try:
        return framing.decode_indexes(data)
    except BadFrame as error:
        raise _rejected(error) from None


def _rejected(error: BadFrame) -> Rejected:
    return Rejected(_CAUSES[error.fault], error.detail)
