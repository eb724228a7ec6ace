"""The log of a Delta table as a stream reads it: one commit after the other, and the position of a reader in it.

Position: a stream has read all files before ``index`` of the commit ``version``, and of all commits before it. A stream
that begins with the existing rows first reads the files of a version (``snapshot``), always in the same order. Within
a commit, files have the order of the log, which never changes.

Every stream that begins with the rows of the table begins at the same offset (``BEGINNING``), whatever version the
table has. Spark asks for the first offset again when it repeats the first batch, and by then the table can have more
rows. The first batch ends within the snapshot or right after it, so that its end says which version the snapshot has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from ottla.model.errors import OttlaError
from ottla.spark.table_files import PartitionValues, partition_texts
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import CHANGE_TYPE

#: in the information of a commit: which files of a merge have updated rows, and where its deleted rows are
MERGE: Final = "ottla.merge"
#: Delta's words for the values of `_change_type`
INSERT: Final = "insert"
UPDATE: Final = "update_postimage"
DELETE: Final = "delete"
#: the directory of deleted rows; vacuum deletes old files in it, as it does with Delta's own change data
CHANGE_DIRECTORY: Final = "_change_data/"
#: features of tables that delta-rs writes and that this reader supports
_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})


class TableChanged(OttlaError):
    """A commit has deleted rows that a stream may have read."""

    def __init__(self, location: TableLocation, commit: Commit) -> None:
        super().__init__(
            f"version {commit.version} of the table {location.uri} ({commit.operation}) deletes or replaces rows, and "
            "a stream cannot take back what it has read. Set readChangeFeed to true to read the changes of keyed "
            "tables, ignoreChanges to true to read all files that it has added (rows may come again), "
            "skipChangeCommits to true to skip such commits, or start with another checkpoint"
        )


class CommitsDeleted(OttlaError):
    """Commits that a stream has not read yet are no longer in the table's log."""

    def __init__(self, location: TableLocation, version: int, latest: int) -> None:
        super().__init__(
            f"version {version} of the table {location.uri} is no longer in its log (it is at version {latest}): rows "
            "were missed. Start with another checkpoint, or set failOnDataLoss to false to continue with the oldest "
            "version there is; the table's property delta.logRetentionDuration says how long the log is kept"
        )


class TableReplaced(OttlaError):
    """Another table has the path of the table that a stream was reading."""

    def __init__(self, location: TableLocation) -> None:
        super().__init__(
            f"the table {location.uri} was deleted and created again since this stream began: use another checkpoint"
        )


class TableUnreadable(OttlaError):
    """The table uses a feature that cannot be read."""


@dataclass(frozen=True, slots=True)
class TableOffset:
    """The position of a stream in a table. Spark compares its JSON text, so fields and their order are fixed."""

    #: "" in ``BEGINNING``, and of a table that did not exist yet
    table_id: str
    version: int
    index: int
    snapshot: bool

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(document["table"], document["version"], document["index"], document["snapshot"])

    def as_json(self) -> dict[str, Any]:
        return {"table": self.table_id, "version": self.version, "index": self.index, "snapshot": self.snapshot}

    def next_version(self) -> Self:
        return replace(self, version=self.version + 1, index=0, snapshot=False)

    def snapshot_before(self) -> Self:
        """Return the start of the snapshot that a batch from ``BEGINNING`` to this offset has read."""
        return replace(self, version=self.version - (0 if self.snapshot else 1), index=0, snapshot=True)


#: the first offset of a stream that begins with the rows that the table has when the first batch is planned
BEGINNING: Final = TableOffset("", 0, 0, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    path: str
    size_bytes: int
    #: None if the log does not have it
    rows: int | None
    partition: PartitionValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of the table."""

    version: int
    operation: str
    #: with new rows; files of a compaction have none
    added: tuple[AddedFile, ...]
    #: number of files whose rows were deleted or replaced
    removed: int
    #: of a merge into a keyed table: the files with changed rows, each with its `_change_type`; None of other commits
    changes: tuple[AddedFile, ...] | None = None


class TableLog:
    """The commits of one table, each read once."""

    def __init__(self, location: TableLocation) -> None:
        self._location = location
        self._files = location.files()
        self._commits: dict[int, Commit] = {}

    def commit(self, version: int) -> Commit | None:
        """Return a commit; None if it does not exist yet, or was deleted."""
        if version not in self._commits:
            actions = read_actions(self._files, version)
            if actions is None:
                return None
            self._commits[version] = parse_commit(version, actions)
        return self._commits[version]

    def forget_before(self, version: int) -> None:
        for old in [each for each in self._commits if each < version]:
            del self._commits[old]

    def first_after(self, version: int) -> int | None:
        """Return the oldest version from ``version`` on whose commit the log still has."""
        latest = self._location.table().version()
        return next((each for each in range(version, latest + 1) if self.commit(each) is not None), None)


def read_actions(files: fs.FileSystem, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of a commit, from the files of its table; None if it does not exist yet, or was deleted."""
    try:
        with files.open_input_stream(f"_delta_log/{version:020}.json") as stream:
            text = bytes(stream.read()).decode()
    except FileNotFoundError:
        return None
    # Not splitlines(): it also splits at U+2028 and U+0085, which JSON may contain inside of a text.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def parse_commit(version: int, actions: Iterable[Mapping[str, Any]]) -> Commit:
    """Return the commit that has these actions."""
    added: list[AddedFile] = []
    removed = 0
    info: Mapping[str, Any] = {}
    for action in actions:
        if (add := action.get("add")) is not None and add["dataChange"]:
            added.append(_added(add))
        elif (remove := action.get("remove")) is not None and remove["dataChange"]:
            removed += 1
        elif "commitInfo" in action:
            info = action["commitInfo"]
    merge = info.get(MERGE)
    return Commit(
        version=version,
        operation=info.get("operation", "an unknown operation"),
        added=tuple(added),
        removed=removed,
        changes=None if merge is None else _changes(merge, added),
    )


def _changes(merge: Mapping[str, Any], added: Iterable[AddedFile]) -> tuple[AddedFile, ...]:
    updated = set(merge["updated"])
    changes = [with_change_type(file, UPDATE if file.path in updated else INSERT) for file in added]
    for one in merge["deleted"]:
        partition = tuple(one["partition"].items())
        file = AddedFile(path=one["path"], size_bytes=one["size"], rows=one["rows"], partition=partition)
        changes.append(with_change_type(file, DELETE))
    return tuple(changes)


def with_change_type(file: AddedFile, kind: str) -> AddedFile:
    """Return the file with the change that all its rows have, which is read like a partition value."""
    return replace(file, partition=(*file.partition, (CHANGE_TYPE, kind)))


def _added(add: Mapping[str, Any]) -> AddedFile:
    if add.get("deletionVector") is not None:
        raise TableUnreadable(
            f"the file {add['path']} has a deletion vector, which cannot be read: rewrite the table without "
            "delta.enableDeletionVectors"
        )
    stats = json.loads(add.get("stats") or "{}")
    return AddedFile(
        path=unquote(add["path"]),
        size_bytes=add["size"],
        rows=stats.get("numRecords"),
        partition=tuple(add["partitionValues"].items()),
    )


def snapshot_files(table: DeltaTable) -> list[AddedFile]:
    """Return all files of a version, the oldest first, always in the same order. Raise TableUnreadable."""
    check_readable(table)
    actions = pa.table(table.get_add_actions(flatten=True))
    names = list(table.metadata().partition_columns)
    columns = [partition_texts(actions[f"partition.{name}"].combine_chunks()).to_pylist() for name in names]
    rows = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [None] * len(actions)
    files = [
        (
            modified,
            AddedFile(
                path=unquote(path),
                size_bytes=size_bytes,
                rows=count,
                partition=tuple((name, column[index]) for name, column in zip(names, columns, strict=True)),
            ),
        )
        for index, (path, size_bytes, count, modified) in enumerate(
            zip(
                actions["path"].to_pylist(),
                actions["size_bytes"].to_pylist(),
                rows,
                actions["modification_time"].cast(pa.int64()).to_pylist(),
                strict=True,
            )
        )
    ]
    return [file for _, file in sorted(files, key=lambda each: (each[0], each[1].path))]


def check_readable(table: DeltaTable) -> None:
    features = set(table.protocol().reader_features or ())
    unknown = sorted(features - _READER_FEATURES)
    if unknown or table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise TableUnreadable(
            f"the table uses {', '.join(unknown) or 'column mapping'}, which cannot be read: rewrite it without"
        )


def admit(
    start: TableOffset,
    pending: Iterable[tuple[AddedFile, TableOffset]],
    *,
    files_max: int | None,
    rows_max: int | None,
) -> TableOffset:
    """Return the end of a batch from ``start``. Pending files have the offset after them; the first always fits."""
    end, files, rows = start, 0, 0
    for file, after in pending:
        files, rows = files + 1, rows + (file.rows or 0)
        if files > 1 and ((files_max is not None and files > files_max) or (rows_max is not None and rows > rows_max)):
            return end
        end = after
    return end


def with_offsets(start: TableOffset, files: tuple[AddedFile, ...]) -> Iterator[tuple[AddedFile, TableOffset]]:
    """Yield the files of one version from ``start`` on, each with the offset after it."""
    for index in range(start.index, len(files)):
        last = index + 1 == len(files)
        yield files[index], start.next_version() if last else replace(start, index=index + 1)
