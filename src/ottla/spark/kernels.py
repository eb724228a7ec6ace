"""The loops over bytes: finding the fields of records, writing varints, hashing keys. Twice, by numpy and by numba.

Numba's are used when it is installed and a process has much to do, which the rest does not notice but by a stopwatch:
loading it takes half a second and 110 MB. OTTLA_NUMBA=0 in the environment turns it off. Both accept and refuse the
same bytes, so the tests run everything on both.

Finding where records begin is the only sequential part, since each record tells its length only. numpy guesses: if the
next records are as long as this one, their lengths stand at equal distances, and one comparison accepts all up to
the first that differs. Where lengths change all the time a plain Python walk over the lengths is faster, so it
walks for a while after each guess that did not pay.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: positions that Arrow takes as the offsets of a binary array
Positions = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint32]
#: numba would take a byte's own width for sums, so bytes become 64 bits wide first
Int = int | np.int64
Function = TypeVar("Function", bound=Callable[..., object])

#: about as many as numpy does in the time that numba takes to load
ROWS_BEFORE_NUMBA = 200_000
_to_compile: list[str] = []

#: columns of a section, the records of one batch in the clear: the bytes between two positions of the buffer
START, END, COUNT, BASE_OFFSET, LAST_OFFSET_DELTA, TIMESTAMP, COUNTS_DELTAS = range(7)
SECTION_COLUMNS = 7
#: a record with null key, null value and no headers, without and with its length
BODY_BYTES_MIN = 6
RECORD_BYTES_MIN = 7

_VARINT32_BYTES_MAX = 5
_VARINT64_BYTES_MAX = 10
#: length, attributes, timestamp delta, offset delta, two sizes and the number of headers
_RECORD_VARINT_BYTES_MAX = 6 * _VARINT32_BYTES_MAX + _VARINT64_BYTES_MAX
_UINT32_MAX = 0xFFFFFFFF
_INT64_MAX = (1 << 63) - 1
#: two numbers within this do not overflow when they are added
_ADDABLE = 1 << 62
#: behind every end, and still a number that a length can be added to
_NOWHERE = 1 << 62

#: fewer records of equal length do not pay for the guess; then so many are walked
_RUN_MIN = 8
_WALK_RECORDS = 512
#: a guess begins small, so that a wrong one costs little, and grows while it is right
_GUESS_RECORDS = 64
_GUESS_GROWTH = 8

#: what a length of two bytes and its own bytes amount to, as far as its first byte tells
_TWO_BYTES = [((number & 0x7F) >> 1) + 2 for number in range(256)]

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
#: fewer rows than this are done one by one
_VECTOR_MIN = 16


class Scanned(NamedTuple):
    """One row for each record of all sections."""

    #: four for each record: key start, key end, value start, value end
    bounds: Positions
    null_keys: Flags
    null_values: Flags
    offsets: Ints
    timestamps: Ints
    #: where the number of headers stands
    header_positions: Ints
    ends: Ints


class Laid(NamedTuple):
    """What stands between the bytes of records, row by row."""

    pieces: Bytes
    #: where pieces begin, and the end of the last: between two of them bytes belong
    positions: Positions
    #: where each record ends when the bytes are in their places
    ends: Ints


class ScannedHeaders(NamedTuple):
    """How many headers each record has, and one row for each header of all records."""

    counts: Ints
    #: four for each header: key start, key end, value start, value end
    bounds: Positions
    null_values: Flags


class DamagedSection(Exception):
    """The section with this index does not hold the records that it should."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Kernels(Protocol):
    """What both implementations offer."""

    def scan(self, buffer: Bytes, sections: Ints) -> Scanned:
        """Every record of the sections, which ascend in offsets and promise one record at least.

        DamagedSection when one does not hold what it promises.
        """

    def lay_records(self, fields: list[Ints], blob_bytes: Ints, cuts: list[bool]) -> Laid:
        """Everything of records but their bytes, of which each has ``blob_bytes`` in all.

        The fields are timestamp delta, offset delta, key size, value size and number of headers.
        ``cuts`` says behind which of the last three bytes belong.
        """

    def murmur2(self, buffer: Bytes, offsets: Positions) -> Hashes:
        """The hash of each of the consecutive pieces that ``offsets`` delimit, as the Java client computes it."""


class NumpyKernels:
    """A few passes over whole columns."""

    def scan(self, buffer: Bytes, sections: Ints) -> Scanned:
        counts = sections[:, COUNT]
        section_ends = np.cumsum(counts)
        starts = _record_starts(buffer, sections)
        reader = _ColumnReader(buffer, starts, section_ends)
        lengths = reader.next_varints(_VARINT32_BYTES_MAX)
        reader.refuse(lengths < BODY_BYTES_MIN)
        ends = reader.positions + lengths
        # By this every record begins where the one before ends, and stays inside of its section.
        reader.refuse(ends[:-1] != starts[1:], unless=section_ends[:-1] - 1)
        reader.refuse_sections(ends[section_ends - 1] != sections[:, END])

        # Positions only grow and those out of reach are clipped, so one look at the last of a record judges all.
        reader.positions += 1
        timestamp_deltas = reader.next_varints(_VARINT64_BYTES_MAX)
        offset_deltas = reader.next_varints(_VARINT32_BYTES_MAX)
        bounds = np.empty(4 * len(ends), np.int32)
        nulls = []
        for start in (0, 2):
            sizes = reader.next_varints(_VARINT32_BYTES_MAX)
            null = sizes < 0
            if null.any():
                reader.refuse(sizes < -1)
                sizes += null
            nulls.append(null)
            bounds[start::4] = reader.positions
            reader.positions += sizes
            bounds[start + 1 :: 4] = reader.positions
        positions = reader.positions
        left = ends - positions
        reader.refuse(left < 1)
        reader.refuse((buffer.take(positions, mode="clip") == 0) != (left == 1))

        reader.refuse_sections(offset_deltas[section_ends - counts] < 0)
        reader.refuse_sections(offset_deltas[section_ends - 1] > sections[:, LAST_OFFSET_DELTA])
        reader.refuse(offset_deltas[1:] <= offset_deltas[:-1], unless=section_ends[:-1] - 1)
        offsets = np.repeat(sections[:, BASE_OFFSET], counts) + offset_deltas
        timestamps = self._timestamps(reader, sections, timestamp_deltas)
        return Scanned(bounds, nulls[0], nulls[1], offsets, timestamps, positions, ends)

    @staticmethod
    def _timestamps(reader: _ColumnReader, sections: Ints, deltas: Ints) -> Ints:
        counts = sections[:, COUNT]
        if not sections[:, COUNTS_DELTAS].all():
            deltas = deltas * np.repeat(sections[:, COUNTS_DELTAS], counts)
        first = np.repeat(sections[:, TIMESTAMP], counts)
        timestamps: Ints = first + deltas
        if not all(-_ADDABLE < limit < _ADDABLE for of in (first, deltas) for limit in (of.min(), of.max())):
            reader.refuse(((first ^ timestamps) & (deltas ^ timestamps)) < 0)
        return timestamps

    def lay_records(self, fields: list[Ints], blob_bytes: Ints, cuts: list[bool]) -> Laid:
        varints = [_Varints(field) for field in fields]
        bodies = blob_bytes + 1
        for varint in varints:
            bodies += varint.sizes
        length, attributes = _Varints(bodies), _Varints(np.zeros(len(bodies), np.int64))
        pieces, positions = _lay([length, attributes, *varints], [False] * 4 + cuts)
        return Laid(pieces, positions, np.cumsum(bodies + length.sizes))

    def murmur2(self, buffer: Bytes, offsets: Positions) -> Hashes:
        starts = offsets[:-1].astype(np.int64)
        lengths = np.diff(offsets)
        hashes = lengths.astype(np.uint32) ^ np.uint32(_MURMUR2_SEED)
        longest = int(lengths.max(initial=0)) // 4
        for word in range(longest):
            rows = np.flatnonzero(lengths >= 4 * word + 4)
            if len(rows) < _VECTOR_MIN:
                for row in rows.tolist():
                    hashes[row] = _murmur2_words(buffer, offsets[row], offsets[row + 1], word, int(hashes[row]))
                break
            if len(rows) == len(lengths):
                hashes = _murmur2_mix(hashes, _words(buffer, starts + 4 * word))
            else:
                hashes[rows] = _murmur2_mix(hashes[rows], _words(buffer, starts[rows] + 4 * word))
        tails = lengths & 3
        tail_starts = starts + lengths - tails
        for place in (2, 1, 0):
            rows = np.flatnonzero(tails > place)
            hashes[rows] ^= buffer[tail_starts[rows] + place].astype(np.uint32) << np.uint32(8 * place)
        hashes[rows] *= np.uint32(_MURMUR2_FACTOR)
        hashes ^= hashes >> np.uint32(13)
        hashes *= np.uint32(_MURMUR2_FACTOR)
        hashes ^= hashes >> np.uint32(15)
        return hashes


class _ColumnReader:
    """Reads the next field of all records at once. A position beyond the buffer gives an invalid byte."""

    def __init__(self, buffer: Bytes, positions: Ints, section_ends: Ints) -> None:
        self._buffer = buffer
        #: the row behind the last of each section
        self._section_ends = section_ends
        self.positions = positions.copy()

    def next_varints(self, bytes_max: int) -> Ints:
        numbers = self._buffer.take(self.positions, mode="clip")
        self.positions += 1
        if not len(numbers) or numbers.max() < 0x80:
            # Narrow numbers are many times faster.
            narrow = numbers.view(np.int8)
            return (narrow >> 1 ^ -(narrow & 1)).astype(np.int64)
        long = np.flatnonzero(numbers >= 0x80)
        raws = (numbers & 0x7F).astype(np.int64)
        for place in range(1, bytes_max):
            every = len(long) == len(raws)
            numbers = self._buffer.take(self.positions if every else self.positions[long], mode="clip")
            high = (numbers & 0x7F).astype(np.int64) << 7 * place
            if every:
                raws |= high
                self.positions += 1
            else:
                raws[long] |= high
                self.positions[long] += 1
            if place == _VARINT64_BYTES_MAX - 1:
                self._refuse_rows(long[numbers > 1])
            longer = numbers >= 0x80
            if not longer.any():
                break
            long = long[longer]
        else:
            self._refuse_rows(long)
        if bytes_max == _VARINT32_BYTES_MAX == place + 1:
            self.refuse(raws > _UINT32_MAX)
        return _unzigzag(raws)

    def refuse(self, bad: Flags, *, unless: Ints | None = None) -> None:
        """``unless``: rows that may be bad."""
        if unless is not None and len(unless):
            bad[unless] = False
        if bad.any():
            self._refuse_rows(np.flatnonzero(bad))

    def refuse_sections(self, bad: Flags) -> None:
        if bad.any():
            raise DamagedSection(int(bad.argmax()))

    def _refuse_rows(self, rows: Ints) -> None:
        if len(rows):
            raise DamagedSection(int(np.searchsorted(self._section_ends, rows[0], side="right")))


def scan_headers(buffer: Bytes, positions: Ints, ends: Ints, section_ends: Ints) -> ScannedHeaders:
    """The headers of scanned records: the first header of all that have one, then the second, and so on."""
    every = _ColumnReader(buffer, positions, section_ends)
    counts = every.next_varints(_VARINT32_BYTES_MAX)
    # A header has two bytes or more: refuse a wrong count before memory is allocated for it.
    every.refuse((counts < 0) | (counts > (ends - every.positions) // 2))
    positions = every.positions
    firsts = np.append(0, np.cumsum(counts))
    bounds = np.empty(4 * int(firsts[-1]), np.int32)
    null_values = np.empty(int(firsts[-1]), np.bool_)
    done, active = 0, np.flatnonzero(counts)
    while len(active) >= _VECTOR_MIN:
        # Rows of the active ones below the end of a section are as many as its active records.
        reader = _ColumnReader(buffer, positions[active], np.searchsorted(active, section_ends))
        places = firsts[active] + done
        for bound, smallest in ((0, 0), (2, -1)):
            sizes = reader.next_varints(_VARINT32_BYTES_MAX)
            reader.refuse(sizes < smallest)
            bounds[4 * places + bound] = reader.positions
            reader.positions += sizes.clip(0)
            bounds[4 * places + bound + 1] = reader.positions
        null_values[places] = sizes < 0
        positions[active] = reader.positions
        done += 1
        active = active[counts[active] > done]
    for row in active.tolist():
        first, last = int(firsts[row]) + done, int(firsts[row + 1])
        position = int(positions[row])
        positions[row] = _walk_headers(buffer, position, int(ends[row]), first, last, bounds, null_values)
    every.refuse(positions != ends)
    return ScannedHeaders(counts, bounds, null_values)


def _record_starts(buffer: Bytes, sections: Ints) -> Ints:
    starts = np.empty(int(sections[:, COUNT].sum()), np.int64)
    finder = _StartFinder(buffer)
    done = 0
    for index, (start, end, count) in enumerate(sections[:, : COUNT + 1].tolist()):
        try:
            position = finder.fill(starts[done : done + count], start)
        except IndexError:
            raise DamagedSection(index) from None
        if position != end:
            raise DamagedSection(index)
        done += count
    return starts


class _StartFinder:
    """Where records begin; IndexError where the buffer ends before they do."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer
        self._view = buffer.data
        #: a copy for the walk, since indexing bytes is what Python does fastest
        self._data: bytes | None = None

    def fill(self, starts: Ints, position: int) -> int:
        """Fill ``starts`` and return where the last record ends."""
        done, count = 0, len(starts)
        while done < count:
            run, stride = self._equal_records(position, count - done)
            if run >= _RUN_MIN:
                end = position + run * stride
                starts[done : done + run] = np.arange(position, end, stride)
            else:
                if self._data is None:
                    self._data = self._view.tobytes()
                run = min(_WALK_RECORDS, count - done)
                places = np.fromiter(_walk(self._data, position, run), np.int64, run + 1)
                starts[done : done + run] = places[:-1]
                end = int(places[-1])
            position = end
            done += run
        return position

    def _equal_records(self, position: int, count: int) -> tuple[int, int]:
        """How many records from here on have the length of this one, and that length with its own bytes."""
        view, buffer = self._view, self._buffer
        _, end = _walk(view, position, 1)
        stride = end - position
        size_bytes = 1
        while view[position + size_bytes - 1] >= 0x80:
            size_bytes += 1
        count = min(count, (len(view) - position) // stride)
        run, guess = 0, _GUESS_RECORDS
        while run < count:
            guess = min(guess, count - run)
            first = position + run * stride
            last = first + guess * stride
            equal = buffer[first:last:stride] == view[position]
            for place in range(1, size_bytes):
                equal &= buffer[first + place : last + place : stride] == view[position + place]
            if not equal.all():
                return run + int(equal.argmin()), stride
            run += guess
            guess *= _GUESS_GROWTH
        return run, stride


def _walk(data: bytes | memoryview, position: int, count: int) -> Iterator[int]:
    """The starts of ``count`` records, and the end of the last."""
    # A negative length gives a wrong place here, and is refused when the lengths are read as a column.
    two_bytes = _TWO_BYTES
    for _ in range(count):
        yield position
        number = data[position]
        if number < 0x80:
            position += (number >> 1) + 1
            continue
        high = data[position + 1]
        if high < 0x80:
            position += two_bytes[number] + (high << 6)
            continue
        raw = number & 0x7F | (high & 0x7F) << 7
        for place in range(2, _VARINT32_BYTES_MAX):
            number = data[position + place]
            raw |= (number & 0x7F) << 7 * place
            if number < 0x80:
                position += (raw >> 1) + place + 1
                break
        else:
            raise IndexError("a length takes more than 5 bytes")
    yield position


def lay_headers(names: Ints, values: Ints) -> tuple[Bytes, Positions]:
    """The sizes of the keys and values of headers, with cuts where their bytes belong, as with records."""
    return _lay([_Varints(names), _Varints(values)], [True, True])


class _Varints:
    """Numbers, and how many bytes each takes."""

    def __init__(self, numbers: Ints) -> None:
        self.raws = (numbers << 1 ^ numbers >> 63).view(np.uint64)
        self.largest = int(self.raws.max(initial=0))
        self.sizes = np.ones(len(numbers), np.int64)
        bits = 7
        while self.largest >> bits:
            self.sizes += self.raws >= np.uint64(1 << bits)
            bits += 7
        self.size_max = bits // 7

    def write(self, out: Bytes, positions: Ints) -> None:
        """``out`` is zero where nothing has been written."""
        if not self.largest:
            return
        raws, sizes = self.raws, self.sizes
        for place in range(self.size_max):
            if place:
                raws = raws >> np.uint64(7)
                positions = positions + 1
                longer = sizes > place
                if not longer.all():
                    positions, raws, sizes = positions[longer], raws[longer], sizes[longer]
            numbers = raws.astype(np.uint8)
            if place + 1 < self.size_max:
                numbers &= np.uint8(0x7F)
                numbers |= (sizes > place + 1).view(np.uint8) << np.uint8(7)
            out[positions] = numbers


def _lay(fields: list[_Varints], cuts: list[bool]) -> tuple[Bytes, Positions]:
    """Row by row the varints of all fields, and the positions behind those that ``cuts`` marks."""
    row_ends = np.cumsum(sum((field.sizes for field in fields[1:]), fields[0].sizes))
    cut_count = sum(cuts)
    out = np.zeros(int(row_ends[-1]), np.uint8)
    positions = np.empty(cut_count * len(row_ends) + 2, np.int32)
    positions[0], positions[-1] = 0, len(out)
    places = np.append(0, row_ends[:-1])
    cut = 1
    for field, is_cut in zip(fields, cuts, strict=True):
        field.write(out, places)
        places += field.sizes
        if is_cut:
            positions[cut:-1:cut_count] = places
            cut += 1
    return out, positions


def _unzigzag(raws: Ints) -> Ints:
    return (raws.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raws & 1)


def _words(buffer: Bytes, positions: Ints) -> Hashes:
    """Four bytes from each position on as a number, the first one least."""
    words = buffer[positions].astype(np.uint32)
    for place in (1, 2, 3):
        words |= buffer[positions + place].astype(np.uint32) << np.uint32(8 * place)
    return words


def _murmur2_mix(hashes: Hashes, words: Hashes) -> Hashes:
    words *= np.uint32(_MURMUR2_FACTOR)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_MURMUR2_FACTOR)
    return hashes * np.uint32(_MURMUR2_FACTOR) ^ words


def _compiled(function: Function) -> Function:
    """Numba is to make machine code of this when it is loaded; until then it is Python."""
    _to_compile.append(function.__name__)
    return function


class CompiledKernels:
    """One pass over the records. Only where numba is."""

    def scan(self, buffer: Bytes, sections: Ints) -> Scanned:
        count = int(sections[:, COUNT].sum())
        scanned = Scanned(
            bounds=np.empty(4 * count, np.int32),
            null_keys=np.empty(count, np.bool_),
            null_values=np.empty(count, np.bool_),
            offsets=np.empty(count, np.int64),
            timestamps=np.empty(count, np.int64),
            header_positions=np.empty(count, np.int64),
            ends=np.empty(count, np.int64),
        )
        damaged = _scan_sections(buffer, sections, *scanned)
        if damaged >= 0:
            raise DamagedSection(damaged)
        return scanned

    def lay_records(self, fields: list[Ints], blob_bytes: Ints, cuts: list[bool]) -> Laid:
        rows = len(blob_bytes)
        pieces = np.empty(rows * _RECORD_VARINT_BYTES_MAX, np.uint8)
        positions = np.empty(sum(cuts) * rows + 2, np.int32)
        ends = np.empty(rows, np.int64)
        size_bytes = _lay_rows(np.stack(fields), blob_bytes, np.array(cuts), pieces, positions, ends)
        return Laid(pieces[:size_bytes], positions, ends)

    def murmur2(self, buffer: Bytes, offsets: Positions) -> Hashes:
        hashes = np.empty(len(offsets) - 1, np.uint32)
        _hash_pieces(buffer, offsets, hashes)
        return hashes


@_compiled
def _read_varint(buffer: Bytes, position: Int, end: Int, bytes_max: int) -> tuple[Int, Int]:
    """The number and where it ends; nowhere when it goes on behind ``end`` or for too long."""
    if position >= end:
        return 0, _NOWHERE
    number = np.int64(buffer[position])
    if number < 0x80:
        return number >> 1 ^ -(number & 1), position + 1
    raw = number & 0x7F
    for place in range(1, bytes_max):
        position += 1
        if position >= end:
            return 0, _NOWHERE
        number = np.int64(buffer[position])
        if place == _VARINT64_BYTES_MAX - 1 and number > 1:
            return 0, _NOWHERE
        raw |= (number & 0x7F) << 7 * place
        if number < 0x80:
            if bytes_max == _VARINT32_BYTES_MAX and raw > _UINT32_MAX:
                return 0, _NOWHERE
            return (raw >> 1) & _INT64_MAX ^ -(raw & 1), position + 1
    return 0, _NOWHERE


@_compiled
def _scan_sections(
    buffer: Bytes,
    sections: Ints,
    bounds: Positions,
    null_keys: Flags,
    null_values: Flags,
    offsets: Ints,
    timestamps: Ints,
    header_positions: Ints,
    ends: Ints,
) -> int:
    """Fill the columns; the index of the first section that is damaged, -1 when none is."""
    row = 0
    for index in range(sections.shape[0]):
        position, section_end = sections[index, START], sections[index, END]
        base_offset, first = sections[index, BASE_OFFSET], sections[index, TIMESTAMP]
        previous: Int = -1
        for _ in range(sections[index, COUNT]):
            length, position = _read_varint(buffer, position, section_end, _VARINT32_BYTES_MAX)
            end = position + length
            if length < BODY_BYTES_MIN or end > section_end:
                return index
            # What cannot be read leads nowhere, and from there on the rest does too: one look at the end is enough.
            timestamp_delta, position = _read_varint(buffer, position + 1, end, _VARINT64_BYTES_MAX)
            offset_delta, position = _read_varint(buffer, position, end, _VARINT32_BYTES_MAX)
            key_size, key_start = _read_varint(buffer, position, end, _VARINT32_BYTES_MAX)
            key_end = key_start + max(key_size, 0)
            value_size, value_start = _read_varint(buffer, key_end, end, _VARINT32_BYTES_MAX)
            position = value_start + max(value_size, 0)
            if key_size < -1 or value_size < -1 or position >= end:
                return index
            if (buffer[position] == 0) != (position + 1 == end):
                return index
            if offset_delta <= previous or offset_delta > sections[index, LAST_OFFSET_DELTA]:
                return index
            previous = offset_delta
            timestamp_delta *= sections[index, COUNTS_DELTAS]
            timestamp = first + timestamp_delta
            if (first ^ timestamp) & (timestamp_delta ^ timestamp) < 0:
                return index
            bounds[4 * row], bounds[4 * row + 1] = key_start, key_end
            bounds[4 * row + 2], bounds[4 * row + 3] = value_start, position
            null_keys[row], null_values[row] = key_size < 0, value_size < 0
            offsets[row], timestamps[row] = base_offset + offset_delta, timestamp
            header_positions[row], ends[row] = position, end
            position = end
            row += 1
        if position != section_end:
            return index
    return -1


@_compiled
def _walk_headers(
    buffer: Bytes, position: Int, end: int, first: int, last: int, bounds: Positions, null_values: Flags
) -> Int:
    """Fill these rows with a record's headers and tell where they end: nowhere when they do not fit."""
    for row in range(first, last):
        key_size, key_start = _read_varint(buffer, position, end, _VARINT32_BYTES_MAX)
        key_end = key_start + key_size
        value_size, value_start = _read_varint(buffer, key_end, end, _VARINT32_BYTES_MAX)
        position = value_start + max(value_size, 0)
        if key_size < 0 or value_size < -1 or position > end:
            return _NOWHERE
        bounds[4 * row], bounds[4 * row + 1] = key_start, key_end
        bounds[4 * row + 2], bounds[4 * row + 3] = value_start, position
        null_values[row] = value_size < 0
    return position


@_compiled
def _varint_size(number: Int) -> Int:
    rest = (number << 1 ^ number >> 63) >> 7 & _INT64_MAX >> 6
    size = 1
    while rest:
        size += 1
        rest >>= 7
    return size


@_compiled
def _write_varint(out: Bytes, position: Int, number: Int) -> Int:
    raw = number << 1 ^ number >> 63
    while raw & ~0x7F:
        out[position] = raw & 0x7F | 0x80
        position += 1
        raw = raw >> 7 & _INT64_MAX >> 6
    out[position] = raw
    return position + 1


@_compiled
def _lay_rows(fields: Ints, blob_bytes: Ints, cuts: Flags, out: Bytes, positions: Positions, ends: Ints) -> Int:
    position: Int = 0
    end: Int = 0
    cut = 0
    positions[0] = 0
    for row in range(blob_bytes.size):
        body = blob_bytes[row] + 1
        for field in range(fields.shape[0]):
            body += _varint_size(fields[field, row])
        end += _varint_size(body) + body
        ends[row] = end
        position = _write_varint(out, position, body)
        out[position] = 0
        position += 1
        for field in range(fields.shape[0]):
            position = _write_varint(out, position, fields[field, row])
            if field >= 2 and cuts[field - 2]:
                cut += 1
                positions[cut] = position
    positions[cut + 1] = position
    return position


@_compiled
def _murmur2_words(buffer: Bytes, start: Int, end: Int, word: int, hashed: Int) -> Int:
    """Mix the whole words of a key into its hash, from the given one on."""
    for position in range(start + 4 * word, end - 3, 4):
        number = np.int64(buffer[position]) | np.int64(buffer[position + 1]) << 8
        number |= np.int64(buffer[position + 2]) << 16 | np.int64(buffer[position + 3]) << 24
        number = number * _MURMUR2_FACTOR & _UINT32_MAX
        number = (number ^ number >> 24) * _MURMUR2_FACTOR & _UINT32_MAX
        hashed = hashed * _MURMUR2_FACTOR & _UINT32_MAX ^ number
    return hashed


@_compiled
def _hash_pieces(buffer: Bytes, offsets: Positions, hashes: Hashes) -> None:
    for row in range(hashes.size):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        hashed = _murmur2_words(buffer, start, end, 0, _MURMUR2_SEED ^ (end - start))
        tail = end - (end - start & 3)
        for position in range(end - 1, tail - 1, -1):
            hashed ^= np.int64(buffer[position]) << 8 * (position - tail)
        if tail < end:
            hashed = hashed * _MURMUR2_FACTOR & _UINT32_MAX
        hashed = (hashed ^ hashed >> 13) * _MURMUR2_FACTOR & _UINT32_MAX
        hashes[row] = hashed ^ hashed >> 15


def load_compiled() -> Kernels | None:
    """Numba's kernels; None where it is not installed, or turned off."""
    if os.environ.get("OTTLA_NUMBA") == "0":
        return None
    try:
        from numba import njit
    except ImportError:
        return None
    while _to_compile:
        name = _to_compile.pop()
        try:
            globals()[name] = njit(cache=True, nogil=True)(globals()[name])
        except RuntimeError:
            # Neither the package's directory nor the user's can be written, so each process compiles for itself.
            globals()[name] = njit(nogil=True)(globals()[name])
    return CompiledKernels()


def are_compiled() -> bool:
    """Return whether an earlier process has compiled numba's kernels: loading them takes a second, compiling many."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    compiled = (
        Path(__file__).with_name("__pycache__").glob(f"{Path(__file__).stem}.{_scan_sections.__name__}-*.{python}.nbi")
    )
    return any(compiled) and importlib.util.find_spec("numba") is not None


class ChosenKernels:
    """numpy's, until this process has worked through so many rows that loading numba pays, if it is there."""

    def __init__(self, rows_before_numba: int = ROWS_BEFORE_NUMBA) -> None:
        self._rows_left = rows_before_numba
        self._chosen: Kernels = NUMPY

    def scan(self, buffer: Bytes, sections: Ints) -> Scanned:
        return self._for(int(sections[:, COUNT].sum())).scan(buffer, sections)

    def lay_records(self, fields: list[Ints], blob_bytes: Ints, cuts: list[bool]) -> Laid:
        return self._for(len(blob_bytes)).lay_records(fields, blob_bytes, cuts)

    def murmur2(self, buffer: Bytes, offsets: Positions) -> Hashes:
        return self._for(len(offsets)).murmur2(buffer, offsets)

    def use_compiled(self) -> None:
        """Use numba's kernels from now on, if they are there."""
        self._rows_left = 0
        self._chosen = load_compiled() or NUMPY

    def _for(self, rows: int) -> Kernels:
        if self._rows_left > 0:
            self._rows_left -= rows
            if self._rows_left <= 0:
                self.use_compiled()
        return self._chosen


NUMPY: Kernels = NumpyKernels()
KERNELS = ChosenKernels()
