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
    INT64_MAX,
    INT64_MIN,
    Bytes,
    compress_section,
    open_section,
    read_varint,
    record_frames,
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
    header: BatchHeader, data: bytes | memoryview, start: int, rules: OpeningRules
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the indexes of records without a key, and index and timestamp of records out of range; the first of each.

    The offset deltas of a client's batch are 0, 1, 2 and so on.
    """
    requires_keys, checks_timestamps = rules.requires_keys, rules.checks_timestamps
    timestamp_min, timestamp_max = rules.timestamp_min, rules.timestamp_max
    without_key: list[int] = []
    out_of_range: list[tuple[int, int]] = []
    index = 0
    try:
        for index, (position, end, timestamp, offset_delta) in enumerate(record_frames(header, data, start)):
            if offset_delta != index:
                raise InvalidRecord(f"record {index} has another offset delta than {index}", index)
            if checks_timestamps:
                is_valid = timestamp_min <= timestamp <= timestamp_max or timestamp == _NO_TIMESTAMP
                if not is_valid and len(out_of_range) < RECORD_ERRORS_MAX:
                    out_of_range.append((index, timestamp))
            number = data[position]
            if number == 1:  # the zigzag form of -1, which stands for null
                if requires_keys and len(without_key) < RECORD_ERRORS_MAX:
                    without_key.append(index)
                continue
            if number < 0x80:
                length, position = number >> 1 ^ -(number & 1), position + 1
            else:
                length, position = read_varint(data, position)
            # The length of the value and the number of headers still have to follow.
            if not 0 <= length <= end - position - 2:
                raise InvalidRecord(f"record {index} has an impossible key of {length} bytes", index)
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {index}", index) from None
    return without_key, out_of_range
