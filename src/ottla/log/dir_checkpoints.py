"""When the checkpoints of a log directory are written, and with which offsets.

    recovery points, high watermarks   regularly, without a sync; synced before a truncation and at a clean stop
    log start offsets                  always synced (`log_starts.py`)
    cleaner offsets                    after each compaction, synced, if they have changed
    topic ids                          before the recovery points, if they have changed

The checkpoints keep the offsets of logs that could not be read at the start, so that the next start can open them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ottla.env.disk import Disk
from ottla.env.tasks import Threads
from ottla.log.checkpoints import format_offsets, parse_offsets, write_topic_ids
from ottla.log.directories import LogDir
from ottla.log.log import Log
from ottla.log.log_starts import Offsets, first_segment, starts_of
from ottla.log.truncation import is_restarting
from ottla.model.types import TopicPartition, topic_id_text

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"

#: recovery points and log start offsets
Lowered = dict[TopicPartition, tuple[int, int]]


class DirCheckpoints:
    """Writes the checkpoints of log directories. ``topic_ids`` are the ids of the topics whose logs these are."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        topic_ids: Mapping[TopicPartition, bytes],
        *,
        start_synced: Callable[[Log], None],
        dir_failed: Callable[[LogDir, OSError], None],
    ) -> None:
        """``start_synced`` is called when ``synced_start_offset`` of a log has advanced."""
        self._disk = disk
        self._threads = threads
        self._topic_ids = topic_ids
        self._start_synced = start_synced
        self._dir_failed = dir_failed

    def write(self, directory: LogDir, high_watermarks: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Write the recovery points, log start offsets and these high watermarks. Raise OSError."""
        marks = {
            name: min(high_watermarks[name], each.log_end_offset)
            for name, each in directory.logs.items()
            if name in high_watermarks and not is_restarting(each)
        }
        marks |= {name: o.high_watermark for name, o in directory.unreadable.items() if o.high_watermark is not None}
        directory.high_watermarks = marks
        self.write_offsets(directory, sync=sync)

    def lower(self, directory: LogDir, ends: Iterable[tuple[Log, int, int | None]]) -> None:
        """Sync checkpoints without offsets after the new ends of these logs of the directory. Raise WriteFailed.

        A log that starts again, empty, has a new log start offset, else None.
        """
        lowered: Lowered = {}
        for of, end_offset, new_start in ends:
            name = of.name
            if new_start is None and directory.checkpointed.get(name, 0) <= end_offset:
                continue
            for offsets in (directory.cleaner_offsets, directory.high_watermarks):
                if offsets.get(name, 0) > end_offset:
                    offsets[name] = end_offset
                    if not end_offset:
                        del offsets[name]
            start = min(of.log_start_offset, end_offset) if new_start is None else new_start
            lowered[name] = min(of.recovery_point, end_offset), start
        if lowered:
            self.write_offsets(directory, sync=True, lowered=lowered)

    def write_offsets(self, directory: LogDir, *, sync: bool, lowered: Lowered | None = None) -> None:
        """Write the recovery points, log start offsets and high watermarks of a directory. Raise OSError.

        ``lowered`` has the recovery points and log start offsets of logs that are about to be truncated.
        """
        points = {name: each.recovery_point for name, each in directory.logs.items() if each.log_end_offset}
        points |= {name: 0 for name, each in directory.logs.items() if is_restarting(each)}
        starts = _starts(directory)
        for name, (point, start) in (lowered or {}).items():
            points[name], starts[name] = point, start
        points |= {name: o.recovery_point for name, o in directory.unreadable.items() if o.recovery_point is not None}
        marks = directory.high_watermarks
        for offsets in (points, starts, marks):
            directory.note_checkpointed(offsets)
        ids = {name: topic_id_text(self._topic_ids[name]) for name in points if name in self._topic_ids}
        if ids != directory.topic_ids_written or (sync and not directory.are_topic_ids_synced):
            # Before the recovery points: they prove only for a log of the same topic that it had records.
            write_topic_ids(self._disk, directory.path, ids, sync=sync)
            directory.topic_ids_written, directory.are_topic_ids_synced = ids, sync
        self._write_file(directory, RECOVERY_POINTS, points, sync=sync)
        if sync:
            directory.starts.write(starts, partial(self._write_file, directory, START_OFFSETS, sync=True))
        self._write_file(directory, HIGH_WATERMARKS, marks, sync=sync)
        if sync:
            self._note_starts_synced(directory, starts)
            self.write_cleaner_offsets(directory)
            # Only now: without a sync, a power failure can bring back the previous version of a checkpoint.
            directory.checkpointed = {}
            for offsets in (points, starts, marks, directory.cleaner_offsets):
                directory.note_checkpointed(offsets)

    def _write_file(self, directory: LogDir, file: str, offsets: Offsets, *, sync: bool) -> None:
        self._disk.write_file(os.path.join(directory.path, file), format_offsets(offsets), sync=sync)

    # -- log start offsets ----------------------------------------------------------------------------------------

    def sync_starts(self, directory: LogDir) -> None:
        """Write and sync the log start offsets in a thread."""

        def current() -> Offsets:
            starts = _starts(directory)
            directory.note_checkpointed(starts)
            return starts

        write = partial(self._write_file, directory, START_OFFSETS, sync=True)
        synced, failed = partial(self._note_starts_synced, directory), partial(self._dir_failed, directory)
        directory.starts.write_in_thread(self._threads, current, write, synced, failed)

    def _note_starts_synced(self, directory: LogDir, starts: Offsets) -> None:
        for name, of in list(directory.logs.items()):
            if of.log_start_offset > of.synced_start_offset:
                # Segments before this one were deleted, and their folder was synced after that.
                offset = max(starts.get(name, 0), first_segment(of).base_offset)
                if min(offset, of.log_start_offset) > of.synced_start_offset:
                    of.synced_start_offset = min(offset, of.log_start_offset)
                    self._start_synced(of)

    # -- cleaner offsets ------------------------------------------------------------------------------------------

    def load_cleaner_offsets(self, directory: LogDir) -> dict[TopicPartition, int] | None:
        """Return the offsets in the cleaner's checkpoint; None if the file exists but cannot be read."""
        path = os.path.join(directory.path, CLEANER_OFFSETS)
        offsets: dict[TopicPartition, int] | None = None
        try:
            offsets = parse_offsets(self._disk.read_file(path))
        except (ValueError, IndexError, OSError) as error:
            log.warning(
                "ignoring the damaged checkpoint of the cleaner, gaps in logs are not checked path=%s error=%s",
                path, error,
            )  # fmt: skip
        directory.cleaner_offsets_written = offsets
        directory.note_checkpointed(offsets or {})
        return offsets

    def note_cleaned(self, directory: LogDir, of: Log, offset: int) -> None:
        """Record that the log is compacted below ``offset``; ``write_cleaner_offsets`` writes it to the checkpoint."""
        of.first_dirty_offset = directory.cleaner_offsets[of.name] = offset
        directory.note_checkpointed({of.name: offset})

    def write_cleaner_offsets(self, directory: LogDir) -> None:
        """Write and sync the cleaner's checkpoint if it changed. Recovery needs it for logs compacted in the past."""
        with directory.cleaner_file:
            offsets = directory.cleaner_offsets.copy()
            if offsets != directory.cleaner_offsets_written:
                self._write_file(directory, CLEANER_OFFSETS, offsets, sync=True)
                directory.cleaner_offsets_written = offsets


def _starts(directory: LogDir) -> dict[TopicPartition, int]:
    unreadable = {name: o.start for name, o in directory.unreadable.items() if o.start is not None}
    return starts_of(directory.logs) | unreadable
