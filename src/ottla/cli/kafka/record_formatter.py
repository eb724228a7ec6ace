"""How kafka-console-consumer prints records: Kafka's DefaultMessageFormatter and its deserializers."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.java import double
from ottla.cli.kafka.tool import print_error

_PACKAGE = "org.apache.kafka.tools.consumer."
DEFAULT = f"{_PACKAGE}DefaultMessageFormatter"
LOGGING = f"{_PACKAGE}LoggingMessageFormatter"
NO_OP = f"{_PACKAGE}NoOpMessageFormatter"
_SERIALIZATION = "org.apache.kafka.common.serialization."
_TIMESTAMP_TYPES = {1: b"CreateTime", 2: b"LogAppendTime"}
_NUMBERS = {"Integer": (">i", 4), "Long": (">q", 8), "Short": (">h", 2), "Double": (">d", 8), "Float": (">f", 4)}


def _number(name: str) -> Callable[[bytes], str]:
    code, size = _NUMBERS[name]

    def decode(data: bytes) -> str:
        if len(data) != size:
            raise ToolError(f"Size of data received by {name}Deserializer is not {size}")
        value = struct.unpack(code, data)[0]
        return double(value) if name in ("Double", "Float") else str(value)

    return decode


def _boolean(data: bytes) -> str:
    if data not in (b"\0", b"\1"):
        raise ToolError("Unexpected byte received by BooleanDeserializer")
    return str(data == b"\1").lower()


def _bytes_text(data: bytes) -> str:
    return "".join(chr(each) if 32 <= each < 127 and each != 92 else f"\\x{each:02X}" for each in data)


_DESERIALIZERS: dict[str, Callable[[bytes], str]] = {
    "String": lambda data: data.decode("utf-8", "replace"),
    **{name: _number(name) for name in _NUMBERS},
    "Boolean": _boolean,
    "Bytes": _bytes_text,
    "UUID": lambda data: str(uuid.UUID(data.decode("utf-8", "replace"))),
}


class Formatter:
    """Turns records into bytes of the output."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        def is_set(name: str, default: str = "false") -> bool:
            return properties.get(f"print.{name}", default).strip().lower() == "true"

        def text(name: str, default: str) -> bytes:
            return properties.get(name, default).encode()

        self._columns = [
            (name, render)
            for name, render in (
                ("timestamp", _timestamp),
                ("partition", lambda message: b"Partition:%d" % message.partition()),
                ("offset", lambda message: b"Offset:%d" % message.offset()),
                ("delivery", lambda message: b"Delivery:NOT_PRESENT"),
                ("epoch", lambda message: b"Epoch:NOT_PRESENT"),
                ("headers", self._headers),
                ("key", lambda message: self._decoded("key", message.key())),
                ("value", lambda message: self._decoded("value", message.value())),
            )
            if is_set(name, "true" if name == "value" else "false")
        ]
        self._column_end = text("key.separator", "\t")
        self._line_end = text("line.separator", "\n")
        self._header_end = text("headers.separator", ",")
        self._null = text("null.literal", "null")
        self._decoders = {
            part: _deserializer(properties[f"{part}.deserializer"])
            for part in ("key", "value", "headers")
            if f"{part}.deserializer" in properties
        }

    def __call__(self, message: Any) -> bytes:
        """Return the line of a record. Raise ToolError if a deserializer refuses it."""
        if not self._columns:
            return b""
        return self._column_end.join([render(message) for _, render in self._columns]) + self._line_end

    def _decoded(self, part: str, data: bytes | None) -> bytes:
        given = self._null if data is None else data
        decode = self._decoders.get(part)
        if decode is None:
            return given
        try:
            return decode(given).encode()
        except ValueError as error:
            raise ToolError(str(error)) from None

    def _headers(self, message: Any) -> bytes:
        headers = message.headers()
        if not headers:
            return b"NO_HEADERS"
        return self._header_end.join(key.encode() + b":" + self._decoded("headers", value) for key, value in headers)


def _timestamp(message: Any) -> bytes:
    kind, milliseconds = message.timestamp()
    name = _TIMESTAMP_TYPES.get(kind)
    return b"NO_TIMESTAMP" if name is None else b"%s:%d" % (name, milliseconds)


def _deserializer(name: str) -> Callable[[bytes], str] | None:
    found = _DESERIALIZERS.get(name.removeprefix(_SERIALIZATION).removesuffix("Deserializer"))
    if found is None or not name.startswith(_SERIALIZATION):
        print_error(f"ERROR Unable to instantiate a deserializer from {name}")
        return None
    return found
