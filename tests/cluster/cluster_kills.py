"""`make cluster-kills`: kill -9 of brokers of a cluster under load, chosen by their role and by a seed.

    python tests/cluster/cluster_kills.py --kills 100 --seed 1 --role leader

Roles: leader (of partition 0), controller, group (coordinator of the consumer group), any. A producer with acks=all and
idempotence writes to three partitions with three replicas; members of a group read and commit. A killed broker is
started again when another one acknowledges records. At the end every acknowledged record is read at its offset, no
record is there twice, and the logs of all replicas have the same bytes. The report names the longest time between two
acknowledgements of one partition around each kill.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import ClusterProcess

TOPIC, GROUP = "events", "readers"
PARTITIONS = 3
#: records per second and partition
RATE = 500
_DEADLINE_S = 60.0


@dataclass
class Written:
    """What the producer was told."""

    values: dict[tuple[int, int], bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    #: of each partition: the time of the last acknowledgement, and the longest gap since ``begin_gaps``
    last: list[float] = field(default_factory=lambda: [time.monotonic()] * PARTITIONS)
    gaps: list[float] = field(default_factory=lambda: [0.0] * PARTITIONS)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        number, offset = message.partition(), message.offset()
        assert number is not None and offset is not None
        self.values[number, offset] = message.value() or b""
        now = time.monotonic()
        self.gaps[number] = max(self.gaps[number], now - self.last[number])
        self.last[number] = now

    def begin_gaps(self) -> None:
        self.gaps = [0.0] * PARTITIONS


class Load(threading.Thread):
    """The producer, and two members of a group that read and commit."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="load")
        self.bootstrap = bootstrap
        self.written = Written()
        self.sent = 0
        self.read = 0
        self._is_over = threading.Event()

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1,
             "log_level": 0}
        )  # fmt: skip
        members = [self._member() for _ in range(2)]
        while not self._is_over.is_set():
            for number in range(PARTITIONS):
                producer.produce(TOPIC, b"%d" % self.sent, partition=number, on_delivery=self.written.delivered)
                self.sent += 1
            producer.poll(0)
            for member in members:
                found = [each for each in member.consume(100, 0) if each.error() is None]
                self.read += len(found)
            time.sleep(1 / RATE)
        producer.flush(_DEADLINE_S)
        for member in members:
            member.close()

    def _member(self) -> Consumer:
        member = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest",
             "auto.commit.interval.ms": 500, "session.timeout.ms": 6000, "log_level": 0}
        )  # fmt: skip
        member.subscribe([TOPIC])
        return member

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Campaign:
    def __init__(self, cluster: ClusterProcess, role: str, rng: Random) -> None:
        self.cluster, self.role, self.rng = cluster, role, rng
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.load = Load(cluster.bootstrap)
        self.gaps: list[float] = []

    def run(self, kills: int) -> list[str]:
        """Run to the end. Return what went wrong."""
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(_DEADLINE_S)
        self.load.start()
        self._wait(self._is_in_sync, "all replicas in sync")
        for number in range(1, kills + 1):
            self._kill(number, kills)
        self.load.stop()
        self._wait(self._is_in_sync, "all replicas in sync at the end")
        return [*self._check_records(), *self._check_group(), *self._check_bytes()]

    def _kill(self, number: int, kills: int) -> None:
        time.sleep(self.rng.uniform(0.2, 1.0))
        victim = self._victim()
        written = self.load.written
        written.begin_gaps()
        count = len(written.values)
        broker = self.cluster.brokers[victim]
        broker.kill()
        since = time.monotonic()
        self._wait(
            lambda: min(written.last) > since + 0.5 and len(written.values) > count, "acknowledgements after a kill"
        )
        broker.launch()
        self._wait(self._is_in_sync, "all replicas in sync")
        self.gaps.append(max(written.gaps))
        print(
            f"kill {number}/{kills}: broker {victim} ({self.role}), longest gap {self.gaps[-1]:.2f} s, "
            f"{len(written.values)} acknowledged", flush=True,
        )  # fmt: skip

    def _victim(self) -> int:
        found = self.admin.list_topics(timeout=_DEADLINE_S)
        if self.role == "leader":
            return int(found.topics[TOPIC].partitions[0].leader)
        if self.role == "controller":
            return int(found.controller_id)
        if self.role == "group":
            described = self.admin.describe_consumer_groups([GROUP])[GROUP].result(_DEADLINE_S)
            return int(described.coordinator.id)
        return self.rng.choice(list(self.cluster.brokers))

    def _is_in_sync(self) -> bool:
        topics = self.admin.list_topics(timeout=_DEADLINE_S).topics
        return all(len(each.isrs) == 3 for topic in topics.values() for each in topic.partitions.values())

    def _wait(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                if condition():
                    return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise
                print(f"asking again: {error}", flush=True)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_DEADLINE_S:.0f} s: {what}")
            time.sleep(0.05)

    def _check_records(self) -> list[str]:
        written = self.load.written
        problems = [f"{len(written.errors)} records were refused: {written.errors[0]}"] if written.errors else []
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "check", "log_level": 0})
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=_DEADLINE_S)[1]
            for number in range(PARTITIONS)
        ]
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + 5 * _DEADLINE_S
        while len(found) < sum(ends) and time.monotonic() < deadline:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value() or b""  # type: ignore[index]
        consumer.close()
        lost = [place for place, value in written.values.items() if found.get(place) != value]
        if lost:
            problems.append(f"{len(lost)} acknowledged records are lost or differ, first {lost[0]}")
        twice = len(found) - len(set(found.values()))
        if twice:
            problems.append(f"{twice} records are there twice")
        print(
            f"{self.load.sent} sent, {len(written.values)} acknowledged, {len(found)} read, {len(lost)} lost, "
            f"{twice} twice"
        )
        return problems

    def _check_group(self) -> list[str]:
        listed = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
        offsets = listed[GROUP].result(_DEADLINE_S).topic_partitions
        print(f"group: {self.load.read} records read, committed {[each.offset for each in offsets]}")
        return [] if self.load.read and offsets else ["the group read or committed nothing"]

    def _check_bytes(self) -> list[str]:
        """Stop all brokers; the logs of the replicas must have the same bytes."""
        for broker in self.cluster.brokers.values():
            broker.stop()
        problems = []
        for number in range(PARTITIONS):
            logs = {
                broker_id: b"".join(
                    path.read_bytes() for path in sorted((Path(broker.data) / f"{TOPIC}-{number}").glob("*.log"))
                )
                for broker_id, broker in self.cluster.brokers.items()
            }
            if len(set(logs.values())) != 1:
                problems.append(
                    f"replicas of {TOPIC}-{number} differ: { ({n: len(data) for n, data in logs.items()}) }"
                )
        return problems


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--role", choices=("leader", "controller", "group", "any"), default="any")
    options = parser.parse_args()
    with ClusterProcess.start() as cluster:
        campaign = Campaign(cluster, options.role, Random(options.seed))
        problems = campaign.run(options.kills)
        gaps = sorted(campaign.gaps)
    if gaps:
        p99 = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
        print(
            f"longest gap between two acknowledgements: median {gaps[len(gaps) // 2]:.2f} s, p99 {p99:.2f} s, "
            f"max {gaps[-1]:.2f} s"
        )
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
