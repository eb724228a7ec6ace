"""The Parquet files of a table: how tasks write and read them.

A task divides its rows by the partition columns, keeps a file open for each partition, and gives every file a name that
no other attempt has. Readers do not see a file until the driver has committed it.

Partition columns are not in the files: their values are in the table's log, as text. The names of directories are for
people; a reader of a Delta table does not use them, so that unusual characters are replaced.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ottla.model.errors import OttlaError
from ottla.spark.table_location import TableLocation

#: rows are buffered until they fill a row group of this size
_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 32 << 20
#: a task with more partitions than this closes the file that was not written to for the longest time
_OPEN_FILES_MAX = 64
_READ_ROWS = 1 << 14
#: Delta's default number of columns with statistics
_STATS_COLUMNS = 32
_STATS_TEXT_MAX = 64
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")

#: (column, value as text) in the table's order; None is null
PartitionValues = tuple[tuple[str, str | None], ...]
Directory = Callable[[PartitionValues], str]


class FileDeleted(OttlaError):
    """A file of a version of the table was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that a task has written, with everything that the driver needs to commit it."""

    #: below the table's directory
    path: str
    size_bytes: int
    rows: int
    partition: PartitionValues = ()
    #: Delta's statistics, as JSON
    stats: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """A part of a file that one task reads: the row groups whose middle lies in these bytes."""

    path: str
    partition: PartitionValues
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How files are written. Spark pickles it for the tasks."""

    #: of the rows, in the table's types, with the partition columns
    schema: pa.Schema
    partition_by: tuple[str, ...]
    compression: str
    target_file_bytes: int
    #: whether readers of plain Parquet get the partition values from the names of directories
    hive: bool = False
    #: where files are until the driver has moved them; "" is the table itself
    staging: str = ""


class DataFileWriter:
    """One task's files."""

    def __init__(self, location: TableLocation, layout: FileLayout) -> None:
        self._location = location
        self._files = location.files()
        self._layout = layout
        self._directory: Directory = hive_directory if layout.hive else plain_directory
        columns = [field for field in layout.schema if field.name not in layout.partition_by]
        self._columns = [field.name for field in columns]
        self._schema = pa.schema(columns)
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        batch = conform(batch, self._layout.schema)
        for partition, rows in part_rows(batch, self._layout.partition_by):
            if not rows.num_rows:
                continue
            # Taken out and put back, so that the first file of the dict was not written to for the longest time.
            file = self._open.pop(partition, None) or self._start(partition)
            self._open[partition] = file
            file.write(rows.select(self._columns))
            if file.size_bytes >= self._layout.target_file_bytes:
                self._done.append(self._open.pop(partition).close())

    def finish(self) -> list[DataFile]:
        while self._open:
            self._done.append(self._open.pop(next(iter(self._open))).close())
        return self._done

    def discard(self) -> None:
        """Delete the files of a task that has failed."""
        for file in self._open.values():
            file.abandon()
        paths = [file.path for file in self._open.values()] + [file.path for file in self._done]
        delete_files(self._location, paths)

    def _start(self, partition: PartitionValues) -> _OpenFile:
        if len(self._open) >= _OPEN_FILES_MAX:
            self._done.append(self._open.pop(next(iter(self._open))).close())
        suffix = "" if self._layout.compression == "none" else f".{self._layout.compression}"
        path = f"{self._layout.staging}{self._directory(partition)}part-{uuid4()}{suffix}.parquet"
        self._location.make_directory_for(path)
        stream = self._files.open_output_stream(path)
        return _OpenFile(path, partition, self._schema, stream, self._layout.compression)


class _OpenFile:
    def __init__(
        self, path: str, partition: PartitionValues, schema: pa.Schema, stream: pa.NativeFile, compression: str
    ) -> None:
        self.path = path
        self._partition = partition
        self._schema = schema
        self._stream = stream
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            stream, schema, compression=compression, metadata_collector=self._metadata, store_schema=False
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.get_total_buffer_size()
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self) -> DataFile:
        if self._waiting:
            self._write_row_group()
        self._writer.close()
        size_bytes = self.size_bytes
        self._stream.close()
        metadata = self._metadata[0]
        return DataFile(
            path=self.path,
            size_bytes=size_bytes,
            rows=metadata.num_rows,
            partition=self._partition,
            stats=statistics(metadata, self._schema),
        )

    def abandon(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._stream.close()

    def _write_row_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0


def delete_files(location: TableLocation, paths: Iterable[str]) -> None:
    """Delete files that no commit refers to. Vacuum deletes those that cannot be deleted here."""
    files = location.files()
    for path in paths:
        with suppress(OSError):
            files.delete_file(path)


# -- rows -----------------------------------------------------------------------------------------------------------


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly these columns: cast where the type differs, null where the batch has none."""
    if batch.schema.equals(schema):
        return batch
    found = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    columns = []
    for field in schema:
        index = found.get(field.name.lower())
        if index is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def part_rows(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the rows of a batch by partition, in their order."""
    if not partition_by or not batch.num_rows:
        yield (), batch
        return
    code = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for column in partition_by:
        encoded = partition_texts(batch.column(batch.schema.get_field_index(column))).dictionary_encode()
        distinct = [*encoded.dictionary.to_pylist(), None]
        indices = encoded.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)
        # Renumbered at each column, so that the codes of many columns have less than 64 bits.
        pairs, code = np.unique(code * len(distinct) + indices, return_inverse=True)
        texts = [[row[pair // len(distinct)] for pair in pairs] for row in texts]
        texts.append([distinct[pair % len(distinct)] for pair in pairs])
    if len(texts[0]) == 1:
        yield tuple(zip(partition_by, (text[0] for text in texts), strict=True)), batch
        return
    order = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(texts[0]) + 1))
    ordered = batch.take(pa.array(order))
    for number in range(len(texts[0])):
        rows = ordered.slice(bounds[number], bounds[number + 1] - bounds[number])
        yield tuple(zip(partition_by, (text[number] for text in texts), strict=True)), rows


def partition_texts(values: pa.Array) -> pa.Array:
    """Return values as Delta writes those of partition columns, where an empty text is null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.timestamp("us"))
    texts = values.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def partition_array(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with the value of a partition in so many rows."""
    if text is None:
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind):
        value = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us")).cast(kind)
    else:
        value = pa.scalar(text).cast(kind)
    return pa.repeat(value, count)


def plain_directory(partition: PartitionValues) -> str:
    return "".join(f"{_UNSAFE.sub('_', f'{name}')}={_plain(text)}/" for name, text in partition)


def _plain(text: str | None) -> str:
    return _NULL_DIRECTORY if text is None else _UNSAFE.sub("_", text)[:_STATS_TEXT_MAX]


def hive_directory(partition: PartitionValues) -> str:
    """Return the directory of a partition in the form from which readers of plain Parquet get its values."""
    return "".join(
        f"{quote(name, safe='')}={_NULL_DIRECTORY if text is None else quote(text, safe=' ')}/"
        for name, text in partition
    )


# -- statistics -----------------------------------------------------------------------------------------------------


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return Delta's statistics of a file: the number of rows, and bounds of columns, by which readers skip files."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    wanted = {field.name for field in list(schema)[:_STATS_COLUMNS] if not pa.types.is_nested(field.type)}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in wanted:
            continue
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        filled = [chunk for chunk in chunks if chunk.num_values]
        if not filled or not all(chunk.has_min_max for chunk in filled):
            continue
        low, high = (_bound(min(chunk.min for chunk in filled)), _bound(max(chunk.max for chunk in filled)))
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    document = {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(document, separators=(",", ":"))


def _bound(value: object) -> object:
    """Return a bound as JSON; None if the value has no exact form in JSON."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        # A shortened text would not be a bound.
        return value if len(value) <= _STATS_TEXT_MAX else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if float(value) == value else None
    return value if isinstance(value, int) else None


# -- reading --------------------------------------------------------------------------------------------------------


def split_files(files: Iterable[tuple[str, int, PartitionValues]], split_bytes: int) -> list[list[FileSlice]]:
    """Divide files (path, bytes, partition), in their order, into tasks of about ``split_bytes``."""
    tasks: list[list[FileSlice]] = []
    room = 0
    for path, size_bytes, partition in files:
        pieces = max(1, math.ceil(size_bytes / split_bytes))
        for piece in range(pieces):
            start, end = size_bytes * piece // pieces, size_bytes * (piece + 1) // pieces
            if not tasks or end - start > room:
                tasks.append([])
                room = split_bytes
            tasks[-1].append(FileSlice(path=path, partition=partition, start=start, end=end))
            # The time to open a file counts as some bytes.
            room -= max(end - start, split_bytes // 32)
    return tasks


def read_slices(location: TableLocation, slices: Iterable[FileSlice], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows with the columns of ``schema``: from the file, else from the partition, else null."""
    files = location.files()
    for piece in slices:
        partition = dict(piece.partition)
        with _open(location, files, piece.path) as stream:
            file = pq.ParquetFile(stream, pre_buffer=not location.local)
            groups = _row_groups(file.metadata, piece)
            if not groups:
                continue
            there = {name.lower(): name for name in file.schema_arrow.names}
            columns = [there[field.name.lower()] for field in schema if field.name.lower() in there]
            if not columns:
                rows = sum(file.metadata.row_group(group).num_rows for group in groups)
                yield from _without_columns(rows, schema, partition)
                continue
            for batch in file.iter_batches(_READ_ROWS, row_groups=groups, columns=columns, use_threads=False):
                yield _with_partition(batch, schema, partition)


def _open(location: TableLocation, files: fs.FileSystem, path: str) -> pa.NativeFile:
    try:
        return files.open_input_file(path)
    except FileNotFoundError:
        raise FileDeleted(
            f"the file {path} of the table {location.uri} was deleted: vacuum deletes files of old versions. Read a "
            "newer version; a stream that is so far behind needs another checkpoint, or vacuum more hours"
        ) from None


def _row_groups(metadata: pq.FileMetaData, piece: FileSlice) -> list[int]:
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0)
        begin = column.dictionary_page_offset or column.data_page_offset
        size_bytes = sum(group.column(index).total_compressed_size for index in range(group.num_columns))
        if piece.start <= begin + size_bytes // 2 < piece.end:
            groups.append(number)
    return groups


def _without_columns(rows: int, schema: pa.Schema, partition: Mapping[str, str | None]) -> Iterator[pa.RecordBatch]:
    while rows > 0:
        count = min(rows, _READ_ROWS)
        columns = [partition_array(partition.get(field.name), field.type, count) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        rows -= count


def _with_partition(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, str | None]) -> pa.RecordBatch:
    for name, text in partition.items():
        index = schema.get_field_index(name)
        if index >= 0:
            batch = batch.append_column(name, partition_array(text, schema.field(index).type, batch.num_rows))
    return conform(batch, schema)
