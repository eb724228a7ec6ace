"""Retention by size and time: computes the new log start offset. The log store deletes the segments before it."""

from __future__ import annotations

import logging

from ottla.env.disk import NO_DESCRIPTORS
from ottla.log.log import Log
from ottla.log.segment import NO_TIMESTAMP, Segment

log = logging.getLogger(__name__)


def retention_start_offset(of: Log, high_watermark: int, now_ms: int) -> int:
    """Return the log start offset that retention requires. It is the end of a segment below the high watermark.

    The age of a segment is the age of its newest record. A segment with a timestamp in the future, or without
    timestamps, is kept. A segment that cannot be read has no known age: it is deleted together with the first later
    segment that is old enough.
    """
    start = of.log_start_offset
    if not of.settings.delete:
        return start
    retention_ms, retention_bytes = of.settings.retention_ms, of.settings.retention_bytes
    surplus_bytes = of.size_bytes - retention_bytes if retention_bytes >= 0 else -1
    segments = of.segments
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else of.log_end_offset
        if end > high_watermark or not segment.size_bytes:
            break
        oversized = surplus_bytes >= segment.size_bytes
        if not oversized and end > of.log_start_offset:
            oldest_ms = now_ms - retention_ms if retention_ms >= 0 else NO_TIMESTAMP
            if not _load_times(segment, oldest_ms):
                continue
            if not NO_TIMESTAMP < segment.max_timestamp < oldest_ms:
                break
        surplus_bytes -= segment.size_bytes
        start = max(start, end)
    return start


def _load_times(segment: Segment, oldest_ms: int) -> bool:
    """Load the segment's max timestamp. Return False if it cannot be read.

    A timestamp that is old enough for deletion is first compared with the batches.
    """
    try:
        segment.load_times()
        if NO_TIMESTAMP < segment.max_timestamp < oldest_ms:
            segment.check_newest_timestamp()
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        log.error("the max timestamp of a segment cannot be read path=%s error=%s", segment.path(".log"), error)
        return False
    return True
