"""A broker with two log directories: a log moves between them while it is written and read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

pytestmark = pytest.mark.broker

_DEADLINE_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    paths = f"{tmp_path / 'first'},{tmp_path / 'second'}"
    with BrokerProcess.start(tmp_path / "first", {"log.dirs": paths}) as started:
        yield started


def directories(client: RawClient) -> tuple[list[str], list[str]]:
    """Return the directories with the log, and those with a copy of it."""
    topics = [DescribableLogDirTopic(topic="moved", partitions=[0])]
    answer = client.ask(DescribeLogDirsRequest(topics=topics), 4)
    rows = [
        (result.log_dir, row.is_future_key)
        for result in answer.results
        for topic in result.topics
        for row in topic.partitions
    ]
    return [path for path, is_copy in rows if not is_copy], [path for path, is_copy in rows if is_copy]


def test_nothing_is_lost_while_a_log_moves(broker: BrokerProcess, tmp_path: Path) -> None:
    acknowledged: dict[int, bytes] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        acknowledged[message.offset()] = message.value()  # type: ignore[index, assignment]

    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 1, "log_level": 0})
    sent = 0
    with RawClient(broker.bootstrap) as client:
        client.create_topic("moved", 1, {"segment.bytes": "200000"})
        for target in ("second", "first", "second"):
            for _ in range(1000):
                producer.produce("moved", b"%d" % sent + b"v" * 500, on_delivery=delivered)
                sent += 1
            topics = [AlterReplicaLogDirTopic(name="moved", partitions=[0])]
            request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(tmp_path / target), topics=topics)])
            (result,) = client.ask(request, 2).results
            assert result.partitions[0].error_code == 0
            deadline = time.monotonic() + _DEADLINE_S
            while directories(client) != ([str(tmp_path / target)], []):
                assert time.monotonic() < deadline, "the log has not moved"
                producer.produce("moved", b"%d" % sent + b"v" * 500, on_delivery=delivered)
                sent += 1
                producer.poll(0.002)
        assert producer.flush(_DEADLINE_S) == 0
    assert len(acknowledged) == sent
    broker.kill()
    broker.launch()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "check", "log_level": 0})
    consumer.assign([TopicPartition("moved", 0, 0)])
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + _DEADLINE_S
    while len(found) < sent:
        assert time.monotonic() < deadline, f"{sent - len(found)} records are missing"
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                found[message.offset()] = message.value()  # type: ignore[index, assignment]
    consumer.close()
    assert found == acknowledged
    assert not (tmp_path / "first" / "moved-0").exists()
