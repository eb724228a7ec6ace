"""Makes the record that a person describes with a form: keys, values and headers of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from ottla.client.registry import RegisteredSchema, RegistryError
from ottla.edge.console.records.decoding import Codecs, Decoded, SchemaSource
from ottla.model.errors import OttlaError
from ottla.schemas.data.framing import frame
from ottla.schemas.data.misfit import DataMisfit
from ottla.schemas.schema import InvalidSchema

NULL, TEXT, JSON, HEX, SCHEMA, SAME = "null", "text", "json", "hex", "schema", "same"
#: formats of a key or a value; `same` has the bytes of the record that is produced again
FORMATS: Final = (TEXT, JSON, SCHEMA, HEX, NULL)
_HEADERS_MAX: Final = 1000
_HEX_PREFIX: Final = "hex:"
#: larger keys and values are not put into a form
EDITED_BYTES_MAX: Final = 256 << 10

Headers = list[tuple[str, bytes | None]]


class BadRecord(OttlaError):
    """The fields of the form make no record. The message says which and why."""


class SubjectSource(SchemaSource, Protocol):
    """The client of a registry that knows subjects, too."""

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema: ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A key or a value that is ready to be sent."""

    data: bytes | None
    schema: RegisteredSchema | None = None

    def words(self) -> str:
        """Return what a preview says about it."""
        if self.data is None:
            return "null"
        if self.schema is None:
            return f"{len(self.data):,} bytes"
        return f"{len(self.data):,} bytes of {self.schema.schema_type} with schema id {self.schema.id}"


def encode(part: str, kind: str, text: str) -> Outgoing:
    """Return the bytes of a text in one of the formats without a schema. Raise BadRecord."""
    if kind == NULL:
        return Outgoing(None)
    if kind == HEX:
        try:
            return Outgoing(bytes.fromhex(text))
        except ValueError:
            raise BadRecord(f"{part}: write bytes as hexadecimal digits, such as 00 ff 1a") from None
    if kind == JSON:
        _parse(part, text)
    try:
        return Outgoing(text.encode())
    except UnicodeEncodeError:
        raise BadRecord(f"{part}: the text has half of a surrogate pair, which UTF-8 has not") from None


def encode_with_schema(
    part: str, text: str, schema: RegisteredSchema, source: SchemaSource, codecs: Codecs
) -> Outgoing:
    """Return JSON text encoded with a schema, behind its id. Raise BadRecord if it does not fit. Raise ClientError."""
    value = _parse(part, text)
    name = f"schema {schema.id}"
    try:
        return Outgoing(frame(schema.id, codecs.of(schema, source).encode(value)), schema)
    except DataMisfit as error:
        raise BadRecord(f"{part}: it does not fit {name}: {error}") from None
    except InvalidSchema as error:
        raise BadRecord(f"{part}: {name} cannot be used: {error}") from None


def find_schema(source: SubjectSource, part: str, subject: str, schema_id: int | None) -> RegisteredSchema:
    """Return the schema with an id, or the latest one of a subject. Raise BadRecord if there is none."""
    if schema_id is not None:
        found = source.by_id(schema_id)
        if found is None:
            raise BadRecord(f"{part}: the registry has no schema {schema_id}")
        return found
    try:
        return source.version(subject)
    except RegistryError as error:
        if error.status != 404:
            raise
        raise BadRecord(
            f"{part}: the registry has no subject {subject}; give the id of a schema, or register one"
        ) from None


def _parse(part: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{part}: it is not JSON: {str(error)[:200]}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


# -- headers ----------------------------------------------------------------------------------------------------------


def parse_headers(text: str) -> Headers:
    """Return headers of lines: `name: text`, `name: hex:00ff`, or `name` alone for null. Raise BadRecord.

    >>> parse_headers("type: refund\\nraw: hex:00ff\\nnone")
    [('type', b'refund'), ('raw', b'\\x00\\xff'), ('none', None)]
    """
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    if len(lines) > _HEADERS_MAX:
        raise BadRecord(f"headers: {len(lines)} lines; {_HEADERS_MAX} are allowed")
    found: Headers = []
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name.strip():
            raise BadRecord(f"headers: line {number} has no name before the colon")
        if not colon:
            found.append((name.strip(), None))
        elif value.startswith(_HEX_PREFIX):
            try:
                found.append((name.strip(), bytes.fromhex(value.removeprefix(_HEX_PREFIX))))
            except ValueError:
                raise BadRecord(f"headers: line {number} has no hexadecimal digits after hex:") from None
        else:
            found.append((name.strip(), value.encode("utf-8", "replace")))
    return found


def header_lines(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """Return headers as lines that mean the same, or None if they cannot be written as lines."""
    lines = []
    for name, value in headers:
        # A form cannot have them: surrogates stand for bytes that are not UTF-8.
        if not name.isprintable():
            return None
        if value is None:
            lines.append(name)
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        is_plain = text.isprintable() and not text.startswith(_HEX_PREFIX) and text.encode() == value
        lines.append(f"{name}: {text}" if is_plain else f"{name}: {_HEX_PREFIX}{value.hex()}")
    joined = "\n".join(lines)
    try:
        return joined if parse_headers(joined) == list(headers) else None
    except BadRecord:
        return None


# -- produce again ----------------------------------------------------------------------------------------------------


def as_text(decoded: Decoded, data: bytes | None) -> tuple[str, str]:
    """Return the format and the text with which a form shows a key or a value, so that it can be edited."""
    if data is None:
        return NULL, ""
    if len(data) > EDITED_BYTES_MAX:
        return SAME, ""
    if decoded.schema_id is not None and not decoded.problem and data[:1] == b"\0":
        try:
            return SCHEMA, json.dumps(decoded.data, ensure_ascii=False, indent=2)
        except (ValueError, RecursionError):
            return SAME, ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return HEX, data.hex(" ")
    # A browser changes line ends, and drops a NUL.
    if any(sign in text for sign in "\r\0"):
        return HEX, data.hex(" ")
    return TEXT, text
