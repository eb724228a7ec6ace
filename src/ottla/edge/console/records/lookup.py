"""Finds one record by its offset, or says what is at that offset instead."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from ottla.edge.console.records.decoding import Decoder
from ottla.edge.console.records.source import FETCH_BYTES_FIRST, LogRange, ReadBatch, RecordSource
from ottla.edge.console.records.view import RecordView
from ottla.model.batch import CODEC_MASK, CODECS, TRANSACTIONAL, checksum
from ottla.model.errors import InvalidRecord
from ottla.model.records import iterate_records

_DECOMPRESSED_BYTES_MAX: Final = 128 << 20
#: batches without a record from the offset on, which compaction leaves
_EMPTY_BATCHES_MAX: Final = 1000
#: version and type in the key of a transaction marker
_MARKER: Final = Struct(">hh")
_MARKER_TYPES: Final = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is at an offset."""

    range: LogRange
    #: None if there is no record at this offset
    view: RecordView | None = None
    batch: ReadBatch | None = None
    #: why there is no record; empty if there is one
    absence: str = ""
    #: the offset of the next record, for a gap
    next_offset: int | None = None


def find_record(source: RecordSource, partition: int, offset: int, decoder: Decoder) -> Lookup:
    """Return the record at an offset, or why there is none. Blocks. Raise ClientError."""
    known = source.ranges([partition])[partition]
    if offset < known.start:
        return Lookup(
            known, absence=f"it was deleted, by retention or on request: the partition begins at offset {known.start}",
            next_offset=known.start if known.start < known.end else None,
        )  # fmt: skip
    if offset >= known.end:
        last = f"the last offset is {known.end - 1}" if known.end > known.start else "the partition is empty"
        return Lookup(known, absence=f"it is not written yet: {last}")
    batches = source.batches(partition, offset, known.end, stable=known.stable, fetch_bytes=FETCH_BYTES_FIRST)
    for batch in islice(batches, _EMPTY_BATCHES_MAX):
        found = _in_batch(batch, known, partition, offset=offset, decoder=decoder)
        if found is not None:
            return found
    return Lookup(known, absence="compaction has removed it, and the records after it")


def _in_batch(batch: ReadBatch, known: LogRange, partition: int, *, offset: int, decoder: Decoder) -> Lookup | None:
    """Return what a batch has at an offset, or the first record after it; None if it has neither."""
    header = batch.header
    if batch.is_marker and header.base_offset <= offset:
        return Lookup(known, None, batch, f"it is a transaction marker: {_marker_text(batch)}", header.next_offset)
    if batch.is_marker:
        return None
    try:
        for record in iterate_records(batch.data, max_bytes=_DECOMPRESSED_BYTES_MAX):
            if record.offset == offset:
                view = RecordView(partition, header, record, state=batch.state, decoder=decoder)
                return Lookup(known, view, batch)
            if record.offset > offset:
                return Lookup(known, None, batch, "compaction has removed it", record.offset)
    except InvalidRecord as error:
        return Lookup(known, None, batch, f"its batch is damaged: {error}", header.next_offset)
    return None


def _marker_text(batch: ReadBatch) -> str:
    try:
        key = next(record.key or b"" for record in iterate_records(batch.data))
        kind = _MARKER_TYPES.get(_MARKER.unpack_from(key)[1], "unknown")
    except (InvalidRecord, StopIteration, StructError):
        kind = "unreadable"
    return f"{kind}, of producer {batch.header.producer_id} with epoch {batch.header.producer_epoch}"


def batch_row(batch: ReadBatch) -> dict[str, Any]:
    """Return the fields of a batch as values of JSON."""
    header = batch.header
    return {
        "base_offset": header.base_offset, "last_offset": header.last_offset, "records": header.record_count,
        "size": header.size_bytes, "compression": CODECS[header.attributes & CODEC_MASK]
        if header.attributes & CODEC_MASK < len(CODECS) else "unknown",
        "leader_epoch": header.leader_epoch, "max_timestamp_ms": header.max_timestamp,
        "is_transactional": bool(header.attributes & TRANSACTIONAL),
        "is_checksum_right": checksum(batch.data) == header.crc,
        "producer_id": None if header.producer_id < 0 else header.producer_id,
        "producer_epoch": None if header.producer_id < 0 else header.producer_epoch,
        "base_sequence": None if header.producer_id < 0 else header.base_sequence,
    }  # fmt: skip
