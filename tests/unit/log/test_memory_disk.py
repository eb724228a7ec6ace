"""The disk in memory: it answers as the real one does, and forgets what a real one would."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from ottla.env.disk import Disk, RealDisk, WriteFailed
from ottla.testing.disk import DiskCut, MemoryDisk


@pytest.fixture(params=[MemoryDisk, RealDisk])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    disk: Disk = request.param()
    folder = str(tmp_path / "fixture")
    disk.makedirs(folder)
    return disk, folder


# -- as the real one --------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(place: tuple[Disk, str]) -> None:
    disk, folder = place
    fd = disk.open(f"{folder}/a", create=True)
    disk.pwrite(fd, b"hello", 0)
    disk.pwritev(fd, [b"wor", memoryview(b"ld")], 5)
    assert disk.pread(fd, 100, 3) == b"loworld"
    assert disk.size(fd) == disk.file_size(f"{folder}/a") == 10
    disk.close(fd)


def test_hole_reads_as_zeros(place: tuple[Disk, str]) -> None:
    disk, folder = place
    fd = disk.open(f"{folder}/a", create=True)
    disk.pwrite(fd, b"x", 3)
    disk.truncate(fd, 6)
    assert disk.pread(fd, 100, 0) == b"\0\0\0x\0\0"
    disk.truncate(fd, 2)
    assert disk.pread(fd, 100, 0) == b"\0\0"
    disk.close(fd)


def test_opening_what_is_not_there_fails(place: tuple[Disk, str]) -> None:
    disk, folder = place
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/a")
    with pytest.raises(WriteFailed, match="No such file"):
        disk.open(f"{folder}/nowhere/a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.listdir(f"{folder}/nowhere")
    with pytest.raises(WriteFailed, match="No such file"):
        disk.fsync_dir(f"{folder}/nowhere")


def test_missing_files_are_none_and_removing_them_is_nothing(place: tuple[Disk, str]) -> None:
    disk, folder = place
    assert disk.read_file(f"{folder}/a") is None
    assert disk.file_size(f"{folder}/a") is None
    assert not disk.exists(f"{folder}/a")
    disk.remove(f"{folder}/a")


@pytest.mark.parametrize("sync", [True, False])
def test_whole_files_are_replaced(place: tuple[Disk, str], sync: bool) -> None:
    disk, folder = place
    disk.write_file(f"{folder}/a", b"first and long", sync=sync)
    disk.write_file(f"{folder}/a", b"second", sync=sync)
    assert disk.read_file(f"{folder}/a") == b"second"
    assert disk.listdir(folder) == ["a"]


def test_open_file_outlives_its_name(place: tuple[Disk, str]) -> None:
    disk, folder = place
    fd = disk.open(f"{folder}/a", create=True)
    disk.pwrite(fd, b"x", 0)
    disk.remove(f"{folder}/a")
    assert not disk.exists(f"{folder}/a")
    assert disk.pread(fd, 1, 0) == b"x"
    disk.close(fd)


def test_rename_replaces_files_and_takes_folders_along(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.write_file(f"{folder}/a", b"a", sync=False)
    disk.write_file(f"{folder}/b", b"b", sync=False)
    disk.rename(f"{folder}/a", f"{folder}/b")
    assert disk.read_file(f"{folder}/b") == b"a"
    disk.makedirs(f"{folder}/sub")
    disk.write_file(f"{folder}/sub/c", b"c", sync=False)
    disk.rename(f"{folder}/sub", f"{folder}/bus")
    assert disk.read_file(f"{folder}/bus/c") == b"c"
    with pytest.raises(WriteFailed, match="No such file"):
        disk.rename(f"{folder}/sub", f"{folder}/x")


def test_folder_is_not_renamed_over_a_full_one(place: tuple[Disk, str]) -> None:
    disk, folder = place
    for name in ("one", "two"):
        disk.makedirs(f"{folder}/{name}")
        disk.write_file(f"{folder}/{name}/a", b"a", sync=False)
    with pytest.raises(OSError) as raised:
        disk.rename(f"{folder}/one", f"{folder}/two")
    assert raised.value.errno == errno.ENOTEMPTY


def test_tree_goes_with_its_files(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.makedirs(f"{folder}/sub")
    disk.write_file(f"{folder}/sub/a", b"a", sync=False)
    disk.remove_tree(f"{folder}/sub")
    assert disk.listdir(folder) == []


# -- crashes ----------------------------------------------------------------------------------------------------------


def with_file(data: bytes) -> tuple[MemoryDisk, int]:
    """A disk with a durable empty file that was then written, but not synced."""
    disk = MemoryDisk()
    disk.makedirs("/room")
    fd = disk.open("/room/a", create=True)
    disk.fsync_dir("/")
    disk.fsync_dir("/room")
    disk.pwrite(fd, data, 0)
    return disk, fd


def after_power_cuts(disk: MemoryDisk, path: str = "/room/a") -> set[bytes | None]:
    return {disk.crash(Random(seed), "power").read_file(path) for seed in range(200)}


def test_death_of_the_process_keeps_what_was_written() -> None:
    disk, _ = with_file(b"data")
    assert disk.crash(Random(0), "process").read_file("/room/a") == b"data"


def test_power_cut_may_take_what_was_not_synced() -> None:
    disk, _ = with_file(b"data")
    assert after_power_cuts(disk) == {b"", b"data"}


def test_what_the_process_left_unsynced_a_later_power_cut_may_take() -> None:
    disk, _ = with_file(b"data")
    assert after_power_cuts(disk.crash(Random(0), "process")) == {b"", b"data"}


def test_synced_data_survives() -> None:
    disk, fd = with_file(b"data")
    disk.fdatasync(fd)
    disk.pwrite(fd, b"more", 4)
    assert after_power_cuts(disk) == {b"data", b"datamore"}


def test_unsynced_data_is_torn_at_sectors() -> None:
    disk, _ = with_file(b"x" * 1200)
    found = after_power_cuts(disk)
    assert bytes(512) + b"x" * 512 in found, "a sector can be missing before one that is there"
    assert b"x" * 512 in found


def test_truncation_is_not_durable_before_a_sync() -> None:
    disk, fd = with_file(b"data")
    disk.fdatasync(fd)
    disk.truncate(fd, 1)
    assert after_power_cuts(disk) == {b"d", b"data"}


def test_new_name_needs_its_directory_synced() -> None:
    disk, _ = with_file(b"")
    fd = disk.open("/room/b", create=True)
    disk.pwrite(fd, b"data", 0)
    disk.fdatasync(fd)
    assert after_power_cuts(disk, "/room/b") == {None, b"data"}
    disk.fsync_dir("/room")
    assert after_power_cuts(disk, "/room/b") == {b"data"}


def test_new_folder_needs_its_parent_synced() -> None:
    disk = MemoryDisk()
    disk.makedirs("/room")
    disk.write_file("/room/a", b"data", sync=True)
    assert after_power_cuts(disk) == {None, b"data"}


def test_removed_name_can_come_back() -> None:
    disk, fd = with_file(b"data")
    disk.fdatasync(fd)
    disk.remove("/room/a")
    assert after_power_cuts(disk) == {None, b"data"}
    disk.fsync_dir("/room")
    assert after_power_cuts(disk) == {None}


def test_synced_whole_file_is_the_old_or_the_new_at_every_cut() -> None:
    for changes in range(4):
        disk = MemoryDisk()
        disk.write_file("/a", b"old", sync=True)
        disk.cut_after(changes)
        with pytest.raises(DiskCut):
            disk.write_file("/a", b"new!", sync=True)
        assert after_power_cuts(disk, "/a") <= {b"old", b"new!"}


def test_unsynced_whole_file_can_be_empty_after_a_power_cut() -> None:
    disk = MemoryDisk()
    disk.write_file("/a", b"old", sync=True)
    disk.write_file("/a", b"new!", sync=False)
    assert after_power_cuts(disk, "/a") == {b"old", b"", b"new!"}


def test_same_seed_forgets_the_same() -> None:
    disk, _ = with_file(b"x" * 10_000)
    assert len({disk.crash(Random(7), "power").read_file("/room/a") for _ in range(3)}) == 1


# -- faults -----------------------------------------------------------------------------------------------------------


def test_fault_hits_the_chosen_call_and_no_other() -> None:
    disk, fd = with_file(b"")
    disk.fail("write", errno.ENOSPC, skip=1)
    disk.pwrite(fd, b"a", 0)
    with pytest.raises(OSError) as raised:
        disk.pwrite(fd, b"b", 1)
    assert raised.value.errno == errno.ENOSPC
    disk.pwrite(fd, b"c", 1)
    assert disk.pread(fd, 9, 0) == b"ac"


def test_failed_write_can_leave_a_part_behind() -> None:
    disk, fd = with_file(b"")
    disk.fail("write", errno.EIO, applied_bytes=2)
    with pytest.raises(OSError):
        disk.pwritev(fd, [b"ab", b"cd"], 0)
    assert disk.pread(fd, 9, 0) == b"ab"


def test_fault_can_last_until_it_is_healed() -> None:
    disk, fd = with_file(b"")
    disk.fail("sync", times=None)
    for _ in range(3):
        with pytest.raises(OSError):
            disk.fdatasync(fd)
    disk.heal()
    disk.fdatasync(fd)


def test_fault_can_be_bound_to_a_path() -> None:
    disk, fd = with_file(b"")
    disk.fail("any", path="other")
    disk.pwrite(fd, b"a", 0)
    with pytest.raises(OSError):
        disk.write_file("/room/other", b"", sync=False)


def test_cut_stops_everything_that_follows() -> None:
    disk, fd = with_file(b"")
    disk.cut_after(1)
    disk.pwrite(fd, b"a", 0)
    for _ in range(2):
        with pytest.raises(DiskCut):
            disk.fdatasync(fd)


def test_cut_in_a_write_leaves_a_prefix() -> None:
    found = set()
    for seed in range(40):
        disk, fd = with_file(b"")
        disk.cut_after(0, seed)
        with pytest.raises(DiskCut):
            disk.pwrite(fd, b"abc", 0)
        found.add(disk.crash(Random(0), "process").read_file("/room/a"))
    assert found == {b"", b"a", b"ab", b"abc"}


def test_calls_are_counted_by_name_and_path() -> None:
    disk, fd = with_file(b"")
    disk.read_file("/room/a")
    assert [call for call in disk.calls if os.path.basename(call.path) == "a"] == [
        ("create", "/room/a"),
        ("pwrite", "/room/a"),
        ("read_file", "/room/a"),
    ]
    assert fd >= 0
