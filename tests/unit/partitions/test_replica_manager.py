"""The end of a turn, the group commit, and disks that are full or broken, as those see it who wait."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.log.log_fixtures import NOW, batch, contents, offsets, topic
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.log_upkeep import LogUpkeep
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.log.log import PENDING_BATCH_BYTES_MAX
from ottla.model.errors import ErrorCode, KafkaError, OffsetOutOfRange, PolicyViolation, StorageError
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import MemoryDisk

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
LARGE = PENDING_BATCH_BYTES_MAX + 1000
LED_BY_ANOTHER = PartitionView(leader=2, leader_epoch=3, replicas=(1, 2), isr=(2,))
ONLY_REPLICA = PartitionView(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
LEADER_OF_TWO = PartitionView(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1, 2))


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

    def on_write_complete(self, error_code: int) -> None:
        self.answers.append(error_code)


class Poll:
    """A fetch that waits."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.looks = 0
        self.changes = 0
        self.gone = 0

    def on_high_watermark(self, size_bytes: int) -> None:
        self.told.append(size_bytes)

    def on_stable(self) -> None:
        self.looks += 1

    def on_changed(self) -> None:
        self.changes += 1

    def on_partition_deleted(self) -> None:
        self.gone += 1


class ManagerFixture:
    """A manager on a disk in memory, with threads that wait to be told."""

    def __init__(self, path: Path, directories: int = 1) -> None:
        self.paths = [path / f"data{number}" for number in range(directories)]
        self.disk = disk_with(path)
        for each in self.paths:
            each.mkdir(exist_ok=True)
        self.clock = FakeClock()
        self.fixture = StoreFixture(self.disk, *self.paths)
        self.threads = self.fixture.threads
        self.fixture.start()
        self.failures: list[str] = []
        threads: Any = self.threads
        self.manager = ReplicaManager(
            broker_id=1, clock=self.clock, disk=self.disk, store=self.fixture.store, threads=threads,
            free_bytes_min=1000,            on_all_dirs_failed=self.failures.append,
        )  # fmt: skip

    def add(self, number: int = 0, *, name: str = "orders", settings: TopicSettings | None = None) -> Partition:
        each = spec(TopicPartition(name, number), settings=settings)
        return self.manager.add(each, ONLY_REPLICA)

    def append(self, partition: Partition, data: bytes) -> tuple[int, int]:
        buffer = bytearray(data)
        return self.manager.append(partition, buffer, memoryview(buffer), 0, len(buffer), NOW)

    def produce(self, partition: Partition, data: bytes, *, acks: int = 1) -> Waiter:
        _, end = self.append(partition, data)
        waiter = Waiter(self.clock.now + 10)
        self.manager.commits.wait(partition, Until.WRITTEN if acks == 1 else Until.DURABLE, end, waiter)
        return waiter

    def syncs_of(self, directory: int = 0) -> int:
        start = f"{self.paths[directory]}/"
        return sum(
            call.name == "fdatasync" and call.path.startswith(start) and call.path.endswith(".log")
            for call in self.disk.calls
        )


@pytest.fixture
def fixture(tmp_path: Path) -> ManagerFixture:
    return ManagerFixture(tmp_path)


def test_partition_that_is_added_after_the_lease_waits_for_the_in_sync_replicas(fixture: ManagerFixture) -> None:
    fixture.manager.set_lease(is_over=True)
    alone, replicated = fixture.add(0), fixture.manager.add(spec(TopicPartition("orders", 1)), LEADER_OF_TWO)
    assert (alone.until(1), replicated.until(1)) == (Until.WRITTEN, Until.COMMITTED)
    fixture.manager.set_lease(is_over=False)
    assert replicated.until(1) is Until.WRITTEN


# -- leadership -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_id", [False, True])
def test_leader_is_found_by_name_and_by_id(fixture: ManagerFixture, by_id: bool) -> None:
    partition = fixture.add()
    topic = partition.topic_id if by_id else b"orders"
    assert fixture.manager.leader_of(topic, 0, by_id=by_id) is partition
    assert fixture.manager.leader_of(topic, 0, 0, by_id=by_id) is partition


@pytest.mark.parametrize(
    ("topic", "number", "by_id", "code"),
    [
        (b"orders", 1, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (b"others", 0, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (b"?" * 16, 0, True, ErrorCode.UNKNOWN_TOPIC_ID),
        (b"elsewhere", 0, False, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (b"elsewhere", 1, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_error_for_a_partition_that_is_not_here(
    fixture: ManagerFixture, topic: bytes, number: int, by_id: bool, code: ErrorCode
) -> None:
    fixture.add()
    fixture.manager._exists = lambda topic, number, _: (topic, number) == (b"elsewhere", 0)
    with pytest.raises(KafkaError) as error:
        fixture.manager.leader_of(topic, number, by_id=by_id)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_error_for_a_partition_that_another_broker_leads(fixture: ManagerFixture, epoch: int, code: ErrorCode) -> None:
    fixture.manager.apply_state(fixture.add(), LED_BY_ANOTHER)
    with pytest.raises(KafkaError) as error:
        fixture.manager.leader_of(b"orders", 0, epoch)
    assert error.value.code == code


def test_batch_of_this_turn_is_refused_when_leadership_ends_before_it_is_written(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiters = [fixture.produce(partition, batch(), acks=acks) for acks in (1, -1)]
    before = fixture.manager.generation
    fixture.manager.apply_state(partition, LED_BY_ANOTHER)
    assert fixture.manager.generation > before, "connections forget the partitions that they know"
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert [waiter.answers for waiter in waiters] == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]] * 2
    with pytest.raises(KafkaError) as error:
        fixture.append(partition, batch())
    assert error.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_only_partitions_with_an_incomplete_or_changing_isr_are_unsettled(fixture: ManagerFixture) -> None:
    manager = fixture.manager
    fixture.add(1)
    complete = PartitionView(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3))
    partition = manager.add(spec(TopicPartition("orders", 0)), complete)
    assert manager.unsettled() == []
    manager.apply_state(partition, replace(complete, isr=(1, 2), partition_epoch=1))
    assert manager.unsettled() == [partition]
    manager.apply_state(partition, replace(complete, partition_epoch=2))
    assert manager.unsettled() == []
    partition.proposed_isr = (1, 2)
    manager.note_isr(partition)
    assert manager.unsettled() == [partition]
    manager.apply_state(partition, replace(complete, partition_epoch=3))
    assert manager.unsettled() == []
    manager.apply_state(partition, replace(complete, isr=(1,), partition_epoch=4))
    manager.remove(partition, "unique")
    assert manager.unsettled() == [], "its leader would propose an ISR for ever"
    manager.note_isr(partition)
    assert manager.unsettled() == []


def test_write_with_followers_is_acknowledged_when_they_have_it(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fixture.manager.apply_state(partition, replace(LED_BY_ANOTHER, leader=1, isr=(1, 2)))
    written, durable = (fixture.produce(partition, batch(), acks=acks) for acks in (1, -1))
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert (written.answers, durable.answers) == ([0], [])
    assert (partition.high_watermark, fixture.syncs_of()) == (0, 1)
    fixture.manager.commits.expire_writers()
    assert not fixture.threads.jobs, "there is nothing to sync: the follower is missing"
    assert partition.writers.has_waiting
    partition.note_follower(2, 2, 0)
    assert not partition.writers.has_waiting
    assert (partition.high_watermark, durable.answers) == (2, [0]), "min.insync.replicas is 1: our own sync is enough"


# -- the turn ---------------------------------------------------------------------------------------------------------


def test_writers_are_answered_when_their_batches_are_in_the_file(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiters = [fixture.produce(partition, batch()) for _ in range(3)]
    assert [waiter.answers for waiter in waiters] == [[], [], []]
    fixture.manager.commits.write_turn()
    assert [waiter.answers for waiter in waiters] == [[0], [0], [0]]
    assert offsets(partition.log) == [(0, 1), (1, 2), (2, 3)]


def test_high_watermark_moves_with_the_write_and_readers_are_told(fixture: ManagerFixture) -> None:
    partition, poll = fixture.add(), Poll()
    partition.readers[poll] = None
    fixture.append(partition, batch())
    fixture.append(partition, batch())
    assert partition.high_watermark == 0
    fixture.manager.commits.write_turn()
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    assert poll.told == [2 * len(batch())]


def test_turn_without_appends_does_nothing(fixture: ManagerFixture) -> None:
    fixture.add()
    fixture.disk.calls.clear()
    fixture.manager.commits.write_turn()
    assert fixture.disk.calls == []


def test_each_log_is_written_once_a_turn(fixture: ManagerFixture) -> None:
    partitions = [fixture.add(number) for number in range(3)]
    for _ in range(5):
        for partition in partitions:
            fixture.append(partition, batch())
    fixture.disk.calls.clear()
    fixture.manager.commits.write_turn()
    assert sum(call.name == "pwrite" for call in fixture.disk.calls) == 3


# -- group commit -----------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_the_disk(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiter = fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    assert waiter.answers == []
    fixture.threads.run()
    assert waiter.answers == [0]
    fixture.fixture.abandon()
    for seed in range(10):
        again = StoreFixture(fixture.disk.crash(Random(seed), "power"), *fixture.paths)
        again.start(spec())
        assert offsets(again.log()) == [(0, 1)]
        again.abandon()


def test_what_arrives_during_a_sync_shares_the_next(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    first = fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    later = []
    for _ in range(10):
        later.append(fixture.produce(partition, batch(), acks=-1))
        fixture.manager.commits.write_turn()
    assert len(fixture.threads.jobs) == 1
    fixture.threads.run_one()
    assert first.answers == [0]
    assert all(waiter.answers == [] for waiter in later)
    assert len(fixture.threads.jobs) == 1
    fixture.threads.run_one()
    assert all(waiter.answers == [0] for waiter in later)
    assert (fixture.manager.commits.syncs, fixture.syncs_of()) == (2, 2)


def test_sync_that_started_before_a_truncation_acknowledges_no_later_batch(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fixture.produce(partition, batch(4), acks=-1)
    fixture.manager.commits.write_turn()
    work, done = fixture.threads.jobs.pop()
    work()
    partition.log.truncate_to(0)
    partition.writers._waiting.clear()
    waiter = fixture.produce(partition, batch(2, size=50), acks=-1)
    fixture.manager.commits.write_turn()
    done(None)
    assert waiter.answers == []
    fixture.threads.run()
    assert waiter.answers == [0]
    fixture.fixture.abandon()
    again = StoreFixture(fixture.disk.crash(Random(1), "power"), *fixture.paths)
    again.start(spec())
    assert offsets(again.log()) == [(0, 2)]
    again.abandon()


def test_what_is_pending_when_a_sync_ends_is_synced_after_the_turn(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    waiter = fixture.produce(partition, batch(), acks=-1)
    fixture.threads.run()
    assert waiter.answers == []
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert waiter.answers == [0]


def test_what_is_on_disk_already_is_answered_at_once(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1).answers == [0]


def test_repetition_waits_as_long_as_the_original(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    original = fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    repetition = fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    fixture.manager.commits.write_turn()
    late = fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    fixture.manager.commits.write_turn()
    assert [original.answers, repetition.answers, late.answers] == [[], [], []]
    fixture.threads.run()
    assert [original.answers, repetition.answers, late.answers] == [[0], [0], [0]]


def test_sync_covers_segments_that_were_sealed_meanwhile(fixture: ManagerFixture) -> None:
    partition = fixture.add(settings=topic(segment_ms=100))
    waiters = [fixture.produce(partition, batch(timestamp=NOW + 101 * number), acks=-1) for number in range(3)]
    fixture.manager.commits.write_turn()
    fixture.threads.jobs = fixture.threads.jobs[-1:]  # only the group commit, none of the rolls
    fixture.threads.run()
    assert [waiter.answers for waiter in waiters] == [[0], [0], [0]]
    assert partition.log.synced_end_offset == 3


def test_produce_that_waits_too_long_is_told_and_its_batch_stays(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiter = fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.clock.now = 10.0
    fixture.manager.commits.expire_writers()
    assert waiter.answers == []
    fixture.clock.now = 10.1
    fixture.manager.commits.expire_writers()
    assert waiter.answers == [ErrorCode.REQUEST_TIMED_OUT]
    fixture.threads.run()
    assert waiter.answers == [ErrorCode.REQUEST_TIMED_OUT]
    assert partition.log.synced_end_offset == 1


def test_flush_interval_syncs_what_nobody_waits_for(fixture: ManagerFixture) -> None:
    partition, other = fixture.add(settings=topic(flush_ms=0)), fixture.add(name="other")
    for each in (partition, other):
        fixture.produce(each, batch())
    fixture.manager.commits.write_turn()
    LogUpkeep(fixture.manager).apply_flush_interval()
    fixture.threads.run()
    assert (partition.log.synced_end_offset, other.log.synced_end_offset) == (1, 0)
    LogUpkeep(fixture.manager).apply_flush_interval()
    assert fixture.threads.jobs == []


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_full_disk_answers_this_turns_writers_and_keeps_those_whose_batches_are_written(
    fixture: ManagerFixture,
) -> None:
    partition = fixture.add()
    earlier = fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    fixture.manager.commits.write_turn()
    one, everyone = fixture.produce(partition, batch(producer=(1, 0, 1))), fixture.produce(partition, batch(), acks=-1)
    fixture.disk.fail("write", errno.ENOSPC, applied_bytes=30)
    fixture.manager.commits.write_turn()
    assert (one.answers, everyone.answers, earlier.answers) == ([STORAGE_ERROR], [STORAGE_ERROR], [])
    fixture.threads.run()
    assert earlier.answers == [0]
    assert (partition.high_watermark, offsets(partition.log)) == (1, [(0, 1)])
    assert not partition.offline
    assert fixture.failures == []


def test_full_disk_refuses_produces_until_it_has_room(fixture: ManagerFixture) -> None:
    partition, neighbour = fixture.add(0), fixture.add(1)
    fixture.produce(partition, batch(producer=(1, 0, 0)))
    fixture.disk.fail("write", errno.ENOSPC)
    fixture.manager.commits.write_turn()
    for each in (partition, neighbour):
        with pytest.raises(StorageError):
            fixture.append(each, batch())
    fixture.disk.free = 999
    fixture.manager.storage.check_free_space()
    with pytest.raises(StorageError):
        fixture.append(partition, batch())
    fixture.disk.free = 1000
    fixture.manager.storage.check_free_space()
    waiter = fixture.produce(partition, batch(producer=(1, 0, 0)), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert waiter.answers == [0]
    assert offsets(partition.log) == [(0, 1)]


def test_nearly_full_disk_refuses_produces_and_serves_reads(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fixture.produce(partition, batch())
    fixture.manager.commits.write_turn()
    fixture.disk.free = 10
    fixture.manager.storage.check_free_space()
    with pytest.raises(StorageError):
        fixture.append(partition, batch())
    assert len(contents(partition.log)) == 1
    assert fixture.add(1).has_room is False


def test_batch_that_finds_the_disk_full_at_once_is_refused_and_takes_the_turns_others_along(
    fixture: ManagerFixture,
) -> None:
    partition = fixture.add()
    small = fixture.produce(partition, batch(producer=(1, 0, 0)))
    fixture.disk.fail("write", errno.ENOSPC, applied_bytes=20)
    with pytest.raises(StorageError):
        fixture.append(partition, batch(size=LARGE, producer=(1, 0, 1)))
    assert small.answers == [STORAGE_ERROR]
    fixture.manager.commits.write_turn()
    assert partition.log.log_end_offset == 0
    fixture.manager.storage.check_free_space()
    assert fixture.append(partition, batch(producer=(1, 0, 0))) == (0, 1)
    assert fixture.append(partition, batch(size=LARGE, producer=(1, 0, 1))) == (1, 2)


def test_small_batch_behind_a_large_one_in_the_same_turn_fails_alone_in_the_log(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    large = fixture.produce(partition, batch(size=LARGE, producer=(1, 0, 0)), acks=-1)
    small = fixture.produce(partition, batch(producer=(1, 0, 1)), acks=-1)
    fixture.disk.fail("pwrite", errno.ENOSPC, applied_bytes=20)
    fixture.manager.commits.write_turn()
    assert (large.answers, small.answers) == ([], [STORAGE_ERROR])
    assert offsets(partition.log) == [(0, 1)]
    fixture.manager.storage.check_free_space()
    repeated = fixture.produce(partition, batch(producer=(1, 0, 1)), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert (large.answers, repeated.answers) == ([0], [0])
    assert (partition.high_watermark, offsets(partition.log)) == (2, [(0, 1), (1, 2)])


def test_retention_works_on_a_full_disk(fixture: ManagerFixture) -> None:
    partition = fixture.add(settings=topic(retention_ms=100))
    fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    fixture.disk.fail("write_file", errno.ENOSPC, times=None)
    LogUpkeep(fixture.manager).apply_retention(partition, NOW + 101)
    fixture.threads.run()
    assert partition.log.log_start_offset == 1
    assert not partition.offline


def test_retention_that_finds_no_room_for_a_new_file_tries_again(fixture: ManagerFixture) -> None:
    partition = fixture.add(settings=topic(retention_ms=100))
    fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    fixture.disk.fail("create", errno.ENOSPC)
    LogUpkeep(fixture.manager).apply_retention(partition, NOW + 101)
    assert (partition.log.log_start_offset, partition.offline, partition.has_room) == (0, False, False)
    LogUpkeep(fixture.manager).apply_retention(partition, NOW + 101)
    assert partition.log.log_start_offset == 1


# -- a broken disk ----------------------------------------------------------------------------------------------------


def test_failed_sync_takes_the_directory_offline_and_is_never_tried_again(tmp_path: Path) -> None:
    fixture = ManagerFixture(tmp_path, directories=2)
    partitions = [fixture.add(number) for number in range(4)]
    broken = [each for each in partitions if each.log.directory.startswith(str(fixture.paths[0]))]
    sound = [each for each in partitions if each not in broken]
    polls = {}
    for each in partitions:
        polls[each] = Poll()
        each.readers[polls[each]] = None
    waiters = {each: [fixture.produce(each, batch(), acks=-1), fixture.produce(each, batch())] for each in partitions}
    fixture.disk.fail("fdatasync", errno.EIO, path="data0")
    fixture.manager.commits.write_turn()
    fixture.threads.run_one()
    fixture.threads.run()
    for each in broken:
        assert (each.offline, polls[each].gone) == (True, 1)
        assert [waiter.answers for waiter in waiters[each]] == [[STORAGE_ERROR], [0]]
        with pytest.raises(StorageError):
            fixture.append(each, batch())
    for each in sound:
        assert (each.offline, polls[each].gone) == (False, 0)
        assert [waiter.answers for waiter in waiters[each]] == [[0], [0]]
    tried = fixture.syncs_of(0)
    for each in partitions:
        fixture.manager.commits.sync_in_background(each)
    fixture.manager.commits.expire_writers()
    LogUpkeep(fixture.manager).apply_flush_interval()
    fixture.manager.write_checkpoints()
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert fixture.syncs_of(0) == tried
    assert fixture.failures == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_sync_that_fails_for_any_reason_is_a_broken_disk(fixture: ManagerFixture, error: int) -> None:
    """Room or not: what the kernel could not write it has forgotten."""
    partition = fixture.add()
    waiter = fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.disk.fail("fdatasync", error)
    fixture.threads.run()
    assert waiter.answers == [STORAGE_ERROR]
    assert partition.offline
    assert len(fixture.failures) == 1


def test_write_error_takes_the_directory_offline(fixture: ManagerFixture) -> None:
    partition, neighbour = fixture.add(0), fixture.add(1)
    waiters = [fixture.produce(partition, batch()), fixture.produce(neighbour, batch(), acks=-1)]
    fixture.disk.fail("write", errno.EIO)
    fixture.manager.commits.write_turn()
    assert [waiter.answers for waiter in waiters] == [[STORAGE_ERROR], [STORAGE_ERROR]]
    assert (partition.offline, neighbour.offline) == (True, True)
    assert len(fixture.failures) == 1
    assert (partition.high_watermark, neighbour.high_watermark) == (0, 0)


def test_generation_goes_up_when_a_directory_fails(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    before = fixture.manager.generation
    fixture.produce(partition, batch())
    fixture.disk.fail("write", errno.EIO)
    fixture.manager.commits.write_turn()
    assert fixture.manager.generation > before


def test_disk_that_cannot_be_asked_for_its_room_is_broken(
    fixture: ManagerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = fixture.add()

    def broken(path: str) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fixture.disk, "free_bytes", broken)
    fixture.manager.storage.check_free_space()
    assert partition.offline


def test_want_of_descriptors_refuses_a_batch_and_no_more(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiter = fixture.produce(partition, batch())
    fixture.disk.fail("create", errno.EMFILE)
    fixture.manager.commits.write_turn()
    assert waiter.answers == [STORAGE_ERROR]
    assert (partition.offline, partition.has_room) == (False, True)
    assert fixture.append(partition, batch()) == (0, 1)


# -- topics come and go -----------------------------------------------------------------------------------------------


def test_who_waits_for_a_deleted_topic_is_answered(fixture: ManagerFixture) -> None:
    partition, poll = fixture.add(), Poll()
    partition.readers[poll] = None
    waiters = [fixture.produce(partition, batch()), fixture.produce(partition, batch(), acks=-1)]
    fixture.manager.remove_topic(b"orders", lambda: "unique")
    assert [waiter.answers for waiter in waiters] == [[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]] * 2
    assert poll.gone == 1
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert fixture.manager.find("orders", 0) is None


def test_topic_deleted_while_its_files_are_synced_does_not_break_the_directory(fixture: ManagerFixture) -> None:
    """Its folder has another name then, so syncing the old one must fail, and must not matter."""
    partition = fixture.add(settings=topic(segment_ms=100))
    for number in range(3):
        fixture.produce(partition, batch(timestamp=NOW + 101 * number), acks=-1)
    fixture.manager.commits.write_turn()
    assert len(fixture.threads.jobs) == 3
    fixture.manager.remove_topic(b"orders", lambda: "unique")
    fixture.threads.run()
    assert fixture.failures == []
    assert not fixture.fixture.store.dirs[0].offline


def test_sync_that_fails_because_its_topic_went_meanwhile_is_no_failure(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    waiter = fixture.produce(partition, batch(), acks=-1)
    fixture.manager.commits.write_turn()
    work, done = fixture.threads.jobs.pop()
    work()
    fixture.manager.remove_topic(b"orders", lambda: "unique")
    done(FileNotFoundError(errno.ENOENT, "the folder is gone"))
    assert waiter.answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fixture.failures == []


def test_topic_made_again_starts_empty(fixture: ManagerFixture) -> None:
    fixture.produce(fixture.add(), batch())
    fixture.manager.commits.write_turn()
    fixture.manager.remove_topic(b"orders", lambda: "unique")
    partition = fixture.add()
    assert (partition.log.log_end_offset, partition.high_watermark) == (0, 0)
    waiter = fixture.produce(partition, batch(3), acks=-1)
    fixture.manager.commits.write_turn()
    fixture.threads.run()
    assert (waiter.answers, offsets(partition.log)) == ([0], [(0, 3)])


def test_topic_of_an_offline_disk_is_made_again_on_another(tmp_path: Path) -> None:
    fixture = ManagerFixture(tmp_path, directories=2)
    partition = fixture.add()
    fixture.produce(partition, batch())
    fixture.disk.fail("write", errno.EIO)
    fixture.manager.commits.write_turn()
    assert partition.offline
    fixture.manager.remove_topic(b"orders", lambda: "unique")
    again = fixture.add()
    assert again.log is not partition.log
    waiter = fixture.produce(again, batch(2))
    fixture.manager.commits.write_turn()
    assert (waiter.answers, offsets(again.log)) == ([0], [(0, 2)])


# -- deleting records -------------------------------------------------------------------------------------------------


def five_records(fixture: ManagerFixture, settings: TopicSettings | None = None) -> Partition:
    partition = fixture.add(settings=settings)
    fixture.produce(partition, batch(5))
    fixture.manager.commits.write_turn()
    return partition


@pytest.mark.parametrize(("asked", "start"), [(0, 0), (3, 3), (5, 5), (-1, 5)])
def test_records_are_deleted_up_to_an_offset(fixture: ManagerFixture, asked: int, start: int) -> None:
    partition = five_records(fixture)
    assert fixture.manager.delete_records(partition, asked) == start
    assert partition.log.log_start_offset == start


@pytest.mark.parametrize("asked", [6, -2])
def test_records_beyond_the_high_watermark_cannot_be_deleted(fixture: ManagerFixture, asked: int) -> None:
    partition = five_records(fixture)
    fixture.append(partition, batch(5))
    with pytest.raises(OffsetOutOfRange):
        fixture.manager.delete_records(partition, asked)


def test_records_of_a_compacted_topic_cannot_be_deleted(fixture: ManagerFixture) -> None:
    with pytest.raises(PolicyViolation):
        fixture.manager.delete_records(five_records(fixture, topic(cleanup_policy="compact")), 3)


def test_failure_to_delete_is_a_storage_error(fixture: ManagerFixture) -> None:
    partition = five_records(fixture)
    fixture.manager.commits.sync_in_background(partition)
    fixture.threads.run()
    fixture.disk.fail("create", errno.ENOSPC)
    with pytest.raises(StorageError):
        fixture.manager.delete_records(partition, 5)
    assert not partition.offline


def test_disk_is_the_one_that_was_given(fixture: ManagerFixture) -> None:
    assert isinstance(fixture.disk, MemoryDisk)
    assert fixture.manager.storage.disk_space(fixture.fixture.store.dirs[0]) == (1 << 40, 1 << 40)


# -- producers --------------------------------------------------------------------------------------------------------


def test_too_many_producers_expire_where_most_of_them_are(fixture: ManagerFixture) -> None:
    crowded, small = fixture.add(0), fixture.add(1)
    for producer_id in range(300):
        fixture.append(crowded, batch(producer=(producer_id, 0, 0)))
    for producer_id in range(100):
        fixture.append(small, batch(producer=(producer_id, 0, 0)))
    upkeep = LogUpkeep(fixture.manager)
    upkeep.evict_producers(400)
    assert (upkeep.producers, upkeep.producers_evicted) == (400, 0)
    fixture.append(small, batch())
    upkeep.evict_producers(250)
    assert (upkeep.producers, upkeep.producers_evicted) == (250, 150)
    assert (crowded.log.producer_count, small.log.producer_count) == (150, 100)


def test_producers_that_cannot_expire_are_left_alone(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    for producer_id in range(50):
        fixture.append(partition, batch(producer=(producer_id, 0, 0)))
    upkeep = LogUpkeep(fixture.manager)
    upkeep.evict_producers(10)
    assert partition.log.producer_count == upkeep.producers == 50
