"""kafka-dump-log: print segments, indexes, snapshots of producers and indexes of transactions, without a broker."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.java import parse_int
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.state_records import group_texts, transaction_texts
from ottla.cli.kafka.tool import Tool, print_error, print_line
from ottla.cli.segment_files import (
    PROBLEM,
    Entry,
    RecordEntry,
    read_batches,
    read_offset_index,
    read_snapshot,
    read_time_index,
    read_transaction_index,
    record_fields,
)
from ottla.model.batch import CONTROL, DELETE_HORIZON, SEQUENCES, BatchHeader

_INT_MAX: Final = (1 << 31) - 1
#: the flags that choose how keys and values become text; the first one that is given wins
_DECODERS: Final = (
    "offsets-decoder",
    "transaction-log-decoder",
    "cluster-metadata-decoder",
    "remote-log-metadata-decoder",
    "share-group-state-decoder",
)
_STRING: Final = "org.apache.kafka.tools.api.StringDecoder"
_FLAGS = (
    flag("files", metavar="FILE,...", help="Segments, indexes and snapshots to print. Required."),
    flag("print-data-log", help="Print the keys and values of records."),
    flag("deep-iteration", help="Print each record; implied by the flags that print or decode values."),
    flag("verify-index-only", help="Compare an index with its segment, and print only what is wrong."),
    flag("index-sanity-check", help="Make the check that a broker makes at its start, and print nothing else."),
    flag("max-message-size", metavar="BYTES", parse=parse_int, default=5 * 1024 * 1024, help="Ignored."),
    flag("max-bytes", metavar="BYTES", parse=parse_int, default=_INT_MAX, help="Read only the start of a segment."),
    flag("skip-record-metadata", help="Print only keys and values of records."),
    flag(
        "value-decoder-class", metavar="CLASS", is_value_optional=True, default=_STRING,
        help="How values become text: StringDecoder, IntegerDecoder or LongDecoder.",
    ),
    flag(
        "key-decoder-class", metavar="CLASS", is_value_optional=True, default=_STRING,
        help="How keys become text.",
    ),
    flag("offsets-decoder", help="The segment belongs to __consumer_offsets."),
    flag("transaction-log-decoder", help="The segment belongs to __transaction_state."),
    flag("cluster-metadata-decoder", help="Accepted; no log of Ottla has records of this kind."),
    flag("remote-log-metadata-decoder", help="Accepted; no log of Ottla has records of this kind."),
    flag("share-group-state-decoder", help="Accepted; no log of Ottla has records of this kind."),
)  # fmt: skip

#: returns the texts of a key and of a value; None for one that is missing
Decoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]


def _run(options: Options) -> None:
    options.require("files")
    decoder = _decoder(options)
    for path in str(options.value("files")).split(","):
        print_line(f"Dumping {path}")
        suffix = os.path.splitext(path)[1]
        if suffix == ".log":
            _dump_log(path, options, decoder)
        elif suffix == ".index":
            _dump_index(path, read_offset_index, options)
        elif suffix == ".timeindex":
            _dump_index(path, read_time_index, options)
        elif suffix == ".snapshot":
            _dump_snapshot(path)
        elif suffix == ".txnindex":
            _dump_entries(path, read_transaction_index)
        else:
            print_error(f"Ignoring unknown file {path}")


# -- segments ---------------------------------------------------------------------------------------------------------


def _dump_log(path: str, options: Options, decoder: Decoder | None) -> None:
    max_bytes = int(options.value("max-bytes"))
    is_deep = decoder is not None or options.has("deep-iteration")
    print_line(f"Log starting offset: {_base_offset(path)}")
    valid_bytes, previous = 0, -1
    gaps: list[tuple[int, int]] = []
    is_whole = True
    for entry in read_batches(path, open_records=is_deep):
        if isinstance(entry, RecordEntry):
            _print_record(entry, decoder, is_bare=options.has("skip-record-metadata"))
            if previous not in (-1, entry.record.offset - 1):
                gaps.append((previous, entry.record.offset))
            previous = entry.record.offset
        elif entry.header is not None:
            if valid_bytes + entry.header.size_bytes > max_bytes:
                is_whole = False
                break
            _print_batch(entry, entry.header)
            valid_bytes += entry.header.size_bytes
        else:
            print_error(f"{path}: {entry.fields['reason']}")
    trailing = os.path.getsize(path) - valid_bytes
    if trailing > 0 and is_whole and max_bytes == _INT_MAX:
        print_line(f"Found {trailing} invalid bytes at the end of {os.path.basename(path)}")
    if gaps:
        lines = [f"  {first} is followed by {second}" for first, second in reversed(gaps)]
        print_error("\n".join([f"Non-consecutive offsets in {os.path.abspath(path)}", *lines]))


def _print_batch(entry: Entry, header: BatchHeader) -> None:
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.attributes & DELETE_HORIZON else "OptionalLong.empty"
    parts = []
    for name, value in entry.fields.items():
        parts.append(f"{name}: {_text(value)}")
        if name == "isControl":
            parts.append(f"deleteHorizonMs: {horizon}")
    print_line(" ".join(parts))


def _print_record(entry: RecordEntry, decoder: Decoder | None, *, is_bare: bool) -> None:
    parts = []
    record, is_control = entry.record, bool(entry.header.attributes & CONTROL)
    if not is_bare:
        fields = record_fields(entry, with_data=False)
        if "endTxnMarker" in fields and record.value is not None and len(record.value) >= _MARKER.size:
            fields["coordinatorEpoch"] = _MARKER.unpack_from(record.value)[1]
        parts = [f"{name}: {_text(value)}" for name, value in fields.items()]
    if decoder is not None and not is_control:
        key, payload = decoder(
            None if record.key is None else bytes(record.key), None if record.value is None else bytes(record.value)
        )
        parts += [f"{name}: {text}" for name, text in (("key", key), ("payload", payload)) if text is not None]
    print_line(f"| {' '.join(parts)}" if parts else "")


#: version and coordinator epoch
_MARKER = struct.Struct(">hi")


def _decoder(options: Options) -> Decoder | None:
    """Return how keys and values become text, None if they are not wanted."""
    chosen = next((name for name in _DECODERS if options.has(name)), None)
    if chosen == "offsets-decoder":
        return group_texts
    if chosen == "transaction-log-decoder":
        return transaction_texts
    if chosen is not None:
        raise ToolError(f"--{chosen}: no log of Ottla has such records; print keys and values with --print-data-log")
    if not options.any_of("print-data-log", "value-decoder-class", "key-decoder-class"):
        return None
    decode_key, decode_value = (_DECODE[_class_name(options, name)] for name in ("key-decoder-class", _VALUE_CLASS))
    return lambda key, value: (
        None if key is None else decode_key(key),
        None if value is None else decode_value(value),
    )


_VALUE_CLASS: Final = "value-decoder-class"


def _class_name(options: Options, name: str) -> str:
    given = str(options.value(name) or _STRING)
    short = given.rpartition(".")[2]
    if short not in _DECODE:
        raise ToolError(f"{given}: only {', '.join(_DECODE)} are available, because no Java is used")
    return short


def _decode_number(layout: str) -> Callable[[bytes], str]:
    number = struct.Struct(layout)

    def decode(data: bytes) -> str:
        if len(data) != number.size:
            raise ToolError(f"a value has {len(data)} bytes, and its decoder expects {number.size}")
        return str(number.unpack(data)[0])

    return decode


_DECODE: Final[dict[str, Callable[[bytes], str]]] = {
    "StringDecoder": lambda data: data.decode(errors="replace"),
    "IntegerDecoder": _decode_number(">i"),
    "LongDecoder": _decode_number(">q"),
}


# -- other files ------------------------------------------------------------------------------------------------------


def _dump_index(path: str, read: Callable[[str], Iterator[Entry]], options: Options) -> None:
    if read is read_offset_index and os.path.getsize(path) == 0:
        print_line(f"{path} is empty.")
        return
    is_quiet = options.has("verify-index-only") or options.has("index-sanity-check")
    problems = []
    for entry in read(path):
        if entry.kind == PROBLEM:
            problems.append(str(entry.fields["reason"]))
        elif not is_quiet:
            print_line(_line(entry.fields))
    if options.has("index-sanity-check") and not problems:
        print_line(f"{path} passed sanity check.")
    if problems:
        print_error("\n  ".join([f"Mismatches in :{os.path.abspath(path)}", *problems]))


def _dump_entries(path: str, read: Callable[[str], Iterator[Entry]]) -> None:
    for entry in read(path):
        if entry.kind == PROBLEM:
            print_error(f"{path}: {entry.fields['reason']}")
        else:
            print_line(_line(entry.fields))


def _dump_snapshot(path: str) -> None:
    for entry in read_snapshot(path):
        fields = entry.fields
        if entry.kind == PROBLEM:
            print_error(f"{path}: {fields['reason']}")
            continue
        start = fields["currentTxnFirstOffset"]
        text = _line(
            {
                "producerId": fields["producerId"],
                "producerEpoch": fields["producerEpoch"],
                "coordinatorEpoch": fields["coordinatorEpoch"],
                "currentTxnFirstOffset": f"OptionalLong[{start}]" if start >= 0 else "OptionalLong.empty",
                "lastTimestamp": fields["lastTimestamp"],
            }
        )
        batch = ""
        if fields["lastOffset"] >= 0:
            batch = _line(
                {
                    "firstSequence": (fields["lastSequence"] - fields["offsetDelta"]) % SEQUENCES,
                    "lastSequence": fields["lastSequence"],
                    "lastOffset": fields["lastOffset"],
                    "offsetDelta": fields["offsetDelta"],
                    "timestamp": fields["lastTimestamp"],
                }
            )
        print_line(f"{text} {batch}".rstrip())


def _line(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}: {_text(value)}" for name, value in fields.items())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def _base_offset(path: str) -> int:
    text = os.path.basename(path).partition(".")[0]
    try:
        return int(text)
    except ValueError:
        raise ToolError(f'For input string: "{text}"') from None


TOOL = Tool(
    name="kafka-dump-log",
    summary="Print segments, indexes, snapshots of producers and indexes of transactions.",
    flags=_FLAGS,
    run=_run,
)
