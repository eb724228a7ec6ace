"""Sync the commits of Delta tables on a local disk, because deltalake does not. Object stores sync each file.

A table cannot be read if one of its commits is cut off. So a commit is synced together with those before it that this
process has not synced: the creation of the table, added columns, deletes, commits of a vacuum and of other processes. A
commit that a killed process has left is synced when its batch is repeated and skipped: after that, the checkpoint does
not repeat the batch any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from ottla.spark.stored_files import sync_files
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import MERGE, read_actions

#: so many commits are synced, with their files, when a process syncs a table for the first time
_FIRST_COMMITS: Final = 10

#: by the path of a table: the last version that this process has synced
_synced: dict[str, int] = {}


def sync_commit(location: TableLocation, version: int, files: Sequence[str] | None = None) -> None:
    """Sync a commit, its files, and the commits before it. Without ``files``, the files are those of the commit."""
    if not location.local:
        return
    known = _synced.get(location.uri)
    # A table that was deleted and created again has a lower version.
    first = known + 1 if known is not None and known < version else max(version - _FIRST_COMMITS + 1, 0)
    paths = [*(files or ()), *(["."] if first == 0 else ())]
    for one in range(first, version + 1):
        paths.append(f"_delta_log/{one:020}.json")
        if one < version or files is None:
            # A commit that was deleted meanwhile has no files to sync.
            paths += _files_of(read_actions(location.files(), one) or ())
    sync_files([os.path.normpath(os.path.join(location.uri, path)) for path in paths])
    _synced[location.uri] = version


def _files_of(actions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the files that a commit has added."""
    for action in actions:
        if "add" in action:
            yield unquote(action["add"]["path"])
        yield from (file["path"] for file in action.get("commitInfo", {}).get(MERGE, {}).get("deleted", ()))
