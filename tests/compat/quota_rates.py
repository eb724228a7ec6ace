"""Campaign `quotas`: the rates of producers and consumers over a minute, beside the quotas of their client ids.

librdkafka's and Java's producers and consumers run at once, each with a quota of its own, as fast as they can. The rate
of a producer is the growth of its topic, that of a consumer the size of the records that it received. The campaign
fails if a rate is not within 10 % of its quota.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, Producer
from drivers import java_process
from drivers.java import PERFORMANCE

from campaign.processes import wait_until
from campaign.report import CannotRun, Report
from campaign.suites import run_pytest
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest

CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
TOLERANCE = 0.1
RECORD_BYTES = 1_000
START_S_MAX = 60.0
_CLIENTS = ("librdkafka-producer", "java-producer", "librdkafka-consumer", "java-consumer")


def run(report: Report, *, seconds: float, rate: int, client: str) -> None:
    if not client.startswith("librdkafka") and (reason := java_process.missing()) is not None:
        raise CannotRun(reason)
    runs: dict[str, Callable[[str, float, int], float]] = {
        "librdkafka-producer": _run_librdkafka_producer, "java-producer": _run_java_producer,
        "librdkafka-consumer": _run_librdkafka_consumer, "java-consumer": _run_java_consumer,
    }  # fmt: skip
    with BrokerProcess.start() as broker:
        _prepare(broker.bootstrap, int(rate * seconds * 1.5), rate)
        with ThreadPoolExecutor(len(runs)) as pool:
            results = {
                name: pool.submit(measure, broker.bootstrap, seconds, rate)
                for name, measure in runs.items()
                if name.startswith(client)
            }
        rates = {name: result.result() for name, result in results.items()}
    report.say(f"{'client':20}  {'quota, B/s':>12}  {'rate, B/s':>12}  {'rate / quota':>12}")
    for name, measured in rates.items():
        report.say(f"{name:20}  {rate:12,}  {measured:12,.0f}  {measured / rate:12.3f}")
        report.figure(f"{name} {measured / rate:.3f} of its quota")
        if abs(measured / rate - 1) > TOLERANCE:
            report.problem(f"{name} has {measured:,.0f} bytes per second, with a quota of {rate:,}")
    if not client:
        run_pytest(report, "tests/clauses/test_quotas_same_as_kafka.py", environment={"OTTLA_LONG": "1"})


def _prepare(bootstrap: str, size_bytes: int, rate: int) -> None:
    """Create the topics, fill those of the consumers, and set the quotas."""
    with RawClient(bootstrap) as client:
        for name in _CLIENTS:
            client.create_topic(name)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 500_000})
        for name in _CLIENTS[2:]:
            for _ in range(size_bytes // RECORD_BYTES):
                _send(producer, name)
        assert producer.flush(60) == 0
        entries = [
            AlterClientQuotasRequestEntryData(
                entity=[AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=name)],
                ops=[OpData(key=f"{name.partition('-')[2]}_byte_rate", value=float(rate))],
            )
            for name in _CLIENTS
        ]
        for row in client.ask(AlterClientQuotasRequest(entries=entries), 1).entries:
            assert row.error_code == 0, row.error_message


def _send(producer: Producer, topic: str) -> None:
    while True:
        try:
            producer.produce(topic, bytes(RECORD_BYTES))
            return
        except BufferError:
            producer.poll(0.1)


def _growth_rate(bootstrap: str, topic: str, seconds: float) -> float:
    """Return the bytes per second that were appended to a topic, from its first batch on."""
    with RawClient(bootstrap) as client:
        wait_until(lambda: _size_bytes(client, topic) > 0, f"{topic} begins to produce", START_S_MAX)
        started = time.monotonic()
        time.sleep(seconds)
        return _size_bytes(client, topic) / (time.monotonic() - started)


def _size_bytes(client: RawClient, topic: str) -> int:
    (directory,) = client.ask(DescribeLogDirsRequest(topics=None), 4).results
    return sum(row.partition_size for each in directory.topics if each.name == topic for row in each.partitions)


def _run_librdkafka_producer(bootstrap: str, seconds: float, rate: int) -> float:
    name = "librdkafka-producer"
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": name, "linger.ms": 5})
    with ThreadPoolExecutor(1) as pool:
        measured = pool.submit(_growth_rate, bootstrap, name, seconds)
        while not measured.done():
            _send(producer, name)
            producer.poll(0)
    producer.purge()
    producer.flush(10)
    return measured.result()


def _run_java_producer(bootstrap: str, seconds: float, rate: int) -> float:
    name = "java-producer"
    arguments = [
        "--bootstrap-server", bootstrap, "--topic", name, "--num-records", str(10**9), "--record-size",
        str(RECORD_BYTES), "--throughput", "-1", "--command-property", f"client.id={name}",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as printed:
        command = [*java_process.command(), PERFORMANCE, *arguments]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        try:
            return _growth_rate(bootstrap, name, seconds)
        finally:
            process.kill()
            process.wait()


def _run_librdkafka_consumer(bootstrap: str, seconds: float, rate: int) -> float:
    name = "librdkafka-consumer"
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "client.id": name, "group.id": name, "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([name])
    received, started, deadline = 0, 0.0, time.monotonic() + START_S_MAX
    try:
        while not started or time.monotonic() < started + seconds:
            for message in consumer.consume(1_000, 0.1):
                assert message.error() is None or message.error().code() == KafkaError._PARTITION_EOF, message.error()
                started = started or time.monotonic()
                received += len(message.value() or b"")
            assert started or time.monotonic() < deadline, "the consumer receives nothing"
        return received / (time.monotonic() - started)
    finally:
        consumer.close()


def _run_java_consumer(bootstrap: str, seconds: float, rate: int) -> float:
    """Read as many records as the quota allows in this time."""
    name = "java-consumer"
    arguments = [
        "--bootstrap-server", bootstrap, "--topic", name, "--num-records", str(int(rate * seconds) // RECORD_BYTES),
        "--timeout", "60000", "--command-property", f"client.id={name}", "--hide-header",
    ]  # fmt: skip
    command = [*java_process.command(), CONSUMER_PERFORMANCE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 120)
    assert done.returncode == 0, done.stdout + done.stderr
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    fields = done.stdout.strip().splitlines()[-1].split(", ")
    return float(fields[4]) * RECORD_BYTES / (float(fields[7]) / 1000)
