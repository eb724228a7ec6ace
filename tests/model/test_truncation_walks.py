"""Random walks of a log through appends, truncations, rolls, retention, syncs in flight and power failures.

A walk is a list of steps that its seed determines. The jobs of threads have two parts, the work and the report of the
result; other steps come between the two, and one job may overtake another. The walk knows every batch that must be in
the log, and checks:

- After a power failure the log has everything that it reported as synced, and nothing but a beginning of what it had.
- The files in the folder belong to the log's segments: deleted ones do not come back, others are not deleted.
- The index files of segments that recovery does not read match their batches.
- Epochs and producers are those of the batches.

A failed walk prints its seed and its steps. ``OTTLA_RANDOM_EXAMPLES=1`` walks more, with new seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from tests.unit.log.log_fixtures import NAME, NOW, append, batch, stored, topic
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log.index import POSITION_MASK, OffsetIndex
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.model.batch import read_header
from ottla.testing.disk import Keep, MemoryDisk

SETTINGS = topic(segment_ms=1000, index_interval_bytes=0)
STEPS = 70
RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
#: each group of walks is one test; the first seeds are fixed in `make test`
GROUPS, WALKS = (8, 400) if RANDOM else (4, 60)
FIRST_SEED = int.from_bytes(os.urandom(4), "big") if RANDOM else 0


@dataclass(slots=True)
class Job:
    """The work of a thread, and what the event loop does with its result."""

    name: str
    work: Callable[[], None]
    report: Callable[[], None]
    is_done: bool = False


class Walk:
    """One log and all that is known about it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.path = path
        self.trace: list[str] = []
        self.jobs: list[Job] = []
        #: the batches that must be in the log, from the first segment on; those after ``written_end`` are pending
        self.batches: list[bytes] = []
        #: batches of the dropped segments before these; they may come back after a power failure
        self.deleted: list[bytes] = []
        #: records before this offset were deleted; a crash may bring them back, but not their epochs
        self.start_max = 0
        self.epoch = 0
        self.counter = 0
        self.boot(disk_with(path))

    def boot(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.fixture = StoreFixture(disk, self.path)
        try:
            self.fixture.start(spec(settings=SETTINGS))
        except BaseException:
            self.fixture.abandon()
            raise
        self.jobs = []
        self.log.become_leader(self.epoch)

    @property
    def log(self) -> Log:
        return self.fixture.log()

    def run(self) -> None:
        choices = [step for step, weight in self.WEIGHTS.items() for _ in range(weight)]
        for _ in range(STEPS):
            step = self.rng.choice(choices)
            self.trace.append(step)
            getattr(self, step)()
            for work, done in self.fixture.threads.jobs:
                self.jobs.append(Job("thread", work, lambda done=done: done(None)))  # type: ignore[misc]
            self.fixture.threads.jobs.clear()
            self.check()
        self.fail_power()

    #: how often each step is chosen
    WEIGHTS: ClassVar = {
        "produce": 8, "follow": 5, "write": 6, "roll": 3, "start_sync": 4, "run_job": 10, "truncate": 4, "restart": 1,
        "delete_records": 2, "checkpoint": 3, "lead": 1, "fail_power": 2, "kill": 1,
    }  # fmt: skip

    # -- steps --------------------------------------------------------------------------------------------------------

    def next_batch(self, count: int, sequence: int = -1) -> bytes:
        """Return a batch that no other equals, of a producer if it has a sequence number."""
        self.counter += 1
        producer = (7, 0, sequence) if sequence >= 0 else None
        return batch(count, size=self.rng.choice((1, 1, 40)), producer=producer, key=b"%d" % self.counter)

    def next_sequence(self) -> int:
        """Return the producer's next sequence number, or -1 for a batch without a producer."""
        if self.rng.random() < 0.6:
            return -1
        entry = self.log.producers.get(7)
        return entry.next_sequence if entry is not None else 0

    def produce(self) -> None:
        data, base = self.next_batch(1, self.next_sequence()), self.log.log_end_offset
        assert append(self.log, data, NOW) == (base, base + 1)
        self.batches.append(stored(data, base, self.epoch))

    def follow(self) -> None:
        base, parts, sequence = self.log.log_end_offset, [], self.next_sequence()
        for _ in range(self.rng.randint(1, 3)):
            count = self.rng.randint(1, 3)
            self.epoch += self.rng.random() < 0.1
            parts.append(stored(self.next_batch(count, sequence), base, self.epoch))
            base, sequence = base + count, sequence + count if sequence >= 0 else -1
        fetched = b"".join(parts) + parts[0][: self.rng.choice((0, 30, 65))]
        first = self.log.log_end_offset
        answer = self.log.append_as_follower(memoryview(fetched), leader_epoch=self.epoch, now_ms=NOW)
        assert answer == (first, base)
        self.batches += parts
        self.log.become_leader(self.epoch)

    def write(self) -> None:
        self.log.write_pending()

    def roll(self) -> None:
        if self.log.active.size_bytes:
            self.log.roll()

    def lead(self) -> None:
        self.epoch += 1
        self.log.become_leader(self.epoch)

    def start_sync(self) -> None:
        log, job = self.log, self.log.start_sync()
        self.jobs.append(Job("sync", job.run, lambda: log.note_synced(job)))

    def run_job(self) -> None:
        if not self.jobs:
            return
        job = self.rng.choice(self.jobs)
        self.trace[-1] += f" {job.name} {'report' if job.is_done else 'work'}"
        if job.is_done:
            self.jobs.remove(job)
            job.report()
        else:
            job.work()
            job.is_done = True

    def truncate(self) -> None:
        log = self.log
        offset = max(log.log_end_offset - self.rng.choice((0, 1, 1, 2, 3, 5, 8, 13, 30)), 0)
        self.trace[-1] += f" to {offset}"
        written, first = log.written_end_offset, log.segments[0].base_offset
        log.truncate_to(offset)
        if offset < first:
            self.batches, self.deleted = [], []
        elif offset < written or offset < self.end:
            self.keep_below(min(offset, written))
        self.start_max = min(self.start_max, log.log_end_offset)
        self.check_synced()

    def restart(self) -> None:
        bases = [segment.base_offset for segment in (*self.log.undeleted, *self.log.segments)]
        offset = self.rng.choice([0, *bases, self.log.log_end_offset + 3])
        self.trace[-1] += f" at {offset}"
        self.log.truncate_fully_and_start_at(offset)
        self.batches, self.deleted, self.start_max = [], [], offset
        assert (self.log.log_start_offset, self.log.log_end_offset) == (offset, offset)
        self.check_synced()

    def delete_records(self) -> None:
        start, end = self.log.log_start_offset, self.log.written_end_offset
        offset = self.rng.randint(start, end) if start < end else start
        self.trace[-1] += f" before {offset}"
        self.fixture.store.advance_log_start(self.log, offset)
        self.start_max = max(self.start_max, offset)
        self.forget_first()

    def checkpoint(self) -> None:
        self.fixture.store.write_checkpoints({NAME: self.log.synced_end_offset}, sync=self.rng.random() < 0.3)

    def kill(self) -> None:
        self.crash("process", self.log.written_end_offset)
        assert self.log.log_end_offset == self.end

    def fail_power(self) -> None:
        self.crash("power", self.log.synced_end_offset)

    def crash(self, keep: Keep, promised: int) -> None:
        written, start = self.log.written_end_offset, self.log.log_start_offset
        before = [data for data in self.batches if read_header(data).next_offset <= written]
        disk = self.disk.crash(Random(self.rng.random()), keep)
        self.fixture.abandon()
        self.boot(disk)
        log = self.log
        found = in_files(log)
        assert log.log_start_offset <= max(start, log.log_end_offset)
        assert promised <= log.log_end_offset <= max(written, log.log_start_offset)
        # Batches that retention dropped may come back.
        first = base_of(found[0]) if found else log.log_end_offset
        assert found == [data for data in (*self.deleted, *before) if base_of(data) >= first][: len(found)]
        self.batches, self.deleted = found, []

    # -- what must hold -----------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.log.log_end_offset

    def keep_below(self, offset: int) -> None:
        self.batches = [data for data in self.batches if read_header(data).next_offset <= offset]

    def forget_first(self) -> None:
        first = self.log.segments[0].base_offset
        self.deleted += [data for data in self.batches if base_of(data) < first]
        self.batches = [data for data in self.batches if base_of(data) >= first]

    def check_synced(self) -> None:
        """A truncation leaves nothing that a power failure could bring back."""
        crashed = self.disk.crash(Random(self.rng.random()), "power")
        live = {segment.base_offset for segment in (*self.log.segments, *self.log.undeleted)}
        assert bases_of(crashed, self.log.directory, ".log") <= live

    def check(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end
        assert log.synced_end_offset <= log.written_end_offset
        assert log.recovery_point <= max(log.synced_end_offset, log.log_start_offset)
        assert not any(segment.dropped for segment in log.segments)
        if log.make_folder is not None:
            return
        live = {segment.base_offset for segment in (*log.segments, *log.undeleted)}
        assert bases_of(self.disk, log.directory, "index") <= live
        files = bases_of(self.disk, log.directory, ".log")
        assert {segment.base_offset for segment in log.segments if segment.written_bytes} <= files <= live
        for segment in log.segments[:-1]:
            if segment.indexed_bytes == segment.size_bytes:
                check_index(self.disk, segment)

    def check_contents(self) -> None:
        log = self.log
        log.write_pending()
        assert in_files(log) == self.batches
        headers = [read_header(data) for data in self.batches]
        for header in headers:
            if header.base_offset >= self.start_max:
                assert log.epochs.epoch_at(header.base_offset) == header.leader_epoch
        produced = [header.last_offset for header in headers if header.producer_id == 7]
        entry = log.producers.get(7)
        assert entry is None or not produced or entry.batches[-1].last_offset == produced[-1]


def base_of(data: bytes) -> int:
    return read_header(data).base_offset


def in_files(log: Log) -> list[bytes]:
    return [each.batch(*where) for each in log.segments for where in each.headers()]


def bases_of(disk: MemoryDisk, folder: str, suffix: str) -> set[int]:
    names = disk.listdir(folder) if disk.exists(folder) else []
    return {int(name[:20]) for name in names if name.endswith(suffix)}


def check_index(disk: MemoryDisk, segment: Segment) -> None:
    """The index file, which recovery will not rebuild, has an entry of a batch at each of its positions."""
    index = OffsetIndex.from_bytes(disk.read_file(segment.path(".index")) or b"")
    batches = {position: header.last_offset for position, header in segment.headers()}
    for entry in index.entries:
        assert batches.get(entry & POSITION_MASK) == segment.base_offset + (entry >> 32)


@pytest.mark.parametrize("group", range(GROUPS))
def test_synced_batches_survive_and_truncated_ones_do_not_come_back(tmp_path: Path, group: int) -> None:
    for seed in range(FIRST_SEED + group * WALKS, FIRST_SEED + (group + 1) * WALKS):
        walk = Walk(tmp_path, seed)
        try:
            walk.run()
            walk.check_contents()
        except BaseException as error:
            error.add_note(f"seed {seed}, steps: {', '.join(walk.trace)}")
            raise
        finally:
            walk.fixture.abandon()
