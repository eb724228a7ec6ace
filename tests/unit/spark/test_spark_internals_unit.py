"""What happens with a Spark that lacks a private part, and the private parts that need no session."""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from ottla.spark import spark_internals
from ottla.spark.offsets import compact_json
from ottla.spark.spark_internals import (
    PLANNERS,
    RowsAhead,
    SparkInternalMissing,
    StreamTask,
    activate_session,
    arrow_schema_of,
    check_streaming,
    complete_environments,
    count_streams,
    is_submitted,
    java_errors,
    planned_batch,
    query_of_batch,
    run_planner,
    spark_type_of,
    stateful_inputs,
    stream_task,
    without_error_logs,
    write_offsets_with,
)


class Reader(RowsAhead, DataSourceStreamReader):
    """A stream reader that offers what it is given."""

    def read(self, partition: Any) -> Any:
        raise NotImplementedError


def raising(error: Exception) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


def nothing() -> Any:
    """A session or rows of a Spark that has none of the private names."""
    return SimpleNamespace(sparkSession=SimpleNamespace())


@pytest.mark.parametrize(
    "use",
    [
        lambda: activate_session(nothing()),
        lambda: planned_batch(nothing(), "query"),
        lambda: stateful_inputs(nothing()),
        lambda: count_streams(nothing()),
    ],
)
def test_missing_private_part_is_named_with_the_version_of_spark(use: Any) -> None:
    with pytest.raises(SparkInternalMissing, match=r"Spark \d+\.\d+\.\d+ does not offer .* pip install .*\[spark\]'"):
        use()


def test_missing_method_of_a_java_object_is_named() -> None:
    missing = Py4JError("An error occurred while calling o1.streams. Trace:\nMethod streams([]) does not exist")
    session: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(streams=raising(missing)))
    with pytest.raises(SparkInternalMissing, match="the plan of a running micro-batch"):
        planned_batch(session, "query")


def test_unknown_class_is_named() -> None:
    """Py4J takes it for a package, which cannot be called."""
    not_callable = TypeError("'JavaPackage' object is not callable")
    jvm = SimpleNamespace(SparkSession=SimpleNamespace(setActiveSession=raising(not_callable)))
    session: Any = SimpleNamespace(_jvm=jvm, _jsparkSession=None)
    with pytest.raises(SparkInternalMissing, match="JavaPackage"):
        activate_session(session)


def test_dead_java_process_is_not_taken_for_a_missing_part() -> None:
    java = SimpleNamespace(sharedState=raising(Py4JNetworkError("no answer")))
    session: Any = SimpleNamespace(_jvm=SimpleNamespace(), _jsparkSession=java)
    with pytest.raises(java_errors(), match="no answer"):
        planned_batch(session, "query")


def test_checks_and_precautions_that_are_missing_cost_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        check_streaming(nothing(), updates=False)
        complete_environments(nothing(), ["ottla"], {})
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "operations that a stream does not support are reported only when it starts",
        "streams of one source that start at the same moment may fail",
    ]


def test_process_that_spark_submit_started_is_recognised() -> None:
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "40000"})
    assert not is_submitted({})


def test_task_of_a_stream_without_its_micro_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_task(required=True) == StreamTask(), "outside of tasks there is none"
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=lambda name: None))
    assert stream_task() == StreamTask()
    with pytest.raises(SparkInternalMissing, match="micro-batch"):
        stream_task(required=True)


def test_batch_without_the_id_of_its_query_is_refused() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda name: None))
    with pytest.raises(SparkInternalMissing, match="the id of a query"):
        query_of_batch(session)


def test_types_go_to_arrow_and_back() -> None:
    schema = StructType(
        [StructField("k", BinaryType()), StructField("at", TimestampType()), StructField("n", LongType())]
    )
    arrow = arrow_schema_of(schema)
    assert [field.type for field in arrow] == [pa.binary(), pa.timestamp("us", "UTC"), pa.int64()]
    assert [spark_type_of(field.type) for field in arrow] == [field.dataType for field in schema]


def test_reader_passes_for_sparks_wrapper_only_while_it_offers_rows() -> None:
    reader = Reader()
    rows = [pa.record_batch({"n": [1]})]
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    reader.offer(rows)
    assert isinstance(reader, _SimpleStreamReaderWrapper)
    assert list(reader.getCache({}, {})) == rows
    assert not isinstance(reader, _SimpleStreamReaderWrapper)


def test_nothing_is_offered_to_a_spark_that_takes_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_internals, "_simple_reader_wrapper", lambda: None)
    reader = Reader()
    reader.offer([pa.record_batch({"n": [1]})])
    assert reader.__class__ is Reader


def test_process_of_a_stream_reader_writes_offsets_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
    monkeypatch.setattr(runner, "json", json)
    write_offsets_with(compact_json)
    assert runner.json.dumps({"t": {"0": 1}}) == '{"t":{"0":1}}'
    assert runner.json.loads('{"t": 1}') == {"t": 1}


def test_loggers_of_query_errors_are_enabled_again() -> None:
    loggers = [logging.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    with without_error_logs():
        assert all(logger.disabled for logger in loggers)
    assert not any(logger.disabled for logger in loggers)


def test_planner_serves_only_a_client_that_knows_the_secret() -> None:
    spark, ours = socket.socketpair()
    server = threading.Thread(target=run_planner, args=(ours, PLANNERS[0], "secret"))
    server.start()
    with spark, spark.makefile("rwb") as stream:
        assert struct.unpack("!i", stream.read(4)) == (os.getpid(),)
        stream.write(struct.pack("!i", 5) + b"wrong")
        stream.flush()
        assert stream.read() == struct.pack("!i", 3) + b"err"
    server.join()
