"""A log store on a disk in memory, with threads that work when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.unit.log.log_fixtures import NAME, topic

from ottla.env.disk import Disk
from ottla.log.folders import PartitionSpec
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import MemoryDisk

TOPIC_ID = bytes(range(16))


class HandDrivenThreads:
    """In place of ThreadPool: nothing happens before ``run``, and then all of it, in order."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []

    def submit(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self.jobs.append((work, done))

    def run_all(self, works: Sequence[Callable[[], None]]) -> None:
        for work in works:
            work()

    def run(self) -> None:
        while self.jobs:
            self.run_one()

    def run_one(self) -> None:
        work, done = self.jobs.pop(0)
        error = None
        try:
            work()
        except OSError as raised:
            error = raised
        done(error)


class StoreFixture:
    """The store of one broker process; ``start`` and ``stop`` as the broker does it."""

    def __init__(self, disk: Disk, *paths: Path | str) -> None:
        self.disk = disk
        self.paths = [str(path) for path in paths]
        self.threads = HandDrivenThreads()
        threads: Any = self.threads
        self.store = LogStore(disk, self.paths, threads)

    def start(self, *specs: PartitionSpec) -> LogStore:
        self.store.lock()
        self.store.write_meta("cluster", 1, lambda _: "directory")
        self.store.load({each.name: each for each in specs})
        self.store.begin_writing()
        self.threads.run()
        return self.store

    def stop(self) -> bool:
        """Return whether all directories could be written."""
        self.threads.run()
        return self.store.close({})

    def abandon(self) -> None:
        """The process is dead; only its locks have to go, because ours is not."""
        self.store.unlock()

    def log(self, name: TopicPartition = NAME) -> Log:
        return self.store.logs[name]


def spec(
    name: TopicPartition = NAME, *, topic_id: bytes = TOPIC_ID, settings: TopicSettings | None = None,
    replicated: bool = False,
) -> PartitionSpec:  # fmt: skip
    return PartitionSpec(name=name, topic_id=topic_id, settings=settings or topic(), replicated=replicated)


def disk_with(path: Path | str) -> MemoryDisk:
    """A disk on which a log directory has been made, for good, by whoever set up the machine."""
    disk = MemoryDisk()
    disk.makedirs(str(path))
    parent = Path(path)
    while parent != parent.parent:
        disk.fsync_dir(str(parent))
        parent = parent.parent
    disk.fsync_dir("/")
    return disk
