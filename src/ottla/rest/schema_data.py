"""Keys and values with a schema of the registry: Confluent's framing, a zero byte and four bytes of schema id.

Avro data are in Avro's JSON encoding, in which a value of a union names its type: `{"string": "a"}`. The registry is
asked in threads; the codec of a schema id never changes and is kept.
"""

from __future__ import annotations

import io
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ottla.client.errors import PropertyRefused
from ottla.client.registry import RegisteredSchema, RegistryError, RegistryUnreachable, SchemaRegistry
from ottla.model.errors import StartError
from ottla.rest.errors import (
    INVALID_SCHEMA,
    JSON_CONVERSION,
    NOT_AUTHORIZED,
    SCHEMA_TIMEOUT,
    SERIALIZATION,
    bad_request,
    unprocessable,
)
from ottla.rest.records import AVRO, JSONSCHEMA, PROTOBUF, Encoded, decode_plain, to_json
from ottla.rest.settings import RestSettings
from ottla.web.app import HttpError

_HEADER: Final = Struct(">bI")
_MAGIC: Final = 0
_KEPT_MAX: Final = 1000
#: how long the latest version of a subject is remembered
_LATEST_S: Final = 5.0
#: format -> the registry's schemaType
SCHEMA_TYPES: Final = {AVRO: "AVRO", JSONSCHEMA: "JSON", PROTOBUF: "PROTOBUF"}
_FORMATS: Final = {word: form for form, word in SCHEMA_TYPES.items()}
STRATEGIES: Final = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")

_T = TypeVar("_T")
Run = Callable[[Callable[[], Any]], Awaitable[Any]]


class Codec(Protocol):
    """Encodes and decodes the data of one schema."""

    #: full name of the record, or the title
    name: str | None

    def encode(self, data: Any) -> bytes:
        """Return the bytes of a JSON value. Raise HttpError 422 (42203) if it does not fit the schema."""

    def decode(self, payload: bytes) -> Any:
        """Return the JSON value of bytes. Raise HttpError 422 (42203) if they do not fit the schema."""


class SchemaWanted(NamedTuple):
    """Which schema a request names for its keys or values."""

    topic: str
    is_key: bool
    form: str | None = None
    subject: str | None = None
    strategy: str | None = None
    schema_id: int | None = None
    version: int | None = None
    text: str | None = None


class SchemaFound(NamedTuple):
    """A schema of the registry that data are written with."""

    form: str
    subject: str
    schema_id: int
    version: int | None
    codec: Codec

    def encode(self, data: Any) -> Encoded:
        """Return the framed bytes of a JSON value; null stays null."""
        payload = None if data is None else _HEADER.pack(_MAGIC, self.schema_id) + self.codec.encode(data)
        return Encoded(payload, self.form, self.subject, self.schema_id, self.version)


class SchemaData:
    """Finds schemas in the registry and keeps their codecs."""

    def __init__(self, registry: SchemaRegistry, run: Run) -> None:
        self._registry = registry
        self._run = run
        #: schema id -> codec, or the error that every value with this id has
        self._codecs: OrderedDict[int, tuple[str, Codec] | HttpError] = OrderedDict()
        self._found: OrderedDict[SchemaWanted, tuple[SchemaFound, float]] = OrderedDict()

    # Encoding

    async def find(self, wanted: SchemaWanted) -> SchemaFound:
        """Return the schema that a request names; register it if the request has its text.

        Raise HttpError 422 if there is no such schema or the registry refuses it, 408 (40801) if it does not answer.
        """
        known = self._found.get(wanted)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        found: SchemaFound = await self._run(lambda: _translated(lambda: self._find(wanted)))
        is_fixed = wanted.schema_id is not None or wanted.version is not None or wanted.text is not None
        self._found[wanted] = (found, time.monotonic() + (3600 if is_fixed else _LATEST_S))
        if len(self._found) > _KEPT_MAX:
            self._found.popitem(last=False)
        return found

    def _find(self, wanted: SchemaWanted) -> SchemaFound:
        # In a thread.
        if wanted.text is not None:
            return self._find_by_text(wanted, wanted.text)
        if wanted.schema_id is not None:
            schema = self._registry.by_id(wanted.schema_id)
            if schema is None:
                raise unprocessable(f"Invalid schema: the registry has no schema {wanted.schema_id}", INVALID_SCHEMA)
            form, codec = self._codec(schema)
            subject = wanted.subject or _subject(wanted, codec.name)
            version = self._registry.lookup(subject, schema.text, schema.schema_type, schema.references)
            return SchemaFound(form, subject, schema.id, None if version is None else version.version, codec)
        subject = wanted.subject or _subject(wanted, None)
        schema = self._registry.version(subject, wanted.version if wanted.version is not None else "latest")
        form, codec = self._codec(schema)
        if wanted.form is not None and wanted.form != form:
            raise bad_request(f"subject {subject} has schemas of type {form}, not {wanted.form}")
        return SchemaFound(form, subject, schema.id, schema.version, codec)

    def _find_by_text(self, wanted: SchemaWanted, text: str) -> SchemaFound:
        if wanted.form is None:
            raise bad_request("type is required together with schema")
        schema_type = SCHEMA_TYPES[wanted.form]
        codec = make_codec(schema_type, text, {})
        subject = wanted.subject or _subject(wanted, codec.name)
        known = self._registry.lookup(subject, text, schema_type)
        if known is None:
            self._registry.register(subject, text, schema_type)
            known = self._registry.lookup(subject, text, schema_type)
        if known is None:
            raise unprocessable(f"Error serializing message. {subject} lost the schema", SERIALIZATION)
        return SchemaFound(wanted.form, subject, known.id, known.version, codec)

    def _codec(self, schema: RegisteredSchema) -> tuple[str, Codec]:
        """Return the format and the codec of a schema. Raise HttpError 422 (42205) if it cannot be used."""
        known = self._codecs.get(schema.id)
        if known is None:
            try:
                references = self._registry.resolve(schema)
                known = (_FORMATS.get(schema.schema_type, ""), make_codec(schema.schema_type, schema.text, references))
            except HttpError as error:
                known = error
            self._codecs[schema.id] = known
            if len(self._codecs) > _KEPT_MAX:
                self._codecs.popitem(last=False)
        if isinstance(known, HttpError):
            raise known
        return known

    # Decoding

    async def load(self, payloads: list[bytes | None]) -> None:
        """Get the schemas of framed values, so that `decode` finds them. Raise HttpError 408 if that takes too long."""
        ids = {found for found in map(schema_id_of, payloads) if found is not None and found not in self._codecs}
        if ids:
            await self._run(lambda: _translated(lambda: self._load(ids)))

    def _load(self, ids: set[int]) -> None:
        for schema_id in ids:
            schema = self._registry.by_id(schema_id)
            if schema is None:
                self._codecs[schema_id] = unprocessable(f"the registry has no schema {schema_id}", INVALID_SCHEMA)
                continue
            # An error is kept, and raised for each value with this schema.
            with suppress(HttpError):
                self._codec(schema)

    def decode(self, form: str, payload: bytes | None) -> Any:
        """Return the JSON value of a framed value. Raise HttpError 422 if it has no frame, or another format."""
        if payload is None:
            return None
        schema_id = schema_id_of(payload)
        if schema_id is None:
            raise unprocessable("Conversion failed: the bytes do not begin with a schema id", JSON_CONVERSION)
        known = self._codecs.get(schema_id)
        if known is None:
            raise NotLoaded
        if isinstance(known, HttpError):
            raise HttpError(known.status, known.error_code, known.message)
        if known[0] != form:
            raise unprocessable(f"Conversion failed: schema {schema_id} is {known[0]}, not {form}", JSON_CONVERSION)
        return known[1].decode(payload[_HEADER.size :])


def open_registry(settings: RestSettings, run: Run) -> SchemaData | None:
    """Return the schemas of the registry; None without one. Raise StartError if its settings are not valid."""
    if not settings.schema_registry_url:
        return None
    try:
        return SchemaData(SchemaRegistry(",".join(settings.schema_registry_url), settings.registry), run)
    except PropertyRefused as error:
        raise StartError(str(error)) from None


class NotLoaded(Exception):
    """A value arrived after the schemas were loaded. Its schema is loaded before the next attempt."""


def schema_id_of(payload: bytes | None) -> int | None:
    """Return the schema id of a framed value; None if it has no frame."""
    if payload is None or len(payload) < _HEADER.size or payload[0] != _MAGIC:
        return None
    return int(_HEADER.unpack_from(payload)[1])


def make_codec(schema_type: str, text: str, references: Mapping[str, str]) -> Codec:
    """Return the codec of a schema. Raise HttpError 422 (42205) if the schema is not valid."""
    if schema_type == "AVRO":
        return AvroCodec(text, references)
    if schema_type == "JSON":
        return JsonSchemaCodec(text)
    raise unprocessable(f"Invalid schema: {schema_type} is not supported by this proxy", INVALID_SCHEMA)


class AvroCodec:
    """Avro data in Avro's JSON encoding."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        import fastavro

        named: dict[str, Any] = {}
        try:
            for reference in references.values():
                fastavro.parse_schema(_parse_text(reference), named_schemas=named)
            self._schema = fastavro.parse_schema(_parse_text(text), named_schemas=named)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, fastavro.schema.SchemaParseException,
                fastavro.schema.UnknownType) as error:  # fmt: skip
            raise unprocessable(f"Invalid schema: {str(error)[:200]}", INVALID_SCHEMA) from None
        self.name = self._schema.get("name") if isinstance(self._schema, dict) else None

    def encode(self, data: Any) -> bytes:
        import fastavro

        output = io.BytesIO()
        try:
            (value,) = fastavro.json_reader(io.StringIO(json.dumps(data)), self._schema)
            fastavro.schemaless_writer(output, self._schema, value, strict=True)
        except _DATA_ERRORS as error:
            raise _misfit(error) from None
        return output.getvalue()

    def decode(self, payload: bytes) -> Any:
        import fastavro

        data, text = io.BytesIO(payload), io.StringIO()
        try:
            value = fastavro.schemaless_reader(data, self._schema, None)
            if data.read(1):
                raise ValueError("there are bytes behind the value")
            fastavro.json_writer(text, self._schema, [value])
            return json.loads(text.getvalue())
        except _DATA_ERRORS as error:
            raise _misfit(error) from None


#: fastavro has no common class for data that do not fit their schema
_DATA_ERRORS: Final = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, StopIteration, OverflowError, RecursionError,
    ArithmeticError, AssertionError, MemoryError,
)  # fmt: skip


class JsonSchemaCodec:
    """JSON with a JSON Schema. The data are not compared with the schema."""

    def __init__(self, text: str) -> None:
        parsed = _parse_text(text)
        title = parsed.get("title") if isinstance(parsed, dict) else None
        self.name = title if isinstance(title, str) else None

    def encode(self, data: Any) -> bytes:
        return to_json(data)

    def decode(self, payload: bytes) -> Any:
        return decode_plain("JSON", payload)


def _parse_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise unprocessable("Invalid schema: it is not JSON", INVALID_SCHEMA) from None


def _misfit(error: BaseException) -> HttpError:
    text = str(error) or type(error).__name__
    return unprocessable(f"Conversion of JSON to Object failed: {text[:200]}", JSON_CONVERSION)


def _subject(wanted: SchemaWanted, name: str | None) -> str:
    """Return the subject that the strategy names. Raise HttpError 400 if the strategy needs a name that is unknown."""
    strategy = wanted.strategy or STRATEGIES[0]
    if strategy == STRATEGIES[0]:
        return f"{wanted.topic}-{'key' if wanted.is_key else 'value'}"
    if name is None:
        raise bad_request(f"subject_name_strategy={strategy} needs a schema with a name: give schema_id or schema")
    return name if strategy == STRATEGIES[1] else f"{wanted.topic}-{name}"


def _translated(function: Callable[[], _T]) -> _T:
    """Call a function, and raise errors of the registry as errors of this API."""
    try:
        return function()
    except RegistryError as error:
        if error.status in (401, 403):
            raise HttpError(403, NOT_AUTHORIZED, str(error)) from None
        raise unprocessable(f"Error serializing message. {error}", SERIALIZATION) from None
    except RegistryUnreachable as error:
        raise HttpError(408, SCHEMA_TIMEOUT, str(error)) from None
