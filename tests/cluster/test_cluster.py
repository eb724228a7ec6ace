"""Three brokers and ZooKeeper as processes: what clients see when brokers end, pause and come back."""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_store import StateWatcher, check_refilled_before_it_leads, expire_session, session_of
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.checker import check_replicas
from campaign.cluster import PausedBrokerProbe
from campaign.processes import wait_until
from ottla.testing import ClusterProcess

pytestmark = pytest.mark.broker

PARTITIONS = 3
_DEADLINE_S = 60.0


class Load:
    """A producer with acks=all and idempotence that remembers what was acknowledged."""

    def __init__(self, cluster: ClusterProcess, topic: str) -> None:
        self.topic, self._cluster = topic, cluster
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        #: values that librdkafka reports as delivered without an offset, which it may do after a retry
        self.acknowledged_somewhere: set[bytes] = set()
        self.errors: list[str] = []
        self.sent = 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value() or b""
        if partition is None or offset is None:
            self.acknowledged_somewhere.add(value)
        else:
            self.acknowledged[partition, offset] = value

    def send(self, count: int) -> None:
        """Send records to all partitions without waiting."""
        for _ in range(count):
            self._producer.produce(
                self.topic, value=b"%d" % self.sent, partition=self.sent % PARTITIONS, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def send_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition was not reached"
            self.send(PARTITIONS)
            self._producer.poll(0.01)

    def complete(self) -> None:
        assert self._producer.flush(_DEADLINE_S) == 0, "records were neither acknowledged nor refused"
        assert not self.errors
        assert len(self.acknowledged) + len(self.acknowledged_somewhere) == self.sent

    def check_all_readable(self) -> None:
        """Read the topic from the start: each acknowledged record is at its offset, and none is there twice."""
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "check", "log_level": 0})
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
        found: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + _DEADLINE_S
        while not (self.acknowledged.keys() <= found.keys() and self.acknowledged_somewhere <= set(found.values())):
            assert time.monotonic() < deadline, f"{len(self.acknowledged.keys() - found.keys())} records are missing"
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()  # type: ignore[index, assignment]
        consumer.close()
        assert {place: found[place] for place in self.acknowledged} == self.acknowledged
        assert len(set(found.values())) == len(found), "a record is there twice"
        self._check_replicas()

    def _check_replicas(self) -> None:
        """All replicas, which must be in sync, have the same bytes up to the last acknowledged record."""
        ends: dict[int, int] = {}
        for number, offset in self.acknowledged:
            ends[number] = max(ends.get(number, 0), offset + 1)
        directories = {number: Path(broker.data) for number, broker in self._cluster.brokers.items()}
        # A follower writes what it has fetched a moment after it is in sync.
        wait_until(
            lambda: check_replicas(directories, self.topic, ends) == [],
            lambda: check_replicas(directories, self.topic, ends),
        )


@pytest.fixture
def admin(ottla_cluster: ClusterProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": ottla_cluster.bootstrap, "log_level": 0})


@pytest.fixture
def load(ottla_cluster: ClusterProcess, admin: AdminClient, request: pytest.FixtureRequest) -> Load:
    """A load on a topic with three replicas, and all brokers running and in sync."""
    for broker in ottla_cluster.brokers.values():
        if not broker.running:
            broker.launch()
    topic = request.node.name.replace("[", "-").replace("]", "")
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(_DEADLINE_S)
    wait_in_sync(admin, topic, 3)
    return Load(ottla_cluster, topic)


def isrs(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
    return [len(partition.isrs) for partition in found.values()]


def leader(admin: AdminClient, topic: str, number: int = 0) -> int:
    return int(admin.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions[number].leader)


def wait_in_sync(admin: AdminClient, topic: str, count: int) -> None:
    wait_until(lambda: set(isrs(admin, topic)) == {count}, lambda: isrs(admin, topic))


def test_nothing_is_lost_when_the_leader_is_killed(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 300)
    killed = leader(admin, load.topic)
    ottla_cluster.brokers[killed].kill()
    count = len(load.acknowledged)
    load.send_until(lambda: len(load.acknowledged) > count + 300 and leader(admin, load.topic) != killed)
    ottla_cluster.brokers[killed].launch()
    load.complete()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_nothing_is_lost_when_all_brokers_are_killed(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 300)
    for broker in ottla_cluster.brokers.values():
        broker.kill()
    for broker in ottla_cluster.brokers.values():
        broker.launch()
    count = len(load.acknowledged)
    load.send_until(lambda: len(load.acknowledged) > count + 30)
    load.complete()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_stop_of_a_broker_hands_its_leaderships_over(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 30)
    stopped = leader(admin, load.topic)
    assert ottla_cluster.brokers[stopped].stop() == 0
    assert leader(admin, load.topic) != stopped
    count = len(load.acknowledged)
    load.send_until(lambda: len(load.acknowledged) > count + 30)
    ottla_cluster.brokers[stopped].launch()
    load.complete()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_broker_with_an_empty_disk_is_filled_again(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 300)
    load.complete()
    wiped = leader(admin, load.topic)
    ottla_cluster.brokers[wiped].kill()
    shutil.rmtree(ottla_cluster.brokers[wiped].data)
    ottla_cluster.brokers[wiped].launch()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_partition_whose_log_cannot_be_read_is_led_by_another_broker(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 300)
    load.complete()
    broken = leader(admin, load.topic)
    broker = ottla_cluster.brokers[broken]
    assert broker.stop() == 0
    (segment,) = (Path(broker.data) / f"{load.topic}-0").glob("*.log")
    segment.rename(segment.with_suffix(".kept"))
    segment.mkdir()
    broker.launch()
    # The other partitions are in order, and the broker is in sync there.
    wait_until(lambda: sorted(isrs(admin, load.topic)) == [2, 3, 3], lambda: isrs(admin, load.topic))
    assert leader(admin, load.topic) != broken
    load.send(PARTITIONS)
    load.complete()

    assert broker.stop() == 0
    segment.rmdir()
    segment.with_suffix(".kept").rename(segment)
    broker.launch()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_old_copy_of_a_data_directory_is_refilled_before_it_leads(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 30)
    restored = leader(admin, load.topic)
    broker = ottla_cluster.brokers[restored]
    assert broker.stop() == 0
    data = Path(broker.data)
    copy = data.with_name(f"{data.name}-old")
    shutil.copytree(data, copy)
    broker.launch()
    wait_in_sync(admin, load.topic, 3)
    count = len(load.acknowledged)
    load.send_until(lambda: len(load.acknowledged) > count + 30)
    load.complete()
    assert broker.stop() == 0
    shutil.rmtree(data)
    copy.rename(data)
    broker.launch()
    watcher = StateWatcher(ottla_cluster.connect, load.topic)
    try:
        wait_in_sync(admin, load.topic, 3)
    finally:
        watcher.stop()
    assert check_refilled_before_it_leads(watcher.samples, restored) == []
    load.check_all_readable()


def test_paused_leader_whose_session_has_expired_acknowledges_nothing(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 30)
    paused = leader(admin, load.topic)
    broker = ottla_cluster.brokers[paused]
    probe = PausedBrokerProbe(broker, load.topic, PARTITIONS)
    watcher = StateWatcher(ottla_cluster.connect, load.topic)
    broker.pause()
    try:
        # Not with acks=1: the session ends before its timeout, in which the broker may still count on it.
        probe.send([-1])
        expire_session(ottla_cluster.connect, paused)
        wait_until(
            lambda: all(each.leader not in (paused, -1) for each in watcher.samples[-1].partitions),
            lambda: watcher.samples[-1],
        )
    finally:
        broker.resume()
        watcher.stop()
    assert probe.acknowledged() == 0
    count = len(load.acknowledged)
    load.send_until(lambda: len(load.acknowledged) > count + 30)
    load.complete()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_broker_registers_again_when_its_session_has_expired(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    load.send_until(lambda: len(load.acknowledged) > 30)
    for number in ottla_cluster.brokers:
        expired = expire_session(ottla_cluster.connect, number)
        load.send_until(lambda: session_of(ottla_cluster.connect, number) not in (None, expired))  # noqa: B023
    load.complete()
    wait_in_sync(admin, load.topic, 3)
    load.check_all_readable()


def test_rolling_restart_is_not_visible_to_clients(
    ottla_cluster: ClusterProcess, admin: AdminClient, load: Load
) -> None:
    for broker in ottla_cluster.brokers.values():
        count = len(load.acknowledged)
        load.send_until(lambda: len(load.acknowledged) > count + 30)  # noqa: B023
        assert broker.stop() == 0
        broker.launch()
        wait_in_sync(admin, load.topic, 3)
    load.complete()
    load.check_all_readable()


def metrics(cluster: ClusterProcess) -> list[dict[str, float]]:
    """Return the metrics of each broker that runs, by name and labels."""
    pages = []
    for broker in cluster.brokers.values():
        if broker.running:
            with urllib.request.urlopen(broker.ready_line.split("metrics=")[1], timeout=_DEADLINE_S) as reply:
                lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[0] != "#"]
            pages.append({name: float(value) for name, value in lines})
    return pages


def wait_for_sum(cluster: ClusterProcess, name: str, is_reached: Callable[[float], bool]) -> list[dict[str, float]]:
    """Return the metrics of all brokers when the sum of one has reached a value."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        pages = metrics(cluster)
        total = sum(page[name] for page in pages)
        if is_reached(total):
            return pages
        assert time.monotonic() < deadline, f"{name} is {total}"
        time.sleep(0.1)


def test_metrics_show_a_broker_that_has_ended(ottla_cluster: ClusterProcess, admin: AdminClient, load: Load) -> None:
    wait_for_sum(ottla_cluster, "ottla_under_replicated_partitions", lambda total: total == 0)
    wait_for_sum(ottla_cluster, "ottla_active_controller", lambda total: total == 1)
    pages = wait_for_sum(ottla_cluster, "ottla_brokers", lambda total: total == 3 * 3)
    for page in pages:
        assert page['ottla_metadata_session{state="established"}'] == 1
        assert page["ottla_metadata_heartbeat_seconds_count"] >= 0

    # Each broker leads a partition of the new topic.
    ended = leader(admin, load.topic, 1)
    others = [page for number, page in zip(ottla_cluster.brokers, pages, strict=True) if number != ended]
    elections = sum(page["ottla_leader_elections_total"] for page in others)
    ottla_cluster.brokers[ended].kill()
    wait_for_sum(ottla_cluster, "ottla_brokers", lambda total: total == 2 * 2)
    pages = wait_for_sum(ottla_cluster, "ottla_under_replicated_partitions", lambda total: total >= PARTITIONS)
    # A counter rises when the write has returned, a moment after the change is visible.
    wait_for_sum(ottla_cluster, "ottla_leader_elections_total", lambda total: total > elections)
    assert sum(page["ottla_offline_partitions"] + page["ottla_under_min_isr_partitions"] for page in pages) == 0
    wait_for_sum(ottla_cluster, "ottla_at_min_isr_partitions", lambda total: total >= PARTITIONS)
    load.send_until(lambda: len(load.acknowledged) > 30)
    load.complete()
    lag = f'{{topic="{load.topic}",partition="0",replica="{ended}"}}'
    pages = wait_for_sum(ottla_cluster, "ottla_replication_max_lag_records", lambda total: total > 0)
    (its_leader,) = [page for page in pages if f"ottla_replication_lag_records{lag}" in page]
    assert its_leader[f"ottla_replication_lag_records{lag}"] > 0
    assert its_leader[f"ottla_replication_lag_seconds{lag}"] > 0

    expands = sum(page["ottla_isr_expands_total"] for page in pages)
    ottla_cluster.brokers[ended].launch()
    wait_for_sum(ottla_cluster, "ottla_under_replicated_partitions", lambda total: total == 0)
    pages = wait_for_sum(ottla_cluster, "ottla_isr_expands_total", lambda total: total > expands)
    assert sum(page["ottla_replication_bytes_in_total"] for page in pages) > 0
    # The names of Kafka's JMX exporter.
    assert sum(page["kafka_controller_kafkacontroller_activecontrollercount"] for page in pages) == 1
    assert sum(page["kafka_server_brokertopicmetrics_replicationbytesout_total"] for page in pages) > 0
    followed = [
        name for page in pages for name in page if name.startswith("kafka_server_fetcherlagmetrics_consumerlag{")
    ]
    assert any(f'topic="{load.topic}"' in name and 'clientId="ReplicaFetcherThread-0-' in name for name in followed)
