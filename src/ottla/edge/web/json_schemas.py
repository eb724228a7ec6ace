"""JSON Schemas of bodies, for the rows of the table of operations and the OpenAPI document that is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NULLABLE_TEXT: Final[Schema] = {"type": ["string", "null"]}
INTEGER: Final[Schema] = {"type": "integer"}
NULLABLE_INTEGER: Final[Schema] = {"type": ["integer", "null"]}
BOOLEAN: Final[Schema] = {"type": "boolean"}


def list_of(item: Schema) -> dict[str, Any]:
    return {"type": "array", "items": item}


def map_of(member: Schema) -> dict[str, Any]:
    """Return the schema of an object whose members may have any name."""
    return {"type": "object", "additionalProperties": member}


def enum_of(*values: str) -> dict[str, Any]:
    """Return the schema of a text that is one of these."""
    return {"type": "string", "enum": [*values]}


def or_null(schema: Schema) -> dict[str, Any]:
    """Return the schema of a member for which null is the same as a missing one."""
    found = dict(schema)
    if isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], None]
    return found


def object_of(required: Schema, optional: Schema | None = None, example: Any = None) -> dict[str, Any]:
    """Return the schema of an object. The page /docs shows the example."""
    made = {"type": "object", "required": [*required], "properties": {**required, **(optional or {})}}
    return made if example is None else made | {"examples": [example]}


TEXTS: Final[Schema] = list_of(TEXT)
INTEGERS: Final[Schema] = list_of(INTEGER)
