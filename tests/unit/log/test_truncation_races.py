"""A thread starts to work on a log, then batches are removed from the log, then the thread ends.

What the thread synced must not count for batches that were appended later, and the files that were deleted must not
come back. The tests run the parts of a job in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import (
    FOLDER,
    NAME,
    NOW,
    append,
    batch,
    contents,
    new_disk,
    offsets,
    open_at,
    stored,
    sync,
    topic,
    write,
)
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log.cleaned_segment import CleanedSegment
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.testing.disk import MemoryDisk

SETTINGS = topic(segment_ms=1000, index_interval_bytes=0)
MINUTE = 60_000


@pytest.fixture
def fixture(tmp_path: Path) -> StoreFixture:
    disk = disk_with(tmp_path)
    made = StoreFixture(disk, tmp_path)
    made.start(spec(settings=SETTINGS))
    return made


def memory(fixture: StoreFixture) -> MemoryDisk:
    assert isinstance(fixture.disk, MemoryDisk)
    return fixture.disk


def write_segments(log: Log, *counts: int) -> None:
    """Write one segment for each count, with that many batches of two records."""
    for number, count in enumerate(counts):
        for _ in range(count):
            append(log, batch(2, timestamp=NOW + number * MINUTE), NOW)
        log.write_pending()


def names(fixture: StoreFixture) -> set[str]:
    """The files of segments in the log's folder, as "base offset.suffix"."""
    found = fixture.disk.listdir(fixture.log().directory)
    return {f"{int(name[:20])}{name[20:]}" for name in found if name[:20].isdecimal()}


def after_power_failure(fixture: StoreFixture, seed: int) -> list[bytes]:
    """Return the batches that the log has after a power failure and a restart with the newest checkpoints."""
    fixture.store.write_checkpoints({}, sync=True)
    crashed = StoreFixture(memory(fixture).crash(Random(seed), "power"), *fixture.paths)
    fixture.abandon()
    try:
        crashed.start(spec(settings=SETTINGS))
        return contents(crashed.log())
    finally:
        crashed.abandon()


# -- sync -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated_to", [0, 3, 5, 6, 8])
@pytest.mark.parametrize("first", ["sync", "truncation"])
@pytest.mark.parametrize("seed", range(4))
def test_sync_counts_no_batch_that_was_appended_after_a_truncation(truncated_to: int, first: str, seed: int) -> None:
    disk = new_disk()
    log = open_at(disk, SETTINGS)
    write_segments(log, 3)
    write(log, batch(4, timestamp=NOW + MINUTE))
    job = log.start_sync()
    if first == "sync":
        job.run()
        log.truncate_to(truncated_to)
    else:
        log.truncate_to(truncated_to)
        job.run()
    for _ in range(6):
        write(log, batch(3, size=99, timestamp=NOW + MINUTE))
    log.note_synced(job)
    assert log.synced_end_offset <= truncated_to
    expected = contents(log)
    left = contents(open_at(disk.crash(Random(seed), "power"), SETTINGS, recovery_point=log.recovery_point))
    assert left == expected[: len(left)]


def test_sync_of_a_log_without_unsynced_bytes_counts_no_later_batch() -> None:
    log = open_at(new_disk(), SETTINGS)
    write(log, batch(5))
    sync(log)
    job = log.start_sync()
    job.run()
    log.truncate_to(0)
    write(log, batch(9))
    log.note_synced(job)
    assert log.synced_end_offset == 0
    assert [size for _, size in log.unsynced()] == [len(batch(9))]


def test_sync_that_started_after_a_truncation_counts() -> None:
    log = open_at(new_disk(), SETTINGS)
    write(log, batch(5), batch(5))
    old = log.start_sync()
    log.truncate_to(5)
    write(log, batch(5))
    new = log.start_sync()
    new.run()
    log.note_synced(new)
    log.note_synced(old)
    assert log.synced_end_offset == 10


def test_sync_counts_although_pending_batches_were_undone_meanwhile() -> None:
    log = open_at(new_disk(), SETTINGS)
    write(log, batch(5))
    job = log.start_sync()
    append(log, batch(5))
    log.truncate_to(5)
    job.run()
    write(log, batch(3))
    log.note_synced(job)
    assert log.synced_end_offset == 5


@pytest.mark.parametrize("truncated_to", [8, 10])
def test_sync_of_earlier_segments_completes_what_a_truncation_has_synced(truncated_to: int) -> None:
    """Nothing is left to sync then, so no later sync would report the end of the log as synced."""
    log = open_at(new_disk(), SETTINGS)
    write_segments(log, 3, 3)
    job = log.start_sync()
    log.truncate_to(truncated_to)
    assert log.synced_end_offset == 0
    job.run()
    log.note_synced(job)
    assert (log.synced_end_offset, log.unsynced()) == (truncated_to, [])


def test_sync_of_a_segment_that_was_deleted_meanwhile_is_no_failure(fixture: StoreFixture) -> None:
    log = fixture.log()
    write_segments(log, 2, 2)
    job = log.start_sync()
    fixture.threads.run()  # closes the file of the sealed segment
    log.truncate_to(1)
    job.run()
    assert "4.log" not in names(fixture)


# -- sealed segments --------------------------------------------------------------------------------------------------


def run_job(fixture: StoreFixture, between: Callable[[], None]) -> None:
    """Run the oldest job, with ``between`` between its work and the report of its result."""
    work, done = fixture.threads.jobs.pop(0)
    work()
    between()
    done(None)


@pytest.mark.parametrize(("truncated_to", "left"), [(1, {"0.log"}), (6, {"0.log"}), (8, {"0.log", "0.index"})])
def test_indexes_of_truncated_segments_do_not_come_back(
    fixture: StoreFixture, truncated_to: int, left: set[str]
) -> None:
    log = fixture.log()
    write_segments(log, 4, 4, 1)
    log.truncate_to(truncated_to)
    fixture.threads.run()
    assert {name for name in names(fixture) if name.startswith("0.") and "time" not in name} == left
    assert not {name for name in names(fixture) if name.startswith("16.")}
    assert "8.index" not in names(fixture)
    appended = batch(1, size=50)
    write(log, appended)
    expected = contents(log)
    sync(log)
    assert after_power_failure(fixture, 1) == expected


@pytest.mark.parametrize("truncated_to", [1, 6, 8, 10])
def test_roll_that_ends_after_a_truncation_leaves_the_recovery_point_before_it(
    fixture: StoreFixture, truncated_to: int
) -> None:
    log = fixture.log()
    write_segments(log, 4, 4)
    run_job(fixture, lambda: log.truncate_to(truncated_to))
    for _ in range(4):
        write(log, batch(2, size=30, timestamp=NOW + MINUTE))
    assert log.recovery_point <= min(truncated_to, log.active.base_offset)
    for segment in log.segments[:-1]:
        assert segment.indexed_bytes in (segment.size_bytes, -1)
    expected = contents(log)
    sync(log)
    assert after_power_failure(fixture, 2) == expected


class HookedDisk(MemoryDisk):
    """A disk that calls ``hook`` before its n-th call from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[], None] | None = None
        self.countdown = 0

    def _call(self, name: str, path: str, *, changes: bool = True) -> object:  # type: ignore[override]
        if self.hook is not None:
            self.countdown -= 1
            if self.countdown < 0:
                hook, self.hook = self.hook, None
                hook()
        return super()._call(name, path, changes=changes)


def hooked_log() -> tuple[HookedDisk, Log, list[Segment]]:
    disk = HookedDisk()
    disk.makedirs(FOLDER)
    for path in ("/", "/data", FOLDER):
        disk.fsync_dir(path)
    log = open_at(disk, SETTINGS)
    sealed: list[Segment] = []
    log.on_roll = lambda _, segment: sealed.append(segment)
    write_segments(log, 4, 4, 1)
    return disk, log, sealed


@pytest.mark.parametrize("truncated_to", [1, 6, 8, 10])
@pytest.mark.parametrize("number", range(7))
def test_truncation_between_two_calls_of_a_thread_that_indexes_a_segment(truncated_to: int, number: int) -> None:
    disk, log, sealed = hooked_log()
    disk.countdown, disk.hook = number, lambda: log.truncate_to(truncated_to)
    log.sync_sealed(
        sealed[1]
    )  # seven calls, which sync the log, its folders, the epochs and the snapshot; then indexes
    assert disk.hook is None
    assert not [name for name in disk.listdir(FOLDER) if name.endswith("index")]
    assert all(segment.indexed_bytes == -1 for segment in log.segments)


def test_truncation_waits_for_a_thread_that_writes_an_index() -> None:
    disk, log, sealed = hooked_log()
    is_writing, may_go_on = Event(), Event()

    def pause() -> None:
        is_writing.set()
        assert may_go_on.wait(60)

    disk.hook, disk.countdown = pause, 0
    thread = Thread(target=sealed[1].write_indexes)
    thread.start()
    assert is_writing.wait(60)
    # From here on the thread holds the names. The first call of the truncation lets it go on.
    disk.hook, disk.countdown = may_go_on.set, 0
    log.truncate_to(6)
    thread.join(60)
    assert not {name for name in disk.listdir(FOLDER) if "index" in name or name.endswith(".tmp")}
    assert [segment.base_offset for segment in log.segments] == [0]


def test_dropped_segment_creates_no_file_for_a_reader() -> None:
    disk = new_disk()
    log = open_at(disk, SETTINGS)
    append(log, batch())
    segment = log.active
    segment.delete_files()
    with pytest.raises(FileNotFoundError):
        segment.open_file()
    assert list(segment.headers()) == []
    assert not [name for name in disk.listdir(FOLDER) if name.endswith(".log")]


# -- retention --------------------------------------------------------------------------------------------------------


def test_retention_that_ends_after_a_truncation_deletes_no_new_file(fixture: StoreFixture) -> None:
    log = fixture.log()
    write_segments(log, 2, 2, 2)
    sync(log)
    fixture.threads.run()
    fixture.store.advance_log_start(log, 8)
    log.truncate_to(0)  # below the first segment: the log starts again, with a file of the same name
    write(log, batch(3))
    fixture.threads.run()
    assert names(fixture) == {"0.log"}
    assert contents(log) == [stored(batch(3), 0)]
    sync(log)
    assert after_power_failure(fixture, 3) == [stored(batch(3), 0)]


def test_retention_deletes_older_segments_first_if_jobs_overtake_each_other(fixture: StoreFixture) -> None:
    log = fixture.log()
    write_segments(log, 2, 2, 2)
    sync(log)
    fixture.threads.run()
    expected = contents(log)[4:]
    fixture.store.advance_log_start(log, 4)
    fixture.store.advance_log_start(log, 8)
    fixture.threads.jobs.pop(0)  # not started before the power fails
    fixture.threads.run()
    assert after_power_failure(fixture, 4) == expected


def test_retention_and_roll_of_a_segment_in_any_order(fixture: StoreFixture) -> None:
    log = fixture.log()
    write_segments(log, 2, 2, 2)
    sync(log)
    work, done = fixture.threads.jobs.pop(0)
    fixture.store.advance_log_start(log, 4)
    delete, deleted = fixture.threads.jobs.pop()
    delete()
    work()
    deleted(None)
    done(None)
    fixture.threads.run()
    assert not {name for name in names(fixture) if name.startswith("0.")}
    assert log.recovery_point == 8


# -- deletion of the topic --------------------------------------------------------------------------------------------


def test_threads_of_a_deleted_topic_change_no_file_of_a_new_topic_with_its_name(fixture: StoreFixture) -> None:
    log = fixture.log()
    write_segments(log, 2, 2, 2)
    sync(log)
    fixture.store.advance_log_start(log, 4)
    jobs, fixture.threads.jobs = fixture.threads.jobs, []
    # The threads have read that the topic exists. Then the topic is deleted and created again.
    fixture.store.delete(NAME, "unique")
    fixture.store.create(spec(topic_id=bytes(16), settings=SETTINGS))
    write(fixture.log(), batch(7))
    log.deleted = False
    for work, _ in jobs:
        work()
    log.deleted = True
    for _, done in jobs:
        done(None)
    assert names(fixture) == {"0.log"}
    assert offsets(fixture.log()) == [(0, 7)]


# -- compaction -------------------------------------------------------------------------------------------------------


def compacting(tmp_path: Path) -> CompactionFixture:
    """A pass whose first output has replaced its sources; the thread has yet to rename the files."""
    fixture = CompactionFixture(tmp_path, compacted(segment_bytes=5000))
    for key in (b"a", b"b", b"a", b"c", b"a"):
        fixture.produce((key, b"v" * 50))
        fixture.roll()
    fixture.produce((b"d", b"v"))
    assert fixture.begin()
    while not any(isinstance(each, CleanedSegment) and each.swap_sources for each in fixture.log.segments):
        fixture.threads.run_one()
    return fixture


@pytest.mark.parametrize("truncated_to", [0, 2, 4, 5])
@pytest.mark.parametrize("swap_first", [False, True])
def test_compaction_brings_no_truncated_segment_back(tmp_path: Path, truncated_to: int, swap_first: bool) -> None:
    fixture = compacting(tmp_path)
    log = fixture.log
    if swap_first:
        work, done = fixture.threads.jobs.pop(0)
        work()
        log.truncate_to(truncated_to)
        done(None)
    else:
        log.truncate_to(truncated_to)
    end = log.log_end_offset
    assert end <= truncated_to
    expected = contents(log)
    fixture.threads.run()
    assert not fixture.compactor.busy
    assert log.log_end_offset == end
    assert contents(log) == expected
    assert log.first_dirty_offset <= end
    assert not [name for name in fixture.files() if "swap" in name or "cleaned" in name]
    assert len([name for name in fixture.files() if name.endswith(".log")]) == len(log.segments)
    crashed = fixture.disk.crash(Random(0), "process")
    fixture.abandon()
    again = fixture.crash(crashed)
    assert contents(again.log) == expected
    again.abandon()


def test_pass_that_ends_after_a_truncation_does_not_call_later_batches_clean(tmp_path: Path) -> None:
    fixture = compacting(tmp_path)
    log = fixture.log
    while fixture.threads.jobs and not log.first_dirty_offset:
        work, done = fixture.threads.jobs.pop(0)
        work()
        first = log.segments[0]
        if isinstance(first, CleanedSegment) and first.swap_sources is None and not first.dropped:
            log.truncate_to(2)
            for _ in range(9):
                fixture.produce((b"e", b"v"))
        done(None)
        if log.log_end_offset > 6:
            break
    fixture.threads.run()
    assert log.first_dirty_offset <= 2
    fixture.abandon()
