"""Log directories are recognised by the runs that used them."""

from __future__ import annotations

from ottla.broker.incarnation import DirectoryRuns, compare, next_dirs, read_runs, write_runs
from ottla.cluster.view import RegisteredDirs
from ottla.log.directories import DirContent
from ottla.testing.disk import MemoryDisk

CURRENT, RETURNED, UNKNOWN = DirContent.CURRENT, DirContent.RETURNED, DirContent.UNKNOWN


def test_directories_of_the_first_run_are_current() -> None:
    assert compare({"/a": DirectoryRuns("A", ())}, None) == ({"/a": CURRENT}, {"/a": ""}, (), ())


def test_directory_is_recognised_by_the_last_run_or_by_its_own_last_run() -> None:
    registered = RegisteredDirs("run3", {"A": "run3", "B": "run2", "C": "run3", "D": "run3"})
    present = {
        "/a": DirectoryRuns("A", ("run3", "run4")),  # the start of run 4 was interrupted
        "/b": DirectoryRuns("B", ("run2",)),
        "/c": DirectoryRuns("C", ("run1",)),
        "/e": DirectoryRuns("E", ("run4",)),
    }
    compared = compare(present, registered)
    assert compared.contents == {"/a": CURRENT, "/b": RETURNED, "/c": UNKNOWN, "/e": UNKNOWN}
    assert compared.recognised_by == {"/a": "run3", "/b": "run2", "/c": "", "/e": ""}
    assert (compared.missing, compared.older) == (["D"], ["C"])


def test_directories_of_an_earlier_release_are_recognised_by_the_incarnation() -> None:
    compared = compare({"/a": DirectoryRuns("A", ("run1",)), "/b": DirectoryRuns("B", ())}, RegisteredDirs("run1", {}))
    assert compared.contents == {"/a": CURRENT, "/b": UNKNOWN}
    assert compared.missing == []


def test_store_keeps_the_last_run_of_absent_directories() -> None:
    first = next_dirs(None, ["A", "B"], "run1")
    second = next_dirs(first, ["A"], "run2")
    assert second == RegisteredDirs("run2", {"A": "run2", "B": "run1"})
    assert compare({"/a": DirectoryRuns("A", ("run2",))}, second).missing == []
    assert len(next_dirs(RegisteredDirs("x", {str(n): "x" for n in range(500)}), ["A"], "run3").last_runs) == 101


def test_file_of_a_directory_is_read_as_written_and_a_damaged_one_is_empty() -> None:
    disk = MemoryDisk()
    disk.makedirs("/a")
    assert read_runs(disk, "/a") == ("", ())
    write_runs(disk, "/a", "A", "run1", "run2")
    assert read_runs(disk, "/a") == ("A", ("run1", "run2"))
    disk.write_file("/a/incarnation.json", b'["run1"', sync=True)
    assert read_runs(disk, "/a") == ("", ())
