"""The language of searches: what its terms find, its errors, and that no text and no record breaks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.edge.console.records.expression import parse_search, parse_time_ms
from ottla.edge.console.records.tokens import TEXT_CHARACTERS_MAX, BadExpression

NOW_MS = 1_800_000_000_000
ORDER = {
    "customer": {"id": 42, "name": "Ana"},
    "amount": 19.9,
    "items": [{"sku": "a-1", "count": 2}, {"sku": "b-2", "count": 0}],
    "note": None,
    "paid": True,
    "a.b": "dotted",
    "key": "inner",
}


@dataclass(frozen=True)
class FakePart:
    data: Any
    text: str | None

    def contains(self, lowered: str) -> bool:
        return self.text is not None and lowered in self.text.lower()


@dataclass(frozen=True)
class FakeRecord:
    value: FakePart = field(default_factory=lambda: json_part(ORDER))
    key: FakePart = field(default_factory=lambda: FakePart("c-42", "c-42"))
    headers: Sequence[tuple[str, str | None]] = (("type", "refund"), ("retry", "3"), ("empty", None), ("type", "late"))
    partition: int = 3
    offset: int = 88_120
    timestamp: int = 1_795_000_000_000
    size: int = 312


def json_part(value: Any) -> FakePart:
    return FakePart(value, json.dumps(value))


def finds(text: str, record: FakeRecord | None = None) -> bool:
    search = parse_search(text, NOW_MS)
    assert search is not None
    return search.matches(record or FakeRecord())


def problem(text: str) -> BadExpression:
    with pytest.raises(BadExpression) as raised:
        parse_search(text, NOW_MS)
    return raised.value


def test_search_without_text_is_none() -> None:
    assert parse_search("", NOW_MS) is None
    assert parse_search(" \t\n", NOW_MS) is None


@pytest.mark.parametrize(
    "text",
    [
        'customer.id = 42 AND header.type = "refund"', "customer.id == 42", "value.customer.id = 42",
        'customer.name = "Ana"', "customer.name = Ana", "amount > 19", "amount >= 19.9", "amount < 2e1",
        'items[0].sku = "a-1"', 'items[-1].sku = "b-2"', 'items[*].sku = "b-2"', "items[*].count < 1",
        'value["a.b"] = dotted', 'value["customer"]["id"] = 42', "note = null", "paid = true", "paid",
        "note exists", "NOT missing exists", "NOT missing = 1", "customer.id in (1, 2, 42)",
        "customer.id not in (1, 2)", 'header.type in ("late")', "header.retry > 2", "header.retry = 3",
        'header.retry = "3"', "header.empty = null", 'header["type"] = late', "header contains REF",
        "key = c-42", 'key starts "C-"', "key ends with 42", "key contains -4", "key ~ C-4", "key !~ zz",
        'key != "c-43"', "partition = 3", "offset >= 88120 offset < 88121", "size > 100 AND size < 1000",
        "timestamp > 2026-01-01", 'timestamp < "2027-01-01 00:00"', "timestamp > -100d", '"refund"', "refund",
        "ANA refund", "nothing OR refund", "(nothing OR refund) AND ana", "not (nothing and refund)",
        "value.key = inner", "amount != 5", "customer.id <> 43", "paid && refund", "nothing || paid",
        "customer.name starts an", "value contains sku",
    ],
)  # fmt: skip
def test_search_finds_the_record(text: str) -> None:
    assert finds(text)


@pytest.mark.parametrize(
    "text",
    [
        "customer.id = 43", 'customer.id = "42"', "customer.id.x = 1", "missing = 1", "missing != 1", "missing > 1",
        "NOT customer.id = 42", "customer.name = ana", "customer > 5", "items = 2", "items[2].sku = x",
        "items[*].sku = c", "paid = false", "paid = 1", "note != null", "note > 1", "missing exists",
        "customer.id in (1, 2)", "customer.id not in (42)", "header.none = null", "header.type = Refund",
        "header.retry > 3", "key = C-42", "key !~ c", 'key != "c-42"', "partition != 3", "nothing",
        "refund nothing", "nothing OR absent", "timestamp > -1s", "amount contains customer", "customer contains ana",
    ],
)  # fmt: skip
def test_search_does_not_find_the_record(text: str) -> None:
    assert not finds(text)


def test_null_value_is_found_and_a_number_as_key_equals_its_text() -> None:
    tombstone = FakeRecord(value=FakePart(None, None), key=FakePart(42, "42"))
    assert finds("value = null", tombstone) and not finds("value != null", tombstone)
    assert finds("key = 42", tombstone) and finds('key = "42"', tombstone) and not finds('key != "42"', tombstone)
    assert not finds("value contains x", tombstone) and not finds("customer.id = 42", tombstone)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("customer.id =", 13, "a value was expected"), ('name = "Ana', 7, "no closing"),
        ("(a = 1", 6, "closing bracket"), ("a = 1)", 5, "not expected"), ("a = 1 AND", 9, "the search ends"),
        ("AND a", 0, "a field"), ("a in (1, 2", 10, "a comma or )"), ("items[x] = 1", 5, "an index"),
        ("items[0 = 1", 5, "an index"), ("items[0]", 8, "a comparison is missing"), ("a = (1)", 4, "a value"),
        ('"a" = a', 0, "the field on the left"), ("timestamp > yesterday", 12, "is not a time"),
        ("paid > true", 0, "compares numbers and texts"), ('a = "\\u00"', 5, "hexadecimal"), ("a ! b", 2, "no meaning"),
        ("a contains", 10, "a value was expected"),
    ],
)  # fmt: skip
def test_error_says_where_and_why(text: str, position: int, reason: str) -> None:
    error = problem(text)
    assert (error.position, reason in error.reason) == (position, True), (error.position, error.reason)
    assert f"character {position + 1}" in str(error)


def test_length_nesting_and_parts_are_limited() -> None:
    assert "characters" in problem("x" * (TEXT_CHARACTERS_MAX + 1)).reason
    assert "levels" in problem("(" * 100 + "a" + ")" * 100).reason
    assert "levels" in problem("not " * 100 + "a").reason
    assert "words and signs" in problem("a " * 400).reason
    assert "parts" in problem("a" + ".b" * 100 + " = 1").reason
    assert finds("(" * 30 + "refund" + ")" * 30)


def test_times_are_read_in_utc_with_a_zone_as_milliseconds_or_before_now() -> None:
    assert parse_time_ms("2026-11-18 14:00", 0) == parse_time_ms("2026-11-18T15:00+01:00", 0) == 1_795_010_400_000
    assert parse_time_ms("-90m", NOW_MS) == NOW_MS - 5_400_000
    for text in ("", "later", "2026-13-01", "9" * 30):
        with pytest.raises(ValueError, match="is not a time"):
            parse_time_ms(text, 0)


#: texts that are mostly searches
PIECES = st.sampled_from(
    ["a", "items", "[*]", "[0]", '["x"]', ".b", " = ", " != ", " > ", " contains ", " in (", ")", "(", ",", " and ",
     " or ", " not ", "1", '"t"', "null", "'", '"', "\\", "key", "value", "header", "timestamp", "~", "!", " exists"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=20).map("".join))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "x", ""]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(text=TEXTS, value=JSON_VALUES, key=st.none() | st.text(max_size=5))
def test_any_text_is_an_error_with_a_position_or_a_search_that_answers(text: str, value: Any, key: str | None) -> None:
    search, position = None, 0
    try:
        search = parse_search(text, NOW_MS)
    except BadExpression as error:
        position = error.position
    assert 0 <= position <= len(text)
    if search is not None:
        record = FakeRecord(value=json_part(value), key=FakePart(key, key))
        assert search.matches(record) in (True, False)


def paths(value: Any, path: str = "value") -> list[tuple[str, Any]]:
    """Return the path of each leaf of a JSON value."""
    if isinstance(value, dict):
        return [
            leaf
            for name, each in value.items()
            for leaf in paths(each, f"{path}[{json.dumps(name, ensure_ascii=False)}]")
        ]
    if isinstance(value, list):
        return [leaf for place, each in enumerate(value) for leaf in paths(each, f"{path}[{place}]")]
    return [(path, value)]


@given(value=st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3))
def test_each_leaf_of_a_value_is_found_by_its_path(value: Any) -> None:
    record = FakeRecord(value=json_part(value))
    for path, leaf in paths(value)[:20]:
        if len(path) > 500 or isinstance(leaf, float):
            continue
        if isinstance(leaf, int) and len(str(leaf)) > 39:
            continue
        literal = json.dumps(leaf, ensure_ascii=False) if isinstance(leaf, str) else str(leaf)
        literal = "null" if leaf is None else literal
        assert finds(f"{path} = {literal}", record), (path, literal)
        assert finds(f"{path} exists", record)
        assert not finds(f"{path} != {literal}", record)
