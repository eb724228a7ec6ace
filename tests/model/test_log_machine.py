"""A log against a list of batches, through everything that can happen to it: restarts, kills and power failures too.

Threads sync the log, index its sealed segments and delete files. Their jobs have two parts, the work and the report of
the result, and other things happen between the parts: appends, truncations, rolls. What the log reports as synced must
survive every power failure, whatever the order, and what was truncated must not come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    append,
    contents,
    new_disk,
    note_of,
    open_at,
    split,
    stored,
    sync,
    topic,
)

from ottla.log.checkpoints import CleanStop
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.log.truncation import Truncation
from ottla.model.batch import SEQUENCES, read_header
from ottla.model.errors import InvalidProducerEpoch, KafkaError, OffsetOutOfRange, OutOfOrderSequence
from ottla.model.records import Record, build_batch
from ottla.testing.disk import MemoryDisk

#: value sizes: many batches to a chunk, several chunks to a batch, and batches that are written at once
SIZES = (0, 7, 60, 300, 3000, 15_000, 33_000)


@dataclass(slots=True)
class Twin:
    """One batch as the dumb twin knows it."""

    base: int
    next: int
    data: bytes
    timestamps: list[int]
    epoch: int
    producer: tuple[int, int, int] | None

    @property
    def produced(self) -> tuple[int, int, int, int]:
        assert self.producer is not None
        first = self.producer[2]
        return first, (first + self.next - self.base - 1) % SEQUENCES, self.base, self.next - 1


@dataclass(slots=True)
class Job:
    """What a thread does, and what the event loop does with the result."""

    work: Callable[[], None]
    report: Callable[[], None]
    is_done: bool = False


class LogMachine(RuleBasedStateMachine):
    """Rules do the same to both; invariants compare."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: MemoryDisk = new_disk()
        #: what threads have yet to do
        self.jobs: list[Job] = []
        #: every batch since the floor, also those that were deleted from the log's start
        self.twins: list[Twin] = []
        self.floor = 0
        #: (producer id -> epoch, last five batches)
        self.producers: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {}
        self.start = 0
        #: up to here records were deleted once; a crash may bring them back, their epochs are forgotten
        self.deleted = 0
        self.epoch = 0
        self.counter = 0
        #: (recovery point, log start) of the checkpoints that were written, and of those that were synced
        self.checkpoint = self.synced_checkpoint = (0, 0)
        self.written_end = 0

    @initialize(segment_ms=st.sampled_from([50, 100_000]), interval=st.sampled_from([0, 200, 4096]))
    def open(self, segment_ms: int, interval: int) -> None:
        self.settings = topic(
            segment_bytes=60_000, max_message_bytes=50_000, segment_ms=segment_ms, index_interval_bytes=interval
        )
        self.log = self.opened(self.disk, None)

    def opened(self, disk: MemoryDisk, clean: CleanStop | None, checkpoint: tuple[int, int] = (0, 0)) -> Log:
        log = open_at(disk, self.settings, clean=clean, recovery_point=checkpoint[0], log_start=checkpoint[1])
        log.on_roll = self.rolled
        log.lower_checkpoints = self.lower_checkpoints
        log.become_leader(self.epoch)
        return log

    def rolled(self, log: Log, sealed: Segment) -> None:
        size = sealed.size_bytes

        def report() -> None:
            log.note_segments_synced([(sealed, size)])
            if not sealed.dropped:
                sealed.release_file()

        self.jobs.append(Job(lambda: log.sync_sealed(sealed), report))

    def lower_checkpoints(self, truncations: Sequence[Truncation]) -> None:
        (planned,) = truncations
        end, start = planned.end_offset, planned.log_start_offset
        point = min(self.checkpoint[0], end)
        self.checkpoint = self.synced_checkpoint = point, min(self.checkpoint[1], end) if start is None else start

    @property
    def end(self) -> int:
        return self.twins[-1].next if self.twins else self.floor

    # -- appending ----------------------------------------------------------------------------------------------------

    def build(
        self, count: int, size: int, timestamp: int, step: int, producer: tuple[int, int, int] | None
    ) -> tuple[bytes, list[int]]:
        self.counter += 1
        value = (b"%08d" % self.counter * (size // 8 + 1))[:size]
        timestamps = [timestamp + number * step for number in range(count)]
        records = [Record(timestamp=each, key=b"k", value=value if not n else b"") for n, each in enumerate(timestamps)]
        pid, epoch, sequence = producer or (-1, -1, -1)
        return build_batch(records, producer_id=pid, producer_epoch=epoch, base_sequence=sequence), timestamps

    @rule(
        count=st.integers(1, 4), size=st.sampled_from(SIZES), timestamp=st.integers(-1, 300), step=st.integers(-5, 30)
    )
    def append_plain(self, count: int, size: int, timestamp: int, step: int) -> None:
        data, timestamps = self.build(count, size, NOW + timestamp if timestamp >= 0 else -1, step, None)
        assert append(self.log, data) == (self.end, self.end + count)
        self.noted(data, timestamps, None)

    @rule(
        pid=st.integers(1, 2), count=st.integers(1, 3), size=st.sampled_from(SIZES), timestamp=st.integers(0, 300),
        how=st.sampled_from(["next", "next", "next", "repeat", "gap", "bump", "bad bump", "old epoch"]),
        back=st.integers(1, 7),
    )  # fmt: skip
    def append_idempotent(self, pid: int, count: int, size: int, timestamp: int, how: str, back: int) -> None:
        known = self.producers.get(pid)
        if known is None:
            # Batches that were removed before they were written must come first when they are sent again.
            first = self.log.refused.first.get(pid, SEQUENCES - 2 if pid == 2 else 0)
            epoch, sequence, expected = 1, first, None
        else:
            epoch, window = known
            sequence = (window[-1][1] + 1) % SEQUENCES
            expected: type[KafkaError] | tuple[int, int] | None = None
            if how == "repeat":
                begin, last, base, last_offset = window[-min(back, len(window))]
                sequence, count = begin, (last - begin) % SEQUENCES + 1
                expected = base, last_offset + 1
            elif how == "gap":
                sequence, expected = (sequence + 1000) % SEQUENCES, OutOfOrderSequence
            elif how == "bump":
                epoch, sequence = epoch + 1, 0
            elif how == "bad bump":
                epoch, sequence, expected = epoch + 1, 5, OutOfOrderSequence
            elif how == "old epoch":
                epoch, expected = epoch - 1, InvalidProducerEpoch
        producer = pid, epoch, sequence
        data, timestamps = self.build(count, size, NOW + timestamp, 1, producer)
        try:
            answer: object = append(self.log, data)
        except KafkaError as error:
            answer = type(error)
        if expected is not None:
            assert answer == expected
            return
        assert answer == (self.end, self.end + count)
        self.noted(data, timestamps, producer)

    def noted(self, data: bytes, timestamps: list[int], producer: tuple[int, int, int] | None) -> None:
        base = self.end
        twin = Twin(base, base + len(timestamps), stored(data, base, self.epoch), timestamps, self.epoch, producer)
        self.twins.append(twin)
        self.note_producer(twin)
        self.written_end = self.log.written_end_offset  # large batches and rolls write
        assert self.log.written_end_offset <= self.end

    @rule()
    def write(self) -> None:
        self.log.write_pending()
        self.written_end = self.end
        assert self.log.written_end_offset == self.end

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1
        self.log.become_leader(self.epoch)

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), size=st.sampled_from(SIZES),
        timestamp=st.integers(0, 300), pid=st.sampled_from([-1, 1, 2]), new_epoch_at=st.integers(-6, 3),
        cut=st.sampled_from([0, 0, 1, 50]),
    )  # fmt: skip
    def append_as_follower(
        self, counts: list[int], size: int, timestamp: int, pid: int, new_epoch_at: int, cut: int
    ) -> None:
        """Append several batches of a leader at once; the last may be incomplete."""
        base, fetched, twins = self.end, b"", []
        for number, count in enumerate(counts):
            self.epoch += number == new_epoch_at
            epoch, window = self.producers.get(pid, (0, []))
            sequence = (window[-1][1] + 1) % SEQUENCES if window else 0
            producer = (pid, epoch, sequence) if pid >= 0 else None
            data, timestamps = self.build(count, size, NOW + timestamp, 1, producer)
            data = stored(data, base, self.epoch)
            if number + 1 < len(counts) or not cut:
                twins.append(Twin(base, base + count, data, timestamps, self.epoch, producer))
                self.note_producer(twins[-1])
            fetched += data
            base += count
        view = memoryview(fetched)[: len(fetched) - cut]
        end = twins[-1].next if twins else self.end
        answer = self.log.append_as_follower(view, leader_epoch=self.epoch, now_ms=NOW)
        assert answer == (self.end, end)
        self.twins += twins
        self.written_end = self.log.written_end_offset
        self.log.become_leader(self.epoch)

    def note_producer(self, twin: Twin) -> None:
        if twin.producer is not None:
            pid, epoch, _ = twin.producer
            window = self.producers[pid][1] if pid in self.producers and self.producers[pid][0] == epoch else []
            self.producers[pid] = epoch, [*window, twin.produced][-5:]

    @rule()
    def sync(self) -> None:
        sync(self.log)
        assert self.log.synced_end_offset == self.written_end
        assert not self.log.unsynced()

    # -- threads ------------------------------------------------------------------------------------------------------

    @rule()
    def start_sync(self) -> None:
        log, job = self.log, self.log.start_sync()
        self.jobs.append(Job(job.run, lambda: log.note_synced(job)))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 20))
    def run_part_of_a_job(self, which: int) -> None:
        """Do the work of a job, or report its result if the work is done. Threads may overtake each other."""
        job = self.jobs[which % len(self.jobs)]
        if job.is_done:
            self.jobs.remove(job)
            job.report()
        else:
            job.work()
            job.is_done = True

    @rule()
    def note_checkpoint(self) -> None:
        start = self.log.log_start_offset
        self.checkpoint = self.log.recovery_point, start if start > self.log.segments[0].base_offset else 0

    # -- reading ------------------------------------------------------------------------------------------------------

    @rule(
        where=st.integers(0, 1000), limit=st.sampled_from([0, 1, 70, 400, 16_384, 40_000, 1 << 20]),
        at_least=st.booleans(), behind=st.integers(0, 8),
    )  # fmt: skip
    def read(self, where: int, limit: int, at_least: bool, behind: int) -> None:
        offset = self.start + where % (self.end - self.start + 3) - 1
        written = [twin for twin in self.twins if twin.next <= self.written_end]
        end_offset = next((twin.base for twin in written[-behind:]), 0) if behind else self.written_end
        if not self.start <= offset <= self.end:
            try:
                self.log.read(offset, limit, end_offset, at_least_one=at_least)
            except OffsetOutOfRange:
                return
            raise AssertionError("out of range, yet something was read")
        region = self.log.read(offset, limit, end_offset, at_least_one=at_least)
        found = split(region.read()) if region is not None else []
        readable = [twin.data for twin in written if twin.next > offset and twin.next <= end_offset]
        assert found == readable[: len(found)]
        size = sum(map(len, found))
        if not found:
            assert not readable or (len(readable[0]) > limit and not at_least)
            return
        assert size <= limit or (at_least and len(found) == 1)
        if len(found) < len(readable):
            bases = {segment.base_offset for segment in self.log.segments}
            at_border = read_header(readable[len(found)]).base_offset in bases
            assert at_border or size + len(readable[len(found)]) > limit, "more would have fitted"

    @rule(timestamp=st.integers(-2, 400))
    def find_timestamp(self, timestamp: int) -> None:
        wanted = NOW + timestamp
        found = self.log.offset_for_timestamp(wanted, self.written_end)
        records = [
            (twin.base + number, each)
            for twin in self.twins
            for number, each in enumerate(twin.timestamps)
            if twin.base + number >= self.start
        ]
        dumb = next((record for record in records if record[1] >= wanted), None)
        assert found == (dumb if dumb is not None and dumb[0] < self.written_end else None)

    @rule()
    def find_newest(self) -> None:
        first = self.log.segments[0].base_offset
        records = [
            (each, -(twin.base + number))
            for twin in self.twins
            if first <= twin.base and twin.next <= self.written_end
            for number, each in enumerate(twin.timestamps)
            if max(twin.timestamps) >= 0
        ]
        newest = max(records, default=None)
        assert self.log.newest_timestamp() == (newest and (-newest[1], newest[0]))

    # -- cutting ------------------------------------------------------------------------------------------------------

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(self.end - back, self.start)
        self.log.truncate_to(offset)
        if offset >= self.end:
            return
        self.cut_twin(min(offset, self.written_end))
        self.check_files()

    @rule(where=st.integers(-8, 20))
    def truncate_fully(self, where: int) -> None:
        offset = max(self.start + where, 0)
        self.log.truncate_fully_and_start_at(offset)
        self.twins, self.producers = [], {}
        self.floor = self.start = self.deleted = self.written_end = offset
        assert self.log.synced_end_offset == offset
        assert self.log.producers.count == 0
        self.check_files()

    def check_files(self) -> None:
        """No file of a segment that was removed is there, or comes back when the power fails now."""
        if self.jobs:
            return
        names = [f"{segment.base_offset:020d}.log" for segment in self.log.segments]
        for disk in (self.disk, self.disk.crash(Random(self.counter), "power")):
            assert {name for name in disk.listdir(FOLDER) if name.endswith(".log")} <= set(names)

    def cut_twin(self, offset: int) -> None:
        self.twins = [twin for twin in self.twins if twin.next <= offset]
        self.start, self.deleted = min(self.start, self.end), min(self.deleted, self.end)
        self.written_end = self.end
        self.adopt_producers()

    @rule(forward=st.integers(0, 12))
    def advance(self, forward: int) -> None:
        offset = min(self.start + forward, self.written_end)
        dropped = self.log.advance_log_start(offset)
        self.start = max(self.start, offset)
        self.deleted = max(self.deleted, offset)
        self.written_end = self.log.written_end_offset

        log, disk, undeleted = self.log, self.disk, self.log.undeleted.copy()

        def work() -> None:
            disk.fsync_dir(FOLDER)
            for segment in undeleted:
                segment.delete_files()
            disk.fsync_dir(FOLDER)

        def report() -> None:
            log.undeleted = [segment for segment in log.undeleted if segment not in undeleted]

        if dropped:
            self.jobs.append(Job(work, report))

    # -- restarts -----------------------------------------------------------------------------------------------------

    @rule()
    def restart_cleanly(self) -> None:
        while self.jobs:
            self.run_part_of_a_job(0)
        self.log.flush_files()
        clean = note_of(self.log)
        reads = len(self.disk.calls)
        self.note_checkpoint()
        self.log = self.opened(self.disk, clean, self.checkpoint)
        opened = [call for call in self.disk.calls[reads:] if call.name != "file_size"]
        assert not [call for call in opened if call.path.endswith(".log")]
        self.written_end = self.end

    @rule(lost=st.booleans())
    def kill(self, lost: bool) -> None:
        self.reboot(self.disk.crash(Random(0), "process"), self.written_end, lost)
        assert self.log.log_end_offset == self.written_end

    @rule(seed=st.integers(0, 1 << 16), lost=st.booleans())
    def cut_power(self, seed: int, lost: bool) -> None:
        self.reboot(self.disk.crash(Random(seed), "power"), self.log.synced_end_offset, lost)

    def reboot(self, disk: MemoryDisk, promised: int, lost: bool) -> None:
        self.disk, self.jobs = disk, []
        checkpoint = self.synced_checkpoint if lost else self.checkpoint
        self.log = self.opened(disk, None, checkpoint)
        end, start = self.log.log_end_offset, self.log.log_start_offset
        assert checkpoint[1] <= start <= max(self.start, checkpoint[1])
        assert promised <= end <= max(self.written_end, checkpoint[1])
        self.twins = [twin for twin in self.twins if twin.next <= end]
        if self.end < end:
            # All that was left lay before the start that had been noted: the log begins anew there.
            assert start == end == checkpoint[1]
            self.twins, self.floor = [], end
        self.start = start
        self.written_end = end
        self.adopt_producers()
        self.check_contents()

    def adopt_producers(self) -> None:
        """Producers whose batches are gone may be forgotten; of the others the last batches must be known."""
        real = {
            pid: (entry.epoch, [tuple(each) for each in entry.batches])
            for pid, entry in self.log.producers.entries.items()
            if entry.batches
        }
        first = self.log.segments[0].base_offset
        retained = [twin for twin in self.twins if twin.producer is not None and twin.base >= first]
        for pid in {twin.producer[0] for twin in retained}:  # type: ignore[index]
            mine = [twin for twin in retained if twin.producer[0] == pid]  # type: ignore[index]
            epoch = mine[-1].producer[1]  # type: ignore[index]
            window = [twin.produced for twin in mine if twin.producer[1] == epoch][-5:]  # type: ignore[index]
            assert real[pid][0] == epoch
            assert real[pid][1][-len(window) :] == window
        self.producers = real

    # -- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.written_end_offset, log.log_end_offset) == (
            self.start, self.written_end, self.end,
        )  # fmt: skip
        assert log.synced_end_offset <= log.written_end_offset
        assert not any(segment.dropped for segment in log.segments)
        assert log.recovery_point <= log.synced_end_offset

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.write_pending()
        self.written_end = self.end
        self.check_contents()

    def check_contents(self) -> None:
        written = [twin for twin in self.twins if twin.next <= self.written_end]
        assert contents(self.log) == [twin.data for twin in written if twin.next > self.start]
        for twin in self.twins:
            if twin.base >= max(self.start, self.deleted):
                assert self.log.epochs.epoch_at(twin.base) == twin.epoch


RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
LogMachine.TestCase.settings = settings(
    deadline=None, derandomize=not RANDOM, max_examples=1000 if RANDOM else 125, stateful_step_count=50
)
TestLogMachine = LogMachine.TestCase
