"""The driver's side of writing a table: add the files that tasks have written, all in one commit. Without Spark.

Exactly once: a commit of Delta's log has, beside the files, the name of the writer and the number of its batch. A batch
that the table has is not added again. If two drivers commit at the same time, Delta lets one of them succeed.

    1  create the table, or add new columns to it, if necessary: neither changes a row
    2  if the table has the batch of this writer: delete the new files and return
    3  commit the files and the number of the batch, in one file of the log: the only decision

A commit that raised may have succeeded. Therefore ``discard`` is only for files that no commit was tried with.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from ottla.model.errors import OttlaError
from ottla.spark.options import OptionError
from ottla.spark.partition_predicate import PartitionPredicate
from ottla.spark.source_offsets import DIGEST_HINT
from ottla.spark.table_files import DataFile, delete_files
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import MERGE, AddedFile, snapshot_files
from ottla.spark.table_schema import Schema, SchemaMismatch, merge, prepare_new
from ottla.spark.table_sync import sync_commit

log = logging.getLogger("ottla.spark")

_ATTEMPTS: Final = 10
_BACKOFF_S: Final = 0.05
#: how many of the last commits are searched for the digest of a batch
_REMEMBERED: Final = 100
#: the names of a batch and of its digest in the information of a commit
_BATCH: Final = "ottla.batch"
_OFFSETS: Final = "ottla.offsets"


class CommitRefused(OttlaError):
    """The table did not take the files; the text says why and what to do."""


class BatchMismatch(CommitRefused):
    """The table has this batch or a later one, and this one was made of other input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What is known before the first row is written: the rows fit the table, and how they are partitioned."""

    #: of the rows, in the table's types
    rows: Schema
    partition_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """What an overwrite deletes: all rows, or those of some partitions."""

    where: str | None = None
    schema: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    version: int
    #: the table had this batch already
    skipped: bool = False


class TableBatch(NamedTuple):
    """The name of the writer, and which of its batches."""

    writer: str
    number: int
    #: a digest of everything that the batch was made of, such as its source offsets; None if it is not known
    digest: str | None = None
    #: how many rows it has: identifies a batch without a digest
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files of one attempt to merge a batch into a version of a table."""

    #: files of that version whose rows are in the new ones
    rewritten: tuple[AddedFile, ...] = ()
    #: unchanged rows of rewritten files
    kept: tuple[DataFile, ...] = ()
    inserted: tuple[DataFile, ...] = ()
    updated: tuple[DataFile, ...] = ()
    #: rows that the version had and the next one has not; no part of the table, but of its change feed
    deleted: tuple[DataFile, ...] = ()


class _Change(NamedTuple):
    """What one commit does to a table."""

    actions: Sequence[AddAction | RemoveAction]
    #: Delta's: append or overwrite
    mode: str
    schema: DeltaSchema
    #: files to sync with the commit
    written: Sequence[DataFile]
    #: information for the table's history
    info: Mapping[str, Any] | None = None
    #: whether the commit fails if the table has a newer version than the one that the change was made for
    only_next_version: bool = False


class TableCommit:
    """Writes of one kind of rows to one table. Lives as long as the driver's process: it keeps the table open."""

    def __init__(
        self,
        location: TableLocation,
        rows: Schema,
        *,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
        replace: Replace | None = None,
        checkpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._location = location
        self._rows = rows
        self._partition_by = tuple(partition_by)
        self._merge_schema = merge_schema
        self._replace = replace
        #: called by name between the steps
        self._checkpoint = checkpoint
        self._table: DeltaTable | None = None

    def plan(self) -> TablePlan:
        """Check rows against the table, before anything is written."""
        if not self._location.exists():
            if self._replace is not None and self._replace.where is not None:
                self._predicate(prepare_new(self._rows, self._partition_by), self._partition_by)
            return TablePlan(rows=prepare_new(self._rows, self._partition_by), partition_by=self._partition_by)
        table = self._load()
        columns = self._check_partitions(table)
        if self._replace is not None and self._replace.where is not None:
            self._predicate(schema_of(table), columns)
        if self._replace is not None and self._replace.schema:
            return TablePlan(rows=prepare_new(self._rows, columns), partition_by=columns)
        merged = merge(schema_of(table), self._rows, grow=self._merge_schema)
        missing = [column for column in columns if column not in {field["name"] for field in merged.rows["fields"]}]
        if missing:
            names = ", ".join(missing)
            raise SchemaMismatch(f"the table is partitioned by {names}, which the rows do not have: add it")
        return TablePlan(rows=merged.rows, partition_by=columns)

    def commit(self, files: Sequence[DataFile], batch: TableBatch | None = None) -> Committed:
        """Add files; those of a batch once."""
        if batch is not None:
            batch = batch._replace(rows=sum(file.rows for file in files))
        self._checkpoint("start")
        return self._attempt(batch, lambda table: self._addition(table, files), unused=files)

    def merge(self, batch: TableBatch, job: Callable[[DeltaTable], MergedFiles | None]) -> Committed:
        """Merge a batch once. ``job`` writes the files for the version of the table that it gets, None if it has none.

        The commit succeeds only if that version is still the newest. Otherwise the job runs again with the newest
        version: rows that were added, changed or moved to other files meanwhile would be lost or there twice.
        """

        def change(table: DeltaTable) -> _Change | None:
            merged = job(table)
            return None if merged is None else self._merge_change(table, merged)

        return self._attempt(batch, change)

    def _attempt(
        self,
        batch: TableBatch | None,
        change_of: Callable[[DeltaTable], _Change | None],
        *,
        unused: Sequence[DataFile] = (),
    ) -> Committed:
        """Commit the change to the newest version of the table, once per batch; nothing if there is no change.

        Retry if another writer has changed the table meanwhile. Delete ``unused`` files if the table has the batch.
        """
        for attempt in range(_ATTEMPTS):
            table = self._prepare()
            if batch is not None and has_batch(table, batch):
                log.info("the table %s has batch %d of %s already", self._location.uri, batch.number, batch.writer)
                # After a failed attempt the table may have the batch with these very files: vacuum deletes unused ones.
                if not attempt:
                    discard(self._location, unused)
                # The process that has committed the batch may have been killed before it synced the commit.
                sync_commit(self._location, table.version())
                return Committed(version=table.version(), skipped=True)
            change = change_of(table)
            if change is None:
                return Committed(version=table.version())
            self._checkpoint("prepared")
            try:
                self._write(table, change, batch)
            except CommitFailedError as error:
                # Another writer has deleted rows or written this very batch since the table was loaded.
                self._retry_later(attempt, error)
            else:
                self._checkpoint("committed")
                return Committed(version=table.version())
        raise AssertionError("the last attempt returns or raises")

    def _retry_later(self, attempt: int, error: CommitFailedError) -> None:
        """Wait before the next attempt, which loads the table again. Raise CommitRefused after the last attempt."""
        self._table = None
        if attempt + 1 == _ATTEMPTS:
            raise CommitRefused(
                f"the table {self._location.uri} did not take a commit in {_ATTEMPTS} attempts, because other writers "
                f"changed it during each of them: {error}"
            ) from error
        time.sleep(_BACKOFF_S * (attempt + 1))

    def _load(self) -> DeltaTable:
        if self._table is None:
            self._table = self._location.table()
        else:
            self._table.update_incremental()
        return self._table

    def _prepare(self) -> DeltaTable:
        """Return the newest version of the table, with all columns of the rows."""
        self._forget_deleted()
        if self._table is None and not self._location.exists():
            self._create()
        table = self._load()
        if self._replace is None or not self._replace.schema:
            added = merge(schema_of(table), self._rows, grow=self._merge_schema).added
            if added:
                try:
                    table.alter.add_columns(to_delta({"type": "struct", "fields": list(added)}).fields)
                except CommitFailedError:
                    log.info("the table %s was changed while columns were added to it", self._location.uri)
                self._table = None
                table = self._load()
        return table

    def _create(self) -> None:
        try:
            DeltaTable.create(
                self._location.uri,
                to_delta(prepare_new(self._rows, self._partition_by)),
                mode="ignore",
                partition_by=list(self._partition_by),
                storage_options=dict(self._location.storage) or None,
            )
        except DeltaError:
            # Another writer may have created it at the same time; then both write to it.
            if not self._location.exists():
                raise

    def _forget_deleted(self) -> None:
        """Close a table that was deleted, and perhaps created again: the open one does not know that."""
        if self._table is not None:
            last = self._location.files().get_file_info(f"_delta_log/{self._table.version():020}.json")
            if last.type == fs.FileType.NotFound:
                self._table = None

    def _write(self, table: DeltaTable, change: _Change, batch: TableBatch | None) -> None:
        partition_by = list(table.metadata().partition_columns)
        properties = properties_of(batch, change.info, only_next_version=change.only_next_version)
        table.create_write_transaction(
            list(change.actions), change.mode, change.schema, partition_by, commit_properties=properties
        )
        table.update_incremental()
        sync_commit(self._location, table.version(), [file.path for file in change.written])

    def _addition(self, table: DeltaTable, files: Sequence[DataFile]) -> _Change | None:
        """Return the change that adds files, in place of others if the write replaces rows; None if it does nothing."""
        if not files and self._replace is None:
            return None
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [_add_action(file, now_ms) for file in files]
        schema, mode = table.schema(), "append"
        if self._replace is not None and self._replace.where is not None:
            actions += self._removals(table, files, now_ms)
        elif self._replace is not None:
            mode = "overwrite"
            if self._replace.schema:
                schema = to_delta(prepare_new(self._rows, table.metadata().partition_columns))
        # delta-rs would commit removals that it found in an older version: files that a compaction has written since
        # then would stay, with the rows that were to be replaced.
        return _Change(actions, mode, schema, written=files, only_next_version=self._replace is not None)

    def _merge_change(self, table: DeltaTable, merged: MergedFiles) -> _Change:
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = []
        # Files without a changed row stay as they are.
        if merged.updated or merged.deleted:
            actions += [_remove_action(file, now_ms) for file in merged.rewritten]
            # Delta: the rows of a file with dataChange=false are rows of files that the same commit removes.
            actions += [_add_action(file, now_ms, data_change=False) for file in merged.kept]
        else:
            discard(self._location, merged.kept)
        actions += [_add_action(file, now_ms) for file in (*merged.inserted, *merged.updated)]
        changes = {
            "updated": [file.path for file in merged.updated],
            "deleted": [
                {"path": file.path, "size": file.size_bytes, "rows": file.rows, "partition": dict(file.partition)}
                for file in merged.deleted
            ],
        }
        written = (*merged.kept, *merged.inserted, *merged.updated, *merged.deleted)
        return _Change(actions, "append", table.schema(), written, {MERGE: changes}, only_next_version=True)

    def _removals(self, table: DeltaTable, files: Sequence[DataFile], now_ms: int) -> list[RemoveAction]:
        predicate = self._predicate(schema_of(table), table.metadata().partition_columns)
        outside = next((file for file in files if not predicate.matches(file.partition)), None)
        if outside is not None:
            where = ", ".join(f"{name}={text}" for name, text in outside.partition)
            raise CommitRefused(
                f"rows of the partition {where} do not match replaceWhere ({self._replace and self._replace.where}): "
                "filter the rows, or widen it"
            )
        return [_remove_action(file, now_ms) for file in snapshot_files(table) if predicate.matches(file.partition)]

    def _predicate(self, schema: Schema, partition_by: Sequence[str]) -> PartitionPredicate:
        assert self._replace is not None and self._replace.where is not None
        types = {field["name"]: field["type"] for field in schema["fields"] if field["name"] in partition_by}
        if not types:
            raise OptionError("replaceWhere replaces partitions, and this table has none: overwrite it as a whole")
        return PartitionPredicate.parse(self._replace.where, types)

    def _check_partitions(self, table: DeltaTable) -> tuple[str, ...]:
        columns = tuple(table.metadata().partition_columns)
        if self._partition_by and self._partition_by != columns:
            raise SchemaMismatch(
                f"the table {self._location.uri} is partitioned by {', '.join(columns) or 'nothing'}, not by "
                f"{', '.join(self._partition_by)}: leave partitionBy out, or write to another table"
            )
        return columns


def has_batch(table: DeltaTable, batch: TableBatch) -> bool:
    """Return whether the table has this batch.

    Raise BatchMismatch if it has another batch with this number, or a later one.
    """
    last = table.transaction_version(batch.writer)
    if last is None or last < batch.number:
        return False
    if last == batch.number and _is_same(table, batch):
        return True
    hint = DIGEST_HINT if batch.digest is None else ""
    raise BatchMismatch(
        f"the table {table.table_uri} has batches up to {last} of {batch.writer}, and batch {batch.number} of the "
        f"checkpoint is not the one that was committed: it covers other source offsets, {hint}or is an older one. The "
        "checkpoint was restored from an older copy, another run continues from it, or the query was changed after the "
        "batch was written in part. Nothing was written. Use the newest checkpoint and the query that wrote the batch; "
        "or start with a new checkpointLocation, which writes everything that is read once more"
    )


def _is_same(table: DeltaTable, batch: TableBatch) -> bool:
    """Return whether the last batch of this writer was made of the same input.

    Without digests it is taken for the same one only if it has as many rows.
    """
    committed = table.transaction_version(_digest_name(batch))
    if batch.digest is None:
        return not committed or batch.rows is None or committed == _digest_number(batch)
    if committed and committed > 0:
        return committed == _digest_number(batch)
    if committed:
        # The first batch that is written with ottla.batch.digest.
        return True
    # A table that was written before this release has the digest in its history alone.
    name = _batch_name(batch)
    found = next((entry for entry in table.history(_REMEMBERED) if entry.get(_BATCH) == name), {})
    return found.get(_OFFSETS) in (None, batch.digest)


def properties_of(
    batch: TableBatch | None, more: Mapping[str, Any] | None = None, *, only_next_version: bool = False
) -> CommitProperties:
    """Return the properties of a commit with this batch.

    Delta keeps the last number of every application transaction. One holds the number of the batch, a second one its
    digest or the number of its rows, which a table keeps however many commits of other writers follow.

    With ``only_next_version`` it fails if the table has a newer version than the one that was loaded. By default
    delta-rs commits anyway unless it finds a conflict, and it compares neither added keys nor removed files.
    """
    info = dict(more or {})
    transactions = []
    if batch is not None:
        info |= {_BATCH: _batch_name(batch)} | ({_OFFSETS: batch.digest} if batch.digest else {})
        digest = Transaction(_digest_name(batch), _digest_number(batch))
        transactions = [Transaction(batch.writer, batch.number), digest]
    return CommitProperties(
        custom_metadata=info or None,
        max_commit_retries=0 if only_next_version else None,
        app_transactions=transactions or None,
    )


def _digest_name(batch: TableBatch) -> str:
    return f"{batch.writer}.digest"


def _digest_number(batch: TableBatch) -> int:
    """Return the digest as a number that Delta can store; a negative one for the rows of a batch without a digest."""
    if batch.digest is None:
        return 0 if batch.rows is None else -1 - batch.rows
    return int.from_bytes(hashlib.sha256(batch.digest.encode()).digest()[:7]) + 1


def _batch_name(batch: TableBatch) -> str:
    return f"{batch.writer} {batch.number}"


def discard(location: TableLocation, files: Sequence[DataFile]) -> None:
    """Delete files that are in no commit, and never will be."""
    delete_files(location, [file.path for file in files])


def schema_of(table: DeltaTable) -> Schema:
    document: Schema = json.loads(table.schema().to_json())
    return document


def to_delta(schema: Mapping[str, Any]) -> DeltaSchema:
    return DeltaSchema.from_json(json.dumps(schema))


def _remove_action(file: AddedFile, now_ms: int) -> RemoveAction:
    return RemoveAction(file.path, True, now_ms, file.size_bytes, dict(file.partition))


def _add_action(file: DataFile, now_ms: int, *, data_change: bool = True) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition),
        modification_time=now_ms,
        data_change=data_change,
        stats=file.stats,
    )
