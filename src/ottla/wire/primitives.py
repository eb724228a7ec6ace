"""Kafka's primitive types as bytes, and the error for bytes that cannot be decoded."""

from __future__ import annotations

from typing import Final

#: Kafka refuses longer strings even where the length is a varint.
STRING_BYTES_MAX: Final = 0x7FFF
#: the types of fixed size, by their Kafka names: their codes in format strings of `struct`
FIXED_CODES: Final = {
    "bool": "?",
    "float64": "d",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "int8": "b",
    "uuid": "16s",
}


class WireError(Exception):
    """The bytes are malformed. Close the connection: its client does not follow the protocol."""


def write_uvarint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
