"""A batch reads the versions of tables that were decided when it was first planned."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import fs
from pyspark.sql.types import StructType

from ottla.spark import batch_manifest, stored_files
from ottla.spark.batch_manifest import (
    DIRECTORY,
    ManifestFiles,
    TableWasReplaced,
    batch_digest,
    last_planned_batch,
    pinned_version,
)
from ottla.spark.stored_files import create_exclusively
from ottla.spark.table_location import TableLocation
from ottla.spark.table_options import TableReadOptions
from ottla.spark.table_source import PinnedPart, TableReader


def add_version(path: Path) -> TableLocation:
    write_deltalake(str(path), pa.table({"n": [1]}), mode="append")
    return TableLocation.at(str(path))


def plan_batch(checkpoint: Path, number: int) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text("v1\n{}\n{}")


def test_all_plans_of_a_batch_read_the_version_of_the_first_plan(tmp_path: Path) -> None:
    rates = add_version(tmp_path / "rates")
    files = ManifestFiles(str(tmp_path / "checkpoint"))
    first = files.decide(7, [rates])
    add_version(tmp_path / "rates")
    assert files.decide(7, [rates]) == first == ManifestFiles(str(tmp_path / "checkpoint")).decide(7, [rates])
    assert first.reads[rates.uri].version == 0
    assert files.decide(8, [rates]).reads[rates.uri].version == 1


def test_a_reader_finds_the_batch_in_the_offset_log_of_spark(tmp_path: Path) -> None:
    checkpoint, rates = tmp_path / "checkpoint", add_version(tmp_path / "rates")
    plan_batch(checkpoint, 9)
    plan_batch(checkpoint, 10)
    (checkpoint / "offsets" / ".10.crc").touch()
    assert last_planned_batch(str(checkpoint)) == 10
    assert pinned_version(str(checkpoint), [rates.uri], rates) == 0
    add_version(tmp_path / "rates")
    assert pinned_version(str(checkpoint), [rates.uri], rates) == 0
    plan_batch(checkpoint, 11)
    assert pinned_version(str(checkpoint), [rates.uri], rates) == 1


def test_a_table_that_was_created_again_is_not_read_at_the_old_version(tmp_path: Path) -> None:
    checkpoint, rates = tmp_path / "checkpoint", add_version(tmp_path / "rates")
    plan_batch(checkpoint, 0)
    pinned_version(str(checkpoint), [rates.uri], rates)
    os.rename(tmp_path / "rates", tmp_path / "old")
    add_version(tmp_path / "rates")
    with pytest.raises(TableWasReplaced, match="created again"):
        pinned_version(str(checkpoint), [rates.uri], rates)


def test_tasks_of_one_plan_read_the_version_of_their_batch(tmp_path: Path) -> None:
    checkpoint, rates = tmp_path / "checkpoint", add_version(tmp_path / "rates")
    add_version(tmp_path / "rates")
    given = {"path": rates.uri, "pinnedByCheckpoint": str(checkpoint), "splitBytes": "100"}
    reader = TableReader(TableReadOptions.parse(given, stream=False), StructType().add("n", "long"))
    partitions = reader.partitions()
    parts = len(partitions)
    assert parts > 1 and [each.value for each in partitions] == [PinnedPart(number, parts) for number in range(parts)]

    def rows() -> int:
        return sum(batch.num_rows for partition in partitions for batch in reader.read(partition))

    for number in range(3):
        plan_batch(checkpoint, number)
        assert rows() == number + 2
        add_version(tmp_path / "rates")
        assert rows() == number + 2


def test_where_files_cannot_be_created_exclusively_one_reader_decides_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    monkeypatch.setattr(batch_manifest, "is_local", lambda path: False)
    monkeypatch.setattr(stored_files, "open_filesystem", lambda path: (store, path))
    (tmp_path / "checkpoint" / DIRECTORY).mkdir(parents=True)
    files, rates = ManifestFiles(str(tmp_path / "checkpoint")), add_version(tmp_path / "rates")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(files.await_decision, 3, [rates])
        decided = files.decide(3, [rates])
        assert waiting.result(60) == decided


def test_of_many_processes_that_create_a_file_one_wins(tmp_path: Path) -> None:
    path, won = str(tmp_path / DIRECTORY / "3.json"), []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if create_exclusively(path, f"content {number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert Path(path).read_text() == f"content {winner}"
    assert os.listdir(tmp_path / DIRECTORY) == ["3.json"]


def test_old_manifests_are_deleted(tmp_path: Path) -> None:
    files, rates = ManifestFiles(str(tmp_path)), add_version(tmp_path / "rates")
    for number in (1, 2, 119, 120):
        files.decide(number, [rates])
    assert sorted(os.listdir(tmp_path / DIRECTORY)) == ["119.json", "120.json"]


def test_digest_depends_on_the_versions_and_on_nothing_that_varies(tmp_path: Path) -> None:
    a, b = add_version(tmp_path / "a"), add_version(tmp_path / "b")
    one = ManifestFiles(str(tmp_path / "1")).decide(1, [a, b])
    same = ManifestFiles(str(tmp_path / "2")).decide(1, [b, a])
    add_version(tmp_path / "b")
    other = ManifestFiles(str(tmp_path / "3")).decide(1, [a, b])
    assert batch_digest("offsets", one) == batch_digest("offsets", same)
    assert len({batch_digest("offsets", one), batch_digest("offsets", other), batch_digest("others", one)}) == 3
