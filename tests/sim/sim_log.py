"""One log that is written, synced and truncated in random order and loses its power: synced records must be there.

A single broker never truncates a log, but a follower does. Until the simulation has several brokers, this smaller one
covers truncation: no event loop and no clients, only a ``LogStore`` on a disk in memory and jobs that run late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sim_checks import CHECKS
from sim_client import batch
from sim_invariants import batches_of

from ottla.log import truncation
from ottla.log.folders import PartitionSpec
from ottla.log.log import Log
from ottla.log.segment import SyncJob
from ottla.log.store import LogStore
from ottla.log.truncation import UnsyncedTruncation
from ottla.model.records import iterate_records
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import MemoryDisk

NAME = TopicPartition("events", 0)
_STEPS = 150


class _Jobs:
    """In place of ``ThreadPool``: jobs wait until the simulation runs one of them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []

    def submit(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self.waiting.append((work, done))

    def run_all(self, works: Sequence[Callable[[], None]]) -> None:
        for work in works:
            work()


class LogWorld:
    """One log, and what it must contain."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"{seed}/log")
        self._disk = MemoryDisk()
        self._disk.makedirs("/data")
        self._disk.fsync_dir("/")
        config = {"segment.bytes": str(self._rng.choice((600, 2000, 1 << 20)))}
        self._spec = PartitionSpec(
            name=NAME, topic_id=bytes(16), settings=TopicSettings.resolve(config, BrokerSettings())
        )
        self._numbers = 0
        self._epoch = 0
        #: the value of each offset
        self._values: dict[int, str] = {}
        self.violations: dict[str, list[str]] = {}
        self._start()

    def _start(self) -> None:
        self._jobs = _Jobs()
        threads: Any = self._jobs
        self._store = LogStore(self._disk, ["/data"], threads)
        self._store.lock()
        self._store.write_meta("cluster", 1, lambda _: "directory")
        self._store.load({NAME: self._spec})
        self._store.begin_writing()
        self._log: Log = self._store.logs[NAME]
        self._epoch += 1
        self._log.become_leader(self._epoch)
        #: syncs that have started, and whether their thread has run
        self._syncs: list[tuple[SyncJob, bool]] = []
        self._unsynced: list[tuple[UnsyncedTruncation, bool]] = []

    def run(self) -> dict[str, list[str]]:
        """Run to the end and return the violations by name."""
        actions = (
            [self._append] * 6 + [self._write] * 4 + [self._start_sync] * 3 + [self._advance_sync] * 5
            + [self._run_job] * 2 + [self._sync_truncation] * 2
            + [self._truncate, self._begin_truncation, self._checkpoint, self._lead, self._fail_power]
        )  # fmt: skip
        for _ in range(_STEPS):
            self._rng.choice(actions)()
            if self._log.synced_end_offset > self._log.written_end_offset:
                line = f"synced {self._log.synced_end_offset}, written {self._log.written_end_offset}"
                self._say("synced-not-written", line)
                break
        self._fail_power()
        return self.violations

    def _append(self) -> None:
        self._numbers += 1
        value = f"value-{self._numbers}"
        data = bytearray(batch([value], 1000))
        offset, _ = self._log.append(data, memoryview(data), 0, len(data), 1000)
        self._values[offset] = value

    def _write(self) -> None:
        self._log.write_pending()

    def _start_sync(self) -> None:
        if self._log.unsynced():
            self._syncs.append((self._log.start_sync(), False))

    def _advance_sync(self) -> None:
        """Let a thread sync the files of a job, or let the event loop note a job whose thread has run."""
        if self._syncs:
            number = self._rng.randrange(len(self._syncs))
            job, has_run = self._syncs.pop(number)
            if has_run:
                self._log.note_synced(job)
            else:
                job.run()
                self._syncs.append((job, True))

    def _run_job(self) -> None:
        if self._jobs.waiting:
            work, done = self._jobs.waiting.pop(self._rng.randrange(len(self._jobs.waiting)))
            work()
            done(None)

    def _truncate(self) -> None:
        offset = self._rng.randint(self._log.log_start_offset, self._log.log_end_offset)
        self._log.truncate_to(offset)
        self._values = {each: value for each, value in self._values.items() if each < self._log.log_end_offset}

    def _begin_truncation(self) -> None:
        """Truncate the log as one of many: a thread syncs its files later, or the next append does."""
        offset = self._rng.randint(self._log.log_start_offset, self._log.log_end_offset)
        planned = truncation.plan(self._log, offset)
        self._store.lower_checkpoints([planned] if planned.active is not None else [])
        truncation.begin(planned)
        self._values = {each: value for each, value in self._values.items() if each < self._log.log_end_offset}
        if self._log.unsynced_truncation is not None:
            self._unsynced.append((self._log.unsynced_truncation, False))

    def _sync_truncation(self) -> None:
        """Let a thread sync a truncation, or let the event loop note it."""
        if self._unsynced:
            unsynced, has_run = self._unsynced.pop(self._rng.randrange(len(self._unsynced)))
            if has_run:
                unsynced.note_synced()
            else:
                unsynced.run()
                self._unsynced.append((unsynced, True))

    def _lead(self) -> None:
        """Append the following batches in a new leader epoch."""
        self._epoch += 1
        self._log.become_leader(self._epoch)

    def _checkpoint(self) -> None:
        self._store.write_checkpoints({}, sync=False)

    def _fail_power(self) -> None:
        """Everything that the log counted as synced must be there after a restart."""
        synced = self._log.synced_end_offset
        self._disk = self._disk.crash(self._rng, "power")
        self._start()
        batches = list(batches_of(self._log))
        for header, _ in batches:
            if self._log.epochs.epoch_at(header.base_offset) != header.leader_epoch:
                line = f"offset {header.base_offset} has epoch {header.leader_epoch}, the epochs say otherwise"
                self._say("epochs-differ", line)
        found = {
            record.offset: (record.value or b"").rstrip(b".").decode()
            for _, content in batches
            for record in iterate_records(content)
        }
        for offset, value in self._values.items():
            if offset < synced and found.get(offset) != value:
                line = f"offset {offset} of {synced} synced: {found.get(offset)} instead of {value}"
                self._say("synced-record-lost", line)
            elif found.get(offset, value) != value:
                self._say("other-value", f"offset {offset}: {found[offset]} instead of {value}")
        self._values = {offset: value for offset, value in self._values.items() if offset in found}

    def _say(self, name: str, line: str) -> None:
        assert name in CHECKS, f"{name} is not a check of sim_checks.py"
        self.violations.setdefault(name, []).append(line)
