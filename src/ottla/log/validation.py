"""Validation of a client's batch. ``Log.append`` calls it only if a quick check of the header finds a deviation."""

from __future__ import annotations

from ottla.model.batch import CODEC_MASK, CODEC_MAX, CONTROL, LENGTH_END, LENGTH_MIN, MAGIC, TRANSACTIONAL, BatchHeader
from ottla.model.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    Refused,
    UnsupportedCompression,
)

#: Kafka rejects a smaller segment.bytes
SEGMENT_BYTES_MIN_IN_KAFKA = 1 << 20


def raise_if_invalid(
    header: BatchHeader,
    size_bytes: int,
    size_bytes_max: int,
    *,
    transactional: bool,
    sequenced: bool,
    has_gaps: bool = False,
) -> None:
    """Raise the first validation error, checking in the same order as Kafka (LogValidator, DefaultRecordBatch).

    Return normally for a valid batch. A transactional batch is valid if ``transactional``, a batch of a producer
    without a sequence number if not ``sequenced``, a batch that lacks some of its records if ``has_gaps``.
    """
    length, magic, attributes = header.length, header.magic, header.attributes
    if length < LENGTH_MIN or not 0 <= magic <= MAGIC:
        raise CorruptMessage(f"batch length {length} or magic {magic} is invalid")
    if length + LENGTH_END > size_bytes:
        raise InvalidRecord(f"the batch is incomplete: the request has {size_bytes} of {length + LENGTH_END} bytes")
    if magic != MAGIC:
        raise InvalidRecord(f"message format {magic} is not accepted any more; use a client that sends format 2")
    if length + LENGTH_END != size_bytes:
        raise InvalidRecord("a produce request must carry exactly one batch per partition")
    if header.base_offset:
        raise InvalidRecord(f"the batch's base offset must be 0, not {header.base_offset}")
    if attributes & CONTROL:
        raise InvalidRecord("clients may not write control records")
    if attributes & TRANSACTIONAL and not transactional:
        # Kafka's error for a transactional batch in a request without a transactional id.
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batch is transactional but the request has no transactional id",
        )
    if attributes & CODEC_MASK > CODEC_MAX:
        raise UnsupportedCompression(f"compression codec {attributes & CODEC_MASK} does not exist")
    count, delta = header.record_count, header.last_offset_delta
    fits = 0 <= count <= delta + 1 if has_gaps else 0 < count == delta + 1
    if not fits:
        raise InvalidRecord(f"record count {count} does not match last offset delta {delta}")
    if size_bytes > size_bytes_max:
        raise MessageTooLarge(f"batch of {size_bytes} bytes is larger than max.message.bytes")
    if header.base_timestamp > header.max_timestamp and not has_gaps:  # the base may be that of a missing record
        raise InvalidTimestamp("the batch's base timestamp is larger than its max timestamp")
    if sequenced and header.base_sequence < 0 <= header.producer_id:
        raise InvalidRecord("a batch of an idempotent producer needs a sequence number")
    if attributes & TRANSACTIONAL and header.producer_id < 0:
        raise InvalidRecord("a transactional batch needs a producer id")


def batch_bytes_max(segment_bytes: int) -> int:
    """Return the size of the largest batch that a topic with this segment.bytes accepts.

    Kafka 4 rejects a segment.bytes below 1 MiB. Ottla accepts it, and a batch larger than segment.bytes gets a segment
    of its own: if Ottla rejected batches of usual size, librdkafka would bump its producer epoch and resend the batches
    that are not yet acknowledged.
    """
    return max(segment_bytes, SEGMENT_BYTES_MIN_IN_KAFKA)


def raise_if_too_large(size_bytes: int, max_message_bytes: int, segment_bytes: int) -> None:
    """Raise MessageTooLarge or RecordListTooLarge if a batch, compressed with the topic's codec, is too large."""
    if size_bytes > max_message_bytes:
        raise MessageTooLarge(f"batch has {size_bytes} bytes in the topic's codec, more than max.message.bytes")
    if size_bytes > batch_bytes_max(segment_bytes):
        raise RecordListTooLarge(f"batch has {size_bytes} bytes, more than segment.bytes")
