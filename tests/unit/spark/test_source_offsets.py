"""A sink writes a batch only if it can tell the batch from another one with the same number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from ottla.model.types import TopicPartition
from ottla.spark import sink, table_sink
from ottla.spark.foreach_batch import batch_options
from ottla.spark.lake import TableDataSource
from ottla.spark.sink import StagedMessage
from ottla.spark.source import OttlaDataSource
from ottla.spark.source_offsets import OffsetsUnreadable, read_earlier_offsets, read_source_offsets
from ottla.spark.spark_internals import SparkInternalMissing, StreamTask
from ottla.spark.staging import Staged, StagedBatch
from ottla.spark.table_commit import BatchMismatch
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import read_actions

#: addresses that pyarrow cannot open, and a path at which Spark has no checkpoint
ELSEWHERE = [
    None, "wasbs://box@account/checkpoint", "dbfs:/checkpoint", "oss://bucket/checkpoint", "/nonexistent/checkpoint",
]  # fmt: skip
NUMBERS = StructType([StructField("n", LongType())])


def plan(checkpoint: Path, batch_id: int, *offsets: str) -> None:
    """Write the file that Spark writes before a batch runs."""
    path = checkpoint / "offsets" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", "{}", *offsets]))


@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
def test_line_separators_of_unicode_inside_of_an_offset_are_no_ends_of_lines(tmp_path: Path, separator: str) -> None:
    offsets = f'{{"path":"a{separator}b"}}', '{"t":{"0":50}}'
    plan(tmp_path, 3, *offsets)
    assert read_source_offsets(str(tmp_path), 3) == "\n".join(offsets)


@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
def test_line_separators_of_unicode_in_the_statistics_of_a_commit_are_read(tmp_path: Path, separator: str) -> None:
    write_deltalake(str(tmp_path), pa.table({"v": [f"a{separator}b", "c"]}))
    actions = read_actions(TableLocation.at(str(tmp_path)).files(), 0)
    assert actions is not None and [each["add"]["size"] > 0 for each in actions if "add" in each] == [True]


def test_source_offsets_are_those_of_the_offset_log_without_its_metadata(tmp_path: Path) -> None:
    plan(tmp_path, 3, '{"in":{"0":5}}', "-")
    assert read_source_offsets(str(tmp_path), 3) == read_source_offsets(f"file://{tmp_path}/", 3) == '{"in":{"0":5}}\n-'


@pytest.mark.parametrize("checkpoint", ELSEWHERE)
def test_checkpoint_that_cannot_be_read_is_an_error_that_says_what_to_do(checkpoint: str | None) -> None:
    with pytest.raises(OffsetsUnreadable, match=r"(?s)batch 3 cannot be read.*nothing was written.*checkpointLocation"):
        read_source_offsets(checkpoint, 3)


def test_offsets_of_an_earlier_batch_that_spark_has_deleted_are_not_known(tmp_path: Path) -> None:
    plan(tmp_path, 3, '{"in":{"0":5}}')
    assert read_earlier_offsets(str(tmp_path), 3) == '{"in":{"0":5}}'
    assert read_earlier_offsets(str(tmp_path), 2) is None


def test_stream_to_a_topic_compares_the_last_committed_batch_with_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    protocol = SimpleNamespace(name="q", commit=lambda *given, **named: calls.append(named))
    monkeypatch.setattr(sink, "_protocol", lambda *given: protocol)
    for batch_id in (0, 1):
        plan(tmp_path, batch_id, f'{{"in":{{"0":{batch_id}}}}}')
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "checkpointLocation": str(tmp_path)}
    writer = OttlaDataSource(options).streamWriter(StructType([StructField("value", BinaryType())]), False)
    staged = Staged(batches=(StagedBatch(TopicPartition("t", 0), 0, 1),), rows=1, data=b"x")
    writer.commit([StagedMessage(staged=staged, query_id="q", run_id="r")], 1)
    (named,) = calls
    assert (named["run_id"], named["source_offsets"]) == ("r", '{"in":{"0":1}}')
    assert named["offsets_of"](0) == '{"in":{"0":0}}'


def test_offset_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    plan(tmp_path, 3)
    with pytest.raises(OffsetsUnreadable, match="offsets/3 is incomplete"):
        read_source_offsets(str(tmp_path), 3)


@pytest.mark.parametrize("checkpoint", ELSEWHERE)
def test_stream_to_a_topic_sends_nothing_if_the_checkpoint_cannot_be_read(
    checkpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "open_cluster", lambda options: pytest.fail("the sink has connected to a broker"))
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}
    given = options if checkpoint is None else {**options, "checkpointLocation": checkpoint}
    writer = OttlaDataSource(given).streamWriter(StructType([StructField("value", BinaryType())]), False)
    staged = Staged(batches=(StagedBatch(TopicPartition("t", 0), 0, 1),), rows=1, data=b"x")
    with pytest.raises(OffsetsUnreadable):
        writer.commit([StagedMessage(staged=staged, query_id="q", run_id="r")], 0)


def numbers(*found: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": list(found)})


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sink, "stream_task", lambda: StreamTask("query", "run", 0))


@pytest.mark.usefixtures("query")
@pytest.mark.parametrize("checkpoint", ELSEWHERE)
def test_stream_to_a_table_commits_nothing_if_the_checkpoint_cannot_be_read(
    checkpoint: str | None, tmp_path: Path
) -> None:
    given = {"path": str(tmp_path / "table")}
    given |= {} if checkpoint is None else {"checkpointLocation": checkpoint}
    writer = TableDataSource(given).streamWriter(NUMBERS, False)
    with pytest.raises(OffsetsUnreadable):
        writer.commit([writer.write(numbers(1))], 0)
    assert not (tmp_path / "table" / "_delta_log").exists()


@pytest.mark.usefixtures("query")
def test_batch_that_is_planned_again_with_more_rows_is_refused_by_a_table(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "table"), "checkpointLocation": str(tmp_path / "checkpoint")}
    for attempt, (end, rows) in enumerate([(1, [1]), (1, [1]), (2, [1, 2])]):
        plan(tmp_path / "checkpoint", 0, f'{{"in":{{"0":{end}}}}}')
        writer = TableDataSource(given).streamWriter(NUMBERS, False)
        if attempt < 2:
            writer.commit([writer.write(numbers(*rows))], 0)
        else:
            with pytest.raises(BatchMismatch):
                writer.commit([writer.write(numbers(*rows))], 0)
    assert DeltaTable(given["path"]).to_pyarrow_table()["n"].to_pylist() == [1]


def test_batch_options_in_a_session_of_spark_connect_say_what_to_set() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    rows: Any = SimpleNamespace(sparkSession=session)
    with pytest.raises(SparkInternalMissing, match=r"needs a classic session.*ottla\.batch\.digest"):
        batch_options(rows, 7, "copies")


@pytest.mark.parametrize("digests", [(None, None), ("these", None)])
def test_batch_of_foreach_batch_without_a_digest_is_refused_by_a_table_if_it_has_other_rows(
    tmp_path: Path, digests: tuple[str | None, str | None]
) -> None:
    def write(digest: str | None, *rows: int) -> None:
        given = {"path": str(tmp_path / "table"), "ottla.sink.name": "s", "ottla.batch.id": "0"}
        given |= {} if digest is None else {"ottla.batch.digest": digest}
        writer = TableDataSource(given).writer(NUMBERS, False)
        writer.commit([writer.write(numbers(*rows))])

    first, again = digests
    write(first, 1)
    write(first, 1)
    with pytest.raises(BatchMismatch, match="Nothing was written"):
        write(again, 1, 2)
    # A digest says that the batch is the same one, although its rows were computed in another way.
    write("these", 1, 2)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["n"].to_pylist() == [1]
