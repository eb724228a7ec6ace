"""No file that the broker creates can be read by all users of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.env.disk import RealDisk, restrict_new_files


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("open_umask")
def test_files_and_directories_of_the_disk_are_closed_to_others(tmp_path: Path) -> None:
    disk, folder = RealDisk(), tmp_path / "orders-0"
    disk.makedirs(str(folder))
    disk.close(disk.open(str(folder / "segment.log"), create=True))
    disk.write_file(str(folder / "meta"), b"text", sync=True)
    locked = disk.lock(str(folder / ".lock"))
    assert locked is not None
    disk.close(locked)
    assert mode_of(folder) == 0o750
    assert {path.name: mode_of(path) for path in folder.iterdir()} == {
        "segment.log": 0o640, "meta": 0o640, ".lock": 0o640,
    }  # fmt: skip


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("before", "after"), [(0, 0o027), (0o022, 0o027), (0o077, 0o077)])
def test_umask_of_the_process_is_made_stricter_and_never_wider(before: int, after: int) -> None:
    os.umask(before)
    restrict_new_files()
    assert os.umask(0) == after
