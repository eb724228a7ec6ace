"""The readers of ``format("ottla-table")``: which methods Spark calls, and where.

A batch read is planned once: the files of one version, divided among tasks. Spark calls a stream in one process of the
driver, which lives as long as the query; ``table_log`` describes its offsets. ``read`` runs in the tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ottla.spark.batch_manifest import pinned_version
from ottla.spark.options import OptionError
from ottla.spark.spark_internals import arrow_schema_of, stream_task
from ottla.spark.table_commit import schema_of
from ottla.spark.table_files import read_slices, split_files
from ottla.spark.table_log import (
    BEGINNING,
    DELETE,
    INSERT,
    AddedFile,
    Commit,
    CommitsDeleted,
    TableChanged,
    TableLog,
    TableOffset,
    TableReplaced,
    admit,
    check_readable,
    snapshot_files,
    with_change_type,
    with_offsets,
)
from ottla.spark.table_options import LATEST, TableReadOptions
from ottla.spark.table_schema import CHANGE_TYPE, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

log = logging.getLogger("ottla.spark")

#: how long an idle source delays its reply to Spark, and how often it looks for commits meanwhile
_IDLE_WAIT_S: Final = 0.2
_LOOK_S: Final = 0.05
#: a call so soon after the last one means that Spark is idle
_IDLE_GAP_S: Final = 0.06


def read_schema(options: TableReadOptions) -> StructType:
    """Return the columns of a table, and that of its change feed if it is read."""
    table = load(options)
    schema = StructType.fromJson(dict(schema_of(table)))
    return schema.add(CHANGE_TYPE, "string") if options.change_feed else schema


def load(options: TableReadOptions) -> DeltaTable:
    table = options.location.table(options.version)
    if options.timestamp is not None:
        try:
            table.load_as_version(datetime.fromisoformat(options.timestamp).astimezone())
        except ValueError:
            raise OptionError(
                f"the option timestampAsOf is a time such as 2026-01-31T12:00:00Z, not {options.timestamp!r}"
            ) from None
    check_readable(table)
    return table


class TableReading:
    """What both readers have in common."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns: pa.Schema = arrow_schema_of(schema)

    def check_columns(self, table: DeltaTable) -> None:
        """Raise SchemaMismatch if the schema of the query has a column that the table does not have."""
        known = {field["name"].lower() for field in schema_of(table)["fields"]}
        if self.options.change_feed:
            known.add(CHANGE_TYPE)
        unknown = [name for name in self.columns.names if name.lower() not in known]
        if unknown:
            raise SchemaMismatch(
                f"the table {self.options.location.uri} has no column {', '.join(unknown)}: it has "
                f"{', '.join(sorted(known))}"
            )

    def slices(self, files: Iterable[AddedFile]) -> list[InputPartition]:
        work = [(file.path, file.size_bytes, file.partition) for file in files]
        return [InputPartition(task) for task in split_files(work, self.options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition without content if `partitions` has returned none.
        return read_slices(self.options.location, partition.value or (), self.columns)


class PinnedPart(NamedTuple):
    """A part of a table whose version the batch decides: every ``parts``-th slice, beginning with ``number``."""

    number: int
    parts: int


class TableReader(TableReading, DataSourceReader):
    """One batch read of one version.

    If a stream joins the table and its version is pinned, the tasks choose the files: Spark asks for the partitions
    only once in the life of a query, and each micro-batch has its own version.
    """

    def partitions(self) -> list[InputPartition]:
        table = load(self.options)
        self.check_columns(table)
        slices = self.slices(snapshot_files(table))
        if self.options.pinned_by is None:
            return slices
        parts = max(len(slices), 1)
        return [InputPartition(PinnedPart(number, parts)) for number in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        if not isinstance(part, PinnedPart):
            yield from super().read(partition)
            return
        options = self.options
        assert options.pinned_by is not None
        version = pinned_version(
            options.pinned_by, options.pinned_tables, options.location, stream_task().batch_id, decides=part.number == 0
        )
        table = load(replace(options, version=version))
        for slices in self.slices(snapshot_files(table))[part.number :: part.parts]:
            yield from super().read(slices)


class TableStreamReader(TableReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows that are added to a table, as a stream."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # In the driver's process, created at the first call; never in a pickled copy
        self._log: TableLog | None = None
        self._initial: TableOffset | None = None
        self._snapshot: tuple[int, tuple[AddedFile, ...]] | None = None
        #: with Trigger.AvailableNow: the version after the last one that is read
        self._available_now = False
        self._target: int | None = None
        self._started = False
        self._idle_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset. Spark asks twice, and again in the next run if that repeats the first batch."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.files_per_trigger_max is not None:
            return ReadMaxFiles(self.options.files_per_trigger_max)
        if self.options.rows_per_trigger_max is not None:
            return ReadMaxRows(self.options.rows_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself if there is no file to read.

        Commits without rows do not move the offset: Spark would run an empty batch for each.
        """
        before = TableOffset.from_json(start)
        self._start(before)
        every = isinstance(limit, ReadAllAvailable)
        deadline = time.monotonic() + (_IDLE_WAIT_S if self._is_idle() else 0.0)
        while True:
            end = admit(
                before,
                self._pending(before),
                files_max=None if every else self.options.files_per_trigger_max,
                rows_max=None if every else self.options.rows_per_trigger_max,
            )
            if end != before:
                self._idle_since = None
                return end.as_json()
            if time.monotonic() >= deadline:
                self._idle_since = time.monotonic()
                return start
            time.sleep(_LOOK_S)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        before, until = TableOffset.from_json(start), TableOffset.from_json(end)
        self._start(before)
        files = []
        if before == BEGINNING and until != BEGINNING:
            before = until.snapshot_before()
        for file, after in self._pending(before):
            # Snapshot and log of one version are never both between two offsets, so that this order is total.
            if (after.version, after.index) > (until.version, until.index):
                break
            files.append(file)
        return self.slices(files)

    def commit(self, end: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.forget_before(TableOffset.from_json(end).version)

    def stop(self) -> None:
        """Do nothing: no file and no connection is open."""

    def _find_initial(self) -> TableOffset:
        starting = self.options.starting_version
        if not self.options.location.exists():
            # A stream with a given schema may start before its table exists.
            return (
                BEGINNING
                if starting is None
                else TableOffset("", starting if isinstance(starting, int) else 0, 0, False)
            )
        table = load(self.options)
        self.check_columns(table)
        table_id = str(table.metadata().id)
        if starting is None:
            return BEGINNING
        version = table.version() + 1 if starting == LATEST else int(starting)
        return TableOffset(table_id, version, 0, False)

    def _start(self, before: TableOffset) -> None:
        """Check once per run that it is still the same table, and that its log has the next commit."""
        if self._started or not self.options.location.exists():
            return
        table = load(self.options)
        if before.table_id not in ("", str(table.metadata().id)):
            raise TableReplaced(self.options.location)
        if not before.snapshot:
            self._check_log(before.version, table.version())
        if self._available_now:
            self._target = table.version() + 1
        self._started = True

    def _check_log(self, version: int, latest: int) -> None:
        if version > latest or self._commits().commit(version) is not None:
            return
        loss = CommitsDeleted(self.options.location, version, latest)
        if self.options.fail_on_data_loss:
            raise loss
        log.warning("failOnDataLoss is false, so reading continues without the deleted commits: %s", loss)

    def _pending(self, before: TableOffset) -> Iterator[tuple[AddedFile, TableOffset]]:
        """Yield the files that were not read yet, each with the offset after it."""
        if before == BEGINNING:
            yield from self._snapshot_now()
            return
        if before.snapshot:
            yield from with_offsets(before, self._snapshot_files(before.version))
            before = before.next_version()
        commits = self._commits()
        while self._target is None or before.version < self._target:
            commit = commits.commit(before.version)
            if commit is None:
                found = commits.first_after(before.version) if self._lost(before.version) else None
                if found is None:
                    return
                before = replace(before, version=found, index=0)
                continue
            yield from with_offsets(before, self._files_of(commit))
            before = before.next_version()

    def _snapshot_now(self) -> Iterator[tuple[AddedFile, TableOffset]]:
        """Yield the files of the version that the table has now, or when a run with AvailableNow started."""
        if not self.options.location.exists():
            return
        table = self.options.location.table(self._target - 1 if self._target is not None else None)
        start = TableOffset(str(table.metadata().id), table.version(), 0, True)
        yield from with_offsets(start, self._snapshot_files(start.version))

    def _lost(self, version: int) -> bool:
        """Return whether a missing commit was deleted, for a stream that may skip deleted commits."""
        if self.options.fail_on_data_loss or not self.options.location.exists():
            return False
        return self.options.location.table().version() > version

    def _files_of(self, commit: Commit) -> tuple[AddedFile, ...]:
        if self.options.change_feed and commit.changes is not None:
            # A stream without the column could not distinguish deleted rows from others.
            has_type = CHANGE_TYPE in self.columns.names
            return tuple(file for file in commit.changes if has_type or (CHANGE_TYPE, DELETE) not in file.partition)
        if not commit.removed:
            return self._inserted(commit.added)
        if self.options.skip_change_commits:
            return ()
        if self.options.ignore_changes:
            return self._inserted(commit.added)
        raise TableChanged(self.options.location, commit)

    def _inserted(self, files: Iterable[AddedFile]) -> tuple[AddedFile, ...]:
        return tuple(with_change_type(file, INSERT) if self.options.change_feed else file for file in files)

    def _snapshot_files(self, version: int) -> tuple[AddedFile, ...]:
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = (version, self._inserted(snapshot_files(self.options.location.table(version))))
        return self._snapshot[1]

    def _commits(self) -> TableLog:
        if self._log is None:
            self._log = TableLog(self.options.location)
        return self._log

    def _is_idle(self) -> bool:
        idle = self._idle_since is not None and time.monotonic() - self._idle_since < _IDLE_GAP_S
        return idle and not self._available_now
