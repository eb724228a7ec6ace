"""kafka-producer-perf-test: send records, and print throughput and latencies."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from ottla.cli.kafka.arguments import Given, Syntax, argument, long
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.clients import make_producer, parse_pairs
from ottla.cli.kafka.connection import properties_of
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import print_error, print_line
from ottla.cli.records import KafkaException, Producer

_MB: Final = 1024 * 1024
_REPORT_MS: Final = 5000
_TRANSACTION_MS: Final = 3000
_POLL_S: Final = 0.01
_FLUSH_S: Final = 0.1
_LETTERS: Final = [bytes([number]) for number in range(ord("A"), ord("Z") + 1)]
#: different values, sent in turn
_VALUE_COUNT: Final = 256
_ERRORS_SHOWN: Final = 10

SYNTAX: Final = Syntax(
    name="kafka-producer-perf-test",
    summary="Send records, and print throughput and latencies. Needs one of --record-size, --payload-file and "
    "--payload-monotonic.",
    arguments=(
        argument("--bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster."),
        argument("--topic", metavar="TOPIC", is_required=True, help="The topic."),
        argument("--num-records", metavar="N", parse=long, is_required=True, help="How many records."),
        argument("--payload-delimiter", metavar="TEXT", default="\\n", help="What separates values in --payload-file."),
        argument("--throughput", metavar="N", parse=float, is_required=True, help="Records per second; -1: no limit."),
        argument("--producer-props", metavar="K=V", has_several=True, help="The former name of --command-property."),
        argument("--command-property", metavar="K=V", has_several=True, help="Properties of the producer."),
        argument("--producer.config", metavar="FILE", help="The former name of --command-config."),
        argument("--command-config", metavar="FILE", help="File with properties of the producer."),
        argument("--print-metrics", help="Ignored: this producer has other metrics than Java's."),
        argument("--transactional-id", metavar="ID", help="Send in transactions of this id."),
        argument(
            "--transaction-duration-ms", metavar="MS", parse=long, help="Length of a transaction, 3000 with an id."
        ),
        argument(
            "--warmup-records", metavar="N", parse=long, default=0, help="Leave out the first N in a second line."
        ),
        argument("--reporting-interval", metavar="MS", parse=long, default=_REPORT_MS, help="Time between reports."),
        argument("--record-size", metavar="BYTES", parse=int, help="Size of each value."),
        argument("--payload-file", metavar="FILE", help="File with values, of which one is chosen for each record."),
        argument("--payload-monotonic", help="The values are 0, 1, 2, ..."),
    ),
    one_of=(("record-size", "payload-file", "payload-monotonic"),),
    exclusive=(("producer-props", "command-property"), ("producer.config", "command-config")),
)
_DEPRECATED: Final = {"producer-props": "command-property", "producer.config": "command-config"}


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, is_helped_without_arguments=True)


def _run(given: Given) -> None:
    _check(given)
    for old, new in _DEPRECATED.items():
        if given.has(old):
            print_line(
                f"Option --{old} has been deprecated and will be removed in a future version. Use --{new} instead."
            )
    properties = {
        "client.id": "perf-producer-client",
        **properties_of(given["command-config"] or given["producer.config"]),
        **parse_pairs(given["command-property"] or given["producer-props"] or []),
    }
    transactional_id, duration_ms = _transaction(given, properties)
    if transactional_id is not None:
        properties["transactional.id"] = transactional_id
    values = _values(given)
    producer = make_producer(given["bootstrap-server"], properties)
    if given.has("print-metrics"):
        print_error("WARN --print-metrics is ignored: Java's metrics do not exist here")
    load = Load(producer, given["topic"], duration_ms if transactional_id is not None else None)
    load.run(values, given["num-records"], given["throughput"], given["warmup-records"], given["reporting-interval"])


def _check(given: Given) -> None:
    """Raise ToolError for numbers that make no sense together."""
    if given["num-records"] <= 0:
        raise ToolError("--num-records should be greater than zero.")
    if given["warmup-records"] >= given["num-records"]:
        raise ToolError(
            "The value for --warmup-records must be strictly fewer than the number of records in the test, "
            "--num-records."
        )
    if given["record-size"] is not None and given["record-size"] <= 0:
        raise ToolError("--record-size should be greater than zero.")
    if given["reporting-interval"] <= 0:
        raise ToolError("--reporting-interval should be greater than zero.")
    if given["transaction-duration-ms"] is not None and given["transaction-duration-ms"] <= 0:
        raise ToolError("--transaction-duration-ms should be greater than zero.")
    if not any(given.has(name) for name in ("bootstrap-server", "command-config", "command-property", *_DEPRECATED)):
        raise ToolError("At least one of --bootstrap-server, --command-property or --command-config must be specified.")


def _transaction(given: Given, properties: dict[str, str]) -> tuple[str | None, int]:
    """Return the transactional id, if records are sent in transactions, and how long each lasts."""
    duration_ms = given["transaction-duration-ms"]
    found = given["transactional-id"] or properties.get("transactional.id")
    if found is None and duration_ms is not None:
        found = f"performance-producer-{uuid.uuid4()}"
    return found, duration_ms or _TRANSACTION_MS


def _values(given: Given) -> Iterator[bytes]:
    if given.has("payload-monotonic"):
        return (b"%d" % number for number in range(given["num-records"]))
    # The same values in every run, so that results can be compared.
    source = random.Random(0)
    if given["record-size"] is not None:
        pool = [b"".join(source.choices(_LETTERS, k=given["record-size"])) for _ in range(_VALUE_COUNT)]
    else:
        pool = _read_values(given["payload-file"], given["payload-delimiter"])
    return iter(partial(source.choice, pool), None)


def _read_values(path: str, delimiter: str) -> list[bytes]:
    print_line(f"Reading payloads from: {path}")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        text = ""
    if not text:
        raise ToolError("File does not exist or empty file provided.")
    # Java drops what is empty at the end.
    found = [each.encode() for each in text.split("\n" if delimiter == "\\n" else delimiter)]
    while found and not found[-1]:
        found.pop()
    print_line(f"Number of records read: {len(found)}")
    return found


class Load:
    """Sends records, and measures the time until each is acknowledged."""

    def __init__(self, producer: Producer, topic: str, transaction_ms: int | None) -> None:
        self._producer = producer
        self._topic = topic
        self._transaction_ms = transaction_ms
        self._stats: list[Stats] = []
        self._errors = 0

    def run(self, values: Iterator[bytes], count: int, rate: float, warmup: int, interval_ms: int) -> None:
        """Send `count` records, at most `rate` per second, and print the results."""
        if self._transaction_ms is not None:
            self._call(self._producer.init_transactions)
        everything = Stats(interval_ms)
        self._stats = [everything]
        if warmup:
            print_line(
                f"Warmup first {warmup} records. Steady state results will print after the complete test summary."
            )
        steady: Stats | None = None
        began_s = started = time.perf_counter()
        is_open = False
        for number in range(count):
            if self._transaction_ms is not None and not is_open:
                self._call(self._producer.begin_transaction)
                began_s, is_open = time.perf_counter(), True
            if warmup and number == warmup:
                everything.is_silent = True
                steady = Stats(interval_ms, is_steady=True)
                self._stats.append(steady)
            self._send(next(values))
            if is_open and (time.perf_counter() - began_s) * 1000 >= (self._transaction_ms or 0):
                self._call(self._producer.commit_transaction)
                is_open = False
            self._throttle(number + 1, rate, started)
        if is_open:
            self._call(self._producer.commit_transaction)
        while self._producer.flush(_FLUSH_S):
            pass
        everything.print_total("")
        if steady is not None:
            steady.print_total(" steady state")

    def _send(self, value: bytes) -> None:
        stats, sent_s, size = list(self._stats), time.perf_counter(), len(value)

        def acknowledged(error: Any, _: Any) -> None:
            if error is not None:
                self._report(error.str())
                return
            latency_ms = int((time.perf_counter() - sent_s) * 1000)
            for each in stats:
                each.note(latency_ms, size)

        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=acknowledged)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                self._report(error.args[0].str())
                return

    def _throttle(self, sent: int, rate: float, started: float) -> None:
        """Wait until as much time has passed as this many records need at the rate."""
        while rate > 0:
            ahead_s = sent / rate - (time.perf_counter() - started)
            if ahead_s <= 0:
                return
            self._producer.poll(min(ahead_s, _POLL_S))

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except KafkaException as error:
            raise ToolError(error.args[0].str()) from None

    def _report(self, text: str) -> None:
        self._errors += 1
        if self._errors <= _ERRORS_SHOWN:
            print_error(text)


class Stats:
    """Counts acknowledged records and their latencies; prints a line at each interval."""

    def __init__(self, interval_ms: int, *, is_steady: bool = False) -> None:
        #: prints no lines at intervals, because other statistics print them
        self.is_silent = False
        self._is_steady = is_steady
        self._start = self._window_start = time.perf_counter()
        self._interval_ms = interval_ms
        #: latency in ms -> number of records
        self._latencies: dict[int, int] = {}
        self._count = self._bytes = self._total_ms = self._max_ms = 0
        self._window_count = self._window_bytes = self._window_total_ms = self._window_max_ms = 0

    def note(self, latency_ms: int, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes
        self._total_ms += latency_ms
        self._max_ms = max(self._max_ms, latency_ms)
        self._latencies[latency_ms] = self._latencies.get(latency_ms, 0) + 1
        self._window_count += 1
        self._window_bytes += size_bytes
        self._window_total_ms += latency_ms
        self._window_max_ms = max(self._window_max_ms, latency_ms)
        elapsed_ms = (time.perf_counter() - self._window_start) * 1000
        if elapsed_ms >= self._interval_ms:
            self._print_window(elapsed_ms)

    def _print_window(self, elapsed_ms: float) -> None:
        if self._is_steady and self._count == self._window_count:
            print_line("In steady state.")
        if not self.is_silent:
            rate, size_rate = 1000 * self._window_count / elapsed_ms, 1000 * self._window_bytes / elapsed_ms / _MB
            average = self._window_total_ms / self._window_count
            print_line(
                f"{self._window_count} records sent, {rate:.1f} records/sec ({size_rate:.2f} MB/sec), {average:.1f} ms "
                f"avg latency, {self._window_max_ms:.1f} ms max latency."
            )
        self._window_start = time.perf_counter()
        self._window_count = self._window_bytes = self._window_total_ms = self._window_max_ms = 0

    def print_total(self, kind: str) -> None:
        elapsed_ms = max((time.perf_counter() - self._start) * 1000, 1e-3)
        rate, size_rate = 1000 * self._count / elapsed_ms, 1000 * self._bytes / elapsed_ms / _MB
        average = f"{self._total_ms / self._count:.2f}" if self._count else "NaN"
        shares = ((0.5, "50th"), (0.95, "95th"), (0.99, "99th"), (0.999, "99.9th"))
        percentiles = ", ".join(f"{self._percentile(share)} ms {name}" for share, name in shares)
        print_line(
            f"{self._count}{kind} records sent, {rate:.6f} records/sec ({size_rate:.2f} MB/sec), {average} ms avg "
            f"latency, {self._max_ms:.2f} ms max latency, {percentiles}."
        )

    def _percentile(self, share: float) -> int:
        """Return the latency of the record with this rank."""
        rank, seen = int(share * self._count), 0
        for latency_ms in sorted(self._latencies):
            seen += self._latencies[latency_ms]
            if seen > rank:
                return latency_ms
        return 0
