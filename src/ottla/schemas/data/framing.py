"""Confluent's framing: a zero byte, four bytes of schema id, for Protobuf the message indexes, then the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from ottla.model.errors import OttlaError

HEADER_BYTES: Final = 5
_VARINT_BITS_MAX: Final = 63


class Fault(StrEnum):
    """What is wrong with a frame."""

    TRUNCATED = "truncated"
    BAD_MAGIC = "bad magic"
    BAD_INDEXES = "bad message indexes"


class BadFrame(OttlaError):
    """The bytes do not begin with a valid frame."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail


def unframe(value: bytes) -> tuple[int, bytes]:
    """Return the schema id of a value and the bytes after it. Raise BadFrame if the value has no valid header."""
    if value and value[0]:
        raise BadFrame(Fault.BAD_MAGIC, f"the first byte is {value[0]}, not 0")
    if len(value) < HEADER_BYTES:
        raise BadFrame(Fault.TRUNCATED, f"{len(value)} bytes are too few for a schema id")
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def frame(schema_id: int, payload: bytes, indexes: Sequence[int] | None = None) -> bytes:
    """Return a payload with magic byte, schema id and, for Protobuf, message indexes before it."""
    return b"\0" + schema_id.to_bytes(4, "big") + (b"" if indexes is None else encode_indexes(indexes)) + payload


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Return the encoded path to a message in its file: (2, 0) is the first inside the third; (0) is one byte."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(map(zigzag, (len(indexes), *indexes)))


def decode_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes and the bytes after them. Raise BadFrame if they are not complete."""
    numbers = _varints(data)
    count, position = next(numbers)
    if count == 0:
        return (0,), data[position:]
    if count < 0 or count > len(data):
        raise BadFrame(Fault.BAD_INDEXES, f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = next(numbers)
        indexes.append(index)
    return tuple(indexes), data[position:]


def zigzag(number: int) -> bytes:
    """Return an integer of 64 bits with a variable number of bytes, as Avro and Protobuf (`sint64`) encode it."""
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_ONE_BYTE: Final = tuple(bytes([number]) for number in range(0x80))


def _varints(data: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield zigzag numbers, each with the position behind it. Raise BadFrame when the bytes end."""
    number = shift = 0
    for position, byte in enumerate(data, 1):
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield (number >> 1) ^ -(number & 1), position
            number = shift = 0
        elif shift > _VARINT_BITS_MAX:
            raise BadFrame(Fault.BAD_INDEXES, "a message index without end")
    raise BadFrame(Fault.TRUNCATED, "the message indexes are not complete")
