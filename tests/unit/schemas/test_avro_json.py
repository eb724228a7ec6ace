"""JSON of Avro schemas is read and written as Java's Jackson does."""

from __future__ import annotations

import pytest

from ottla.schemas.avro.json_text import Json, double_text, equal, float_text, quote, read, write
from ottla.schemas.schema import InvalidSchema, SchemaTooComplex


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (100.0, "100.0"), (0.001, "0.001"), (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"), (1e7, "1.0E7"), (1.5e300, "1.5E300"), (-12.75, "-12.75"), (5e-324, "4.9E-324"),
        (float("nan"), '"NaN"'), (float("inf"), '"Infinity"'), (float("-inf"), '"-Infinity"'),
    ],
)  # fmt: skip
def test_doubles_are_written_as_in_java(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (3.4e38, "3.4E38"), (16777217.0, "1.6777216E7"), (0.0, "0.0"), (-1.5, "-1.5"), (1e39, '"Infinity"')],
)
def test_floats_are_written_as_in_java(value: float, text: str) -> None:
    assert float_text(value) == text


def test_control_characters_have_upper_case_escapes() -> None:
    assert quote('a"b\\u00e9\n\x01\x1f/é') == '"a\\"b\\\\u00e9\\n\\u0001\\u001F/é"'


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1, // line\n "b":[true,null]}',
        '/* { */ {"a":1,"b" /* [ */ : [true , null]}',
        '{"a":1,"a":1,"b":[true,null]}\r\n\x00',
    ],
)
def test_comments_between_tokens_and_white_space_at_the_end_are_ignored(text: str) -> None:
    assert read(text) == {"a": 1, "b": [True, None]}


def test_slashes_in_strings_are_no_comments() -> None:
    assert read('["// text", /* c */ "/* text */"]') == ["// text", "/* text */"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"a":}', "line 2, column 5"),
        ('{\n/* c */ "a":}', "line 2, column 13"),
        ("[1] [2]", "more text: '\\[2\\]'"),
        ("[1] // comment", "more text"),
        ("[NaN]", "NaN is no number"),
        ("", "line 1, column 1"),
        ("[01]", "line 1"),
        ('["\t"]', "line 1"),
        ("[1 /* open", "line 1"),
    ],
)
def test_invalid_json_names_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 700 + "1" + "}" * 700,
        "[" + "1" * 1001 + "]",
        "[0." + "1" * 1001 + "]",
        "[" * 650 + '"\\' * 100_000,
    ],
)
def test_deep_and_long_values_are_too_complex(text: str) -> None:
    with pytest.raises(SchemaTooComplex):
        read(text)


@pytest.mark.parametrize("text", ["/*" * 1_000_000, '"\\' * 1_000_000, "{" * 500 + '"\\' * 500_000])
def test_unterminated_comments_and_strings_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSchema):
        read(text)


def test_text_is_written_without_white_space_and_in_order() -> None:
    value: Json = {"z": [1, 2.5, "x", None, True, False, {}], "a": 12345678901234567890}
    assert write(value) == '{"z":[1,2.5,"x",null,true,false,{}],"a":12345678901234567890}'


@pytest.mark.parametrize(("left", "right"), [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ([1], [1, 1]), ({"a": 1}, {})])
def test_values_of_different_types_differ(left: Json, right: Json) -> None:
    assert not equal(left, right)


def test_members_of_objects_have_no_order() -> None:
    assert equal({"a": [1, {"x": float("nan")}], "b": 2}, {"b": 2, "a": [1, {"x": float("nan")}]})
