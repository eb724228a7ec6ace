"""Avro: which reader can read which writer, and the reasons if it cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.avro import AvroSchema, parse
from ottla.schemas.avro.compatibility import REASONS_MAX, incompatibilities
from ottla.schemas.avro.parser import Parser
from ottla.schemas.schema import Budget, Resolved, SchemaTooComplex


def schema(json_: Any) -> AvroSchema:
    return parse(json.dumps(json_))


def record(name: str, *fields: Any, **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type_: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **attributes}


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


def fixed(name: str, size: int, **attributes: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **attributes}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def reasons(reader: Any, writer: Any) -> list[tuple[str, str]]:
    return [(reason.kind, reason.path) for reason in schema(reader).incompatibilities(schema(writer))]


A = field("a", "int")


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("long", "int"),
        ("double", "float"),
        ("float", "long"),
        ("string", "bytes"),
        ("bytes", "string"),
        (["null", "int"], "int"),
        ("long", ["int", "long"]),
        (["string", "int"], ["int"]),
        ("int", []),
        ({"type": "int", "logicalType": "date"}, "int"),
        (record("R", A), record("R", A, field("b", "string"))),
        (record("R", A, field("b", "string", default="")), record("R", A)),
        (record("R", field("b", "int", aliases=["a"])), record("R", A)),
        (record("p.R", A), record("q.R", A)),
        (record("p.R", A, aliases=["q.S"]), record("q.S", A)),
        (enum("X", "Y"), enum("X")),
        (enum("X", default="X"), enum("X", "Y")),
        (fixed("F", 4), fixed("F", 4, doc="x")),
        (record("N", field("n", ["null", "N"])), record("N", field("n", ["null", "N"]), A)),
    ],
)
def test_reader_can_read_writer(reader: Any, writer: Any) -> None:
    assert reasons(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("int", "long", [("TYPE_MISMATCH", "/")]),
        ("int", ["int", "string"], [("TYPE_MISMATCH", "/1")]),
        (["null", "int"], "string", [("MISSING_UNION_BRANCH", "/")]),
        (["null"], ["null", "int", "long"], [("MISSING_UNION_BRANCH", "/1"), ("MISSING_UNION_BRANCH", "/2")]),
        (array(array("int")), array(array("string")), [("TYPE_MISMATCH", "/items/items")]),
        (record("R", A), record("S", A), [("NAME_MISMATCH", "/name")]),
        (record("R", A), record("R"), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")]),
        (record("R", field("e", enum("X", default="X"))), record("R"), [("TYPE_MISMATCH", "/fields/0/type")]),
        (enum("X"), enum("X", "Z", "Y"), [("MISSING_ENUM_SYMBOLS", "/symbols")]),
        (fixed("F", 4), fixed("G", 8), [("NAME_MISMATCH", "/name"), ("FIXED_SIZE_MISMATCH", "/size")]),
        (
            record("R", field("x", "int", default=0), field("m", {"type": "map", "values": record("S", A)})),
            record("R", field("m", {"type": "map", "values": record("S", field("a", "string"))})),
            [("TYPE_MISMATCH", "/fields/1/type/values/fields/0/type")],
        ),
        # A reason keeps the path of the first comparison of its types.
        (
            record("R", field("x", array(fixed("F", 4))), field("y", "F")),
            record("R", field("x", array(fixed("F", 8))), field("y", "F")),
            [
                ("FIXED_SIZE_MISMATCH", "/fields/0/type/items/size"),
                ("FIXED_SIZE_MISMATCH", "/fields/0/type/items/size"),
            ],
        ),
    ],
)
def test_reasons_have_kind_and_path(reader: Any, writer: Any, expected: list[tuple[str, str]]) -> None:
    assert reasons(reader, writer) == expected


def test_reason_names_the_symbols_and_has_both_fragments() -> None:
    reader = schema(record("R", field("e", enum("X"))))
    (reason,) = reader.incompatibilities(schema(record("R", field("e", enum("X", "Z", "Y")))))
    assert reason.description.endswith("lacks symbols of the writer: Y, Z")
    assert reason.reader_fragment == '{"type":"enum","name":"E","symbols":["X"]}'
    assert reason.writer_fragment == '{"type":"enum","name":"E","symbols":["X","Z","Y"]}'


def test_field_whose_aliases_match_two_fields_is_a_reason() -> None:
    reader = record("R", field("c", "int", aliases=["a", "b"]))
    assert reasons(reader, record("R", A, field("b", "int"))) == [("AMBIGUOUS_FIELD", "/fields/0")]


def test_recursive_schemas_of_different_periods_are_compared() -> None:
    def cycle(length: int) -> list[Any]:
        return [record(f"R{i}", field("next", ["null", f"R{(i + 1) % length}"]), A) for i in range(length)]

    assert reasons(cycle(7), cycle(7)) == []
    assert {kind for kind, _ in reasons(cycle(12), cycle(11))} == {"MISSING_UNION_BRANCH"}


def _doubled(leaf: str) -> AvroSchema:
    """A schema whose innermost type is mentioned 2**100 times."""
    texts = [record("R0", field("a", leaf))]
    texts += [record(f"R{i}", field("a", f"R{i - 1}"), field("b", f"R{i - 1}")) for i in range(1, 101)]
    return parse('"R100"', Resolved((), {str(number): json.dumps(text) for number, text in enumerate(texts)}))


def test_exponentially_many_reasons_are_cut_off() -> None:
    found = _doubled("int").incompatibilities(_doubled("string"))
    assert len(found) == REASONS_MAX
    assert found[0].kind == "TYPE_MISMATCH"
    assert found[0].path == "/" + "/".join(["fields/0/type"] * 101)


def test_fragments_have_a_limit_in_total() -> None:
    reader = schema(record("R", *[field(f"f{number}", "string", doc="d" * 100_000) for number in range(50)]))
    assert len(reader.incompatibilities(schema(record("R")))) == 1


def test_comparison_of_huge_unions_is_too_complex() -> None:
    reader, writer = (
        Parser(is_new=True, budget=Budget()).parse(json.dumps([record(f"{letter}{number}") for number in range(100)]))
        for letter in "RW"
    )
    with pytest.raises(SchemaTooComplex):
        incompatibilities(reader, writer, Budget(10_000))
