"""JSON data: the verdicts of the package jsonschema in all drafts, references, clear errors, limits of work."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from json_schema_samples import DRAFTS
from jsonschema import validators

from ottla.schemas.data.codec import Codec, codec_for
from ottla.schemas.data.misfit import DataMisfit
from ottla.schemas.schema import InvalidSchema

NEWEST = DRAFTS[-1]
_NAMES = ("a", "b", "c", "ab")
_SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, 2, -1, 1.0, 2.5, 0.1, 1e3, "", "a", "ab", "bb", "äöü", "1")


def json_schema(schema: Any, references: dict[str, str] | None = None) -> Codec:
    return codec_for("JSON", json.dumps(schema), references or {})


def is_valid(codec: Codec, value: Any) -> bool:
    try:
        codec.encode(value)
    except DataMisfit:
        return False
    return True


class Schemas:
    """Random schemas with all keywords of a draft."""

    def __init__(self, source: random.Random, draft: str) -> None:
        self._random = source
        self._draft = DRAFTS.index(draft)
        #: definitions have no references, which could lead back to them for ever
        self._has_references = False

    def root(self) -> Any:
        definitions = {"one": self.schema(1), "two": self.schema(1)}
        self._has_references = True
        schema = self.schema(3)
        if isinstance(schema, bool):
            return schema
        return {"$schema": DRAFTS[self._draft], "$defs" if self._draft >= 3 else "definitions": definitions, **schema}

    def schema(self, depth: int) -> Any:
        if self._draft > 0 and self._random.random() < 0.08:
            return self._random.random() < 0.7
        makers = self._makers(depth)
        schema: dict[str, Any] = {}
        for keyword in self._random.sample(sorted(makers), self._random.choice((1, 1, 2, 3))):
            schema.update(makers[keyword]())
        # In 2019-09 jsonschema lets `contains` evaluate items, and forgets what `additionalProperties` evaluates.
        if self._draft == 4 and depth and self._random.random() < 0.2:
            schema[self._random.choice(("unevaluatedProperties", "unevaluatedItems"))] = self.schema(0)
        return schema

    def _makers(self, depth: int) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return functions that make one keyword, or keywords that belong together."""
        pick, source = self._random.choice, self._random
        numbers: tuple[Any, ...] = (0, 1, 2, 0.5, 2.5)
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "type": lambda: {"type": pick(("string", "integer", "number", "object", "array", "boolean", "null"))},
            "types": lambda: {"type": source.sample(("string", "integer", "object", "array", "null"), 2)},
            "enum": lambda: {"enum": pick(([1, "a"], [True, None], [[1], {"a": 1.0}], [0, False, "ab"]))},
            "limits": lambda: self._limits(pick(numbers)),
            "multipleOf": lambda: {"multipleOf": pick((1, 2, 0.1, 0.5))},
            "length": lambda: {pick(("minLength", "maxLength")): pick((0, 1, 2, 3))},
            "pattern": lambda: {"pattern": pick(("a", "^a", "b$", "^[ab]{2}$", r"\d"))},
            "sizes": lambda: {pick(("minItems", "maxItems", "minProperties", "maxProperties")): pick((0, 1, 2))},
            "unique": lambda: {"uniqueItems": True},
            "required": lambda: {"required": source.sample(_NAMES, pick((1, 2)))},
        }
        if depth:
            inner = depth - 1
            makers |= {
                "properties": lambda: {"properties": {name: self.schema(inner) for name in source.sample(_NAMES, 2)}},
                "patterns": lambda: {"patternProperties": {pick(("^a", "b", "c")): self.schema(inner)}},
                "additional": lambda: {"additionalProperties": self.schema(inner)},
                "items": lambda: self._items(inner),
                "combined": lambda: {
                    pick(("allOf", "anyOf", "oneOf")): [self.schema(inner) for _ in range(pick((1, 2, 3)))]
                },
                "not": lambda: {"not": self.schema(inner)},
                "dependencies": lambda: self._dependencies(inner),
            }
            if self._has_references:
                group = "$defs" if self._draft >= 3 else "definitions"
                makers["ref"] = lambda: {"$ref": f"#/{group}/{pick(('one', 'two'))}"}
            if self._draft >= 1:
                makers |= {
                    "const": lambda: {"const": pick((1, "a", None, [1], True, {"a": 1}))},
                    "contains": lambda: self._contains(inner),
                    "names": lambda: {"propertyNames": self.schema(0)},
                }
            if self._draft >= 2:
                makers["if"] = lambda: {
                    word: self.schema(inner) for word in ("if", *source.sample(("then", "else"), pick((1, 2))))
                }
        return makers

    def _limits(self, limit: Any) -> dict[str, Any]:
        side = self._random.choice(("inimum", "aximum"))
        first = side.replace("inimum", "minimum").replace("aximum", "maximum")
        exclusive = f"exclusive{first.capitalize()}"
        if self._draft == 0:
            return {first: limit, exclusive: self._random.random() < 0.5}
        return {self._random.choice((first, exclusive)): limit}

    def _items(self, depth: int) -> dict[str, Any]:
        if self._random.random() < 0.5:
            return {"items": self.schema(depth)}
        several = [self.schema(depth), self.schema(depth)]
        if self._draft == 4:
            return {"prefixItems": several, "items": self.schema(depth)}
        return {"items": several, "additionalItems": self.schema(depth)}

    def _contains(self, depth: int) -> dict[str, Any]:
        found = {"contains": self.schema(depth)}
        if self._draft >= 3:
            found[self._random.choice(("minContains", "maxContains"))] = self._random.choice((0, 1, 2))
        return found

    def _dependencies(self, depth: int) -> dict[str, Any]:
        if self._draft >= 3:
            if self._random.random() < 0.5:
                return {"dependentRequired": {"a": ["b"]}}
            return {"dependentSchemas": {"a": self.schema(depth)}}
        return {"dependencies": {"a": self._random.choice((["b"], self.schema(depth)))}}

    def value(self, depth: int) -> Any:
        kind = self._random.random()
        if depth == 0 or kind < 0.4:
            return self._random.choice(_SCALARS)
        if kind < 0.65:
            return [self.value(depth - 1) for _ in range(self._random.randrange(4))]
        return {name: self.value(depth - 1) for name in self._random.sample(_NAMES, self._random.randrange(4))}


@pytest.mark.parametrize("draft", DRAFTS, ids=["4", "6", "7", "2019-09", "2020-12"])
def test_verdicts_are_those_of_jsonschema(draft: str) -> None:
    valid = invalid = 0
    for seed in range(100):
        schemas = Schemas(random.Random(seed), draft)
        schema = schemas.root()
        codec = json_schema(schema)
        reference = validators.validator_for({"$schema": draft})(schema)
        for value in [schemas.value(2) for _ in range(12)]:
            expected = reference.is_valid(value)
            assert is_valid(codec, value) == expected, (seed, schema, value)
            valid, invalid = valid + expected, invalid + (not expected)
    assert min(valid, invalid) > 200


def test_unevaluated_items_and_members_in_2019_09() -> None:
    draft = DRAFTS[3]
    items = json_schema({"$schema": draft, "contains": {"type": "string"}, "unevaluatedItems": {"type": "null"}})
    assert is_valid(items, [None]) is False
    assert not is_valid(items, ["a", None])
    known = {"properties": {"a": True}}
    members = json_schema({"$schema": draft, "allOf": [known], "unevaluatedProperties": False})
    assert is_valid(members, {"a": 1})
    assert not is_valid(members, {"a": 1, "b": 1})
    additional = {"additionalProperties": {"minLength": 3}, "unevaluatedProperties": False}
    assert is_valid(json_schema({"$schema": draft, **additional}), {"a": 1})


def test_keywords_beside_a_reference_count_since_2019() -> None:
    for draft in DRAFTS:
        schema = {"$schema": draft, "definitions": {"any": {}}, "$ref": "#/definitions/any", "type": "string"}
        assert is_valid(json_schema(schema), 5) == (DRAFTS.index(draft) < 3)


def test_references_inside_of_the_text_and_to_the_registry() -> None:
    node = {"$ref": "#/definitions/node"}
    tree = {"definitions": {"node": {"type": "object", "properties": {"next": node}, "required": ["v"]}}, **node}
    assert is_valid(json_schema(tree), {"v": 1, "next": {"v": 2}})
    assert not is_valid(json_schema(tree), {"v": 1, "next": {}})
    item = json.dumps({"type": "object", "properties": {"price": {"$ref": "money.json#/$defs/amount"}}})
    money = json.dumps({"$schema": NEWEST, "$defs": {"amount": {"type": "number", "minimum": 0}}})
    cart = {"type": "array", "items": {"$ref": "item.json"}}
    codec = json_schema(cart, {"money.json": money, "item.json": item})
    assert is_valid(codec, [{"price": 1.5}])
    assert not is_valid(codec, [{"price": -1}])
    with pytest.raises(InvalidSchema, match=r"item\.json"):
        json_schema(cart)
    with pytest.raises(InvalidSchema, match="is not fetched"):
        json_schema({"$ref": "http://127.0.0.1:1/x.json"})


def test_dynamic_and_recursive_references_extend_a_schema() -> None:
    for draft, anchor, reference in (
        (DRAFTS[3], {"$recursiveAnchor": True}, {"$recursiveRef": "#"}),
        (DRAFTS[4], {"$dynamicAnchor": "node"}, {"$dynamicRef": "#node"}),
    ):
        tree = {"$schema": draft, "$id": "http://x/tree", **anchor, "type": "object",
                "properties": {"data": True, "children": {"type": "array", "items": reference}}}  # fmt: skip
        strict = {"$schema": draft, "$id": "http://x/strict", **anchor, "$ref": "tree", "unevaluatedProperties": False}
        codec = json_schema(strict, {"tree": json.dumps(tree)})
        assert is_valid(codec, {"children": [{"data": 1}]})
        assert not is_valid(codec, {"children": [{"daat": 1}]})
        assert is_valid(json_schema(tree), {"children": [{"daat": 1}]})


def test_numbers_are_compared_exactly() -> None:
    assert is_valid(json_schema({"multipleOf": 0.01}), 19.99)
    assert is_valid(json_schema({"const": 0.1}), 0.1)
    assert is_valid(json_schema({"enum": [1]}), 1.0)
    assert not is_valid(json_schema({"enum": [1]}), True)
    assert not is_valid(json_schema({"maximum": 9007199254740992}), 9007199254740993)
    assert is_valid(json_schema({"multipleOf": 1e-300}), 1e300)


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ({"a": {"b": ["x", 5]}}, "/a/b/1", "string is expected, not the number 5"),
        ({"a": {"b": []}, "z": 1}, "", "no property 'z'"),
        ({"a": {}}, "/a", "the property 'b' is missing"),
        ({"a": {"b": ["longer"]}}, "/a/b/0", "at most 3"),
        ({"m": 5}, "/m", "none of the 2 schemas of `anyOf` fits; the first one: string"),
    ],
)
def test_error_names_the_place_and_the_reason(value: Any, place: str, reason: str) -> None:
    codec = json_schema({
        "type": "object", "additionalProperties": False,
        "properties": {
            "a": {"type": "object", "required": ["b"],
                  "properties": {"b": {"type": "array", "items": {"type": "string", "maxLength": 3}}}},
            "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    })  # fmt: skip
    with pytest.raises(DataMisfit) as error:
        codec.encode(value)
    assert error.value.place == place
    assert reason in str(error.value)


def test_bytes_are_validated_when_they_are_read() -> None:
    codec = json_schema({"title": "T", "type": "object"})
    assert codec.name == "T"
    assert codec.decode(b'{"a": [1.5]}') == {"a": [1.5]}
    for data, reason in (
        (b"{", "not JSON"), (b"\xff", "not JSON"), (b"NaN", "not JSON"), (b"1e999", "too large"),
        (b"[" * 100_000, "inside of each other"), (b"5", "object is expected"),
    ):  # fmt: skip
        with pytest.raises(DataMisfit, match=reason):
            codec.decode(data)
    for value in (float("nan"), "\ud800"):
        with pytest.raises(DataMisfit, match="not JSON"):
            json_schema(True).encode(value)


def test_expression_that_cannot_be_matched_in_linear_time_stops_writing_but_not_reading() -> None:
    codec = json_schema({"type": "string", "pattern": r"^(?=.*\d).*$"})
    with pytest.raises(DataMisfit, match="look-ahead"):
        codec.encode("a1")
    assert codec.decode(b'"a"') == "a"
    with pytest.raises(DataMisfit, match="string is expected"):
        codec.decode(b"5")


@pytest.mark.parametrize(
    ("expression", "text"),
    [("^(a+)+$", "a" * 50_000 + "b"), ("(x+x+)+y", "x" * 50_000), (r"^(\w+\s?)*$", "a " * 20_000 + "!")],
)
def test_exploding_expressions_are_matched_in_linear_time(expression: str, text: str) -> None:
    assert not is_valid(json_schema({"pattern": expression}), text)
    assert not is_valid(
        json_schema({"patternProperties": {expression: True}, "additionalProperties": False}), {text: 1}
    )


def test_expression_with_many_states_is_charged_for_each_of_them() -> None:
    codec = json_schema({"pattern": "(a?){500}b"})
    assert is_valid(codec, "a" * 100 + "b")
    with pytest.raises(DataMisfit, match="too many steps"):
        codec.encode("a" * 1_000_000)


def test_escapes_that_re2_writes_differently_are_understood() -> None:
    assert is_valid(json_schema({"pattern": "^\\u00e4$"}), "ä")
    assert not is_valid(json_schema({"pattern": "^\\u00e4$"}), "a")
    assert is_valid(json_schema({"pattern": r"^\\u00e4$"}), r"\u00e4")
    assert is_valid(json_schema({"pattern": r"^\p{Letter}+$"}), "äb")


@pytest.mark.parametrize("draft", [DRAFTS[2], NEWEST], ids=["classic", "modern"])
@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_are_limited(keyword: str, draft: str) -> None:
    definitions: dict[str, Any] = {"d60": {"type": "string"}}
    for level in range(60):
        definitions[f"d{level}"] = {keyword: [{"$ref": f"#/definitions/d{level + 1}"}] * 2}
    codec = json_schema({"$schema": draft, "definitions": definitions, "allOf": [{"$ref": "#/definitions/d0"}]})
    if keyword == "allOf" or draft == NEWEST:
        with pytest.raises(DataMisfit, match="too many steps"):
            codec.encode("a")
    with pytest.raises(DataMisfit):
        codec.encode(5)


def test_depth_is_limited() -> None:
    with pytest.raises(DataMisfit, match="more than 200 schemas"):
        json_schema({"$ref": "#"}).encode(1)
    codec = json_schema({"items": {"$ref": "#"}})
    value: Any = []
    for _ in range(60):
        value = [value]
    assert codec.decode(codec.encode(value)) == value
    for _ in range(100):
        value = [value]
    with pytest.raises(DataMisfit, match="more than 200 schemas"):
        codec.encode(value)


def test_work_for_large_data_is_limited() -> None:
    many = {"allOf": [{"items": {"type": "integer"}}] * 1000}
    with pytest.raises(DataMisfit, match="too many steps"):
        json_schema(many).encode(list(range(100)))
    wide = {"allOf": [{"properties": {}, "additionalProperties": True, "required": ["k1"]}] * 1000}
    with pytest.raises(DataMisfit, match="too many steps"):
        json_schema(wide).encode({f"k{number}": 1 for number in range(100)})
    assert is_valid(json_schema({"uniqueItems": True}), list(range(10_000)))
