"""A schema must be valid in its draft. The package jsonschema, which runs the meta-schemas, is the reference."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import validators
from jsonschema.exceptions import SchemaError

from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.json_schema.drafts import SHAPES, Draft, draft_of
from ottla.schemas.schema import NO_REFERENCES, Budget, InvalidSchema, SchemaTooComplex

ADDRESSES = {
    Draft.DRAFT_4: "http://json-schema.org/draft-04/schema#",
    Draft.DRAFT_6: "http://json-schema.org/draft-06/schema#",
    Draft.DRAFT_7: "http://json-schema.org/draft-07/schema#",
    Draft.DRAFT_2019_09: "https://json-schema.org/draft/2019-09/schema",
    Draft.DRAFT_2020_12: "https://json-schema.org/draft/2020-12/schema",
}


def check(schema: object) -> None:
    Documents(json.dumps(schema), NO_REFERENCES, Budget())


@pytest.mark.parametrize(
    ("address", "draft"),
    [
        *((address, draft) for draft, address in ADDRESSES.items()),
        ("https://json-schema.org/draft-04/schema", Draft.DRAFT_4),
        ("http://json-schema.org/schema#", Draft.DRAFT_4),
        ("http://json-schema.org/draft/2020-12/schema#", Draft.DRAFT_2020_12),
        ("http://example.com/own", Draft.DRAFT_7),
        (5, Draft.DRAFT_7),
        (None, Draft.DRAFT_7),
    ],
)
def test_draft_is_the_one_of_the_address_or_draft_7(address: object, draft: Draft) -> None:
    assert draft_of({"$schema": address} if address is not None else {}) is draft


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "text"}, "/type: "),
        ({"type": []}, "/type: "),
        ({"properties": {"a/b": {"minLength": -1}}}, "/properties/a~1b/minLength: "),
        ({"properties": {"a": 5}}, "/properties/a: a schema must be an object or a boolean, not a number"),
        ({"properties": []}, "/properties: "),
        ({"items": [{}, {"maximum": "1"}]}, "/items/1/maximum: "),
        ({"allOf": []}, "/allOf: "),
        ({"required": "a"}, "/required: "),
        ({"required": ["a", "a"]}, "/required: "),
        ({"multipleOf": 0}, "/multipleOf: "),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum: "),
        ({"dependencies": {"a": [1]}}, "/dependencies/a: "),
        (
            {"definitions": {"x": {"not": None}}},
            "/definitions/x/not: a schema must be an object or a boolean, not null",
        ),
        ({"pattern": "a("}, "/pattern: is not a regular expression"),
        ({"patternProperties": {"[": {}}}, "/patternProperties/[: is not a regular expression"),
        ({"$ref": 5}, "/$ref: "),
        ({"$schema": ADDRESSES[Draft.DRAFT_4], "not": True}, "/not: a schema must be an object, not a boolean"),
        ({"$schema": ADDRESSES[Draft.DRAFT_4], "exclusiveMaximum": True}, "/exclusiveMaximum: "),
        ({"$schema": ADDRESSES[Draft.DRAFT_4], "enum": [1, 1.0]}, "/enum: "),
        ({"$schema": ADDRESSES[Draft.DRAFT_2020_12], "items": [{}]}, "/items: "),
        ({"$schema": ADDRESSES[Draft.DRAFT_2020_12], "$anchor": "1"}, "/\\$anchor: "),
        ({"$schema": ADDRESSES[Draft.DRAFT_2020_12], "$defs": {"a": {"$id": "x#y"}}}, "/$defs/a/$id: "),
        ([], "must be an object or a boolean"),
        ("x", "must be an object or a boolean"),
        (None, "must be an object or a boolean"),
    ],
)
def test_invalid_schema_is_rejected_with_the_place(schema: object, place: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        check(schema)
    assert place.replace("\\", "") in str(caught.value)


@pytest.mark.parametrize("expression", ["^(a+)+$", "(?=a)b", r"(a)\1", r"\p{L}+", "a++", "x{1,5000}", r"(\pL{30}){30}"])
def test_expressions_of_other_dialects_are_accepted(expression: str) -> None:
    check({"pattern": expression, "patternProperties": {expression: {}}})


@pytest.mark.parametrize("draft", list(Draft))
def test_booleans_are_schemas_since_draft_6(draft: Draft) -> None:
    schema = {"$schema": ADDRESSES[draft], "properties": {"a": True}}
    if draft is Draft.DRAFT_4:
        with pytest.raises(InvalidSchema):
            check(schema)
    else:
        check(schema)
        check(True)


def test_deep_schema_is_rejected() -> None:
    schema: dict[str, Any] = {}
    for _ in range(250):
        schema = {"not": schema}
    with pytest.raises(SchemaTooComplex, match="more than 200 levels"):
        check(schema)


#: all keywords of all drafts but those that name schemas: random names would name nothing
_KEYWORDS = sorted(
    {keyword for shapes in SHAPES.values() for keyword in shapes}.union(("const", "default", "unknown"))
    - {"$schema", "$id", "id", "$ref", "$dynamicRef", "$recursiveRef"}
)


def _value(random: random.Random, depth: int) -> Any:
    """Return a value that is right for some keywords and wrong for others."""
    choices: list[Any] = [0, 1, -1, 1.5, 2.0, True, False, None, "", "string", "a", [], {}, [1, 1], ["a"], ["a", "a"]]
    choices += [["string", "null"], ["string", 5], {"a": ["b"]}, {"a": True}, {"a": 5}]
    pick = random.random()
    if depth and pick < 0.35:
        return _schema(random, depth - 1)
    if depth and pick < 0.5:
        return [_schema(random, depth - 1) for _ in range(random.randrange(1, 3))]
    if depth and pick < 0.65:
        return {name: _schema(random, depth - 1) for name in random.sample("abc", 2)}
    return random.choice(choices)


def _schema(random: random.Random, depth: int) -> Any:
    if random.random() < 0.05:
        return random.choice([True, False, 5, "x"])
    return _keywords(random, depth)


def _keywords(random: random.Random, depth: int) -> dict[str, Any]:
    return {keyword: _value(random, depth) for keyword in random.sample(_KEYWORDS, random.randrange(0, 3))}


@pytest.mark.parametrize("draft", list(Draft))
def test_verdicts_are_those_of_the_meta_schemas(draft: Draft) -> None:
    """Both agree on schemas with random values for random keywords; about a third of them is valid."""
    source = random.Random(draft.value)
    reference = validators.validator_for({"$schema": ADDRESSES[draft]})
    valid = 0
    for number in range(150):
        schema = {"$schema": ADDRESSES[draft], **_keywords(source, 2)}
        expected = _is_valid(reference, schema)
        try:
            check(schema)
            is_valid = True
        except InvalidSchema as error:
            is_valid = False
            reason = str(error)
        assert is_valid == expected, (number, schema, None if is_valid else reason)
        valid += is_valid
    assert 20 < valid < 120


def _is_valid(reference: Any, schema: dict[str, Any]) -> bool:
    try:
        reference.check_schema(schema)
    except SchemaError:
        return False
    return True
