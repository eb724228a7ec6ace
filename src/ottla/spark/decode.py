"""Record batches as a Fetch reply carries them to Arrow, a whole reply at a time.

The headers of the batches are read one by one. Batches without wanted records are not opened (control batches, aborted
transactions, other offsets); the others are verified, decompressed and put into one buffer. Then `kernels` finds the
fields of all records at once. A binary array over that buffer has four elements for each record: key, the bytes
between, value, the bytes between. It needs no copy; Arrow's `take` of every fourth element copies the keys or the
values. All results are copies: the caller may reuse the memory of the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.batch import (
    CODEC_MASK,
    CODEC_MAX,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.compression import NONE, decompress
from ottla.model.errors import InvalidRecord, OttlaError
from ottla.model.records import Record, build_batch, iterate_records
from ottla.spark import compiled_scan, kernels
from ottla.spark.columns import HEADERS_TYPE, TYPES
from ottla.spark.kernels import (
    COUNT,
    COUNTS_DELTAS,
    RECORD_BYTES_MIN,
    SECTION_COLUMNS,
    Bytes,
    DamagedSection,
    Flags,
    Ints,
    Positions,
    Scanned,
)

#: columns that are decoded by default; `headers` are another one
COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")

#: the size of Arrow batches that Spark processes fastest
CHUNK_ROWS_MAX = 50_000
CHUNK_BYTES_MAX = 4 << 20
#: the largest decompressed batch; brokers limit only the compressed size
BATCH_BYTES_MAX = 256 << 20
#: the largest result of ``decode``: positions in an Arrow batch have 31 bits
DECODED_BYTES_MAX = 1 << 30

_INT64_MAX = (1 << 63) - 1
#: beyond this, thousandths of milliseconds do not fit into 64 bits
_TIMESTAMP_MS_MAX = _INT64_MAX // 1000
#: base offset, length, leader epoch and magic end here, in batches of every version
_MAGIC_END = 17
_CONTROL_KEY = Struct(">hh")
_ABORT = 0


class DamagedBatch(OttlaError):
    """The bytes of a batch are not what its producer wrote."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(
            f"the batch at offset {offset} is damaged: {why}. "
            f"Try again; if it stays damaged, check the broker's disk, or continue with startingOffsets after the batch"
        )
        self.offset = offset
        self.why = why


class Decoded(NamedTuple):
    """Some rows, and the next offset to decode."""

    rows: pa.RecordBatch
    next_offset: int


class AbortedTransaction(Protocol):
    """An entry of the list in a Fetch reply."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...


class AbortedTransactions:
    """Which batches of one partition belong to transactions that were aborted.

    Call `feed` with the list of each Fetch reply before the reply is decoded. The list names every aborted transaction
    with batches in the reply, so that nothing of earlier replies is needed. A transaction ends at the marker of its
    producer in the data.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self.feed(aborted)

    def feed(self, aborted: Iterable[AbortedTransaction]) -> None:
        #: transactions whose first batch was not seen yet, the next one last
        self._ahead = sorted(((entry.first_offset, entry.producer_id) for entry in aborted), reverse=True)
        self._open: set[int] = set()

    def holds(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether the batch, the next one of the partition, belongs to an aborted transaction."""
        while self._ahead and self._ahead[-1][0] <= header.last_offset:
            self._open.add(self._ahead.pop()[1])
        if header.producer_id not in self._open:
            return False
        if header.attributes & CONTROL and _is_abort_marker(batch):
            self._open.discard(header.producer_id)
        return bool(header.attributes & TRANSACTIONAL)


def decode(
    data: memoryview,
    *,
    start: int,
    end: int,
    aborted: AbortedTransactions | None,
    columns: Sequence[str] = COLUMNS,
) -> tuple[pa.RecordBatch, int]:
    """Return the records of a Fetch reply whose offsets are in ``[start, end)``, and the next offset to fetch.

    The result has ``columns`` in this order. An incomplete batch at the end of the reply is left for the next fetch.
    """
    chunks = decode_chunks(
        data,
        start=start,
        end=end,
        aborted=aborted,
        columns=columns,
        rows_max=DECODED_BYTES_MAX,
        bytes_max=DECODED_BYTES_MAX,
    )
    first = next(chunks)
    further = next(chunks, None)
    if further is not None:
        raise DamagedBatch(first.next_offset, f"the reply opens to more than {DECODED_BYTES_MAX} bytes; fetch less")
    return first


def decode_chunks(
    data: memoryview,
    *,
    start: int,
    end: int,
    aborted: AbortedTransactions | None,
    columns: Sequence[str] = COLUMNS,
    rows_max: int = CHUNK_ROWS_MAX,
    bytes_max: int = CHUNK_BYTES_MAX,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[Decoded]:
    """Yield the result of ``decode`` in pieces of a size that Spark processes fast: at least one, perhaps without rows.

    Memory is limited by the size of a piece and of the largest batch, whatever the size of the decompressed reply.
    """
    assert columns, "a reader without columns has no rows"
    schema = schema_of(columns)
    group = _Group(data, start, end)
    next_offset = start
    for header, position in _whole_batches(data):
        if header.base_offset >= end:
            next_offset = max(next_offset, header.base_offset)
            break
        batch = data[position : position + header.size_bytes]
        _verify(header, batch)
        dropped = aborted is not None and aborted.holds(header, batch)
        if not dropped and not header.attributes & CONTROL and header.last_offset >= start:
            opened = _open_section(header, batch, batch_bytes_max)
            if group.count and (group.size_bytes + len(opened) > bytes_max or group.count > rows_max):
                yield from group.chunks(schema, next_offset, rows_max)
                group = _Group(data, start, end)
            group.add(header, position, opened)
        next_offset = max(next_offset, header.next_offset)
    yield from group.chunks(schema, next_offset, rows_max)


def load_numba() -> None:
    """Scan with numba from now on, if it is installed, and let it load the code for the types that readers use."""
    compiled_scan.SCANNER.use_compiled()
    batch = build_batch([Record(timestamp=0, key=None, value=b"1")])
    # A reply may be written to, decompressed bytes may not: numba compiles a function for each.
    for data in (memoryview(bytearray(batch)), memoryview(bytes(batch))):
        decode(data, start=0, end=1, aborted=None)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of rows with these columns."""
    return pa.schema([(name, TYPES[name]) for name in columns])


def _whole_batches(data: memoryview) -> Iterator[tuple[BatchHeader, int]]:
    """Yield header and position of every complete batch. Raise DamagedBatch if offsets do not ascend."""
    position, next_offset = 0, 0
    while len(data) - position >= _MAGIC_END:
        if data[position + _MAGIC_END - 1] != MAGIC:
            offset = int.from_bytes(data[position : position + 8], "big", signed=True)
            raise DamagedBatch(
                offset, f"its magic is {data[position + _MAGIC_END - 1]}, Kafka has written 2 since 0.11"
            )
        if len(data) - position < HEADER_BYTES:
            return
        header = read_header(data, position)
        if header.length < LENGTH_MIN:
            raise DamagedBatch(header.base_offset, f"{header.length} bytes are too few for a batch")
        if header.size_bytes > len(data) - position:
            return
        if header.base_offset < next_offset:
            raise DamagedBatch(header.base_offset, f"its offsets do not follow offset {next_offset - 1}")
        # Compaction removes records of a batch and keeps its offsets, so there may be fewer records than offsets.
        if not 0 <= header.record_count <= header.last_offset_delta + 1 or header.last_offset_delta < 0:
            raise DamagedBatch(
                header.base_offset, f"{header.record_count} records up to offset delta {header.last_offset_delta}"
            )
        if header.next_offset > _INT64_MAX:
            raise DamagedBatch(header.base_offset, "its offsets do not fit into 64 bits")
        yield header, position
        position += header.size_bytes
        next_offset = header.next_offset


def _verify(header: BatchHeader, batch: memoryview) -> None:
    if checksum(batch) != header.crc:
        raise DamagedBatch(header.base_offset, f"the checksum of its {len(batch) - CRC_FROM} bytes does not match")
    if header.attributes & CODEC_MASK > CODEC_MAX:
        raise DamagedBatch(header.base_offset, f"codec {header.attributes & CODEC_MASK} does not exist")


def _open_section(header: BatchHeader, batch: memoryview, bytes_max: int) -> memoryview:
    """Return the decompressed records, which may be a view of the batch itself."""
    codec = header.attributes & CODEC_MASK
    section = batch[HEADER_BYTES:]
    if codec != NONE and len(section):
        try:
            section = memoryview(decompress(codec, section, bytes_max))
        except InvalidRecord as error:
            raise DamagedBatch(header.base_offset, str(error)) from None
    # Refuse a count that is too large for the bytes before memory is allocated for it.
    if header.record_count * RECORD_BYTES_MIN > len(section) or bool(len(section)) != bool(header.record_count):
        raise DamagedBatch(header.base_offset, f"{header.record_count} records cannot take {len(section)} bytes")
    return section


def _is_abort_marker(batch: memoryview) -> bool:
    header = read_header(batch)
    try:
        marker = next(iterate_records(batch), None)
    except InvalidRecord as error:
        raise DamagedBatch(header.base_offset, str(error)) from None
    if marker is None or marker.key is None or len(marker.key) < _CONTROL_KEY.size:
        return False
    return bool(_CONTROL_KEY.unpack_from(marker.key)[1] == _ABORT)


class _Group:
    """Batches that are decoded together."""

    def __init__(self, data: memoryview, start: int, end: int) -> None:
        self._data = data
        self._start = start
        self._end = end
        self._batches: list[tuple[BatchHeader, int]] = []
        self._opened: list[memoryview] = []
        self._compressed = False
        self.count = 0
        self.size_bytes = 0

    def add(self, header: BatchHeader, position: int, opened: memoryview) -> None:
        if not header.record_count:
            return
        self._batches.append((header, position))
        self._opened.append(opened)
        self._compressed |= bool(header.attributes & CODEC_MASK)
        self.count += header.record_count
        self.size_bytes += len(opened)

    def chunks(self, schema: pa.Schema, next_offset: int, rows_max: int) -> Iterator[Decoded]:
        """Yield all rows in pieces of ``rows_max``. The last piece, which may be empty, has ``next_offset``."""
        if not self._batches:
            yield Decoded(
                pa.RecordBatch.from_arrays([pa.array([], of) for of in schema.types], schema=schema), next_offset
            )
            return
        buffer, sections = self._joined()
        try:
            rows = _Rows(buffer, sections, compiled_scan.SCANNER(buffer, sections), self._start, self._end)
            batch = pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
        except DamagedSection as damaged:
            raise self._damage(damaged.index) from None
        done = 0
        while len(batch) - done > rows_max:
            yield Decoded(batch.slice(done, rows_max), rows.offset(done + rows_max))
            done += rows_max
        yield Decoded(batch.slice(done), next_offset)

    def _joined(self) -> tuple[Bytes, Ints]:
        """Return one buffer with all decompressed records, and a row of `kernels` sections for each batch."""
        sizes = [len(opened) for opened in self._opened]
        if not self._compressed:
            # The reply itself is the buffer: sections leave out the headers between the records.
            origin = self._batches[0][1]
            starts = [position + HEADER_BYTES - origin for _, position in self._batches]
            buffer: memoryview | bytes = self._data[origin : origin + starts[-1] + sizes[-1]]
        else:
            starts = np.cumsum([0, *sizes[:-1]]).tolist()
            buffer = self._opened[0] if len(sizes) == 1 else b"".join(self._opened)
        sections = np.empty((len(sizes), SECTION_COLUMNS), np.int64)
        for row, (start, size_bytes, (header, _)) in enumerate(zip(starts, sizes, self._batches, strict=True)):
            append_time = bool(header.attributes & LOG_APPEND_TIME)
            sections[row] = (
                start,
                start + size_bytes,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.max_timestamp if append_time else header.base_timestamp,
                not append_time,
            )
        return np.frombuffer(buffer, np.uint8), sections

    def _damage(self, index: int) -> DamagedBatch:
        """Return the error for a batch that the scan refused: the slow reader says which record is damaged, and how."""
        header, position = self._batches[index]
        try:
            for _ in iterate_records(self._data[position : position + header.size_bytes], max_bytes=BATCH_BYTES_MAX):
                pass
        except InvalidRecord as error:
            return DamagedBatch(header.base_offset, str(error))
        raise AssertionError(f"the readers disagree about the batch at offset {header.base_offset}")


class _Rows:
    """The columns of those scanned records whose offsets are wanted."""

    def __init__(self, buffer: Bytes, sections: Ints, scanned: Scanned, start: int, end: int) -> None:
        self._buffer = buffer
        self._sections = sections
        self._scanned = scanned
        # Offsets ascend, so the wanted records are between two rows.
        self._first, self._last = np.searchsorted(scanned.offsets, (start, end)).tolist()
        self._wanted = slice(self._first, self._last)

    def offset(self, row: int) -> int:
        return int(self._scanned.offsets[self._first + row])

    def column(self, name: str) -> pa.Array:
        if name == "key":
            return self._binary(0, self._scanned.null_keys[self._wanted])
        if name == "value":
            return self._binary(2, self._scanned.null_values[self._wanted])
        if name == "offset":
            return pa.array(self._scanned.offsets[self._wanted])
        if name == "timestamp":
            return self._timestamps()
        if name == "timestampType":
            types = 1 - self._sections[:, COUNTS_DELTAS].astype(np.int32)
            return pa.array(np.repeat(types, self._sections[:, COUNT])[self._wanted])
        assert name == "headers", f"records have no column {name}"
        return self._headers()

    def _binary(self, bound: int, nulls: Flags) -> pa.Array:
        places = np.arange(4 * self._first + bound, 4 * self._last + bound, 4, dtype=np.int32)
        return _taken(self._buffer, self._scanned.bounds, places, nulls)

    def _timestamps(self) -> pa.Array:
        milliseconds = self._scanned.timestamps[self._wanted]
        # A wrong clock of a producer must not make a topic unreadable: clip times to the range of Arrow.
        if len(milliseconds) and max(-int(milliseconds.min()), int(milliseconds.max())) > _TIMESTAMP_MS_MAX:
            milliseconds = milliseconds.clip(-_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
        return pa.Array.from_buffers(TYPES["timestamp"], len(milliseconds), [None, pa.py_buffer(milliseconds * 1000)])

    def _headers(self) -> pa.Array:
        """Return the headers; null where a record has none, as in Spark's own connector."""
        positions, ends = self._scanned.header_positions[self._wanted], self._scanned.ends[self._wanted]
        section_ends = np.cumsum(self._sections[:, COUNT]) - self._first
        headers = kernels.scan_headers(self._buffer, positions, ends, section_ends)
        places = np.arange(0, len(headers.bounds), 4, dtype=np.int32)
        names = _taken(self._buffer, headers.bounds, places, np.zeros(len(places), np.bool_))
        values = _taken(self._buffer, headers.bounds, places + 2, headers.null_values)
        structs = pa.StructArray.from_arrays([_text(names), values], fields=list(HEADERS_TYPE.value_type))
        offsets = np.append(0, np.cumsum(headers.counts)).astype(np.int32)
        validity = _validity(headers.counts == 0)
        return pa.Array.from_buffers(
            HEADERS_TYPE, len(positions), [validity, pa.py_buffer(offsets)], children=[structs]
        )


def _taken(buffer: Bytes, bounds: Positions, places: Positions, nulls: Flags) -> pa.Array:
    """Return a copy of the pieces of the buffer from the bounds at these places to the following bounds, with nulls."""
    if nulls.all():
        return pa.nulls(len(places), pa.binary())
    pieces = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)], null_count=0
    )
    taken = pc.take(pieces, pa.array(places), boundscheck=False)
    if not nulls.any():
        return taken
    _, offsets, values = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), len(places), [_validity(nulls), offsets, values])


def _validity(nulls: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Kafka accepts header keys that are not UTF-8; the Java client replaces characters that it cannot decode.
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
