"""Options of ``format("ottla-table")``: the names of Delta Lake's own connector where it has one. Pure.

``option_table`` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from ottla.spark.option_table import TABLE_OPTIONS, Use, names, names_only
from ottla.spark.options import OptionError, Options
from ottla.spark.table_location import TableLocation

_READ_NAMES = names(TABLE_OPTIONS, Use.READ)
STREAM_ONLY = names_only(TABLE_OPTIONS, Use.READ_STREAM)
_BATCH_ONLY = names_only(TABLE_OPTIONS, Use.READ_BATCH)
_WRITE_NAMES = names(TABLE_OPTIONS, Use.WRITE)
STORAGE = "storage."
_SPLIT_BYTES = 64 << 20
_TARGET_FILE_BYTES = 128 << 20
_COMPACT_EVERY = 100
_COMPRESSIONS = ("zstd", "snappy", "gzip", "none")

LATEST = "latest"


class TableFormat(Enum):
    DELTA = "delta"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadOptions:
    """The checked options of a read."""

    location: TableLocation
    version: int | None
    timestamp: str | None
    #: None: all rows of the table, then new ones
    starting_version: int | str | None
    files_per_trigger_max: int | None
    rows_per_trigger_max: int | None
    ignore_changes: bool
    skip_change_commits: bool
    change_feed: bool
    fail_on_data_loss: bool
    split_bytes: int
    #: the checkpoint whose manifests decide the version, and the tables that they name
    pinned_by: str | None
    pinned_tables: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> Self:
        location, given = _parse(options, _READ_NAMES)
        for name in _BATCH_ONLY if stream else STREAM_ONLY:
            if given.text(name) is not None:
                kind = "a batch read" if stream else "a stream"
                raise OptionError(f"the option {name} is for {kind}: leave it out")
        version, timestamp = given.text("versionAsOf"), given.text("timestampAsOf")
        if version is not None and timestamp is not None:
            raise OptionError("versionAsOf and timestampAsOf are both set: choose one")
        pinned_by = given.text("pinnedByCheckpoint") or None
        if pinned_by is not None and (version is not None or timestamp is not None):
            raise OptionError("pinnedByCheckpoint chooses the version: leave versionAsOf and timestampAsOf out")
        return cls(
            location=location,
            version=None if version is None else _whole_number("versionAsOf", version),
            timestamp=timestamp,
            starting_version=_starting_version(given.text("startingVersion")),
            files_per_trigger_max=given.positive("maxFilesPerTrigger"),
            rows_per_trigger_max=given.positive("maxRowsPerTrigger"),
            ignore_changes=given.flag("ignoreChanges", False),
            skip_change_commits=given.flag("skipChangeCommits", False),
            change_feed=given.flag("readChangeFeed", False),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            split_bytes=given.positive("splitBytes") or _SPLIT_BYTES,
            pinned_by=pinned_by,
            pinned_tables=_pinned_tables(given.text("pinnedTables"), location),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriteOptions:
    """The checked options of a write."""

    location: TableLocation
    format: TableFormat
    partition_by: tuple[str, ...]
    merge_schema: bool
    overwrite_schema: bool
    replace_where: str | None
    target_file_bytes: int
    compression: str
    compact_every: int
    vacuum_hours: int | None
    sink_name: str | None
    batch_id: int | None
    batch_digest: str | None
    #: where the stream that writes has its checkpoint
    checkpoint_location: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool, overwrite: bool = False) -> Self:
        location, given = _parse(options, _WRITE_NAMES)
        columns = [column.strip() for column in (given.text("partitionBy") or "").split(",")]
        sink_name, batch_id = given.batch(stream=stream)
        vacuum_hours = given.text("vacuumHours")
        parsed = cls(
            location=location,
            format=given.choice("tableFormat", TableFormat, TableFormat.DELTA),
            partition_by=tuple(dict.fromkeys(column for column in columns if column)),
            merge_schema=given.flag("mergeSchema", False),
            overwrite_schema=given.flag("overwriteSchema", False),
            replace_where=given.text("replaceWhere") or None,
            target_file_bytes=given.positive("targetFileSize") or _TARGET_FILE_BYTES,
            compression=(given.text("compression") or "zstd").lower(),
            compact_every=_whole_number("compactEvery", given.text("compactEvery") or str(_COMPACT_EVERY)),
            vacuum_hours=None if vacuum_hours is None else _whole_number("vacuumHours", vacuum_hours),
            sink_name=sink_name,
            checkpoint_location=given.text("checkpointLocation") or None,
            batch_id=batch_id,
            batch_digest=given.text("ottla.batch.digest") or None,
        )
        parsed._check(stream=stream, overwrite=overwrite)
        return parsed

    def _check(self, *, stream: bool, overwrite: bool) -> None:
        if self.compression not in _COMPRESSIONS:
            raise OptionError(f"the option compression is one of {', '.join(_COMPRESSIONS)}, not {self.compression!r}")
        if self.replace_where is not None and (stream or not overwrite):
            raise OptionError('the option replaceWhere is for batch writes with mode("overwrite")')
        if self.replace_where is not None and self.overwrite_schema:
            raise OptionError("replaceWhere keeps other rows, which have the old schema: leave overwriteSchema out")
        if self.format is TableFormat.PARQUET and (self.replace_where is not None or self.batch_id is not None):
            raise OptionError("replaceWhere and ottla.batch.id are for tableFormat=delta: leave them out")


def _parse(options: Mapping[str, str], names: tuple[str, ...]) -> tuple[TableLocation, Options]:
    storage = {name: str(value) for name, value in options.items() if name.lower().startswith(STORAGE)}
    given = Options({name: value for name, value in options.items() if name not in storage}, names)
    path = given.text("path")
    if not path:
        raise OptionError("the table's path is missing: give it to load(), save() or start()")
    if given.properties:
        raise OptionError(f"unknown option 'kafka.{next(iter(given.properties))}': a table has no brokers")
    return TableLocation.at(path, {name[len(STORAGE) :]: value for name, value in storage.items()}), given


def _pinned_tables(text: str | None, location: TableLocation) -> tuple[str, ...]:
    if text is None:
        return (location.uri,)
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError(f"the option pinnedTables is a JSON list of paths, not {text!r}")
    return tuple(sorted({location.uri, *(TableLocation.at(path).uri for path in paths)}))


def _starting_version(text: str | None) -> int | str | None:
    if text is None or text.lower() == LATEST:
        return None if text is None else LATEST
    return _whole_number("startingVersion", text)


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise OptionError(f"the option {name} is a whole number, not {text!r}")
    return int(text)
