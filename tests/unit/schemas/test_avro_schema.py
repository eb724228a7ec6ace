"""Avro schemas as the registry uses them: references, normal form, lookup, formats, tags, and hostile texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.avro import AvroSchema, parse
from ottla.schemas.avro.parser import Parser
from ottla.schemas.schema import Budget, Entity, InvalidSchema, Reference, Resolved, SchemaTooComplex, UnknownFormat


def schema(json_: Any, **arguments: Any) -> AvroSchema:
    return parse(json.dumps(json_), **arguments)


def record(name: str, *fields: Any, **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type_: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **attributes}


def test_stored_schema_may_have_names_and_defaults_that_a_new_one_may_not() -> None:
    stored = record("Größe", field("a", "int", default="x"), namespace="a-b")
    assert schema(stored, is_new=False).text.startswith('{"type":"record","name":"Größe","namespace":"a-b"')
    with pytest.raises(InvalidSchema):
        schema(record("a-b"), is_new=False)


def test_referenced_types_stay_names_and_can_be_expanded() -> None:
    address = json.dumps(record("p.Address", field("kind", {"type": "enum", "name": "Kind", "symbols": ["A"]})))
    resolved = Resolved((Reference("p.Address", "address", 1),), {"p.Address": address})
    person = schema(record("p.Person", field("home", "Address"), field("kind", "Kind")), resolved=resolved)
    kind = '{"type":"enum","name":"Kind","symbols":["A"]}'
    start = '{"type":"record","name":"Person","namespace":"p","fields":[{"name":"home","type":'
    assert person.text == f'{start}"Address"}},{{"name":"kind","type":{kind}}}]}}'
    assert person.formatted("resolved") == (
        f'{start}{{"type":"record","name":"Address","fields":[{{"name":"kind","type":{kind}}}]}}}},'
        '{"name":"kind","type":"Kind"}]}'
    )
    assert parse('"p.Address"', resolved).name == "p.Address"


def test_half_of_a_surrogate_pair_is_rejected() -> None:
    with pytest.raises(InvalidSchema, match="surrogate"):
        schema(record("R", doc="\ud800"))


def test_only_a_record_has_a_name() -> None:
    assert schema(record("p.R")).name == "p.R"
    assert schema({"type": "enum", "name": "E", "symbols": []}).name is None


def test_fields_of_the_outermost_record_are_top_level() -> None:
    person = schema(record("R", field("a", record("S", field("b", "int")))))
    assert person.has_top_level_field("a")
    assert not person.has_top_level_field("b")
    assert not schema(["null", record("R", field("a", "int"))]).has_top_level_field("a")


@pytest.mark.parametrize("name", ["", "default", "Default"])
def test_default_format_is_the_canonical_text(name: str) -> None:
    assert schema("int").formatted(name) == '"int"'


def test_unknown_format_is_rejected() -> None:
    with pytest.raises(UnknownFormat, match="serialized"):
        schema("int").formatted("serialized")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"type": "int", "b": {"y": 1, "x": 2}, "logicalType": "date", "a": 1},
            '{"type":"int","logicalType":"date","a":1,"b":{"x":2,"y":1}}',
        ),
        (
            {"type": "bytes", "scale": 2, "x": 1, "precision": 4, "logicalType": "decimal"},
            '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2,"x":1}',
        ),
        (
            {"type": "string", "z": 1, "logicalType": "date"},
            '{"type":"string","logicalType":"date","z":1}',
        ),
        (
            record("p.R", field("f", "float", default=1, order="descending", aliases=["y", "x"]), aliases=["B", "A"]),
            '{"type":"record","name":"R","namespace":"p","fields":[{"name":"f","type":"float","default":1.0,'
            '"order":"descending","aliases":["x","y"]}],"aliases":["A","B"]}',
        ),
        # The default fits the second branch. Java converts it to the first one and loses it.
        (
            record("R", field("f", ["null", "string"], default="x")),
            '{"type":"record","name":"R","fields":[{"name":"f","type":["null","string"]}]}',
        ),
        ({"type": "error", "name": "R", "fields": []}, '{"type":"record","name":"R","fields":[]}'),
    ],
)  # fmt: skip
def test_normal_form_is_that_of_the_registry(given: Any, text: str) -> None:
    normal = schema(given).normalized()
    assert normal.text == text
    assert normal.normalized().text == text


@pytest.mark.parametrize("given", [{"type": "int", "x": 2**64}, record("R", field("f", []))])
def test_schema_without_normal_form_is_rejected(given: Any) -> None:
    with pytest.raises(InvalidSchema, match="normal"):
        schema(given).normalized()


def test_references_of_the_normal_form_are_sorted_and_unique() -> None:
    one, two = Reference("A", "s2", 1), Reference("B", "s1", 3)
    resolved = Resolved((one, two, one), {"A": json.dumps(record("A")), "B": json.dumps(record("B"))})
    normal = parse('["B","A"]', resolved).normalized()
    assert normal.text == '["B","A"]'
    assert normal.resolved.references == (two, one)


def test_lookup_finds_the_schema_whose_references_are_expanded() -> None:
    address = record("Address", field("street", "string"))
    resolved = Resolved((Reference("Address", "address", 1),), {"Address": json.dumps(address)})
    stored = schema(record("Person", field("home", "Address")), resolved=resolved)
    expanded = schema(record("Person", field("home", address)))
    assert expanded.text == stored.formatted("resolved")
    assert expanded.is_equivalent(stored)
    assert not stored.is_equivalent(expanded)
    assert stored.is_equivalent(schema(record("Person", field("home", "Address")), resolved=resolved))


@pytest.mark.parametrize(
    ("other", "is_equivalent"),
    [
        (record("R", field("a", ["null", "R"]), doc="d", x=1), True),
        (record("R", field("a", ["null", "R"]), doc="other", x=1), False),
        (record("R", field("a", ["null", "R"]), doc="d", x=1.0), False),
        (record("R", field("a", ["null", "R"], doc="e"), doc="d", x=1), False),
        (record("R", field("a", ["null", "R"], default=None), doc="d", x=1), False),
        (record("R", field("a", ["null", "R"]), doc="d", x=1, aliases=["S"]), False),
        (record("R", field("a", ["R", "null"]), doc="d", x=1), False),
    ],
)
def test_lookup_compares_documentation_properties_and_aliases(other: Any, is_equivalent: bool) -> None:
    given = schema(record("R", field("a", ["null", "R"]), x=1, doc="d"))
    assert given.is_equivalent(schema(other)) is is_equivalent


TAGGED = record(
    "p.R",
    field("a", "int", **{"confluent:tags": ["PII"]}),
    field("s", ["null", record("S", field("b", "string"), **{"confluent:tags": ["X", "Y"]})]),
)


def test_tags_are_found_at_all_levels() -> None:
    assert schema(TAGGED).tags() == {"PII", "X", "Y"}
    assert schema("int").tags() == frozenset()


def test_tags_are_reported_with_their_records_and_fields() -> None:
    entities = {Entity("sr_field", "p.R.a"): frozenset({"PII"}), Entity("sr_record", "p.S"): frozenset({"X", "Y"})}
    assert schema(TAGGED).tagged_entities() == entities
    assert schema(TAGGED).with_tags({}, entities).tags() == frozenset()


def test_tags_are_added_and_removed() -> None:
    changed = schema(TAGGED).with_tags(
        {Entity("sr_field", "p.S.b"): frozenset({"B"}), Entity("sr_record", "R"): frozenset({"T", "U"})},
        {Entity("sr_field", "p.R.a"): frozenset({"PII"}), Entity("sr_record", "p.S"): frozenset({"X"})},
    )
    assert changed.text == (
        '{"type":"record","name":"R","namespace":"p","fields":[{"name":"a","type":"int"},{"name":"s","type":["null",'
        '{"type":"record","name":"S","fields":[{"name":"b","type":"string","confluent:tags":["B"]}],'
        '"confluent:tags":["Y"]}]}],"confluent:tags":["T","U"]}'
    )


@pytest.mark.parametrize(
    "entity",
    [Entity("sr_field", "p.R.c"), Entity("sr_record", "q.R"), Entity("sr_field", "a"), Entity("sr_record", "")],
)
def test_tag_for_an_unknown_entity_is_rejected(entity: Entity) -> None:
    with pytest.raises(InvalidSchema, match="to which tags could be attached"):
        schema(TAGGED).with_tags({entity: frozenset({"T"})}, {})


def _records(depth: int) -> str:
    text = '"int"'
    for number in range(depth):
        text = f'{{"type":"record","name":"R{number}","fields":[{{"name":"a","type":{text}}}]}}'
    return text


def test_deep_schema_is_accepted_up_to_the_limit() -> None:
    deep = parse(_records(199))
    assert deep.normalized().is_equivalent(deep)
    assert deep.incompatibilities(parse(_records(199))) == []
    assert deep.tags() == frozenset()


def _chain(length: int) -> str:
    return json.dumps([record(f"R{i}", field("a", f"R{i + 1}" if i < length - 1 else "int")) for i in range(length)])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_records(201), id="deep definitions"),
        pytest.param('{"type":"array","items":' * 50_000, id="deep text"),
        pytest.param(_chain(1_000), id="long chain of names"),
        pytest.param('{"type":"int","x":' + "[" * 300 + "]" * 300 + "}", id="deep property"),
        pytest.param('"' + "x" * (9 << 20) + '"', id="long text"),
    ],
)
def test_hostile_schema_is_too_complex(text: str) -> None:
    with pytest.raises(SchemaTooComplex):
        parse(text)


def test_defaults_that_contain_exponentially_many_defaults_are_too_complex() -> None:
    records = [record("R0", field("v", "int", default=1))]
    for number in range(1, 60):
        records.append(record(f"R{number}", *[field(name, f"R{number - 1}", default={}) for name in "ab"]))
    with pytest.raises(SchemaTooComplex):
        Parser(is_new=True, budget=Budget(10_000)).parse(json.dumps(records))


def test_nested_repeated_definitions_are_too_complex() -> None:
    text = '{"type":"record","name":"R0","fields":[]}'
    for number in range(1, 9):
        fields = f'[{{"name":"a","type":{text}}},{{"name":"b","type":{text}}}]'
        text = f'{{"type":"record","name":"R{number}","fields":{fields}}}'
    assert parse(text).name == "R8"
    with pytest.raises(SchemaTooComplex):
        Parser(is_new=True, budget=Budget(500)).parse(text)
