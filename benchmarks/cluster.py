"""Three brokers each: Ottla with ZooKeeper beside Apache Kafka in KRaft mode, all on this machine.

Every partition has three replicas, ``min.insync.replicas=2`` and ``acks=all``. Broker p % 3 leads partition p on both
clusters. Kafka's three processes are brokers and controllers at once, which takes fewer processes than separate
controllers. Ottla's CPU and memory are given for its brokers and, where a row says so, with ZooKeeper.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kafka_server import ApacheKafka
from benchmarks.measure import (
    E2E_WARMUP_SECONDS,
    PRODUCE_BYTES_MAX,
    SETTLE_SECONDS,
    MeasurementFailed,
    Metrics,
    produce_with_confluent_kafka,
    write_batch,
)
from benchmarks.ottla_server import Ottla, ZooKeeper
from benchmarks.processes import BrokerProcess, cpu_seconds, free_port, proportional_mb, wait_until
from benchmarks.raw_client import PartitionState, RawClient, single_record_batch
from benchmarks.report import Document, build_document
from benchmarks.scenarios import MB, Scenario

BROKERS = 3
IDS = tuple(range(1, BROKERS + 1))
PARTITIONS_PER_TOPIC = 100
CREATE_SECONDS_MAX = 180.0
FAILOVER_SECONDS_MAX = 60.0
IDLE_SECONDS = 10.0
#: Java compiles its hot paths while it runs
WARMUP_SECONDS = {"kafka": 8.0, "ottla": 1.0}
_SETTINGS = {
    # Deleted logs are gone at once on both clusters; by default they would fill the disk for a minute.
    "log.segment.delete.delay.ms": "500",
}
#: Kafka's defaults for a cluster of three, which its class for one broker replaces
_KAFKA_SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class Cluster:
    """Three brokers with the ids 1 to 3, and the processes that they need besides."""

    def __init__(self, name: str, parent: Path) -> None:
        self.name = name
        self.helpers: list[BrokerProcess] = []
        self.brokers: list[BrokerProcess] = []
        if name == "kafka":
            voters = {number: free_port() for number in IDS}
            settings = {**_KAFKA_SETTINGS, **_SETTINGS}
            for number in IDS:
                self.brokers.append(ApacheKafka(parent=parent, settings=settings, node_id=number, voters=voters))
        else:
            zookeeper = ZooKeeper(parent=parent)
            self.helpers.append(zookeeper)
            settings = {"zookeeper.connect": zookeeper.bootstrap, **_SETTINGS}
            for number in IDS:
                self.brokers.append(Ottla(parent=parent, settings=settings, broker_id=number))

    def start(self) -> None:
        """Start all processes and wait until all brokers know each other."""
        for helper in self.helpers:
            helper.start()
        for broker in self.brokers:
            broker.launch()
        deadline = time.monotonic() + 120.0
        for broker in self.brokers:
            while not _knows_brokers(broker.port, len(IDS)):
                broker.check_alive()
                wait_until(deadline, f"starting {self.name}")

    def stop(self) -> None:
        """End all processes by SIGKILL: a clean stop without a majority of Kafka's controllers takes a minute."""
        for process in [*self.brokers, *self.helpers]:
            process.discard()

    def check_alive(self) -> None:
        for process in [*self.brokers, *self.helpers]:
            process.check_alive()

    @property
    def ports(self) -> list[int]:
        return [broker.port for broker in self.brokers]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def cpu_seconds(self, *, helpers: bool = False) -> float:
        processes = [*self.brokers, *self.helpers] if helpers else self.brokers
        return sum(cpu_seconds(process.pid) for process in processes)

    def memory(self) -> Metrics:
        """Return the memory (PSS) of the brokers alone, and with ZooKeeper."""
        brokers = sum(proportional_mb(process.pid) for process in self.brokers)
        helpers = sum(proportional_mb(process.pid) for process in self.helpers)
        return {"brokers_mb": brokers, "cluster_mb": brokers + helpers}


def _knows_brokers(port: int, count: int) -> bool:
    try:
        with RawClient(port) as client:
            return client.broker_count() == count
    except OSError:
        return False


class ClusterBench:
    """The rows of clusters: their samples, and the order in which they are taken."""

    def __init__(
        self, scenarios: Sequence[Scenario], names: Sequence[str], load: Path, directory: Path, *, quick: bool
    ) -> None:
        self._scenarios = scenarios
        self._names = list(names)
        self._load = load
        self._directory = directory
        self._quick = quick
        self._topic_number = 0
        self._clusters: dict[str, Cluster] = {}
        self.samples: dict[str, dict[str, list[Metrics]]] = {}
        self.failures: dict[str, dict[str, str]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def run(self, rounds: int, seconds: float) -> None:
        """Take all samples. Both clusters run during the rounds of load; only one with many partitions."""
        loads = [scenario for scenario in self._scenarios if scenario.kind != "many"]
        try:
            if loads:
                self._warm_up([scenario for scenario in loads if scenario.kind != "loaded"])
                for number in range(1, rounds + 1):
                    self._round(number, loads, seconds)
        finally:
            self.close()
        for scenario in self._scenarios:
            if scenario.kind == "many":
                for number in range(1, rounds + 1):
                    for name in self._names if number % 2 else self._names[::-1]:
                        self._sample(scenario, name, number, seconds)

    def close(self) -> None:
        while self._clusters:
            self._clusters.popitem()[1].stop()

    def document(self, facts: Mapping[str, Any]) -> Document:
        return build_document(self._scenarios, self.samples, self.failures, facts)

    def _warm_up(self, scenarios: Sequence[Scenario]) -> None:
        for name in self._names:
            seconds = min(WARMUP_SECONDS[name], 3.0) if self._quick else WARMUP_SECONDS[name]
            for scenario in scenarios:
                self._sample(scenario, name, 0, seconds)

    def _round(self, number: int, scenarios: Sequence[Scenario], seconds: float) -> None:
        for scenario in scenarios:
            for name in self._names if number % 2 else self._names[::-1]:
                self._sample(scenario, name, number, seconds)

    def _sample(self, scenario: Scenario, name: str, number: int, seconds: float) -> None:
        """Measure once and keep what was found, except for round 0, which is the warm-up."""
        if name in self.failures.get(scenario.name, {}):
            return
        try:
            found = self._measure(scenario, name, seconds)
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            text = str(problem) or type(problem).__name__
            self._progress(number, scenario, name, f"failed: {text}")
            self.failures.setdefault(scenario.name, {})[name] = text.splitlines()[0]
            return
        self._progress(number, scenario, name, ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
        if number:
            self.samples.setdefault(scenario.name, {}).setdefault(name, []).append(found)

    def _progress(self, number: int, scenario: Scenario, name: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  round {number:<2} {scenario.name:28} {name:6} {text}", flush=True)

    def _measure(self, scenario: Scenario, name: str, seconds: float) -> Metrics:
        if scenario.kind == "many":
            return self._many(scenario, name)
        cluster = self._cluster(name)
        if scenario.kind == "loaded":
            return cluster.memory()
        topic = self._create_topic(cluster, scenario)
        try:
            if scenario.kind == "client":
                return self._client(cluster, topic, scenario, seconds)
            if scenario.kind == "e2e":
                return self._end_to_end(cluster, topic, scenario, seconds)
            return self._produce(cluster, topic, scenario, seconds)
        finally:
            self._delete_topic(cluster, topic)

    def _cluster(self, name: str) -> Cluster:
        if name not in self._clusters:
            cluster = Cluster(name, self._directory)
            self._clusters[name] = cluster
            cluster.start()
        return self._clusters[name]

    # -- load -----------------------------------------------------------------------------------------------------

    def _produce(self, cluster: Cluster, topic: str, scenario: Scenario, seconds: float) -> Metrics:
        batch, count = write_batch(self._directory, scenario)
        arguments = ["--batch", str(batch), "--records", str(count), "--bytes-max", str(PRODUCE_BYTES_MAX // BROKERS)]
        arguments += ["--connections", str(scenario.connections), "--depth", str(scenario.depth)]
        cpu = cluster.cpu_seconds()
        said = self._run_load(cluster, "produce", topic, scenario, seconds, arguments)
        cpu = cluster.cpu_seconds() - cpu
        if not said["requests"]:
            raise MeasurementFailed("no request was answered in time; measure for more --seconds")
        # One record per partition is the probe that found it writable.
        self._check_records(cluster, topic, scenario, said["records_all"] + scenario.partitions)
        return {
            "records_per_second": said["records"] / said["seconds"],
            "us_per_request": cpu * 1e6 / said["requests_all"],
            "cpu_seconds_per_million_records": cpu * 1e6 / said["records_all"],
            "cpu_us_per_mb": cpu * 1e6 * MB / (said["bytes"] / said["requests"] * said["requests_all"]),
            **{name: said[name] for name in ("p50_ms", "p99_ms", "p999_ms")},
        }

    def _client(self, cluster: Cluster, topic: str, scenario: Scenario, seconds: float) -> Metrics:
        """A Python program with librdkafka that produces as fast as it can."""
        # The queue is part of the time that is measured, so it must be short where records are sent one by one.
        batch: dict[str, Any] = {"batch.num.messages": 1, "linger.ms": 0, "queue.buffering.max.messages": 5_000}
        if scenario.batch_bytes:
            batch = {"batch.size": scenario.batch_bytes, "batch.num.messages": 1_000_000, "linger.ms": 5}
            batch["message.max.bytes"] = 2 * MB
        cpu = cluster.cpu_seconds()
        records, took = produce_with_confluent_kafka(
            cluster.bootstrap, topic, scenario.record_bytes, seconds, {"acks": "all", **batch}
        )
        cpu = cluster.cpu_seconds() - cpu
        return {"records_per_second": records / took, "cpu_seconds_per_million_records": cpu * 1e6 / records}

    def _end_to_end(self, cluster: Cluster, topic: str, scenario: Scenario, seconds: float) -> Metrics:
        arguments = ["--rate", str(scenario.rate), "--record-bytes", str(scenario.record_bytes)]
        arguments += ["--depth", str(scenario.depth), "--warmup", str(E2E_WARMUP_SECONDS)]
        cpu = cluster.cpu_seconds()
        said = self._run_load(cluster, "e2e", topic, scenario, seconds, arguments)
        cpu = cluster.cpu_seconds() - cpu
        cores = cpu / (said["seconds"] + E2E_WARMUP_SECONDS)
        return {**{name: said[name] for name in ("p50_ms", "p99_ms", "p999_ms")}, "cores": cores}

    def _run_load(
        self, cluster: Cluster, mode: str, topic: str, scenario: Scenario, seconds: float, arguments: list[str]
    ) -> dict[str, Any]:
        command = [str(self._load), mode, "--port", ",".join(map(str, cluster.ports)), "--topic", topic]
        command += ["--partitions", str(scenario.partitions), "--seconds", str(seconds), "--acks", str(scenario.acks)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=seconds + 120.0)
        cluster.check_alive()
        if done.returncode != 0:
            raise MeasurementFailed(done.stderr.strip())
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _check_records(self, cluster: Cluster, topic: str, scenario: Scenario, expected: int) -> None:
        kept = 0
        for partition in range(scenario.partitions):
            with RawClient(cluster.ports[partition % BROKERS]) as client:
                kept += client.end_offset(topic, partition)
        if kept != expected:
            raise MeasurementFailed(f"{expected} records were acknowledged, and the log has {kept}")

    def _create_topic(self, cluster: Cluster, scenario: Scenario) -> str:
        self._topic_number += 1
        topic = f"{scenario.name}-{self._topic_number}"
        configs = {"min.insync.replicas": "2"}
        if cluster.name == "kafka" and scenario.fsync:
            configs["flush.messages"] = "1"
        if cluster.name == "ottla" and not scenario.fsync:
            configs["flush.acks.all"] = "false"
        with RawClient(cluster.ports[0]) as client:
            client.create_topic(topic, scenario.partitions, configs, _assignment(scenario.partitions))
        batch = single_record_batch(100)
        deadline = time.monotonic() + 60.0
        for partition in range(scenario.partitions):
            with RawClient(cluster.ports[partition % BROKERS]) as client:
                while client.produce(topic, partition, batch, acks=-1) != 0:
                    wait_until(deadline, f"waiting for a leader of {topic}-{partition}")
        os.sync()
        return topic

    def _delete_topic(self, cluster: Cluster, topic: str) -> None:
        try:
            with RawClient(cluster.ports[0]) as client:
                client.delete_topic(topic)
        except (OSError, RuntimeError):
            return  # check_alive reports a broker that has ended
        deadline = time.monotonic() + 10.0
        for broker in cluster.brokers:
            while any(broker.data_directory.glob(f"{topic}-*")) and time.monotonic() < deadline:
                time.sleep(0.05)

    # -- many partitions ------------------------------------------------------------------------------------------

    def _many(self, scenario: Scenario, name: str) -> Metrics:
        """Create the partitions, let the cluster rest, then kill one of its brokers."""
        cluster = Cluster(name, self._directory)
        try:
            cluster.start()
            empty = cluster.memory()
            self._progress(0, scenario, name, "started")
            create_seconds = _create_many(cluster, scenario.existing_partitions)
            self._progress(0, scenario, name, f"created in {create_seconds:.1f} s")
            time.sleep(SETTLE_SECONDS)
            idle_seconds = 2.0 if self._quick else IDLE_SECONDS
            began, cpu, with_helpers = time.monotonic(), cluster.cpu_seconds(), cluster.cpu_seconds(helpers=True)
            time.sleep(idle_seconds)
            took = time.monotonic() - began
            cpu, with_helpers = cluster.cpu_seconds() - cpu, cluster.cpu_seconds(helpers=True) - with_helpers
            found = {
                "empty_brokers_mb": empty["brokers_mb"],
                "create_seconds": create_seconds,
                **cluster.memory(),
                "idle_cpu_percent": cpu / took * 100,
                "idle_cluster_cpu_percent": with_helpers / took * 100,
            }
            # Broker 1 was started first and is likely to be the controller: its failure includes an election.
            found["failover_seconds"] = _fail_over(cluster, BROKERS)
            self._progress(0, scenario, name, f"new leaders after {found['failover_seconds']:.1f} s")
            self._restart(cluster, BROKERS)
            self._progress(0, scenario, name, "all replicas are in sync again")
            found["failover_first_seconds"] = _fail_over(cluster, 1)
            return found
        finally:
            cluster.stop()

    def _restart(self, cluster: Cluster, number: int) -> None:
        """Start a killed broker again and wait until all replicas are in sync."""
        broker = cluster.brokers[number - 1]
        broker.launch()
        deadline = time.monotonic() + CREATE_SECONDS_MAX
        with RawClient(cluster.ports[1]) as client:
            while any(len(state.isr) < BROKERS for state in client.partitions().values()):
                broker.check_alive()
                wait_until(deadline, "waiting for the in-sync replicas")
                time.sleep(0.2)


def _assignment(partitions: int) -> list[list[int]]:
    return [[IDS[(number + step) % BROKERS] for step in range(BROKERS)] for number in range(partitions)]


def _create_many(cluster: Cluster, partitions: int) -> float:
    """Create topics of 100 partitions. Return the seconds until every partition has a leader and three replicas."""
    began = time.monotonic()
    with RawClient(cluster.ports[0]) as client:
        for number in range(partitions // PARTITIONS_PER_TOPIC):
            assignment = _assignment(PARTITIONS_PER_TOPIC)
            client.create_topic(f"many-{number}", PARTITIONS_PER_TOPIC, {"min.insync.replicas": "2"}, assignment)
        deadline = time.monotonic() + CREATE_SECONDS_MAX
        while True:
            states = client.partitions()
            if len(states) >= partitions and all(len(state.isr) == BROKERS for state in states.values()):
                break
            wait_until(deadline, f"creating {partitions} partitions")
            time.sleep(0.05)
    for partition in range(BROKERS):
        _produce_once(cluster, "many-0", partition, cluster.ports[partition], deadline)
    return time.monotonic() - began


def _fail_over(cluster: Cluster, killed: int) -> float:
    """Kill a broker. Return the seconds until all partitions have a living leader and one that it led is writable."""
    port = cluster.ports[killed % BROKERS]
    with RawClient(port) as client:
        topic, partition = next(name for name, state in client.partitions().items() if state.leader == killed)
        began = time.monotonic()
        cluster.brokers[killed - 1].kill()
        deadline = began + FAILOVER_SECONDS_MAX
        while True:
            states = client.partitions()
            if all(state.leader not in (-1, killed) for state in states.values()):
                break
            wait_until(deadline, "waiting for new leaders")
            # A response with thousands of partitions takes the broker milliseconds: do not measure those.
            time.sleep(0.1)
    _produce_once(cluster, topic, partition, _leader_port(cluster, states[topic, partition]), deadline)
    return time.monotonic() - began


def _leader_port(cluster: Cluster, state: PartitionState) -> int:
    return cluster.ports[state.leader - 1]


def _produce_once(cluster: Cluster, topic: str, partition: int, port: int, deadline: float) -> None:
    batch = single_record_batch(100)
    with RawClient(port) as client:
        while client.produce(topic, partition, batch, acks=-1) != 0:
            wait_until(deadline, f"writing to {topic}-{partition} of {cluster.name}")


def missing_parts(names: Sequence[str]) -> str | None:
    """Return what a cluster of Ottla needs and this machine lacks; None if it has everything."""
    if "ottla" not in names:
        return None
    from ottla.cli.zookeeper_server import ZooKeeperFailed, java_command

    try:
        java_command(Path("zoo.cfg"))
    except ZooKeeperFailed as problem:
        return str(problem)
    return None
