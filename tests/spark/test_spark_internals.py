"""The private parts of Spark that Ottla uses; the campaign `spark-previous` runs them with the minor release before."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from ottla.spark.listening import QueryListener
from ottla.spark.offsets import compact_json
from ottla.spark.session import settings_of
from ottla.spark.spark_internals import (
    TOPIC_SOURCES,
    FileSystemMissing,
    RowsAhead,
    activate_session,
    check_file_system,
    check_streaming,
    count_streams,
    planned_batch,
    query_of_batch,
    stateful_inputs,
    stream_task,
    without_error_logs,
    write_offsets_with,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_WAIT_S = 120


def small_source() -> type[DataSource]:
    """Return a source of one batch with the numbers 1 and 2, which hands its rows over and cannot be read by a task."""

    class Reader(RowsAhead, DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:
            write_offsets_with(compact_json)
            return {"at": 0, "of": 2}

        def prepareForTriggerAvailableNow(self) -> None:
            """The end is always the same."""

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, int]:
            return {"at": 2, "of": 2}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            self.offer([pa.record_batch({"n": pa.array([1, 2], pa.int64())})])
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Any:
            raise AssertionError("the rows went ahead")

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "small"

        def schema(self) -> str:
            return "n long"

        def streamReader(self, schema: Any) -> Any:
            return Reader()

    return Source


class Progress(QueryListener):
    """Keeps the first progress."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.progress: Any = None

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.progress = self.progress or event.progress
        self.arrived.set()

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def test_running_batch_is_known_to_the_driver_its_tasks_and_listeners(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(small_source())
    seen: list[Any] = []

    def task_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            task = stream_task(required=True)
            yield pa.record_batch({"query": [task.query_id], "run": [task.run_id], "batch": [task.batch_id]})

    def note(rows: DataFrame, number: int) -> None:
        tasks = rows.mapInArrow(task_names, "query string, run string, batch long").distinct().collect()
        query = query_of_batch(spark)
        seen.append((number, query, planned_batch(spark, query), [tuple(row) for row in tasks], rows.count()))

    listener = Progress()
    spark.streams.addListener(listener)
    try:
        writer = spark.readStream.format("small").load().writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert listener.arrived.wait(_WAIT_S)
    finally:
        spark.streams.removeListener(listener)
    [(number, query_id, planned, tasks, count)] = seen
    offsets, watermark, _time = planned
    assert (number, query_id, watermark, count) == (0, query.id, 0, 2)
    assert offsets == [['{"at":0,"of":2}', '{"at":2,"of":2}']], "the process of the reader writes without spaces"
    assert tasks == [(query.id, query.runId, 0)]
    (source,) = listener.progress.sources
    assert (str(listener.progress.id), json.loads(source.endOffset)) == (query.id, {"at": 2, "of": 2})
    assert any(kind in source.description for kind in TOPIC_SOURCES)


def test_plan_names_the_inputs_of_operators_that_drop_late_rows(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    windows = stream.groupBy(F.window("timestamp", "1 hour")).count()
    (entering,) = stateful_inputs(windows)
    assert (entering.column, entering.is_window) == ("window", True)
    assert {"timestamp", "value", "window"} <= set(entering.rows.columns)
    (entering,) = stateful_inputs(stream.dropDuplicates(["value", "timestamp"]))
    assert (entering.column, entering.is_window) == ("timestamp", False)
    other = stream.select(F.col("timestamp").alias("at"), F.col("value").alias("n"))
    joined = stream.join(other, F.expr("value = n AND at BETWEEN timestamp AND timestamp + INTERVAL 1 HOUR"))
    assert [one.column for one in stateful_inputs(joined)] == ["timestamp", "at"]
    assert stateful_inputs(stream.where("value > 1")) == []
    assert [count_streams(rows) for rows in (stream, windows, joined, spark.range(1))] == [1, 1, 2, 0]


def test_operation_that_no_stream_supports_is_found_before_the_start(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = spark.readStream.format("rate").load()
    check_streaming(stream.where("value > 1"), updates=False)
    counts = stream.groupBy("value").count()
    check_streaming(counts, updates=True)
    with without_error_logs(), pytest.raises(AnalysisException, match="watermark"):
        check_streaming(counts, updates=False)
    with without_error_logs(), pytest.raises(AnalysisException, match="nonsense"):
        stream.select("nonsense")
    assert capfd.readouterr().err == ""
    assert logging.getLogger("SQLQueryContextLogger").disabled is False


def test_thread_gets_the_session(spark: SparkSession) -> None:
    found: list[bool] = []
    jvm: Any = spark._jvm  # type: ignore[attr-defined]

    def look() -> None:
        found.append(jvm.SparkSession.getActiveSession().isDefined())
        activate_session(spark)
        found.append(jvm.SparkSession.getActiveSession().isDefined())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False, True]


def test_missing_file_system_is_found_before_a_query_starts(spark: SparkSession) -> None:
    for uri in ("/lake/_checkpoints", "file:///lake", "hdfs://name-node/lake"):
        check_file_system(spark, uri)
    for uri in ("s3://bucket/lake", "s3a://bucket/lake"):
        with pytest.raises(FileSystemMissing, match=r"add org\.apache\.hadoop:hadoop-aws:\d+\.\d+\.\d+ to spark\.jars"):
            check_file_system(spark, uri)
    with pytest.raises(FileSystemMissing, match="Spark has no file system for oss://"):
        check_file_system(spark, "oss://bucket/lake")


def test_classes_named_in_settings_exist(spark: SparkSession) -> None:
    jvm: Any = spark._jvm  # type: ignore[attr-defined]
    settings = settings_of("x", "local[1]", {}, {})
    classes = [value for value in settings.values() if value.startswith("org.apache.spark.")]
    assert len(classes) == 2
    for name in classes:
        jvm.Thread.currentThread().getContextClassLoader().loadClass(name)
