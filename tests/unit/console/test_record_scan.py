"""Searches of a topic: pages without gaps and repetitions, budgets, stop and resume, transactions, deleted records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import BrokerError, OffsetOutOfRange
from ottla.client.fetching import Aborted, Fetched
from ottla.edge.console.records import scan
from ottla.edge.console.records.decoding import Codecs, Decoder
from ottla.edge.console.records.expression import parse_search
from ottla.edge.console.records.scan import BadPosition, Budget, Scan, Wanted, begin, parse_positions, resume
from ottla.edge.console.records.source import LogRange, ReadBatch, classified
from ottla.edge.console.records.view import ABORTED, COMMITTED, OPEN, PLAIN, RecordView
from ottla.model.batch import read_header
from ottla.model.records import Record, batch_without_records, build_batch
from ottla.model.types import TopicPartition

LARGE = Budget(10**9, 10**12, 1e9)


def batch_of(base: int, values: Iterable[bytes | None], *, timestamp: int = 0, step: int = 1) -> bytes:
    """Return a batch whose records have every ``step``-th offset."""
    records = [
        Record(timestamp=timestamp + place * step, value=value, offset_delta=place * step)
        for place, value in enumerate(values)
    ]
    return build_batch(records, base_offset=base)


@dataclass
class FakeLog:
    """Partitions in memory."""

    partitions: dict[int, list[ReadBatch]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    stables: dict[int, int] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    bytes_read: int = 0

    def add(self, partition: int, batch: bytes, state: str = PLAIN) -> None:
        self.partitions.setdefault(partition, []).append(ReadBatch(read_header(batch), memoryview(batch), state))

    def end(self, partition: int) -> int:
        batches = self.partitions.get(partition)
        return batches[-1].header.next_offset if batches else 0

    def ranges(self, partitions: Iterable[int]) -> Mapping[int, LogRange]:
        return {
            each: LogRange(self.starts.get(each, 0), self.end(each), self.stables.get(each, self.end(each)))
            for each in partitions
        }

    def batches(self, partition: int, start: int, end: int, *, stable: int, fetch_bytes: int) -> Iterator[ReadBatch]:
        if partition in self.broken:
            raise BrokerError(3, "records")
        if start < self.starts.get(partition, 0):
            raise OffsetOutOfRange(TopicPartition("t", partition), start, self.starts[partition], self.end(partition))
        for batch in self.partitions.get(partition, []):
            if batch.header.last_offset >= start and batch.header.base_offset < end:
                self.bytes_read += batch.header.size_bytes
                yield batch


def row_of(view: RecordView) -> tuple[int, int]:
    return view.partition, view.offset


def new_scan(log: FakeLog, wanted: Wanted, *, budget: Budget = LARGE, at: str | None = None) -> Scan:
    ranges = log.ranges(sorted(log.partitions))
    parts = begin(ranges, wanted) if at is None else resume(ranges, wanted, parse_positions(at))
    return Scan(wanted, budget, parts, decoder=Decoder(None, Codecs()), make_row=row_of)


def all_pages(log: FakeLog, wanted: Wanted, *, budget: Budget = LARGE) -> list[list[Any]]:
    """Return the rows of each page, each from the position in the URL of the page before it."""
    pages: list[list[Any]] = []
    at = None
    for _ in range(2000):
        one = new_scan(log, wanted, budget=budget, at=at)
        rows = one.step(log, 1e9)
        while not one.pause:
            rows += one.step(log, 1e9)
        pages.append(rows)
        at = one.positions()
        if one.pause == "end":
            return pages
    raise AssertionError("the search does not end")


def test_newest_records_of_all_partitions_are_merged_by_time() -> None:
    log = FakeLog()
    log.add(0, batch_of(0, [b"a"] * 4, timestamp=100))
    log.add(1, batch_of(0, [b"b"] * 4, timestamp=102))
    first = new_scan(log, Wanted(is_backward=True, rows=3))
    assert first.step(log, 1) == [(1, 3), (1, 2), (0, 3)]
    assert (first.pause, first.positions()) == ("rows", "0.3_1.2")
    second = new_scan(log, Wanted(is_backward=True, rows=3), at=first.positions())
    assert second.step(log, 1) == [(1, 1), (0, 2), (1, 0)]


def test_oldest_records_come_in_the_order_of_time() -> None:
    log = FakeLog()
    log.add(0, batch_of(0, [b"a"] * 3, timestamp=10))
    log.add(1, batch_of(0, [b"b"] * 3, timestamp=9))
    assert all_pages(log, Wanted(is_backward=False, rows=4)) == [[(1, 0), (0, 0), (1, 1), (0, 1)], [(1, 2), (0, 2)]]


BATCHES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 3), st.integers(0, 50)), min_size=0, max_size=8
)


@given(
    layout=st.lists(BATCHES, min_size=1, max_size=3), rows=st.integers(1, 7), is_backward=st.booleans(),
    chunk=st.integers(1, 40), has_search=st.booleans(),
)  # fmt: skip
def test_pages_have_each_record_once_whatever_the_gaps(
    layout: list[list[tuple[int, int, int, int]]], rows: int, is_backward: bool, chunk: int, has_search: bool
) -> None:
    log, expected = FakeLog(), set()
    for partition, batches in enumerate(layout):
        log.partitions[partition] = []
        for gap, count, step, timestamp in batches:
            base = log.end(partition) + gap
            log.add(partition, batch_of(base, [b"%d" % n for n in range(count)], timestamp=timestamp, step=step))
            expected |= {(partition, base + n * step) for n in range(count) if not has_search or n % 2}
    search = parse_search("value in (1, 3, 5, 7)", 0) if has_search else None
    wanted = Wanted(is_backward=is_backward, rows=rows, test=search.matches if search else None)
    before = scan._CHUNK_FIRST
    scan._CHUNK_FIRST = chunk  # type: ignore[misc]
    try:
        pages = all_pages(log, wanted)
    finally:
        scan._CHUNK_FIRST = before  # type: ignore[misc]
    found = [row for page in pages for row in page]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert all(len(page) == rows for page in pages[:-1])
    for partition in range(len(layout)):
        offsets = [offset for number, offset in found if number == partition]
        assert offsets == sorted(offsets, reverse=is_backward)


class SparseLog:
    """A large partition, of which only what is read is made: one record in 20,000 matches."""

    BATCH_RECORDS = 20
    BATCHES = 5000

    def __init__(self) -> None:
        values = [b'{"id": %d, "pad": "%s"}' % (n, b"x" * 200) for n in range(self.BATCH_RECORDS)]
        self._batch = bytearray(batch_of(0, values))
        self._match = bytearray(batch_of(0, [*values[:-1], b'{"id": 777, "pad": "%s"}' % (b"x" * 200)]))

    @property
    def end(self) -> int:
        return self.BATCHES * self.BATCH_RECORDS

    def ranges(self, partitions: Iterable[int]) -> Mapping[int, LogRange]:
        return {each: LogRange(0, self.end, self.end) for each in partitions}

    def batches(self, partition: int, start: int, end: int, *, stable: int, fetch_bytes: int) -> Iterator[ReadBatch]:
        for number in range(start // self.BATCH_RECORDS, -(-end // self.BATCH_RECORDS)):
            made = self._match if number % 1000 == 900 else self._batch
            made[0:8] = (number * self.BATCH_RECORDS).to_bytes(8, "big")
            yield ReadBatch(read_header(made), memoryview(made), PLAIN)


@pytest.mark.parametrize("is_backward", [False, True])
def test_sparse_topic_is_searched_in_budgets_that_resume_where_they_paused(is_backward: bool) -> None:
    log = SparseLog()
    search = parse_search("id = 777", 0)
    assert search is not None
    wanted = Wanted(is_backward=is_backward, rows=2, test=search.matches)
    found, at, pauses, scanned = [], None, [], 0
    while len(found) < 2:
        ranges = log.ranges([0])
        parts = begin(ranges, wanted) if at is None else resume(ranges, wanted, parse_positions(at))
        one = Scan(wanted, Budget(4000, 1 << 40, 1e9), parts, decoder=Decoder(None, Codecs()), make_row=row_of)
        while not one.pause:
            found += one.step(log, 1e9)
        pauses.append(one.pause)
        scanned += one.scanned
        assert one.scanned < 44_000, "a chunk overruns the budget by a few megabytes only"
        assert one.left > 0
        at = one.positions()
    numbers = [offset // log.BATCH_RECORDS for _, offset in found]
    assert numbers == ([4900, 3900] if is_backward else [900, 1900])
    assert set(pauses[:-1]) == {"records"} and len(pauses) >= 3
    assert scanned < 60_000


def test_search_pauses_when_its_bytes_or_its_time_are_spent() -> None:
    log = FakeLog()
    for number in range(100):
        log.add(0, batch_of(number * 10, [b"x" * 100] * 10))
    wanted = Wanted(is_backward=False, rows=5, test=lambda record: False)
    by_bytes = new_scan(log, wanted, budget=Budget(10**9, 5000, 1e9))
    assert by_bytes.step(log, 1e9) == [] and by_bytes.pause == "bytes"
    assert 5000 <= by_bytes.bytes < 7000 and by_bytes.positions() == f"0.{by_bytes.scanned}"
    clock = iter(range(10_000))
    by_time = Scan(
        wanted, Budget(10**9, 10**12, 20), begin(log.ranges([0]), wanted), decoder=Decoder(None, Codecs()),
        make_row=row_of, now=lambda: float(next(clock)),
    )  # fmt: skip
    while not by_time.pause:
        by_time.step(log, 4)
    assert by_time.pause == "time" and 0 < by_time.scanned < 500
    rest = new_scan(log, wanted, at=by_time.positions())
    rest.step(log, 1e9)
    assert by_time.scanned + rest.scanned == 1000


def test_step_ends_when_its_rows_have_enough_bytes() -> None:
    log = FakeLog()
    for partition in range(3):
        for number in range(4):
            log.add(partition, batch_of(number * 10, [b"x" * 1000] * 10, timestamp=partition))
    wanted = Wanted(is_backward=True, rows=500, test=lambda record: True)
    steps: dict[int | None, list[int]] = {}
    for limit in (None, 1):
        one = new_scan(log, wanted)
        for each in one.partitions:
            each.chunk = 10
        steps[limit] = []
        while not one.pause:
            steps[limit].append(len(one.step(log, 1e9, bytes_max=limit)))
    assert steps == {None: [120], 1: [30, 90]}


def test_turns_go_round_all_partitions_when_steps_are_short() -> None:
    log = FakeLog()
    for partition in range(4):
        for number in range(20):
            log.add(partition, batch_of(number * 10, [b"x"] * 10))
    clock = iter(range(10_000))
    wanted = Wanted(is_backward=False, rows=5, test=lambda record: False)
    one = Scan(
        wanted, LARGE, begin(log.ranges(range(4)), wanted), decoder=Decoder(None, Codecs()), make_row=row_of,
        now=lambda: float(next(clock)),
    )  # fmt: skip
    for _ in range(4):
        one.step(log, 1)
    assert [each.scanned > 0 for each in one.partitions] == [True] * 4


def test_records_of_transactions_are_hidden_or_marked() -> None:
    log = FakeLog()
    states = (PLAIN, COMMITTED, ABORTED, OPEN)
    for place, state in enumerate(states):
        log.add(0, batch_of(place * 2, [b"x", b"y"]), state)
    log.stables[0] = 6
    committed = new_scan(log, Wanted(is_backward=True, rows=50))
    assert committed.step(log, 1) == [(0, 3), (0, 2), (0, 1), (0, 0)]
    assert committed.hidden == 2
    assert len(all_pages(log, Wanted(is_backward=False, rows=3, with_uncommitted=True))) == 3


def test_reply_says_what_became_of_each_transaction() -> None:
    from ottla.model.records import Record as R

    def transactional(base: int, producer: int, *, control: bool = False) -> bytes:
        return build_batch(
            [R(value=b"v")], base_offset=base, producer_id=producer, producer_epoch=0, base_sequence=0,
            transactional=True, control=control,
        )  # fmt: skip

    data = b"".join((
        transactional(0, 1), transactional(1, 2), batch_of(2, [b"plain"]), transactional(3, 1, control=True),
        transactional(4, 1), transactional(5, 2, control=True),
    ))  # fmt: skip
    fetched = Fetched(memoryview(data), 6, 6, 0, (Aborted(1, 0),))
    aborted: dict[int, int] = {}
    rows = list(classified(fetched, aborted, is_stable=True))
    assert [row.state for row in rows] == [ABORTED, COMMITTED, PLAIN, PLAIN, COMMITTED, PLAIN]
    assert [row.is_marker for row in rows] == [False, False, False, True, False, True]
    assert aborted == {}
    assert [row.state for row in classified(fetched._replace(aborted=()), {}, is_stable=False)][:2] == [OPEN, OPEN]


def test_records_that_are_deleted_meanwhile_are_skipped_with_a_note() -> None:
    log = FakeLog()
    for number in range(10):
        log.add(0, batch_of(number * 10, [b"x"] * 10))
    for is_backward in (False, True):
        log.starts.clear()
        one = new_scan(log, Wanted(is_backward=is_backward, rows=200))
        log.starts[0] = 40
        if is_backward:
            one.partitions[0].chunk = 80
        rows = []
        while not one.pause:
            rows += one.step(log, 1)
        assert len(rows) == 60 and "deleted during the search" in one.problems[0]


def test_partition_that_cannot_be_read_leaves_the_others() -> None:
    log = FakeLog(broken={1})
    log.add(0, batch_of(0, [b"a"]))
    log.add(1, batch_of(0, [b"b"]))
    one = new_scan(log, Wanted(is_backward=False, rows=10))
    assert one.step(log, 1) == [(0, 0)] and one.pause == "end"
    assert "partition 1 was not read" in one.problems[0]
    assert one.positions() == "0.1_1.0"


def test_damaged_batch_is_noted_and_the_next_one_is_read() -> None:
    log = FakeLog()
    log.add(0, batch_of(0, [b"a"] * 3))
    damaged = bytearray(batch_of(3, [b"b" * 50] * 3))
    damaged[61:66] = b"\xff" * 5
    log.add(0, bytes(damaged))
    log.add(0, batch_of(6, [b"c"] * 3))
    one = new_scan(log, Wanted(is_backward=False, rows=50))
    rows = one.step(log, 1)
    assert {(0, 0), (0, 8)} <= set(rows)
    assert "offset 3 is damaged" in one.problems[0]


def test_batch_without_records_and_empty_partitions_end_the_search() -> None:
    log = FakeLog(partitions={1: []})
    log.add(0, batch_without_records(0, 500, 0))
    for is_backward in (False, True):
        one = new_scan(log, Wanted(is_backward=is_backward, rows=5))
        rows = []
        while not one.pause:
            rows += one.step(log, 1)
        assert (rows, one.pause, one.scanned) == ([], "end", 0)


def test_chunk_that_is_too_large_is_read_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_CHUNK_BYTES_MAX", 2000)
    log = FakeLog()
    for number in range(50):
        log.add(0, batch_of(number * 10, [b"x" * 50] * 10))
    wanted = Wanted(is_backward=True, rows=7)
    found = [row for page in all_pages(log, wanted) for row in page]
    assert found == [(0, offset) for offset in reversed(range(500))]


@pytest.mark.parametrize("text", ["1", "1.x", "x.1", "1.1_", "1.-5", "9999999999.1", "1.99999999999999999999"])
def test_position_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(BadPosition, match="begin the search again"):
        parse_positions(text)


def test_position_beyond_the_log_is_moved_into_it() -> None:
    log = FakeLog()
    log.add(0, batch_of(0, [b"a"] * 3))
    for is_backward, expected in ((False, []), (True, [(0, 2), (0, 1), (0, 0)])):
        one = new_scan(log, Wanted(is_backward=is_backward, rows=5), at="0.99999_7.3")
        assert one.step(log, 1) == expected
        assert len(one.partitions) == 1
