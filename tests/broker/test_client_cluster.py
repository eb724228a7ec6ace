"""The client against a broker: offsets, commits, restarts, and TLS in between."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation, OffsetAt
from ottla.client.errors import AuthenticationFailed, BrokerError, ConnectionLost, TimedOut, Unreachable
from ottla.model.types import TopicPartition
from ottla.testing.raw import batch_of

pytestmark = pytest.mark.broker

_numbers = itertools.count()
COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture
def topic() -> str:
    return f"client-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def cluster(ottla_broker: Any) -> Iterator[Cluster]:
    with Cluster(ottla_broker.bootstrap, timeout_s=60) as cluster:
        yield cluster


def test_a_topic_is_made_once(cluster: Cluster, topic: str) -> None:
    assert cluster.create_topic(topic, 3, {"retention.ms": "1000000"})
    assert not cluster.create_topic(topic, 3)
    info = cluster.topics([topic, f"{topic}-gone"])
    assert set(info) == {topic}
    assert (info[topic].partitions, info[topic].internal, info[topic].topic_id == bytes(16)) == (3, False, False)
    assert topic in cluster.topics()
    assert cluster.topic_config(topic, ["retention.ms"]) == {"retention.ms": "1000000"}


def test_a_topic_with_a_wrong_setting_is_refused_with_the_brokers_words(cluster: Cluster, topic: str) -> None:
    with pytest.raises(BrokerError, match="INVALID_CONFIG") as told:
        cluster.create_topic(topic, 1, {"retention.ms": "soon"})
    assert "retention.ms" in str(told.value)


def test_offsets_are_found_at_both_ends_and_by_time(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert cluster.produce(first, batch_of(b"a", b"b", timestamp=1000)) == 0
    assert cluster.produce(first, batch_of(b"c", timestamp=2000), acks=1) == 2
    wanted = {first: LATEST, second: LATEST}
    assert {tp: at.offset for tp, at in cluster.list_offsets(wanted, isolation=COMMITTED).items()} == {
        first: 3,
        second: 0,
    }
    assert cluster.list_offsets({first: EARLIEST}, isolation=COMMITTED)[first].offset == 0
    assert cluster.list_offsets({first: 1500}, isolation=COMMITTED)[first] == OffsetAt(2, 2000)
    assert cluster.list_offsets({first: 9000}, isolation=COMMITTED)[first].offset == -1


def test_commits_of_a_group_without_members_are_kept(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert cluster.committed(topic, [first, second]) == {}
    cluster.commit(topic, {first: 7}, "a note")
    assert cluster.committed(topic, [first, second]) == {first: 7}


def test_a_commit_beside_active_members_is_refused(cluster: Cluster, topic: str, ottla_broker: Any) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    cluster.create_topic(topic, 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": ottla_broker.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline, "nothing was assigned"
        consumer.poll(0.1)
    with pytest.raises(BrokerError, match="the group has active members"):
        cluster.commit(topic, {TopicPartition(topic, 0): 1})
    consumer.close()


def test_a_restart_of_the_broker_goes_unnoticed(fresh_ottla_broker: Any) -> None:
    with Cluster(fresh_ottla_broker.bootstrap, timeout_s=60) as cluster:
        cluster.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        cluster.produce(tp, batch_of(b"a"))
        cluster.commit("g", {tp: 1})
        fresh_ottla_broker.restart()
        assert cluster.committed("g", [tp]) == {tp: 1}
        fresh_ottla_broker.kill()
        fresh_ottla_broker.launch()
        assert cluster.produce(tp, batch_of(b"b")) == 1


def test_a_broker_that_stays_away_is_unreachable_in_time(fresh_ottla_broker: Any) -> None:
    with Cluster(fresh_ottla_broker.bootstrap, timeout_s=1) as cluster:
        cluster.topics()
        fresh_ottla_broker.stop()
        started = time.monotonic()
        with pytest.raises(Unreachable, match="connection refused"):
            cluster.topics()
        assert time.monotonic() - started < 60


def test_something_that_is_no_broker_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        started = time.monotonic()
        with Cluster(address, timeout_s=0.5) as cluster, pytest.raises((TimedOut, ConnectionLost)) as told:
            cluster.topics()
        assert "security.protocol" in str(told.value)
        assert time.monotonic() - started < 60


# -- TLS --------------------------------------------------------------------------------------------------------------


class TlsFront:
    """Speaks TLS with clients, and as it is with the broker behind."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.target = ("", 0)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._server.accept()
                self._sockets.append(plain)
                try:
                    client = self._context.wrap_socket(plain, server_side=True)
                except OSError:
                    plain.close()
                    continue
                broker = socket.create_connection(self.target)
                self._sockets += [client, broker]
                for one, other in ((client, broker), (broker, client)):
                    thread = threading.Thread(target=self._pass, args=(one, other))
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for each in self._sockets:
            each.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def tls(certificate: tuple[Path, Path], start_ottla_broker: Any) -> Iterator[str]:
    """The address of a broker behind TLS."""
    front = TlsFront(*certificate)
    broker = start_ottla_broker(settings={"advertised.listeners": f"PLAINTEXT://localhost:{front.port}"})
    front.target = ("127.0.0.1", broker.port)
    yield f"localhost:{front.port}"
    front.close()


def test_records_go_through_tls(tls: str, certificate: tuple[Path, Path]) -> None:
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}
    with Cluster(tls, properties, timeout_s=60) as cluster:
        cluster.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        with cluster.producer() as stream:
            for _ in range(20):
                stream.send(tp, batch_of(b"v" * 100_000))
        assert cluster.list_offsets({tp: LATEST}, isolation=COMMITTED)[tp].offset == 20


def test_a_certificate_of_an_unknown_authority_is_refused(tls: str) -> None:
    with (
        Cluster(tls, {"security.protocol": "SSL"}, timeout_s=60) as cluster,
        pytest.raises(AuthenticationFailed, match=r"set ssl\.ca\.location"),
    ):
        cluster.topics()


def test_a_certificate_for_another_name_is_refused(tls: str, certificate: tuple[Path, Path]) -> None:
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}
    with (
        Cluster(tls.replace("localhost", "127.0.0.1"), properties, timeout_s=60) as cluster,
        pytest.raises(AuthenticationFailed, match="connect by a name that it is for"),
    ):
        cluster.topics()
