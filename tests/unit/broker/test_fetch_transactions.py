"""Fetch at both isolation levels, from bytes to bytes, while transactions are open, committed and aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata
from tests.unit.broker.request_fixtures import request_context
from tests.unit.log.log_fixtures import NOW, batch, split
from tests.unit.log.store_fixtures import TOPIC_ID
from tests.unit.partitions.test_manager_transactions import TransactionFixture

from ottla.broker.access.permissions import ALL_ALLOWED
from ottla.broker.fetch.api import FetchApi
from ottla.broker.partitions.offset_apis import OffsetApis
from ottla.env.timers import Expiring
from ottla.log.file_region import FileRegion
from ottla.log.transactions import EndedTransaction
from ottla.model.batch import read_header
from ottla.testing.raw import fetch_from, fetch_request, read_answer, request_bytes
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

VERSIONS = range(4, 18)
every_version = pytest.mark.parametrize("version", VERSIONS)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Slot:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reply: bytes | None = None

    def fill(self, head: bytes, parts: list[bytes | FileRegion] | None = None) -> None:
        assert self.reply is None
        self.reply = head + b"".join(part if isinstance(part, bytes) else part.read() for part in parts or [])


class Connection:
    closing = False
    listener = "PLAINTEXT"
    local_address = ("127.0.0.1", 9092)
    principal = "User:alice"

    def __init__(self) -> None:
        self.slot = Slot(self)
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


class FetchFixture(TransactionFixture):
    """A fetch API on a partition with transactions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metadata = make_metadata(broker_id=1, new_id=partial(Random(1).randbytes, 16))
        self.fetch_wheel = Wheel()
        self.loop: Any = SimpleNamespace(time=self.clock.monotonic, run_in_executor=self.run)
        self.api = self.new_api()
        self.offsets = OffsetApis(metadata=self.metadata, replicas=self.manager, loop=self.loop)

    def new_api(self) -> FetchApi:
        """Return the API for the present settings."""
        wheel: Any = self.fetch_wheel
        deferred: Any = NothingDeferred()
        return FetchApi(
            metadata=self.metadata, replicas=self.manager, loop=self.loop, wheel=wheel, deferred=deferred,
            access=ALL_ALLOWED, throttling=UNUSED,
        )  # fmt: skip

    async def run(self, executor: None, function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)

    def ask(
        self, offset: int = 0, *, version: int = 12, isolation: int = READ_COMMITTED, last_epoch: int = -1,
        **fields: Any,
    ) -> Answer:  # fmt: skip
        topic = TOPIC_ID if version >= 13 else "orders"
        row = fetch_from(0, offset, last_fetched_epoch=last_epoch)
        request = fetch_request({topic: [row]}, isolation_level=isolation, **fields)
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
def fixture(tmp_path: Path) -> FetchFixture:
    return FetchFixture(tmp_path)


# -- what is there ----------------------------------------------------------------------------------------------------


@every_version
def test_reader_of_committed_records_gets_what_is_below_the_last_stable_offset(
    fixture: FetchFixture, version: int
) -> None:
    fixture.append(fixture.partition, batch(2))
    fixture.send()
    fixture.append(fixture.partition, batch())
    fixture.turn()
    answer = fixture.ask(version=version)
    assert (answer.offsets, answer.aborted) == ([0], [])
    assert (answer.row.high_watermark, answer.row.last_stable_offset) == (4, 2)
    answer = fixture.ask(version=version, isolation=READ_UNCOMMITTED)
    assert (answer.offsets, answer.aborted) == ([0, 2, 3], None)
    assert (answer.row.high_watermark, answer.row.last_stable_offset) == (4, 2)


@every_version
def test_aborted_transactions_are_named_to_those_who_read_committed_records(
    fixture: FetchFixture, version: int
) -> None:
    fixture.send(1)
    fixture.send(2)
    fixture.end(1, commit=False)
    fixture.end(2, commit=True)
    fixture.send(2)
    fixture.end(2, commit=False)
    fixture.turn()
    answer = fixture.ask(version=version)
    assert (answer.offsets, answer.aborted) == ([0, 1, 2, 3, 4, 5], [(1, 0), (2, 4)])
    assert fixture.ask(3, version=version).aborted == [(2, 4)]
    answer = fixture.ask(version=version, isolation=READ_UNCOMMITTED)
    assert (answer.offsets, answer.aborted) == ([0, 1, 2, 3, 4, 5], None)


def test_offset_between_the_last_stable_offset_and_the_end_is_empty_and_no_error(fixture: FetchFixture) -> None:
    fixture.send()
    fixture.send()
    fixture.turn()
    for offset in range(3):
        answer = fixture.ask(offset)
        assert (answer.row.error_code, answer.offsets, answer.aborted) == (0, [], [])
    assert fixture.ask(3).row.error_code == 1


def test_error_has_no_list(fixture: FetchFixture) -> None:
    assert (fixture.ask(9).row.error_code, fixture.ask(9).aborted) == (1, None)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_parked_reader_of_committed_records_is_answered_by_the_marker(fixture: FetchFixture) -> None:
    answer = fixture.ask(max_wait=1000, min_bytes=1)
    fixture.send()
    fixture.turn()
    assert not answer.is_there
    fixture.end()
    fixture.turn()
    assert (answer.offsets, answer.row.last_stable_offset) == ([0, 1], 2)
    assert not fixture.fetch_wheel.timers
    assert not fixture.partition.stable_readers


def test_parked_reader_of_everything_is_answered_by_the_batch(fixture: FetchFixture) -> None:
    answer = fixture.ask(max_wait=1000, min_bytes=1, isolation=READ_UNCOMMITTED)
    fixture.send()
    fixture.turn()
    assert (answer.offsets, answer.row.last_stable_offset) == ([0], 0)


def test_parked_reader_goes_on_waiting_while_too_little_is_stable(fixture: FetchFixture) -> None:
    size = fixture.send()
    fixture.turn()
    answer = fixture.ask(max_wait=1000, min_bytes=3 * size)
    fixture.end()
    fixture.turn()
    assert not answer.is_there
    # From here on both offsets move together, and bytes are counted.
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert (answer.is_there, answer.offsets if answer.is_there else None) == (True, [0, 1, 2])


def test_reader_that_waits_while_a_transaction_stays_open_is_answered_in_time(fixture: FetchFixture) -> None:
    fixture.append(fixture.partition, batch())
    fixture.send()
    fixture.turn()
    answer = fixture.ask(1, max_wait=1000)
    fixture.append(fixture.partition, batch())
    fixture.turn()
    assert not answer.is_there
    fixture.fetch_wheel.timers[0].expire()
    assert (answer.offsets, answer.row.high_watermark, answer.row.last_stable_offset) == ([], 3, 1)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_last_stable_offset_alone_is_no_news_within_a_session(fixture: FetchFixture) -> None:
    """As in Kafka, where FetchSession compares high watermarks and log starts."""
    fixture.send()
    fixture.turn()
    fixture.end()
    fixture.turn()
    fixture.partition.log.ended.append(EndedTransaction(9, 0, 9, 10))
    opened = fixture.ask(2, session=(0, 0))
    session = opened.whole.session_id
    assert (opened.row.last_stable_offset, session > 0) == (0, True)
    fixture.partition.log.note_high_watermark(10)
    assert fixture.partition.last_stable_offset == 2
    assert fixture.ask(2, session=(session, 1)).whole.responses == ()
    fixture.send()
    fixture.turn()
    assert fixture.ask(2, session=(session, 2)).row.last_stable_offset == 2


# -- offsets and producers --------------------------------------------------------------------------------------------


def ask_offset(fixture: FetchFixture, timestamp: int, isolation: int) -> tuple[int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name="orders", partitions=[partition])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    context: Any = request_context(8)
    answer = asyncio.run(fixture.offsets.list_offsets(request, context))
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0
    return row.offset, row.timestamp


@pytest.mark.parametrize(
    ("timestamp", "committed", "everything"),
    [(-1, (1, -1), (2, -1)), (-2, (0, -1), (0, -1)), (-3, (-1, -1), (1, NOW)), (NOW - 7, (0, NOW - 7), (0, NOW - 7)),
     (NOW, (-1, -1), (1, NOW))],
)  # fmt: skip
def test_offsets_at_or_beyond_the_last_stable_offset_are_not_told_to_readers_of_committed_records(
    fixture: FetchFixture, timestamp: int, committed: tuple[int, int], everything: tuple[int, int]
) -> None:
    fixture.append(fixture.partition, batch(timestamp=NOW - 7))
    fixture.send()
    fixture.turn()
    assert ask_offset(fixture, timestamp, READ_COMMITTED) == committed
    assert ask_offset(fixture, timestamp, READ_UNCOMMITTED) == everything


def test_producers_are_shown_with_their_transactions(fixture: FetchFixture) -> None:
    fixture.append(fixture.partition, batch(3))
    fixture.send(1)
    fixture.end(1, coordinator_epoch=6)
    fixture.send(1)
    fixture.send(2)
    context: Any = request_context(0)
    request = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0])])
    (topic,) = fixture.offsets.describe_producers(request, context).topics
    (row,) = topic.partitions
    assert [(p.producer_id, p.coordinator_epoch, p.current_txn_start_offset) for p in row.active_producers] == [
        (1, 6, 5),
        (2, -1, 6),
    ]
