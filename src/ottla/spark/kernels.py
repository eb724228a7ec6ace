"""The loops over the bytes of record batches, on whole columns with numpy: find the fields of records, write varints,
hash keys. Both directions work on all records of a buffer at once.

Only one part is sequential: the length of a record says where the next record begins. `_StartFinder` guesses that the
next records have the length of this one, so that their lengths stand at equal distances, and accepts with one
comparison all records up to the first that differs. Where lengths change from record to record a plain Python loop over
the lengths is faster, so after a wrong guess the next records are found by that loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: offsets of a binary array of Arrow
Positions = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint32]
#: columns of a section: the uncompressed records of one batch, between two positions of the buffer
START, END, COUNT, BASE_OFFSET, LAST_OFFSET_DELTA, TIMESTAMP, COUNTS_DELTAS = range(7)
SECTION_COLUMNS = 7
#: a record with null key, null value and no headers, without and with its length
BODY_BYTES_MIN = 6
RECORD_BYTES_MIN = 7

VARINT32_BYTES_MAX = 5
VARINT64_BYTES_MAX = 10
UINT32_MAX = 0xFFFFFFFF
#: the sum of two numbers below this has 63 bits
_ADDABLE = 1 << 62
#: beyond the end of any buffer, and small enough to add a length to it
NOWHERE = 1 << 62

#: a guess costs more than it saves below so many records of equal length; then so many are found one by one
_RUN_MIN = 8
_WALK_RECORDS = 512
#: records of the first guess, and by how much the next one grows: a wrong guess costs little if it is small
_GUESS_RECORDS = 64
_GUESS_GROWTH = 8

#: by the first byte of a length of two bytes: the low bits of the length, plus the two bytes
_TWO_BYTES = [((number & 0x7F) >> 1) + 2 for number in range(256)]

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
#: fewer rows than this are processed one by one
_VECTOR_MIN = 16


class Scanned(NamedTuple):
    """One row for each record of all sections."""

    #: four for each record: key start, key end, value start, value end
    bounds: Positions
    null_keys: Flags
    null_values: Flags
    offsets: Ints
    timestamps: Ints
    #: position of the number of headers
    header_positions: Ints
    ends: Ints


class Laid(NamedTuple):
    """Everything of records except for the bytes of keys, values and headers, row by row."""

    pieces: Bytes
    #: where pieces begin, and the end of the last one: between two pieces the bytes of a key, value or headers belong
    positions: Positions
    #: where each record ends when those bytes are in their places
    ends: Ints


class ScannedHeaders(NamedTuple):
    """The number of headers of each record, and one row for each header of all records."""

    counts: Ints
    #: four for each header: key start, key end, value start, value end
    bounds: Positions
    null_values: Flags


class DamagedSection(Exception):
    """The section with this index does not hold the records that it should."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def scan(buffer: Bytes, sections: Ints) -> Scanned:
    """Return every record of the sections, whose offsets ascend and which have one record at least.

    Raise DamagedSection if a section does not hold the records that it should.
    """
    counts = sections[:, COUNT]
    section_ends = np.cumsum(counts)
    starts = _record_starts(buffer, sections)
    reader = _ColumnReader(buffer, starts, section_ends)
    lengths = reader.next_varints(VARINT32_BYTES_MAX)
    reader.refuse(lengths < BODY_BYTES_MIN)
    ends = reader.positions + lengths
    # With this, every record begins where the one before ends, and stays inside of its section.
    reader.refuse(ends[:-1] != starts[1:], unless=section_ends[:-1] - 1)
    reader.refuse_sections(ends[section_ends - 1] != sections[:, END])

    # Positions only grow, and those out of reach are clipped, so one check of the last position covers all fields.
    reader.positions += 1
    timestamp_deltas = reader.next_varints(VARINT64_BYTES_MAX)
    offset_deltas = reader.next_varints(VARINT32_BYTES_MAX)
    bounds = np.empty(4 * len(ends), np.int32)
    nulls = []
    for start in (0, 2):
        sizes = reader.next_varints(VARINT32_BYTES_MAX)
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
    timestamps = _timestamps(reader, sections, timestamp_deltas)
    return Scanned(bounds, nulls[0], nulls[1], offsets, timestamps, positions, ends)


def _timestamps(reader: _ColumnReader, sections: Ints, deltas: Ints) -> Ints:
    counts = sections[:, COUNT]
    if not sections[:, COUNTS_DELTAS].all():
        deltas = deltas * np.repeat(sections[:, COUNTS_DELTAS], counts)
    first = np.repeat(sections[:, TIMESTAMP], counts)
    timestamps: Ints = first + deltas
    if not all(-_ADDABLE < limit < _ADDABLE for of in (first, deltas) for limit in (of.min(), of.max())):
        reader.refuse(((first ^ timestamps) & (deltas ^ timestamps)) < 0)
    return timestamps


def lay_records(fields: list[Ints], blob_bytes: Ints, cuts: list[bool]) -> Laid:
    """Return everything of records except for their bytes, of which each has ``blob_bytes`` in all.

    The fields are timestamp delta, offset delta, key size, value size and number of headers. ``cuts`` says after which
    of the last three bytes belong.
    """
    varints = [_Varints(field) for field in fields]
    bodies = blob_bytes + 1
    for varint in varints:
        bodies += varint.sizes
    length, attributes = _Varints(bodies), _Varints(np.zeros(len(bodies), np.int64))
    pieces, positions = _lay([length, attributes, *varints], [False] * 4 + cuts)
    return Laid(pieces, positions, np.cumsum(bodies + length.sizes))


def murmur2(buffer: Bytes, offsets: Positions) -> Hashes:
    """Return the hash of each of the consecutive pieces that ``offsets`` delimit, as the Java client computes it."""
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint32) ^ np.uint32(_MURMUR2_SEED)
    longest = int(lengths.max(initial=0)) // 4
    for word in range(longest):
        rows = np.flatnonzero(lengths >= 4 * word + 4)
        if len(rows) < _VECTOR_MIN:
            for row in rows.tolist():
                start, end = int(offsets[row]) + 4 * word, int(offsets[row + 1])
                hashes[row] = _murmur2_words(bytes(buffer[start:end]), int(hashes[row]))
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
    """Reads the next field of all records at once. Beyond the buffer it reads the last byte again."""

    def __init__(self, buffer: Bytes, positions: Ints, section_ends: Ints) -> None:
        self._buffer = buffer
        #: the row after the last one of each section
        self._section_ends = section_ends
        self.positions = positions.copy()

    def next_varints(self, bytes_max: int) -> Ints:
        numbers = self._buffer.take(self.positions, mode="clip")
        self.positions += 1
        if not len(numbers) or numbers.max() < 0x80:
            # Operations on narrow numbers are many times faster.
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
            if place == VARINT64_BYTES_MAX - 1:
                self._refuse_rows(long[numbers > 1])
            longer = numbers >= 0x80
            if not longer.any():
                break
            long = long[longer]
        else:
            self._refuse_rows(long)
        if bytes_max == VARINT32_BYTES_MAX == place + 1:
            self.refuse(raws > UINT32_MAX)
        return _unzigzag(raws)

    def refuse(self, bad: Flags, *, unless: Ints | None = None) -> None:
        """Raise DamagedSection if a row is bad, apart from the rows in ``unless``."""
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
    """Return the headers of scanned records. Raise DamagedSection.

    The first header of all records is read, then the second of those that have one, and so on.
    """
    every = _ColumnReader(buffer, positions, section_ends)
    counts = every.next_varints(VARINT32_BYTES_MAX)
    # A header has two bytes or more: refuse a wrong count before memory is allocated for it.
    every.refuse((counts < 0) | (counts > (ends - every.positions) // 2))
    positions = every.positions
    firsts = np.append(0, np.cumsum(counts))
    bounds = np.empty(4 * int(firsts[-1]), np.int32)
    null_values = np.empty(int(firsts[-1]), np.bool_)
    done, active = 0, np.flatnonzero(counts)
    while len(active) >= _VECTOR_MIN:
        # The section ends, counted in active rows only.
        reader = _ColumnReader(buffer, positions[active], np.searchsorted(active, section_ends))
        places = firsts[active] + done
        for bound, smallest in ((0, 0), (2, -1)):
            sizes = reader.next_varints(VARINT32_BYTES_MAX)
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
        position, end = int(positions[row]), int(ends[row])
        data, rows = bytes(buffer[position:end]), slice(4 * first, 4 * last)
        positions[row] = _walk_headers(data, position, bounds[rows], null_values[first:last])
    every.refuse(positions != ends)
    return ScannedHeaders(counts, bounds, null_values)


def _walk_headers(data: bytes, origin: int, bounds: Positions, null_values: Flags) -> int:
    """Fill the rows of a record's headers, which begin at ``origin``, and return where they end.

    Return a position beyond any end if the headers do not fit into the data.
    """
    position = 0
    for row in range(len(null_values)):
        key_size, key_start = _read_varint32(data, position)
        key_end = key_start + max(key_size, 0)
        value_size, value_start = _read_varint32(data, key_end)
        position = value_start + max(value_size, 0)
        if key_size < 0 or value_size < -1 or position > len(data):
            return NOWHERE
        bounds[4 * row : 4 * row + 4] = (origin + key_start, origin + key_end, origin + value_start, origin + position)
        null_values[row] = value_size < 0
    return origin + position


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
    """Finds where records begin. Raises IndexError if the buffer ends before the records."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer
        self._view = buffer.data
        #: a copy for the loop in Python, because Python indexes bytes faster than a memoryview
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
        """Return how many records from here on have the length of this one, and their size with the length itself."""
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
    """Yield the starts of ``count`` records, and the end of the last."""
    # A negative length gives a wrong position here; `scan` refuses it when it reads the lengths as a column.
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
        for place in range(2, VARINT32_BYTES_MAX):
            number = data[position + place]
            raw |= (number & 0x7F) << 7 * place
            if number < 0x80:
                position += (raw >> 1) + place + 1
                break
        else:
            raise IndexError("a length takes more than 5 bytes")
    yield position


def lay_headers(names: Ints, values: Ints) -> tuple[Bytes, Positions]:
    """Return the sizes of the keys and values of headers as varints, and the positions where their bytes belong."""
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
        """Write the numbers into ``out``, which is zero at these positions."""
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
    """Return the varints of all fields, row by row, and the positions after those that ``cuts`` marks."""
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
    """Return the four bytes from each position on as a little-endian number."""
    words = buffer[positions].astype(np.uint32)
    for place in (1, 2, 3):
        words |= buffer[positions + place].astype(np.uint32) << np.uint32(8 * place)
    return words


def _murmur2_mix(hashes: Hashes, words: Hashes) -> Hashes:
    words *= np.uint32(_MURMUR2_FACTOR)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_MURMUR2_FACTOR)
    return hashes * np.uint32(_MURMUR2_FACTOR) ^ words


def _murmur2_words(data: bytes, hashed: int) -> int:
    """Mix the whole words of the rest of a key into its hash."""
    for position in range(0, len(data) - 3, 4):
        number = int.from_bytes(data[position : position + 4], "little") * _MURMUR2_FACTOR & UINT32_MAX
        number = (number ^ number >> 24) * _MURMUR2_FACTOR & UINT32_MAX
        hashed = hashed * _MURMUR2_FACTOR & UINT32_MAX ^ number
    return hashed


def _read_varint32(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it; a position beyond any end if the number is not complete or too large.

    Callers compare the position with the end of the data, and the next read begins beyond it.
    """
    raw = 0
    for place in range(VARINT32_BYTES_MAX):
        if position + place >= len(data):
            return 0, NOWHERE
        raw |= (data[position + place] & 0x7F) << 7 * place
        if data[position + place] < 0x80:
            return (raw >> 1 ^ -(raw & 1), position + place + 1) if raw <= UINT32_MAX else (0, NOWHERE)
    return 0, NOWHERE
