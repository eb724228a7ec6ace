"""Which segments have outlived their topic's limits. Pure: it decides, the log store acts."""

from __future__ import annotations

from ottla.log.log import Log
from ottla.log.segment import NO_TIMESTAMP


def retention_start_offset(log: Log, high_watermark: int, now_ms: int) -> int:
    """The offset that the log may start at. Whole segments go, oldest first, never beyond the high watermark.

    A segment's age is that of its newest record; one with a timestamp in the future, or with none at all, stays.
    """
    start = log.log_start_offset
    if not log.settings.delete:
        return start
    retention_ms, retention_bytes = log.settings.retention_ms, log.settings.retention_bytes
    surplus_bytes = log.size_bytes - retention_bytes if retention_bytes >= 0 else -1
    segments = log.segments
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else log.log_end_offset
        if end > high_watermark or not segment.size_bytes:
            break
        segment.load_times()
        aged = retention_ms >= 0 and NO_TIMESTAMP < segment.max_timestamp < now_ms - retention_ms
        oversized = surplus_bytes >= segment.size_bytes
        if not aged and not oversized and end > log.log_start_offset:
            break
        surplus_bytes -= segment.size_bytes
        start = max(start, end)
    return start
