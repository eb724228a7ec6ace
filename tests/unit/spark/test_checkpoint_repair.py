"""Repair of checkpoints without Spark and without a broker: the decision for each partition, and the written files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.types import TopicPartition
from ottla.spark.checkpoint_repair import (
    LogRange,
    Position,
    RepairRefused,
    apply_repair,
    compare,
    read_checkpoint,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_METADATA = '{"batchWatermarkMs":7,"batchTimestampMs":8,"conf":{"spark.sql.shuffle.partitions":"2"}}'
_TABLE = '{"table":"x","version":3,"index":0,"snapshot":false}'


def position(start: int | None, log: LogRange | None, planned_end: int | None = None) -> Position:
    return Position(source=0, topic_partition=T0, start=start, planned_end=planned_end, log=log)


@pytest.mark.parametrize(
    ("found", "state", "earliest", "latest"),
    [
        # state, then new offset, skipped and read again for each target
        (position(5, LogRange(0, 9)), "ok", (5, 0, 0), (5, 0, 0)),
        (position(9, LogRange(0, 9)), "ok", (9, 0, 0), (9, 0, 0)),
        (position(5, LogRange(5, 9)), "ok", (5, 0, 0), (5, 0, 0)),
        (position(2, LogRange(5, 9)), "deleted", (5, 3, 0), (5, 3, 0)),
        (position(20, LogRange(5, 9)), "truncated", (5, 0, 4), (9, 4, 0)),
        (position(20, LogRange(0, 0)), "truncated", (0, 0, 0), (0, 0, 0)),
        (position(5, None), "absent", (5, 0, 0), (5, 0, 0)),
        (position(5, LogRange(0, 9), 9), "ok", (5, 0, 0), (5, 0, 0)),
        (position(5, LogRange(0, 9), 20), "unreadable batch", (5, 0, 0), (5, 0, 0)),
        (position(5, LogRange(0, 9), 3), "unreadable batch", (5, 0, 0), (5, 0, 0)),
        (position(None, LogRange(0, 9), 20), "unreadable batch", (None, 0, 0), (None, 0, 0)),
    ],
)
def test_decision_for_a_partition(found: Position, state: str, earliest: object, latest: object) -> None:
    assert found.state == state
    assert (found.new_start("earliest"), found.skipped("earliest"), found.read_again("earliest")) == earliest
    assert (found.new_start("latest"), found.skipped("latest"), found.read_again("latest")) == latest


def test_truncated_partition_has_no_new_offset_before_a_target_is_chosen() -> None:
    found = position(20, LogRange(5, 9))
    assert (found.new_start(None), found.skipped(None), found.read_again(None)) == (None, None, None)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.sampled_from(["earliest", "latest"]))
def test_repaired_offset_is_always_one_that_the_log_has(start: int, log_start: int, size: int, target: str) -> None:
    log = LogRange(log_start, log_start + size)
    new = position(start, log).new_start(target)  # type: ignore[arg-type]
    assert new is not None and log.start <= new <= log.end
    assert position(new, log).state == "ok"


def write_checkpoint(directory: Path, *batches: str, completed: int) -> Path:
    """Write a checkpoint as Spark does: offsets of these batches, of which so many were completed."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir()
    for number, sources in enumerate(batches):
        (directory / "offsets" / str(number)).write_text(f"v1\n{_METADATA}\n{sources}")
        (directory / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < completed:
            (directory / "commits" / str(number)).write_text("v1\n{}")
    (directory / "offsets" / ".2.tmp").write_text("left over")
    return directory


def test_truncated_partition_of_a_completed_batch_gets_its_new_offset_and_nothing_else_changes(tmp_path: Path) -> None:
    last = f'{_TABLE}\n{{"t":{{"0":50,"1":7}}}}\n-'
    checkpoint = write_checkpoint(tmp_path, '{"t":{"0":1}}', last, completed=2)
    state = read_checkpoint(str(checkpoint))
    positions = compare(state, {T0: LogRange(3, 10), T1: LogRange(0, 7)})
    assert [(one.source, one.topic_partition, one.state) for one in positions] == [(1, T0, "truncated"), (1, T1, "ok")]
    backup = apply_repair(state, positions, "latest")
    repaired = (checkpoint / "offsets" / "1").read_text()
    assert repaired == f'v1\n{_METADATA}\n{_TABLE}\n{{"t":{{"0":10,"1":7}}}}\n-'
    assert backup is not None and (Path(backup) / "offsets-1").read_text() == f"v1\n{_METADATA}\n{last}"
    # Spark verifies a file against its checksum, if there is one.
    names = sorted(path.name for path in (checkpoint / "offsets").iterdir())
    assert names == [".0.crc", ".2.tmp", "0", "1"]
    assert (checkpoint / "offsets" / "0").read_text().endswith('{"t":{"0":1}}')
    assert compare(read_checkpoint(str(checkpoint)), {T0: LogRange(3, 10)})[0].start == 10


def test_planned_batch_is_removed_so_that_spark_plans_it_again(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, '{"t":{"0":50}}', '{"t":{"0":10}}', completed=1)
    state = read_checkpoint(str(checkpoint))
    assert state.completed is not None and state.planned is not None
    backup = apply_repair(state, compare(state, {T0: LogRange(0, 10)}), "earliest")
    assert (checkpoint / "offsets" / "0").read_text() == f'v1\n{_METADATA}\n{{"t":{{"0":0}}}}'
    assert not (checkpoint / "offsets" / "1").exists()
    assert backup is not None and sorted(path.name for path in Path(backup).iterdir()) == ["offsets-0", "offsets-1"]
    assert read_checkpoint(str(checkpoint)).planned is None


def test_state_that_a_removed_batch_has_written_is_deleted(tmp_path: Path) -> None:
    """Spark leaves a state file that exists as it is, so the batch with other offsets would keep the old state."""
    write_checkpoint(tmp_path, '{"t":{"0":5}}', '{"t":{"0":50}}', completed=1)
    state = tmp_path / "state" / "0" / "1"
    state.mkdir(parents=True)
    for name in ("1.changelog", "2.changelog", ".2.changelog.crc", "2.zip"):
        (state / name).write_text("state")
    found = read_checkpoint(str(tmp_path))
    assert apply_repair(found, compare(found, {T0: LogRange(0, 9)}), None) is not None
    assert [path.name for path in state.iterdir()] == ["1.changelog"]


def test_unreadable_first_batch_is_removed_and_the_query_starts_again(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, '{"t":{"0":50}}', completed=0)
    state = read_checkpoint(str(checkpoint))
    apply_repair(state, compare(state, {T0: LogRange(0, 10)}), None)
    assert not (checkpoint / "offsets" / "0").exists()


@pytest.mark.parametrize("log", [{T0: LogRange(0, 60)}, {}], ids=["good", "absent"])
def test_checkpoint_without_wrong_offsets_is_not_touched(tmp_path: Path, log: dict[TopicPartition, LogRange]) -> None:
    checkpoint = write_checkpoint(tmp_path, '{"t":{"0":50}}', completed=1)
    state = read_checkpoint(str(checkpoint))
    assert apply_repair(state, compare(state, log), "earliest") is None
    assert (checkpoint / "offsets" / ".0.crc").exists() and not (checkpoint / "ottla-repair").exists()


def test_repair_is_refused_without_a_target_and_after_a_change(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, '{"t":{"0":50}}', completed=1)
    state = read_checkpoint(str(checkpoint))
    positions = compare(state, {T0: LogRange(0, 10)})
    with pytest.raises(RepairRefused, match="choose earliest or latest"):
        apply_repair(state, positions, None)
    (checkpoint / "offsets" / "1").write_text(f'v1\n{_METADATA}\n{{"t":{{"0":60}}}}')
    with pytest.raises(RepairRefused, match="has changed: stop the query"):
        apply_repair(state, positions, "latest")
    assert not (checkpoint / "ottla-repair").exists()


@pytest.mark.parametrize(
    ("batches", "completed", "words"),
    [
        ((), 0, "has no offsets of a batch"),
        (("{}", "{}", "{}"), 1, "batch 1 was not completed, which Spark does not do"),
    ],
)
def test_directory_that_is_no_sound_checkpoint_is_refused(
    tmp_path: Path, batches: tuple[str, ...], completed: int, words: str
) -> None:
    with pytest.raises(RepairRefused, match=words):
        read_checkpoint(str(write_checkpoint(tmp_path, *batches, completed=completed)))


@pytest.mark.parametrize(("content", "words"), [("v2\n{}\n{}", "version 'v2'"), ("v1\n{}", "is not complete")])
def test_offset_log_of_another_version_is_refused(tmp_path: Path, content: str, words: str) -> None:
    checkpoint = write_checkpoint(tmp_path, "{}", completed=1)
    (checkpoint / "offsets" / "0").write_text(content)
    with pytest.raises(RepairRefused, match=words):
        read_checkpoint(str(checkpoint))
