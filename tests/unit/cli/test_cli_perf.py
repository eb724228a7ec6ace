"""`ottla perf` and how it counts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ottla.cli.latencies import Latencies


@pytest.fixture(autouse=True)
def _load(cluster: Any) -> None:
    cluster.add_topic("load", 2)


def test_percentiles_are_within_a_64th_of_the_truth() -> None:
    source = random.Random(1)
    seconds = sorted(source.lognormvariate(-6, 2) for _ in range(20_000))
    latencies = Latencies()
    for one in seconds:
        latencies.note(one)
    summary = latencies.summary_ms()
    assert summary is not None
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        truth = seconds[int(len(seconds) * share) - 1] * 1000
        assert summary[name] == pytest.approx(truth, rel=1 / 60, abs=0.002)
    assert summary["max"] == pytest.approx(seconds[-1] * 1000, abs=0.001)


def test_nothing_measured_has_no_latency() -> None:
    assert Latencies().summary_ms() is None


def test_produce_sends_so_many_records_of_that_size(cluster: Any, ottla: Any) -> None:
    result = ottla("perf", "produce", "load", "--num-records", "250", "--record-size", "10", "--quiet", "-o", "json")
    summary = json.loads(result.stdout)
    assert (summary["records"], summary["bytes"], summary["errors"], result.stderr) == (250, 2500, 0, "")
    assert list(summary["latency_ms"]) == ["avg", "p50", "p95", "p99", "p99.9", "max"]
    assert {len(sent["value"]) for sent in cluster.writers[0].sent} == {10}


def test_produce_hands_its_knobs_to_the_client(cluster: Any, ottla: Any) -> None:
    ottla("perf", "produce", "load", "--num-records", "1", "--acks", "1", "--compression", "zstd",
          "--batch-size", "1000", "--linger-ms", "2.5", "-q")  # fmt: skip
    properties = cluster.writers[0].properties
    assert [properties[key] for key in ("acks", "compression.type", "batch.size", "linger.ms")] == [
        "1",
        "zstd",
        1000,
        2.5,
    ]


def test_produce_summary_is_readable(ottla: Any) -> None:
    lines = ottla("perf", "produce", "load", "--num-records", "5", "-q").stdout.splitlines()
    names = [line[:14].strip() for line in lines]
    assert names[:5] == ["records", "errors", "seconds", "records/s", "MB/s"]
    assert names[-1] == "latency max"


def test_produce_fails_when_records_are_not_stored(cluster: Any, ottla: Any) -> None:
    cluster.refuses = True
    assert ottla("perf", "produce", "load", "--num-records", "5", "-q").exit_code == 1


def test_consume_reads_everything_that_is_there(cluster: Any, ottla: Any) -> None:
    for _ in range(30):
        cluster.store("load", b"12345", partition=1)
    summary = json.loads(ottla("perf", "consume", "load", "-q", "-o", "json").stdout)
    assert (summary["records"], summary["bytes"], summary["latency_ms"]) == (30, 150, None)


def test_consume_of_an_empty_topic_ends_at_once(ottla: Any) -> None:
    assert json.loads(ottla("perf", "consume", "load", "-q", "-o", "json").stdout)["records"] == 0


def test_consume_from_the_end_needs_another_end(ottla: Any) -> None:
    assert ottla("perf", "consume", "load", "--offset", "end").exit_code == 2


def test_an_unknown_topic_is_not_found(ottla: Any) -> None:
    assert ottla("perf", "produce", "nope").exit_code == 3
    assert ottla("perf", "consume", "nope").exit_code == 3
