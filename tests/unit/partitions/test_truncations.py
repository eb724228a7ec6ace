"""Truncations of many logs: what the event loop does, what threads do, and what happens to the logs meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log.log_fixtures import NOW, batch, offsets
from tests.unit.partitions.test_replica_manager import LED_BY_ANOTHER, ManagerFixture

from ottla.broker.partitions import truncations
from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.truncations import LogTruncations
from ottla.model.errors import StorageError


class Loop:
    """In place of an event loop: runs the calls that wait when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run_once(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class TruncationFixture(ManagerFixture):
    """Followers with the offsets 0 to 5, two records and one epoch in each batch; the checkpoints name the end."""

    def __init__(self, path: Path, logs: int, directories: int = 1) -> None:
        super().__init__(path, directories)
        self.loop = Loop()
        loop: Any = self.loop
        self.truncations = LogTruncations(loop, self.manager)
        self.partitions = [self.add(number) for number in range(logs)]
        for partition in self.partitions:
            for epoch in range(3):
                partition.log.become_leader(epoch)
                self.append(partition, batch(2))
                self.manager.commits.write_turn()
            self.manager.commits.sync_in_background(partition)
            self.threads.run()
            self.manager.apply_state(partition, LED_BY_ANOTHER)
        self.fixture.store.write_checkpoints(self.manager.high_watermarks(), sync=True)
        self.results: list[Exception | None] = []
        self.disk.calls.clear()

    def truncate(self, partition: Partition, offset: int = 3, *, restarts: bool = False) -> None:
        self.truncations.add(TruncationRequest(partition, offset, restarts), self.results.append)

    def count(self, name: str, part: str) -> int:
        return sum(call.name == name and part in call.path for call in self.disk.calls)

    def append_fetched(self, partition: Partition, epoch: int = 3) -> None:
        """Append a batch that continues the log, as the leader stores it."""
        data = bytearray(batch(4))
        data[0:8] = partition.log.log_end_offset.to_bytes(8, "big")
        data[12:16] = epoch.to_bytes(4, "big")
        self.manager.followers.append(partition, memoryview(bytes(data)), NOW)
        self.manager.followers.write(partition)


@pytest.mark.parametrize("restarts", [False, True])
def test_event_loop_writes_each_directory_once_and_syncs_no_log(tmp_path: Path, restarts: bool) -> None:
    fixture = TruncationFixture(tmp_path, logs=12, directories=2)
    for partition in fixture.partitions:
        fixture.truncate(partition, 10 if restarts else 3, restarts=restarts)
    assert not fixture.disk.calls, "the group is collected first"
    fixture.loop.run_once()
    ends = {partition.log.log_end_offset for partition in fixture.partitions}
    assert ends == {10 if restarts else 2}
    assert fixture.count("write_file", "recovery-point-offset-checkpoint") == 2
    assert not [
        call for call in fixture.disk.calls if call.name in ("fdatasync", "fsync_dir") and "orders" in call.path
    ]
    assert fixture.results == []
    fixture.threads.run()
    assert fixture.results == [None] * 12
    assert all(partition.log.unsynced_truncation is None for partition in fixture.partitions)
    assert all(partition.log.synced_end_offset == partition.log.log_end_offset for partition in fixture.partitions)


def test_large_groups_are_divided_and_few_logs_are_synced_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncations, "_GROUP_MAX", 4)
    monkeypatch.setattr(truncations, "_SYNCS_MAX", 3)
    fixture = TruncationFixture(tmp_path, logs=10)
    for partition in fixture.partitions:
        fixture.truncate(partition)
    for begun in (4, 8, 10):
        fixture.loop.run_once()
        assert sum(partition.log.log_end_offset == 2 for partition in fixture.partitions) == begun
        assert len(fixture.threads.jobs) == 3
    assert not fixture.loop.calls
    fixture.threads.run()
    assert fixture.results == [None] * 10


def test_append_completes_a_truncation_that_is_not_synced(tmp_path: Path) -> None:
    """The broker becomes the leader, or a new leader epoch begins, while the threads are busy."""
    fixture = TruncationFixture(tmp_path, logs=1)
    (partition,) = fixture.partitions
    fixture.truncate(partition)
    fixture.loop.run_once()
    fixture.disk.calls.clear()
    fixture.append_fetched(partition)
    names = [call.name for call in fixture.disk.calls if call.name in ("fdatasync", "fsync_dir", "pwrite")]
    assert names == ["fdatasync", "fdatasync", "fsync_dir", "pwrite"], "epochs, file and folder before the next batch"
    assert partition.log.synced_end_offset == 2
    fixture.threads.run()
    assert partition.log.synced_end_offset == 2, "the job of the thread says nothing about later batches"
    assert fixture.results == [None]
    assert offsets(partition.log) == [(0, 2), (2, 6)]


def test_disk_that_fails_takes_only_its_own_logs_offline(tmp_path: Path) -> None:
    fixture = TruncationFixture(tmp_path, logs=4, directories=2)
    fixture.disk.fail("write_file", errno.EIO, path="data0/recovery-point", times=None)
    for partition in fixture.partitions:
        fixture.truncate(partition)
    fixture.loop.run_once()
    fixture.threads.run()
    assert sorted(str(type(result)) for result in fixture.results) == sorted(
        [str(StorageError)] * 2 + [str(type(None))] * 2
    )
    assert sorted(partition.offline for partition in fixture.partitions) == [False, False, True, True]
    assert sorted(partition.log.log_end_offset for partition in fixture.partitions) == [2, 2, 6, 6]


def test_sync_that_fails_in_a_thread_takes_the_partition_offline(tmp_path: Path) -> None:
    fixture = TruncationFixture(tmp_path, logs=1)
    (partition,) = fixture.partitions
    fixture.truncate(partition)
    fixture.loop.run_once()
    fixture.disk.fail("fdatasync", errno.EIO, path=".log")
    fixture.threads.run()
    assert partition.offline
    assert "was not synced" in (partition.log.failure or "")
    assert fixture.results == [None], "the caller sees that the partition is offline"


def test_log_that_is_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    fixture = TruncationFixture(tmp_path, logs=2)
    for partition in fixture.partitions:
        fixture.truncate(partition)
    fixture.loop.run_once()
    fixture.manager.remove(fixture.partitions[0], "unique")
    fixture.threads.run()
    assert not fixture.failures
    assert not fixture.partitions[1].offline


def test_canceled_truncation_is_not_begun(tmp_path: Path) -> None:
    fixture = TruncationFixture(tmp_path, logs=2)
    for partition in fixture.partitions:
        fixture.truncate(partition)
    fixture.truncations.cancel(fixture.partitions[0])
    fixture.loop.run_once()
    fixture.threads.run()
    assert [partition.log.log_end_offset for partition in fixture.partitions] == [6, 2]
    assert fixture.results == [None]


def test_caller_of_a_new_leader_epoch_waits_for_the_sync_of_the_earlier_one(tmp_path: Path) -> None:
    fixture = TruncationFixture(tmp_path, logs=1)
    (partition,) = fixture.partitions
    later: list[Exception | None] = []
    assert not fixture.truncations.wait(partition, later.append)
    fixture.truncate(partition)
    fixture.loop.run_once()
    fixture.truncations.cancel(partition)
    assert fixture.truncations.wait(partition, later.append)
    fixture.threads.run()
    assert (fixture.results, later) == ([], [None])


@pytest.mark.parametrize("roll", [False, True])
def test_clean_stop_or_roll_completes_a_truncation(tmp_path: Path, roll: bool) -> None:
    fixture = TruncationFixture(tmp_path, logs=1)
    (partition,) = fixture.partitions
    fixture.truncate(partition)
    fixture.loop.run_once()
    if roll:
        partition.log.roll()
    else:
        partition.log.flush_files()
    assert partition.log.unsynced_truncation is None
