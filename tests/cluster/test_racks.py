"""Two brokers in two racks: consumers read from the replica in their rack."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.zookeeper_server import ZooKeeperFailed
from ottla.testing import ClusterProcess

pytestmark = pytest.mark.broker

_DEADLINE_S = 60.0
LEADER, FOLLOWER = 1, 2
RECORD = b"r" * 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    try:
        started = ClusterProcess.start(
            2,
            {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"},
            {LEADER: {"broker.rack": "a"}, FOLLOWER: {"broker.rack": "b"}},
        )
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    with started:
        yield started


def metric(cluster: ClusterProcess, broker: int, name: str) -> float:
    with urllib.request.urlopen(cluster.brokers[broker].ready_line.split("metrics=")[1], timeout=_DEADLINE_S) as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def create_topic(cluster: ClusterProcess, name: str) -> AdminClient:
    """Create a topic that broker LEADER leads, and wait until both replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(name, num_partitions=1, replica_assignment=[[LEADER, FOLLOWER]])
    admin.create_topics([new])[name].result(_DEADLINE_S)
    deadline = time.monotonic() + _DEADLINE_S
    while len(admin.list_topics(name, timeout=_DEADLINE_S).topics[name].partitions[0].isrs) < 2:
        assert time.monotonic() < deadline, "the follower is not in sync"
        time.sleep(0.05)
    return admin


def produce(cluster: ClusterProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for _ in range(count):
        producer.produce(topic, RECORD)
    assert producer.flush(_DEADLINE_S) == 0


def consume(consumer: Consumer, count: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while count > 0:
        assert time.monotonic() < deadline, f"{count} records are missing"
        count -= sum(message.error() is None for message in consumer.consume(count, 0.5))


def consumer_in(cluster: ClusterProcess, rack: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-{rack}",
            "client.rack": rack,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def test_consumer_reads_from_the_replica_in_its_rack(cluster: ClusterProcess) -> None:
    create_topic(cluster, "racks")
    produce(cluster, "racks", 50)
    before = metric(cluster, FOLLOWER, "ottla_bytes_out_total")
    consumer = consumer_in(cluster, "b", "racks")
    consume(consumer, 50)
    produce(cluster, "racks", 50)
    consume(consumer, 50)
    consumer.close()
    assert metric(cluster, FOLLOWER, "ottla_bytes_out_total") - before >= 100 * len(RECORD)

    before = metric(cluster, FOLLOWER, "ottla_bytes_out_total")
    consumer = consumer_in(cluster, "a", "racks")
    consume(consumer, 100)
    consumer.close()
    # The follower of this topic leads internal partitions, whose followers fetch from it meanwhile.
    assert metric(cluster, FOLLOWER, "ottla_bytes_out_total") - before < 100 * len(RECORD)
