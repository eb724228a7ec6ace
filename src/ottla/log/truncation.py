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
3. Write the leader epochs without those that begin in removed batches. If the power fails before step 5, recovery drops
   the epochs that begin at or after the end of the batches that it finds, and adds those of removed batches that it
   finds again.
4. Delete the removed segments, the last one first, so that no gap appears. Truncate the file of the last remaining one.
   Delete the snapshots of the producer state that contain removed batches.
5. Sync the epochs, the file and the folder. The next batch is appended only then. Otherwise a power failure could keep
   that batch and bring back the removed batches after it, and no offset would show that they do not belong together.
   In a compacted log, recovery could also not tell that an epoch in the old file has no batches any more.

``truncate_fully_and_start_at`` removes all batches. The log is then empty and starts at the given offset, which may be
before, inside or after the old log. A crash at any point leaves the log as it was before, a beginning of it, or the
new empty log; in all cases with a log start offset of at least the given offset, if the log reaches it. The steps are
the same with these differences: step 2 removes the log from the checkpoints and stores its new log start offset, step 3
removes all epochs. Step 5 creates the file of the new segment after it has synced the folder. Until then recovery finds
no batch or only batches before the stored log start offset, and creates this file itself. Until then the checkpoints
also stay as step 2 has written them, because recovery may find the old batches.

Step 5 takes several trips to the disk, and step 2 writes the checkpoints of all logs of the directory. A broker that
follows thousands of partitions may have to truncate all of them when it starts. `broker/partitions/truncations.py`
therefore does step 2 once for a group of logs, steps 3 and 4 (``begin``) on the event loop, and step 5 in threads
(``Log.unsynced_truncation``). Meanwhile the log can be read, but an append, a roll or a clean stop completes step 5
itself (``complete``). What the log counts as synced are remaining batches, which the power failure does not take.

If a step fails, the exception is raised, and ``Log.failure`` is set if the files may differ from the state in memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.log.cleaned_segment import CleanedSegment
from ottla.log.folders import sync_file
from ottla.log.index import POSITION_MASK
from ottla.log.producers import remove_snapshots
from ottla.log.segment import Segment, segment_number

if TYPE_CHECKING:
    from ottla.log.log import Log

EPOCHS_FILE = "leader-epoch-checkpoint"


class Truncation:
    """What a truncation leaves of a log: steps 2 to 4 are still to be done."""

    def __init__(
        self, of: Log, end_offset: int, active: Segment | None, number: int, *, log_start_offset: int | None = None
    ) -> None:
        self.log = of
        #: the log end offset after the truncation; 0 if the log starts again
        self.end_offset = end_offset
        #: the log starts again, empty, at this offset; None if it keeps batches
        self.log_start_offset = log_start_offset
        #: takes the place of segment ``number`` and all that follow; None if only epochs or pending batches are removed
        self.active = active
        self.number = number


class UnsyncedTruncation:
    """Step 5 of a truncation."""

    def __init__(self, of: Log, active: Segment | None, *, restarts: bool) -> None:
        self._log = of
        #: whether the log starts again; until that is synced, the checkpoints must fit to the removed batches too
        self.restarts = restarts
        self._active = active
        self._size_bytes = active.size_bytes if active is not None else 0

    def run(self) -> None:
        """Sync the files. Raise WriteFailed, or OSError if a file cannot be opened. Runs in a thread."""
        of = self._log
        sync_file(of.disk, os.path.join(of.directory, EPOCHS_FILE))
        if self._active is not None and not self.restarts:
            self._active.sync()
        of.disk.fsync_dir(of.directory)
        if self._active is not None and self.restarts:
            self._active.sync()  # creates the file; syncs its name and that of the folder, which may be new

    def note_synced(self) -> None:
        """Record that ``run`` is complete. Ignore it if the log was completed, truncated or deleted meanwhile."""
        of = self._log
        if of.unsynced_truncation is not self:
            return
        of.unsynced_truncation = None
        if self._active is not None:
            self._active.synced_bytes = max(self._active.synced_bytes, self._size_bytes)
        if not of.unsynced():
            of.synced_end_offset = of.written_end_offset  # no batch was appended since the truncation

    def note_failed(self, error: OSError) -> None:
        """Record that ``run`` has failed: the files may have removed batches."""
        if self._log.unsynced_truncation is self:
            self._log.failure = f"the truncation to offset {self._log.log_end_offset} was not synced: {error}"


def truncate_to(of: Log, offset: int) -> None:
    """Remove every batch whose last offset is at or above ``offset``, and all pending batches: `Log.truncate_to`."""
    _truncate_now(plan(of, offset))


def truncate_fully_and_start_at(of: Log, offset: int) -> None:
    """Remove all batches and start the log at ``offset``: `Log.truncate_fully_and_start_at`."""
    _truncate_now(plan_restart(of, offset))


def _truncate_now(planned: Truncation) -> None:
    if planned.active is not None:
        planned.log.lower_checkpoints([planned])
    begin(planned)
    complete(planned.log)


def plan(of: Log, offset: int) -> Truncation:
    """Return the truncation that removes every batch whose last offset is at or above ``offset``: step 1.

    Raise OSError or CorruptMessage if the batches cannot be read.
    """
    if offset >= of.written_end_offset:
        return Truncation(of, min(offset, of.log_end_offset), None, len(of.segments))
    if offset < of.segments[0].base_offset:
        return plan_restart(of, offset)
    number = segment_number(of.segments, offset)
    _complete_swaps(of.segments[number:])
    truncated = of.segments[number]
    remaining = truncated.part_before(truncated.position_of(offset), offset)
    return Truncation(of, _end_of(remaining), remaining, number)


def plan_restart(of: Log, offset: int) -> Truncation:
    """Return the truncation that removes all batches and starts the log at ``offset``: step 1. Raise OSError."""
    _complete_swaps(of.segments)
    of.make_folder_if_new()
    return Truncation(of, 0, Segment(of.disk, of.directory, offset), 0, log_start_offset=offset)


def _complete_swaps(segments: list[Segment]) -> None:
    for segment in segments:
        if isinstance(segment, CleanedSegment):
            segment.swap_files()


def begin(planned: Truncation) -> None:
    """Do steps 3 and 4, after which ``Log.unsynced_truncation`` is set. Raise OSError."""
    of, active = planned.log, planned.active
    if active is None:
        if planned.end_offset >= of.log_end_offset:
            # A leader that has appended nothing may have left its epoch at the log end.
            if _truncate_epochs(of, of.log_end_offset):
                current = of.active if of.active.written_bytes else None
                of.unsynced_truncation = UnsyncedTruncation(of, current, restarts=False)
        else:
            of.undo_pending()
        return
    _truncate_epochs(of, planned.end_offset)
    replaced = of.segments[planned.number :]
    removed = replaced[1:]
    if planned.log_start_offset is not None:
        removed = [*of.undeleted, *of.segments]
    else:
        replaced[0].disown_files()
    for segment in removed:
        segment.dropped = True
    of.replace_active(planned.number, active)
    if planned.log_start_offset is not None:
        of.forget_from(planned.log_start_offset)
        of.log_start_offset = of.synced_start_offset = of.synced_end_offset = planned.log_start_offset
    else:
        of.forget_from(planned.end_offset)
    of.unsynced_truncation = UnsyncedTruncation(of, active, restarts=planned.log_start_offset is not None)
    try:
        for segment in reversed(removed):
            segment.delete_files()
        if planned.log_start_offset is None:
            of.disk.truncate(active.file.fd, active.size_bytes)
        remove_snapshots(of.disk, of.directory, after=planned.end_offset if planned.log_start_offset is None else -1)
    except OSError as error:
        of.failure = f"the truncation to offset {of.log_end_offset} failed: {error}"
        raise
    if planned.log_start_offset is not None:
        of.undeleted = []


def complete(of: Log) -> None:
    """Do step 5 now, if it is not done. Raise OSError. A thread may be doing it at the same time."""
    unsynced = of.unsynced_truncation
    if unsynced is None:
        return
    try:
        unsynced.run()
    except OSError as error:
        unsynced.note_failed(error)
        raise
    unsynced.note_synced()


def is_restarting(of: Log) -> bool:
    """Return whether a power failure can bring back batches that the log had before it was started again."""
    return of.unsynced_truncation is not None and of.unsynced_truncation.restarts


def _truncate_epochs(of: Log, end_offset: int) -> bool:
    """Remove the epochs from ``end_offset`` on. Return whether there were any. Raise WriteFailed, without a change."""
    remaining = of.epochs.copy()
    if not remaining.truncate_from_end(end_offset):
        return False
    of.write_epochs(remaining, sync=False)
    of._prepared = False
    return True


def advance_log_start(of: Log, offset: int) -> list[Segment]:
    """Advance the log start offset. Return the segments that were dropped: `Log.advance_log_start`."""
    if offset < of.log_start_offset:
        return []
    if offset >= of.log_end_offset and of.active.size_bytes:
        of.roll()
    keep = segment_number(of.segments, offset)
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
