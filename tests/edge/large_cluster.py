"""A broker with thousands of topics and groups, and the requests that it has answered."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from campaign.report import CannotRun, Report
from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.process import BrokerProcess

_TOPICS_PER_REQUEST = 100


@contextmanager
def large_broker(kind: str) -> Iterator[tuple[str, str]]:
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


def fill(client: AdminClient, report: Report, *, topics: int, groups: int, topics_per_group: int) -> None:
    """Create topics with one partition, of which a tenth have ten records, and groups with commits."""
    names = [f"topic-{number:05}" for number in range(topics)]
    for start in range(0, topics, _TOPICS_PER_REQUEST):
        # Some exist already if a request took long and was repeated.
        client.create_topics(names[start : start + _TOPICS_PER_REQUEST], 1, 1, {}, dry_run=False)
        report.progress(start, topics + groups, "topics and groups")
    missing = set(names) - client.topics().keys()
    assert not missing, f"{len(missing)} topics were not created"
    batch = build_batch([Record(timestamp=int(time.time() * 1000), key=None, value=b"v")] * 10)
    for name in names[::10]:
        client.cluster.produce(TopicPartition(name, 0), batch)
    for number in range(groups):
        own = [names[(number * topics_per_group + each) % topics] for each in range(topics_per_group)]
        client.cluster.commit(f"group-{number:05}", {TopicPartition(name, 0): 0 for name in own})
        report.progress(topics + number, topics + groups, "topics and groups")


def answered_requests(page_of: str) -> dict[str, float]:
    """Return the requests that the broker has answered, by API."""
    if not page_of:
        return {}
    with urllib.request.urlopen(page_of, timeout=120) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line.split('"') for line in lines if line.startswith("ottla_requests_total{")]
    return {row[1]: float(row[2].split()[1]) for row in rows}
