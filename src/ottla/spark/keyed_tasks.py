"""The tasks of a merge into a keyed table: what they read and write. Functions for `DataFrame.mapInArrow`.

A merge has up to three jobs. The first looks up which files can have keys of the batch, by the bounds in Delta's log
(`find_candidates`). The second reads the keys of these files (`read_files`), to find those that really have some of
the batch. The third reads these files, sorts their rows and those of the batch by key and sequence, decides
(`keyed_merge`) and writes new files (`MergeTask.write`), each with rows of one kind only: kept, inserted, updated or
deleted. The driver gets names and sizes of files, never rows.

Deletes of the batch are written to a second table below the first one, `_tombstones`: the key, the sequence and the day
of each delete. Merges read it, so that an older record cannot bring a deleted key back. Readers of the table do not see
it, and vacuum leaves it alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any, Final

import pyarrow as pa

from ottla.spark.key_ranges import KeyedFile, find_touched
from ottla.spark.keyed_merge import Decision, MergeRule, decide_stream
from ottla.spark.table_files import DataFile, DataFileWriter, FileLayout, FileSlice, read_slices
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import CHANGE_DIRECTORY

#: the day on which a tombstone was written, by which old ones are deleted; partition column of `_tombstones`
DELETED_ON: Final = "_deleted_on"
#: in rows of the second job: the number of their file
FILE: Final = "__file"
KINDS: Final = ("kept", "inserted", "updated", "deleted", "tombstones")

_MESSAGE = pa.schema([("message", pa.string())])
_NUMBERS = pa.schema([(FILE, pa.int32())])


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What the tasks of a merge have written."""

    #: by kind
    files: dict[str, tuple[DataFile, ...]]
    #: rows of the batch
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """How a task merges and writes its rows. Spark pickles it for the tasks."""

    location: TableLocation
    rule: MergeRule
    #: of the files of the table
    layout: FileLayout
    #: None: deletes are not remembered
    tombstones_on: date | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge sorted rows and yield one message, which names the files that were written."""
        writers = self._writers()
        events = 0
        try:
            for decision in decide_stream(batches, self.rule):
                events += decision.events
                self._write(writers, decision)
            files = {kind: [asdict(file) for file in writer.finish()] for kind, writer in writers.items()}
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps({"files": files, "events": events})])], schema=_MESSAGE)

    def _writers(self) -> dict[str, DataFileWriter]:
        writers = {kind: DataFileWriter(self.location, self.layout) for kind in ("kept", "inserted", "updated")}
        writers["deleted"] = DataFileWriter(self.location, replace(self.layout, staging=CHANGE_DIRECTORY))
        if self.tombstones_on is not None:
            layout = tombstone_layout(self.layout, self.rule)
            writers["tombstones"] = DataFileWriter(tombstones_of(self.location), layout)
        return writers

    def _write(self, writers: dict[str, DataFileWriter], decision: Decision) -> None:
        for kind, writer in writers.items():
            rows: pa.Table = getattr(decision, kind)
            if kind == "tombstones":
                rows = rows.append_column(DELETED_ON, pa.repeat(pa.scalar(self.tombstones_on), rows.num_rows))
            for batch in rows.to_batches():
                writer.write(batch)


def read_messages(messages: Iterable[str]) -> MergeResult:
    """Return what all tasks together have written."""
    files: dict[str, list[DataFile]] = {kind: [] for kind in KINDS}
    events = 0
    for message in messages:
        document = json.loads(message)
        events += document["events"]
        for kind, found in document["files"].items():
            files[kind] += [_data_file(one) for one in found]
    return MergeResult(files={kind: tuple(found) for kind, found in files.items()}, events=events)


def find_candidates(files: Sequence[KeyedFile], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of the files that can have one of these keys."""
    found: set[int] = set()
    for batch in batches:
        if len(found) < len(files):
            find_touched(files, batch, found)
    yield pa.RecordBatch.from_arrays([pa.array(sorted(found), pa.int32())], schema=_NUMBERS)


def read_files(
    location: TableLocation,
    tasks: Sequence[Sequence[FileSlice]],
    schema: pa.Schema,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks with these numbers. A column `__file` of the schema has the number of the file."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_slices(location, tasks[number], schema)


def number_files(tasks: Sequence[Sequence[FileSlice]], numbers: dict[str, int]) -> list[list[FileSlice]]:
    """Return slices that carry the number of their file as if it were a partition value."""
    return [
        [replace(one, partition=(*one.partition, (FILE, str(numbers[one.path])))) for one in slices] for slices in tasks
    ]


def tombstones_of(location: TableLocation) -> TableLocation:
    """Return where the deletes of a keyed table are remembered."""
    return TableLocation(f"{location.uri}/_tombstones", location.storage)


def tombstone_layout(layout: FileLayout, rule: MergeRule) -> FileLayout:
    """Return the layout of `_tombstones`: keys, sequence, and the day as partition."""
    names = dict.fromkeys((*rule.keys, *rule.sequence))
    columns = [layout.schema.field(name) for name in names]
    schema = pa.schema([*columns, pa.field(DELETED_ON, pa.date32())])
    return replace(layout, schema=schema, partition_by=(DELETED_ON,), staging="")


def _data_file(document: dict[str, Any]) -> DataFile:
    partition = tuple((name, text) for name, text in document["partition"])
    return DataFile(**{**document, "partition": partition})
