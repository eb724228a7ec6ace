"""The end of a turn, the group commit, and disks that are full or broken, as those see it who wait."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.log.log_room import NOW, batch, contents, offsets, topic
from tests.unit.log.store_room import StoreRoom, disk_with, spec

from ottla.log.log import PENDING_BATCH_BYTES_MAX
from ottla.model.errors import ErrorCode, OffsetOutOfRange, PolicyViolation, StorageError
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition
from ottla.replica.manager import ReplicaManager
from ottla.replica.partition import Partition
from ottla.testing.disk import MemoryDisk

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
LARGE = PENDING_BATCH_BYTES_MAX + 1000


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return self.now


class Waiter:
    """A produce that waits; ``answers`` are the error codes it was given."""

    def __init__(self, deadline: float = 100.0) -> None:
        self.deadline = deadline
        self.answers: list[int] = []

    def on_committed(self, error_code: int) -> None:
        self.answers.append(error_code)


class Poll:
    """A fetch that waits."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.looks = 0
        self.changes = 0
        self.gone = 0

    def on_committed(self, size_bytes: int) -> None:
        self.told.append(size_bytes)

    def on_stable(self) -> None:
        self.looks += 1

    def on_changed(self) -> None:
        self.changes += 1

    def on_gone(self) -> None:
        self.gone += 1


class ManagerRoom:
    """A manager on a disk in memory, with threads that wait to be told."""

    def __init__(self, path: Path, directories: int = 1) -> None:
        self.paths = [path / f"data{number}" for number in range(directories)]
        self.disk = disk_with(path)
        for each in self.paths:
            each.mkdir(exist_ok=True)
        self.clock = FakeClock()
        self.room = StoreRoom(self.disk, *self.paths)
        self.threads = self.room.threads
        self.room.start()
        self.failures: list[str] = []
        threads: Any = self.threads
        self.manager = ReplicaManager(
            clock=self.clock, disk=self.disk, store=self.room.store, threads=threads, free_bytes_min=1000,
            on_all_dirs_failed=self.failures.append,
        )  # fmt: skip

    def add(self, number: int = 0, *, name: str = "orders", settings: TopicSettings | None = None) -> Partition:
        each = spec(TopicPartition(name, number), settings=settings)
        return self.manager.add(each, leader_id=1, leader_epoch=0, replicas=(1,), isr=(1,))

    def append(self, partition: Partition, data: bytes) -> tuple[int, int]:
        buffer = bytearray(data)
        return self.manager.append(partition, buffer, memoryview(buffer), 0, len(buffer), NOW)

    def produce(self, partition: Partition, data: bytes, *, acks: int = 1) -> Waiter:
        _, end = self.append(partition, data)
        waiter = Waiter(self.clock.now + 10)
        if acks == 1:
            self.manager.wait_written(partition, waiter)
        else:
            self.manager.wait_synced(partition, end, waiter)
        return waiter

    def syncs_of(self, directory: int = 0) -> int:
        start = f"{self.paths[directory]}/"
        return sum(
            call.name == "fdatasync" and call.path.startswith(start) and call.path.endswith(".log")
            for call in self.disk.calls
        )


@pytest.fixture
def room(tmp_path: Path) -> ManagerRoom:
    return ManagerRoom(tmp_path)


# -- the turn ---------------------------------------------------------------------------------------------------------


def test_writers_are_answered_when_their_batches_are_in_the_file(room: ManagerRoom) -> None:
    partition = room.add()
    waiters = [room.produce(partition, batch()) for _ in range(3)]
    assert [waiter.answers for waiter in waiters] == [[], [], []]
    room.manager.write_turn()
    assert [waiter.answers for waiter in waiters] == [[0], [0], [0]]
    assert offsets(partition.log) == [(0, 1), (1, 2), (2, 3)]


def test_high_watermark_moves_with_the_write_and_readers_are_told(room: ManagerRoom) -> None:
    partition, poll = room.add(), Poll()
    partition.readers[poll] = None
    room.append(partition, batch())
    room.append(partition, batch())
    assert partition.high_watermark == 0
    room.manager.write_turn()
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    assert poll.told == [2 * len(batch())]


def test_turn_without_appends_does_nothing(room: ManagerRoom) -> None:
    room.add()
    room.disk.calls.clear()
    room.manager.write_turn()
    assert room.disk.calls == []


def test_each_log_is_written_once_a_turn(room: ManagerRoom) -> None:
    partitions = [room.add(number) for number in range(3)]
    for _ in range(5):
        for partition in partitions:
            room.append(partition, batch())
    room.disk.calls.clear()
    room.manager.write_turn()
    assert sum(call.name == "pwrite" for call in room.disk.calls) == 3


# -- group commit -----------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_the_disk(room: ManagerRoom) -> None:
    partition = room.add()
    waiter = room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    assert waiter.answers == []
    room.threads.run()
    assert waiter.answers == [0]
    room.room.abandon()
    for seed in range(10):
        again = StoreRoom(room.disk.crash(Random(seed), "power"), *room.paths)
        again.start(spec())
        assert offsets(again.log()) == [(0, 1)]
        again.abandon()


def test_what_arrives_during_a_sync_shares_the_next(room: ManagerRoom) -> None:
    partition = room.add()
    first = room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    later = []
    for _ in range(10):
        later.append(room.produce(partition, batch(), acks=-1))
        room.manager.write_turn()
    assert len(room.threads.jobs) == 1
    room.threads.run_one()
    assert first.answers == [0]
    assert all(waiter.answers == [] for waiter in later)
    assert len(room.threads.jobs) == 1
    room.threads.run_one()
    assert all(waiter.answers == [0] for waiter in later)
    assert (room.manager.syncs, room.syncs_of()) == (2, 2)


def test_what_is_pending_when_a_sync_ends_is_synced_after_the_turn(room: ManagerRoom) -> None:
    partition = room.add()
    room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    waiter = room.produce(partition, batch(), acks=-1)
    room.threads.run()
    assert waiter.answers == []
    room.manager.write_turn()
    room.threads.run()
    assert waiter.answers == [0]


def test_what_is_on_disk_already_is_answered_at_once(room: ManagerRoom) -> None:
    partition = room.add()
    room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    assert room.produce(partition, batch(producer=(1, 0, 0)), acks=-1).answers == [0]


def test_repetition_waits_as_long_as_the_original(room: ManagerRoom) -> None:
    partition = room.add()
    original = room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    repetition = room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    room.manager.write_turn()
    late = room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    room.manager.write_turn()
    assert [original.answers, repetition.answers, late.answers] == [[], [], []]
    room.threads.run()
    assert [original.answers, repetition.answers, late.answers] == [[0], [0], [0]]


def test_sync_covers_segments_that_were_sealed_meanwhile(room: ManagerRoom) -> None:
    partition = room.add(settings=topic(segment_ms=100))
    waiters = [room.produce(partition, batch(timestamp=NOW + 101 * number), acks=-1) for number in range(3)]
    room.manager.write_turn()
    room.threads.jobs = room.threads.jobs[-1:]  # only the group commit, none of the rolls
    room.threads.run()
    assert [waiter.answers for waiter in waiters] == [[0], [0], [0]]
    assert partition.log.synced_end_offset == 3


def test_produce_that_waits_too_long_is_told_and_its_batch_stays(room: ManagerRoom) -> None:
    partition = room.add()
    waiter = room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    room.clock.now = 10.0
    room.manager.expire_writers()
    assert waiter.answers == []
    room.clock.now = 10.1
    room.manager.expire_writers()
    assert waiter.answers == [ErrorCode.REQUEST_TIMED_OUT]
    room.threads.run()
    assert waiter.answers == [ErrorCode.REQUEST_TIMED_OUT]
    assert partition.log.synced_end_offset == 1


def test_flush_interval_syncs_what_nobody_waits_for(room: ManagerRoom) -> None:
    partition, other = room.add(settings=topic(flush_ms=0)), room.add(name="other")
    for each in (partition, other):
        room.produce(each, batch())
    room.manager.write_turn()
    room.manager.apply_flush_interval()
    room.threads.run()
    assert (partition.log.synced_end_offset, other.log.synced_end_offset) == (1, 0)
    room.manager.apply_flush_interval()
    assert room.threads.jobs == []


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_full_disk_answers_this_turns_writers_and_keeps_those_whose_batches_are_written(room: ManagerRoom) -> None:
    partition = room.add()
    earlier = room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    room.manager.write_turn()
    one, everyone = room.produce(partition, batch(producer=(1, 0, 1))), room.produce(partition, batch(), acks=-1)
    room.disk.fail("write", errno.ENOSPC, applied_bytes=30)
    room.manager.write_turn()
    assert (one.answers, everyone.answers, earlier.answers) == ([STORAGE_ERROR], [STORAGE_ERROR], [])
    room.threads.run()
    assert earlier.answers == [0]
    assert (partition.high_watermark, offsets(partition.log)) == (1, [(0, 1)])
    assert not partition.offline
    assert room.failures == []


def test_full_disk_refuses_produces_until_it_has_room(room: ManagerRoom) -> None:
    partition, neighbour = room.add(0), room.add(1)
    room.produce(partition, batch(producer=(1, 0, 0)))
    room.disk.fail("write", errno.ENOSPC)
    room.manager.write_turn()
    for each in (partition, neighbour):
        with pytest.raises(StorageError):
            room.append(each, batch())
    room.disk.free = 999
    room.manager.check_free_space()
    with pytest.raises(StorageError):
        room.append(partition, batch())
    room.disk.free = 1000
    room.manager.check_free_space()
    waiter = room.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    assert waiter.answers == [0]
    assert offsets(partition.log) == [(0, 1)]


def test_nearly_full_disk_refuses_produces_and_serves_reads(room: ManagerRoom) -> None:
    partition = room.add()
    room.produce(partition, batch())
    room.manager.write_turn()
    room.disk.free = 10
    room.manager.check_free_space()
    with pytest.raises(StorageError):
        room.append(partition, batch())
    assert len(contents(partition.log)) == 1
    assert room.add(1).has_room is False


def test_batch_that_finds_the_disk_full_at_once_is_refused_and_takes_the_turns_others_along(room: ManagerRoom) -> None:
    partition = room.add()
    small = room.produce(partition, batch(producer=(1, 0, 0)))
    room.disk.fail("write", errno.ENOSPC, applied_bytes=20)
    with pytest.raises(StorageError):
        room.append(partition, batch(size=LARGE, producer=(1, 0, 1)))
    assert small.answers == [STORAGE_ERROR]
    room.manager.write_turn()
    assert partition.log.log_end_offset == 0
    room.manager.check_free_space()
    assert room.append(partition, batch(producer=(1, 0, 0))) == (0, 1)
    assert room.append(partition, batch(size=LARGE, producer=(1, 0, 1))) == (1, 2)


def test_small_batch_behind_a_large_one_in_the_same_turn_fails_alone_in_the_log(room: ManagerRoom) -> None:
    partition = room.add()
    large = room.produce(partition, batch(size=LARGE, producer=(1, 0, 0)), acks=-1)
    small = room.produce(partition, batch(producer=(1, 0, 1)), acks=-1)
    room.disk.fail("pwrite", errno.ENOSPC, applied_bytes=20)
    room.manager.write_turn()
    assert (large.answers, small.answers) == ([], [STORAGE_ERROR])
    assert offsets(partition.log) == [(0, 1)]
    room.manager.check_free_space()
    repeated = room.produce(partition, batch(producer=(1, 0, 1)), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    assert (large.answers, repeated.answers) == ([0], [0])
    assert (partition.high_watermark, offsets(partition.log)) == (2, [(0, 1), (1, 2)])


def test_retention_works_on_a_full_disk(room: ManagerRoom) -> None:
    partition = room.add(settings=topic(retention_ms=100))
    room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    room.disk.fail("write_file", errno.ENOSPC, times=None)
    room.manager.apply_retention(partition, NOW + 101)
    room.threads.run()
    assert partition.log.log_start_offset == 1
    assert not partition.offline


def test_retention_that_finds_no_room_for_a_new_file_tries_again(room: ManagerRoom) -> None:
    partition = room.add(settings=topic(retention_ms=100))
    room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    room.disk.fail("create", errno.ENOSPC)
    room.manager.apply_retention(partition, NOW + 101)
    assert (partition.log.log_start_offset, partition.offline, partition.has_room) == (0, False, False)
    room.manager.apply_retention(partition, NOW + 101)
    assert partition.log.log_start_offset == 1


# -- a broken disk ----------------------------------------------------------------------------------------------------


def test_failed_sync_takes_the_directory_offline_and_is_never_tried_again(tmp_path: Path) -> None:
    room = ManagerRoom(tmp_path, directories=2)
    partitions = [room.add(number) for number in range(4)]
    broken = [each for each in partitions if each.log.directory.startswith(str(room.paths[0]))]
    sound = [each for each in partitions if each not in broken]
    polls = {}
    for each in partitions:
        polls[each] = Poll()
        each.readers[polls[each]] = None
    waiters = {each: [room.produce(each, batch(), acks=-1), room.produce(each, batch())] for each in partitions}
    room.disk.fail("fdatasync", errno.EIO, path="data0")
    room.manager.write_turn()
    room.threads.run_one()
    room.threads.run()
    for each in broken:
        assert (each.offline, polls[each].gone) == (True, 1)
        assert [waiter.answers for waiter in waiters[each]] == [[STORAGE_ERROR], [0]]
        with pytest.raises(StorageError):
            room.append(each, batch())
    for each in sound:
        assert (each.offline, polls[each].gone) == (False, 0)
        assert [waiter.answers for waiter in waiters[each]] == [[0], [0]]
    tried = room.syncs_of(0)
    for each in partitions:
        room.manager.sync_in_background(each)
    room.manager.expire_writers()
    room.manager.apply_flush_interval()
    room.manager.write_checkpoints()
    room.manager.write_turn()
    room.threads.run()
    assert room.syncs_of(0) == tried
    assert room.failures == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_sync_that_fails_for_any_reason_is_a_broken_disk(room: ManagerRoom, error: int) -> None:
    """Room or not: what the kernel could not write it has forgotten."""
    partition = room.add()
    waiter = room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    room.disk.fail("fdatasync", error)
    room.threads.run()
    assert waiter.answers == [STORAGE_ERROR]
    assert partition.offline
    assert len(room.failures) == 1


def test_write_error_takes_the_directory_offline(room: ManagerRoom) -> None:
    partition, neighbour = room.add(0), room.add(1)
    waiters = [room.produce(partition, batch()), room.produce(neighbour, batch(), acks=-1)]
    room.disk.fail("write", errno.EIO)
    room.manager.write_turn()
    assert [waiter.answers for waiter in waiters] == [[STORAGE_ERROR], [STORAGE_ERROR]]
    assert (partition.offline, neighbour.offline) == (True, True)
    assert len(room.failures) == 1
    assert (partition.high_watermark, neighbour.high_watermark) == (0, 0)


def test_generation_goes_up_when_a_directory_fails(room: ManagerRoom) -> None:
    partition = room.add()
    before = room.manager.generation
    room.produce(partition, batch())
    room.disk.fail("write", errno.EIO)
    room.manager.write_turn()
    assert room.manager.generation > before


def test_disk_that_cannot_be_asked_for_its_room_is_broken(room: ManagerRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = room.add()

    def broken(path: str) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(room.disk, "free_bytes", broken)
    room.manager.check_free_space()
    assert partition.offline


def test_want_of_descriptors_refuses_a_batch_and_no_more(room: ManagerRoom) -> None:
    partition = room.add()
    waiter = room.produce(partition, batch())
    room.disk.fail("create", errno.EMFILE)
    room.manager.write_turn()
    assert waiter.answers == [STORAGE_ERROR]
    assert (partition.offline, partition.has_room) == (False, True)
    assert room.append(partition, batch()) == (0, 1)


# -- topics come and go -----------------------------------------------------------------------------------------------


def test_who_waits_for_a_deleted_topic_is_answered(room: ManagerRoom) -> None:
    partition, poll = room.add(), Poll()
    partition.readers[poll] = None
    waiters = [room.produce(partition, batch()), room.produce(partition, batch(), acks=-1)]
    room.manager.remove_topic(b"orders", lambda: "unique")
    assert [waiter.answers for waiter in waiters] == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]] * 2
    assert poll.gone == 1
    room.manager.write_turn()
    room.threads.run()
    assert room.manager.find("orders", 0) is None


def test_topic_deleted_while_its_files_are_synced_does_not_break_the_directory(room: ManagerRoom) -> None:
    """Its folder has another name then, so syncing the old one must fail, and must not matter."""
    partition = room.add(settings=topic(segment_ms=100))
    for number in range(3):
        room.produce(partition, batch(timestamp=NOW + 101 * number), acks=-1)
    room.manager.write_turn()
    assert len(room.threads.jobs) == 3
    room.manager.remove_topic(b"orders", lambda: "unique")
    room.threads.run()
    assert room.failures == []
    assert not room.room.store.dirs[0].offline


def test_sync_that_fails_because_its_topic_went_meanwhile_is_no_failure(room: ManagerRoom) -> None:
    partition = room.add()
    waiter = room.produce(partition, batch(), acks=-1)
    room.manager.write_turn()
    work, done = room.threads.jobs.pop()
    work()
    room.manager.remove_topic(b"orders", lambda: "unique")
    done(FileNotFoundError(errno.ENOENT, "the folder is gone"))
    assert waiter.answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert room.failures == []


def test_topic_made_again_starts_empty(room: ManagerRoom) -> None:
    room.produce(room.add(), batch())
    room.manager.write_turn()
    room.manager.remove_topic(b"orders", lambda: "unique")
    partition = room.add()
    assert (partition.log.log_end_offset, partition.high_watermark) == (0, 0)
    waiter = room.produce(partition, batch(3), acks=-1)
    room.manager.write_turn()
    room.threads.run()
    assert (waiter.answers, offsets(partition.log)) == ([0], [(0, 3)])


def test_topic_of_an_offline_disk_is_made_again_on_another(tmp_path: Path) -> None:
    room = ManagerRoom(tmp_path, directories=2)
    partition = room.add()
    room.produce(partition, batch())
    room.disk.fail("write", errno.EIO)
    room.manager.write_turn()
    assert partition.offline
    room.manager.remove_topic(b"orders", lambda: "unique")
    again = room.add()
    assert again.log is not partition.log
    waiter = room.produce(again, batch(2))
    room.manager.write_turn()
    assert (waiter.answers, offsets(again.log)) == ([0], [(0, 2)])


# -- deleting records -------------------------------------------------------------------------------------------------


def five_records(room: ManagerRoom, settings: TopicSettings | None = None) -> Partition:
    partition = room.add(settings=settings)
    room.produce(partition, batch(5))
    room.manager.write_turn()
    return partition


@pytest.mark.parametrize(("asked", "start"), [(0, 0), (3, 3), (5, 5), (-1, 5)])
def test_records_are_deleted_up_to_an_offset(room: ManagerRoom, asked: int, start: int) -> None:
    partition = five_records(room)
    assert room.manager.delete_records(partition, asked) == start
    assert partition.log.log_start_offset == start


@pytest.mark.parametrize("asked", [6, -2])
def test_records_beyond_the_high_watermark_cannot_be_deleted(room: ManagerRoom, asked: int) -> None:
    partition = five_records(room)
    room.append(partition, batch(5))
    with pytest.raises(OffsetOutOfRange):
        room.manager.delete_records(partition, asked)


def test_records_of_a_compacted_topic_cannot_be_deleted(room: ManagerRoom) -> None:
    with pytest.raises(PolicyViolation):
        room.manager.delete_records(five_records(room, topic(cleanup_policy="compact")), 3)


def test_failure_to_delete_is_a_storage_error(room: ManagerRoom) -> None:
    partition = five_records(room)
    room.manager.sync_in_background(partition)
    room.threads.run()
    room.disk.fail("create", errno.ENOSPC)
    with pytest.raises(StorageError):
        room.manager.delete_records(partition, 5)
    assert not partition.offline


def test_disk_is_the_one_that_was_given(room: ManagerRoom) -> None:
    assert isinstance(room.disk, MemoryDisk)
    assert room.manager.disk_space(room.room.store.dirs[0]) == (1 << 40, 1 << 40)


# -- producers --------------------------------------------------------------------------------------------------------


def test_too_many_producers_expire_where_most_of_them_are(room: ManagerRoom) -> None:
    crowded, small = room.add(0), room.add(1)
    for producer_id in range(300):
        room.append(crowded, batch(producer=(producer_id, 0, 0)))
    for producer_id in range(100):
        room.append(small, batch(producer=(producer_id, 0, 0)))
    room.manager.evict_producers(400)
    assert (room.manager.producers, room.manager.producers_evicted) == (400, 0)
    room.append(small, batch())
    room.manager.evict_producers(250)
    assert (room.manager.producers, room.manager.producers_evicted) == (250, 150)
    assert (crowded.log.producer_count, small.log.producer_count) == (150, 100)


def test_producers_that_cannot_expire_are_left_alone(room: ManagerRoom) -> None:
    partition = room.add()
    for producer_id in range(50):
        room.append(partition, batch(producer=(producer_id, 0, 0)))
    room.manager.evict_producers(10)
    assert partition.log.producer_count == room.manager.producers == 50
