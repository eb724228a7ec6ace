"""A compacted log against all that was ever sent, through appends, rolls, passes, restarts, kills and power cuts."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NOW, sync
from tests.unit.log.store_fixtures import disk_with

from ottla.log import compaction
from ottla.model.batch import DELETE_HORIZON, read_header
from ottla.model.records import Record
from ottla.testing.disk import MemoryDisk

RETENTION_MS = 1000
KEYS = st.sampled_from([b"a", b"b", b"c", b"long key " * 3, b"other long key " * 3])
PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([b"", b"v", b"w" * 150, None])), min_size=1, max_size=5)


class CompactionMachine(RuleBasedStateMachine):
    """Rules do something to the log; invariants compare what is left of it with all that was ever appended."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.fixture: CompactionFixture | None = None
        self.sent: list[Record] = []
        self.now_ms = NOW
        self.sequence = 0
        self.written_end = 0
        self.synced_end = 0
        #: when each deletion was first compacted, by offset
        self.horizons: dict[int, int] = {}
        self.key_bytes = compaction.KEY_BYTES

    @initialize(
        segment_bytes=st.sampled_from([600, 5000]), interval=st.sampled_from([0, 200]), keys=st.sampled_from([2, 1000]),
        lag_ms=st.sampled_from([0, 0, 500]),
    )  # fmt: skip
    def open(self, segment_bytes: int, interval: int, keys: int, lag_ms: int) -> None:
        chosen = compacted(
            segment_bytes=segment_bytes, max_message_bytes=2000, index_interval_bytes=interval,
            delete_retention_ms=RETENTION_MS, min_compaction_lag_ms=lag_ms,
            message_timestamp_before_max_ms=1 << 60,
        )  # fmt: skip
        # The map holds so many keys and no more.
        compaction.KEY_BYTES = int(134_217_728 * 0.9 / keys)
        self.fixture = CompactionFixture(self.path, chosen, disk_with(self.path))

    def teardown(self) -> None:
        compaction.KEY_BYTES = self.key_bytes
        if self.fixture is not None:
            self.fixture.abandon()
        self.folder.cleanup()

    @property
    def opened(self) -> CompactionFixture:
        assert self.fixture is not None
        return self.fixture

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(pairs=PAIRS, codec=st.sampled_from([0, 0, 1, 4]), idempotent=st.booleans(), back_ms=st.integers(0, 300))
    def produce(self, pairs: list[tuple[bytes, bytes | None]], codec: int, idempotent: bool, back_ms: int) -> None:
        base, timestamp = len(self.sent), self.now_ms - back_ms
        producer = (4, 0, self.sequence) if idempotent else None
        assert self.opened.produce(*pairs, timestamp=timestamp, codec=codec, producer=producer) == base
        self.sequence += len(pairs) if idempotent else 0
        for number, (key, value) in enumerate(pairs):
            headers = [("n", b"%d" % number)]
            self.sent.append(Record(base + number, timestamp + number, key, value, headers, number))
        self.written_end = len(self.sent)

    @rule()
    def roll(self) -> None:
        self.opened.roll()

    @rule()
    def sync(self) -> None:
        sync(self.opened.log)
        self.note_synced()

    @rule()
    def run_threads(self) -> None:
        self.opened.threads.run()
        self.note_synced()

    @precondition(lambda self: self.fixture is not None and self.fixture.threads.jobs)
    @rule(steps=st.integers(1, 8))
    def run_some_threads(self, steps: int) -> None:
        for _ in range(steps):
            if self.opened.threads.jobs:
                self.opened.threads.run_one()
        self.note_synced()

    @precondition(lambda self: self.fixture is not None and not self.fixture.compactor.busy)
    @rule()
    def begin_compaction(self) -> None:
        self.opened.begin(self.now_ms)
        self.note_synced()

    @precondition(lambda self: self.fixture is not None and not self.fixture.compactor.busy)
    @rule()
    def compact(self) -> None:
        dirty = self.opened.log.first_dirty_offset
        if self.opened.compact(self.now_ms):
            assert self.opened.log.first_dirty_offset > dirty
        self.note_synced()

    @rule(ms=st.sampled_from([100, RETENTION_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def checkpoint(self) -> None:
        self.opened.fixture.store.write_checkpoints({}, sync=False)

    @rule()
    def restart(self) -> None:
        self.opened.restart()
        self.synced_end = len(self.sent)

    @rule()
    def kill(self) -> None:
        self.crash(self.opened.disk.crash(Random(0), "process"), self.written_end)
        assert len(self.sent) == self.written_end

    @rule(seed=st.integers(0, 1 << 16))
    def cut_power(self, seed: int) -> None:
        self.crash(self.opened.disk.crash(Random(seed), "power"), self.synced_end)

    def crash(self, disk: MemoryDisk, promised: int) -> None:
        self.opened.abandon()
        self.fixture = self.opened.crash(disk)
        end = self.opened.log.log_end_offset
        assert end >= promised
        # What was not promised is there or not, and what is not there never was.
        found = {record.offset for record in self.opened.stored_records()}
        lost = [offset for offset in range(promised, end) if offset not in found]
        del self.sent[end:]
        for offset in lost:
            self.sent[offset] = Record(offset, key=None)
        entry = self.opened.log.producers.entries.get(4)
        self.sequence = entry.next_sequence if entry is not None else 0
        self.written_end = self.synced_end = end

    def note_synced(self) -> None:
        self.synced_end = max(self.synced_end, self.opened.log.synced_end_offset)

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def last_value_of_every_key_is_there(self) -> None:
        if self.fixture is None:
            return
        last = {record.key: record for record in self.sent if record.key is not None}
        seen = {record.key: record for record in self.fixture.stored_records()}
        for key, record in last.items():
            if key not in seen:
                assert record.value is None
                assert self.horizons[record.offset] + RETENTION_MS <= self.now_ms, "a deletion went before its time"
            else:
                assert seen[key] == record
        assert seen.keys() <= last.keys()

    @invariant()
    def every_record_is_as_it_was_sent(self) -> None:
        if self.fixture is not None:
            for record in self.fixture.stored_records():
                assert record == self.sent[record.offset]

    @invariant()
    def everything_below_the_first_dirty_offset_is_there_once(self) -> None:
        if self.fixture is None:
            return
        for record in self.fixture.stored_records():
            if record.offset < self.fixture.log.first_dirty_offset:
                newer = [r for r in self.sent[record.offset + 1 :] if r.key == record.key]
                assert not newer or newer[0].offset >= self.fixture.log.first_dirty_offset

    @invariant()
    def every_offset_gives_the_batch_that_follows(self) -> None:
        if self.fixture is None:
            return
        log, end = self.fixture.log, self.fixture.log.written_end_offset
        ends = [header.next_offset for each in log.segments if each.size_bytes for _, header in each.headers()]
        assert ends == sorted(ends)
        for offset in range(log.log_start_offset, end):
            region = log.read(offset, 1, end, at_least_one=True)
            expected = next((each for each in ends if each > offset), None)
            assert (None if region is None else read_header(region.read()).next_offset) == expected

    @invariant()
    def times_are_found(self) -> None:
        if self.fixture is None:
            return
        log, end = self.fixture.log, self.fixture.log.written_end_offset
        stored = self.fixture.stored_records()
        for timestamp in {record.timestamp for record in stored[:: max(len(stored) // 4, 1)]}:
            found = next((r for r in stored if r.timestamp >= timestamp), None)
            assert log.offset_for_timestamp(timestamp, end) == (found and (found.offset, found.timestamp))
        newest = max((record.timestamp for record in stored), default=None)
        assert (log.newest_timestamp() or (0, None))[1] == newest

    @invariant()
    def horizons_are_noted(self) -> None:
        """A deletion's time begins with the first pass that writes it."""
        if self.fixture is None:
            return
        for segment in self.fixture.log.segments:
            for _, header in segment.headers() if segment.size_bytes else ():
                if header.attributes & DELETE_HORIZON:
                    for offset in range(header.base_offset, header.next_offset):
                        assert self.horizons.setdefault(offset, header.base_timestamp - RETENTION_MS) <= self.now_ms


RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
CompactionMachine.TestCase.settings = settings(
    deadline=None, derandomize=not RANDOM, max_examples=300 if RANDOM else 75, stateful_step_count=40
)
TestCompaction = CompactionMachine.TestCase
