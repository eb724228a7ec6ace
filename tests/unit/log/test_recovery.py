"""Opening a log after a clean stop, after a crash, and with every kind of damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    append,
    batch,
    clean_stop,
    contents,
    new_disk,
    new_log,
    offsets,
    open_at,
    producer_state,
    stored,
    sync,
    topic,
    write,
)

from ottla.log.checkpoints import CleanStop
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.model.batch import LENGTH_END, read_header
from ottla.model.errors import OffsetOutOfRange
from ottla.model.records import batch_without_records
from ottla.model.settings import TopicSettings
from ottla.testing.disk import MemoryDisk

SMALL = topic(segment_bytes=400, max_message_bytes=400, index_interval_bytes=100)
EPOCHS = "leader-epoch-checkpoint"
#: base offset of the last segment of ``written_log``; nine batches stand before it, three in it
LAST = 18


def path_of(base: int, suffix: str) -> str:
    return f"{FOLDER}/{base:020d}{suffix}"


def written_log(disk: MemoryDisk, settings: TopicSettings = SMALL, batches: int = 12) -> Log:
    """A log of several segments, with two producers and three leader epochs."""
    log = open_at(disk, settings)
    for number in range(batches):
        if number % 5 == 0:
            log.become_leader(number)
        sequence = number // 2 * 2
        write(log, batch(2, timestamp=NOW + number, producer=(1 + number % 2, 0, sequence), key=b"key %d" % number))
    return log


def finish_rolls(log: Log) -> None:
    """What the store's threads do with sealed segments."""
    for segment in log.segments[:-1]:
        log.sync_sealed(segment)
        log.note_segments_synced([(segment, segment.size_bytes)])


def put(disk: MemoryDisk, path: str, data: bytes | None) -> None:
    """Replace a file, or remove it."""
    disk.remove(path)
    if data is not None:
        disk.write_file(path, data, sync=True)


def killed(disk: MemoryDisk) -> MemoryDisk:
    return disk.crash(Random(0), "process")


def must_be_refused(log: Log, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        log.read(offset, 1000, log.written_end_offset, at_least_one=True)


# -- after a clean stop -----------------------------------------------------------------------------------------------


def test_clean_start_opens_no_segment() -> None:
    disk = new_disk()
    clean = clean_stop(written_log(disk))
    disk.calls.clear()
    open_at(disk, SMALL, clean=clean)
    assert not [call for call in disk.calls if call.path.endswith(".log") and call.name != "file_size"]


def test_clean_start_changes_nothing_on_disk() -> None:
    disk = new_disk()
    clean = clean_stop(written_log(disk))
    before = disk.changes
    open_at(disk, SMALL, clean=clean)
    assert disk.changes == before


def test_clean_stop_after_a_clean_start_of_a_quiet_log_writes_nothing() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL, clean=clean_stop(written_log(disk)))
    before = disk.changes
    log.flush_files()
    assert disk.changes == before


def test_everything_is_there_after_a_clean_restart() -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, producers = contents(log), producer_state(log)
    log = open_at(disk, SMALL, clean=clean_stop(log))
    assert contents(log) == expected
    assert producer_state(log) == producers
    assert log.epochs.epochs == [0, 5, 10]


def test_clean_stop_survives_a_power_cut_with_all_that_describes_the_data() -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, producers, clean = contents(log), producer_state(log), clean_stop(log)
    for seed in range(20):
        again = open_at(disk.crash(Random(seed), "power"), SMALL, clean=clean)
        assert contents(again) == expected
        assert producer_state(again) == producers
        assert again.epochs.epochs == [0, 5, 10]
        assert again.offset_for_timestamp(NOW + 7, 24) == (14, NOW + 7)
        assert again.newest_timestamp() == (22, NOW + 11)


def test_older_batch_after_a_clean_restart_does_not_hide_the_newest() -> None:
    disk = new_disk()
    log = new_log(disk)
    write(log, batch(timestamp=NOW + 100))
    log = open_at(disk, topic(), clean=clean_stop(log))
    write(log, batch(timestamp=NOW))
    assert log.newest_timestamp() == (0, NOW + 100)
    assert log.offset_for_timestamp(NOW + 50, 2) == (0, NOW + 100)


def test_rolling_by_time_counts_from_the_first_batch_across_a_clean_restart() -> None:
    disk, settings = new_disk(), topic(segment_ms=100)
    log = open_at(disk, settings)
    write(log, batch(timestamp=NOW))
    log = open_at(disk, settings, clean=clean_stop(log))
    write(log, batch(timestamp=NOW + 100))
    assert len(log.segments) == 1
    write(log, batch(timestamp=NOW + 101))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_log_of_which_everything_was_deleted_goes_on_at_its_end(stop: str) -> None:
    disk = new_disk()
    log = written_log(disk)
    sync(log)
    for segment in log.advance_log_start(24):
        segment.delete_files()
    log = open_at(disk, SMALL, clean=clean_stop(log)) if stop == "clean" else open_at(killed(disk), SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (24, 24)
    must_be_refused(log, 23)
    assert write(log, batch()) == [24]


def test_log_of_which_everything_was_deleted_goes_on_at_its_end_after_a_power_cut() -> None:
    disk = new_disk()
    log = written_log(disk)
    sync(log)
    dropped = log.advance_log_start(24)
    disk.fsync_dir(FOLDER)  # as the store does before it unlinks
    for segment in dropped:
        segment.delete_files()
    for seed in range(30):
        again = open_at(disk.crash(Random(seed), "power"), SMALL, log_start=24)
        assert (again.log_start_offset, again.log_end_offset) == (24, 24)


def test_empty_active_segment_is_found_again() -> None:
    disk = new_disk()
    log = new_log(disk)
    write(log, batch(3))
    log.roll()
    log = open_at(disk, topic(), clean=clean_stop(log))
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    assert write(log, batch()) == [3]
    assert offsets(log) == [(0, 3), (3, 4)]


def clean_but(change: Callable[[MemoryDisk], None]) -> tuple[Log, list[bytes]]:
    """A clean stop, then something that does not fit it."""
    disk = new_disk()
    log = written_log(disk)
    expected, clean = contents(log), clean_stop(log)
    change(disk)
    return open_at(disk, SMALL, clean=clean), expected


def test_file_that_grew_since_the_clean_stop_is_checked() -> None:
    log, expected = clean_but(
        lambda disk: put(disk, path_of(LAST, ".log"), (disk.read_file(path_of(LAST, ".log")) or b"") + b"rubbish")
    )
    assert contents(log) == expected


def test_file_that_shrank_since_the_clean_stop_is_checked() -> None:
    log, expected = clean_but(
        lambda disk: put(disk, path_of(LAST, ".log"), (disk.read_file(path_of(LAST, ".log")) or b"")[:-1])
    )
    assert contents(log) == [*expected[:-1], batch_without_records(22, 24, 10)]


def test_missing_active_file_is_noticed() -> None:
    log, expected = clean_but(lambda disk: disk.remove(path_of(LAST, ".log")))
    assert contents(log) == [*expected[:9], batch_without_records(LAST, 24, 5)]
    assert log.log_end_offset == 24


def test_segment_nobody_noted_is_checked() -> None:
    log, expected = clean_but(lambda disk: put(disk, path_of(24, ".log"), b"rubbish"))
    assert contents(log) == expected


def test_missing_snapshot_after_a_clean_stop_is_replaced_by_replay() -> None:
    for damage in (None, b"", b"rubbish" * 20):
        disk = new_disk()
        log = written_log(disk)
        producers, clean = producer_state(log), clean_stop(log)
        put(disk, path_of(24, ".snapshot"), damage)
        log = open_at(disk, SMALL, clean=clean)
        assert append(log, batch(2, timestamp=NOW + 11, producer=(2, 0, 10), key=b"key 11")) == (22, 24)
        assert producer_state(log) == producers


def test_missing_index_after_a_clean_stop_is_rebuilt() -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, clean = contents(log), clean_stop(log)
    for name in disk.listdir(FOLDER):
        if name.endswith("index"):
            disk.remove(f"{FOLDER}/{name}")
    log = open_at(disk, SMALL, clean=clean)
    assert contents(log) == expected
    assert log.offset_for_timestamp(NOW + 7, 24) == (14, NOW + 7)
    assert log.newest_timestamp() == (22, NOW + 11)


def test_epochs_that_wrote_nothing_are_not_in_the_history_after_a_clean_start() -> None:
    disk = new_disk()
    clean = clean_stop(written_log(disk))
    put(disk, f"{FOLDER}/{EPOCHS}", b"0\n4\n0 0\n5 10\n10 20\n11 24\n")
    assert open_at(disk, SMALL, clean=clean).epochs.epochs == [0, 5, 10]


# -- after a crash ----------------------------------------------------------------------------------------------------


def test_folder_without_files_is_an_empty_log() -> None:
    log = new_log()
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.read(0, 1000, 0, at_least_one=True) is None


@pytest.mark.parametrize("recovery_point", [0, 3, 6, 10, LAST, 24])
def test_everything_written_is_there_after_a_kill(recovery_point: int) -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, producers = contents(log), producer_state(log)
    finish_rolls(log)
    again = open_at(killed(disk), SMALL, recovery_point=recovery_point)
    assert contents(again) == expected
    assert producer_state(again) == producers
    assert (again.epochs.epochs, again.epochs.starts) == ([0, 5, 10], [0, 10, 20])
    assert again.synced_end_offset == 24


def test_recovery_reads_no_segment_below_the_recovery_point() -> None:
    disk = new_disk()
    log = written_log(disk)
    finish_rolls(log)
    point = log.recovery_point
    booted = killed(disk)
    open_at(booted, SMALL, recovery_point=point)
    assert preads_of_sealed_segments(booted) <= 1
    assert point == LAST


def preads_of_sealed_segments(disk: MemoryDisk) -> int:
    """Return how often the most read of the sealed segments was read: once for its end."""
    reads = Counter(call.path for call in disk.calls if call.name == "pread" and call.path.endswith(".log"))
    return max(count for path, count in reads.items() if path != path_of(LAST, ".log"))


def test_power_cut_does_not_make_recovery_read_what_is_below_the_recovery_point() -> None:
    disk = new_disk()
    log = written_log(disk)
    finish_rolls(log)
    for seed in range(20):
        booted = disk.crash(Random(seed), "power")
        open_at(booted, SMALL, recovery_point=log.recovery_point)
        assert preads_of_sealed_segments(booted) <= 1


def test_recovery_point_waits_for_the_indexes_of_what_is_below_it() -> None:
    log = written_log(new_disk())
    sync(log)
    assert log.synced_end_offset == 24
    assert log.recovery_point == 0
    log.sync_sealed(log.segments[0])
    assert log.recovery_point == log.segments[1].base_offset


def test_recovered_data_survives_the_next_power_cut() -> None:
    disk = new_disk()
    expected = contents(written_log(disk))
    booted = killed(disk)
    recovered = open_at(booted, SMALL)
    assert recovered.synced_end_offset == 24
    for seed in range(20):
        assert contents(open_at(booted.crash(Random(seed), "power"), SMALL)) == expected


def test_recovering_twice_is_recovering_once() -> None:
    disk = new_disk()
    written_log(disk)
    once = killed(disk)
    open_at(once, SMALL)
    twice = killed(once)
    open_at(twice, SMALL)
    names = sorted(once.listdir(FOLDER))
    assert sorted(twice.listdir(FOLDER)) == names
    assert all(twice.read_file(f"{FOLDER}/{name}") == once.read_file(f"{FOLDER}/{name}") for name in names)


def test_torn_tail_is_cut_to_the_last_whole_batch() -> None:
    disk, settings = new_disk(), topic()
    log = open_at(disk, settings)
    write(log, *(batch(number, key=b"key %d" % number) for number in range(1, 7)))
    expected = contents(log)
    data = disk.read_file(path_of(0, ".log")) or b""
    ends = [sum(map(len, expected[: number + 1])) for number in range(len(expected))]
    for size in range(ends[-4], len(data) + 1):
        booted = killed(disk)
        put(booted, path_of(0, ".log"), data[:size])
        log = open_at(booted, settings)
        whole = [batch for batch, end in zip(expected, ends, strict=True) if end <= size]
        assert contents(log) == whole
        next_offset = read_header(whole[-1]).next_offset
        assert log.log_end_offset == next_offset
        assert write(log, batch()) == [next_offset]
        assert contents(log) == [*whole, stored(batch(), next_offset)]


def test_every_flipped_bit_in_the_last_segment_is_noticed() -> None:
    disk = new_disk()
    expected = contents(written_log(disk))
    data = disk.read_file(path_of(LAST, ".log")) or b""
    sizes = [len(batch) for batch in expected]
    assert sum(sizes[9:]) == len(data)
    for at in range(len(data)):
        hit, inner = 9, at
        while inner >= sizes[hit]:
            inner -= sizes[hit]
            hit += 1
        for bit in range(8):
            booted = killed(disk)
            put(booted, path_of(LAST, ".log"), data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            log = open_at(booted, SMALL)
            if LENGTH_END <= inner < LENGTH_END + 4:
                # No checksum covers the leader epoch, and no rule says what it must be: the records stay.
                assert log.log_end_offset == 24
            else:
                assert contents(log) == expected[:hit], f"bit {bit} of byte {at}"


def test_damage_in_an_earlier_segment_takes_what_follows() -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, bases = contents(log), [segment.base_offset for segment in log.segments]
    data = bytearray(disk.read_file(path_of(bases[1], ".log")) or b"")
    data[-1] ^= 1
    put(disk, path_of(bases[1], ".log"), bytes(data))
    log = open_at(disk, SMALL)
    assert log.log_end_offset == bases[2] - 2
    assert contents(log) == expected[: log.log_end_offset // 2]
    left = {int(name.split(".")[0]) for name in disk.listdir(FOLDER) if name[0].isdigit() and ".snap" not in name}
    assert left == {bases[0], bases[1]}


def test_offset_beyond_what_a_segment_can_hold_is_damage() -> None:
    disk = new_disk()
    log = new_log(disk)
    write(log, batch(), batch())
    data = bytearray(disk.read_file(path_of(0, ".log")) or b"")
    data[len(data) // 2] = 0x10  # the second batch's offset goes up by 2^60
    put(disk, path_of(0, ".log"), bytes(data))
    for policy in ("delete", "compact"):
        assert open_at(killed(disk), topic(cleanup_policy=policy)).log_end_offset == 1


def segments_at(disk: MemoryDisk, *places: tuple[int, list[int]]) -> None:
    """Files that hold one-record batches at the given offsets."""
    for base, held in places:
        put(disk, path_of(base, ".log"), b"".join(stored(batch(), offset) for offset in held))


def test_segment_that_overlaps_the_one_before_it_is_dropped() -> None:
    disk = new_disk()
    segments_at(disk, (0, [0, 1, 2, 3]), (2, [2, 3, 4]))
    log = open_at(disk, topic())
    assert offsets(log) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert write(log, batch()) == [4]
    assert offsets(log)[-1] == (4, 5)
    assert not disk.exists(path_of(2, ".log"))


def test_hole_between_segments_ends_the_log() -> None:
    disk = new_disk()
    segments_at(disk, (0, [0, 1]), (5, [5, 6]))
    log = open_at(disk, topic())
    assert offsets(log) == [(0, 1), (1, 2)]
    assert write(log, batch()) == [2]


def test_holes_inside_segments_of_a_compacted_topic_stay_and_those_between_segments_are_filled() -> None:
    """Without checkpoints, a power failure may have removed the end of a segment whose successor's name was durable."""
    disk = new_disk()
    segments_at(disk, (0, [0, 3]), (5, [6, 9]))
    log = open_at(disk, topic(cleanup_policy="compact"))
    assert offsets(log) == [(0, 1), (3, 4), (4, 5), (6, 7), (9, 10)]
    assert log.log_end_offset == 10


def test_holes_between_segments_below_the_cleaner_checkpoint_stay() -> None:
    disk = new_disk()
    segments_at(disk, (0, [0, 3]), (5, [6, 9]))
    log = open_at(disk, topic(cleanup_policy="compact"), cleaner_offset=10)
    assert offsets(log) == [(0, 1), (3, 4), (6, 7), (9, 10)]


def test_batch_in_a_hole_has_the_epoch_of_the_batches_before_it() -> None:
    """Followers refuse a batch whose epoch is lower than that of a batch before it."""

    def in_epoch(epoch: int, *held: int) -> bytes:
        batches = (stored(batch(), offset) for offset in held)
        return b"".join(data[:12] + epoch.to_bytes(4, "big") + data[16:] for data in batches)

    disk = new_disk()
    put(disk, path_of(0, ".log"), in_epoch(0, 0, 1))
    put(disk, path_of(5, ".log"), in_epoch(0, 5, 6))
    put(disk, path_of(7, ".log"), in_epoch(5, 7, 8))
    put(disk, f"{FOLDER}/leader-epoch-checkpoint", b"0\n2\n0 0\n5 7\n")
    log = open_at(disk, topic(cleanup_policy="compact"))
    epochs = [(header.base_offset, header.leader_epoch) for each in log.segments for _, header in each.headers()]
    assert epochs == [(0, 0), (1, 0), (2, 0), (5, 0), (6, 0), (7, 5), (8, 5)]


def test_segment_that_lost_its_last_batch_in_a_compacted_topic_is_filled_up_to_the_next() -> None:
    """The name of an empty segment survived a power failure, and the last batch of the segment before it did not."""
    disk = new_disk()
    segments_at(disk, (0, [0, 1, 2]), (4, []))
    log = open_at(disk, topic(cleanup_policy="compact"))
    assert offsets(log) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert write(log, batch()) == [4]


def test_holes_below_the_recovery_point_stay_and_those_between_segments_are_filled() -> None:
    """The topic may have been compacted once; what was synced is not for recovery to judge."""
    disk = new_disk()
    segments_at(disk, (0, [0, 3]), (5, [6, 9]))
    assert offsets(open_at(disk, topic(), recovery_point=10)) == [(0, 1), (3, 4), (4, 5), (6, 7), (9, 10)]


def test_start_beyond_all_that_is_left_begins_the_log_anew_there() -> None:
    disk = new_disk()
    written_log(disk)
    log = open_at(disk, SMALL, log_start=30)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert producer_state(log) == {}
    # The next crash must find it there, with or without a checkpoint.
    log = open_at(killed(disk), SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert write(log, batch()) == [30]


def test_start_within_the_log_holds() -> None:
    disk = new_disk()
    written_log(disk)
    log = open_at(disk, SMALL, log_start=5)
    assert log.log_start_offset == 5
    must_be_refused(log, 4)
    assert offsets(log)[0] == (4, 6)


def test_snapshot_of_more_than_is_left_is_not_believed() -> None:
    """Batches that were cut off must be taken again when their producer repeats them."""
    disk = new_disk()
    log = written_log(disk)
    clean_stop(log)
    data = disk.read_file(path_of(LAST, ".log")) or b""
    put(disk, path_of(LAST, ".log"), data[:-1])
    log = open_at(disk, SMALL, recovery_point=22)
    assert log.log_end_offset == 22
    assert append(log, batch(2, timestamp=NOW + 11, producer=(2, 0, 10), key=b"key 11")) == (22, 24)
    assert log.log_end_offset == 24
    assert not disk.exists(path_of(24, ".snapshot"))


def test_batch_that_was_lost_is_stored_again_behind_the_gap_when_its_producer_repeats_it() -> None:
    disk = new_disk()
    clean = clean_stop(written_log(disk))
    put(disk, path_of(LAST, ".log"), (disk.read_file(path_of(LAST, ".log")) or b"")[:-1])
    log = open_at(disk, SMALL, clean=clean)
    assert log.log_end_offset == 24
    assert append(log, batch(2, timestamp=NOW + 11, producer=(2, 0, 10), key=b"key 11")) == (24, 26)


def test_leftovers_go_and_what_is_not_ours_stays() -> None:
    disk = new_disk()
    expected = contents(written_log(disk))
    gone = ["00000000000000000004.log.deleted", "x.cleaned", "y.tmp", "00000000000000000099.index",
            "00000000000000000099.timeindex", "00000000000000000003.snapshot"]  # fmt: skip
    ours = ["notes.txt", "partition.metadata", "extra.snapshot", "extra.log"]
    for name in gone + ours:
        put(disk, f"{FOLDER}/{name}", b"rubbish")
    assert contents(open_at(disk, SMALL)) == expected
    names = disk.listdir(FOLDER)
    assert not set(gone) & set(names)
    assert set(ours) <= set(names)


def test_index_of_an_earlier_life_does_not_speak_for_a_new_segment() -> None:
    disk = new_disk()
    log = new_log(disk, index_interval_bytes=0)
    write(log, batch())
    put(disk, path_of(1, ".timeindex"), (NOW + 500).to_bytes(8, "big") + bytes(4))
    put(disk, path_of(1, ".index"), bytes([0, 0, 0, 1, 0, 0, 0, 99]))
    log.roll()
    write(log, batch(timestamp=NOW + 1), batch(timestamp=NOW + 2), batch(timestamp=NOW + 3))
    assert log.newest_timestamp() == (3, NOW + 3)
    assert log.offset_for_timestamp(NOW + 2, 4) == (2, NOW + 2)


def test_epochs_of_a_log_that_is_read_as_a_whole_are_those_of_its_batches() -> None:
    disk = new_disk()
    written_log(disk)
    put(disk, f"{FOLDER}/{EPOCHS}", b"0\n2\n5 10\n10 20\n")
    log = open_at(disk, SMALL)
    assert (log.epochs.epochs, log.epochs.starts) == ([0, 5, 10], [0, 10, 20])


def test_start_of_an_epoch_is_that_of_its_first_batch_even_if_an_older_checkpoint_comes_back() -> None:
    """The first batches of the epoch were lost or undone, and the epoch then started at a smaller offset."""
    disk = new_disk()
    log = open_at(disk, topic(segment_ms=1000))
    write(log, batch(4))
    log.roll()
    for segment in log.segments[:-1]:
        log.sync_sealed(segment)
    write(log, batch(2))
    log.become_leader(7)
    write(log, batch(2))
    sync(log)
    point = log.recovery_point
    disk.write_file(f"{FOLDER}/{EPOCHS}", b"0\n2\n0 0\n7 7\n", sync=True)
    again = open_at(disk.crash(Random(0), "power"), topic(segment_ms=1000), recovery_point=point)
    assert point == 4
    assert (again.epochs.epochs, again.epochs.starts) == ([0, 7], [0, 6])


def test_epochs_that_recovery_learnt_stay_learnt() -> None:
    """A power cut left an old history; the next one comes right after recovery, whose recovery point is noted."""
    disk = new_disk()
    written_log(disk)
    put(disk, f"{FOLDER}/{EPOCHS}", b"0\n1\n0 0\n")
    booted = killed(disk)
    point = open_at(booted, SMALL).recovery_point
    assert point == 18
    for seed in range(10):
        log = open_at(booted.crash(Random(seed), "power"), SMALL, recovery_point=point)
        assert (log.epochs.epochs, log.epochs.starts) == ([0, 5, 10], [0, 10, 20])


# -- damaged side files -----------------------------------------------------------------------------------------------


def emptied(data: bytes) -> bytes:
    return b""


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": emptied,
    "zeros": lambda data: bytes(len(data)),
    "zeros at the start": lambda data: bytes(len(data) // 2) + data[len(data) // 2 :],
    "noise": lambda data: Random(1).randbytes(len(data) or 40),
    "longer": lambda data: data + Random(2).randbytes(30),
    "flipped": lambda data: bytes([data[0] ^ 0x40, *data[1:]]) if data else b"x",
    "cut": lambda data: data[:-1],
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", EPOCHS])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("recovery_point", [0, LAST])
def test_damaged_side_files_lose_nothing_after_a_crash(suffix: str, damage: str, recovery_point: int) -> None:
    disk = new_disk()
    log = written_log(disk)
    expected, producers, epochs = contents(log), producer_state(log), log.epochs.to_text()
    finish_rolls(log)
    booted = killed(disk)
    for name in booted.listdir(FOLDER):
        if name.endswith(suffix):
            put(booted, f"{FOLDER}/{name}", DAMAGES[damage](booted.read_file(f"{FOLDER}/{name}") or b""))
    log = open_at(booted, SMALL, recovery_point=recovery_point)
    assert contents(log) == expected
    for number, data in enumerate(expected):
        for offset in (2 * number, 2 * number + 1):
            region = log.read(offset, 1, 24, at_least_one=True)
            assert region is not None and region.read() == data
    assert log.offset_for_timestamp(NOW + 7, 24) == (14, NOW + 7)
    assert log.newest_timestamp() == (22, NOW + 11)
    assert producer_state(log) == producers
    assert log.epochs.to_text() == epochs


def test_retention_by_time_does_not_act_on_a_damaged_time_index() -> None:
    disk = new_disk()
    log = written_log(disk)
    finish_rolls(log)
    put(disk, path_of(0, ".timeindex"), b"")
    log = open_at(disk, SMALL, recovery_point=LAST)
    log.segments[0].load_times()
    assert log.segments[0].max_timestamp == NOW + log.segments[1].base_offset // 2 - 1


def test_note_of_another_log_is_not_taken() -> None:
    disk = new_disk()
    expected = contents(written_log(disk))
    other = CleanStop(log_end_offset=7, active_base_offset=4, active_size_bytes=300)
    assert contents(open_at(disk, SMALL, clean=other)) == expected


def test_segment_in_which_a_batch_length_is_damaged_does_not_hang_a_reader() -> None:
    """Below the recovery point nothing is checked at start, so a reader may come upon anything."""
    disk = new_disk()
    log = new_log(disk)
    write(log, *(batch() for _ in range(5)))
    size = log.active.size_bytes // 5
    for length in (-12, -13, 0, 48, -(1 << 31)):
        disk.pwrite(log.active.file.fd, length.to_bytes(4, "big", signed=True), 2 * size + 8)
        segment = Segment(disk, FOLDER, 0, 5 * size)
        with pytest.raises(Exception, match="damaged"):
            segment.position_of(4)
        with pytest.raises(Exception, match="damaged"):
            segment.whole_batches(0, 5 * size, 5 * size - 1, at_least_one=True)
