"""The copy of a log in another log directory of the same broker, until it takes the place of the log.

    FutureLog           an empty log in a folder whose name ends with -future; a start deletes such folders
    copy                appends the next batches of the log, byte for byte, as a follower does
    take_over_state     takes over what is not in the batches, when both logs have the same end
    LogStore.replace    syncs the copy, gives it the name of the log, and deletes the log

A truncation or a compaction of the log makes the copy useless: the caller starts again, or prevents it.
"""

from __future__ import annotations

from ottla.log.epochs import LeaderEpochs
from ottla.log.folders import write_topic_id
from ottla.log.log import Log
from ottla.log.segment import Segment


class FutureLog:
    """A log that is being copied into the folder ``path``. The event loop uses it, except while it is flushed."""

    def __init__(self, current: Log, path: str, topic_id: bytes) -> None:
        """Create the folder. Raise OSError if that fails."""
        self.current = current
        disk, start = current.disk, current.log_start_offset
        disk.makedirs(path)
        write_topic_id(disk, path, topic_id, sync=True)
        self.log = Log(
            disk=disk, directory=path, name=current.name, settings=current.settings,
            segments=[Segment(disk, path, start)], log_start_offset=start, log_end_offset=start,
            epochs=LeaderEpochs(), producers=None,
        )  # fmt: skip
        self.log.on_gap = _note_gap
        self.log.on_roll = _release_file

    @property
    def lag_records(self) -> int:
        return max(self.current.log_end_offset - self.log.log_end_offset, 0)

    def copy(self, size_bytes_max: int, *, leader_epoch: int, now_ms: int) -> int:
        """Append and write the next batches. Return their size, 0 if there are none.

        Raise OffsetOutOfRange if the log has lost the next batch, CorruptMessage for a damaged batch, or OSError.
        """
        current = self.current
        region = current.read(
            self.log.log_end_offset, size_bytes_max, current.written_end_offset, at_least_one=True
        )  # fmt: skip
        if region is None:
            return 0
        records = region.read()
        self.log.append_as_follower(memoryview(records), leader_epoch=leader_epoch, now_ms=now_ms)
        self.log.write_pending()
        return len(records)

    def take_over_state(self) -> None:
        """Take over log start, epochs and producers. Raise OSError without a change to the log that is copied."""
        current, copy = self.current, self.log
        assert copy.log_end_offset == copy.written_end_offset == current.log_end_offset == current.written_end_offset
        # The state of producers whose batches were deleted is in no batch.
        copy._producers = current.producers
        copy.ended, copy.refused = current.ended, current.refused
        copy.flush_files()
        for dropped in copy.advance_log_start(current.log_start_offset):
            dropped.delete_files()
        copy.undeleted.clear()
        copy.first_dirty_offset = current.first_dirty_offset
        copy.write_epochs(current.epochs.copy(), sync=True)  # this syncs the folder too
        copy.synced_start_offset = copy.log_start_offset  # the checkpoint is synced before the copy is used
        copy.appended_bytes, copy.inline_budget = current.appended_bytes, current.inline_budget
        copy.become_leader(current.leader_epoch)

    def rename_to(self, path: str) -> None:
        """Use the files in the folder ``path``, which is the renamed folder of this log."""
        self.log.directory = path
        for segment in self.log.segments:
            segment.directory = path


def _note_gap(of: Log, offset: int) -> None:
    # ``take_over_state`` sets the offset of the log that is copied, which has the same gaps.
    of.first_dirty_offset = offset


def _release_file(of: Log, sealed: Segment) -> None:
    """Close the file of a sealed segment, so that a copy needs few file descriptors; ``flush_files`` opens it again."""
    sealed.release_file()
