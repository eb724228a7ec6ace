"""The machine stops after every single change that a life with transactions makes to the disk.

A reader of committed records then sees all that was committed and nothing that was aborted or is open, transactions
that were open go on, and can be ended; on a compacted topic also after the next passes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NAME, NOW, append, sync, topic
from tests.unit.log.store_fixtures import disk_with
from tests.unit.log.txn_fixtures import History, Sent, append_txn

from ottla.model.records import Record, build_batch
from ottla.model.settings import TopicSettings
from ottla.testing.disk import DiskCut, Keep, MemoryDisk

RETENTION_MS = 60_000
SEEDS = 1
#: `make test` cuts after every twelfth change and begins anywhere, `make campaign NAME=crash` after every single one
EVERY = int(os.environ.get("OTTLA_CUT_EVERY", "12"))


def settings_of(policy: str) -> TopicSettings:
    make = compacted if policy == "compact" else topic
    return make(
        cleanup_policy=policy, segment_bytes=700, max_message_bytes=700, delete_retention_ms=RETENTION_MS,
        index_interval_bytes=100,
    )  # fmt: skip


class Life:
    """A room through its script, and what has been promised so far."""

    def __init__(self, path: Path, disk: MemoryDisk, policy: str) -> None:
        self.policy = policy
        self.fixture = CompactionFixture(path, settings_of(policy), disk)
        self.history = History()
        self.minutes = 0
        self.written = 0
        self.synced = 0

    @property
    def now_ms(self) -> int:
        return NOW + self.minutes * 60_000

    def run(self, script: list[Callable[[Life], None]]) -> None:
        for step in script:
            step(self)
            self.remember()

    def remember(self) -> None:
        log = self.fixture.log
        self.written, self.synced = log.written_end_offset, log.synced_end_offset


Step = Callable[[Life], None]


def send(pid: int = -1, key: bytes = b"k", value: bytes | None = b"v", size: int = 0) -> Step:
    def step(life: Life) -> None:
        log = life.fixture.log
        base = log.log_end_offset
        text = None if value is None else value + b"." * size
        record = Record(base, life.now_ms, key, text, [("n", b"%d" % base)], 0)
        entry = log.producers.entries.get(pid)
        data = build_batch(
            [record], producer_id=pid, producer_epoch=0 if pid >= 0 else -1, transactional=pid >= 0,
            base_sequence=-1 if pid < 0 else entry.next_sequence if entry is not None else 0,
        )  # fmt: skip
        # The batch may be in the file before this returns.
        life.history.sent.append(Sent(base, base + 1, pid, [record]))
        (append if pid < 0 else append_txn)(log, data, life.now_ms)

    return step


def end(pid: int, *, commit: bool) -> Step:
    def step(life: Life) -> None:
        base = life.fixture.log.log_end_offset
        life.history.sent.append(Sent(base, base + 1, pid, [], commit))
        life.fixture.log.append_marker(pid, 0, commit=commit, coordinator_epoch=1, now_ms=life.now_ms)

    return step


def commit(pid: int) -> Step:
    return end(pid, commit=True)


def abort(pid: int) -> Step:
    return end(pid, commit=False)


def write(life: Life) -> None:
    life.fixture.log.write_pending()


def flush(life: Life) -> None:
    sync(life.fixture.log)


def roll(life: Life) -> None:
    life.fixture.roll()


def run_threads(life: Life) -> None:
    life.fixture.threads.run()


def checkpoint(life: Life) -> None:
    life.fixture.fixture.store.write_checkpoints({}, sync=False)


def compact(life: Life) -> None:
    if life.policy == "compact":
        life.fixture.compact(life.now_ms)


def drop_start(life: Life) -> None:
    if life.policy == "delete":
        store = life.fixture.fixture.store
        store.advance_log_start(life.fixture.log, life.fixture.log.segments[1].base_offset)


def let_time_pass(life: Life) -> None:
    life.minutes += 2


def forget(life: Life) -> None:
    life.fixture.log.expire_producers(1 << 60)


def restart(life: Life) -> None:
    life.fixture.restart()


SCRIPT = [
    send(key=b"a"), send(1, b"a"), send(2, b"b"), write, abort(1), flush, send(1, b"c", size=300), write, roll,
    commit(2), send(key=b"d", size=300), write, run_threads, checkpoint, send(3, b"a"), write, commit(1), roll,
    send(2, b"b"), abort(2), write, flush, run_threads, compact, send(1, b"a", size=100), write, roll, abort(3),
    abort(1), write, flush, run_threads, compact, restart, send(2, b"e"), write, checkpoint, roll,
    send(key=b"c", value=None), abort(2), send(1, b"c"), write, flush, run_threads, let_time_pass, compact, forget,
    commit(1), send(3, b"f", size=300), write, roll, run_threads, drop_start, run_threads, abort(3), write, roll,
    run_threads, flush, compact, let_time_pass, send(2, b"g"), write, roll, run_threads, restart, commit(2), roll,
    send(key=b"h"), write, flush, run_threads, checkpoint, compact, let_time_pass, send(1, b"i"), roll, compact,
    send(3, b"i"), commit(1), write, forget, roll, run_threads, let_time_pass, compact, send(key=b"z"), write, flush,
]  # fmt: skip


def lives(path: Path, policy: str, every: int = 1) -> Iterator[tuple[int, Life]]:
    """The life, cut after no change, after one, after two, and so on to its end; or every so many, from anywhere."""
    changes = Random().randrange(every)
    while True:
        life = Life(path, disk_with(path), policy)
        life.fixture.disk.cut_after(changes, seed=changes)
        try:
            life.run(SCRIPT)
        except DiskCut:
            life.fixture.abandon()
            yield changes, life
            changes += every
        else:
            life.fixture.abandon()
            assert changes > 200, "the script is shorter than it should be"
            return


def check(life: Life, disk: MemoryDisk, promised: int) -> None:
    fixture = life.fixture.crash(disk)
    try:
        log = fixture.log
        assert log.log_end_offset >= promised
        history = History()
        history.sent = list(life.history.sent)
        history.cut(log.log_end_offset)
        # A compacted topic may have holes, so that what was not promised can be missing before what is there.
        there = {header.base_offset for each in log.segments if each.size_bytes for _, header in each.headers()}
        history.sent = [each for each in history.sent if each.base < promised or each.base in there]
        history.check(log, compacts=life.policy == "compact")
        again = Life.__new__(Life)
        again.policy, again.fixture, again.history, again.minutes = life.policy, fixture, history, life.minutes
        for number, pid in enumerate(history.open_transactions()):
            end(pid, commit=bool(number % 2))(again)
        again.run([send(key=b"after"), write, roll, send(key=b"the crash"), write])
        for _ in range(3):
            again.run([compact, let_time_pass, send(key=b"later"), write, roll])
            history.check(log, compacts=life.policy == "compact")
    finally:
        fixture.abandon()


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_readers_see_what_was_committed_wherever_the_machine_stops(tmp_path: Path, policy: str) -> None:
    for changes, life in lives(tmp_path, policy, EVERY):
        kinds: list[tuple[Keep, int]] = [("process", 0), *(("power", seed) for seed in range(SEEDS))]
        for keep, seed in kinds:
            promised = life.written if keep == "process" else life.synced
            try:
                check(life, life.fixture.disk.crash(Random(1000 * changes + seed), keep), promised)
            except BaseException as error:
                error.add_note(f"cut after {changes} changes, keep={keep}, seed={seed}")
                raise


def cut_the_next_start(life: Life, crashed: MemoryDisk) -> None:
    """What the next start does on this disk is cut off as well, after every change that it makes."""
    for changes in itertools.count():
        disk = crashed.crash(Random(0), "process")
        disk.cut_after(changes, seed=changes)
        try:
            life.fixture.crash(disk).abandon()
        except DiskCut:
            check(life, disk.crash(Random(changes), "power"), life.synced)
        else:
            return


def test_finishing_a_swap_can_be_cut_everywhere_too(tmp_path: Path) -> None:
    every = 3 * EVERY
    finished = 0
    for changes, life in lives(tmp_path, "compact", every):
        crashed = life.fixture.disk.crash(Random(changes), "process")
        folder = f"{tmp_path}/{NAME}"
        if not crashed.exists(folder) or not any(name.endswith(".swap") for name in crashed.listdir(folder)):
            continue
        finished += 1
        try:
            cut_the_next_start(life, crashed)
        except BaseException as error:
            error.add_note(f"cut after {changes} changes")
            raise
    assert finished * every > 90


def test_recovery_can_be_cut_everywhere_too(tmp_path: Path) -> None:
    for changes, life in lives(tmp_path, "delete", every=40):
        crashed = life.fixture.disk.crash(Random(changes), "power")
        cut_the_next_start(life, crashed)
