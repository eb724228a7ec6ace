"""The log store: whose directories they are, what is in them, and what a stop and a start leave and find."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.log_fixtures import NAME, NOW, append, batch, contents, offsets, stored, sync, topic, write
from tests.unit.log.store_fixtures import TOPIC_ID, StoreFixture, disk_with, spec

from ottla.log.checkpoints import CLEAN_STOP, read_clean_stop, read_offsets, read_topic_ids
from ottla.log.dir_checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, START_OFFSETS
from ottla.log.directories import META, LogDir, check_owner, read_meta
from ottla.model.errors import StartError
from ottla.model.types import TopicPartition, topic_id_text
from ottla.testing.disk import MemoryDisk

OTHER_ID = bytes(range(1, 17))
ROLLING = topic(segment_ms=100)


@pytest.fixture
def disk(tmp_path: Path) -> MemoryDisk:
    return disk_with(tmp_path)


def killed(fixture: StoreFixture) -> MemoryDisk:
    """The disk of a broker that was killed."""
    fixture.abandon()
    assert isinstance(fixture.disk, MemoryDisk)
    return fixture.disk.crash(Random(0), "process")


def folders(disk: MemoryDisk, path: Path) -> set[str]:
    return {name for name in disk.listdir(str(path)) if disk.file_size(f"{path}/{name}") is None}


def written(disk: MemoryDisk, path: Path, *batches: bytes) -> StoreFixture:
    """A broker that wrote something."""
    fixture = StoreFixture(disk, path)
    fixture.start(spec())
    write(fixture.log(), *(batches or [batch(2), batch(3)]))
    return fixture


# -- whose directory --------------------------------------------------------------------------------------------------


def test_directory_in_use_is_refused_and_says_what_to_do(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    other = StoreFixture(disk, tmp_path)
    with pytest.raises(StartError, match="in use by another broker process; stop that one"):
        other.store.lock()
    fixture.abandon()
    other.store.lock()
    other.abandon()


def test_new_directory_is_signed_once(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    fixture.stop()
    meta = read_meta(disk, str(tmp_path))
    assert meta == {"version": "1", "cluster.id": "cluster", "node.id": "1", "directory.id": "directory"}
    fixture = StoreFixture(disk, tmp_path)
    fixture.store.lock()
    fixture.store.write_meta("another", 2, lambda _: "other")
    fixture.abandon()
    assert read_meta(disk, str(tmp_path)) == meta


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("other", 1), (None, 1), ("cluster", 2)])
def test_directory_of_another_owner_is_refused(
    disk: MemoryDisk, tmp_path: Path, cluster_id: str | None, broker_id: int
) -> None:
    disk.write_file(f"{tmp_path}/{META}", b"version=1\ncluster.id=cluster\nnode.id=1\n", sync=True)
    check_owner(read_meta(disk, str(tmp_path)), str(tmp_path), "cluster", 1)
    changes = disk.changes
    with pytest.raises(StartError, match="choose another --data directory"):
        check_owner(read_meta(disk, str(tmp_path)), str(tmp_path), cluster_id, broker_id)
    assert disk.changes == changes


# -- folders ----------------------------------------------------------------------------------------------------------


def test_partition_has_no_folder_before_its_first_batch(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert folders(disk, tmp_path) == set()
    append(fixture.log(), batch(producer=(1, 0, 0)))
    assert folders(disk, tmp_path) == {"orders-0"}
    assert disk.read_file(f"{tmp_path}/orders-0/partition.metadata") == (
        f"version: 0\ntopic_id: {topic_id_text(TOPIC_ID)}".encode()
    )
    fixture.abandon()


def test_folder_of_an_unknown_partition_is_left_alone(disk: MemoryDisk, tmp_path: Path) -> None:
    disk = killed(written(disk, tmp_path))
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    fixture.stop()
    assert folders(disk, tmp_path) == {"orders-0"}
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert offsets(fixture.log()) == [(0, 2), (2, 5)]
    fixture.abandon()


def test_folder_of_an_earlier_topic_is_set_aside(disk: MemoryDisk, tmp_path: Path) -> None:
    disk = killed(written(disk, tmp_path))
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(topic_id=OTHER_ID))
    assert fixture.log().log_end_offset == 0
    assert folders(disk, tmp_path) == {f"orders-0.{topic_id_text(TOPIC_ID)}-stray"}
    assert write(fixture.log(), batch()) == [0]
    fixture.stop()
    assert folders(disk, tmp_path) == {f"orders-0.{topic_id_text(TOPIC_ID)}-stray", "orders-0"}


def test_log_of_an_earlier_topic_that_was_opened_is_deleted(disk: MemoryDisk, tmp_path: Path) -> None:
    """The topic was deleted and created again after its logs had been opened, before they were used."""
    fixture = StoreFixture(killed(written(disk, tmp_path)), tmp_path)
    fixture.start(spec())
    earlier = fixture.log()
    assert fixture.store.log_of(spec()) is earlier
    assert earlier.log_end_offset > 0
    made = fixture.store.log_of(spec(topic_id=OTHER_ID))
    assert (made.log_start_offset, made.log_end_offset, made.epochs.latest) == (0, 0, -1)
    assert fixture.store.log_of(spec(topic_id=OTHER_ID)) is made
    assert earlier.deleted
    write(made, batch(4))
    again = StoreFixture(killed(fixture), tmp_path)
    again.start(spec(topic_id=OTHER_ID))
    assert offsets(again.log()) == [(0, 4)]
    again.abandon()


def test_folder_that_lies_where_a_new_topic_begins_is_set_aside(disk: MemoryDisk, tmp_path: Path) -> None:
    """A topic was deleted while the disk was away, and made again after the disk was back."""
    disk = killed(written(disk, tmp_path, *(batch() for _ in range(9))))
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    fixture.store.create(spec(topic_id=OTHER_ID))
    write(fixture.log(), batch(4))
    again = StoreFixture(killed(fixture), tmp_path)
    again.start(spec(topic_id=OTHER_ID))
    assert offsets(again.log()) == [(0, 4)]
    again.abandon()


def test_folder_that_could_only_be_made_in_part_is_used(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    disk.fail("write_file", errno.ENOSPC, path="partition.metadata")
    with pytest.raises(OSError):
        append(fixture.log(), batch())
    assert write(fixture.log(), batch()) == [0]
    assert folders(disk, tmp_path) == {"orders-0"}
    fixture.abandon()


def test_remains_of_deleted_partitions_go(disk: MemoryDisk, tmp_path: Path) -> None:
    disk.makedirs(f"{tmp_path}/orders-0.abc-delete")
    disk.write_file(f"{tmp_path}/orders-0.abc-delete/00000000000000000000.log", b"x", sync=False)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start()
    fixture.stop()
    assert folders(disk, tmp_path) == set()


@pytest.mark.parametrize("name", ["orders", "orders-", "-0", "orders-00", "orders-²", "orders-0x", "0"])
def test_folder_that_is_no_partitions_is_ignored(disk: MemoryDisk, tmp_path: Path, name: str) -> None:
    disk.makedirs(f"{tmp_path}/{name}")
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert fixture.store.was_clean
    fixture.stop()
    assert folders(disk, tmp_path) == {name}


def test_topic_names_may_hold_dashes(disk: MemoryDisk, tmp_path: Path) -> None:
    name = TopicPartition("a-delete-1-b", 12)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(name))
    write(fixture.log(name), batch())
    fixture.stop()
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(name))
    assert offsets(fixture.log(name)) == [(0, 1)]
    fixture.abandon()


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    disk = disk_with(paths[0])
    for path in paths:
        path.mkdir()
    fixture = StoreFixture(disk, *paths)
    specs = [spec(TopicPartition("t", number)) for number in range(4)]
    fixture.start(*specs)
    assert [len(directory.logs) for directory in fixture.store.dirs] == [2, 2]
    fixture.store.dirs[0].offline = True
    fixture.store.create(spec(TopicPartition("t", 4)))
    assert [len(directory.logs) for directory in fixture.store.dirs] == [2, 3]
    fixture.store.dirs[1].offline = True
    with pytest.raises(OSError, match="no log directory is online"):
        fixture.store.create(spec(TopicPartition("t", 5)))
    fixture.abandon()


def test_first_synced_batch_of_a_partition_survives_a_power_cut(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    sync(fixture.log())
    fixture.abandon()
    for seed in range(20):
        again = StoreFixture(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec())
        assert offsets(again.log()) == [(0, 2), (2, 5)]
        again.abandon()


# -- stop and start ---------------------------------------------------------------------------------------------------


def test_start_after_a_clean_stop_opens_no_segment(disk: MemoryDisk, tmp_path: Path) -> None:
    specs = [spec(TopicPartition("t", number), settings=ROLLING) for number in range(5)]
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(*specs)
    for each in specs:
        for number in range(4):
            write(fixture.log(each.name), batch(timestamp=NOW + 101 * number, producer=(1, 0, number)))
    fixture.stop()
    for _ in range(2):
        disk.calls.clear()
        fixture = StoreFixture(disk, tmp_path)
        fixture.start(*specs)
        assert fixture.store.was_clean
        fixture.stop()
        assert not [call for call in disk.calls if call.path.endswith(".log") and call.name != "file_size"]
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(*specs)
    assert all(len(contents(fixture.log(each.name))) == 4 for each in specs)
    fixture.abandon()


def test_start_says_whether_the_last_stop_was_clean(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    assert fixture.store.was_clean
    disk = killed(fixture)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert not fixture.store.was_clean
    fixture.stop()
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert fixture.store.was_clean
    fixture.abandon()


def test_note_of_the_clean_stop_is_gone_for_good_once_the_broker_runs(disk: MemoryDisk, tmp_path: Path) -> None:
    written(disk, tmp_path).stop()
    assert disk.exists(f"{tmp_path}/{CLEAN_STOP}")
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    fixture.abandon()
    for seed in range(20):
        assert not disk.crash(Random(seed), "power").exists(f"{tmp_path}/{CLEAN_STOP}")


def test_note_of_the_clean_stop_comes_last_and_only_when_all_is_on_disk(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path, *(batch(producer=(1, 0, number)) for number in range(3)))
    expected = contents(fixture.log())
    disk = killed(fixture)
    changes = 0
    while True:
        stopping = StoreFixture(disk.crash(Random(0), "process"), tmp_path)
        stopping.start(spec())
        write(stopping.log(), batch(producer=(1, 0, 3)))
        assert isinstance(stopping.disk, MemoryDisk)
        stopping.disk.fail("any", skip=changes)
        if stopping.stop():
            break
        for seed in range(3):
            noted = stopping.disk.crash(Random(seed), "power").read_file(f"{tmp_path}/{CLEAN_STOP}")
            # The last step syncs the note's own name: it may be there, and is then right.
            assert noted is None or stopping.disk.calls[-1].name == "fsync_dir"
        changes += 1
    assert changes > 10
    stopping.disk.heal()
    again = StoreFixture(stopping.disk, tmp_path)
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
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert offsets(fixture.log()) == [(0, 2), (2, 5)]
    assert write(fixture.log(), batch()) == [5]
    fixture.abandon()


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"logs": 3}'])
def test_damaged_note_is_no_clean_stop(disk: MemoryDisk, tmp_path: Path, note: bytes) -> None:
    """Leader epochs go up after an unclean stop, so that readers learn of what may be gone."""
    written(disk, tmp_path).stop()
    disk.write_file(f"{tmp_path}/{CLEAN_STOP}", note, sync=True)
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    assert not fixture.store.was_clean
    fixture.abandon()


def test_clean_stop_notes_where_each_log_ended(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    size = fixture.log().size_bytes
    fixture.stop()
    noted = json.loads(disk.read_file(f"{tmp_path}/{CLEAN_STOP}") or b"")
    assert noted["logs"] == {"orders-0": [5, 0, size, 0]}


def test_offline_directory_is_not_noted_as_clean(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    fixture.store.dirs[0].offline = True
    disk.calls.clear()
    fixture.stop()
    assert not disk.calls
    assert not disk.exists(f"{tmp_path}/{CLEAN_STOP}")


@pytest.mark.parametrize("failing", [0, 1])
def test_directory_that_cannot_be_written_keeps_no_other_one_from_a_clean_stop(
    disk: MemoryDisk, tmp_path: Path, failing: int
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        disk.makedirs(str(path))
    fixture = StoreFixture(disk, *paths)
    fixture.start(spec(), spec(TopicPartition("orders", 1)))
    for each in fixture.store.logs.values():
        write(each, batch())
    disk.fail("any", times=None, path=f"{paths[failing]}/")
    fixture.store.write_checkpoints({NAME: 1, TopicPartition("orders", 1): 1}, sync=False)
    assert disk.exists(f"{paths[not failing]}/{HIGH_WATERMARKS}")
    assert not fixture.stop()
    assert [disk.exists(f"{path}/{CLEAN_STOP}") for path in paths] == [failing == 1, failing == 0]


def test_damaged_batch_does_not_make_the_stop_of_other_logs_unclean(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    disk = disk_with(paths[0])
    disk.makedirs(str(paths[1]))
    one, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    specs = spec(one, replicated=True), spec(other, replicated=True)
    fixture = StoreFixture(disk, *paths)
    fixture.start(*specs)
    write(fixture.log(one), *(batch() for _ in range(10)))
    assert fixture.stop()
    again = StoreFixture(disk, *paths)
    again.start(*specs)
    write(again.log(one), *(batch() for _ in range(5)))
    again.log(one).truncate_to(12)  # so that the state of producers is read from the batches
    size = len(batch())
    path = again.log(one).segments[0].path(".log")
    disk.damage(path, lambda data: data[: 3 * size + 8] + b"\0\0\0\1" + data[3 * size + 12 :])  # the length
    assert again.stop()
    assert set(read_clean_stop(disk, str(paths[0])) or {}) | set(read_clean_stop(disk, str(paths[1])) or {}) == {
        "orders-1"
    }


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_kafkas(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec(settings=ROLLING), spec(TopicPartition("quiet", 3)))
    for number in range(3):
        write(fixture.log(), batch(5, timestamp=NOW + 101 * number))
    sync(fixture.log())
    fixture.threads.run()
    write(fixture.log(), batch())
    fixture.store.advance_log_start(fixture.log(), 7)
    fixture.store.write_checkpoints({NAME: 16}, sync=False)
    fixture.threads.run()
    assert disk.read_file(f"{tmp_path}/{RECOVERY_POINTS}") == b"0\n1\norders 0 10\n"
    assert disk.read_file(f"{tmp_path}/{START_OFFSETS}") == b"0\n1\norders 0 7\n"
    assert disk.read_file(f"{tmp_path}/{HIGH_WATERMARKS}") == b"0\n1\norders 0 16\n"
    fixture.abandon()


def test_start_offset_holds_after_a_kill(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    fixture.store.advance_log_start(fixture.log(), 3)
    fixture.threads.run()
    again = StoreFixture(killed(fixture), tmp_path)
    again.start(spec())
    assert again.log().log_start_offset == 3
    again.abandon()


def test_start_offset_that_was_reported_as_synced_holds_after_a_power_failure(disk: MemoryDisk, tmp_path: Path) -> None:
    """Whatever is written to the checkpoints after that, and however many logs have moved."""
    fixture = written(disk, tmp_path)
    synced: list[int] = []
    fixture.store.on_start_synced = lambda log: synced.append(log.synced_start_offset)
    fixture.store.advance_log_start(fixture.log(), 2)
    fixture.store.advance_log_start(fixture.log(), 3)  # while the first offset is written
    assert synced == [] and fixture.log().synced_start_offset == 0
    fixture.threads.run()
    assert synced[-1] == 3
    fixture.store.advance_log_start(fixture.log(), 4)
    fixture.store.write_checkpoints({}, sync=False)
    for seed in range(20):
        again = StoreFixture(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec())
        assert again.log().log_start_offset in (3, 4)
        again.abandon()
    fixture.abandon()


def test_start_offset_that_a_full_disk_refused_is_written_with_the_next_checkpoints(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    """A follower moves its log start once. DeleteRecords would wait for its sync for ever."""
    fixture = written(disk, tmp_path)
    fixture.store.advance_log_start(fixture.log(), 3)
    ((_, done),) = fixture.threads.jobs
    fixture.threads.jobs.clear()
    done(OSError(errno.ENOSPC, "no space"))
    assert fixture.log().synced_start_offset == 0
    fixture.store.write_checkpoints({}, sync=False)
    fixture.threads.run()
    assert fixture.log().synced_start_offset == 3
    fixture.abandon()


def test_start_offset_that_a_truncation_lowers_is_not_written_again_by_a_thread(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    fixture = written(disk, tmp_path)
    log = fixture.log()
    fixture.store.advance_log_start(log, 4)
    log.truncate_to(2)
    assert log.log_start_offset == log.synced_start_offset == 2
    fixture.threads.run()
    assert disk.read_file(f"{tmp_path}/{START_OFFSETS}") == b"0\n1\norders 0 2\n"
    fixture.abandon()


DAMAGED = [b"", b"0\n", b"0\n5\n", b"1\n0\n", b"0\n1\norders 0 1", b"0\n1\norders 0\n", b"0\n2\norders 0 3\n", b"\xff",
           b"0\n1\norders 0 99x\n", bytes(30), b"0\nx\norders 0 99\n"]  # fmt: skip


def with_recovery_point(disk: MemoryDisk, path: Path) -> StoreFixture:
    """A store with a replicated log of 15 records whose recovery point is 10."""
    fixture = StoreFixture(disk, path)
    fixture.start(spec(settings=ROLLING, replicated=True))
    for number in range(3):
        write(fixture.log(), batch(5, timestamp=NOW + 101 * number))
    sync(fixture.log())
    fixture.threads.run()
    return fixture


def test_recovery_point_of_a_lost_log_does_not_stay(disk: MemoryDisk, tmp_path: Path) -> None:
    """The log is copied again. If the power fails then, its records below the old recovery point are not synced."""
    fixture = with_recovery_point(disk, tmp_path)
    fixture.store.write_checkpoints({NAME: 12}, sync=True)
    fixture.abandon()
    disk.remove_tree(f"{tmp_path}/{NAME}")
    again = StoreFixture(disk, tmp_path)
    again.store.lock()
    again.store.load({NAME: spec(settings=ROLLING, replicated=True)})
    assert again.log().lost_synced
    assert read_offsets(disk, str(tmp_path), RECOVERY_POINTS) == {NAME: 10}, "the next start must notice the loss too"
    again.store.begin_writing()
    assert read_offsets(disk, str(tmp_path), RECOVERY_POINTS) == {NAME: 0}
    assert read_offsets(disk, str(tmp_path), HIGH_WATERMARKS) == {}
    again.abandon()


def test_topic_ids_are_synced_with_the_recovery_points(disk: MemoryDisk, tmp_path: Path) -> None:
    """They prove that a log which is missing had records, although they were written before without a sync."""
    fixture = with_recovery_point(disk, tmp_path)
    fixture.store.write_checkpoints({NAME: 12}, sync=False)
    fixture.store.write_checkpoints({NAME: 12}, sync=True)
    fixture.abandon()
    for seed in range(20):
        crashed = disk.crash(Random(seed), "power")
        assert read_offsets(crashed, str(tmp_path), RECOVERY_POINTS) == {NAME: 10}
        assert read_topic_ids(crashed, str(tmp_path)) == {NAME: topic_id_text(TOPIC_ID)}


@pytest.mark.parametrize("file", [RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS])
@pytest.mark.parametrize("data", DAMAGED)
def test_damaged_checkpoint_loses_nothing(disk: MemoryDisk, tmp_path: Path, file: str, data: bytes) -> None:
    fixture = written(disk, tmp_path, *(batch(producer=(1, 0, number)) for number in range(5)))
    fixture.store.write_checkpoints({NAME: 5}, sync=True)
    expected = contents(fixture.log())
    disk = killed(fixture)
    disk.write_file(f"{tmp_path}/{file}", data, sync=True)
    again = StoreFixture(disk, tmp_path)
    again.start(spec())
    assert contents(again.log()) == expected
    assert append(again.log(), batch(producer=(1, 0, 4))) == (4, 5)
    again.abandon()


def test_temporary_file_of_an_earlier_run_never_becomes_a_checkpoint(disk: MemoryDisk, tmp_path: Path) -> None:
    """A power failure can undo writes to a file, but keep its new name."""
    disk.write_file(f"{tmp_path}/{RECOVERY_POINTS}.tmp", b"0\n1\norders 0 999\n", sync=True)
    fixture = written(disk, tmp_path)
    fixture.store.write_checkpoints({}, sync=False)
    fixture.abandon()
    for seed in range(20):
        again = StoreFixture(disk.crash(Random(seed), "power"), tmp_path)
        again.start(spec())
        assert again.log().log_end_offset <= 5
        again.abandon()


@pytest.mark.parametrize("keep", ["process", "power"])
def test_checkpoints_of_a_deleted_topic_do_not_cut_down_its_successor(
    disk: MemoryDisk, tmp_path: Path, keep: str
) -> None:
    """The first was deleted up to offset 40; the second has five records when the machine stops."""
    fixture = written(disk, tmp_path, batch(50))
    sync(fixture.log())
    fixture.store.advance_log_start(fixture.log(), 40)
    fixture.store.write_checkpoints({}, sync=True)
    fixture.store.delete(NAME, "unique")
    fixture.threads.run()
    fixture.store.create(spec(topic_id=OTHER_ID))
    write(fixture.log(), batch(2), batch(3))
    sync(fixture.log())
    fixture.abandon()
    for seed in range(10):
        again = StoreFixture(disk.crash(Random(seed), keep), tmp_path)  # type: ignore[arg-type]
        again.start(spec(topic_id=OTHER_ID))
        assert offsets(again.log()) == [(0, 2), (2, 5)]
        again.abandon()


def test_checkpoints_are_synced_only_for_a_name_that_had_a_past(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    fixture.store.write_checkpoints({}, sync=False)
    disk.calls.clear()
    append(fixture.log(), batch())
    assert not [call for call in disk.calls if call.name in ("fsync_dir", "fdatasync")]
    fixture.abandon()


# -- segments and deletions in threads --------------------------------------------------------------------------------


def rolling_room(disk: MemoryDisk, path: Path, rolls: int = 2) -> StoreFixture:
    """Two sealed segments that no thread has looked at yet, and an active one."""
    fixture = StoreFixture(disk, path)
    fixture.start(spec(settings=ROLLING))
    for number in range(rolls + 1):
        write(fixture.log(), batch(timestamp=NOW + 101 * number))
    return fixture


def test_sealed_segments_are_synced_with_their_indexes_and_the_recovery_point_follows(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    fixture = rolling_room(disk, tmp_path)
    assert fixture.log().recovery_point == 0
    fixture.threads.run_one()
    assert (fixture.log().synced_end_offset, fixture.log().recovery_point) == (1, 1)
    assert disk.file_size(f"{tmp_path}/orders-0/{0:020d}.timeindex") == 12
    fixture.threads.run()
    assert fixture.log().recovery_point == 2
    fixture.abandon()


def test_sealed_segment_that_cannot_be_synced_fails_its_directory(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = rolling_room(disk, tmp_path)
    failed: list[LogDir] = []
    fixture.store.on_dir_failed = lambda directory, error: failed.append(directory)
    disk.fail("fdatasync", errno.ENOSPC)
    fixture.threads.run_one()
    assert failed == [fixture.store.dirs[0]]
    assert fixture.log().synced_end_offset == 0
    fixture.abandon()


def test_index_for_which_there_is_no_room_is_written_later(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = rolling_room(disk, tmp_path)
    fixture.store.on_dir_failed = lambda directory, error: pytest.fail("a full disk is not a broken one")
    disk.fail("write_file", errno.ENOSPC, path=".index")
    fixture.threads.run_one()
    assert fixture.log().recovery_point == 0
    write(fixture.log(), batch(timestamp=NOW + 1000))
    fixture.threads.run()
    assert fixture.log().recovery_point == 3
    fixture.abandon()


def test_segments_are_unlinked_in_a_thread_once_the_rest_has_durable_names(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = rolling_room(disk, tmp_path)
    fixture.threads.run()
    fixture.store.advance_log_start(fixture.log(), 2)
    name = f"{tmp_path}/orders-0/{0:020d}.log"
    assert disk.exists(name)
    disk.calls.clear()
    fixture.threads.run()
    assert not disk.exists(name)
    names = [call.name for call in disk.calls]
    assert names.index("fsync_dir") < names.index("remove")
    fixture.abandon()


def test_deleted_partition_is_renamed_at_once_and_removed_in_a_thread(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    fixture.store.delete(NAME, "unique")
    assert folders(disk, tmp_path) == {"orders-0.unique-delete"}
    fixture.threads.run()
    assert folders(disk, tmp_path) == set()
    assert NAME not in fixture.store.logs
    fixture.abandon()


def test_partition_without_a_folder_is_deleted_without_a_trace(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    changes = disk.changes
    fixture.store.delete(NAME, "unique")
    fixture.store.delete(NAME, "unique")
    fixture.threads.run()
    assert disk.changes == changes
    fixture.abandon()


def test_partition_on_an_offline_disk_is_forgotten_and_its_files_are_left(disk: MemoryDisk, tmp_path: Path) -> None:
    fixture = written(disk, tmp_path)
    fixture.store.dirs[0].offline = True
    fixture.store.delete(NAME, "unique")
    assert NAME not in fixture.store.logs
    assert folders(disk, tmp_path) == {"orders-0"}
    fixture.abandon()


def test_work_for_a_deleted_partition_neither_fails_nor_touches_its_successor(disk: MemoryDisk, tmp_path: Path) -> None:
    """Rolls and unlinks were waiting for a thread when the topic was deleted and made again."""
    fixture = rolling_room(disk, tmp_path)
    fixture.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    sync(fixture.log())
    fixture.store.advance_log_start(fixture.log(), 2)
    waiting, fixture.threads.jobs = fixture.threads.jobs, []
    fixture.store.delete(NAME, "unique")
    fixture.threads.run()
    fixture.store.create(spec(topic_id=OTHER_ID, settings=ROLLING))
    for number in range(3):
        write(fixture.log(), batch(2, timestamp=NOW + 101 * number))
    fixture.threads.run()
    names = sorted(disk.listdir(f"{tmp_path}/orders-0"))
    fixture.threads.jobs = waiting
    fixture.threads.run()
    assert sorted(disk.listdir(f"{tmp_path}/orders-0")) == names
    again = StoreFixture(killed(fixture), tmp_path)
    again.start(spec(topic_id=OTHER_ID, settings=ROLLING))
    assert offsets(again.log()) == [(0, 2), (2, 4), (4, 6)]
    again.abandon()


def test_sync_of_a_sealed_segment_that_fails_because_its_topic_went_is_no_failure(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    fixture = rolling_room(disk, tmp_path)
    fixture.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    work, done = fixture.threads.jobs.pop(0)
    work()
    fixture.store.delete(NAME, "unique")
    done(FileNotFoundError(errno.ENOENT, "the folder is gone"))
    fixture.abandon()


def test_roll_that_is_synced_after_its_segment_was_unlinked_does_not_bring_it_back(
    disk: MemoryDisk, tmp_path: Path
) -> None:
    fixture = written(disk, tmp_path)
    fixture.stop()
    fixture = StoreFixture(disk, tmp_path)
    fixture.start(spec())
    fixture.store.on_dir_failed = lambda directory, error: pytest.fail(f"the directory failed: {error}")
    fixture.store.advance_log_start(fixture.log(), 5)
    assert len(fixture.threads.jobs) == 3
    fixture.threads.jobs.reverse()
    fixture.threads.run()
    assert [name for name in disk.listdir(f"{tmp_path}/orders-0") if name.endswith(".log")] == [f"{5:020d}.log"]
    fixture.abandon()


def test_directory_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    fixture = StoreFixture(disk_with(tmp_path), tmp_path, tmp_path)
    with pytest.raises(StartError, match="twice; remove one of them"):
        fixture.store.lock()
