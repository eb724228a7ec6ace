"""Fetches of followers at the leader, from bytes to bytes: what is noted, what is read, and when a fetch is woken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.request_fixtures import request_context
from tests.unit.broker.test_fetch_transactions import READ_COMMITTED, READ_UNCOMMITTED, Connection, FetchFixture
from tests.unit.log.log_fixtures import batch
from tests.unit.partitions.test_manager_transactions import TransactionFixture
from tests.unit.partitions.test_replica_manager import Waiter

from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.offset_apis import LATEST
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.model.batch import read_header
from ottla.model.errors import ErrorCode
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.replica_fetch import VERSION, FetchedRow, FetchedRows, FollowerRow, follower_fetch, parse_reply

EPOCH = 5


class LeaderFixture(FetchFixture):
    """A leader of partitions with the replicas 1, 2 and 3, and the follower 2 with one session."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lead(self.partition)
        self.session_id, self.session_epoch = 0, 0

    def lead(self, partition: Partition, epoch: int = EPOCH) -> None:
        state = PartitionView(leader=1, leader_epoch=epoch, replicas=(1, 2, 3), isr=(1, 2))
        self.manager.apply_state(partition, state)

    def write(self, partition: Partition, count: int = 1) -> None:
        self.append(partition, batch(count))
        self.manager.commits.write_turn()

    def send(
        self, rows: dict[Partition, FollowerRow] | None = None, *, replica_id: int = 2, replica_epoch: int = 100,
        wait_ms: int = 500, full: bool = False, forgotten: list[Partition] | None = None,
    ) -> Any:  # fmt: skip
        """Send a fetch; return the connection that gets the reply."""
        if full:
            self.session_id = self.session_epoch = 0
        topics: dict[bytes, list[FollowerRow]] = {}
        for partition, row in (rows or {}).items():
            topics.setdefault(partition.topic_id, []).append(row)
        gone: dict[bytes, list[int]] = {}
        for partition in forgotten or []:
            gone.setdefault(partition.topic_id, []).append(partition.name.partition)
        frame = bytearray(
            follower_fetch(
                9, b"broker-2", replica_id=replica_id, replica_epoch=replica_epoch, max_wait_ms=wait_ms, min_bytes=1,
                size_bytes_max=1 << 20, session_id=self.session_id, session_epoch=self.session_epoch, topics=topics,
                forgotten=gone,
            )
        )  # fmt: skip
        self.session_epoch += 1
        connection: Any = Connection()
        self.api.handle(connection, frame, memoryview(frame), 0, len(frame), VERSION, 9)
        return connection

    def reply(self, connection: Any) -> FetchedRows:
        parsed = parse_reply(memoryview(connection.slot.reply)[4:])
        self.session_id = parsed.session_id or self.session_id
        return parsed

    def fetch(self, rows: dict[Partition, FollowerRow] | None = None, **fields: Any) -> list[FetchedRow]:
        """Fetch without waiting; return the rows of the reply."""
        return self.reply(self.send(rows, wait_ms=0, **fields)).rows


@pytest.fixture
def leader(tmp_path: Path) -> LeaderFixture:
    return LeaderFixture(tmp_path)


def row(
    offset: int, *, number: int = 0, epoch: int = EPOCH, last_epoch: int = -1, size: int = 1 << 20, synced: int = -1
) -> FollowerRow:
    return FollowerRow(number, epoch, offset, last_epoch, 0, size, synced)


def waiter(leader: LeaderFixture, end_offset: int, until: Until = Until.COMMITTED) -> Waiter:
    waiting = Waiter()
    leader.manager.commits.wait(leader.partition, until, end_offset, waiting)
    return waiting


def test_follower_reads_records_that_are_not_committed(leader: LeaderFixture) -> None:
    leader.write(leader.partition, 3)
    assert leader.partition.high_watermark == 0
    (read,) = leader.fetch({leader.partition: row(0)}, full=True)
    assert (read.error_code, read.high_watermark, read.log_start_offset) == (0, 0, 0)
    assert read_header(read.records).next_offset == 3


def test_fetch_offset_is_noted_before_the_read(leader: LeaderFixture) -> None:
    partition = leader.partition
    leader.write(partition, 3)
    waiting = waiter(leader, 3)
    leader.clock.now = 7.0
    (read,) = leader.fetch({partition: row(3, last_epoch=EPOCH, synced=2)}, full=True)
    assert read.high_watermark == partition.high_watermark == 3
    assert waiting.answers == [0]
    follower = partition.followers[2]
    assert (follower.end_offset, follower.synced_end_offset) == (3, 2)
    assert (follower.broker_epoch, follower.fetched_at, follower.caught_up_at) == (100, 7.0, 7.0)


def test_follower_names_a_partition_again_whose_leader_stopped_and_goes_on_in_the_same_epoch(
    leader: LeaderFixture,
) -> None:
    """The leader has forgotten what its followers have. A session without news would never tell it again."""
    partition = leader.partition
    leader.write(partition, 3)
    at_end = row(3, last_epoch=EPOCH, synced=3)
    leader.fetch({partition: at_end}, full=True)
    partition.suspend()
    leader.lead(partition)
    assert partition.followers[2].end_offset == -1
    (answered,) = leader.fetch()
    assert answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.fetch() == []
    leader.fetch({partition: at_end})
    assert partition.followers[2].end_offset == 3
    assert leader.fetch() == []


def test_only_a_fetch_that_was_sent_after_the_leader_stopped_proves_that_its_sender_follows(
    leader: LeaderFixture,
) -> None:
    """Others may have waited in the socket while the process was paused. The id of a new session is the proof."""
    partition = leader.partition
    rows = {partition: row(0)}
    leader.clock.now = 1.0
    leader.fetch(rows, full=True)
    leader.manager.suspend(partition)
    leader.clock.now = 2.0
    assert leader.reply(leader.send(rows, wait_ms=0)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    leader.fetch(rows, full=True)
    assert partition.suspended == {}, "both may have been sent before"
    leader.clock.now = 3.0
    leader.session_epoch = 0  # it names all partitions again, with the id of the session that it knows
    leader.fetch(rows)
    assert partition.suspended == {2: 3.0}
    leader.fetch({partition: row(0, epoch=EPOCH - 1)})
    leader.fetch({partition: row(0, epoch=EPOCH + 1)})
    leader.clock.now = 4.0
    assert partition.suspended == {2: 3.0}, "a fetch in another epoch is none of this leader"
    leader.manager.distrust_fetches()
    leader.send(rows, wait_ms=0)
    assert partition.suspended == {}, "the process was paused again"


def test_diverging_follower_is_not_noted(leader: LeaderFixture) -> None:
    """It has other records at the same offsets: counting it would commit records that it does not have."""
    partition = leader.partition
    leader.write(partition, 3)
    leader.lead(partition, EPOCH + 1)
    leader.write(partition, 3)
    (read,) = leader.fetch({partition: row(5, epoch=EPOCH + 1, last_epoch=EPOCH)}, full=True)
    assert read.diverging == (EPOCH, 3)
    assert not read.records
    assert partition.followers[2].end_offset == -1
    assert partition.high_watermark == 0


def test_epoch_of_a_leader_that_appended_nothing_ends_the_one_before(leader: LeaderFixture) -> None:
    """The follower led in an epoch that the leader never saw; after OFFSET_OUT_OF_RANGE it would keep its records."""
    partition = leader.partition
    leader.write(partition, 3)
    leader.lead(partition, EPOCH + 2)
    (read,) = leader.fetch({partition: row(3, epoch=EPOCH + 2, last_epoch=EPOCH + 1)}, full=True)
    assert (read.error_code, read.diverging) == (0, (EPOCH, 3))


@pytest.mark.parametrize(
    ("fetched", "code"),
    [
        (row(0, epoch=EPOCH - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (row(0, epoch=EPOCH + 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (row(4), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_fetch_that_cannot_be_served_is_not_noted(leader: LeaderFixture, fetched: FollowerRow, code: ErrorCode) -> None:
    leader.write(leader.partition, 3)
    (read,) = leader.fetch({leader.partition: fetched}, full=True)
    assert read.error_code == code
    assert leader.partition.followers[2].end_offset == -1


def test_broker_that_is_no_replica_is_rejected(leader: LeaderFixture) -> None:
    leader.write(leader.partition, 3)
    (read,) = leader.fetch({leader.partition: row(0)}, full=True, replica_id=4)
    assert read.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not read.records


def test_earlier_process_of_a_follower_is_not_noted(leader: LeaderFixture) -> None:
    leader.write(leader.partition, 3)
    leader.fetch({leader.partition: row(0)}, full=True, replica_epoch=100)
    leader.fetch({leader.partition: row(3, last_epoch=EPOCH)}, full=True, replica_epoch=99)
    assert leader.partition.followers[2].end_offset == 0
    assert leader.partition.high_watermark == 0


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_parked_fetch_wakes_when_records_are_written(leader: LeaderFixture) -> None:
    partition = leader.partition
    parked = leader.send({partition: row(0)}, full=True)
    assert parked.slot.reply is None
    leader.append(partition, batch(2))
    assert parked.slot.reply is None
    leader.manager.commits.write_turn()
    (read,) = leader.reply(parked).rows
    assert read.records
    assert partition.high_watermark == 0


def test_fetch_that_parks_between_append_and_write_wakes(leader: LeaderFixture) -> None:
    leader.append(leader.partition, batch(2))
    parked = leader.send({leader.partition: row(0)}, full=True)
    assert parked.slot.reply is None
    leader.manager.commits.write_turn()
    assert leader.reply(parked).rows[0].records


def test_parked_fetch_does_not_wake_when_the_high_watermark_moves(leader: LeaderFixture) -> None:
    partition = leader.partition
    leader.write(partition, 2)
    leader.fetch({partition: row(0)}, full=True)
    parked = leader.send({partition: row(2, last_epoch=EPOCH)})
    assert partition.high_watermark == 2
    assert parked.slot.reply is None
    (read,) = leader.reply(_expire(leader, parked)).rows
    assert (read.high_watermark, bytes(read.records)) == (2, b"")


def _expire(leader: LeaderFixture, parked: Any) -> Any:
    (timer,) = leader.fetch_wheel.timers
    timer.expire()
    return parked


def test_high_watermark_that_moved_while_no_fetch_waited_is_reported(leader: LeaderFixture) -> None:
    partition = leader.partition
    leader.write(partition, 2)
    leader.fetch({partition: row(0)}, full=True)
    (read,) = leader.fetch({partition: row(2, last_epoch=EPOCH)})
    assert read.high_watermark == 2
    assert leader.fetch() == []


def test_next_fetch_of_the_session_answers_the_parked_one(leader: LeaderFixture) -> None:
    partition = leader.partition
    leader.write(partition, 2)
    leader.fetch({partition: row(0)}, full=True)
    waiting = waiter(leader, 2, Until.COMMITTED)
    first = leader.send({partition: row(2, last_epoch=EPOCH, synced=0)})
    assert waiting.answers == [0]
    assert partition.followers[2].synced_end_offset == 0
    second = leader.send({partition: row(2, last_epoch=EPOCH, size=0, synced=2)})
    assert leader.reply(first).error_code == 0
    assert second.slot.reply is None
    assert partition.followers[2].synced_end_offset == 2
    leader.write(partition)
    assert leader.reply(second).rows[0].records


def test_records_are_not_sent_twice_to_a_fetch_that_was_sent_before_they_arrived(leader: LeaderFixture) -> None:
    partition = leader.partition
    leader.fetch({partition: row(0)}, full=True)
    leader.write(partition, 2)
    first = leader.send()
    assert leader.reply(first).rows[0].records
    report = leader.send({partition: row(0, size=0, synced=0)})
    leader.write(partition, 2)
    assert report.slot.reply is None, "the follower has not told its new fetch offset yet"
    following = leader.send({partition: row(2, last_epoch=EPOCH)})
    assert not leader.reply(report).rows
    assert leader.reply(following).rows[0].records


def test_consumer_wakes_when_the_last_batch_of_several_is_committed(leader: LeaderFixture) -> None:
    """Both batches were appended before the first was committed, so the second commit adds no bytes to the log."""
    partition = leader.partition
    leader.write(partition, 2)
    leader.write(partition, 2)
    leader.fetch({partition: row(2, last_epoch=EPOCH)}, full=True)
    waiting = [leader.ask(2, isolation=isolation, max_wait=500) for isolation in (0, 1)]
    assert not any(answer.is_there for answer in waiting)
    leader.fetch({partition: row(4, last_epoch=EPOCH)})
    assert [answer.offsets for answer in waiting] == [[2], [2]]


def test_consumer_waits_until_its_minimum_is_committed(leader: LeaderFixture) -> None:
    partition = leader.partition
    for _ in range(3):
        leader.write(partition)
    leader.fetch({partition: row(1, last_epoch=EPOCH)}, full=True)
    size = len(leader.ask(0).row.records)
    waiting = leader.ask(1, max_wait=500, min_bytes=size + 1)
    leader.fetch({partition: row(2, last_epoch=EPOCH)})
    assert not waiting.is_there
    leader.fetch({partition: row(3, last_epoch=EPOCH)})
    assert waiting.offsets == [1, 2]


def test_idle_partition_of_a_session_counts_as_fetched(leader: LeaderFixture) -> None:
    """A follower of 10,000 partitions names none of them in its fetches while nothing is written."""
    partition = leader.partition
    leader.fetch({partition: row(0)}, full=True)
    leader.clock.now = 60.0
    leader.fetch()
    assert partition.followers[2].fetched_at == 60.0
    leader.clock.now = 61.0
    leader.write(partition)
    assert partition.followers[2].caught_up_at == 60.0
    leader.clock.now = 62.0
    leader.fetch(forgotten=[partition])
    leader.clock.now = 70.0
    leader.fetch(full=True)
    assert partition.followers[2].fetched_at == 60.0


def test_new_session_of_a_follower_ends_the_one_before(leader: LeaderFixture) -> None:
    leader.fetch({leader.partition: row(0)}, full=True)
    session_id = leader.session_id
    leader.fetch({leader.partition: row(0)}, full=True)
    assert leader.session_id != session_id
    assert len(leader.api.replica_sessions) == 1
    leader.session_id = session_id
    assert leader.reply(leader.send()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(leader.api.sessions) == 0


def test_leader_that_is_replaced_answers_its_followers(leader: LeaderFixture) -> None:
    parked = leader.send({leader.partition: row(0)}, full=True)
    state = PartitionView(leader=2, leader_epoch=EPOCH + 1, replicas=(1, 2, 3), isr=(2,))
    leader.manager.apply_state(leader.partition, state)
    (read,) = leader.reply(parked).rows
    assert read.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_new_leader_reports_an_end_offset_when_it_has_committed_what_it_had(leader: LeaderFixture) -> None:
    """An earlier leader may have reported a higher high watermark (KIP-207)."""
    partition = leader.partition
    leader.write(partition, 3)
    leader.lead(partition, EPOCH + 1)

    def end(version: int) -> tuple[int, int]:
        rows = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=rows)])
        context: Any = request_context(version)
        (found,) = asyncio.run(leader.offsets.list_offsets(request, context)).topics[0].partitions
        return found.error_code, found.offset

    assert end(5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert end(4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    leader.fetch({partition: row(3, epoch=EPOCH + 1, last_epoch=EPOCH)}, full=True)
    assert end(5) == (0, 3)


def _new_leader(leader: LeaderFixture) -> Partition:
    """Offsets 0 to 2 are committed and known to be so; 3 and 4 are from the epoch before."""
    partition = leader.partition
    leader.write(partition, 3)
    leader.fetch({partition: row(3, last_epoch=EPOCH)}, full=True)
    leader.write(partition, 2)
    leader.lead(partition, EPOCH + 1)
    assert partition.high_watermark == 3
    return partition


def _replicate(leader: LeaderFixture, offset: int) -> None:
    leader.fetch({leader.partition: row(offset, epoch=EPOCH + 1, last_epoch=EPOCH)}, full=True)


def test_new_leader_serves_what_it_knows_to_be_committed_without_a_high_watermark(leader: LeaderFixture) -> None:
    """An earlier leader may have reported a higher one; sarama reports OFFSET_NOT_AVAILABLE to its application."""
    _new_leader(leader)
    answer = leader.ask(0, isolation=READ_UNCOMMITTED, max_wait=0)
    assert (answer.row.error_code, answer.offsets) == (0, [0])
    assert (answer.row.high_watermark, answer.row.last_stable_offset) == (-1, -1)
    committed = leader.ask(0, isolation=READ_COMMITTED, max_wait=0)
    assert (committed.row.error_code, committed.offsets, committed.row.last_stable_offset) == (0, [], -1)
    assert leader.ask(6, isolation=READ_COMMITTED, max_wait=0).row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_consumer_of_a_new_leader_learns_at_once_that_its_log_diverges(leader: LeaderFixture) -> None:
    _new_leader(leader)
    answer = leader.ask(7, isolation=READ_UNCOMMITTED, max_wait=500, last_epoch=EPOCH)
    assert (answer.row.diverging_epoch.epoch, answer.row.diverging_epoch.end_offset) == (EPOCH, 5)


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_fetch_that_waits_for_a_new_leader_is_answered_when_it_has_committed(
    leader: LeaderFixture, isolation: int
) -> None:
    _new_leader(leader)
    waiting = leader.ask(3, isolation=isolation, max_wait=500)
    assert not waiting.is_there
    _replicate(leader, 5)
    assert (waiting.offsets, waiting.row.high_watermark) == ([3], 5)


def test_reader_of_committed_records_is_answered_when_only_the_high_watermark_moves(leader: LeaderFixture) -> None:
    """The last stable offset stays at an open transaction; a new leader serves what is below it."""
    partition = leader.partition
    leader.write(partition, 2)
    TransactionFixture.send(leader)
    leader.turn()
    leader.fetch({partition: row(2, last_epoch=EPOCH)}, full=True)
    leader.lead(partition, EPOCH + 1)
    waiting = leader.ask(0, max_wait=500)
    assert not waiting.is_there
    _replicate(leader, partition.log.log_end_offset)
    assert (waiting.offsets, waiting.row.last_stable_offset) == ([0], 2)
