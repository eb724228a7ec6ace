"""Staged batches: in the message while they are few, in a file beyond that, swept when nobody needs them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.spark import staging
from ottla.spark.staging import (
    Staged,
    StagingError,
    StagingWriter,
    delete_staged,
    inline_share,
    read_batches,
    staging_file,
    sweep,
)

PLACES = (TopicPartition("a", 0), TopicPartition("b", 3), TopicPartition("a", 0))


def _batch(number: int) -> bytes:
    return build_batch([Record(timestamp=number, key=b"k", value=b"value %d" % number)])


def _stage(file: str | None, *, inline_bytes_max: int) -> Staged:
    writer = StagingWriter(file, inline_bytes_max=inline_bytes_max)
    for number, partition in enumerate(PLACES):
        writer.add(partition, _batch(number), 1)
    return writer.finish()


def _read(staged: Staged) -> list[tuple[TopicPartition, bytes]]:
    return [(partition, bytes(batch)) for partition, batch in read_batches(staged)]


def test_few_bytes_stay_in_the_message(tmp_path: Path) -> None:
    staged = _stage(f"{tmp_path}/x/0-a.batches", inline_bytes_max=1000)
    assert staged.file is None
    assert _read(staged) == [(partition, _batch(number)) for number, partition in enumerate(PLACES)]
    assert not list(tmp_path.iterdir())


def test_more_bytes_go_to_the_file_in_their_order(tmp_path: Path) -> None:
    for inline_bytes_max in (0, len(_batch(0)), 2 * len(_batch(0))):
        staged = _stage(f"{tmp_path}/{inline_bytes_max}/0-a.batches", inline_bytes_max=inline_bytes_max)
        assert staged.file is not None
        assert staged.data == b""
        assert _read(staged) == [(partition, _batch(number)) for number, partition in enumerate(PLACES)]


@pytest.mark.parametrize(("tasks", "bytes_max"), [(1, 4 << 20), (8, 32 << 20), (256, 150 << 20), (100_000, 350 << 20)])
@pytest.mark.parametrize("inline_bytes_max", [4 << 20, 1 << 30])
def test_messages_of_all_tasks_together_stay_far_below_what_spark_allows(
    tasks: int, bytes_max: int, inline_bytes_max: int
) -> None:
    total = sum(inline_share(number, inline_bytes_max) for number in range(tasks))
    limit = bytes_max if inline_bytes_max == 4 << 20 else 400 << 20
    assert total <= limit < 1 << 30
    assert inline_share(0, inline_bytes_max) == min(inline_bytes_max, 32 << 20)


def test_message_travels_between_processes(tmp_path: Path) -> None:
    staged = _stage(f"{tmp_path}/0-a.batches", inline_bytes_max=0)
    assert _read(pickle.loads(pickle.dumps(staged))) == _read(staged)  # noqa: S301 - our own bytes
    assert staged.rows == 3
    assert staged.size_bytes == 3 * len(_batch(0))


def test_task_that_fails_takes_its_file_with_it(tmp_path: Path) -> None:
    writer = StagingWriter(f"{tmp_path}/0-a.batches", inline_bytes_max=0)
    writer.add(PLACES[0], _batch(0), 1)
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_too_much_for_a_message_without_a_file_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(StagingError, match="stagingDir"):
        _stage(None, inline_bytes_max=10)


def test_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    staged = _stage(f"{tmp_path}/0-a.batches", inline_bytes_max=0)
    (tmp_path / "0-a.batches").write_bytes((tmp_path / "0-a.batches").read_bytes()[:-1])
    with pytest.raises(StagingError, match="ends in the middle"):
        _read(staged)


def test_files_are_deleted_once_and_asked_for_twice(tmp_path: Path) -> None:
    staged = _stage(f"{tmp_path}/0-a.batches", inline_bytes_max=0)
    delete_staged([staged, staged, Staged()])
    assert not list(tmp_path.iterdir())


def test_sweep_takes_the_batches_up_to_a_number_of_one_owner(tmp_path: Path) -> None:
    directory = str(tmp_path)
    for owner, number in [("q/1", 8), ("q/1", 9), ("q/1", 10), ("other", 1)]:
        _stage(staging_file(directory, owner, number), inline_bytes_max=0)
    (tmp_path / "q%2F1" / "notes.txt").write_text("not ours")
    assert sweep(directory, "q/1", 9) == 2
    left = sorted(path.name.partition("-")[0] for path in tmp_path.rglob("*.*"))
    assert left == ["1", "10", "notes.txt"]


def test_sweep_of_nothing_is_no_error(tmp_path: Path) -> None:
    assert sweep(f"{tmp_path}/nowhere", "q", 1) == 0
