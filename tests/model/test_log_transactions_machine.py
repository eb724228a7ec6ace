"""Transactions of several producers in one log against a list of all that was ever sent.

Whatever happens to the log (rolls, passes of compaction, cuts, restarts, kills, power cuts, lost indexes), a reader of
committed records sees the records of committed transactions and the plain ones, in order, up to the first that is not
decided; and on a compacted topic at least the last of every key.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NAME, append, sync, topic
from tests.unit.log.log_fixtures import NOW as START
from tests.unit.log.store_fixtures import disk_with
from tests.unit.log.txn_fixtures import History, Sent, append_txn, read_committed, stable_end

from ottla.log import compaction
from ottla.log.log import Log
from ottla.model.records import Record, build_batch
from ottla.testing.disk import MemoryDisk

RETENTION_MS = 1000
PIDS = st.integers(1, 3)
KEYS = st.sampled_from([b"a", b"b", b"c"])
PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([b"", b"v", b"w" * 150, None])), min_size=1, max_size=3)


class TransactionMachine(RuleBasedStateMachine):
    """Rules do something to the log; invariants compare what a reader sees with what the list says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.fixture: CompactionFixture | None = None
        self.history = History()
        self.epochs = dict.fromkeys(range(1, 4), 0)
        self.now_ms = START
        self.compacts = False
        self.counter = 0
        #: records were deleted from the log's start
        self.deleted = False
        self.synced_end = 0
        self.key_bytes = compaction.KEY_BYTES

    @initialize(
        compacts=st.booleans(), segment_bytes=st.sampled_from([500, 5000]), interval=st.sampled_from([0, 200]),
        keys=st.sampled_from([2, 1000]),
    )  # fmt: skip
    def open(self, compacts: bool, segment_bytes: int, interval: int, keys: int) -> None:
        self.compacts = compacts
        chosen = (compacted if compacts else topic)(
            segment_bytes=segment_bytes, max_message_bytes=2000, index_interval_bytes=interval,
            delete_retention_ms=RETENTION_MS, message_timestamp_before_max_ms=1 << 60,
        )  # fmt: skip
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

    @property
    def log(self) -> Log:
        return self.opened.log

    @property
    def sent(self) -> list[Sent]:
        return self.history.sent

    def cut_list(self, end: int) -> None:
        self.history.cut(end)
        self.synced_end = min(self.synced_end, end)

    # -- appending ----------------------------------------------------------------------------------------------------

    def build(self, pairs: list[tuple[bytes, bytes | None]], pid: int, codec: int) -> bytes:
        base = self.log.log_end_offset
        if not self.compacts:
            pairs = pairs[:1]
        self.counter += 1
        records = [
            Record(base + number, self.now_ms, key, value, [("n", b"%d" % self.counter)], number)
            for number, (key, value) in enumerate(pairs)
        ]
        self.sent.append(Sent(base, base + len(records), pid, records))
        entry = self.log.producers.entries.get(pid)
        sequence = entry.next_sequence if entry is not None and entry.epoch == self.epochs[pid] else 0
        return build_batch(
            records, codec=codec, producer_id=pid, producer_epoch=self.epochs.get(pid, -1),
            base_sequence=sequence if pid >= 0 else -1, transactional=pid >= 0,
        )  # fmt: skip

    @rule(pairs=PAIRS, codec=st.sampled_from([0, 0, 4]))
    def send_plain(self, pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
        append(self.log, self.build(pairs, -1, codec), self.now_ms)
        assert self.log.log_end_offset == self.sent[-1].next

    @rule(pid=PIDS, pairs=PAIRS, codec=st.sampled_from([0, 0, 4]))
    def send(self, pid: int, pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
        base, end = append_txn(self.log, self.build(pairs, pid, codec), self.now_ms)
        assert (base, end) == (self.sent[-1].base, self.sent[-1].next)

    @rule(pid=PIDS, commit=st.booleans(), bump=st.sampled_from([0, 0, 0, 1]))
    def end(self, pid: int, commit: bool, bump: int) -> None:
        self.epochs[pid] += bump
        base, end = self.log.append_marker(
            pid, self.epochs[pid], commit=commit, coordinator_epoch=0, now_ms=self.now_ms
        )
        self.sent.append(Sent(base, end, pid, [], commit))

    @rule()
    def write(self) -> None:
        self.log.write_pending()

    @precondition(lambda self: self.fixture is not None and self.fixture.log.pending)
    @rule(applied=st.integers(0, 200))
    def fail_to_write(self, applied: int) -> None:
        end = self.log.written_end_offset
        self.opened.disk.fail("pwrite", errno.ENOSPC, applied_bytes=applied)
        with pytest.raises(OSError, match="space"):
            self.log.write_pending()
        assert self.log.log_end_offset == end
        self.cut_list(end)
        # What was written and cut off again may come back in a power cut; the list does not know such batches.
        self.opened.disk.fdatasync(self.log.active.file.fd)

    # -- everything else ----------------------------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.opened.roll()

    @rule()
    def sync(self) -> None:
        sync(self.log)
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

    @precondition(lambda self: self.compacts and self.fixture is not None and not self.fixture.compactor.busy)
    @rule(whole=st.booleans())
    def compact(self, whole: bool) -> None:
        (self.opened.compact if whole else self.opened.begin)(self.now_ms)
        self.note_synced()

    @precondition(lambda self: self.fixture is not None and not self.compacts)
    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(self.log.log_end_offset - back, self.log.log_start_offset)
        if offset >= self.log.log_end_offset:
            return
        self.log.truncate_to(offset)
        self.cut_list(self.log.log_end_offset)

    @precondition(lambda self: self.fixture is not None and not self.compacts)
    @rule(forward=st.integers(1, 12))
    def advance(self, forward: int) -> None:
        """Not beyond an open transaction: of one that has lost its beginning crashes may leave this or that."""
        self.log.write_pending()
        offset = min(self.log.log_start_offset + forward, stable_end(self.log))
        self.opened.fixture.store.advance_log_start(self.log, offset)
        self.deleted = True

    @rule(ms=st.sampled_from([100, RETENTION_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def forget_producers(self) -> None:
        self.log.expire_producers(1 << 60)

    @rule()
    def checkpoint(self) -> None:
        self.opened.fixture.store.write_checkpoints({}, sync=False)

    # -- restarts -----------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.opened.restart()
        self.synced_end = self.log.log_end_offset

    @rule()
    def kill(self) -> None:
        end = self.log.written_end_offset
        self.crash(self.opened.disk.crash(Random(0), "process"), end)
        assert self.log.log_end_offset == end

    @rule(seed=st.integers(0, 1 << 16))
    def cut_power(self, seed: int) -> None:
        self.crash(self.opened.disk.crash(Random(seed), "power"), self.synced_end)

    @precondition(lambda self: not self.deleted)
    @rule()
    def lose_all_but_the_segments(self) -> None:
        disk = self.opened.disk.crash(Random(0), "process")
        folder = f"{self.path}/{NAME}"
        for name in disk.listdir(folder) if disk.exists(folder) else ():
            if name.endswith((".snapshot", ".index", ".timeindex", ".txnindex")):
                disk.remove(f"{folder}/{name}")
        disk.remove(f"{self.path}/recovery-point-offset-checkpoint")
        self.crash(disk, self.log.written_end_offset)

    def crash(self, disk: MemoryDisk, promised: int) -> None:
        start = self.log.log_start_offset
        self.opened.abandon()
        self.fixture = self.opened.crash(disk)
        assert promised <= self.log.log_end_offset
        assert self.log.log_start_offset <= start
        self.cut_list(self.log.log_end_offset)
        # A compacted topic may have holes, so that what was not promised can be missing before what is there.
        there = {header.base_offset for each in self.log.segments if each.size_bytes for _, header in each.headers()}
        self.history.sent = [each for each in self.sent if each.base < promised or each.base in there]
        self.synced_end = self.log.log_end_offset

    def note_synced(self) -> None:
        self.synced_end = max(self.synced_end, self.log.synced_end_offset)

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        if self.fixture is not None:
            self.history.check(self.log, compacts=self.compacts)

    @invariant()
    def readers_may_begin_anywhere(self) -> None:
        if self.fixture is None:
            return
        everything = read_committed(self.log)
        middle = (self.log.log_start_offset + stable_end(self.log)) // 2
        found = read_committed(self.log, start=middle, size_bytes_max=200)
        assert found == [record for record in everything if record.offset >= middle]


RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
TransactionMachine.TestCase.settings = settings(
    deadline=None, derandomize=not RANDOM, max_examples=400 if RANDOM else 100, stateful_step_count=40
)
TestTransactions = TransactionMachine.TestCase
