"""kafka-e2e-latency: send records one by one, and measure the time until a consumer has each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ottla.admin.failure import Failure
from ottla.cli.kafka.clients import make_consumer, make_producer
from ottla.cli.kafka.connection import connect, properties_of
from ottla.cli.kafka.errors import ToolError, UsageError
from ottla.cli.kafka.java import parse_int
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.cli.kafka.tool import main as run_tool
from ottla.cli.records import Consumer, Producer, ends_of

_TIMEOUT_S: Final = 60.0
_STEP: Final = 1000
_NAMES: Final = ("bootstrap-server", "topic", "num-records", "producer-acks", "record-size", "command-config")
_POSITIONAL_MIN, _POSITIONAL_MAX = 5, 6
_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster. Required."),
    flag("topic", metavar="TOPIC", help="The topic; it is created with one partition. Required."),
    flag("num-records", metavar="N", parse=parse_int, help="How many records. Required."),
    flag("producer-acks", metavar="ACKS", help="1 or all. Required."),
    flag("record-size", metavar="BYTES", parse=parse_int, help="Size of each value. Required."),
    flag("command-config", metavar="FILE", is_value_optional=True, help="File with properties of the clients."),
    flag("record-key-size", metavar="BYTES", parse=parse_int, is_value_optional=True, default=0, help="Size of keys."),
    flag("num-headers", metavar="N", parse=parse_int, is_value_optional=True, default=0, help="Headers of a record."),
    flag("record-header-key-size", metavar="BYTES", parse=parse_int, is_value_optional=True, default=0,
         help="Size of the names of headers."),
    flag("record-header-size", metavar="BYTES", parse=parse_int, is_value_optional=True, default=0,
         help="Size of the values of headers; -1: null."),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    # The former form has no flags: server, topic, count, acks, size, file.
    if not words or any(word.startswith("--") for word in words):
        return run_tool(_TOOL, words)
    return run_tool(_POSITIONAL, words)


def _run_positional(options: Options) -> None:
    words = options.words
    if not _POSITIONAL_MIN <= len(words) <= _POSITIONAL_MAX:
        raise ToolError(
            f"Invalid number of arguments. Expected 5 or 6 positional arguments, but got {len(words)}. Usage: "
            "bootstrap-server topic num-records producer-acks record-size [optional] command-config"
        )
    print_line(
        "WARNING: Positional argument usage is deprecated and will be removed in Apache Kafka 5.0. Please use named "
        "arguments instead: --bootstrap-server, --topic, --num-records, --producer-acks, --record-size, "
        "--command-config"
    )
    _run(Options(_FLAGS, {name: [word] for name, word in zip(_NAMES, words, strict=False)}, []))


def _run(options: Options) -> None:
    options.require(*_NAMES[:_POSITIONAL_MIN])
    acks = options.value("producer-acks")
    if acks not in ("1", "all"):
        raise UsageError(
            "Invalid value for --producer-acks. Latency testing requires synchronous acknowledgement. Please use '1' "
            "or 'all'."
        )
    server, topic = options.value("bootstrap-server"), options.value("topic")
    properties = properties_of(options.value("command-config"))
    partitions = _prepare(server, topic, properties)
    consumer = make_consumer(
        server,
        {
            "group.id": f"test-group-{time.time_ns()}", "enable.auto.commit": "false", "auto.offset.reset": "latest",
            "fetch.max.wait.ms": "0", **properties,
        },
    )  # fmt: skip
    producer = make_producer(server, {"linger.ms": "0", "acks": acks, **properties})
    try:
        consumer.assign(ends_of(consumer, topic, partitions, _TIMEOUT_S))
        _measure(producer, consumer, options)
    finally:
        consumer.close()


def _prepare(server: str, topic: str, properties: Mapping[str, str]) -> int:
    """Create the topic unless it exists, and return how many partitions it has."""
    with connect(server, properties, call="listTopics") as admin:
        known = admin.topics().get(topic)
        if known is None:
            print_line(
                f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication factor = 1'
            )
            try:
                admin.create_topics([topic], 1, 1, {}, dry_run=False)
                admin.await_topics([topic])
            except Failure as error:
                raise ToolError(f"Creation of topic {topic} failed: {error.message}") from None
            return 1
        return len(known.partitions)


def _measure(producer: Producer, consumer: Consumer, options: Options) -> None:
    count = int(options.value("num-records"))
    key_size, header_count = int(options.value("record-key-size")), int(options.value("num-headers"))
    name_size, header_size = int(options.value("record-header-key-size")), int(options.value("record-header-size"))
    latencies: list[int] = []
    total_ms = 0.0
    for number in range(count):
        value = _letters(int(options.value("record-size")))
        key = _letters(key_size) if key_size > 0 else None
        headers: list[tuple[str, Any]] = [
            (_letters(name_size).decode(), None if header_size < 0 else _letters(header_size))
            for _ in range(header_count)
        ]
        began = time.perf_counter()
        producer.produce(options.value("topic"), value, key, headers=headers)
        producer.flush(_TIMEOUT_S)
        message = consumer.poll(_TIMEOUT_S)
        elapsed_ms = (time.perf_counter() - began) * 1000
        _check(message, value, key)
        if number % _STEP == 0:
            print_line(f"{number}\t{elapsed_ms:.6f}")
        total_ms += elapsed_ms
        latencies.append(int(elapsed_ms))
    latencies.sort()
    shares = (("50th", 0.5), ("99th", 0.99), ("99.9th", 0.999))
    print_line(f"Avg latency: {total_ms / max(count, 1):.4f} ms")
    if latencies:
        percentiles = [f"{name} = {latencies[min(int(count * share), count - 1)]}" for name, share in shares]
        print_line(f"Percentiles: {', '.join(percentiles)}")


def _check(message: Any, value: bytes, key: bytes | None) -> None:
    """Raise ToolError if this is not the record that was sent."""
    if message is None:
        raise ToolError("poll() timed out before finding a result (timeout:[60000ms])")
    if message.error() is not None:
        raise ToolError(message.error().str())
    for what, sent, read in (("value", value, message.value()), ("key", key, message.key())):
        if sent != read:
            raise ToolError(f"The message {what} read [{read!r}] did not match the message {what} sent [{sent!r}]")


def _letters(size: int) -> bytes:
    return bytes(ord("A") + byte % 26 for byte in os.urandom(max(size, 0)))


_TOOL = Tool(
    name="kafka-e2e-latency",
    summary="Send records one by one, and measure the time until a consumer has each.",
    flags=_FLAGS,
    run=_run,
)
_POSITIONAL = Tool(name=_TOOL.name, summary=_TOOL.summary, flags=(), run=_run_positional)
