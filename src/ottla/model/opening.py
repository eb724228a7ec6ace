"""Open a client's batch for a topic that asks for more than a look at the header.

A compacted topic takes no record without a key; `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`
bound the timestamp of each record; `compression.type` names the codec in which a topic stores its batches. Like Kafka
(KIP-467), ``open_batch`` names every invalid record of a batch, so that a producer knows which of its records to blame.

The cost is per record and per decompressed byte, in pure Python, and a client chooses both: a batch of 1 MB can hold
two million records. So ``OpeningRules`` bound it, and `log/opener.py` moves all but small batches to another process.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.batch import HEADER_BYTES, BatchHeader, read_header
from ottla.model.errors import InvalidRecord, InvalidTimestamp, RecordError, RecordsTooLarge
from ottla.model.records import (
    BODY_BYTES_MIN,
    FIELDS_BYTES_MIN,
    INT64_MAX,
    INT64_MIN,
    Bytes,
    compress_section,
    open_section,
    read_varint,
)

#: invalid records that one reply names; each takes about 60 bytes of it
RECORD_ERRORS_MAX = 10_000
#: largest value of librdkafka's batch.num.messages
RECORDS_MAX = 1_000_000
#: the codec of a batch stays as it is
KEEP_CODEC = -1

_NO_TIMESTAMP = -1
_NO_KEY = "a compacted topic takes no record without a key"


class OpeningRules(NamedTuple):
    """What a topic asks of the records of a batch, and what may be spent on it."""

    requires_keys: bool = False
    #: range of valid timestamps; a record without a timestamp (-1) is valid
    timestamp_min: int = INT64_MIN
    timestamp_max: int = INT64_MAX
    #: codec in which the batch is stored
    codec: int = KEEP_CODEC
    level: int | None = None
    #: size of the decompressed records
    bytes_max: int = 16 << 20
    records_max: int = RECORDS_MAX

    @property
    def checks_records(self) -> bool:
        return self.requires_keys or self.checks_timestamps

    @property
    def checks_timestamps(self) -> bool:
        return self.timestamp_min > INT64_MIN or self.timestamp_max < INT64_MAX


def open_batch(batch: Bytes, rules: OpeningRules) -> bytes | None:
    """Return the batch as the topic stores it, or None if it stays as it is.

    Raise InvalidRecord or InvalidTimestamp with ``record_errors`` if single records break the rules, InvalidRecord
    without if the batch is damaged, RecordsTooLarge if it exceeds ``bytes_max`` or ``records_max``.
    """
    if len(batch) >= HEADER_BYTES and (count := read_header(batch).record_count) > rules.records_max:
        raise RecordsTooLarge(f"batch has {count} records, more than the {rules.records_max} that this topic takes")
    header, data, start = open_section(batch, rules.bytes_max)
    if rules.checks_records:
        without_key, out_of_range = _check_records(header, data, start, rules)
        if without_key or out_of_range:
            raise _invalid_records(without_key, out_of_range, rules)
    if rules.codec == KEEP_CODEC:
        return None
    return compress_section(header, data, start, rules.codec, rules.level)


def _invalid_records(
    without_key: list[int], out_of_range: list[tuple[int, int]], rules: OpeningRules
) -> InvalidRecord | InvalidTimestamp:
    """Return the error that names the first of these records: like Kafka, a record without a key only as such."""
    valid = f"the topic takes {rules.timestamp_min} to {rules.timestamp_max}"
    texts = {index: f"timestamp {timestamp} is out of range; {valid}" for index, timestamp in out_of_range}
    texts |= dict.fromkeys(without_key, _NO_KEY)
    errors = tuple(RecordError(*each) for each in sorted(texts.items())[:RECORD_ERRORS_MAX])
    first = errors[0]
    more = f" and {len(errors) - 1} others" if len(errors) > 1 else ""
    text = f"record {first.batch_index}{more} of the batch cannot be stored: {first.text}"
    if any(error.text is not _NO_KEY for error in errors):
        return InvalidTimestamp(text, errors)
    return InvalidRecord(text, record_errors=errors)


def _check_records(
    header: BatchHeader, data: bytes | memoryview, position: int, rules: OpeningRules
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the indexes of records without a key, and index and timestamp of records out of range; the first of each.

    One loop without calls for the usual lengths of a number: a million records take about half a second. A number is
    compared in its zigzag form, in which 1 stands for -1 and every odd number is negative. The offset deltas of a
    client's batch are 0, 1, 2 and so on.
    """
    size_bytes, requires_keys = len(data), rules.requires_keys
    checks_timestamps, base_timestamp = rules.checks_timestamps, header.base_timestamp
    timestamp_min, timestamp_max = rules.timestamp_min, rules.timestamp_max
    without_key: list[int] = []
    out_of_range: list[tuple[int, int]] = []
    index = 0
    try:
        for index in range(header.record_count):
            number = data[position]
            if number < 0x80:
                length, position = number >> 1 if not number & 1 else -1, position + 1
            else:
                length, position = read_varint(data, position)
            end = position + length
            if length < BODY_BYTES_MIN or end > size_bytes:
                raise InvalidRecord(f"record {index} has an impossible length of {length} bytes", index)
            position += 1
            number = data[position]
            if number < 0x80:
                position += 1
                delta = number >> 1 ^ -(number & 1)
            else:
                delta, position = read_varint(data, position, bits=64)
            if checks_timestamps:
                timestamp = base_timestamp + delta
                is_valid = timestamp_min <= timestamp <= timestamp_max or timestamp == _NO_TIMESTAMP
                if not is_valid and len(out_of_range) < RECORD_ERRORS_MAX:
                    out_of_range.append((index, timestamp))
            number = data[position]
            if number < 0x80:
                position += 1
            else:
                second = data[position + 1]
                if second < 0x80:
                    number, position = number & 0x7F | second << 7, position + 2
                elif (third := data[position + 2]) < 0x80:
                    number, position = number & 0x7F | (second & 0x7F) << 7 | third << 14, position + 3
                else:
                    delta, position = read_varint(data, position)
                    number = delta + delta if delta >= 0 else -1
            if number != index + index:
                raise InvalidRecord(f"record {index} has another offset delta than {index}", index)
            if position + FIELDS_BYTES_MIN > end:
                raise InvalidRecord(f"record {index} is too short for its fields", index)
            number = data[position]
            if number == 1:
                if requires_keys and len(without_key) < RECORD_ERRORS_MAX:
                    without_key.append(index)
            else:
                if number < 0x80:
                    length, position = number >> 1 if not number & 1 else -1, position + 1
                else:
                    length, position = read_varint(data, position)
                # The length of the value and the number of headers still have to follow.
                if not 0 <= length <= end - position - 2:
                    raise InvalidRecord(f"record {index} has an impossible key of {length} bytes", index)
            position = end
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {index}", index) from None
    if position != size_bytes:
        raise InvalidRecord(f"{size_bytes - position} bytes follow the last record")
    return without_key, out_of_range
