"""The scan of a segment after a crash, which finds the first byte that is not part of a complete, valid batch.

The checksum of a batch does not cover its base offset and its leader epoch. The base offset is therefore compared with
the end of the batch before. Only compaction leaves gaps between the offsets of batches.
"""

from __future__ import annotations

from ottla.env.disk import Disk
from ottla.log.epochs import LeaderEpochs
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.producers import Producers
from ottla.log.segment import INDEX_INTERVAL_BYTES, Segment
from ottla.model.batch import HEADER_BYTES, LENGTH_MIN, MAGIC, BatchHeader, checksum, read_header

_READ_BYTES = 4 << 20


class SegmentScan:
    """Reads one segment from its start and checks its batches up to the first damaged one."""

    def __init__(
        self,
        segment: Segment,
        epochs: LeaderEpochs,
        producers: Producers,
        *,
        replay_from: int,
        next_base_offset: int | None,
        dense_from: int | None,
    ) -> None:
        self._segment = segment
        self._epochs = epochs
        self._producers = producers
        #: ``producers`` contains the batches before this offset
        self._replay_from = replay_from
        #: where the next segment begins; the gaps before it are those of compaction. None for the last segment.
        self._next_base_offset = next_base_offset
        #: from this offset on, the last segment has no gaps; None if it may have gaps anywhere
        self._dense_from = dense_from
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
