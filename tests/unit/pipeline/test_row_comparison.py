"""Rows that a test expects and rows that a flow has made: what is equal, and how differences are shown."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.row_comparison import compare_rows, describe_comparison, same

_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_EPSILON = 1e-12

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(["", "a", "null", "é"]),
    st.sampled_from([Decimal("1.0"), Decimal("1.00"), Decimal("-2")]),
    st.sampled_from([0.5, 1.0, math.nan, math.inf]),
    st.sampled_from([_NOON, _NOON.astimezone(timezone(timedelta(hours=2))), _NOON + timedelta(microseconds=1)]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
        st.lists(st.tuples(st.sampled_from(["k", "l"]), inner), max_size=2, unique_by=lambda pair: pair[0]),
    ),
    max_leaves=4,
)
_rows = st.lists(st.fixed_dictionaries({"id": st.integers(0, 3), "value": _values}), max_size=6)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (Decimal("1.5"), Decimal("1.50"), True),
        (Decimal("1.5"), Decimal("1.51"), False),
        (_NOON, datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), True),
        (_NOON, _NOON + timedelta(microseconds=1), False),
        (math.nan, math.nan, True),
        (0.1 + 0.2, 0.3, True),
        (1.0, 1.0001, False),
        (math.inf, -math.inf, False),
        (None, None, True),
        (None, 0, False),
        ("1", 1, False),
        (True, 1, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ([("a", 1), ("b", 2.0)], [("b", 2.0 + _EPSILON), ("a", 1)], True),
        ([("a", 1)], [("a", 2)], False),
        ({"a": [None]}, {"a": [None]}, True),
        ({"a": None}, {}, False),
    ],
)
def test_values_are_equal_by_their_types(one: Any, two: Any, expected: bool) -> None:
    assert same(one, two) is expected
    assert same(two, one) is expected


@given(_rows, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_rows_are_equal_in_any_order(rows: list[dict[str, Any]], generator: random.Random) -> None:
    shuffled = [dict(reversed(list(row.items()))) for row in rows]
    generator.shuffle(shuffled)
    assert compare_rows(rows, shuffled).is_equal
    assert describe_comparison("rows", compare_rows(rows, shuffled)) == []


@given(_rows, _rows)
@settings(max_examples=100)
def test_every_row_is_in_one_place_of_the_result(wanted: list[dict[str, Any]], received: list[dict[str, Any]]) -> None:
    for ordered in (False, True):
        found = compare_rows(wanted, received, ordered=ordered)
        assert found.equal + len(found.different) + len(found.missing) == len(wanted)
        assert found.equal + len(found.different) + len(found.unexpected) == len(received)
        assert all(any(not same(each.expected[n], each.received[n]) for n in each.columns) for each in found.different)
        assert all(not any(same(one, two) for two in found.unexpected) for one in found.missing) or ordered


@given(_rows, st.data())
@settings(max_examples=60)
def test_one_changed_value_is_found(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    if not rows:
        return
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = [{**row, "id": row["id"] + 10} if number == at else row for number, row in enumerate(rows)]
    found = compare_rows(rows, changed)
    assert (found.is_equal, found.equal) == (False, len(rows) - 1)


def test_number_of_equal_rows_matters() -> None:
    found = compare_rows([{"a": 1}], [{"a": 1}, {"a": 1}])
    assert (found.equal, found.unexpected) == (1, ({"a": 1},))


def test_only_named_columns_are_compared_and_absent_ones_are_null() -> None:
    assert compare_rows([{"a": 1}], [{"a": 1, "b": 2}]).is_equal
    assert compare_rows([{"a": 1}, {"a": 2, "b": 3}], [{"a": 1, "b": None}, {"a": 2, "b": 3}]).is_equal
    assert not compare_rows([], [{"a": 1}]).is_equal


def test_near_numbers_are_matched_so_that_most_rows_are_equal() -> None:
    """The first partner that fits one row may be the only partner of another."""
    step = 0.7e-9
    wanted = [{"a": 1.0 + step}, {"a": 1.0}]
    received = [{"a": 1.0 + 1.5 * step}, {"a": 1.0 + 0.9 * step}]
    for rows in (received, received[::-1]):
        assert compare_rows(wanted, rows).equal == 2


def test_differences_are_shown_in_aligned_columns() -> None:
    wanted = [{"id": "a", "amount": Decimal("6.00")}, {"id": "b", "amount": None}, {"id": "same", "amount": None}]
    received = [{"id": "a", "amount": Decimal("5.00")}, {"id": "c", "amount": Decimal(1)}, {"id": "same"}]
    assert describe_comparison("rows", compare_rows(wanted, received)) == [
        "rows: 3 expected, 3 received, 1 of them equal",
        "                id  amount",
        "  - expected    a   6.00",
        "  + received    a   5.00    differs in amount",
        "  - missing     b   null",
        "  + unexpected  c   1",
    ]


def test_long_results_are_cut() -> None:
    lines = describe_comparison("rows", compare_rows([], [{"a": "x" * 100, "b": at} for at in range(30)]))
    assert lines[-1] == "  ... and 10 more"
    assert len(lines) == 23
    assert max(map(len, lines)) < 80
