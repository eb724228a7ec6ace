"""Writing with format("ottla"): rows arrive as they are, and those of a stream once."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from random_topic import Row, consume

from ottla.spark import sink
from ottla.spark.columns import RowsRefused
from ottla.spark.commit import CheckpointMismatch, DriverFenced
from ottla.spark.sink import StagedMessage, StreamWriter
from ottla.spark.source import OttlaDataSource
from ottla.spark.spark_internals import StreamTask
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.broker, pytest.mark.client]

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
DELIVERIES = ("exactly-once", "at-least-once")


def values(broker: BrokerProcess, topic: str, partitions: int = 2) -> Counter[bytes | None]:
    return Counter(row.value for row in consume(broker.bootstrap, topic, partitions, committed=True))


# -- the writer, called as Spark calls it but without its JVM -------------------------------------------------------


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process the task of a batch of a query."""

    def become(batch_id: int, query_id: str = "", run_id: str = "run") -> None:
        monkeypatch.setattr(sink, "stream_task", lambda required: StreamTask(query_id, run_id, batch_id))

    return become


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """What a committing process keeps is not kept between tests."""
    yield
    forget_process()


def forget_process() -> None:
    while sink._protocols:
        _, (_, protocol, _) = sink._protocols.popitem()
        protocol.close()
    sink._sweep_again_at.clear()


def writer_of(broker: BrokerProcess, topic: str, checkpoint: str, **options: str) -> StreamWriter:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "checkpointLocation": checkpoint, **options}
    return OttlaDataSource(given).streamWriter(SCHEMA, False)


def table(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"key": [f"k{n}" for n in numbers], "value": [b"%d" % n for n in numbers]})


def plan(checkpoint: str, batch_id: int, offsets: object) -> None:
    """What Spark writes before a batch runs."""
    path = Path(checkpoint, "offsets", str(batch_id))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"v1\n{json.dumps({'batchTimestampMs': os.urandom(4).hex()})}\n{json.dumps(offsets)}")


def test_attempt_that_loses_leaves_nothing_but_a_file_that_is_swept(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    plan(checkpoint, 0, {"in": {"0": 5}})
    writer = writer_of(broker, topic, checkpoint, **{"ottla.inline.bytes.max": "1"})
    loser, winner = writer.write(table(1, 2, 3)), writer.write(table(1, 2, 3))
    assert len(list(Path(checkpoint).rglob("*.batches"))) == 2
    writer.commit([winner], 0)
    assert loser != winner
    assert values(broker, topic) == Counter([b"1", b"2", b"3"])
    assert not list(Path(checkpoint).rglob("*.batches"))


def test_attempts_may_differ_in_tasks_and_rows(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    plan(checkpoint, 0, {"in": {"0": 5}})
    writer_of(broker, topic, checkpoint).commit(
        [writer_of(broker, topic, checkpoint).write(table(1, 2)), writer_of(broker, topic, checkpoint).write(table(3))],
        0,
    )
    forget_process()
    writer_of(broker, topic, checkpoint).commit([writer_of(broker, topic, checkpoint).write(table(3, 9))], 0)
    assert values(broker, topic) == Counter([b"1", b"2", b"3"])


def test_failed_tasks_have_no_message_and_nothing_is_written(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    writer = writer_of(broker, topic, checkpoint, **{"ottla.inline.bytes.max": "1"})
    writer.abort([writer.write(table(1)), None], 0)
    assert values(broker, topic) == Counter()
    assert not list(Path(checkpoint).rglob("*.batches"))


def test_task_that_raises_leaves_no_file(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from table(*range(1000))
        raise RowsRefused("no more")

    task(0, f"{topic}-q")
    writer = writer_of(broker, topic, checkpoint, **{"ottla.inline.bytes.max": "1", "kafka.max.request.size": "1000"})
    with pytest.raises(RowsRefused):
        writer.write(rows())
    assert not list(Path(checkpoint).rglob("*.batches"))


def test_same_batch_from_other_source_offsets_is_reported(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    writer = writer_of(broker, topic, checkpoint)
    plan(checkpoint, 0, {"in": {"0": 5}})
    writer.commit([writer.write(table(1))], 0)
    # The metadata of a batch may change from attempt to attempt, its offsets may not.
    plan(checkpoint, 0, {"in": {"0": 5}})
    forget_process()
    writer.commit([writer.write(table(1))], 0)
    plan(checkpoint, 0, {"in": {"0": 6}})
    forget_process()
    with pytest.raises(CheckpointMismatch, match="restored from an older copy"):
        writer.commit([writer.write(table(1, 2))], 0)
    assert values(broker, topic) == Counter([b"1"])


def test_driver_that_was_replaced_fails_with_a_clear_message(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    writer = writer_of(broker, topic, checkpoint)
    for batch_id in range(2):
        plan(checkpoint, batch_id, {"in": {"0": batch_id}})
    writer.commit([writer.write(table(1))], 0)
    old, _ = dict(sink._protocols), sink._protocols.clear()
    writer.commit([writer.write(table(2))], 1)
    forget_process()
    sink._protocols.update(old)
    with pytest.raises(DriverFenced, match="another driver has taken over"):
        writer.commit([writer.write(table(2))], 1)
    assert values(broker, topic) == Counter([b"1", b"2"])


def test_task_on_another_host_puts_its_rows_into_the_message(
    broker: BrokerProcess, topic: str, checkpoint: str, task: Callable[..., None]
) -> None:
    task(0, f"{topic}-q")
    writer = writer_of(broker, topic, checkpoint, **{"ottla.inline.bytes.max": "1"})
    writer.driver_host = "elsewhere"
    plan(checkpoint, 0, {"in": {"0": 5}})
    message = writer.write(table(1, 2))
    assert isinstance(message, StagedMessage)
    assert message.staged.file is None
    writer.commit([message], 0)
    assert values(broker, topic) == Counter([b"1", b"2"])


def test_topic_that_does_not_exist_is_named(broker: BrokerProcess, checkpoint: str, task: Callable[..., None]) -> None:
    task(0)
    with pytest.raises(RowsRefused, match="topic nowhere does not exist"):
        writer_of(broker, "nowhere", checkpoint).write(table(1))


# -- with Spark -----------------------------------------------------------------------------------------------------


@pytest.fixture
def options(broker: BrokerProcess, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}


def feed(broker: BrokerProcess, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in numbers:
        producer.produce(topic, key=b"k%d" % (number % 10), value=b"%d" % number)
    producer.flush()


def stream(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def run(rows: DataFrame, checkpoint: str, options: dict[str, str], *, seconds: int = 90) -> StreamingQuery:
    writer = rows.writeStream.format("ottla").options(**options).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(seconds)
    return query


@pytest.mark.spark
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_batch_write_takes_all_columns(spark: SparkSession, broker: BrokerProcess, topic: str, delivery: str) -> None:
    rows = spark.sql(
        f"""SELECT * FROM VALUES
          ('{topic}', 1, 'key', 'value', TIMESTAMP_MILLIS(1000), array(named_struct('key', 'h', 'value', X'01'))),
          ('{topic}', 0, NULL, NULL, TIMESTAMP_MILLIS(2000), NULL)
          AS t(topic, partition, key, value, timestamp, headers)"""
    )
    given = {"kafka.bootstrap.servers": broker.bootstrap, "ottla.delivery": delivery, "kafka.compression.type": "zstd"}
    rows.write.format("ottla").mode("append").options(**given).save()
    found = [row._replace(offset=0) for row in consume(broker.bootstrap, topic, 2, committed=True)]
    assert found == [
        Row(0, 0, None, None, 2000, 0, ()),
        Row(1, 0, b"key", b"value", 1000, 0, (("h", b"\x01"),)),
    ]


@pytest.mark.spark
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_many_rows_arrive_once_in_files_and_messages(
    spark: SparkSession, broker: BrokerProcess, topic: str, options: dict[str, str], delivery: str, tmp_path: Path
) -> None:
    rows = spark.range(0, 50_000, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    more = {"ottla.delivery": delivery, "stagingDir": str(tmp_path / "staging"), "ottla.inline.bytes.max": "300000"}
    rows.write.format("ottla").mode("append").options(**options, **more).save()
    assert values(broker, topic) == Counter(b"%d" % number for number in range(50_000))
    assert not list(tmp_path.rglob("*.batches"))


@pytest.mark.spark
def test_wrong_schemas_are_refused_before_anything_runs(spark: SparkSession, options: dict[str, str]) -> None:
    def write(rows: DataFrame, **more: Any) -> None:
        given = {name: value for name, value in {**options, **more}.items() if value is not None}
        rows.write.format("ottla").mode("append").options(**given).save()

    with pytest.raises(PySparkException, match="Required attribute 'value' not found"):
        write(spark.range(1).selectExpr("'k' AS key"))
    with pytest.raises(PySparkException, match="topic option required when no 'topic' attribute is present"):
        write(spark.range(1).selectExpr("'v' AS value"), topic=None)
    with pytest.raises(PySparkException, match="column value must be string or binary"):
        write(spark.range(1).selectExpr("id AS value"))
    with pytest.raises(PySparkException, match="did you mean 'topic'"):
        write(spark.range(1).selectExpr("'v' AS value"), topik="x")


@pytest.mark.spark
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_stream_from_topic_to_topic_goes_on_where_it_stopped(
    spark: SparkSession, broker: BrokerProcess, topics: Callable[..., str], checkpoint: str,
    options: dict[str, str], delivery: str,
) -> None:  # fmt: skip
    source = topics(2)
    rows = stream(spark, broker, source, maxOffsetsPerTrigger="400").select("key", "value")
    for numbers in (range(1000), range(1000, 1500)):
        feed(broker, source, numbers)
        run(rows, checkpoint, {**options, "ottla.delivery": delivery})
    assert values(broker, options["topic"]) == Counter(b"%d" % number for number in range(1500))
    assert not list(Path(checkpoint).rglob("*.batches"))


@pytest.mark.spark
def test_tasks_that_fail_with_half_of_their_rows_written_are_repeated_and_then_the_query_is(
    spark: SparkSession, broker: BrokerProcess, topics: Callable[..., str], checkpoint: str,
    options: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    source, trap = topics(2), str(tmp_path / "trap")
    feed(broker, source, range(600))

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            assert context.attemptNumber() > 0, "a first attempt"
            assert not os.path.exists(trap), "into the trap"
            yield batch.slice(len(batch) // 2)

    rows = stream(spark, broker, source, maxOffsetsPerTrigger="300").select("key", "value")
    rows = rows.mapInArrow(pass_on, rows.schema)
    Path(trap).touch()
    with arrow_batches_of(spark, 10):
        with pytest.raises(StreamingQueryException, match="into the trap"):
            run(rows, checkpoint, options)
        assert values(broker, options["topic"]) == Counter()
        os.remove(trap)
        run(rows, checkpoint, options)
    assert values(broker, options["topic"]) == Counter(b"%d" % number for number in range(600))
    assert not list(Path(checkpoint).rglob("*.batches"))


@contextmanager
def arrow_batches_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """Rows reach a writer in so small pieces that it has some before the others fail."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.spark
def test_forgotten_batch_is_written_once_and_a_checkpoint_restored_from_an_older_copy_is_reported(
    spark: SparkSession, broker: BrokerProcess, topics: Callable[..., str], checkpoint: str, options: dict[str, str]
) -> None:
    source = topics(2)
    rows = stream(spark, broker, source).select("key", "value")
    feed(broker, source, range(100))
    run(rows, checkpoint, options)
    shutil.copytree(checkpoint, f"{checkpoint}-older")
    feed(broker, source, range(100, 200))
    run(rows, checkpoint, options)
    # As if the driver had died between the sink's commit and its own.
    last = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    Path(checkpoint, "commits", f".{last.name}.crc").unlink(missing_ok=True)
    feed(broker, source, range(200, 300))
    with pytest.raises(StreamingQueryException, match="restored from an older copy"):
        run(rows, f"{checkpoint}-older", options)
    run(rows, checkpoint, options)
    assert values(broker, options["topic"]) == Counter(b"%d" % number for number in range(300))


@pytest.mark.spark
def test_foreach_batch_writes_a_repeated_batch_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, options: dict[str, str]
) -> None:
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        named = {"ottla.sink.name": f"{topic}-sink", "ottla.batch.id": "5"}
        rows.write.format("ottla").mode("append").options(**options, **named).save()
    assert values(broker, topic) == Counter(b"%d" % number for number in range(100))
