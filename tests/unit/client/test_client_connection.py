"""One connection: order of answers, memory of replies, bytes that are no answer."""

from __future__ import annotations

import time

import pytest
from fake_cluster import Cut, FakeCluster, Silence

from ottla.client.connection import BrokerConnection
from ottla.client.errors import ConnectionLost, Unreachable, UnsupportedByBroker
from ottla.client.protocol.frames import ReplyMemory
from ottla.client.protocol.metadata import Node
from ottla.client.security import Security
from ottla.wire.messages.metadata import MetadataRequest

NODE = Node(1, "fake", 9001)


def connect(node: Node = NODE) -> BrokerConnection:
    return BrokerConnection(node, Security(), client_id="test", deadline=soon())


def soon() -> float:
    return time.monotonic() + 60


def test_memory_that_nobody_looks_at_is_used_again() -> None:
    memory = ReplyMemory()
    first = memory.take(100)
    address = id(first.obj)
    del first
    assert id(memory.take(200).obj) == address


def test_memory_that_somebody_looks_at_is_left_alone() -> None:
    memory = ReplyMemory()
    held = memory.take(100)[10:20]
    held[:] = b"0123456789"
    for size in (100, 1 << 20, 100, 5_000_000):
        other = memory.take(size)
        other[:] = b"\xff" * size
    assert bytes(held) == b"0123456789"


def test_memory_does_not_grow_with_the_number_of_replies() -> None:
    memory = ReplyMemory()
    held = [memory.take(10) for _ in range(100)]
    assert len(held) == 100
    assert len(memory._pieces) <= 3


def test_answers_come_in_the_order_of_the_requests(fake: FakeCluster) -> None:
    connection = connect()
    fake.leaders = {("a", 0): 1}
    connection.send(MetadataRequest(topics=None), deadline=soon())
    fake.leaders = {("b", 0): 1}
    connection.send(MetadataRequest(topics=None), deadline=soon())
    assert connection.in_flight == 2
    assert [connection.receive(soon()).topics[0].name for _ in range(2)] == ["a", "b"]
    assert connection.in_flight == 0


@pytest.mark.parametrize(("failure", "reason"), [(Cut, "closed the connection"), (Silence, "none in time")])
def test_a_connection_that_has_failed_is_closed(fake: FakeCluster, failure: type[Exception], reason: str) -> None:
    connection = connect()
    fake.plan("Metadata", failure)
    with pytest.raises(ConnectionLost, match=f"broker 1 at fake:9001 accepts .*{reason}.*security.protocol"):
        connection.ask(MetadataRequest(topics=None), deadline=soon())
    assert not connection.is_open


def test_nothing_is_waited_for_behind_the_deadline(fake: FakeCluster) -> None:
    connection = connect()
    with pytest.raises(ConnectionLost, match="none in time"):
        connection.ask(MetadataRequest(topics=None), deadline=time.monotonic() - 1)


def test_nobody_at_the_address_is_told_with_the_reason(fake: FakeCluster) -> None:
    with pytest.raises(Unreachable, match=r"broker 9 at fake:9009 cannot be reached \(connection refused\)"):
        connect(Node(9, "fake", 9009))


def test_versions_are_the_newest_of_both_within_bounds(fake: FakeCluster) -> None:
    fake.versions[3] = (2, 9)
    connection = connect()
    assert connection.version_of(3) == 9
    assert connection.version_of(3, 0, 5) == 5
    with pytest.raises(UnsupportedByBroker, match="Metadata in version 10 or newer"):
        connection.version_of(3, 10)
    with pytest.raises(UnsupportedByBroker):
        connection.version_of(3, 0, 1)


def test_an_api_that_the_broker_lacks_is_named(fake: FakeCluster) -> None:
    del fake.versions[3]
    with pytest.raises(UnsupportedByBroker, match="does not have it"):
        connect().ask(MetadataRequest(topics=None), deadline=soon())


def test_features_of_the_cluster_are_known(fake: FakeCluster) -> None:
    assert connect().features == {"transaction.version": 2}
