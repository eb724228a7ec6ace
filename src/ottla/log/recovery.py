"""Opening a log from its folder, after a clean stop or after a crash.

After a clean stop: the clean stop file holds the end of each log. File names and sizes are trusted; no segment is read.

After a crash: read and check every batch from the recovery point on; rebuild the indexes, the producer state and the
epochs from the batches; truncate the log at the first byte that is not part of a complete, valid batch. This does not
remove batches below the recovery point, which were synced, nor acknowledged batches, which were written. If such
batches are missing anyway, ``gaps`` fills their offsets.

The checksum of a batch does not cover its base offset and its leader epoch. The base offset is therefore compared with
the end of the batch before. Only compaction leaves gaps between offsets:

- Ottla's compaction ends each segment where the next one begins and skips the active segment. Its gaps are inside
  sealed segments, even if it crashed before it wrote its checkpoint.
- Kafka's compaction can also leave gaps between segments, below the recovery point or the cleaner's checkpoint.
- If a compacted topic has neither, because its folder was copied from Kafka or a power failure took them, a gap between
  segments may have either cause. A batch without records fills it, as after a loss.

Any other gap between segments is damage, and so is a gap in the last segment of a topic that was never compacted. The
cleaner's checkpoint tells whether a topic was compacted in the past.

An interrupted compaction is undone or completed: ``.cleaned`` files are deleted, and a ``.log.swap`` file replaces its
source segments. Also deleted are ``.deleted`` and ``.tmp`` files, indexes without a segment, and producer snapshots
that are not at the base offset of a segment, except the newest one.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from itertools import pairwise

from ottla.env.disk import Disk, read_derived_file
from ottla.log.checkpoints import CleanStop
from ottla.log.cleaned_segment import finish_swaps
from ottla.log.epochs import LeaderEpochs
from ottla.log.folders import sync_file
from ottla.log.gaps import check_sealed, fill_gap, is_complete, report_gap
from ottla.log.log import Log
from ottla.log.producers import Producers, load_snapshot, remove_snapshots, snapshot_offsets, snapshot_path
from ottla.log.segment import SEGMENT_FILES, Segment, base_offset_of, segment_number
from ottla.log.segment_scan import SegmentScan
from ottla.log.truncation import EPOCHS_FILE
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)


def open_log(
    disk: Disk,
    directory: str,
    name: TopicPartition,
    settings: TopicSettings,
    *,
    clean: CleanStop | None,
    recovery_point: int,
    log_start_offset: int,
    cleaner_offset: int | None = 0,
    high_watermark: int = 0,
    replicated: bool = False,
) -> Log:
    """Return the log in ``directory``, which may be empty. Raise WriteFailed if a write fails, OSError if a read does.

    The log was compacted below ``cleaner_offset``; pass None if the cleaner's checkpoint is unreadable. If the files
    end before the end offset of ``clean`` (without it: before ``recovery_point`` or ``high_watermark``), records were
    lost: a batch without records fills their offsets. A ``replicated`` log ends at the first lost record instead.
    """
    finish_swaps(disk, directory)
    segments = _list_segments(disk, directory)
    epochs = _load_epochs(disk, directory)
    recovery = None
    if clean is not None and epochs is not None and _matches_clean_stop(segments, clean):
        end_offset, producers = clean.log_end_offset, None
        for segment in segments:
            # An empty segment may have no file yet: -1 makes the first sync include the folder.
            segment.synced_bytes = segment.indexed_bytes = segment.size_bytes or -1
    else:
        expected = _expected(
            settings, clean, recovery_point=recovery_point, cleaner_offset=cleaner_offset,
            high_watermark=high_watermark, replicated=replicated,
        )  # fmt: skip
        recovery = _Recovery(disk, directory, segments, epochs or LeaderEpochs(), expected)
        recovery.run()
        epochs, end_offset, producers = recovery.epochs, recovery.end_offset, recovery.producers
    start_offset = max(log_start_offset, segments[0].base_offset if segments else end_offset)
    if end_offset < start_offset:
        # The log start is after all batches in the files (records deleted, files lost): start an empty log there.
        for segment in segments:
            segment.delete_files()
        segments, end_offset = [], start_offset
        producers = Producers()
    if not segments:
        segments = [Segment(disk, directory, end_offset)]
        if end_offset:
            # Only the name of this file tells the next start the log end offset.
            segments[0].open_file()
            disk.fsync_dir(directory)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    opened = Log(
        disk=disk, directory=directory, name=name, settings=settings, segments=segments,
        log_start_offset=start_offset, log_end_offset=end_offset, epochs=epochs, producers=producers,
        epochs_synced=recovery is None,
    )  # fmt: skip
    if cleaner_offset is not None and segments[0].base_offset <= cleaner_offset <= end_offset:
        # Otherwise these are not the files that were compacted, and the whole log is dirty.
        opened.first_dirty_offset = cleaner_offset
    if recovery is not None:
        opened.lost_synced = recovery.lost_synced
        if recovery.gap_end > opened.first_dirty_offset and cleaner_offset is not None:
            # The next recovery must accept the same gaps: it would discard everything after them.
            opened.first_dirty_offset = recovery.gap_end
    return opened


def _list_segments(disk: Disk, directory: str) -> list[Segment]:
    """Return the segments ordered by base offset. Delete temporary and orphaned files."""
    segments = []
    names = dict.fromkeys(disk.listdir(directory))  # not a set, whose order depends on PYTHONHASHSEED
    for name in names:
        path = os.path.join(directory, name)
        stem, suffix = os.path.splitext(name)
        orphan = suffix in SEGMENT_FILES[1:] and stem + ".log" not in names
        if orphan or suffix in (".deleted", ".cleaned", ".tmp"):
            disk.remove(path)
        elif suffix == ".log" and stem.isdecimal():
            segments.append(Segment(disk, directory, int(stem), disk.file_size(path) or 0))
    segments.sort(key=base_offset_of)
    bases = {segment.base_offset for segment in segments}
    for offset in snapshot_offsets(disk, directory)[1:]:
        if offset not in bases:
            disk.remove(snapshot_path(directory, offset))
    return segments


def _matches_clean_stop(segments: list[Segment], clean: CleanStop) -> bool:
    """Return whether the segments have the sizes in ``clean``. Append the empty active segment if it has no file."""
    if not segments:
        return clean.log_end_offset == clean.active_base_offset and clean.active_size_bytes == 0
    active = segments[-1]
    sealed_bytes = sum(segment.size_bytes for segment in segments if segment.base_offset < clean.active_base_offset)
    if clean.sealed_bytes not in (None, sealed_bytes):
        return False
    if clean.active_size_bytes == 0 and active.base_offset < clean.active_base_offset:
        # An empty active segment has no file until its first batch.
        segments.append(Segment(active._disk, active.directory, clean.active_base_offset))
        return True
    return active.base_offset == clean.active_base_offset and active.size_bytes == clean.active_size_bytes


def _load_epochs(disk: Disk, directory: str) -> LeaderEpochs | None:
    """Return the leader epochs; None if their file is damaged. Recovery then rebuilds them from all batches."""
    path = os.path.join(directory, EPOCHS_FILE)
    data = read_derived_file(disk, path)
    if not data:
        return None if disk.exists(path) and data is None else LeaderEpochs()
    try:
        return LeaderEpochs.from_text(data.decode("ascii"))
    except (ValueError, IndexError):
        log.warning("rebuilding the damaged leader epoch checkpoint dir=%s", directory)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What a log must contain and which gaps it may have, according to its checkpoints and its settings."""

    #: segments that end at or below this offset were synced and need not be read
    recovery_point: int
    #: the batches below this offset were synced: the end at the last clean stop, or the recovery point
    synced_end: int
    #: the offsets below this one were assigned; at least those below ``synced_end``
    assigned_end: int
    #: whether compaction may have removed records
    compacted: bool
    #: from this offset on, compaction has left no gaps between segments; None if it may have left gaps anywhere
    dense_from: int | None
    #: whether other replicas have the batches that are lost here
    replicated: bool

    def may_skip(self, segment: Segment) -> bool:
        """Return whether compaction may have removed the last records of a sealed segment."""
        return self.compacted and (self.dense_from is None or segment.base_offset < self.dense_from)


def _expected(
    settings: TopicSettings,
    clean: CleanStop | None,
    *,
    recovery_point: int,
    cleaner_offset: int | None,
    high_watermark: int,
    replicated: bool,
) -> _Expected:
    synced_end = clean.log_end_offset if clean is not None else recovery_point
    # A gap that a power failure has left looks like one of compaction. A replicated log has gaps only where they were
    # noted: otherwise the leader would never send what is missing there.
    dense_from = cleaner_offset
    if dense_from is not None and not replicated:
        # A folder that was restored from a backup of Kafka may have no checkpoint: accept gaps anywhere.
        dense_from = max(synced_end, dense_from) or (None if settings.compact else 0)
    return _Expected(
        recovery_point=recovery_point,
        synced_end=synced_end,
        assigned_end=synced_end if clean is not None else max(synced_end, high_watermark),
        compacted=settings.compact or cleaner_offset != 0,
        dense_from=dense_from,
        replicated=replicated,
    )


class _Recovery:
    """Checks the segments of a log from the recovery point on, truncates damage and rebuilds the derived files.

    Lost offsets below ``assigned_end`` are filled by batches without records. Damage below ``synced_end`` truncates
    only its segment, because the following segments were synced and are kept. A replicated log is truncated at the
    first missing or damaged batch instead, because other replicas have the lost ones.
    """

    def __init__(
        self, disk: Disk, directory: str, segments: list[Segment], epochs: LeaderEpochs, expected: _Expected
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._expected = expected
        #: the segments of the folder; ``run`` removes those that cannot follow the one before
        self._segments = segments
        #: the number of the first segment that is read
        self._first = 0
        #: the producer state: that of a snapshot at ``_replay_from``, to which the batches that are read are applied
        self._replayed = Producers()
        self._replay_from = 0

        # Results of ``run``
        #: the leader epochs of the file, without those of batches that do not exist, and those of the batches read
        self.epochs = epochs
        #: the log end offset
        self.end_offset = 0
        #: the producer state at ``end_offset``; None if it must be loaded again
        self.producers: Producers | None = None
        #: the end of the last gap between segments that compaction has left; 0 without such a gap
        self.gap_end = 0

    @property
    def lost_synced(self) -> bool:
        """Return whether synced batches at the end of the log are missing."""
        return self.end_offset < self._expected.synced_end

    def run(self) -> None:
        """Recover the log. Raise WriteFailed or OSError."""
        epochs_in_file = self.epochs.to_text()
        self._find_first()
        self._keep_older_segments()
        self._read_segments()
        # Remove the snapshots before a gap is filled: a producer that resends a lost batch must not get the reply that
        # the batch is a duplicate.
        remove_snapshots(self._disk, self._directory, after=self.end_offset)
        # A snapshot after the log end is useless: the log then loads an older snapshot and replays the batches.
        self.producers = self._replayed if self._replay_from <= self.end_offset else None
        self.epochs.truncate_from_end(self.end_offset)
        self._fill_end()
        if len(self._segments) - self._first > 1 or self.epochs.to_text() != epochs_in_file:
            # Recovery will not read the sealed segments again, so sync the epochs that it found in them. Remove those
            # of batches that do not exist: in a compacted log they would look like epochs whose first batches were
            # removed.
            path = os.path.join(self._directory, EPOCHS_FILE)
            self._disk.write_file(path, self.epochs.to_text().encode(), sync=True)
        self._sync()

    def _find_first(self) -> None:
        """Choose the first segment to read, and load the producer state before it."""
        # Without leader epochs, read the whole log. Otherwise start at a segment whose producer snapshot can be loaded,
        # or at an older one. Read each segment from its start: a marker can only be matched to its transaction by the
        # batches that opened it.
        segments, expected = self._segments, self._expected
        first = segment_number(segments, expected.recovery_point if self.epochs.epochs else 0)
        if expected.replicated:
            first = self._first_incomplete(first)
        self._load_snapshot(segments[first].base_offset if segments else expected.recovery_point)
        while segments and first != (older := segment_number(segments, self._replay_from)):
            first = older
            self._load_snapshot(segments[first].base_offset)
        self._first = first

    def _first_incomplete(self, last: int) -> int:
        """Return the number of the first segment before ``last`` whose end is missing; ``last`` if there is none."""
        for number, (segment, following) in enumerate(pairwise(self._segments[: last + 1])):
            may_skip = self._expected.may_skip(segment)
            if not is_complete(self._disk, segment, following.base_offset, may_skip=may_skip):
                return number
        return last

    def _load_snapshot(self, offset: int) -> None:
        self._replayed, self._replay_from = load_snapshot(self._disk, self._directory, offset)

    def _keep_older_segments(self) -> None:
        """Keep the segments before the first one that is read; fill a gap at the end of a segment."""
        segments, first, expected = self._segments, self._first, self._expected
        if not expected.compacted:
            # Rebuild the epochs of the batches that are read again: a power failure may have brought back an older
            # version of the checkpoint. Not after compaction: it may have removed the first batches of an epoch.
            self.epochs.truncate_from_end(segments[first].base_offset if first else 0)
        for segment, following in pairwise(segments[: first + 1]):
            segment.synced_bytes = segment.indexed_bytes = segment.size_bytes
            segment.indexes_unverified = True
            if not expected.replicated:
                may_skip = expected.may_skip(segment)
                check_sealed(self._disk, segment, following.base_offset, self.epochs, may_skip=may_skip)

    def _read_segments(self) -> None:
        """Read the segments from the first one on. Drop those that cannot follow the ones before them."""
        segments, first, expected = self._segments, self._first, self._expected
        self.end_offset = segments[first].base_offset if segments else 0
        for number in range(first, len(segments)):
            if not self._may_follow(number):
                self._drop(number, f"it should start at offset {self.end_offset}")
                return
            if segments[number].base_offset > self.end_offset:
                self._accept_gap(number)
            if self._scan(number):
                continue
            if expected.replicated or self.end_offset >= expected.synced_end or number + 1 == len(segments):
                self._drop(number + 1, "the segment before it was truncated")
                return

    def _may_follow(self, number: int) -> bool:
        """Return whether a segment can begin where it does, after a log that ends at ``end_offset``."""
        expected, base_offset = self._expected, self._segments[number].base_offset
        if base_offset <= self.end_offset:
            return base_offset == self.end_offset
        if expected.replicated and not expected.compacted:
            return False
        if expected.dense_from is not None:
            return self.end_offset < expected.dense_from
        # Compaction deletes a segment that has no batches left. A file without any has lost them in a power failure.
        return not expected.compacted or self._segments[number - 1].size_bytes > 0

    def _accept_gap(self, number: int) -> None:
        """Fill the gap before a segment, unless only compaction can have left it."""
        expected, next_offset = self._expected, self._segments[number].base_offset
        is_filled = False
        if not expected.replicated and (not expected.compacted or expected.dense_from is None):
            # If the cleaner's checkpoint is missing, a gap of compaction looks like one of a power failure: fill both.
            # The epoch in which the offsets were appended: followers refuse a batch with an older epoch after it.
            epoch = max(self.epochs.epoch_at(self.end_offset), 0)
            is_filled = fill_gap(
                self._disk, self._segments[number - 1], self.end_offset, next_offset, epoch,
                maybe_compacted=expected.compacted,
            )  # fmt: skip
        if expected.compacted and not is_filled:
            self.gap_end = next_offset

    def _scan(self, number: int) -> bool:
        """Read a segment, and truncate it at its first damaged batch. Return whether all its batches are valid."""
        segment, expected = self._segments[number], self._expected
        is_last = number + 1 == len(self._segments)
        scan = SegmentScan(
            segment, self.epochs, self._replayed, replay_from=self._replay_from,
            next_base_offset=None if is_last else self._segments[number + 1].base_offset,
            dense_from=None if expected.compacted else expected.dense_from,
        )  # fmt: skip
        scan.run(self._disk)
        self.end_offset = scan.end_offset
        if scan.damage:
            log.warning(
                "log truncated path=%s position=%d size=%d next_offset=%d reason=%s",
                segment.path(".log"), segment.size_bytes, scan.file_bytes, scan.end_offset, scan.damage,
            )  # fmt: skip
            self._disk.truncate(segment.file.fd, segment.size_bytes)
        return not scan.damage

    def _drop(self, first: int, reason: str) -> None:
        """Delete the segments from number ``first`` on."""
        for segment in self._segments[first:]:
            log.warning("segment dropped path=%s reason=%s", segment.path(".log"), reason)
            segment.delete_files()
        del self._segments[first:]

    def _fill_end(self) -> None:
        """Fill the lost offsets at the end of the log."""
        end_offset, assigned_end = self.end_offset, self._expected.assigned_end
        if end_offset >= assigned_end or self._expected.replicated:
            return
        if not self._segments:
            report_gap(self._directory, end_offset, assigned_end)
            self.end_offset = assigned_end
        elif fill_gap(self._disk, self._segments[-1], end_offset, assigned_end, max(self.epochs.latest, 0)):
            self.end_offset = assigned_end

    def _sync(self) -> None:
        """Sync the epochs and the segments that were read, and write the indexes of the sealed ones."""
        # Sync what may be only in the page cache, because the opened log counts as synced, and a truncation that the
        # crash interrupted as complete. The first sync of each file also syncs the folder, so that removed files do not
        # reappear.
        sync_file(self._disk, os.path.join(self._directory, EPOCHS_FILE))
        segments = self._segments[self._first :]
        for segment in segments:
            if segment.size_bytes:
                segment.sync()
                segment.synced_bytes = segment.size_bytes
            if segment is not segments[-1]:
                segment.write_indexes()
        if not any(segment.size_bytes for segment in segments):
            self._disk.fsync_dir(self._directory)
