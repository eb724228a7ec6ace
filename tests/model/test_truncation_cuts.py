"""The machine stops between any two changes that a truncation makes to the disk.

The next start finds the log as it was before, or a beginning of it that has at least the remaining batches, or the
truncated log. It finds no batch that was never appended, in particular none that fills the offsets of removed ones. The
next truncation completes the work, and what is appended and synced after it survives a power failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_fixtures import (
    NAME,
    NOW,
    append,
    batch,
    contents,
    new_disk,
    open_at,
    stored,
    sync,
    topic,
    write,
)
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log import truncation
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.log.producers import snapshot_offsets
from ottla.log.truncation import EPOCHS_FILE
from ottla.model.batch import read_header
from ottla.testing.disk import DiskCut, Keep, MemoryDisk

SETTINGS = topic(segment_ms=1000, index_interval_bytes=100)
MINUTE = 60_000
#: power failures that keep different parts of the unsynced changes
SEEDS = 3


def started(disk: MemoryDisk, path: Path) -> StoreFixture:
    fixture = StoreFixture(disk, path)
    try:
        fixture.start(spec(settings=SETTINGS))
    except BaseException:
        fixture.abandon()
        raise
    return fixture


def grown(disk: MemoryDisk, path: Path) -> StoreFixture:
    """A log of four segments and three epochs, offsets 2 to 19, that is synced, checkpointed and partly indexed."""
    fixture = started(disk, path)
    log, store = fixture.log(), fixture.store
    for number in range(5):
        log.become_leader(number)
        for _ in range(2):
            sequence = log.log_end_offset
            append(log, batch(2, timestamp=NOW + number * MINUTE, producer=(7, 0, sequence)), NOW + number * MINUTE)
        log.write_pending()
        if number < 4:
            sync(log)
            fixture.threads.run()
    store.advance_log_start(log, 6)
    fixture.threads.run()
    sync(log)
    store.write_checkpoints({NAME: 18}, sync=False)
    store.write_checkpoints({NAME: 20}, sync=True)
    return fixture


def cuts(path: Path, call: str, offset: int) -> Iterator[tuple[int, MemoryDisk, list[bytes], bool]]:
    """Yield the number of changes, the disk after them, the batches before, and whether the truncation is complete."""
    changes, complete = 0, False
    while not complete:
        disk = disk_with(path)
        fixture = grown(disk, path)
        before = in_files(fixture.log())
        disk.cut_after(changes, seed=changes)
        try:
            getattr(fixture.log(), call)(offset)
            complete = True
        except DiskCut:
            pass
        fixture.abandon()
        disk._cut_at = None
        yield changes, disk, before, complete
        changes += 1
    assert changes > 3, "the truncation changes fewer files than it should"


def check_goes_on(log: Log, disk: MemoryDisk, fixture: StoreFixture, path: Path, seed: int) -> None:
    """What is appended now follows what is there, and both survive a power failure once they are synced."""
    log.become_leader(99)
    end = log.log_end_offset
    expected = [*contents(log), *(stored(batch(2), end + 2 * number, 99) for number in range(3))]
    for _ in range(3):
        append(log, batch(2), NOW)
        log.write_pending()
    sync(log)
    fixture.store.write_checkpoints({NAME: log.log_end_offset}, sync=False)
    again = started(disk.crash(Random(seed), "power"), path)
    assert contents(again.log()) == expected
    assert again.log().epochs.epoch_at(end) == 99
    again.abandon()


def check_removed(log: Log, disk: MemoryDisk, seed: int) -> None:
    """No file of a removed segment, no snapshot and no epoch comes back after a power failure."""
    end, crashed = log.log_end_offset, disk.crash(Random(seed), "power")
    names = crashed.listdir(log.directory)
    assert [name for name in names if name.endswith(".log")] == [
        f"{each.base_offset:020d}.log" for each in log.segments
    ]
    assert all(offset <= end for offset in snapshot_offsets(crashed, log.directory))
    epochs = LeaderEpochs.from_text((crashed.read_file(f"{log.directory}/{EPOCHS_FILE}") or b"").decode())
    assert (epochs.epochs[-1:], epochs.starts[-1:]) == (log.epochs.epochs[-1:], log.epochs.starts[-1:])


def in_files(log: Log) -> list[bytes]:
    """Return all batches in the files, also those before the log start offset."""
    return [each.batch(*where) for each in log.segments for where in each.headers()]


@pytest.mark.parametrize("keep", ["process", "power"])
@pytest.mark.parametrize("offset", [7, 11, 12, 16, 19])
def test_power_failure_during_a_truncation(tmp_path: Path, offset: int, keep: Keep) -> None:
    for changes, disk, before, complete in cuts(tmp_path, "truncate_to", offset):
        kept = [data for data in before if read_header(data).next_offset <= offset]
        for seed in range(SEEDS if keep == "power" else 1):
            booted = disk.crash(Random(100 * changes + seed), keep)
            fixture = started(booted, tmp_path)
            log = fixture.log()
            found = in_files(log)
            assert found == before[: len(found)], f"cut after {changes}, seed {seed}"
            assert len(found) >= len(kept)
            assert log.log_end_offset == read_header(found[-1]).next_offset
            if complete:
                assert found == kept
            log.truncate_to(offset)
            assert in_files(log) == kept
            headers = [read_header(data) for data in kept]
            assert log.epochs.epochs == sorted({each.leader_epoch for each in headers if each.next_offset > 6})
            check_removed(log, booted, seed)
            entry = log.producers.get(7)
            assert entry is not None
            assert entry.batches[-1].last_offset == headers[-1].last_offset
            fixture.abandon()
            check_goes_on(log, booted, fixture, tmp_path, seed)


@pytest.mark.parametrize("keep", ["process", "power"])
@pytest.mark.parametrize("offset", [3, 6, 12, 20, 500])
def test_power_failure_while_a_log_starts_again_at_another_offset(tmp_path: Path, offset: int, keep: Keep) -> None:
    for changes, disk, before, complete in cuts(tmp_path, "truncate_fully_and_start_at", offset):
        for seed in range(SEEDS if keep == "power" else 1):
            booted = disk.crash(Random(100 * changes + seed), keep)
            fixture = started(booted, tmp_path)
            log = fixture.log()
            found = in_files(log)
            assert found == before[: len(found)], f"cut after {changes}, seed {seed}"
            if not found:
                # The empty log starts at the new offset, or where the files of the old log started.
                assert log.log_start_offset == log.log_end_offset
                assert log.log_end_offset in (offset, 4)
            if complete:
                assert (log.log_start_offset, log.log_end_offset, log.epochs.epochs) == (offset, offset, [])
            log.truncate_fully_and_start_at(offset)
            assert (log.log_start_offset, log.log_end_offset, contents(log)) == (offset, offset, [])
            check_removed(log, booted, seed)
            assert log.producers.count == 0
            fixture.abandon()
            check_goes_on(log, booted, fixture, tmp_path, seed)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("offset", [7, 11, 12, 16, 19])
def test_power_failure_before_a_truncation_is_synced(tmp_path: Path, offset: int, restarts: bool) -> None:
    """Threads sync the truncations of many logs. The next batch is appended after that."""
    disk = disk_with(tmp_path)
    fixture = grown(disk, tmp_path)
    log, before = fixture.log(), in_files(fixture.log())
    kept = [] if restarts else [data for data in before if read_header(data).next_offset <= offset]
    planned = truncation.plan_restart(log, offset) if restarts else truncation.plan(log, offset)
    fixture.store.lower_checkpoints([planned])
    truncation.begin(planned)
    fixture.store.write_checkpoints({NAME: log.log_end_offset}, sync=False)
    for seed in range(4 * SEEDS):
        booted = disk.crash(Random(seed), "power")
        again = started(booted, tmp_path)
        found = in_files(again.log())
        assert found == before[: len(found)]
        assert len(found) >= len(kept)
        again.log().truncate_fully_and_start_at(offset) if restarts else again.log().truncate_to(offset)
        check_removed(again.log(), booted, seed)
        again.abandon()
        check_goes_on(again.log(), booted, again, tmp_path, seed)
    fixture.abandon()
    check_goes_on(log, disk, fixture, tmp_path, 0)  # the append completes the truncation


def test_epoch_of_removed_batches_does_not_return_to_a_compacted_log() -> None:
    """A power failure has kept a truncation, but brought back the old file of epochs.

    The leader's batches that follow have an earlier epoch than the removed ones. In a compacted log, recovery cannot
    tell that the removed epoch has no batches: they could have been removed by compaction.
    """
    disk, settings = new_disk(), topic(cleanup_policy="compact")
    log = open_at(disk, settings)
    log.become_leader(1)
    write(log, batch(5))
    sync(log)
    disk.write_file(f"{log.directory}/{EPOCHS_FILE}", b"0\n2\n1 0\n2 5\n", sync=True)
    log = open_at(disk, settings)
    for epoch in (1, 3):
        data = stored(batch(5), log.log_end_offset, epoch)
        log.append_as_follower(memoryview(data), leader_epoch=3, now_ms=NOW)
    log.write_pending()
    sync(log)
    for seed in range(SEEDS):
        again = open_at(disk.crash(Random(seed), "power"), settings)
        assert (again.epochs.epochs, again.epochs.starts) == ([1, 3], [0, 10])


def test_checkpoints_are_lowered_before_batches_are_removed(tmp_path: Path) -> None:
    """A truncation above all checkpointed offsets writes no checkpoint."""
    disk = disk_with(tmp_path)
    fixture = grown(disk, tmp_path)
    log = fixture.log()
    for _ in range(3):
        append(log, batch(2, timestamp=NOW + 4 * MINUTE), NOW + 4 * MINUTE)
    log.write_pending()
    disk.calls.clear()
    log.truncate_to(24)
    assert not [call for call in disk.calls if call.path.endswith("offset-checkpoint")]
    log.truncate_to(10)
    written = [call.path.rpartition("/")[2] for call in disk.calls if call.name in ("write_file", "truncate")]
    assert written[-1] == "00000000000000000008.log"
    assert {"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} <= set(written[:-1])
    fixture.abandon()
