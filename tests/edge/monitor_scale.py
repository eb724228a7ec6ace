"""Measure `ottla monitor` with many topics and groups: requests at the broker, seconds, memory, size of the page.

    make campaign NAME=monitor-scale TOPICS=10000 GROUPS=1000

A tenth of the topics have records that no group has read. Requests are those that the broker has answered, by its own
metrics, so that they are counted with a broker of Ottla only.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import httpx
from large_cluster import answered_requests, fill, large_broker
from monitor_process import monitor_process

from campaign.report import Report
from ottla.admin.client import AdminClient

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
        bootstrap, page_of = stack.enter_context(large_broker(broker))
        client = stack.enter_context(AdminClient(bootstrap, {}, timeout_s=120))
        fill(client, report, topics=topics, groups=groups, topics_per_group=_TOPICS_PER_GROUP)
        http = stack.enter_context(monitor_process(bootstrap, _SETTINGS))
        http.timeout = httpx.Timeout(600)
        began = time.monotonic()
        page = http.get("/metrics").text
        report.figure(f"first page with all checks: {time.monotonic() - began:.1f} s")
        before = answered_requests(page_of)
        seconds, round_s = [], []
        for _ in range(rounds):
            began = time.monotonic()
            page = http.get("/metrics").text
            seconds.append(time.monotonic() - began)
            round_s.append(_value(page, "ottla_monitor_round_seconds"))
        after = answered_requests(page_of)
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


def _value(page: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
