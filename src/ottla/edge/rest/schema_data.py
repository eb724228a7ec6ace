"""Keys and values with a schema of the registry: finds the schemas, and keeps the codec of each schema id.

The registry is asked in threads, as the user of the request if users are passed on to it (`registries.py`). The codec
of a schema id never changes. `ottla.schemas.data` has the framing and the JSON of each format.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from ottla.client.registry import RegisteredSchema, RegistryError, RegistryUnreachable, SchemaRegistry
from ottla.edge.rest.errors import (
    INVALID_SCHEMA,
    JSON_CONVERSION,
    NOT_AUTHORIZED,
    SCHEMA_TIMEOUT,
    SERIALIZATION,
    bad_request,
    unprocessable,
)
from ottla.edge.rest.kafka import SERVICE, Identity
from ottla.edge.rest.records import AVRO, JSONSCHEMA, PROTOBUF, Encoded
from ottla.edge.rest.registries import Registries
from ottla.edge.rest.settings import RestSettings
from ottla.edge.rest.writable_topics import WritableTopic
from ottla.edge.web.app import HttpError
from ottla.schemas.data.codec import Codec, codec_for
from ottla.schemas.data.framing import BadFrame, frame, unframe
from ottla.schemas.data.misfit import DataMisfit
from ottla.schemas.schema import InvalidSchema

_KEPT_MAX: Final = 1000
_REASON_MAX: Final = 300
#: how long the latest version of a subject is remembered
_LATEST_S: Final = 5.0
#: format -> the registry's schemaType
SCHEMA_TYPES: Final = {AVRO: "AVRO", JSONSCHEMA: "JSON", PROTOBUF: "PROTOBUF"}
_FORMATS: Final = {word: form for form, word in SCHEMA_TYPES.items()}
STRATEGIES: Final = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")

_T = TypeVar("_T")
Run = Callable[[Callable[[], Any]], Awaitable[Any]]
#: returns whether a user may write to a topic
MayWrite = Callable[[Identity, str], Awaitable[bool]]


class SchemaWanted(NamedTuple):
    """Which schema a request names for its keys or values."""

    topic: WritableTopic
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
        """Return the framed bytes of a JSON value; null stays null. Raise HttpError 422 (42203) if it does not fit."""
        try:
            payload = None if data is None else frame(self.schema_id, self.codec.encode(data))
        except DataMisfit as error:
            raise unprocessable(
                f"Conversion of JSON to Object failed: {str(error)[:_REASON_MAX]}", JSON_CONVERSION
            ) from None
        return Encoded(payload, self.form, self.subject, self.schema_id, self.version)


class _NotRegistered(NamedTuple):
    """A schema that its subject does not have yet."""

    subject: str
    schema_type: str


class SchemaData:
    """Finds schemas in the registry and keeps their codecs."""

    def __init__(self, registries: Registries, run: Run, may_write: MayWrite) -> None:
        self._registries = registries
        self._run = run
        self._may_write = may_write
        #: schema id -> codec, or the error that every value with this id has
        self._codecs: OrderedDict[int, tuple[str, Codec] | HttpError] = OrderedDict()
        #: id that the registry does not know -> when it is asked again
        self._unknown: dict[int, float] = {}
        #: by who has asked the registry
        self._found: OrderedDict[tuple[Identity, SchemaWanted], tuple[SchemaFound, float]] = OrderedDict()

    # Encoding

    async def find(self, identity: Identity, wanted: SchemaWanted) -> SchemaFound:
        """Return the schema that a request names; register it if the request has its text.

        Raise HttpError 422 if there is no such schema or the registry refuses it, 408 (40801) if it does not answer,
        and 403 (40301) if the user may not register it.
        """
        key = (self._registries.acts_as(identity), wanted)
        known = self._found.get(key)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        registry = self._registries.of(identity)
        found = await self._ask(lambda: self._find(registry, wanted))
        if isinstance(found, _NotRegistered):
            missing = found
            await self._authorize(identity, wanted.topic, missing.subject)
            found = await self._ask(lambda: self._register(registry, wanted, missing))
        is_fixed = wanted.schema_id is not None or wanted.version is not None or wanted.text is not None
        self._found[key] = (found, time.monotonic() + (3600 if is_fixed else _LATEST_S))
        if len(self._found) > _KEPT_MAX:
            self._found.popitem(last=False)
        return found

    async def _ask(self, function: Callable[[], _T]) -> _T:
        answer: _T = await self._run(lambda: _translated(function))
        return answer

    async def _authorize(self, identity: Identity, topic: WritableTopic, subject: str) -> None:
        """Raise HttpError 403 if the user would register a schema with the rights of the proxy, and has none.

        A request may name any subject. With the strategy TOPIC_RECORD_NAME, the name in a JSON schema can complete the
        name of the topic to a subject of another topic.
        """
        owner, dash, suffix = subject.rpartition("-")
        is_of_topic = bool(dash and owner) and suffix in ("key", "value")
        if identity == SERVICE or (is_of_topic and owner == topic.name):
            return
        if await self._ask(lambda: self._registries.checks(identity)):
            return
        if not is_of_topic or not await self._may_write(identity, owner):
            reason = "the user may only register schemas under subjects of topics that the user may write to"
            raise HttpError(403, NOT_AUTHORIZED, f"subject {subject[:_REASON_MAX]}: {reason}")

    # These run in a thread.

    def _find(self, registry: SchemaRegistry, wanted: SchemaWanted) -> SchemaFound | _NotRegistered:
        if wanted.text is not None:
            return self._find_by_text(registry, wanted, wanted.text)
        if wanted.schema_id is not None:
            schema = registry.by_id(wanted.schema_id)
            if schema is None:
                raise unprocessable(f"Invalid schema: the registry has no schema {wanted.schema_id}", INVALID_SCHEMA)
            form, codec = self._codec(registry, schema)
            subject = wanted.subject or _subject(wanted, codec.name)
            known = registry.lookup(subject, schema.text, schema.schema_type, schema.references)
            if known is None:
                # Its compatibility with the schemas of this subject was never checked.
                reason = f"format = {form}, schema_id = {schema.id}: subject {subject} does not have it"
                raise unprocessable(f"Invalid schema. {reason}", INVALID_SCHEMA)
            return SchemaFound(form, subject, schema.id, known.version, codec)
        subject = wanted.subject or _subject(wanted, None)
        schema = registry.version(subject, wanted.version if wanted.version is not None else "latest")
        form, codec = self._codec(registry, schema)
        if wanted.form is not None and wanted.form != form:
            raise bad_request(f"subject {subject} has schemas of type {form}, not {wanted.form}")
        return SchemaFound(form, subject, schema.id, schema.version, codec)

    def _find_by_text(self, registry: SchemaRegistry, wanted: SchemaWanted, text: str) -> SchemaFound | _NotRegistered:
        if wanted.form is None:
            raise bad_request("type is required together with schema")
        schema_type = SCHEMA_TYPES[wanted.form]
        codec = _make_codec(schema_type, text, {})
        subject = wanted.subject or _subject(wanted, codec.name)
        known = registry.lookup(subject, text, schema_type)
        if known is None:
            return _NotRegistered(subject, schema_type)
        return SchemaFound(wanted.form, subject, known.id, known.version, codec)

    def _register(self, registry: SchemaRegistry, wanted: SchemaWanted, missing: _NotRegistered) -> SchemaFound:
        assert wanted.text is not None
        registry.register(missing.subject, wanted.text, missing.schema_type)
        found = self._find_by_text(registry, wanted, wanted.text)
        if isinstance(found, _NotRegistered):
            raise unprocessable(f"Error serializing message. {missing.subject} lost the schema", SERIALIZATION)
        return found

    def _codec(self, registry: SchemaRegistry, schema: RegisteredSchema) -> tuple[str, Codec]:
        """Return the format and the codec of a schema. Raise HttpError 422 (42205) if it cannot be used."""
        known = self._codecs.get(schema.id)
        if known is None:
            try:
                references = registry.resolve(schema)
                known = (_FORMATS.get(schema.schema_type, ""), _make_codec(schema.schema_type, schema.text, references))
            except HttpError as error:
                known = error
            self._keep(schema.id, known)
        if isinstance(known, HttpError):
            raise known
        return known

    # Decoding

    async def load(self, identity: Identity, payloads: list[bytes | None]) -> None:
        """Get the schemas of framed values, so that `decode` finds them. Raise HttpError 408 if that takes too long."""
        ids = {found for found in map(_schema_id, payloads) if found is not None and not self._is_known(found)}
        if ids:
            registry = self._registries.of(identity)
            await self._ask(lambda: self._load(registry, ids))

    def _is_known(self, schema_id: int) -> bool:
        """Return whether an id needs no request: its codec is known, or the registry did not know it a moment ago."""
        if self._unknown.get(schema_id, math.inf) < time.monotonic():
            self._unknown.pop(schema_id, None)
            self._codecs.pop(schema_id, None)
        return schema_id in self._codecs

    def _keep(self, schema_id: int, known: tuple[str, Codec] | HttpError) -> None:
        self._codecs[schema_id] = known
        if len(self._codecs) > _KEPT_MAX:
            oldest, _ = self._codecs.popitem(last=False)
            self._unknown.pop(oldest, None)

    def _load(self, registry: SchemaRegistry, ids: set[int]) -> None:
        for schema_id in ids:
            schema = registry.by_id(schema_id)
            if schema is None:
                self._keep(schema_id, unprocessable(f"the registry has no schema {schema_id}", INVALID_SCHEMA))
                self._unknown[schema_id] = time.monotonic() + _LATEST_S
                continue
            # An error is kept, and raised for each value with this schema.
            with suppress(HttpError):
                self._codec(registry, schema)

    def decode(self, form: str, payload: bytes | None) -> Any:
        """Return the JSON value of a framed value. Raise HttpError 422 if it has no frame, or another format."""
        if payload is None:
            return None
        try:
            schema_id, content = unframe(payload)
        except BadFrame as error:
            reason = f"Conversion failed: the bytes do not begin with a schema id ({error})"
            raise unprocessable(reason, JSON_CONVERSION) from None
        known = self._codecs.get(schema_id)
        if known is None:
            raise NotLoaded
        if isinstance(known, HttpError):
            raise HttpError(known.status, known.error_code, known.message)
        if known[0] != form:
            raise unprocessable(f"Conversion failed: schema {schema_id} is {known[0]}, not {form}", JSON_CONVERSION)
        try:
            return known[1].decode(content)
        except DataMisfit as error:
            reason = f"Conversion failed: schema {schema_id}: {str(error)[:_REASON_MAX]}"
            raise unprocessable(reason, JSON_CONVERSION) from None


def open_registry(settings: RestSettings, run: Run, may_write: MayWrite) -> SchemaData | None:
    """Return the schemas of the registry; None without one. Raise StartError if its settings are not valid."""
    return SchemaData(Registries(settings), run, may_write) if settings.schema_registry_url else None


class NotLoaded(Exception):
    """A value arrived after the schemas were loaded. Its schema is loaded before the next attempt."""


def _schema_id(payload: bytes | None) -> int | None:
    """Return the schema id of a framed value; None if it has no frame."""
    try:
        return None if payload is None else unframe(payload)[0]
    except BadFrame:
        return None


def _make_codec(schema_type: str, text: str, references: Mapping[str, str]) -> Codec:
    """Return the codec of a schema. Raise HttpError 422 (42205) if the schema is not valid."""
    try:
        return codec_for(schema_type, text, references)
    except InvalidSchema as error:
        raise unprocessable(f"Invalid schema: {str(error)[:_REASON_MAX]}", INVALID_SCHEMA) from None


def _subject(wanted: SchemaWanted, name: str | None) -> str:
    """Return the subject that the strategy names. Raise HttpError 400 if the strategy needs a name that is unknown."""
    strategy = wanted.strategy or STRATEGIES[0]
    if strategy == STRATEGIES[0]:
        return f"{wanted.topic.name}-{'key' if wanted.is_key else 'value'}"
    if name is None:
        raise bad_request(f"subject_name_strategy={strategy} needs a schema with a name: give schema_id or schema")
    return name if strategy == STRATEGIES[1] else f"{wanted.topic.name}-{name}"


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
