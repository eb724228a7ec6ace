"""format("ottla-table") in Spark: written and read, in batches and as streams, each batch once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles
from pyspark.sql.types import LongType, StructField, StructType

from ottla.spark import maintenance
from ottla.spark.table_log import CommitsDeleted, TableChanged, TableReplaced
from ottla.spark.table_options import TableReadOptions
from ottla.spark.table_schema import SchemaMismatch
from ottla.spark.table_source import TableStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_VALUES = StructType([StructField("v", LongType())])


def append(path: Path, *values: int) -> None:
    write_deltalake(str(path), pa.table({"v": pa.array(values, pa.int64())}), mode="append")


def delta_rows(path: Path | str) -> list[dict[str, Any]]:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: str(list(row.values())))


# -- the stream reader, asked as Spark asks it ----------------------------------------------------------------------


def stream_reader(path: Path, **options: str) -> TableStreamReader:
    return TableStreamReader(TableReadOptions.parse({"path": str(path), **options}, stream=True), _VALUES)


def read_batches(reader: TableStreamReader, start: dict[str, Any] | None = None) -> list[list[int]]:
    """The rows of each batch until there is none."""
    offset, batches = start or reader.initialOffset(), []
    limit: ReadLimit = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(offset, limit)) != offset:
        work = reader.partitions(offset, end)
        batches.append(sorted(v for each in work for batch in reader.read(each) for v in batch["v"].to_pylist()))
        offset = end
    return batches


def test_stream_begins_with_the_rows_of_today_and_goes_on_with_what_is_added(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    reader = stream_reader(tmp_path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    table_id = str(DeltaTable(str(tmp_path)).metadata().id)
    assert end == {"table": table_id, "version": 2, "index": 0, "snapshot": False}
    append(tmp_path, 3)
    assert read_batches(reader, start) == [[1, 2, 3]]
    assert read_batches(stream_reader(tmp_path), end) == [[3]]


@pytest.mark.parametrize("files_max", [1, 2, 9])
def test_first_batch_that_is_repeated_by_another_run_has_the_same_rows(tmp_path: Path, files_max: int) -> None:
    started_before = stream_reader(tmp_path / "t").initialOffset()
    append(tmp_path / "t", 1)
    append(tmp_path / "t", 2)
    reader = stream_reader(tmp_path / "t")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxFiles(files_max))
    planned = [partition.value for partition in reader.partitions(start, end)]
    append(tmp_path / "t", 3)
    repeated = stream_reader(tmp_path / "t")
    assert repeated.initialOffset() == start == started_before
    assert planned and [partition.value for partition in repeated.partitions(start, end)] == planned


def test_compaction_is_passed_over(tmp_path: Path) -> None:
    append(tmp_path, 1)
    reader = stream_reader(tmp_path, startingVersion="0")
    append(tmp_path, 2)
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    maintenance.compact(reader.options.location)
    assert reader.latestOffset(offset, ReadAllAvailable()) == offset
    append(tmp_path, 3)
    assert read_batches(reader, offset) == [[3]]


def test_limits_end_batches_at_files_and_a_restart_goes_on_in_the_middle_of_a_version(tmp_path: Path) -> None:
    for value in range(3):
        append(tmp_path, value, value)
    assert read_batches(stream_reader(tmp_path, maxFilesPerTrigger="2")) == [[0, 0, 1, 1], [2, 2]]
    assert read_batches(stream_reader(tmp_path, maxRowsPerTrigger="3")) == [[0, 0], [1, 1], [2, 2]]
    first = stream_reader(tmp_path, maxFilesPerTrigger="1")
    middle = first.latestOffset(first.initialOffset(), ReadMaxFiles(1))
    assert middle["snapshot"] and read_batches(stream_reader(tmp_path), middle) == [[1, 1, 2, 2]]


def test_available_now_leaves_later_rows_for_the_next_run(tmp_path: Path) -> None:
    append(tmp_path, 1)
    reader = stream_reader(tmp_path, startingVersion="0")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    append(tmp_path, 2)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert read_batches(stream_reader(tmp_path), end) == [[2]]


def test_deleted_rows_stop_a_stream_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    start = stream_reader(tmp_path, startingVersion="latest").initialOffset()
    DeltaTable(str(tmp_path)).delete("v = 1")
    append(tmp_path, 3)
    with pytest.raises(TableChanged, match=r"version 1 .*\(DELETE\)"):
        read_batches(stream_reader(tmp_path), start)
    assert read_batches(stream_reader(tmp_path, skipChangeCommits="true"), start) == [[3]]
    assert read_batches(stream_reader(tmp_path, ignoreChanges="true"), start) == [[2, 3]]


def test_lost_commits_and_other_tables_are_told(tmp_path: Path) -> None:
    for value in range(3):
        append(tmp_path / "t", value)
    start = stream_reader(tmp_path / "t", startingVersion="1").initialOffset()
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(CommitsDeleted, match=r"version 1 .* is no longer in its log"):
        read_batches(stream_reader(tmp_path / "t"), start)
    assert read_batches(stream_reader(tmp_path / "t", failOnDataLoss="false"), start) == [[2]]
    append(tmp_path / "other", 1)
    with pytest.raises(TableReplaced):
        read_batches(stream_reader(tmp_path / "other"), start)


def test_stream_may_begin_before_its_table(tmp_path: Path) -> None:
    reader = stream_reader(tmp_path / "t")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(tmp_path / "t", 1)
    assert read_batches(reader, start) == [[1]]


def test_column_that_a_table_does_not_have_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"w": [1]}))
    with pytest.raises(SchemaMismatch, match="has no column v"):
        stream_reader(tmp_path).initialOffset()


# -- in a session ---------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def run_stream(rows: DataFrame, table: str, checkpoint: str, **options: Any) -> None:
    query = (
        rows.writeStream.format("ottla-table")
        .options(checkpointLocation=checkpoint, **options)
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination(120)
    assert query.exception() is None


def test_stream_writes_a_table_that_grows_and_is_read_back(
    spark: SparkSession, tmp_path: Path, table: str, checkpoint: str
) -> None:
    source = tmp_path / "source"
    append(source, 1, 2, 3)
    rows = spark.readStream.format("ottla-table").load(str(source))
    dated = rows.selectExpr("v", "make_date(2026, 1, cast(v as int)) as day", "named_struct('x', v) as s")
    run_stream(dated, table, checkpoint, partitionBy="day")
    assert DeltaTable(table).metadata().partition_columns == ["day"]
    append(source, 4)
    run_stream(dated.selectExpr("*", "'new' as note"), table, checkpoint, mergeSchema="true")

    read = spark.read.format("ottla-table").load(table)
    assert read.schema.simpleString() == "struct<v:bigint,day:date,s:struct<x:bigint>,note:string>"
    assert [(row.v, str(row.day), row.s.x, row.note) for row in read.orderBy("v").collect()] == [
        (1, "2026-01-01", 1, None),
        (2, "2026-01-02", 2, None),
        (3, "2026-01-03", 3, None),
        (4, "2026-01-04", 4, "new"),
    ]
    assert spark.read.format("ottla-table").option("versionAsOf", 1).load(table).count() == 3
    pruned = spark.read.format("ottla-table").schema("day date, v bigint").load(table)
    assert sorted(tuple(map(str, row)) for row in pruned.collect())[0] == ("2026-01-01", "1")


def test_batch_writes_append_overwrite_and_replace(spark: SparkSession, table: str) -> None:
    def write(rows: str, mode: str, **options: Any) -> None:
        spark.sql(f"select * from values {rows} as t(v, day)").write.format("ottla-table").mode(mode).options(
            **options
        ).save(table)

    write("(1, 'mon'), (2, 'tue')", "append", partitionBy="day")
    write("(3, 'tue')", "append")
    write("(20, 'tue')", "overwrite", replaceWhere="day = 'tue'")
    assert [row["v"] for row in delta_rows(table)] == [1, 20]
    for _ in range(2):
        write("(5, 'wed')", "append", **{"ottla.sink.name": "each", "ottla.batch.id": "7"})
    assert [row["v"] for row in delta_rows(table)] == [1, 20, 5]
    with pytest.raises(PySparkException, match="do not match replaceWhere"):
        write("(9, 'thu')", "overwrite", replaceWhere="day = 'tue'")
    with pytest.raises(PySparkException, match="column v of the table is integer, that of the rows is string"):
        write("('x', 'thu')", "append")
    write("(9, 'thu')", "overwrite")
    assert delta_rows(table) == [{"v": 9, "day": "thu"}]


def test_plain_parquet_is_what_spark_reads(spark: SparkSession, table: str) -> None:
    rows = spark.sql("select id as v, concat('a ', id % 2) as p from range(4)")
    for mode in ("append", "append", "overwrite"):
        rows.write.format("ottla-table").mode(mode).options(tableFormat="parquet", partitionBy="p").save(table)
    found = spark.read.parquet(table).orderBy("v").collect()
    assert [(row.v, row.p) for row in found] == [(0, "a 0"), (1, "a 1"), (2, "a 0"), (3, "a 1")]


def test_batch_that_spark_has_forgotten_is_there_once_and_an_older_checkpoint_is_reported(
    spark: SparkSession, tmp_path: Path, table: str, checkpoint: str
) -> None:
    source, older = tmp_path / "source", f"{checkpoint}-older"
    append(source, 1, 2)
    rows = spark.readStream.format("ottla-table").load(str(source))
    run_stream(rows, table, checkpoint)
    shutil.copytree(checkpoint, older)
    append(source, 3)
    run_stream(rows, table, checkpoint)
    # As if the driver had died between the table's commit and Spark's.
    for name in ("1", ".1.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
    append(source, 4)
    run_stream(rows, table, checkpoint)
    assert sorted(row["v"] for row in delta_rows(table)) == [1, 2, 3, 4]
    with pytest.raises(StreamingQueryException, match="restored from an older copy"):
        run_stream(rows, table, older)
    assert sorted(row["v"] for row in delta_rows(table)) == [1, 2, 3, 4]
