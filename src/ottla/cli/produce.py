"""`ottla produce`: send lines or files as records."""

from __future__ import annotations

import functools
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ottla.admin.failure import Failure, NotHealthy
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.csv_rows import csv_line
from ottla.cli.duration import current_time_ms
from ottla.cli.names import TOPIC_NAME
from ottla.cli.options import Decorator, Parsed
from ottla.cli.output import CSV_FORMATS, CSV_SAFE, JSON, TEXT, format_count, output_option, print_json_line
from ottla.cli.position import parse_time_ms
from ottla.cli.produce_waiting import LIMIT_MS_DEFAULT, Waiting
from ottla.cli.record_format import decode_escapes
from ottla.cli.registry_options import RegistryAddress, registry_address_options
from ottla.cli.schema_records import KEY, VALUE, SchemaChoice, make_encoder, parse_serializations

if TYPE_CHECKING:
    from ottla.cli.records import KafkaError, Message, Writer

_CHUNK_BYTES = 1 << 16
#: the largest message.max.bytes that librdkafka accepts: no longer record can be sent
_RECORD_BYTES_MAX = 1_000_000_000
_IDLE_S = 0.1

_DELIVERY_FIELDS = ("topic", "partition", "offset", "ts", "key", "size")

Header = tuple[str, str | bytes | None]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def acks_option(more: str = "") -> Decorator:
    return click.option(
        "--acks",
        type=click.Choice(["all", "1", "0", "-1"]),
        default="all",
        show_default=True,
        help=f"Required acknowledgements{more}.",
    )


def compression_option(*names: str) -> Decorator:
    return click.option(
        *names,
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        default="none",
        show_default=True,
        help="Compression of batches.",
    )


def _schema_choice(part: str) -> Callable[[_Function], _Function]:
    """Add the options that choose the schema of keys or of values; the function gets `key_schema` or `value_schema`."""
    prefix, noun = ("--key-", "keys") if part == KEY else ("--", "values")

    def add(function: _Function) -> _Function:
        @click.option(
            f"{prefix}schema",
            f"{part}_file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help=f"Register the schema in FILE and send {noun} with it.",
        )
        @click.option(
            f"{prefix}schema-id",
            f"{part}_id",
            metavar="N",
            type=click.IntRange(min=0),
            help=f"Send {noun} with this schema.",
        )
        @click.option(
            f"{prefix}subject",
            f"{part}_subject",
            metavar="SUBJECT",
            help=f"Subject of the schema of {noun}.  [default: TOPIC-{part}]",
        )
        @functools.wraps(function)
        def with_choice(*args: Any, **kwargs: Any) -> Any:
            choice = SchemaChoice(*(kwargs.pop(f"{part}_{name}") for name in ("file", "id", "subject")))
            if choice.schema_id is not None and (choice.file is not None or choice.subject is not None):
                raise click.UsageError(f"{prefix}schema-id cannot be combined with {prefix}schema or {prefix}subject")
            kwargs[f"{part}_schema"] = choice
            return function(*args, **kwargs)

        return with_choice  # type: ignore[return-value]

    return add


def _parse_timestamp(text: str) -> int:
    return parse_time_ms(text.removeprefix("@"), current_time_ms())


class InputRecord(NamedTuple):
    """The key and the value of a record, as they were read."""

    key: bytes | None
    value: bytes | None


@click.command("produce")
@click.argument("topic", metavar="TOPIC", type=TOPIC_NAME)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("-l", "--lines", is_flag=True, help="Each line of the files is a record; without it, each file is one.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="Delimiter between records.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Delimiter between key and value of a record.")
@click.option("-k", "--key", metavar="TEXT", help="Key of every record.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header of every record; without = its value is null. Repeatable.",
)
@click.option("-Z", "--null", is_flag=True, help="Send an empty value or key as null.")
@click.option("-p", "--partition", metavar="N", type=click.IntRange(min=0), help="Send to this partition only.")
@compression_option("-z", "--compression")
@acks_option("; with all, retries never store a record twice")
@click.option(
    "--timestamp",
    "timestamp_ms",
    metavar="TIME",
    type=Parsed("time", _parse_timestamp),
    help="Timestamp of every record: milliseconds, ISO 8601 or -90m.",
)
@click.option("--allow-auto-topic-creation", is_flag=True, help="Let the broker create a topic that does not exist.")
@click.option(
    "-s",
    "--serialization",
    "schema_types",
    metavar="FORMAT",
    multiple=True,
    callback=parse_serializations,
    help="Values are JSON and are sent with a schema of the registry: avro, json or protobuf; key=FORMAT does so for "
    "keys. Repeatable.",
)
@_schema_choice(VALUE)
@_schema_choice(KEY)
@registry_address_options
@connection_options
@output_option(TEXT, JSON, *CSV_FORMATS, default=TEXT)
def command(
    *,
    topic: str,
    files: tuple[str, ...],
    lines: bool,
    delimiter: str,
    key_delimiter: str | None,
    key: str | None,
    headers: tuple[str, ...],
    null: bool,
    partition: int | None,
    compression: str,
    acks: str,
    timestamp_ms: int | None,
    allow_auto_topic_creation: bool,
    schema_types: dict[str, str],
    value_schema: SchemaChoice,
    key_schema: SchemaChoice,
    registry_address: RegistryAddress,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Send lines or files as records.

    Reads standard input or the given files. Prints a summary on standard error; -o json prints one line per
    acknowledged record. The partitioner is that of the Java producer.

    With --acks all the producer is idempotent: a retry never stores a record twice. Its initialisation takes half a
    second; -X enable.idempotence=false avoids it.

    If the cluster acknowledges no record for 3 seconds, for example because a partition has no leader, the command
    prints what it is waiting for on standard error. It gives a record up after 2 minutes, or after
    -X message.timeout.ms=MS, and ends with exit code 4.

    With -s each value is one line of JSON: Avro's JSON encoding, or Protobuf's. It is sent with the latest schema of
    the subject TOPIC-value, or with the one of --schema, --schema-id or --subject.
    """
    if key is not None and key_delimiter is not None:
        raise click.UsageError("-k and -K cannot be combined")
    choices = {VALUE: value_schema, KEY: key_schema}
    for part, choice in choices.items():
        if choice != SchemaChoice() and part not in schema_types:
            raise click.UsageError(f"a schema for the {part} needs -s {'key=' if part == KEY else ''}FORMAT")
    cluster = connection.connect()
    if not allow_auto_topic_creation:
        cluster.topic(topic)
    encode = _make_encode(registry_address, topic, schema_types, choices)
    writer = cluster.writer(
        {
            "acks": acks,
            "enable.idempotence": acks in ("all", "-1"),
            "compression.type": compression,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.timeout.ms": LIMIT_MS_DEFAULT,
        }
    )
    waiting = Waiting(cluster, topic, partition, connection.properties)
    deliveries = Deliveries(topic, print_each=_delivery_printer(output), describe_timeout=waiting.describe_timeout)

    def look() -> None:
        waiting.look(deliveries.in_flight_count, deliveries.completed_count)

    def idle() -> None:
        writer.poll(0)
        look()

    writer.while_full = look
    pieces = _read_records(files, lines, decode_escapes(delimiter), idle)
    split = _make_split(key, key_delimiter, null)
    fixed_headers = [_parse_header(header) for header in headers]
    try:
        records = map(split, pieces)
        encoded = records if encode is None else _encode_all(records, encode, deliveries)
        send_all(
            writer,
            encoded,
            deliveries,
            topic=topic,
            partition=partition,
            timestamp_ms=timestamp_ms or 0,
            headers=fixed_headers,
        )
    except KeyboardInterrupt:
        report_records_in_flight(writer)
    while writer.flush(_IDLE_S):
        look()
    deliveries.finish()


def _make_encode(
    address: RegistryAddress, topic: str, schema_types: dict[str, str], choices: dict[str, SchemaChoice]
) -> Callable[[InputRecord], InputRecord] | None:
    """Return the function that encodes keys and values with their schemas; None if they have none."""
    if not schema_types:
        return None
    with address.open() as registry:
        encoders = {
            part: make_encoder(registry, topic, part, schema_type, choices[part])
            for part, schema_type in schema_types.items()
        }

    def encode(piece: InputRecord) -> InputRecord:
        parts = {KEY: piece.key, VALUE: piece.value}
        for part, encode_part in encoders.items():
            data = parts[part]
            parts[part] = None if data is None else encode_part(data)
        return InputRecord(parts[KEY], parts[VALUE])

    return encode


def _encode_all(
    pieces: Iterable[InputRecord], encode: Callable[[InputRecord], InputRecord], deliveries: Deliveries
) -> Iterator[InputRecord]:
    """Yield the encoded records; count those that do not fit their schema as errors."""
    for number, piece in enumerate(pieces, 1):
        try:
            encoded = encode(piece)
        except Failure as failure:
            deliveries.on_refusal(Failure(f"record {number}: {failure.message}"))
            continue
        yield encoded


def report_records_in_flight(writer: Writer) -> None:
    """Print what the command waits for after Ctrl-C, unless the brokers have acknowledged all records at once."""
    if count := writer.flush(_IDLE_S):
        click.echo(
            f"waiting for the acknowledgement of {format_count(count, 'record')}; press Ctrl-C again to give up",
            err=True,
        )


def send_all(
    writer: Writer,
    pieces: Iterable[InputRecord],
    deliveries: Deliveries,
    *,
    topic: str,
    partition: int | None,
    timestamp_ms: int,
    headers: list[Header],
) -> None:
    for piece in pieces:
        try:
            writer.send(
                topic,
                piece.value,
                piece.key,
                partition=-1 if partition is None else partition,
                timestamp=timestamp_ms,
                headers=headers or None,
                on_delivery=deliveries.on_delivery,
            )
            deliveries.queued_count += 1
        except Failure as failure:
            deliveries.on_refusal(failure)


def _delivery_printer(output: str) -> Callable[[dict[str, Any]], None] | None:
    if output in CSV_FORMATS:
        click.echo(csv_line(_DELIVERY_FIELDS), nl=False)
        return lambda fields: click.echo(csv_line(fields.values(), safe=output == CSV_SAFE), nl=False)
    return print_json_line if output == JSON else None


class Deliveries:
    """Counts the records that are stored and those that have failed."""

    def __init__(
        self, topic: str, *, print_each: Callable[[dict[str, Any]], None] | None, describe_timeout: Callable[[], str]
    ) -> None:
        """`print_each` gets the fields of each stored record, if they are to be printed.

        `describe_timeout` returns why the cluster has not acknowledged records in time.
        """
        self._topic = topic
        self._print_each = print_each
        self._describe_timeout = describe_timeout
        self._stored: Counter[int] = Counter()
        self._error_count = 0
        self._first_error = ""
        self._is_timeout = False
        #: records that the client has accepted
        self.queued_count = 0
        #: accepted records that are stored or have failed
        self.completed_count = 0

    @property
    def in_flight_count(self) -> int:
        return self.queued_count - self.completed_count

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        self.completed_count += 1
        if error is not None:
            self._is_timeout = self._is_timeout or error.code() == error._MSG_TIMED_OUT
            self._note_error(error.str())
            return
        self._stored[message.partition() or 0] += 1
        if self._print_each is not None:
            key, value = message.key(), message.value()
            self._print_each(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "ts": message.timestamp()[1],
                    "key": None if key is None else key.decode(errors="backslashreplace"),
                    "size": None if value is None else len(value),
                }
            )

    def on_refusal(self, failure: Failure) -> None:
        self._note_error(failure.message)

    def finish(self) -> None:
        """Print how many records each partition got. Raise Failure if records were not stored."""
        where = ", ".join(f"{partition} ({count})" for partition, count in sorted(self._stored.items()))
        total = sum(self._stored.values())
        errors = format_count(self._error_count, "error")
        click.echo(f"{format_count(total, 'record')} to {self._topic}, partitions {where or '-'}, {errors}", err=True)
        if self._is_timeout:
            raise NotHealthy(f"{self._not_stored()}: {self._describe_timeout()}")
        if self._error_count:
            raise Failure(f"{self._not_stored()}; the first: {self._first_error}")

    def _not_stored(self) -> str:
        return f"{format_count(self._error_count, 'record')} {'was' if self._error_count == 1 else 'were'} not stored"

    def _note_error(self, text: str) -> None:
        self._error_count += 1
        self._first_error = self._first_error or text


def split_records(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Yield the parts of a stream between delimiters, and the rest after the last one if it is not empty."""
    rest = bytearray()
    for chunk in chunks:
        # A delimiter may begin in one chunk and end in the next.
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, searched) >= 0:
            *whole, tail = bytes(rest).split(delimiter)
            yield from whole
            rest = bytearray(tail)
        elif len(rest) > _RECORD_BYTES_MAX:
            raise Failure(f"{_RECORD_BYTES_MAX} bytes without a delimiter; name the right one with -D")
    if rest:
        yield bytes(rest)


def _read_records(files: tuple[str, ...], lines: bool, delimiter: bytes, idle: Callable[[], None]) -> Iterator[bytes]:
    if not delimiter:
        raise click.BadParameter("a delimiter must not be empty; write \\n for a line break", param_hint="'-D'")
    if not files:
        yield from split_records(_read_chunks(sys.stdin.buffer, idle), delimiter)
    for path in files:
        with open(path, "rb") as file:
            if lines:
                yield from split_records(_read_chunks(file, idle), delimiter)
            else:
                yield file.read()


def _read_chunks(stream: IO[bytes], idle: Callable[[], None]) -> Iterator[bytes]:
    """Yield bytes as they arrive. Call `idle` regularly, so that acknowledgements are handled meanwhile."""
    try:
        fd = stream.fileno()
    except OSError:
        # A stream in memory never blocks.
        yield stream.read()
        return
    while True:
        if select.select([fd], [], [], _IDLE_S)[0]:
            chunk = os.read(fd, _CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
        idle()


def _make_split(key: str | None, key_delimiter: str | None, null: bool) -> Callable[[bytes], InputRecord]:
    fixed = None if key is None else key.encode()
    separator = None if key_delimiter is None else decode_escapes(key_delimiter)
    if separator == b"":
        raise click.BadParameter("a delimiter must not be empty; write \\n for a line break", param_hint="'-K'")

    def split(record: bytes) -> InputRecord:
        own, value = fixed, record
        if separator is not None:
            head, found, tail = record.partition(separator)
            # A line without the delimiter is a value without a key.
            own, value = (head, tail) if found else (None, record)
        return InputRecord((own or None) if null else own, (value or None) if null else value)

    return split


def _parse_header(text: str) -> Header:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else None
