"""Spark's rows: Ottla's source and sink beside Spark's own Kafka connector, each on both brokers.

Every pair of engine and broker has a Spark process of its own (benchmarks/spark_job.py) that lives through all rounds,
so that all JVMs are warm. This file starts them, makes topics, says what to do next, and counts records afterwards: a
measurement whose records are not all there is a failed one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.maven import ROOT, SCRATCH, fetch_jars
from benchmarks.measure import Broker, Lab, MeasurementFailed, Metrics
from benchmarks.processes import proportional_mb
from benchmarks.raw_client import RawClient, count_records, wait_writable
from benchmarks.report import Document, build_spark
from benchmarks.scenarios import (
    CONTESTANTS,
    FLOOR_RECORDS_PER_SECOND,
    FLOOR_SECONDS,
    FLOOR_SECONDS_QUICK,
    SPARK_KEY_BYTES,
    SPARK_PARTITIONS,
    SPARK_RECORDS,
    SPARK_RECORDS_QUICK,
    SPARK_VALUE_BYTES,
    SparkRow,
    SparkWork,
)

CONNECTOR_VERSION = "4.2.0"
#: Java goes on compiling for some passes: in five rounds after one pass, a copy with Ottla's source went from 720 k to
#: 1,079 k records/s, with the tuned connector on Kafka from 300 k to 573 k
_WARM_UP_PASSES = 4
CONNECTOR_JARS = SCRATCH / "spark-kafka"
_POM = ROOT / "tests" / "spark" / "pom.xml"
_MARKER = f"spark-sql-kafka-0-10_2.13-{CONNECTOR_VERSION}.jar"
#: what Java's producers fill by default
_BATCH_BYTES = 16_384
_START_SECONDS_MAX = 120.0
_WORK_SECONDS_MAX = 360.0
_STOP_SECONDS_MAX = 20.0
_MEMORY_EVERY_SECONDS = 0.5

Samples = dict[str, dict[str, list[Metrics]]]
Failures = dict[str, dict[str, str]]


class SparkBench:
    """All Spark rows of one run."""

    def __init__(self, rows: Sequence[SparkRow], brokers: Sequence[str], lab: Lab, directory: Path, *, quick: bool):
        self._rows = rows
        self._lab = lab
        self._directory = directory
        directory.mkdir()
        self._warm_up_passes = 1 if quick else _WARM_UP_PASSES
        self._records = SPARK_RECORDS_QUICK if quick else SPARK_RECORDS
        self._floor_seconds = FLOOR_SECONDS_QUICK if quick else FLOOR_SECONDS
        self._jobs: dict[str, SparkJob] = {}
        self._sources: dict[str, str] = {}
        self._topic_number = 0
        # Results
        self.missing = missing_parts()
        engines = [] if "spark" in self.missing else ["ottla", *([] if self.missing else ["connector"])]
        self._contestants = [
            name
            for name in CONTESTANTS
            if name.partition("@")[2] in brokers and name.split("@")[0].split("-")[0] in engines
        ]
        self.samples: Samples = {}
        self.failures: Failures = {}

    def run(self, rounds: int) -> None:
        """Run some passes that are not measured, then the rounds."""
        for reason in self.missing.values():
            print(f"skipping rows of Spark: {reason}", flush=True)
        try:
            for name in self._contestants:
                self._job(name)
            for number in (*[0] * self._warm_up_passes, *range(1, rounds + 1)):
                self._round(number, rounds)
        finally:
            for job in self._jobs.values():
                job.stop()
            self._jobs.clear()

    def document(self, facts: Mapping[str, Any]) -> Document:
        """What was found; the conditions are those of the whole run, and what is Spark's own."""
        conditions = {
            **facts,
            # What ran beside it differs between parts of a run.
            "settings": {"rounds": facts["settings"]["rounds"]},
            "spark": None if "spark" in self.missing else importlib.metadata.version("pyspark"),
            "connector": None if self.missing else CONNECTOR_VERSION,
            "records": self._records,
            "missing": list(self.missing.values()),
        }
        return build_spark(self._rows, self.samples, self.failures, conditions)

    def _round(self, number: int, rounds: int) -> None:
        stage = f"round {number}/{rounds}" if number else "warm-up"
        # The one that goes first finds the quieter disk, so they take turns.
        order = self._contestants if number % 2 else self._contestants[::-1]
        done: dict[tuple[SparkWork, str], Metrics] = {}
        for row in self._rows:
            for contestant in order:
                work = row.work_of(contestant)
                # A process that is warm is warm for the tuned rows, too.
                if work is None or contestant in self.failures.get(row.name, {}) or (not number and work.tuned):
                    continue
                found = self._measured(row, contestant, work, done)
                if found is None:
                    continue
                if number:
                    self.samples.setdefault(row.name, {}).setdefault(contestant, []).append(found)
                text = ", ".join(f"{name} {value:,.1f}" for name, value in found.items())
                print(f"{time.strftime('%H:%M:%S')}  {stage:10} {row.name:26} {contestant:22} {text}", flush=True)

    def _measured(
        self, row: SparkRow, contestant: str, work: SparkWork, done: dict[tuple[SparkWork, str], Metrics]
    ) -> Metrics | None:
        """What two rows share, as the connector's one way to write, is measured once a round."""
        if (work, contestant) not in done:
            try:
                done[work, contestant] = self._measure(contestant, work)
            except (MeasurementFailed, OSError, RuntimeError) as problem:
                reason = (str(problem) or type(problem).__name__).splitlines()[0]
                print(f"{time.strftime('%H:%M:%S')}  failed     {row.name:26} {contestant:22} {reason}", flush=True)
                self.failures.setdefault(row.name, {})[contestant] = reason
                return None
        return done[work, contestant]

    def _measure(self, contestant: str, work: SparkWork) -> Metrics:
        broker = self._broker(contestant)
        measures: dict[str, Callable[[SparkJob, Broker, SparkWork], Metrics]] = {
            "read": self._read, "write": self._write, "copy": self._copy, "floor": self._floor,
        }  # fmt: skip
        os.sync()
        return measures[work.kind](self._job(contestant), broker, work)

    def _read(self, job: SparkJob, broker: Broker, work: SparkWork) -> Metrics:
        said = job.ask(work, topic=self._source(broker))
        return _rate(said, self._records)

    def _write(self, job: SparkJob, broker: Broker, work: SparkWork) -> Metrics:
        with _Output(self._new_name("write"), broker) as output:
            said = job.ask(work, output=output.name, records=self._records)
            said["records"] = output.count(self._records)
            return _rate(said, self._records)

    def _copy(self, job: SparkJob, broker: Broker, work: SparkWork) -> Metrics:
        source = self._source(broker)
        with _Output(self._new_name("copy"), broker) as output:
            said = job.ask(work, topic=source, output=output.name)
            said["records"] = output.count(self._records)
            return _rate(said, self._records)

    def _floor(self, job: SparkJob, broker: Broker, work: SparkWork) -> Metrics:
        with _Output(self._new_name("floor"), broker) as output:
            count = int(FLOOR_RECORDS_PER_SECOND * self._floor_seconds)
            feeder = threading.Thread(target=_trickle, args=(broker.bootstrap, output.name, count))
            feeder.start()
            try:
                said = job.ask(work, topic=output.name, seconds=self._floor_seconds)
            finally:
                feeder.join()
            if said["records"] != count + SPARK_PARTITIONS:
                raise MeasurementFailed(f"{said['records']} records were read, not {count + SPARK_PARTITIONS}")
            steps = {f"step_{name}_ms": float(value) for name, value in said["steps_ms"].items()}
            del steps["step_triggerExecution_ms"]
            return {"p50_ms": said["p50_ms"], "memory_mb": said["memory_mb"], **steps}

    def _broker(self, contestant: str) -> Broker:
        # Kafka acknowledges from the page cache; to compare what Spark costs, Ottla does the same.
        return self._lab.broker(contestant.partition("@")[2], page_cache=True)

    def _source(self, broker: Broker) -> str:
        """The topic that is read, filled when it is first needed."""
        if broker.name not in self._sources:
            name = self._new_name("source")
            with RawClient(broker.port) as client:
                client.create_topic(name, SPARK_PARTITIONS, {})
            _fill(broker.bootstrap, name, self._records)
            held = count_records(broker.port, name, SPARK_PARTITIONS, self._records)
            if held != self._records:
                raise MeasurementFailed(f"{self._records} records were sent, and the topic holds {held}")
            self._sources[broker.name] = name
        return self._sources[broker.name]

    def _job(self, contestant: str) -> SparkJob:
        settings, _, broker = contestant.partition("@")
        engine = settings.partition("-")[0]
        key = f"{engine}@{broker}"
        if key not in self._jobs:
            jars = sorted(map(str, CONNECTOR_JARS.glob("*.jar"))) if engine == "connector" else []
            print(f"{time.strftime('%H:%M:%S')}  starting Spark for {key}", flush=True)
            self._jobs[key] = SparkJob(engine, self._broker(contestant).bootstrap, jars, self._directory)
        return self._jobs[key]

    def _new_name(self, what: str) -> str:
        self._topic_number += 1
        return f"spark-{what}-{self._topic_number}"


class SparkJob:
    """A Spark process and the lines that are exchanged with it."""

    def __init__(self, engine: str, bootstrap: str, jars: Sequence[str], directory: Path) -> None:
        settings = {"engine": engine, "bootstrap": bootstrap, "jars": list(jars), "directory": str(directory)}
        self._log = directory / f"spark-{engine}-{bootstrap.rpartition(':')[2]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.spark_job", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        self._unread = b""
        self._memory_mb = 0.0
        self._answer(_START_SECONDS_MAX)

    def ask(self, work: SparkWork, **details: Any) -> dict[str, Any]:
        """The answer, with the largest memory that all processes of the engine had together meanwhile."""
        assert self._process.stdin is not None
        line = json.dumps({**dataclasses.asdict(work), **details})
        self._memory_mb = 0.0
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MeasurementFailed(f"the Spark process has ended: {self._log_end()}") from None
        said = self._answer(_WORK_SECONDS_MAX)
        if "error" in said:
            raise MeasurementFailed(said["error"])
        self._memory_mb = max(self._memory_mb, proportional_mb(self._process.pid))
        return {**said, "memory_mb": self._memory_mb}

    def stop(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_STOP_SECONDS_MAX)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answer(self, seconds_max: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds_max
        measure_at = time.monotonic() + _MEMORY_EVERY_SECONDS
        while b"\n" not in self._unread:
            now = time.monotonic()
            if now > deadline:
                raise MeasurementFailed(f"Spark did not answer within {seconds_max:g} s")
            if now >= measure_at:
                self._memory_mb = max(self._memory_mb, proportional_mb(self._process.pid))
                measure_at = time.monotonic() + _MEMORY_EVERY_SECONDS
            if select.select([self._process.stdout], [], [], max(measure_at - time.monotonic(), 0.0))[0]:
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise MeasurementFailed(f"the Spark process has ended: {self._log_end()}")
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def _log_end(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class _Output:
    """A topic for one measurement."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self._broker = broker

    def __enter__(self) -> _Output:
        with RawClient(self._broker.port) as client:
            client.create_topic(self.name, SPARK_PARTITIONS, {})
        wait_writable(self._broker.port, self.name, SPARK_PARTITIONS)
        return self

    def __exit__(self, *_: object) -> None:
        with RawClient(self._broker.port) as client:
            client.delete_topic(self.name)

    def count(self, expected: int) -> int:
        """One record per partition is the probe that found it writable."""
        expected += SPARK_PARTITIONS
        return count_records(self._broker.port, self.name, SPARK_PARTITIONS, expected) - SPARK_PARTITIONS


def missing_parts() -> dict[str, str]:
    """By what is missing, `spark` or `connector`: one line that says what to do. Brings the connector if it can."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return {"spark": "pyspark is missing: pip install -e '.[spark]'"}
    from ottla.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as missing:
        return {"spark": str(missing)}
    reason = fetch_jars("Spark's Kafka connector", _POM, CONNECTOR_JARS, _MARKER)
    return {} if reason is None else {"connector": reason}


def _rate(said: dict[str, Any], expected: int) -> Metrics:
    if said["records"] != expected:
        raise MeasurementFailed(f"{said['records']} records arrived, not {expected}")
    return {"records_per_second": expected / said["seconds"], "memory_mb": said["memory_mb"]}


def _fill(bootstrap: str, topic: str, count: int) -> None:
    producer = _producer(bootstrap, {"linger.ms": 5, "batch.size": _BATCH_BYTES, "acks": 1})
    rest = b"x" * (SPARK_VALUE_BYTES - SPARK_KEY_BYTES)
    for number in range(count):
        key = b"%0*d" % (SPARK_KEY_BYTES, number)
        while True:
            try:
                producer.produce(topic, key + rest, key)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1_000:
            producer.poll(0)
    producer.flush()


def _trickle(bootstrap: str, topic: str, count: int) -> None:
    producer = _producer(bootstrap, {"linger.ms": 0, "acks": 1})
    began = time.monotonic()
    for number in range(count):
        producer.produce(topic, b"x" * SPARK_VALUE_BYTES, b"%0*d" % (SPARK_KEY_BYTES, number))
        producer.poll(0)
        time.sleep(max(began + (number + 1) / FLOOR_RECORDS_PER_SECOND - time.monotonic(), 0.0))
    producer.flush()


def _producer(bootstrap: str, settings: dict[str, Any]) -> Producer:
    shared = {
        "bootstrap.servers": bootstrap,
        "compression.type": "none",
        "queue.buffering.max.messages": 1_000_000,
        "log_level": 0,
    }
    return Producer({**shared, **settings})
