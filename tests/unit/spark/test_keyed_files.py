"""Merges into keyed tables without Spark: pruning of files, commits, conflicts, the change feed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from ottla.spark import maintenance, table_commit
from ottla.spark.key_ranges import find_touched, keyed_files
from ottla.spark.keyed_merge import DELETE, ORIGIN, ROW, TABLE, MergeRule
from ottla.spark.keyed_tasks import MergeTask, find_candidates, read_messages, tombstones_of
from ottla.spark.table_commit import CommitRefused, Committed, MergedFiles, TableBatch, TableCommit, schema_of
from ottla.spark.table_files import FileLayout, read_slices, split_files
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import TableChanged
from ottla.spark.table_options import TableReadOptions
from ottla.spark.table_source import TableStreamReader, read_schema

_ARROW = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("v", pa.string())])
_RULE = MergeRule(keys=("k",), sequence=("s",))
Row = dict[str, Any]


class Keyed:
    """A keyed table that this process merges into, in place of Spark's tasks."""

    def __init__(self, directory: Path) -> None:
        self.location = TableLocation.at(str(directory / "table"))
        #: called after the files of an attempt are written, before they are committed
        self.meanwhile: Callable[[], object] = lambda: None
        self.attempts = 0

    def merge(self, number: int, *rows: tuple[int, int, str | None], digest: str | None = None) -> Committed:
        """Merge rows (key, sequence, value); a row without a value is a delete."""
        events = [
            {"k": key, "s": sequence, "v": value, ORIGIN: ROW if value is not None else DELETE}
            for key, sequence, value in rows
        ]
        commit = TableCommit(self.location, from_arrow_schema(_ARROW).jsonValue())
        return commit.merge(TableBatch("query", number, digest), lambda table: self._job(table, events))

    def _job(self, table: DeltaTable, events: list[Row]) -> MergedFiles | None:
        self.attempts += 1
        files = keyed_files(table, ["k"])
        keys = pa.RecordBatch.from_pylist(events, pa.schema([("k", pa.int64())]))
        (found,) = find_candidates(files, [keys])
        touched = tuple(files[number].file for number in found.column(0).to_pylist())
        slices = split_files([(one.path, one.size_bytes, one.partition) for one in touched], 1 << 20)
        old = [
            row for task in slices for batch in read_slices(self.location, task, _ARROW) for row in batch.to_pylist()
        ]
        rows = sorted([*({**row, ORIGIN: TABLE} for row in old), *events], key=lambda row: (row["k"], row["s"]))
        layout = FileLayout(schema=_ARROW, partition_by=(), compression="zstd", target_file_bytes=1 << 27)
        task = MergeTask(location=self.location, rule=_RULE, layout=layout, tombstones_on=date(2026, 1, 1))
        arrow = pa.Table.from_pylist(rows, _ARROW.append(pa.field(ORIGIN, pa.int32())))
        messages = [text for batch in task.write(arrow.to_batches(2)) for text in batch.column(0).to_pylist()]
        result = read_messages(messages)
        self.meanwhile()
        if not result.events:
            return None
        written = {kind: found for kind, found in result.files.items() if kind != "tombstones"}
        return MergedFiles(rewritten=touched, **written)

    def rows(self) -> list[tuple[int, str]]:
        found = DeltaTable(self.location.uri).to_pyarrow_table().to_pylist()
        return sorted((row["k"], row["v"]) for row in found)

    def stream(self, **options: str) -> TableStreamReader:
        parsed = TableReadOptions.parse({"path": self.location.uri, **options}, stream=True)
        return TableStreamReader(parsed, read_schema(parsed))

    def read(self, reader: TableStreamReader, start: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
        """Return the rows of the next batch of a stream, and its end."""
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()], end


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


def files_with(table: str, keys: list[str], **columns: list[Any]) -> int:
    """How many files of a table can have a row with one of these keys."""
    found: set[int] = set()
    schema = pa.schema(DeltaTable(table).schema().to_arrow())
    given = pa.RecordBatch.from_pydict(columns, pa.schema([schema.field(key) for key in keys]))
    find_touched(keyed_files(DeltaTable(table), keys), given, found)
    return len(found)


# -- pruning --------------------------------------------------------------------------------------------------------


def test_files_whose_bounds_exclude_all_keys_are_not_read(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for start in (0, 100, 200):
        write_deltalake(table, pa.table({"k": [start, start + 10], "t": [f"a{start}", f"b{start}"]}), mode="append")
    assert [files_with(table, ["k"], k=keys) for keys in ([5], [11], [5, 105], [-1, 300], [50, 200], [])] == [
        1, 0, 2, 0, 1, 0,
    ]  # fmt: skip
    # All columns count: the first key is in one file, the second in another one.
    assert files_with(table, ["k", "t"], k=[5, 105], t=["a5", "b100"]) == 2
    assert files_with(table, ["k", "t"], k=[5], t=["zz"]) == 0


def test_null_is_a_key_and_files_without_nulls_are_left_out(tmp_path: Path) -> None:
    table, kind = str(tmp_path / "table"), pa.int64()
    for values in ([1, 2], [3, None], [None, None]):
        write_deltalake(table, pa.table({"k": pa.array(values, kind), "v": values}), mode="append")
    assert [files_with(table, ["k"], k=keys) for keys in ([None], [1], [3], [1, None])] == [2, 1, 1, 3]


def test_key_that_is_a_partition_column_selects_partitions(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    days = [date(2026, 1, day) for day in (1, 2, 3)]
    write_deltalake(table, pa.table({"day": days, "v": [1, 2, 3]}), partition_by=["day"])
    assert [files_with(table, ["day"], day=[day]) for day in (days[1], date(2026, 1, 9))] == [1, 0]


def test_time_between_two_milliseconds_is_found_after_a_compaction(tmp_path: Path) -> None:
    """Compaction cuts the upper bound in the log to milliseconds."""
    table, at = str(tmp_path / "table"), datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    for _ in range(2):
        write_deltalake(table, pa.table({"k": pa.array([at], pa.timestamp("us", "UTC")), "v": [1]}), mode="append")
    maintenance.compact(TableLocation.at(table))
    assert files_with(table, ["k"], k=[at]) == 1
    assert files_with(table, ["k"], k=[at + timedelta(seconds=1)]) == 0


def test_long_text_whose_bound_was_cut_is_found(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for _ in range(2):
        write_deltalake(table, pa.table({"k": ["z" * 100, "é" * 90], "v": [1, 2]}), mode="append")
    maintenance.compact(TableLocation.at(table))
    assert [files_with(table, ["k"], k=[key]) for key in ("z" * 100, "é" * 90, "a")] == [1, 1, 0]


def test_keys_of_types_without_exact_bounds_exclude_no_file(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"k": [b"a"], "f": [True], "v": [1]}))
    assert (files_with(table, ["k"], k=[b"z"]), files_with(table, ["f"], f=[False])) == (1, 1)


# -- commits --------------------------------------------------------------------------------------------------------


def test_merge_replaces_rows_and_rewrites_only_files_with_their_keys(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"))
    keyed.merge(1, (100, 1, "c"))
    untouched = set(DeltaTable(keyed.location.uri).file_uris())
    keyed.merge(2, (2, 2, "B"), (3, 1, "d"))
    assert keyed.rows() == [(1, "a"), (2, "B"), (3, "d"), (100, "c")]
    assert len(untouched & set(DeltaTable(keyed.location.uri).file_uris())) == 1


def test_batch_that_is_merged_again_is_skipped(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), digest="these offsets")
    again = keyed.merge(0, (1, 2, "other"), digest="these offsets")
    assert (again.skipped, keyed.attempts, keyed.rows()) == (True, 1, [(1, "a")])
    with pytest.raises(CommitRefused, match="covers other source offsets"):
        keyed.merge(0, (1, 2, "other"), digest="those offsets")


def test_batch_without_a_change_is_committed_without_files(keyed: Keyed) -> None:
    keyed.merge(0, (1, 5, "a"), (2, 5, "b"))
    before = DeltaTable(keyed.location.uri).file_uris()
    assert keyed.merge(1, (1, 4, "old")).version == 2
    assert DeltaTable(keyed.location.uri).file_uris() == before
    assert DeltaTable(keyed.location.uri).transaction_version("query") == 1
    assert len(list(Path(keyed.location.uri).glob("*.parquet"))) == 1, "files that are not needed are deleted"


def test_empty_batch_makes_no_version(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"))
    assert keyed.merge(1).version == 1


def once(action: Callable[[], object]) -> Callable[[], object]:
    """Act at the first call only."""
    actions = [action]
    return lambda: actions.pop()() if actions else None


def test_merge_starts_again_when_the_table_was_compacted_meanwhile(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"))
    keyed.merge(1, (2, 1, "b"))
    keyed.meanwhile = once(lambda: maintenance.compact(keyed.location))
    keyed.attempts = 0
    keyed.merge(2, (1, 2, "A"))
    assert (keyed.attempts, keyed.rows()) == (2, [(1, "A"), (2, "b")])


def test_merge_starts_again_when_another_writer_has_added_the_key_meanwhile(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"))
    newer = pa.table({"k": [7], "s": [9], "v": ["newer"]}, _ARROW)
    keyed.meanwhile = once(lambda: write_deltalake(keyed.location.uri, newer, mode="append"))
    keyed.attempts = 0
    keyed.merge(1, (7, 2, "older"), (8, 1, "x"))
    assert (keyed.attempts, keyed.rows()) == (2, [(1, "a"), (7, "newer"), (8, "x")])


def test_merge_starts_again_when_the_table_was_replaced_meanwhile(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"))
    backfilled = pa.table({"k": [1, 2], "s": [1, 1], "v": ["a2", "b2"]}, _ARROW)
    keyed.meanwhile = once(lambda: write_deltalake(keyed.location.uri, backfilled, mode="overwrite"))
    keyed.merge(1, (2, 2, "B"))
    assert keyed.rows() == [(1, "a2"), (2, "B")]


def test_merge_gives_up_when_the_table_changes_during_each_attempt(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_commit, "_BACKOFF_S", 0.0)
    monkeypatch.setattr(table_commit, "_ATTEMPTS", 3)
    keyed.merge(0, (1, 1, "a"))
    other = pa.table({"k": [5], "s": [1], "v": ["x"]}, _ARROW)
    keyed.meanwhile = lambda: write_deltalake(keyed.location.uri, other, mode="append")
    with pytest.raises(CommitRefused, match="in 3 attempts"):
        keyed.merge(1, (1, 2, "A"))
    assert (1, "a") in keyed.rows()


def test_deletes_are_remembered_below_the_table_and_vacuum_leaves_them(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"))
    keyed.merge(1, (1, 5, None))
    assert keyed.rows() == [(2, "b")]
    (file,) = Path(tombstones_of(keyed.location).uri).rglob("*.parquet")
    (change,) = (Path(keyed.location.uri) / "_change_data").glob("*.parquet")
    for path in (file, change):
        os.utime(path, (0, 0))
    deleted = maintenance.vacuum(keyed.location, hours=1)
    assert [os.path.basename(path) for path in deleted] == [change.name]
    assert file.exists()


# -- the change feed ------------------------------------------------------------------------------------------------


def test_stream_of_changes_has_changed_rows_only(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"), (3, 1, "c"))
    reader = keyed.stream(readChangeFeed="true")
    first, at = keyed.read(reader, reader.initialOffset())
    assert {(row["k"], row["_change_type"]) for row in first} == {(1, "insert"), (2, "insert"), (3, "insert")}
    keyed.merge(1, (1, 2, "A"), (2, 0, "too old"), (9, 1, "new"))
    second, at = keyed.read(reader, at)
    assert {(row["k"], row["v"], row["_change_type"]) for row in second} == {
        (1, "A", "update_postimage"), (9, "new", "insert"),
    }  # fmt: skip
    keyed.merge(2, (3, 2, None), (4, 2, None))
    third, at = keyed.read(reader, at)
    assert [(row["k"], row["v"], row["_change_type"]) for row in third] == [(3, "c", "delete")]
    maintenance.compact(keyed.location)
    assert keyed.read(reader, at) == ([], at)


def test_stream_of_changes_without_their_type_has_no_deleted_rows(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"))
    parsed = TableReadOptions.parse({"path": keyed.location.uri, "readChangeFeed": "true"}, stream=True)
    reader = TableStreamReader(parsed, StructType.fromJson(dict(schema_of(keyed.location.table()))))
    _, at = keyed.read(reader, reader.initialOffset())
    keyed.merge(1, (1, 2, None), (2, 2, "B"))
    rows, _ = keyed.read(reader, at)
    assert rows == [{"k": 2, "s": 2, "v": "B"}]


def test_stream_of_changes_skips_a_backfill_if_told_to_and_fails_otherwise(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"))
    skipping, strict = (
        keyed.stream(readChangeFeed="true", skipChangeCommits="true"),
        keyed.stream(readChangeFeed="true"),
    )
    _, at = keyed.read(skipping, skipping.initialOffset())
    write_deltalake(keyed.location.uri, pa.table({"k": [1], "s": [1], "v": ["x"]}, _ARROW), mode="overwrite")
    keyed.merge(1, (2, 1, "b"))
    assert [row["k"] for row in keyed.read(skipping, at)[0]] == [2]
    with pytest.raises(TableChanged, match="readChangeFeed"):
        keyed.read(strict, at)


def test_stream_that_ignores_changes_gets_no_unchanged_rows_of_a_merge(keyed: Keyed) -> None:
    keyed.merge(0, (1, 1, "a"), (2, 1, "b"))
    reader = keyed.stream(ignoreChanges="true")
    _, at = keyed.read(reader, reader.initialOffset())
    keyed.merge(1, (2, 2, "B"))
    assert keyed.read(reader, at)[0] == [{"k": 2, "s": 2, "v": "B"}]
