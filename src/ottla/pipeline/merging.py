"""Merges a batch into a keyed table, as jobs of Spark. The driver sees names and sizes of files, no rows.

`spark/keyed_merge.py` decides about rows, `spark/keyed_tasks.py` says what the tasks do, and `TableCommit.merge`
commits their files once per batch, as the next version of the one that was read. A merge reads and rewrites the files
that have keys of the batch and no others, so that its cost follows the batch and those files, not the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import TableSink
from ottla.pipeline.layout import partition_name
from ottla.pipeline.plan import quoted
from ottla.spark.key_ranges import KeyedFile, keyed_files
from ottla.spark.keyed_merge import DELETE, ORIGIN, ROW, TABLE, TOMBSTONE, MergeRule
from ottla.spark.keyed_tasks import (
    DELETED_ON,
    FILE,
    MergeTask,
    find_candidates,
    number_files,
    read_files,
    read_messages,
    tombstones_of,
)
from ottla.spark.maintenance import delete_partitions_before, maybe_maintain
from ottla.spark.spark_internals import arrow_schema_of
from ottla.spark.table_commit import Committed, MergedFiles, TableBatch, TableCommit, discard, schema_of
from ottla.spark.table_files import DataFile, FileLayout, FileSlice, split_files
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import AddedFile
from ottla.spark.table_schema import CHANGE_TYPE, IS_CURRENT, VALID_FROM, VALID_TO

#: a table of at most so many bytes is rewritten in one job, without a search for the files that have keys of the batch
SMALL_BYTES: Final = 8 << 20
_TASK_BYTES: Final = 32 << 20
_FILE_BYTES: Final = 128 << 20
_MAINTAIN_EVERY: Final = 100
#: types whose values have no equality and order that all readers agree on
_NOT_FOR_KEYS: Final = ("float", "double", "array", "map", "struct", "variant")
_NOT_FOR_SEQUENCES: Final = ("array", "map", "struct", "variant")


class MergeRefused(OttlaError):
    """The rows cannot be merged by these columns; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """A keyed table and the rule of its merges."""

    location: TableLocation
    sink: TableSink
    #: see `graph.sequence_of`
    sequence: tuple[str, ...]


def merge_rows(rows: DataFrame, table: KeyedTable, batch: TableBatch) -> None:
    """Merge a batch once. `rows` are read several times, and at least once: the caller may observe them."""
    merge = _Merge(rows, table, batch)
    committed = merge.run()
    if committed.skipped:
        rows.write.format("noop").mode("append").save()
    else:
        for location in (table.location, tombstones_of(table.location)):
            if location.exists():
                maybe_maintain(location, batch.number, every=_MAINTAIN_EVERY, vacuum_hours=None)
        merge.expire_tombstones()


class _Merge:
    """One batch on its way into a keyed table."""

    def __init__(self, rows: DataFrame, table: KeyedTable, batch: TableBatch) -> None:
        self._rows = rows
        self._spark = rows.sparkSession
        self._location = table.location
        self._sink = table.sink
        self._batch = batch
        self._today = datetime.now(UTC).date()
        self._sequence = table.sequence
        self._rule = self._rule_for(rows.columns)
        #: without a sequence no delete is newer than a row that comes later
        self._remembers = table.sink.delete_when is not None and bool(self._rule.sequence)

    def _rule_for(self, columns: Iterable[str]) -> MergeRule:
        """Return the rule with the names of these columns: Spark and Delta ignore the case of names, Arrow does not."""
        names = {name.lower(): name for name in columns}
        return MergeRule(
            keys=tuple(names[name.lower()] for name in self._sink.keys),
            sequence=tuple(names[name.lower()] for name in self._sequence),
            history=self._sink.history,
        )

    def run(self) -> Committed:
        partition_by = [partition_name(one) for one in self._sink.partition_by]
        commit = TableCommit(
            self._location,
            self._stored_schema().jsonValue(),
            partition_by=partition_by,
            merge_schema=self._sink.merge_schema,
        )
        commit.plan()
        return commit.merge(self._batch, self._write)

    def expire_tombstones(self) -> None:
        """Delete tombstones that are older than their retention, after each hundredth batch."""
        location = tombstones_of(self._location)
        if self._rule.history or (self._batch.number + 1) % _MAINTAIN_EVERY or not location.exists():
            return
        delete_partitions_before(location, DELETED_ON, self._oldest_tombstone())

    def _oldest_tombstone(self) -> date:
        if self._rule.history:
            return date.min
        # A delete is remembered for the whole of its day.
        return self._today - timedelta(milliseconds=self._sink.tombstone_retention_ms) - timedelta(days=1)

    def _stored_schema(self) -> StructType:
        """Return the schema of the table as these rows want it. Raise MergeRefused for columns without an order."""
        schema = StructType([field for field in self._rows.schema if field.name != CHANGE_TYPE])
        for names, refused, what in (
            (self._rule.keys, _NOT_FOR_KEYS, "a key"),
            (self._rule.sequence, _NOT_FOR_SEQUENCES, "a sequence"),
        ):
            for name in names:
                kind = schema[name].dataType.typeName()
                if kind in refused:
                    raise MergeRefused(f"the column {name} of type {kind} cannot be {what} of a table: cast it")
        if self._rule.history:
            time = schema[self._rule.sequence[0]].dataType
            schema = schema.add(VALID_FROM, time).add(VALID_TO, time).add(IS_CURRENT, "boolean")
        return schema

    def _write(self, table: DeltaTable) -> MergedFiles | None:
        """Write the files of one attempt, for this version of the table."""
        schema = StructType.fromJson(dict(schema_of(table)))
        self._rule = self._rule_for(schema.names)
        events = self._events(schema)
        files = keyed_files(table, self._rule.keys)
        touched = self._touched(files, events, schema)
        sources = [events, *self._table_rows(touched, schema), *self._tombstones(events, schema)]
        task = MergeTask(
            location=self._location,
            rule=self._rule,
            layout=FileLayout(
                schema=arrow_schema_of(schema),
                partition_by=tuple(table.metadata().partition_columns),
                compression="zstd",
                target_file_bytes=_FILE_BYTES,
            ),
            tombstones_on=self._today if self._remembers else None,
        )
        keys = [F.col(quoted(name)) for name in self._rule.keys]
        order = [*keys, *(F.col(quoted(name)) for name in self._rule.sequence), F.col(ORIGIN)]
        united = reduce(lambda one, two: one.unionByName(two), sources)
        divided = united.repartition(self._tasks(touched), *keys).sortWithinPartitions(*order)
        result = read_messages(row[0] for row in divided.mapInArrow(task.write, "message STRING").collect())
        if not result.events:
            discard(self._location, result.files["kept"])
            return None
        written = dict(result.files)
        tombstones = written.pop("tombstones")
        if tombstones:
            self._commit_tombstones(tombstones, schema)
        return MergedFiles(rewritten=touched, **written)

    def _events(self, schema: StructType) -> DataFrame:
        """Return the batch in the table's columns and types."""
        origin = F.lit(ROW)
        if self._sink.delete_when is not None:
            is_delete = F.coalesce(F.expr(self._sink.delete_when.text), F.lit(False))
            origin = F.when(is_delete, F.lit(DELETE)).otherwise(origin)
        return self._rows.withColumn(ORIGIN, origin).to(_with_origin(schema))

    def _table_rows(self, files: Sequence[AddedFile], schema: StructType) -> list[DataFrame]:
        if not files:
            return []
        return [self._read(self._location, _slices(files), schema).withColumn(ORIGIN, F.lit(TABLE))]

    def _tombstones(self, events: DataFrame, schema: StructType) -> list[DataFrame]:
        """Return the deletes that the table remembers, of the keys of the batch and perhaps of others."""
        location = tombstones_of(self._location)
        if not self._remembers or not location.exists():
            return []
        table = location.table()
        oldest = self._oldest_tombstone().isoformat()
        kept = [
            one for one in keyed_files(table, self._rule.keys) if (dict(one.file.partition)[DELETED_ON] or "") >= oldest
        ]
        files = self._candidates(kept, events)
        if not files:
            return []
        names = dict.fromkeys((*self._rule.keys, *self._rule.sequence))
        columns = StructType([schema[name] for name in names])
        rows = self._read(location, _slices([one.file for one in files]), columns).withColumn(ORIGIN, F.lit(TOMBSTONE))
        return [rows.to(_with_origin(schema))]

    def _commit_tombstones(self, files: Sequence[DataFile], schema: StructType) -> None:
        """Remember deletes before they are applied: a merge that fails in between is repeated with the same batch."""
        names = dict.fromkeys((*self._rule.keys, *self._rule.sequence))
        columns = StructType([schema[name] for name in names]).add(StructField(DELETED_ON, DateType()))
        commit = TableCommit(tombstones_of(self._location), columns.jsonValue(), partition_by=(DELETED_ON,))
        commit.commit(files, self._batch._replace(writer=f"{self._batch.writer}.tombstones"))

    # -- files with keys of the batch ---------------------------------------------------------------------------------

    def _touched(self, files: Sequence[KeyedFile], events: DataFrame, schema: StructType) -> tuple[AddedFile, ...]:
        """Return the files that have rows with keys of the batch; all files of a small table."""
        candidates = [one.file for one in self._candidates(files, events)]
        if _size(candidates) <= SMALL_BYTES:
            return tuple(candidates)
        numbers = {file.path: number for number, file in enumerate(candidates)}
        fields = [schema[name] for name in self._rule.keys]
        keys = StructType([*fields, StructField(FILE, IntegerType())])
        old = self._read(self._location, number_files(_slices(candidates), numbers), keys)
        new = events.select(*(F.col(quoted(one.name)).alias(f"__key_{at}") for at, one in enumerate(fields)))
        same: Column = reduce(
            lambda one, two: one & two,
            (F.col(quoted(one.name)).eqNullSafe(F.col(f"__key_{at}")) for at, one in enumerate(fields)),
        )
        found = old.join(new.distinct(), same, "left_semi").select(FILE).distinct().collect()
        return tuple(candidates[row[0]] for row in sorted(found))

    def _candidates(self, files: Sequence[KeyedFile], events: DataFrame) -> list[KeyedFile]:
        """Return the files whose bounds do not exclude the keys of the batch; all files if they are small."""
        if _size([one.file for one in files]) <= SMALL_BYTES:
            return list(files)
        keys = events.select(*map(quoted, self._rule.keys))
        found = keys.mapInArrow(partial(find_candidates, files), f"{FILE} INT").distinct().collect()
        return [files[row[0]] for row in sorted(found)]

    def _read(self, location: TableLocation, tasks: Sequence[Sequence[FileSlice]], schema: StructType) -> DataFrame:
        columns: pa.Schema = arrow_schema_of(schema)
        read: Callable[..., Any] = partial(read_files, location, tasks, columns)
        return self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)

    def _tasks(self, files: Sequence[AddedFile]) -> int:
        most = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        return max(1, min(most, max(self._spark.sparkContext.defaultParallelism, _size(files) // _TASK_BYTES + 1)))


def _with_origin(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(ORIGIN, IntegerType())])


def _slices(files: Sequence[AddedFile]) -> list[list[FileSlice]]:
    return split_files([(file.path, file.size_bytes, file.partition) for file in files], _TASK_BYTES)


def _size(files: Iterable[AddedFile]) -> int:
    return sum(file.size_bytes for file in files)
