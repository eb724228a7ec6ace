"""Transactions of a partition: the last stable offset, who is told when it moves, markers that fail."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log.log_fixtures import NOW, batch
from tests.unit.log.store_fixtures import StoreFixture, spec
from tests.unit.log.txn_fixtures import txn_batch
from tests.unit.partitions.test_replica_manager import LED_BY_ANOTHER, ManagerFixture, Poll, Waiter

from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.log import producers
from ottla.log.transactions import marker_batch
from ottla.model.errors import ErrorCode, KafkaError, StorageError

MARKER_BYTES = len(marker_batch(1, 0, commit=True, coordinator_epoch=0, timestamp=NOW))


class TransactionFixture(ManagerFixture):
    """A manager with one partition and a producer of transactions per id."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.partition: Partition = self.add()
        self.sequences: dict[int, int] = {}

    def send(self, pid: int = 1) -> int:
        """Append a batch of a transaction; its size."""
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + 1
        data = bytearray(txn_batch(pid=pid, sequence=sequence))
        self.manager.append(self.partition, data, memoryview(data), 0, len(data), NOW, transactional=True)
        return len(data)

    def end(self, pid: int = 1, *, commit: bool = True, coordinator_epoch: int = 0) -> tuple[int, int]:
        return self.manager.append_marker(
            self.partition, pid, 0, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=NOW
        )

    def turn(self) -> None:
        self.manager.commits.write_turn()

    def park(self, *, read_committed: bool) -> Poll:
        poll = Poll()
        self.partition.park(poll, read_committed=read_committed)
        return poll


@pytest.fixture
def fixture(tmp_path: Path) -> TransactionFixture:
    return TransactionFixture(tmp_path)


def test_last_stable_offset_waits_for_the_end_of_the_transaction_and_for_the_write(fixture: TransactionFixture) -> None:
    fixture.append(fixture.partition, batch(3))
    fixture.send()
    fixture.turn()
    assert (fixture.partition.high_watermark, fixture.partition.last_stable_offset) == (4, 3)
    assert fixture.end() == (4, 5)
    assert fixture.partition.last_stable_offset == 3
    fixture.turn()
    assert (fixture.partition.high_watermark, fixture.partition.last_stable_offset) == (5, 5)


def test_transaction_that_is_not_written_yet_is_no_reason_to_be_below_the_high_watermark(
    fixture: TransactionFixture,
) -> None:
    fixture.append(fixture.partition, batch(3))
    fixture.turn()
    fixture.send()
    assert fixture.partition.last_stable_offset == 3


def test_plain_batch_without_the_flag_is_still_no_part_of_a_transaction(fixture: TransactionFixture) -> None:
    with pytest.raises(KafkaError) as error:
        fixture.append(fixture.partition, txn_batch())
    assert error.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_writer_of_a_marker_is_answered_when_it_is_in_the_file(fixture: TransactionFixture) -> None:
    fixture.send()
    _, end = fixture.end()
    written, synced = Waiter(), Waiter()
    fixture.manager.commits.wait(fixture.partition, Until.WRITTEN, end, written)
    fixture.manager.commits.wait(fixture.partition, Until.DURABLE, end, synced)
    fixture.turn()
    assert (written.answers, synced.answers) == ([0], [])
    fixture.threads.run()
    assert synced.answers == [0]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_large", [False, True])
def test_transaction_whose_marker_is_above_the_high_watermark_is_not_stable_after_a_restart(
    tmp_path: Path, commit: bool, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of a large log are not read to find where the transaction began."""
    if is_large:
        monkeypatch.setattr(producers, "_REPLAY_BYTES_MAX", 0)
    fixture = TransactionFixture(tmp_path)
    fixture.append(fixture.partition, batch(3))
    fixture.send(pid=1)
    fixture.end(pid=1, commit=commit)
    fixture.send(pid=2)
    marker, _ = fixture.end(pid=2, commit=commit)
    fixture.turn()
    fixture.fixture.threads.run()
    fixture.fixture.store.close({fixture.partition.name: marker})

    restarted = StoreFixture(fixture.disk, *fixture.paths)
    replicated = spec(fixture.partition.name, replicated=True)
    restarted.start(replicated)
    threads: Any = restarted.threads
    manager = ReplicaManager(
        broker_id=1, clock=fixture.clock, disk=fixture.disk, store=restarted.store, threads=threads,
        free_bytes_min=1000, on_all_dirs_failed=fixture.failures.append,
    )  # fmt: skip
    partition = manager.add(replicated, LED_BY_ANOTHER)
    assert (partition.high_watermark, partition.last_stable_offset) == (marker, 0 if is_large else marker - 1)
    partition.advance_high_watermark(marker + 1)
    assert partition.last_stable_offset == marker + 1


# -- readers ----------------------------------------------------------------------------------------------------------


def test_without_transactions_all_readers_are_told_the_same(fixture: TransactionFixture) -> None:
    polls = [fixture.park(read_committed=each) for each in (False, True)]
    for _ in range(2):
        fixture.append(fixture.partition, batch())
        fixture.turn()
    assert [(poll.told, poll.looks) for poll in polls] == [([len(batch())] * 2, 0)] * 2


def test_readers_of_committed_records_are_told_when_the_last_stable_offset_moves(fixture: TransactionFixture) -> None:
    plain, committed = fixture.park(read_committed=False), fixture.park(read_committed=True)
    size = fixture.send()
    fixture.turn()
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert (plain.told, committed.told, committed.looks) == ([size, len(batch())], [], 0)
    fixture.end(commit=False)
    fixture.turn()
    assert (plain.told[2:], plain.looks) == ([MARKER_BYTES], 0)
    assert (committed.told, committed.looks) == ([], 1)
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert (committed.told, committed.looks) == ([len(batch())], 1)


def test_reader_that_comes_while_a_transaction_is_open_is_told_of_its_end(fixture: TransactionFixture) -> None:
    fixture.send()
    fixture.turn()
    poll = fixture.park(read_committed=True)
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert (poll.told, poll.looks) == ([], 0)
    fixture.end()
    fixture.turn()
    assert poll.looks == 1


def test_what_nobody_waited_for_is_not_told_to_the_next_reader(fixture: TransactionFixture) -> None:
    fixture.partition.unpark(fixture.park(read_committed=True))
    fixture.append(fixture.partition, batch())
    fixture.send()
    fixture.turn()
    poll = fixture.park(read_committed=True)
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert (poll.told, poll.looks) == ([], 0)


def test_end_of_one_of_two_transactions_moves_the_last_stable_offset_in_part(fixture: TransactionFixture) -> None:
    poll = fixture.park(read_committed=True)
    fixture.send(1)
    fixture.send(2)
    fixture.turn()
    fixture.end(2)
    fixture.turn()
    assert poll.looks == 0
    fixture.end(1)
    fixture.turn()
    assert (poll.looks, fixture.partition.last_stable_offset) == (1, 4)


def test_transaction_within_one_turn_moves_both_offsets_at_once(fixture: TransactionFixture) -> None:
    poll = fixture.park(read_committed=True)
    size = fixture.send()
    fixture.end()
    fixture.turn()
    assert (poll.told, poll.looks) == ([size + MARKER_BYTES], 0)


def test_readers_of_both_kinds_are_let_go_when_the_partition_goes(fixture: TransactionFixture) -> None:
    polls = [fixture.park(read_committed=each) for each in (False, True)]
    fixture.partition.leave(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert [poll.gone for poll in polls] == [1, 1]
    assert not fixture.partition.readers
    assert not fixture.partition.stable_readers


def test_reader_looks_for_itself_when_producers_cannot_be_loaded(fixture: TransactionFixture) -> None:
    poll = fixture.park(read_committed=True)
    fixture.append(fixture.partition, batch())
    fixture.turn()
    fixture.partition.log.truncate_to(0)
    fixture.append(fixture.partition, batch())
    fixture.append(fixture.partition, batch())
    fixture.disk.fail("read", errno.EIO, times=None)
    fixture.partition.log._producers_offset = 1
    fixture.turn()
    assert poll.looks == 1


# -- failure ----------------------------------------------------------------------------------------------------------


def test_marker_on_a_broken_disk_takes_the_directory_offline(fixture: TransactionFixture) -> None:
    fixture.send()
    fixture.turn()
    _, end = fixture.end(commit=False)
    waiter = Waiter()
    fixture.manager.commits.wait(fixture.partition, Until.WRITTEN, end, waiter)
    fixture.disk.fail("write", errno.EIO)
    fixture.turn()
    assert waiter.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert fixture.partition.offline
    with pytest.raises(StorageError):
        fixture.end()


def test_marker_on_a_full_disk_is_refused_and_the_transaction_stays_open(fixture: TransactionFixture) -> None:
    fixture.send()
    fixture.turn()
    fixture.partition.log.configure(fixture.partition.log.settings)
    fixture.disk.fail("space", errno.ENOSPC, times=None)
    fixture.end()
    fixture.turn()
    assert not fixture.partition.has_room
    assert fixture.partition.last_stable_offset == 0
    with pytest.raises(StorageError):
        fixture.end()
    fixture.disk.heal()
    fixture.manager.storage.check_free_space()
    fixture.end()
    fixture.turn()
    assert fixture.partition.last_stable_offset == 2


def test_refusals_of_the_log_pass(fixture: TransactionFixture) -> None:
    fixture.send()
    fixture.end(coordinator_epoch=5)
    with pytest.raises(KafkaError) as error:
        fixture.end(coordinator_epoch=4)
    assert error.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert not fixture.partition.offline
