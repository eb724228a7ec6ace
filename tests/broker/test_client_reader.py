"""Reading a partition: all of it, once, whatever the broker goes through."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, OffsetOutOfRange, TimedOut, TopicReplaced
from ottla.client.fetching import Aborted, PartitionReader
from ottla.client.transactions import TransactionalProducer
from ottla.model.records import iterate_records
from ottla.model.types import TopicPartition
from ottla.testing.proxy import FETCH, Fault, FaultProxy, Faults
from ottla.testing.raw import RawClient, batch_of
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

pytestmark = pytest.mark.broker

_numbers = itertools.count()
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


@pytest.fixture
def cluster(ottla_broker: Any) -> Iterator[Cluster]:
    with Cluster(ottla_broker.bootstrap, timeout_s=60) as cluster:
        yield cluster


@pytest.fixture
def tp(cluster: Cluster) -> TopicPartition:
    topic = f"reader-{os.getpid()}-{next(_numbers)}"
    cluster.create_topic(topic, 1)
    return TopicPartition(topic, 0)


def write(cluster: Cluster, tp: TopicPartition, count: int, size: int = 1000) -> list[bytes]:
    values = [f"{number:08}".encode().ljust(size, b".") for number in range(count)]
    with cluster.producer() as stream:
        for first in range(0, count, 10):
            stream.send(tp, batch_of(*values[first : first + 10]))
    return values


def values_of(data: memoryview) -> list[bytes | None]:
    return [record.value for batch in batches_of(data) for record in iterate_records(batch)]


def batches_of(data: memoryview) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        yield bytes(data[position : position + size])
        position += size


def end_of(cluster: Cluster, tp: TopicPartition, isolation: Isolation = UNCOMMITTED) -> int:
    return cluster.list_offsets({tp: LATEST}, isolation=isolation)[tp].offset


@pytest.mark.parametrize("fetch_bytes", [100, 50_000, 2 << 20])
def test_everything_is_read_once(cluster: Cluster, tp: TopicPartition, fetch_bytes: int) -> None:
    values = write(cluster, tp, 1000)
    reader = PartitionReader(cluster, tp, 0, 1000, isolation=UNCOMMITTED, fetch_bytes=fetch_bytes)
    assert [value for fetched in reader for value in values_of(fetched.data)] == values


def test_a_range_may_begin_and_end_within_a_batch(cluster: Cluster, tp: TopicPartition) -> None:
    values = write(cluster, tp, 40)
    reader = PartitionReader(cluster, tp, 15, 25, isolation=UNCOMMITTED, fetch_bytes=100)
    assert [value for fetched in reader for value in values_of(fetched.data)] == values[10:30]


def test_aborted_transactions_are_told(cluster: Cluster, tp: TopicPartition) -> None:
    with TransactionalProducer(cluster, f"txn-{tp}") as producer:
        writer = producer.init()
        producer.begin()
        producer.send(tp, batch_of(b"no"))
        producer.abort()
        producer.begin()
        producer.send(tp, batch_of(b"yes"))
        producer.commit()
        producer.begin()
        producer.send(tp, batch_of(b"open"))
        producer.flush()
        end = end_of(cluster, tp, COMMITTED)
        assert (end, end_of(cluster, tp, UNCOMMITTED)) == (4, 5)
        (fetched,) = PartitionReader(cluster, tp, 0, end, isolation=COMMITTED)
        assert fetched.aborted == (Aborted(writer.id, 0),)
        assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (5, 4, 0)
        producer.abort()


def test_an_open_transaction_is_not_waited_for_without_end(ottla_broker: Any, tp: TopicPartition) -> None:
    with (
        Cluster(ottla_broker.bootstrap, timeout_s=1) as cluster,
        TransactionalProducer(cluster, f"txn-{tp}") as producer,
    ):
        producer.init()
        producer.begin()
        producer.send(tp, batch_of(b"open"))
        producer.flush()
        with pytest.raises(TimedOut, match="nothing came at offset 0"):
            next(PartitionReader(cluster, tp, 0, 1, isolation=COMMITTED, wait_ms=100))
        producer.abort()


def test_an_offset_behind_the_log_is_out_of_range(cluster: Cluster, tp: TopicPartition) -> None:
    write(cluster, tp, 10)
    with pytest.raises(OffsetOutOfRange) as told:
        next(PartitionReader(cluster, tp, 11, 20, isolation=UNCOMMITTED))
    assert (told.value.log_start, told.value.log_end) == (0, 10)


def test_a_topic_that_was_made_again_is_another(cluster: Cluster, ottla_broker: Any, tp: TopicPartition) -> None:
    write(cluster, tp, 100)
    reader = PartitionReader(cluster, tp, 0, 100, isolation=UNCOMMITTED, fetch_bytes=100)
    next(reader)
    with RawClient(ottla_broker.bootstrap) as client:
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=tp.topic)], timeout=10_000), 6)
        client.create_topic(tp.topic)
    # What was sent ahead may still be of the old one.
    with pytest.raises(TopicReplaced):
        list(reader)


def test_a_topic_that_is_gone_is_told(cluster: Cluster, tp: TopicPartition) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        next(PartitionReader(cluster, tp._replace(partition=4), 0, 1, isolation=UNCOMMITTED))


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_restart_loses_and_repeats_nothing(fresh_ottla_broker: Any, end: str) -> None:
    tp = TopicPartition("t", 0)
    with Cluster(fresh_ottla_broker.bootstrap, timeout_s=60) as cluster:
        cluster.create_topic("t", 1)
        values = write(cluster, tp, 500)
        found: list[Any] = []
        for number, fetched in enumerate(PartitionReader(cluster, tp, 0, 500, isolation=COMMITTED, fetch_bytes=30_000)):
            found += values_of(fetched.data)
            if number == 3:
                if end == "kill":
                    fresh_ottla_broker.kill()
                    fresh_ottla_broker.launch()
                else:
                    fresh_ottla_broker.restart()
        assert found == values


def test_a_bad_network_loses_and_repeats_nothing(start_ottla_broker: Any) -> None:
    tp = TopicPartition("t", 0)
    with FaultProxy(seed=1) as proxy:
        broker = start_ottla_broker(settings={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.target = broker.bootstrap
        with Cluster(proxy.address, timeout_s=60) as cluster:
            cluster.create_topic("t", 1)
            values = write(cluster, tp, 1000)
            kinds = (Fault.DELAY, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER)
            proxy.faults = Faults(apis={FETCH}, rate=0.3, kinds=kinds, delay_s_max=0.05)
            reader = PartitionReader(cluster, tp, 0, 1000, isolation=COMMITTED, fetch_bytes=20_000)
            assert [value for fetched in reader for value in values_of(fetched.data)] == values
            assert proxy.happened
