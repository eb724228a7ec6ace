"""The machine stops after every single change that a life with compaction makes to the disk.

After the death of the process every record that was written is there, after a power cut every record that was synced,
unless a newer one of its key is there too; a key that was deleted does not come back. Nothing is there that was never
written, and the log takes batches again and knows its producers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, Pair, compacted, pairs_batch
from tests.unit.log.log_fixtures import NAME, NOW, append, contents
from tests.unit.log.store_fixtures import disk_with

from ottla.log import compaction
from ottla.model.batch import read_header
from ottla.model.records import Record, iterate_records
from ottla.model.settings import TopicSettings
from ottla.testing.disk import DiskCut, Keep, MemoryDisk

RETENTION_MS = 60_000
SEEDS = 2
#: `make test` cuts after every third change and begins anywhere, `make campaign NAME=crash` after every single one
EVERY = int(os.environ.get("OTTLA_CUT_EVERY", "12"))


def settings_of(policy: str) -> TopicSettings:
    return compacted(cleanup_policy=policy, segment_bytes=700, max_message_bytes=700, delete_retention_ms=RETENTION_MS)


class Life:
    """A room through its script, and what has been promised so far."""

    def __init__(self, path: Path, disk: MemoryDisk) -> None:
        self.fixture = CompactionFixture(path, settings_of("compact"), disk)
        #: every record that was ever appended, by offset
        self.sent: dict[int, Record] = {}
        self.sequence = 0
        self.minutes = 0
        self.written = 0
        self.synced = 0
        self.start = 0

    def run(self, script: list[Callable[[Life], None]]) -> None:
        for step in script:
            step(self)
            self.remember()

    def remember(self) -> None:
        log = self.fixture.log
        self.written, self.synced = log.written_end_offset, log.synced_end_offset
        self.start = log.log_start_offset


def produce(*pairs: Pair, idempotent: bool = False, codec: int = 0) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        log, timestamp = life.fixture.log, NOW + life.minutes * 60_000
        base = log.log_end_offset
        for number, (key, value) in enumerate(pairs):
            headers = [("n", b"%d" % number)]
            life.sent[base + number] = Record(base + number, timestamp + number, key, value, headers, number)
        producer = (9, 0, life.sequence) if idempotent else None
        life.sequence += len(pairs) if idempotent else 0
        life.fixture.produce(*pairs, timestamp=timestamp, producer=producer, codec=codec)

    return step


def roll(life: Life) -> None:
    life.fixture.roll()


def settle(life: Life) -> None:
    life.fixture.settle()


def checkpoint(life: Life) -> None:
    life.fixture.fixture.store.write_checkpoints({}, sync=False)


def compact(life: Life) -> None:
    assert life.fixture.compact(NOW + life.minutes * 60_000)


def compact_while_producing(life: Life) -> None:
    assert life.fixture.begin(NOW + life.minutes * 60_000)
    while life.fixture.threads.jobs:
        life.fixture.threads.run_one()
        if life.fixture.log.log_end_offset % 3:
            life.remember()
            produce((b"a", b"while %d" % life.fixture.log.log_end_offset))(life)


def let_time_pass(life: Life) -> None:
    life.minutes += 2


def become(policy: str) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        life.fixture.settings = settings_of(policy)
        life.fixture.log.configure(life.fixture.settings)

    return step


def restart(life: Life) -> None:
    life.fixture.restart()


def drop_start(life: Life) -> None:
    life.fixture.fixture.store.advance_log_start(life.fixture.log, life.fixture.log.segments[1].base_offset)
    life.fixture.threads.run()


SCRIPT = [
    produce((b"a", b"1"), (b"b", b"1")), produce((b"c", b"1"), idempotent=True), roll,
    produce((b"a", b"2"), (b"d", b"2" * 300)), produce((b"c", None)), roll, settle, checkpoint,
    produce((b"b", None), (b"e", b"3")), compact, produce((b"e", b"4")), roll, produce((b"f", b"5" * 400)), roll,
    produce((b"a", b"6"), (b"d", b"6" * 200), codec=4), compact, checkpoint, let_time_pass, roll,
    produce((b"g", b"7")), compact, restart, produce((b"c", b"8"), idempotent=True), roll,
    produce((b"a", b"9"), (b"h", b"9")), compact_while_producing, roll, produce((b"a", b"10")), settle,
    become("delete"), checkpoint, produce((b"i", b"11"), (b"a", b"11")), roll, produce((b"i", b"12")), settle,
    become("compact,delete"), compact, let_time_pass, produce((b"f", None)), roll, produce((b"j", b"13")), compact,
    drop_start, produce((b"j", None)), roll, produce((b"a", b"14"), idempotent=True), compact, restart, let_time_pass,
    roll, produce((b"z", b"15")), compact,
]  # fmt: skip


def lives(path: Path, every: int = 1) -> Iterator[tuple[int, Life]]:
    """The life, cut after no change, after one, after two, and so on to its end; or every so many, from anywhere."""
    changes = Random().randrange(every)
    while True:
        life = Life(path, disk_with(path))
        life.fixture.disk.cut_after(changes, seed=changes)
        try:
            life.run(SCRIPT)
        except DiskCut:
            life.fixture.abandon()
            yield changes, life
            changes += every
        else:
            life.fixture.abandon()
            assert changes > 300, "the script is shorter than it should be"
            return


def check(life: Life, disk: MemoryDisk, promised: int) -> None:
    fixture = life.fixture.crash(disk)
    try:
        log = fixture.log
        assert log.log_end_offset >= promised
        assert not [name for name in fixture.files() if name.endswith((".cleaned", ".swap", ".tmp"))]
        found = {record.offset: record for record in fixture.stored_records()}
        for offset, record in found.items():
            assert record == life.sent[offset]
        #: what was not promised may be there or not
        sent = [record for offset, record in life.sent.items() if offset < promised or offset in found]
        last_of = {record.key: record for record in sent}
        seen = {record.key: record for record in found.values()}
        start = max(life.start, *(each.log_start_offset for each in life.fixture.fixture.store.logs.values()), 0)
        for key, record in last_of.items():
            if record.offset < start:
                continue
            if record.value is None and key not in seen:
                continue  # deleted, and the deletion's time is over
            assert seen[key] == record, f"{key!r} is {seen.get(key)}"
        readable_from_everywhere(fixture)
        compact_again(fixture, seen, last_of)
    finally:
        fixture.abandon()


def readable_from_everywhere(fixture: CompactionFixture) -> None:
    log, end = fixture.log, fixture.log.written_end_offset
    ends = [header.next_offset for each in log.segments if each.size_bytes for _, header in each.headers()]
    for offset in range(log.log_start_offset, end):
        region = log.read(offset, 1, end, at_least_one=True)
        expected = next((each for each in ends if each > offset), None)
        assert (None if region is None else read_header(region.read()).next_offset) == expected


def compact_again(
    fixture: CompactionFixture, seen: dict[bytes | None, Record], last_of: dict[bytes | None, Record]
) -> None:
    """The next pass does not bring back what was deleted, and takes nothing that counts."""
    fixture.settings = settings_of("compact")
    fixture.log.configure(fixture.settings)
    fixture.roll()
    end, _ = append(fixture.log, pairs_batch((b"after", b"the crash")))
    fixture.log.write_pending()
    fixture.compact(NOW + (1 << 40))
    again = {record.key: record for record in fixture.records() if record.offset < end}
    for key, record in again.items():
        assert seen[key] == record == last_of.get(key, record)
    assert {key for key, record in seen.items() if record.value is not None} <= again.keys()


def test_no_record_that_counts_is_lost_wherever_the_machine_stops(tmp_path: Path) -> None:
    for changes, life in lives(tmp_path, EVERY):
        kinds: list[tuple[Keep, int]] = [("process", 0), *(("power", seed) for seed in range(SEEDS))]
        for keep, seed in kinds:
            promised = life.written if keep == "process" else life.synced
            try:
                check(life, life.fixture.disk.crash(Random(1000 * changes + seed), keep), promised)
            except BaseException as error:
                error.add_note(f"cut after {changes} changes, keep={keep}, seed={seed}")
                raise


def test_finishing_a_swap_can_be_cut_everywhere_too(tmp_path: Path) -> None:
    finished = 0
    for changes, life in lives(tmp_path, EVERY):
        crashed = life.fixture.disk.crash(Random(changes), "process")
        folder = f"{tmp_path}/{NAME}"
        if not crashed.exists(folder) or not any(name.endswith(".swap") for name in crashed.listdir(folder)):
            continue
        finished += 1
        again = 0
        while True:
            disk = crashed.crash(Random(0), "process")
            disk.cut_after(again, seed=again)
            try:
                life.fixture.crash(disk).abandon()
            except DiskCut:
                check(life, disk.crash(Random(again), "power"), life.synced)
                again += 1
            else:
                break
    assert finished > 10 // EVERY


def test_small_memory_for_keys_loses_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "KEY_BYTES", 1 << 25)
    for changes, life in lives(tmp_path, every=5):
        check(life, life.fixture.disk.crash(Random(changes), "power"), life.synced)


def test_iterated_records_compare_with_what_was_sent(tmp_path: Path) -> None:
    """The checks above compare whole records: they must be able to fail."""
    life = Life(tmp_path, disk_with(tmp_path))
    life.run(SCRIPT[:1])
    (batch,) = contents(life.fixture.log)
    assert list(iterate_records(batch)) == list(life.sent.values())
    life.fixture.abandon()
