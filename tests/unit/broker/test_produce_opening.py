"""Produce while a batch is opened elsewhere: order, results, and what happens to the topic or the client meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata
from tests.unit.log.log_fixtures import NOW, batch, topic
from tests.unit.partitions.test_replica_manager import ManagerFixture

from ottla.broker.access.permissions import ALL_ALLOWED
from ottla.broker.metadata.view import PartitionView
from ottla.broker.produce.api import ProduceApi
from ottla.model.errors import ErrorCode
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import Record, build_batch
from ottla.testing.raw import produce_request, read_answer, request_bytes

SMALL = batch(1)
LARGE = batch(2000, size=0)
KEYLESS = build_batch([Record(timestamp=NOW, key=b"k"), Record(timestamp=NOW)] * 1000)
UNKNOWN_TOPIC, INVALID_RECORD = 3, 87


class Slot:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data: bytes | None = None

    def fill(self, data: bytes) -> None:
        assert self.data is None
        self.data = data


class Connection:
    """What the API does to a connection."""

    peer_host = "10.0.0.1"
    listener = "PLAINTEXT"
    local_address = ("h", 1)
    turn_started = 0.0
    closing = False

    def __init__(self) -> None:
        self.cache: object = None
        self.slots: list[Any] = []
        self.muted = 0
        self.ended = ""

    def reserve(self, api_key: int) -> Slot:
        self.slots.append(Slot(self))
        return self.slots[-1]

    def enqueue(self, slot: Any) -> None:
        slot.connection = SimpleNamespace(owed_bytes=0, touched=True, listener="PLAINTEXT", local_address=("h", 1))
        self.slots.append(slot)

    @property
    def newest_slot(self) -> Any:
        return self.slots[-1] if self.slots else None

    def mute(self) -> None:
        self.muted += 1

    def unmute(self) -> None:
        self.muted -= 1

    def touch(self) -> None:
        pass

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class SlowOpener:
    """Opens a batch when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def open_batch(self, data: bytes, rules: OpeningRules, records: int) -> bytes | None:
        self.waiting.append(asyncio.Event())
        await self.waiting[-1].wait()
        return open_batch(data, rules)

    async def release(self) -> None:
        """Open the batch that came last, and let what follows happen."""
        self.waiting[-1].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class ProduceFixture(ManagerFixture):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opener = SlowOpener()
        self.manager.opener = self.opener  # type: ignore[assignment]
        self.metadata = make_metadata()
        self.api = ProduceApi(
            metadata=self.metadata, replicas=self.manager, clock=self.clock, access=ALL_ALLOWED, throttling=UNUSED,
            schemas=UNUSED, checks=UNUSED, transactions=UNUSED,
        )  # fmt: skip
        self.connection: Any = Connection()
        self.compacted = self.add(0, name="compacted", settings=topic(cleanup_policy="compact"))

    def send(self, *batches: tuple[str, int, bytes], acks: int = 1) -> None:
        frame = bytearray(request_bytes(produce_request(*batches, acks=acks), 9, 7, "test"))
        self.api.handle(self.connection, frame, memoryview(frame), 0, len(frame), 9, 7)
        frame[:] = bytes(len(frame))  # the buffer belongs to the next frame

    def answers(self) -> list[list[tuple[int, int]]]:
        """(error code, base offset) of each partition, for each reply that is there."""
        self.manager.commits.write_turn()
        found = []
        for slot in self.connection.slots:
            assert slot.data is not None
            responses = read_answer(slot.data[4:], 0, 9, 7).responses
            found.append([(row.error_code, row.base_offset) for each in responses for row in each.partition_responses])
        return found


Script = Callable[[ProduceFixture], Coroutine[Any, Any, None]]


def played(script: Script) -> Callable[[Path], None]:
    def test(tmp_path: Path) -> None:
        async def play() -> None:
            fixture = ProduceFixture(tmp_path)
            await script(fixture)
            assert fixture.connection.muted == 0
            await fixture.api.stop()

        asyncio.run(play())

    test.__name__ = script.__name__
    return test


@played
async def test_connection_is_muted_until_the_batch_is_appended(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, LARGE))
    await settle()
    assert (fixture.connection.muted, fixture.compacted.log.log_end_offset) == (1, 0)
    await fixture.opener.release()
    assert fixture.answers() == [[(0, 0)]]
    assert fixture.compacted.log.log_end_offset == 2000


@played
async def test_second_batch_of_a_connection_is_opened_as_well(fixture: ProduceFixture) -> None:
    for _ in range(2):
        fixture.send(("compacted", 0, LARGE))
        await settle()
        await fixture.opener.release()
    assert fixture.answers() == [[(0, 0)], [(0, 2000)]]


@played
async def test_small_batch_is_answered_without_the_opener(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, SMALL))
    assert (fixture.connection.muted, fixture.opener.waiting) == (0, [])
    assert fixture.answers() == [[(0, 0)]]


@played
async def test_results_keep_the_order_of_the_request(fixture: ProduceFixture) -> None:
    fixture.add(0, name="plain")
    fixture.send(("plain", 0, SMALL), ("compacted", 0, LARGE), ("nowhere", 0, SMALL), ("compacted", 0, SMALL))
    await settle()
    assert fixture.compacted.log.log_end_offset == 0, "the second batch for a partition must not overtake the first"
    await fixture.opener.release()
    assert fixture.answers() == [[(0, 0), (0, 0), (UNKNOWN_TOPIC, -1), (0, 2000)]]


@played
async def test_invalid_records_are_named(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, KEYLESS))
    await settle()
    await fixture.opener.release()
    (row,) = read_answer(fixture.connection.slots[0].data[4:], 0, 9, 7).responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (INVALID_RECORD, -1)
    assert [error.batch_index for error in row.record_errors] == list(range(1, 2000, 2))
    assert {error.batch_index_error_message for error in row.record_errors} == {row.error_message.split(": ")[1]}


@played
async def test_topic_that_is_deleted_meanwhile_is_unknown(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, LARGE))
    await settle()
    fixture.manager.remove_topic(b"compacted", lambda: "unique")
    await fixture.opener.release()
    assert fixture.answers() == [[(UNKNOWN_TOPIC, -1)]]


@played
async def test_topic_whose_settings_change_meanwhile_opens_the_batch_again(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, LARGE))
    await settle()
    fixture.manager.configure(b"compacted", topic(cleanup_policy="compact", compression_type="zstd"))
    await fixture.opener.release()
    assert (len(fixture.opener.waiting), fixture.compacted.log.log_end_offset) == (2, 0)
    await fixture.opener.release()
    assert fixture.answers() == [[(0, 0)]]
    assert fixture.compacted.log.appended_bytes < len(LARGE) / 2


@played
async def test_client_that_left_has_its_batch_appended(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, LARGE), acks=0)
    await settle()
    fixture.connection.closing = True
    await fixture.opener.release()
    assert (fixture.compacted.log.log_end_offset, fixture.connection.slots) == (2000, [])


@played
async def test_refused_batch_without_acknowledgement_closes_the_connection(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, KEYLESS), acks=0)
    await settle()
    await fixture.opener.release()
    assert (fixture.connection.ended, fixture.compacted.log.log_end_offset) == ("closed", 0)


@played
async def test_stop_drops_what_is_being_opened(fixture: ProduceFixture) -> None:
    fixture.send(("compacted", 0, LARGE))
    await settle()
    await fixture.api.stop()
    assert (fixture.connection.muted, fixture.compacted.log.log_end_offset) == (0, 0)


@played
async def test_bug_in_the_opener_aborts_the_connection(fixture: ProduceFixture) -> None:
    async def fail(data: bytes, rules: OpeningRules, records: int) -> None:
        raise ZeroDivisionError

    fixture.opener.open_batch = fail  # type: ignore[method-assign,assignment]
    fixture.send(("compacted", 0, LARGE))
    await settle()
    assert fixture.connection.ended == "aborted"


@played
async def test_batch_is_refused_if_another_broker_has_led_while_it_was_opened(fixture: ProduceFixture) -> None:
    """The log may have lost the producer's earlier batches: this one must not become the first."""
    partition = fixture.compacted
    records = [Record(timestamp=NOW, key=b"k")] * 2000
    large = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=1)
    fixture.send(("compacted", 0, large))
    await settle()
    epoch = partition.leader_epoch
    for leader, new_epoch in ((2, epoch + 1), (1, epoch + 2)):
        state = PartitionView(leader=leader, leader_epoch=new_epoch, replicas=(1, 2), isr=(1, 2))
        fixture.manager.apply_state(partition, state)
    await fixture.opener.release()
    assert fixture.answers() == [[(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]]
    assert partition.log.log_end_offset == 0
    assert partition.log.refused.first == {7: 1}, "a later batch is refused too, until this one is sent again"
