"""Validates JSON values against a JSON Schema of the drafts 4, 6, 7, 2019-09 and 2020-12.

The package jsonschema, which tests compare this with, has no limit of work: its regular expressions backtrack, and
`$ref`, `anyOf` and `uniqueItems` multiply. Here each step counts against a `Budget`, expressions run in RE2, and
references are those that `schemas/json_schema` resolves: inside of the text, or to texts of the registry. `format` and
`content…` are annotations. A reference to a meta-schema stands for any object or boolean.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from ottla.schemas.data.misfit import DataMisfit, kind_of
from ottla.schemas.json_schema.documents import Documents, Scope
from ottla.schemas.json_schema.drafts import Draft
from ottla.schemas.json_schema.text import JsonValue, print_json, value_key
from ottla.schemas.schema import Budget

#: schemas inside of each other while one value is checked, references among them
_DEPTH_MAX: Final = 200
_SHOWN_MAX: Final = 80
#: the steps of one exact division
_DIVISION_STEPS: Final = 20
#: names or indexes that are looked up in one step
_NAMES_PER_STEP: Final = 10
#: characters that are compared in one step
_CHARACTERS_PER_STEP: Final = 20


class Undecided(Exception):
    """The schema has a regular expression that RE2 does not support, so that the data cannot be checked."""


class _Evaluated:
    """The members and items of a value that schemas have checked, for `unevaluatedProperties` and `…Items`."""

    __slots__ = ("items", "names")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.items: set[int] = set()

    def add(self, other: _Evaluated) -> None:
        self.names |= other.names
        self.items |= other.items


class _Here:
    """The place of one schema while it is applied to one value."""

    __slots__ = ("depth", "draft", "evaluated", "schema", "scope", "scopes")

    def __init__(
        self, schema: dict[str, JsonValue], scope: Scope, scopes: tuple[Scope, ...], evaluated: _Evaluated, depth: int
    ) -> None:
        self.schema = schema
        self.scope = scope
        self.draft = scope.draft
        #: the resources through which references came here, outermost first: the dynamic scope
        self.scopes = scopes
        self.evaluated = evaluated
        self.depth = depth


class JsonValidator:
    """Checks values against one schema."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        #: id() of an enum or const -> the keys of its values; the documents keep the objects alive
        self._keys: dict[int, frozenset[str]] = {}

    def check(self, value: JsonValue, budget: Budget) -> None:
        """Raise DataMisfit if the value does not fit, Undecided if that cannot be decided.

        Raise SchemaTooComplex if the budget ends.
        """
        _Check(self._documents, self._keys, budget).apply(self._documents.root, value, (), 0)


class _Check:
    def __init__(self, documents: Documents, keys: dict[int, frozenset[str]], budget: Budget) -> None:
        self._documents = documents
        self._keys = keys
        self._budget = budget

    def apply(self, schema: JsonValue, value: JsonValue, scopes: tuple[Scope, ...], depth: int) -> _Evaluated:
        """Return what was evaluated. Raise DataMisfit if the value does not fit the schema."""
        self._budget.spend()
        evaluated = _Evaluated()
        if schema is True:
            return evaluated
        if schema is False:
            raise DataMisfit(f"the schema allows no value here, and there is {kind_of(value)}")
        if depth > _DEPTH_MAX:
            raise DataMisfit(f"the schema and the data lead through more than {_DEPTH_MAX} schemas")
        scope = self._documents.scope_of(schema)
        if not scopes or scopes[-1].resource is not scope.resource:
            scopes = (*scopes, scope)
        here = _Here(schema, scope, scopes, evaluated, depth + 1)
        keywords = _KEYWORDS[scope.draft]
        if "$ref" in schema and not scope.draft.is_modern:
            # Before 2019-09, `$ref` hides its neighbours.
            self._ref(here, schema["$ref"], value)
            return evaluated
        for keyword, argument in schema.items():
            check = keywords.get(keyword)
            if check is not None:
                check(self, here, argument, value)
        if scope.draft.is_modern:
            for keyword, last in _LAST:
                if keyword in schema:
                    last(self, here, schema[keyword], value)
        return evaluated

    def _fits(self, here: _Here, schema: JsonValue, value: JsonValue) -> _Evaluated | None:
        """Return what was evaluated if the value fits the schema; None if not."""
        try:
            return self.apply(schema, value, here.scopes, here.depth)
        except DataMisfit:
            return None

    def _inside(self, here: _Here, schema: JsonValue, value: JsonValue, token: str | int) -> None:
        """Check a member or item of the value. Raise DataMisfit with its place."""
        try:
            self.apply(schema, value, here.scopes, here.depth)
        except DataMisfit as error:
            raise error.inside(token)

    def _matches(self, expression: str, text: str) -> bool:
        found = self._documents.patterns.matches(expression, text, self._budget)
        if found is None:
            raise Undecided(
                f"the regular expression {expression[:_SHOWN_MAX]!r} has look-ahead, a back-reference or another part "
                "that cannot be matched in linear time; write it without"
            )
        return found

    # References

    def _ref(self, here: _Here, reference: str, value: JsonValue) -> None:
        self._enter(here, self._documents.target(reference, here.scope), value)

    def _recursive_ref(self, here: _Here, reference: str, value: JsonValue) -> None:
        target = self._documents.target(reference, here.scope)
        if isinstance(target, dict) and target.get("$recursiveAnchor") is True:
            # The outermost resource that leads here without one that is not a recursive anchor.
            for scope in reversed(here.scopes):
                if not isinstance(scope.resource, dict) or scope.resource.get("$recursiveAnchor") is not True:
                    break
                target = scope.resource
        self._enter(here, target, value)

    def _dynamic_ref(self, here: _Here, reference: str, value: JsonValue) -> None:
        target = self._documents.target(reference, here.scope)
        name = reference.partition("#")[2]
        if isinstance(target, dict) and name and target.get("$dynamicAnchor") == name:
            for scope in here.scopes:
                self._budget.spend()
                found = self._documents.dynamic_anchor(scope.base, name)
                if found is not None:
                    target = found
                    break
        self._enter(here, target, value)

    def _enter(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        """Check the same value against another schema."""
        found = self.apply(schema, value, here.scopes, here.depth)
        self._budget.spend((len(found.names) + len(found.items)) // _NAMES_PER_STEP)
        here.evaluated.add(found)

    # Any value

    def _type(self, here: _Here, types: JsonValue, value: JsonValue) -> None:
        allowed = [types] if isinstance(types, str) else types
        if not any(_TYPES[name](value, here.draft) for name in allowed):
            raise DataMisfit(f"{' or '.join(allowed)} is expected, not {kind_of(value)}")

    def _enum(self, here: _Here, values: list[JsonValue], value: JsonValue) -> None:
        if not self._is_one_of(values, id(values), value):
            raise DataMisfit(f"{kind_of(value)} is none of {print_json(values, _SHOWN_MAX)}")

    def _const(self, here: _Here, constant: JsonValue, value: JsonValue) -> None:
        if not self._is_one_of([constant], id(constant), value):
            raise DataMisfit(f"{print_json(constant, _SHOWN_MAX)} is expected, not {kind_of(value)}")

    def _is_one_of(self, values: list[JsonValue], owner: int, value: JsonValue) -> bool:
        keys = self._keys.get(owner)
        if keys is None:
            keys = self._keys[owner] = frozenset(map(value_key, values))
        return self._key(value) in keys

    def _key(self, value: JsonValue) -> str:
        key = value_key(_exact(value))
        self._budget.spend(1 + len(key) // _CHARACTERS_PER_STEP)
        return key

    # Numbers

    def _minimum(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if _is_number(value):
            exclusive = here.draft is Draft.DRAFT_4 and here.schema.get("exclusiveMinimum") is True
            if _decimal(value) < limit or (exclusive and _decimal(value) == limit):
                raise DataMisfit(f"{kind_of(value)} is below {'or at ' if exclusive else ''}the minimum {limit}")

    def _maximum(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if _is_number(value):
            exclusive = here.draft is Draft.DRAFT_4 and here.schema.get("exclusiveMaximum") is True
            if _decimal(value) > limit or (exclusive and _decimal(value) == limit):
                raise DataMisfit(f"{kind_of(value)} is above {'or at ' if exclusive else ''}the maximum {limit}")

    def _exclusive_minimum(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if _is_number(value) and _decimal(value) <= limit:
            raise DataMisfit(f"{kind_of(value)} is not above {limit}")

    def _exclusive_maximum(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if _is_number(value) and _decimal(value) >= limit:
            raise DataMisfit(f"{kind_of(value)} is not below {limit}")

    def _multiple_of(self, here: _Here, divisor: JsonValue, value: JsonValue) -> None:
        if _is_number(value):
            self._budget.spend(_DIVISION_STEPS)
            if (Fraction(_decimal(value)) / Fraction(divisor)).denominator != 1:
                raise DataMisfit(f"{kind_of(value)} is not a multiple of {divisor}")

    # Strings

    def _min_length(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, str) and len(value) < limit:
            raise DataMisfit(f"the string has {len(value)} characters, and at least {limit} are required")

    def _max_length(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, str) and len(value) > limit:
            raise DataMisfit(f"the string has {len(value)} characters, and at most {limit} are allowed")

    def _pattern(self, here: _Here, expression: str, value: JsonValue) -> None:
        if isinstance(value, str) and not self._matches(expression, value):
            raise DataMisfit(f"{kind_of(value)} does not match the pattern {expression[:_SHOWN_MAX]!r}")

    # Arrays

    def _items(self, here: _Here, items: JsonValue, value: JsonValue) -> None:
        if not isinstance(value, list):
            return
        if isinstance(items, list):  # until 2019-09: a schema for each place
            self._prefix_items(here, items, value)
            return
        prefix = here.schema.get("prefixItems", ()) if here.draft is Draft.DRAFT_2020_12 else ()
        for index in range(len(prefix), len(value)):
            self._inside(here, items, value[index], index)
        here.evaluated.items.update(range(len(value)))

    def _prefix_items(self, here: _Here, schemas: list[JsonValue], value: JsonValue) -> None:
        if isinstance(value, list):
            for index, (schema, item) in enumerate(zip(schemas, value, strict=False)):
                self._inside(here, schema, item, index)
                here.evaluated.items.add(index)

    def _additional_items(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        items = here.schema.get("items")
        if isinstance(value, list) and isinstance(items, list):
            for index in range(len(items), len(value)):
                self._inside(here, schema, value[index], index)
            here.evaluated.items.update(range(len(value)))

    def _contains(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if not isinstance(value, list):
            return
        least, most = 1, None
        if here.draft.is_modern:
            least, most = here.schema.get("minContains", 1), here.schema.get("maxContains")
        found = [index for index, item in enumerate(value) if self._fits(here, schema, item) is not None]
        if here.draft is Draft.DRAFT_2020_12:
            here.evaluated.items.update(found)
        if len(found) < least:
            raise DataMisfit(f"{len(found)} items fit `contains`, and at least {least} are required")
        if most is not None and len(found) > most:
            raise DataMisfit(f"{len(found)} items fit `contains`, and at most {most} are allowed")

    def _min_items(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, list) and len(value) < limit:
            raise DataMisfit(f"the array has {len(value)} items, and at least {limit} are required")

    def _max_items(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, list) and len(value) > limit:
            raise DataMisfit(f"the array has {len(value)} items, and at most {limit} are allowed")

    def _unique_items(self, here: _Here, unique: JsonValue, value: JsonValue) -> None:
        if unique is True and isinstance(value, list):
            seen: dict[str, int] = {}
            for index, item in enumerate(value):
                first = seen.setdefault(self._key(item), index)
                if first != index:
                    raise DataMisfit(f"the items {first} and {index} are equal, and all must be different")

    # Objects

    def _properties(self, here: _Here, schemas: dict[str, JsonValue], value: JsonValue) -> None:
        if not isinstance(value, dict):
            return
        self._budget.spend(len(value) // _NAMES_PER_STEP)
        for name, member in value.items():
            if name in schemas:
                self._inside(here, schemas[name], member, name)
                here.evaluated.names.add(name)

    def _pattern_properties(self, here: _Here, schemas: dict[str, JsonValue], value: JsonValue) -> None:
        if isinstance(value, dict):
            for expression, schema in schemas.items():
                for name, member in value.items():
                    if self._matches(expression, name):
                        self._inside(here, schema, member, name)
                        here.evaluated.names.add(name)

    def _additional_properties(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if not isinstance(value, dict):
            return
        self._budget.spend(len(value) // _NAMES_PER_STEP)
        known = here.schema.get("properties", {})
        patterns = here.schema.get("patternProperties", {})
        for name, member in value.items():
            if name in known or any(self._matches(expression, name) for expression in patterns):
                continue
            if schema is False:
                raise DataMisfit(f"the schema has no property {name[:_SHOWN_MAX]!r}")
            self._inside(here, schema, member, name)
            here.evaluated.names.add(name)

    def _property_names(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if isinstance(value, dict):
            for name in value:
                try:
                    self.apply(schema, name, here.scopes, here.depth)
                except DataMisfit as error:
                    raise DataMisfit(f"the name {name[:_SHOWN_MAX]!r} is not allowed: {error}") from None

    def _required(self, here: _Here, names: list[str], value: JsonValue) -> None:
        if isinstance(value, dict):
            self._budget.spend(len(names) // _NAMES_PER_STEP)
            for name in names:
                if name not in value:
                    raise DataMisfit(f"the property {name[:_SHOWN_MAX]!r} is missing")

    def _min_properties(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, dict) and len(value) < limit:
            raise DataMisfit(f"the object has {len(value)} properties, and at least {limit} are required")

    def _max_properties(self, here: _Here, limit: JsonValue, value: JsonValue) -> None:
        if isinstance(value, dict) and len(value) > limit:
            raise DataMisfit(f"the object has {len(value)} properties, and at most {limit} are allowed")

    def _dependencies(self, here: _Here, dependencies: dict[str, JsonValue], value: JsonValue) -> None:
        if isinstance(value, dict):
            for name, needed in dependencies.items():
                if name in value and isinstance(needed, list):
                    self._required(here, needed, value)
                elif name in value:
                    self._enter(here, needed, value)

    # Combinations

    def _all_of(self, here: _Here, schemas: list[JsonValue], value: JsonValue) -> None:
        for schema in schemas:
            self._enter(here, schema, value)

    def _any_of(self, here: _Here, schemas: list[JsonValue], value: JsonValue) -> None:
        first: DataMisfit | None = None
        fits = False
        for schema in schemas:
            try:
                self._enter(here, schema, value)
            except DataMisfit as error:
                first = first or error
                continue
            fits = True
            # All that fit count for `unevaluated…`; before 2019-09 there is no such keyword.
            if not here.draft.is_modern:
                return
        if not fits:
            raise DataMisfit(f"none of the {len(schemas)} schemas of `anyOf` fits; the first one: {first}")

    def _one_of(self, here: _Here, schemas: list[JsonValue], value: JsonValue) -> None:
        first: DataMisfit | None = None
        fitting: list[int] = []
        for index, schema in enumerate(schemas):
            try:
                self._enter(here, schema, value)
                fitting.append(index)
            except DataMisfit as error:
                first = first or error
        if not fitting:
            raise DataMisfit(f"none of the {len(schemas)} schemas of `oneOf` fits; the first one: {first}")
        if len(fitting) > 1:
            raise DataMisfit(f"the schemas {fitting[0]} and {fitting[1]} of `oneOf` fit, and only one may")

    def _not(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if self._fits(here, schema, value) is not None:
            raise DataMisfit(f"{kind_of(value)} fits the schema of `not`")

    def _if(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        found = self._fits(here, schema, value)
        if found is not None:
            here.evaluated.add(found)
        branch = "else" if found is None else "then"
        if branch in here.schema:
            self._enter(here, here.schema[branch], value)

    # After all other keywords, also those inside of other schemas for the same value

    def _unevaluated_items(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if isinstance(value, list):
            self._budget.spend(len(value) // _NAMES_PER_STEP)
            for index, item in enumerate(value):
                if index not in here.evaluated.items:
                    self._inside(here, schema, item, index)
                    here.evaluated.items.add(index)

    def _unevaluated_properties(self, here: _Here, schema: JsonValue, value: JsonValue) -> None:
        if isinstance(value, dict):
            self._budget.spend(len(value) // _NAMES_PER_STEP)
            for name, member in value.items():
                if name not in here.evaluated.names:
                    self._inside(here, schema, member, name)
                    here.evaluated.names.add(name)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _decimal(value: float) -> int | Decimal:
    """Return a number of the data as exactly what its text said: the float 0.1 is the decimal 0.1."""
    return value if isinstance(value, int) else Decimal(repr(value))


def _exact(value: JsonValue) -> JsonValue:
    """Return a copy of the data with decimals instead of floats, as schemas have them."""
    if isinstance(value, float):
        return _decimal(value)
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if isinstance(value, dict):
        return {name: _exact(member) for name, member in value.items()}
    return value


def _is_integer(value: JsonValue, draft: Draft) -> bool:
    if isinstance(value, float):
        # Since draft 6 the number 1.0 is an integer.
        return draft is not Draft.DRAFT_4 and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Final[dict[str, Callable[[JsonValue, Draft], bool]]] = {
    "array": lambda value, _: isinstance(value, list),
    "boolean": lambda value, _: isinstance(value, bool),
    "integer": _is_integer,
    "null": lambda value, _: value is None,
    "number": lambda value, _: _is_number(value),
    "object": lambda value, _: isinstance(value, dict),
    "string": lambda value, _: isinstance(value, str),
}

_Keyword = Callable[[_Check, _Here, Any, JsonValue], None]

_DRAFT_4: Final[dict[str, _Keyword]] = {
    "type": _Check._type, "enum": _Check._enum, "multipleOf": _Check._multiple_of, "minimum": _Check._minimum,
    "maximum": _Check._maximum, "minLength": _Check._min_length, "maxLength": _Check._max_length,
    "pattern": _Check._pattern, "items": _Check._items, "additionalItems": _Check._additional_items,
    "minItems": _Check._min_items, "maxItems": _Check._max_items, "uniqueItems": _Check._unique_items,
    "properties": _Check._properties, "patternProperties": _Check._pattern_properties,
    "additionalProperties": _Check._additional_properties, "required": _Check._required,
    "minProperties": _Check._min_properties, "maxProperties": _Check._max_properties,
    "dependencies": _Check._dependencies, "allOf": _Check._all_of, "anyOf": _Check._any_of, "oneOf": _Check._one_of,
    "not": _Check._not, "$ref": _Check._ref,
}  # fmt: skip
_DRAFT_6: Final[dict[str, _Keyword]] = {
    **_DRAFT_4, "const": _Check._const, "contains": _Check._contains, "propertyNames": _Check._property_names,
    "exclusiveMinimum": _Check._exclusive_minimum, "exclusiveMaximum": _Check._exclusive_maximum,
}  # fmt: skip
_DRAFT_7: Final[dict[str, _Keyword]] = {**_DRAFT_6, "if": _Check._if}
_DRAFT_2019_09: Final[dict[str, _Keyword]] = {
    **{keyword: check for keyword, check in _DRAFT_7.items() if keyword != "dependencies"},
    "dependentRequired": _Check._dependencies, "dependentSchemas": _Check._dependencies,
    "$recursiveRef": _Check._recursive_ref,
}  # fmt: skip
_DRAFT_2020_12: Final[dict[str, _Keyword]] = {
    **{key: check for key, check in _DRAFT_2019_09.items() if key not in ("additionalItems", "$recursiveRef")},
    "prefixItems": _Check._prefix_items, "$dynamicRef": _Check._dynamic_ref,
}  # fmt: skip
_KEYWORDS: Final[dict[Draft, dict[str, _Keyword]]] = {
    Draft.DRAFT_4: _DRAFT_4,
    Draft.DRAFT_6: _DRAFT_6,
    Draft.DRAFT_7: _DRAFT_7,
    Draft.DRAFT_2019_09: _DRAFT_2019_09,
    Draft.DRAFT_2020_12: _DRAFT_2020_12,
}
_LAST: Final = (
    ("unevaluatedItems", _Check._unevaluated_items),
    ("unevaluatedProperties", _Check._unevaluated_properties),
)
