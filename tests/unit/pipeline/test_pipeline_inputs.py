"""What a materialized view reads is decided once per refresh; a watermark that is missing is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from small_pipeline import HEAD

from ottla.model.types import TopicPartition
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.sql.types import StringType, StructField, StructType

from ottla.pipeline import exactly_once, flow_runs
from ottla.pipeline import inputs as module
from ottla.pipeline.failures import is_final
from ottla.spark.offsets import PartitionOffsets

SCHEMA = StructType([StructField("order_id", StringType())])


class Reader:
    """Stands for `spark.read`: notes the options of each read."""

    def __init__(self, reads: list[dict[str, str]]) -> None:
        self._reads = reads
        self._options: dict[str, str] = {}

    def format(self, name: str) -> Self:
        return self

    def schema(self, schema: StructType) -> Self:
        return self

    def options(self, **options: str) -> Self:
        self._options |= options
        return self

    def load(self, path: str = "") -> Any:
        self._reads.append(self._options)
        return SimpleNamespace(select=lambda *columns: "rows")


class Spark:
    """Stands for a session."""

    def __init__(self) -> None:
        self.reads: list[dict[str, str]] = []

    @property
    def read(self) -> Reader:
        return Reader(self.reads)

    def createDataFrame(self, rows: list[Any], schema: StructType) -> str:
        return "no rows"


@pytest.fixture
def declaration(read: Callable[..., Declaration], tmp_path: Path) -> Declaration:
    text = (
        HEAD
        + "  other: {zone: staging, from: orders}\n  view: {zone: trusted, kind: materialized_view, from: staged}\n"
    )
    return replace(read(text), file=str(tmp_path / "p.yaml"))


def add_rows(declaration: Declaration, name: str) -> None:
    write_deltalake(Layout.of(declaration).table("staging", name), pa.table({"order_id": ["a"]}), mode="append")


def open_inputs(declaration: Declaration) -> tuple[Spark, module.Inputs]:
    spark = Spark()
    schemas = {"staged": SCHEMA, "other": SCHEMA}
    return spark, module.Inputs(spark, declaration, Layout.of(declaration), schemas)  # type: ignore[arg-type]


def test_pinned_tables_are_read_at_the_versions_that_they_had(declaration: Declaration) -> None:
    add_rows(declaration, "staged")
    add_rows(declaration, "staged")
    spark, inputs = open_inputs(declaration)
    read = inputs.pinned(["staged", "other"])
    for name in ("staged", "other"):
        add_rows(declaration, name)
    read("staged")
    read("staged")
    assert read("other") == "no rows", "the table did not exist when it was pinned"
    assert [each["versionAsOf"] for each in spark.reads] == ["1", "1"]


def test_pinned_topic_is_read_up_to_the_offsets_that_it_had(
    declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [7]

    class Watcher:
        def __init__(self, options: Any) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

        def resolve(self, bound: Any, option: str, *, starting: bool) -> PartitionOffsets:
            assert not starting
            return PartitionOffsets({TopicPartition("shop.orders", 0): ends[0]})

    monkeypatch.setattr(module, "TopicWatcher", Watcher)
    monkeypatch.setattr(module, "_raw", lambda rows: rows)
    spark, inputs = open_inputs(declaration)
    read = inputs.pinned(["orders"])
    ends[0] = 9
    read("orders")
    read("orders")
    assert [json.loads(each["endingOffsets"]) for each in spark.reads] == [{"shop.orders": {"0": 7}}] * 2


def test_refresh_of_a_materialized_view_pins_all_inputs_before_it_plans(
    declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows(declaration, "staged")
    spark, inputs = open_inputs(declaration)

    class Planner:
        def __init__(self, spark: Any, graph: Graph, read: Callable[[str], Any]) -> None:
            self._read = read

        def work(self, flow: Any) -> Any:
            add_rows(declaration, "staged")
            return SimpleNamespace(rows=self._read("staged"))

    writer = SimpleNamespace(write=lambda rows, batch: "counts")
    monkeypatch.setattr(flow_runs, "Planner", Planner)
    monkeypatch.setattr(flow_runs, "FlowWriter", lambda *arguments, **more: writer)
    session = SimpleNamespace(
        spark=spark, graph=Graph(declaration), inputs=inputs, declaration=declaration, layout=Layout.of(declaration)
    )
    assert flow_runs.refresh_view(session, declaration.flows["view"]) == "counts"  # type: ignore[arg-type, comparison-overlap]
    assert [each["versionAsOf"] for each in spark.reads] == ["0"]


def test_watermark_of_a_batch_is_that_of_its_offset_file_and_the_first_batch_has_none(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text('v1\n{"batchWatermarkMs":60000}\n-')
    assert exactly_once.read_watermark(str(tmp_path), 4).timestamp() == 60
    assert exactly_once.read_watermark(str(tmp_path), -1) is None


def test_missing_offset_file_is_an_error_that_ends_the_flow_because_late_rows_would_reach_no_output(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        exactly_once.WatermarkMissing, match=r"offsets/3 is missing.*nothing was written.*Restore"
    ) as missing:
        exactly_once.read_watermark(str(tmp_path), 3)
    assert is_final(RuntimeError(f"ottla.pipeline.exactly_once.WatermarkMissing: {missing.value}"))
