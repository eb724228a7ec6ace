"""One measurement: a scenario on a broker, for some seconds, as numbers.

Every measurement gets its own topics, leaves none behind, and starts with no dirty pages of the one before:
else the disk would write one broker's log while the other is measured.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.kafka_server import ApacheKafka
from benchmarks.ottla_server import Ottla
from benchmarks.processes import cpu_seconds, memory_mb, wait_until
from benchmarks.raw_client import (
    RawClient,
    encode_batch,
    filled_batch,
    first_acknowledged,
    sample_values,
    wait_writable,
)
from benchmarks.scenarios import (
    ABORT_EVERY,
    CONSUME_LOG_BYTES,
    E2E_RECORDS_PER_SECOND,
    FETCH_BYTES,
    MB,
    TRANSACTION_RECORDS,
    Scenario,
)

Broker = ApacheKafka | Ottla
Metrics = dict[str, float]

#: A log that grows faster than the disk takes it ends in the kernel's throttle, and that would be measured.
PRODUCE_BYTES_MAX = 1536 * MB
SEGMENT_BYTES = 256 * MB
SETTLE_SECONDS = 3.0
START_SECONDS_MAX = 120.0
E2E_WARMUP_SECONDS = 1.0
MARKERS_SECONDS_MAX = 30.0
TRANSACTION_TOPIC = "__transaction_state"
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# Deleted logs are gone at once on both brokers; by default they would fill the disk for a minute.
_DELETE_DELAY = ("log.segment.delete.delay.ms", "500")


class MeasurementFailed(RuntimeError):
    """A broker refused the work or did not finish it; the row then says so instead of a number."""


class Lab:
    """The brokers under test, started when first needed and alive until close()."""

    def __init__(self, directory: Path, load: Path) -> None:
        self._directory = directory
        self._load = load
        self._brokers: dict[tuple[str, bool], Broker] = {}
        self._consume_topics: set[tuple[str, str]] = set()
        self._topic_number = 0

    def close(self) -> None:
        while self._brokers:
            self._brokers.popitem()[1].stop()

    def measure(self, name: str, scenario: Scenario, seconds: float) -> Metrics:
        """Runs one scenario on the broker called `name`."""
        try:
            if scenario.kind == "footprint":
                return self._footprint(name, scenario, seconds)
            broker = self.broker(name, page_cache=scenario.acks == -1 and not scenario.fsync)
            kinds: dict[str, Callable[[Broker, Scenario, float], Metrics]] = {
                "produce": self._produce,
                "consume": self._consume,
                "client": self._client,
                "client-transactions": self._client_transactions,
                "e2e": self._end_to_end,
                "transactions": self._transactions,
                "commit": self._commit,
                "committed": self._committed,
            }
            try:
                return kinds[scenario.kind](broker, scenario, seconds)
            except OSError as problem:
                # Who closes a connection on us usually says why in its own output.
                raise MeasurementFailed(f"{problem}\n{broker.log_tail(4)}") from problem
        except MeasurementFailed:
            raise
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            raise MeasurementFailed(str(problem) or type(problem).__name__) from problem

    def memory(self, name: str) -> Metrics:
        """What the broker that did most of the work holds now."""
        resident, own = memory_mb(self.broker(name, page_cache=False).pid)
        return {"loaded_mb": resident, "loaded_own_mb": own}

    def broker(self, name: str, *, page_cache: bool) -> Broker:
        """For acks=all from page cache Ottla must be told so when it starts; Kafka always works that way."""
        key = (name, page_cache and name == "ottla")
        if key not in self._brokers:
            settings = dict([_DELETE_DELAY])
            if key[1]:
                settings["log.flush.acks.all"] = "false"
            broker = self._new_broker(name, settings)
            self._brokers[key] = broker
            broker.start()
        return self._brokers[key]

    # Throughput

    def _produce(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        topic = self._create_topic(broker, scenario)
        try:
            batch, count = write_batch(self._directory, scenario)
            arguments = ["--batch", str(batch), "--records", str(count), "--acks", str(scenario.acks)]
            arguments += ["--connections", str(scenario.connections), "--depth", str(scenario.depth)]
            arguments += ["--bytes-max", str(PRODUCE_BYTES_MAX)]
            found = self._run_load(broker, "produce", topic, scenario, seconds, arguments)
            # One record per partition is the probe that found it writable.
            _check_end_offsets(broker, topic, scenario.partitions, found.pop("records_all") + scenario.partitions)
            return found
        finally:
            self._delete_topic(broker, topic)

    def _consume(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        topic = f"consume-{scenario.partitions}"
        if (broker.name, topic) not in self._consume_topics:
            self._fill(broker, topic, scenario)
            self._consume_topics.add((broker.name, topic))
        arguments = ["--connections", str(scenario.connections), "--fetch-bytes", str(FETCH_BYTES)]
        found = self._run_load(broker, "consume", topic, scenario, seconds, arguments)
        del found["records_all"]
        return found

    def _fill(self, broker: Broker, topic: str, scenario: Scenario) -> None:
        with RawClient(broker.port) as client:
            client.create_topic(topic, scenario.partitions, {"segment.bytes": str(SEGMENT_BYTES)})
        wait_writable(broker.port, topic, scenario.partitions)
        batch, count = write_batch(self._directory, scenario)
        arguments = ["--batch", str(batch), "--records", str(count), "--bytes-max", str(CONSUME_LOG_BYTES)]
        arguments += ["--connections", str(scenario.partitions), "--depth", "2"]
        self._run_load(broker, "produce", topic, scenario, 60.0, arguments)
        os.sync()

    def _run_load(
        self, broker: Broker, mode: str, topic: str, scenario: Scenario, seconds: float, arguments: list[str]
    ) -> Metrics:
        cpu = cpu_seconds(broker.pid)
        said = self._load_output(broker, mode, topic, scenario, seconds, arguments)
        cpu = cpu_seconds(broker.pid) - cpu
        if not said["requests"]:
            raise MeasurementFailed("no request was answered in time; measure for more --seconds")
        return {
            "records_per_second": said["records"] / said["seconds"],
            "requests_per_second": said["requests"] / said["seconds"],
            "mb_per_second": said["bytes"] / said["seconds"] / MB,
            "us_per_request": cpu * 1e6 / said["requests_all"],
            "cpu_seconds_per_million_records": cpu * 1e6 / said["records_all"],
            "cpu_us_per_mb": cpu * 1e6 * MB / (said["bytes"] / said["requests"] * said["requests_all"]),
            "p50_ms": said["p50_ms"],
            "p99_ms": said["p99_ms"],
            "p999_ms": said["p999_ms"],
            "records_all": said["records_all"],
        }

    def _load_output(
        self, broker: Broker, mode: str, topic: str, scenario: Scenario, seconds: float, arguments: list[str]
    ) -> dict[str, Any]:
        command = [str(self._load), mode, "--port", str(broker.port), "--topic", topic]
        command += ["--partitions", str(scenario.partitions), "--seconds", str(seconds), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120.0)
        broker.check_alive()
        if done.returncode != 0:
            raise MeasurementFailed(done.stderr.strip())
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _client(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        """A Python program that produces as fast as it can: often the limit itself, as in real life."""
        topic = self._create_topic(broker, scenario)
        try:
            cpu = cpu_seconds(broker.pid)
            records, took = produce_with_confluent_kafka(
                broker.bootstrap, topic, scenario.record_bytes, seconds, {"acks": "1"}
            )
            cpu = cpu_seconds(broker.pid) - cpu
            per_million = cpu * 1e6 / records
            return {"records_per_second": records / took, "cpu_seconds_per_million_records": per_million}
        finally:
            self._delete_topic(broker, topic)

    # Transactions

    def _client_transactions(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        """A Python program that writes one transaction of 10,000 records after the other."""
        self._prepare_transactions(broker, scenario)
        topic = self._create_topic(broker, scenario)
        try:
            cpu = cpu_seconds(broker.pid)
            commits, took = _confluent_kafka_transactions(broker.bootstrap, topic, scenario.record_bytes, seconds)
            cpu = cpu_seconds(broker.pid) - cpu
            records = len(commits) * TRANSACTION_RECORDS
            commits.sort()
            return {
                "records_per_second": records / took,
                "cpu_seconds_per_million_records": cpu * 1e6 / records,
                "commit_p50_ms": commits[len(commits) // 2] * 1e3,
                "commit_p99_ms": commits[len(commits) * 99 // 100] * 1e3,
            }
        finally:
            self._delete_topic(broker, topic)

    def _transactions(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        """Transactional between two halves of idempotent, so that a disk that slows down spoils no difference."""
        before = self._produced_by_id(broker, scenario, seconds / 2, "idempotent")
        found = self._produced_by_id(broker, scenario, seconds, "transactions")
        after = self._produced_by_id(broker, scenario, seconds / 2, "idempotent")
        rate = found["records"] / found["seconds"]
        plain = (before["records"] + after["records"]) / (before["seconds"] + after["seconds"])
        return {
            "records_per_second": rate,
            "idempotent_records_per_second": plain,
            "cost_percent": 100 * (1 - rate / plain),
            "cpu_seconds_per_million_records": found["cpu"] * 1e6 / found["records_all"],
            "idempotent_cpu_seconds_per_million_records": (
                (before["cpu"] + after["cpu"]) * 1e6 / (before["records_all"] + after["records_all"])
            ),
            "commit_p50_ms": found["p50_ms"],
            "commit_p99_ms": found["p99_ms"],
        }

    def _commit(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        """One producer, one small transaction after the other."""
        found = self._produced_by_id(broker, scenario, seconds, "transactions")
        return {
            "commit_p50_ms": found["p50_ms"],
            "commit_p99_ms": found["p99_ms"],
            "transactions_per_second": found["transactions"] / found["seconds"],
            "refused_per_transaction": found["refused"] / found["transactions"],
        }

    def _committed(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        """The same log read both ways."""
        topic = "consume-transactions"
        if (broker.name, topic) not in self._consume_topics:
            self._prepare_transactions(broker, scenario)
            with RawClient(broker.port) as client:
                client.create_topic(topic, scenario.partitions, {"segment.bytes": str(SEGMENT_BYTES)})
            wait_writable(broker.port, topic, scenario.partitions)
            arguments = ["--bytes-max", str(CONSUME_LOG_BYTES), "--depth", "2", "--abort-every", str(ABORT_EVERY)]
            self._write_by_id(broker, topic, scenario, 60.0, "transactions", arguments)
            self._consume_topics.add((broker.name, topic))
            os.sync()
        arguments = ["--connections", str(scenario.connections), "--fetch-bytes", str(FETCH_BYTES), "--isolation"]
        plain, found = (
            self._load_output(broker, "consume", topic, scenario, seconds, [*arguments, str(isolation)])
            for isolation in (READ_UNCOMMITTED, READ_COMMITTED)
        )
        rate, plain_rate = (said["records"] / said["seconds"] for said in (found, plain))
        return {
            "records_per_second": rate,
            "uncommitted_records_per_second": plain_rate,
            "cost_percent": 100 * (1 - rate / plain_rate),
        }

    def _produced_by_id(self, broker: Broker, scenario: Scenario, seconds: float, mode: str) -> dict[str, Any]:
        self._prepare_transactions(broker, scenario)
        topic = self._create_topic(broker, scenario)
        try:
            arguments = ["--depth", str(scenario.depth), "--connections", str(scenario.connections)]
            arguments += ["--bytes-max", str(PRODUCE_BYTES_MAX)]
            return self._write_by_id(broker, topic, scenario, seconds, mode, arguments)
        finally:
            self._delete_topic(broker, topic)

    def _write_by_id(
        self, broker: Broker, topic: str, scenario: Scenario, seconds: float, mode: str, arguments: list[str]
    ) -> dict[str, Any]:
        """Returns once the log holds every record and every marker."""
        batch, count = write_batch(self._directory, scenario)
        batches = math.ceil(TRANSACTION_RECORDS / count) if scenario.batch_bytes else scenario.partitions
        arguments = [*arguments, "--batch", str(batch), "--records", str(count), "--acks", str(scenario.acks)]
        arguments += ["--transaction-version", str(scenario.transaction_version), "--transaction-batches", str(batches)]
        cpu = cpu_seconds(broker.pid)
        said = self._load_output(broker, mode, topic, scenario, seconds, arguments)
        said["cpu"] = cpu_seconds(broker.pid) - cpu
        if not said["records"]:
            raise MeasurementFailed("no record was acknowledged in time; measure for more --seconds")
        expected = said["records_all"] + said["markers_all"] + scenario.partitions
        # The last markers may be written behind the answer to EndTxn.
        deadline = time.monotonic() + MARKERS_SECONDS_MAX
        while _end_offsets(broker, topic, scenario.partitions) < expected and time.monotonic() < deadline:
            wait_until(deadline, "waiting for markers")
        _check_end_offsets(broker, topic, scenario.partitions, expected)
        return said

    def _prepare_transactions(self, broker: Broker, scenario: Scenario) -> None:
        """On Kafka a commit is on disk before its answer only if the topic of transactions is told so, too."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with RawClient(broker.port) as client:
            while not client.has_transaction_coordinator("first"):
                wait_until(deadline, "waiting for a transaction coordinator")
            if broker.name == "kafka":
                client.set_topic_config(TRANSACTION_TOPIC, "flush.messages", "1" if scenario.fsync else None)

    # Latency

    def _end_to_end(self, broker: Broker, scenario: Scenario, seconds: float) -> Metrics:
        topic = self._create_topic(broker, scenario)
        try:
            arguments = ["--rate", str(E2E_RECORDS_PER_SECOND), "--record-bytes", str(scenario.record_bytes)]
            arguments += ["--depth", str(scenario.depth), "--warmup", str(E2E_WARMUP_SECONDS)]
            cpu = cpu_seconds(broker.pid)
            said = self._load_output(broker, "e2e", topic, scenario, seconds, arguments)
            cpu = cpu_seconds(broker.pid) - cpu
            cores = cpu / (said["seconds"] + E2E_WARMUP_SECONDS)
            return {**{name: said[name] for name in ("p50_ms", "p99_ms", "p999_ms")}, "cores": cores}
        finally:
            self._delete_topic(broker, topic)

    # Start and rest

    def _footprint(self, name: str, scenario: Scenario, seconds: float) -> Metrics:
        broker = self._new_broker(name, {})
        try:
            broker.prepare()
            if scenario.existing_partitions:
                broker.start()
                _create_many(broker, scenario.existing_partitions)
                broker.halt()
            began = time.monotonic()
            broker.launch()
            first_acknowledged(broker.port, "first", deadline=began + START_SECONDS_MAX)
            start_seconds = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            cpu, since = cpu_seconds(broker.pid), time.monotonic()
            time.sleep(seconds)
            cpu = (cpu_seconds(broker.pid) - cpu) / (time.monotonic() - since)
            resident, own = memory_mb(broker.pid)
            return {
                "start_seconds": start_seconds,
                "idle_mb": resident,
                "idle_own_mb": own,
                "idle_cpu_percent": cpu * 100,
            }
        finally:
            broker.stop()

    # Brokers, topics, batches

    def _new_broker(self, name: str, settings: dict[str, str]) -> Broker:
        maker = ApacheKafka if name == "kafka" else Ottla
        return maker(parent=self._directory, settings=settings)

    def _create_topic(self, broker: Broker, scenario: Scenario) -> str:
        self._topic_number += 1
        topic = f"{scenario.name}-{self._topic_number}"
        configs = {"flush.messages": "1"} if scenario.fsync and broker.name == "kafka" else {}
        with RawClient(broker.port) as client:
            client.create_topic(topic, scenario.partitions, configs)
        wait_writable(broker.port, topic, scenario.partitions)
        os.sync()
        return topic

    def _delete_topic(self, broker: Broker, topic: str) -> None:
        try:
            with RawClient(broker.port) as client:
                client.delete_topic(topic)
        except (OSError, RuntimeError):
            # The broker may be gone, which check_alive has reported or will.
            return
        # Both brokers keep a partition in DATA/topic-N and rename it before it is removed.
        deadline = time.monotonic() + 10.0
        while any(broker.data_directory.glob(f"{topic}-*")) and time.monotonic() < deadline:
            time.sleep(0.05)


def write_batch(directory: Path, scenario: Scenario) -> tuple[Path, int]:
    """Write the scenario's record batch to a file. Return the file and how many records are in the batch."""
    if scenario.batch_bytes:
        batch, count = filled_batch(scenario.record_bytes, scenario.batch_bytes, lz4=scenario.lz4)
    else:
        count = scenario.batch_records
        batch = encode_batch(sample_values(scenario.record_bytes, count))
    path = directory / f"{scenario.name}.batch"
    path.write_bytes(batch)
    return path, count


def compile_load(directory: Path) -> Path:
    """Builds the load generator; MeasurementFailed says what is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MeasurementFailed("no C compiler (cc) was found, and the load generator is written in C")
    source, binary = Path(__file__).with_name("load.c"), directory / "load"
    done = subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], capture_output=True, text=True)
    if done.returncode != 0:
        raise MeasurementFailed(f"the load generator did not compile:\n{done.stderr}")
    return binary


def _check_end_offsets(broker: Broker, topic: str, partitions: int, expected: float) -> None:
    """What was acknowledged must be in the log, or the speed is worth nothing."""
    kept = _end_offsets(broker, topic, partitions)
    if kept != expected:
        raise MeasurementFailed(f"{expected:.0f} records were acknowledged, and the log holds {kept}")


def _end_offsets(broker: Broker, topic: str, partitions: int) -> int:
    with RawClient(broker.port) as client:
        return sum(client.end_offset(topic, partition) for partition in range(partitions))


def _create_many(broker: Broker, partitions: int) -> None:
    per_topic = 100
    with RawClient(broker.port) as client:
        for number in range(partitions // per_topic):
            client.create_topic(f"many-{number}", per_topic, {})
    for number in range(partitions // per_topic):
        wait_writable(broker.port, f"many-{number}", per_topic)
    first_acknowledged(broker.port, "first", deadline=time.monotonic() + START_SECONDS_MAX)


def produce_with_confluent_kafka(
    bootstrap: str,
    topic: str,
    record_bytes: int,
    seconds: float,
    settings: Mapping[str, Any],
    records_max: float = math.inf,
) -> tuple[int, float]:
    """Return how many records were delivered, and how long that took."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": False,
            "compression.type": "none",
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _message: failures.append(str(error)),
            **settings,
        }
    )
    value, sent, began = b"x" * record_bytes, 0, time.monotonic()
    while time.monotonic() - began < seconds and sent < records_max:
        for _ in range(1_000):
            try:
                producer.produce(topic, value)
                sent += 1
            except BufferError:
                producer.poll(0.01)
                break
        producer.poll(0)
    left = producer.flush(60.0)
    took = time.monotonic() - began
    if failures or left:
        lost = len(failures) + left
        raise MeasurementFailed(f"{lost} of {sent} records were not delivered: {failures[:1]}")
    return sent, took


def _confluent_kafka_transactions(
    bootstrap: str, topic: str, record_bytes: int, seconds: float
) -> tuple[list[float], float]:
    """How long each commit took, in seconds, and how long all transactions took together."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{topic}-producer",
            "compression.type": "none",
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 1,
        }
    )
    producer.init_transactions(30.0)
    value, commits, began = b"x" * record_bytes, list[float](), time.monotonic()
    while time.monotonic() - began < seconds:
        producer.begin_transaction()
        for _ in range(TRANSACTION_RECORDS):
            producer.produce(topic, value)
        producer.poll(0)
        # A commit also waits for the deliveries: a client cannot separate the two, and its user waits for both.
        asked = time.monotonic()
        producer.commit_transaction(60.0)
        commits.append(time.monotonic() - asked)
    return commits, time.monotonic() - began
