"""The four codecs of record batches: decompression with a limit, and compression that every client can read.

Clients use several formats under one codec number: snappy as one raw block (Go, librdkafka) or in the xerial framing of
Java's library; lz4 and zstd frames with or without their content size; gzip with several members. All are accepted.
Decompression fails as soon as the output exceeds ``max_bytes``.
"""

from __future__ import annotations

import mmap
from struct import Struct

import cramjam

from ottla.model.batch import CODECS
from ottla.model.errors import InvalidRecord, RecordsTooLarge

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(len(CODECS))

#: the default values of Kafka's compression.gzip.level, compression.lz4.level and compression.zstd.level
GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
ZSTD_LEVEL_DEFAULT = 3

_GZIP_LEVEL_OF_DEFAULT = 6
_LZ4_LEVEL_FAST = 0
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
#: magic, the version of the framing, the oldest version that can read it
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")
#: parts of cramjam's error texts if the output does not fit: of the framed codecs, and of raw snappy
_DOES_NOT_FIT = ("failed to write whole buffer", "is smaller than required")
#: more decompressed bytes than this are not copied out of the memory that the codec wrote them to
_COPIED_BYTES_MAX = 1 << 20
#: zstd above this level takes seconds and hundreds of megabytes for a large section, so only small ones get it
_ZSTD_LEVEL_OF_LARGE = 9
_ZSTD_HIGH_LEVEL_BYTES_MAX = 256 << 10


def decompress(codec: int, data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    """Return the decompressed records section.

    Raise InvalidRecord if it is damaged, RecordsTooLarge if it is larger than ``max_bytes``.
    """
    return bytes(decompress_view(codec, data, max_bytes))


def decompress_view(codec: int, data: bytes | bytearray | memoryview, max_bytes: int) -> bytes | memoryview:
    """Do as ``decompress`` does, but return a view where a copy would double the memory of a large section."""
    assert max_bytes > 0, "an empty allowance opens nothing"
    if codec == NONE:
        if len(data) > max_bytes:
            raise RecordsTooLarge(f"records take {len(data)} bytes, more than the {max_bytes} allowed")
        return bytes(data)
    # Pages of an anonymous map cost nothing until they are written: the whole allowance is reserved at once,
    # and only what comes out of the codec takes memory. A bytearray of that size would be zeroed every time.
    output = mmap.mmap(-1, max_bytes)
    try:
        if codec == GZIP:
            size_bytes = cramjam.gzip.decompress_into(data, output)
        elif codec == SNAPPY:
            size_bytes = _decompress_snappy(memoryview(data), memoryview(output))
        elif codec == LZ4:
            size_bytes = cramjam.lz4.decompress_into(data, output)
        elif codec == ZSTD:
            size_bytes = cramjam.zstd.decompress_into(data, output)
        else:
            raise InvalidRecord(f"records are compressed with codec {codec}, which does not exist")
    except cramjam.DecompressionError as error:
        if any(text in str(error) for text in _DOES_NOT_FIT):
            raise RecordsTooLarge(
                f"{CODECS[codec]} records take more than {max_bytes} bytes when they are decompressed"
            ) from None
        raise InvalidRecord(f"{CODECS[codec]} records are damaged: {error}") from None
    return output[:size_bytes] if size_bytes <= _COPIED_BYTES_MAX else memoryview(output)[:size_bytes]


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress a records section; ``level`` is Kafka's level for that codec, None its default.

    zstd levels above 9 apply to sections of at most 256 KiB; larger ones are compressed with level 9.
    """
    if codec == GZIP:
        gzip_level = _GZIP_LEVEL_OF_DEFAULT if level in (None, GZIP_LEVEL_DEFAULT) else level
        return bytes(cramjam.gzip.compress(data, level=gzip_level))
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        # Kafka's level 9 is its fast compressor; every other level is the high compression one.
        lz4_level = _LZ4_LEVEL_FAST if level in (None, LZ4_LEVEL_DEFAULT) else level
        # Java refuses frames whose blocks refer to each other.
        compressor = cramjam.lz4.Compressor(level=lz4_level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec == ZSTD:
        zstd_level = ZSTD_LEVEL_DEFAULT if level is None else level
        if len(data) > _ZSTD_HIGH_LEVEL_BYTES_MAX:
            zstd_level = min(zstd_level, _ZSTD_LEVEL_OF_LARGE)
        # This call writes the content size into the frame: kafka-python opens no more than 1 MiB without it.
        return bytes(cramjam.zstd.compress(data, level=zstd_level))
    assert codec == NONE, f"codec {codec} does not exist"
    return bytes(data)


def _decompress_snappy(data: memoryview, output: memoryview) -> int:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(data, output))
    position = size_bytes = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Streams may be concatenated, so a header can occur in place of any block.
            position += len(_XERIAL_HEADER)
            continue
        block = position + _BLOCK_LENGTH.size
        length = _BLOCK_LENGTH.unpack_from(data, position)[0] if block <= len(data) else -1
        position = block + length
        if length < 0 or position > len(data):
            break
        size_bytes += cramjam.snappy.decompress_raw_into(data[block:position], output[size_bytes:])
    if position != len(data):
        raise InvalidRecord("snappy records end in the middle of a block")
    return size_bytes


def _compress_snappy(data: memoryview) -> bytes:
    # Java writes the xerial framing, so every client can read it.
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)
