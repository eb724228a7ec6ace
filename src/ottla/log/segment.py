"""A segment: one ``.log`` file, its offset index, its time index and, after aborts, its transaction index.

``size_bytes`` includes the appended batches that are still pending, because the log writes several batches at once.
Only the active (last) segment changes. Files are opened at their first use, so that thousands of idle partitions use
no file descriptors and do not slow down the start.

Threads sync a segment, write its index files, swap them or delete them, while the event loop goes on. Two rules make
sure that a thread which started before a truncation (or before retention, compaction or the deletion of the topic) can
neither mark later bytes as synced nor bring deleted files back:

1. Written batches are only added to a ``Segment`` object, never removed. To remove some, the log replaces the object by
   a new one (``part_before``). The old object is ``dropped``, for good: what a thread reports about it is ignored.
2. A segment changes the names in its folder (creates, renames, deletes files) only while it holds ``_names``. It
   creates no file after it was dropped. It changes no name after it lost its files (``disown_files``,
   ``delete_files``), because these names may then belong to another object.
"""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from struct import Struct
from threading import Lock
from typing import NamedTuple

from ottla.env.disk import Disk, WriteFailed, read_derived_file
from ottla.log.file_region import SegmentFile
from ottla.log.folders import METADATA, sync_file
from ottla.log.index import POSITION_MASK, RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from ottla.log.transactions import EndedTransaction, index_checksum, index_from_bytes, index_to_bytes
from ottla.model.batch import HEADER_BYTES, LENGTH_END, LENGTH_MIN, MAGIC, BatchHeader, read_header
from ottla.model.errors import CorruptMessage

log = logging.getLogger(__name__)

NO_TIMESTAMP = -1
#: file with the checksum of the transaction index, because Kafka's format of that index contains none
TXN_CHECKSUM = ".txnindex-crc"
#: the files of a segment, without its producer snapshot
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex", TXN_CHECKSUM)
#: Kafka's default of index.interval.bytes, used to rebuild indexes
INDEX_INTERVAL_BYTES = 4096
#: size of one read when batch headers are scanned
_SCAN_BYTES = 16384
base_offset_of = attrgetter("base_offset")
_LENGTHS = Struct(">qi")
_OFFSETS = Struct(">qi11xi")
_CHECKED = Struct(">qi4xb6xi")


class Segment:
    """The batches from ``base_offset`` up to the base offset of the next segment."""

    __slots__ = (
        "_aborted", "_disk", "_file", "_names", "_offset_index", "_owns_files", "_time_index", "_times_unchecked",
        "base_offset", "bytes_since_index", "directory", "dropped", "first_timestamp", "indexed_bytes",
        "indexes_unverified", "max_timestamp", "max_timestamp_offset", "pending_bytes", "size_bytes", "synced_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, size_bytes: int = 0) -> None:
        self._disk = disk
        self._file: SegmentFile | None = None
        #: None until first used; an empty ``.log`` file ignores index files that an earlier run may have left
        self._offset_index: OffsetIndex | None = None if size_bytes else OffsetIndex()
        self._time_index: TimeIndex | None = None if size_bytes else TimeIndex()
        self._aborted: list[EndedTransaction] | None = None if size_bytes else []
        self.directory = directory
        self.base_offset = base_offset
        #: includes the pending bytes
        self.size_bytes = size_bytes
        #: bytes at the end that are still in memory: their index entries exist, but they cannot be read from the file
        self.pending_bytes = 0
        #: number of synced bytes; -1 until the name of the file is synced too
        self.synced_bytes = -1
        #: ``size_bytes`` when the index files were written; if equal to ``size_bytes``, they are up to date
        self.indexed_bytes = -1
        #: ``max_timestamp`` comes from the time index and was not yet compared with the batches
        self._times_unchecked = False
        #: no longer part of its log, and never again; creates no file any more
        self.dropped = False
        #: held while names in the folder change: a thread and the event loop may both want to
        self._names = Lock()
        #: whether the files with the segment's names are its own
        self._owns_files = True
        #: the last stop was not clean: check the index files before their first use
        self.indexes_unverified = False
        self.bytes_since_index = 0
        #: the max timestamp of the first batch: segment.ms counts from it
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1

    @property
    def written_bytes(self) -> int:
        """Return the size without the pending bytes. Only this part of the file may be read."""
        return self.size_bytes - self.pending_bytes

    # -- files ----------------------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, f"{self.base_offset:020d}{suffix}")

    @property
    def file(self) -> SegmentFile:
        return self._file or self.open_file()

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open_file(self) -> SegmentFile:
        """Open and return the file. Create it only for the first batch of the segment.

        Raise FileNotFoundError if the file is missing, or if a dropped segment would have to create it.
        """
        path = self.path(".log")
        if not self.written_bytes:
            with self._names:
                # Open an existing file without ``create``, so that a failure counts as a read error of this partition.
                create = not self.dropped and not self._disk.exists(path)
                self._file = SegmentFile(self._disk, self._disk.open(path, create=create))
        else:
            self._file = SegmentFile(self._disk, self._disk.open(path))
        return self._file

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def aborted(self) -> list[EndedTransaction]:
        """Return the aborted transactions with a marker in this segment. Raise ValueError if their index is damaged."""
        if self._aborted is None:
            data = read_derived_file(self._disk, self.path(".txnindex"))
            checksum = read_derived_file(self._disk, self.path(TXN_CHECKSUM))
            if data is None and checksum is None and not self._has_txn_files():
                self._aborted = []  # the usual case: no transaction was aborted
            elif data is None or checksum != index_checksum(data):
                raise ValueError("the transaction index does not match its checksum, or one of the two is missing")
            else:
                self._aborted = index_from_bytes(data, self.base_offset)
        return self._aborted

    @aborted.setter
    def aborted(self, rows: list[EndedTransaction]) -> None:
        self._aborted = rows

    def _has_txn_files(self) -> bool:
        return any(self._disk.exists(self.path(suffix)) for suffix in (".txnindex", TXN_CHECKSUM))

    def _load_indexes(self) -> None:
        offset_data = read_derived_file(self._disk, self.path(".index"))
        time_data = read_derived_file(self._disk, self.path(".timeindex"))
        if offset_data is not None and time_data is not None:
            offset_index, time_index = OffsetIndex.from_bytes(offset_data), TimeIndex.from_bytes(time_data)
            # An empty time index is correct only if no batch has a timestamp. This is rare, so rebuild it then too.
            has_times = bool(time_index.timestamps)
            if has_times and (
                not self.indexes_unverified
                or (offset_index.is_sound(self.size_bytes) and time_index.is_sound(time_data))
            ):
                self._offset_index, self._time_index = offset_index, time_index
                return
        log.warning("rebuilding a missing or damaged index path=%s", self.path(".index"))
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from all batch headers. This is slow: use it only for missing or damaged indexes."""
        rebuilt = Segment(self._disk, self.directory, self.base_offset)
        for _, header in self.headers():
            if not 0 <= header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
                break  # the header is damaged, as its readers find out
            rebuilt.note_append(header.last_offset, header.size_bytes, header.max_timestamp, INDEX_INTERVAL_BYTES)
        if rebuilt.max_timestamp != NO_TIMESTAMP:
            rebuilt.time_index.maybe_append(rebuilt.max_timestamp, rebuilt.max_timestamp_offset - self.base_offset)
        self._offset_index, self._time_index = rebuilt.offset_index, rebuilt.time_index
        self.indexed_bytes = -1

    def load_times(self) -> None:
        """Load the max timestamp from the last entry of the time index, if it is not known yet."""
        if self.max_timestamp == NO_TIMESTAMP and self.size_bytes and self.time_index.timestamps:
            self.max_timestamp = self.time_index.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + self.time_index.offsets[-1]
            self._times_unchecked = True

    def check_newest_timestamp(self) -> None:
        """Correct ``max_timestamp`` if it is wrong, before retention deletes the segment because of its age.

        The timestamp may come from the time index, which has no checksum. Compare it with its batch and with all
        later batches.
        """
        if not self._times_unchecked:
            return
        self._times_unchecked = False
        headers = self.headers(self.position_of(self.max_timestamp_offset))
        timestamps = [header.max_timestamp for _, header in headers]
        if not timestamps or timestamps[0] != self.max_timestamp or max(timestamps) > self.max_timestamp:
            self._rebuild_wrong_index()
            self.max_timestamp = NO_TIMESTAMP
            self.load_times()
            self._times_unchecked = False

    def first_offset_at_time(self, timestamp: int) -> int:
        """Return an offset so that all records with smaller offsets are older than ``timestamp``."""
        before = self.time_index.offset_before(timestamp)
        if before < 0:
            return self.base_offset
        offset, indexed = self.base_offset + before, self.time_index.timestamp_of(before)
        position = self.position_of(offset)
        if position >= self.written_bytes and self.pending_bytes:
            return offset + 1  # the entry of a pending batch: there is nothing to compare it with yet
        header = next((header for _, header in self.headers(position)), None)
        if header is None or header.max_timestamp != indexed or not header.base_offset <= offset <= header.last_offset:
            self._rebuild_wrong_index()
            before = self.time_index.offset_before(timestamp)
        return self.base_offset + before + 1

    def load_first_timestamp(self) -> int:
        """Return ``first_timestamp``; read it from the first batch if it is not known yet."""
        if self.first_timestamp == NO_TIMESTAMP and self.written_bytes:
            header = self._disk.pread(self.file.fd, HEADER_BYTES, 0)
            self.first_timestamp = read_header(header).max_timestamp
        return self.first_timestamp

    def write_indexes(self, suffix: str = "") -> None:
        """Write and sync the index files if they are out of date. Do nothing for a dropped segment.

        The last entry of the time index holds the max timestamp.
        """
        with self._names:
            if self.size_bytes and self.indexed_bytes != self.size_bytes and not self.dropped:
                self._write_index_files(suffix)

    def _write_index_files(self, suffix: str) -> None:
        size = self.size_bytes
        if self.max_timestamp != NO_TIMESTAMP:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self._disk.write_file(self.path(".index" + suffix), self.offset_index.to_bytes(), sync=True)
        self._disk.write_file(self.path(".timeindex" + suffix), self.time_index.to_bytes(), sync=True)
        if self._aborted or (self._aborted is not None and self._has_txn_files()):
            # Replace an existing file by an empty one: after a power failure a removed file could reappear.
            self._write_txn_files(suffix, sync=True)
        self.indexed_bytes = size

    def write_aborted(self) -> None:
        """Write the transaction index, without a sync. Do nothing for a dropped segment."""
        with self._names:
            if not self.dropped:
                self._write_txn_files("", sync=False)

    def _write_txn_files(self, suffix: str, *, sync: bool) -> None:
        """Write the transaction index and its checksum. After a crash between the two writes the index is rebuilt."""
        data = index_to_bytes(self.aborted)
        self._disk.write_file(self.path(".txnindex" + suffix), data, sync=sync)
        self._disk.write_file(self.path(TXN_CHECKSUM + suffix), index_checksum(data), sync=sync)

    def sync(self) -> None:
        """Sync the file and, the first time, its folder with the topic id, and the parent folder. Runs in a thread.

        Raise WriteFailed.
        """
        try:
            file = self.file
        except FileNotFoundError:
            if self.dropped:
                return
            raise
        try:
            self._disk.fdatasync(file.fd)
        except OSError as error:
            # The kernel drops the data that it could not write, even if the cause was a full disk: do not retry.
            raise WriteFailed(errno.EIO, f"fdatasync failed: {error.strerror}") from error
        if self.synced_bytes < 0:
            # Without a topic id, a start does not know whose batches these are: they would not count as synced.
            sync_file(self._disk, os.path.join(self.directory, METADATA))
            self._disk.fsync_dir(self.directory)
            self._disk.fsync_dir(os.path.dirname(self.directory))

    def sync_sealed(self, small_files: list[str]) -> None:
        """Sync the file and those of ``small_files`` that exist, then write the indexes. Runs in a thread.

        Do nothing for a dropped segment.
        """
        if self.dropped:
            return
        self.sync()
        for path in small_files:
            # The event loop may replace or delete the file meanwhile. Each version of it is complete.
            sync_file(self._disk, path)
        self.write_indexes()

    def release_file(self) -> None:
        """Drop this segment's reference to the file, which closes when the replies that use it have been sent."""
        self._file = None

    def open_for_readers(self) -> None:
        """Open the file and load the indexes that readers use, before compaction renames other files to their names."""
        if self._file is None:
            self.open_file()
        if self._offset_index is None or self._time_index is None:
            self._load_indexes()

    def delete_files(self) -> None:
        """Drop the segment and delete its files, including the producer snapshot at its base offset.

        Do nothing if the segment does not own its files any more.
        """
        with self._names:
            self.dropped = True
            if self._owns_files:
                for suffix in (*SEGMENT_FILES, ".snapshot"):
                    self._disk.remove(self.path(suffix))
                self._owns_files = False

    def disown_files(self) -> None:
        """Drop the segment without deleting its files: another object has their names from now on.

        Wait until a thread that changes these names has finished.
        """
        with self._names:
            self.dropped, self._owns_files = True, False

    # -- appending ------------------------------------------------------------------------------------------------

    def note_append(self, last_offset: int, size_bytes: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Update the size, the timestamps and the indexes for a batch at the end of the segment."""
        if self.bytes_since_index > index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, self.size_bytes)
            if self.max_timestamp != NO_TIMESTAMP:
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.bytes_since_index = 0
        if not self.size_bytes:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        self.size_bytes += size_bytes
        self.bytes_since_index += size_bytes

    # -- reading --------------------------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch whose last offset is at least ``offset``, or the end of the file.

        Pending batches are not found. Raise CorruptMessage if the length field of a batch is impossible.
        """
        entry = self.offset_index.entry_before(offset - self.base_offset)
        indexed = position = entry & POSITION_MASK
        size = self.written_bytes
        if position >= size:
            return size if position < self.size_bytes or not position else self._rebuilt_position_of(offset)
        pread, file = self._disk.pread, self.file
        while position < size:
            chunk = pread(file.fd, _SCAN_BYTES, position)
            if position == indexed and position and not self._is_entry_of(entry, chunk):
                return self._rebuilt_position_of(offset)
            at, usable = 0, len(chunk) - HEADER_BYTES
            while at <= usable:
                base, length, delta = _OFFSETS.unpack_from(chunk, at)
                if base + delta >= offset:
                    return position + at
                if length < LENGTH_MIN:
                    raise self._damaged_at(position + at)
                at += length + LENGTH_END
            if not at:
                break  # fewer bytes than a header are left: no complete batch follows
            position += at
        return position

    def indexed_position(self, offset: int) -> int:
        """Return the position of an index entry before ``offset``: at most index.interval.bytes before its batch."""
        return self.offset_index.entry_before(offset - self.base_offset) & POSITION_MASK

    def _rebuilt_position_of(self, offset: int) -> int:
        self._rebuild_wrong_index()
        return self.position_of(offset)

    def _rebuild_wrong_index(self) -> None:
        log.error("rebuilding an index that does not match its log path=%s", self.path(".index"))
        self.rebuild_indexes()

    def _is_entry_of(self, entry: int, data: bytes) -> bool:
        """Return whether ``data``, read at the entry's written position, starts with a batch that matches the entry.

        The entry holds the last offset of that batch or, if Kafka wrote it, of a later batch of the same append.
        """
        if len(data) < HEADER_BYTES:
            return False
        base, length, magic, delta = _CHECKED.unpack_from(data)
        last_offset: int = self.base_offset + (entry >> 32)
        is_complete: bool = LENGTH_MIN <= length <= self.size_bytes - LENGTH_END - (entry & POSITION_MASK)
        return is_complete and magic == MAGIC and self.base_offset <= base <= base + delta <= last_offset

    def offset_after(self, position: int) -> int | None:
        """Return an offset larger than those of all batches before ``position``; None if the index has none."""
        entry = self.offset_index.entry_at_least(position)
        if entry is None or self.written_bytes <= entry & POSITION_MASK < self.size_bytes:
            return None  # no entry, or that of a pending batch
        if not self._is_entry_of(entry, self._disk.pread(self.file.fd, HEADER_BYTES, entry & POSITION_MASK)):
            self._rebuild_wrong_index()
            return None
        return self.base_offset + (entry >> 32)

    def whole_batches(
        self, position: int, end: int, size_bytes_max: int, *, at_least_one: bool
    ) -> tuple[int, int | None]:
        """Return the size of the complete batches between ``position`` and ``end``, limited to ``size_bytes_max``.

        With ``at_least_one`` the first batch may exceed the limit. The second value is the base offset of the following
        batch, or None if it was not read. Raise CorruptMessage if the length field of a batch is impossible.
        """
        if end - position <= size_bytes_max:
            return end - position, None
        limit = position + size_bytes_max
        entry = self.offset_index.entry_at_most(limit)
        indexed = entry & POSITION_MASK
        at = max(indexed, position)
        pread, file = self._disk.pread, self.file
        while at < end:
            chunk = pread(file.fd, _SCAN_BYTES, at)
            if at == indexed and at != position and not self._is_entry_of(entry, chunk):
                self._rebuild_wrong_index()
                return self.whole_batches(position, end, size_bytes_max, at_least_one=at_least_one)
            inner, usable = 0, len(chunk) - LENGTH_END
            while inner <= usable:
                base, length = _LENGTHS.unpack_from(chunk, inner)
                if length < LENGTH_MIN:
                    raise self._damaged_at(at + inner)
                following: int = at + inner + length + LENGTH_END
                if following > limit:
                    if at + inner == position and at_least_one:
                        return following - position, None
                    return at + inner - position, base
                inner += length + LENGTH_END
            if not inner:
                break
            at += inner
        return end - position, None

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and header of every written batch from ``position`` on, until no complete one follows."""
        size = self.written_bytes
        if position + HEADER_BYTES > size:
            return
        pread, file = self._disk.pread, self.file
        while position + HEADER_BYTES <= size:
            chunk = pread(file.fd, _SCAN_BYTES, position)
            at, usable = 0, min(len(chunk), size - position) - HEADER_BYTES
            while at <= usable:
                header = read_header(chunk, at)
                if header.length < LENGTH_MIN:
                    return
                yield position + at, header
                at += header.size_bytes
            if not at:
                return
            position += at

    def batch(self, position: int, header: BatchHeader) -> bytes:
        """Return the bytes of the batch at ``position``."""
        file = self.file
        return self._disk.pread(file.fd, header.size_bytes, position)

    def newest_before(self, end_offset: int) -> tuple[int, int]:
        """Return the max timestamp of the batches that end before ``end_offset``, and the last offset of its batch."""
        self.load_times()
        if self.max_timestamp_offset < end_offset:
            return self.max_timestamp, self.max_timestamp_offset
        index, base = self.time_index, self.base_offset
        known = bisect_left(index.offsets, end_offset - base) - 1
        newest = (index.timestamps[known], index.offsets[known] + base) if known >= 0 else (NO_TIMESTAMP, -1)
        for _, header in self.headers(self.position_of(newest[1])):
            if header.last_offset >= end_offset:
                break
            if header.max_timestamp > newest[0]:
                newest = header.max_timestamp, header.last_offset
        return newest

    def _damaged_at(self, position: int) -> CorruptMessage:
        return CorruptMessage(f"the batch at position {position} of {self.path('.log')} is damaged: wrong length")

    # -- truncating -----------------------------------------------------------------------------------------------

    def part_before(self, position: int, offset: int) -> Segment:
        """Return a new segment with the batches before ``position``, all of which end at or before ``offset``.

        The new segment shares the open file, which the caller truncates. This segment does not change.
        """
        part = Segment(self._disk, self.directory, self.base_offset, self.written_bytes)
        part._file = self.file
        part._offset_index, part._time_index = self.offset_index.copy(), self.time_index.copy()
        with suppress(ValueError):  # a damaged transaction index is rebuilt from the remaining batches at its next use
            part._aborted = self.aborted.copy()
        part.synced_bytes, part.first_timestamp = self.synced_bytes, self.first_timestamp
        part._times_unchecked = self._times_unchecked
        part.max_timestamp, part.max_timestamp_offset = self.max_timestamp, self.max_timestamp_offset
        part._forget_after(position, offset)
        return part

    def undo_pending(self, offset: int) -> None:
        """Forget the pending batches, which begin at ``offset``. Truncate the file: a failed write may have left bytes.

        This changes nothing that a thread may use: the written batches stay.
        """
        position = self.written_bytes
        self.size_bytes, self.pending_bytes = position, 0
        self._forget_after(position, offset)
        if self.is_open or (self._disk.file_size(self.path(".log")) or 0) > position:
            self._disk.truncate(self.file.fd, position)

    def _forget_after(self, position: int, offset: int) -> None:
        """Set the size to ``position``, and remove what the indexes hold about ``offset`` and all later offsets."""
        self.size_bytes = position
        self.synced_bytes = min(self.synced_bytes, position)
        self.indexed_bytes = -1
        self.bytes_since_index = 0
        self.offset_index.truncate(offset - self.base_offset)
        if position:
            self.max_timestamp, self.max_timestamp_offset = self.newest_before(offset)
        else:
            self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
            self.max_timestamp_offset = -1
        self.time_index.truncate(offset - self.base_offset)
        with suppress(ValueError):
            self.aborted = [each for each in self.aborted if each.last_offset < offset]

    def reset_indexes(self) -> None:
        """Replace the indexes by empty ones, because recovery rebuilds them."""
        self._offset_index, self._time_index, self._aborted = OffsetIndex(), TimeIndex(), []
        self.indexed_bytes = -1
        self.bytes_since_index = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1


class SyncJob(NamedTuple):
    """The bytes of a log that were written, but not synced, when the sync started. ``run`` runs in a thread.

    The class stands after ``Segment``, because mypyc evaluates the types of the fields when the module is imported.
    """

    #: with the written size of each
    segments: list[tuple[Segment, int]]
    #: the active segment at that time; a truncation since then has dropped it
    active: Segment
    #: all batches below this offset were written
    end_offset: int

    def run(self) -> None:
        """Sync the files. Raise WriteFailed, or OSError if a file cannot be opened."""
        for segment, _ in self.segments:
            if not segment.dropped:
                segment.sync()


def segment_number(segments: list[Segment], offset: int) -> int:
    """Return the number of the segment that contains ``offset``, 0 for an offset before all of them."""
    return max(bisect_right(segments, offset, key=base_offset_of) - 1, 0)
