"""The 61-byte header of a record batch. The records after it are not decoded here.

    0 base offset   8 length   12 leader epoch   16 magic   17 CRC32C of everything from 21 on
    21 attributes   23 last offset delta   27 base timestamp   35 max timestamp
    43 producer id  51 producer epoch      53 base sequence    57 record count   61 records

The checksum does not cover base offset, length and leader epoch, so a leader can set them without computing it again.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.model.types import FrameBuffer

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 61

#: base offset, length and leader epoch: the fields that the leader sets
PREFIX = Struct(">qii")
PREFIX_BYTES = PREFIX.size
#: ``length`` counts the bytes after itself: from this position on
LENGTH_END = 12
CRC_POSITION = 17
CRC_FROM = 21
#: the smallest value of ``length`` that can hold a header
LENGTH_MIN = HEADER_BYTES - LENGTH_END

MAGIC = 2
CODEC_MASK = 0x07
CODEC_MAX = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
#: set by compaction: the base timestamp is the time from which the batch's tombstones may be removed
DELETE_HORIZON = 0x40

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_BY_NAME = {"uncompressed": 0, **{name: number for number, name in enumerate(CODECS)}}

#: number of sequence numbers: from 0 to 2^31-1, then 0 again
SEQUENCES = 1 << 31


class BatchHeader(NamedTuple):
    """The header's fields in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) % SEQUENCES


def read_header(buffer: bytes | memoryview | FrameBuffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``. Raise ``struct.error`` if there are fewer than 61 bytes."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def checksum(batch: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of the bytes after the checksum field of one complete batch."""
    return int(crc32c(memoryview(batch)[CRC_FROM:]))
