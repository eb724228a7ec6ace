"""Each kind of difference between two JSON schemas: when it is reported, where, and whether a reader tolerates it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.json_schema import JsonSchema, parse
from ottla.schemas.json_schema.differences import COMPATIBLE, COMPATIBLE_LENIENT, Kind

MODERN = "https://json-schema.org/draft/2020-12/schema"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
OBJECT = {"type": "object"}
ARRAY = {"type": "array"}
CLOSED = {"type": "object", "additionalProperties": False}
OPEN_A = {"type": "object", "properties": {"a": STRING}}
CLOSED_A = {**OPEN_A, "additionalProperties": False}
#: properties of the type string, and nothing else
PARTIAL = {"type": "object", "additionalProperties": STRING}
PATTERN = {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False}
PAIR = {"type": "array", "items": [STRING, INTEGER]}

Row = tuple[Kind, str, Any, Any]


def _limit(name: str, keyword: str, base: dict[str, Any]) -> list[Row]:
    """Return the four changes of a limit."""
    low, high = {**base, keyword: 2}, {**base, keyword: 5}
    path = f"#/{keyword}"
    return [
        (Kind(f"{name}_ADDED"), path, base, low),
        (Kind(f"{name}_REMOVED"), path, low, base),
        (Kind(f"{name}_INCREASED"), path, low, high),
        (Kind(f"{name}_DECREASED"), path, high, low),
    ]


def _properties(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _modern(schema: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"$schema": MODERN, **schema, **keywords}


ROWS: list[Row] = [
    (Kind.ID_CHANGED, "#/", {"$id": "http://a", **STRING}, {"$id": "http://b", **STRING}),
    (Kind.TITLE_CHANGED, "#/", {"title": "a", **STRING}, {"title": "b", **STRING}),
    (Kind.DESCRIPTION_CHANGED, "#/", STRING, {"description": "b", **STRING}),
    (Kind.DEFAULT_CHANGED, "#/", {"default": [1], **STRING}, {"default": [2], **STRING}),
    (Kind.SCHEMA_ADDED, "#/items", ARRAY, {**ARRAY, "items": STRING}),
    (Kind.SCHEMA_REMOVED, "#/items", {**ARRAY, "items": STRING}, ARRAY),
    (Kind.TYPE_EXTENDED, "#/properties/a", _properties(a=INTEGER), _properties(a=NUMBER)),
    (Kind.TYPE_NARROWED, "#/properties/a", _properties(a=NUMBER), _properties(a=INTEGER)),
    (Kind.TYPE_CHANGED, "#/properties/a/b", _properties(**{"a/b": STRING}), _properties(**{"a/b": INTEGER})),
    *_limit("MAX_LENGTH", "maxLength", STRING),
    *_limit("MIN_LENGTH", "minLength", STRING),
    (Kind.PATTERN_ADDED, "#/pattern", STRING, {**STRING, "pattern": "a"}),
    (Kind.PATTERN_REMOVED, "#/pattern", {**STRING, "pattern": "a"}, STRING),
    (Kind.PATTERN_CHANGED, "#/pattern", {**STRING, "pattern": "a"}, {**STRING, "pattern": "b"}),
    *_limit("MAXIMUM", "maximum", NUMBER),
    *_limit("MINIMUM", "minimum", NUMBER),
    *_limit("EXCLUSIVE_MAXIMUM", "exclusiveMaximum", NUMBER),
    *_limit("EXCLUSIVE_MINIMUM", "exclusiveMinimum", NUMBER),
    (Kind.MULTIPLE_OF_ADDED, "#/multipleOf", NUMBER, {**NUMBER, "multipleOf": 2}),
    (Kind.MULTIPLE_OF_REMOVED, "#/multipleOf", {**NUMBER, "multipleOf": 2}, NUMBER),
    (Kind.MULTIPLE_OF_EXPANDED, "#/multipleOf", {**NUMBER, "multipleOf": 0.5}, {**NUMBER, "multipleOf": 10}),
    (Kind.MULTIPLE_OF_REDUCED, "#/multipleOf", {**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 0.1}),
    (Kind.MULTIPLE_OF_CHANGED, "#/multipleOf", {**NUMBER, "multipleOf": 4}, {**NUMBER, "multipleOf": 6}),
    (Kind.REQUIRED_ATTRIBUTE_ADDED, "#/required/a", OPEN_A, {**OPEN_A, "required": ["a"]}),
    (Kind.REQUIRED_ATTRIBUTE_REMOVED, "#/required/a", {**OPEN_A, "required": ["a"]}, OPEN_A),
    (
        Kind.REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED,
        "#/required/a",
        OPEN_A,
        {**_properties(a={**STRING, "default": ""}), "required": ["a"]},
    ),
    *_limit("MAX_PROPERTIES", "maxProperties", OBJECT),
    *_limit("MIN_PROPERTIES", "minProperties", OBJECT),
    (Kind.ADDITIONAL_PROPERTIES_ADDED, "#/additionalProperties", CLOSED, PARTIAL),
    (Kind.ADDITIONAL_PROPERTIES_REMOVED, "#/additionalProperties", PARTIAL, CLOSED),
    (Kind.ADDITIONAL_PROPERTIES_EXTENDED, "#/additionalProperties", PARTIAL, OBJECT),
    (Kind.ADDITIONAL_PROPERTIES_NARROWED, "#/additionalProperties", OBJECT, PARTIAL),
    (Kind.TYPE_CHANGED, "#/additionalProperties", PARTIAL, {"type": "object", "additionalProperties": INTEGER}),
    (
        Kind.UNEVALUATED_PROPERTIES_ADDED,
        "#/unevaluatedProperties",
        _modern(OBJECT, unevaluatedProperties=False),
        _modern(OBJECT, unevaluatedProperties=STRING),
    ),
    (
        Kind.UNEVALUATED_PROPERTIES_REMOVED,
        "#/unevaluatedProperties",
        _modern(OBJECT),
        _modern(OBJECT, unevaluatedProperties=False),
    ),
    (
        Kind.UNEVALUATED_PROPERTIES_EXTENDED,
        "#/unevaluatedProperties",
        _modern(OBJECT, unevaluatedProperties=STRING),
        _modern(OBJECT, unevaluatedProperties=True),
    ),
    (
        Kind.UNEVALUATED_PROPERTIES_NARROWED,
        "#/unevaluatedProperties",
        _modern(OBJECT, unevaluatedProperties=True),
        _modern(OBJECT, unevaluatedProperties=STRING),
    ),
    (Kind.DEPENDENCY_ARRAY_ADDED, "#/dependencies/a", OBJECT, {**OBJECT, "dependencies": {"a": ["b"]}}),
    (Kind.DEPENDENCY_ARRAY_REMOVED, "#/dependencies/a", {**OBJECT, "dependencies": {"a": ["b"]}}, OBJECT),
    *(
        (kind, "#/dependencies/a", {**OBJECT, "dependencies": {"a": before}}, {**OBJECT, "dependencies": {"a": after}})
        for kind, before, after in (
            (Kind.DEPENDENCY_ARRAY_EXTENDED, ["b"], ["c", "b"]),
            (Kind.DEPENDENCY_ARRAY_NARROWED, ["b", "c"], ["c"]),
            (Kind.DEPENDENCY_ARRAY_CHANGED, ["b", "c"], ["c", "d"]),
            (Kind.DEPENDENCY_SCHEMA_ADDED, ["b"], {"minProperties": 2}),
            (Kind.DEPENDENCY_SCHEMA_REMOVED, {"minProperties": 2}, ["b"]),
        )
    ),
    (
        Kind.MIN_PROPERTIES_INCREASED,
        "#/dependencies/a/minProperties",
        _modern(OBJECT, dependentSchemas={"a": {"minProperties": 2}}),
        _modern(OBJECT, dependentSchemas={"a": {"minProperties": 3}}),
    ),
    (
        Kind.DEPENDENCY_ARRAY_ADDED,
        "#/dependencies/a",
        _modern(OBJECT),
        _modern(OBJECT, dependentRequired={"a": ["b"]}),
    ),
    (Kind.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL, "#/properties/a", OBJECT, OPEN_A),
    (
        Kind.REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL,
        "#/properties/a",
        OBJECT,
        {**OPEN_A, "required": ["a"]},
    ),
    (
        Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL,
        "#/properties/a",
        OBJECT,
        {**_properties(a={**STRING, "default": ""}), "required": ["a"]},
    ),
    (
        Kind.PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL,
        "#/properties/a",
        OBJECT,
        _properties(a={}),
    ),
    (Kind.OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL, "#/properties/a", CLOSED, CLOSED_A),
    (
        Kind.REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL,
        "#/properties/a",
        CLOSED,
        {**CLOSED_A, "required": ["a"]},
    ),
    (
        Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL,
        "#/properties/a",
        CLOSED,
        {**CLOSED, **_properties(a={**STRING, "default": ""}), "required": ["a"]},
    ),
    (Kind.PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL, "#/properties/a", OPEN_A, OBJECT),
    (Kind.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL, "#/properties/a", CLOSED_A, CLOSED),
    (
        Kind.PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        "#/properties/a",
        {**CLOSED, "properties": {"a": False}},
        CLOSED,
    ),
    (
        Kind.PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        "#/properties/s_a",
        {**PATTERN, "properties": {"s_a": {**STRING, "maxLength": 5}}},
        PATTERN,
    ),
    (
        Kind.PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        "#/properties/a",
        {**PARTIAL, "properties": {"a": INTEGER}},
        PARTIAL,
    ),
    (
        Kind.PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        "#/properties/a",
        PARTIAL,
        {**PARTIAL, "properties": {"a": STRING}},
    ),
    (
        Kind.PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        "#/properties/s_a",
        PATTERN,
        {**PATTERN, "properties": {"s_a": INTEGER}},
    ),
    (
        Kind.PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        "#/properties/a",
        _modern(OBJECT, unevaluatedProperties=STRING),
        _modern(OPEN_A, unevaluatedProperties=STRING),
    ),
    *_limit("MAX_ITEMS", "maxItems", ARRAY),
    *_limit("MIN_ITEMS", "minItems", ARRAY),
    *(
        (Kind(f"{name}_CONTAINS_{change}"), path, _modern(ARRAY, **before), _modern(ARRAY, **after))
        for name, keyword in (("MAX", "maxContains"), ("MIN", "minContains"))
        for path in (f"#/{keyword}",)
        for change, before, after in (
            ("ADDED", {}, {"contains": STRING, keyword: 3}),
            ("REMOVED", {"contains": STRING, keyword: 3}, {}),
            ("INCREASED", {"contains": STRING, keyword: 3}, {"contains": STRING, keyword: 4}),
            ("DECREASED", {"contains": STRING, keyword: 3}, {"contains": STRING, keyword: 2}),
        )
    ),
    (Kind.UNIQUE_ITEMS_ADDED, "#/uniqueItems", ARRAY, {**ARRAY, "uniqueItems": True}),
    (Kind.UNIQUE_ITEMS_REMOVED, "#/uniqueItems", {**ARRAY, "uniqueItems": True}, {**ARRAY, "uniqueItems": False}),
    (Kind.ADDITIONAL_ITEMS_ADDED, "#/additionalItems", {**PAIR, "additionalItems": False}, PAIR),
    (Kind.ADDITIONAL_ITEMS_REMOVED, "#/additionalItems", PAIR, {**PAIR, "additionalItems": False}),
    (Kind.ADDITIONAL_ITEMS_EXTENDED, "#/additionalItems", {**PAIR, "additionalItems": STRING}, PAIR),
    (Kind.ADDITIONAL_ITEMS_NARROWED, "#/additionalItems", PAIR, {**PAIR, "additionalItems": STRING}),
    (
        Kind.ADDITIONAL_ITEMS_REMOVED,
        "#/additionalItems",
        _modern(ARRAY, prefixItems=[STRING]),
        _modern(ARRAY, prefixItems=[STRING], items=False),
    ),
    (
        Kind.UNEVALUATED_ITEMS_ADDED,
        "#/unevaluatedItems",
        _modern(ARRAY, unevaluatedItems=False),
        _modern(ARRAY),
    ),
    (
        Kind.UNEVALUATED_ITEMS_REMOVED,
        "#/unevaluatedItems",
        _modern(ARRAY, unevaluatedItems=STRING),
        _modern(ARRAY, unevaluatedItems=False),
    ),
    (
        Kind.UNEVALUATED_ITEMS_EXTENDED,
        "#/unevaluatedItems",
        _modern(ARRAY, unevaluatedItems=STRING),
        _modern(ARRAY),
    ),
    (
        Kind.UNEVALUATED_ITEMS_NARROWED,
        "#/unevaluatedItems",
        _modern(ARRAY),
        _modern(ARRAY, unevaluatedItems=STRING),
    ),
    (Kind.ITEM_ADDED_TO_OPEN_CONTENT_MODEL, "#/items/1", {**ARRAY, "items": [STRING]}, PAIR),
    (
        Kind.ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL,
        "#/items/1",
        {**ARRAY, "items": [STRING]},
        {**ARRAY, "items": [STRING, True]},
    ),
    (
        Kind.ITEM_ADDED_TO_CLOSED_CONTENT_MODEL,
        "#/items/1",
        {**ARRAY, "items": [STRING], "additionalItems": False},
        {**PAIR, "additionalItems": False},
    ),
    (Kind.ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL, "#/items/1", PAIR, {**ARRAY, "items": [STRING]}),
    (
        Kind.ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        "#/items/1",
        {**PAIR, "additionalItems": False},
        {**ARRAY, "items": [STRING], "additionalItems": False},
    ),
    (
        Kind.ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        "#/items/1",
        {**ARRAY, "items": [STRING, False], "additionalItems": False},
        {**ARRAY, "items": [STRING], "additionalItems": False},
    ),
    *(
        (
            Kind(f"ITEM_REMOVED_{result}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"),
            "#/items/1",
            {**PAIR, "additionalItems": schema},
            {**ARRAY, "items": [STRING], "additionalItems": schema},
        )
        for result, schema in (("IS", NUMBER), ("NOT", STRING))
    ),
    *(
        (
            Kind(f"ITEM_ADDED_{result}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"),
            "#/items/1",
            {**ARRAY, "items": [STRING], "additionalItems": schema},
            {**PAIR, "additionalItems": schema},
        )
        for result, schema in (("IS", INTEGER), ("NOT", NUMBER))
    ),
    (Kind.ENUM_ARRAY_EXTENDED, "#/enum", {"enum": [1, "a"]}, {"enum": ["a", 1.0, None]}),
    (Kind.ENUM_ARRAY_NARROWED, "#/enum", {"enum": [1, "a"]}, {"enum": ["a"]}),
    (Kind.ENUM_ARRAY_CHANGED, "#/enum", {"enum": [1, 2]}, {"enum": [2, 3]}),
    (Kind.ENUM_ARRAY_CHANGED, "#/const", {"const": {"a": 1}}, {"const": {"a": 2}}),
    (Kind.COMBINED_TYPE_EXTENDED, "#/", {"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
    (Kind.COMBINED_TYPE_CHANGED, "#/", {"anyOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER]}),
    (Kind.PRODUCT_TYPE_EXTENDED, "#/", {"allOf": [STRING]}, {"allOf": [STRING, {"not": INTEGER}]}),
    (Kind.PRODUCT_TYPE_NARROWED, "#/", {"allOf": [STRING, {"not": INTEGER}]}, {"allOf": [STRING]}),
    (Kind.SUM_TYPE_EXTENDED, "#/", {"oneOf": [STRING]}, {"oneOf": [INTEGER, STRING]}),
    (Kind.SUM_TYPE_NARROWED, "#/", {"oneOf": [INTEGER, STRING]}, {"oneOf": [STRING]}),
    (
        Kind.COMBINED_TYPE_SUBSCHEMAS_CHANGED,
        "#/",
        {"anyOf": [STRING, INTEGER]},
        {"anyOf": [{"type": "boolean"}, INTEGER]},
    ),
    (
        Kind.MAX_LENGTH_REMOVED,
        "#/anyOf/1/maxLength",
        {"anyOf": [INTEGER, {**STRING, "maxLength": 1}]},
        {"anyOf": [STRING, INTEGER]},
    ),
    (Kind.NOT_TYPE_EXTENDED, "#/not", {"not": {**STRING, "maxLength": 5}}, {"not": STRING}),
    (Kind.NOT_TYPE_NARROWED, "#/not", {"not": STRING}, {"not": {**STRING, "maxLength": 5}}),
]


def differences(original: Any, update: Any) -> list[str]:
    found = parse(json.dumps(update)).differences(parse(json.dumps(original)))
    return [f"{difference.kind} {difference.place}" for difference in found]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_difference_is_reported_with_its_kind_and_place(row: Row) -> None:
    kind, place, original, update = row
    assert f"{kind} {place}" in differences(original, update)
    reasons = [found.kind for found in parse(json.dumps(update)).incompatibilities(parse(json.dumps(original)))]
    assert (kind in reasons) == (kind not in COMPATIBLE)


def test_every_kind_has_an_example() -> None:
    assert set(Kind) - {row[0] for row in ROWS} == set()


def test_unchanged_part_of_each_example_reports_nothing() -> None:
    for _, _, original, update in ROWS:
        for schema in (original, update):
            reported = differences(schema, schema)
            # A negation is compared in both directions and always reported.
            assert [each for each in reported if not each.startswith("NOT_TYPE_NARROWED")] == []


def compatible(original: Any, update: Any, **options: bool) -> bool:
    return not parse(json.dumps(update)).incompatibilities(parse(json.dumps(original)), **options)


@pytest.mark.parametrize(
    ("original", "update", "is_compatible"),
    [
        (STRING, {}, True),
        (STRING, True, True),
        ({}, STRING, False),
        ({}, True, True),
        (True, {}, True),
        (False, STRING, True),
        (STRING, False, False),
        # one kind against a combination
        (STRING, {"type": ["string", "null"]}, True),
        ({"type": ["string", "null"]}, STRING, False),
        (STRING, {"type": ["string"]}, True),
        ({"type": ["string"]}, STRING, True),
        ({"type": ["string", "null"]}, {"type": ["null", "string", "integer"]}, True),
        ({"type": ["string", "null"], "maxLength": 3}, {"type": ["null", "string"]}, True),
        (STRING, {"oneOf": [INTEGER, STRING]}, True),
        (STRING, {"allOf": [STRING, {"maxLength": 3}]}, False),
        ({"allOf": [STRING, {"maxLength": 3}]}, STRING, True),
        ({"anyOf": [STRING, INTEGER]}, STRING, False),
        ({"allOf": [STRING, {"minLength": 2}]}, {"anyOf": [STRING, {"minLength": 2}]}, True),
        # several kinds beside each other are an allOf
        (STRING, {**STRING, "enum": ["a"]}, False),
        ({**STRING, "enum": ["a"]}, STRING, True),
        ({**STRING, "enum": ["a"]}, {"enum": ["a", "b"], **STRING}, True),
        ({**INTEGER, "format": "int32"}, INTEGER, True),
        # two parts of the writer cannot share one partner
        ({"oneOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": 1}, {"const": 3}]}, False),
        (
            {"oneOf": [{**STRING, "maxLength": 1}, {**STRING, "maxLength": 5}]},
            {"oneOf": [{**STRING, "maxLength": 5}, {**STRING, "maxLength": 1}]},
            True,
        ),
        (
            {"oneOf": [{**STRING, "maxLength": 5}, {**STRING, "maxLength": 6}]},
            {"oneOf": [{**STRING, "maxLength": 5}, {**STRING, "maxLength": 5, "title": "t"}]},
            False,
        ),
        # Kafka Connect's decimals
        ({**STRING, "connect.type": "bytes"}, {**NUMBER, "connect.type": "bytes"}, True),
        ({**STRING, "connect.type": "int8"}, {**NUMBER, "connect.type": "bytes"}, False),
        # numbers are compared exactly
        ({**NUMBER, "maximum": 9007199254740993}, {**NUMBER, "maximum": 9007199254740992}, False),
        ({**NUMBER, "maximum": 5}, {**NUMBER, "maximum": 5.0}, True),
        ({**NUMBER, "multipleOf": 0.5}, {**NUMBER, "multipleOf": 0.50}, True),
        ({"const": None}, {"const": None}, True),
        ({"const": 1}, {"const": 1.0}, True),
    ],
)
def test_verdict(original: Any, update: Any, is_compatible: bool) -> None:
    assert compatible(original, update) == is_compatible


@pytest.mark.parametrize(
    ("original", "update", "is_compatible"),
    [
        # each keyword stands for itself, also beside a reference
        (
            _modern({"$ref": "#/$defs/s", "$defs": {"s": STRING}}),
            _modern({"$ref": "#/$defs/s", "$defs": {"s": STRING}, "maxLength": 3}),
            False,
        ),
        (
            _modern({"type": ["string", "null"], "maxLength": 5}),
            _modern({"maxLength": 4, "type": ["string", "null"]}),
            False,
        ),
        # a part of oneOf with two kinds is one alternative
        (
            _modern({"oneOf": [STRING, {"type": "null"}]}),
            _modern({"oneOf": [{**STRING, "enum": ["a"]}, {"type": "null"}]}),
            False,
        ),
        # unknown keywords hide nothing
        (
            _modern(OBJECT, **{"x-own": 1}),
            _modern(OBJECT, **{"x-own": 1, "unevaluatedProperties": False}),
            False,
        ),
        (_modern(ARRAY, items=STRING), _modern(ARRAY, items=True), True),
        (_modern(ARRAY, items=False), _modern(ARRAY, items=STRING), False),
        (
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [STRING], "additionalItems": False},
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": [STRING, STRING]},
            True,
        ),
    ],
)
def test_verdict_in_modern_drafts(original: Any, update: Any, is_compatible: bool) -> None:
    assert compatible(original, update) == is_compatible


@pytest.mark.parametrize(
    ("original", "update"),
    [
        (OBJECT, OPEN_A),
        (CLOSED_A, CLOSED),
        (OBJECT, CLOSED),
        (OBJECT, PARTIAL),
        (OBJECT, {**_properties(a={**STRING, "default": ""}), "required": ["a"]}),
        (PARTIAL, {**PARTIAL, "properties": {"b": STRING}}),
    ],
)
def test_lenient_policy_lets_properties_be_added_and_removed(original: Any, update: Any) -> None:
    assert compatible(original, update, lenient=True)
    assert COMPATIBLE < COMPATIBLE_LENIENT


def test_lenient_policy_does_not_allow_required_properties_or_other_types() -> None:
    assert not compatible(OBJECT, {**OPEN_A, "required": ["a"]}, lenient=True)
    assert not compatible(OPEN_A, _properties(a=INTEGER), lenient=True)


def test_incompatibility_names_kind_place_and_both_fragments() -> None:
    original = _properties(a={**STRING, "maxLength": 5})
    update = _properties(a={**STRING, "maxLength": 3})
    (found,) = parse(json.dumps(update)).incompatibilities(parse(json.dumps(original)))
    assert (found.kind, found.path) == ("MAX_LENGTH_DECREASED", "#/properties/a/maxLength")
    assert (found.writer_fragment, found.reader_fragment) == ("5", "3")
    assert "smaller value" in found.description


def test_long_fragment_is_cut() -> None:
    (found,) = parse('{"type":"null"}').incompatibilities(parse(json.dumps({"enum": ["x" * 5000]})))
    assert len(found.writer_fragment) == 1001
    assert found.reader_fragment == '{"type":"null"}'


def _recursive(name: str, leaf: Any) -> dict[str, Any]:
    return {
        "definitions": {name: _properties(value=leaf, next={"$ref": f"#/definitions/{name}"})},
        "$ref": f"#/definitions/{name}",
    }


def test_recursive_schemas_are_compared() -> None:
    assert differences(_recursive("a", STRING), _recursive("b", STRING)) == []
    # The second pass knows that the pair is incompatible, and reports it also where the recursion comes back to it.
    assert differences(_recursive("a", STRING), _recursive("a", INTEGER)) == [
        "TYPE_CHANGED #/properties/value",
        "TYPE_CHANGED #/properties/next/properties/value",
    ]


def test_incompatibility_behind_a_cycle_is_found_from_every_side() -> None:
    """A first pass takes the pair (A, A) for compatible while it is under way, and B is compared with that result."""

    def schema(first: str, second: str) -> dict[str, Any]:
        def node(type_name: str, target: str) -> dict[str, Any]:
            return _properties(id={"type": type_name}, next={"oneOf": [{"$ref": f"#/definitions/{target}"}]})

        definitions = {"A": node(first, "C"), "B": node(second, "C"), "C": node("integer", "A")}
        parts = [{"$ref": "#/definitions/A"}, {"$ref": "#/definitions/B"}]
        return {"definitions": definitions, **_properties(root={"oneOf": parts})}

    assert not compatible(schema("integer", "boolean"), schema("boolean", "number"))
    assert compatible(schema("integer", "boolean"), schema("integer", "boolean"))


def test_chain_of_references_is_followed_to_its_end() -> None:
    def schema(leaf: Any) -> dict[str, Any]:
        return {"definitions": {"a": {"$ref": "#/definitions/b"}, "b": leaf}, "$ref": "#/definitions/a"}

    assert compatible(schema(STRING), schema(STRING))
    assert not compatible(schema(STRING), schema(INTEGER))


def test_pattern_that_cannot_be_decided_counts_as_not_covered() -> None:
    partial = {"type": "object", "patternProperties": {"(?=a)a": STRING}, "additionalProperties": False}
    with_property = {**partial, "properties": {"a": STRING}}
    assert differences(partial, with_property)[0].startswith("PROPERTY_ADDED_NOT_COVERED")
    assert differences(with_property, partial)[0].startswith("PROPERTY_REMOVED_NOT_COVERED")


def test_schema_of_another_type_is_incompatible() -> None:
    class Other:
        schema_type = "AVRO"

    (found,) = parse("{}").incompatibilities(Other())  # type: ignore[arg-type]
    assert "AVRO" in found.description
    assert isinstance(parse("{}"), JsonSchema)
