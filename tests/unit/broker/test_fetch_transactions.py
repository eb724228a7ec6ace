"""Fetch at both isolation levels, from bytes to bytes, while transactions are open, committed and aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.log.log_room import NOW, batch, split
from tests.unit.log.store_room import TOPIC_ID
from tests.unit.replica.test_manager_transactions import TransactionRoom

from ottla.broker.apis.fetch import FetchApi
from ottla.broker.apis.offsets import describe_producers, list_offsets
from ottla.env.timers import Expiring
from ottla.log.segment import FileRegion
from ottla.log.transactions import EndedTransaction
from ottla.model.batch import read_header
from ottla.model.settings import BrokerSettings
from ottla.testing.raw import fetch_from, fetch_request, read_answer, request_bytes
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

VERSIONS = range(4, 18)
every_version = pytest.mark.parametrize("version", VERSIONS)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Slot:
    def __init__(self) -> None:
        self.reply: bytes | None = None

    def fill(self, head: bytes, parts: list[bytes | FileRegion] | None = None) -> None:
        assert self.reply is None
        self.reply = head + b"".join(part if isinstance(part, bytes) else part.read() for part in parts or [])


class Connection:
    closing = False

    def __init__(self) -> None:
        self.slot = Slot()
        self.on_close: dict[Callable[[], None], None] = {}

    def reserve(self, api_key: int) -> Slot:
        return self.slot


class Wheel:
    def __init__(self) -> None:
        self.timers: list[Expiring] = []

    def add(self, timer: Expiring, delay_s: float) -> None:
        self.timers.append(timer)

    def remove(self, timer: Expiring) -> None:
        if timer in self.timers:
            self.timers.remove(timer)


class NothingDeferred:
    def may_run(self, units: int) -> bool:
        return True


class FetchRoom(TransactionRoom):
    """A fetch API on a partition with transactions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.services: Any = SimpleNamespace(
            broker_id=1, replicas=self.manager, settings=BrokerSettings(), wheel=Wheel(),
            deferred=NothingDeferred(),
            loop=SimpleNamespace(time=self.clock.monotonic, run_in_executor=self.run),
        )  # fmt: skip
        self.api = FetchApi(self.services)

    async def run(self, executor: None, function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)

    def ask(self, offset: int = 0, *, version: int = 12, isolation: int = READ_COMMITTED, **fields: Any) -> Answer:
        topic = TOPIC_ID if version >= 13 else "orders"
        request = fetch_request({topic: [fetch_from(0, offset)]}, isolation_level=isolation, **fields)
        connection: Any = Connection()
        frame = bytearray(request_bytes(request, version, 77, "test"))
        self.api.handle(connection, frame, memoryview(frame), 0, len(frame), version, 77)
        return Answer(connection.slot, version)


class Answer:
    def __init__(self, slot: Slot, version: int) -> None:
        self.slot, self.version = slot, version

    @property
    def is_there(self) -> bool:
        return self.slot.reply is not None

    @property
    def whole(self) -> Any:
        assert self.slot.reply is not None
        return read_answer(self.slot.reply[4:], 1, self.version, 77)

    @property
    def row(self) -> Any:
        (topic,) = self.whole.responses
        (row,) = topic.partitions
        return row

    @property
    def offsets(self) -> list[int]:
        return [read_header(data).base_offset for data in split(self.row.records or b"")]

    @property
    def aborted(self) -> list[tuple[int, int]] | None:
        rows = self.row.aborted_transactions
        return None if rows is None else [(row.producer_id, row.first_offset) for row in rows]


@pytest.fixture
def room(tmp_path: Path) -> FetchRoom:
    return FetchRoom(tmp_path)


# -- what is there ----------------------------------------------------------------------------------------------------


@every_version
def test_reader_of_committed_records_gets_what_is_below_the_last_stable_offset(room: FetchRoom, version: int) -> None:
    room.append(room.partition, batch(2))
    room.send()
    room.append(room.partition, batch())
    room.turn()
    answer = room.ask(version=version)
    assert (answer.offsets, answer.aborted) == ([0], [])
    assert (answer.row.high_watermark, answer.row.last_stable_offset) == (4, 2)
    answer = room.ask(version=version, isolation=READ_UNCOMMITTED)
    assert (answer.offsets, answer.aborted) == ([0, 2, 3], None)
    assert (answer.row.high_watermark, answer.row.last_stable_offset) == (4, 2)


@every_version
def test_aborted_transactions_are_named_to_those_who_read_committed_records(room: FetchRoom, version: int) -> None:
    room.send(1)
    room.send(2)
    room.end(1, commit=False)
    room.end(2, commit=True)
    room.send(2)
    room.end(2, commit=False)
    room.turn()
    answer = room.ask(version=version)
    assert (answer.offsets, answer.aborted) == ([0, 1, 2, 3, 4, 5], [(1, 0), (2, 4)])
    assert room.ask(3, version=version).aborted == [(2, 4)]
    answer = room.ask(version=version, isolation=READ_UNCOMMITTED)
    assert (answer.offsets, answer.aborted) == ([0, 1, 2, 3, 4, 5], None)


def test_offset_between_the_last_stable_offset_and_the_end_is_empty_and_no_error(room: FetchRoom) -> None:
    room.send()
    room.send()
    room.turn()
    for offset in range(3):
        answer = room.ask(offset)
        assert (answer.row.error_code, answer.offsets, answer.aborted) == (0, [], [])
    assert room.ask(3).row.error_code == 1


def test_error_has_no_list(room: FetchRoom) -> None:
    assert (room.ask(9).row.error_code, room.ask(9).aborted) == (1, None)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_parked_reader_of_committed_records_is_answered_by_the_marker(room: FetchRoom) -> None:
    answer = room.ask(max_wait=1000, min_bytes=1)
    room.send()
    room.turn()
    assert not answer.is_there
    room.end()
    room.turn()
    assert (answer.offsets, answer.row.last_stable_offset) == ([0, 1], 2)
    assert not room.services.wheel.timers
    assert not room.partition.stable_readers


def test_parked_reader_of_everything_is_answered_by_the_batch(room: FetchRoom) -> None:
    answer = room.ask(max_wait=1000, min_bytes=1, isolation=READ_UNCOMMITTED)
    room.send()
    room.turn()
    assert (answer.offsets, answer.row.last_stable_offset) == ([0], 0)


def test_parked_reader_goes_on_waiting_while_too_little_is_stable(room: FetchRoom) -> None:
    size = room.send()
    room.turn()
    answer = room.ask(max_wait=1000, min_bytes=3 * size)
    room.end()
    room.turn()
    assert not answer.is_there
    # From here on both offsets move together, and bytes are counted.
    room.append(room.partition, batch())
    room.turn()
    assert (answer.is_there, answer.offsets if answer.is_there else None) == (True, [0, 1, 2])


def test_reader_that_waits_while_a_transaction_stays_open_is_answered_in_time(room: FetchRoom) -> None:
    room.append(room.partition, batch())
    room.send()
    room.turn()
    answer = room.ask(1, max_wait=1000)
    room.append(room.partition, batch())
    room.turn()
    assert not answer.is_there
    room.services.wheel.timers[0].expire()
    assert (answer.offsets, answer.row.high_watermark, answer.row.last_stable_offset) == ([], 3, 1)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_last_stable_offset_alone_is_no_news_within_a_session(room: FetchRoom) -> None:
    """As in Kafka, where FetchSession compares high watermarks and log starts."""
    room.send()
    room.turn()
    room.end()
    room.turn()
    room.partition.log.ended.append(EndedTransaction(9, 0, 9, 10))
    opened = room.ask(2, session=(0, 0))
    session = opened.whole.session_id
    assert (opened.row.last_stable_offset, session > 0) == (0, True)
    room.partition.log.note_high_watermark(10)
    assert room.partition.last_stable_offset == 2
    assert room.ask(2, session=(session, 1)).whole.responses == ()
    room.send()
    room.turn()
    assert room.ask(2, session=(session, 2)).row.last_stable_offset == 2


# -- offsets and producers --------------------------------------------------------------------------------------------


def ask_offset(room: FetchRoom, timestamp: int, isolation: int) -> tuple[int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name="orders", partitions=[partition])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    context: Any = SimpleNamespace(version=8)
    answer = asyncio.run(list_offsets(room.services, request, context))
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0
    return row.offset, row.timestamp


@pytest.mark.parametrize(
    ("timestamp", "committed", "everything"),
    [(-1, (1, -1), (2, -1)), (-2, (0, -1), (0, -1)), (-3, (-1, -1), (1, NOW)), (NOW - 7, (0, NOW - 7), (0, NOW - 7)),
     (NOW, (-1, -1), (1, NOW))],
)  # fmt: skip
def test_offsets_at_or_beyond_the_last_stable_offset_are_not_told_to_readers_of_committed_records(
    room: FetchRoom, timestamp: int, committed: tuple[int, int], everything: tuple[int, int]
) -> None:
    room.append(room.partition, batch(timestamp=NOW - 7))
    room.send()
    room.turn()
    assert ask_offset(room, timestamp, READ_COMMITTED) == committed
    assert ask_offset(room, timestamp, READ_UNCOMMITTED) == everything


def test_producers_are_shown_with_their_transactions(room: FetchRoom) -> None:
    room.append(room.partition, batch(3))
    room.send(1)
    room.end(1, coordinator_epoch=6)
    room.send(1)
    room.send(2)
    context: Any = SimpleNamespace(version=0)
    request = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0])])
    (topic,) = describe_producers(room.services, request, context).topics
    (row,) = topic.partitions
    assert [(p.producer_id, p.coordinator_epoch, p.current_txn_start_offset) for p in row.active_producers] == [
        (1, 6, 5),
        (2, -1, 6),
    ]
