"""The codec of a schema: JSON values to the bytes of a record and back, without the frame (see `framing`).

| schema      | JSON value                                                                                       |
|-------------|--------------------------------------------------------------------------------------------------|
| Avro        | Avro's JSON encoding: a union that is not null is {"TYPE": value}, bytes are a string             |
| JSON Schema | the value itself, which must be valid for the schema                                               |
| Protobuf    | Protobuf's canonical JSON; the bytes begin with the message indexes                                |
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn, Protocol

from ottla.schemas.data.misfit import DataMisfit, too_deep
from ottla.schemas.schema import STEPS_MAX, Budget, InvalidSchema, Resolved, SchemaTooComplex, SchemaType

#: steps of validating a value, besides those for each byte of its text
_STEPS: Final = 50_000
_STEPS_PER_BYTE: Final = 10


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
        if schema_type == SchemaType.JSON:
            return JsonSchemaCodec(text, resolved)
        if schema_type == SchemaType.PROTOBUF:
            return _protobuf(text, resolved)
    except RecursionError:
        raise SchemaTooComplex("the schema has too many levels") from None
    raise InvalidSchema(f"unknown schema type {schema_type[:60]!r}: use {', '.join(SchemaType)}")


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


class JsonSchemaCodec:
    """JSON data that are valid for a JSON Schema."""

    def __init__(self, text: str, resolved: Resolved) -> None:
        from ottla.schemas.data.json_validator import JsonValidator
        from ottla.schemas.json_schema.documents import Documents

        documents = Documents(text, resolved, Budget())
        title = documents.root.get("title") if isinstance(documents.root, dict) else None
        self.name = title if isinstance(title, str) else None
        self._validator = JsonValidator(documents)

    def encode(self, value: Any) -> bytes:
        from ottla.schemas.data.json_validator import Undecided

        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except RecursionError:
            raise too_deep() from None
        except ValueError:
            raise DataMisfit("NaN, Infinity and half of a surrogate pair are not JSON") from None
        try:
            self._check(value, len(text))
        except Undecided as undecided:
            raise DataMisfit(str(undecided)) from None
        return text

    def decode(self, data: bytes) -> Any:
        from ottla.schemas.data.json_validator import Undecided

        try:
            value = json.loads(data.decode(), parse_float=_finite, parse_constant=_refuse_constant)
        except RecursionError:
            raise too_deep() from None
        except ValueError as error:
            raise DataMisfit(f"the bytes are not JSON: {str(error)[:100]}") from None
        try:
            self._check(value, len(data))
        except Undecided:
            # The data exist already, so users should see them.
            pass
        return value

    def _check(self, value: Any, size: int) -> None:
        budget = Budget(min(STEPS_MAX, _STEPS + _STEPS_PER_BYTE * size))
        try:
            self._validator.check(value, budget)
        except SchemaTooComplex:
            raise DataMisfit("the data take too many steps to validate with this schema") from None
        except RecursionError:
            raise too_deep() from None


def _protobuf(text: str, resolved: Resolved) -> Codec:
    from ottla.schemas.data.protobuf_codec import ProtobufCodec
    from ottla.schemas.protobuf import parse

    return ProtobufCodec(parse(text, resolved))


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:60]} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
