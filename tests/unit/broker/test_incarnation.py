"""Log directories are recognised by the runs that used them."""

from __future__ import annotations

from ottla.broker.cluster.incarnation import DirectoryRuns, compare, next_dirs, path_text, read_runs, write_runs
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.log.directories import DirContent
from ottla.testing.disk import MemoryDisk

CURRENT, AWAITED, RETURNED, UNKNOWN = (
    DirContent.CURRENT, DirContent.AWAITED, DirContent.RETURNED, DirContent.UNKNOWN,
)  # fmt: skip
PATHS = {"A": "/a", "B": "/b"}
A2, B1 = DirectoryRuns("A", ("run2",)), DirectoryRuns("B", ("run1",))


def test_directories_of_the_first_run_are_current() -> None:
    assert compare({"/a": DirectoryRuns("A", ())}, None)[:4] == ({"/a": CURRENT}, {"/a": ""}, (), ())


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
    first = next_dirs(None, {"A": "/a", "B": "/b"}, "run1")
    second = next_dirs(first, {"A": "/a"}, "run2")
    assert second == RegisteredDirs("run2", {"A": "run2", "B": "run1"}, (), PATHS)
    assert compare({"/a": DirectoryRuns("A", ("run2",))}, second).missing == []
    assert len(next_dirs(RegisteredDirs("x", {str(n): "x" for n in range(500)}), {"A": "/a"}, "run3").last_runs) == 101


def test_store_keeps_the_path_at_which_a_directory_was_last_used() -> None:
    first = next_dirs(None, {"A": "/a", "B": "/b"}, "run1")
    second = next_dirs(first, {"A": "/mnt/a"}, "run2")
    assert second.paths == {"A": "/mnt/a", "B": "/b"}
    assert path_text(second, "B") == "/b"
    assert path_text(RegisteredDirs("run1", {"B": "run1"}), "B") == "the directory with directory.id=B"


def test_unusable_directory_is_awaited_until_a_start_can_use_all_directories() -> None:
    first = next_dirs(None, {"A": "/a", "B": "/b"}, "run1")
    second = next_dirs(first, {"A": "/a"}, "run2", ["B"])
    assert second == RegisteredDirs("run2", {"B": "run1", "A": "run2"}, ("B",), PATHS)
    assert compare({"/a": A2, "/b": B1}, second).contents == {"/a": CURRENT, "/b": AWAITED}
    assert compare({"/a": A2}, second).missing == ["B"], "removed from log.dirs, or still unusable"
    assert compare({"/a": A2, "/b": DirectoryRuns("C", ())}, second).missing == ["B"], "replaced by an empty disk"
    third = next_dirs(second, {"A": "/a"}, "run3", ["B"])
    assert third == RegisteredDirs("run3", {"B": "run1", "A": "run3"}, ("B",), PATHS)
    given_up = next_dirs(third, {"A": "/a"}, "run4")
    assert given_up == RegisteredDirs("run4", {"B": "run1", "A": "run4"}, (), PATHS)
    assert compare({"/b": B1}, given_up).contents == {"/b": RETURNED}


def test_directory_that_failed_after_the_number_of_a_run_was_written_to_it_is_not_of_that_run() -> None:
    second = next_dirs(next_dirs(None, {"A": "/a", "B": "/b"}, "run1"), {"A": "/a"}, "run2", ["B"])
    both = DirectoryRuns("B", ("run1", "run2"))
    assert compare({"/a": A2, "/b": both}, second).contents == {"/a": CURRENT, "/b": AWAITED}
    unknown = DirectoryRuns("C", ("run2",))
    assert compare({"/a": A2, "/c": unknown}, second).contents == {"/a": CURRENT, "/c": UNKNOWN}


def test_awaited_directory_counts_as_an_older_copy_if_a_later_one_is_missing() -> None:
    """A replica may have been removed, and added again in the directory that is missing now."""
    last = RegisteredDirs("run2", {"B": "run1", "C": "run1", "A": "run2"}, ("B", "C"))
    assert compare({"/b": B1}, last).contents == {"/b": UNKNOWN}
    assert compare({"/a": A2, "/b": B1}, last).contents == {"/a": CURRENT, "/b": AWAITED}, "C is as old as B"


def test_file_of_a_directory_is_read_as_written_and_a_damaged_one_is_empty() -> None:
    disk = MemoryDisk()
    disk.makedirs("/a")
    assert read_runs(disk, "/a") == ("", ())
    write_runs(disk, "/a", "A", "run1", "run2")
    assert read_runs(disk, "/a") == ("A", ("run1", "run2"))
    disk.write_file("/a/incarnation.json", b'["run1"', sync=True)
    assert read_runs(disk, "/a") == ("", ())
