"""A checkpoint on a local disk is synced before it is relied on, and what a power failure cut off is removed."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.spark import checkpoint_files
from ottla.spark.checkpoint_files import CheckpointFiles, synced_checkpoint

_OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":5}}\n-'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files and folders that were synced."""
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: names.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return names


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_snapshot(path: Path, sizes: dict[str, int], version: str = "v1") -> Path:
    """Write a snapshot of RocksDB as Spark does: a zip file with a list of SST files, and the files beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [
        {"localFileName": f"{name.partition('-')[0]}.sst", "dfsSstFileName": name, "sizeBytes": size}
        for name, size in sizes.items()
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("CURRENT", "MANIFEST-000005")
        archive.writestr("metadata", f"{version}\n" + json.dumps({"sstFiles": listed, "numKeys": 22}))
    for name, size in sizes.items():
        write(path.parent / "SSTs" / name, "s" * size)
    return path


def test_first_plan_syncs_everything_and_later_plans_their_offsets(tmp_path: Path, synced: list[str]) -> None:
    files = CheckpointFiles(str(tmp_path))
    metadata, first = write(tmp_path / "metadata", "{}"), write(tmp_path / "offsets" / "0", _OFFSETS)
    files.sync_plan(0)
    assert {str(metadata), str(first), str(tmp_path), str(tmp_path / "offsets")} <= set(synced)
    second = write(tmp_path / "offsets" / "1", _OFFSETS)
    synced.clear()
    files.sync_plan(1)
    assert synced == [str(second), str(second.parent)]


def test_sync_finds_new_files_at_any_depth_and_leaves_old_ones_alone(tmp_path: Path, synced: list[str]) -> None:
    files = CheckpointFiles(str(tmp_path))
    old = write(tmp_path / "state" / "0" / "1" / "1.changelog", "old")
    os.utime(old, ns=(1, 1))
    files.sync()
    write(tmp_path / "ottla-staging" / "q" / "1.batches", "staged rows need no sync")
    new = write(tmp_path / "state" / "0" / "1" / "2.changelog", "new")
    synced.clear()
    files.sync()
    assert str(new) in synced and str(new.parent) in synced
    assert str(old) not in synced
    assert not [name for name in synced if "ottla-staging" in name]


def test_sink_of_a_stream_syncs_the_plan_before_it_writes_and_the_rest_afterwards(
    tmp_path: Path, synced: list[str]
) -> None:
    for number in range(4):
        plan = write(tmp_path / "offsets" / str(number), "v1\n{}\n{}")
        if number == 2:
            continue  # a batch without rows, which a sink does not write
        with synced_checkpoint(str(tmp_path), number):
            assert str(plan) in synced
            state = write(tmp_path / "state" / "0" / "0" / f"{number}.delta", "x")
        assert str(state) in synced
    assert str(tmp_path / "offsets" / "2") in synced


def test_file_that_is_written_while_its_neighbours_are_listed_is_synced_next(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Spark uploads snapshots during a sync: the listed folder first, then one that is listed later."""
    for number in (0, 1):
        write(tmp_path / "state" / "0" / str(number) / "1.changelog", "changes")
    files = CheckpointFiles(str(tmp_path))
    listed: list[str] = []
    late: list[Path] = []
    scan = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if os.path.basename(os.path.dirname(path)) == "0":
            listed.append(path)
        if len(listed) == 2:
            late.append(write(Path(listed[0]) / "2.zip", "snapshot"))
            # The clock of file systems has steps of milliseconds: the second folder is changed some steps later.
            os.utime(path, ns=(0, late[0].stat().st_mtime_ns + 15_000_000))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    files.sync()
    monkeypatch.setattr(os, "scandir", scan)
    assert str(late[0]) not in synced
    files.sync()
    assert str(late[0]) in synced


@pytest.mark.parametrize("content", ["", "v1", "v1\n", _OFFSETS[:-20], "\0" * 40, "not a log"])
def test_incomplete_end_of_a_log_is_deleted_with_its_checksum(tmp_path: Path, content: str) -> None:
    write(tmp_path / "metadata", '{"id":"q"}')
    kept = [write(tmp_path / "offsets" / str(n), _OFFSETS) for n in (8, 9)] + [
        write(tmp_path / "commits" / "8", _COMMIT)
    ]
    cut = write(tmp_path / "offsets" / "10", content)
    checksum = write(tmp_path / "offsets" / ".10.crc", "")
    assert CheckpointFiles(str(tmp_path)).repair() == [str(cut)]
    assert not cut.exists() and not checksum.exists()
    assert all(path.exists() for path in kept)


def test_complete_checkpoint_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "metadata", '{"id":"q"}')
    for log, text in (("offsets", _OFFSETS), ("commits", _COMMIT)):
        write(tmp_path / log / "0", text)
    write_snapshot(tmp_path / "state" / "0" / "0" / "1.zip", {"000008-a1.sst": 100, "000009-b2.sst": 0})
    assert CheckpointFiles(str(tmp_path)).repair() == []
    assert CheckpointFiles(str(tmp_path / "none")).repair() == []


def test_id_of_a_query_is_deleted_only_if_no_batch_was_planned_with_it(tmp_path: Path) -> None:
    metadata = write(tmp_path / "metadata", "")
    write(tmp_path / "offsets" / "0", _OFFSETS)
    assert CheckpointFiles(str(tmp_path)).repair() == []
    (tmp_path / "offsets" / "0").unlink()
    assert CheckpointFiles(str(tmp_path)).repair() == [str(metadata)]


def test_cut_snapshot_of_the_state_is_deleted(tmp_path: Path) -> None:
    write(tmp_path / "offsets" / "8", _OFFSETS)
    snapshot = write(tmp_path / "state" / "0" / "0" / "7.zip", "PK cut")
    write(tmp_path / "state" / "0" / "0" / "8.changelog", "")
    assert CheckpointFiles(str(tmp_path)).repair() == [str(snapshot)]


@pytest.mark.parametrize("content", [None, "", "s" * 99, "s" * 101], ids=["missing", "empty", "shorter", "longer"])
def test_snapshot_with_an_sst_file_of_another_size_is_deleted(tmp_path: Path, content: str | None) -> None:
    write(tmp_path / "offsets" / "8", _OFFSETS)
    state = tmp_path / "state" / "0" / "0"
    older = write_snapshot(state / "4.zip", {"000008-a1.sst": 100})
    newer = write_snapshot(state / "7_c3d4-e5.zip", {"000008-a1.sst": 100, "000009-b2.sst": 100})
    changelog = write(state / "8.changelog", "changes")
    sst = state / "SSTs" / "000009-b2.sst"
    sst.unlink()
    if content is not None:
        write(sst, content)
    assert CheckpointFiles(str(tmp_path)).repair() == [str(newer)]
    assert older.exists() and changelog.exists()


def test_snapshot_with_a_missing_log_file_is_deleted(tmp_path: Path) -> None:
    write(tmp_path / "offsets" / "8", _OFFSETS)
    snapshot = tmp_path / "state" / "0" / "0" / "7.zip"
    snapshot.parent.mkdir(parents=True)
    listed = {"sstFiles": [], "logFiles": [{"dfsLogFileName": "000012-a1.log", "sizeBytes": 3}]}
    with zipfile.ZipFile(snapshot, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps(listed))
    write(snapshot.parent / "logs" / "000012-a1.log", "log")
    assert CheckpointFiles(str(tmp_path)).repair() == []
    (snapshot.parent / "logs" / "000012-a1.log").unlink()
    assert CheckpointFiles(str(tmp_path)).repair() == [str(snapshot)]


def test_snapshot_of_an_unknown_format_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "offsets" / "8", _OFFSETS)
    state = tmp_path / "state" / "0" / "0"
    write_snapshot(state / "7.zip", {"000008-a1.sst": 100}, version="v2")
    (state / "SSTs" / "000008-a1.sst").unlink()
    with zipfile.ZipFile(state / "8.zip", "w") as archive:
        archive.writestr("file", "content")
    assert CheckpointFiles(str(tmp_path)).repair() == []


@pytest.mark.parametrize("cut", ["list", "directory"])
def test_snapshot_whose_bytes_are_zeros_is_deleted(tmp_path: Path, cut: str) -> None:
    write(tmp_path / "offsets" / "8", _OFFSETS)
    snapshot = write_snapshot(tmp_path / "state" / "0" / "0" / "7.zip", {"000008-a1.sst": 100})
    content = snapshot.read_bytes()
    directory = content.index(b"PK\x01\x02")
    kept = slice(directory, None) if cut == "list" else slice(0, directory)
    zeros = bytearray(len(content))
    zeros[kept] = content[kept]
    snapshot.write_bytes(zeros)
    assert CheckpointFiles(str(tmp_path)).repair() == [str(snapshot)]


@pytest.mark.parametrize(("is_complete", "kept"), [(False, 5), (True, 6)])
def test_state_of_a_batch_that_is_repeated_is_deleted(tmp_path: Path, is_complete: bool, kept: int) -> None:
    """Spark leaves a file that exists as it is, also an empty one, and a later run cannot read it."""
    write(tmp_path / "metadata", '{"id":"q"}')
    for number in range(6):
        write(tmp_path / "offsets" / str(number), _OFFSETS)
        if number < 5 or is_complete:
            write(tmp_path / "commits" / str(number), _COMMIT)
    state = tmp_path / "state" / "0" / "1"
    for version in range(1, 8):
        write(state / f"{version}.changelog", "" if version > kept else "changes")
        write(state / f".{version}.changelog.crc", "crc")
    write(state / "7_a1b2-c3.changelog", "")
    write(state / "_metadata" / "schema", "{}")
    CheckpointFiles(str(tmp_path)).repair()
    names = {path.name for path in state.iterdir()} - {"_metadata"}
    expected = range(1, kept + 1)
    assert names == {f"{n}.changelog" for n in expected} | {f".{n}.changelog.crc" for n in expected}


def test_checkpoint_elsewhere_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "open_filesystem", lambda uri: (object(), "bucket/checkpoint"))
    files = CheckpointFiles("s3://bucket/checkpoint")
    files.sync_plan(0)
    files.sync()
    assert files.repair() == []
