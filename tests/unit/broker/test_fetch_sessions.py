"""Fetches within a session, from bytes to bytes: which partitions an answer names, and when a fetch is woken.

A session looks only at partitions that may have news. The random test compares every answer with one that is worked out
from the state of all partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.unit.broker.test_fetch_transactions import READ_COMMITTED, Connection, FetchRoom
from tests.unit.log.log_room import NOW, batch
from tests.unit.log.txn_room import txn_batch

from ottla.broker.apis import fetch as fetch_module
from ottla.model.errors import ErrorCode
from ottla.replica.partition import Partition
from ottla.testing.raw import fetch_from, fetch_request, read_answer, request_bytes

VERSION = 12
WAIT_MS = 60_000
Place = tuple[str, int]


class Deferred:
    """Deferred work that runs when the test says so."""

    def __init__(self) -> None:
        self.units = 1 << 30
        self.jobs: list[Callable[[], None]] = []

    def may_run(self, units: int) -> bool:
        return units <= self.units

    def add(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


class Row(NamedTuple):
    error_code: int
    high_watermark: int
    log_start_offset: int
    has_records: bool


class SessionRoom(FetchRoom):
    """A fetch API, its partitions, and a client with a session."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.deferred = self.services.deferred = self.api.deferred = Deferred()
        self.session_id, self.epoch = 0, 0
        self.isolation = 0

    def send_fetch(self, places: dict[Place, int], forgotten: list[Place] | None = None, **fields: Any) -> Any:
        """Send the next fetch of the session with these offsets; the connection that gets the answer."""
        topics: dict[Any, list[Any]] = {}
        for (topic, number), offset in places.items():
            topics.setdefault(topic, []).append(fetch_from(number, offset))
        gone: dict[Any, list[int]] = {}
        for topic, number in forgotten or []:
            gone.setdefault(topic, []).append(number)
        request = fetch_request(
            topics, session=(self.session_id, self.epoch), forgotten=gone, isolation_level=self.isolation, **fields
        )
        self.epoch += 1
        connection: Any = Connection()
        frame = bytearray(request_bytes(request, VERSION, 77, "test"))
        self.api.handle(connection, frame, memoryview(frame), 0, len(frame), VERSION, 77)
        return connection

    def fetch(self, places: dict[Place, int] | None = None, **fields: Any) -> dict[Place, Row]:
        """Fetch without waiting; the rows of the answer."""
        return self.rows(self.send_fetch(places or {}, **fields))

    def open(self, *places: Place) -> dict[Place, Row]:
        self.session_id, self.epoch = 0, 0
        return self.fetch(dict.fromkeys(places, 0))

    def rows(self, connection: Any) -> dict[Place, Row]:
        answer = read_answer(connection.slot.reply[4:], 1, VERSION, 77)
        assert answer.error_code == 0
        self.session_id = answer.session_id
        return {
            (topic.topic, row.partition_index): Row(
                row.error_code, row.high_watermark, row.log_start_offset, bool(row.records)
            )
            for topic in answer.responses
            for row in topic.partitions
        }

    def error(self, connection: Any) -> int:
        return int(read_answer(connection.slot.reply[4:], 1, VERSION, 77).error_code)

    def write(self, partition: Partition, count: int = 1) -> None:
        self.append(partition, batch(count))
        self.manager.write_turn()

    @property
    def registered(self) -> int:
        return sum(len(each.readers) + len(each.stable_readers) for each in self.manager.all())


@pytest.fixture
def room(tmp_path: Path) -> SessionRoom:
    return SessionRoom(tmp_path)


A, B = ("orders", 0), ("orders", 1)


def test_partition_without_news_is_not_looked_at(room: SessionRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.add(1)
    room.open(A, B)
    looked_at: list[int] = []
    original = fetch_module._read_partition

    def count(partition: Partition, *arguments: Any, **fields: Any) -> Any:
        looked_at.append(partition.name.partition)
        return original(partition, *arguments, **fields)

    monkeypatch.setattr(fetch_module, "_read_partition", count)
    assert room.fetch() == {}
    assert looked_at == []
    room.write(room.partition)
    assert room.fetch() == {A: Row(0, 1, 0, True)}
    assert looked_at == [0]


def test_waiting_fetch_is_woken_by_any_partition_of_its_session(room: SessionRoom) -> None:
    other = room.add(1)
    room.open(A, B)
    waiting = room.send_fetch({}, max_wait=WAIT_MS)
    assert waiting.slot.reply is None
    room.write(other)
    assert room.rows(waiting) == {B: Row(0, 1, 0, True)}
    assert room.api.parked == 0


def test_waiting_fetch_counts_the_bytes_of_all_partitions(room: SessionRoom) -> None:
    other = room.add(1)
    room.open(A, B)
    waiting = room.send_fetch({}, max_wait=WAIT_MS, min_bytes=2 * len(batch()) + 1)
    room.write(room.partition)
    room.write(other)
    assert waiting.slot.reply is None
    room.write(other)
    assert set(room.rows(waiting)) == {A, B}


def test_next_fetch_of_a_session_answers_the_one_that_waits(room: SessionRoom) -> None:
    room.open(A)
    first = room.send_fetch({}, max_wait=WAIT_MS)
    second = room.send_fetch({}, max_wait=WAIT_MS)
    assert room.rows(first) == {}
    assert second.slot.reply is None
    assert room.api.parked == 1
    room.write(room.partition)
    assert room.rows(second) == {A: Row(0, 1, 0, True)}


def test_session_that_its_client_abandoned_costs_writers_nothing(room: SessionRoom) -> None:
    room.open(A)
    assert room.registered == 1
    room.write(room.partition)
    assert room.registered == 0


def test_closed_session_answers_its_fetch_and_leaves_nothing_behind(room: SessionRoom) -> None:
    room.open(A)
    waiting = room.send_fetch({}, max_wait=WAIT_MS)
    room.epoch = -1
    room.fetch()
    assert waiting.slot.reply is not None
    assert (room.registered, len(room.api.sessions), room.api.sessions.partitions) == (0, 0, 0)


def test_forgotten_partition_is_not_waited_for(room: SessionRoom) -> None:
    other = room.add(1)
    room.open(A, B)
    waiting = room.send_fetch({}, [B], max_wait=WAIT_MS)
    room.write(other)
    assert waiting.slot.reply is None
    assert room.registered == 1


def test_change_of_the_isolation_level_ends_the_session(room: SessionRoom) -> None:
    room.open(A)
    room.isolation = READ_COMMITTED
    assert room.error(room.send_fetch({})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (room.registered, len(room.api.sessions)) == (0, 0)


def test_fetch_of_many_changed_partitions_is_looked_at_later(room: SessionRoom) -> None:
    places = [("orders", number) for number in range(20)]
    partitions = [room.partition, *(room.add(number) for _, number in places[1:])]
    room.open(*places)
    for partition in partitions:
        room.write(partition)
    room.deferred.units = 0
    waiting = room.send_fetch({}, max_wait=WAIT_MS)
    assert waiting.slot.reply is None
    room.deferred.run()
    assert len(room.rows(waiting)) == 20


def test_fetch_that_is_to_be_looked_at_later_waits_then_if_there_is_nothing(room: SessionRoom) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        room.add(number)
    room.open(*places)
    room.deferred.units = 0
    waiting = room.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    room.deferred.run()
    assert waiting.slot.reply is None
    room.write(room.partition)
    room.deferred.run()
    assert room.rows(waiting) == {A: Row(0, 1, 0, True)}


def test_client_that_leaves_before_its_fetch_is_looked_at_is_forgotten(room: SessionRoom) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        room.add(number)
    room.open(*places)
    room.deferred.units = 0
    waiting = room.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    waiting.closing = True
    for cancel in list(waiting.on_close):
        cancel()
    room.deferred.run()
    assert waiting.slot.reply is None
    assert room.api.parked == 0


def test_large_backlog_is_served_in_turns(room: SessionRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_PARTITIONS_READ_MAX", 2)
    places = [("orders", number) for number in range(5)]
    partitions = [room.partition, *(room.add(number) for _, number in places[1:])]
    room.open(*places)
    for partition in partitions:
        room.write(partition)
    served = [set(room.fetch()) for _ in range(3)]
    assert served[0] == {places[0], places[1]}
    assert served[1] == {places[2], places[3]}
    assert served[2] == {places[4], places[0]}


def test_unknown_partitions_are_reported_in_turns(room: SessionRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_PARTITIONS_READ_MAX", 2)
    places = [("unknown", number) for number in range(3)]
    room.open(*places)
    assert set(room.fetch(max_wait=WAIT_MS)) == {places[0], places[1]}
    assert set(room.fetch(max_wait=WAIT_MS)) == {places[2], places[0]}


# -- without a session ----------------------------------------------------------------------------------------------


def test_fetch_beyond_the_budget_of_parked_partitions_waits_for_its_time(
    room: SessionRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "PARKED_PARTITIONS_MAX", 1)
    room.epoch = -1
    first = room.send_fetch({A: 0}, max_wait=WAIT_MS)
    room.epoch = -1
    second = room.send_fetch({A: 0}, max_wait=WAIT_MS)
    assert (room.registered, room.api.parked) == (1, 2)
    room.write(room.partition)
    assert room.rows(first) == {A: Row(0, 1, 0, True)}
    assert second.slot.reply is None
    room.api.waiting[second].expire()
    assert room.rows(second) == {A: Row(0, 1, 0, True)}
    assert (room.api.parked, room.api.parked_partitions) == (0, 0)


def test_waking_a_fetch_of_many_partitions_is_deferred(room: SessionRoom) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        room.add(number)
    room.epoch = -1
    waiting = room.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    room.deferred.units = 0
    room.write(room.partition)
    room.api.waiting[waiting].expire()
    assert waiting.slot.reply is None
    room.deferred.run()
    assert len(room.rows(waiting)) == 20
    assert (room.registered, room.deferred.jobs) == (0, [])


# -- any order of events --------------------------------------------------------------------------------------------


class Model:
    """A client's session next to the partitions, and what each answer must name."""

    def __init__(self, room: SessionRoom, seed: int) -> None:
        self.room = room
        self.random = Random(seed)
        self.offsets: dict[Place, int] = {}
        self.told: dict[Place, tuple[int, int]] = {}
        self.sequences: dict[Place, int] = {}
        self.waiting: Any = None
        room.isolation = self.random.randrange(2)
        self.create("orders", range(1, 4))
        self.create("returns", range(3))

    def create(self, topic: str, numbers: range) -> None:
        for number in numbers:
            self.room.add(number, name=topic)

    def partition(self, place: Place) -> Partition | None:
        return self.room.manager.find(*place)

    def expected(self) -> dict[Place, Row]:
        """Work out the answer from all partitions of the session."""
        rows = {}
        for place, offset in self.offsets.items():
            row = self.row(place, offset)
            if row.error_code or row.has_records or (row.high_watermark, row.log_start_offset) != self.told.get(place):
                rows[place] = row
        return rows

    def row(self, place: Place, offset: int) -> Row:
        partition = self.partition(place)
        if partition is None:
            return Row(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, False)
        log = partition.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return Row(ErrorCode.OFFSET_OUT_OF_RANGE, -1, log.log_start_offset, False)
        end = partition.last_stable_offset if self.room.isolation else partition.high_watermark
        return Row(0, partition.high_watermark, log.log_start_offset, offset < end)

    def note(self, rows: dict[Place, Row]) -> None:
        for place, row in rows.items():
            self.told[place] = (-1 if row.error_code else row.high_watermark, row.log_start_offset)

    # -- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        choices = (self.write, self.write, self.send, self.end, self.delete_records, self.delete_or_create, self.fetch)
        self.random.choice((*choices, self.fetch, self.fetch_little, self.wait, self.wait))()
        self.room.manager.write_turn()
        self.check_waiting()

    def any_place(self) -> Place:
        return self.random.choice(("orders", "returns")), self.random.randrange(4)

    def write(self) -> None:
        if (partition := self.partition(self.any_place())) is not None:
            self.room.append(partition, batch(self.random.randrange(1, 4)))

    def send(self) -> None:
        place = self.any_place()
        if (partition := self.partition(place)) is not None:
            sequence = self.sequences.get(place, 0)
            self.sequences[place] = sequence + 1
            data = bytearray(txn_batch(pid=1, sequence=sequence))
            self.room.manager.append(partition, data, memoryview(data), 0, len(data), NOW, transactional=True)

    def end(self) -> None:
        place = self.any_place()
        if (partition := self.partition(place)) is not None and self.sequences.get(place):
            self.room.manager.append_marker(
                partition, 1, 0, commit=self.random.random() < 0.5, coordinator_epoch=0, now_ms=NOW
            )

    def delete_records(self) -> None:
        if (partition := self.partition(self.any_place())) is not None:
            start, end = partition.log.log_start_offset, partition.high_watermark
            self.room.manager.delete_records(partition, self.random.randint(start, end))

    def delete_or_create(self) -> None:
        if self.random.random() < 0.8:
            return
        if self.partition(("returns", 0)) is None:
            self.create("returns", range(3))
        else:
            self.room.manager.remove_topic(b"returns", lambda: str(self.random.random()))
            self.room.threads.run()
            self.sequences = {place: n for place, n in self.sequences.items() if place[0] != "returns"}

    def changes(self) -> tuple[dict[Place, int], list[Place]]:
        """Draw what the next request changes: offsets that move on, new partitions, forgotten ones."""
        changed = {}
        for place in list(self.offsets) if self.room.session_id else []:
            if self.random.random() < 0.3:
                changed[place] = self.some_offset(place)
        for _ in range(self.random.randrange(1 if self.room.session_id else 5)):
            place = self.any_place()
            changed[place] = self.some_offset(place)
        forgotten = [
            place for place in self.offsets if place not in changed and self.random.random() < 0.05
        ]  # fmt: skip
        return changed, forgotten

    def some_offset(self, place: Place) -> int:
        partition = self.partition(place)
        if partition is None:
            return 0
        return self.random.choice((partition.high_watermark, partition.log.log_start_offset))

    def begin(self) -> tuple[dict[Place, int], list[Place]]:
        """Bring the model to what the next request says; a session without partitions starts again."""
        if not self.offsets:
            self.room.session_id, self.room.epoch = 0, 0
            self.told.clear()
            changed = {self.any_place(): 0 for _ in range(5)}
            self.offsets = dict(changed)
            return changed, []
        changed, forgotten = self.changes()
        if len(forgotten) == len(self.offsets):
            forgotten = []
        self.offsets.update(changed)
        for place in forgotten:
            del self.offsets[place]
            self.told.pop(place, None)
        return changed, forgotten

    def fetch(self) -> None:
        self.finish_waiting()
        is_first = not self.offsets
        changed, forgotten = self.begin()
        expected = {place: self.row(place, offset) for place, offset in self.offsets.items()}
        if not is_first:
            expected = self.expected()
        rows = self.room.rows(self.room.send_fetch(changed, forgotten))
        assert rows == expected
        self.note(rows)

    def fetch_little(self) -> None:
        """Fetch fewer bytes than there are: what is left out must come with a later answer."""
        self.finish_waiting()
        if not self.offsets:
            return
        expected = self.expected()
        size = self.random.randrange(1, 300)
        rows = self.room.rows(self.room.send_fetch({}, max_bytes=size))
        for place, row in rows.items():
            assert row._replace(has_records=False) == expected[place]._replace(has_records=False)
        assert any(row.has_records for row in rows.values()) == any(row.has_records for row in expected.values())
        self.note(rows)

    def wait(self) -> None:
        self.finish_waiting()
        if not self.offsets:
            return
        changed, forgotten = self.begin()
        expected = self.expected()
        self.waiting = self.room.send_fetch(changed, forgotten, max_wait=WAIT_MS)
        if self.waiting.slot.reply is not None:
            assert any(row.error_code or row.has_records for row in expected.values())
            self.take_answer(expected)

    def check_waiting(self) -> None:
        if self.waiting is None:
            return
        expected = self.expected()
        if self.waiting.slot.reply is not None:
            self.take_answer(expected)
        else:
            assert not any(row.has_records for row in expected.values())

    def finish_waiting(self) -> None:
        if self.waiting is not None:
            expected = self.expected()
            self.room.api.waiting[self.waiting].expire()
            self.take_answer(expected)

    def take_answer(self, expected: dict[Place, Row]) -> None:
        rows = self.room.rows(self.waiting)
        self.waiting = None
        for place in expected.keys() - rows.keys():
            # A topic's partitions are deleted one by one; the first wakes the fetch, the next answer has the others.
            assert expected.pop(place).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert rows == expected
        self.note(rows)


@pytest.mark.parametrize("seed", range(20))
def test_answers_name_every_partition_with_news_whatever_happens(tmp_path: Path, seed: int) -> None:
    room = SessionRoom(tmp_path)
    model = Model(room, seed)
    for _ in range(150):
        model.step()
    model.finish_waiting()
    assert room.api.parked == 0
