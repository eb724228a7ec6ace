"""A log is created when no later start can take an older folder of its partition for it."""

from __future__ import annotations

import errno

import pytest
from tests.unit.log.log_fixtures import NAME, batch, write
from tests.unit.log.store_fixtures import StoreFixture, spec

from ottla.log.directories import LogDir
from ottla.log.store import CreationDeferred
from ottla.testing.disk import MemoryDisk

OTHER_ID = bytes(16)


@pytest.fixture
def fixture() -> StoreFixture:
    """A store with two directories, the first of which has a log. Directories that fail are offline."""

    def failed(directory: LogDir, error: OSError) -> None:
        directory.offline = True

    made = StoreFixture(MemoryDisk(), "/a", "/b")
    made.start(spec())
    made.store.records_failures, made.store.on_dir_failed = True, failed
    write(made.log(), batch(2))
    assert made.log().directory == f"/a/{NAME}"
    return made


def test_log_is_created_when_the_metadata_store_knows_of_the_failed_directory(fixture: StoreFixture) -> None:
    store = fixture.store
    store.dirs[0].offline = True
    store.delete(NAME, "unique")
    with pytest.raises(CreationDeferred, match="/a is offline, and the metadata store does not know it yet"):
        store.create(spec())
    assert store.logs == {} and not fixture.disk.exists(f"/b/{NAME}")
    store.dirs[0].is_recorded = True
    assert store.create(spec()).directory == f"/b/{NAME}"


def test_log_is_created_when_the_deletion_of_its_earlier_folder_is_synced(fixture: StoreFixture) -> None:
    store = fixture.store
    store.delete(NAME, "unique")
    with pytest.raises(CreationDeferred, match="its earlier log is being deleted"):
        store.create(spec())
    assert store.create(spec(topic_id=OTHER_ID)).directory == f"/a/{NAME}", "it has another topic id"
    store.delete(NAME, "another")
    fixture.threads.run()
    assert store.create(spec()).log_end_offset == 0


def test_directory_in_which_a_deletion_cannot_be_synced_has_failed(fixture: StoreFixture) -> None:
    store = fixture.store
    fixture.disk.fail("fsync_dir", errno.EIO, path="/a")  # type: ignore[attr-defined]
    store.delete(NAME, "unique")
    fixture.threads.run()
    assert store.unrecorded_dirs() == [store.dirs[0]]
    with pytest.raises(CreationDeferred, match="the metadata store does not know it yet"):
        store.create(spec())


@pytest.mark.parametrize(("error", "is_failed"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_log_is_not_created_while_an_earlier_folder_cannot_be_set_aside(
    fixture: StoreFixture, error: int, is_failed: bool
) -> None:
    """The folder stayed when its partition was moved to other brokers while this one did not run."""
    fixture.stop()
    again = StoreFixture(fixture.disk, "/a", "/b")
    store = again.start()
    store.records_failures, store.on_dir_failed = True, fixture.store.on_dir_failed
    fixture.disk.fail("rename", error, path="/a")  # type: ignore[attr-defined]
    with pytest.raises(CreationDeferred):
        store.create(spec())
    assert store.logs == {} and store.dirs[0].offline == is_failed
    if not is_failed:
        store.create(spec())
        assert [name for name in fixture.disk.listdir("/a") if name.endswith("-stray")] == [f"{NAME}.earlier-stray"]
