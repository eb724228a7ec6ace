"""The sparse indexes of a segment: arrays in memory, Kafka's format on disk.

``.index``      int32 last offset of a batch, relative to the segment's base; int32 position of that batch
``.timeindex``  int64 largest timestamp so far; int32 relative offset of the batch with this timestamp

An offset entry is one unsigned 64-bit number: the relative offset in the high half, the position in the low half. Its
big-endian bytes are Kafka's entry. Entries sort by offset, so that ``bisect`` can search them.

An index only shortens scans and can always be rebuilt. After a crash, recovery rebuilds the index of each segment that
it reads. The index of any other segment was synced before the recovery point advanced past the segment. The format has
no checksum, so a reader compares each entry that it uses with the batch at that position, and rebuilds the index if
they differ.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import lt
from struct import Struct

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY = Struct(">qI")
TIME_ENTRY_BYTES = TIME_ENTRY.size
RELATIVE_OFFSET_MAX = (1 << 31) - 1
#: the part of an offset entry that is the position; the rest is the relative offset
POSITION_MASK = (1 << 32) - 1
_SWAP = sys.byteorder == "little"


class OffsetIndex:
    """Maps an offset to the position where a scan for it starts."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: array[int] = array("Q")

    def append(self, relative_offset: int, position: int) -> None:
        self.entries.append(relative_offset << 32 | position)

    def entry_before(self, relative_offset: int) -> int:
        """Return the entry of a batch at or before the one that holds ``relative_offset``; 0 if there is none."""
        # An entry holds the *last* offset of its batch: the batch found ends at or before the wanted offset.
        found = bisect_right(self.entries, relative_offset << 32 | POSITION_MASK) - 1
        return self.entries[found] if found >= 0 else 0

    def entry_at_most(self, position: int) -> int:
        """Return the entry of the last indexed batch that starts at or before ``position``; 0 if there is none."""
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle] & POSITION_MASK <= position:
                low = middle + 1
            else:
                high = middle
        return self.entries[low - 1] if low else 0

    def entry_at_least(self, position: int) -> int | None:
        """Return the entry of the first indexed batch that starts at or after ``position``; None if there is none."""
        found = bisect_left(self.entries, position, key=_position)
        return self.entries[found] if found < len(self.entries) else None

    def truncate(self, relative_offset: int) -> None:
        """Remove the entries of batches whose last offset is at least ``relative_offset``."""
        del self.entries[bisect_left(self.entries, relative_offset << 32) :]

    def copy(self) -> OffsetIndex:
        copied = OffsetIndex()
        copied.entries = self.entries[:]
        return copied

    def to_bytes(self) -> bytes:
        entries = self.entries[:]
        if _SWAP:
            entries.byteswap()
        return entries.tobytes()

    def is_sound(self, size_bytes: int) -> bool:
        """Return whether this can be the index of a segment of that size: increasing offsets, valid positions."""
        entries = self.entries
        offsets = array("I", [entry >> 32 for entry in entries])
        positions = array("I", [entry & POSITION_MASK for entry in entries])
        return (
            all(map(lt, offsets, offsets[1:]))
            and all(map(lt, positions, positions[1:]))
            and (not entries or (offsets[-1] <= RELATIVE_OFFSET_MAX and 0 < positions[0] <= positions[-1] < size_bytes))
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> OffsetIndex:
        """Return the index in a file, without the preallocated zeros at the end that Kafka leaves after a crash."""
        index = cls()
        index.entries.frombytes(data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES])
        if _SWAP:
            index.entries.byteswap()
        entries = index.entries
        while len(entries) > 1 and entries[-1] <= entries[-2]:
            entries.pop()
        return index


class TimeIndex:
    """Maps a timestamp to an offset before which all records are older."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("I")

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Append an entry if both its timestamp and its offset are larger than those of the last entry."""
        if not self.timestamps or (timestamp > self.timestamps[-1] and relative_offset > self.offsets[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """Return the relative offset up to which all records are older than ``timestamp``; -1 if no entry is older."""
        found = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[found] if found >= 0 else -1

    def timestamp_of(self, relative_offset: int) -> int:
        """Return the timestamp in the entry with this offset."""
        return self.timestamps[bisect_left(self.offsets, relative_offset)]

    def truncate(self, relative_offset: int) -> None:
        keep = bisect_left(self.offsets, relative_offset)
        del self.offsets[keep:]
        del self.timestamps[keep:]

    def copy(self) -> TimeIndex:
        copied = TimeIndex()
        copied.timestamps, copied.offsets = self.timestamps[:], self.offsets[:]
        return copied

    def to_bytes(self) -> bytes:
        pack = TIME_ENTRY.pack
        return b"".join(map(pack, self.timestamps, self.offsets))

    def is_sound(self, data: bytes) -> bool:
        """Return whether ``data``, the file's content, has exactly these entries, followed only by zeros."""
        entries = self.to_bytes()
        return any(entries[:TIME_ENTRY_BYTES]) and data.startswith(entries) and not any(data[len(entries) :])

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        """Return the index in a file, without entries that do not increase, such as preallocated zeros."""
        index = cls()
        size_bytes = len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES
        for timestamp, offset in TIME_ENTRY.iter_unpack(data[:size_bytes]):
            index.maybe_append(timestamp, offset)
        return index


def _position(entry: int) -> int:
    return entry & POSITION_MASK
