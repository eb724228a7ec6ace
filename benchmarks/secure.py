"""Produce and consume with TLS, SCRAM, ACLs and quotas, on Ottla and on Apache Kafka.

    python -m benchmarks.secure [--rounds 3] [--seconds 4] [--write]

The client is librdkafka in one process. Both brokers have the same listeners, certificate (ECDSA), user, ACLs and
quota; the quota is far above the rate. Rounds alternate between the brokers. Prints a table; --write puts it into
docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from benchmarks import kafka_server
from benchmarks.kafka_server import ApacheKafka
from benchmarks.maven import ROOT, SCRATCH
from benchmarks.measure import MeasurementFailed, produce_with_confluent_kafka
from benchmarks.ottla_server import Ottla
from benchmarks.processes import BrokerProcess, cpu_seconds, free_port
from benchmarks.report import splice
from ottla.testing.raw import RawClient
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)

_USER, _PASSWORD = "load", "a password for a benchmark"
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_RECORD_BYTES = 1000
_CONSUMED_RECORDS = 400_000
#: what both brokers hold at most before topics are deleted
_MEMORY_BYTES = 10 << 30
_QUOTA_BYTES = 4e9
_WARM_UP_S = {"kafka": 6.0, "ottla": 1.0}
_DEADLINE_S = 60.0
_BEGIN, _END = "<!-- bench:secure:begin -->", "<!-- bench:secure:end -->"
#: how clients connect
WAYS = {
    "PLAINTEXT": "no encryption",
    "TLS": "TLS",
    "SCRAM": "TLS, SCRAM, ACLs and a quota",
}
BATCHES = {"16 KB": {"batch.size": 16384, "linger.ms": 5}, "1 MB": {"batch.size": 1_000_000, "linger.ms": 20}}
#: The consumer stops fetching for a second when its queue is full: with the default of 64 MB, that second is measured.
_READ_AHEAD = {"queued.min.messages": 10_000_000, "queued.max.messages.kbytes": 2_097_151}
#: A consumer that may not use its group takes half a minute to close.
_NO_GROUP = {"group.id": "unused", "enable.auto.commit": False}
Sample = tuple[float, float]


class SecureBroker:
    """A broker with three listeners, of which the first is that of ``BrokerProcess``."""

    def __init__(self, name: str, parent: Path, certificates: Path) -> None:
        self.name = name
        self.ports = {way: free_port() for way in WAYS}
        self._certificates = certificates
        listeners = [f"{way}://127.0.0.1:{port}" for way, port in self.ports.items() if way != "PLAINTEXT"]
        settings = self._settings()
        self.process: BrokerProcess
        if name == "kafka":
            controller = free_port()
            self.process = ApacheKafka(parent=parent, voters={1: controller}, settings=settings)
            own = f"PLAINTEXT://127.0.0.1:{self.process.port}"
            settings["advertised.listeners"] = ",".join([own, *listeners])
            settings["listeners"] = f"{settings['advertised.listeners']},CONTROLLER://127.0.0.1:{controller}"
            settings["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
            settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        else:
            self.process = Ottla(parent=parent, settings=settings)
            own = f"PLAINTEXT://127.0.0.1:{self.process.port}"
            settings["listeners"] = ",".join([own, *listeners])
            settings["authorizer.class.name"] = "kafka.security.authorizer.AclAuthorizer"
            settings["log.flush.acks.all"] = "false"
        self.ports["PLAINTEXT"] = self.process.port

    def _settings(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,SCRAM:SASL_SSL",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._certificates / "broker.pem"),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._certificates / "ca.pem"),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512", "super.users": "User:ANONYMOUS",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": _LOGIN,
        }  # fmt: skip

    def client(self, way: str) -> dict[str, Any]:
        """Return the settings of a client."""
        settings: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{self.ports[way]}", "log_level": 0}
        if way != "PLAINTEXT":
            settings |= {"security.protocol": "SSL", "ssl.ca.location": str(self._certificates / "ca.pem")}
        if way == "SCRAM":
            settings |= {
                "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": _USER,
                "sasl.password": _PASSWORD,
            }  # fmt: skip
        return settings

    def start(self) -> None:
        """Start the broker, and create the user, its ACLs and its quota."""
        self.process.start()
        admin = self._admin = AdminClient(self.client("PLAINTEXT"))
        information = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(_USER, information, _PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([upsertion]).values():
            done.result(_DEADLINE_S)
        operations = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
        rules = [
            AclBinding(
                ResourceType.TOPIC, "bench", ResourcePatternType.PREFIXED, f"User:{_USER}", "*", operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for done in admin.create_acls(rules).values():
            done.result(_DEADLINE_S)
        entries = [
            AlterClientQuotasRequestEntryData(
                entity=[AlterClientQuotasRequestEntityData(entity_type="user", entity_name=_USER)],
                ops=[OpData(key=key, value=_QUOTA_BYTES, remove=False)],
            )
            for key in ("producer_byte_rate", "consumer_byte_rate")
        ]  # fmt: skip
        with RawClient(self.process.bootstrap) as client:
            client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)

    def produce(self, way: str, batch: Mapping[str, Any], seconds: float) -> Sample:
        """Return records per second, and the broker's CPU seconds per million records."""
        topic = self._create_topic()
        before = cpu_seconds(self.process.pid)
        settings = {**self.client(way), **batch, "acks": "all"}
        records, took = produce_with_confluent_kafka(
            settings["bootstrap.servers"], topic, _RECORD_BYTES, seconds, settings
        )  # fmt: skip
        used = cpu_seconds(self.process.pid) - before
        self._delete_topic(topic)
        return records / took, 1e6 * used / records

    def consume(self, way: str, batch: Mapping[str, Any], seconds: float) -> Sample:
        """Fill a topic, then read it again and again for some seconds. Return the same as ``produce``."""
        topic = self._create_topic()
        plain = {**self.client("PLAINTEXT"), **batch}
        count, _ = produce_with_confluent_kafka(
            plain["bootstrap.servers"], topic, _RECORD_BYTES, _DEADLINE_S, plain, _CONSUMED_RECORDS
        )
        settings = {**self.client(way), **_READ_AHEAD, **_NO_GROUP, "check.crcs": False}
        read, took, used = 0, 0.0, 0.0
        while took < seconds:
            with closing(Consumer(settings)) as consumer:
                consumer.assign([TopicPartition(topic, 0, 0)])
                left = count - len(consumer.consume(1, _DEADLINE_S))
                before, began = cpu_seconds(self.process.pid), time.monotonic()
                while left > 0:
                    found = consumer.consume(min(left, 100_000), 1.0)
                    left -= len(found)
                    if not found and time.monotonic() - began > _DEADLINE_S:
                        raise MeasurementFailed(f"{left} of {count} records were not read")
                took += time.monotonic() - began
                used += cpu_seconds(self.process.pid) - before
                read += count - 1
        self._delete_topic(topic)
        return read / took, 1e6 * used / read

    def _create_topic(self) -> str:
        topic = f"bench-{time.monotonic_ns()}"
        settings = {"file.delete.delay.ms": "0"}
        self._admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(_DEADLINE_S)
        return topic

    def _delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(_DEADLINE_S)


def write_certificates(directory: Path) -> None:
    """Write ca.pem, and broker.pem with the key and the certificate of both brokers."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    with os.fdopen(os.open(directory / "broker.pem", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))  # Kafka reads no other format
        file.writelines(blob.bytes() for blob in issued.cert_chain_pems)


def run(brokers: Mapping[str, SecureBroker], rounds: int, seconds: float) -> dict[tuple[str, str, str], Any]:
    """Return the samples of each broker by work, way and batches."""
    found: dict[tuple[str, str, str], dict[str, list[Sample]]] = {}
    for number in range(rounds + 1):
        for way in WAYS:
            for size, batch in BATCHES.items():
                for work in ("produce", "consume"):
                    for name, broker in brokers.items():
                        measure = broker.produce if work == "produce" else broker.consume
                        sample = measure(way, batch, seconds if number else _WARM_UP_S[name] / 2)
                        print(f"round {number} {work:8} {size:6} {way:10} {name:6} {sample[0]:9.0f}/s", flush=True)
                        if number:
                            found.setdefault((work, way, size), {}).setdefault(name, []).append(sample)
    return found


def render(found: Mapping[tuple[str, str, str], Any], rounds: int, seconds: float) -> str:
    """Return the table."""
    today, version = datetime.date.today().isoformat(), importlib.metadata.version("ottla")
    lines = [
        f"Ottla {version} beside Apache Kafka {kafka_server.KAFKA_VERSION}, {today}; librdkafka in one process, "
        f"1,000 B records, data in memory, not synced, one partition; median of {rounds} rounds of {seconds:g} s.",
        "",
        "| work | Ottla, records/s | Apache Kafka, records/s | ratio | target | broker CPU s per million records |",
        "|---|---|---|---|---|---|",
    ]
    for (work, way, size), samples in sorted(found.items()):
        rates = {name: statistics.median(rate for rate, _ in rows) for name, rows in samples.items()}
        costs = {name: statistics.median(cost for _, cost in rows) for name, rows in samples.items()}
        ratio = rates["ottla"] / rates["kafka"]
        verdict = "met" if ratio >= 1 else "**not met**"
        lines.append(
            f"| {work}, {size} batches, {WAYS[way]} | {rates['ottla'] / 1000:.0f} k | {rates['kafka'] / 1000:.0f} k | "
            f"{ratio:.2f}x | ≥ 1x: {verdict} | {costs['ottla']:.2f} / {costs['kafka']:.2f} s |"
        )
    return "\n".join(lines)


def _parent() -> Path:
    """Return where data are written: to memory if there is room, because both brokers write faster than many disks.

    On a slower disk the kernel lets writers wait for it sooner or later, whichever broker has written the data.
    """
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free >= _MEMORY_BYTES:
        return memory
    SCRATCH.mkdir(exist_ok=True)
    return SCRATCH


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if (problem := kafka_server.fetch() or kafka_server.available()) is not None:
        print(f"skipping: {problem}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="ottla-bench-secure-", dir=_parent()) as directory:
        write_certificates(Path(directory))
        brokers = {name: SecureBroker(name, Path(directory), Path(directory)) for name in ("ottla", "kafka")}
        try:
            for broker in brokers.values():
                broker.start()
            found = run(brokers, options.rounds, options.seconds)
        finally:
            for broker in brokers.values():
                broker.process.stop()
    table = render(found, options.rounds, options.seconds)
    print(f"\n{table}")
    if options.write:
        page = ROOT / "docs" / "reference" / "performance.md"
        page.write_text(splice(page.read_text(), table, _BEGIN, _END))
    return 0


if __name__ == "__main__":
    sys.exit(main())
