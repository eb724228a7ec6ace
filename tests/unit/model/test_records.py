"""Reading and building record batches, record by record."""

import struct

import pytest

from ottla.model.batch import CODECS, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, checksum, read_header
from ottla.model.errors import InvalidRecord
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import (
    Record,
    build_batch,
    find_timestamp,
    iterate_records,
    max_timestamp_record,
    recompress,
    record_timestamps,
)

every_codec = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)

COUNT_POSITION = 57
LAST_OFFSET_DELTA_POSITION = 23

#: one record: timestamp 1000, key "k", value "v", header ("h", null), written down by hand
LITERAL_RECORD = bytes.fromhex("16 00 00 00 02 6b 02 76 02 02 68 01")
LITERAL_BATCH = (
    struct.pack(">qiib", 42, 49 + len(LITERAL_RECORD), 7, 2)
    + bytes.fromhex("00000000")
    + struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1)
    + LITERAL_RECORD
)


def batch_of(section: bytes, count: int = 1, last_offset_delta: int | None = None) -> bytes:
    """A batch around any bytes."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    head = struct.pack(">qiibIhiqqqhii", 0, 49 + len(section), -1, 2, 0, 0, last, 0, 0, -1, -1, -1, count)
    return head + section


def with_int32(batch: bytes, position: int, value: int) -> bytes:
    return batch[:position] + value.to_bytes(4, "big", signed=True) + batch[position + 4 :]


def timed(*timestamps: int, **options: int) -> bytes:
    return build_batch([Record(timestamp=timestamp, value=b"v") for timestamp in timestamps], **options)


def test_a_batch_written_down_by_hand_is_read() -> None:
    assert list(iterate_records(LITERAL_BATCH)) == [
        Record(offset=42, timestamp=1000, key=b"k", value=b"v", headers=[("h", None)], offset_delta=0)
    ]


def test_building_gives_the_bytes_written_down_by_hand() -> None:
    record = Record(timestamp=1000, key=b"k", value=b"v", headers=[("h", None)])
    built = build_batch([record], base_offset=42, leader_epoch=7)
    assert built[:17] + bytes(4) + built[21:] == LITERAL_BATCH


@every_codec
def test_the_checksum_of_a_built_batch_is_right(codec: int) -> None:
    built = timed(1, 2, 3, codec=codec)
    assert read_header(built).crc == checksum(built)


def test_the_header_says_what_was_asked_for() -> None:
    header = read_header(
        build_batch(
            [Record(timestamp=5), Record(timestamp=9), Record(timestamp=3)],
            base_offset=100,
            codec=4,
            leader_epoch=6,
            producer_id=77,
            producer_epoch=3,
            base_sequence=12,
            transactional=True,
            control=True,
            timestamp_type=1,
        )
    )
    assert header.attributes == 4 | TRANSACTIONAL | CONTROL | LOG_APPEND_TIME
    assert (header.base_offset, header.leader_epoch, header.last_offset_delta) == (100, 6, 2)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (5, 9, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)


def test_gaps_left_by_compaction_are_kept() -> None:
    built = build_batch([Record(offset_delta=2), Record(offset_delta=5), Record()], base_offset=10)
    assert [record.offset for record in iterate_records(built)] == [12, 15, 16]
    assert read_header(built).last_offset == 16


@every_codec
def test_log_append_time_replaces_every_timestamp(codec: int) -> None:
    built = timed(10, 30, 20, codec=codec, timestamp_type=1)
    assert [record.timestamp for record in iterate_records(built)] == [30, 30, 30]
    assert [timestamp for _, timestamp in record_timestamps(built)] == [30, 30, 30]


def test_header_keys_that_are_not_utf8_survive() -> None:
    section = bytes.fromhex("12 00 00 00 01 01 02 02 ff 00")
    (record,) = iterate_records(batch_of(section))
    assert build_batch([Record(timestamp=0, headers=record.headers)])[61:] == section


def test_an_emptied_batch_has_no_records() -> None:
    emptied = batch_of(b"", count=0, last_offset_delta=4)
    assert list(iterate_records(emptied)) == []
    assert max_timestamp_record(emptied) is None
    assert find_timestamp(emptied, 0) is None


@every_codec
def test_time_lookup_finds_the_first_record_that_is_new_enough(codec: int) -> None:
    built = timed(10, 30, 20, 40, base_offset=5, codec=codec)
    assert find_timestamp(built, 15) == (6, 30)


def test_time_lookup_finds_nothing_behind_the_newest() -> None:
    assert find_timestamp(timed(10, 20), 21) is None


def test_time_lookup_starts_at_the_given_offset() -> None:
    assert find_timestamp(timed(10, 30, 20, 40, base_offset=5), 15, starting_offset=7) == (7, 20)


def test_time_lookup_under_log_append_time_finds_the_first_record_left() -> None:
    records = [Record(timestamp=10, offset_delta=3), Record(timestamp=50)]
    built = build_batch(records, timestamp_type=1)
    assert find_timestamp(built, 40) == (3, 50)


def test_the_newest_record_is_the_first_of_equals() -> None:
    assert max_timestamp_record(timed(10, 40, 20, 40, base_offset=5)) == (6, 40)


@every_codec
@pytest.mark.parametrize("source", range(len(CODECS)), ids=CODECS)
def test_recompressing_changes_only_codec_length_and_checksum(source: int, codec: int) -> None:
    records = [Record(timestamp=number, key=b"k", value=b"v" * 50) for number in range(100)]
    options = {"base_offset": 9, "leader_epoch": 3, "producer_id": 5, "producer_epoch": 1, "base_sequence": 8}
    before = build_batch(records, codec=source, transactional=True, **options)
    after = recompress(before, codec)
    assert after == build_batch(records, codec=codec, transactional=True, **options)


def test_recompressing_keeps_bits_it_does_not_know() -> None:
    batch = bytearray(timed(1, 2))
    batch[21:23] = (0x7FC0).to_bytes(2, "big")
    assert read_header(recompress(batch, 3)).attributes == 0x7FC3


def test_records_that_grow_beyond_the_allowance_are_refused() -> None:
    built = build_batch([Record(value=bytes(100_000))], codec=4)
    with pytest.raises(InvalidRecord, match="50000"):
        list(iterate_records(built, max_bytes=50_000))


def test_records_before_the_damage_are_read() -> None:
    records = iterate_records(batch_of(LITERAL_RECORD + b"\x16" + bytes(11), count=2))
    assert next(records).value == b"v"
    with pytest.raises(InvalidRecord) as raised:
        next(records)
    assert raised.value.record_index == 1


DAMAGED = {
    "nothing": b"",
    "half a header": LITERAL_BATCH[:60],
    "old magic": LITERAL_BATCH[:16] + b"\x01" + LITERAL_BATCH[17:],
    "cut short": LITERAL_BATCH[:-1],
    "two batches": LITERAL_BATCH * 2,
    "negative count": with_int32(LITERAL_BATCH, COUNT_POSITION, -1),
    "more records than offsets": with_int32(LITERAL_BATCH, COUNT_POSITION, 2),
    "more records than bytes": with_int32(
        with_int32(LITERAL_BATCH, COUNT_POSITION, 2**31 - 1), LAST_OFFSET_DELTA_POSITION, 2**31 - 2
    ),
    "fewer records than bytes": batch_of(LITERAL_RECORD * 2, count=1),
    "no offsets": with_int32(LITERAL_BATCH, LAST_OFFSET_DELTA_POSITION, -1),
    "offsets beyond 64 bits": (2**63 - 1).to_bytes(8, "big")
    + with_int32(LITERAL_BATCH, LAST_OFFSET_DELTA_POSITION, 1)[8:],
    "offset delta twice": batch_of(LITERAL_RECORD * 2, count=2),
    "offset delta beyond the last": batch_of(bytes.fromhex("0c 00 00 02 01 01 00")),
    "negative offset delta": batch_of(bytes.fromhex("0c 00 00 01 01 01 00")),
    "record too short": batch_of(bytes.fromhex("0a 00 00 00 01 01 00")),
    "record of negative length": batch_of(bytes.fromhex("0b 00 00 00 01 01 00")),
    "record longer than the batch": batch_of(bytes.fromhex("0e 00 00 00 01 01 00")),
    "length of six bytes": batch_of(bytes.fromhex("8c 80 80 80 80 00 00 00 00 01 01 00")),
    "length beyond 32 bits": batch_of(bytes.fromhex("ff ff ff ff 1f 00 00 00 01 01 00")),
    "timestamp beyond 64 bits": batch_of(bytes.fromhex("1e 00 ff ff ff ff ff ff ff ff ff 7f 00 01 01 00")),
    "varint without end": batch_of(bytes.fromhex("0c 00 80 80 80 80 80")),
    "timestamp fills the record": batch_of(bytes.fromhex("0c 00 80 80 80 80 00") + LITERAL_RECORD),
    "key longer than the record": batch_of(bytes.fromhex("0c 00 00 00 04 01 00")),
    "key of length -2": batch_of(bytes.fromhex("0c 00 00 00 03 01 00")),
}
DAMAGED_BEHIND_THE_KEY = {
    "value longer than the record": batch_of(bytes.fromhex("0c 00 00 00 01 04 00")),
    "value of length -2": batch_of(bytes.fromhex("0c 00 00 00 01 03 00")),
    "negative header count": batch_of(bytes.fromhex("0c 00 00 00 01 01 01")),
    "more headers than bytes": batch_of(bytes.fromhex("14 00 00 00 01 01 fe ff ff ff 0f")),
    "header without key": batch_of(bytes.fromhex("10 00 00 00 01 01 02 01 01")),
    "bytes behind the headers": batch_of(bytes.fromhex("0e 00 00 00 01 01 00 00")),
}


@pytest.mark.parametrize("damage", [*DAMAGED, *DAMAGED_BEHIND_THE_KEY])
def test_a_damaged_batch_is_refused_by_the_reader(damage: str) -> None:
    with pytest.raises(InvalidRecord):
        list(iterate_records((DAMAGED | DAMAGED_BEHIND_THE_KEY)[damage]))


@pytest.mark.parametrize("damage", [damage for damage in DAMAGED if not damage.startswith("key")])
def test_a_damaged_batch_is_refused_by_the_time_scan(damage: str) -> None:
    with pytest.raises(InvalidRecord):
        list(record_timestamps(DAMAGED[damage]))


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("rules", [OpeningRules(requires_keys=True), OpeningRules(timestamp_min=0)])
def test_damaged_batch_is_rejected_by_open_batch(damage: str, rules: OpeningRules) -> None:
    with pytest.raises(InvalidRecord) as raised:
        open_batch(DAMAGED[damage], rules)
    assert raised.value.record_errors == ()


def test_building_refuses_falling_offset_deltas() -> None:
    with pytest.raises(AssertionError):
        build_batch([Record(offset_delta=2), Record(offset_delta=2)])
