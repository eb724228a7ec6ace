"""The writers of ``format("ottla-table")``: which methods Spark calls, and where.

Spark creates a writer in the process that plans, where rows are compared with the table, and pickles it for the tasks,
which write files (``write``). It creates another one in the process that commits, which lives longer than a batch and
keeps the table open (``commit``, ``abort``). ``table_commit`` describes why a batch is added once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.checkpoint_files import synced_checkpoint
from ottla.spark.maintenance import maybe_maintain
from ottla.spark.parquet_directory import STAGING, publish
from ottla.spark.source_offsets import offsets_digest, read_source_offsets
from ottla.spark.spark_internals import arrow_schema_of, stream_task
from ottla.spark.table_commit import Replace, TableBatch, TableCommit, TablePlan, discard
from ottla.spark.table_files import DataFile, DataFileWriter, FileLayout
from ottla.spark.table_options import TableFormat, TableWriteOptions
from ottla.spark.table_schema import Schema, prepare_new

if TYPE_CHECKING:
    import pyarrow as pa

#: of the committing process
_commits: dict[tuple[str, str, bool], TableCommit] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesMessage(WriterCommitMessage):
    """The result of a task, for the driver."""

    files: tuple[DataFile, ...]
    #: of streams: the same in every run from one checkpoint
    query_id: str = ""


class TableWriting:
    """What both writers have in common: tasks write files, and the driver adds them to the table."""

    def __init__(self, options: TableWriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self.options = options
        self.rows: Schema = schema.jsonValue()
        self.overwrite = overwrite
        self.layout = _layout(options, self._plan())

    def _plan(self) -> TablePlan:
        if self.options.format is TableFormat.PARQUET:
            columns = self.options.partition_by
            return TablePlan(rows=prepare_new(self.rows, columns), partition_by=columns)
        return self._commit_of_table().plan()

    def _commit_of_table(self) -> TableCommit:
        options = self.options
        replace = Replace(where=options.replace_where, schema=options.overwrite_schema) if self.overwrite else None
        return TableCommit(
            options.location,
            self.rows,
            partition_by=options.partition_by,
            merge_schema=options.merge_schema,
            replace=replace,
            checkpoint=self.checkpoint,
        )

    def checkpoint(self, step: str) -> None:
        """Called between the steps of a commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesMessage:
        writer = DataFileWriter(self.options.location, self.layout)
        try:
            for batch in iterator:
                writer.write(batch)
            return FilesMessage(files=tuple(writer.finish()), query_id=stream_task().query_id)
        except BaseException:
            writer.discard()
            raise

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Delete files if no commit was tried. A commit that failed may have succeeded: vacuum deletes unused files."""
        if self.options.format is TableFormat.PARQUET or None in messages:
            discard(self.options.location, _files(messages))


class TableStreamWriter(TableWriting, DataSourceStreamArrowWriter):
    """One micro-batch of a stream. With output mode complete it replaces all rows."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        options, files = self.options, _files(messages)
        if options.format is TableFormat.PARQUET:
            publish(options.location, files, overwrite=self.overwrite)
            return
        query_id = next(message.query_id for message in messages if isinstance(message, FilesMessage))
        name = f"{query_id}.{options.sink_name}" if options.sink_name else query_id
        # Everything that a commit depends on, because the process may serve several queries and restarted ones.
        key = (repr(options), json.dumps(self.rows), self.overwrite)
        commit = _commits.setdefault(key, self._commit_of_table())
        digest = offsets_digest(read_source_offsets(options.checkpoint_location, batchId))
        assert options.checkpoint_location is not None, "read_source_offsets has raised without one"
        with synced_checkpoint(options.checkpoint_location, batchId):
            committed = commit.commit(files, TableBatch(name, batchId, digest))
        if not committed.skipped:
            maybe_maintain(options.location, batchId, every=options.compact_every, vacuum_hours=options.vacuum_hours)
        self.checkpoint("end")


class TableBatchWriter(TableWriting, DataSourceArrowWriter):
    """One job: all of its rows or none. Inside foreachBatch, with a name and a batch id, each batch once."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options, files = self.options, _files(messages)
        if options.format is TableFormat.PARQUET:
            publish(options.location, files, overwrite=self.overwrite)
            return
        batch = None
        if options.sink_name is not None and options.batch_id is not None:
            batch = TableBatch(options.sink_name, options.batch_id, options.batch_digest)
        committed = self._commit_of_table().commit(files, batch)
        if batch is not None and not committed.skipped:
            maybe_maintain(
                options.location, batch.number, every=options.compact_every, vacuum_hours=options.vacuum_hours
            )


def _layout(options: TableWriteOptions, plan: TablePlan) -> FileLayout:
    parquet = options.format is TableFormat.PARQUET
    rows: dict[str, Any] = dict(plan.rows)
    return FileLayout(
        schema=arrow_schema_of(StructType.fromJson(rows)),
        partition_by=plan.partition_by,
        compression=options.compression,
        target_file_bytes=options.target_file_bytes,
        hive=parquet,
        staging=STAGING if parquet else "",
    )


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for message in messages if isinstance(message, FilesMessage) for file in message.files]
