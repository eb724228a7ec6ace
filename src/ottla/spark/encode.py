"""Arrow columns to record batches, ready to be sent, and keys to partitions as the Java client assigns them.

A record consists of varints and of the bytes of key, value and headers. `kernels` writes the varints of a whole batch
into one buffer and returns the positions where bytes belong. Arrow's `take` then copies varints and bytes alternately
from one binary array.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import randrange
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ottla.model.batch import CRC_FROM, CRC_POSITION, HEADER, HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader
from ottla.model.compression import NONE, compress
from ottla.model.errors import OttlaError
from ottla.spark import kernels
from ottla.spark.kernels import Bytes, Ints, Positions

#: positions in an Arrow array have 31 bits
_BATCH_BYTES_MAX = 1 << 30
#: small batches are encoded together up to about this size, which fits into caches
_GROUP_BYTES = 1 << 20
_INT64_MAX = (1 << 63) - 1
_MS_OF_UNIT = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


class RecordTooLarge(OttlaError):
    """A record does not fit into a batch of its own."""

    def __init__(self, row: int, size_bytes: int, batch_bytes_max: int) -> None:
        super().__init__(
            f"row {row} takes {size_bytes} bytes as a batch of its own, more than the {batch_bytes_max} allowed. "
            f"Raise kafka.max.request.size, and max.message.bytes of the topic, or keep the payload elsewhere"
        )
        self.row = row
        self.size_bytes = size_bytes


class UnusableColumn(OttlaError):
    """A column cannot be written to a topic as it is."""


class Encoded(NamedTuple):
    """One batch, of no producer and with offsets from 0 on."""

    data: bytes
    records: int
    max_timestamp: int


def encode(
    keys: pa.Array | None,
    values: pa.Array | None,
    timestamps: pa.Array | None,
    headers: pa.Array | None,
    *,
    codec: int,
    batch_bytes_max: int,
    now_ms: int,
) -> list[Encoded]:
    """Return all rows, in their order, in batches of at most ``batch_bytes_max`` bytes before and after compression.

    Keys and values are binary or string, timestamps are Arrow's or milliseconds, missing ones are ``now_ms``.
    ``headers`` are lists of structs of key and value. Raise RecordTooLarge or UnusableColumn.
    """
    batch_bytes_max = min(batch_bytes_max, _BATCH_BYTES_MAX)
    lengths = {len(column) for column in (keys, values, timestamps, headers) if column is not None}
    assert len(lengths) <= 1, f"columns have different numbers of rows: {sorted(lengths)}"
    if not lengths or not (rows := lengths.pop()):
        return []
    records = _Records(
        keys=_Blobs.of_column(keys, rows, "key"),
        values=_Blobs.of_column(values, rows, "value"),
        headers=_header_blobs(headers, rows),
        timestamps=_milliseconds(timestamps, rows, now_ms),
    )
    return list(records.batches(batch_bytes_max, codec))


def murmur2_partitions(
    keys: pa.Array, count: int, *, explicit: pa.Array | None = None, sticky: int | None = None
) -> npt.NDArray[np.int32]:
    """Return the partition of each row: the ``explicit`` one, else that of its key, else ``sticky``, else a random one.

    All rows of a call that have no key share one partition, so that batches fill up.
    """
    assert count > 0, "a topic has at least one partition"
    partitions = np.full(len(keys), randrange(count) if sticky is None else sticky % count, np.int32)
    blobs = _Blobs.of_column(keys, len(keys), "key")
    if blobs.column is not None and len(keys):
        hashes = kernels.murmur2(*_buffers(blobs.column))
        keyed = blobs.sizes >= 0
        partitions[keyed] = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count))[keyed]
    if explicit is None:
        return partitions
    if not (pa.types.is_integer(explicit.type) or pa.types.is_null(explicit.type)):
        raise UnusableColumn(f"partitions are {explicit.type}, not integers; cast the column to int")
    given = explicit.is_valid().to_numpy(zero_copy_only=False)
    wanted = pc.fill_null(explicit.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if len(wanted) and not 0 <= wanted.min() <= wanted.max() < count:
        row = int(((wanted < 0) | (wanted >= count)).argmax())
        raise UnusableColumn(f"row {row} is for partition {wanted[row]}, the topic has 0 to {count - 1}")
    partitions[given] = wanted[given]
    return partitions


@dataclass(frozen=True, slots=True)
class _Blobs:
    """Keys, values or headers of all rows."""

    #: None when no row has bytes
    column: pa.Array | None
    #: -1 for null
    sizes: Ints
    #: bytes of the rows before each row, without varints
    ahead: Ints

    @classmethod
    def of_column(cls, column: pa.Array | None, rows: int, name: str) -> _Blobs:
        if column is None or column.null_count == rows:
            return cls(None, np.full(rows, -1, np.int64), np.zeros(rows + 1, np.int64))
        return cls.of(_binary(column, name))

    @classmethod
    def of(cls, column: pa.Array) -> _Blobs:
        offsets = _buffers(column)[1].astype(np.int64)
        sizes = np.diff(offsets)
        if column.null_count:
            sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return cls(column, sizes, offsets - offsets[0])


class _HeaderBlobs(NamedTuple):
    blobs: _Blobs
    counts: Ints


@dataclass(frozen=True, slots=True)
class _Records:
    keys: _Blobs
    values: _Blobs
    headers: _HeaderBlobs
    timestamps: Ints

    def batches(self, batch_bytes_max: int, codec: int) -> Iterator[Encoded]:
        # Small batches are encoded together, because each pass over the columns has a fixed cost.
        ahead = self._ahead()
        cuts = self._cuts(ahead, batch_bytes_max)
        group_rows = len(self.timestamps) * _GROUP_BYTES // int(ahead[-1])
        first = 0
        while first < len(cuts) - 1:
            last = max(first + 1, bisect_right(cuts, cuts[first] + group_rows) - 1)
            yield from self._group(cuts[first : last + 1], codec)
            first = last

    def _ahead(self) -> Ints:
        """Return the bytes before each row, and of all rows, with varints of their largest size."""
        rows = np.arange(len(self.timestamps) + 1)
        return self.keys.ahead + self.values.ahead + self.headers.blobs.ahead + rows * self._overhead_max()

    def _cuts(self, ahead: Ints, batch_bytes_max: int) -> list[int]:
        """Return the first row of each batch, and the end. Raise RecordTooLarge."""
        rows = len(self.timestamps)
        cuts = [0]
        while cuts[-1] < rows:
            first = cuts[-1]
            last = int(np.searchsorted(ahead, ahead[first] + batch_bytes_max - HEADER_BYTES, side="right")) - 1
            if last <= first:
                last = first + 1
                if (size_bytes := self._size_alone(first)) > batch_bytes_max:
                    raise RecordTooLarge(first, size_bytes, batch_bytes_max)
            cuts.append(last)
        return cuts

    def _group(self, cuts: list[int], codec: int) -> Iterator[Encoded]:
        """Yield the batches between these rows."""
        rows = slice(cuts[0], cuts[-1])
        fields = (self.keys, self.values, self.headers.blobs)
        batch_of = np.repeat(cuts[:-1], np.diff(cuts))
        numbers = [
            self.timestamps[rows] - self.timestamps[batch_of],
            np.arange(cuts[0], cuts[-1]) - batch_of,
            self.keys.sizes[rows],
            self.values.sizes[rows],
            self.headers.counts[rows],
        ]
        blob_bytes = np.zeros(len(batch_of), np.int64)
        for field in fields:
            if field.column is not None:
                blob_bytes += field.sizes[rows].clip(0)
        laid = kernels.lay_records(numbers, blob_bytes, [field.column is not None for field in fields])
        blobs = [field.column.slice(cuts[0], len(batch_of)) for field in fields if field.column is not None]
        sections, _ = _interleaved(laid.pieces, laid.positions, blobs)
        start = 0
        for first, last in pairwise(cuts):
            end = int(laid.ends[last - cuts[0] - 1])
            yield _sealed(sections[start:end], self.timestamps[first:last], codec)
            start = end

    def _size_alone(self, row: int) -> int:
        """Return the size of the record as a batch of its own."""
        sizes = [int(blobs.sizes[row]) for blobs in (self.keys, self.values)]
        body = 3 + sum(_varint_size(size) + max(size, 0) for size in sizes)
        body += _varint_size(int(self.headers.counts[row])) + int(self.headers.blobs.sizes[row])
        return HEADER_BYTES + _varint_size(body) + body

    def _overhead_max(self) -> int:
        """Return the largest size of the varints of a record, in whichever batch it is."""
        largest = [int(blobs.sizes.max()) for blobs in (self.keys, self.values, self.headers.blobs)]
        span = int(self.timestamps.max()) - int(self.timestamps.min())
        numbers = [span, len(self.timestamps), *largest[:2], int(self.headers.counts.max())]
        overhead = 1 + sum(_varint_size(number) for number in numbers)
        return overhead + _varint_size(overhead + sum(largest))


def _sealed(section: memoryview, timestamps: Ints, codec: int) -> Encoded:
    compressed: bytes | memoryview = section if codec == NONE else compress(codec, section)
    if len(compressed) >= len(section):
        # A batch that compression makes larger is sent without it: the limit was checked for the uncompressed size.
        codec, compressed = NONE, section
    max_timestamp = int(timestamps.max())
    header = BatchHeader(
        base_offset=0,
        length=HEADER_BYTES - LENGTH_END + len(compressed),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=len(timestamps) - 1,
        base_timestamp=int(timestamps[0]),
        max_timestamp=max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(timestamps),
    )
    head = bytearray(HEADER.pack(*header))
    crc = crc32c(compressed, crc32c(head[CRC_FROM:]))
    head[CRC_POSITION:CRC_FROM] = crc.to_bytes(4, "big")
    return Encoded(b"".join((head, compressed)), len(timestamps), max_timestamp)


def _binary(column: pa.Array, name: str) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    usable = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_null,
    )
    if not any(is_kind(kind) for is_kind in usable):
        raise UnusableColumn(f"the {name} column is {kind}; cast it to string or binary before it is written")
    return column.cast(pa.binary())


def _buffers(column: pa.Array) -> tuple[Bytes, Positions]:
    """Return the bytes of a binary array and the positions of its rows in them."""
    _, offsets, values = column.buffers()
    positions = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(values if values is not None else b"", np.uint8), positions


def _header_blobs(headers: pa.Array | None, rows: int) -> _HeaderBlobs:
    """Return the encoded headers of each row, without their number, and the numbers."""
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    none = _HeaderBlobs(_Blobs(None, np.zeros(rows, np.int64), np.zeros(rows + 1, np.int64)), np.zeros(rows, np.int64))
    if headers is None or pa.types.is_null(headers.type):
        return none
    if not (pa.types.is_list(headers.type) and pa.types.is_struct(headers.type.value_type)):
        raise UnusableColumn(f"the headers column is {headers.type}, not an array of structs of key and value")
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    structs = headers.flatten()
    if not len(structs):
        return none
    fields = dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
    if fields.keys() != {"key", "value"}:
        raise UnusableColumn(f"headers have the fields {', '.join(fields)}, not key and value")
    if fields["key"].null_count:
        raise UnusableColumn("a header has no key; Kafka refuses that, so filter such headers or name them")
    # Values that are all null are a column, too, so that every header ends at a cut.
    names, values = (_Blobs.of(_binary(fields[name], f"header {name}")) for name in ("key", "value"))
    pieces, cuts = kernels.lay_headers(names.sizes, values.sizes)
    section, offsets = _interleaved(pieces, cuts, [names.column, values.column])
    # A header begins with the varint before its key, and a row with its first header.
    starts = offsets[::4][np.append(0, np.cumsum(counts))]
    column = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(starts), pa.py_buffer(section)])
    return _HeaderBlobs(_Blobs.of(column), counts)


def _interleaved(pieces: Bytes, cuts: Positions, blobs: list[pa.Array]) -> tuple[memoryview, Positions]:
    """Return the pieces with the bytes of the blobs in the cuts, row by row; and where each piece and blob begins."""
    if not blobs:
        return pieces.data, cuts
    laid = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(pieces)])
    columns, rows = len(blobs), len(blobs[0])
    order = np.empty(2 * columns * rows + 1, np.int32)
    order[0::2] = np.arange(len(laid), dtype=np.int32)
    for index in range(columns):
        first = len(laid) + index * rows
        order[1 + 2 * index :: 2 * columns] = np.arange(first, first + rows, dtype=np.int32)
    taken = pc.take(pa.concat_arrays([laid, *blobs]), pa.array(order), boundscheck=False)
    _, offsets, values = taken.buffers()
    positions = np.frombuffer(offsets, np.int32)[: len(order) + 1]
    return memoryview(values)[: int(positions[-1])], positions


def _milliseconds(timestamps: pa.Array | None, rows: int, now_ms: int) -> Ints:
    if isinstance(timestamps, pa.ChunkedArray):
        timestamps = timestamps.combine_chunks()
    if timestamps is None or timestamps.null_count == rows:
        return np.full(rows, now_ms, np.int64)
    if pa.types.is_timestamp(timestamps.type):
        factor, divisor = _MS_OF_UNIT[timestamps.type.unit]
    elif pa.types.is_integer(timestamps.type):
        factor, divisor = 1, 1
    else:
        raise UnusableColumn(f"the timestamp column is {timestamps.type}; cast it to timestamp before it is written")
    numbers: Ints = pc.fill_null(timestamps.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    milliseconds = numbers * factor // divisor
    if timestamps.null_count:
        milliseconds[timestamps.is_null().to_numpy(zero_copy_only=False)] = now_ms
    if int(milliseconds.max()) - int(milliseconds.min()) > _INT64_MAX:
        raise UnusableColumn("the timestamps are further apart than 64 bits of milliseconds; correct the column")
    return milliseconds


def _varint_size(number: int) -> int:
    return max(1, -(-(2 * number).bit_length() // 7))
