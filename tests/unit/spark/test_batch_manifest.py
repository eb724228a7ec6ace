"""A batch reads the versions of tables that were decided when it was first planned."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ottla.spark.batch_manifest import (
    DIRECTORY,
    ManifestFiles,
    TableWasReplaced,
    batch_digest,
    create_exclusively,
    last_planned_batch,
    pinned_version,
)
from ottla.spark.table_location import TableLocation


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
