"""What a log does while all is well: reading, rolling, moving its start, truncating, syncing, finding times."""

from __future__ import annotations

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    append,
    batch,
    contents,
    new_disk,
    new_log,
    offsets,
    open_at,
    producer_state,
    split,
    stored,
    sync,
    topic,
    write,
)

from ottla.log.log import PENDING_BATCH_BYTES_MAX, PENDING_BYTES_MAX, Log
from ottla.log.retention import retention_start_offset
from ottla.log.segment import _SCAN_BYTES, Segment
from ottla.model.batch import read_header
from ottla.model.errors import OffsetOutOfRange

LARGE = PENDING_BATCH_BYTES_MAX + 1000


def read(
    log: Log, offset: int, size_bytes_max: int = 1 << 30, end_offset: int | None = None, *, at_least_one: bool = True
) -> list[tuple[int, int]]:
    """(base, next) of the batches that a read gives."""
    end = log.written_end_offset if end_offset is None else end_offset
    region = log.read(offset, size_bytes_max, end, at_least_one=at_least_one)
    headers = [read_header(data) for data in split(region.read())] if region is not None else []
    return [(header.base_offset, header.next_offset) for header in headers]


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# -- appending --------------------------------------------------------------------------------------------------------


def test_small_batches_wait_and_are_written_with_one_call() -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(20):
        append(log, batch())
    assert (log.log_end_offset, log.written_end_offset) == (20, 0)
    disk.calls.clear()
    log.write_pending()
    assert [call.name for call in disk.calls if call.path.endswith(".log")] == ["create", "pwrite"]
    assert log.written_end_offset == 20


def test_large_batch_is_written_at_once_behind_what_was_pending() -> None:
    log = new_log()
    append(log, batch())
    append(log, batch(size=LARGE))
    append(log, batch())
    assert (log.log_end_offset, log.written_end_offset) == (3, 2)
    log.write_pending()
    assert contents(log) == [stored(batch(), 0), stored(batch(size=LARGE), 1), stored(batch(), 2)]


def test_pending_bytes_are_bounded() -> None:
    log = new_log()
    while log.written_end_offset == 0:
        append(log, batch(size=30_000))
        assert log.active.pending_bytes <= PENDING_BYTES_MAX
    assert log.written_end_offset == log.log_end_offset


def test_large_batch_of_this_turn_is_not_read_before_the_turn_ends() -> None:
    """The high watermark moves at the end of the turn; a reader in between must neither see nor skip the batch."""
    log = new_log()
    write(log, batch())
    append(log, batch(size=LARGE))
    assert read(log, 0, end_offset=1) == [(0, 1)]
    log.write_pending()
    append(log, batch())
    log.write_pending()
    assert read(log, 1) == [(1, 2), (2, 3)]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_offset_within_a_batch_gives_the_whole_batch() -> None:
    log = new_log()
    write(log, batch(5), batch(5))
    assert read(log, 7) == [(5, 10)]


def test_nothing_is_behind_the_end() -> None:
    log = new_log()
    write(log, batch(5))
    assert read(log, 5) == []


def test_offset_between_what_readers_may_see_and_the_end_gives_nothing() -> None:
    log = new_log()
    write(log, batch(5))
    append(log, batch(5))
    assert read(log, 5, end_offset=5) == read(log, 10, end_offset=5) == []


@pytest.mark.parametrize("offset", [-1, 2, 11])
def test_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    log = new_log()
    write(log, batch(5), batch(5))
    log.advance_log_start(3)
    with pytest.raises(OffsetOutOfRange):
        read(log, offset)


def test_maximum_is_kept_in_whole_batches() -> None:
    log = new_log()
    write(log, *(batch() for _ in range(10)))
    size = len(batch())
    assert read(log, 2, 3 * size + size // 2) == [(2, 3), (3, 4), (4, 5)]
    assert read(log, 2, 3 * size) == [(2, 3), (3, 4), (4, 5)]


def test_first_batch_is_whole_when_one_is_wanted_whatever_its_size() -> None:
    log = new_log()
    write(log, batch(size=500), batch())
    assert read(log, 0, 1) == [(0, 1)]
    assert read(log, 0, 1, at_least_one=False) == []


def test_readers_see_only_batches_below_their_end() -> None:
    log = new_log()
    write(log, batch(2), batch(2), batch(2))
    assert read(log, 0, end_offset=4) == [(0, 2), (2, 4)]


@pytest.mark.parametrize("shift", range(-66, 67))
def test_batches_are_found_wherever_a_chunk_of_the_file_ends(shift: int) -> None:
    """Headers, and the lengths in them, lie across the border of what one look reads."""
    log = new_log(index_interval_bytes=1 << 20)
    first = _SCAN_BYTES + shift - len(batch(size=0)) - 2
    written = [batch(size=first), batch(2), batch(3, size=_SCAN_BYTES), batch(4), batch(5, size=100)]
    write(log, *written)
    ends = [1, 3, 6, 10, 15]
    sizes = [len(data) for data in written]
    for offset in range(15):
        number = next(number for number, end in enumerate(ends) if offset < end)
        expected = [(ends[n - 1] if n else 0, ends[n]) for n in range(number, 5)]
        assert read(log, offset) == expected
        for count in range(1, 5 - number):
            limit = sum(sizes[number : number + count + 1]) - 1
            assert read(log, offset, limit) == expected[:count]


def test_reader_that_follows_the_log_needs_no_search() -> None:
    disk = new_disk()
    log = new_log(disk)
    write(log, *(batch() for _ in range(50)))
    assert len(read(log, 0)) == 50
    for offset in range(50, 60):
        write(log, batch())
        disk.calls.clear()
        assert log.read(offset, 1 << 20, log.written_end_offset, at_least_one=True) is not None
        assert not [call for call in disk.calls if call.name == "pread"]
        assert read(log, offset) == [(offset, offset + 1)]


def test_second_follower_and_consumer_need_no_search_where_the_first_follower_has_read() -> None:
    disk = new_disk()
    log = new_log(disk)
    write(log, *(batch() for _ in range(50)))
    assert len(read(log, 0)) == 50
    for offset in range(50, 150):
        write(log, batch())
        disk.calls.clear()
        for _ in range(2):
            assert log.read(offset, 1 << 20, log.written_end_offset, at_least_one=True) is not None
        # The consumer reads up to the high watermark, which is behind the end of the log.
        if offset > 50:
            region = log.read(offset - 1, 1 << 20, offset, at_least_one=True)
            assert region is not None
            assert region.size_bytes == len(batch())
        assert not [call for call in disk.calls if call.name == "pread"]


def test_reader_follows_the_log_into_the_next_segment() -> None:
    log = new_log()
    write(log, batch())
    assert read(log, 0) == [(0, 1)]
    log.roll()
    write(log, batch())
    assert read(log, 1) == [(1, 2)]


def test_reader_at_the_end_finds_what_replaced_a_truncated_batch() -> None:
    log = new_log()
    write(log, batch(), batch(size=500), batch())
    assert read(log, 0) == [(0, 1), (1, 2), (2, 3)]
    log.truncate_to(1)
    write(log, batch(), batch(2))
    assert contents(log) == [stored(batch(), 0), stored(batch(), 1), stored(batch(2), 2)]
    assert read(log, 2) == [(2, 4)]


def test_reader_at_an_offset_that_has_moved_in_the_file_finds_it() -> None:
    log = new_log()
    write(log, batch(), batch(size=500), batch())
    assert read(log, 0)[-1] == (2, 3)  # whoever reads on is remembered with a position
    log.truncate_to(1)
    write(log, batch(), batch(), batch())
    assert read(log, 3) == [(3, 4)]


def test_readers_of_a_dropped_segment_are_out_of_range_and_others_go_on() -> None:
    log = new_log()
    write(log, batch(), batch())
    read(log, 0)
    log.roll()
    write(log, batch())
    sync(log)
    log.advance_log_start(2)
    assert read(log, 2) == [(2, 3)]
    with pytest.raises(OffsetOutOfRange):
        read(log, 1)


def test_region_can_be_read_after_its_segment_was_deleted() -> None:
    log = new_log()
    write(log, batch())
    region = log.read(0, 1000, 1, at_least_one=True)
    log.roll()
    write(log, batch())
    sync(log)
    for segment in log.advance_log_start(1):
        segment.delete_files()
    assert region is not None and region.read() == stored(batch(), 0)


# -- rolling ----------------------------------------------------------------------------------------------------------


def test_batch_that_does_not_fit_starts_a_segment() -> None:
    size = len(batch())
    log = new_log(segment_bytes=3 * size)
    write(log, *(batch() for _ in range(7)))
    assert bases(log) == [0, 3, 6]
    assert contents(log) == [stored(batch(), offset) for offset in range(7)]


def test_batch_much_newer_than_the_first_starts_a_segment() -> None:
    log = new_log(segment_ms=100)
    write(log, *(batch(timestamp=NOW + ms) for ms in (0, 100, 50, 101, 150, 202)))
    assert bases(log) == [0, 3, 5]


def test_jitter_is_taken_off() -> None:
    log = new_log(segment_ms=100, segment_jitter_ms=40)
    write(log, *(batch(timestamp=NOW + ms) for ms in (0, 60, 61)))
    assert bases(log) == [0, 2]


def test_full_index_starts_a_segment() -> None:
    log = new_log(index_interval_bytes=0, segment_index_bytes=16)
    write(log, *(batch() for _ in range(7)))
    assert bases(log) == [0, 3, 6]


def test_offset_that_the_index_cannot_hold_starts_a_segment() -> None:
    disk = new_disk()
    far = (1 << 31) - 3
    disk.write_file(f"{FOLDER}/{0:020d}.log", stored(batch(), 0) + stored(batch(), far), sync=True)
    log = open_at(disk, topic(cleanup_policy="compact", index_interval_bytes=0))
    write(log, batch(2), batch(1))
    assert bases(log) == [0, far + 3]
    assert offsets(log) == [(0, 1), (far, far + 1), (far + 1, far + 3), (far + 3, far + 4)]
    assert log.segments[0].offset_index.entries[-1] >> 32 == (1 << 31) - 1


def test_sealed_segment_is_handed_over_with_all_its_batches_written() -> None:
    log = new_log(segment_ms=100)
    sealed = []
    log.on_roll = lambda of, segment: sealed.append((of, segment.base_offset, of.written_end_offset))
    append(log, batch(3))
    append(log, batch(timestamp=NOW + 101))
    assert sealed == [(log, 0, 3)]


def test_longer_segment_ms_holds_at_once() -> None:
    log = new_log(segment_ms=100)
    write(log, batch())
    log.configure(topic(segment_ms=1000))
    write(log, batch(timestamp=NOW + 500))
    assert bases(log) == [0]


# -- the log's start --------------------------------------------------------------------------------------------------


def three_segments() -> Log:
    """Offsets 0-4, 5-9 and 10-14, all synced."""
    log = new_log()
    for number in range(3):
        write(log, batch(5, timestamp=NOW + number))
        if number < 2:
            log.roll()
    sync(log)
    return log


@pytest.mark.parametrize(("start", "left"), [(0, [0, 5, 10]), (4, [0, 5, 10]), (5, [5, 10]), (9, [5, 10]), (14, [10])])
def test_segments_before_the_start_go(start: int, left: list[int]) -> None:
    log = three_segments()
    dropped = log.advance_log_start(start)
    assert bases(log) == left
    assert [segment.base_offset for segment in dropped] == [base for base in (0, 5, 10) if base not in left]
    assert log.log_start_offset == start
    assert read(log, start)[0][1] == start // 5 * 5 + 5


def test_start_never_goes_back() -> None:
    log = three_segments()
    log.advance_log_start(7)
    assert log.advance_log_start(3) == []
    assert log.log_start_offset == 7


def test_everything_can_go_and_the_log_goes_on() -> None:
    log = three_segments()
    assert [segment.base_offset for segment in log.advance_log_start(15)] == [0, 5, 10]
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (15, 15, [15])
    assert read(log, 15) == []
    write(log, batch())
    assert read(log, 15) == [(15, 16)]


def test_segment_that_is_not_on_disk_stays_until_it_is() -> None:
    log = new_log()
    write(log, batch(5))
    log.roll()
    write(log, batch(5))
    assert log.advance_log_start(5) == []
    assert log.log_start_offset == 5
    with pytest.raises(OffsetOutOfRange):
        read(log, 4)
    sync(log)
    assert [segment.base_offset for segment in log.advance_log_start(5)] == [0]


def test_epochs_before_the_start_are_forgotten() -> None:
    log = new_log()
    for epoch in range(3):
        log.become_leader(epoch)
        write(log, batch(5))
        log.roll()
    sync(log)
    log.advance_log_start(7)
    assert (log.epochs.epochs, log.epochs.starts) == ([1, 2], [7, 10])


def test_producers_survive_their_batches() -> None:
    log = new_log()
    write(log, batch(5, producer=(1, 0, 0)))
    sync(log)
    log.advance_log_start(5)
    assert append(log, batch(5, producer=(1, 0, 0))) == (0, 5)
    assert append(log, batch(producer=(1, 0, 5))) == (5, 6)


# -- retention --------------------------------------------------------------------------------------------------------


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    log = three_segments()
    log.configure(topic(retention_ms=100))
    assert retention_start_offset(log, 15, NOW + 100) == 0
    assert retention_start_offset(log, 15, NOW + 101) == 5
    assert retention_start_offset(log, 15, NOW + 102) == 10
    assert retention_start_offset(log, 15, NOW + 103) == 15


def test_retention_stops_at_the_high_watermark() -> None:
    log = three_segments()
    log.configure(topic(retention_ms=100))
    assert retention_start_offset(log, 9, NOW + 500) == 5


def test_segments_go_while_enough_stays() -> None:
    log = three_segments()
    size = log.segments[0].size_bytes
    for keep, start in ((3 * size, 0), (2 * size + 1, 0), (2 * size, 5), (size, 10), (1, 10), (0, 15)):
        log.configure(topic(retention_bytes=keep))
        assert retention_start_offset(log, 15, NOW) == start


def test_record_from_the_future_keeps_its_segment_and_what_follows() -> None:
    log = new_log(retention_ms=100)
    write(log, batch(timestamp=NOW + 1_000_000))
    log.roll()
    write(log, batch(timestamp=NOW - 1_000_000))
    assert retention_start_offset(log, 2, NOW) == 0


def test_records_without_a_timestamp_do_not_age() -> None:
    log = new_log(retention_ms=100)
    write(log, batch(timestamp=-1))
    assert retention_start_offset(log, 1, NOW) == 0


def test_unlimited_retention_keeps_everything() -> None:
    log = three_segments()
    log.configure(topic(retention_ms=-1, retention_bytes=-1))
    assert retention_start_offset(log, 15, NOW + (1 << 50)) == 0


def test_compacted_topic_is_not_aged() -> None:
    log = three_segments()
    log.configure(topic(retention_ms=1, cleanup_policy="compact"))
    assert retention_start_offset(log, 15, NOW + 1000) == 0


def test_segment_that_had_to_wait_goes_with_the_next_pass() -> None:
    log = new_log(retention_ms=100)
    write(log, batch(5))
    assert log.advance_log_start(retention_start_offset(log, 5, NOW + 101)) == []
    sync(log)
    assert len(log.advance_log_start(retention_start_offset(log, 5, NOW + 101))) == 1


# -- truncating -------------------------------------------------------------------------------------------------------


def test_truncating_keeps_the_newest_timestamp_of_what_is_left() -> None:
    """Without a single index entry to tell it."""
    log = new_log()
    write(log, *(batch(timestamp=NOW + ms) for ms in (5, 8, 3, 9)))
    log.truncate_to(3)
    write(log, batch(timestamp=NOW + 1))
    assert log.newest_timestamp() == (1, NOW + 8)
    assert log.active.max_timestamp == NOW + 8


@pytest.mark.parametrize(
    ("offset", "end", "left"),
    [(15, 15, [0, 5, 10]), (14, 10, [0, 5, 10]), (10, 10, [0, 5, 10]), (9, 5, [0, 5]), (5, 5, [0, 5]), (0, 0, [0])],
)
def test_batches_that_reach_the_offset_go(offset: int, end: int, left: list[int]) -> None:
    log = three_segments()
    log.truncate_to(offset)
    assert (log.log_end_offset, log.written_end_offset, bases(log)) == (end, end, left)
    assert log.synced_end_offset == end
    assert offsets(log) == [(base, base + 5) for base in range(0, end, 5)]
    assert write(log, batch(2)) == [end]
    assert offsets(log)[-1] == (end, end + 2)


def test_truncating_below_the_start_begins_anew_there() -> None:
    log = three_segments()
    log.advance_log_start(12)
    log.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (7, 7, [7])
    assert write(log, batch()) == [7]


def test_truncating_at_the_end_changes_nothing_not_even_what_is_pending() -> None:
    log = new_log()
    append(log, batch(3))
    log.truncate_to(3)
    log.write_pending()
    assert offsets(log) == [(0, 3)]


def test_truncating_into_what_is_pending_forgets_all_of_it() -> None:
    log = new_log(index_interval_bytes=0)
    write(log, batch())
    for _ in range(5):
        append(log, batch())
    log.truncate_to(4)
    assert log.log_end_offset == 1
    assert list(log.active.offset_index.entries) == []
    assert write(log, batch(2)) == [1]
    assert offsets(log) == [(0, 1), (1, 3)]


def test_truncating_forgets_sequences_and_epochs() -> None:
    log = new_log()
    write(log, batch(2, producer=(1, 0, 0)))
    before = producer_state(log)
    log.become_leader(1)
    write(log, batch(2, producer=(1, 0, 2)), batch(2, producer=(2, 0, 0)))
    log.truncate_to(2)
    assert producer_state(log) == before
    assert log.epochs.latest == 0
    assert append(log, batch(2, producer=(1, 0, 2))) == (2, 4)
    assert (log.epochs.epochs, log.epochs.starts) == ([0, 1], [0, 2])


def test_truncating_forgets_timestamps() -> None:
    log = new_log(index_interval_bytes=0)
    write(log, *(batch(timestamp=NOW + ms) for ms in (5, 3, 9, 7)))
    log.truncate_to(2)
    assert log.newest_timestamp() == (0, NOW + 5)
    assert log.offset_for_timestamp(NOW + 6, 2) is None
    write(log, batch(timestamp=NOW + 8))
    assert log.newest_timestamp() == (2, NOW + 8)


# -- syncing ----------------------------------------------------------------------------------------------------------


def test_sync_covers_every_segment_that_has_something_new() -> None:
    log = new_log(segment_ms=100)
    for number in range(3):
        write(log, batch(timestamp=NOW + 101 * number))
    assert [(segment.base_offset, size) for segment, size in log.unsynced()] == [
        (base, len(batch())) for base in (0, 1, 2)
    ]
    sync(log)
    assert (log.synced_end_offset, log.unsynced()) == (3, [])


def test_what_is_written_during_a_sync_waits_for_the_next() -> None:
    log = new_log()
    write(log, batch())
    job = log.start_sync()
    write(log, batch())
    log.note_synced(job)
    assert log.synced_end_offset == 1
    assert [size for _, size in log.unsynced()] == [2 * len(batch())]


def test_synced_segments_move_the_synced_end_only_without_a_gap() -> None:
    log = new_log(segment_ms=100)
    for number in range(4):
        write(log, batch(timestamp=NOW + 101 * number))
    first, second = log.segments[:2]
    log.note_segments_synced([(second, second.size_bytes)])
    assert log.synced_end_offset == 0
    log.note_segments_synced([(first, first.size_bytes)])
    assert log.synced_end_offset == 2


def test_file_that_was_on_disk_and_is_gone_is_not_made_again() -> None:
    disk = new_disk()
    segment = Segment(disk, FOLDER, 7, 100)
    segment.synced_bytes = 100
    with pytest.raises(FileNotFoundError):
        segment.sync()
    assert disk.listdir(FOLDER) == []


def test_name_of_a_new_file_is_synced_with_its_first_data() -> None:
    disk = new_disk()
    log = new_log(disk)
    for expected in ([FOLDER, "/data"], []):
        write(log, batch())
        disk.calls.clear()
        sync(log)
        assert [call.path for call in disk.calls if call.name == "fsync_dir"] == expected


def test_index_entries_of_pending_batches_are_not_reported_as_damage(caplog: pytest.LogCaptureFixture) -> None:
    """Index entries exist as soon as a batch is appended, its bytes in the file only when it is written."""
    log = new_log(index_interval_bytes=0)
    write(log, *(batch(timestamp=NOW + number) for number in range(5)))
    for number in range(5, 10):
        append(log, batch(timestamp=NOW + number))
    segment, entries = log.active, len(log.active.offset_index.entries)
    for offset in range(11):
        assert segment.position_of(offset) == min(offset * segment.size_bytes // 10, segment.written_bytes)
        assert segment.offset_after(segment.position_of(offset)) == (max(offset, 1) if offset < 5 else None)
        assert log.offset_for_timestamp(NOW + offset, 5) == ((offset, NOW + offset) if offset < 5 else None)
    assert len(list(segment.headers())) == 5
    assert not caplog.records
    assert len(segment.offset_index.entries) == entries


# -- times ------------------------------------------------------------------------------------------------------------


def test_first_record_as_new_as_asked_is_found_in_its_batch() -> None:
    log = new_log()
    write(log, batch(5, step_ms=10), batch(5, timestamp=NOW + 30, step_ms=10))
    assert log.offset_for_timestamp(NOW + 25, 10) == (3, NOW + 30)
    assert log.offset_for_timestamp(NOW + 41, 10) == (7, NOW + 50)
    assert log.offset_for_timestamp(0, 10) == (0, NOW)
    assert log.offset_for_timestamp(NOW + 71, 10) is None


def test_times_beyond_what_readers_may_see_are_not_found() -> None:
    log = new_log()
    write(log, batch(), batch(timestamp=NOW + 10))
    assert log.offset_for_timestamp(NOW + 5, 1) is None


def test_deleted_records_are_not_found() -> None:
    log = new_log()
    write(log, batch(5, step_ms=10), batch(5, timestamp=NOW + 5))
    log.advance_log_start(3)
    assert log.offset_for_timestamp(NOW, 10) == (3, NOW + 30)


def test_newest_record_is_the_first_that_has_the_largest_timestamp() -> None:
    log = new_log()
    assert log.newest_timestamp() is None
    write(log, batch(3, timestamp=NOW, step_ms=5), batch(2, timestamp=NOW + 10), batch(timestamp=NOW + 9))
    assert log.newest_timestamp() == (2, NOW + 10)


def test_newest_record_is_one_that_is_written() -> None:
    log = new_log(index_interval_bytes=0)
    write(log, batch(), batch(timestamp=NOW + 3), batch(timestamp=NOW + 1))
    append(log, batch(timestamp=NOW + 50))
    append(log, batch(timestamp=NOW + 60))
    assert log.newest_timestamp() == (1, NOW + 3)
    log.write_pending()
    assert log.newest_timestamp() == (4, NOW + 60)


def test_times_are_the_brokers_under_log_append_time() -> None:
    log = new_log(message_timestamp_type="LogAppendTime")
    for number in range(3):
        append(log, batch(2, timestamp=5), NOW + number)
    log.write_pending()
    assert log.offset_for_timestamp(NOW + 1, 6) == (2, NOW + 1)


# -- producers and epochs ---------------------------------------------------------------------------------------------


def test_quiet_producers_are_forgotten() -> None:
    log = new_log()
    write(log, batch(timestamp=NOW - 10, producer=(1, 0, 0)), batch(timestamp=NOW, producer=(2, 0, 0)))
    log.expire_producers(NOW - 5)
    assert set(producer_state(log)) == {2}
    assert append(log, batch(producer=(1, 0, 77))) == (2, 3)


def test_epoch_enters_the_history_with_its_first_batch() -> None:
    log = new_log()
    log.become_leader(3)
    assert log.epochs.latest == -1
    write(log, batch())
    log.become_leader(4)
    log.become_leader(6)
    write(log, batch())
    assert (log.epochs.epochs, log.epochs.starts) == ([3, 6], [0, 1])
    assert [read_header(data).leader_epoch for data in contents(log)] == [3, 6]
