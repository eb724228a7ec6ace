"""A disk that is full or broken: what could not be written never was, and all else stays as it is."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    append,
    batch,
    clean_stop,
    contents,
    new_disk,
    new_log,
    offsets,
    open_at,
    producer_state,
    stored,
    sync,
    topic,
    write,
)

from ottla.log.log import PENDING_BATCH_BYTES_MAX, Log
from ottla.testing.disk import MemoryDisk

LARGE = PENDING_BATCH_BYTES_MAX + 1000
SETTINGS = topic(index_interval_bytes=0, segment_ms=1000)

#: how much of the failed write reaches the file: nothing, a part of a header, of a batch, one batch, more than one
PARTS = pytest.mark.parametrize("applied", [0, 1, 30, 61, 90, 103, 150, 10_000])
ERRORS = pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])


def state(log: Log) -> dict[str, Any]:
    """Everything that a batch leaves behind in memory."""
    for segment in log.segments:
        segment.load_times()
        segment.load_first_timestamp()
    return {
        "offsets": (log.log_start_offset, log.log_end_offset, log.written_end_offset, log.synced_end_offset),
        "pending": (list(log.pending), log.active.pending_bytes, log.active.written_bytes),
        "producers": producer_state(log),
        "epochs": log.epochs.to_text(),
        "segments": [
            (
                segment.base_offset, segment.size_bytes, list(segment.offset_index.entries),
                list(segment.time_index.timestamps), segment.max_timestamp, segment.max_timestamp_offset,
                segment.first_timestamp,
            )
            for segment in log.segments
        ],
        "contents": contents(log),
    }  # fmt: skip


def started_log(disk: MemoryDisk) -> Log:
    log = open_at(disk, SETTINGS)
    write(log, batch(2, producer=(1, 0, 0)), batch(timestamp=NOW + 5), batch(3, producer=(2, 0, 7)))
    return log


def append_some(log: Log) -> None:
    """Batches of known and new producers, newer and older than what is there."""
    append(log, batch(2, timestamp=NOW + 50, producer=(1, 0, 2)))
    append(log, batch(timestamp=NOW + 1))
    append(log, batch(2, producer=(3, 0, 0)))
    append(log, batch(producer=(2, 1, 0)))


def check_it_goes_on(log: Log, disk: MemoryDisk, before: list[bytes]) -> None:
    """The same batches again, now written; and the file holds them after a kill and after a clean stop."""
    end = log.log_end_offset
    append_some(log)
    log.write_pending()
    assert offsets(log)[-4:] == [(end, end + 2), (end + 2, end + 3), (end + 3, end + 5), (end + 5, end + 6)]
    everything = contents(log)
    assert everything[:-4] == before
    for recovery_point in (0, log.recovery_point):
        booted = disk.crash(Random(0), "process")
        again = open_at(booted, SETTINGS, recovery_point=recovery_point)
        assert contents(again) == everything
        assert producer_state(again) == producer_state(log)
    assert contents(open_at(disk, SETTINGS, clean=clean_stop(log))) == everything


@ERRORS
@PARTS
def test_failed_write_leaves_the_log_as_it_was(error: int, applied: int) -> None:
    disk = new_disk()
    log = started_log(disk)
    before = state(log)
    append_some(log)
    disk.fail("write", error, applied_bytes=applied)
    with pytest.raises(OSError) as raised:
        log.write_pending()
    assert raised.value.errno == error
    assert state(log) == before
    check_it_goes_on(log, disk, before["contents"])


@PARTS
def test_first_write_of_all_may_fail(applied: int) -> None:
    disk = new_disk()
    log = open_at(disk, SETTINGS)
    before = state(log)
    append_some(log)
    disk.fail("write", errno.ENOSPC, applied_bytes=applied)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    check_it_goes_on(log, disk, [])


@PARTS
def test_first_write_into_a_new_segment_may_fail(applied: int) -> None:
    disk = new_disk()
    log = started_log(disk)
    log.roll()
    before = state(log)
    append_some(log)
    disk.fail("write", errno.ENOSPC, applied_bytes=applied)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    check_it_goes_on(log, disk, before["contents"])


def test_new_segment_may_find_no_room_for_its_file() -> None:
    disk = new_disk()
    log = started_log(disk)
    log.roll()
    before = state(log)
    append_some(log)
    disk.fail("create", errno.ENOSPC)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    check_it_goes_on(log, disk, before["contents"])


@PARTS
def test_failed_write_after_a_clean_start_leaves_the_log_as_it_was(applied: int) -> None:
    """Indexes and producers are not even loaded then."""
    disk = new_disk()
    clean = clean_stop(started_log(disk))
    before = state(open_at(disk, SETTINGS, clean=clean))
    log = open_at(disk, SETTINGS, clean=clean)
    append_some(log)
    disk.fail("write", errno.ENOSPC, applied_bytes=applied)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    check_it_goes_on(log, disk, before["contents"])


def test_disk_on_which_nothing_at_all_can_be_written_leaves_the_log_as_it_was() -> None:
    """No room for the batches, and none for the small files either."""
    disk = new_disk()
    log = started_log(disk)
    log.become_leader(5)
    before = state(log)
    disk.fail("space", errno.ENOSPC, times=None, path="leader-epoch")
    with pytest.raises(OSError):
        append_some(log)
    assert log.log_end_offset == 6
    disk.heal()
    append_some(log)
    disk.fail("space", errno.ENOSPC, times=None, applied_bytes=40)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    disk.heal()
    check_it_goes_on(log, disk, before["contents"])
    assert log.epochs.epoch_at(6) == 5


@PARTS
def test_small_batch_behind_a_large_one_may_fail_alone(applied: int) -> None:
    disk = new_disk()
    log = started_log(disk)
    append(log, batch(producer=(1, 0, 2)))
    append(log, batch(size=LARGE, producer=(1, 0, 3)))
    before = state(log)
    append_some_behind(log)
    disk.fail("write", errno.ENOSPC, applied_bytes=applied)
    with pytest.raises(OSError):
        log.write_pending()
    assert state(log) == before
    assert log.written_end_offset == 8
    log.truncate_to(6)
    check_it_goes_on(log, disk, before["contents"][:3])


def append_some_behind(log: Log) -> None:
    append(log, batch(producer=(1, 0, 4)))
    append(log, batch(timestamp=NOW + 70, producer=(4, 0, 0)))


@PARTS
def test_large_batch_that_fails_leaves_the_small_ones_before_it(applied: int) -> None:
    disk = new_disk()
    log = started_log(disk)
    append(log, batch(producer=(1, 0, 2)))
    disk.fail("pwritev", errno.ENOSPC, applied_bytes=applied)
    with pytest.raises(OSError):
        append(log, batch(size=LARGE, producer=(1, 0, 3)))
    assert (log.log_end_offset, log.written_end_offset, log.pending) == (7, 7, [])
    # A smaller batch takes its place; what is left of the large one lies behind it.
    assert append(log, batch(producer=(1, 0, 3))) == (7, 8)
    log.write_pending()
    expected = contents(log)
    assert len(expected) == 5
    assert contents(open_at(disk.crash(Random(0), "process"), SETTINGS)) == expected
    assert contents(open_at(disk, SETTINGS, clean=clean_stop(log))) == expected


def test_large_batch_whose_small_predecessors_fail_is_not_written_either() -> None:
    disk = new_disk()
    log = started_log(disk)
    before = state(log)
    append(log, batch(producer=(1, 0, 2)))
    disk.fail("pwrite", errno.ENOSPC, applied_bytes=50)
    with pytest.raises(OSError):
        append(log, batch(size=LARGE, producer=(1, 0, 3)))
    assert state(log) == before
    check_it_goes_on(log, disk, before["contents"])


def test_remains_of_a_failed_batch_are_cut_off_when_the_segment_is_sealed() -> None:
    """After a clean start the sizes of files are trusted, and rubbish would be sent to readers."""
    disk = new_disk()
    log = started_log(disk)
    disk.fail("pwritev", errno.ENOSPC, applied_bytes=20_000)
    with pytest.raises(OSError):
        append(log, batch(size=LARGE))
    log.roll()
    write(log, batch())
    expected = contents(log)
    assert disk.file_size(f"{FOLDER}/{0:020d}.log") == log.segments[0].size_bytes
    assert contents(open_at(disk, SETTINGS, clean=clean_stop(log))) == expected


def test_readers_see_nothing_of_what_failed() -> None:
    disk = new_disk()
    log = started_log(disk)
    assert log.read(0, 1 << 20, 6, at_least_one=True) is not None  # leaves a hint for whoever reads on
    append_some(log)
    disk.fail("write", errno.ENOSPC, applied_bytes=10_000)
    with pytest.raises(OSError):
        log.write_pending()
    assert log.read(6, 1 << 20, 6, at_least_one=True) is None
    write(log, batch(size=50))
    region = log.read(6, 1 << 20, 7, at_least_one=True)
    assert region is not None and region.read() == stored(batch(size=50), 6)


def test_repeated_batch_that_failed_is_appended_and_not_taken_for_a_repetition() -> None:
    disk = new_disk()
    log = started_log(disk)
    for _ in range(3):
        append(log, batch(2, producer=(1, 0, 2)))
        disk.fail("space", errno.ENOSPC, times=None)
        with pytest.raises(OSError):
            log.write_pending()
        disk.heal()
    assert append(log, batch(2, producer=(1, 0, 2))) == (6, 8)


def test_full_disk_does_not_keep_a_log_from_rolling() -> None:
    """Retention has to seal the active segment before it can free its room."""
    disk = new_disk()
    log = started_log(disk)
    sync(log)
    disk.fail("write_file", errno.ENOSPC, times=None)
    assert len(log.advance_log_start(6)) == 1
    disk.heal()
    write(log, batch())
    assert offsets(open_at(disk.crash(Random(0), "process"), SETTINGS, log_start=6)) == [(6, 7)]


def test_start_that_cannot_be_moved_stays() -> None:
    disk = new_disk()
    log = started_log(disk)
    sync(log)
    disk.fail("create", errno.ENOSPC)
    with pytest.raises(OSError):
        log.advance_log_start(6)
    assert (log.log_start_offset, offsets(log)[-1]) == (0, (3, 6))
    assert len(log.advance_log_start(6)) == 1
    assert write(log, batch()) == [6]


def test_failed_sync_notes_nothing() -> None:
    disk = new_disk()
    log = started_log(disk)
    disk.fail("fdatasync")
    with pytest.raises(OSError):
        sync(log)
    assert log.synced_end_offset == 0
    assert log.unsynced()


def test_clean_stop_that_fails_raises() -> None:
    for skip in range(8):
        disk = new_disk()
        log = started_log(disk)
        disk.fail("sync", skip=skip)
        with pytest.raises(OSError):
            log.flush_files()


def test_append_that_cannot_make_its_folder_changes_nothing() -> None:
    log = new_log()
    attempts = []

    def no_room() -> None:
        attempts.append(1)
        raise OSError(errno.ENOSPC, "no room")

    log.make_folder = no_room
    for _ in range(2):
        with pytest.raises(OSError):
            append(log, batch(producer=(1, 0, 0)))
    assert (len(attempts), log.log_end_offset, log.pending, producer_state(log)) == (2, 0, [], {})
