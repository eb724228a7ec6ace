"""Truncating a log to an offset, and starting it again at another offset: what is left, in memory and in the files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NAME,
    NOW,
    append,
    batch,
    clean_stop,
    contents,
    new_disk,
    offsets,
    open_at,
    stored,
    sync,
    topic,
    write,
)  # fmt: skip
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec
from tests.unit.log.txn_fixtures import Client, values

from ottla.env.disk import WriteFailed
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.model.errors import OffsetOutOfRange

SETTINGS = topic(segment_ms=1000, index_interval_bytes=0)
MINUTE = 60_000


def three_segments(disk: object | None = None) -> Log:
    """Offsets 0 to 11, one epoch and four records for each segment, all synced."""
    log = open_at(disk or new_disk(), SETTINGS)  # type: ignore[arg-type]
    for number in range(3):
        log.become_leader(number)
        for _ in range(2):
            append(log, batch(2, timestamp=NOW + number * MINUTE, producer=(7, 0, log.log_end_offset)), NOW)
        log.write_pending()
    sync(log)
    return log


def files(log: Log) -> list[str]:
    names = log.disk.listdir(FOLDER)
    return sorted(f"{int(name[:20])}{name[20:]}" for name in names if name[:20].isdecimal())


# -- truncate to ------------------------------------------------------------------------------------------------------


def test_truncation_at_the_log_end_removes_an_epoch_without_batches() -> None:
    """A leader that appended nothing has left its epoch: a follower would find itself diverging for ever."""
    log = three_segments()
    log.epochs.assign(5, 12)
    log.truncate_to(12)
    assert (log.epochs.latest, log.log_end_offset) == (2, 12)
    log.truncate_to(500)
    assert log.epochs.latest == 2


def test_truncated_segment_is_replaced_and_readers_of_the_old_one_keep_its_file() -> None:
    log = three_segments()
    before = log.segments[:]
    region = log.read(4, 1 << 20, 12, at_least_one=True)
    assert region is not None
    log.truncate_to(6)
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    assert (before[0].dropped, before[1].dropped, before[2].dropped) == (False, True, True)
    assert log.segments[0] is before[0]
    assert log.active is not before[1]
    # The bytes that remain can be sent; the rest of the region is missing, and the connection closes.
    assert region.read() == stored(batch(2, timestamp=NOW + MINUTE, producer=(7, 0, 4)), 4, 1)


def test_truncation_is_synced_before_it_returns() -> None:
    disk = new_disk()
    log = three_segments(disk)
    disk.calls.clear()
    log.truncate_to(5)
    changes = [call.name for call in disk.calls if call.name not in ("pread", "read_file", "listdir", "file_size")]
    assert changes[-2:] == ["fdatasync", "fsync_dir"]
    assert log.active.synced_bytes == log.active.size_bytes
    assert not log.unsynced()


def test_clean_stop_after_a_truncation_trusts_the_files() -> None:
    disk = new_disk()
    log = three_segments(disk)
    log.truncate_to(7)
    write(log, batch(3, size=70))
    expected = contents(log)
    again = open_at(disk, SETTINGS, clean=clean_stop(log))
    assert contents(again) == expected
    assert again.offset_for_timestamp(NOW + MINUTE, 20) == (4, NOW + MINUTE)


@pytest.mark.parametrize("kind", ["remove", "truncate", "fdatasync", "fsync_dir"])
def test_failed_truncation_takes_the_partition_offline(kind: str) -> None:
    disk = new_disk()
    log = three_segments(disk)
    log.write_epochs(LeaderEpochs.from_text("0\n1\n0 0\n"), sync=True)  # the truncation writes no other file then
    disk.fail(kind, errno.EIO)
    with pytest.raises(WriteFailed):
        log.truncate_to(3)
    assert log.failure is not None


@pytest.mark.parametrize("call", ["truncate_to", "truncate_fully_and_start_at"])
def test_truncation_that_fails_before_it_changes_a_segment_changes_nothing(call: str) -> None:
    disk = new_disk()
    log = three_segments(disk)
    before = contents(log)
    disk.fail("write_file", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        getattr(log, call)(3)
    disk.heal()
    assert (log.failure, log.epochs.epochs) == (None, [0, 1, 2])
    assert contents(log) == before
    getattr(log, call)(3)
    assert log.log_end_offset == (2 if call == "truncate_to" else 3)


# -- start at ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2, 4, 7, 12, 13, 1 << 40])
def test_log_starts_again_at_any_offset(offset: int) -> None:
    disk = new_disk()
    log = three_segments(disk)
    append(log, batch())  # pending
    log.truncate_fully_and_start_at(offset)
    assert (log.log_start_offset, log.written_end_offset, log.log_end_offset) == (offset, offset, offset)
    assert (log.synced_end_offset, log.recovery_point) == (offset, offset)
    assert (log.epochs.epochs, log.producers.count, files(log)) == ([], 0, [f"{offset}.log"])
    log.become_leader(9)
    assert write(log, batch(3, producer=(7, 0, 55))) == [offset]
    assert contents(log) == [stored(batch(3, producer=(7, 0, 55)), offset, 9)]
    assert (log.epochs.epochs, log.epochs.starts) == ([9], [offset])
    with pytest.raises(OffsetOutOfRange):
        log.read(offset - 1, 100, offset + 3, at_least_one=True)
    sync(log)
    assert offsets(open_at(disk, SETTINGS, clean=clean_stop(log))) == [(offset, offset + 3)]


def test_log_without_a_folder_can_start_at_an_offset(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(settings=SETTINGS))
    fixture.log().truncate_fully_and_start_at(77)
    fixture.stop()
    again = StoreFixture(disk, tmp_path)
    again.start(spec(settings=SETTINGS))
    assert (again.log().log_start_offset, again.log().log_end_offset) == (77, 77)
    again.abandon()


def test_transactions_are_forgotten_with_their_batches() -> None:
    log = open_at(new_disk(), SETTINGS)
    client = Client(log)
    client.send(b"a")
    client.abort()
    client.send(b"b")
    log.write_pending()
    log.truncate_fully_and_start_at(1)
    assert (log.first_unstable_offset, log.ended, log.aborted_transactions(0, 99)) == (None, [], [])
    Client(log, pid=2).send(b"c")
    log.write_pending()
    assert values(log) == []
    assert log.first_unstable_offset == 1


def test_checkpointed_high_watermark_is_never_after_the_log_end(tmp_path: Path) -> None:
    """The high watermark of the partition is lowered only after the log was truncated."""
    disk = disk_with(tmp_path)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(settings=SETTINGS))
    write(fixture.log(), batch(5), batch(5))
    fixture.store.write_checkpoints({NAME: 10}, sync=True)
    fixture.log().truncate_to(5)
    assert disk.read_file(f"{tmp_path}/replication-offset-checkpoint") == b"0\n1\norders 0 5\n"
    fixture.store.write_checkpoints({NAME: 10}, sync=False)
    assert disk.read_file(f"{tmp_path}/replication-offset-checkpoint") == b"0\n1\norders 0 5\n"
    fixture.log().truncate_fully_and_start_at(3)
    assert disk.read_file(f"{tmp_path}/replication-offset-checkpoint") == b"0\n0\n"
    assert disk.read_file(f"{tmp_path}/log-start-offset-checkpoint") == b"0\n1\norders 0 3\n"
    fixture.abandon()
