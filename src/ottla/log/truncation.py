"""Removing batches from a log: from its end, from its start, or all of them.

A truncation runs on the event loop. Threads may sync the log, write its indexes, compact it or delete its files at the
same time; `segment.py` says why they can neither mark later batches as synced nor bring deleted files back. In short:
the segments that lose batches are dropped, and a new object takes the place of the one that keeps some.

``truncate_to`` keeps the batches before an offset. A crash or a power failure at any point leaves the log as it was
before, or a beginning of it that has at least the remaining batches. The steps, in this order:

1. Complete the renaming of compacted segments that lose batches, because recovery would complete it otherwise.
2. Lower the offsets of the log in the checkpoints, and sync them. Recovery takes batches that are missing below the
   recovery point or the high watermark for lost ones, and fills their offsets. It does not read segments below the
   recovery point.
3. Write and sync the leader epochs without those that begin in removed batches. If the power fails now, recovery reads
   the removed batches again and finds their epochs.
4. Delete the removed segments, the last one first, so that no gap appears. Truncate the file of the last remaining one.
   Delete the snapshots of the producer state that contain removed batches.
5. Sync the file and the folder. The next batch is appended only then. Otherwise a power failure could keep that batch
   and bring back the removed batches after it, and no offset would show that they do not belong together.

``truncate_fully_and_start_at`` removes all batches. The log is then empty and starts at the given offset, which may be
before, inside or after the old log. A crash at any point leaves the log as it was before, a beginning of it, or the
new empty log; in all cases with a log start offset of at least the given offset, if the log reaches it. The steps are
the same with these differences: step 2 removes the log from the checkpoints and stores its new log start offset, step 3
removes all epochs. After step 5 the file of the new segment is created and its name synced. Until then recovery finds
no batch or only batches before the stored log start offset, and creates this file itself.

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
        return
    if offset >= of.written_end_offset:
        of.undo_pending()
        return
    number = bisect_right(of.segments, offset, key=_base_offset) - 1
    if number < 0:
        truncate_fully_and_start_at(of, offset)
        return
    truncated, removed = of.segments[number], of.segments[number + 1 :]
    for segment in of.segments[number:]:
        segment.swap_files()
    remaining = truncated.part_before(truncated.position_of(offset), offset)
    end_offset = _end_of(remaining)
    of.lower_checkpoints(of, end_offset, None)
    of.truncate_epochs(end_offset)
    truncated.disown_files()
    for segment in removed:
        segment.dropped = True
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
    if not of.unsynced():
        of.synced_end_offset = end_offset


def truncate_fully_and_start_at(of: Log, offset: int) -> None:
    """Remove all batches and start the log at ``offset``: `Log.truncate_fully_and_start_at`."""
    for segment in of.segments:
        segment.swap_files()
    of.make_folder_if_new()
    of.lower_checkpoints(of, 0, offset)
    of.truncate_epochs(0)
    removed = [*of.undeleted, *of.segments]
    for segment in removed:
        segment.dropped = True
    active = Segment(of.disk, of.directory, offset)
    of.replace_active(0, active)
    of.forget_from(offset)
    of.log_start_offset = of.synced_start_offset = of.synced_end_offset = offset
    try:
        for segment in reversed(removed):
            segment.delete_files()
        remove_snapshots(of.disk, of.directory, after=-1)
        of.disk.fsync_dir(of.directory)
        active.sync()  # creates the file; syncs its name and that of the folder, which may be new
    except OSError as error:
        of.failure = f"the log could not be restarted at offset {offset}: {error}"
        raise
    active.synced_bytes = 0
    of.undeleted = []


def advance_log_start(of: Log, offset: int) -> list[Segment]:
    """Advance the log start offset. Return the segments that were dropped: `Log.advance_log_start`."""
    if offset < of.log_start_offset:
        return []
    if offset >= of.log_end_offset and of.active.size_bytes:
        of.roll()
    keep = bisect_right(of.segments, offset, key=_base_offset) - 1
    unsynced = (n for n, each in enumerate(of.segments[:keep]) if each.synced_bytes < each.size_bytes)
    keep = next(unsynced, keep)
    if keep and not of.active.is_open:
        # After the other files are deleted, only this file's name may tell recovery the log end offset.
        of.active.open_file()
    of.log_start_offset = offset
    return of.drop_first_segments(keep) if keep else []


def _end_of(segment: Segment) -> int:
    """Return the offset after the last batch of the segment."""
    end = segment.base_offset
    for _, header in segment.headers(segment.offset_index.entry_at_most(segment.size_bytes - 1) & POSITION_MASK):
        end = header.next_offset
    return end


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
