"""Streams of Spark on a cluster of three brokers, one of which is killed while rows are on their way."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from campaign_brokers import BrokerCluster, Role
from campaign_input import PARTITIONS, produce
from kill_judge import values_of_topic

from ottla.cli.zookeeper_server import ZooKeeperFailed
from ottla.client.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.broker, pytest.mark.client, pytest.mark.spark]

_numbers = itertools.count()
#: Java's AdminClient, with which the connector finds offsets, waits for a dead leader until the timeout of the call is
#: over, if metadata has named that leader in the moment of its death. The connector then tries again.
SOON = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000", "fetchOffset.numRetries": "60"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[BrokerCluster]:
    try:
        cluster = BrokerCluster(3, {}, seed=0, input_topic="", output_topic="", group="none", say=print)
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    try:
        yield cluster
    finally:
        cluster.close()


class Copy:
    """A stream from one new topic to another. The rows are numbers, produced in turn to all partitions."""

    def __init__(self, spark: SparkSession, brokers: BrokerCluster, form: str, checkpoint: str, **options: str) -> None:
        self._brokers = brokers
        number = next(_numbers)
        self._input, self._output = f"failover-in-{number}", f"failover-out-{number}"
        brokers.input_topic, brokers.output_topic = self._input, self._output
        with Cluster(brokers.bootstrap) as client:
            for topic in (self._input, self._output):
                client.create_topic(topic, PARTITIONS, replication_factor=3)
        connection = {"kafka.bootstrap.servers": brokers.bootstrap}
        reader = spark.readStream.format(form).options(**connection, **options)
        rows = reader.option("subscribe", self._input).option("startingOffsets", "earliest").load()
        writer = rows.selectExpr("key", "value").writeStream.format(form).options(**connection, topic=self._output)
        self._query: StreamingQuery = writer.option("checkpointLocation", checkpoint).start()
        self.produced = 0

    def feed(self) -> None:
        numbers = range(self.produced, self.produced + 60)
        self.produced += len(numbers)
        produce(self._brokers.bootstrap, self._input, [None] * len(numbers), [b"%d" % number for number in numbers])

    def outlive(self, role: Role) -> None:
        """Kill the broker with this role; return when every row is copied without it, and it is in sync again."""
        self.feed()
        self._query.processAllAvailable()
        # On their way when the broker is killed.
        self.feed()
        self._brokers.kill(role)
        try:
            self.feed()
            self._query.processAllAvailable()
        finally:
            self._brokers.launch()

    def copied(self) -> Counter[int]:
        """Stop the stream, and read the committed records of its output."""
        self._query.stop()
        return Counter(map(int, values_of_topic(self._brokers.bootstrap, self._output)))

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()


def test_every_row_is_written_once_while_a_leader_and_the_transaction_coordinator_are_killed(
    spark: SparkSession, brokers: BrokerCluster, checkpoint: str
) -> None:
    with Copy(spark, brokers, "ottla", checkpoint) as copy:
        copy.outlive(Role.OUTPUT_LEADER)
        copy.outlive(Role.TRANSACTION_COORDINATOR)
        assert copy.copied() == Counter(range(copy.produced))


@pytest.mark.skipif(
    "OTTLA_CONNECTOR_FAILOVER" not in os.environ, reason="OTTLA_CONNECTOR_FAILOVER=1 runs it: Java may wait long"
)
def test_connector_of_spark_loses_no_row_while_a_leader_is_killed(
    spark: SparkSession, brokers: BrokerCluster, checkpoint: str, kafka_connector: str
) -> None:
    """The connector delivers at least once: it writes the rows of a task that failed again."""
    with Copy(spark, brokers, kafka_connector, checkpoint, **SOON) as copy:
        copy.outlive(Role.INPUT_LEADER)
        assert copy.copied().keys() == set(range(copy.produced))
