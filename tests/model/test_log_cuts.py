"""The machine stops after every single change that a long, scripted life makes to the disk.

After the death of the process every batch that was written is there, after a power cut every batch that was synced:
to the byte, at its offset, with nothing missing in between. The log takes batches again, and knows its producers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_fixtures import NOW, append, batch, contents, stored, sync, topic
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log.log import Log
from ottla.model.batch import read_header
from ottla.testing.disk import DiskCut, Keep, MemoryDisk

SETTINGS = topic(segment_bytes=40_000, max_message_bytes=40_000, segment_ms=1000, index_interval_bytes=100)
SEEDS = 8


@dataclass
class Life:
    """A broker's log through its script, and what has been promised so far."""

    fixture: StoreFixture
    path: Path
    #: every batch that was ever appended, as the log has to hold it: what the client sent. A client that was told of
    #: a full disk does not know whether its batch is there, so those are here too.
    sent: dict[bytes, bytes] = field(default_factory=dict)
    #: by producer id: the next sequence
    sequences: dict[int, int] = field(default_factory=dict)
    minutes: int = 0
    start: int = 0
    written: int = 0
    synced: int = 0

    def run(self, script: list[Callable[[Life], None]]) -> None:
        for step in script:
            step(self)
            self.remember()

    def remember(self) -> None:
        """What a crash during the next step must leave."""
        log = self.fixture.log()
        self.written, self.synced = log.written_end_offset, log.synced_end_offset
        self.start = log.log_start_offset

    @property
    def log(self) -> Log:
        return self.fixture.log()


# -- the script -------------------------------------------------------------------------------------------------------


def produce(count: int = 1, *, size: int = 30, pid: int = 0) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        sequence = life.sequences.get(pid, 0)
        producer = (pid, 0, sequence) if pid else None
        key = b"key %d" % len(life.sent)
        data = batch(count, size=size, timestamp=NOW + life.minutes * 60_000, producer=producer, key=key)
        base = life.log.log_end_offset
        # The batch may be in the file, or in a later file, before this returns.
        life.sent[stored(data, base, life.log.leader_epoch)] = data
        assert append(life.log, data, NOW + life.minutes * 60_000) == (base, base + count)
        life.sequences[pid] = sequence + count

    return step


def write(life: Life) -> None:
    life.log.write_pending()


def flush(life: Life) -> None:
    sync(life.log)


def let_time_pass(life: Life) -> None:
    """The next batch goes into a new segment."""
    life.minutes += 1


def run_threads(life: Life) -> None:
    life.fixture.threads.run()


def checkpoint(life: Life) -> None:
    life.fixture.store.write_checkpoints({}, sync=False)


def delete_up_to(offset: int) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        life.fixture.store.advance_log_start(life.log, offset)

    return step


def delete_everything(life: Life) -> None:
    life.fixture.store.advance_log_start(life.log, life.log.written_end_offset)


def fail_to_write(life: Life) -> None:
    """A full disk: the batches never were."""
    disk, before = life.fixture.disk, dict(life.sequences)
    assert isinstance(disk, MemoryDisk)
    for _ in range(3):
        produce(2, pid=1)(life)
    disk.fail("write", errno.ENOSPC, applied_bytes=150)
    with pytest.raises(OSError, match="No space"):
        life.log.write_pending()
    disk.heal()
    life.sequences = before


def lead_again(life: Life) -> None:
    life.log.become_leader(life.log.leader_epoch + 1)


def restart(life: Life) -> None:
    life.fixture.stop()
    life.remember()
    life.fixture = started(life.fixture.disk, life.path)


SCRIPT = [
    produce(), produce(2, pid=1), write, produce(3, pid=1), write, flush,
    produce(pid=2), write, checkpoint, lead_again, produce(size=33_000, pid=1), produce(), write,
    let_time_pass, produce(2, pid=1), write, produce(2, pid=2), write, run_threads, flush, checkpoint,
    fail_to_write, produce(pid=1), write, flush,
    let_time_pass, produce(size=500), lead_again, produce(4, pid=1), write, run_threads,
    delete_up_to(3), run_threads, checkpoint, produce(pid=2), write, flush, delete_up_to(12), run_threads,
    restart, produce(2, pid=1), write, let_time_pass, produce(pid=2), write, flush, checkpoint, run_threads,
    delete_everything, run_threads, checkpoint, produce(pid=1), write, let_time_pass, produce(pid=2), write, flush,
    lead_again, run_threads, delete_everything, run_threads, produce(3, pid=2), write, flush, restart, produce(pid=1),
    write,
]  # fmt: skip


# -- what must hold ---------------------------------------------------------------------------------------------------


def started(disk: object, path: Path) -> StoreFixture:
    assert isinstance(disk, MemoryDisk)
    fixture = StoreFixture(disk, path)
    try:
        fixture.start(spec(settings=SETTINGS))
    except BaseException:
        fixture.abandon()
        raise
    return fixture


def lives(path: Path) -> Iterator[tuple[int, Life]]:
    """The life, cut after no change, after one, after two, and so on to its end."""
    changes = 0
    while True:
        disk = disk_with(path)
        fixture = started(disk, path)
        life = Life(fixture, path)
        disk.cut_after(changes, seed=changes)
        try:
            life.run(SCRIPT)
        except DiskCut:
            life.fixture.abandon()
            yield changes, life
            changes += 1
        else:
            life.fixture.abandon()
            assert changes > 200, "the script is shorter than it should be"
            return


def check(life: Life, disk: MemoryDisk, promised: int) -> None:
    fixture = started(disk, life.path)
    try:
        log = fixture.log()
        assert log.log_end_offset >= promised
        assert log.log_start_offset <= life.log.log_start_offset
        found = contents(log)
        expected = log.log_start_offset
        for data in found:
            header = read_header(data)
            assert header.base_offset <= expected < header.next_offset
            assert data in life.sent
            # Epochs of what was deleted are forgotten, even if the records come back.
            assert log.epochs.epoch_at(expected) == header.leader_epoch or expected < life.log.log_start_offset
            expected = header.next_offset
        assert expected == log.log_end_offset
        # Producers: what the log holds is known to be repeated, and what it does not hold is not.
        last_of = {read_header(data).producer_id: data for data in found}
        for producer_id, data in last_of.items():
            header = read_header(data)
            if producer_id >= 0:
                answer = append(log, life.sent[data], NOW + life.minutes * 60_000)
                assert answer == (header.base_offset, header.next_offset)
        end = log.log_end_offset
        assert append(log, batch(2), NOW) == (end, end + 2)
        log.write_pending()
        assert contents(log)[-1] == stored(batch(2), end, log.leader_epoch)
    finally:
        fixture.abandon()


@pytest.mark.parametrize("keep", ["process", "power"])
def test_nothing_promised_is_lost_wherever_the_machine_stops(tmp_path: Path, keep: Keep) -> None:
    for changes, life in lives(tmp_path):
        promised = life.written if keep == "process" else life.synced
        for seed in range(1 if keep == "process" else SEEDS):
            try:
                check(life, life.fixture.disk.crash(Random(1000 * changes + seed), keep), promised)  # type: ignore[attr-defined]
            except BaseException as error:
                error.add_note(f"cut after {changes} changes, keep={keep}, seed={seed}")
                raise


def test_recovery_can_be_cut_everywhere_too(tmp_path: Path) -> None:
    for changes, life in lives(tmp_path):
        if changes % 25:
            continue
        crashed = life.fixture.disk.crash(Random(changes), "power")  # type: ignore[attr-defined]
        again = 0
        while True:
            disk = crashed.crash(Random(0), "process")
            disk.cut_after(again, seed=again)
            try:
                started(disk, tmp_path).abandon()
            except DiskCut:
                check(life, disk.crash(Random(again), "power"), life.synced)
                again += 1
            else:
                break
