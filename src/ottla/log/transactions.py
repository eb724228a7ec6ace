"""What a transaction leaves in a log: the marker that ends it, and the index of those that were aborted.

A marker is a control batch of one record: key int16 version, int16 type; value int16 version, int32 epoch of the
coordinator that decided. It takes an offset like any record, and clients skip it.

``.txnindex``, one row per aborted transaction whose marker is in the segment, in order of markers:
int16 version, int64 producer id, first offset, last offset (the marker's), last stable offset once it was written.
Readers get the rows that overlap what they read. A row too many hides records that were committed later by the same
producer, one too few shows what was aborted: after a crash the rows are made anew, like every index.

``.txnindex-crc`` holds the checksum of ``.txnindex``, as text, because Kafka's format has no place for one and Kafka
ignores the file. An index that does not match, or that Kafka wrote, is rebuilt from the batches before it is used.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.model.errors import InvalidRecord
from ottla.model.records import Record, build_batch, iterate_records

ABORT, COMMIT = 0, 1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_ROW = Struct(">hqqqq")


class EndedTransaction(NamedTuple):
    """A transaction with its marker; as a row of the index, one that was aborted."""

    producer_id: int
    first_offset: int
    #: the marker's
    last_offset: int
    #: what came before was decided when the marker was written
    last_stable_offset: int


class Marker(NamedTuple):
    """How a transaction ended, and who said so."""

    commit: bool
    coordinator_epoch: int


def marker_batch(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """The control batch that ends a transaction, without an offset yet."""
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    record = Record(timestamp=timestamp, key=key, value=_VALUE.pack(_VERSION, coordinator_epoch))
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def read_marker(batch: bytes | memoryview) -> Marker | None:
    """The marker in a control batch; None when it holds something else, or compaction left nothing in it."""
    try:
        record = next(iter(iterate_records(batch)), None)
    except InvalidRecord:
        return None
    if record is None or len(key := record.key or b"") < _KEY.size:
        return None
    _, kind = _KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return None
    value = record.value or b""
    return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else -1)


def index_to_bytes(rows: list[EndedTransaction]) -> bytes:
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def index_checksum(data: bytes) -> bytes:
    """Return the content of the checksum file for an index with this content."""
    return b"%08x\n" % crc32c(data)


def index_from_bytes(data: bytes, base_offset: int) -> list[EndedTransaction]:
    """The rows of the index of the segment that begins at ``base_offset``; raises ValueError when it is damaged."""
    if len(data) % _ROW.size:
        raise ValueError("transaction index ends within a row")
    rows = []
    behind = base_offset
    for version, *fields in _ROW.iter_unpack(data):
        row = EndedTransaction._make(fields)
        if version != _VERSION or not behind <= row.last_offset or not 0 <= row.first_offset < row.last_offset:
            raise ValueError("transaction index holds a row that cannot be")
        rows.append(row)
        behind = row.last_offset + 1
    return rows
