"""Logs that move to another log directory while they are written, and crashes at every step."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from tests.unit.log.log_fixtures import NOW, batch, contents, topic
from tests.unit.log.store_fixtures import TOPIC_ID, StoreFixture, spec
from tests.unit.log.txn_fixtures import txn_batch
from tests.unit.partitions.test_replica_manager import LED_BY_ANOTHER, ManagerFixture

from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.log_moves import LogMoves
from ottla.broker.partitions.partition import Partition
from ottla.model.batch import read_header
from ottla.model.errors import ErrorCode
from ottla.model.setting_types import LONG_MAX
from ottla.model.types import TopicPartition
from ottla.testing.disk import DiskCut, MemoryDisk

NAME = TopicPartition("orders", 0)
#: two batches of one record in each segment
SETTINGS = topic(segment_bytes=2 * len(batch()) + 1)


class StepLoop:
    """An event loop that makes one step when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.delays: list[float] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delays.append(delay_s)
        self.calls.append(call)


class MoveFixture(ManagerFixture):
    """A partition in the first of two log directories."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, directories=2)
        self.loop = StepLoop()
        self.rate = LONG_MAX
        loop, threads = self.loop, self.threads
        names = iter(range(1000))
        self.moves = LogMoves(
            loop=loop, replicas=self.manager, threads=threads, wall_ms=self.clock.wall_ms,  # type: ignore[arg-type]
            unique=lambda: f"unique{next(names)}", rate=lambda: self.rate,
        )  # fmt: skip
        self.partition: Partition = self.add(settings=SETTINGS)
        self.first, self.second = self.fixture.store.dirs

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.append(self.partition, batch())
            self.manager.commits.write_turn()

    def prepare(self, count: int = 6) -> None:
        """Write batches, and wait until no thread works for their segments."""
        self.write(count)
        self.threads.run()

    def step(self) -> bool:
        """Make one step, in the event loop or in a thread. Return whether there was one."""
        if self.threads.jobs:
            self.threads.run_one()
        elif self.loop.calls:
            self.loop.calls.pop(0)()
        else:
            return False
        return True

    def run(self, steps: int = 10_000) -> None:
        while steps and self.step():
            steps -= 1
        assert steps, "the move does not end"

    def bases(self) -> list[int]:
        return [read_header(each).base_offset for each in contents(self.partition.log)]

    def dirs(self) -> list[list[str]]:
        """Return the folders of partitions in each log directory."""
        return [[each for each in self.disk.listdir(str(path)) if each.startswith("orders")] for path in self.paths]

    def restart(self, disk: MemoryDisk | None = None) -> StoreFixture:
        """Return the store as the next process finds it."""
        if disk is None:
            self.fixture.stop()
        booted = StoreFixture(disk or self.disk, *self.paths)
        booted.start(spec(settings=SETTINGS))
        return booted


@pytest.fixture
def fixture(tmp_path: Path) -> MoveFixture:
    return MoveFixture(tmp_path)


def test_log_moves_with_all_its_segments_and_is_written_meanwhile(fixture: MoveFixture) -> None:
    fixture.write(7)
    before = fixture.partition.log
    fixture.moves.start(fixture.partition, fixture.second)
    for _ in range(6):
        fixture.step()
        fixture.write()
    fixture.run()
    assert fixture.partition.log is not before
    assert fixture.fixture.store.dir_of(fixture.partition.log) is fixture.second
    assert fixture.dirs() == [[], ["orders-0"]]
    assert fixture.bases() == list(range(13))
    assert fixture.partition.high_watermark == 13
    assert fixture.moves.copies(fixture.second) == []
    assert fixture.fixture.store.logs == {NAME: fixture.partition.log} == fixture.second.logs
    fixture.write(3)
    fixture.run()
    booted = fixture.restart()
    assert booted.store.was_clean
    assert [read_header(each).base_offset for each in contents(booted.log())] == list(range(16))


def test_produces_that_wait_for_a_sync_are_answered(fixture: MoveFixture) -> None:
    fixture.write(3)
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.step()
    waiters = []
    for _ in range(8):
        waiters.append(fixture.produce(fixture.partition, batch(), acks=-1))
        fixture.manager.commits.write_turn()
        fixture.step()
    fixture.run()
    assert fixture.fixture.store.dir_of(fixture.partition.log) is fixture.second
    waiters.append(fixture.produce(fixture.partition, batch(), acks=-1))
    fixture.manager.commits.write_turn()
    fixture.run()
    assert [waiter.answers for waiter in waiters] == [[0]] * 9


def test_producers_transactions_epochs_and_log_start_move_too(fixture: MoveFixture) -> None:
    partition, manager = fixture.partition, fixture.manager
    for sequence in range(3):
        data = bytearray(txn_batch(pid=7, sequence=sequence))
        manager.append(partition, data, memoryview(data), 0, len(data), NOW, transactional=True)
    manager.append_marker(partition, 7, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
    data = bytearray(txn_batch(pid=8, sequence=0))
    manager.append(partition, data, memoryview(data), 0, len(data), NOW, transactional=True)
    manager.commits.write_turn()
    fixture.run()
    manager.delete_records(partition, 1)
    fixture.run()
    epochs, stable = partition.log.epochs.to_text(), partition.last_stable_offset
    fixture.moves.start(partition, fixture.second)
    fixture.run()
    log = partition.log
    assert fixture.fixture.store.dir_of(log) is fixture.second
    assert (log.log_start_offset, partition.last_stable_offset, stable) == (1, 4, 4)
    assert log.aborted_transactions(0, 5) == [(7, 1)], "from the log start on"
    assert log.epochs.to_text() == epochs
    repeated = bytearray(txn_batch(pid=8, sequence=0))
    answer = manager.append(partition, repeated, memoryview(repeated), 0, len(repeated), NOW, transactional=True)
    assert answer == (4, 5), "a duplicate is recognised"
    booted = fixture.restart()
    assert (booted.log().log_start_offset, booted.log().log_end_offset) == (1, 5)


def test_log_without_records_is_moved(fixture: MoveFixture) -> None:
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.run()
    assert fixture.fixture.store.dir_of(fixture.partition.log) is fixture.second
    fixture.write(2)
    assert (fixture.dirs(), fixture.bases()) == ([[], ["orders-0"]], [0, 1])


def test_truncation_begins_the_copy_again(fixture: MoveFixture) -> None:
    fixture.prepare(6)
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.step()
    fixture.step()
    assert fixture.moves.copies(fixture.second)[0].log.log_end_offset == 4
    fixture.manager.apply_state(fixture.partition, LED_BY_ANOTHER)
    fixture.manager.followers.begin_truncations([TruncationRequest(fixture.partition, 2)])
    state = type(LED_BY_ANOTHER)(leader=1, leader_epoch=4, replicas=(1,), isr=(1,), partition_epoch=1)
    fixture.manager.apply_state(fixture.partition, state)
    fixture.write(5)
    expected = contents(fixture.partition.log)
    fixture.run()
    assert fixture.fixture.store.dir_of(fixture.partition.log) is fixture.second
    assert contents(fixture.partition.log) == expected


def test_records_that_are_deleted_before_they_are_copied_begin_the_copy_again(fixture: MoveFixture) -> None:
    fixture.prepare(6)
    fixture.rate = 1
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.step()
    (copy,) = fixture.moves.copies(fixture.second)
    assert copy.lag_records > 0
    fixture.manager.delete_records(fixture.partition, 5)
    fixture.rate = LONG_MAX
    fixture.clock.now += 1e6
    fixture.run()
    assert (fixture.dirs(), fixture.bases()) == ([[], ["orders-0"]], [5])


def test_copy_is_made_at_the_rate_of_the_setting(fixture: MoveFixture) -> None:
    fixture.prepare(8)
    fixture.rate = len(batch())
    fixture.moves.start(fixture.partition, fixture.second)
    while fixture.step():
        fixture.clock.now += sum(fixture.loop.delays)
        fixture.loop.delays.clear()
    assert fixture.dirs() == [[], ["orders-0"]]
    # The first second is a burst; a step copies a segment of two batches.
    assert 5 <= fixture.clock.now <= 8


@pytest.mark.parametrize("steps", range(5))
def test_cancelled_move_leaves_the_log_where_it_is(fixture: MoveFixture, steps: int) -> None:
    fixture.prepare(6)
    fixture.moves.start(fixture.partition, fixture.second)
    for _ in range(min(steps, 3)):
        fixture.step()
    fixture.moves.cancel(fixture.partition) if steps % 2 else fixture.moves.stop()
    fixture.run()
    assert (fixture.dirs(), fixture.bases()) == ([["orders-0"], []], list(range(6)))
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.run()
    assert fixture.dirs() == [[], ["orders-0"]]


def test_partition_that_is_deleted_takes_its_copy_along(fixture: MoveFixture) -> None:
    fixture.prepare(6)
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.step()
    fixture.manager.remove(fixture.partition, "gone")
    fixture.run()
    assert fixture.dirs() == [[], []]
    assert not fixture.manager.moving


def test_log_stays_if_the_other_disk_fails(fixture: MoveFixture) -> None:
    fixture.write(6)
    fixture.disk.fail("write", errno.EIO, path=f"{fixture.paths[1]}/")
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.run()
    assert fixture.second.offline
    assert not fixture.partition.offline
    fixture.disk.heal()
    fixture.write()
    assert fixture.bases() == list(range(7))


def test_partition_is_offline_if_its_log_cannot_be_removed(fixture: MoveFixture) -> None:
    """A start will find the log in both directories. They must not differ."""
    fixture.write(6)
    fixture.moves.start(fixture.partition, fixture.second)
    while not (fixture.moves.copies(fixture.second) and not fixture.threads.jobs and not fixture.loop.calls):
        fixture.disk.fail("rename", errno.EIO, path=f"{fixture.paths[0]}/orders-0")
        if not fixture.step():
            break
    assert fixture.partition.offline
    fixture.disk.heal()
    booted = fixture.restart(fixture.disk.crash(Random(1), "process"))
    assert booted.log().log_end_offset == 6


# -- crashes ----------------------------------------------------------------------------------------------------------


def _move(fixture: MoveFixture) -> None:
    """Move the log. A batch is synced while the copy is flushed, and others after the move."""
    fixture.moves.start(fixture.partition, fixture.second)
    while not fixture.threads.jobs:
        fixture.step()
    fixture.write()
    fixture.manager.commits.sync_in_background(fixture.partition)
    fixture.run()
    assert fixture.fixture.store.dir_of(fixture.partition.log) is fixture.second
    fixture.write(2)
    fixture.manager.commits.sync_in_background(fixture.partition)
    fixture.run()


def _prepared(path: Path) -> MoveFixture:
    """Return a partition with a batch of three records, of which the first is deleted, and five other batches."""
    path.mkdir()
    fixture = MoveFixture(path)
    fixture.append(fixture.partition, batch(3))
    fixture.write(5)
    fixture.manager.commits.sync_in_background(fixture.partition)
    fixture.run()
    fixture.manager.delete_records(fixture.partition, 1)
    fixture.manager.store.write_checkpoints(fixture.manager.high_watermarks(), sync=True)
    fixture.run()
    return fixture


@pytest.mark.parametrize("keep", ["process", "power"])
def test_no_synced_record_is_lost_wherever_a_move_is_cut(tmp_path: Path, keep: Literal["process", "power"]) -> None:
    whole = _prepared(tmp_path / "whole")
    before = whole.disk.changes
    _move(whole)
    changes = whole.disk.changes - before
    assert changes > 30
    for number in range(changes, -1, -1 if keep == "power" else -5):
        fixture = _prepared(tmp_path / str(number))
        fixture.disk.cut_after(number, seed=number)
        current = fixture.partition.log
        with suppress(DiskCut):
            _move(fixture)
        synced = max(current.synced_end_offset, fixture.partition.log.synced_end_offset)
        assert synced == 11 or number < changes
        for seed in range(2 if number < changes else 30):
            disk = fixture.disk.crash(Random(seed), keep)
            for _ in range(2):
                booted = fixture.restart(disk)
                log = booted.log()
                headers = [read_header(each) for each in contents(log)]
                assert [each.base_offset for each in headers] == [0, *range(3, log.log_end_offset)], number
                assert all(each.record_count for each in headers), "a batch without records stands for lost ones"
                assert log.log_start_offset == 1, number
                assert log.log_end_offset >= synced >= 8, number
                assert not log.lost_synced, number
                booted.abandon()
                disk = disk.crash(Random(seed), keep)


def test_topic_id_is_in_the_folder_of_the_copy(fixture: MoveFixture) -> None:
    """Otherwise a start could not recognise a log of an earlier topic with the same name."""
    fixture.write(2)
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.run()
    fixture.fixture.stop()
    booted = StoreFixture(fixture.disk, *fixture.paths)
    other: Any = spec(settings=SETTINGS, topic_id=TOPIC_ID[::-1])
    booted.start(other)
    assert any(each.endswith("-stray") for each in fixture.dirs()[1])


def test_offline_partition_ends_the_move(fixture: MoveFixture) -> None:
    fixture.prepare(6)
    fixture.moves.start(fixture.partition, fixture.second)
    fixture.step()
    fixture.partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)
    fixture.run()
    assert fixture.dirs() == [["orders-0"], []]
