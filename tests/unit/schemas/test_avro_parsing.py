"""Avro schemas: what is accepted, what is refused and with which message, and the canonical text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.avro.parser import Parser
from ottla.schemas.avro.printer import schema_text
from ottla.schemas.schema import Budget, InvalidSchema


def record(name: str, *fields: Any, **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type_: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **attributes}


def text_of(schema: Any) -> str:
    budget = Budget()
    return schema_text(Parser(is_new=True, budget=budget).parse(json.dumps(schema)), budget)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "int"}, '"int"'),
        ({"doc": "x", "b": 1, "type": "int", "a": [1e10]}, '{"type":"int","b":1,"a":[1.0E10]}'),
        (["null", {"type": "array", "items": "int"}], '["null",{"type":"array","items":"int"}]'),
        (
            {"fields": [], "aliases": ["Old", "x.Y"], "x": 1, "doc": "d", "name": "a.b.C", "type": "record"},
            '{"type":"record","name":"C","namespace":"a.b","doc":"d","fields":[],"x":1,"aliases":["Old","x.Y"]}',
        ),
        (
            {"type": "enum", "default": "B", "name": "E", "symbols": ["A", "B"]},
            '{"type":"enum","name":"E","symbols":["A","B"],"default":"B"}',
        ),
        (
            record(
                "R", {"order": "IGNORE", "aliases": ["g"], "default": "1e3", "doc": "", "type": "double", "name": "f"}
            ),
            '{"type":"record","name":"R","fields":[{"name":"f","type":"double","doc":"","default":1000.0,'
            '"order":"ignore","aliases":["g"]}]}',
        ),
    ],
)
def test_members_have_the_order_of_java(schema: Any, text: str) -> None:
    assert text_of(schema) == text


def test_second_mention_of_a_type_is_a_name() -> None:
    inner = {"type": "fixed", "name": "F", "size": 2}
    schema = record("p.R", field("a", inner), field("b", "F"), field("c", "p.F"), field("d", {"type": "F"}))
    assert text_of(schema) == (
        '{"type":"record","name":"R","namespace":"p","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":2}},'
        '{"name":"b","type":"F"},{"name":"c","type":"F"},{"name":"d","type":"F"}]}'
    )


def test_namespace_is_written_where_it_changes() -> None:
    schema = record("p.R", field("a", record("S", namespace="")), field("b", record("q.T", field("r", "p.R"))))
    assert text_of(schema) == (
        '{"type":"record","name":"R","namespace":"p","fields":[{"name":"a","type":{"type":"record","name":"S",'
        '"namespace":"","fields":[]}},{"name":"b","type":{"type":"record","name":"T","namespace":"q","fields":['
        '{"name":"r","type":"p.R"}]}}]}'
    )


def test_type_may_be_used_before_its_definition() -> None:
    schema = record("R", field("a", ["null", "S"]), field("b", record("S", field("r", ["null", "R"]))))
    assert text_of(schema) == (
        '{"type":"record","name":"R","fields":[{"name":"a","type":["null",{"type":"record","name":"S","fields":['
        '{"name":"r","type":["null","R"]}]}]},{"name":"b","type":"S"}]}'
    )


def test_equal_definition_may_be_repeated() -> None:
    inner = record("S", field("a", "int"))
    assert text_of(record("R", field("a", inner), field("b", inner | {"doc": "other"}))) == text_of(
        record("R", field("a", inner), field("b", "S"))
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record("R", field("a", "Unknown")), "/fields/0/type: the type 'Unknown' is not defined"),
        (record("R", field("a", {"type": "array", "items": {"type": "map"}})), "/fields/0/type/items: a map needs"),
        (["int", {"type": "int"}], "two branches of type int"),
        (["int", ["null"]], "cannot directly contain a union"),
        ({"type": ["int"]}, 'needs a "type" that is a string'),
        (record("R", field("a", "int"), field("a", "int")), "two fields with the same name"),
        (record("R", field("a-b", "int")), "/fields/0: the field name 'a-b' is not valid"),
        (record("é"), "the name 'é' is not valid"),
        (record("R", namespace="a..b"), "the namespace '' is not valid"),
        (record("int"), "like a primitive type"),
        (record("R", field("a", "int", default="x")), '/fields/0: the default "x" of field a is not valid'),
        (record("R", field("a", "int", default=2**31)), "not valid for its type"),
        (record("R", field("a", "double", default="x")), "'x' is not a number"),
        (record("R", field("a", "R", default={})), "inside of its own type"),
        (record("R", field("a", "int", order="up")), '"order" is ascending'),
        ({"type": "record", "name": "R"}, 'needs a list "fields"'),
        (record("R", field("a", record("S")), field("b", record("S", field("x", "int")))), "defined twice"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "two equal symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not one of its symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, 'needs a "size"'),
        ({"type": "fixed", "name": "F", "size": 1.0}, 'needs a "size"'),
        (record("R", aliases="S"), '"aliases" is not a list'),
        (record("R", x=2**63), "integer of more than 64 bits"),
        (7, "not 7"),
    ],
)  # fmt: skip
def test_invalid_schema_is_rejected_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        text_of(schema)
    assert message in str(error.value)


def test_reference_that_is_missing_is_rejected() -> None:
    with pytest.raises(InvalidSchema, match=r"'p\.Address' is not defined"):
        text_of(record("p.Person", field("home", "Address")))
