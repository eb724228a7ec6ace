"""Decode and encode the records of a batch.

Produce and Fetch do not decode records on their normal path. Finding a timestamp inside a batch, validation for topics
that need it (`opening.py`), compaction and tools do. The format of a record; all numbers but the attributes are zigzag
varints:

    length   attributes (1 byte)   timestamp delta   offset delta   key length, key   value length, value
    header count, then for each header   key length, key   value length, value

Length -1 means null. For any bytes the functions here raise InvalidRecord or no exception, and use no more memory than
the batch and ``max_bytes``. They do not verify the checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from ottla.model.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.compression import NONE, compress, decompress_view
from ottla.model.errors import InvalidRecord

#: maximum size of a decompressed batch: sixteen times the default of max.message.bytes
DECOMPRESSED_BYTES_MAX = 16 * 1024 * 1024

Bytes = bytes | bytearray | memoryview

#: a record with null key, null value and no headers, without and with its length
BODY_BYTES_MIN = 6
_RECORD_BYTES_MIN = 7
#: key length, value length and header count take at least a byte each
FIELDS_BYTES_MIN = 3
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class Record:
    """One record. ``offset`` and ``offset_delta`` are -1 until the record is part of a batch."""

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    #: in the order of the producer; names may repeat; bytes that are not UTF-8 become surrogate escapes
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    #: offset minus the base offset of the batch; compaction leaves gaps
    offset_delta: int = -1


class RecordSpan(NamedTuple):
    """The position of a record in the decompressed bytes of its batch, and the fields that compaction needs."""

    offset: int
    timestamp: int
    key: bytes | None
    has_value: bool
    start: int
    #: position of the key's length; the bytes from there on do not depend on the batch's base timestamp
    key_position: int
    end: int


def iterate_records(batch: Bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of one complete batch. Raise InvalidRecord at a damaged record, after those before it."""
    header, data, start = open_records(batch, max_bytes)
    base_offset = header.base_offset
    index = 0
    try:
        for index, (position, end, timestamp, offset_delta) in enumerate(_frames(header, data, start)):
            key, position = _read_bytes(data, position)
            value, position = _read_bytes(data, position)
            headers: list[tuple[str, bytes | None]] = []
            if data[position]:
                headers, position = read_headers(data, position)
            else:
                position += 1
            # One comparison checks all lengths above: positions only grow, so a wrong length leads to another end.
            if position != end:
                raise InvalidRecord(f"record {index} does not end where its length says", index)
            yield Record(base_offset + offset_delta, timestamp, key, value, headers, offset_delta)
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {index}", index) from None


def record_timestamps(batch: Bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp) of every record without decoding keys, values and headers."""
    header, data, start = open_records(batch, max_bytes)
    base_offset = header.base_offset
    for _, _, timestamp, offset_delta in _frames(header, data, start):
        yield base_offset + offset_delta, timestamp


def find_timestamp(
    batch: Bytes, timestamp: int, *, starting_offset: int = 0, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record from ``starting_offset`` on with at least ``timestamp``."""
    for offset, record_timestamp in record_timestamps(batch, max_bytes=max_bytes):
        if record_timestamp >= timestamp and offset >= starting_offset:
            return offset, record_timestamp
    return None


def max_timestamp_record(batch: Bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record with the largest timestamp, None if the batch is empty."""
    return max(record_timestamps(batch, max_bytes=max_bytes), key=itemgetter(1), default=None)


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = NONE,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytes:
    """Return a batch of at least one record. A record without an offset delta gets the next one."""
    section = bytearray()
    count, offset_delta, base_timestamp, max_timestamp = 0, -1, -1, -1
    for record in records:
        if not count:
            base_timestamp = max_timestamp = record.timestamp
        assert not 0 <= record.offset_delta <= offset_delta, "offset deltas must rise"
        offset_delta = record.offset_delta if record.offset_delta >= 0 else offset_delta + 1
        max_timestamp = max(max_timestamp, record.timestamp)
        count += 1
        _write_record(section, record, record.timestamp - base_timestamp, offset_delta)
    assert count, "a batch holds at least one record"
    attributes = (
        codec
        | (LOG_APPEND_TIME if timestamp_type else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return _seal(header, compress(codec, section))


def recompress(batch: Bytes, codec: int, level: int | None = None, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the same batch under another codec: the records and every other header field stay as they are."""
    header, data, start = open_section(batch, max_bytes)
    return compress_section(header, data, start, codec, level)


def compress_section(header: BatchHeader, data: Bytes, start: int, codec: int, level: int | None) -> bytes:
    """Return the batch with the records in ``data[start:]`` under ``codec``."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return _seal(header._replace(attributes=attributes), compress(codec, memoryview(data)[start:], level))


def record_spans(batch: Bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> tuple[bytes, list[RecordSpan]]:
    """Return the decompressed bytes of a batch and the spans of its records. Record headers are not decoded."""
    header, data, start = open_records(batch, max_bytes)
    base_offset = header.base_offset
    spans: list[RecordSpan] = []
    try:
        for key_position, end, timestamp, offset_delta in _frames(header, data, start):
            key, position = _read_bytes(data, key_position)
            value_length, position = read_varint(data, position)
            if position + max(value_length, 0) >= end:
                raise InvalidRecord(f"record {len(spans)} has an impossible value of {value_length} bytes", len(spans))
            has_value = value_length >= 0
            spans.append(RecordSpan(base_offset + offset_delta, timestamp, key, has_value, start, key_position, end))
            start = end
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {len(spans)}", len(spans)) from None
    return data, spans


def retain_spans(
    header: BatchHeader, data: bytes, spans: list[RecordSpan], delete_horizon_ms: int | None = None
) -> bytes:
    """Return the batch with only these of its records, in the same codec, with the same offsets and sequences.

    With ``delete_horizon_ms`` that becomes the base timestamp, as Kafka stores it, and the records count from there.
    """
    assert spans, "a batch that keeps nothing is empty_batch's"
    if delete_horizon_ms is None:
        section = b"".join([data[span.start : span.end] for span in spans])
    else:
        section = _rebased(header, data, spans, delete_horizon_ms)
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=delete_horizon_ms)
    if not header.attributes & LOG_APPEND_TIME:
        header = header._replace(max_timestamp=max(span.timestamp for span in spans))
    return _seal(header._replace(record_count=len(spans)), compress(header.attributes & CODEC_MASK, section))


def _rebased(header: BatchHeader, data: bytes, spans: list[RecordSpan], base_timestamp: int) -> bytes:
    section = bytearray()
    for span in spans:
        _, position = read_varint(data, span.start)
        body = bytearray(data[position : position + 1])
        _write_varint(body, span.timestamp - base_timestamp)
        _write_varint(body, span.offset - header.base_offset)
        body += data[span.key_position : span.end]
        _write_varint(section, len(body))
        section += body
    return bytes(section)


def empty_batch(header: BatchHeader) -> bytes:
    """Return an empty batch with the offsets and the producer of this one, as Kafka writes it after compaction."""
    kept = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return _seal(header._replace(attributes=kept, base_timestamp=-1, record_count=0), b"")


def placeholder(header: BatchHeader) -> bytes:
    """Return an empty batch with the offsets of this one, without a producer and outside any transaction."""
    no_producer = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return empty_batch(no_producer._replace(attributes=header.attributes & LOG_APPEND_TIME))


def batch_without_records(base_offset: int, next_offset: int, leader_epoch: int) -> bytes:
    """Return a batch that takes the offsets from ``base_offset`` up to ``next_offset`` and holds nothing."""
    header = BatchHeader(
        base_offset=base_offset, length=0, leader_epoch=leader_epoch, magic=MAGIC, crc=0, attributes=0,
        last_offset_delta=next_offset - base_offset - 1, base_timestamp=-1, max_timestamp=-1, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, record_count=0,
    )  # fmt: skip
    return _seal(header, b"")


def open_records(batch: Bytes, max_bytes: int) -> tuple[BatchHeader, bytes, int]:
    """Return the result of ``open_section`` with the records as bytes."""
    header, data, start = open_section(batch, max_bytes)
    return header, bytes(data), start


def open_section(batch: Bytes, max_bytes: int) -> tuple[BatchHeader, bytes | memoryview, int]:
    """Return the header, the bytes that hold the records in the clear, and the position of the first record in them.

    Raise InvalidRecord if they cannot be a batch, RecordsTooLarge if they exceed ``max_bytes`` when decompressed.
    """
    if len(batch) < HEADER_BYTES:
        raise InvalidRecord(f"{len(batch)} bytes are too few for a batch header of {HEADER_BYTES}")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise InvalidRecord(f"magic is {header.magic}, only batches of magic {MAGIC} are supported")
    if header.size_bytes != len(batch):
        raise InvalidRecord(f"the header promises {header.size_bytes} bytes, the batch has {len(batch)}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.record_count} records cannot have offset deltas up to {header.last_offset_delta}")
    if header.last_offset > INT64_MAX:
        raise InvalidRecord(f"base offset {header.base_offset} leaves no room for the batch")
    codec = header.attributes & CODEC_MASK
    if codec != NONE and len(batch) > HEADER_BYTES:
        data: bytes | memoryview = decompress_view(codec, memoryview(batch)[HEADER_BYTES:], max_bytes)
        start = 0
    else:
        data, start = bytes(batch), HEADER_BYTES
    # A record count that is too large for the bytes is refused before a loop runs over it.
    if header.record_count * _RECORD_BYTES_MIN > len(data) - start:
        raise InvalidRecord(f"{header.record_count} records do not fit into {len(data) - start} bytes")
    return header, data, start


def _frames(header: BatchHeader, data: bytes, position: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield for every record: position of the key's length, end of the record, timestamp, offset delta."""
    size_bytes, last_offset_delta, base_timestamp = len(data), header.last_offset_delta, header.base_timestamp
    # With LogAppendTime the timestamp deltas are still those of the producer and must be ignored.
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    previous = -1
    index = 0
    try:
        for index in range(header.record_count):
            number = data[position]
            if number < 0x80:
                length, position = number >> 1 ^ -(number & 1), position + 1
            else:
                length, position = read_varint(data, position)
            end = position + length
            if length < BODY_BYTES_MIN or end > size_bytes:
                raise InvalidRecord(f"record {index} has an impossible length of {length} bytes", index)
            position += 1
            number = data[position]
            if number < 0x80:
                timestamp_delta, position = number >> 1 ^ -(number & 1), position + 1
            else:
                timestamp_delta, position = read_varint(data, position, bits=64)
            number = data[position]
            if number < 0x80:
                offset_delta, position = number >> 1 ^ -(number & 1), position + 1
            else:
                offset_delta, position = read_varint(data, position)
            if not previous < offset_delta <= last_offset_delta:
                raise InvalidRecord(f"record {index} has offset delta {offset_delta} after {previous}", index)
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if not INT64_MIN <= timestamp <= INT64_MAX:
                raise InvalidRecord(f"record {index} has a timestamp beyond 64 bits", index)
            if position + FIELDS_BYTES_MIN > end:
                raise InvalidRecord(f"record {index} is too short for its fields", index)
            yield position, end, timestamp, offset_delta
            previous, position = offset_delta, end
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {index}", index) from None
    if position != size_bytes:
        raise InvalidRecord(f"{size_bytes - position} bytes follow the last record")


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    number = data[position]
    if number < 0x80:
        length, position = number >> 1 ^ -(number & 1), position + 1
    else:
        length, position = read_varint(data, position)
    if length >= 0:
        end = position + length
        return data[position:end], end
    if length != -1:
        raise InvalidRecord(f"a record has a field of {length} bytes")
    return None, position


def read_headers(data: bytes, position: int) -> tuple[list[tuple[str, bytes | None]], int]:
    """Return the headers of a record and the position behind them. Raise InvalidRecord or IndexError."""
    count, position = read_varint(data, position)
    if count < 0:
        raise InvalidRecord(f"a record has {count} headers")
    headers = []
    # A count that is too large is harmless: decoding raises IndexError at the end of the bytes.
    for _ in range(count):
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        if key is None:
            raise InvalidRecord("a record has a header without a key")
        # Kafka accepts keys that are not UTF-8; refusing them here would make such topics unreadable.
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return headers, position


def read_varint(data: bytes | memoryview, position: int, bits: int = 32) -> tuple[int, int]:
    """Return a zigzag varint and the position behind it. Raise InvalidRecord or IndexError if there is none."""
    # Most numbers take one or two bytes, so the loop begins at the third.
    result = data[position]
    if result < 0x80:
        return result >> 1 ^ -(result & 1), position + 1
    number = data[position + 1]
    if number < 0x80:
        result += (number << 7) - 0x80
        return result >> 1 ^ -(result & 1), position + 2
    result += (number << 7) - 0x4080
    for shift in range(14, bits, 7):
        number = data[position + 2]
        if number < 0x80:
            result |= number << shift
            if result >> bits:
                break
            return result >> 1 ^ -(result & 1), position + 3
        result |= (number & 0x7F) << shift
        position += 1
    raise InvalidRecord(f"a varint does not fit into {bits} bits")


def _write_record(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    body = bytearray(1)
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    _write_varint(out, len(value))
    out += value


def _write_varint(out: bytearray, value: int) -> None:
    value = value << 1 ^ value >> 63
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _seal(header: BatchHeader, section: bytes) -> bytes:
    """Return the bytes of the batch with the correct length and checksum."""
    batch = bytearray(HEADER.pack(*header._replace(length=HEADER_BYTES - LENGTH_END + len(section), crc=0)))
    batch += section
    batch[CRC_POSITION : CRC_POSITION + 4] = checksum(batch).to_bytes(4, "big")
    return bytes(batch)
