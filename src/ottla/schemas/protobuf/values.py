"""Literals of Protobuf: how strings are escaped and how numbers are read and printed."""

from __future__ import annotations

import math
import struct
from typing import Final

from ottla.schemas.protobuf.tokens import integer_value

_ESCAPES: Final = {
    ord("\a"): "\\a", ord("\b"): "\\b", ord("\f"): "\\f", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t",
    ord("\v"): "\\v", ord("\\"): "\\\\", ord("'"): "\\'", ord('"'): '\\"',
}  # fmt: skip
#: other control characters, and bytes that are not UTF-8, which are lone surrogates in the model
_ESCAPES_ALL: Final = (
    {code: f"\\{code:03o}" for code in (*range(0x20), 0x7F)}
    | {0xDC00 + byte: f"\\{byte:03o}" for byte in range(0x80, 0x100)}
    | _ESCAPES
)


def escaped(text: str) -> str:
    """Return the text as it stands between the quotes of a string."""
    return text.translate(_ESCAPES_ALL)


def escaped_bytes(text: str) -> str:
    """Return bytes as the field `default_value` of a descriptor has them: ASCII only."""
    pieces = []
    for byte in text.encode("utf-8", "surrogateescape"):
        if byte in b"\n\r\t\"'\\":
            pieces.append(_ESCAPES[byte])
        else:
            pieces.append(chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    return "".join(pieces)


def as_integer(text: str) -> int | None:
    """Return the value of a literal with an optional sign, None if it is no integer."""
    value = integer_value(text.removeprefix("-"))
    return -value if value is not None and text.startswith("-") else value


def as_float(text: str) -> float | None:
    """Return the value of a number, None if it is none. Integers become floating-point numbers."""
    integer = as_integer(text)
    if integer is not None:
        try:
            return float(integer)
        except OverflowError:
            return math.inf if integer > 0 else -math.inf
    try:
        return float(text)
    except ValueError:
        return None


def double_text(value: float) -> str:
    """Return a double as protoc prints it in a default: at most 15 digits if these are exact, 17 otherwise."""
    if math.isnan(value):
        return "nan"
    text = f"{value:.15g}"
    return text if math.isinf(value) or float(text) == value else f"{value:.17g}"


def float_text(value: float) -> str:
    """Return a float as protoc prints it in a default."""
    if math.isnan(value):
        return "nan"
    value = to_float32(value)
    text = f"{value:.6g}"
    return text if math.isinf(value) or to_float32(float(text)) == value else f"{value:.9g}"


def to_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def normal_number(text: str) -> str:
    """Return the shortest decimal spelling of a number; `-inf` and the like are unchanged."""
    integer = as_integer(text)
    if integer is not None:
        return str(integer)
    value = as_float(text)
    if value is None or math.isnan(value) or math.isinf(value):
        return text
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
