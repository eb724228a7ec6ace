"""What the verdicts about JSON schemas promise: a slice of the campaign `schemas`; and where that is not kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from json_schema_samples import Tally, check_pair
from jsonschema import validators

from ottla.schemas.json_schema import parse

MODERN = "https://json-schema.org/draft/2020-12/schema"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


@pytest.mark.parametrize("first", [0, 40])
def test_documents_of_the_writer_are_valid_for_a_compatible_reader(first: int) -> None:
    tally = Tally()
    for seed in range(first, first + 40):
        check_pair(seed, tally)
    assert tally.pairs == 40
    assert tally.compatible > 5
    assert tally.documents > 50


@pytest.mark.parametrize(
    ("writer", "reader", "document"),
    [
        # the table "Compatible, although the reader may reject documents" in docs/reference/schema-compatibility.md
        ({"if": True, "then": True}, {"if": True, "then": STRING}, 1),
        ({"propertyNames": True}, {"propertyNames": {"maxLength": 1}}, {"ab": 1}),
        ({"contains": True}, {"contains": STRING}, [1]),
        ({"type": "string"}, {"type": "string", "format": "x"}, None),
        ({"minLength": 1}, {"type": "string", "minLength": 1}, 5),
        ({"patternProperties": {"a": STRING}}, {"patternProperties": {"a": INTEGER}}, {"a": "x"}),
        (
            {"type": "object", "patternProperties": {"^x": STRING}},
            {"type": "object", "patternProperties": {"^x": STRING}, "properties": {"a": STRING}},
            {"a": 1},
        ),
        ({"type": "object"}, {"type": "object", "required": ["a"]}, {}),
        (
            {"type": "object", "properties": {"a": STRING}},
            {"type": "object", "properties": {"a": {**STRING, "default": ""}}, "required": ["a"]},
            {},
        ),
        ({"oneOf": [STRING]}, {"oneOf": [STRING, {"minLength": 1}]}, "a"),
        ({"oneOf": [STRING]}, {"oneOf": [STRING, STRING]}, "a"),
        ({"additionalItems": False}, {"additionalItems": False, "items": [STRING]}, [1]),
        (
            {"$schema": DRAFT_4, "maximum": 5},
            {"$schema": DRAFT_4, "maximum": 5, "exclusiveMaximum": True},
            5,
        ),
        (
            {"$schema": MODERN, "items": STRING, "unevaluatedItems": False},
            {"$schema": MODERN, "unevaluatedItems": False},
            ["a"],
        ),
        (
            {
                "$schema": MODERN,
                "allOf": [{"properties": {"b": True}}],
                "properties": {},
                "unevaluatedProperties": False,
            },
            {
                "$schema": MODERN,
                "allOf": [{"properties": {"b": True}}],
                "properties": {"b": STRING},
                "unevaluatedProperties": False,
            },
            {"b": 1},
        ),
        (
            {"$schema": MODERN, "dependencies": {}},
            {"$schema": MODERN, "dependencies": {"a": ["b"]}},
            None,
        ),
    ],
)
def test_known_changes_are_compatible_although_a_document_becomes_invalid(
    writer: dict[str, Any], reader: dict[str, Any], document: Any
) -> None:
    """None as the document: validators do not check the keyword either."""
    assert parse(json.dumps(reader)).incompatibilities(parse(json.dumps(writer))) == []
    if document is not None:
        validator = validators.validator_for(
            writer, default=validators.validator_for({"$schema": "http://json-schema.org/draft-07/schema#"})
        )
        assert validator(writer).is_valid(document)
        assert not validator(reader).is_valid(document)
