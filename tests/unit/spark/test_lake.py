"""Tables without Spark: files, commits, the log, and what happens when a driver dies."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from ottla.spark import maintenance, table_commit, table_sync
from ottla.spark.options import OptionError
from ottla.spark.parquet_directory import STAGING, publish
from ottla.spark.table_commit import BatchMismatch, CommitRefused, Replace, TableBatch, TableCommit
from ottla.spark.table_files import (
    DataFile,
    DataFileWriter,
    FileDeleted,
    FileLayout,
    hive_directory,
    part_rows,
    plain_directory,
    read_slices,
    split_files,
)
from ottla.spark.table_location import TableLocation, TableMissing
from ottla.spark.table_log import (
    AddedFile,
    TableLog,
    TableOffset,
    TableUnreadable,
    admit,
    parse_commit,
    snapshot_files,
    with_offsets,
)
from ottla.spark.table_schema import SchemaMismatch

_ARROW = {"long": pa.int64(), "string": pa.string(), "date": pa.date32(), "integer": pa.int32(), "double": pa.float64()}


def schema(**columns: str) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return {"type": "struct", "fields": fields}


class Fixture:
    """One table and its writers."""

    def __init__(self, directory: Path) -> None:
        self.location = TableLocation.at(str(directory / "table"))

    def files(self, rows: list[dict[str, Any]], partition_by: tuple[str, ...] = (), **columns: str) -> list[DataFile]:
        arrow = pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])
        layout = FileLayout(schema=arrow, partition_by=partition_by, compression="zstd", target_file_bytes=1 << 27)
        writer = DataFileWriter(self.location, layout)
        writer.write(pa.RecordBatch.from_pylist(rows, arrow))
        return writer.finish()

    def append(self, *values: int, batch: tuple[Any, ...] | None = None) -> table_commit.Committed:
        files = self.files([{"v": value} for value in values], v="long")
        return TableCommit(self.location, schema(v="long")).commit(files, TableBatch(*batch) if batch else None)

    def values(self) -> list[int]:
        return sorted(DeltaTable(self.location.uri).to_pyarrow_table()["v"].to_pylist())

    def parquet_files(self) -> int:
        return len(list(Path(self.location.uri).rglob("*.parquet")))


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


# -- commits --------------------------------------------------------------------------------------------------------


def test_first_write_makes_the_table(fixture: Fixture) -> None:
    fixture.append(1, 2)
    assert fixture.values() == [1, 2]


def test_batch_that_comes_again_is_there_once_and_its_new_files_are_gone(fixture: Fixture) -> None:
    fixture.append(1, 2, batch=("query", 0))
    again = fixture.append(1, 2, batch=("query", 0))
    assert (again.skipped, fixture.values(), fixture.parquet_files()) == (True, [1, 2], 1)


def test_batches_of_two_writers_do_not_meet(fixture: Fixture) -> None:
    fixture.append(1, batch=("a", 7))
    fixture.append(2, batch=("b", 0))
    assert fixture.values() == [1, 2]


def test_older_batch_of_a_driver_that_lives_on_is_refused(fixture: Fixture) -> None:
    fixture.append(1, batch=("query", 4))
    with pytest.raises(CommitRefused, match=r"batches up to 4 of query, and batch 3 .*restored from an older copy"):
        fixture.append(0, batch=("query", 3))
    assert fixture.values() == [1]


def test_batch_that_comes_again_of_other_offsets_is_refused(fixture: Fixture) -> None:
    fixture.append(1, batch=("query", 4, "these"))
    # Others write, and the table's files change.
    fixture.append(2)
    fixture.append(3, batch=("other", 4, "whatever"))
    assert fixture.append(1, batch=("query", 4, "these")).skipped
    with pytest.raises(CommitRefused, match="covers other source offsets"):
        fixture.append(5, batch=("query", 4, "those"))
    assert fixture.values() == [1, 2, 3]


def test_digest_of_a_batch_is_known_however_much_others_write(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.append(1, batch=("query", 4, "these"))
    monkeypatch.setattr(table_commit, "_REMEMBERED", 1)
    fixture.append(2)
    fixture.append(3, batch=("other", 0, "those"))
    assert fixture.append(1, batch=("query", 4, "these")).skipped
    with pytest.raises(BatchMismatch, match="Nothing was written"):
        fixture.append(1, batch=("query", 4, "those"))


def test_batch_without_a_digest_is_the_same_one_if_it_has_as_many_rows(fixture: Fixture) -> None:
    fixture.append(1, 2, batch=("query", 5))
    assert fixture.append(1, 3, batch=("query", 5)).skipped
    with pytest.raises(BatchMismatch, match=r"another number of rows \(.*ottla.batch.digest"):
        fixture.append(1, 2, 3, batch=("query", 5))
    assert fixture.append(1, 2, 3, batch=("query", 5, "these")).skipped
    assert fixture.values() == [1, 2]


def test_batch_without_a_digest_is_refused_if_the_table_has_it_with_one(fixture: Fixture) -> None:
    fixture.append(1, batch=("query", 4, "these"))
    with pytest.raises(BatchMismatch, match="has no digest"):
        fixture.append(1, batch=("query", 4))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of files and folders that were synced."""
    paths: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(table_sync, "_synced", {})
    return paths


def test_commit_is_synced_with_its_files_before_it_is_reported(fixture: Fixture, synced: set[str]) -> None:
    columns = {"v": "long", "p": "string"}
    files = fixture.files([{"v": 1, "p": "a b/c"}, {"v": 2, "p": "x%y=z"}], ("p",), **columns)
    TableCommit(fixture.location, schema(**columns), partition_by=("p",)).commit(files, TableBatch("query", 0))
    table = Path(fixture.location.uri)
    written = {str(path) for path in table.rglob("*.parquet")}
    assert len(written) == 2
    assert synced >= written | {str(Path(path).parent) for path in written}
    commits = {str(path) for path in table.glob("_delta_log/*.json")}
    assert len(commits) == 2, "the creation of the table is a commit of its own"
    assert synced >= commits | {str(table / "_delta_log"), str(table), str(table.parent)}


def test_commits_since_the_last_sync_are_synced_with_the_next_one(fixture: Fixture, synced: set[str]) -> None:
    fixture.append(1)
    columns = {"v": "long", "day": "string"}
    grown = TableCommit(fixture.location, schema(**columns), merge_schema=True)
    grown.commit(fixture.files([{"v": 2, "day": "a"}], **columns))
    write_deltalake(fixture.location.uri, pa.table({"v": [3], "day": ["b"]}), mode="append")
    DeltaTable(fixture.location.uri).delete("v = 3")
    fixture.append(4)
    table = Path(fixture.location.uri)
    assert len(list(table.glob("_delta_log/*.json"))) == 7
    written = {str(path) for path in (*table.glob("_delta_log/*.json"), *table.rglob("*.parquet"))}
    assert synced >= written
    synced.clear()
    fixture.append(5)
    assert [path for path in synced if path.endswith(".json")] == [str(table / "_delta_log" / f"{7:020}.json")]


def test_commit_of_a_killed_process_is_synced_when_its_batch_is_skipped(
    fixture: Fixture, synced: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(table_commit, "sync_commit", lambda *arguments: None)
        fixture.append(1, batch=("query", 0, "digest"))
    table = Path(fixture.location.uri)
    written = {str(path) for path in (*table.glob("_delta_log/*.json"), *table.rglob("*.parquet"))}
    assert not synced & written
    assert fixture.append(1, batch=("query", 0, "digest")).skipped
    assert synced >= written


def test_two_drivers_with_one_batch_commit_it_once(fixture: Fixture) -> None:
    zombie = TableCommit(fixture.location, schema(v="long"))
    zombie.commit(fixture.files([{"v": 0}], v="long"), TableBatch("query", 0))
    mine, theirs = (fixture.files([{"v": 1}], v="long") for _ in range(2))
    # The zombie has loaded the table; it commits only after the other one has.
    stale = zombie._prepare()
    change = zombie._addition(stale, theirs)
    assert change is not None
    TableCommit(fixture.location, schema(v="long")).commit(mine, TableBatch("query", 1))
    with pytest.raises(table_commit.CommitFailedError):
        zombie._write(stale, change, TableBatch("query", 1))
    assert zombie.commit(theirs, TableBatch("query", 1)).skipped and fixture.values() == [0, 1]


def test_append_goes_on_when_others_delete_rows_meanwhile(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture.append(1, 2)
    commit = TableCommit(fixture.location, schema(v="long"))
    write = commit._write

    def write_after_a_delete(*arguments: Any) -> None:
        monkeypatch.setattr(commit, "_write", write)
        DeltaTable(fixture.location.uri).delete("v = 1")
        write(*arguments)

    monkeypatch.setattr(commit, "_write", write_after_a_delete)
    commit.commit(fixture.files([{"v": 3}], v="long"), TableBatch("query", 0))
    assert fixture.values() == [2, 3]


def test_batches_are_known_when_only_a_checkpoint_tells_of_them(fixture: Fixture) -> None:
    for batch in range(3):
        fixture.append(batch, batch=("query", batch))
    maintenance.checkpoint(fixture.location)
    for version in range(3):
        (Path(fixture.location.uri) / "_delta_log" / f"{version:020}.json").unlink()
    assert fixture.append(2, batch=("query", 2)).skipped and fixture.values() == [0, 1, 2]


def test_empty_batch_makes_the_table_and_no_version_more(fixture: Fixture) -> None:
    commit = TableCommit(fixture.location, schema(v="long"))
    assert [commit.commit([], TableBatch("query", batch)).version for batch in range(2)] == [0, 0]


def test_table_that_was_deleted_is_made_again(fixture: Fixture, tmp_path: Path) -> None:
    commit = TableCommit(fixture.location, schema(v="long"))
    commit.commit(fixture.files([{"v": 1}], v="long"), TableBatch("query", 0))
    Path(fixture.location.uri).rename(tmp_path / "elsewhere")
    commit.commit(fixture.files([{"v": 2}], v="long"), TableBatch("query", 1))
    assert fixture.values() == [2]


# -- schemas --------------------------------------------------------------------------------------------------------


def test_new_column_needs_merge_schema(fixture: Fixture) -> None:
    fixture.append(1)
    rows = schema(v="long", note="string")
    with pytest.raises(SchemaMismatch, match="mergeSchema"):
        TableCommit(fixture.location, rows).plan()
    commit = TableCommit(fixture.location, rows, merge_schema=True)
    commit.commit(fixture.files([{"v": 2, "note": "new"}], v="long", note="string"))
    found = DeltaTable(fixture.location.uri).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["v"]) == [{"v": 1, "note": None}, {"v": 2, "note": "new"}]


def test_narrower_numbers_fit_and_other_types_do_not(fixture: Fixture) -> None:
    fixture.append(1)
    assert TableCommit(fixture.location, schema(v="integer")).plan().rows["fields"][0]["type"] == "long"
    with pytest.raises(SchemaMismatch, match="column v of the table is long, that of the rows is string"):
        TableCommit(fixture.location, schema(v="string")).plan()


def test_struct_gains_a_field(fixture: Fixture) -> None:
    def nested(*names: str) -> dict[str, Any]:
        return {"type": "struct", "fields": [{**schema(x="long")["fields"][0], "name": "s", "type": schema(
            **dict.fromkeys(names, "long"))}]}  # fmt: skip

    TableCommit(fixture.location, nested("a")).commit([])
    merged = TableCommit(fixture.location, nested("b"), merge_schema=True)
    merged.commit([])
    assert [field.name for field in DeltaTable(fixture.location.uri).schema().fields[0].type.fields] == ["a", "b"]
    assert merged.plan().rows["fields"][0]["type"]["fields"][0]["name"] == "a"


@pytest.mark.parametrize(
    ("columns", "partition_by", "text"),
    [
        ({"v": "long"}, ("day",), "partitionBy names the column day"),
        ({"v": "long"}, ("v",), "all columns are partition columns"),
        ({"v": "long", "p": "double"}, ("p",), "cannot partition a table"),
        ({"a b": "long"}, (), "cannot be called 'a b'"),
        ({"v": "long", "V": "long"}, (), "occurs twice"),
        ({"v": "void"}, (), "give it a type"),
        ({"v": "variant"}, (), "tables do not have, variant"),
    ],
)
def test_rows_that_cannot_make_a_table_are_refused(
    fixture: Fixture, columns: dict[str, str], partition_by: tuple[str, ...], text: str
) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        TableCommit(fixture.location, schema(**columns), partition_by=partition_by).plan()


def test_other_partitions_than_the_tables_are_refused(fixture: Fixture) -> None:
    TableCommit(fixture.location, schema(v="long", day="date"), partition_by=("day",)).commit([])
    with pytest.raises(SchemaMismatch, match="is partitioned by day, not by v"):
        TableCommit(fixture.location, schema(v="long", day="date"), partition_by=("v",)).plan()
    with pytest.raises(SchemaMismatch, match="which the rows do not have"):
        TableCommit(fixture.location, schema(v="long")).plan()


# -- overwriting ----------------------------------------------------------------------------------------------------

_DAYS = {"v": "long", "day": "date"}


@pytest.fixture
def days(fixture: Fixture) -> Fixture:
    rows = [{"v": number, "day": date(2026, 1, number)} for number in (1, 2, 3)]
    commit = TableCommit(fixture.location, schema(**_DAYS), partition_by=("day",))
    commit.commit(fixture.files(rows, ("day",), **_DAYS))
    return fixture


def replace(fixture: Fixture, where: str | None, *rows: tuple[int, int], batch: tuple[str, int] | None = None) -> None:
    files = fixture.files([{"v": v, "day": date(2026, 1, day)} for v, day in rows], ("day",), **_DAYS)
    TableCommit(fixture.location, schema(**_DAYS), replace=Replace(where=where)).commit(files, batch)


def test_overwrite_takes_all_rows_away(days: Fixture) -> None:
    replace(days, None, (9, 9))
    assert days.values() == [9]


@pytest.mark.parametrize(
    ("where", "row", "left"),
    [
        ("day = '2026-01-02'", (20, 2), [1, 3, 20]),
        ("day >= '2026-01-02' AND day < DATE '2026-01-04'", (20, 2), [1, 20]),
        ("day BETWEEN '2026-01-01' AND '2026-01-02'", (20, 2), [3, 20]),
        ("`DAY` in ('2026-01-01', '2026-01-03')", (30, 3), [2, 30]),
        ("day is not null", (30, 3), [30]),
    ],
)
def test_replace_where_takes_some_partitions_away(
    days: Fixture, where: str, row: tuple[int, int], left: list[int]
) -> None:
    replace(days, where, row)
    assert days.values() == left


def test_partition_that_is_compacted_while_it_is_replaced_is_replaced(
    days: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"v": 22, "day": date(2026, 1, 2)}]
    TableCommit(days.location, schema(**_DAYS)).commit(days.files(rows, ("day",), **_DAYS))
    removals = TableCommit._removals

    def compact_then(*arguments: Any) -> Any:
        found = removals(*arguments)
        monkeypatch.setattr(TableCommit, "_removals", removals)
        maintenance.compact(days.location)
        return found

    monkeypatch.setattr(TableCommit, "_removals", compact_then)
    replace(days, "day = '2026-01-02'", (20, 2))
    assert days.values() == [1, 3, 20]


def test_rows_outside_of_replace_where_are_refused_and_nothing_changes(days: Fixture) -> None:
    with pytest.raises(CommitRefused, match="partition day=2026-01-03 do not match"):
        replace(days, "day = '2026-01-02'", (30, 3))
    assert days.values() == [1, 2, 3]


def test_replaced_partition_of_a_batch_that_comes_again_is_replaced_once(days: Fixture) -> None:
    replace(days, "day = '2026-01-02'", (20, 2), batch=TableBatch("backfill", 1))
    replace(days, "day = '2026-01-02'", (21, 2), batch=TableBatch("backfill", 1))
    assert days.values() == [1, 3, 20]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("v = 1", "partition columns only"),
        ("day = 'soon'", "which is not of type date"),
        ("day = '2026-01-02' OR day = '2026-01-03'", "needs AND instead of 'OR'"),
        ("day", "ends too early"),
        ("day ~ 1", "cannot be understood"),
        ("day = today", "needs a value instead of 'today'"),
    ],
)
def test_replace_where_that_cannot_be_understood_is_refused_before_anything_is_written(
    days: Fixture, where: str, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        TableCommit(days.location, schema(**_DAYS), replace=Replace(where=where)).plan()


def test_overwrite_may_bring_another_schema(fixture: Fixture) -> None:
    fixture.append(1)
    files = fixture.files([{"name": "a"}], name="string")
    TableCommit(fixture.location, schema(name="string"), replace=Replace(schema=True)).commit(files)
    assert DeltaTable(fixture.location.uri).to_pyarrow_table().to_pylist() == [{"name": "a"}]


def test_partition_whose_value_has_odd_signs_can_be_replaced(fixture: Fixture) -> None:
    write_deltalake(fixture.location.uri, pa.table({"p": ["a b/c", "x%y=z"], "v": [1, 2]}), partition_by=["p"])
    columns = {"p": "string", "v": "long"}
    files = fixture.files([{"p": "x%y=z", "v": 3}], ("p",), **columns)
    TableCommit(fixture.location, schema(**columns), replace=Replace(where="p = 'x%y=z'")).commit(files)
    assert fixture.values() == [1, 3]


# -- files ----------------------------------------------------------------------------------------------------------


def test_rows_are_parted_and_keep_their_order() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"a": a, "b": b, "n": n} for n, (a, b) in enumerate([("x", 1), ("y", 1), (None, 2), ("x", 1), ("", 2)])]
    )
    parts = {partition: rows["n"].to_pylist() for partition, rows in part_rows(batch, ("a", "b"))}
    assert parts == {
        (("a", "x"), ("b", "1")): [0, 3],
        (("a", "y"), ("b", "1")): [1],
        (("a", None), ("b", "2")): [2, 4],
    }


def test_partition_values_come_back_with_their_types(fixture: Fixture) -> None:
    arrow = pa.schema(
        [
            ("v", pa.int64()),
            ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
            ("b", pa.bool_()),
            ("m", pa.decimal128(10, 2)),
            ("s", pa.string()),
        ]
    )
    row = {
        "v": 1,
        "d": date(2026, 2, 3),
        "t": datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
        "b": True,
        "m": Decimal("1.20"),
        "s": "a=b/c d",
    }
    layout = FileLayout(
        schema=arrow, partition_by=("d", "t", "b", "m", "s"), compression="zstd", target_file_bytes=1 << 20
    )
    writer = DataFileWriter(fixture.location, layout)
    writer.write(pa.RecordBatch.from_pylist([row, {"v": 2}], arrow))
    files = [(file.path, file.size_bytes, file.partition) for file in writer.finish()]
    slices = [piece for task in split_files(files, 1 << 20) for piece in task]
    rows = [found for batch in read_slices(fixture.location, slices, arrow) for found in batch.to_pylist()]
    assert sorted(rows, key=lambda found: found["v"]) == [row, {**dict.fromkeys(row), "v": 2}]


def test_only_named_columns_are_read_and_missing_ones_are_null(fixture: Fixture) -> None:
    [file] = fixture.files([{"v": 1, "w": 2}], v="long", w="long")
    slices = split_files([(file.path, file.size_bytes, (("p", "7"),))], 1 << 20)[0]
    wanted = pa.schema([("later", pa.string()), ("p", pa.int32()), ("w", pa.int64())])
    assert [batch.to_pylist() for batch in read_slices(fixture.location, slices, wanted)] == [
        [{"later": None, "p": 7, "w": 2}]
    ]
    alone = pa.schema([("p", pa.int32())])
    assert [batch.to_pylist() for batch in read_slices(fixture.location, slices, alone)] == [[{"p": 7}]]


def test_big_file_is_read_by_several_tasks_each_row_once(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.table_files._ROW_GROUP_ROWS", 100)
    arrow = pa.schema([("v", pa.int64())])
    layout = FileLayout(schema=arrow, partition_by=(), compression="none", target_file_bytes=1 << 30)
    writer = DataFileWriter(fixture.location, layout)
    for start in range(0, 1000, 50):
        writer.write(pa.record_batch({"v": pa.array(range(start, start + 50), pa.int64())}))
    [file] = writer.finish()
    tasks = split_files([(file.path, file.size_bytes, ())], file.size_bytes // 3)
    rows = [
        [v for batch in read_slices(fixture.location, task, arrow) for v in batch["v"].to_pylist()] for task in tasks
    ]
    assert len([task for task in rows if task]) >= 3 and [v for task in rows for v in task] == list(range(1000))


def test_file_that_vacuum_has_deleted_is_named(fixture: Fixture) -> None:
    [file] = fixture.files([{"v": 1}], v="long")
    (Path(fixture.location.uri) / file.path).unlink()
    [task] = split_files([(file.path, file.size_bytes, ())], 1 << 20)
    with pytest.raises(FileDeleted, match="vacuum deletes files of old versions"):
        list(read_slices(fixture.location, task, pa.schema([("v", pa.int64())])))


def test_small_files_share_a_task() -> None:
    assert [len(task) for task in split_files([(f"f{number}", 10, ()) for number in range(10)], 320)] == [10]


def test_file_is_closed_when_it_has_its_size(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.table_files._ROW_GROUP_ROWS", 10)
    layout = FileLayout(
        schema=pa.schema([("v", pa.int64())]), partition_by=(), compression="zstd", target_file_bytes=100
    )
    writer = DataFileWriter(fixture.location, layout)
    for _ in range(4):
        writer.write(pa.record_batch({"v": pa.array(range(10), pa.int64())}))
    assert [file.rows for file in writer.finish()] == [10, 10, 10, 10]


def test_open_files_are_bounded(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.table_files._OPEN_FILES_MAX", 2)
    files = fixture.files([{"v": n, "p": n % 5} for n in range(20)], ("p",), v="long", p="long")
    assert sorted((dict(file.partition)["p"], file.rows) for file in files) == [(str(p), 4) for p in range(5)]


def test_failed_task_leaves_no_file(fixture: Fixture) -> None:
    layout = FileLayout(
        schema=pa.schema([("v", pa.int64()), ("p", pa.int64())]),
        partition_by=("p",),
        compression="zstd",
        target_file_bytes=1,
    )
    writer = DataFileWriter(fixture.location, layout)
    writer.write(pa.record_batch({"v": [1, 2], "p": [1, 2]}))
    writer.discard()
    assert fixture.parquet_files() == 0


def test_statistics_bound_the_values(fixture: Fixture) -> None:
    [file] = fixture.files(
        [{"n": 3, "s": "b", "d": date(2026, 1, 2)}, {"n": None, "s": "a" * 100, "d": date(2026, 1, 1)}],
        n="long",
        s="string",
        d="date",
    )
    assert json.loads(file.stats) == {
        "numRecords": 2,
        "minValues": {"n": 3, "d": "2026-01-01"},
        "maxValues": {"n": 3, "d": "2026-01-02"},
        "nullCount": {"n": 1, "s": 0, "d": 0},
    }


def test_directories_of_delta_hold_plain_signs_and_those_of_parquet_what_readers_understand() -> None:
    partition = (("day", "2026-01-01"), ("s", "a=b/c"), ("n", None))
    assert plain_directory(partition) == "day=2026-01-01/s=a_b_c/n=__HIVE_DEFAULT_PARTITION__/"
    assert hive_directory(partition) == "day=2026-01-01/s=a%3Db%2Fc/n=__HIVE_DEFAULT_PARTITION__/"


def test_parquet_files_are_seen_when_they_are_published(fixture: Fixture) -> None:
    def staged(value: int) -> list[DataFile]:
        layout = FileLayout(
            schema=pa.schema([("v", pa.int64()), ("p", pa.string())]),
            partition_by=("p",),
            compression="zstd",
            target_file_bytes=1 << 20,
            hive=True,
            staging=STAGING,
        )
        writer = DataFileWriter(fixture.location, layout)
        writer.write(pa.record_batch({"v": [value], "p": ["x y"]}))
        return writer.finish()

    publish(fixture.location, staged(1), overwrite=False)
    publish(fixture.location, staged(2), overwrite=False)
    assert pq.read_table(fixture.location.uri, partitioning="hive")["v"].to_pylist() in ([1, 2], [2, 1])
    publish(fixture.location, staged(3), overwrite=True)
    assert pq.read_table(fixture.location.uri, partitioning="hive").to_pylist() == [{"v": 3, "p": "x y"}]


# -- the log --------------------------------------------------------------------------------------------------------


def test_log_tells_what_a_commit_has_added_and_taken_away(fixture: Fixture) -> None:
    fixture.append(1)
    fixture.append(2)
    maintenance.compact(fixture.location)
    DeltaTable(fixture.location.uri).delete("v = 1")
    log = TableLog(fixture.location)
    commits = [log.commit(version) for version in range(5)]
    # made, appended, appended, compacted, deleted
    assert [commit and (len(commit.added), commit.removed) for commit in commits] == [
        (0, 0),
        (1, 0),
        (1, 0),
        (0, 0),
        (1, 1),
    ]
    assert log.commit(5) is None


def test_snapshot_files_hold_all_rows_and_decoded_names(fixture: Fixture) -> None:
    write_deltalake(fixture.location.uri, pa.table({"p": ["a b/c", "x%y=z", None], "v": [1, 2, 3]}), partition_by=["p"])
    files = snapshot_files(fixture.location.table())
    assert all((Path(fixture.location.uri) / file.path).exists() for file in files)
    assert {dict(file.partition)["p"] for file in files} == {"a b/c", "x%y=z", None}


def test_deletion_vectors_are_refused() -> None:
    add = {"path": "f", "size": 1, "partitionValues": {}, "dataChange": True, "deletionVector": {"storageType": "u"}}
    with pytest.raises(TableUnreadable, match="deletion vector"):
        parse_commit(3, [{"add": add}])


def _files(*rows: int) -> tuple[AddedFile, ...]:
    return tuple(AddedFile(path=f"f{n}", size_bytes=1, rows=count, partition=()) for n, count in enumerate(rows))


@pytest.mark.parametrize(
    ("files_max", "rows_max", "end"),
    [
        (None, None, (6, 0)),
        (2, None, (5, 2)),
        (3, None, (6, 0)),
        (None, 25, (5, 2)),
        (None, 1, (5, 1)),
        (2, 15, (5, 1)),
    ],
)
def test_batch_ends_at_a_whole_file(files_max: int | None, rows_max: int | None, end: tuple[int, int]) -> None:
    start = TableOffset("id", 5, 0, True)
    found = admit(start, with_offsets(start, _files(10, 10, 10)), files_max=files_max, rows_max=rows_max)
    assert (found.version, found.index) == end and found.snapshot is (end[0] == 5)


def test_offset_survives_its_json() -> None:
    offset = TableOffset("id", 5, 2, True)
    assert TableOffset.from_json(json.loads(json.dumps(offset.as_json()))) == offset


# -- maintenance ----------------------------------------------------------------------------------------------------


def test_compaction_makes_one_file_of_many_and_changes_no_row(fixture: Fixture) -> None:
    for value in range(5):
        fixture.append(value)
    done = maintenance.compact(fixture.location)
    assert (done.files_before, done.files_after, fixture.values()) == (5, 1, [0, 1, 2, 3, 4])


def test_vacuum_finds_files_of_failed_writes(fixture: Fixture) -> None:
    fixture.append(1)
    [orphan] = fixture.files([{"v": 2}], v="long")
    assert maintenance.vacuum(fixture.location, hours=0, dry_run=True) == [orphan.path]
    assert maintenance.vacuum(fixture.location, hours=1) == [] and fixture.parquet_files() == 2
    with pytest.raises(OptionError, match="at least one hour"):
        maintenance.vacuum(fixture.location, hours=0)


def test_expired_log_opens_from_its_checkpoint(fixture: Fixture) -> None:
    for value in range(3):
        fixture.append(value)
    assert maintenance.checkpoint(fixture.location) == 3
    maintenance.expire(fixture.location, keep=timedelta(days=7))
    assert fixture.values() == [0, 1, 2]
    assert "seconds" in DeltaTable(fixture.location.uri).metadata().configuration["delta.logRetentionDuration"]


def test_maintenance_comes_after_every_nth_batch_and_never_fails_one(fixture: Fixture) -> None:
    for value in range(3):
        fixture.append(value)
    ran = [maintenance.maybe_maintain(fixture.location, batch, every=2, vacuum_hours=None) for batch in range(4)]
    assert ran == [False, True, False, True]
    assert not maintenance.maybe_maintain(fixture.location, 1, every=0, vacuum_hours=None)


def test_missing_table_says_so(fixture: Fixture) -> None:
    with pytest.raises(TableMissing, match="there is no table at"):
        fixture.location.table()
