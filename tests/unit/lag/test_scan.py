"""The first record that a group has not consumed, in batches as a broker sends them."""

from __future__ import annotations

import pytest

from ottla.client.fetching import Aborted
from ottla.lag.first_records import Isolation, Search
from ottla.lag.scan import Scanned, first_record
from ottla.model.batch import CODECS
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition


def batch(base: int, *times: int | None, producer: int = -1, control: bool = False, codec: int = 0) -> bytes:
    """A batch with a record for each time; None is an offset whose record compaction has removed."""
    records = [
        Record(timestamp=time, value=b"v", offset_delta=delta) for delta, time in enumerate(times) if time is not None
    ]
    return build_batch(
        records, base_offset=base, codec=codec, producer_id=producer, transactional=producer >= 0, control=control
    )


def marker(base: int, producer: int) -> bytes:
    return batch(base, 1, producer=producer, control=True)


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_the_record_at_the_offset_counts_also_in_the_middle_of_a_batch(codec: int) -> None:
    data = batch(10, 100, 200, 300, codec=codec)
    assert first_record(data, 11) == Scanned(11, is_found=True, timestamp_ms=200)


def test_offsets_that_compaction_has_emptied_are_stepped_over() -> None:
    data = batch(10, 100, None, None, 400) + batch(20, 900)
    assert first_record(data, 11) == Scanned(13, is_found=True, timestamp_ms=400)
    assert first_record(data, 14) == Scanned(20, is_found=True, timestamp_ms=900)


def test_markers_are_no_records() -> None:
    assert first_record(marker(10, 7) + marker(11, 8), 10) == Scanned(12)


def test_records_of_aborted_transactions_are_no_records() -> None:
    data = batch(10, 100, 101, producer=7) + batch(12, 500, producer=8) + marker(13, 7)
    assert first_record(data, 10, [Aborted(7, 10)]) == Scanned(12, is_found=True, timestamp_ms=500)


def test_the_next_transaction_of_the_same_producer_counts() -> None:
    data = batch(10, 100, producer=7) + marker(11, 7) + batch(12, 700, producer=7)
    assert first_record(data, 10, [Aborted(7, 10)]) == Scanned(12, is_found=True, timestamp_ms=700)


def test_a_transaction_that_was_aborted_before_the_offset_is_left_out() -> None:
    data = batch(10, 100, producer=7) + marker(11, 7)
    assert first_record(data, 10, [Aborted(7, 3)]) == Scanned(12)


def test_an_incomplete_batch_at_the_end_is_not_read() -> None:
    assert first_record(batch(10, 100)[:-1], 10) == Scanned(10)


def test_a_record_without_a_timestamp_has_an_unknown_age() -> None:
    assert first_record(batch(10, -1), 10) == Scanned(10, is_found=True)


def test_damaged_records_have_an_unknown_age() -> None:
    data = bytearray(batch(10, 100, codec=4))
    data[65:] = bytes(len(data) - 65)
    assert first_record(bytes(data), 10) == Scanned(10, is_found=True)


def test_batches_of_an_old_format_have_an_unknown_age() -> None:
    data = bytearray(batch(10, 100))
    data[16] = 1
    assert first_record(bytes(data), 10) == Scanned(10, is_found=True)


# the search over several replies


def search(start: int, end: int) -> Search:
    return Search(name=TopicPartition("t", 0), position=start, end=end)


def test_a_search_ends_without_a_record_at_the_high_watermark() -> None:
    each = search(10, 12)
    each.advance(marker(10, 7) + marker(11, 7), [], ends=(12, 12), is_first=True)
    assert (each.is_done, each.is_unknown, each.timestamp_ms) == (True, False, None)


def test_a_record_after_the_end_that_was_read_before_does_not_count() -> None:
    each = search(10, 11)
    each.advance(marker(10, 7) + batch(11, 100), [], ends=(12, 12), is_first=True)
    assert (each.is_done, each.timestamp_ms) == (True, None)


def test_a_batch_that_was_left_out_is_asked_for_again_and_first() -> None:
    each = search(10, 20)
    each.advance(b"", [], ends=(20, 20), is_first=False)
    assert (each.is_done, each.is_hungry, each.position) == (False, True, 10)


def test_without_any_batch_in_the_rest_of_the_log_nothing_is_left_to_consume() -> None:
    each = search(10, 20)
    each.advance(b"", [], ends=(20, 20), is_first=True)
    assert (each.is_done, each.is_unknown, each.timestamp_ms) == (True, False, None)


def test_after_the_last_stable_offset_records_of_open_transactions_are_looked_at() -> None:
    each = search(10, 20)
    each.advance(b"", [], ends=(20, 10), is_first=True)
    assert (each.is_done, each.isolation, each.position) == (False, Isolation.READ_UNCOMMITTED, 10)
    each.advance(batch(10, 100, producer=7), [], ends=(20, 10), is_first=True)
    assert (each.is_done, each.timestamp_ms) == (True, 100)


def test_a_gap_before_the_last_stable_offset_is_stepped_over() -> None:
    each = search(10, 20)
    each.advance(b"", [], ends=(20, 15), is_first=True)
    assert (each.is_done, each.isolation, each.position) == (False, Isolation.READ_UNCOMMITTED, 15)


def test_a_leader_that_does_not_know_the_high_watermark_yet_is_asked_again() -> None:
    each = search(10, 20)
    each.advance(b"", [], ends=(10, -1), is_first=True)
    assert (each.is_done, each.failures) == (False, 1)
