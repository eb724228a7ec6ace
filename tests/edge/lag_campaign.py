"""Compare the lag in time that `ottla monitor` shows with one that is known.

    make campaign NAME=lag SECONDS=60 KILLS=4

Readers commit what is older than a given delay, so that the lag is known at each moment: idle, steady and in bursts.
Others are set up once: a compacted topic, open and aborted transactions. A streaming query of Spark commits as a group.
Then brokers are killed while producers and readers go on. Each sample is a request for /metrics, and the time of the
sample is the one that the page names as that of its figures. No figure may differ by more than a second.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
from lag_workload import Commit, Traffic, Truth, now_ms
from monitor_process import monitor_process

from campaign.processes import wait_until
from campaign.report import CannotRun, Report
from ottla.admin.client import AdminClient
from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.transactions import TransactionalProducer
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.cluster import ClusterProcess

_ERROR_S_MAX = 1.0
_WAIT_S = 180.0
_SERIES = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LAG = "kafka_consumergroup_group_max_lag_seconds"
_SETTINGS = {"reading.age.ms.max": "0", "reading.wait.ms.max": "60000", "metrics.granularity": "group"}


@dataclass
class Errors:
    """How far the figures of one kind were from the truth."""

    count: int = 0
    worst_s: float = 0.0
    missing: int = 0
    #: time from the moment of the figures until the answer
    age_s: float = 0.0
    #: the smallest and the largest lag that was shown
    low_s: float = math.inf
    high_s: float = 0.0

    def add(self, shown_s: float, error_s: float) -> None:
        self.count += 1
        self.worst_s = max(self.worst_s, error_s)
        self.low_s, self.high_s = min(self.low_s, shown_s), max(self.high_s, shown_s)


@dataclass
class Lags:
    """The monitor, and what was compared so far."""

    http: httpx.Client
    report: Report
    kinds: dict[str, Errors] = field(default_factory=dict)

    def sample(self, truths: dict[str, Truth]) -> None:
        """Compare one page with what is known."""
        since_ms = now_ms()
        at_ms, lags = self.read()
        answered_ms = now_ms()
        for kind, truth in truths.items():
            errors = self.kinds.setdefault(kind, Errors())
            found = lags.get(truth.group)
            if found is None:
                errors.missing += 1
                continue
            error_s = min(abs(found - each) for each in truth.possible_s(since_ms, at_ms))
            errors.add(found, error_s)
            errors.age_s = max(errors.age_s, (answered_ms - at_ms) / 1000)
            if error_s > _ERROR_S_MAX or found < 0:
                known = truth.possible_s(since_ms, at_ms)
                self.report.problem(f"{kind}: {found:.2f} s shown, {known} known")

    def read(self) -> tuple[int, dict[str, float]]:
        """Return the time of the figures and the lag of each group."""
        at_ms, lags = 0, {}
        for line in self.http.get("/metrics").text.splitlines():
            match = _SERIES.fullmatch(line)
            if match is None:
                continue
            if match[1] == "ottla_monitor_read_time_seconds":
                at_ms = int(float(match[3]) * 1000)
            elif match[1] == _LAG:
                lags[re.findall(r'group="([^"]*)"', match[2])[0]] = float(match[3])
            elif "_lag" in match[1] and float(match[3]) < 0:
                self.report.problem(f"a negative lag: {line}")
        return at_ms, lags

    def compare(self, kind: str, group: str, timestamp_ms: int | None) -> None:
        """Compare the lag of a group with the timestamp of its first unread record; None: it has read all."""
        since_ms = now_ms()
        at_ms, lags = self.read()
        errors = self.kinds.setdefault(kind, Errors())
        if group not in lags:
            errors.missing += 1
            self.report.problem(f"{kind}: no lag is shown")
            return
        known = 0.0 if timestamp_ms is None else (at_ms - timestamp_ms) / 1000
        errors.add(lags[group], abs(lags[group] - known))
        errors.age_s = max(errors.age_s, (now_ms() - at_ms) / 1000)
        if abs(lags[group] - known) > _ERROR_S_MAX:
            self.report.problem(f"{kind}: {lags[group]:.2f} s shown, {known:.2f} s known; asked at {since_ms}")


def run(report: Report, *, seconds: int, kills: int, broker: str, spark: bool, seed: int) -> None:
    """Compare lags for ``seconds``, and with each of ``kills`` of brokers."""
    with ExitStack() as stack:
        bootstrap, cluster_process = stack.enter_context(_cluster(broker))
        client = stack.enter_context(AdminClient(bootstrap, {}, timeout_s=60))
        http = stack.enter_context(monitor_process(bootstrap, _SETTINGS))
        lags = Lags(http, report)
        _compare_fixed(client.cluster, lags)
        truths = {kind: _new(client.cluster, kind) for kind in ("idle", "steady", "burst")}
        _produce(client.cluster, truths["idle"], [60_000, 30_000, 20_000])
        _commit(client.cluster, truths["idle"], 1)

        def connect() -> Cluster:
            return Cluster(bootstrap, timeout_s=30)

        traffic = [
            Traffic(connect, truths["steady"], batch=20, every_s=0.1, delay_s=5),
            Traffic(connect, truths["burst"], batch=2000, every_s=7, delay_s=12),
        ]
        for each in traffic:
            each.start()
        wait_until(lambda: all(each.commits for each in truths.values()), "readers commit", _WAIT_S)
        try:
            _sample_for(lags, truths, seconds, report)
            if spark:
                _compare_spark(bootstrap, client, lags, truths["steady"].name, seconds)
            if cluster_process is not None:
                _sample_with_kills(lags, truths, cluster_process, kills, Random(seed))
        finally:
            for each in traffic:
                each.end()
        for kind, errors in lags.kinds.items():
            missing = f", {errors.missing} without a figure" if errors.missing else ""
            report.figure(
                f"{kind}: {errors.count} figures of {errors.low_s:.1f} to {errors.high_s:.1f} s, worst error "
                f"{errors.worst_s:.3f} s, answered after {errors.age_s:.2f} s{missing}"
            )


@contextmanager
def _cluster(broker: str) -> Iterator[tuple[str, ClusterProcess | None]]:
    if broker == "ottla":
        with ClusterProcess.start(brokers=3, settings={"log.cleaner.backoff.ms": "100"}) as cluster:
            yield cluster.bootstrap, cluster
        return
    from benchmarks import kafka_server

    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        raise CannotRun(problem)
    kafka = kafka_server.ApacheKafka(settings={"log.cleaner.backoff.ms": "100"})
    try:
        kafka.start()
        yield kafka.bootstrap, None
    finally:
        kafka.stop()


def _new(cluster: Cluster, kind: str, config: dict[str, str] | None = None) -> Truth:
    cluster.create_topic(kind, 1, config or {})
    return Truth(TopicPartition(kind, 0), f"group-{kind}")


def _produce(cluster: Cluster, truth: Truth, ages_ms: list[int], key: bytes | None = None) -> None:
    for age_ms in ages_ms:
        timestamp_ms = now_ms() - age_ms
        start = cluster.produce(truth.name, build_batch([Record(timestamp=timestamp_ms, key=key, value=b"v")]))
        truth.produced(start, 1, timestamp_ms)


def _commit(cluster: Cluster, truth: Truth, offset: int) -> None:
    began_ms = now_ms()
    cluster.commit(truth.group, {truth.name: offset})
    truth.commits.append(Commit(offset, began_ms, now_ms()))


# -- lags that are set up once ---------------------------------------------------------------------------------------


def _compare_fixed(cluster: Cluster, lags: Lags) -> None:
    _compare_compacted(cluster, lags)
    _compare_transactions(cluster, lags)


def _compare_compacted(cluster: Cluster, lags: Lags) -> None:
    """The records after the commit are compacted away, up to one: that one is the first that a reader gets."""
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    truth = _new(cluster, "compacted", config)
    start_ms = now_ms() - 3_600_000
    kept_ms = start_ms
    for number in range(400):
        timestamp_ms = start_ms + number * 1000
        key = b"kept" if number == 200 else b"same"
        kept_ms = timestamp_ms if number == 200 else kept_ms
        cluster.produce(truth.name, build_batch([Record(timestamp=timestamp_ms, key=key, value=b"v" * 8000)]))
    _commit(cluster, truth, 10)

    def is_compacted() -> bool:
        _, found = lags.read()
        return abs(found.get(truth.group, 0) - (now_ms() - kept_ms) / 1000) < 2 * _ERROR_S_MAX

    lags.report.say("waiting for the compaction")
    wait_until(is_compacted, "the topic is compacted", _WAIT_S)
    lags.compare("compacted", truth.group, kept_ms)


def _compare_transactions(cluster: Cluster, lags: Lags) -> None:
    """Records of an aborted transaction are no lag, those of an open one are."""
    truth = _new(cluster, "transactions")
    base_ms = now_ms() - 600_000

    def batch(age_step: int) -> bytes:
        return build_batch([Record(timestamp=base_ms + age_step * 60_000, key=None, value=b"v")])

    with TransactionalProducer(cluster, "lag") as producer:
        producer.init()
        producer.begin()
        producer.send(truth.name, batch(0))
        producer.flush()
        _commit(cluster, truth, 0)
        lags.compare("transactional, open", truth.group, base_ms)
        producer.abort()
        lags.compare("transactional, aborted", truth.group, None)
        producer.begin()
        producer.send(truth.name, batch(2))
        producer.commit()
        lags.compare("transactional, committed", truth.group, base_ms + 120_000)
        end = cluster.list_offsets({truth.name: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[truth.name].offset
        _commit(cluster, truth, end)
        lags.compare("transactional, read", truth.group, None)


# -- traffic ---------------------------------------------------------------------------------------------------------


def _sample_for(lags: Lags, truths: dict[str, Truth], seconds: float, report: Report) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        lags.sample(truths)
        report.progress(int(seconds - left), int(seconds), "s")
        time.sleep(0.2)


def _sample_with_kills(
    lags: Lags, truths: dict[str, Truth], cluster: ClusterProcess, kills: int, random: Random
) -> None:
    while_killed = {f"{kind}, broker killed": truth for kind, truth in truths.items()}
    for number in range(kills):
        victim = random.choice([*cluster.brokers.values()])
        victim.kill()
        for _ in range(20):
            lags.sample(while_killed)
            time.sleep(0.2)
        victim.launch()
        for _ in range(10):
            lags.sample(while_killed)
            time.sleep(0.2)
        lags.report.progress(number + 1, kills, "kills")


# -- Spark -----------------------------------------------------------------------------------------------------------

_QUERY = """
import sys
from ottla.spark.session import build_session
spark = build_session("lag")
spark.sparkContext.setLogLevel("ERROR")
bootstrap, topic, checkpoint = sys.argv[1:]
rows = (spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        .option("startingOffsets", "latest").option("kafka.group.id", "group-spark").load())
query = (rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
         .trigger(processingTime="4 seconds").start())
print("started", flush=True)
query.awaitTermination()
"""


def _compare_spark(bootstrap: str, client: AdminClient, lags: Lags, name: TopicPartition, seconds: int) -> None:
    """Compare the lag of a streaming query with the record at the offset that it has committed."""
    group = "group-spark"
    with tempfile.TemporaryDirectory(prefix="ottla-lag-") as folder:
        query = subprocess.Popen(
            [sys.executable, "-c", _QUERY, bootstrap, name.topic, folder], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, env=os.environ,
        )  # fmt: skip
        try:
            wait_until(lambda: bool(client.committed_offsets(group)), "the query commits", _WAIT_S)
            errors = lags.kinds.setdefault("Spark query", Errors())
            until = time.monotonic() + seconds / 2
            while time.monotonic() < until:
                possible = [_lag_at(client, group, name)]
                at_ms, found = lags.read()
                possible.append(_lag_at(client, group, name))
                known = [0.0 if each is None else (at_ms - each) / 1000 for each in possible]
                # The query may commit between the two looks more than once: both are limits then.
                low, high = min(known), max(known)
                if group in found:
                    error_s = max(low - found[group], found[group] - high, 0.0)
                    errors.add(found[group], error_s)
                    if error_s > _ERROR_S_MAX:
                        lags.report.problem(f"Spark query: {found[group]:.2f} s shown, {known} known")
                else:
                    errors.missing += 1
                time.sleep(0.2)
        finally:
            query.terminate()
            query.wait(60)


def _lag_at(client: AdminClient, group: str, name: TopicPartition) -> int | None:
    """Return the timestamp of the record at the committed offset, read by librdkafka; None if there is none."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    committed = client.committed_offsets(group)[name]
    reader: Any = Consumer({"bootstrap.servers": client.bootstrap, "group.id": "oracle", "fetch.wait.max.ms": 50})
    try:
        reader.assign([Place(name.topic, name.partition, committed)])
        message = reader.poll(0.3)
        while message is not None and message.error():
            message = reader.poll(0.3)
        return None if message is None else int(message.timestamp()[1])
    finally:
        reader.close()
