"""The codec of a schema: JSON values to the bytes of a record and back, without the frame (see `framing`).

| schema      | JSON value                                                                                       |
|-------------|--------------------------------------------------------------------------------------------------|
| Avro        | Avro's JSON encoding: a union that is not null is {"TYPE": value}, bytes are a string             |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ottla.schemas.data.misfit import too_deep
from ottla.schemas.schema import InvalidSchema, Resolved, SchemaTooComplex, SchemaType


class Codec(Protocol):
    """Encodes and decodes the data of one schema."""

    #: full name of the record or of the first message; the title
    name: str | None

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a JSON value. Raise DataMisfit if it does not fit the schema."""

    def decode(self, data: bytes) -> Any:
        """Return the JSON value of bytes. Raise DataMisfit if they do not fit the schema."""


def codec_for(schema_type: str, text: str, references: Mapping[str, str]) -> Codec:
    """Return the codec of a schema. Raise InvalidSchema if it is not valid.

    ``references`` has the text of each schema that it refers to, by name, each after the ones that it refers to itself.
    """
    # The modules are imported with the first schema, because their libraries take time.
    resolved = Resolved(texts=references)
    try:
        if schema_type == SchemaType.AVRO:
            return AvroCodec(text, resolved)
    except RecursionError:
        raise SchemaTooComplex("the schema has too many levels") from None
    raise InvalidSchema(f"unknown schema type {schema_type[:60]!r}: use AVRO")


class AvroCodec:
    """Avro data in Avro's JSON encoding."""

    def __init__(self, text: str, resolved: Resolved) -> None:
        from ottla.schemas.avro import parse
        from ottla.schemas.data.avro_decoder import make_decoder
        from ottla.schemas.data.avro_encoder import make_encoder

        schema = parse(text, resolved, is_new=False)
        self.name = schema.name
        self._encode = make_encoder(schema.root)
        self._decode = make_decoder(schema.root)

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except RecursionError:
            raise too_deep() from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except RecursionError:
            raise too_deep() from None
