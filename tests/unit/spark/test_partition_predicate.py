"""Which partitions `replaceWhere` takes: the same as the predicate in Spark's SQL."""

from __future__ import annotations

import pytest

from ottla.spark.options import OptionError
from ottla.spark.partition_predicate import PartitionPredicate, unescape


@pytest.mark.parametrize(
    ("where", "kind", "value", "matches"),
    [
        ("p >= 10", "double", "9.5", False),
        ("p < 10", "float", "9.5", True),
        ("p >= 10", "long", "9", False),
        ("p = '05'", "integer", "5", True),
        ("p = 'it''s'", "string", "it's", True),
        (r"p = 'it\'s'", "string", "it's", True),
        (r"p = 'a\\b'", "string", r"a\b", True),
        (r"p = 'a\\b'", "string", r"a\\b", False),
        (r"p = 'a\tb'", "string", "a\tb", True),
        ('p = "it\'s"', "string", "it's", True),
        (r"p = 'a\''''", "string", "a''", True),
        ("p = 'a\"\"b'", "string", 'a""b', True),
        ('p IN ("a""b", "c")', "string", 'a"b', True),
        ("p > '2026-01-01T01:00:00+02:00'", "timestamp", "2025-12-31 23:00:00", False),
        ("p >= '2026-01-01T01:00:00+02:00'", "timestamp", "2025-12-31 23:00:00", True),
        ("p <> 'a'", "string", None, False),
        ("p IS NULL", "string", None, True),
    ],
)
def test_partition_is_compared_by_its_type(where: str, kind: str, value: str | None, matches: bool) -> None:
    assert PartitionPredicate.parse(where, {"p": kind}).matches((("p", value),)) is matches


@pytest.mark.parametrize(
    ("where", "kind", "what"),
    [
        ("p = 5", "string", "write '5' in quotes"),
        ("p = 'x", "string", "cannot be understood"),
        (r"p = 'x\'", "string", "cannot be understood"),
        ("p <=> 5", "long", "cannot be understood at '<=>'"),
        ("p NOT IN (5)", "long", "cannot be understood at 'NOT'"),
        ("p LIKE 'x%'", "string", "cannot be understood at 'LIKE'"),
        ("p = 1 + 1", "long", r"cannot be understood at '\+ 1'"),
        ("p = 1.5", "long", "which is not of type long"),
        ("NOT p = 1", "long", "partition columns only"),
        ("p = 1 OR p = 2", "long", "needs AND instead of 'OR'"),
        ("p = 1 -- p", "long", "cannot be understood at '-- p'"),
    ],
)
def test_predicate_that_is_not_surely_understood_is_refused(where: str, kind: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        PartitionPredicate.parse(where, {"p": kind})


def test_escapes_are_those_of_spark() -> None:
    assert unescape(r"\n\t\r\b\0\Z\\\'\"\x\%\_\u0041\101") == "\n\t\r\b\0\x1a\\'\"x\\%\\_AA"
