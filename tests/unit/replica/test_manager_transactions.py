"""Transactions of a partition: the last stable offset, who is told when it moves, markers that fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.log.log_room import NOW, batch
from tests.unit.log.txn_room import txn_batch
from tests.unit.replica.test_replica_manager import ManagerRoom, Poll, Waiter

from ottla.log.transactions import marker_batch
from ottla.model.errors import ErrorCode, KafkaError, StorageError
from ottla.replica.partition import Partition

MARKER_BYTES = len(marker_batch(1, 0, commit=True, coordinator_epoch=0, timestamp=NOW))


class TransactionRoom(ManagerRoom):
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
        self.manager.write_turn()

    def park(self, *, read_committed: bool) -> Poll:
        poll = Poll()
        self.partition.park(poll, read_committed=read_committed)
        return poll


@pytest.fixture
def room(tmp_path: Path) -> TransactionRoom:
    return TransactionRoom(tmp_path)


def test_last_stable_offset_waits_for_the_end_of_the_transaction_and_for_the_write(room: TransactionRoom) -> None:
    room.append(room.partition, batch(3))
    room.send()
    room.turn()
    assert (room.partition.high_watermark, room.partition.last_stable_offset) == (4, 3)
    assert room.end() == (4, 5)
    assert room.partition.last_stable_offset == 3
    room.turn()
    assert (room.partition.high_watermark, room.partition.last_stable_offset) == (5, 5)


def test_transaction_that_is_not_written_yet_is_no_reason_to_be_below_the_high_watermark(
    room: TransactionRoom,
) -> None:
    room.append(room.partition, batch(3))
    room.turn()
    room.send()
    assert room.partition.last_stable_offset == 3


def test_plain_batch_without_the_flag_is_still_no_part_of_a_transaction(room: TransactionRoom) -> None:
    with pytest.raises(KafkaError) as error:
        room.append(room.partition, txn_batch())
    assert error.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_writer_of_a_marker_is_answered_when_it_is_in_the_file(room: TransactionRoom) -> None:
    room.send()
    _, end = room.end()
    written, synced = Waiter(), Waiter()
    room.manager.wait_written(room.partition, written)
    room.manager.wait_synced(room.partition, end, synced)
    room.turn()
    assert (written.answers, synced.answers) == ([0], [])
    room.threads.run()
    assert synced.answers == [0]


# -- readers ----------------------------------------------------------------------------------------------------------


def test_without_transactions_all_readers_are_told_the_same(room: TransactionRoom) -> None:
    polls = [room.park(read_committed=each) for each in (False, True)]
    for _ in range(2):
        room.append(room.partition, batch())
        room.turn()
    assert [(poll.told, poll.looks) for poll in polls] == [([len(batch())] * 2, 0)] * 2


def test_readers_of_committed_records_are_told_when_the_last_stable_offset_moves(room: TransactionRoom) -> None:
    plain, committed = room.park(read_committed=False), room.park(read_committed=True)
    size = room.send()
    room.turn()
    room.append(room.partition, batch())
    room.turn()
    assert (plain.told, committed.told, committed.looks) == ([size, len(batch())], [], 0)
    room.end(commit=False)
    room.turn()
    assert (plain.told[2:], plain.looks) == ([MARKER_BYTES], 0)
    assert (committed.told, committed.looks) == ([], 1)
    room.append(room.partition, batch())
    room.turn()
    assert (committed.told, committed.looks) == ([len(batch())], 1)


def test_reader_that_comes_while_a_transaction_is_open_is_told_of_its_end(room: TransactionRoom) -> None:
    room.send()
    room.turn()
    poll = room.park(read_committed=True)
    room.append(room.partition, batch())
    room.turn()
    assert (poll.told, poll.looks) == ([], 0)
    room.end()
    room.turn()
    assert poll.looks == 1


def test_what_nobody_waited_for_is_not_told_to_the_next_reader(room: TransactionRoom) -> None:
    room.partition.unpark(room.park(read_committed=True))
    room.append(room.partition, batch())
    room.send()
    room.turn()
    poll = room.park(read_committed=True)
    room.append(room.partition, batch())
    room.turn()
    assert (poll.told, poll.looks) == ([], 0)


def test_end_of_one_of_two_transactions_moves_the_last_stable_offset_in_part(room: TransactionRoom) -> None:
    poll = room.park(read_committed=True)
    room.send(1)
    room.send(2)
    room.turn()
    room.end(2)
    room.turn()
    assert poll.looks == 0
    room.end(1)
    room.turn()
    assert (poll.looks, room.partition.last_stable_offset) == (1, 4)


def test_transaction_within_one_turn_moves_both_offsets_at_once(room: TransactionRoom) -> None:
    poll = room.park(read_committed=True)
    size = room.send()
    room.end()
    room.turn()
    assert (poll.told, poll.looks) == ([size + MARKER_BYTES], 0)


def test_readers_of_both_kinds_are_let_go_when_the_partition_goes(room: TransactionRoom) -> None:
    polls = [room.park(read_committed=each) for each in (False, True)]
    room.partition.leave(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert [poll.gone for poll in polls] == [1, 1]
    assert not room.partition.readers
    assert not room.partition.stable_readers


def test_reader_looks_for_itself_when_producers_cannot_be_loaded(room: TransactionRoom) -> None:
    poll = room.park(read_committed=True)
    room.append(room.partition, batch())
    room.turn()
    room.partition.log.truncate_to(0)
    room.append(room.partition, batch())
    room.append(room.partition, batch())
    room.disk.fail("read", errno.EIO, times=None)
    room.partition.log._producers_offset = 1
    room.turn()
    assert poll.looks == 1


# -- failure ----------------------------------------------------------------------------------------------------------


def test_marker_on_a_broken_disk_takes_the_directory_offline(room: TransactionRoom) -> None:
    room.send()
    room.turn()
    room.end(commit=False)
    waiter = Waiter()
    room.manager.wait_written(room.partition, waiter)
    room.disk.fail("write", errno.EIO)
    room.turn()
    assert waiter.answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert room.partition.offline
    with pytest.raises(StorageError):
        room.end()


def test_marker_on_a_full_disk_is_refused_and_the_transaction_stays_open(room: TransactionRoom) -> None:
    room.send()
    room.turn()
    room.partition.log.configure(room.partition.log.settings)
    room.disk.fail("space", errno.ENOSPC, times=None)
    room.end()
    room.turn()
    assert not room.partition.has_room
    assert room.partition.last_stable_offset == 0
    with pytest.raises(StorageError):
        room.end()
    room.disk.heal()
    room.manager.check_free_space()
    room.end()
    room.turn()
    assert room.partition.last_stable_offset == 2


def test_refusals_of_the_log_pass(room: TransactionRoom) -> None:
    room.send()
    room.end(coordinator_epoch=5)
    with pytest.raises(KafkaError) as error:
        room.end(coordinator_epoch=4)
    assert error.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert not room.partition.offline
