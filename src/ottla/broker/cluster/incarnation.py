"""Which log directories have the logs that this broker had at the end of its last run.

Each run has a random number, its incarnation, and each directory has an id. The metadata store has the id of every
directory with the last run that used it (`RegisteredDirs`), and each directory has the same in a file:

    the file has the last run             the logs are those of the last run
    the file has the directory's own run  the directory was absent since that run, and has come back
    otherwise                             it is new, was wiped or is an older copy: its logs may lack records
    an id of the last run is missing,     a log that is not found elsewhere was in that directory
    or is that of an older copy

A lost log is marked with a number of the last run. Its directory may come back later: it is complete if that run was
the last one which used the directory.

A directory of ``log.dirs`` that cannot be used is not absent: its logs are offline, and none are created in their
place, because the next start may find them. Its id may be unreadable. So while a directory cannot be used, the store
keeps the missing ids as unusable. Their logs are lost only at a start that can use all its directories and still misses
them. The mark of such an offline log has a number of the run that had it last too, and the mark of a lost one takes it
over.

A directory that fails while the broker runs ends its part in the run: the others begin a new one
(`failed_directories.py`).

Steps of a start, in an order that allows a kill after each of them:

1. Write the number of the new run to the files, beside the number by which each directory was recognised. Then open
   the logs.
2. Write the number of the new run to the store. The store still has the directories of the last run.
3. Write to the store which logs are lost or unclean (`unclean_marks.mark_unclean`).
4. Write to the store which directories the new run uses. An interrupted start before this step is repeated with the
   same comparison, so lost logs are not forgotten.
5. Prepare the directories for appends (`LogStore.begin_writing`). Until now they show what was lost as before.
6. Remove the older number from the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.env.disk import Disk
from ottla.log.directories import DirContent, LogDir
from ottla.log.store import LogStore

FILE_NAME = "incarnation.json"
#: directories that are absent and still known; a directory that comes back later counts as an older copy
_ABSENT_MAX = 100


class DirectoryRuns(NamedTuple):
    """The file of one directory."""

    #: "" if the file has none
    directory_id: str
    #: incarnations of the last run, and of the next one if its start was interrupted
    runs: tuple[str, ...]


class Comparison(NamedTuple):
    """The directories that are present, compared with those in the metadata store."""

    #: what each directory contains, by path
    contents: Mapping[str, DirContent]
    #: by path: the incarnation by which the directory was recognised; "" if it was not
    recognised_by: Mapping[str, str]
    #: ids of directories that the last run used, or could not use, and that are not present
    missing: Sequence[str]
    #: ids of those that are present as older copies
    older: Sequence[str]
    #: what was compared, by path
    present: Mapping[str, DirectoryRuns]


def read_runs(disk: Disk, directory: str) -> DirectoryRuns:
    """Return the contents of a directory's file; nothing if the file is missing or damaged."""
    data = disk.read_file(os.path.join(directory, FILE_NAME))
    try:
        found = json.loads(data or b"{}")
        runs = tuple(str(found[name]) for name in ("current", "next") if found.get(name))
        return DirectoryRuns(str(found.get("directory", "")), runs)
    except (ValueError, AttributeError):
        return DirectoryRuns("", ())


def write_runs(disk: Disk, directory: str, directory_id: str, current: str, next_run: str = "") -> None:
    """Write the file of a directory, and sync it."""
    content = {"version": 1, "directory": directory_id, "current": current, "next": next_run}
    disk.write_file(os.path.join(directory, FILE_NAME), json.dumps(content).encode(), sync=True)


def recognise(disk: Disk, store: LogStore, registered: RegisteredDirs | None, run: str) -> Comparison:
    """Compare the log directories with those in the metadata store, and set what each of them contains.

    Write the number of the new ``run`` to their files: step 1 above. Raise OSError if no directory can be used.
    """
    present: dict[str, DirectoryRuns] = {}
    for each in store.usable_dirs():
        try:
            present[each.path] = DirectoryRuns(each.directory_id, read_runs(disk, each.path).runs)
        except OSError as error:
            store.set_unusable(each, error)
    recognised_by = compare(present, registered).recognised_by
    for each in store.usable_dirs():
        try:
            write_runs(disk, each.path, each.directory_id, recognised_by[each.path], run)
        except OSError as error:
            store.set_unusable(each, error)
    return compare_usable(store, present, registered)


def compare_usable(
    store: LogStore, present: Mapping[str, DirectoryRuns], registered: RegisteredDirs | None
) -> Comparison:
    """Compare those of the ``present`` directories that can be used, and set what each of them contains."""
    usable = store.usable_dirs()
    compared = compare({each.path: present[each.path] for each in usable}, registered)
    for each in usable:
        each.content, each.run = compared.contents[each.path], run_number(compared.recognised_by[each.path])
    return compared


def run_number(run: str) -> int:
    """Return a number for a run, by which a lost log names the run that had it last; -1 for no run."""
    return crc32(run.encode()) if run else -1


def compare(present: Mapping[str, DirectoryRuns], registered: RegisteredDirs | None) -> Comparison:
    """Compare the present directories, by path, with those in the metadata store; None if no run has begun yet."""
    if registered is None:
        return Comparison(dict.fromkeys(present, DirContent.CURRENT), dict.fromkeys(present, ""), (), (), present)
    last_runs = registered.last_runs
    recognised_by = {path: _recognised_by(each, registered) for path, each in present.items()}
    known = {present[path].directory_id for path, run in recognised_by.items() if run}
    expected = [each for each, run in last_runs.items() if run == registered.run or each in registered.unusable]
    contents = {}
    for path, run in recognised_by.items():
        if not run:
            contents[path] = DirContent.UNKNOWN
        elif run == registered.run:
            contents[path] = DirContent.CURRENT
        elif present[path].directory_id not in registered.unusable:
            contents[path] = DirContent.RETURNED
        elif all(each in known or last_runs[each] == run for each in expected):
            contents[path] = DirContent.AWAITED
        else:
            # A replica may have been removed and added again while this directory could not be used. Its newer log
            # may be in a directory that is missing now.
            contents[path] = DirContent.UNKNOWN
    ids = {each.directory_id for each in present.values()}
    older = {each.directory_id for path, each in present.items() if contents[path] is DirContent.UNKNOWN}
    return Comparison(
        contents, recognised_by, missing=[each for each in expected if each not in ids],
        older=[each for each in expected if each in older], present=present,
    )  # fmt: skip


def _recognised_by(directory: DirectoryRuns, registered: RegisteredDirs) -> str:
    """Return the last run that used this directory if its file has that run, else ""."""
    # A directory may have failed after the number of a run was written to it. The store knows whether the run used it;
    # the store of an earlier release has no ids.
    last = registered.last_runs.get(directory.directory_id, "") if registered.last_runs else registered.run
    return last if last in directory.runs else ""


def next_dirs(
    registered: RegisteredDirs | None, present: Mapping[str, str], run: str, unusable: Sequence[str] = ()
) -> RegisteredDirs:
    """Return what the store has to know when a run uses the directories ``present``: their paths by their ids.

    ``unusable`` are the missing ids, if a directory of ``log.dirs`` cannot be used.
    """
    before = registered.last_runs if registered is not None else {}
    absent = [(each, its_run) for each, its_run in before.items() if each not in present and each not in unusable]
    awaited = {each: before[each] for each in unusable}
    last_runs = dict(absent[-_ABSENT_MAX:]) | awaited | dict.fromkeys(present, run)
    known = {**(registered.paths if registered is not None else {}), **present}
    paths = {each: known[each] for each in last_runs if each in known}
    return RegisteredDirs(run, last_runs, tuple(unusable), paths)


def paths_by_id(store: LogStore, directories: Sequence[LogDir]) -> dict[str, str]:
    """Return the absolute paths of log directories by their ids."""
    return {each.directory_id: store.absolute_path(each) for each in directories}


def path_text(registered: RegisteredDirs, directory_id: str) -> str:
    """Return the path at which a directory was last used, for messages; its id if the path is not known."""
    return registered.paths.get(directory_id) or f"the directory with directory.id={directory_id}"
