"""Confluent's wire format: a zero byte, four bytes of schema id, then the value; Protobuf has message indexes between.

And the words for values that cannot be decoded: a reject has a cause, which begins with one of ``Cause``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ottla.model.errors import OttlaError

_HEADER_BYTES = 5
_VARINT_BITS_MAX = 63


class Cause(StrEnum):
    """Why a value was rejected. More may stand behind it, after a colon."""

    NULL_VALUE = "null value"
    TRUNCATED = "truncated"
    BAD_MAGIC = "bad magic"
    UNKNOWN_ID = "unknown schema id"
    TYPE_MISMATCH = "type mismatch"
    NOT_JSON = "not JSON"


class Rejected(OttlaError):
    """One value that cannot be decoded."""

    def __init__(self, cause: Cause, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else str(cause))


class SchemaRefused(OttlaError):
    """A schema that cannot be used; the text says what to do."""


class SchemaSource(Protocol):
    """Where schemas come from. It travels to the tasks, so it must be picklable."""

    def find(self, schema_id: int) -> str | bytes | None:
        """The schema that a value was written with: a text, or compiled bytes; None when the id is not known."""

    def latest(self) -> str | bytes:
        """The schema that rows get, and that values without an id were written with."""


@dataclass(frozen=True, slots=True)
class OneSchema:
    """The schema of all values, whatever their id."""

    schema: str | bytes

    def find(self, schema_id: int) -> str | bytes | None:
        return self.schema

    def latest(self) -> str | bytes:
        return self.schema


@dataclass(frozen=True, slots=True)
class SchemasById:
    """A schema for each id that is known. Rows get the one of ``rows``, or of the highest id."""

    schemas: Mapping[int, str | bytes]
    rows: int | None = None

    def __post_init__(self) -> None:
        if not self.schemas or (self.rows is not None and self.rows not in self.schemas):
            raise SchemaRefused(f"there is no schema for id {self.rows}: add it to the mapping")

    def find(self, schema_id: int) -> str | bytes | None:
        return self.schemas.get(schema_id)

    def latest(self) -> str | bytes:
        return self.schemas[max(self.schemas) if self.rows is None else self.rows]


def build_array(rows: list[Any], causes: list[str | None], build: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Decoded rows as a column. Those that no column can hold, such as times out of range, become rejects too."""
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
    """Return the schema of a file: .avsc and .json as text, .proto compiled, others as bytes of a FileDescriptorSet.

    A .proto file may import files that lie beside it or in directories there. Raise SchemaRefused if protoc does.
    """
    data = Path(path).read_bytes()
    if path.endswith(".proto"):
        from ottla.spark.proto_compiler import compile_proto

        return OneSchema(compile_proto(data.decode(), str(Path(path).parent)))
    return OneSchema(data.decode() if path.endswith((".avsc", ".json")) else data)


def unframe(value: bytes) -> tuple[int, bytes]:
    """The schema id and the rest of a value."""
    if len(value) < _HEADER_BYTES:
        if value and value[0]:
            raise Rejected(Cause.BAD_MAGIC, f"the first byte is {value[0]}, not 0")
        raise Rejected(Cause.TRUNCATED, f"{len(value)} bytes are too few for a schema id")
    if value[0]:
        raise Rejected(Cause.BAD_MAGIC, f"the first byte is {value[0]}, not 0")
    return int.from_bytes(value[1:_HEADER_BYTES], "big"), value[_HEADER_BYTES:]


def frame(schema_id: int, payload: bytes, indexes: Sequence[int] | None = None) -> bytes:
    """A value with its schema id, and message indexes for Protobuf."""
    return b"\0" + schema_id.to_bytes(4, "big") + (b"" if indexes is None else encode_indexes(indexes)) + payload


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The way to a message in its file: (2, 0) is the first message inside of the third. The usual (0) is one byte."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def decode_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Message indexes, and what stands behind them."""
    numbers = _varints(data)
    count, position = next(numbers)
    if count == 0:
        return (0,), data[position:]
    if count < 0 or count > len(data):
        raise Rejected(Cause.TYPE_MISMATCH, f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = next(numbers)
        indexes.append(index)
    return tuple(indexes), data[position:]


def _varint(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(data: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Zigzag numbers, each with the position behind it; Rejected when the bytes end."""
    number = shift = 0
    for position, byte in enumerate(data, 1):
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield (number >> 1) ^ -(number & 1), position
            number = shift = 0
        elif shift > _VARINT_BITS_MAX:
            raise Rejected(Cause.TYPE_MISMATCH, "a message index without end")
    raise Rejected(Cause.TRUNCATED, "the message indexes are not complete")
