"""Records with a schema of the registry, for `ottla produce -s` and `ottla consume -s`: JSON text to bytes and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.record_format import DecodedMessage, DecodedPart
from ottla.model import extras

if TYPE_CHECKING:
    from ottla.cli.records import Message
    from ottla.client.registry import RegisteredSchema, SchemaRegistry
    from ottla.schemas.data.codec import Codec

KEY = "key"
VALUE = "value"
#: -s -> the registry's schemaType
SCHEMA_TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def parse_serializations(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """A click callback: return the schema type of the key and of the value, as far as they have one.

    >>> parse_serializations(None, None, ("avro", "key=json"))
    {'value': 'AVRO', 'key': 'JSON'}
    """
    found: dict[str, str] = {}
    for text in texts:
        part, _, name = text.rpartition("=")
        if part not in ("", KEY, VALUE) or name not in SCHEMA_TYPES:
            formats = ", ".join(SCHEMA_TYPES)
            raise click.BadParameter(f"{text!r} is not a format or key=FORMAT; formats are {formats}", ctx, parameter)
        if found.setdefault(part or VALUE, SCHEMA_TYPES[name]) != SCHEMA_TYPES[name]:
            raise click.BadParameter(f"the {part or VALUE} has two formats; give one -s for it", ctx, parameter)
    return found


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    """The schema of keys or of values; without a file and an id, the latest one of the subject."""

    file: str | None = None
    schema_id: int | None = None
    subject: str | None = None


class _Codecs:
    """The codecs of schemas, each made once."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._known: dict[int, Codec] = {}

    def of(self, schema: RegisteredSchema) -> Codec:
        """Return the codec. Raise InvalidSchema if the schema is not valid, Failure if a library is missing."""
        found = self._known.get(schema.id)
        if found is None:
            from ottla.schemas.data.codec import codec_for

            try:
                references = self._registry.resolve(schema)
                found = self._known[schema.id] = codec_for(schema.schema_type, schema.text, references)
            except ModuleNotFoundError as error:
                raise Failure(extras.missing(str(error.name), extras.EDGE)) from None
        return found


def make_encoder(
    registry: SchemaRegistry, topic: str, part: str, schema_type: str, choice: SchemaChoice
) -> Callable[[bytes], bytes]:
    """Return the function that makes a framed key or value of JSON text; it raises Failure if the text does not fit.

    A schema in a file is registered. Raise NotFound if the chosen schema does not exist.
    """
    from ottla.schemas.data.framing import frame
    from ottla.schemas.data.misfit import DataMisfit
    from ottla.schemas.schema import InvalidSchema

    schema = _find(registry, f"{topic}-{part}", schema_type, choice)
    if schema.schema_type != schema_type:
        use = _use(part, schema.schema_type)
        raise click.UsageError(f"schema {schema.id} for the {part} is {schema.schema_type}: {use}")
    try:
        codec = _Codecs(registry).of(schema)
    except InvalidSchema as error:
        raise Failure(f"schema {schema.id} for the {part} cannot be used: {error}") from None

    def encode(text: bytes) -> bytes:
        try:
            value = json.loads(text.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Failure(f"the {part} is not JSON: {error}") from None
        try:
            return frame(schema.id, codec.encode(value))
        except DataMisfit as error:
            raise Failure(f"the {part} does not fit schema {schema.id}: {error}") from None

    return encode


def _find(registry: SchemaRegistry, topic_subject: str, schema_type: str, choice: SchemaChoice) -> RegisteredSchema:
    from ottla.client.registry import RegisteredSchema, RegistryError

    if choice.schema_id is not None:
        found = registry.by_id(choice.schema_id)
        if found is None:
            raise NotFound(f"the registry has no schema {choice.schema_id}; see 'ottla schema list --all'")
        return found
    subject = choice.subject or topic_subject
    if choice.file is not None:
        text = Path(choice.file).read_text(encoding="utf-8")
        return RegisteredSchema(registry.register(subject, text, schema_type), schema_type, text)
    try:
        return registry.version(subject)
    except RegistryError as error:
        if error.status != 404:
            raise
        raise NotFound(
            f"the registry has no schema for {subject}; give one with --schema FILE, or register it: "
            f"'ottla schema register {subject} FILE'"
        ) from None


class BadRecord(Exception):
    """A record that cannot be decoded; the text says why."""


class RecordDecoder:
    """Decodes the keys and values of records, each with the schema that it was written with."""

    def __init__(self, registry: SchemaRegistry, schema_types: Mapping[str, str], *, skip_bad: bool) -> None:
        self._registry = registry
        self._types = schema_types
        self._skip_bad = skip_bad
        self._codecs = _Codecs(registry)

    def decode(self, message: Message) -> DecodedMessage | None:
        """Return the record with JSON as key and value; None if it is bad and skipped. Raise Failure if it is bad."""
        try:
            key, value = self._part(KEY, message.key()), self._part(VALUE, message.value())
        except BadRecord as error:
            place = f"{message.topic()}, partition {message.partition()}, offset {message.offset()}"
            if self._skip_bad:
                click.echo(f"skipped {place}: {error}", err=True)
                return None
            raise Failure(
                f"{place}: {error}. Skip such records with --skip-bad, or print the bytes with "
                f"-O {message.offset()} -p {message.partition()} -n 1 and without -s"
            ) from None
        return DecodedMessage(message, key, value)

    def _part(self, part: str, data: bytes | None) -> DecodedPart | None:
        """Return the decoded key or value; None if it has no schema or is null. Raise BadRecord."""
        expected = self._types.get(part)
        if expected is None or data is None:
            return None
        from ottla.schemas.data.framing import BadFrame, unframe
        from ottla.schemas.data.misfit import DataMisfit
        from ottla.schemas.schema import InvalidSchema

        try:
            schema_id, content = unframe(data)
        except BadFrame as error:
            raise BadRecord(f"the {part} does not begin with a schema id ({error})") from None
        schema = self._registry.by_id(schema_id)
        if schema is None:
            raise BadRecord(f"the registry has no schema {schema_id}, which the {part} names")
        if schema.schema_type != expected:
            found = schema.schema_type
            raise BadRecord(f"the {part} has schema {schema_id}, which is {found}, not {expected}: {_use(part, found)}")
        try:
            return DecodedPart(schema_id, self._codecs.of(schema).decode(content))
        except DataMisfit as error:
            raise BadRecord(f"the {part} does not fit schema {schema_id}: {error}") from None
        except InvalidSchema as error:
            raise BadRecord(f"the {part} has schema {schema_id}, which cannot be used: {error}") from None


def _use(part: str, schema_type: str) -> str:
    return f"use -s {'key=' if part == KEY else ''}{schema_type.lower()}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
