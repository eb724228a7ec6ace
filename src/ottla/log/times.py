"""Lookup of records by timestamp, for ListOffsets. Runs in a thread, because it reads files and may open a batch.

``find`` opens the batch: ``find_timestamp`` or ``max_timestamp_record`` of `model/records.py`, or the method with the
same name of `log/opener.py`, which opens a large batch in another process.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.segment import NO_TIMESTAMP, Segment
from ottla.model.batch import BatchHeader

FindRecord = Callable[..., tuple[int, int] | None]


def find_offset(
    segments: list[Segment],
    timestamp: int,
    find: FindRecord,
    *,
    log_start_offset: int,
    end_offset: int,
    inflate_max: int,
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record at or after ``timestamp`` in [log_start_offset, end_offset).

    Return None if there is none. Decompress at most ``inflate_max`` bytes of a batch.
    """
    for segment in segments:
        segment.load_times()
        if segment.max_timestamp < timestamp:
            continue
        start = segment.first_offset_at_time(timestamp)
        for position, header in segment.headers(segment.position_of(max(start, log_start_offset))):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp < timestamp:
                continue
            batch = segment.batch(position, header)
            found = find(batch, timestamp, starting_offset=log_start_offset, max_bytes=inflate_max)
            if found is not None:
                return found if found[0] < end_offset else None
    return None


def find_newest(
    segments: list[Segment], find: FindRecord, *, end_offset: int, inflate_max: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the record with the largest timestamp below ``end_offset``, or None."""
    newest: Segment | None = None
    newest_timestamp, newest_offset = NO_TIMESTAMP, -1
    for segment in segments:
        timestamp, offset = segment.newest_before(end_offset)
        if timestamp > newest_timestamp:
            newest, newest_timestamp, newest_offset = segment, timestamp, offset
    if newest is None:
        return None
    for position, header in newest.headers(newest.position_of(newest_offset)):
        if header.max_timestamp == newest_timestamp and header.record_count:
            return find(newest.batch(position, header), max_bytes=inflate_max)
    return _newest_by_scan(segments, find, end_offset=end_offset, inflate_max=inflate_max)


def _newest_by_scan(
    segments: list[Segment], find: FindRecord, *, end_offset: int, inflate_max: int
) -> tuple[int, int] | None:
    """Do the same by reading every header, because compaction has removed all records of the newest batch."""
    newest: tuple[Segment, int, BatchHeader] | None = None
    for segment in segments:
        for position, header in segment.headers() if segment.size_bytes else ():
            if header.last_offset >= end_offset:
                break
            if header.record_count and (newest is None or header.max_timestamp > newest[2].max_timestamp):
                newest = segment, position, header
    if newest is None:
        return None
    segment, position, header = newest
    return find(segment.batch(position, header), max_bytes=inflate_max)
