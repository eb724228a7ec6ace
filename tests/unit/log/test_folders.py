"""Folders of partitions: the topic id in them, what a power failure leaves of it, and which folders a start uses."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_fixtures import NAME, append, batch, offsets, sync, write
from tests.unit.log.store_fixtures import TOPIC_ID, StoreFixture, disk_with, spec

from ottla.model.types import TopicPartition, topic_id_text
from ottla.testing.disk import DiskCut, MemoryDisk

OTHER_ID = bytes(range(1, 17))
DAMAGED = [None, b"", bytes(30), b"version: 0\ntopic_id: AAEC"]
CONTENT = f"version: 0\ntopic_id: {topic_id_text(TOPIC_ID)}".encode()


@pytest.fixture
def disk(tmp_path: Path) -> MemoryDisk:
    return disk_with(tmp_path)


def folders(disk: MemoryDisk, path: Path) -> set[str]:
    return {name for name in disk.listdir(str(path)) if disk.file_size(f"{path}/{name}") is None}


def metadata(disk: MemoryDisk, path: Path) -> bytes | None:
    return disk.read_file(f"{path}/orders-0/partition.metadata")


def stopped(disk: MemoryDisk, path: Path, content: bytes | None, *, clean: bool) -> MemoryDisk:
    """The disk of a broker that wrote five records, with this content of ``partition.metadata``."""
    fixture = StoreFixture(disk, path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    if clean:
        fixture.stop()
    else:
        fixture.abandon()
    disk.remove(f"{path}/orders-0/partition.metadata")
    if content is not None:
        disk.write_file(f"{path}/orders-0/partition.metadata", content, sync=True)
    return disk.crash(Random(0), "process")


def test_first_sync_of_a_log_makes_its_topic_id_durable(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(replicated=True))
    write(fixture.log(), batch(2), batch(3))
    sync(fixture.log())
    fixture.abandon()
    for seed in range(20):
        again = StoreFixture(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec(replicated=True))
        assert offsets(again.log()) == [(0, 2), (2, 5)]
        again.abandon()


def test_log_that_recovery_opened_has_a_durable_topic_id(disk: MemoryDisk, tmp_path: Path) -> None:
    """A killed process synced nothing. The next one reports the recovered batches as synced."""
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(replicated=True))
    write(fixture.log(), batch(2), batch(3))
    fixture.abandon()
    disk = disk.crash(Random(0), "process")
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(replicated=True))
    assert fixture.log().synced_end_offset == 5
    fixture.abandon()
    for seed in range(20):
        assert metadata(disk.crash(Random(seed), "power"), tmp_path) == CONTENT


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("clean", [False, True])
def test_replicated_folder_without_a_complete_topic_id_is_set_aside(
    disk: MemoryDisk, tmp_path: Path, damage: bytes | None, clean: bool
) -> None:
    disk = stopped(disk, tmp_path, damage, clean=clean)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(replicated=True))
    assert fixture.log().log_end_offset == 0
    assert fixture.log().make_folder is not None, "the log was created, not opened"
    assert folders(disk, tmp_path) == {"orders-0.unidentified-stray"}
    assert write(fixture.log(), batch(4)) == [0]
    assert metadata(disk, tmp_path) == CONTENT
    sync(fixture.log())
    fixture.abandon()
    for seed in range(20):
        again = StoreFixture(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec(replicated=True))
        assert offsets(again.log()) == [(0, 4)]
        again.abandon()


def test_second_folder_that_is_set_aside_gets_another_name(disk: MemoryDisk, tmp_path: Path) -> None:
    for _ in range(2):
        disk = stopped(disk, tmp_path, b"", clean=False)
        fixture = StoreFixture(disk, tmp_path)
        fixture.start(spec(replicated=True))
        fixture.abandon()
    assert folders(disk, tmp_path) == {"orders-0.unidentified-stray", "orders-0.unidentified-2-stray"}


def test_replicated_log_whose_topic_id_cannot_be_read_is_offline(disk: MemoryDisk, tmp_path: Path) -> None:
    """A wrong owner of all files must not set aside all replicas of a partition."""
    disk = stopped(disk, tmp_path, CONTENT, clean=False)
    disk.fail("read_file", errno.EACCES, path="partition.metadata", times=None)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(replicated=True))
    assert "Permission denied" in (fixture.log().failure or "")
    assert folders(disk, tmp_path) == {"orders-0"}
    fixture.abandon()


@pytest.mark.parametrize("damage", DAMAGED)
def test_only_copy_without_a_complete_topic_id_is_used_and_gets_one(
    disk: MemoryDisk, tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    disk = stopped(disk, tmp_path, damage, clean=False)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert offsets(fixture.log()) == [(0, 2), (2, 5)]
    assert "folder has no topic id, its log is used" in caplog.text
    fixture.abandon()
    for seed in range(20):
        assert metadata(disk.crash(Random(seed), "power"), tmp_path) == CONTENT


def test_full_disk_does_not_prevent_the_start_of_an_only_copy_without_a_topic_id(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    disk = stopped(disk, tmp_path, b"", clean=False)
    disk.fail("write_file", errno.ENOSPC, path="partition.metadata")
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert offsets(fixture.log()) == [(0, 2), (2, 5)]
    fixture.abandon()


def test_folder_without_a_topic_id_is_set_aside_if_another_directory_has_the_log(tmp_path: Path) -> None:
    """A topic was deleted while a directory was offline, and its folder in there never got a durable id."""
    first, second = tmp_path / "a", tmp_path / "b"
    disk = disk_with(first)
    disk.makedirs(str(second))
    disk.fsync_dir(str(tmp_path))
    disk = stopped(stopped(disk, first, b"", clean=False), second, CONTENT, clean=False)
    fixture = StoreFixture(disk, first, second)
    fixture.start(spec())
    assert fixture.log().directory == f"{second}/orders-0"
    assert folders(disk, first) == {"orders-0.moved-stray"}
    fixture.abandon()


def test_end_of_an_earlier_topic_is_not_the_start_of_a_new_one(disk: MemoryDisk, tmp_path: Path) -> None:
    """The broker stopped cleanly. Meanwhile the topic, with a single replica, was deleted and created again."""
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    fixture.stop()
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(topic_id=OTHER_ID))
    assert (fixture.log().log_start_offset, fixture.log().log_end_offset) == (0, 0)
    assert folders(disk, tmp_path) == {f"orders-0.{topic_id_text(TOPIC_ID)}-stray"}
    fixture.abandon()


def test_files_of_an_earlier_topic_are_set_aside_even_without_segments(disk: MemoryDisk, tmp_path: Path) -> None:
    """A producer snapshot or the epochs of an earlier topic must not become those of a new one."""
    disk.makedirs(f"{tmp_path}/orders-0")
    disk.write_file(f"{tmp_path}/orders-0/leader-epoch-checkpoint", b"0\n1\n7 0\n", sync=True)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    fixture.store.create(spec())
    append(fixture.log(), batch())
    assert folders(disk, tmp_path) == {"orders-0", "orders-0.earlier-stray"}
    fixture.abandon()


def test_folder_of_a_deleted_topic_never_comes_back_in_part(disk: MemoryDisk, tmp_path: Path) -> None:
    """The power fails at each step of a deletion: the old name has all files, or the folder is one to be deleted."""
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    write(fixture.log(), batch(2), batch(3))
    sync(fixture.log())
    fixture.abandon()
    complete = sorted(disk.listdir(f"{tmp_path}/orders-0"))
    for changes in range(100):
        deleting = disk.crash(Random(0), "process")
        fixture = StoreFixture(deleting, tmp_path)
        fixture.start(spec())
        deleting.cut_after(changes)
        try:
            fixture.store.delete(NAME, "unique")
            fixture.threads.run()
        except DiskCut:
            pass
        else:
            break
        for seed in range(10):
            booted = deleting.crash(Random(seed), "power")
            if booted.exists(f"{tmp_path}/orders-0"):
                assert sorted(booted.listdir(f"{tmp_path}/orders-0")) == complete
    assert 3 < changes < 99


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_kill_while_a_folder_is_made_leaves_none_without_a_topic_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replicated: bool, exists: bool
) -> None:
    for changes in range(12):
        disk = disk_with(tmp_path)
        if exists:
            disk.makedirs(f"{tmp_path}/orders-0")
            disk.write_file(f"{tmp_path}/orders-0/partition.metadata", CONTENT, sync=True)
        fixture = StoreFixture(disk, tmp_path)
        fixture.start()
        log = fixture.store.create(spec(replicated=replicated))
        disk.cut_after(changes)
        try:
            append(log, batch())
            log.write_pending()
        except DiskCut:
            pass
        fixture.abandon()
        disk = disk.crash(Random(0), "process")
        again = StoreFixture(disk, tmp_path)
        again.start(spec(replicated=replicated))
        assert folders(disk, tmp_path) <= {"orders-0"}, f"cut after {changes} changes"
        write(again.log(), batch(2))
        assert metadata(disk, tmp_path) == CONTENT
        again.abandon()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_remains_of_folders_that_were_being_made_are_removed(disk: MemoryDisk, tmp_path: Path) -> None:
    disk.makedirs(f"{tmp_path}/{TOPIC_ID.hex()}-0-new")
    disk.write_file(f"{tmp_path}/{TOPIC_ID.hex()}-0-new/partition.metadata.tmp", CONTENT, sync=True)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert folders(disk, tmp_path) == set()
    fixture.abandon()


# -- the longest name of a topic --------------------------------------------------------------------------------------

LONG = [TopicPartition("x" * 249, partition) for partition in (0, 7, 99_999)]


def test_partitions_with_the_longest_name_are_deleted_and_created_again(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(*(spec(name) for name in LONG))
    for name in LONG:
        write(fixture.log(name), batch(3))
    for name in LONG:
        fixture.store.delete(name, TOPIC_ID.hex())
    assert all(name.endswith("-delete") for name in folders(disk, tmp_path))
    fixture.threads.run()
    assert folders(disk, tmp_path) == set()
    for name in LONG:
        assert write(fixture.store.create(spec(name, topic_id=OTHER_ID)), batch(2)) == [0]
    fixture.abandon()


def test_folders_of_an_earlier_topic_with_the_longest_name_are_set_aside(disk: MemoryDisk, tmp_path: Path) -> None:
    for topic_id in (TOPIC_ID, OTHER_ID, TOPIC_ID, OTHER_ID):
        fixture = StoreFixture(disk, tmp_path)
        fixture.start(*(spec(name, topic_id=topic_id) for name in LONG))
        for name in LONG:
            assert write(fixture.log(name), batch(3)) == [0]
        fixture.abandon()
        disk = disk.crash(Random(0), "process")
    assert len(folders(disk, tmp_path)) == 4 * len(LONG)


def test_log_with_the_longest_name_moves_to_another_directory(disk: MemoryDisk, tmp_path: Path) -> None:
    other = f"{tmp_path}/second"
    disk.makedirs(other)
    fixture = StoreFixture(disk, f"{tmp_path}", other)
    fixture.start(spec(LONG[0]))
    log = fixture.log(LONG[0])
    write(log, batch(3))
    target = next(each for each in fixture.store.dirs if each is not fixture.store.dir_of(log))
    future = fixture.store.create_future(log, target, TOPIC_ID, "5" * 32)
    while future.lag_records:
        future.copy(1_000, leader_epoch=0, now_ms=0)
    moved = fixture.store.replace(future, "6" * 32, 3)
    assert offsets(moved) == [(0, 3)]
    fixture.threads.run()
    fixture.abandon()
