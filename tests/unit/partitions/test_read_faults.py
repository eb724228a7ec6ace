"""A file that cannot be read is a matter of its partition: nothing else stops, and the next start works."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.unit.log.compaction_fixtures import pairs_batch
from tests.unit.log.log_fixtures import NOW, contents, topic
from tests.unit.log.store_fixtures import StoreFixture, spec
from tests.unit.log.txn_fixtures import txn_batch
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA, FakeClock, Waiter

from ottla.broker.partitions.log_upkeep import LogUpkeep
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.log.folders import PartitionSpec
from ottla.model.errors import ErrorCode, KafkaError, PolicyViolation, StorageError
from ottla.model.settings import BrokerSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import KINDS, MemoryDisk

SETTINGS = BrokerSettings()
SMALL: dict[str, object] = {"segment_bytes": 700, "index_interval_bytes": 100, "retention_ms": 10_000}
BAD, GOOD = TopicPartition("bad", 0), TopicPartition("good", 0)
COMPACTED = topic(**SMALL, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
DELETED = topic(**SMALL, retention_bytes=1500)


class Fixture:
    """A manager with two partitions, of which one has a file that the disk fails to read."""

    def __init__(self, disk: MemoryDisk, path: str, settings_of_bad: Any = DELETED) -> None:
        self.disk = disk
        self.store_fixtures = StoreFixture(disk, path)
        self.threads = self.store_fixtures.threads
        self.specs = [spec(BAD, settings=settings_of_bad), spec(GOOD, settings=DELETED)]
        self.store_fixtures.start(*self.specs)
        self.ended: list[str] = []
        threads: Any = self.threads
        self.manager = ReplicaManager(
            broker_id=1, clock=FakeClock(), disk=disk, store=self.store_fixtures.store, threads=threads,
            free_bytes_min=0,            on_all_dirs_failed=self.ended.append,
        )  # fmt: skip
        self.bad, self.good = map(self.add, self.specs)

    def add(self, each: PartitionSpec) -> Partition:
        return self.manager.add(each, ONLY_REPLICA)

    def produce(self, partition: Partition, data: bytes, *, in_transaction: bool = False) -> None:
        buffer = bytearray(data)
        _, end = self.manager.append(
            partition, buffer, memoryview(buffer), 0, len(buffer), NOW, transactional=in_transaction
        )
        waiter = Waiter()
        self.manager.commits.wait(partition, Until.DURABLE, end, waiter)
        self.manager.commits.write_turn()
        self.threads.run()
        if waiter.answers != [0]:
            assert waiter.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
            raise StorageError("refused")

    def abort(self, partition: Partition, pid: int) -> None:
        self.manager.append_marker(partition, pid, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
        self.manager.commits.write_turn()

    def use(self, partition: Partition, pid: int) -> list[Callable[[], object]]:
        """Everything that clients and housekeeping do with a partition. Read errors may reach the caller as OSError."""
        its_log = partition.log

        def fetch() -> None:
            if partition.offline:
                raise StorageError("offline")
            offset = its_log.log_start_offset
            end = partition.last_stable_offset
            while offset < end and (region := its_log.read(offset, 500, end, at_least_one=True)) is not None:
                region.read()
                its_log.aborted_within(offset, region, end)
                offset += 5

        return [
            lambda: LogUpkeep(self.manager).apply_retention(partition, NOW),
            fetch,
            lambda: its_log.offset_for_timestamp(NOW - 500, partition.high_watermark),
            its_log.newest_timestamp,
            lambda: its_log.producers.entries,
            lambda: LogUpkeep(self.manager).maybe_compact(NOW, SETTINGS),
            self.threads.run,
            lambda: self.produce(partition, txn_batch(b"a", b"b", pid=pid), in_transaction=True),
            lambda: self.abort(partition, pid),
            *[lambda: self.produce(partition, pairs_batch((b"key", b"v" * 200)))] * 4,
            lambda: self.manager.delete_records(partition, its_log.log_start_offset + 1),
            self.threads.run,
        ]

    def use_all(self, pid: int, *, bad_may_fail: bool) -> None:
        for partition in (self.bad, self.good):
            for number, action in enumerate(self.use(partition, pid)):
                try:
                    action()
                except PolicyViolation:
                    pass  # records of a compacted topic cannot be deleted
                except (OSError, KafkaError) as error:
                    if partition is self.good or not bad_may_fail:
                        raise AssertionError(f"step {number} of {partition.name} failed: {error}") from error


def filled(path: str, settings_of_bad: Any) -> MemoryDisk:
    """A disk with two logs of several segments, each with an aborted transaction in a sealed one."""
    disk = MemoryDisk()
    disk.makedirs(path)
    fixture = Fixture(disk, path, settings_of_bad)
    for partition in (fixture.bad, fixture.good):
        fixture.produce(partition, pairs_batch((b"key", b"value")))
        fixture.produce(partition, txn_batch(b"a", b"b", pid=7), in_transaction=True)
        fixture.abort(partition, 7)
        for number in range(12):
            fixture.produce(partition, pairs_batch((b"key", b"v" * 150), timestamp=NOW - 1200 + number * 100))
    fixture.manager.write_checkpoints()
    fixture.store_fixtures.abandon()
    return disk


def stop(fixture: Fixture) -> None:
    fixture.threads.run()
    fixture.store_fixtures.store.close(fixture.manager.high_watermarks())


def booted(disk: MemoryDisk, path: str, *, clean: bool, settings_of_bad: Any) -> MemoryDisk:
    copy = disk.crash(Random(0), keep="process")
    if clean:
        stop(Fixture(copy, path, settings_of_bad))
    return copy


@pytest.mark.parametrize("clean", [True, False], ids=["clean-stop", "kill"])
@pytest.mark.parametrize("settings_of_bad", [DELETED, COMPACTED], ids=["delete", "compact"])
def test_read_errors_of_one_partition_stop_nothing_else(tmp_path: Any, clean: bool, settings_of_bad: Any) -> None:
    path = str(tmp_path)
    original = booted(filled(path, settings_of_bad), path, clean=clean, settings_of_bad=settings_of_bad)
    dry = original.crash(Random(0), keep="process")
    rehearsal = Fixture(dry, path, settings_of_bad)
    rehearsal.use_all(8, bad_may_fail=False)
    rehearsal.store_fixtures.abandon()
    reads = [call for call in dry.calls if call.name in KINDS["read"] and "bad-0" in call.path]
    assert len(reads) > 20
    once = [(number, "bad-0", 1) for number in range(len(reads))]
    forever = [(0, each, None) for each in sorted({call.path for call in reads})]
    for skip, where, times in once + forever:
        disk = original.crash(Random(0), keep="process")
        disk.fail("read", errno.EIO, skip=skip, times=times, path=where)
        fixture = Fixture(disk, path, settings_of_bad)
        fixture.use_all(8, bad_may_fail=True)
        assert not fixture.ended and not fixture.store_fixtures.store.dirs[0].offline
        assert not fixture.good.offline
        acknowledged = fixture.bad.high_watermark
        was_offline = fixture.bad.offline
        stop(fixture)
        disk.heal()
        again = Fixture(disk, path, settings_of_bad)
        assert not again.bad.offline, "the disk answers again"
        again.use_all(9, bad_may_fail=False)
        if not was_offline:
            assert again.bad.high_watermark >= acknowledged
        contents(again.good.log)
        again.store_fixtures.abandon()


@pytest.mark.parametrize("clean", [True, False], ids=["clean-stop", "kill"])
@pytest.mark.parametrize(
    "file", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint",
             "cleaner-offset-checkpoint", ".kafka_cleanshutdown"]
)  # fmt: skip
def test_unreadable_checkpoint_does_not_prevent_the_start(tmp_path: Any, file: str, clean: bool) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=clean, settings_of_bad=DELETED)
    disk.fail("read_file", errno.EIO, path=file, times=None)
    fixture = Fixture(disk, path)
    assert fixture.bad.high_watermark == fixture.good.high_watermark == 16
    assert not fixture.bad.offline


def test_index_that_cannot_be_read_is_rebuilt_by_retention(tmp_path: Any) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=True, settings_of_bad=DELETED)
    disk.fail("read_file", errno.EIO, path=".index", times=None)
    disk.fail("read_file", errno.EIO, path=".timeindex", times=None)
    fixture = Fixture(disk, path)
    segments = len(fixture.bad.log.segments)
    LogUpkeep(fixture.manager).apply_retention(fixture.bad, NOW)
    assert len(fixture.bad.log.segments) < segments
    assert not fixture.bad.offline and not fixture.store_fixtures.store.dirs[0].offline


def test_unreadable_log_is_offline_and_keeps_its_checkpoints(tmp_path: Any) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=False, settings_of_bad=DELETED)
    before = {
        name: [line for line in (disk.read_file(f"{path}/{name}") or b"").splitlines() if line.startswith(b"bad")]
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
    }
    assert all(before.values())
    disk.fail("pread", errno.EIO, path="bad-0", times=None)
    fixture = Fixture(disk, path)
    assert fixture.bad.offline and not fixture.good.offline
    with pytest.raises(StorageError):
        fixture.produce(fixture.bad, pairs_batch((b"key", b"value")))
    stop(fixture)
    for name, lines in before.items():
        assert [line for line in (disk.read_file(f"{path}/{name}") or b"").splitlines() if b"bad" in line] == lines
    disk.heal()
    again = Fixture(disk, path)
    assert not again.bad.offline and again.bad.high_watermark == 16


def test_batch_of_a_partition_whose_files_cannot_be_read_is_refused_and_counted(tmp_path: Any) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=True, settings_of_bad=DELETED)
    fixture = Fixture(disk, path)
    disk.fail("read", errno.EIO, path="bad-0", times=None)
    with pytest.raises(StorageError):
        fixture.produce(fixture.bad, pairs_batch((b"key", b"value")))
    assert fixture.manager.storage.read_errors == 1
    disk.heal()
    fixture.produce(fixture.bad, pairs_batch((b"key", b"value")))
    assert fixture.bad.high_watermark == 17


def test_partition_with_other_replicas_in_sync_goes_offline_after_a_read_error(tmp_path: Any) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=True, settings_of_bad=DELETED)
    fixture = Fixture(disk, path)
    fixture.bad.isr = (fixture.bad.broker_id, 7)
    fixture.manager.storage.note_read_error(fixture.bad.name, OSError(errno.EMFILE, "too many open files"))
    assert not fixture.bad.offline, "the disk is in order"
    fixture.manager.storage.note_read_error(fixture.bad.name, OSError(errno.EIO, "input/output error"))
    assert fixture.bad.offline and list(fixture.manager.storage.offline) == [fixture.bad]
    fixture.produce(fixture.good, pairs_batch((b"key", b"value")))


def test_partition_goes_offline_if_a_failed_write_cannot_be_undone(tmp_path: Any) -> None:
    path = str(tmp_path)
    disk = booted(filled(path, DELETED), path, clean=True, settings_of_bad=DELETED)
    fixture = Fixture(disk, path)
    fixture.produce(fixture.bad, pairs_batch((b"key", b"value")))
    fixture.bad.log.active._time_index = None
    disk.fail("write", errno.ENOSPC)
    disk.fail("read", errno.EIO, times=None, path="bad-0")
    with pytest.raises(StorageError):
        fixture.produce(fixture.bad, pairs_batch((b"key", b"value")))
    assert fixture.bad.offline and not fixture.store_fixtures.store.dirs[0].offline
    disk.heal()
    fixture.manager.storage.check_free_space()
    fixture.produce(fixture.good, pairs_batch((b"key", b"value")))
