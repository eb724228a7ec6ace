"""Transactions over partitions and groups of three brokers, while the broker that coordinates them is killed.

librdkafka's transactions are those of clients before KIP-890: the leaders verify each partition with the coordinator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.checker import check_replicas
from ottla.testing import ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

pytestmark = pytest.mark.broker

TOPIC, GROUP, ID = "ledger", "readers", "ledger-writer"
PARTITIONS = 6
_TRANSACTION = 1
#: records of a batch that is too large to be opened on the event loop
_OPENED_RECORDS = 1500
_DEADLINE_S = 60.0


class Ledger:
    """A producer that writes a record to every partition and commits an offset, in each transaction."""

    def __init__(self, cluster: ClusterProcess) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(_DEADLINE_S)
        self._settings = settings
        self._directories = {number: Path(broker.data) for number, broker in cluster.brokers.items()}
        self._consumer = Consumer({**settings, "group.id": GROUP})
        self._producer = Producer({**settings, "transactional.id": ID})
        self._producer.init_transactions(_DEADLINE_S)
        self.transactions = 0
        self.committed: list[bytes] = []

    def write_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition was not reached"
            self._write()

    def _write(self) -> None:
        """Commit a transaction; every third one is aborted. A transaction that fails is aborted and not repeated."""
        self.transactions += 1
        values = [b"%d-%d" % (self.transactions, number) for number in range(PARTITIONS)]
        try:
            self._producer.begin_transaction()
            for number, value in enumerate(values):
                self._producer.produce(TOPIC, value, partition=number)
            offset = TopicPartition(TOPIC, 0, self.transactions)
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction([offset], group, _DEADLINE_S)
            if self.transactions % 3 == 0:
                self._producer.abort_transaction(_DEADLINE_S)
                return
            self._producer.commit_transaction(_DEADLINE_S)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction(_DEADLINE_S)
            return
        self.committed += values

    @property
    def last_committed(self) -> int:
        return int(self.committed[-1].partition(b"-")[0])

    def check(self) -> None:
        """A reader of committed records finds each record of the committed transactions once, and no other.

        All replicas have the same bytes.
        """
        consumer = Consumer({**self._settings, "group.id": "check", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found: list[bytes] = []
        deadline = time.monotonic() + _DEADLINE_S
        while len(found) < len(self.committed):
            assert time.monotonic() < deadline, f"{len(self.committed) - len(found)} records are missing"
            found += [message.value() or b"" for message in consumer.consume(1000, 0.2) if message.error() is None]
        assert sorted(found) == sorted(self.committed)
        ends = {n: consumer.get_watermark_offsets(TopicPartition(TOPIC, n), _DEADLINE_S)[1] for n in range(PARTITIONS)}
        consumer.close()
        # The broker that was started again is refilled meanwhile.
        while problems := check_replicas(self._directories, TOPIC, ends):
            assert time.monotonic() < deadline, problems
            time.sleep(0.1)
        (offset,) = self._consumer.committed([TopicPartition(TOPIC, 0)], _DEADLINE_S)
        assert offset.offset == self.last_committed


def coordinator(cluster: ClusterProcess) -> int:
    """Return the broker that coordinates the transactions."""
    with RawClient(next(broker.bootstrap for broker in cluster.brokers.values() if broker.running)) as client:
        answer = client.ask(FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[ID]), 4)
    return int(answer.coordinators[0].node_id)


def test_transactions_are_whole_when_their_coordinator_is_killed(ottla_cluster: ClusterProcess) -> None:
    ledger = Ledger(ottla_cluster)
    ledger.write_until(lambda: ledger.transactions >= 10)
    killed = coordinator(ottla_cluster)
    ottla_cluster.brokers[killed].kill()
    count = len(ledger.committed)
    ledger.write_until(lambda: len(ledger.committed) >= count + 5 * PARTITIONS)
    assert coordinator(ottla_cluster) != killed
    ottla_cluster.brokers[killed].launch()
    count = len(ledger.committed)
    ledger.write_until(lambda: len(ledger.committed) >= count + 5 * PARTITIONS)
    ledger.check()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("compacted", {"cleanup.policy": "compact"}),
        ("recompressed", {"compression.type": "gzip"}),
        ("limited", {"message.timestamp.before.max.ms": "3600000"}),
    ],
)
def test_batches_that_are_opened_off_the_event_loop_are_committed(
    ottla_cluster: ClusterProcess, name: str, config: dict[str, str]
) -> None:
    """Each broker leads a partition, so the verdicts about two of the three come from another broker."""
    settings = {"bootstrap.servers": ottla_cluster.bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(name, 3, 3, config=config)])[name].result(_DEADLINE_S)
    producer = Producer({**settings, "transactional.id": f"{name}-writer", "linger.ms": 1000})
    producer.init_transactions(_DEADLINE_S)
    for transaction in range(2):
        producer.begin_transaction()
        for partition in range(3):
            for number in range(_OPENED_RECORDS):
                producer.produce(name, b"%d" % transaction, key=b"%d" % number, partition=partition)
        producer.commit_transaction(_DEADLINE_S)
    consumer = Consumer({**settings, "group.id": "opened", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(name, number, 0) for number in range(3)])
    found: Counter[tuple[int, bytes]] = Counter()
    deadline = time.monotonic() + _DEADLINE_S
    while found.total() < 6 * _OPENED_RECORDS:
        assert time.monotonic() < deadline, found
        for message in consumer.consume(10_000, 0.2):
            assert message.error() is None
            found[message.partition() or 0, message.value() or b""] += 1
    consumer.close()
    expected = {(number, value): _OPENED_RECORDS for number in range(3) for value in (b"0", b"1")}
    assert found == expected
