"""Unit tests of flows, as users write them: the tests of the example project, and flows that are declared in Python."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.pipeline import Arguments, Pipeline, load
from ottla.pipeline.flow_tests import FlowTestReader
from ottla.pipeline.load import find_beside, read_beside
from ottla.pipeline.problems import Problems
from ottla.pipeline.testing import FlowFailed, FlowTester, GivenRefused, run_flow, run_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders_project"
_AVRO = '{"type": "record", "name": "o", "fields": [{"name": "key", "type": "string"}, {"name": "n", "type": "long"}]}'


def test_tests_of_the_example_project_pass_and_a_wrong_row_is_found(spark: SparkSession) -> None:
    top = str(_EXAMPLE / "pipeline.yaml")
    tests = FlowTestReader(top, Problems(), read_beside(top), find_beside(top)).read()
    assert {test.flow for test in tests} >= {"orders_trusted", "customers_trusted", "revenue_per_country"}
    results = list(run_tests(tests, lambda parameters: load(top, Arguments(parameters=parameters)), spark))
    assert [line for result in results for line in result.lines] == []
    given = [{"order_id": "a", "amount": 5}]
    result = FlowTester(load(top), spark).run("orders_trusted", {"orders_staged": given})
    with pytest.raises(AssertionError) as raised:
        result.assert_rows([{"order_id": "a", "amount": "5.01"}])
    assert "differs in amount" in str(raised.value)


@pytest.fixture
def shop(tmp_path: Path) -> Pipeline:
    """A pipeline in Python: a view, an expectation that fails, nested types, and a source in framed Avro."""
    (tmp_path / "orders.avsc").write_text(_AVRO)
    nested = {"id": "int", "tags": ["string"], "prices": "map<string, decimal(10,2)>", "at": "timestamp", "x": "double"}
    avro = {"topic": "out.avro", "format": "avro", "schema_file": str(tmp_path / "orders.avsc")}
    shop = Pipeline("shop", storage="lake", parameters={"least": {"type": "int", "default": 0}})
    shop.source("things", topic="things", format="json", schema=nested)
    framing = {"confluent": {7: str(tmp_path / "orders.avsc")}}
    shop.source("orders", topic="orders", format="avro", schema_file=str(tmp_path / "orders.avsc"), framing=framing)
    shop.flow("things_staged", zone="staging", from_="things")
    deletes = {"topic": "out", "key": "key", "tombstone_when": "n < 0"}
    shop.flow(
        "orders_staged", zone="staging", from_="orders", to=[deletes, {**deletes, **avro}, {"table": "orders_staged"}]
    )
    shop.flow(
        "known", zone="trusted", from_="things_staged", kind="view", sql="SELECT * FROM things_staged WHERE id > 0"
    )

    @shop.table(zone="trusted", expect=[{"name": "small", "that": "id < 100", "on_violation": "fail"}])
    def doubled(known: Any) -> Any:
        least = shop.parameters["least"]
        return known.where(f"id > {least}").selectExpr(
            "id * 2 AS id", "tags", "prices", "at", "x", "_topic", "_partition", "_offset"
        )

    return shop


def test_flow_of_python_is_run_with_views_parameters_and_nested_values(spark: SparkSession, shop: Pipeline) -> None:
    row = {"id": 1, "tags": ["a", None], "prices": {"EUR": "1.5"}, "at": "2026-01-31T12:00:00+01:00", "x": 0.1 + 0.2}
    result = run_flow(shop, "doubled", {"things_staged": [row, {"id": 0}]}, spark=spark)
    result.assert_rows([{**row, "id": 2, "x": 0.3}])
    assert result.rows[0]["prices"] == [("EUR", Decimal("1.50"))]
    assert result.rows[0]["at"] == datetime(2026, 1, 31, 11, tzinfo=UTC)
    # Rows of the view itself take the place of its query; a parameter has another value.
    result = run_flow(shop, "doubled", {"known": [{"id": 0}, {"id": 7}]}, spark=spark, parameters={"least": 5})
    result.assert_rows([{"id": 14, "tags": None, "_offset": 1, "_topic": "things"}])
    with pytest.raises(FlowFailed, match="does not hold: small"):
        run_flow(shop, "doubled", {"known": [{"id": 50}]}, spark=spark)
    with pytest.raises(GivenRefused, match=r"given known: row 2: column id: 'x' does not fit; write a whole number"):
        run_flow(shop, "doubled", {"known": [{"id": 1}, {"id": "x"}]}, spark=spark)
    with pytest.raises(GivenRefused, match="flow 'doubled' does not read 'orders'; write one of known, things_staged"):
        run_flow(shop, "doubled", {"orders": []}, spark=spark)


def test_given_fields_are_encoded_and_records_of_topics_are_decoded(spark: SparkSession, shop: Pipeline) -> None:
    given = [{"key": "a", "n": 1, "_key": "k"}, {"key": "b", "n": -1}, {"value": "no Avro", "_offset": 9}]
    result = run_flow(shop, "orders_staged", {"orders": given}, spark=spark)
    result.assert_rows([{"key": "a", "n": 1, "_key": "k", "_offset": 0}, {"key": "b", "n": -1, "_offset": 1}])
    result.assert_topic("out", [{"_key": "a", "value": '{"key":"a","n":1}', "n": 1}, {"_key": "b", "value": None}])
    result.assert_topic("out.avro", [{"_key": "a", "key": "a", "n": 1}, {"_key": "b", "n": None}])
    result.assert_quarantine([{"value": "no Avro", "_offset": 9}])
    (rejected,) = result.quarantine
    assert rejected["_cause"]
