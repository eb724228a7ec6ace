"""Compaction, rule by rule: what is due, what stays, how it comes into place, and what a crash leaves."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted, pairs_batch
from tests.unit.log.log_fixtures import NAME, NOW, append, contents, producer_state, topic
from tests.unit.log.store_fixtures import spec

from ottla.env.disk import RealDisk
from ottla.log import compaction
from ottla.log.cleaned_segment import CleanedSegment
from ottla.log.cleaner import CleanerFailed, CleanJob, Source, Uncleanable, clean, clean_in_process
from ottla.log.compaction import plan_compaction
from ottla.log.dir_checkpoints import CLEANER_OFFSETS
from ottla.log.producers import Producers
from ottla.log.retention import retention_start_offset
from ottla.model.batch import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, read_header
from ottla.model.records import iterate_records

DAY = 86_400_000


@pytest.fixture
def rooms(tmp_path: Path) -> Iterator[list[CompactionFixture]]:
    made: list[CompactionFixture] = []
    yield made
    for each in made:
        each.abandon()


@pytest.fixture
def fixture(tmp_path: Path, rooms: list[CompactionFixture]) -> CompactionFixture:
    rooms.append(CompactionFixture(tmp_path))
    return rooms[0]


def with_settings(fixture: CompactionFixture, **overrides: object) -> CompactionFixture:
    fixture.settings = compacted(**overrides)
    fixture.log.configure(fixture.settings)
    return fixture


def fill(fixture: CompactionFixture, rounds: int = 3, keys: int = 3) -> None:
    """Segments that each give the same keys another value, and an active one that gives them none."""
    for number in range(rounds):
        fixture.produce(*[(b"key %d" % key, b"value %d" % number) for key in range(keys)], timestamp=NOW + number * 100)
        fixture.roll()
    fixture.produce((b"active", b"x"), timestamp=NOW + rounds * 100)


# -- what is due ------------------------------------------------------------------------------------------------------


def plan_of(
    fixture: CompactionFixture, *, last_stable_offset: int | None = None, now_ms: int = NOW
) -> list[int] | None:
    fixture.settle()
    end = fixture.log.written_end_offset if last_stable_offset is None else last_stable_offset
    plan = plan_compaction(fixture.log, end, now_ms)
    return None if plan is None else [segment.base_offset for segment in plan.sources]


def test_active_segment_is_never_compacted(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert plan_of(fixture) == [0, 3, 6]


def test_log_with_an_active_segment_only_is_not_due(fixture: CompactionFixture) -> None:
    fixture.produce((b"k", b"1"))
    assert plan_of(fixture) is None


def test_nothing_behind_the_last_stable_offset_is_compacted(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert plan_of(fixture, last_stable_offset=7) == [0, 3]


def test_nothing_that_is_not_on_disk_is_compacted(fixture: CompactionFixture) -> None:
    fill(fixture, 2)
    fixture.settle()
    fixture.roll()
    assert plan_compaction(fixture.log, fixture.log.log_end_offset, NOW) is not None
    assert [s.base_offset for s in plan_compaction(fixture.log, fixture.log.log_end_offset, NOW).sources] == [0, 3]  # type: ignore[union-attr]


def test_segment_younger_than_the_minimum_lag_ends_the_range(fixture: CompactionFixture) -> None:
    with_settings(fixture, min_compaction_lag_ms=1000)
    fill(fixture)
    assert plan_of(fixture, now_ms=NOW + 1150) == [0, 3]
    assert plan_of(fixture, now_ms=NOW + 1001) is None


def test_log_is_due_when_more_than_the_ratio_is_dirty(fixture: CompactionFixture) -> None:
    with_settings(fixture, min_cleanable_dirty_ratio=0.5)
    fill(fixture, keys=30)
    assert fixture.compact()
    fixture.produce((b"key 0", b"small"))
    fixture.roll()
    assert plan_of(fixture) is None
    for number in range(4):
        fixture.produce((b"key 0", b"large %d" % number * 100))
        fixture.roll()
    assert plan_of(fixture) is not None


def test_log_is_due_past_the_maximum_lag_whatever_the_ratio(fixture: CompactionFixture) -> None:
    with_settings(fixture, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=5000)
    fill(fixture)
    assert plan_of(fixture, now_ms=NOW + 5000) is None
    assert plan_of(fixture, now_ms=NOW + 5003) == [0, 3, 6]


def test_compacted_log_is_not_due_again(fixture: CompactionFixture) -> None:
    with_settings(fixture, min_cleanable_dirty_ratio=0)
    fill(fixture)
    assert fixture.compact()
    assert plan_of(fixture) is None


def test_quiet_segment_is_rolled_when_its_records_are_due(fixture: CompactionFixture) -> None:
    with_settings(fixture, max_compaction_lag_ms=5000)
    fixture.produce((b"k", b"1"), timestamp=NOW)
    fixture.log.maybe_roll_by_age(NOW + 5000)
    assert fixture.segments() == [0]
    fixture.log.maybe_roll_by_age(NOW + 5001)
    assert fixture.segments() == [0, 1]


def test_batch_with_an_old_timestamp_does_not_make_its_segment_roll(fixture: CompactionFixture) -> None:
    with_settings(fixture, max_compaction_lag_ms=5000)
    fixture.produce((b"k", b"1"), timestamp=NOW - DAY)
    fixture.log.maybe_roll_by_age(NOW + 1)
    assert fixture.segments() == [0]


def test_segment_rolls_with_the_batch_that_is_younger_by_the_maximum_lag(fixture: CompactionFixture) -> None:
    with_settings(fixture, max_compaction_lag_ms=5000)
    fixture.produce((b"k", b"1"), timestamp=NOW)
    fixture.produce((b"k", b"2"), timestamp=NOW + 5000)
    fixture.produce((b"k", b"3"), timestamp=NOW + 5001)
    assert fixture.segments() == [0, 2]


# -- what stays -------------------------------------------------------------------------------------------------------


def test_last_record_of_each_key_stays_where_it_was(fixture: CompactionFixture) -> None:
    fill(fixture)
    before = {record.offset: record for record in fixture.records()}
    assert fixture.compact()
    assert fixture.pairs() == [
        (6, b"key 0", b"value 2"), (7, b"key 1", b"value 2"), (8, b"key 2", b"value 2"), (9, b"active", b"x"),
    ]  # fmt: skip
    for record in fixture.records():
        assert record == before[record.offset]


def test_batch_that_keeps_some_records_keeps_its_place_and_its_producer(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), producer=(7, 1, 0))
    before = read_header(contents(fixture.log)[0])
    fixture.produce((b"a", b"2"), (b"c", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    after = read_header(contents(fixture.log)[0])
    assert after.record_count == 1
    assert after.max_timestamp == NOW + 1
    for name in (
        "base_offset", "last_offset_delta", "leader_epoch", "attributes", "base_timestamp", "producer_id",
        "producer_epoch", "base_sequence",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(before, name)


def test_batch_of_which_everything_stays_is_not_touched(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), (b"b", b"1"))
    fixture.produce((b"c", b"1"))
    fixture.produce((b"c", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    before = contents(fixture.log)
    fixture.compact()
    assert contents(fixture.log) == [before[0], *before[2:]]


def test_batch_without_records_stays_for_its_producers_last_sequence(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), (b"b", b"1"), producer=(7, 0, 0))
    fixture.produce((b"a", b"2"), (b"b", b"2"), producer=(7, 0, 2))
    fixture.produce((b"a", b"3"), (b"b", b"3"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert fixture.batches() == [(2, 4, 0), (4, 6, 2), (6, 7, 1)]
    header = read_header(contents(fixture.log)[0])
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 0, 2, 3)
    assert header.base_timestamp == -1
    assert header.max_timestamp == NOW + 1


def test_producer_is_known_after_a_crash_without_a_snapshot(
    fixture: CompactionFixture, rooms: list[CompactionFixture]
) -> None:
    fixture.produce((b"a", b"1"), producer=(7, 0, 0))
    fixture.produce((b"a", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    fixture.abandon()
    rooms.clear()
    disk = fixture.disk.crash(Random(0), "process")
    for name in disk.listdir(fixture.log.directory):
        if name.endswith(".snapshot"):
            disk.remove(os.path.join(fixture.log.directory, name))
    rooms.append(again := fixture.crash(disk))
    assert producer_state(again.log) == {7: (0, 1, [(0, 0, 0, 0)])}
    assert append(again.log, pairs_batch((b"a", b"1"), producer=(7, 0, 0))) == (0, 1)


def test_forgotten_producers_batch_goes(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), producer=(7, 0, 0))
    fixture.produce((b"a", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.log.expire_producers(NOW + 1)
    fixture.compact()
    assert fixture.batches() == [(1, 2, 1), (2, 3, 1)]


def test_output_ends_where_the_next_segment_begins(fixture: CompactionFixture) -> None:
    fixture.produce((b"b", b"1"))
    fixture.produce((b"a", b"1"))
    fixture.roll()
    with_settings(fixture, segment_bytes=100)
    fixture.produce((b"a", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert fixture.segments() == [0, 2, 3]
    assert fixture.batches() == [(0, 1, 1), (1, 2, 0), (2, 3, 1), (3, 4, 1)]


def test_records_without_a_key_go(fixture: CompactionFixture) -> None:
    fixture.log.configure(topic())
    fixture.produce((None, b"1"), (b"a", b"1"))
    fixture.produce((None, b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    with_settings(fixture)
    fixture.compact()
    assert fixture.pairs() == [(1, b"a", b"1"), (3, b"x", b"x")]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batch_is_written_under_its_codec(fixture: CompactionFixture, codec: int) -> None:
    fixture.produce((b"a", b"1" * 500), (b"b", b"1" * 500), codec=codec)
    fixture.produce((b"a", b"2" * 500), codec=codec)
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert fixture.pairs()[:2] == [(1, b"b", b"1" * 500), (2, b"a", b"2" * 500)]
    assert {read_header(batch).attributes & CODEC_MASK for batch in contents(fixture.log)[:2]} == {codec}
    assert len(contents(fixture.log)[0]) < 200


def test_brokers_timestamps_stay(fixture: CompactionFixture) -> None:
    with_settings(fixture, message_timestamp_type="LogAppendTime")
    fixture.produce((b"a", b"1"), (b"b", b"1"), timestamp=5)
    fixture.produce((b"a", None), timestamp=6)
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert [record.timestamp for record in fixture.records()] == [NOW] * 3
    assert all(read_header(batch).attributes & LOG_APPEND_TIME for batch in contents(fixture.log))


def test_long_keys_are_told_apart(fixture: CompactionFixture) -> None:
    keys = [b"k" * 15, b"k" * 16, b"k" * 17, b"k" * 5000, b"k" * 4999 + b"l"]
    fixture.produce(*[(key, b"1") for key in keys])
    fixture.produce(*[(key, b"2") for key in keys[::2]])
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert {key: value for _, key, value in fixture.pairs()} == {
        key: b"1" if number % 2 else b"2" for number, key in enumerate(keys)
    } | {b"x": b"x"}


def test_control_batches_stay(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"))
    marker = bytearray(pairs_batch((b"\0\0\0\1", b"\0\0\0\0\0\0"), control=True, transactional=True))
    # Clients may not write these; a coordinator will.
    offset = fixture.log.log_end_offset
    marker[0:8] = offset.to_bytes(8, "big")
    fixture.roll()
    disk, segment = fixture.disk, fixture.log.active
    disk.pwrite(segment.file.fd, bytes(marker), 0)
    segment.note_append(offset, len(marker), NOW, 100)
    fixture.log.log_end_offset = fixture.log.written_end_offset = offset + 1
    fixture.roll()
    fixture.produce((b"a", b"2"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert bytes(marker) in contents(fixture.log)


# -- deletions --------------------------------------------------------------------------------------------------------


def test_deletion_stays_until_its_horizon_and_takes_what_it_deletes_at_once(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), (b"b", b"1"))
    fixture.produce((b"a", None), (b"c", b"1"))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    before = {record.offset: record for record in fixture.records()}
    assert fixture.compact(NOW)
    assert fixture.pairs() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1"), (4, b"x", b"x")]
    header = read_header(contents(fixture.log)[1])
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == NOW + DAY
    assert all(record == before[record.offset] for record in fixture.records())
    for now_ms, left in ((NOW + DAY - 1, [1, 2, 3]), (NOW + DAY, [1, 3])):
        fixture.roll()
        fixture.produce((b"x", b"x"))
        assert fixture.compact(now_ms)
        assert [offset for offset, key, _ in fixture.pairs() if key != b"x"] == left


def test_horizon_does_not_move(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", None), (b"b", b"1"))
    fixture.roll()
    fixture.produce((b"b", b"2"))
    assert fixture.compact(NOW)
    fixture.roll()
    fixture.produce((b"x", b"x"))
    assert fixture.compact(NOW + 1000)
    header = read_header(contents(fixture.log)[0])
    assert (header.base_timestamp, header.record_count) == (NOW + DAY, 1)


def test_deletion_behind_the_map_gets_no_horizon_yet(
    fixture: CompactionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEY_BYTES", 1 << 26)  # room for one key
    fixture.produce((b"a", b"1"))
    fixture.produce((b"a", b"2"))
    fixture.produce((b"b", None))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    assert fixture.compact()
    assert fixture.log.first_dirty_offset == 2
    assert [bool(read_header(batch).attributes & DELETE_HORIZON) for batch in contents(fixture.log)] == [False] * 3
    assert fixture.compact()
    assert [bool(read_header(batch).attributes & DELETE_HORIZON) for batch in contents(fixture.log)] == [
        False,
        True,
        False,
    ]


def test_deletion_behind_the_map_gets_no_horizon_from_its_batch(
    fixture: CompactionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEY_BYTES", 1 << 26)
    fixture.produce((b"a", b"1"))
    fixture.produce((b"a", b"2"), (b"b", None))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    assert fixture.compact()
    assert fixture.log.first_dirty_offset == 2
    assert [read_header(batch).attributes & DELETE_HORIZON for batch in contents(fixture.log)] == [0, 0]


# -- passes and outputs -----------------------------------------------------------------------------------------------


def test_more_keys_than_memory_allows_take_more_passes(
    fixture: CompactionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEY_BYTES", 1 << 25)  # room for three keys
    pairs = [(b"key %d" % (number % 10), b"%d" % number) for number in range(40)]
    fixture.produce(*pairs[:20])
    fixture.roll()
    fixture.produce(*pairs[20:])
    fixture.roll()
    fixture.produce((b"x", b"x"))
    passes = 0
    while fixture.compact():
        passes += 1
        assert {key: value for _, key, value in fixture.pairs()} == {**dict(pairs), b"x": b"x"}
    assert passes > 3
    assert [offset for offset, _, _ in fixture.pairs()] == list(range(30, 41))


def test_small_neighbours_become_one_segment(fixture: CompactionFixture) -> None:
    fill(fixture, 6)
    fixture.compact()
    assert fixture.segments() == [0, 18]
    assert fixture.files() == sorted([
        "00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex",
        "00000000000000000018.log", "00000000000000000018.snapshot", "leader-epoch-checkpoint", "partition.metadata",
    ])  # fmt: skip


def test_segments_are_not_joined_beyond_their_size(fixture: CompactionFixture) -> None:
    with_settings(fixture, segment_bytes=1000, max_message_bytes=900)
    for number in range(8):
        fixture.produce((b"key %d" % number, b"v" * 300))
        fixture.roll()
    fixture.produce((b"x", b"x"))
    fixture.compact()
    assert len(fixture.segments()) == 5
    assert all(segment.size_bytes <= 1000 for segment in fixture.log.segments)


def test_segment_that_would_not_change_is_left_alone(fixture: CompactionFixture) -> None:
    with_settings(fixture, segment_bytes=180)
    fixture.produce((b"a", b"1" * 100))
    fixture.roll()
    fixture.produce((b"b", b"1" * 100))
    fixture.roll()
    fixture.produce((b"b", b"2" * 100))
    fixture.roll()
    fixture.produce((b"x", b"x"))
    first = fixture.log.segments[0]
    fixture.compact()
    assert fixture.log.segments[0] is first
    assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap"))]


def test_offsets_too_far_apart_for_one_index_stay_apart(fixture: CompactionFixture) -> None:
    fill(fixture, 1)
    fixture.roll()
    fixture.settle()
    disk = RealDisk()
    path = fixture.path / "segment.log"
    far = 1 << 31
    sources = []
    for number, base in enumerate((0, 10, far)):
        data = bytearray(pairs_batch((b"k%d" % number, b"v")))
        data[0:8] = base.to_bytes(8, "big")
        file = path.with_name(f"{base}.log")
        file.write_bytes(data)
        sources.append(Source(path=str(file), base_offset=base, size_bytes=len(data)))
    frames = list(clean(disk, job_of(sources, far + 1)))
    assert [frame.values()["sources"] for frame in frames if frame.kind.name == "CLOSED"] == [2, 1]


# -- in place ---------------------------------------------------------------------------------------------------------


def test_reader_of_an_old_segment_reads_on(fixture: CompactionFixture) -> None:
    fill(fixture)
    end = fixture.log.written_end_offset
    regions = [fixture.log.read(offset, 1 << 20, end, at_least_one=True) for offset in (0, 3, 6)]
    before = [region.read() for region in regions if region is not None]
    fixture.compact()
    assert [region.read() for region in regions if region is not None] == before


def test_thread_that_holds_old_segments_sees_them_whole(fixture: CompactionFixture) -> None:
    """A time is looked up in a thread, on the segments that were there when it began."""
    fill(fixture)
    fixture.restart()
    held = list(fixture.log.segments)
    assert fixture.compact()
    for segment, timestamp in zip(held, (NOW + 2, NOW + 102, NOW + 202), strict=False):
        segment.load_times()
        assert segment.max_timestamp == timestamp
        assert [header.record_count for _, header in segment.headers(segment.position_of(0))] == [3]


def test_every_offset_can_be_fetched_and_gives_the_next_batch(fixture: CompactionFixture) -> None:
    fill(fixture, 5)
    fixture.compact()
    log, end = fixture.log, fixture.log.written_end_offset
    starts = [(base, following) for base, following, _ in fixture.batches()]
    for offset in range(end):
        for _ in range(2):  # the second comes with what the first left as a hint
            region = log.read(offset, 1, end, at_least_one=True)
            assert region is not None
            base, following = next(pair for pair in starts if pair[1] > offset)
            assert (read_header(region.read()).base_offset, read_header(region.read()).next_offset) == (base, following)


def test_hint_of_a_reader_does_not_outlive_the_swap(fixture: CompactionFixture) -> None:
    for number in range(30):
        fixture.produce((b"key", b"value %d" % number))
    fixture.roll()
    fixture.produce((b"key", b"last"))
    log, end = fixture.log, fixture.log.written_end_offset
    region = log.read(0, 200, end, at_least_one=True)
    assert region is not None
    following = read_header(region.read()).next_offset + 1
    fixture.compact()
    region = log.read(following, 1 << 20, end, at_least_one=True)
    assert region is not None
    assert [record.value for record in iterate_records(region.read())] == [b"value 29"]


def test_times_are_found_after_compaction_and_after_a_restart(fixture: CompactionFixture) -> None:
    fill(fixture, 5)
    fixture.compact()
    for _ in range(2):
        log, end = fixture.log, fixture.log.written_end_offset
        assert log.offset_for_timestamp(NOW, end) == (12, NOW + 400)
        assert log.offset_for_timestamp(NOW + 402, end) == (14, NOW + 402)
        assert log.offset_for_timestamp(NOW + 403, end) == (15, NOW + 500)
        assert log.newest_timestamp() == (15, NOW + 500)
        fixture.restart()


def test_newest_record_is_found_when_the_newest_batch_is_empty(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"), timestamp=NOW + 1000, producer=(7, 0, 0))
    fixture.produce((b"a", b"2"), timestamp=NOW + 5)
    fixture.roll()
    fixture.produce((b"x", b"x"), timestamp=NOW)
    fixture.compact()
    assert fixture.log.newest_timestamp() == (1, NOW + 5)


def test_log_start_and_epochs_do_not_move(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"))
    fixture.log.become_leader(3)
    fixture.produce((b"a", b"2"))
    fixture.roll()
    fixture.produce((b"a", b"3"))
    fixture.roll()
    fixture.log.become_leader(5)
    fixture.produce((b"x", b"x"))
    fixture.compact()
    for _ in range(2):
        assert fixture.log.log_start_offset == 0
        assert (fixture.log.epochs.epochs, fixture.log.epochs.starts) == ([0, 3, 5], [0, 1, 3])
        fixture.restart()


def test_compact_and_delete_do_both(fixture: CompactionFixture) -> None:
    with_settings(fixture, cleanup_policy="compact,delete", segment_bytes=180, retention_ms=1000)
    for number in range(4):
        fixture.produce((b"key %d" % number, b"v" * 80), (b"all", b"%d" % number), timestamp=NOW + number * 1000)
        fixture.roll()
    fixture.produce((b"x", b"x"), timestamp=NOW + 4000)
    assert fixture.compact(NOW + 4000)
    assert [offset for offset, _, _ in fixture.pairs()] == [0, 2, 4, 6, 7, 8]
    start = retention_start_offset(fixture.log, fixture.log.written_end_offset, NOW + 2100)
    fixture.fixture.store.advance_log_start(fixture.log, start)
    fixture.threads.run()
    assert fixture.segments() == [4, 6, 8]
    assert [offset for offset, _, _ in fixture.pairs()] == [4, 6, 7, 8]


def test_appends_go_on_while_a_log_is_compacted(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert fixture.begin()
    number = 0
    while fixture.threads.jobs:
        fixture.threads.run_one()
        fixture.produce((b"key %d" % (number % 3), b"new %d" % number))
        if number % 3 == 2:
            fixture.roll()
        number += 1
    last = {key: value for _, key, value in fixture.pairs()}
    assert len(last) == 4
    while fixture.compact():
        pass
    assert {key: value for _, key, value in fixture.pairs()} == last


def test_few_files_are_open_at_once(fixture: CompactionFixture) -> None:
    with_settings(fixture, segment_bytes=200)
    for number in range(40):
        fixture.produce((b"key %d" % number, b"v" * 80))
        fixture.produce((b"all", b"%d" % number))
        fixture.roll()
    fixture.produce((b"x", b"x"))
    assert fixture.begin()
    while fixture.threads.jobs:
        fixture.threads.run_one()
        assert sum(segment.is_open for segment in fixture.log.segments) < 5
        assert len(fixture.disk._open) < 10
    assert len(fixture.pairs()) == 42


def test_one_line_tells_of_a_compaction(fixture: CompactionFixture, caplog: pytest.LogCaptureFixture) -> None:
    fill(fixture)
    with caplog.at_level(logging.INFO, "ottla.log.compaction"):
        fixture.compact()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "ottla.log.compaction"]
    assert line.startswith("log compacted topic=orders partition=0 bytes_before=")
    assert "segments_before=3 segments_after=1 end_offset=9 seconds=0.000" in line


# -- giving up --------------------------------------------------------------------------------------------------------


def test_retention_that_takes_a_source_makes_the_pass_give_up(fixture: CompactionFixture) -> None:
    failed: list[object] = []
    fixture.fixture.store.on_dir_failed = lambda *what: failed.append(what)
    with_settings(fixture, cleanup_policy="compact,delete")
    fill(fixture)
    assert fixture.begin()
    fixture.fixture.store.advance_log_start(fixture.log, 4)
    fixture.threads.run()
    assert not failed
    assert not fixture.compactor.busy
    assert fixture.segments() == [3, 6, 9]
    assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap"))]
    assert fixture.log.first_dirty_offset == 0


def test_output_without_its_name_is_not_deleted(fixture: CompactionFixture) -> None:
    with_settings(fixture, cleanup_policy="compact,delete")
    fill(fixture)
    assert fixture.begin()
    while fixture.log.segments[0].size_bytes and len(fixture.log.segments) == 4:
        fixture.threads.run_one()
    fixture.fixture.store.advance_log_start(fixture.log, 9)
    assert fixture.segments() == [0, 9]
    fixture.threads.run()
    assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap"))]
    fixture.fixture.store.advance_log_start(fixture.log, 9)
    assert fixture.segments() == [9]


def test_topic_that_is_no_longer_compacted_is_left_as_it_is(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert fixture.begin()
    fixture.log.configure(topic())
    before = contents(fixture.log)
    fixture.threads.run()
    assert contents(fixture.log) == before
    assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap"))]


def test_deleted_topic_ends_its_compaction(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert fixture.begin()
    fixture.threads.run_one()
    fixture.fixture.store.delete(NAME, "gone")
    fixture.threads.run()
    assert not fixture.compactor.busy


def test_stop_ends_a_pass(fixture: CompactionFixture) -> None:
    fill(fixture)
    assert fixture.begin()
    fixture.compactor.stop()
    fixture.threads.run()
    assert not fixture.compactor.busy
    assert fixture.segments() == [0, 3, 6, 9]


def test_damaged_batch_makes_a_log_uncleanable_and_changes_nothing(fixture: CompactionFixture) -> None:
    fill(fixture)
    fixture.settle()
    segment = fixture.log.segments[1]
    fixture.disk.pwrite(segment.file.fd, b"!", segment.size_bytes - 3)
    fixture.begin()
    fixture.threads.run()
    assert fixture.log.is_uncleanable
    assert fixture.segments() == [0, 3, 6, 9]
    assert fixture.files() == [name for name in fixture.files() if not name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("suffix", [".log.cleaned", ".index.cleaned"])
def test_full_disk_is_no_failure_and_the_next_try_does_it(fixture: CompactionFixture, suffix: str) -> None:
    failed: list[object] = []
    fixture.fixture.store.on_dir_failed = lambda *what: failed.append(what)
    fill(fixture)
    before = contents(fixture.log)
    fixture.disk.fail("space", errno.ENOSPC, path=suffix)
    assert fixture.compact()
    assert not failed
    assert contents(fixture.log) == before
    assert not [name for name in fixture.files() if name.endswith(".cleaned")]
    fixture.disk.heal()
    assert fixture.compact()
    assert len(contents(fixture.log)) == 2


def test_name_for_which_there_is_no_room_is_tried_again(fixture: CompactionFixture) -> None:
    fill(fixture)
    fixture.disk.fail("rename", errno.ENOSPC, path=".log.swap")
    fixture.begin()
    fixture.threads.run()
    assert fixture.compactor.busy
    assert len(contents(fixture.log)) == 2
    fixture.compactor.resume()
    fixture.threads.run()
    assert not fixture.compactor.busy
    assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap"))]


def test_broken_disk_is_told(fixture: CompactionFixture) -> None:
    failed: list[object] = []
    fixture.fixture.store.on_dir_failed = lambda *what: failed.append(what)
    fill(fixture)
    fixture.disk.fail("write", errno.EIO, path=".cleaned")
    fixture.begin()
    fixture.threads.run()
    assert len(failed) == 1
    assert not fixture.compactor.busy


# -- across restarts --------------------------------------------------------------------------------------------------


def test_cleaners_checkpoint_is_kafkas_and_holds_after_a_kill(
    fixture: CompactionFixture, rooms: list[CompactionFixture]
) -> None:
    fill(fixture)
    fixture.compact()
    assert fixture.disk.read_file(f"{fixture.path}/{CLEANER_OFFSETS}") == b"0\n1\norders 0 9\n"
    fixture.abandon()
    rooms.clear()
    rooms.append(again := fixture.crash(fixture.disk.crash(Random(0), "process")))
    assert again.log.first_dirty_offset == 9


def test_checkpoint_beyond_the_log_is_not_believed(fixture: CompactionFixture, rooms: list[CompactionFixture]) -> None:
    fill(fixture)
    fixture.settle()
    fixture.abandon()
    rooms.clear()
    fixture.disk.write_file(f"{fixture.path}/{CLEANER_OFFSETS}", b"0\n1\norders 0 500\n", sync=True)
    rooms.append(again := fixture.crash(fixture.disk.crash(Random(0), "process")))
    assert again.log.first_dirty_offset == 0
    assert again.disk.read_file(f"{fixture.path}/{CLEANER_OFFSETS}") == b"0\n0\n"


def test_topic_of_the_same_name_starts_dirty(fixture: CompactionFixture) -> None:
    fill(fixture)
    fixture.compact()
    fixture.fixture.store.delete(NAME, "gone")
    fixture.fixture.store.create(spec(settings=fixture.settings))
    fixture.produce((b"a", b"1"))
    assert fixture.log.first_dirty_offset == 0
    assert fixture.disk.read_file(f"{fixture.path}/{CLEANER_OFFSETS}") == b"0\n0\n"


@pytest.mark.parametrize("lost", [(), ("recovery-point-offset-checkpoint",)])
def test_log_that_was_compacted_keeps_its_records_when_it_no_longer_is(
    fixture: CompactionFixture, rooms: list[CompactionFixture], lost: tuple[str, ...]
) -> None:
    with_settings(fixture, segment_bytes=300, max_message_bytes=300)
    fill(fixture, 6)
    fixture.compact()
    expected = contents(fixture.log)
    fixture.abandon()
    rooms.clear()
    disk = fixture.disk.crash(Random(0), "process")
    for name in lost:
        disk.remove(f"{fixture.path}/{name}")
    fixture.settings = topic()
    rooms.append(again := fixture.crash(disk))
    assert contents(again.log) == expected


def test_gaps_before_an_empty_active_segment_are_not_taken_for_damage(
    fixture: CompactionFixture, rooms: list[CompactionFixture]
) -> None:
    """Cut off before the cleaner's checkpoint, and no longer compacted: only the next segment's name tells."""
    for number in range(3):
        fixture.produce((b"b", b"%d" % number), (b"a", b"1"))
    fixture.produce((b"a", b"2"))
    fixture.roll()
    assert fixture.begin()
    while fixture.disk.read_file(f"{fixture.path}/{CLEANER_OFFSETS}") is None:
        expected, disk = contents(fixture.log), fixture.disk.crash(Random(0), "process")
        fixture.threads.run_one()
    assert len(expected) == 2
    fixture.abandon()
    rooms.clear()
    fixture.settings = topic()
    rooms.append(again := fixture.crash(disk))
    assert contents(again.log) == expected
    assert again.log.log_end_offset == 7


def test_holes_between_segments_below_the_cleaners_checkpoint_stay(
    fixture: CompactionFixture, rooms: list[CompactionFixture]
) -> None:
    """Kafka's cleaner leaves them."""
    fixture.log.configure(topic())
    fill(fixture)
    fixture.settle()
    fixture.abandon()
    rooms.clear()
    disk = fixture.disk.crash(Random(0), "process")
    disk.remove(fixture.log.segments[1].path(".log"))
    disk.remove(f"{fixture.path}/recovery-point-offset-checkpoint")
    fixture.settings = topic()
    cut = fixture.crash(disk.crash(Random(0), "process"))
    assert [base for base, _, _ in cut.batches()] == [0]
    cut.abandon()
    disk.write_file(f"{fixture.path}/{CLEANER_OFFSETS}", b"0\n1\norders 0 9\n", sync=True)
    rooms.append(again := fixture.crash(disk))
    assert [base for base, _, _ in again.batches()] == [0, 6, 9]


def test_damaged_cleaners_checkpoint_takes_no_record(
    fixture: CompactionFixture, rooms: list[CompactionFixture]
) -> None:
    fill(fixture)
    fixture.compact()
    expected = contents(fixture.log)
    fixture.abandon()
    rooms.clear()
    disk = fixture.disk.crash(Random(0), "process")
    disk.write_file(f"{fixture.path}/{CLEANER_OFFSETS}", b"0\n1\nord", sync=True)
    fixture.settings = topic()
    rooms.append(again := fixture.crash(disk))
    assert contents(again.log) == expected
    assert again.log.first_dirty_offset == 0


def test_swap_that_kafka_began_is_finished(fixture: CompactionFixture, rooms: list[CompactionFixture]) -> None:
    fill(fixture)
    fixture.settle()
    fixture.abandon()
    rooms.clear()
    disk = fixture.disk.crash(Random(0), "process")
    first, last = fixture.log.segments[0], fixture.log.segments[2]
    data = disk.read_file(last.path(".log"))
    assert data is not None
    disk.write_file(first.path(".log.swap"), data, sync=True)
    rooms.append(again := fixture.crash(disk))
    assert again.segments() == [0, 9]
    assert [offset for offset, _, _ in again.pairs()] == [6, 7, 8, 9]
    assert again.log.offset_for_timestamp(NOW + 201, 100) == (7, NOW + 201)


# -- a process of its own ---------------------------------------------------------------------------------------------


def job_of(sources: list[Source], end_offset: int) -> CleanJob:
    producers = Producers()
    producers.note(5, 0, 0, 0, base_offset=3, timestamp=0)
    return CleanJob(
        sources=tuple(sources), first_dirty_offset=0, end_offset=end_offset, now_ms=NOW, delete_retention_ms=0,
        output_bytes_max=1 << 30, index_interval_bytes=100, keys_max=1000, read_bytes=200, inflate_bytes_max=1 << 20,
        producers=producers.rows(),
    )  # fmt: skip


def written_sources(path: Path) -> list[Source]:
    sources = []
    for base in (0, 20):
        data = b""
        for offset in range(base, base + 20, 2):
            batch = bytearray(pairs_batch((b"a", b"v" * offset), (b"key %d" % (offset % 8), b"v"), codec=offset % 5))
            batch[0:8] = offset.to_bytes(8, "big")
            data += batch
        file = path / f"{base}.log"
        file.write_bytes(data)
        sources.append(Source(path=str(file), base_offset=base, size_bytes=len(data)))
    return sources


def test_process_does_what_the_thread_does(tmp_path: Path) -> None:
    job = job_of(written_sources(tmp_path), 40)
    assert CleanJob.from_json(job.to_json()) == job
    assert list(clean_in_process(job)) == list(clean(RealDisk(), job))


def test_process_says_why_it_cannot(tmp_path: Path) -> None:
    sources = written_sources(tmp_path)
    file = Path(sources[1].path)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(Uncleanable, match="damaged"):
        list(clean_in_process(job_of(sources, 40)))


def test_process_that_nobody_reads_any_more_is_ended(tmp_path: Path) -> None:
    frames = clean_in_process(job_of(written_sources(tmp_path), 40))
    next(frames)
    frames.close()


def test_process_that_ends_too_early_is_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sources = written_sources(tmp_path)
    os.unlink(sources[0].path)
    with pytest.raises(CleanerFailed):
        list(clean_in_process(job_of(sources, 40)))
    assert "could not read a segment" in capfd.readouterr().err


def test_cleaned_file_of_an_earlier_try_is_started_anew(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"))
    fixture.disk.write_file(fixture.log.active.path(".log.cleaned"), b"leftover" * 100, sync=True)
    segment = CleanedSegment(fixture.disk, fixture.log.directory, 0)
    segment.open_cleaned()
    segment.append_cleaned(b"x")
    assert fixture.disk.read_file(segment.path(".log.cleaned")) == b"x"
