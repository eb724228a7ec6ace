"""`ottla consume`: print the records of topics, without joining a group."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, TYPE_CHECKING, cast

import click

from ottla.admin.failure import NotFound
from ottla.admin.offset_plans import partitions_of
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.csv_rows import csv_line
from ottla.cli.duration import current_time_ms
from ottla.cli.names import TOPIC_NAME
from ottla.cli.output import CSV_FORMATS, CSV_SAFE, JSON, TEXT, abandon_stdout, output_option
from ottla.cli.position import LogBounds, PartitionSpan, Span, parse_span, resolve_span
from ottla.cli.record_format import (
    ENVELOPE_FIELDS,
    DecodedMessage,
    Render,
    compile_format,
    csv_render,
    decode_escapes,
    render_envelope,
)
from ottla.cli.registry_options import RegistryAddress, registry_address_options
from ottla.cli.schema_records import RecordDecoder, parse_serializations
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient
    from ottla.cli.records import Message, Properties, Reader
Decode = Callable[["Message"], "DecodedMessage | None"]

#: records that are formatted before they are written
_READ_COUNT = 1000
#: limit for one wait for records; Ctrl-C takes effect between two
_POLL_S = 0.2


@click.command("consume")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read this partition only. Repeatable.",
)
@click.option(
    "-O",
    "--offset",
    "positions",
    metavar="WHERE",
    multiple=True,
    default=("beginning",),
    show_default=True,
    help="beginning, end, N, -N (last N), @TIME, s@TIME, e@TIME (stop), FROM:TO. TIME is milliseconds, "
    "ISO 8601 or a duration before now such as -90m.",
)
@click.option("-n", "--num", "count", metavar="COUNT", type=click.IntRange(min=1), help="Stop after COUNT records.")
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop at the end of every partition.")
@click.option(
    "-f",
    "--format",
    "template",
    metavar="FORMAT",
    help="%t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp, %K and %S lengths; "
    "%k{hex}, %s{base64}; \\n, \\t.",
)
@click.option("-D", "--delimiter", default="\\n", show_default=True, help="Delimiter to print after each value.")
@click.option("-Z", "--null", is_flag=True, help="Print a null key or value as NULL.")
@click.option(
    "-J",
    "--json",
    "envelope",
    is_flag=True,
    help="Print one JSON object per record, as kcat does; same as -o json.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_committed",
    show_default=True,
    help="read_uncommitted also prints records of open and aborted transactions.",
)
@click.option(
    "-s",
    "--serialization",
    "schema_types",
    metavar="FORMAT",
    multiple=True,
    callback=parse_serializations,
    help="Decode values with the schema of the registry that each was written with, and print JSON: avro, json or "
    "protobuf; key=FORMAT decodes keys. Repeatable.",
)
@click.option("--skip-bad", is_flag=True, help="With -s: report records that cannot be decoded, and continue.")
@registry_address_options
@connection_options
@output_option(TEXT, JSON, *CSV_FORMATS, default=TEXT)
def command(
    *,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    positions: tuple[str, ...],
    count: int | None,
    exit_at_end: bool,
    template: str | None,
    delimiter: str,
    null: bool,
    envelope: bool,
    isolation_level: str,
    schema_types: dict[str, str],
    skip_bad: bool,
    registry_address: RegistryAddress,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Print records, without joining a group. The user needs an ACL to Read the topics, and none for a group.

    Reads from the beginning and waits for new records until Ctrl-C. On a terminal, control characters in the
    data are shown as escapes; a pipe or a file gets the unchanged bytes.

    With -s each value is one line of JSON: Avro's JSON encoding, or Protobuf's. A record that cannot be decoded ends
    the command with exit code 1.
    """
    if skip_bad and not schema_types:
        raise click.UsageError("--skip-bad needs -s")
    stdout = sys.stdout.buffer
    span = _parse_positions(positions)
    null_text = b"NULL" if null else b""
    output = JSON if envelope else output
    render = _make_render(template, delimiter, null_text, output, terminal=stdout.isatty())
    cluster = connection.connect()
    committed = isolation_level == "read_committed"
    spans, starts = _plan(cluster, topics, partitions, span, committed=committed, exit_at_end=exit_at_end)
    properties: Properties = {
        "isolation.level": isolation_level,
        "fetch.queue.backoff.ms": 50,
        "fetch.wait.max.ms": 200,
    }
    with cluster.reader(properties) as reader, ExitStack() as stack:
        try:
            decode: Decode | None = None
            if schema_types:
                registry = stack.enter_context(registry_address.open())
                decode = RecordDecoder(registry, schema_types, skip_bad=skip_bad).decode
            reader.assign(starts)
            if output in CSV_FORMATS:
                stdout.write(csv_line(ENVELOPE_FIELDS).encode())
                stdout.flush()
            copy_records(reader, spans, render, stdout, count=count, decode=decode)
        except KeyboardInterrupt:
            # Without -e the command ends with Ctrl-C, which is not a failure.
            pass
        except BrokenPipeError:
            abandon_stdout()


def copy_records(
    reader: Reader,
    spans: Mapping[TopicPartition, PartitionSpan],
    render: Render,
    stdout: IO[bytes],
    *,
    count: int | None,
    decode: Decode | None = None,
) -> None:
    """Write records until every span is read, or `count` are written, or Ctrl-C.

    ``decode`` replaces a record by a decoded one, or by None if it is skipped.
    """
    left: float = math.inf if count is None else count
    unread = {name: span for name, span in spans.items() if span.end is None or span.start < span.end}
    while unread and left:
        messages, ends = reader.read(_READ_COUNT, _POLL_S)
        lines = []
        try:
            for message in messages:
                name = cast("TopicPartition", (message.topic(), message.partition()))
                span, offset = unread.get(name), message.offset() or 0
                if span is None or offset < span.start:
                    continue
                if span.end is None or offset < span.end:
                    shown = message if decode is None else decode(message)
                    if shown is not None:
                        lines.append(render(shown))
                        left -= 1
                    if not left:
                        break
                if span.end is not None and offset + 1 >= span.end:
                    # The rest of the partition is not to be printed.
                    del unread[name]
                    reader.pause(name)
        finally:
            # Also after an error: print the records before one that cannot be decoded.
            if lines:
                stdout.write(b"".join(lines))
                stdout.flush()
        for ended, next_offset in ends.items():
            span = unread.get(ended)
            # The offsets before the end may be transaction markers, which are not returned as records.
            if span is not None and span.end is not None and next_offset >= span.end:
                del unread[ended]


def _parse_positions(positions: tuple[str, ...]) -> Span:
    try:
        return parse_span(positions, current_time_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'-O'") from None


def _make_render(template: str | None, delimiter: str, null: bytes, output: str, *, terminal: bool) -> Render:
    if output != TEXT:
        if template is not None:
            raise click.UsageError(f"-f and {'JSON' if output == JSON else 'CSV'} output cannot be combined")
        return render_envelope if output == JSON else csv_render(safe=output == CSV_SAFE, terminal=terminal)
    if template is not None:
        try:
            return compile_format(template, null=null, terminal=terminal)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'-f'") from None
    value, end = compile_format("%s", null=null, terminal=terminal), decode_escapes(delimiter)
    return lambda message: value(message) + end


def _plan(
    cluster: ClusterClient,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    span: Span,
    *,
    committed: bool,
    exit_at_end: bool,
) -> tuple[dict[TopicPartition, PartitionSpan], dict[TopicPartition, int]]:
    """Return what to read of each partition, and the offset at which its reader starts."""
    names = partitions_of(cluster, topics)
    if partitions:
        chosen = [name for name in names if name.partition in partitions]
        missing = set(partitions) - {name.partition for name in chosen}
        if missing:
            raise NotFound(f"{', '.join(topics)} has no partition {min(missing)}; see 'ottla topic describe'")
        names = chosen
    firsts = cluster.find_offsets(names, "earliest")
    lasts = cluster.find_offsets(names, "latest", committed=committed)
    bounds = {name: LogBounds(firsts[name].offset or 0, lasts[name].offset or 0) for name in names}

    def offsets_at(time_ms: int) -> dict[TopicPartition, int | None]:
        return {name: found.offset for name, found in cluster.find_offsets(names, time_ms).items()}

    spans = resolve_span(span, bounds, offsets_at)
    if exit_at_end:
        spans = {name: _bound(one, bounds[name].end) for name, one in spans.items()}
    # Wait at the end for an offset that does not exist yet, because brokers reject reads beyond the end.
    starts = {name: min(spans[name].start, bounds[name].end) for name in names}
    return spans, starts


def _bound(span: PartitionSpan, log_end: int) -> PartitionSpan:
    return replace(span, end=log_end if span.end is None else min(span.end, log_end))
