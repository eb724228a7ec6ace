"""A cluster whose network a test cuts, without root: connections pass proxies of the fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.processes import wait_until
from ottla.cli.zookeeper_server import ZooKeeperFailed
from ottla.testing import CLIENTS, ZOOKEEPER, ClusterProcess

pytestmark = pytest.mark.broker

_DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    try:
        started = ClusterProcess.start(settings={"zookeeper.session.timeout.ms": "3000"}, can_cut=True)
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    with started:
        yield started


@pytest.fixture
def admin(cluster: ClusterProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def in_sync(admin: AdminClient, topic: str) -> bool:
    try:
        (partition,) = admin.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions.values()
    except KafkaException:
        return False  # a broker that is cut off closes connections
    return len(partition.isrs) == 3


def test_other_brokers_accept_records_while_the_leader_is_cut_off(cluster: ClusterProcess, admin: AdminClient) -> None:
    new = NewTopic("moved", 1, replica_assignment=[[2, 3, 1]], config={"min.insync.replicas": "2"})
    admin.create_topics([new])["moved"].result(_DEADLINE_S)
    wait_until(lambda: in_sync(admin, "moved"), "all replicas in sync")
    offsets: list[int | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})

    def produce() -> None:
        producer.produce("moved", b"record", on_delivery=delivered)
        assert producer.flush(_DEADLINE_S) == 0

    produce()
    # Clients still reach the leader, which can neither replicate nor know whether it leads.
    for other in (1, 3, ZOOKEEPER):
        cluster.cut(2, other)
    produce()
    cluster.heal()
    produce()
    wait_until(lambda: in_sync(admin, "moved"), "all replicas in sync after the heal")
    assert offsets == [0, 1, 2]


def test_client_reaches_no_broker_that_is_cut_off_from_clients(cluster: ClusterProcess, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("reached", 1, 3)])["reached"].result(_DEADLINE_S)
    wait_until(lambda: in_sync(admin, "reached"), "all replicas in sync")
    for broker in cluster.brokers:
        cluster.cut(CLIENTS, broker)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("reached", b"record")
    assert producer.flush(0.5) == 1
    cluster.heal()
    assert producer.flush(_DEADLINE_S) == 0
