"""What is wrong with a client's batch. ``Log.append`` looks here only when something about the header is not plain."""

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

#: Kafka refuses topics with a smaller segment.bytes
SEGMENT_BYTES_MIN_IN_KAFKA = 1 << 20


def refuse_unless_allowed(
    header: BatchHeader, size_bytes: int, size_bytes_max: int, *, transactional: bool, sequenced: bool
) -> None:
    """Raise what is wrong, in the order in which Kafka looks (LogValidator, DefaultRecordBatch).

    Returns when nothing is but that the batch belongs to a transaction, or to a coordinator, and may.
    """
    length, magic, attributes = header.length, header.magic, header.attributes
    if length < LENGTH_MIN or not 0 <= magic <= MAGIC:
        raise CorruptMessage(f"batch length {length} or magic {magic} cannot be")
    if length + LENGTH_END > size_bytes:
        raise InvalidRecord("no whole batch in the request")
    if magic != MAGIC:
        raise InvalidRecord(f"message format {magic} is not accepted any more; use a client that sends format 2")
    if length + LENGTH_END != size_bytes:
        raise InvalidRecord("a produce request must carry exactly one batch per partition")
    if header.base_offset:
        raise InvalidRecord(f"the batch's base offset must be 0, not {header.base_offset}")
    if attributes & CONTROL:
        raise InvalidRecord("clients may not write control records")
    if attributes & TRANSACTIONAL and not transactional:
        # What Kafka answers to a transactional batch in a request that names no transaction.
        raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the batch belongs to no transaction")
    if attributes & CODEC_MASK > CODEC_MAX:
        raise UnsupportedCompression(f"compression codec {attributes & CODEC_MASK} does not exist")
    count, delta = header.record_count, header.last_offset_delta
    if count <= 0 or delta + 1 != count:
        raise InvalidRecord(f"record count {count} does not fit last offset delta {delta}")
    if size_bytes > size_bytes_max:
        raise MessageTooLarge(f"batch of {size_bytes} bytes is larger than max.message.bytes")
    if header.base_timestamp > header.max_timestamp:
        raise InvalidTimestamp("the batch's first timestamp is ahead of its largest")
    if sequenced and header.base_sequence < 0 <= header.producer_id:
        raise InvalidRecord("an idempotent producer's batch needs a sequence")
    if attributes & TRANSACTIONAL and header.producer_id < 0:
        raise InvalidRecord("a transaction's batch needs a producer id")


def batch_bytes_max(segment_bytes: int) -> int:
    """Return the size of the largest batch that a topic with these segments takes.

    Kafka 4 refuses topics with segments below 1 MiB. Here a batch that is larger than such a segment gets one of its
    own: refusing usual batches would make librdkafka raise its epoch and resend those whose answer it has not seen.
    """
    return max(segment_bytes, SEGMENT_BYTES_MIN_IN_KAFKA)


def refuse_if_too_large(size_bytes: int, max_message_bytes: int, segment_bytes: int) -> None:
    """Raise MessageTooLarge or RecordListTooLarge if a batch in the topic's codec is too large."""
    if size_bytes > max_message_bytes:
        raise MessageTooLarge(f"batch has {size_bytes} bytes in the topic's codec, more than max.message.bytes")
    if size_bytes > batch_bytes_max(segment_bytes):
        raise RecordListTooLarge(f"batch has {size_bytes} bytes, more than segment.bytes")
