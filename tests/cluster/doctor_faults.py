"""Faults of brokers, partitions, topics and security, each with the check that names it.

A fault is a context manager: it is made when the block begins, and undone when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from doctor_place import DEADLINE_S, RACKS, Place, certificate_of

from ottla.admin.client import AdminClient
from ottla.testing.process import reserve_port
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_UPGRADE, _DOWNGRADE = 1, 2
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Fault:
    """A fault, and the check that finds it."""

    check: str
    make: Callable[[Place], AbstractContextManager[None]]
    #: for checks that compare two readings
    compare_s: float | None = None


FAULTS: list[Fault] = []


def fault(check: str, compare_s: float | None = None) -> Callable[[Callable[[Place], Iterator[None]]], None]:
    """Add a generator function to the faults. It makes the fault, yields, and undoes it."""

    def add(function: Callable[[Place], Iterator[None]]) -> None:
        FAULTS.append(Fault(check, contextmanager(function), compare_s))

    return add


# -- brokers ----------------------------------------------------------------------------------------------------------


@fault("silent-brokers")
def _(place: Place) -> Iterator[None]:
    # Registered, and paused for less than its session lasts: it is continued as soon as it was found.
    place.cluster.brokers[3].pause()
    yield
    place.cluster.brokers[3].resume()
    place.settle()


@fault("different-settings")
def _(place: Place) -> Iterator[None]:
    place.ottla("config", "set", "log.retention.ms=3600000", "--broker", "3")
    yield
    place.ottla("config", "unset", "log.retention.ms", "--broker", "3")


@fault("racks-partly-set")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, broker_rack=""):
        yield


@fault("default-single-replica")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, default_replication_factor="1"):
        yield


@fault("short-offsets-retention")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, offsets_retention_minutes="60"):
        yield


@fault("auto-created-topics")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, auto_create_topics_enable="true"):
        yield


@fault("small-replica-fetch")
def _(place: Place) -> Iterator[None]:
    with place.topic(max_message_bytes="8000000"):
        yield


@fault("upgrade-not-finished")
def _(place: Place) -> Iterator[None]:
    with AdminClient(place.cluster.bootstrap, place.login, timeout_s=DEADLINE_S) as client:
        _set_level(client, "transaction.version", 1, _DOWNGRADE)
        yield
        _set_level(client, "transaction.version", 2, _UPGRADE)


def _set_level(client: AdminClient, name: str, level: int, kind: int) -> None:
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    metadata = client.metadata()
    node = next(each for each in client.brokers() if each.broker_id == metadata.controller_id)
    answer = client.ask(node, UpdateFeaturesRequest(feature_updates=[update]), 1)
    assert not answer.error_code, answer


# -- partitions -------------------------------------------------------------------------------------------------------


@fault("offline-partitions")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[3]]), place.killed(3):
        yield


@fault("coordinators-offline")
def _(place: Place) -> Iterator[None]:
    before = _replicas(place, "__consumer_offsets")[0]
    place.ottla("cluster", "reassign", "__consumer_offsets:0=3", "--timeout", str(DEADLINE_S))
    with place.killed(3):
        yield
    _move(place, "__consumer_offsets", before)


@fault("under-min-isr")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1, 2, 3]]), place.killed(2, 3):
        yield


@fault("missing-brokers")
def _(place: Place) -> Iterator[None]:
    with place.killed(3):
        yield


@fault("at-min-isr")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1, 2, 3]]), place.killed(3):
        yield


@fault("under-replicated")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1, 2, 3]], min_insync_replicas="1"), place.killed(3):
        yield


@fault("internal-topic-replicas")
def _(place: Place) -> Iterator[None]:
    before = _replicas(place, "__consumer_offsets")[0]
    _move(place, "__consumer_offsets", before[:2])
    yield
    _move(place, "__consumer_offsets", before)


def _replicas(place: Place, topic: str) -> list[list[int]]:
    (row,) = json.loads(place.ottla("topic", "describe", topic, "-p", "-o", "json"))
    return [one["replicas"] for one in row["partitions"]]


def _move(place: Place, topic: str, replicas: list[int]) -> None:
    words = (f"{topic}:0={','.join(map(str, replicas))}", "--timeout", str(DEADLINE_S))
    place.ottla("cluster", "reassign", *words)


@fault("stuck-reassignment", compare_s=5)
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1, 2]], min_insync_replicas="1") as topic:
        place.produce(topic, 300, size=100_000)
        place.ottla("cluster", "reassign", f"{topic}:0=1,3", "--throttle", "1", "--no-wait")
        yield
        place.ottla("cluster", "reassign", "--cancel", f"{topic}:0")
        place.ottla("cluster", "reassign", "--unthrottle", code=None)


@fault("throttle-left-behind")
def _(place: Place) -> Iterator[None]:
    with place.topic(leader_replication_throttled_replicas="*"):
        yield


@fault("single-replica")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1]]):
        yield


@fault("no-failure-tolerated")
def _(place: Place) -> Iterator[None]:
    with place.topic(min_insync_replicas="3"):
        yield


@fault("min-isr-one")
def _(place: Place) -> Iterator[None]:
    with place.topic(min_insync_replicas="1"):
        yield


@fault("uneven-replication")
def _(place: Place) -> Iterator[None]:
    with place.topic() as topic:
        _move(place, topic, [1, 2])
        yield


@fault("one-rack")
def _(place: Place) -> Iterator[None]:
    with place.restarted(2, broker_rack=RACKS[1]), place.topic(assignment=[[1, 2]], min_insync_replicas="1"):
        yield


@fault("leaders-not-preferred")
def _(place: Place) -> Iterator[None]:
    place.cluster.brokers[3].restart()
    place.ottla("cluster", "status", "--wait", "--timeout", str(DEADLINE_S), code=None)
    yield
    place.settle()


@fault("leaders-skewed")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1, 2, 3]] * 30):
        yield


@fault("replicas-skewed")
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[1]] * 40):
        yield


# -- topics -----------------------------------------------------------------------------------------------------------


@fault("unclean-elections")
def _(place: Place) -> Iterator[None]:
    with place.topic(unclean_leader_election_enable="true"):
        yield


@fault("misspelt-topics")
def _(place: Place) -> Iterator[None]:
    with place.topic("payments"), place.topic("paymnets", records=0):
        yield


@fault("small-segments")
def _(place: Place) -> Iterator[None]:
    with place.topic(segment_ms="60000"):
        yield


@fault("late-retention")
def _(place: Place) -> Iterator[None]:
    with place.topic(retention_ms="3600000", segment_ms=str(7 * _DAY_MS)):
        yield


@fault("unlimited-topics")
def _(place: Place) -> Iterator[None]:
    with place.topic(retention_ms="-1"):
        yield


@fault("future-timestamps")
def _(place: Place) -> Iterator[None]:
    import time

    with place.topic(message_timestamp_after_max_ms=str(2**62)) as topic:
        place.produce(topic, 1, timestamp_ms=int(time.time() * 1000) + 3 * _DAY_MS)
        yield


@fault("dead-letters")
def _(place: Place) -> Iterator[None]:
    with place.topic("shipments.dlq"):
        yield


# -- security ---------------------------------------------------------------------------------------------------------


@fault("blocking-quotas")
def _(place: Place) -> Iterator[None]:
    place.ottla("quota", "set", "producer_byte_rate=10", "--client-id", "slow")
    yield
    place.ottla("quota", "remove", "producer_byte_rate", "--client-id", "slow")


@fault("acls-for-everyone")
def _(place: Place) -> Iterator[None]:
    words = ("--topic", "*", "--allow-principal", "User:*", "--operation", "write")
    place.ottla("acl", "add", *words)
    yield
    place.ottla("acl", "remove", *words, "--force")


@fault("acls-without-topic")
def _(place: Place) -> Iterator[None]:
    words = ("--topic", "no-such-topic", "--allow-principal", "User:ana", "--operation", "read")
    place.ottla("acl", "add", *words)
    yield
    place.ottla("acl", "remove", *words, "--force")


@fault("anonymous-super-user")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, super_users="User:admin;User:ANONYMOUS"):
        yield


@fault("everyone-allowed")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, allow_everyone_if_no_acl_found="true"):
        yield


@fault("logins-without-acls")
def _(place: Place) -> Iterator[None]:
    with place.restarted(3, authorizer_class_name="", super_users=""):
        yield


@contextmanager
def _tls(place: Place, *, host: str, days: int) -> Iterator[None]:
    """Give broker 3 a second listener with a certificate."""
    path = Path(place.cluster.data) / "certificate.pem"
    certificate_of(path, host=host, days=days)
    broker = place.cluster.brokers[3]
    with reserve_port() as reserved:
        # BrokerProcess takes the port of the last listener.
        port = reserved.getsockname()[1]
        listeners = f"TLS://127.0.0.1:{port},PLAINTEXT://{broker.bootstrap}"
        settings = {
            "listeners": listeners, "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(path),
        }  # fmt: skip
        with place.restarted(3, **settings):
            yield


@fault("expiring-certificates")
def _(place: Place) -> Iterator[None]:
    with _tls(place, host="127.0.0.1", days=10):
        yield


@fault("wrong-certificates")
def _(place: Place) -> Iterator[None]:
    with _tls(place, host="other.example", days=300):
        yield


# -- transactions -----------------------------------------------------------------------------------------------------


@fault("stuck-transactions", compare_s=3)
def _(place: Place) -> Iterator[None]:
    with place.topic(assignment=[[3]]) as topic:
        producer = Producer(place.client(transactional_id="doctor-stuck", transaction_timeout_ms=600_000))
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(DEADLINE_S) == 0
        with place.killed(3):
            # The coordinator has decided and replies. It cannot write the marker.
            producer.commit_transaction(DEADLINE_S)
            yield
