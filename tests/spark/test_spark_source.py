"""format("ottla") read by Spark: batch and stream, restarts, lost records, checkpoints that move to and fro."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from random_topic import consume, fill, rows_of

from ottla.client.cluster import Cluster
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.spark.checkpoint_repair import LogRange, apply_repair, compare, read_checkpoint
from ottla.spark.spark_internals import PLANNERS, STREAM_RUNNER, STREAM_VARIABLES, worker_environment
from ottla.spark.stream_server import SERVER_VARIABLE
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.broker, pytest.mark.client, pytest.mark.spark]

_DEADLINE_S = 60
_AVAILABLE_NOW = {"availableNow": True}


@pytest.fixture
def streams(spark: SparkSession, broker: BrokerProcess, checkpoint: str, tmp_path: Path) -> Streams:
    return Streams(spark, broker.bootstrap, checkpoint, tmp_path / "out")


class Streams:
    """A query from topics to Parquet files, started again and again from one checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: str, out: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._out = str(out)

    def start(
        self, topic: str, format_: str = "ottla", *, trigger: Mapping[str, Any] = _AVAILABLE_NOW, **options: str
    ) -> StreamingQuery:
        """Until everything is read that is there now, or as the trigger says."""
        reader = self._spark.readStream.format(format_).option("kafka.bootstrap.servers", self._bootstrap)
        rows = reader.options(subscribe=topic, startingOffsets="earliest", **options).load()
        writer = rows.writeStream.format("parquet").option("path", self._out).queryName(f"q-{topic.split(',')[0]}")
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self, topic: str, format_: str = "ottla", **options: str) -> list[int]:
        """Read everything that is there now; return the number of rows of each batch."""
        query = self.start(topic, format_, **options)
        assert query.awaitTermination(_DEADLINE_S)
        # What is reported when there is nothing to do is no batch.
        return [progress.numInputRows for progress in query.recentProgress if "addBatch" in progress.durationMs]

    def written(self) -> list[tuple[str, int, int]]:
        frame = self._spark.read.parquet(self._out)
        return sorted((row.topic, row.partition, row.offset) for row in frame.collect())

    def offsets(self) -> list[str]:
        """The offset line of each batch, as it stands in the checkpoint."""
        files = sorted(Path(self._checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [path.read_text().splitlines()[2] for path in files]

    def rewrite_last_offset(self, line: str) -> None:
        file = max(Path(self._checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        lines = file.read_text().splitlines()
        assert json.loads(lines[2]) == json.loads(line), "the same offsets, written in another way"
        file.write_text("\n".join([*lines[:2], line, *lines[3:]]))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def load(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(subscribe=topic, **options).load()


def produce(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    records = [Record(key=b"k", value=b"%d" % number, timestamp=1000 + number) for number in range(count)]
    cluster.produce(TopicPartition(topic, partition), build_batch(records))


def test_batch_has_the_columns_and_rows_of_a_plain_consumer(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    seed = random.randrange(1 << 30)
    fill(broker.bootstrap, topic, random.Random(seed))
    frame = load(spark, broker, topic, includeHeaders="true", minPartitions="5")
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    table: pa.Table = frame.toArrow()
    assert rows_of(table) == consume(broker.bootstrap, topic, 2), f"seed {seed}"
    assert set(table["topic"].to_pylist()) == {topic}


def test_schema_of_the_user_names_the_columns_that_are_read(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    produce(cluster, topic, 0, 3)
    reader = spark.read.format("ottla").schema("value binary, offset bigint")
    frame = reader.options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}).load()
    assert [(bytes(row.value), row.offset) for row in frame.collect()] == [(b"0", 0), (b"1", 1), (b"2", 2)]


def test_empty_topic_has_no_rows(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    assert load(spark, broker, topic).count() == 0


def test_wrong_option_is_told_to_the_user(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(Exception, match="unknown option 'startingoffset', did you mean 'startingOffsets'"):
        load(spark, broker, topic, startingOffset="earliest").count()


def test_stream_reads_in_triggers_and_goes_on_where_it_was(streams: Streams, cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 0, 90)
    produce(cluster, topic, 1, 30)
    assert streams.run(topic, maxOffsetsPerTrigger="50") == [50, 50, 20]
    assert streams.offsets()[0] == f'{{"{topic}":{{"0":37,"1":13}}}}'
    produce(cluster, topic, 1, 7)
    assert streams.run(topic) == [7]
    assert streams.run(topic) == []
    assert streams.written() == [(topic, 0, n) for n in range(90)] + [(topic, 1, n) for n in range(37)]


def test_stream_adds_nothing_to_the_environment_that_all_streams_of_a_source_share(
    spark: SparkSession, streams: Streams, cluster: Cluster, topic: str
) -> None:
    """Two that add to it at the same time damage it."""
    before = set(worker_environment(spark, "ottla").keySet())
    assert before >= {"PYTHONPATH", SERVER_VARIABLE, *STREAM_VARIABLES}
    produce(cluster, topic, 0, 1)
    assert streams.run(topic) == [1]
    assert set(worker_environment(spark, "ottla").keySet()) == before


def test_streams_share_a_process_and_run_in_processes_of_their_own_without_it(
    spark: SparkSession, streams: Streams, cluster: Cluster, topic: str
) -> None:
    path = str(worker_environment(spark, "ottla").get(SERVER_VARIABLE))
    produce(cluster, topic, 0, 5)
    with running(streams, topic):
        assert processes_with(path, STREAM_RUNNER) == 0, "a process other than the server runs the stream"
        # One process for each kind of planner asked the server for a port. Nothing was forked from it.
        assert all(processes_with(path, planner) <= 1 for planner in PLANNERS)
        assert any(processes_with(path, planner) == 1 for planner in PLANNERS)
    worker_environment(spark, "ottla").put(SERVER_VARIABLE, f"{path}-is-not-here")
    try:
        with running(streams, topic):
            assert processes_with(f"{path}-is-not-here", STREAM_RUNNER) == 1
    finally:
        worker_environment(spark, "ottla").put(SERVER_VARIABLE, path)
    assert streams.run(topic) == []


@contextmanager
def running(streams: Streams, topic: str) -> Iterator[StreamingQuery]:
    """A query that has read the rows of the topic and waits for more."""
    query = streams.start(topic, trigger={"processingTime": "100 milliseconds"})
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while not query.recentProgress:
            assert query.isActive and time.monotonic() < deadline, query.exception()
            time.sleep(0.05)
        yield query
    finally:
        query.stop()


def processes_with(server: str, module: str) -> int:
    """Return the number of processes that run a module and have this path of a server in their environment."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            runs_module = module.encode() in (process / "cmdline").read_bytes().split(b"\0")
            found += runs_module and f"{SERVER_VARIABLE}={server}\0".encode() in (process / "environ").read_bytes()
    return found


def test_running_stream_sees_records_and_publishes_its_progress_as_a_group(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, topic: str, checkpoint: str
) -> None:
    from ottla.spark.progress import publish_progress

    connection = {"kafka.bootstrap.servers": broker.bootstrap}
    publisher = publish_progress(spark, {**connection, "groupIdPrefix": "lag"})
    frame = spark.readStream.format("ottla").options(**connection, subscribe=topic).load()
    query = frame.writeStream.format("noop").queryName(topic).option("checkpointLocation", checkpoint).start()
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while query.lastProgress is None:
            assert time.monotonic() < deadline and query.isActive, query.exception()
        produce(cluster, topic, 1, 5)
        while cluster.committed(f"lag-{topic}", partitions).get(partitions[1]) != 5:
            assert time.monotonic() < deadline and query.isActive, query.exception()
            time.sleep(0.05)
    finally:
        query.stop()
        spark.streams.removeListener(publisher)
        publisher.close()


def test_lost_records_end_the_query_with_topic_partition_offsets_and_cause(
    streams: Streams, broker: BrokerProcess, cluster: Cluster, topics: Any
) -> None:
    from test_readers import delete_records

    topic = topics(1)
    produce(cluster, topic, 0, 10)
    assert streams.run(topic) == [10]
    produce(cluster, topic, 0, 10)
    delete_records(broker, topic, 15)
    words = (
        f"topic {topic}, partition 0: offset 10 was next, the partition now holds offsets from 15 up to 20: retention"
    )
    with pytest.raises(Exception, match=words):
        streams.start(topic).awaitTermination(_DEADLINE_S)
    assert streams.run(topic, failOnDataLoss="false") == [5]
    assert streams.written() == [(topic, 0, n) for n in (*range(10), *range(15, 20))]


def test_topic_that_became_shorter_is_refused_before_its_offsets_are_logged_and_can_be_repaired(
    streams: Streams, cluster: Cluster, topic: str, checkpoint: str
) -> None:
    from pyspark.errors import StreamingQueryException

    # A checkpoint that is ahead of the log: as if the topic had been created again and had fewer records.
    produce(cluster, topic, 0, 4)
    streams.run(topic)
    offsets = Path(checkpoint, "offsets", "0")
    offsets.write_text(offsets.read_text().replace('"0":4', '"0":50'))
    offsets.with_name(".0.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match=r"offset 50 was next, .* from 0 up to 4: the log ends before"):
        streams.start(topic).awaitTermination(_DEADLINE_S)
    assert len(streams.offsets()) == 1
    state = read_checkpoint(checkpoint)
    assert apply_repair(state, compare(state, {tp: LogRange(0, 4) for tp in state.partitions}), "latest") is not None
    produce(cluster, topic, 0, 2)
    assert streams.run(topic) == [2]
    assert [offset for _, _, offset in streams.written()] == [0, 1, 2, 3, 4, 5]


def test_deleted_topic_that_is_not_missed_leaves_a_batch_with_nothing_to_read(
    streams: Streams, broker: BrokerProcess, cluster: Cluster, topics: Any
) -> None:
    from test_readers import delete_topic

    kept, gone = topics(1), topics(1)
    produce(cluster, kept, 0, 2)
    produce(cluster, gone, 0, 3)
    assert streams.run(f"{kept},{gone}") == [5]
    delete_topic(broker, gone)
    assert streams.run(kept, failOnDataLoss="false") == [0]
    assert json.loads(streams.offsets()[-1]) == {kept: {"0": 2}}


def test_offsets_in_the_order_of_sparks_connector_make_no_empty_batch(
    streams: Streams, cluster: Cluster, topics: Any
) -> None:
    first, second = topics(1), topics(1)
    produce(cluster, first, 0, 3)
    assert streams.run(f"{first},{second}") == [3]
    streams.rewrite_last_offset(f'{{"{second}":{{"0":0}},"{first}":{{"0":3}}}}')
    assert streams.run(f"{first},{second}") == []
    produce(cluster, second, 0, 4)
    assert streams.run(f"{first},{second}") == [4]


@pytest.mark.foreign
def test_checkpoint_moves_from_sparks_connector_and_back(
    streams: Streams, cluster: Cluster, topics: Any, kafka_connector: str
) -> None:
    topic = topics(12)
    counts = [0] * 12
    for turn, format_ in enumerate([kafka_connector, "ottla", kafka_connector, "ottla"]):
        for partition in range(turn, 12, 2):
            produce(cluster, topic, partition, 5)
            counts[partition] += 5
        assert [rows for rows in streams.run(topic, format_) if rows] == [5 * len(range(turn, 12, 2))], format_
        assert streams.run(topic, format_) == []
    assert streams.written() == [(topic, number, n) for number, count in enumerate(counts) for n in range(count)]
    assert len(set(streams.offsets())) == len(streams.offsets()) == 4, "no batch was empty"
