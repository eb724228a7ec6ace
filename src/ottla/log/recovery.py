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

Any other gap between segments is damage, and so is a gap in the last segment of a topic that was never compacted. The
cleaner's checkpoint tells whether a topic was compacted in the past.

An interrupted compaction is undone or completed: ``.cleaned`` files are deleted, and a ``.log.swap`` file replaces its
source segments. Also deleted are ``.deleted`` and ``.tmp`` files, indexes without a segment, and producer snapshots
that are not at the base offset of a segment, except the newest one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ottla.env.disk import Disk, read_derived_file
from ottla.log.cleaned_segment import CLEANED, SWAP
from ottla.log.epochs import LeaderEpochs
from ottla.log.file_region import SegmentFile
from ottla.log.folders import sync_file
from ottla.log.gaps import check_sealed, fill_gap, is_complete, report_gap
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.log import Log
from ottla.log.producers import Producers, load_snapshot, remove_snapshots, snapshot_offsets, snapshot_path
from ottla.log.segment import INDEX_INTERVAL_BYTES, SEGMENT_FILES, Segment, base_offset_of, segment_number
from ottla.log.truncation import EPOCHS_FILE
from ottla.model.batch import HEADER_BYTES, LENGTH_MIN, MAGIC, BatchHeader, checksum, read_header
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStop:
    """The entry of one log in the clean stop file."""

    log_end_offset: int
    active_base_offset: int
    active_size_bytes: int
    #: size of all segments before the active one; None if an earlier version wrote the file
    sealed_bytes: int | None = None


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
    _finish_swaps(disk, directory)
    segments = _list_segments(disk, directory)
    epochs = _load_epochs(disk, directory)
    was_clean = clean is not None and epochs is not None and _matches_clean_stop(segments, clean)
    lost_synced, gap_end = False, 0
    if clean is not None and epochs is not None and was_clean:
        end_offset = clean.log_end_offset
        producers = None
        for segment in segments:
            # An empty segment may have no file yet: -1 makes the first sync include the folder.
            segment.synced_bytes = segment.indexed_bytes = segment.size_bytes or -1
    else:
        compacted = settings.compact or cleaner_offset != 0
        synced_end = clean.log_end_offset if clean is not None else recovery_point
        # A gap that a power failure has left looks like one of compaction. A replicated log has gaps only where they
        # were noted: otherwise the leader would never send what is missing there.
        dense_from = cleaner_offset
        if dense_from is not None and not replicated:
            # A folder that was restored from a backup of Kafka may have no checkpoint: accept gaps anywhere.
            dense_from = max(synced_end, dense_from) or (None if settings.compact else 0)
        known_end = synced_end if clean is not None else max(synced_end, high_watermark)
        epochs, end_offset, producers, gap_end = _recover(
            disk, directory, segments, epochs or LeaderEpochs(), recovery_point, dense_from, compacted, synced_end,
            known_end, replicated,
        )  # fmt: skip
        lost_synced = end_offset < synced_end
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
        epochs_synced=was_clean,
    )  # fmt: skip
    opened.lost_synced = lost_synced
    if cleaner_offset is not None and segments[0].base_offset <= cleaner_offset <= end_offset:
        # Otherwise these are not the files that were compacted, and the whole log is dirty.
        opened.first_dirty_offset = cleaner_offset
    if gap_end > opened.first_dirty_offset and cleaner_offset is not None:
        # The next recovery must accept the same gaps: it would discard everything after them.
        opened.first_dirty_offset = gap_end
    return opened


def _finish_swaps(disk: Disk, directory: str) -> None:
    """Complete an interrupted ``CleanedSegment.swap_files``. The next start repeats it after a crash at any step."""
    names = disk.listdir(directory)
    swaps = [name for name in names if name.endswith(SWAP)]
    for name in swaps.copy():
        if not name.endswith(".log" + SWAP) or not (stem := name.removesuffix(".log" + SWAP)).isdecimal():
            continue
        path = os.path.join(directory, name)
        base, end = int(stem), _end_of_file(disk, path)
        log.warning("completing an interrupted compaction path=%s", path)
        for suffix in SEGMENT_FILES[1:]:
            # Kafka renames the log before its indexes. If the log is complete, its .cleaned indexes are too.
            index = path.removesuffix(".log" + SWAP) + suffix
            if disk.exists(index + CLEANED):
                disk.rename(index + CLEANED, index + SWAP)
                swaps.append(os.path.basename(index + SWAP))
        for old in names:
            stem, suffix = os.path.splitext(old)
            if stem.isdecimal() and (base < int(stem) < end or (int(stem) == base and suffix in SEGMENT_FILES[1:])):
                disk.remove(os.path.join(directory, old))
        disk.rename(path, path.removesuffix(SWAP))
    for name in swaps:
        # The remaining .swap files are indexes. If their log is still .cleaned, the swap had not started: undo it.
        path = os.path.join(directory, name)
        if disk.exists(os.path.splitext(path.removesuffix(SWAP))[0] + ".log" + CLEANED):
            disk.remove(path)
        elif disk.exists(path):
            disk.rename(path, path.removesuffix(SWAP))
    if swaps:
        disk.fsync_dir(directory)


def _end_of_file(disk: Disk, path: str) -> int:
    """Return the offset after the last batch of a ``.log.swap`` file, which was synced and is complete."""
    file, position, end = SegmentFile(disk, disk.open(path)), 0, 0
    while len(head := disk.pread(file.fd, HEADER_BYTES, position)) == HEADER_BYTES:
        header = read_header(head)
        if header.length < LENGTH_MIN:
            break
        end, position = header.next_offset, position + header.size_bytes
    return end


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


def _recover(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    epochs: LeaderEpochs,
    recovery_point: int,
    dense_from: int | None,
    compacted: bool,
    synced_end: int,
    known_end: int,
    replicated: bool,
) -> tuple[LeaderEpochs, int, Producers | None, int]:
    """Check the segments from the recovery point on, truncate damage, rebuild the derived files.

    Return the leader epochs, the log end offset, the producer state, which is None if it must be loaded again, and the
    end of the last gap between segments that compaction has left.
    Offsets below ``known_end`` were assigned: batches without records fill those that are missing. Damage below
    ``synced_end`` truncates only its segment, because the following segments were synced and are kept. A
    ``replicated`` log is truncated at the first missing or damaged batch, because other replicas have the lost ones.
    """

    def may_skip(segment: Segment) -> bool:
        return compacted and (dense_from is None or segment.base_offset < dense_from)

    epochs_in_file = epochs.to_text()
    # Without leader epochs, read the whole log. Otherwise start at a segment whose producer snapshot can be loaded, or
    # at an older one. Read each segment from its start: a marker can only be matched to its transaction by the batches
    # that opened it.
    first = segment_number(segments, recovery_point if epochs.epochs else 0)
    if replicated:
        first = _first_incomplete(disk, segments[: first + 1], may_skip)
    producers, replay_from = load_snapshot(disk, directory, segments[first].base_offset if segments else recovery_point)
    while segments and first != (older := segment_number(segments, replay_from)):
        first = older
        producers, replay_from = load_snapshot(disk, directory, segments[first].base_offset)
    if not compacted:
        # Rebuild the epochs of the batches that are read again: a power failure may have brought back an older version
        # of the checkpoint. Not after compaction: it may have removed the first batches of an epoch.
        epochs.truncate_from_end(segments[first].base_offset if first else 0)
    for segment, following in pairwise(segments[: first + 1]):
        segment.synced_bytes = segment.indexed_bytes = segment.size_bytes
        segment.indexes_unverified = True
        if not replicated:
            check_sealed(disk, segment, following.base_offset, epochs, may_skip=may_skip(segment))
    end_offset, gap_end = segments[first].base_offset if segments else 0, 0
    for number in range(first, len(segments)):
        segment = segments[number]
        gap = segment.base_offset - end_offset
        # Compaction deletes a segment that has no batches left. A file without any has lost them in a power failure.
        is_emptied = compacted and dense_from is None and number > first and not segments[number - 1].size_bytes
        is_lost = gap > 0 and number > first and (is_emptied or (replicated and not compacted))
        if gap < 0 or is_lost or (gap > 0 and dense_from is not None and end_offset >= dense_from):
            _drop(segments, number, f"it should start at offset {end_offset}")
            break
        if gap > 0 and not compacted and number > first:
            fill_gap(disk, segments[number - 1], end_offset, segment.base_offset, max(epochs.latest, 0))
        gap_end = segment.base_offset if gap > 0 and compacted else gap_end
        inside_from = None if compacted else dense_from
        scan = _Scan(segment, segments[number + 1 :], epochs, producers, replay_from, inside_from)
        scan.run(disk)
        end_offset = scan.end_offset
        if scan.damage:
            log.warning(
                "log truncated path=%s position=%d size=%d next_offset=%d reason=%s",
                segment.path(".log"), segment.size_bytes, scan.file_bytes, end_offset, scan.damage,
            )  # fmt: skip
            disk.truncate(segment.file.fd, segment.size_bytes)
            if end_offset < synced_end and number + 1 < len(segments) and not replicated:
                continue
            _drop(segments, number + 1, "the segment before it was truncated")
            break
    # Remove the snapshots before a gap is filled: a producer that resends a lost batch must not get the reply that
    # the batch is a duplicate.
    remove_snapshots(disk, directory, after=end_offset)
    # A snapshot after the log end is useless: the log then loads an older snapshot and replays the batches.
    known_producers = producers if replay_from <= end_offset else None
    epochs.truncate_from_end(end_offset)
    if end_offset < known_end and not replicated:
        end_offset = _fill_end(disk, directory, segments, end_offset, known_end, max(epochs.latest, 0))
    if len(segments) - first > 1 or epochs.to_text() != epochs_in_file:
        # Recovery will not read the sealed segments again, so sync the epochs that it found in them. Remove those of
        # batches that do not exist: in a compacted log they would look like epochs whose first batches were removed.
        disk.write_file(os.path.join(directory, EPOCHS_FILE), epochs.to_text().encode(), sync=True)
    _sync_recovered(disk, directory, segments[first:])
    return epochs, end_offset, known_producers, gap_end


def _sync_recovered(disk: Disk, directory: str, segments: list[Segment]) -> None:
    """Sync the epochs and the segments that recovery has read, and write the indexes of the sealed ones."""
    # Sync what may be only in the page cache, because the opened log counts as synced, and a truncation that the crash
    # interrupted as complete. The first sync of each file also syncs the folder, so that removed files do not reappear.
    sync_file(disk, os.path.join(directory, EPOCHS_FILE))
    for segment in segments:
        if segment.size_bytes:
            segment.sync()
            segment.synced_bytes = segment.size_bytes
        if segment is not segments[-1]:
            segment.write_indexes()
    if not any(segment.size_bytes for segment in segments):
        disk.fsync_dir(directory)


def _first_incomplete(disk: Disk, segments: list[Segment], may_skip: Callable[[Segment], bool]) -> int:
    """Return the number of the first segment whose end is missing; the last one if all others are complete."""
    for number, (segment, following) in enumerate(pairwise(segments)):
        if not is_complete(disk, segment, following.base_offset, may_skip=may_skip(segment)):
            return number
    return max(len(segments) - 1, 0)


def _fill_end(
    disk: Disk, directory: str, segments: list[Segment], end_offset: int, known_end: int, leader_epoch: int
) -> int:
    """Fill the lost offsets up to ``known_end``. Return the new log end offset."""
    if not segments:
        report_gap(directory, end_offset, known_end)
        return known_end
    return known_end if fill_gap(disk, segments[-1], end_offset, known_end, leader_epoch) else end_offset


def _drop(segments: list[Segment], first: int, reason: str) -> None:
    for segment in segments[first:]:
        log.warning("segment dropped path=%s reason=%s", segment.path(".log"), reason)
        segment.delete_files()
    del segments[first:]


class _Scan:
    """Reads one segment from its start and checks its batches up to the first damaged one."""

    def __init__(
        self,
        segment: Segment,
        later: list[Segment],
        epochs: LeaderEpochs,
        producers: Producers,
        replay_from: int,
        dense_from: int | None,
    ) -> None:
        self._segment = segment
        self._epochs = epochs
        self._producers = producers
        self._replay_from = replay_from
        self._dense_from = dense_from
        self._next_base_offset = later[0].base_offset if later else None
        self.file_bytes = segment.size_bytes
        #: the offset after the last valid batch; ``segment.size_bytes`` is its position
        self.end_offset = segment.base_offset
        #: why the scan stopped at ``end_offset``; None if all batches are valid
        self.damage: str | None = None

    def run(self, disk: Disk) -> None:
        """Rebuild the segment's size and indexes from its valid batches. Set ``end_offset`` and ``damage``."""
        segment, size = self._segment, self.file_bytes
        segment.size_bytes = 0
        segment.reset_indexes()
        chunk, chunk_at = b"", 0
        while (position := segment.size_bytes) < size:
            inner = position - chunk_at
            if inner + HEADER_BYTES > len(chunk):
                chunk, chunk_at, inner = disk.pread(segment.file.fd, _READ_BYTES, position), position, 0
                if len(chunk) < HEADER_BYTES:
                    self.damage = "fewer bytes than a batch header are left"
                    return
            header = read_header(chunk, inner)
            if header.length < LENGTH_MIN or position + header.size_bytes > size:
                self.damage = "the last batch is incomplete"
                return
            if inner + header.size_bytes > len(chunk):
                chunk = disk.pread(segment.file.fd, max(_READ_BYTES, header.size_bytes), position)
                chunk_at, inner = position, 0
            self.damage = self._check_and_apply(header, memoryview(chunk)[inner : inner + header.size_bytes])
            if self.damage:
                return

    def _check_and_apply(self, header: BatchHeader, batch: memoryview) -> str | None:
        """Apply a valid batch to the epochs, producers and indexes. Return why it is damaged, None if it is valid."""
        expected, base = self.end_offset, header.base_offset
        if header.magic != MAGIC:
            return f"magic is {header.magic}, not {MAGIC}"
        last = header.last_offset
        if not expected <= base <= last <= self._segment.base_offset + RELATIVE_OFFSET_MAX:
            return f"offsets are {base} to {last}, the first must be {expected} or larger"
        if base > expected and not self._may_skip(expected, header.next_offset):
            return f"offset is {base}, must be {expected}"
        if len(batch) != header.size_bytes or checksum(batch) != header.crc:
            return "the checksum does not match"
        self._epochs.assign(header.leader_epoch, base)
        if base >= self._replay_from and (aborted := self._producers.replay(header, batch)) is not None:
            self._segment.aborted.append(aborted)
        self._segment.note_append(header.last_offset, header.size_bytes, header.max_timestamp, INDEX_INTERVAL_BYTES)
        self.end_offset = header.next_offset
        return None

    def _may_skip(self, expected: int, next_offset: int) -> bool:
        """Return whether offsets from ``expected`` on may be missing before a batch that ends at ``next_offset``."""
        if self._next_base_offset is not None:
            return next_offset <= self._next_base_offset
        return self._dense_from is None or expected < self._dense_from
