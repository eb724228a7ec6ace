"""A log store that starts although one of its directories cannot be used."""

from __future__ import annotations

import errno

import pytest
from tests.unit.log.log_fixtures import batch, write
from tests.unit.log.store_fixtures import StoreFixture, spec

from ottla.model.errors import StartError
from ottla.model.types import TopicPartition
from ottla.testing.disk import MemoryDisk

PATHS = ("/a", "/b")
NAMES = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def disk() -> MemoryDisk:
    """A disk with two directories that have two logs each."""
    disk = MemoryDisk()
    fixture = StoreFixture(disk, *PATHS)
    fixture.start(*map(spec, NAMES))
    for name in NAMES:
        write(fixture.log(name), batch(2))
    fixture.stop()
    return disk


@pytest.mark.parametrize("kind", ["create", "write_file", "listdir", "fsync_dir", "remove", "any"])
def test_log_that_is_not_found_is_offline_and_complete_at_the_next_start(disk: MemoryDisk, kind: str) -> None:
    if kind == "create":
        disk.remove("/b/.lock")
    disk.fail(kind, errno.EIO, times=None, path="/b")
    fixture = StoreFixture(disk, *PATHS)
    store = fixture.start(*map(spec, NAMES))
    if kind == "write_file":  # nothing is written to this directory by a start, so that it fails at the first write
        store.set_unusable(store.dirs[1], OSError(errno.EIO, "failed"))
    assert [each.offline for each in store.dirs] == [False, True]
    assert store.usable_dirs() == store.dirs[:1]
    offline = {name for name, each in store.logs.items() if each.failure is not None}
    assert offline == set(store.dirs[1].logs) and len(offline) == 2
    assert all("log directory /b cannot be used" in str(store.logs[name].failure) for name in offline)
    assert store.created == set(), "no log is created in the place of one that may exist"
    assert store.create(spec(TopicPartition("new", 0))).directory == "/a/new-0"
    store.delete(min(offline), "unique")
    fixture.stop()
    disk.heal()
    healed = StoreFixture(disk, *PATHS).start(*map(spec, NAMES))
    assert all(each.failure is None and each.log_end_offset == 2 for each in healed.logs.values())
    assert [len(each.logs) for each in healed.dirs] == [2, 2]


@pytest.mark.parametrize("skip", range(12))
def test_directory_that_fails_while_it_is_loaded_knows_only_the_logs_that_it_has_opened(
    disk: MemoryDisk, skip: int
) -> None:
    """High watermarks of other logs would be those of logs in other directories, or of empty ones in their place."""
    fixture = StoreFixture(disk, *PATHS)
    store = fixture.start(*map(spec, NAMES))
    store.write_checkpoints(dict.fromkeys(NAMES, 2), sync=True)
    fixture.abandon()
    disk.fail("listdir", errno.EIO, times=None, path="/b", skip=skip)
    store = StoreFixture(disk, *PATHS).start(*map(spec, NAMES))
    for directory in store.dirs:
        opened = {name for name, log in directory.logs.items() if log.log_end_offset}
        assert directory.high_watermarks.keys() <= opened | directory.unreadable.keys()
    store.check_invariants(store.logs)


def test_directory_of_another_process_prevents_the_start(disk: MemoryDisk) -> None:
    other = StoreFixture(disk, "/b")
    other.store.lock()
    with pytest.raises(StartError, match="data directory /b is in use by another broker process"):
        StoreFixture(disk, *PATHS).store.lock()


def test_start_fails_without_the_last_directory_or_file_descriptors(disk: MemoryDisk) -> None:
    disk.fail("listdir", errno.EIO, times=None)
    with pytest.raises(OSError, match="Input/output error"):
        StoreFixture(disk, *PATHS).start()
    disk = MemoryDisk()
    disk.fail("create", errno.EMFILE, path="/b")
    with pytest.raises(OSError, match="Too many open files"):
        StoreFixture(disk, *PATHS).start()


def test_start_fails_without_the_first_directory_if_it_is_needed(disk: MemoryDisk) -> None:
    disk.fail("any", errno.EIO, times=None, path="/a")
    fixture = StoreFixture(disk, *PATHS)
    fixture.store._needs_first = True
    with pytest.raises(OSError, match="Input/output error"):
        fixture.start()
