"""Records that were stored and are missing at the start: reported, and their offsets never used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NAME,
    NOW,
    batch,
    clean_stop,
    contents,
    new_disk,
    offsets,
    open_at,
    topic,
    write,
)
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log.checkpoints import CleanStop
from ottla.log.dir_checkpoints import HIGH_WATERMARKS
from ottla.log.log import Log
from ottla.model.batch import read_header
from ottla.model.records import batch_without_records, iterate_records
from ottla.testing.disk import MemoryDisk

SETTINGS = topic(segment_bytes=600, index_interval_bytes=100)
Change = Callable[[bytes], bytes]


def sealed_log(disk: MemoryDisk) -> tuple[Log, CleanStop]:
    """Twenty batches of two records in several segments, stopped cleanly."""
    log = open_at(disk, SETTINGS)
    write(log, *(batch(2, size=40, timestamp=NOW + number) for number in range(20)))
    return log, clean_stop(log)


def assert_no_offset_is_used_twice(log: Log, before: list[bytes]) -> list[int]:
    """Return the offsets that are missing. Every batch that is left is the one that was there before."""
    known = {read_header(data).base_offset: data for data in before}
    after = contents(log)
    for data in after:
        header = read_header(data)
        if header.record_count:
            assert known[header.base_offset] == data
    spans = [(read_header(data).base_offset, read_header(data).next_offset) for data in after]
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]], "offsets are dense"
    assert spans[0][0] == 0 and spans[-1][1] == 40 == log.log_end_offset
    assert write(log, batch()) == [40]
    left = {record.offset for data in after for record in iterate_records(data)}
    return sorted(set(range(40)) - left)


@pytest.mark.parametrize("clean", [True, False], ids=["clean-stop", "kill"])
def test_log_of_several_replicas_ends_at_the_first_lost_record(clean: bool) -> None:
    original = new_disk()
    log, note = sealed_log(original)
    before = contents(log)
    for segment in log.segments:
        path = segment.path(".log")
        for end in range(0, original.file_size(path) or 0, 47):
            disk = original.crash(Random(0), keep="process")
            disk.damage(path, lambda data, end=end: data[:end])
            opened = open_at(disk, SETTINGS, clean=note if clean else None, recovery_point=40, replicated=True)
            left = contents(opened)
            assert left == before[: len(left)]
            assert opened.log_end_offset == 2 * len(left) < 40
            assert opened.lost_synced
            assert segment.base_offset <= opened.log_end_offset
            again = open_at(disk, SETTINGS, clean=clean_stop(opened), replicated=True)
            assert contents(again) == left
            assert not again.lost_synced


def test_log_of_several_replicas_that_lost_unsynced_records_ends_before_the_high_watermark() -> None:
    disk = new_disk()
    write(open_at(disk, SETTINGS), batch(2), batch(2))
    opened = open_at(disk, SETTINGS, recovery_point=2, high_watermark=30, replicated=True)
    assert opened.log_end_offset == 4
    assert not opened.lost_synced


@pytest.mark.parametrize("clean", [True, False], ids=["clean-stop", "kill"])
def test_segment_that_was_cut_anywhere_loses_only_what_was_cut(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    original = new_disk()
    log, note = sealed_log(original)
    before = contents(log)
    bases = [segment.base_offset for segment in log.segments]
    for number, base in enumerate(bases):
        path = f"{FOLDER}/{base:020d}.log"
        for end in range(0, original.file_size(path) or 0, 23):
            disk = original.crash(Random(0), keep="process")
            disk.damage(path, lambda data, end=end: data[:end])
            caplog.clear()
            opened = open_at(disk, SETTINGS, clean=note if clean else None, recovery_point=40)
            missing = assert_no_offset_is_used_twice(opened, before)
            following = [*bases, 40][number + 1]
            assert missing and missing[-1] == following - 1 and missing[0] >= base
            assert f"first_missing_offset={missing[0]} next_offset={following}" in caplog.text
            # What was filled stays filled, and nobody is told of it again.
            caplog.clear()
            again = open_at(disk, SETTINGS, clean=clean_stop(opened))
            assert contents(again) == contents(opened)
            crashed = open_at(disk.crash(Random(1), keep="power"), SETTINGS, recovery_point=again.recovery_point)
            assert contents(crashed) == contents(opened)
            assert "records are missing" not in caplog.text


def test_times_and_positions_are_found_behind_a_gap() -> None:
    disk = new_disk()
    log, note = sealed_log(disk)
    base = log.segments[1].base_offset
    disk.damage(f"{FOLDER}/{base:020d}.log", lambda data: data[:150])
    opened = open_at(disk, SETTINGS, clean=note)
    for number in range(20):
        found = opened.offset_for_timestamp(NOW + number, opened.log_end_offset)
        assert found is not None and found[0] >= 2 * number
    gap = next(read_header(data) for data in contents(opened) if not read_header(data).record_count)
    region = opened.read(gap.base_offset, 10, opened.log_end_offset, at_least_one=True)
    assert region is not None and read_header(region.read()).next_offset == gap.next_offset


def test_file_that_was_cut_below_the_noted_high_watermark_keeps_its_end(tmp_path: Path) -> None:
    """After a kill the active segment is read. Its checksums cannot tell where it ended, the high watermark can."""
    disk = disk_with(tmp_path)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    fixture.store.write_checkpoints({NAME: 5}, sync=False)
    fixture.abandon()
    disk.damage(f"{tmp_path}/orders-0/{0:020d}.log", lambda data: data[:-1])
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert offsets(fixture.log()) == [(0, 2), (2, 5)]
    assert contents(fixture.log())[1] == batch_without_records(2, 5, 0)
    fixture.abandon()


def test_high_watermark_of_a_deleted_topic_does_not_count_for_the_next_of_its_name(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    fixture.store.write_checkpoints({NAME: 5}, sync=False)
    fixture.store.delete(NAME, "1")
    fixture.threads.run()
    again = spec(topic_id=bytes(16))
    fixture.store.create(again)
    write(fixture.log(), batch())
    fixture.abandon()
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(again)
    assert offsets(fixture.log()) == [(0, 1)]
    assert b"orders 0 5" not in (disk.read_file(f"{tmp_path}/{HIGH_WATERMARKS}") or b"")
    fixture.abandon()


def test_folder_that_is_lost_is_noticed_and_its_offsets_are_not_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_with(tmp_path)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    fixture.stop()
    disk.remove_tree(f"{tmp_path}/orders-0")
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert fixture.log().log_start_offset == fixture.log().log_end_offset == 5
    assert "first_missing_offset=0 next_offset=5" in caplog.text
    assert write(fixture.log(), batch()) == [5]
    fixture.stop()


def test_implausible_offset_in_a_checkpoint_is_reported_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    log, _ = sealed_log(disk)
    opened = open_at(disk, SETTINGS, recovery_point=1 << 50)
    assert contents(opened) == contents(log)
    assert "not plausible" in caplog.text


def test_sealed_segments_of_a_compacted_topic_may_end_early() -> None:
    disk = new_disk()
    log, _ = sealed_log(disk)
    base = log.segments[1].base_offset
    second = read_header(disk.read_file(f"{FOLDER}/{base:020d}.log") or b"").size_bytes
    disk.damage(f"{FOLDER}/{base:020d}.log", lambda data: data[:second])
    opened = open_at(disk, topic(segment_bytes=600, cleanup_policy="compact"), recovery_point=40)
    assert all(read_header(data).record_count for data in contents(opened))


COMPACTED = topic(segment_bytes=600, index_interval_bytes=100, cleanup_policy="compact")


@pytest.mark.parametrize("recovery_point", [0, 10, 40])
def test_compacted_log_of_several_replicas_ends_at_the_first_lost_record(recovery_point: int) -> None:
    """A power failure lost a part of a segment that was not synced, and kept a later one."""
    original = new_disk()
    log, _ = sealed_log(original)
    before = contents(log)
    for segment in log.segments:
        for end in range(0, original.file_size(segment.path(".log")) or 0, 47):
            disk = original.crash(Random(0), keep="process")
            disk.damage(segment.path(".log"), lambda data, end=end: data[:end])
            opened = open_at(disk, COMPACTED, recovery_point=recovery_point, replicated=True)
            left = contents(opened)
            assert left == before[: len(left)]
            assert segment.base_offset <= opened.log_end_offset == 2 * len(left) < 40


@pytest.mark.parametrize("keep", [0, 1])
def test_next_recovery_of_a_compacted_log_finds_the_same_records(keep: int) -> None:
    """The first recovery has no recovery point and accepts gaps, the second one has a recovery point before the gap."""
    disk = new_disk()
    log, _ = sealed_log(disk)
    path = log.segments[1].path(".log")
    size_bytes = read_header(disk.read_file(path) or b"").size_bytes
    disk.damage(path, lambda data: data[: keep * size_bytes])
    first = open_at(disk, COMPACTED)
    left = contents(first)
    assert first.log_end_offset == (40 if keep else log.segments[1].base_offset), "no compaction leaves an empty file"
    again = open_at(
        disk, COMPACTED, recovery_point=log.segments[1].base_offset, cleaner_offset=first.first_dirty_offset
    )  # fmt: skip
    assert contents(again) == left
