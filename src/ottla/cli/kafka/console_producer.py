"""`kafka-console-producer`: send lines of standard input as records."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.cli import interrupts
from ottla.cli.kafka.console_options import check_address, either, filed, pairs, refuse_both
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.java import parse_int, parse_long
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_error, print_line

_READER = "org.apache.kafka.tools.LineMessageReader"
_READER_TEXT = (
    "parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, "
    "ignore.error or null.marker of the lines. Repeatable."
)
_FLAGS = (
    flag("topic", help="REQUIRED. Topic of the records.", metavar="TOPIC"),
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("sync", help="Send each record when the one before it is acknowledged."),
    flag(
        "compression-codec",
        help="none, gzip, snappy, lz4 or zstd; gzip without a value.",
        metavar="CODEC",
        is_value_optional=True,
    ),
    flag("batch-size", help="Bytes of a batch.", metavar="BYTES", parse=parse_int, default=16384),
    flag("message-send-max-retries", help="How often a request is repeated.", metavar="N", parse=parse_int, default=3),
    flag("retry-backoff-ms", help="Pause before it is repeated.", metavar="MS", parse=parse_long, default=100),
    flag(
        "timeout", help="How long a record waits for others of its batch.", metavar="MS", parse=parse_long, default=1000
    ),
    flag("request-required-acks", help="Acknowledgements: 0, 1, -1 or all.", metavar="ACKS", default="-1"),
    flag(
        "request-timeout-ms",
        help="Accepted; librdkafka has no such limit.",
        metavar="MS",
        parse=parse_int,
        default=1500,
    ),
    flag("metadata-expiry-ms", help="Age of metadata.", metavar="MS", parse=parse_long, default=300000),
    flag(
        "max-block-ms", help="How long a record may wait for a broker.", metavar="MS", parse=parse_long, default=60000
    ),
    flag("max-memory-bytes", help="Bytes of records that wait.", metavar="BYTES", parse=parse_long, default=33554432),
    flag(
        "max-partition-memory-bytes", help="Deprecated: --batch-size.", metavar="BYTES", parse=parse_int, default=16384
    ),
    flag("line-reader", help=f"Only {_READER}.", metavar="CLASS", default=_READER),
    flag("socket-buffer-size", help="Bytes of the socket's buffer.", metavar="BYTES", parse=parse_int, default=102400),
    flag("property", help="Deprecated: --reader-property.", metavar="NAME=VALUE"),
    flag("reader-property", help=_READER_TEXT, metavar="NAME=VALUE"),
    flag("reader-config", help="File with these properties.", metavar="FILE"),
    flag("producer-property", help="Deprecated: --command-property.", metavar="NAME=VALUE"),
    flag("command-property", help="Property of the producer. Repeatable.", metavar="NAME=VALUE"),
    flag("producer.config", help="Deprecated: --command-config.", metavar="FILE"),
    flag("command-config", help="File with properties of the producer.", metavar="FILE"),
)
#: properties of the producer, and the flags that set them
_MERGED = {
    "linger.ms": "timeout", "acks": "request-required-acks", "retries": "message-send-max-retries",
    "retry.backoff.ms": "retry-backoff-ms", "send.buffer.bytes": "socket-buffer-size",
    "buffer.memory": "max-memory-bytes", "metadata.max.age.ms": "metadata-expiry-ms",
}  # fmt: skip
_WAIT_S = 0.1


def _run(options: Options) -> None:
    _check(options)
    reader = LineReader(_reader_properties(options))
    # librdkafka is loaded when it is known what to send.
    from ottla.cli.kafka.clients import make_producer

    topic = options.value("topic")
    producer = make_producer(options.value("bootstrap-server"), _producer_properties(options))
    with interrupts.handled():
        try:
            for record in reader.records(sys.stdin.buffer):
                _send(producer, topic, record)
                with interrupts.deferred():
                    producer.poll(0)
                while options.has("sync") and _unsent(producer):
                    pass
        finally:
            while _unsent(producer):
                pass


def _check(options: Options) -> None:
    options.require("topic")
    refuse_both(
        options,
        {"command-config": "producer.config", "command-property": "producer-property", "reader-property": "property"},
    )
    for name, new in (
        ("producer-property", "command-property"),
        ("producer.config", "command-config"),
        ("property", "reader-property"),
    ):
        if options.has(name):
            print_line(f"Warning: --{name} is deprecated and will be removed in a future version. Use --{new} instead.")
    if options.has("max-partition-memory-bytes"):
        print_line(
            "Warning: --max-partition-memory-bytes is deprecated and will be removed in Apache Kafka 5.0. Use "
            "--batch-size instead."
        )
    check_address(options.value("bootstrap-server"))
    if options.value("line-reader") != _READER:
        raise ToolError(
            f"java.lang.ClassNotFoundException: {options.value('line-reader')}; only {_READER} is supported"
        )


def _producer_properties(options: Options) -> dict[str, str]:
    properties = filed(options, either(options, "command-config", "producer.config"))
    properties |= pairs(options.values(either(options, "command-property", "producer-property")))
    codec = options.value("compression-codec") or "gzip" if options.has("compression-codec") else "none"
    properties["compression.type"] = codec
    for name, flag_name in {
        **_MERGED,
        "batch.size": either(options, "batch-size", "max-partition-memory-bytes"),
    }.items():
        if options.has(flag_name) or name not in properties:
            properties[name] = str(options.value(flag_name))
    defaults = {
        "client.id": "console-producer",
        "delivery.timeout.ms": str(options.value("max-block-ms")),
        # The partition of a key is that of Java's producer.
        "partitioner": "murmur2_random",
    }
    return defaults | properties


def _reader_properties(options: Options) -> dict[str, str]:
    return filed(options, "reader-config") | pairs(options.values(either(options, "reader-property", "property")))


class Line(NamedTuple):
    """A record as a line describes it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def _send(producer: Any, topic: str, record: Line) -> None:
    def report(error: Any, message: Any) -> None:
        if error is not None:
            print_error(
                f"ERROR Error when sending message to topic {topic} with key: {_size(record.key)}, value: "
                f"{_size(record.value)} with error: {error.str()}"
            )

    while True:
        try:
            producer.produce(topic, record.value, record.key, on_delivery=report, headers=record.headers or None)
            return
        except BufferError:
            _unsent(producer)


def _size(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} bytes"


def _unsent(producer: Any) -> int:
    with interrupts.deferred():
        return int(producer.flush(_WAIT_S))


@dataclass(slots=True)
class LineReader:
    """Turns lines into records, by the properties of Kafka's LineMessageReader. Raise ToolError if they conflict."""

    properties: Mapping[str, str]
    _number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        delimiter, separator, key_separator = self._headers
        for one, other, names in (
            (delimiter, separator, "headers.delimiter and headers.separator"),
            (delimiter, key_separator, "headers.delimiter and headers.key.separator"),
            (separator, key_separator, "headers.separator and headers.key.separator"),
            (self._key_separator, self._null, "null.marker and key.separator"),
            (separator, self._null, "null.marker and headers.separator"),
            (delimiter, self._null, "null.marker and headers.delimiter"),
            (key_separator, self._null, "null.marker and headers.key.separator"),
        ):
            if one == other:
                raise ToolError(f"org.apache.kafka.common.KafkaException: {names} may not be equal")

    @property
    def _headers(self) -> tuple[str, str, str]:
        get = self.properties.get
        return get("headers.delimiter", "\t"), get("headers.separator", ","), get("headers.key.separator", ":")

    @property
    def _key_separator(self) -> str:
        return self.properties.get("key.separator", "\t")

    @property
    def _null(self) -> str | None:
        return self.properties.get("null.marker")

    def _is_set(self, name: str) -> bool:
        return self.properties.get(name, "").strip().lower() == "true"

    def records(self, file: Any) -> Iterator[Line]:
        """Yield a record for each line of a binary file. Raise ToolError for a line that cannot be read."""
        prompts = sys.stdin.isatty() and sys.stdout.isatty()
        for line in _lines(file, prompts=prompts):
            self._number += 1
            yield self.record(line)

    def record(self, line: str) -> Line:
        """Return the record of a line."""
        headers_text, rest = self._split("parse.headers", line, line, self._headers[0], "headers delimiter")
        key, value = self._split("parse.key", line, rest, self._key_separator, "key separator")
        headers = [] if headers_text in (None, self._null) else self._parse_headers(headers_text or "")
        return Line(self._bytes(key), self._bytes(value), headers)

    def _split(self, name: str, line: str, rest: str, separator: str, title: str) -> tuple[str | None, str]:
        """Return the part before a separator, and the rest; None if there is none, or it is not wanted."""
        if not self._is_set(name):
            return None, rest
        part, found, after = rest.partition(separator)
        if found:
            return part, after
        if self._is_set("ignore.error"):
            return None, rest
        raise ToolError(
            f"org.apache.kafka.common.KafkaException: No {title} found on line number {self._number}: '{line}'"
        )

    def _parse_headers(self, text: str) -> list[tuple[str, bytes | None]]:
        _, separator, key_separator = self._headers
        parts = re.split(separator, text)
        while len(parts) > 1 and not parts[-1]:
            # As Java's split does.
            parts.pop()
        headers: list[tuple[str, bytes | None]] = []
        for part in parts:
            key, found, value = part.partition(key_separator)
            if not found and not self._is_set("ignore.error"):
                raise ToolError(
                    f"org.apache.kafka.common.KafkaException: No header key separator found in pair '{part}' on line "
                    f"number {self._number}"
                )
            if found and key == self._null:
                raise ToolError(
                    f"org.apache.kafka.common.KafkaException: Header keys should not be equal to the null marker "
                    f"'{self._null}' as they can't be null"
                )
            headers.append((key, self._bytes(value) if found else None))
        return headers

    def _bytes(self, text: str | None) -> bytes | None:
        return None if text is None or text == self._null else text.encode()


def _lines(file: Any, *, prompts: bool) -> Iterator[str]:
    """Yield the lines of a binary file, which end with \\n, \\r or both. Bytes that are not UTF-8 are replaced."""
    while True:
        if prompts:
            sys.stdout.write(">")
            sys.stdout.flush()
        raw = file.readline()
        if not raw:
            return
        text = raw.decode("utf-8", "replace")
        text = text.removesuffix("\n").removesuffix("\r")
        yield from text.split("\r")


TOOL = Tool(
    name="kafka-console-producer",
    summary="This tool helps to read data from standard input and publish it to Kafka.",
    flags=_FLAGS,
    run=_run,
)
