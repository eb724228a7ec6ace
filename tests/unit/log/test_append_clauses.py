"""What Kafka promises about a batch that a client sends, one test a sentence: validation and idempotence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.log.log_fixtures import NOW, append, batch, contents, new_log, stored, topic, write

from ottla.log.log import Log
from ottla.log.validation import SEGMENT_BYTES_MIN_IN_KAFKA
from ottla.model.batch import (
    CODECS,
    CONTROL,
    CRC_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    SEQUENCES,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequence,
    RecordListTooLarge,
    Refused,
    UnsupportedCompression,
)
from ottla.model.records import Record, build_batch, iterate_records

GZIP, ZSTD = CODECS.index("gzip"), CODECS.index("zstd")


def altered(data: bytes, **fields: int) -> bytes:
    """A batch with other header fields and a checksum that fits them."""
    header = read_header(data)._replace(**fields)
    changed = bytearray(HEADER.pack(*header) + data[HEADER_BYTES:])
    changed[CRC_POSITION : CRC_POSITION + 4] = checksum(changed).to_bytes(4, "big")
    return bytes(changed)


def header_of(log: Log, number: int = -1) -> BatchHeader:
    log.write_pending()
    return read_header(contents(log)[number])


# -- validation -------------------------------------------------------------------------------------------------------


def test_batch_is_stored_with_its_offset_and_the_leaders_epoch() -> None:
    log = new_log()
    log.become_leader(7)
    write(log, batch(3), batch(2))
    assert contents(log) == [stored(batch(3), 0, 7), stored(batch(2), 3, 7)]


def test_epoch_that_the_client_sends_is_ignored() -> None:
    log = new_log()
    write(log, altered(batch(), leader_epoch=33))
    assert header_of(log).leader_epoch == 0


def test_base_offset_and_the_offset_behind_are_returned() -> None:
    log = new_log()
    append(log, batch(5))
    assert append(log, batch(3)) == (5, 8)


REFUSED: dict[str, tuple[Callable[[bytes], bytes], type[KafkaError]]] = {
    "bad checksum": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), CorruptMessage),
    "length below a header": (lambda data: altered(data, length=48), CorruptMessage),
    "negative length": (lambda data: altered(data, length=-1), CorruptMessage),
    "magic above 2": (lambda data: altered(data, magic=3), CorruptMessage),
    "negative magic": (lambda data: altered(data, magic=-1), CorruptMessage),
    "magic 0": (lambda data: altered(data, magic=0), InvalidRecord),
    "magic 1": (lambda data: altered(data, magic=1), InvalidRecord),
    "fewer bytes than the length says": (lambda data: data[:-1], InvalidRecord),
    "fewer bytes than a header": (lambda data: data[:60], InvalidRecord),
    "no bytes": (lambda data: b"", InvalidRecord),
    "two batches": (lambda data: data + data, InvalidRecord),
    "base offset other than 0": (lambda data: altered(data, base_offset=1), InvalidRecord),
    "negative base offset": (lambda data: altered(data, base_offset=-1), InvalidRecord),
    "no records": (lambda data: altered(data, record_count=0, last_offset_delta=-1), InvalidRecord),
    "negative count": (lambda data: altered(data, record_count=-1, last_offset_delta=-2), InvalidRecord),
    "count below the last delta": (lambda data: altered(data, record_count=1), InvalidRecord),
    "count above the last delta": (lambda data: altered(data, record_count=3), InvalidRecord),
    "control batch": (lambda data: altered(data, attributes=CONTROL), InvalidRecord),
    "transactional batch without a transaction": (lambda data: altered(data, attributes=TRANSACTIONAL), Refused),
    "codec that does not exist": (lambda data: altered(data, attributes=5), UnsupportedCompression),
    "first timestamp ahead of the largest": (lambda data: altered(data, base_timestamp=NOW + 1), InvalidTimestamp),
    "producer without a sequence": (lambda data: altered(data, producer_id=1, producer_epoch=0), InvalidRecord),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_its_code(what: str) -> None:
    damage, error = REFUSED[what]
    with pytest.raises(error):
        append(new_log(), damage(batch(2)))


@pytest.mark.parametrize("what", REFUSED)
def test_refused_batch_leaves_no_trace(what: str) -> None:
    damage, error = REFUSED[what]
    log = new_log()
    write(log, batch(2))
    with pytest.raises(error):
        append(log, damage(batch(2)))
    log.write_pending()
    assert contents(log) == [stored(batch(2), 0)]
    assert log.log_end_offset == 2


def test_batch_of_max_message_bytes_is_taken() -> None:
    data = batch(1, size=500)
    assert append(new_log(max_message_bytes=len(data)), data) == (0, 1)


def test_batch_above_max_message_bytes_is_too_large() -> None:
    data = batch(1, size=500)
    with pytest.raises(MessageTooLarge):
        append(new_log(max_message_bytes=len(data) - 1), data)


@pytest.mark.parametrize("settings", [{}, {"compression_type": "uncompressed"}, {"cleanup_policy": "compact"}])
def test_batch_above_segment_bytes_is_too_large_a_list(settings: dict[str, str]) -> None:
    data = build_batch([Record(timestamp=NOW, key=b"k", value=bytes(SEGMENT_BYTES_MIN_IN_KAFKA))])
    with pytest.raises(RecordListTooLarge):
        append(new_log(segment_bytes=len(data) - 1, max_message_bytes=len(data), **settings), data)
    assert append(new_log(segment_bytes=len(data), max_message_bytes=len(data), **settings), data) == (0, 1)


def test_batch_that_compression_type_makes_larger_than_segment_bytes_is_too_large_a_list() -> None:
    data = batch(1, size=SEGMENT_BYTES_MIN_IN_KAFKA, codec=GZIP)
    log = new_log(compression_type="uncompressed", segment_bytes=SEGMENT_BYTES_MIN_IN_KAFKA, max_message_bytes=1 << 22)
    with pytest.raises(RecordListTooLarge):
        append(log, data)
    assert log.log_end_offset == 0


def test_batch_above_a_segment_bytes_that_kafka_does_not_allow_gets_a_segment_of_its_own() -> None:
    small, large = batch(1, size=100), batch(1, size=5000)
    log = new_log(segment_bytes=1000, max_message_bytes=1 << 21)
    for data in (small, large, small, large, large):
        append(log, data)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2, 3, 4]
    exact = build_batch([Record(timestamp=NOW, value=bytes(SEGMENT_BYTES_MIN_IN_KAFKA - 100))])
    exact = build_batch([Record(timestamp=NOW, value=bytes(2 * SEGMENT_BYTES_MIN_IN_KAFKA - 100 - len(exact)))])
    assert len(exact) == SEGMENT_BYTES_MIN_IN_KAFKA
    append(log, exact)
    with pytest.raises(RecordListTooLarge):
        append(log, batch(1, size=SEGMENT_BYTES_MIN_IN_KAFKA - 60))


def test_what_compression_type_blows_up_beyond_max_message_bytes_is_too_large() -> None:
    data = batch(1, size=5000, codec=GZIP)
    log = new_log(compression_type="uncompressed", max_message_bytes=1000)
    with pytest.raises(MessageTooLarge):
        append(log, data)


def test_what_compression_type_makes_fit_is_taken() -> None:
    data = batch(1, size=900)
    log = new_log(compression_type="gzip", max_message_bytes=1000, segment_bytes=500)
    assert append(log, data) == (0, 1)


def test_null_key_on_a_compacted_topic_is_named() -> None:
    records = [Record(timestamp=NOW, key=b"k"), Record(timestamp=NOW, key=None), Record(timestamp=NOW, key=None)]
    with pytest.raises(InvalidRecord) as raised:
        append(new_log(cleanup_policy="compact"), build_batch(records))
    assert [error.batch_index for error in raised.value.record_errors] == [1, 2]


def test_null_key_in_a_compressed_batch_is_found() -> None:
    with pytest.raises(InvalidRecord):
        append(new_log(cleanup_policy="compact"), batch(2, key=None, codec=ZSTD))


def test_null_key_on_a_plain_topic_is_fine() -> None:
    assert append(new_log(), batch(key=None)) == (0, 1)


def test_compacted_topic_takes_keys() -> None:
    assert append(new_log(cleanup_policy="compact,delete"), batch(2, key=b"")) == (0, 2)


# -- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1001, 1 << 50])
def test_timestamp_too_far_ahead_is_invalid(ahead: int) -> None:
    with pytest.raises(InvalidTimestamp):
        append(new_log(message_timestamp_after_max_ms=1000), batch(timestamp=NOW + ahead))


def test_timestamp_at_the_limit_ahead_is_taken() -> None:
    assert append(new_log(message_timestamp_after_max_ms=1000), batch(timestamp=NOW + 1000)) == (0, 1)


def test_newest_record_counts_ahead() -> None:
    with pytest.raises(InvalidTimestamp):
        append(new_log(message_timestamp_after_max_ms=1000), batch(3, timestamp=NOW, step_ms=600))


def test_timestamp_too_far_behind_is_invalid() -> None:
    with pytest.raises(InvalidTimestamp):
        append(new_log(message_timestamp_before_max_ms=1000), batch(timestamp=NOW - 1001))


def test_timestamp_at_the_limit_behind_is_taken() -> None:
    assert append(new_log(message_timestamp_before_max_ms=1000), batch(timestamp=NOW - 1000)) == (0, 1)


def test_old_timestamps_are_taken_by_default() -> None:
    assert append(new_log(), batch(timestamp=0)) == (0, 1)


def test_no_timestamp_is_never_too_old() -> None:
    assert append(new_log(message_timestamp_before_max_ms=1000), batch(timestamp=-1)) == (0, 1)


def test_refused_timestamp_leaves_no_trace() -> None:
    log = new_log(message_timestamp_after_max_ms=1000)
    with pytest.raises(InvalidTimestamp):
        append(log, batch(timestamp=NOW + 2000, producer=(1, 0, 0)))
    assert (log.log_end_offset, log.pending, log.producers.entries) == (0, [], {})


def test_create_time_stays_what_the_producer_wrote() -> None:
    log = new_log()
    write(log, batch(3, timestamp=NOW - 50, step_ms=10))
    assert [record.timestamp for record in iterate_records(contents(log)[0])] == [NOW - 50, NOW - 40, NOW - 30]


def test_log_append_time_dates_every_record() -> None:
    log = new_log(message_timestamp_type="LogAppendTime")
    write(log, batch(3, timestamp=5, step_ms=10))
    assert [record.timestamp for record in iterate_records(contents(log)[0])] == [NOW] * 3


def test_log_append_time_sets_the_bit_and_keeps_the_base_timestamp() -> None:
    log = new_log(message_timestamp_type="LogAppendTime")
    write(log, batch(3, timestamp=5, step_ms=10))
    header = header_of(log)
    assert header.attributes & LOG_APPEND_TIME
    assert (header.base_timestamp, header.max_timestamp) == (5, NOW)


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_log_append_time_leaves_a_valid_checksum(codec: int) -> None:
    log = new_log(message_timestamp_type="LogAppendTime", compression_type="zstd")
    write(log, batch(3, codec=codec))
    data = contents(log)[0]
    assert read_header(data).crc == checksum(data)


@pytest.mark.parametrize("timestamp", [0, NOW + (1 << 50)])
def test_log_append_time_takes_any_timestamp(timestamp: int) -> None:
    log = new_log(
        message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=1, message_timestamp_before_max_ms=1
    )
    assert append(log, batch(timestamp=timestamp)) == (0, 1)


# -- compression.type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["uncompressed", *CODECS[1:]])
@pytest.mark.parametrize("sent", range(len(CODECS)), ids=CODECS)
def test_stored_codec_is_the_topics(wanted: str, sent: int) -> None:
    log = new_log(compression_type=wanted)
    data = batch(4, size=100, codec=sent, step_ms=3, producer=(9, 1, 5))
    write(log, data)
    stored_batch = contents(log)[0]
    header = read_header(stored_batch)
    assert CODECS[header.attributes & 7] == ("none" if wanted == "uncompressed" else wanted)
    assert header.crc == checksum(stored_batch)
    assert list(iterate_records(stored_batch)) == list(iterate_records(data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_producers_codec_is_kept_to_the_byte(codec: int) -> None:
    log = new_log(compression_type="producer")
    write(log, batch(4, codec=codec))
    assert contents(log) == [stored(batch(4, codec=codec), 0)]


def test_changed_settings_hold_from_the_next_batch_on() -> None:
    log = new_log()
    write(log, batch(2))
    log.configure(topic(compression_type="gzip"))
    write(log, batch(2))
    assert [read_header(data).attributes & 7 for data in contents(log)] == [0, GZIP]


# -- idempotence ------------------------------------------------------------------------------------------------------


def test_repeated_batch_gets_the_offset_it_has() -> None:
    log = new_log()
    first = append(log, batch(3, producer=(1, 0, 0)))
    append(log, batch(2, producer=(1, 0, 3)))
    assert append(log, batch(3, producer=(1, 0, 0))) == first
    log.write_pending()
    assert log.log_end_offset == 5


def test_the_last_five_batches_are_remembered() -> None:
    log = new_log()
    answers = [append(log, batch(producer=(1, 0, number))) for number in range(7)]
    assert [append(log, batch(producer=(1, 0, number))) for number in range(2, 7)] == answers[2:]


def test_a_batch_older_than_the_last_five_is_out_of_order() -> None:
    log = new_log()
    for number in range(7):
        append(log, batch(producer=(1, 0, number)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(1, 0, 1)))


def test_repeated_sequence_with_another_length_is_out_of_order() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(2, producer=(1, 0, 0)))


def test_gap_in_the_sequence_is_out_of_order() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(1, 0, 4)))


def test_refused_sequence_leaves_no_trace() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(1, 0, 4)))
    assert append(log, batch(producer=(1, 0, 3))) == (3, 4)


def test_older_epoch_is_fenced() -> None:
    log = new_log()
    append(log, batch(producer=(1, 5, 0)))
    with pytest.raises(InvalidProducerEpoch):
        append(log, batch(producer=(1, 4, 1)))


def test_newer_epoch_starts_at_zero() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    assert append(log, batch(producer=(1, 1, 0))) == (3, 4)
    assert append(log, batch(producer=(1, 1, 1))) == (4, 5)


def test_newer_epoch_that_starts_elsewhere_is_out_of_order() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(1, 1, 3)))


def test_newer_epoch_clears_the_window() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    append(log, batch(2, producer=(1, 1, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(3, producer=(1, 1, 0)))


def test_refused_epoch_bump_leaves_the_old_epoch_in_force() -> None:
    log = new_log()
    append(log, batch(3, producer=(1, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(1, 1, 3)))
    assert append(log, batch(producer=(1, 0, 3))) == (3, 4)


@pytest.mark.parametrize("sequence", [0, 1, 77, SEQUENCES - 1])
def test_unknown_producer_may_start_anywhere(sequence: int) -> None:
    assert append(new_log(), batch(producer=(1, 0, sequence))) == (0, 1)


def test_sequence_wraps_from_the_largest_to_zero() -> None:
    log = new_log()
    append(log, batch(producer=(1, 0, SEQUENCES - 1)))
    assert append(log, batch(producer=(1, 0, 0))) == (1, 2)


def test_sequence_wraps_within_a_batch() -> None:
    log = new_log()
    append(log, batch(5, producer=(1, 0, SEQUENCES - 2)))
    assert append(log, batch(producer=(1, 0, 3))) == (5, 6)


def test_batch_that_wraps_is_recognized_when_repeated() -> None:
    log = new_log()
    append(log, batch(5, producer=(1, 0, SEQUENCES - 2)))
    append(log, batch(producer=(1, 0, 3)))
    assert append(log, batch(5, producer=(1, 0, SEQUENCES - 2))) == (0, 5)


def test_producers_do_not_disturb_each_other() -> None:
    log = new_log()
    append(log, batch(2, producer=(1, 0, 0)))
    append(log, batch(2, producer=(2, 0, 40)))
    assert append(log, batch(2, producer=(1, 0, 2))) == (4, 6)
    assert append(log, batch(2, producer=(2, 0, 42))) == (6, 8)


def test_batches_without_a_producer_are_never_repeated() -> None:
    log = new_log()
    assert [append(log, batch()) for _ in range(3)] == [(0, 1), (1, 2), (2, 3)]
