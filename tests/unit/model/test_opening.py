"""``open_batch``: which records a topic refuses, how they are named, and what bounds the work."""

from __future__ import annotations

from struct import pack_into

import pytest

from ottla.model.batch import CODECS, HEADER_BYTES, read_header
from ottla.model.errors import ErrorCode, InvalidRecord, InvalidTimestamp, RecordsTooLarge
from ottla.model.opening import RECORD_ERRORS_MAX, OpeningRules, open_batch
from ottla.model.records import Record, build_batch

KEYS = OpeningRules(requires_keys=True)
TIMES = OpeningRules(timestamp_min=1000, timestamp_max=2000)
every_codec = pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)


def keyed(*keys: bytes | None, codec: int = 0) -> bytes:
    return build_batch([Record(timestamp=5, key=key, value=b"v") for key in keys], codec=codec)


def invalid(batch: bytes, rules: OpeningRules) -> list[int]:
    with pytest.raises((InvalidRecord, InvalidTimestamp)) as raised:
        open_batch(batch, rules)
    return [error.batch_index for error in raised.value.record_errors]


@every_codec
def test_every_record_without_a_key_is_named(codec: int) -> None:
    assert invalid(keyed(b"", None, b"k" * 100, None, codec=codec), KEYS) == [1, 3]


@every_codec
def test_batch_with_keys_stays_as_it_is(codec: int) -> None:
    assert open_batch(keyed(b"", b"k", b"k" * 10_000, codec=codec), KEYS) is None


def test_records_are_found_at_every_length_of_an_offset_delta() -> None:
    missing = [0, 63, 64, 8191, 8192, 20_000]
    keys = [None if number in missing else b"k" for number in range(20_001)]
    assert invalid(keyed(*keys), KEYS) == missing


def test_every_timestamp_out_of_range_is_named() -> None:
    times = (1000, 999, 2000, 2001, -1, -2, 1500)
    batch = build_batch([Record(timestamp=time, key=b"k") for time in times])
    with pytest.raises(InvalidTimestamp) as raised:
        open_batch(batch, TIMES)
    assert [error.batch_index for error in raised.value.record_errors] == [1, 3, 5]
    assert "2001" in raised.value.record_errors[1].text


def test_record_without_key_and_out_of_range_is_named_once_for_its_key() -> None:
    batch = build_batch([Record(timestamp=1), Record(timestamp=1, key=b"k")])
    with pytest.raises(InvalidTimestamp) as raised:
        open_batch(batch, TIMES._replace(requires_keys=True))
    first, second = raised.value.record_errors
    assert (first.batch_index, "key" in first.text, second.batch_index, "999" in second.text) == (0, True, 1, False)
    assert second.text.startswith("timestamp 1 ")


def test_error_names_no_more_records_than_a_reply_has_room_for() -> None:
    batch = keyed(*[None] * (RECORD_ERRORS_MAX + 5))
    assert invalid(batch, KEYS) == list(range(RECORD_ERRORS_MAX))


def test_batch_is_stored_in_the_codec_of_the_topic() -> None:
    stored = open_batch(keyed(b"k", codec=1), KEYS._replace(codec=4))
    assert stored == keyed(b"k", codec=4)


def test_record_count_beyond_the_limit_is_too_large_before_anything_is_decompressed() -> None:
    batch = bytearray(keyed(b"k", codec=4)[:HEADER_BYTES] + b"not zstd")
    pack_into(">i", batch, 57, 1001)
    with pytest.raises(RecordsTooLarge) as raised:
        open_batch(batch, KEYS._replace(records_max=1000))
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(1, len(CODECS)), ids=CODECS[1:])
def test_batch_that_decompresses_beyond_the_limit_is_too_large(codec: int) -> None:
    batch = build_batch([Record(key=b"k", value=bytes(100_000))], codec=codec)
    with pytest.raises(RecordsTooLarge) as raised:
        open_batch(batch, KEYS._replace(bytes_max=50_000))
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("change", [-1, 1])
def test_record_count_that_does_not_match_the_records_is_invalid(change: int) -> None:
    batch = bytearray(keyed(b"k", b"k", b"k"))
    count = read_header(batch).record_count + change
    pack_into(">i", batch, 57, count)
    pack_into(">i", batch, 23, count - 1)
    assert invalid(bytes(batch), KEYS) == []
