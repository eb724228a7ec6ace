"""Spark's own Kafka connector, a Java client of another make, against this broker: all that it offers to its users."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from random_topic import Row, consume, fill, rows_of

from ottla.client.cluster import Cluster
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.broker, pytest.mark.client, pytest.mark.foreign,
    pytest.mark.usefixtures("kafka_connector"),
]  # fmt: skip

_DEADLINE_S = 60


class Connector:
    """Reads and writes as its documentation says."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._connection = {"kafka.bootstrap.servers": bootstrap}

    def read(self, topic: str, **options: str) -> DataFrame:
        """A batch of one topic, or of what ``options`` subscribe to."""
        subscription = {} if "subscribePattern" in options else {"subscribe": topic}
        return self._spark.read.format("kafka").options(**self._connection, **subscription, **options).load()

    def write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**self._connection, topic=topic, includeHeaders="true").save()

    def copy(self, topic: str, output: str, checkpoint: str, **options: str) -> list[int]:
        """Topic to topic until everything is read that is there now: the number of rows of each batch."""
        reader = self._spark.readStream.format("kafka").options(**self._connection, subscribe=topic, **options)
        rows = reader.option("startingOffsets", "earliest").load().select("key", "value")
        writer = rows.writeStream.format("kafka").options(**self._connection, topic=output)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(_DEADLINE_S)
        return [progress.numInputRows for progress in query.recentProgress if "addBatch" in progress.durationMs]


@pytest.fixture
def connector(spark: SparkSession, broker: BrokerProcess) -> Connector:
    return Connector(spark, broker.bootstrap)


def produce(cluster: Cluster, topic: str, partition: int, numbers: range, timestamp: int = 1000) -> None:
    records = [Record(key=b"k%d" % n, value=b"%d" % n, timestamp=timestamp + n) for n in numbers]
    cluster.produce(TopicPartition(topic, partition), build_batch(records))


def keys_and_values(rows: list[Row]) -> list[tuple[bytes | None, bytes | None]]:
    return sorted((row.key, row.value) for row in rows)


def test_batch_has_the_rows_of_a_plain_consumer(connector: Connector, broker: BrokerProcess, topic: str) -> None:
    seed = random.randrange(1 << 30)
    fill(broker.bootstrap, topic, random.Random(seed))
    for committed, isolation in ((False, "read_uncommitted"), (True, "read_committed")):
        frame = connector.read(topic, includeHeaders="true", **{"kafka.isolation.level": isolation})
        assert rows_of(frame.toArrow()) == consume(broker.bootstrap, topic, 2, committed=committed), f"seed {seed}"


def test_written_rows_are_what_a_plain_consumer_reads(
    connector: Connector, spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    schema = "key binary, value binary, partition int, headers array<struct<key:string,value:binary>>"
    rows: list[tuple[Any, ...]] = [
        (b"a", b"1", 0, [("trace", b"x"), ("trace", b""), ("ünïcode", b"\xff")]),
        (None, b"2", 0, None),
        (b"b", None, 1, None),
        (b"", b"", 1, []),
    ]
    connector.write(spark.createDataFrame(rows, schema).coalesce(1), topic)
    found = consume(broker.bootstrap, topic, 2)
    expected = [(partition, key, value, tuple(headers or ())) for key, value, partition, headers in rows]
    assert [(row.partition, row.key, row.value, row.headers) for row in found] == expected
    stored = connector.read(topic, includeHeaders="true").toArrow()
    assert [row.timestamp_ms for row in rows_of(stored)] == [row.timestamp_ms for row in found]


def test_stream_goes_on_from_its_checkpoint(
    connector: Connector, broker: BrokerProcess, cluster: Cluster, topics: Callable[..., str], checkpoint: str
) -> None:
    topic, output = topics(2), topics(2)
    produce(cluster, topic, 0, range(60))
    produce(cluster, topic, 1, range(60, 100))
    assert connector.copy(topic, output, checkpoint, maxOffsetsPerTrigger="50") == [50, 50]
    produce(cluster, topic, 1, range(100, 107))
    assert connector.copy(topic, output, checkpoint) == [7]
    assert connector.copy(topic, output, checkpoint) == []
    expected = keys_and_values(consume(broker.bootstrap, topic, 2))
    assert keys_and_values(consume(broker.bootstrap, output, 2)) == expected


def test_stream_copies_what_was_committed_and_nothing_that_was_aborted(
    connector: Connector, broker: BrokerProcess, topics: Callable[..., str], checkpoint: str
) -> None:
    topic, output = topics(1), topics(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for record in range(20):
            producer.produce(topic, b"%d-%d" % (number, record), b"k")
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    connector.copy(topic, output, checkpoint, **{"kafka.isolation.level": "read_committed"})
    expected = sorted(b"%d-%d" % (number, record) for number in (0, 2, 4) for record in range(20))
    assert sorted(row.value or b"" for row in consume(broker.bootstrap, output, 1)) == expected


def test_reading_starts_and_ends_at_times(connector: Connector, cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 0, range(100))
    produce(cluster, topic, 1, range(50))
    begin, end = json.dumps({topic: {"0": 1090, "1": 1040}}), json.dumps({topic: {"0": 1095, "1": 1045}})
    frame = connector.read(topic, startingOffsetsByTimestamp=begin, endingOffsetsByTimestamp=end)
    found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    assert found == [(0, offset) for offset in range(90, 95)] + [(1, offset) for offset in range(40, 45)]
    assert connector.read(topic, startingTimestamp="1098", startingOffsetsByTimestampStrategy="latest").count() == 2


def test_pattern_finds_its_topics(connector: Connector, cluster: Cluster, topics: Callable[..., str]) -> None:
    names = [topics(1) for _ in range(3)]
    for number, name in enumerate(names):
        produce(cluster, name, 0, range(number + 1))
    found = connector.read("", subscribePattern="|".join(names[1:])).groupBy("topic").count().collect()
    assert sorted((row["topic"], row["count"]) for row in found) == sorted(zip(names[1:], (2, 3), strict=True))


def test_ranges_are_split_for_more_tasks(connector: Connector, cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 0, range(90))
    produce(cluster, topic, 1, range(30))
    frame = connector.read(topic, minPartitions="8")
    assert frame.rdd.getNumPartitions() >= 8
    assert frame.select("partition", "offset").distinct().count() == 120


@pytest.mark.parametrize("deprecated", ["true", "false"])
def test_group_of_the_user_and_both_ways_to_ask_for_offsets(
    connector: Connector, spark: SparkSession, cluster: Cluster, topics: Any, checkpoint: str, deprecated: str
) -> None:
    topic, output = topics(2), topics(1)
    produce(cluster, topic, 0, range(10))
    produce(cluster, topic, 1, range(10, 15))
    # The deprecated way subscribes as a member of a group, also on the driver.
    spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", deprecated)
    try:
        options = {"kafka.group.id": f"group-{topic}"}
        assert connector.read(topic, **options).count() == 15
        assert connector.copy(topic, output, checkpoint, **options) == [15]
    finally:
        spark.conf.unset("spark.sql.streaming.kafka.useDeprecatedOffsetFetching")
    assert connector.read(output).count() == 15
