"""Reads the files of a log entry by entry, without a broker, for `ottla log dump`.

Files may be corrupt: an error becomes an entry of kind `problem` with its position. Reading continues after a batch
with a wrong checksum, but not after one with an impossible length.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import IO, Any, NamedTuple

from crc32c import crc32c

from ottla.model.batch import (
    CODEC_MASK,
    CODECS,
    CONTROL,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.errors import InvalidRecord
from ottla.model.records import Record, iterate_records

PROBLEM = "problem"

#: limit for the size of a decompressed batch
_DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
_ABORTED_ENTRY = Struct(">hqqqq")
_SNAPSHOT_HEAD = Struct(">hII")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6
_SNAPSHOT_VERSION = 1
_ABORTED_NAMES = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
_SNAPSHOT_NAMES = (
    "producerId", "producerEpoch", "lastSequence", "lastOffset", "offsetDelta", "lastTimestamp",
    "coordinatorEpoch", "currentTxnFirstOffset",
)  # fmt: skip
_CONTROL_KEY = Struct(">hh")
_CONTROL_TYPES = {0: "ABORT", 1: "COMMIT"}


class Entry(NamedTuple):
    """An entry of a file. Its fields have the names that Kafka's own tool uses."""

    kind: str
    fields: dict[str, Any]
    #: of a batch
    header: BatchHeader | None = None


class RecordEntry(NamedTuple):
    """A record and the header of its batch. `record_fields` returns its fields, with or without key and value."""

    record: Record
    header: BatchHeader


class Found(NamedTuple):
    """A file, and the function that reads it."""

    path: str
    read: Callable[[str], Iterator[Entry | RecordEntry]]


def find_files(path: str, *, open_records: bool) -> Iterator[Found]:
    """Yield the readable files at `path`, a file or a directory. Raise ValueError if there are none."""
    if not os.path.isdir(path):
        read = _reader_for(os.path.basename(path), open_records)
        if read is None:
            raise ValueError(f"{path} is not a segment, index, snapshot or checkpoint file")
        yield Found(path, read)
        return
    empty = True
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            read = _reader_for(name, open_records)
            if read is not None:
                empty = False
                yield Found(os.path.join(folder, name), read)
    if empty:
        raise ValueError(f"{path} has no segment, index, snapshot or checkpoint files")


def read_batches(path: str, *, open_records: bool) -> Iterator[Entry | RecordEntry]:
    """Yield every batch of a segment, each followed by its records with `open_records`."""
    size_bytes, position, next_offset = os.path.getsize(path), 0, _base_offset(path)
    with open(path, "rb") as file:
        while position < size_bytes:
            head = file.read(HEADER_BYTES)
            reason = _batch_error(head, size_bytes - position)
            if reason is not None:
                yield _problem(position, f"{reason}; {size_bytes - position} bytes from here on are unreadable")
                return
            header = read_header(head)
            if header.magic != MAGIC:
                yield _problem(position, f"a message of the old format, magic {header.magic}, cannot be opened")
                file.seek(header.size_bytes - HEADER_BYTES, os.SEEK_CUR)
                position += header.size_bytes
                continue
            batch = head + file.read(header.size_bytes - HEADER_BYTES)
            yield from _describe_batch(header, batch, position, next_offset, open_records)
            next_offset = max(next_offset, header.next_offset)
            position += header.size_bytes


def _describe_batch(
    header: BatchHeader, batch: bytes, position: int, next_offset: int, open_records: bool
) -> Iterator[Entry | RecordEntry]:
    crc = checksum(batch)
    yield Entry("batch", _batch_fields(header, position, valid=crc == header.crc), header)
    if crc != header.crc:
        yield _problem(position, f"checksum is {crc}, the batch says {header.crc}")
        return
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        span = f"{header.base_offset} to {header.last_offset}"
        yield _problem(position, f"offsets {span} come after offset {next_offset - 1}")
    if open_records:
        try:
            for record in iterate_records(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
                yield RecordEntry(record, header)
        except InvalidRecord as error:
            yield _problem(position, str(error))


def _batch_error(head: bytes, left: int) -> str | None:
    if len(head) < HEADER_BYTES:
        return f"a batch is incomplete: {left} bytes are fewer than a header of {HEADER_BYTES}"
    header = read_header(head)
    if not any(head):
        return "zeros instead of a batch"
    if header.length < LENGTH_MIN and header.magic >= MAGIC:
        return f"a batch has the impossible length {header.length}"
    if header.length <= 0 or header.magic not in (0, 1, MAGIC):
        return f"no batch starts here: length {header.length}, magic {header.magic}"
    if header.size_bytes > left:
        return f"a batch is incomplete: its size is {header.size_bytes} bytes and {left} are left"
    return None


def _batch_fields(header: BatchHeader, position: int, *, valid: bool) -> dict[str, Any]:
    idempotent = header.base_sequence >= 0
    codec = header.attributes & CODEC_MASK
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence if idempotent else -1,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": bool(header.attributes & TRANSACTIONAL),
        "isControl": bool(header.attributes & CONTROL),
        "position": position,
        _timestamp_name(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": CODECS[codec] if codec < len(CODECS) else f"unknown({codec})",
        "crc": header.crc,
        "isvalid": valid,
    }


def record_fields(entry: RecordEntry, *, with_data: bool) -> dict[str, Any]:
    """Return the fields of a record; key and payload as text, with escapes for bytes that are not text."""
    record, header = entry
    fields: dict[str, Any] = {
        "offset": record.offset,
        _timestamp_name(header): record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": header.base_sequence + record.offset_delta if header.base_sequence >= 0 else -1,
        "headerKeys": [_text(name.encode("utf-8", "surrogateescape")) for name, _ in record.headers],
    }
    if header.attributes & CONTROL and record.key is not None and len(record.key) >= _CONTROL_KEY.size:
        fields["endTxnMarker"] = _CONTROL_TYPES.get(_CONTROL_KEY.unpack_from(record.key)[1], "UNKNOWN")
    elif with_data:
        fields["key"] = None if record.key is None else _text(record.key)
        fields["payload"] = None if record.value is None else _text(record.value)
    return fields


def _timestamp_name(header: BatchHeader) -> str:
    return "LogAppendTime" if header.attributes & LOG_APPEND_TIME else "CreateTime"


def read_offset_index(path: str) -> Iterator[Entry]:
    """Yield every entry, compared with the segment beside the index if that exists."""
    base_offset, segment = _base_offset(path), _open_segment_beside(path)
    try:
        previous = -1
        for position, (relative_offset, batch_position) in _index_entries(path, _OFFSET_ENTRY):
            offset = base_offset + relative_offset
            yield Entry("index", {"offset": offset, "position": batch_position})
            if relative_offset <= previous:
                yield _problem(position, f"offset {offset} does not come after the entry before it")
            elif segment is not None and _last_offset_at(segment, batch_position) != offset:
                yield _problem(position, f"no batch at {batch_position} in the segment ends with offset {offset}")
            previous = relative_offset
    finally:
        if segment is not None:
            segment.close()


def read_time_index(path: str) -> Iterator[Entry]:
    base_offset, previous = _base_offset(path), -1
    for position, (timestamp, relative_offset) in _index_entries(path, _TIME_ENTRY):
        yield Entry("timeindex", {"timestamp": timestamp, "offset": base_offset + relative_offset})
        if timestamp < previous:
            yield _problem(position, f"timestamp {timestamp} is older than the entry before it")
        previous = timestamp


def _index_entries(path: str, kind: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    with open(path, "rb") as file:
        # Kafka preallocates index files; the zeros after the last entry are not entries.
        data = file.read().rstrip(b"\0")
    count = -(-len(data) // kind.size)
    for number, entry in enumerate(kind.iter_unpack(data.ljust(count * kind.size, b"\0"))):
        yield number * kind.size, entry


def _open_segment_beside(path: str) -> IO[bytes] | None:
    segment = re.sub(r"\.index(?=\.|$)", ".log", path)
    return open(segment, "rb") if segment != path and os.path.exists(segment) else None


def _last_offset_at(segment: IO[bytes], position: int) -> int | None:
    segment.seek(position)
    head = segment.read(HEADER_BYTES)
    return read_header(head).last_offset if len(head) == HEADER_BYTES else None


def read_transaction_index(path: str) -> Iterator[Entry]:
    with open(path, "rb") as file:
        data = file.read()
    whole = len(data) // _ABORTED_ENTRY.size * _ABORTED_ENTRY.size
    for entry in _ABORTED_ENTRY.iter_unpack(data[:whole]):
        yield Entry("txnindex", dict(zip(_ABORTED_NAMES, entry, strict=True)))
    if whole != len(data):
        yield _problem(whole, f"{len(data) - whole} bytes are less than an entry")


def read_snapshot(path: str) -> Iterator[Entry]:
    """Yield the state of producers. The earlier batches that Ottla stores after Kafka's entries are not shown."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < _SNAPSHOT_HEAD.size:
        yield _problem(0, f"{len(data)} bytes are too few for a snapshot")
        return
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    actual = crc32c(data[_SNAPSHOT_CRC_FROM:])
    end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
    if version != _SNAPSHOT_VERSION:
        yield _problem(0, f"snapshot version {version} is unknown")
    elif crc != actual:
        yield _problem(2, f"checksum is {actual}, the snapshot says {crc}")
    elif end > len(data):
        yield _problem(_SNAPSHOT_CRC_FROM, f"{count} producers do not fit into {len(data)} bytes")
    else:
        for entry in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size : end]):
            yield Entry("snapshot", dict(zip(_SNAPSHOT_NAMES, entry, strict=True)))


def _read_checkpoint(*names: str) -> Callable[[str], Iterator[Entry]]:
    """Return a function that reads text files with a version, a count, and that many lines of these fields."""

    def read(path: str) -> Iterator[Entry]:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            version, count, *lines = [*filter(None, file.read().split("\n")), "", ""]
        if version != "0" or not count.isdigit():
            yield _problem(0, f"a checkpoint does not start with {version!r}, {count!r}")
            return
        lines = lines[:-2]
        for number, line in enumerate(lines, start=3):
            words = line.split()
            if len(words) != len(names) or not all(map(_is_number, words[-2:])):
                yield _problem(number, f"line {number} is {line!r}, not {' '.join(names)}")
                continue
            *topic, left, right = words
            yield Entry("checkpoint", dict(zip(names, (*topic, int(left), int(right)), strict=True)))
        if len(lines) != int(count):
            yield _problem(0, f"the file says {count} lines and has {len(lines)}")

    return read


def _read_properties(path: str) -> Iterator[Entry]:
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        pairs = (re.split(r"\s*[=:]\s*", line.strip(), maxsplit=1) for line in file if not line.startswith("#"))
        yield Entry("properties", {pair[0]: pair[1] for pair in pairs if len(pair) == 2})


_PARTITION_CHECKPOINT = _read_checkpoint("topic", "partition", "offset")
_READERS: dict[str, Callable[[str], Iterator[Entry]]] = {
    ".index": read_offset_index,
    ".timeindex": read_time_index,
    ".txnindex": read_transaction_index,
    ".snapshot": read_snapshot,
    "leader-epoch-checkpoint": _read_checkpoint("epoch", "startOffset"),
    "recovery-point-offset-checkpoint": _PARTITION_CHECKPOINT,
    "log-start-offset-checkpoint": _PARTITION_CHECKPOINT,
    "replication-offset-checkpoint": _PARTITION_CHECKPOINT,
    "cleaner-offset-checkpoint": _PARTITION_CHECKPOINT,
    "partition.metadata": _read_properties,
    "meta.properties": _read_properties,
}


def _reader_for(name: str, open_records: bool) -> Callable[[str], Iterator[Entry | RecordEntry]] | None:
    # Files that are being created or deleted have a second suffix.
    match = re.fullmatch(r"\d{20}(\.\w+)(?:\.(?:deleted|cleaned|swap))?", name)
    kind = match[1] if match is not None else name
    if kind == ".log":
        return lambda path: read_batches(path, open_records=open_records)
    return _READERS.get(kind)


def _base_offset(path: str) -> int:
    return int(os.path.basename(path)[:20])


def _problem(position: int, reason: str) -> Entry:
    return Entry(PROBLEM, {"position": position, "reason": reason})


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+", word) is not None
