"""A commit to a table of which the driver does not learn how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ottla.spark.table_commit import Committed, TableBatch, TableCommit
from ottla.spark.table_files import DataFile, DataFileWriter, FileLayout
from ottla.spark.table_location import TableLocation

_ROWS = {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True, "metadata": {}}]}
_ARROW = pa.schema([("v", pa.int64())])


def files_of(location: TableLocation, *values: int) -> list[DataFile]:
    layout = FileLayout(schema=_ARROW, partition_by=(), compression="zstd", target_file_bytes=1 << 20)
    writer = DataFileWriter(location, layout)
    writer.write(pa.RecordBatch.from_pydict({"v": values}, _ARROW))
    return writer.finish()


def test_commit_that_was_decided_and_looks_failed_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = TableLocation.at(str(tmp_path / "table"))
    commit = TableCommit(location, _ROWS)
    write = commit._write

    def write_and_fail(table: DeltaTable, files: Sequence[DataFile], batch: TableBatch | None) -> Committed:
        write(table, files, batch)
        raise CommitFailedError("the log was written, what comes after it failed")

    monkeypatch.setattr(commit, "_write", write_and_fail)
    assert commit.commit(files_of(location, 1, 2), TableBatch("query", 0)).skipped
    assert DeltaTable(location.uri).to_pyarrow_table()["v"].to_pylist() == [1, 2]


def test_steps_of_a_commit_are_told_in_their_order(tmp_path: Path) -> None:
    location, steps = TableLocation.at(str(tmp_path / "table")), list[str]()
    commit = TableCommit(location, _ROWS, checkpoint=steps.append)
    commit.commit(files_of(location, 1), TableBatch("query", 0))
    assert steps == ["start", "prepared", "committed"]
