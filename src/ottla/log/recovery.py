"""Opening a log's directory, after a clean stop or after none.

Clean: the stop noted where each log ended; names and sizes are trusted and no segment is read.
Not clean: every batch from the recovery point on is read and checked, indexes, producers and epochs are rebuilt from
what is there, and the log is cut at the first byte that does not belong to a whole, undamaged batch. Everything below
the recovery point had been synced, and what was acknowledged was written: neither is ever cut by this. If it is missing
all the same, ``gaps`` fills its place.

A checksum covers all of a batch but its offset and its leader epoch. An offset must therefore follow the one before it.
Only compaction leaves gaps. Ours ends every segment it writes where the next begins and never touches the last, so its
gaps are inside segments, even when it was cut off before its checkpoint. Kafka's can be between them too, below what
the recovery point or the cleaner's checkpoint says. Elsewhere between segments, and in the last one of a topic that
never was compacted, a gap is damage. That a topic was compacted once, and is not any more, the checkpoint tells.

A compaction that was cut off is undone or finished: ``.cleaned`` files go, a ``.swap`` of a log takes the place of the
segments that it was made from. Other leftovers of the last life, ``.deleted`` and ``.tmp``, go too; so do indexes
without a segment, and producer snapshots that belong to no segment and are not the newest.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from ottla.env.disk import Disk, read_derived_file
from ottla.log.epochs import LeaderEpochs
from ottla.log.gaps import check_sealed, fill_gap, report_gap
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.log import EPOCHS_FILE, Log
from ottla.log.producers import Producers, load_snapshot, remove_snapshots, snapshot_offsets, snapshot_path
from ottla.log.segment import CLEANED, INDEX_INTERVAL_BYTES, SWAP, SWAPPED, Segment, SegmentFile
from ottla.model.batch import HEADER_BYTES, LENGTH_MIN, MAGIC, BatchHeader, checksum, read_header
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStop:
    """What a clean stop noted of one log."""

    log_end_offset: int
    active_base_offset: int
    active_size_bytes: int
    #: of all segments before the active one; None in a note of an earlier version
    sealed_bytes: int | None = None


def open_log(
    disk: Disk, directory: str, name: TopicPartition, settings: TopicSettings, *,
    clean: CleanStop | None, recovery_point: int, log_start_offset: int, cleaner_offset: int | None = 0,
    high_watermark: int = 0,
) -> Log:  # fmt: skip
    """Open the log in ``directory``; it may be empty. Raise WriteFailed if a write fails, OSError if a read does.

    Everything below ``cleaner_offset`` was compacted; None when nobody knows any more how far that went. If the files
    end before the offset that the clean stop noted, or else before ``recovery_point`` or ``high_watermark``, records
    were lost: a batch without records takes their offsets.
    """
    _finish_swaps(disk, directory)
    segments = _list_segments(disk, directory)
    epochs = _load_epochs(disk, directory)
    was_clean = clean is not None and epochs is not None and _fits(segments, clean)
    if clean is not None and epochs is not None and was_clean:
        end_offset = clean.log_end_offset
        producers = None
        for segment in segments:
            # An empty one may have no file yet, let alone a name on disk.
            segment.synced_bytes = segment.indexed_bytes = segment.size_bytes or -1
    else:
        compacted = settings.compact or cleaner_offset != 0
        synced_end = clean.log_end_offset if clean is not None else recovery_point
        dense_from = None if cleaner_offset is None else max(synced_end, cleaner_offset)
        if settings.compact and not dense_from:
            dense_from = None  # there may never have been a checkpoint here: a folder from a backup
        known_end = synced_end if clean is not None else max(synced_end, high_watermark)
        epochs, end_offset, producers = _recover(
            disk, directory, segments, epochs or LeaderEpochs(), recovery_point, dense_from, compacted, synced_end,
            known_end,
        )  # fmt: skip
    start_offset = max(log_start_offset, segments[0].base_offset if segments else end_offset)
    if end_offset < start_offset:
        # The start moved beyond everything the files hold (deleted records, lost files): begin anew there.
        for segment in segments:
            segment.delete_files()
        segments, end_offset = [], start_offset
        producers = Producers()
    if not segments:
        segments = [Segment(disk, directory, end_offset)]
        if end_offset:
            # The name of this file is all that tells where the log goes on.
            segments[0].open_file()
            disk.fsync_dir(directory)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    opened = Log(
        disk=disk, directory=directory, name=name, settings=settings, segments=segments,
        log_start_offset=start_offset, log_end_offset=end_offset, epochs=epochs, producers=producers,
        epochs_synced=was_clean,
    )  # fmt: skip
    if cleaner_offset is not None and start_offset <= cleaner_offset <= end_offset:
        # Otherwise the files are not those that were compacted, and all of them are taken for dirty.
        opened.first_dirty_offset = cleaner_offset
    return opened


def _finish_swaps(disk: Disk, directory: str) -> None:
    """Finish what Segment.swap_files began. Each step leaves what it needs to be taken again."""
    names = disk.listdir(directory)
    swaps = [name for name in names if name.endswith(SWAP)]
    for name in swaps.copy():
        if not name.endswith(".log" + SWAP) or not (stem := name.removesuffix(".log" + SWAP)).isdecimal():
            continue
        path = os.path.join(directory, name)
        base, end = int(stem), _end_of_file(disk, path)
        log.warning("compaction was cut off and is finished path=%s", path)
        for suffix in SWAPPED[1:]:
            # Kafka renames the log first. What describes it is as whole as it is.
            index = path.removesuffix(".log" + SWAP) + suffix
            if disk.exists(index + CLEANED):
                disk.rename(index + CLEANED, index + SWAP)
                swaps.append(os.path.basename(index + SWAP))
        for old in names:
            stem, suffix = os.path.splitext(old)
            if stem.isdecimal() and (base < int(stem) < end or (int(stem) == base and suffix in SWAPPED[1:])):
                disk.remove(os.path.join(directory, old))
        disk.rename(path, path.removesuffix(SWAP))
    for name in swaps:
        # Indexes: the log that they belong to has its name by now, unless it never came that far.
        path = os.path.join(directory, name)
        if disk.exists(os.path.splitext(path.removesuffix(SWAP))[0] + ".log" + CLEANED):
            disk.remove(path)
        elif disk.exists(path):
            disk.rename(path, path.removesuffix(SWAP))
    if swaps:
        disk.fsync_dir(directory)


def _end_of_file(disk: Disk, path: str) -> int:
    """The offset behind the last batch of a file that was synced before it got its name."""
    file, position, end = SegmentFile(disk, disk.open(path)), 0, 0
    while len(head := disk.pread(file.fd, HEADER_BYTES, position)) == HEADER_BYTES:
        header = read_header(head)
        if header.length < LENGTH_MIN:
            break
        end, position = header.next_offset, position + header.size_bytes
    return end


def _list_segments(disk: Disk, directory: str) -> list[Segment]:
    """The segments by name, leftovers of the last life removed."""
    segments = []
    names = set(disk.listdir(directory))
    for name in names:
        path = os.path.join(directory, name)
        stem, suffix = os.path.splitext(name)
        orphan = suffix in SWAPPED[1:] and stem + ".log" not in names
        if orphan or suffix in (".deleted", ".cleaned", ".tmp"):
            disk.remove(path)
        elif suffix == ".log" and stem.isdecimal():
            segments.append(Segment(disk, directory, int(stem), disk.file_size(path) or 0))
    segments.sort(key=_base_offset)
    bases = {segment.base_offset for segment in segments}
    for offset in snapshot_offsets(disk, directory)[1:]:
        if offset not in bases:
            disk.remove(snapshot_path(directory, offset))
    return segments


def _fits(segments: list[Segment], clean: CleanStop) -> bool:
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
    """Return the history of leader epochs; None if its file is damaged: it is then rebuilt from all batches."""
    path = os.path.join(directory, EPOCHS_FILE)
    data = read_derived_file(disk, path)
    if not data:
        return None if disk.exists(path) and data is None else LeaderEpochs()
    try:
        return LeaderEpochs.from_text(data.decode("ascii"))
    except (ValueError, IndexError):
        log.warning("leader epochs are damaged and will be rebuilt dir=%s", directory)
        return None


def _recover(
    disk: Disk, directory: str, segments: list[Segment], epochs: LeaderEpochs, recovery_point: int,
    dense_from: int | None, compacted: bool, synced_end: int, known_end: int,
) -> tuple[LeaderEpochs, int, Producers | None]:  # fmt: skip
    """Read what may be damaged, cut where it is, rebuild what describes it.

    Offsets below ``known_end`` were assigned: what is missing of them is filled by batches without records. Below
    ``synced_end`` a damaged batch ends its segment only: what follows had been synced and stays.
    """
    # Without its history of epochs a log is read as a whole; without a snapshot of its producers, from the last one on.
    # A segment is read from its start, and which transactions end in it only those know who began it.
    first = _holder(segments, recovery_point if epochs.epochs else 0)
    producers, replay_from = load_snapshot(disk, directory, segments[first].base_offset if segments else recovery_point)
    while segments and first != (older := _holder(segments, replay_from)):
        first = older
        producers, replay_from = load_snapshot(disk, directory, segments[first].base_offset)
    if not first and not compacted:
        # All of them are about to be read again. Compaction may have dropped the batches that an epoch began with.
        epochs = LeaderEpochs()
    for segment, following in pairwise(segments[: first + 1]):
        segment.synced_bytes = segment.indexed_bytes = segment.size_bytes
        segment.indexes_unverified = True
        may_skip = compacted and (dense_from is None or segment.base_offset < dense_from)
        check_sealed(disk, segment, following.base_offset, epochs, may_skip=may_skip)
    end_offset = segments[first].base_offset if segments else 0
    for number in range(first, len(segments)):
        segment = segments[number]
        gap = segment.base_offset - end_offset
        if gap < 0 or (gap > 0 and dense_from is not None and end_offset >= dense_from):
            _drop(segments, number, f"it should start at offset {end_offset}")
            break
        if gap > 0 and not compacted and number > first:
            fill_gap(disk, segments[number - 1], end_offset, segment.base_offset, max(epochs.latest, 0))
        inside_from = None if compacted else dense_from
        scan = _Scan(segment, segments[number + 1 :], epochs, producers, replay_from, inside_from)
        scan.run(disk)
        end_offset = scan.end_offset
        if scan.damage:
            log.warning(
                "log cut path=%s position=%d size=%d next_offset=%d reason=%s",
                segment.path(".log"), segment.size_bytes, scan.file_bytes, end_offset, scan.damage,
            )  # fmt: skip
            disk.truncate(segment.file.fd, segment.size_bytes)
            if end_offset < synced_end and number + 1 < len(segments):
                continue
            _drop(segments, number + 1, "it stands behind the cut")
            break
    # Before a gap is filled: a producer that repeats a batch which was lost must not be told that it is stored.
    remove_snapshots(disk, directory, behind=end_offset)
    # A snapshot of more than is left says nothing: the log then loads an older one and replays.
    known_producers = producers if replay_from <= end_offset else None
    epochs.truncate_from_end(end_offset)
    if end_offset < known_end:
        end_offset = _fill_end(disk, directory, segments, end_offset, known_end, max(epochs.latest, 0))
    if len(segments) - first > 1:
        # Recovery will not read these segments again, so what it learnt of them must stay.
        disk.write_file(os.path.join(directory, EPOCHS_FILE), epochs.to_text().encode(), sync=True)
    # What recovery found and keeps may so far be in the page cache only, yet the log will be taken for synced. What it
    # removed must not come back either: the first sync of each file, here or later, takes the folder's names along.
    for segment in segments[first:]:
        if segment.size_bytes:
            segment.sync()
            segment.synced_bytes = segment.size_bytes
        if segment is not segments[-1]:
            segment.write_indexes()
    return epochs, end_offset, known_producers


def _fill_end(
    disk: Disk, directory: str, segments: list[Segment], end_offset: int, known_end: int, leader_epoch: int
) -> int:
    """Let the log end at ``known_end``, where it is known to have ended; return the end that it has now."""
    if not segments:
        report_gap(directory, end_offset, known_end)
        return known_end
    return known_end if fill_gap(disk, segments[-1], end_offset, known_end, leader_epoch) else end_offset


def _holder(segments: list[Segment], offset: int) -> int:
    """The number of the segment that holds an offset."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _drop(segments: list[Segment], first: int, reason: str) -> None:
    for segment in segments[first:]:
        log.warning("segment dropped path=%s reason=%s", segment.path(".log"), reason)
        segment.delete_files()
    del segments[first:]


class _Scan:
    """One file read from its start: batches are checked and noted, up to the first that is damaged."""

    def __init__(
        self, segment: Segment, later: list[Segment], epochs: LeaderEpochs, producers: Producers, replay_from: int,
        dense_from: int | None,
    ) -> None:  # fmt: skip
        self._segment = segment
        self._epochs = epochs
        self._producers = producers
        self._replay_from = replay_from
        self._dense_from = dense_from
        self._next_base_offset = later[0].base_offset if later else None
        self.file_bytes = segment.size_bytes
        #: the offset behind the last good batch; the segment's size is the position
        self.end_offset = segment.base_offset
        #: what is wrong there
        self.damage: str | None = None

    def run(self, disk: Disk) -> None:
        segment, size = self._segment, self.file_bytes
        segment.size_bytes = 0
        segment.reset_indexes()
        chunk, chunk_at = b"", 0
        while (position := segment.size_bytes) < size:
            inner = position - chunk_at
            if inner + HEADER_BYTES > len(chunk):
                chunk, chunk_at, inner = disk.pread(segment.file.fd, _READ_BYTES, position), position, 0
                if len(chunk) < HEADER_BYTES:
                    self.damage = "less than a batch header is left"
                    return
            header = read_header(chunk, inner)
            if header.length < LENGTH_MIN or position + header.size_bytes > size:
                self.damage = "the last batch is not whole"
                return
            if inner + header.size_bytes > len(chunk):
                chunk = disk.pread(segment.file.fd, max(_READ_BYTES, header.size_bytes), position)
                chunk_at, inner = position, 0
            self.damage = self._look(header, memoryview(chunk)[inner : inner + header.size_bytes])
            if self.damage:
                return

    def _look(self, header: BatchHeader, batch: memoryview) -> str | None:
        """Note a batch, or say what is wrong with it."""
        expected, base = self.end_offset, header.base_offset
        if header.magic != MAGIC:
            return f"magic {header.magic}"
        last = header.last_offset
        if not expected <= base <= last <= self._segment.base_offset + RELATIVE_OFFSET_MAX:
            return f"offsets {base} to {last} where {expected} or more must follow"
        if base > expected and not self._may_skip(expected, header.next_offset):
            return f"offset {base} where {expected} must follow"
        if len(batch) != header.size_bytes or checksum(batch) != header.crc:
            return "checksum"
        self._epochs.assign(header.leader_epoch, base)
        if base >= self._replay_from and (aborted := self._producers.replay(header, batch)) is not None:
            self._segment.aborted.append(aborted)
        self._segment.note_append(header.last_offset, header.size_bytes, header.max_timestamp, INDEX_INTERVAL_BYTES)
        self.end_offset = header.next_offset
        return None

    def _may_skip(self, expected: int, next_offset: int) -> bool:
        """Whether offsets from ``expected`` on may be missing before a batch that ends with ``next_offset``."""
        if self._next_base_offset is not None:
            return next_offset <= self._next_base_offset
        return self._dense_from is None or expected < self._dense_from


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
