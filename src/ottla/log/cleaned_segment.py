"""A segment that compaction has written, and how its files take the place of those of its sources.

Compaction writes ``.cleaned`` files, which recovery deletes. When they are complete, they become ``.swap`` files, and
then get their final names; ``finish_swaps`` completes that after a crash.
"""

from __future__ import annotations

import logging
import os

from ottla.env.disk import Disk
from ottla.log.file_region import SegmentFile
from ottla.log.index import OffsetIndex, TimeIndex
from ottla.log.segment import SEGMENT_FILES, Segment
from ottla.log.transactions import index_from_bytes
from ottla.model.batch import HEADER_BYTES, LENGTH_MIN, read_header

log = logging.getLogger(__name__)

CLEANED, SWAP = ".cleaned", ".swap"


class CleanedSegment(Segment):
    """A segment that compaction writes, or has written since the start of the process."""

    __slots__ = ("swap_sources",)

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        super().__init__(disk, directory, base_offset)
        #: the segments that this one has replaced in the log, until ``swap_files`` is complete
        self.swap_sources: list[Segment] | None = None

    def open_cleaned(self) -> None:
        """Create an empty ``.log.cleaned`` file, which recovery deletes."""
        self._file = SegmentFile(self._disk, self._disk.open(self.path(".log" + CLEANED), create=True))
        self._disk.truncate(self._file.fd, 0)

    def append_cleaned(self, batches: bytes) -> None:
        """Write compacted batches to the end of the ``.cleaned`` file."""
        self._disk.pwrite(self.file.fd, batches, self.size_bytes)
        self.size_bytes += len(batches)

    def finish_cleaned(
        self, offset_index: bytes, time_index: bytes, txn_index: bytes, times: tuple[int, int, int]
    ) -> None:
        """Sync the ``.cleaned`` file and write its indexes.

        ``times`` are the first timestamp, the max timestamp and the offset of the max timestamp. ``synced_bytes`` stays
        -1, because the final name of the file is not synced yet.
        """
        self._offset_index, self._time_index = OffsetIndex.from_bytes(offset_index), TimeIndex.from_bytes(time_index)
        self._aborted = index_from_bytes(txn_index, self.base_offset)
        self.first_timestamp, self.max_timestamp, self.max_timestamp_offset = times
        self._disk.fdatasync(self.file.fd)
        self.write_indexes(CLEANED)

    def remove_cleaned(self) -> None:
        """Delete the ``.cleaned`` files."""
        for suffix in SEGMENT_FILES:
            self._disk.remove(self.path(suffix + CLEANED))

    def swap_files(self) -> None:
        """Rename this compacted segment's files to their final names and delete the files of ``swap_sources``.

        Runs in a thread, or on the event loop before a truncation. Do nothing if the swap is complete.

        Ottla and Kafka can each complete a swap that the other started: if a ``.log.swap`` file exists, it is complete
        and replaces the sources. The indexes become ``.swap`` files before the log, because recovery could not detect
        a missing transaction index. Completed steps are skipped, so that the swap can be retried.
        """
        if self.swap_sources is None:
            return
        with self._names:
            if self.swap_sources is not None and self._owns_files:
                self._swap_files(self.swap_sources)
                self.swap_sources = None

    def _swap_files(self, sources: list[Segment]) -> None:
        disk = self._disk
        # 1. Rename .cleaned to .swap. From here on recovery completes the swap.
        for suffix in (*SEGMENT_FILES[1:], SEGMENT_FILES[0]):
            self._rename(suffix, CLEANED, SWAP)
        disk.fsync_dir(self.directory)
        # 2. Delete the sources whose names the compacted segment does not take over.
        if disk.exists(self.path(".log" + SWAP)):
            for source in sources:
                if source.base_offset == self.base_offset:
                    source.disown_files()
                else:
                    source.delete_files()
        # 3. Rename .swap to the final names and sync the folder before any code relies on these names.
        for suffix in SEGMENT_FILES:
            self._rename(suffix, SWAP, "")
        disk.fsync_dir(self.directory)

    def _rename(self, suffix: str, before: str, after: str) -> None:
        if self._disk.exists(self.path(suffix + before)):
            self._disk.rename(self.path(suffix + before), self.path(suffix + after))


def finish_swaps(disk: Disk, directory: str) -> None:
    """Complete the swaps of a folder that a crash interrupted. After a crash at any step, the next start repeats it."""
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
