"""Choose the format of a schema. Each format is imported with its first schema, because their libraries take time."""

from __future__ import annotations

import importlib
from typing import Final

from ottla.schemas.schema import (
    NO_REFERENCES,
    TEXT_BYTES_MAX,
    Budget,
    InvalidSchema,
    ParsedSchema,
    Resolved,
    SchemaTooComplex,
)

#: each module has a function `parse(text, resolved)`
_MODULES: Final = {
    "AVRO": "ottla.schemas.avro",
    "JSON": "ottla.schemas.json_schema",
    "PROTOBUF": "ottla.schemas.protobuf",
}
#: characters that are read in the time of one step
_CHARS_PER_STEP: Final = 50


def parse(schema_type: str, text: str, resolved: Resolved = NO_REFERENCES, *, is_new: bool = True) -> ParsedSchema:
    """Return the parsed schema. Raise InvalidSchema if the type is unknown or the text is not a valid schema.

    ``is_new`` is False for a schema that is stored or only looked up: Avro's rules for names and defaults have become
    stricter, and older schemas must stay readable.
    """
    size = len(text) + sum(map(len, resolved.texts.values()))
    if size > TEXT_BYTES_MAX:
        raise SchemaTooComplex(
            f"the schema and its references have {size:,} characters; {TEXT_BYTES_MAX:,} are allowed"
        )
    if schema_type not in _MODULES:
        raise InvalidSchema(f"unknown schema type {schema_type!r}: use {', '.join(_MODULES)}")
    Budget().spend(size // _CHARS_PER_STEP)
    parse_format = importlib.import_module(_MODULES[schema_type]).parse
    parsed: ParsedSchema = (
        parse_format(text, resolved, is_new=is_new) if schema_type == "AVRO" else parse_format(text, resolved)
    )
    return parsed
