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
from tests.unit.broker.test_fetch_transactions import READ_COMMITTED, Connection, FetchFixture
from tests.unit.log.log_fixtures import NOW, batch
from tests.unit.log.txn_fixtures import txn_batch

from ottla.broker.fetch import api as fetch_module
from ottla.broker.fetch import fetch as one_fetch_module
from ottla.broker.partitions.partition import Partition
from ottla.model.errors import ErrorCode
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


class SessionFixture(FetchFixture):
    """A fetch API, its partitions, and a client with a session."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.deferred: Any = Deferred()
        self.api.deferred = self.deferred
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
        self.manager.commits.write_turn()

    @property
    def registered(self) -> int:
        return sum(len(each.readers) + len(each.stable_readers) for each in self.manager.all())


@pytest.fixture
def fixture(tmp_path: Path) -> SessionFixture:
    return SessionFixture(tmp_path)


A, B = ("orders", 0), ("orders", 1)


def test_partition_without_news_is_not_looked_at(fixture: SessionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture.add(1)
    fixture.open(A, B)
    looked_at: list[int] = []
    original = one_fetch_module.read_partition

    def count(partition: Partition, *arguments: Any, **fields: Any) -> Any:
        looked_at.append(partition.name.partition)
        return original(partition, *arguments, **fields)

    monkeypatch.setattr(one_fetch_module, "read_partition", count)
    assert fixture.fetch() == {}
    assert looked_at == []
    fixture.write(fixture.partition)
    assert fixture.fetch() == {A: Row(0, 1, 0, True)}
    assert looked_at == [0]


def test_waiting_fetch_is_woken_by_any_partition_of_its_session(fixture: SessionFixture) -> None:
    other = fixture.add(1)
    fixture.open(A, B)
    waiting = fixture.send_fetch({}, max_wait=WAIT_MS)
    assert waiting.slot.reply is None
    fixture.write(other)
    assert fixture.rows(waiting) == {B: Row(0, 1, 0, True)}
    assert fixture.api.parked == 0


def test_waiting_fetch_counts_the_bytes_of_all_partitions(fixture: SessionFixture) -> None:
    other = fixture.add(1)
    fixture.open(A, B)
    waiting = fixture.send_fetch({}, max_wait=WAIT_MS, min_bytes=2 * len(batch()) + 1)
    fixture.write(fixture.partition)
    fixture.write(other)
    assert waiting.slot.reply is None
    fixture.write(other)
    assert set(fixture.rows(waiting)) == {A, B}


def test_next_fetch_of_a_session_answers_the_one_that_waits(fixture: SessionFixture) -> None:
    fixture.open(A)
    first = fixture.send_fetch({}, max_wait=WAIT_MS)
    second = fixture.send_fetch({}, max_wait=WAIT_MS)
    assert fixture.rows(first) == {}
    assert second.slot.reply is None
    assert fixture.api.parked == 1
    fixture.write(fixture.partition)
    assert fixture.rows(second) == {A: Row(0, 1, 0, True)}


def test_session_that_its_client_abandoned_costs_writers_nothing(fixture: SessionFixture) -> None:
    fixture.open(A)
    assert fixture.registered == 1
    fixture.write(fixture.partition)
    assert fixture.registered == 0


def test_closed_session_answers_its_fetch_and_leaves_nothing_behind(fixture: SessionFixture) -> None:
    fixture.open(A)
    waiting = fixture.send_fetch({}, max_wait=WAIT_MS)
    fixture.epoch = -1
    fixture.fetch()
    assert waiting.slot.reply is not None
    assert (fixture.registered, len(fixture.api.sessions), fixture.api.sessions.partitions) == (0, 0, 0)


def test_forgotten_partition_is_not_waited_for(fixture: SessionFixture) -> None:
    other = fixture.add(1)
    fixture.open(A, B)
    waiting = fixture.send_fetch({}, [B], max_wait=WAIT_MS)
    fixture.write(other)
    assert waiting.slot.reply is None
    assert fixture.registered == 1


def test_change_of_the_isolation_level_ends_the_session(fixture: SessionFixture) -> None:
    fixture.open(A)
    fixture.isolation = READ_COMMITTED
    assert fixture.error(fixture.send_fetch({})) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (fixture.registered, len(fixture.api.sessions)) == (0, 0)


def test_fetch_of_many_changed_partitions_is_looked_at_later(fixture: SessionFixture) -> None:
    places = [("orders", number) for number in range(20)]
    partitions = [fixture.partition, *(fixture.add(number) for _, number in places[1:])]
    fixture.open(*places)
    for partition in partitions:
        fixture.write(partition)
    fixture.deferred.units = 0
    waiting = fixture.send_fetch({}, max_wait=WAIT_MS)
    assert waiting.slot.reply is None
    fixture.deferred.run()
    assert len(fixture.rows(waiting)) == 20


def test_fetch_that_is_to_be_looked_at_later_waits_then_if_there_is_nothing(fixture: SessionFixture) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        fixture.add(number)
    fixture.open(*places)
    fixture.deferred.units = 0
    waiting = fixture.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    fixture.deferred.run()
    assert waiting.slot.reply is None
    fixture.write(fixture.partition)
    fixture.deferred.run()
    assert fixture.rows(waiting) == {A: Row(0, 1, 0, True)}


def test_client_that_leaves_before_its_fetch_is_looked_at_is_forgotten(fixture: SessionFixture) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        fixture.add(number)
    fixture.open(*places)
    fixture.deferred.units = 0
    waiting = fixture.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    waiting.closing = True
    for cancel in list(waiting.on_close):
        cancel()
    fixture.deferred.run()
    assert waiting.slot.reply is None
    assert fixture.api.parked == 0


def test_large_backlog_is_served_in_turns(fixture: SessionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_fetch_module, "_PARTITIONS_READ_MAX", 2)
    places = [("orders", number) for number in range(5)]
    partitions = [fixture.partition, *(fixture.add(number) for _, number in places[1:])]
    fixture.open(*places)
    for partition in partitions:
        fixture.write(partition)
    served = [set(fixture.fetch()) for _ in range(3)]
    assert served[0] == {places[0], places[1]}
    assert served[1] == {places[2], places[3]}
    assert served[2] == {places[4], places[0]}


def test_unknown_partitions_are_reported_in_turns(fixture: SessionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_fetch_module, "_PARTITIONS_READ_MAX", 2)
    places = [("unknown", number) for number in range(3)]
    fixture.open(*places)
    assert set(fixture.fetch(max_wait=WAIT_MS)) == {places[0], places[1]}
    assert set(fixture.fetch(max_wait=WAIT_MS)) == {places[2], places[0]}


# -- without a session ----------------------------------------------------------------------------------------------


def test_fetch_beyond_the_budget_of_parked_partitions_waits_for_its_time(
    fixture: SessionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "PARKED_PARTITIONS_MAX", 1)
    fixture.epoch = -1
    first = fixture.send_fetch({A: 0}, max_wait=WAIT_MS)
    fixture.epoch = -1
    second = fixture.send_fetch({A: 0}, max_wait=WAIT_MS)
    assert (fixture.registered, fixture.api.parked) == (1, 2)
    fixture.write(fixture.partition)
    assert fixture.rows(first) == {A: Row(0, 1, 0, True)}
    assert second.slot.reply is None
    fixture.api.waiting[second].expire()
    assert fixture.rows(second) == {A: Row(0, 1, 0, True)}
    assert (fixture.api.parked, fixture.api.parked_partitions) == (0, 0)


def test_waking_a_fetch_of_many_partitions_is_deferred(fixture: SessionFixture) -> None:
    places = [("orders", number) for number in range(20)]
    for _, number in places[1:]:
        fixture.add(number)
    fixture.epoch = -1
    waiting = fixture.send_fetch(dict.fromkeys(places, 0), max_wait=WAIT_MS)
    fixture.deferred.units = 0
    fixture.write(fixture.partition)
    fixture.api.waiting[waiting].expire()
    assert waiting.slot.reply is None
    fixture.deferred.run()
    assert len(fixture.rows(waiting)) == 20
    assert (fixture.registered, fixture.deferred.jobs) == (0, [])


# -- any order of events --------------------------------------------------------------------------------------------


class Model:
    """A client's session next to the partitions, and what each answer must name."""

    def __init__(self, fixture: SessionFixture, seed: int) -> None:
        self.fixture = fixture
        self.random = Random(seed)
        self.offsets: dict[Place, int] = {}
        self.told: dict[Place, tuple[int, int]] = {}
        self.sequences: dict[Place, int] = {}
        self.waiting: Any = None
        fixture.isolation = self.random.randrange(2)
        self.create("orders", range(1, 4))
        self.create("returns", range(3))

    def create(self, topic: str, numbers: range) -> None:
        for number in numbers:
            self.fixture.add(number, name=topic)

    def partition(self, place: Place) -> Partition | None:
        return self.fixture.manager.find(*place)

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
        end = partition.last_stable_offset if self.fixture.isolation else partition.high_watermark
        return Row(0, partition.high_watermark, log.log_start_offset, offset < end)

    def note(self, rows: dict[Place, Row]) -> None:
        for place, row in rows.items():
            self.told[place] = (-1 if row.error_code else row.high_watermark, row.log_start_offset)

    # -- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        choices = (self.write, self.write, self.send, self.end, self.delete_records, self.delete_or_create, self.fetch)
        self.random.choice((*choices, self.fetch, self.fetch_little, self.wait, self.wait))()
        self.fixture.manager.commits.write_turn()
        self.check_waiting()

    def any_place(self) -> Place:
        return self.random.choice(("orders", "returns")), self.random.randrange(4)

    def write(self) -> None:
        if (partition := self.partition(self.any_place())) is not None:
            self.fixture.append(partition, batch(self.random.randrange(1, 4)))

    def send(self) -> None:
        place = self.any_place()
        if (partition := self.partition(place)) is not None:
            sequence = self.sequences.get(place, 0)
            self.sequences[place] = sequence + 1
            data = bytearray(txn_batch(pid=1, sequence=sequence))
            self.fixture.manager.append(partition, data, memoryview(data), 0, len(data), NOW, transactional=True)

    def end(self) -> None:
        place = self.any_place()
        if (partition := self.partition(place)) is not None and self.sequences.get(place):
            self.fixture.manager.append_marker(
                partition, 1, 0, commit=self.random.random() < 0.5, coordinator_epoch=0, now_ms=NOW
            )

    def delete_records(self) -> None:
        if (partition := self.partition(self.any_place())) is not None:
            start, end = partition.log.log_start_offset, partition.high_watermark
            self.fixture.manager.delete_records(partition, self.random.randint(start, end))

    def delete_or_create(self) -> None:
        if self.random.random() < 0.8:
            return
        if self.partition(("returns", 0)) is None:
            self.create("returns", range(3))
        else:
            self.fixture.manager.remove_topic(b"returns", lambda: str(self.random.random()))
            self.fixture.threads.run()
            self.sequences = {place: n for place, n in self.sequences.items() if place[0] != "returns"}

    def changes(self) -> tuple[dict[Place, int], list[Place]]:
        """Draw what the next request changes: offsets that move on, new partitions, forgotten ones."""
        changed = {}
        for place in list(self.offsets) if self.fixture.session_id else []:
            if self.random.random() < 0.3:
                changed[place] = self.some_offset(place)
        for _ in range(self.random.randrange(1 if self.fixture.session_id else 5)):
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
            self.fixture.session_id, self.fixture.epoch = 0, 0
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
        rows = self.fixture.rows(self.fixture.send_fetch(changed, forgotten))
        assert rows == expected
        self.note(rows)

    def fetch_little(self) -> None:
        """Fetch fewer bytes than there are: what is left out must come with a later answer."""
        self.finish_waiting()
        if not self.offsets:
            return
        expected = self.expected()
        size = self.random.randrange(1, 300)
        rows = self.fixture.rows(self.fixture.send_fetch({}, max_bytes=size))
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
        self.waiting = self.fixture.send_fetch(changed, forgotten, max_wait=WAIT_MS)
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
            self.fixture.api.waiting[self.waiting].expire()
            self.take_answer(expected)

    def take_answer(self, expected: dict[Place, Row]) -> None:
        rows = self.fixture.rows(self.waiting)
        self.waiting = None
        for place in expected.keys() - rows.keys():
            # A topic's partitions are deleted one by one; the first wakes the fetch, the next answer has the others.
            assert expected.pop(place).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert rows == expected
        self.note(rows)


@pytest.mark.parametrize("seed", range(20))
def test_answers_name_every_partition_with_news_whatever_happens(tmp_path: Path, seed: int) -> None:
    fixture = SessionFixture(tmp_path)
    model = Model(fixture, seed)
    for _ in range(150):
        model.step()
    model.finish_waiting()
    assert fixture.api.parked == 0
