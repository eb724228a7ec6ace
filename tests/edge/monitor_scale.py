"""Measure `ottla monitor` with many topics and groups: requests at the broker, seconds, memory, size of the page.

    make campaign NAME=monitor-scale TOPICS=10000 GROUPS=1000

A tenth of the topics have records that no group has read. Requests are those that the broker has answered, by its own
metrics, so that they are counted with a broker of Ottla only.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from monitor_process import monitor_process

from campaign.report import CannotRun, Report
from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.process import BrokerProcess

_TOPICS_PER_REQUEST = 200
_TOPICS_PER_GROUP = 10
_SETTINGS = {
    "reading.age.ms.max": "0", "reading.wait.ms.max": "600000", "metrics.series.max": "1000000",
    "health.interval.seconds": "86400", "interval.seconds": "3600",
}  # fmt: skip
#: memory of the process and time of a round with 10,000 topics and 1,000 groups
_MEMORY_BYTES_MAX = 400 << 20
_ROUND_S_MAX = 30.0


def run(report: Report, *, topics: int, groups: int, rounds: int, broker: str) -> None:
    """Fill a broker, and measure ``rounds`` rounds."""
    with ExitStack() as stack:
        bootstrap, page_of = stack.enter_context(_broker(broker))
        client = stack.enter_context(AdminClient(bootstrap, {}, timeout_s=120))
        _fill(client, topics, groups, report)
        http = stack.enter_context(monitor_process(bootstrap, _SETTINGS))
        http.timeout = httpx.Timeout(600)
        began = time.monotonic()
        page = http.get("/metrics").text
        report.figure(f"first page with all checks: {time.monotonic() - began:.1f} s")
        before = _requests(page_of)
        seconds, round_s = [], []
        for _ in range(rounds):
            began = time.monotonic()
            page = http.get("/metrics").text
            seconds.append(time.monotonic() - began)
            round_s.append(_value(page, "ottla_monitor_round_seconds"))
        after = _requests(page_of)
        if after:
            each = {name: (after[name] - before.get(name, 0)) / rounds for name in after}
            shown = ", ".join(f"{name} {count:g}" for name, count in sorted(each.items()) if count)
            report.figure(f"{sum(each.values()):g} requests for each round: {shown}")
        memory = _value(page, "process_resident_memory_bytes")
        series = sum(not line.startswith("#") for line in page.splitlines())
        report.figure(f"round: {max(round_s):.2f} s at most; page: {max(seconds):.2f} s, {series:,} series")
        report.figure(f"memory: {memory / (1 << 20):.0f} MiB")
        cpu_s = _value(page, "process_cpu_seconds_total")
        time.sleep(10)
        idle_s = _value(http.get("/burrow/admin").text and http.get("/metrics").text, "process_cpu_seconds_total")
        report.figure(f"processor time of 10 s without requests, and one page: {idle_s - cpu_s:.2f} s")
        if _value(page, "ottla_monitor_windows") < min(groups * _TOPICS_PER_GROUP, 50_000):
            report.problem("commits are missing")
        if memory > _MEMORY_BYTES_MAX:
            report.problem(f"more than {_MEMORY_BYTES_MAX >> 20} MiB of memory")
        if max(round_s) > _ROUND_S_MAX:
            report.problem(f"a round took more than {_ROUND_S_MAX:g} s")


@contextmanager
def _broker(kind: str) -> Iterator[tuple[str, str]]:
    """Return the address of a broker, and that of its metrics; empty for Apache Kafka."""
    if kind == "ottla":
        settings = {"metrics.listener": "HTTP://127.0.0.1:0", "metrics.jmx.topics.max": "0"}
        with BrokerProcess.start(settings=settings) as process:
            yield process.bootstrap, process.ready_line.split("metrics=")[1]
        return
    from benchmarks import kafka_server

    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        raise CannotRun(problem)
    kafka = kafka_server.ApacheKafka()
    try:
        kafka.start()
        yield kafka.bootstrap, ""
    finally:
        kafka.stop()


def _fill(client: AdminClient, topics: int, groups: int, report: Report) -> None:
    names = [f"topic-{number:05}" for number in range(topics)]
    for start in range(0, topics, _TOPICS_PER_REQUEST):
        for outcome in client.create_topics(names[start : start + _TOPICS_PER_REQUEST], 1, 1, {}, dry_run=False):
            assert outcome.failure is None, outcome.failure
        report.progress(start, topics + groups, "topics and groups")
    batch = build_batch([Record(timestamp=int(time.time() * 1000), key=None, value=b"v")] * 10)
    for name in names[::10]:
        client.cluster.produce(TopicPartition(name, 0), batch)
    for number in range(groups):
        own = [names[(number * _TOPICS_PER_GROUP + each) % topics] for each in range(_TOPICS_PER_GROUP)]
        client.cluster.commit(f"group-{number:05}", {TopicPartition(name, 0): 0 for name in own})
        report.progress(topics + number, topics + groups, "topics and groups")


def _requests(page_of: str) -> dict[str, float]:
    """Return the requests that the broker has answered, by API."""
    if not page_of:
        return {}
    with urllib.request.urlopen(page_of, timeout=120) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line.split('"') for line in lines if line.startswith("ottla_requests_total{")]
    return {row[1]: float(row[2].split()[1]) for row in rows}


def _value(page: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
