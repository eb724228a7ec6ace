"""Transaction markers and the index of aborted transactions.

A marker is a control batch with one record: key int16 version, int16 type; value int16 version, int32 coordinator
epoch. It has an offset like any record; clients skip it.

``.txnindex`` has one row per aborted transaction with a marker in the segment, ordered by marker:
int16 version, int64 producer id, first offset, last offset (of the marker), last stable offset after the marker.
A fetch returns the rows that overlap its records. A wrong additional row would hide records that the same producer
committed later; a missing row would show aborted records. After a crash the rows are rebuilt, like every index.

``.txnindex-crc`` holds the checksum of ``.txnindex`` as text, because Kafka's format contains no checksum. Kafka
ignores the file. An index that does not match its checksum, or that Kafka wrote, is rebuilt from the batches before its
first use.
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
    """A transaction with its marker. The rows of the transaction index are aborted transactions."""

    producer_id: int
    first_offset: int
    #: offset of the marker
    last_offset: int
    #: all transactions that began below this offset had ended when the marker was appended
    last_stable_offset: int


class Marker(NamedTuple):
    """The content of a marker: whether the transaction was committed, and the epoch of the coordinator."""

    commit: bool
    coordinator_epoch: int


def marker_batch(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """Return the control batch that ends a transaction. Its base offset is not assigned yet."""
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    record = Record(timestamp=timestamp, key=key, value=_VALUE.pack(_VERSION, coordinator_epoch))
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def read_marker(batch: bytes | memoryview) -> Marker | None:
    """Return the marker in a control batch; None if it has no marker or compaction has emptied it."""
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
    """Return the content of a ``.txnindex`` file."""
    return b"".join(_ROW.pack(_VERSION, *row) for row in rows)


def index_checksum(data: bytes) -> bytes:
    """Return the content of the ``.txnindex-crc`` file for an index with the content ``data``."""
    return b"%08x\n" % crc32c(data)


def index_from_bytes(data: bytes, base_offset: int) -> list[EndedTransaction]:
    """Return the rows of the index of the segment at ``base_offset``. Raise ValueError if the index is damaged."""
    if len(data) % _ROW.size:
        raise ValueError("the last row of the transaction index is incomplete")
    rows = []
    offset_min = base_offset
    for version, *fields in _ROW.iter_unpack(data):
        row = EndedTransaction._make(fields)
        if version != _VERSION or not offset_min <= row.last_offset or not 0 <= row.first_offset < row.last_offset:
            raise ValueError("the transaction index has an invalid row")
        rows.append(row)
        offset_min = row.last_offset + 1
    return rows
