"""A healthy cluster of three brokers in three racks with logins and ACLs, and ways to break it for `ottla doctor`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.processes import wait_until
from ottla.cli.main import main
from ottla.testing import ClusterProcess

DEADLINE_S = 90.0
#: a broker that does not run, or is paused, is registered for so long
_SESSION_MS = 8000
#: for a request of the doctor: a paused broker answers none
_REQUEST_S = "3"
_PASSWORD = "password-of-the-administrator"
_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="{_PASSWORD}" user_admin="{_PASSWORD}";'
)
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "admin",
    "sasl.password": _PASSWORD,
}  # fmt: skip
HEALTHY = {
    # The listener of BrokerProcess has this name.
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,TLS:SSL",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": _LOGIN,
    "inter.broker.listener.name": "PLAINTEXT",
    "authorizer.class.name": "acl",
    "super.users": "User:admin",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "zookeeper.session.timeout.ms": str(_SESSION_MS),
}
RACKS = {1: "a", 2: "b", 3: "c"}


@dataclass
class Place:
    """The cluster, and what faults need."""

    cluster: ClusterProcess
    #: properties of all clients
    login: Mapping[str, str] = field(default_factory=lambda: LOGIN)
    _number: int = 0
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self._admin = AdminClient(self.client())

    def client(self, **properties: object) -> dict[str, Any]:
        """Return properties of a client; underscores stand for dots."""
        return {
            "bootstrap.servers": self.cluster.bootstrap, "log_level": 0, **self.login,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }  # fmt: skip

    # -- commands ----------------------------------------------------------------------------------------------------

    def ottla(self, *words: str, code: int | None = 0) -> str:
        """Run a command and return what it prints."""
        options = [word for name, value in self.login.items() for word in ("-X", f"{name}={value}")]
        result = CliRunner().invoke(main, [*words, "-b", self.bootstrap, *options])
        assert code is None or result.exit_code == code, f"{words}: {result.output}"
        return str(result.stdout)

    @property
    def bootstrap(self) -> str:
        """Return the addresses of the brokers that run: an address that refuses is a finding of its own."""
        return ",".join(each.bootstrap for each in self.cluster.brokers.values() if each.running)

    def findings(self, compare_s: float | None = None) -> dict[str, dict[str, Any]]:
        """Return what `ottla doctor` finds in the cluster, by check."""
        compare = () if compare_s is None else ("--compare", str(compare_s))
        text = self.ottla("doctor", "-o", "json", "--timeout", _REQUEST_S, *compare, code=None)
        rows = json.loads(text)
        # Checks of this machine have no kind.
        found = {row["name"]: row for row in rows if row["kind"] and row["verdict"] != "ok"}
        unanswered = [row for row in rows if row["name"] in ("address", "protocol") and row["verdict"] != "ok"]
        return found | {row["name"]: row for row in unanswered}

    # -- topics and records -------------------------------------------------------------------------------------------

    def name(self, prefix: str = "doctor") -> str:
        self._number += 1
        # No two of these names are near each other for the check of misspelt names.
        return f"{prefix}-{'abcdefghijklmnopqrstuvwxyz'[self._number % 26] * 3}-{self._number}"

    @contextmanager
    def topic(
        self,
        name: str = "",
        *,
        assignment: Sequence[Sequence[int]] = (),
        partitions: int = 3,
        records: int = 3,
        **settings: str,
    ) -> Iterator[str]:
        """Create a topic with records, and delete it after the block; ``settings`` have underscores for dots."""
        name = name or self.name()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        if assignment:
            given = [list(each) for each in assignment]
            new = NewTopic(name, len(given), replica_assignment=given, config=config)
        else:
            new = NewTopic(name, partitions, 3, config=config)
        self._admin.create_topics([new])[name].result(DEADLINE_S)
        try:
            self.produce(name, records)
            yield name
        finally:
            self.ottla("topic", "delete", name, "--yes", code=None)

    def produce(self, topic: str, records: int, *, timestamp_ms: int = 0, size: int = 10, partition: int = 0) -> None:
        producer = Producer(self.client())
        for _ in range(records):
            producer.produce(topic, b"x" * size, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(DEADLINE_S) == 0

    def delete_records(self, topic: str, before: int) -> None:
        found = self._admin.delete_records([TopicPartition(topic, 0, before)])
        next(iter(found.values())).result(DEADLINE_S)

    # -- groups -------------------------------------------------------------------------------------------------------

    def consumer(self, group: str, *topics: str, **properties: object) -> Consumer:
        consumer = Consumer(
            self.client(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **properties)
        )
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    @contextmanager
    def members(self, group: str, *subscriptions: Sequence[str], **properties: object) -> Iterator[list[Consumer]]:
        """Run consumers of a group with these topics until the end of the block. They poll in `poll`."""
        consumers = [self.consumer(group, *topics, **properties) for topics in subscriptions]
        try:
            yield consumers
        finally:
            for consumer in consumers:
                consumer.close()
            self.ottla("group", "delete", group, "--yes", code=None)

    # -- brokers ------------------------------------------------------------------------------------------------------

    @contextmanager
    def killed(self, *numbers: int) -> Iterator[None]:
        """Kill brokers, and wait until they are not registered. Start them again after the block."""
        for number in numbers:
            self.cluster.brokers[number].kill()
        running = len(self.cluster.brokers) - len(numbers)
        wait_until(lambda: len(self.brokers()) == running, lambda: f"{running} brokers; {self.brokers()}", DEADLINE_S)
        try:
            yield
        finally:
            self.start(*numbers)

    @contextmanager
    def restarted(self, number: int, **settings: str) -> Iterator[None]:
        """Restart a broker with these settings, without those that are empty; undo it after the block."""
        broker = self.cluster.brokers[number]
        before = dict(broker.settings)
        given = {name.replace("_", "."): value for name, value in settings.items()}
        broker.settings |= given
        for name in [name for name, value in given.items() if not value]:
            del broker.settings[name]
        broker.stop()
        try:
            self.start(number)
            yield
        finally:
            broker.stop()
            broker.settings.clear()
            broker.settings |= before
            self.start(number)

    def start(self, *numbers: int) -> None:
        """Start brokers. Return when all replicas are in sync and led as preferred."""
        for number in numbers:
            self.cluster.brokers[number].launch()
        self.settle()

    def settle(self) -> None:
        self.ottla("cluster", "status", "--wait", "--timeout", str(DEADLINE_S), code=None)
        self.ottla("cluster", "elect", "--timeout", str(DEADLINE_S), code=None)

    def brokers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.ottla("cluster", "brokers", "-o", "json"))
        return rows


@contextmanager
def healthy_place() -> Iterator[Place]:
    """Start the cluster. Yield when it has its internal topics, and all replicas are in sync."""
    own = {number: {"broker.rack": rack} for number, rack in RACKS.items()}
    with ClusterProcess.start(3, HEALTHY, own) as cluster:
        place = Place(cluster)
        wait_until(lambda: len(place.brokers()) == 3, "three brokers", DEADLINE_S)
        _create_internal_topics(place)
        place.settle()
        yield place


def _create_internal_topics(place: Place) -> None:
    with place.topic() as topic, place.members(place.name("group"), [topic]) as (consumer,):
        producer = Producer(place.client(transactional_id="first"))
        producer.init_transactions(DEADLINE_S)
        poll(lambda: bool(consumer.assignment()), consumer)


def poll(condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Let consumers poll until the condition is true. Raise TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        for consumer in consumers:
            consumer.poll(0.05)
        if time.monotonic() > deadline:
            raise TimeoutError("the consumers did not get there")


def certificate_of(path: Path, *, host: str, days: int) -> None:
    """Write a key and a self-signed certificate for a host, which expires after some days."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(0o600)
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
