"""The console with many topics, many groups and a topic of many gigabytes: times of pages, requests, and memory.

    make campaign NAME=console-scale TOPICS=10000 GROUPS=1000 GIGABYTES=5

Each page is opened as a browser without a cache opens it. Its first time includes reading from the cluster; the median
of the following ones is what a person sees who looks around. Lists must answer within 300 ms. The values of the large
topic are compressed, so that a topic of 50 GB needs little disk: a search has to read and decode all of them.
"""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from console_process import ConsoleClient, console_process
from large_cluster import answered_requests, fill, large_broker

from campaign.report import Report
from ottla.admin.client import AdminClient
from ottla.edge.console.rendering import url

LARGE = "large"
#: a list must answer within this time, the first request as well
LIST_S_MAX = 0.3
_TOPICS_PER_GROUP = 5
_VALUE_BYTES = 100_000
#: one record of this many is what the search looks for
_MATCH_EVERY = 20_000
_REPEATS = 9


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is measured."""

    name: str
    path: str
    #: lists have a limit; other pages may wait for the cluster
    is_list: bool = False


def pages(topics: int, groups: int) -> list[Page]:
    return [
        Page("weather", ""),
        Page("brokers", "/brokers", is_list=True),
        Page("brokers, figures", "/broker-cells.json"),
        Page("topics", "/topics", is_list=True),
        Page("topics, figures", "/topic-cells.json"),
        Page("topics, middle", f"/topics?start={topics // 2}", is_list=True),
        Page("topics, search", "/topics?q=099", is_list=True),
        Page("topic", "/topics/topic-00042/partitions"),
        Page("configs", "/topics/topic-00042/configs"),
        Page("messages", f"/topics/{LARGE}/messages"),
        Page("groups", "/groups", is_list=True),
        Page("groups, lags", "/group-lags.json"),
        Page("groups, middle", f"/groups?start={groups // 2}", is_list=True),
        Page("group", "/groups/group-00042"),
        Page("transactions", "/transactions", is_list=True),
        Page("palette", "/find.json?q=topic-0004", is_list=True),
    ]


def run(report: Report, *, topics: int, groups: int, gigabytes: float, broker: str) -> None:
    records = int(gigabytes * 1e9 / _VALUE_BYTES)
    with large_broker(broker) as (bootstrap, page_of):
        with AdminClient(bootstrap, {}, timeout_s=300) as client:
            fill(client, report, topics=topics, groups=groups, topics_per_group=_TOPICS_PER_GROUP)
            client.create_topics([LARGE], 1, 1, {}, dry_run=False)
            client.await_topics([LARGE])
        _write(report, bootstrap, records)
        with console_process(bootstrap) as console:
            started_kb = _memory_kb(console.pid)
            for page in pages(topics, groups):
                _measure(report, page_of, console, page)
            _search(report, console, records)
            report.figure(f"memory {started_kb >> 10} MiB at the start, {_memory_kb(console.pid) >> 10} MiB afterwards")


# -- data -----------------------------------------------------------------------------------------------------------


def _write(report: Report, bootstrap: str, count: int) -> None:
    """Write values that compress well; few of them contain the word `needle`."""
    producer = Producer({
        "bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 20, "batch.size": 900_000,
        "queue.buffering.max.messages": 5_000, "acks": "all",
    })  # fmt: skip
    plain = b'{"kind":"plain","text":"' + b"x" * _VALUE_BYTES + b'"}'
    for number in range(count):
        value = plain.replace(b"plain", b"needle", 1) if number % _MATCH_EVERY == _MATCH_EVERY - 1 else plain
        while True:
            try:
                producer.produce(LARGE, value, key=b"%d" % number, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        report.progress(number, count, "records")
    producer.flush(120)
    report.figure(f"{count} records of {_VALUE_BYTES} bytes")


# -- measuring ------------------------------------------------------------------------------------------------------


def _measure(report: Report, page_of: str, console: ConsoleClient, page: Page) -> None:
    before = answered_requests(page_of)
    first_s, size = _open(console, page)
    after = answered_requests(page_of)
    times = [_open(console, page)[0] for _ in range(_REPEATS)]
    asked = {api: after[api] - before.get(api, 0) for api in after if after[api] != before.get(api, 0)}
    counted = ", ".join(f"{count:g} {api}" for api, count in sorted(asked.items())) or "no requests"
    median_s = statistics.median(times)
    report.say(
        f"{page.name:18} first {first_s * 1000:6.0f} ms, then {median_s * 1000:5.0f} ms, {size >> 10:4} KiB; {counted}"
    )
    if page.is_list and first_s > LIST_S_MAX:
        report.problem(f"{page.name} took {first_s * 1000:.0f} ms, more than {LIST_S_MAX * 1000:.0f} ms")


def _search(report: Report, console: ConsoleClient, records: int) -> None:
    """Search the large topic for its few matches, as a person does who presses `continue` until the end."""
    began = time.monotonic()
    path = url("c", "main", "topics", LARGE, "messages", **{"from": "oldest", "q": 'value contains "needle"'})
    matched = requests = 0
    while path:
        found = console.json(path)
        progress = found["progress"]
        assert isinstance(progress, dict), found
        rows, path = found["records"], str(found["next"])
        assert isinstance(rows, list)
        matched, requests = matched + len(rows), requests + 1
        if progress["pause"] == "end":
            break
    seconds = time.monotonic() - began
    expected = records // _MATCH_EVERY
    if matched != expected:
        report.problem(f"the search found {matched} records of {expected}")
    rate = records * _VALUE_BYTES / seconds / 1e6
    report.figure(f"search of {records} records: {seconds:.1f} s, {rate:.0f} MB/s, {requests} requests")


def _open(console: ConsoleClient, page: Page) -> tuple[float, int]:
    began = time.monotonic()
    answer = console.http.get(f"/c/main{page.path}")
    seconds = time.monotonic() - began
    assert answer.status_code == 200, f"{page.path}: {answer.status_code} {answer.text[-2000:]}"
    return seconds, len(answer.content)


def _memory_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])
