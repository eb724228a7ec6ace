"""Removing batches from the end of a log.

A truncation runs on the event loop. Threads may sync the log, write its indexes, compact it or delete its files at the
same time; `segment.py` says why they can neither mark later batches as synced nor bring deleted files back. In short:
the segments that lose batches are dropped, and a new object takes the place of the one that keeps some.

A crash or a power failure at any point leaves the log as it was before, or a beginning of it that has at least the
remaining batches. The steps, in this order:

1. Complete the renaming of compacted segments that lose batches, because recovery would complete it otherwise.
2. Write and sync the leader epochs without those that begin in removed batches. If the power fails now, recovery reads
   the removed batches again and finds their epochs.
3. Delete the removed segments, the last one first, so that no gap appears. Truncate the file of the last remaining one.
   Delete the snapshots of the producer state that contain removed batches.
4. Sync the file and the folder. The next batch is appended only then. Otherwise a power failure could keep that batch
   and bring back the removed batches after it, from which it does not differ by any offset.

If a step fails, the exception is raised, and ``Log.failure`` is set if the files may differ from the state in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ottla.log.index import POSITION_MASK
from ottla.log.producers import remove_snapshots
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.log import Log


def truncate_to(of: Log, offset: int) -> None:
    """Remove every batch whose last offset is at or above ``offset``, and all pending batches: `Log.truncate_to`."""
    if offset >= of.log_end_offset:
        # A leader that has appended nothing may have left its epoch at the log end.
        of.truncate_epochs(of.log_end_offset)
    elif offset >= of.written_end_offset:
        of.undo_pending()
    else:
        _truncate_written(of, offset)


def _truncate_written(of: Log, offset: int) -> None:
    number = bisect_right(of.segments, offset, key=_base_offset) - 1
    for segment in of.segments[max(number, 0) :]:
        segment.swap_files()
    if number < 0:
        number, removed = 0, [*of.undeleted, *of.segments]
        remaining, end_offset = Segment(of.disk, of.directory, offset), offset
        of.truncate_epochs(end_offset)
    else:
        truncated, removed = of.segments[number], of.segments[number + 1 :]
        remaining = truncated.part_before(truncated.position_of(offset), offset)
        end_offset = _end_of(remaining)
        of.truncate_epochs(end_offset)
        truncated.disown_files()
    for segment in removed:
        segment.dropped = True
    of.pending.clear()
    of.replace_active(number, remaining)
    of.forget_from(end_offset)
    try:
        for segment in reversed(removed):
            segment.delete_files()
        of.disk.truncate(remaining.file.fd, remaining.size_bytes)
        remove_snapshots(of.disk, of.directory, after=end_offset)
        remaining.sync()
        of.disk.fsync_dir(of.directory)
    except OSError as error:
        of.failure = f"the truncation to offset {offset} failed: {error}"
        raise
    remaining.synced_bytes = remaining.size_bytes
    of.undeleted = [segment for segment in of.undeleted if segment not in removed]


def _end_of(segment: Segment) -> int:
    """Return the offset after the last batch of the segment."""
    end = segment.base_offset
    for _, header in segment.headers(segment.offset_index.entry_at_most(segment.size_bytes - 1) & POSITION_MASK):
        end = header.next_offset
    return end


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
