"""Declared tests of flows compare every output that they expect, without Spark: the results are given."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from ottla.pipeline import testing
from ottla.pipeline.flow_tests import ExpectedRows, FlowTest
from ottla.pipeline.problems import Place
from ottla.pipeline.testing import FlowResult, Output, TestResult, run_tests

_PLACE = Place("tests/shop.yaml", 1, 1)
_RESULT = FlowResult(
    Output(name="rows", schema=StructType().add("a", IntegerType()), rows=[{"a": 1}]),
    Output(name="quarantine", schema=StructType().add("_cause", StringType()), rows=[]),
    {"out": Output(name="topic out", schema=StructType().add("_key", BinaryType()), rows=[{"_key": b"a"}])},
)


class GivenResult:
    """Stands for the tester of flows."""

    def __init__(self, declaration: Any, spark: Any) -> None:
        pass

    def run(self, name: str, given: Any) -> FlowResult:
        return _RESULT


def result_of(monkeypatch: pytest.MonkeyPatch, **expected: tuple[dict[str, Any], ...]) -> TestResult:
    monkeypatch.setattr(testing, "FlowTester", GivenResult)
    rows = tuple(
        ExpectedRows(name=name.replace("_", " "), rows=each, place=_PLACE) for name, each in expected.items()
    )  # fmt: skip
    test = FlowTest(name="one", flow="big", parameters={}, given={}, expected=rows, place=_PLACE)
    spark: Any = None
    (result,) = run_tests([test], lambda parameters: spark, spark, clock=lambda: 0.0)
    return result


def test_all_outputs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result_of(monkeypatch, rows=({"a": 1},), quarantine=(), topic_out=({"_key": "a"},)).passed


def test_other_record_of_a_topic_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(monkeypatch, topic_out=({"_key": "b"},))
    assert not result.passed and result.error is None
    assert list(result.comparisons) == ["topic out"]


def test_topic_that_the_flow_does_not_write_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(monkeypatch, topic_outt=())
    assert result.error == "the flow has no output 'topic outt'; write topic out"
