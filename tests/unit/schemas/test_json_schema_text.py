"""JSON text: read and printed as Jackson does. The expected texts are Jackson's own."""

from __future__ import annotations

import pytest

from ottla.schemas.json_schema.text import NESTING_MAX, parse_json, print_json, sort_members, value_key
from ottla.schemas.schema import InvalidSchema, SchemaTooComplex


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1", "1"),
        ("-0", "0"),
        ("1.0", "1.0"),
        ("1.50", "1.50"),
        ("-0.0", "0.0"),
        ("1e2", "1E+2"),
        ("1.10e5", "1.10E+5"),
        ("100e-2", "1.00"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1E-7"),
        ("5e0", "5"),
        ("0e10", "0E+10"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_numbers_are_printed_as_jackson_prints_them(text: str, printed: str) -> None:
    assert print_json(parse_json(text)) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (' { "b" : [ ] , "a" : { } , "c" : [ [ ] , null , true ] } ', '{"b":[],"a":{},"c":[[],null,true]}'),
        ('{"b":1,"a":2,"b":3}', '{"b":3,"a":2}'),
        (r'"\u0001\u001f\u007f\u2028\n\t\b\f\r\"\\\/é€😀"', '"\\u0001\\u001F\x7f\u2028\\n\\t\\b\\f\\r\\"\\\\/é€😀"'),
        (r'"\ud83d\ude00"', '"😀"'),
        ("\ufeff{}", "{}"),
    ],
)
def test_text_is_compact_and_keeps_the_order_of_members(text: str, printed: str) -> None:
    assert print_json(parse_json(text)) == printed


def test_unpaired_surrogate_is_printed_as_an_escape() -> None:
    assert print_json(parse_json(r'"\ud800"')) == r'"\uD800"'


def test_members_are_sorted_by_utf16_code_units_at_every_level() -> None:
    value = parse_json('{"z":[{"b":1,"a":2}],"\uffff":1,"😀":2,"é":3}')
    assert print_json(sort_members(value)) == '{"z":[{"a":2,"b":1}],"é":3,"😀":2,"\uffff":1}'


def test_equal_values_have_the_same_key() -> None:
    assert value_key(parse_json('{"a":1,"b":[2.50]}')) == value_key(parse_json('{"b":[2.5],"a":1.0}'))
    assert value_key(parse_json("1e3")) == value_key(parse_json("1000"))
    assert value_key(parse_json("true")) != value_key(parse_json("1"))
    assert value_key(parse_json('"1"')) != value_key(parse_json("1"))
    assert value_key(parse_json("1e-9999")) != value_key(parse_json("0"))


def test_long_text_is_cut() -> None:
    assert print_json(["abcdef", "ghi"], length_max=8) == '["abcdef…'


@pytest.mark.parametrize("text", ["", "{", "{} {}", "[1,]", "{'a':1}", "NaN", '{"a":Infinity}', "01", "\x00"])
def test_text_that_is_not_json_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchema, match="not JSON"):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1),
        "[" * 1_000_000,
        '{"a":' * 100_000,
        "9" * 1001,
        "0." + "1" * 1001,
        "1e99999999999999999999",
        "1e-10001",
        '"' + "x" * (8 << 20) + '"',
    ],
    ids=["nested", "only brackets", "only objects", "long integer", "long fraction", "exponent", "negative", "size"],
)
def test_text_beyond_a_limit_is_rejected(text: str) -> None:
    with pytest.raises(SchemaTooComplex):
        parse_json(text)


def test_brackets_in_strings_are_not_nesting() -> None:
    assert parse_json('["' + "[" * 1000 + '\\"{{{"]') == ["[" * 1000 + '"{{{']
