"""`ottla perf`: load tests of a cluster."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure
from ottla.admin.offset_plans import partitions_of
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.latencies import Latencies
from ottla.cli.names import TOPIC_NAME
from ottla.cli.output import JSON, TABLE, YAML, output_option, print_data
from ottla.cli.produce import acks_option, compression_option, report_records_in_flight

if TYPE_CHECKING:
    from ottla.cli.records import KafkaError, Message, Reader, Writer

#: a megabyte, as Kafka's own tools count it
_MB = 1024 * 1024
_PROGRESS_S = 1.0
_READ_COUNT = 10_000
#: different values, sent in turn: too many for the window of a compressor, few enough to generate at the start
_PAYLOAD_COUNT = 256
#: records that are queued before the clock and the acknowledgements are checked again
_BURST = 100

_duration_option = click.option(
    "--duration", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), help="Stop after this time."
)
_quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print no progress on standard error.")


@click.group("perf")
def command() -> None:
    """Run load tests against a cluster. MB is 1024 * 1024 bytes, as in Kafka's own tools."""


@command.command("produce")
@click.argument("topic", metavar="TOPIC", type=TOPIC_NAME)
@click.option(
    "--num-records", metavar="N", type=click.IntRange(min=1), help="Stop after N records.  [default: 1000000]"
)
@_duration_option
@click.option(
    "--record-size",
    metavar="BYTES",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Size of each value.",
)
@click.option(
    "--throughput",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help="Send at most N records per second.",
)
@acks_option()
@compression_option("--compression")
@click.option(
    "--batch-size",
    metavar="BYTES",
    type=click.IntRange(min=1),
    default=65536,
    show_default=True,
    help="Maximum size of a batch.",
)
@click.option(
    "--linger-ms",
    metavar="MS",
    type=click.FloatRange(min=0),
    default=5,
    show_default=True,
    help="Time that a batch waits for more records.",
)
@_quiet_option
@connection_options
@output_option(TABLE, JSON, YAML)
def produce(
    *,
    topic: str,
    num_records: int | None,
    duration: float | None,
    record_size: int,
    throughput: float | None,
    acks: str,
    compression: str,
    batch_size: int,
    linger_ms: float,
    quiet: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Send records and measure throughput and latency.

    The values are random bytes. Latency is the time from queueing a record to its acknowledgement. Ctrl-C ends the
    measurement and prints the result so far.
    """
    cluster = connection.connect()
    cluster.topic(topic)
    writer = cluster.writer(
        {
            "acks": acks,
            "compression.type": compression,
            "batch.size": batch_size,
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 64 * 1024,
        }
    )
    writer.warm_up(topic, connection.timeout_s)
    if num_records is None and duration is None:
        num_records = 1_000_000
    load = ProduceLoad(topic, record_size, throughput)
    with make_progress("produced", num_records, quiet=quiet) as progress:
        load.run(writer, num_records, duration, progress)
    _print_summary(load.summary(), output)
    if load.error_count:
        raise Failure(f"{load.error_count} records were not stored; the first: {load.first_error}")


class ProduceLoad:
    """Sends records, and measures their acknowledgements."""

    def __init__(self, topic: str, record_size: int, throughput: float | None) -> None:
        self._topic = topic
        self._throughput = throughput
        source = random.Random(record_size)
        self._payloads = [source.randbytes(record_size) for _ in range(_PAYLOAD_COUNT)]
        self._latencies = Latencies()
        self._stored_bytes = 0
        self._elapsed_s = 0.0
        self.error_count = 0
        self.first_error = ""

    def run(self, writer: Writer, count: int | None, duration_s: float | None, progress: Progress) -> None:
        """Send until `count` or the time is reached, then wait for the records in flight."""
        payloads, send, on_delivery = self._payloads, writer.send, self._on_delivery
        started, sent = time.perf_counter(), 0
        try:
            while count is None or sent < count:
                elapsed = time.perf_counter() - started
                if duration_s is not None and elapsed >= duration_s:
                    break
                burst = _BURST if count is None else min(_BURST, count - sent)
                if self._throughput is not None:
                    ahead_s = sent / self._throughput - elapsed
                    if ahead_s > 0:
                        writer.poll(min(ahead_s, 0.1))
                        continue
                    burst = max(1, min(burst, int(self._throughput / 100)))
                for number in range(sent, sent + burst):
                    send(self._topic, payloads[number % _PAYLOAD_COUNT], on_delivery=on_delivery)
                sent += burst
                writer.poll(0)
                progress.update(self._latencies.count, self._stored_bytes)
        except KeyboardInterrupt:
            # The result so far is still worth printing, once the records in flight are acknowledged.
            report_records_in_flight(writer)
        while writer.flush(0.1):
            progress.update(self._latencies.count, self._stored_bytes)
        self._elapsed_s = time.perf_counter() - started

    def summary(self) -> dict[str, Any]:
        return {
            **_rates(self._latencies.count, self._stored_bytes, self._elapsed_s),
            "errors": self.error_count,
            "latency_ms": self._latencies.summary_ms(),
        }

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error_count += 1
            self.first_error = self.first_error or error.str()
            return
        self._latencies.note(message.latency() or 0.0)
        self._stored_bytes += len(message)


@command.command("consume")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option("--num-records", metavar="N", type=click.IntRange(min=1), help="Stop after N records.")
@_duration_option
@click.option(
    "--offset",
    "start",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="beginning reads the existing records and stops; end waits for new records.",
)
@_quiet_option
@connection_options
@output_option(TABLE, JSON, YAML)
def consume(
    *,
    topics: tuple[str, ...],
    num_records: int | None,
    duration: float | None,
    start: str,
    quiet: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Read records and measure the throughput.

    With --offset end, latency is the time from the timestamp of a record to its arrival, so both clocks must agree.
    Ctrl-C ends the measurement and prints the result so far.
    """
    follow = start == "end"
    if follow and num_records is None and duration is None:
        raise click.UsageError("--offset end needs --num-records or --duration to end")
    cluster = connection.connect()
    names = partitions_of(cluster, topics)
    firsts, lasts = cluster.find_offsets(names, "earliest"), cluster.find_offsets(names, "latest")
    starts = {name: (lasts if follow else firsts)[name].offset or 0 for name in names}
    # The reader does not report the end of an empty partition.
    filled = [name for name in names if starts[name] < (lasts[name].offset or 0)]
    load = ConsumeLoad(follow=follow)
    properties = {"fetch.queue.backoff.ms": 5, "queued.min.messages": 1_000_000, "check.crcs": False}
    with cluster.reader(properties) as reader, make_progress("consumed", num_records, quiet=quiet) as progress:
        reader.assign(starts if follow else {name: starts[name] for name in filled})
        load.run(reader, len(filled), num_records, duration, progress)
    _print_summary(load.summary(), output)


class ConsumeLoad:
    """Measures the records that are read."""

    def __init__(self, *, follow: bool) -> None:
        self._follow = follow
        self._latencies = Latencies()
        self._count = 0
        self._bytes = 0
        self._elapsed_s = 0.0
        self._first_s: float | None = None

    def run(
        self, reader: Reader, partitions: int, count: int | None, duration_s: float | None, progress: Progress
    ) -> None:
        """Read until `count`, the time, or the end of every partition is reached."""
        started = time.perf_counter()
        ended: set[tuple[str, int]] = set()
        try:
            while (count is None or self._count < count) and (self._follow or len(ended) < partitions):
                messages, ends = reader.read(_READ_COUNT, 0.1)
                now = time.perf_counter()
                if messages:
                    if self._first_s is None:
                        self._first_s = now - started
                    self._elapsed_s = now - started
                    self._note(messages)
                    progress.update(self._count, self._bytes)
                ended.update(ends)
                if duration_s is not None and now - started >= duration_s:
                    break
        except KeyboardInterrupt:
            pass

    def summary(self) -> dict[str, Any]:
        first_ms = None if self._first_s is None else self._first_s * 1000
        return {
            **_rates(self._count, self._bytes, self._elapsed_s),
            "first_record_ms": first_ms,
            "latency_ms": self._latencies.summary_ms(),
        }

    def _note(self, messages: list[Message]) -> None:
        self._count += len(messages)
        self._bytes += sum(map(len, messages))
        if self._follow:
            now_ms = time.time() * 1000
            for message in messages:
                self._latencies.note(max(0.0, now_ms - message.timestamp()[1]) / 1000)


class Progress:
    """Shows the progress on standard error: not at all, as a line per second, or as a bar."""

    def __init__(self, verb: str, show: Callable[[str, int], None] | None, close: Callable[[], None]) -> None:
        self._verb = verb
        self._show = show
        self._close = close
        self._last = (time.perf_counter(), 0, 0)

    def update(self, count: int, size_bytes: int) -> None:
        now = time.perf_counter()
        then, count_then, bytes_then = self._last
        if self._show is None or now - then < _PROGRESS_S:
            return
        rates = _rates(count - count_then, size_bytes - bytes_then, now - then)
        self._last = (now, count, size_bytes)
        speed = f"{rates['records_per_s']:.0f} records/s, {rates['mb_per_s']:.2f} MB/s"
        self._show(f"{count} records {self._verb}, {speed}", count)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def make_progress(verb: str, total: int | None, *, quiet: bool) -> Progress:
    if quiet:
        return Progress(verb, None, lambda: None)
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return Progress(verb, lambda text, _: click.echo(text, err=True), lambda: None)
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task("", total=total)
    bar.start()
    return Progress(
        verb, lambda text, count: bar.update(task, description=text, completed=count, refresh=True), bar.stop
    )


def _rates(count: int, size_bytes: int, elapsed_s: float) -> dict[str, Any]:
    elapsed_s = max(elapsed_s, 1e-9)
    return {
        "records": count,
        "bytes": size_bytes,
        "seconds": round(elapsed_s, 3),
        "records_per_s": round(count / elapsed_s, 1),
        "mb_per_s": round(size_bytes / elapsed_s / _MB, 3),
    }


def _print_summary(summary: dict[str, Any], output: str) -> None:
    if output != TABLE:
        print_data(summary, output)
        return
    latency = summary["latency_ms"] or {}
    lines = {
        "records": f"{summary['records']}",
        "errors": f"{summary['errors']}" if "errors" in summary else None,
        "seconds": f"{summary['seconds']:.3f}",
        "records/s": f"{summary['records_per_s']:.0f}",
        "MB/s": f"{summary['mb_per_s']:.2f}",
        "first record": f"{summary['first_record_ms']:.2f} ms" if summary.get("first_record_ms") is not None else None,
        **{f"latency {name}": f"{value:.2f} ms" for name, value in latency.items()},
    }
    for name, text in lines.items():
        if text is not None:
            click.echo(f"{name:<14}  {text}")
