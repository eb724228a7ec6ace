"""Which batches the event loop opens itself, and which it leaves to the opener's process."""

from __future__ import annotations

import contextlib

import pytest
from tests.unit.log.log_fixtures import NOW, append_on_loop, batch, contents, new_log, topic

from ottla.log.log import Log
from ottla.log.opening import INLINE_US_MAX, TURN_US_MAX, NeedsOpening
from ottla.model.batch import checksum
from ottla.model.errors import InvalidTimestamp, RecordsTooLarge
from ottla.model.opening import RECORDS_MAX, open_batch
from ottla.model.records import Record, build_batch, iterate_records

ZSTD = 4


def append_opened(log: Log, data: bytes, needs: NeedsOpening) -> tuple[int, int]:
    """Append a batch after it was opened elsewhere."""
    rules, settings = needs.opening
    return append_on_loop(log, open_batch(data, rules) or data, opened=settings)


def test_plain_topic_opens_nothing() -> None:
    log = new_log()
    assert append_on_loop(log, batch(10_000)) == (0, 10_000)
    assert log.inline_budget.left_us == TURN_US_MAX


def test_small_batch_is_opened_on_the_loop() -> None:
    log = new_log(cleanup_policy="compact")
    assert append_on_loop(log, batch(100)) == (0, 100)
    assert log.inline_budget.left_us == pytest.approx(TURN_US_MAX, abs=INLINE_US_MAX)
    assert log.inline_budget.left_us < TURN_US_MAX


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_batch_of_many_records_is_not_opened_on_the_loop(codec: int) -> None:
    log = new_log(cleanup_policy="compact")
    data = batch(2000, codec=codec)
    with pytest.raises(NeedsOpening) as raised:
        append_on_loop(log, data)
    assert (log.log_end_offset, log.active.pending_bytes) == (0, 0)
    assert append_opened(log, data, raised.value) == (0, 2000)


def test_small_batch_that_decompresses_to_a_large_one_is_not_opened_on_the_loop() -> None:
    data = batch(1, size=1 << 20, codec=ZSTD)
    assert len(data) < 1000
    with pytest.raises(NeedsOpening):
        append_on_loop(new_log(cleanup_policy="compact"), data)


def test_slow_codec_is_not_used_on_the_loop() -> None:
    data = batch(1, size=10_000)
    assert append_on_loop(new_log(compression_type="lz4"), data) == (0, 1)
    settings = {"compression_type": "zstd", "compression_zstd_level": 19}
    with pytest.raises(NeedsOpening):
        append_on_loop(new_log(**settings), data)


def test_batch_in_the_codec_of_its_topic_is_not_opened() -> None:
    assert append_on_loop(new_log(compression_type="zstd"), batch(5000, codec=ZSTD)) == (0, 5000)


def test_batches_of_one_turn_share_a_budget() -> None:
    log = new_log(cleanup_policy="compact")
    appended = 0
    with contextlib.suppress(NeedsOpening):
        for appended in range(1000):  # noqa: B007
            append_on_loop(log, batch(500))
    assert 1 < appended < 20


def test_settings_that_change_while_a_batch_is_opened_have_it_opened_again() -> None:
    log = new_log(cleanup_policy="compact")
    data = batch(2000, size=0)
    with pytest.raises(NeedsOpening) as raised:
        append_on_loop(log, data)
    log.configure(topic(cleanup_policy="compact", compression_type="lz4"))
    with pytest.raises(NeedsOpening) as again:
        append_opened(log, data, raised.value)
    append_opened(log, data, again.value)
    log.write_pending()
    assert [len(list(iterate_records(each))) for each in contents(log)] == [2000]
    assert len(contents(log)[0]) < len(data)


def test_batch_that_was_opened_gets_log_append_time_at_the_append() -> None:
    log = new_log(cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    data = batch(2000, timestamp=5)
    with pytest.raises(NeedsOpening) as raised:
        append_on_loop(log, data)
    append_opened(log, data, raised.value)
    log.write_pending()
    assert {record.timestamp for record in iterate_records(contents(log)[0])} == {NOW}


def test_batch_with_too_many_records_is_refused_without_opening() -> None:
    data = bytearray(batch(1))
    data[57:61] = (RECORDS_MAX + 1).to_bytes(4, "big")
    data[23:27] = RECORDS_MAX.to_bytes(4, "big")
    data[17:21] = checksum(data).to_bytes(4, "big")
    with pytest.raises(RecordsTooLarge):
        append_on_loop(new_log(cleanup_policy="compact"), bytes(data))


def test_timestamps_too_far_ahead_are_named_on_a_plain_topic() -> None:
    times = (NOW, NOW + 5000, NOW + 1000, NOW + 1001)
    log = new_log(message_timestamp_after_max_ms=1000)
    with pytest.raises(InvalidTimestamp) as raised:
        append_on_loop(log, build_batch([Record(timestamp=time) for time in times]))
    assert [error.batch_index for error in raised.value.record_errors] == [1, 3]


def test_timestamp_too_far_behind_is_named_behind_a_valid_one() -> None:
    times = (NOW, NOW - 1001, NOW - 1000)
    log = new_log(message_timestamp_before_max_ms=1000)
    with pytest.raises(InvalidTimestamp) as raised:
        append_on_loop(log, build_batch([Record(timestamp=time) for time in times]))
    assert [error.batch_index for error in raised.value.record_errors] == [1]


def test_header_that_claims_a_timestamp_too_far_ahead_is_invalid_as_a_batch() -> None:
    data = bytearray(batch(3))
    data[35:43] = (NOW + 5000).to_bytes(8, "big")
    data[17:21] = checksum(data).to_bytes(4, "big")
    with pytest.raises(InvalidTimestamp) as raised:
        append_on_loop(new_log(message_timestamp_after_max_ms=1000), bytes(data))
    assert raised.value.record_errors == ()
