"""The log store: whose directories they are, what is in them, and what a stop and a start leave and find."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_room import NAME, NOW, append, batch, contents, offsets, stored, sync, topic, write
from tests.unit.log.store_room import TOPIC_ID, StoreRoom, disk_with, spec

from ottla.log.store import (
    CLEAN_STOP,
    HIGH_WATERMARKS,
    META,
    RECOVERY_POINTS,
    START_OFFSETS,
    LogDir,
    check_owner,
    read_meta,
)
from ottla.model.errors import StartError
from ottla.model.types import TopicPartition, topic_id_text
from ottla.testing.disk import MemoryDisk

OTHER_ID = bytes(range(1, 17))
ROLLING = topic(segment_ms=100)


@pytest.fixture
def disk(tmp_path: Path) -> MemoryDisk:
    return disk_with(tmp_path)


def killed(room: StoreRoom) -> MemoryDisk:
    """The disk of a broker that was killed."""
    room.abandon()
    assert isinstance(room.disk, MemoryDisk)
    return room.disk.crash(Random(0), "process")


def folders(disk: MemoryDisk, path: Path) -> set[str]:
    return {name for name in disk.listdir(str(path)) if disk.file_size(f"{path}/{name}") is None}


def written(disk: MemoryDisk, path: Path, *batches: bytes) -> StoreRoom:
    """A broker that wrote something."""
    room = StoreRoom(disk, path)
    room.start(spec())
    write(room.log(), *(batches or [batch(2), batch(3)]))
    return room


# -- whose directory --------------------------------------------------------------------------------------------------


def test_directory_in_use_is_refused_and_says_what_to_do(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start()
    other = StoreRoom(disk, tmp_path)
    with pytest.raises(StartError, match="in use by another broker process; stop that one"):
        other.store.lock()
    room.abandon()
    other.store.lock()
    other.abandon()


def test_new_directory_is_signed_once(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start()
    room.stop()
    meta = read_meta(disk, str(tmp_path))
    assert meta == {"version": "1", "cluster.id": "cluster", "node.id": "1", "directory.id": "directory"}
    room = StoreRoom(disk, tmp_path)
    room.store.lock()
    room.store.write_meta("another", 2, lambda: "other")
    room.abandon()
    assert read_meta(disk, str(tmp_path)) == meta


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("other", 1), (None, 1), ("cluster", 2)])
def test_directory_of_another_owner_is_refused(
    disk: MemoryDisk, tmp_path: Path, cluster_id: str | None, broker_id: int
) -> None:
    disk.write_file(f"{tmp_path}/{META}", b"version=1\ncluster.id=cluster\nnode.id=1\n", sync=True)
    check_owner(disk, str(tmp_path), "cluster", 1)
    changes = disk.changes
    with pytest.raises(StartError, match="choose another --data directory"):
        check_owner(disk, str(tmp_path), cluster_id, broker_id)
    assert disk.changes == changes


# -- folders ----------------------------------------------------------------------------------------------------------


def test_partition_has_no_folder_before_its_first_batch(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert folders(disk, tmp_path) == set()
    append(room.log(), batch(producer=(1, 0, 0)))
    assert folders(disk, tmp_path) == {"orders-0"}
    assert disk.read_file(f"{tmp_path}/orders-0/partition.metadata") == (
        f"version: 0\ntopic_id: {topic_id_text(TOPIC_ID)}".encode()
    )
    room.abandon()


def test_folder_of_an_unknown_partition_is_left_alone(disk: MemoryDisk, tmp_path: Path) -> None:
    disk = killed(written(disk, tmp_path))
    room = StoreRoom(disk, tmp_path)
    room.start()
    room.stop()
    assert folders(disk, tmp_path) == {"orders-0"}
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert offsets(room.log()) == [(0, 2), (2, 5)]
    room.abandon()


def test_folder_of_an_earlier_topic_is_set_aside(disk: MemoryDisk, tmp_path: Path) -> None:
    disk = killed(written(disk, tmp_path))
    room = StoreRoom(disk, tmp_path)
    room.start(spec(topic_id=OTHER_ID))
    assert room.log().log_end_offset == 0
    assert folders(disk, tmp_path) == {f"orders-0.{topic_id_text(TOPIC_ID)}-stray"}
    assert write(room.log(), batch()) == [0]
    room.stop()
    assert folders(disk, tmp_path) == {f"orders-0.{topic_id_text(TOPIC_ID)}-stray", "orders-0"}


@pytest.mark.parametrize("damage", [None, b"", bytes(30), b"version: 0\ntopic_id: AAEC"])
def test_folder_whose_metadata_a_power_cut_took_is_ours(disk: MemoryDisk, tmp_path: Path, damage: bytes | None) -> None:
    disk = killed(written(disk, tmp_path))
    disk.remove(f"{tmp_path}/orders-0/partition.metadata")
    if damage is not None:
        disk.write_file(f"{tmp_path}/orders-0/partition.metadata", damage, sync=True)
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert offsets(room.log()) == [(0, 2), (2, 5)]
    room.abandon()


def test_folder_that_lies_where_a_new_topic_begins_is_set_aside(disk: MemoryDisk, tmp_path: Path) -> None:
    """A topic was deleted while the disk was away, and made again after the disk was back."""
    disk = killed(written(disk, tmp_path, *(batch() for _ in range(9))))
    room = StoreRoom(disk, tmp_path)
    room.start()
    room.store.create(spec(topic_id=OTHER_ID))
    write(room.log(), batch(4))
    again = StoreRoom(killed(room), tmp_path)
    again.start(spec(topic_id=OTHER_ID))
    assert offsets(again.log()) == [(0, 4)]
    again.abandon()


def test_folder_that_could_only_be_made_in_part_is_used(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    disk.fail("write_file", errno.ENOSPC, path="partition.metadata")
    with pytest.raises(OSError):
        append(room.log(), batch())
    assert write(room.log(), batch()) == [0]
    assert folders(disk, tmp_path) == {"orders-0"}
    room.abandon()


def test_remains_of_deleted_partitions_go(disk: MemoryDisk, tmp_path: Path) -> None:
    disk.makedirs(f"{tmp_path}/orders-0.abc-delete")
    disk.write_file(f"{tmp_path}/orders-0.abc-delete/00000000000000000000.log", b"x", sync=False)
    room = StoreRoom(disk, tmp_path)
    room.start()
    room.stop()
    assert folders(disk, tmp_path) == set()


@pytest.mark.parametrize("name", ["orders", "orders-", "-0", "orders-00", "orders-²", "orders-0x", "0"])
def test_folder_that_is_no_partitions_is_ignored(disk: MemoryDisk, tmp_path: Path, name: str) -> None:
    disk.makedirs(f"{tmp_path}/{name}")
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert room.store.was_clean
    room.stop()
    assert folders(disk, tmp_path) == {name}


def test_topic_names_may_hold_dashes(disk: MemoryDisk, tmp_path: Path) -> None:
    name = TopicPartition("a-delete-1-b", 12)
    room = StoreRoom(disk, tmp_path)
    room.start(spec(name))
    write(room.log(name), batch())
    room.stop()
    room = StoreRoom(disk, tmp_path)
    room.start(spec(name))
    assert offsets(room.log(name)) == [(0, 1)]
    room.abandon()


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    disk = disk_with(paths[0])
    for path in paths:
        path.mkdir()
    room = StoreRoom(disk, *paths)
    specs = [spec(TopicPartition("t", number)) for number in range(4)]
    room.start(*specs)
    assert [len(directory.logs) for directory in room.store.dirs] == [2, 2]
    room.store.dirs[0].offline = True
    room.store.create(spec(TopicPartition("t", 4)))
    assert [len(directory.logs) for directory in room.store.dirs] == [2, 3]
    room.store.dirs[1].offline = True
    with pytest.raises(OSError, match="no log directory is online"):
        room.store.create(spec(TopicPartition("t", 5)))
    room.abandon()


def test_first_synced_batch_of_a_partition_survives_a_power_cut(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    sync(room.log())
    room.abandon()
    for seed in range(20):
        again = StoreRoom(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec())
        assert offsets(again.log()) == [(0, 2), (2, 5)]
        again.abandon()


# -- stop and start ---------------------------------------------------------------------------------------------------


def test_start_after_a_clean_stop_opens_no_segment(disk: MemoryDisk, tmp_path: Path) -> None:
    specs = [spec(TopicPartition("t", number), settings=ROLLING) for number in range(5)]
    room = StoreRoom(disk, tmp_path)
    room.start(*specs)
    for each in specs:
        for number in range(4):
            write(room.log(each.name), batch(timestamp=NOW + 101 * number, producer=(1, 0, number)))
    room.stop()
    for _ in range(2):
        disk.calls.clear()
        room = StoreRoom(disk, tmp_path)
        room.start(*specs)
        assert room.store.was_clean
        room.stop()
        assert not [call for call in disk.calls if call.path.endswith(".log") and call.name != "file_size"]
    room = StoreRoom(disk, tmp_path)
    room.start(*specs)
    assert all(len(contents(room.log(each.name))) == 4 for each in specs)
    room.abandon()


def test_start_says_whether_the_last_stop_was_clean(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    assert room.store.was_clean
    disk = killed(room)
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert not room.store.was_clean
    room.stop()
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert room.store.was_clean
    room.abandon()


def test_note_of_the_clean_stop_is_gone_for_good_once_the_broker_runs(disk: MemoryDisk, tmp_path: Path) -> None:
    written(disk, tmp_path).stop()
    assert disk.exists(f"{tmp_path}/{CLEAN_STOP}")
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    room.abandon()
    for seed in range(20):
        assert not disk.crash(Random(seed), "power").exists(f"{tmp_path}/{CLEAN_STOP}")


def test_note_of_the_clean_stop_comes_last_and_only_when_all_is_on_disk(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path, *(batch(producer=(1, 0, number)) for number in range(3)))
    expected = contents(room.log())
    disk = killed(room)
    changes = 0
    while True:
        stopping = StoreRoom(disk.crash(Random(0), "process"), tmp_path)
        stopping.start(spec())
        write(stopping.log(), batch(producer=(1, 0, 3)))
        assert isinstance(stopping.disk, MemoryDisk)
        stopping.disk.fail("any", skip=changes)
        try:
            stopping.stop()
        except OSError:
            stopping.abandon()
            for seed in range(3):
                noted = stopping.disk.crash(Random(seed), "power").read_file(f"{tmp_path}/{CLEAN_STOP}")
                # The last step syncs the note's own name: it may be there, and is then right.
                assert noted is None or stopping.disk.calls[-1].name == "fsync_dir"
            changes += 1
        else:
            break
    assert changes > 10
    stopping.disk.heal()
    again = StoreRoom(stopping.disk, tmp_path)
    again.start(spec())
    assert contents(again.log()) == [*expected, stored(batch(producer=(1, 0, 3)), 3)]
    again.abandon()


NOTES = [
    b"", b"{", b"null", b"[]", b"{}", b'{"logs": 3}', b'{"logs": {"orders-0": 3}}', b'{"logs": {"orders-0": [1]}}',
    b'{"logs": {"orders-0": ["a", "b", "c"]}}', b'{"logs": {"orders-0": [9, 9, 9]}}', b"\xff\xfe", bytes(40),
]  # fmt: skip


@pytest.mark.parametrize("note", NOTES)
def test_damaged_note_of_a_clean_stop_means_recovery(disk: MemoryDisk, tmp_path: Path, note: bytes) -> None:
    written(disk, tmp_path).stop()
    # The file is longer than the note would say, and only recovery sees that the end is rubbish.
    fd = disk.open(f"{tmp_path}/orders-0/{0:020d}.log")
    disk.pwrite(fd, b"rubbish", disk.size(fd))
    disk.write_file(f"{tmp_path}/{CLEAN_STOP}", note, sync=True)
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert offsets(room.log()) == [(0, 2), (2, 5)]
    assert write(room.log(), batch()) == [5]
    room.abandon()


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"logs": 3}'])
def test_damaged_note_is_no_clean_stop(disk: MemoryDisk, tmp_path: Path, note: bytes) -> None:
    """Leader epochs go up after an unclean stop, so that readers learn of what may be gone."""
    written(disk, tmp_path).stop()
    disk.write_file(f"{tmp_path}/{CLEAN_STOP}", note, sync=True)
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    assert not room.store.was_clean
    room.abandon()


def test_clean_stop_notes_where_each_log_ended(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    size = room.log().size_bytes
    room.stop()
    noted = json.loads(disk.read_file(f"{tmp_path}/{CLEAN_STOP}") or b"")
    assert noted["logs"] == {"orders-0": [5, 0, size, 0]}


def test_offline_directory_is_not_noted_as_clean(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    room.store.dirs[0].offline = True
    disk.calls.clear()
    room.stop()
    assert not disk.calls
    assert not disk.exists(f"{tmp_path}/{CLEAN_STOP}")


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_kafkas(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start(spec(settings=ROLLING), spec(TopicPartition("quiet", 3)))
    for number in range(3):
        write(room.log(), batch(5, timestamp=NOW + 101 * number))
    sync(room.log())
    room.threads.run()
    write(room.log(), batch())
    room.store.advance_log_start(room.log(), 7)
    room.store.write_checkpoints({NAME: 16}, sync=False)
    assert disk.read_file(f"{tmp_path}/{RECOVERY_POINTS}") == b"0\n1\norders 0 10\n"
    assert disk.read_file(f"{tmp_path}/{START_OFFSETS}") == b"0\n1\norders 0 7\n"
    assert disk.read_file(f"{tmp_path}/{HIGH_WATERMARKS}") == b"0\n1\norders 0 16\n"
    room.abandon()


def test_start_offset_holds_after_a_kill(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    room.store.advance_log_start(room.log(), 3)
    room.store.write_checkpoints({}, sync=False)
    again = StoreRoom(killed(room), tmp_path)
    again.start(spec())
    assert again.log().log_start_offset == 3
    again.abandon()


DAMAGED = [b"", b"0\n", b"0\n5\n", b"1\n0\n", b"0\n1\norders 0 1", b"0\n1\norders 0\n", b"0\n2\norders 0 3\n", b"\xff",
           b"0\n1\norders 0 99x\n", bytes(30), b"0\nx\norders 0 99\n"]  # fmt: skip


@pytest.mark.parametrize("file", [RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS])
@pytest.mark.parametrize("data", DAMAGED)
def test_damaged_checkpoint_loses_nothing(disk: MemoryDisk, tmp_path: Path, file: str, data: bytes) -> None:
    room = written(disk, tmp_path, *(batch(producer=(1, 0, number)) for number in range(5)))
    room.store.write_checkpoints({NAME: 5}, sync=True)
    expected = contents(room.log())
    disk = killed(room)
    disk.write_file(f"{tmp_path}/{file}", data, sync=True)
    again = StoreRoom(disk, tmp_path)
    again.start(spec())
    assert contents(again.log()) == expected
    assert append(again.log(), batch(producer=(1, 0, 4))) == (4, 5)
    again.abandon()


@pytest.mark.parametrize("keep", ["process", "power"])
def test_checkpoints_of_a_deleted_topic_do_not_cut_down_its_successor(
    disk: MemoryDisk, tmp_path: Path, keep: str
) -> None:
    """The first was deleted up to offset 40; the second has five records when the machine stops."""
    room = written(disk, tmp_path, batch(50))
    sync(room.log())
    room.store.advance_log_start(room.log(), 40)
    room.store.write_checkpoints({}, sync=True)
    room.store.delete(NAME, "unique")
    room.threads.run()
    room.store.create(spec(topic_id=OTHER_ID))
    write(room.log(), batch(2), batch(3))
    sync(room.log())
    room.abandon()
    for seed in range(10):
        again = StoreRoom(disk.crash(Random(seed), keep), tmp_path)  # type: ignore[arg-type]
        again.start(spec(topic_id=OTHER_ID))
        assert offsets(again.log()) == [(0, 2), (2, 5)]
        again.abandon()


def test_checkpoints_are_synced_only_for_a_name_that_had_a_past(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    room.store.write_checkpoints({}, sync=False)
    disk.calls.clear()
    append(room.log(), batch())
    assert not [call for call in disk.calls if call.name in ("fsync_dir", "fdatasync")]
    room.abandon()


# -- segments and deletions in threads --------------------------------------------------------------------------------


def rolling_room(disk: MemoryDisk, path: Path, rolls: int = 2) -> StoreRoom:
    """Two sealed segments that no thread has looked at yet, and an active one."""
    room = StoreRoom(disk, path)
    room.start(spec(settings=ROLLING))
    for number in range(rolls + 1):
        write(room.log(), batch(timestamp=NOW + 101 * number))
    return room


def test_sealed_segments_are_synced_with_their_indexes_and_the_recovery_point_follows(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    room = rolling_room(disk, tmp_path)
    assert room.log().recovery_point == 0
    room.threads.run_one()
    assert (room.log().synced_end_offset, room.log().recovery_point) == (1, 1)
    assert disk.file_size(f"{tmp_path}/orders-0/{0:020d}.timeindex") == 12
    room.threads.run()
    assert room.log().recovery_point == 2
    room.abandon()


def test_sealed_segment_that_cannot_be_synced_fails_its_directory(disk: MemoryDisk, tmp_path: Path) -> None:
    room = rolling_room(disk, tmp_path)
    failed: list[LogDir] = []
    room.store.on_dir_failed = lambda directory, error: failed.append(directory)
    disk.fail("fdatasync", errno.ENOSPC)
    room.threads.run_one()
    assert failed == [room.store.dirs[0]]
    assert room.log().synced_end_offset == 0
    room.abandon()


def test_index_for_which_there_is_no_room_is_written_later(disk: MemoryDisk, tmp_path: Path) -> None:
    room = rolling_room(disk, tmp_path)
    room.store.on_dir_failed = lambda directory, error: pytest.fail("a full disk is not a broken one")
    disk.fail("write_file", errno.ENOSPC, path=".index")
    room.threads.run_one()
    assert room.log().recovery_point == 0
    write(room.log(), batch(timestamp=NOW + 1000))
    room.threads.run()
    assert room.log().recovery_point == 3
    room.abandon()


def test_segments_are_unlinked_in_a_thread_once_the_rest_has_durable_names(disk: MemoryDisk, tmp_path: Path) -> None:
    room = rolling_room(disk, tmp_path)
    room.threads.run()
    room.store.advance_log_start(room.log(), 2)
    name = f"{tmp_path}/orders-0/{0:020d}.log"
    assert disk.exists(name)
    disk.calls.clear()
    room.threads.run()
    assert not disk.exists(name)
    names = [call.name for call in disk.calls]
    assert names.index("fsync_dir") < names.index("remove")
    room.abandon()


def test_deleted_partition_is_renamed_at_once_and_removed_in_a_thread(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    room.store.delete(NAME, "unique")
    assert folders(disk, tmp_path) == {"orders-0.unique-delete"}
    room.threads.run()
    assert folders(disk, tmp_path) == set()
    assert NAME not in room.store.logs
    room.abandon()


def test_partition_without_a_folder_is_deleted_without_a_trace(disk: MemoryDisk, tmp_path: Path) -> None:
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    changes = disk.changes
    room.store.delete(NAME, "unique")
    room.store.delete(NAME, "unique")
    room.threads.run()
    assert disk.changes == changes
    room.abandon()


def test_partition_on_an_offline_disk_is_forgotten_and_its_files_are_left(disk: MemoryDisk, tmp_path: Path) -> None:
    room = written(disk, tmp_path)
    room.store.dirs[0].offline = True
    room.store.delete(NAME, "unique")
    assert NAME not in room.store.logs
    assert folders(disk, tmp_path) == {"orders-0"}
    room.abandon()


def test_work_for_a_deleted_partition_neither_fails_nor_touches_its_successor(disk: MemoryDisk, tmp_path: Path) -> None:
    """Rolls and unlinks were waiting for a thread when the topic was deleted and made again."""
    room = rolling_room(disk, tmp_path)
    room.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    sync(room.log())
    room.store.advance_log_start(room.log(), 2)
    waiting, room.threads.jobs = room.threads.jobs, []
    room.store.delete(NAME, "unique")
    room.threads.run()
    room.store.create(spec(topic_id=OTHER_ID, settings=ROLLING))
    for number in range(3):
        write(room.log(), batch(2, timestamp=NOW + 101 * number))
    room.threads.run()
    names = sorted(disk.listdir(f"{tmp_path}/orders-0"))
    room.threads.jobs = waiting
    room.threads.run()
    assert sorted(disk.listdir(f"{tmp_path}/orders-0")) == names
    again = StoreRoom(killed(room), tmp_path)
    again.start(spec(topic_id=OTHER_ID, settings=ROLLING))
    assert offsets(again.log()) == [(0, 2), (2, 4), (4, 6)]
    again.abandon()


def test_sync_of_a_sealed_segment_that_fails_because_its_topic_went_is_no_failure(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    room = rolling_room(disk, tmp_path)
    room.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    work, done = room.threads.jobs.pop(0)
    work()
    room.store.delete(NAME, "unique")
    done(FileNotFoundError(errno.ENOENT, "the folder is gone"))
    room.abandon()


def test_roll_that_is_synced_after_its_segment_was_unlinked_does_not_bring_it_back(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    room = written(disk, tmp_path)
    room.stop()
    room = StoreRoom(disk, tmp_path)
    room.start(spec())
    room.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    room.store.advance_log_start(room.log(), 5)
    assert len(room.threads.jobs) == 2
    room.threads.jobs.reverse()
    room.threads.run()
    assert [name for name in disk.listdir(f"{tmp_path}/orders-0") if name.endswith(".log")] == [f"{5:020d}.log"]
    room.abandon()
