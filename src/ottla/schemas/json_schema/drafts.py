"""The drafts of JSON Schema: their names, and the shape that each draft's meta-schema requires of each keyword.

The tables replace the meta-schemas. A meta-schema is itself a schema with references to itself, and a validator that
runs it takes seconds for a schema with 1,000 properties, recurses once for each level of the schema, and has no limit
of work. A table is read once for each keyword. tests/unit/schemas/test_json_schema_validity.py compares the tables with
the package jsonschema, which runs the meta-schemas.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final

from ottla.schemas.json_schema.text import JsonValue


class Draft(IntEnum):
    """The drafts, in the order of their publication."""

    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019_09 = 2019
    DRAFT_2020_12 = 2020

    @property
    def id_keyword(self) -> str:
        return "id" if self is Draft.DRAFT_4 else "$id"

    @property
    def is_modern(self) -> bool:
        """Whether keywords beside `$ref` count, and each keyword stands for itself."""
        return self >= Draft.DRAFT_2019_09


#: the draft of a schema without `$schema`, and of one whose `$schema` names no draft: the same as Confluent's
DEFAULT_DRAFT: Final = Draft.DRAFT_7

_ADDRESSES: Final = {
    "json-schema.org/draft-04/schema": Draft.DRAFT_4,
    "json-schema.org/schema": Draft.DRAFT_4,
    "json-schema.org/draft-06/schema": Draft.DRAFT_6,
    "json-schema.org/draft-07/schema": Draft.DRAFT_7,
    "json-schema.org/draft/2019-09/schema": Draft.DRAFT_2019_09,
    "json-schema.org/draft/2020-12/schema": Draft.DRAFT_2020_12,
}


def draft_by_address(address: str) -> Draft | None:
    """Return the draft whose meta-schema has this address, with http or https, with or without `#`."""
    for scheme in ("http://", "https://"):
        if address.startswith(scheme):
            return _ADDRESSES.get(address[len(scheme) :].removesuffix("#"))
    return None


def draft_of(document: JsonValue, default: Draft = DEFAULT_DRAFT) -> Draft:
    """Return the draft that `$schema` names, or the default."""
    address = document.get("$schema") if isinstance(document, dict) else None
    return (draft_by_address(address) if isinstance(address, str) else None) or default


class Shape(Enum):
    """What the value of a keyword must be."""

    STRING = auto()
    BOOLEAN = auto()
    NUMBER = auto()
    POSITIVE_NUMBER = auto()
    COUNT = auto()
    ARRAY = auto()
    STRINGS = auto()
    STRINGS_NOT_EMPTY = auto()
    STRINGS_BY_NAME = auto()
    BOOLEANS_BY_NAME = auto()
    TYPE = auto()
    ENUM = auto()
    PATTERN = auto()
    ANCHOR_2019 = auto()
    ANCHOR_2020 = auto()
    ID_WITHOUT_FRAGMENT = auto()
    SCHEMA = auto()
    BOOLEAN_OR_SCHEMA = auto()
    SCHEMAS = auto()
    SCHEMA_OR_SCHEMAS = auto()
    SCHEMAS_BY_NAME = auto()
    SCHEMAS_BY_PATTERN = auto()
    DEPENDENCIES = auto()


_DRAFT_4: Final[dict[str, Shape]] = {
    "id": Shape.STRING,
    "$schema": Shape.STRING,
    "title": Shape.STRING,
    "description": Shape.STRING,
    "multipleOf": Shape.POSITIVE_NUMBER,
    "maximum": Shape.NUMBER,
    "exclusiveMaximum": Shape.BOOLEAN,
    "minimum": Shape.NUMBER,
    "exclusiveMinimum": Shape.BOOLEAN,
    "maxLength": Shape.COUNT,
    "minLength": Shape.COUNT,
    "pattern": Shape.PATTERN,
    "additionalItems": Shape.BOOLEAN_OR_SCHEMA,
    "items": Shape.SCHEMA_OR_SCHEMAS,
    "maxItems": Shape.COUNT,
    "minItems": Shape.COUNT,
    "uniqueItems": Shape.BOOLEAN,
    "maxProperties": Shape.COUNT,
    "minProperties": Shape.COUNT,
    "required": Shape.STRINGS_NOT_EMPTY,
    "additionalProperties": Shape.BOOLEAN_OR_SCHEMA,
    "definitions": Shape.SCHEMAS_BY_NAME,
    "properties": Shape.SCHEMAS_BY_NAME,
    "patternProperties": Shape.SCHEMAS_BY_PATTERN,
    "dependencies": Shape.DEPENDENCIES,
    "enum": Shape.ENUM,
    "type": Shape.TYPE,
    "format": Shape.STRING,
    "allOf": Shape.SCHEMAS,
    "anyOf": Shape.SCHEMAS,
    "oneOf": Shape.SCHEMAS,
    "not": Shape.SCHEMA,
    # Not in the meta-schema of draft 4, which leaves references to another document.
    "$ref": Shape.STRING,
}

_DRAFT_6: Final[dict[str, Shape]] = {
    **{keyword: shape for keyword, shape in _DRAFT_4.items() if keyword != "id"},
    "$id": Shape.STRING,
    "exclusiveMaximum": Shape.NUMBER,
    "exclusiveMinimum": Shape.NUMBER,
    "additionalItems": Shape.SCHEMA,
    "additionalProperties": Shape.SCHEMA,
    "required": Shape.STRINGS,
    "enum": Shape.ARRAY,
    "contains": Shape.SCHEMA,
    "propertyNames": Shape.SCHEMA,
    "examples": Shape.ARRAY,
}

_DRAFT_7: Final[dict[str, Shape]] = {
    **_DRAFT_6,
    "$comment": Shape.STRING,
    "readOnly": Shape.BOOLEAN,
    "contentMediaType": Shape.STRING,
    "contentEncoding": Shape.STRING,
    "if": Shape.SCHEMA,
    "then": Shape.SCHEMA,
    "else": Shape.SCHEMA,
}

_DRAFT_2019_09: Final[dict[str, Shape]] = {
    **_DRAFT_7,
    "$id": Shape.ID_WITHOUT_FRAGMENT,
    "$anchor": Shape.ANCHOR_2019,
    "$recursiveRef": Shape.STRING,
    "$recursiveAnchor": Shape.BOOLEAN,
    "$vocabulary": Shape.BOOLEANS_BY_NAME,
    "$defs": Shape.SCHEMAS_BY_NAME,
    "dependentSchemas": Shape.SCHEMAS_BY_NAME,
    "dependentRequired": Shape.STRINGS_BY_NAME,
    "unevaluatedItems": Shape.SCHEMA,
    "unevaluatedProperties": Shape.SCHEMA,
    "maxContains": Shape.COUNT,
    "minContains": Shape.COUNT,
    "deprecated": Shape.BOOLEAN,
    "writeOnly": Shape.BOOLEAN,
    "contentSchema": Shape.SCHEMA,
}

_DRAFT_2020_12: Final[dict[str, Shape]] = {
    **{keyword: shape for keyword, shape in _DRAFT_2019_09.items() if keyword != "additionalItems"},
    "$anchor": Shape.ANCHOR_2020,
    "$dynamicRef": Shape.STRING,
    "$dynamicAnchor": Shape.ANCHOR_2020,
    "$recursiveAnchor": Shape.ANCHOR_2020,
    "items": Shape.SCHEMA,
    "prefixItems": Shape.SCHEMAS,
}

SHAPES: Final[dict[Draft, dict[str, Shape]]] = {
    Draft.DRAFT_4: _DRAFT_4,
    Draft.DRAFT_6: _DRAFT_6,
    Draft.DRAFT_7: _DRAFT_7,
    Draft.DRAFT_2019_09: _DRAFT_2019_09,
    Draft.DRAFT_2020_12: _DRAFT_2020_12,
}
