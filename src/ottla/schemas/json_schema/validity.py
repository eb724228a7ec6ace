"""Checks the keywords of one schema against the meta-schema of its draft, and lists the schemas inside of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final, NamedTuple

from ottla.schemas.json_schema.drafts import SHAPES, Draft, Shape
from ottla.schemas.json_schema.patterns import Patterns
from ottla.schemas.json_schema.text import JsonValue, value_key
from ottla.schemas.schema import Budget, InvalidSchema

_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_ANCHOR_2019: Final = re.compile(r"[A-Za-z][-A-Za-z0-9.:_]*\Z")
_ANCHOR_2020: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z")


class Pointer(NamedTuple):
    """A place in a document: the place of the enclosing value and the last token. Printed only in errors."""

    parent: Pointer | None
    token: str

    def __str__(self) -> str:
        tokens: list[str] = []
        place: Pointer | None = self
        while place is not None:
            tokens.append(place.token.replace("~", "~0").replace("/", "~1"))
            place = place.parent
        return "/" + "/".join(reversed(tokens))


class Inside(NamedTuple):
    """A schema that is the value of a keyword, or a part of it."""

    schema: JsonValue
    place: Pointer


class Validity:
    """The check of all schemas of one document and of the documents that it refers to."""

    def __init__(self, budget: Budget, patterns: Patterns) -> None:
        self._budget = budget
        self._patterns = patterns

    def schemas_inside(self, schema: JsonValue, place: Pointer | None, draft: Draft) -> Iterator[Inside]:
        """Check the keywords of a schema and yield the schemas inside of it. Raise InvalidSchema with the place."""
        if isinstance(schema, bool) and draft is not Draft.DRAFT_4:
            return
        if not isinstance(schema, dict):
            expected = "an object" if draft is Draft.DRAFT_4 else "an object or a boolean"
            raise _invalid(place, f"a schema must be {expected}, not {_name_of(schema)}")
        self._budget.spend(1 + len(schema))
        shapes = SHAPES[draft]
        for keyword, value in schema.items():
            shape = shapes.get(keyword)
            if shape is None:
                continue
            here = Pointer(place, keyword)
            if shape in _SCALARS:
                check, expected = _SCALARS[shape]
                if not check(value, draft):
                    raise _invalid(here, f"must be {expected}")
                if isinstance(value, list):
                    self._budget.spend(len(value))
                if shape is Shape.PATTERN:
                    self._check_pattern(value, here)
            else:
                yield from self._schemas_of(shape, value, here)
        if draft is Draft.DRAFT_4:
            for keyword in ("maximum", "minimum"):
                exclusive = f"exclusive{keyword.capitalize()}"
                if exclusive in schema and keyword not in schema:
                    raise _invalid(Pointer(place, exclusive), f"draft 4 requires {keyword} beside it")

    def _schemas_of(self, shape: Shape, value: JsonValue, place: Pointer) -> Iterator[Inside]:
        if shape is Shape.SCHEMA or (shape is Shape.SCHEMA_OR_SCHEMAS and not isinstance(value, list)):
            yield Inside(value, place)
        elif shape is Shape.BOOLEAN_OR_SCHEMA:
            if not isinstance(value, bool):
                yield Inside(value, place)
        elif shape in (Shape.SCHEMAS, Shape.SCHEMA_OR_SCHEMAS):
            if not isinstance(value, list) or not value:
                raise _invalid(place, "must be an array with at least one schema")
            for index, item in enumerate(value):
                yield Inside(item, Pointer(place, str(index)))
        elif not isinstance(value, dict):
            raise _invalid(place, "must be an object whose members are schemas")
        else:
            for name, member in value.items():
                here = Pointer(place, name)
                if shape is Shape.SCHEMAS_BY_PATTERN:
                    self._check_pattern(name, here)
                if shape is Shape.DEPENDENCIES and isinstance(member, list):
                    if not _is_set_of_strings(member):
                        raise _invalid(here, "must be a schema or an array of different strings")
                else:
                    yield Inside(member, here)

    def _check_pattern(self, expression: str, place: Pointer) -> None:
        error = self._patterns.error_of(expression, self._budget)
        if error is not None:
            raise _invalid(place, f"is not a regular expression: {error}")


def _invalid(place: Pointer | None, reason: str) -> InvalidSchema:
    return InvalidSchema(f"{place or 'the schema'}: {reason}")


def _name_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list):
        return "an array"
    return "a string" if isinstance(value, str) else "a number"


def is_number(value: JsonValue) -> bool:
    """Return whether a value is a number of JSON. Python calls a bool an int."""
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _is_count(value: JsonValue, draft: Draft) -> bool:
    if not is_number(value) or value < 0:
        return False
    # Since draft 6 the number 1.0 is an integer.
    return isinstance(value, int) or (draft is not Draft.DRAFT_4 and value == value.to_integral_value())


def _is_set_of_strings(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)


def _is_type(value: JsonValue) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _is_set_of_strings(value) and bool(value) and _TYPES.issuperset(value)


def _is_enum(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value) and len(set(map(value_key, value))) == len(value)


def _is_anchor(value: JsonValue, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.match(value) is not None


#: shape -> whether a value has it, and how an error calls it
_SCALARS: Final[dict[Shape, tuple[Callable[[JsonValue, Draft], bool], str]]] = {
    Shape.STRING: (lambda value, _: isinstance(value, str), "a string"),
    Shape.PATTERN: (lambda value, _: isinstance(value, str), "a string"),
    Shape.BOOLEAN: (lambda value, _: isinstance(value, bool), "a boolean"),
    Shape.NUMBER: (lambda value, _: is_number(value), "a number"),
    Shape.POSITIVE_NUMBER: (lambda value, _: is_number(value) and value > 0, "a number greater than 0"),
    Shape.COUNT: (_is_count, "an integer that is not negative"),
    Shape.ARRAY: (lambda value, _: isinstance(value, list), "an array"),
    Shape.STRINGS: (lambda value, _: _is_set_of_strings(value), "an array of different strings"),
    Shape.STRINGS_NOT_EMPTY: (
        lambda value, _: _is_set_of_strings(value) and bool(value),
        "an array of different strings with at least one",
    ),
    Shape.STRINGS_BY_NAME: (
        lambda value, _: isinstance(value, dict) and all(map(_is_set_of_strings, value.values())),
        "an object whose members are arrays of different strings",
    ),
    Shape.BOOLEANS_BY_NAME: (
        lambda value, _: isinstance(value, dict) and all(isinstance(member, bool) for member in value.values()),
        "an object whose members are booleans",
    ),
    Shape.TYPE: (
        lambda value, _: _is_type(value),
        f"one of {', '.join(sorted(_TYPES))}, or an array of different ones",
    ),
    Shape.ENUM: (lambda value, _: _is_enum(value), "an array of different values with at least one"),
    Shape.ANCHOR_2019: (lambda value, _: _is_anchor(value, _ANCHOR_2019), "a name of letters, digits and -.:_"),
    Shape.ANCHOR_2020: (lambda value, _: _is_anchor(value, _ANCHOR_2020), "a name of letters, digits and -._"),
    Shape.ID_WITHOUT_FRAGMENT: (
        lambda value, _: isinstance(value, str) and not value.partition("#")[2],
        "an address without a fragment",
    ),
}
