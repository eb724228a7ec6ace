"""Values of tests become values of Spark's types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ottla.pipeline.given_rows import json_text
from ottla.pipeline.row_values import BadValue, convert_row, convert_value

_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_STRUCT = StructType([StructField("a", IntegerType()), StructField("B", StringType())])


@pytest.mark.parametrize(
    ("value", "type", "expected"),
    [
        (None, IntegerType(), None),
        ("5", LongType(), 5),
        (Decimal("5"), IntegerType(), 5),
        (127, ByteType(), 127),
        (5, StringType(), "5"),
        (Decimal("5.10"), StringType(), "5.10"),
        ("5.1", DecimalType(10, 2), Decimal("5.10")),
        (5, DecimalType(10, 2), Decimal("5.00")),
        ("0.1", FloatType(), 0.10000000149011612),
        (1, DoubleType(), 1.0),
        ("inf", DoubleType(), math.inf),
        ("TRUE", BooleanType(), True),
        ("2026-01-31", DateType(), date(2026, 1, 31)),
        ("2026-01-31T13:00:00+01:00", TimestampType(), _NOON),
        ("2026-01-31 12:00:00", TimestampType(), _NOON),
        ("2026-01-31T12:00:00", TimestampNTZType(), datetime(2026, 1, 31, 12)),
        ("é", BinaryType(), "é".encode()),
        ({"base64": "/w=="}, BinaryType(), b"\xff"),
        (["1", None], ArrayType(IntegerType()), [1, None]),
        ("[1, 2]", ArrayType(IntegerType()), [1, 2]),
        ({"a": "1"}, MapType(StringType(), LongType()), [("a", 1)]),
        ({"b": 5}, _STRUCT, {"a": None, "B": "5"}),
        ('{"a": 1}', _STRUCT, {"a": 1, "B": None}),
    ],
)
def test_value_becomes_that_of_its_type(value: Any, type: DataType, expected: Any) -> None:
    converted = convert_value(value, type)
    assert converted == expected
    assert str(converted) == str(expected)


@pytest.mark.parametrize(
    ("value", "type", "wanted"),
    [
        ("five", LongType(), "a whole number"),
        (True, LongType(), "a whole number"),
        (128, ByteType(), "a whole number of 8 bits"),
        (Decimal("1.5"), IntegerType(), "a whole number"),
        ("5.101", DecimalType(10, 2), r"a number that fits decimal\(10,2\)"),
        ("1e9", DecimalType(10, 2), r"a number that fits decimal\(10,2\)"),
        ("NaN", DecimalType(10, 2), r"a number that fits decimal\(10,2\)"),
        (True, DecimalType(10, 2), "a decimal number"),
        ("x", DoubleType(), "a number"),
        ("yes", BooleanType(), "true or false"),
        ("31.1.2026", DateType(), "a date such as"),
        (5, TimestampType(), "a time such as"),
        ("2026-01-31T12:00:00Z", TimestampNTZType(), "a time without a time zone"),
        (5, BinaryType(), "text, or"),
        ({"base64": "*"}, BinaryType(), "base64"),
        ("[1", ArrayType(IntegerType()), "JSON"),
        ({"a": 1}, ArrayType(IntegerType()), "a list"),
        (True, StringType(), "text"),
        ([1], _STRUCT, "a mapping"),
    ],
)
def test_value_that_does_not_fit_says_what_to_write(value: Any, type: DataType, wanted: str) -> None:
    with pytest.raises(BadValue, match=f"write {wanted}"):
        convert_value(value, type)


def test_row_names_its_columns_in_any_case_and_unknown_ones_are_refused() -> None:
    assert convert_row({"A": 1}, _STRUCT) == {"a": 1}
    with pytest.raises(BadValue, match="there is no column 'c'; write one of a, B"):
        convert_row({"c": 1}, _STRUCT)
    with pytest.raises(BadValue, match="column a: 'x' does not fit; write a whole number"):
        convert_row({"a": "x"}, _STRUCT)


def test_json_keeps_every_digit() -> None:
    assert json_text({'é"': Decimal("1.50"), "b": [1.5, None, True], "at": _NOON}) == (
        '{"\\u00e9\\"": 1.50, "b": [1.5, null, true], "at": "2026-01-31T12:00:00+00:00"}'
    )
