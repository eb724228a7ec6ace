"""Hostile JSON schemas end in an answer or in SchemaTooComplex, within the limits of work, and never in a crash."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ottla.schemas.json_schema import parse
from ottla.schemas.json_schema.comparison import Comparison
from ottla.schemas.json_schema.differences import COMPATIBLE
from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.json_schema.nodes import SchemaNodes
from ottla.schemas.json_schema.report import Side
from ottla.schemas.schema import NO_REFERENCES, Budget, SchemaTooComplex

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
MODERN = "https://json-schema.org/draft/2020-12/schema"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def compare(original: Any, update: Any) -> list[str]:
    return [found.kind for found in parse(json.dumps(update)).incompatibilities(parse(json.dumps(original)))]


def _bomb(keyword: str, draft: str, leaf: Any) -> dict[str, Any]:
    """Return a schema whose references expand to 2**60 copies of a leaf."""
    definitions: dict[str, Any] = {"d60": leaf}
    for level in range(60):
        first = {"$ref": f"#/definitions/d{level + 1}"}
        second = {"$ref": f"#/definitions/d{level + 1}", "title": "second"}
        parts: Any = {"a": first, "b": second} if keyword == "properties" else [first, second]
        definitions[f"d{level}"] = {keyword: parts}
    return {"$schema": draft, "definitions": definitions, "$ref": "#/definitions/d0"}


@pytest.mark.parametrize("draft", [DRAFT_7, MODERN], ids=["classic", "modern"])
@pytest.mark.parametrize("keyword", ["properties", "allOf", "anyOf", "oneOf"])
def test_references_that_expand_exponentially_are_compared(keyword: str, draft: str) -> None:
    assert compare(_bomb(keyword, draft, STRING), _bomb(keyword, draft, STRING)) == []
    assert compare(_bomb(keyword, draft, STRING), _bomb(keyword, draft, INTEGER)) != []


@pytest.mark.parametrize("keyword", ["not", "items", "additionalProperties", "contains", "if", "propertyNames"])
def test_deepest_schema_is_compared_without_python_recursion(keyword: str) -> None:
    def nested(leaf: Any) -> Any:
        for _ in range(200):
            leaf = {keyword: leaf}
        return leaf

    limit = sys.getrecursionlimit()
    frames = 0
    frame = sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(frames + 450)
    try:
        compare(nested(STRING), nested(INTEGER))
        assert parse(json.dumps(nested(STRING))).normalized().tags() == frozenset()
    finally:
        sys.setrecursionlimit(limit)


def _chain(length: int, leaf: Any) -> dict[str, Any]:
    definitions = {f"d{i}": {"properties": {"n": {"$ref": f"#/definitions/d{i + 1}"}}} for i in range(length)}
    return {"definitions": {**definitions, f"d{length}": leaf}, "$ref": "#/definitions/d0"}


def test_long_chain_of_references_is_compared() -> None:
    assert compare(_chain(600, STRING), _chain(600, STRING)) == []
    assert compare(_chain(600, STRING), _chain(600, INTEGER)) == ["TYPE_CHANGED"]


def test_long_chain_of_bare_references_is_followed() -> None:
    definitions: dict[str, Any] = {f"d{i}": {"$ref": f"#/definitions/d{i + 1}"} for i in range(1000)}
    schema = {"definitions": {**definitions, "d1000": STRING}, "$ref": "#/definitions/d0"}
    assert compare(schema, schema) == []


def _mutual(types: int, changed: str) -> dict[str, Any]:
    """Return definitions that all refer to each other, as unions of financial products do."""
    names = [f"T{index}" for index in range(types)]

    def union() -> dict[str, Any]:
        return {"oneOf": [{"$ref": f"#/definitions/{name}"} for name in names]}

    definitions = {
        name: {
            "type": "object",
            "properties": {"id": {"type": changed if name == "T0" else "string"}, "u": union(), "v": union()},
        }
        for name in names
    }
    return {"definitions": definitions, "properties": {"product": union()}}


def test_definitions_that_all_refer_to_each_other_are_compared() -> None:
    assert compare(_mutual(12, "string"), _mutual(12, "string")) == []
    assert compare(_mutual(8, "string"), _mutual(8, "number")) != []


def test_comparison_that_takes_too_many_steps_is_rejected() -> None:
    original = {"patternProperties": {f"^x{i}(a+)+$": {} for i in range(20)}, "additionalProperties": False}
    update = {"properties": {"a" * 50 + str(i): STRING for i in range(20)}}
    sides = []
    for schema in (original, update):
        documents = Documents(json.dumps(schema), NO_REFERENCES, Budget())
        sides.append(Side(SchemaNodes(documents), documents.patterns))
    assert Comparison(*sides, COMPATIBLE, Budget(10_000)).differences()
    with pytest.raises(SchemaTooComplex, match="more than 1,000 steps"):
        Comparison(*sides, COMPATIBLE, Budget(1000)).differences()


def test_each_part_is_compared_with_each_other_part_if_necessary() -> None:
    def parts(offset: int) -> dict[str, Any]:
        return {"oneOf": [{"properties": {"a": {"const": index + offset}}} for index in range(60)]}

    assert compare(parts(0), parts(0)) == []
    assert compare(parts(0), parts(1)) == ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]


def test_wide_schemas_are_compared() -> None:
    def wide(leaf: Any) -> dict[str, Any]:
        return {"properties": {f"p{index}": leaf for index in range(600)}}

    assert compare(wide(STRING), wide(STRING)) == []
    # Not all of them are listed.
    assert set(compare(wide(STRING), wide(INTEGER))) == {"TYPE_CHANGED"}
    assert len(compare(wide(STRING), wide(INTEGER))) == 250


def test_incompatibility_behind_many_tolerated_differences_is_found() -> None:
    original = {"properties": {f"p{index}": {**STRING, "maxLength": 1} for index in range(400)} | {"z": STRING}}
    update = {"properties": {f"p{index}": STRING for index in range(400)} | {"z": INTEGER}}
    assert compare(original, update) == ["TYPE_CHANGED"]


def test_exploding_expression_is_harmless() -> None:
    pattern = {"patternProperties": {"^(a|aa)+$": STRING, "(x+x+)+y": STRING}, "additionalProperties": False}
    named = {**pattern, "properties": {"a" * 5000 + "b": STRING, "x" * 5000: STRING}}
    assert compare(pattern, named) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {str(index): {"pattern": f"(a{{3,{index}}})"} for index in range(3, 30)}},
        {"properties": {str(index): {} for index in range(6000)}},
        {"enum": list(range(11_000))},
    ],
    ids=["expressions", "properties", "enum"],
)
def test_text_that_takes_too_many_steps_is_rejected(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooComplex, match="more than 5,000 steps"):
        Documents(json.dumps(schema), NO_REFERENCES, Budget(5000))


def test_long_enum_is_compared() -> None:
    values = [{"a": [index]} for index in range(2000)]
    assert compare({"enum": values}, {"enum": [*values, None]}) == []


def test_numbers_with_large_exponents_are_compared() -> None:
    original, update = parse('{"multipleOf":1e9999}'), parse('{"multipleOf":3e-9999}')
    assert [found.kind for found in update.incompatibilities(original)] == ["MULTIPLE_OF_CHANGED"]
    assert [found.kind for found in parse('{"maximum":1e9998}').incompatibilities(parse('{"maximum":1e9999}'))] == [
        "MAXIMUM_DECREASED"
    ]


def test_compiled_expressions_are_not_kept_with_a_schema() -> None:
    """A registry keeps parsed schemas, and a compiled expression is a thousand times larger than its text."""
    original = parse(json.dumps({"patternProperties": {"^(a{1,30}){1,30}$": STRING}, "additionalProperties": False}))
    update = parse(json.dumps({"properties": {"aaa": STRING, "b": {"pattern": "^(b{1,30}){1,30}$"}}}))
    update.incompatibilities(original)
    original.incompatibilities(update)
    for schema in (original, update):
        assert schema._documents.patterns._compiled == {}
