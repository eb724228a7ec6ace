"""Writing: once, in order, and together, over good networks and bad ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError, Fenced
from ottla.client.producing import ProduceStream
from ottla.client.transactions import TransactionalProducer
from ottla.model.types import TopicPartition
from ottla.testing.proxy import END_TXN, PRODUCE, FaultProxy, Faults
from ottla.testing.raw import batch_of

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.broker, pytest.mark.client]

_numbers = itertools.count()
DEADLINE_S = 90.0


@pytest.fixture
def cluster(ottla_broker: Any) -> Iterator[Cluster]:
    with Cluster(ottla_broker.bootstrap, timeout_s=60) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"producer-{os.getpid()}-{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name


def read(bootstrap: str, topic: str, partitions: int = 2) -> list[list[bytes]]:
    """The committed values of each partition, as a client that is not ours sees them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "no end of the partitions in time"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            values[message.partition()].append(message.value())
    consumer.close()
    return values


def send(stream: ProduceStream | TransactionalProducer, topic: str, numbers: range) -> None:
    for number in numbers:
        stream.send(TopicPartition(topic, number % 2), bytearray(batch_of(b"%d" % number)))


def numbered(numbers: range) -> list[list[bytes]]:
    return [[b"%d" % number for number in numbers if number % 2 == parity] for parity in (0, 1)]


def test_a_stream_is_written_in_order(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    with cluster.producer() as stream:
        send(stream, topic, range(500))
    assert read(ottla_broker.bootstrap, topic) == numbered(range(500))


def test_a_stream_survives_restarts(fresh_ottla_broker: Any) -> None:
    with Cluster(fresh_ottla_broker.bootstrap, timeout_s=60) as cluster:
        cluster.create_topic("t", 2)
        with cluster.producer() as stream:
            send(stream, "t", range(100))
            fresh_ottla_broker.restart()
            send(stream, "t", range(100, 200))
            fresh_ottla_broker.kill()
            fresh_ottla_broker.launch()
            send(stream, "t", range(200, 300))
    assert read(fresh_ottla_broker.bootstrap, "t") == numbered(range(300))


def test_commits_are_seen_and_aborts_are_not(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    with TransactionalProducer(cluster, f"txn-{topic}") as producer:
        producer.init()
        for start, is_kept in ((0, True), (100, False), (200, True)):
            producer.begin()
            send(producer, topic, range(start, start + 100))
            if is_kept:
                producer.commit()
            else:
                producer.abort()
    kept, more = numbered(range(100)), numbered(range(200, 300))
    assert read(ottla_broker.bootstrap, topic) == [kept[0] + more[0], kept[1] + more[1]]


def test_the_older_protocol_of_transactions_works_too(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    with TransactionalProducer(cluster, f"txn-{topic}") as producer:
        producer.init()
        producer._is_version_2 = False
        producer._start_stream()
        for start, is_kept in ((0, True), (100, False), (200, True)):
            producer.begin()
            send(producer, topic, range(start, start + 100))
            if is_kept:
                producer.commit()
            else:
                producer.abort()
    kept, more = numbered(range(100)), numbered(range(200, 300))
    assert read(ottla_broker.bootstrap, topic) == [kept[0] + more[0], kept[1] + more[1]]


def test_the_newer_producer_fences_the_older(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    older, newer = (TransactionalProducer(cluster, f"txn-{topic}") for _ in range(2))
    older.init()
    older.begin()
    send(older, topic, range(10))
    older.flush()
    newer.init()
    with pytest.raises(Fenced):
        older.commit()
    newer.begin()
    send(newer, topic, range(10, 20))
    newer.commit()
    assert read(ottla_broker.bootstrap, topic) == numbered(range(10, 20))


def test_the_older_producer_is_fenced_while_it_sends(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    older, newer = (TransactionalProducer(cluster, f"txn-{topic}") for _ in range(2))
    older.init()
    newer.init()
    older.begin()
    send(older, topic, range(2))
    with pytest.raises(Fenced):
        older.flush()
    assert read(ottla_broker.bootstrap, topic) == [[], []]


def test_a_transaction_with_a_refused_batch_is_aborted_whole(cluster: Cluster, ottla_broker: Any, topic: str) -> None:
    with TransactionalProducer(cluster, f"txn-{topic}") as producer:
        producer.init()
        producer.begin()
        send(producer, topic, range(10))
        producer.send(TopicPartition(topic, 0), batch_of(b"x" * 3_000_000))
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            producer.flush()
        with pytest.raises(ClientError, match=r"call abort\(\)"):
            producer.commit()
        producer.abort()
        producer.begin()
        send(producer, topic, range(10, 20))
        producer.commit()
    assert read(ottla_broker.bootstrap, topic) == numbered(range(10, 20))


def test_a_transaction_survives_restarts(fresh_ottla_broker: Any) -> None:
    with Cluster(fresh_ottla_broker.bootstrap, timeout_s=60) as cluster:
        cluster.create_topic("t", 2)
        with TransactionalProducer(cluster, "x") as producer:
            producer.init()
            producer.begin()
            send(producer, "t", range(50))
            fresh_ottla_broker.restart()
            send(producer, "t", range(50, 100))
            producer.flush()
            fresh_ottla_broker.kill()
            fresh_ottla_broker.launch()
            producer.commit()
    assert read(fresh_ottla_broker.bootstrap, "t") == numbered(range(100))


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network_tears_no_transaction(start_ottla_broker: Any, seed: int) -> None:
    with FaultProxy(seed=seed) as proxy:
        broker = start_ottla_broker(settings={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.target = broker.bootstrap
        with Cluster(proxy.address, timeout_s=DEADLINE_S) as cluster:
            cluster.create_topic("t", 2)
            with TransactionalProducer(cluster, "x") as producer:
                producer.init()
                # A late InitProducerId fences whoever comes before it: no fault of the producer's.
                proxy.faults = Faults(apis={PRODUCE, END_TXN}, rate=0.15, delay_s_max=0.1)
                for start in range(0, 200, 20):
                    producer.begin()
                    send(producer, "t", range(start, start + 20))
                    if start % 60 == 20:
                        producer.abort()
                    else:
                        producer.commit()
                proxy.faults = None
        assert proxy.happened
        kept = [number for number in range(200) if number // 20 % 3 != 1]
        assert read(broker.bootstrap, "t") == [[b"%d" % n for n in kept if n % 2 == p] for p in (0, 1)]
