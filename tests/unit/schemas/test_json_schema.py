"""What a parsed JSON schema offers beside comparisons: texts, names, tags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.json_schema import parse
from ottla.schemas.schema import Entity, InvalidSchema, ParsedSchema, Reference, Resolved, SchemaType, UnknownFormat

TAGGED = {
    "type": "object",
    "confluent:tags": ["R"],
    "properties": {
        "plain": {"type": "string", "confluent:tags": ["PII"]},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a.b": {"confluent:tags": ["LIST"]}}}},
        "choice": {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"f": {"confluent:tags": ["ONE"]}}}]},
        "types": {"type": ["null", "object"], "properties": {"g": {"confluent:tags": ["ANY"]}}},
        "negation": {"not": {"type": "object", "confluent:tags": ["NOT"]}},
    },
    "definitions": {"M": {"type": "object", "properties": {"n": {"confluent:tags": ["DEFINITION"]}}}},
}


def schema(value: Any, resolved: Resolved | None = None) -> ParsedSchema:
    return parse(json.dumps(value), resolved or Resolved())


def test_text_is_compact_and_in_the_order_of_the_members() -> None:
    parsed = parse(' { "type" : "number" , "maximum" : 1.50 , "$comment" : "é" } ')
    assert parsed.text == parsed.formatted("") == '{"type":"number","maximum":1.50,"$comment":"é"}'
    assert parsed.schema_type is SchemaType.JSON


def test_normalised_schema_has_sorted_members_and_references() -> None:
    references = (Reference("b", "s2", 1), Reference("a", "s1", 2), Reference("b", "s2", 1))
    texts = {"a": "{}", "b": "{}"}
    parsed = parse('{"type":"object","properties":{"b":{"$ref":"b"},"a":{"$ref":"a"}}}', Resolved(references, texts))
    normal = parsed.normalized()
    assert normal.text == '{"properties":{"a":{"$ref":"a"},"b":{"$ref":"b"}},"type":"object"}'
    assert normal.resolved.references == (Reference("a", "s1", 2), Reference("b", "s2", 1))
    assert normal.normalized().text == normal.text


def test_unknown_format_is_rejected() -> None:
    with pytest.raises(UnknownFormat, match="resolved"):
        parse("{}").formatted("resolved")


def test_name_is_the_title() -> None:
    assert parse('{"title":"Order"}').name == "Order"
    assert parse("{}").name is None
    assert parse("true").name is None


def test_schema_is_equivalent_to_one_with_the_same_text_and_references() -> None:
    references = Resolved((Reference("a", "s", 1),), {"a": "{}"})
    others = Resolved((Reference("a", "s", 2),), {"a": "{}"})
    assert parse("{ }").is_equivalent(parse("{}"))
    assert parse("{}", references).is_equivalent(parse("{}", references))
    assert not parse("{}", references).is_equivalent(parse("{}", others))
    assert parse("{}").is_equivalent(parse("{}", references))
    assert not parse("{}").is_equivalent(parse("true"))


def test_top_level_fields_are_the_properties() -> None:
    parsed = parse('{"properties":{"a":{"properties":{"b":{}}}}}')
    assert parsed.has_top_level_field("a")
    assert not parsed.has_top_level_field("b")
    assert not parse("true").has_top_level_field("a")


def test_tags_are_collected_from_the_whole_schema() -> None:
    assert schema(TAGGED).tags() == {"R", "PII", "LIST", "ONE", "ANY", "NOT", "DEFINITION"}
    assert parse("{}").tags() == frozenset()


def test_tagged_records_and_fields_have_the_paths_of_confluent() -> None:
    assert {f"{entity.kind} {entity.path}": set(tags) for entity, tags in schema(TAGGED).tagged_entities().items()} == {
        "sr_record object": {"R"},
        "sr_field object.plain": {"PII"},
        "sr_field object.list.array.object.a.b": {"LIST"},
        "sr_field object.choice.oneof.1.object.f": {"ONE"},
        "sr_field object.types.anyof.1.object.g": {"ANY"},
        "sr_record object.negation.not.object": {"NOT"},
        "sr_field object.definitions.M.object.n": {"DEFINITION"},
    }


def test_tags_are_added_and_removed() -> None:
    before = schema(TAGGED)
    plain, listed = Entity("sr_field", "object.plain"), Entity("SR_FIELD", "object.list.array.object.a.b")
    after = before.with_tags({listed: frozenset(("Z", "A"))}, {plain: frozenset(("PII",))})
    entities = after.tagged_entities()
    assert plain not in entities
    assert '"a.b":{"confluent:tags":["LIST","A","Z"]}' in after.text
    assert '"plain":{"type":"string"}' in after.text
    assert before.text == schema(TAGGED).text


def test_all_tagged_entities_can_be_copied_to_a_schema_without_tags() -> None:
    tagged = schema(TAGGED)
    entities = tagged.tagged_entities()
    bare = tagged.with_tags({}, entities)
    assert bare.tags() == frozenset()
    assert bare.with_tags(entities, {}).tagged_entities() == entities


def test_tag_on_an_unknown_field_is_rejected() -> None:
    with pytest.raises(InvalidSchema, match=r"object\.missing"):
        schema(TAGGED).with_tags({Entity("sr_field", "object.missing"): frozenset("x")}, {})
