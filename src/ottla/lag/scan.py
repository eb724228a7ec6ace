"""Finds the first record that a group has not consumed, in the batches of a Fetch reply. Pure.

What counts as a record: one that a consumer gets. Markers of transactions are none, and offsets that compaction has
left without a record are none. Records of aborted transactions are none as well: a group does not say whether it reads
only committed records, and for those that do, which are the ones with transactions, nothing is left to consume. Records
of a transaction that is still open count, because they keep the group waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import error as StructError
from typing import Final, NamedTuple

from ottla.client.errors import ClientError
from ottla.client.fetching import Aborted, whole_batches
from ottla.model.batch import CONTROL, TRANSACTIONAL, read_header
from ottla.model.errors import InvalidRecord, RecordsTooLarge
from ottla.model.records import record_timestamps

#: what a batch may decompress to
_DECOMPRESSED_BYTES_MAX: Final = 16 << 20


class Scanned(NamedTuple):
    """The result of reading a part of a partition."""

    #: the offset after the last batch that was read; the position where the search began if there was none
    position: int
    #: whether a record was found
    is_found: bool = False
    #: the timestamp of the record; None if it has none, or if its batch cannot be read
    timestamp_ms: int | None = None


def first_record(data: bytes | memoryview, start: int, aborted: Iterable[Aborted] = ()) -> Scanned:
    """Return the first record at or after the offset ``start``, and where to read on if there is none.

    ``aborted`` are the aborted transactions in the reply of a broker that was asked for committed records.
    """
    waiting = sorted(aborted, key=lambda row: row.first_offset, reverse=True)
    producers: set[int] = set()
    view = memoryview(data)
    try:
        size, _ = whole_batches(view)
    except ClientError:
        return Scanned(start, is_found=True)
    at, position = 0, start
    while at < size:
        header = read_header(view, at)
        batch = view[at : at + header.size_bytes]
        at += header.size_bytes
        position = max(position, header.next_offset)
        while waiting and waiting[-1].first_offset <= header.base_offset:
            producers.add(waiting.pop().producer_id)
        if header.attributes & CONTROL:
            # The marker ends the transaction: later batches of this producer belong to its next one.
            producers.discard(header.producer_id)
            continue
        if header.attributes & TRANSACTIONAL and header.producer_id in producers:
            continue
        if header.next_offset <= start or not header.record_count:
            continue
        found = _in_batch(batch, start)
        if found is not None:
            return found
    return Scanned(position)


def _in_batch(batch: memoryview, start: int) -> Scanned | None:
    try:
        for offset, timestamp_ms in record_timestamps(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
            if offset >= start:
                return Scanned(offset, is_found=True, timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None)
    except (InvalidRecord, RecordsTooLarge, StructError, IndexError):
        return Scanned(start, is_found=True)
    return None
