"""Lost records: report them, and never assign their offsets to other records.

The broker knows that all offsets below these were assigned: the log end offset at the last clean stop, the recovery
point, the checkpointed high watermark, and the base offset of the next segment. If a file ends before such an offset,
records were lost: the file was truncated, or an old copy was restored. If new records got the lost offsets, every
consumer that has already passed these offsets would skip them.

A gap is therefore filled by one batch without records that covers its offsets, like the empty batches of Kafka's
compaction. Consumers skip it, ``kafka-dump-log`` shows it with ``count: 0``, and the offsets stay consecutive, so that
recovery needs no other knowledge of gaps.

The log of a partition with several replicas is truncated at the gap instead, and the lost records are fetched from the
leader again: a batch without records would look like the batches that other replicas have at these offsets.
"""

from __future__ import annotations

import logging

from ottla.env.disk import NO_DESCRIPTORS, Disk
from ottla.log.epochs import LeaderEpochs
from ottla.log.file_region import SegmentFile
from ottla.log.index import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX
from ottla.log.segment import INDEX_INTERVAL_BYTES, NO_TIMESTAMP, Segment
from ottla.model.batch import HEADER_BYTES
from ottla.model.records import batch_without_records

log = logging.getLogger(__name__)


def fill_gap(
    disk: Disk,
    segment: Segment,
    end_offset: int,
    next_offset: int,
    leader_epoch: int,
    *,
    maybe_compacted: bool = False,
) -> bool:
    """Append a batch without records for the offsets from ``end_offset`` up to ``next_offset``; the caller syncs.

    Return False, without a change, if the segment cannot hold such offsets: then ``next_offset`` itself is damaged.
    With ``maybe_compacted`` the offsets may be those of records that a compaction has removed.
    """
    if next_offset - 1 - segment.base_offset > RELATIVE_OFFSET_MAX:
        log.error(
            "records may be missing, but the recorded end offset is not plausible "
            "path=%s log_end_offset=%d noted_offset=%d", segment.path(".log"), end_offset, next_offset,
        )  # fmt: skip
        return False
    if maybe_compacted:
        log.warning(
            "no records have these offsets: a compaction or a power failure removed them "
            "path=%s first_missing_offset=%d next_offset=%d", segment.path(".log"), end_offset, next_offset,
        )  # fmt: skip
    else:
        report_gap(segment.path(".log"), end_offset, next_offset)
    batch = batch_without_records(end_offset, next_offset, leader_epoch)
    disk.pwrite(segment.file.fd, batch, segment.size_bytes)
    segment.note_append(next_offset - 1, len(batch), NO_TIMESTAMP, INDEX_INTERVAL_BYTES)
    segment.indexed_bytes = -1
    return True


def report_gap(path: str, end_offset: int, next_offset: int) -> None:
    """Log an error that names the offsets of the lost records."""
    log.error(
        "records are missing; their offsets are not used again, and consumers skip them "
        "path=%s first_missing_offset=%d next_offset=%d", path, end_offset, next_offset,
    )  # fmt: skip


def check_sealed(disk: Disk, segment: Segment, next_base_offset: int, epochs: LeaderEpochs, *, may_skip: bool) -> None:
    """Fill the gap at the end of a sealed segment whose file was truncated. Raise WriteFailed if a write fails.

    With ``may_skip`` the segment may end before the next one begins, as after Kafka's compaction: then only an
    incomplete batch proves a loss. Reads only the end of the index and of the log.
    """
    lost = _lost_end(disk, segment, next_base_offset, may_skip=may_skip)
    if lost is not None:
        end_offset, position = lost
        disk.truncate(segment.file.fd, position)
        segment.size_bytes = position
        segment.rebuild_indexes()
        # Use the epoch in which the offsets were appended: a later one would hide epochs in rebuilt leader epochs.
        if fill_gap(disk, segment, end_offset, next_base_offset, max(epochs.epoch_at(end_offset), 0)):
            segment.sync()
            segment.synced_bytes = segment.size_bytes
            segment.write_indexes()
    segment.release_file()


def is_complete(disk: Disk, segment: Segment, next_base_offset: int, *, may_skip: bool) -> bool:
    """Return whether a sealed segment has all batches up to the next one, as far as ``check_sealed`` finds out."""
    lost = _lost_end(disk, segment, next_base_offset, may_skip=may_skip)
    segment.release_file()
    return lost is None


def _lost_end(disk: Disk, segment: Segment, next_base_offset: int, *, may_skip: bool) -> tuple[int, int] | None:
    """Return offset and position after the last batch of a sealed segment if its end was lost, else None."""
    try:
        end_offset, position = _end_of(disk, segment)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        log.error("the end of a segment cannot be checked path=%s error=%s", segment.path(".log"), error)
        return None
    is_incomplete = position < segment.size_bytes
    return (end_offset, position) if end_offset < next_base_offset and (is_incomplete or not may_skip) else None


def _end_of(disk: Disk, segment: Segment) -> tuple[int, int]:
    """Return the offset and the position after the last complete batch of a sealed segment."""
    start = _last_indexed_position(disk, segment)
    end_offset, position = segment.base_offset, start
    for at, header in segment.headers(start):
        if not segment.base_offset <= header.base_offset <= header.last_offset or at + header.size_bytes > (
            segment.size_bytes
        ):
            break
        end_offset, position = header.next_offset, at + header.size_bytes
    if start and position == start:
        # The index is damaged, or the file ends before the indexed batch: read every batch header.
        end_offset, position = segment.base_offset, 0
        for at, header in segment.headers():
            if at + header.size_bytes > segment.size_bytes:
                break
            end_offset, position = header.next_offset, at + header.size_bytes
    return end_offset, position


def _last_indexed_position(disk: Disk, segment: Segment) -> int:
    """Return the position in the last entry of the index file; 0 if there is no plausible entry."""
    path = segment.path(".index")
    size = disk.file_size(path) or 0
    if size < OFFSET_ENTRY_BYTES:
        return 0
    try:
        file = SegmentFile(disk, disk.open(path))
        entry = disk.pread(file.fd, OFFSET_ENTRY_BYTES, size // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES - 8)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        return 0
    position = int.from_bytes(entry[4:], "big")
    return position if position + HEADER_BYTES <= segment.size_bytes else 0
