"""The data directories that a broker finds when it starts."""

from __future__ import annotations

import pytest
from tests.unit.log.store_fixtures import StoreFixture

from ottla.broker.cluster.data_directories import lock_data
from ottla.broker.cluster.incarnation import write_runs
from ottla.model.errors import StartError
from ottla.testing.disk import MemoryDisk

META = "version=1\ncluster.id=c\nnode.id=1\n"


def _disk(*metas: str) -> MemoryDisk:
    disk = MemoryDisk()
    for path, meta in zip(("/a", "/b"), metas, strict=False):
        disk.makedirs(path)
        disk.write_file(f"{path}/meta.properties", meta.encode(), sync=True)
    return disk


def _lock(disk: MemoryDisk) -> str | None:
    return lock_data(disk, StoreFixture(disk, "/a", "/b", "/new").store, broker_id=1, metadata=None)


def test_directories_with_the_same_id_prevent_the_start() -> None:
    disk = _disk(f"{META}directory.id=x\n", f"{META}directory.id=x\n")
    with pytest.raises(StartError, match=r"/a and /b have the same directory id x.* remove the copy from log.dirs"):
        _lock(disk)
    assert not disk.exists("/a/.lock"), "no file was changed"


def test_directories_of_an_earlier_release_are_compared_by_the_ids_in_their_other_file() -> None:
    disk = _disk(META, META)
    write_runs(disk, "/a", "x", "run")
    assert _lock(disk) == "c"
    write_runs(disk, "/b", "x", "run")
    with pytest.raises(StartError, match="/a and /b have the same directory id x"):
        _lock(disk)


def test_directories_with_different_ids_or_none_are_locked() -> None:
    assert _lock(_disk(f"{META}directory.id=x\n", f"{META}directory.id=y\n")) == "c"
    assert _lock(_disk(META, META)) == "c"
