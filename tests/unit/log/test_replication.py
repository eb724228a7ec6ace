"""The append of a follower: its log becomes the leader's log, byte for byte, or does not change."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    append,
    batch,
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
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec
from tests.unit.log.txn_fixtures import Client, append_txn, end_txn, read_committed, txn_batch

from ottla.env.disk import WriteFailed
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.log.replication import COPIED_BYTES_MAX
from ottla.log.truncation import EPOCHS_FILE
from ottla.model.batch import CRC_POSITION, read_header
from ottla.model.errors import CorruptMessage, UnexpectedAppendOffset
from ottla.testing.disk import MemoryDisk

SETTINGS = topic(segment_ms=1000, index_interval_bytes=0)
MINUTE = 60_000


def replicate(
    leader: Log, follower: Log, *, size_bytes_max: int = 1 << 20, cut: int = 0, epoch: int = 99
) -> list[tuple[int, int]]:
    """Fetch from the leader until the follower has everything; ``cut`` bytes are missing at the end of each fetch."""
    answers = []
    while follower.log_end_offset < leader.written_end_offset:
        region = leader.read(
            max(follower.log_end_offset, leader.log_start_offset), size_bytes_max, leader.written_end_offset,
            at_least_one=True,
        )  # fmt: skip
        assert region is not None
        data = region.read()
        kept = len(data) - cut if read_header(data).size_bytes <= len(data) - cut else len(data)
        answers.append(follower.append_as_follower(memoryview(data)[:kept], leader_epoch=epoch, now_ms=NOW))
        assert answers[-1][1] == follower.log_end_offset
    follower.write_pending()
    return answers


def check_equal(leader: Log, follower: Log) -> None:
    """Compare everything that a reader, a producer or another follower can see."""
    assert contents(follower) == contents(leader)
    assert (follower.log_end_offset, follower.written_end_offset) == (leader.log_end_offset, leader.written_end_offset)
    assert (follower.epochs.epochs, follower.epochs.starts) == (leader.epochs.epochs, leader.epochs.starts)
    assert producer_state(follower) == producer_state(leader)
    assert follower.producers.open == leader.producers.open
    assert (follower.first_unstable_offset, follower.ended) == (leader.first_unstable_offset, leader.ended)
    start, end = leader.log_start_offset, leader.log_end_offset
    assert follower.aborted_transactions(start, end) == leader.aborted_transactions(start, end)
    assert read_committed(follower) == read_committed(leader)
    assert follower.newest_timestamp() == leader.newest_timestamp()


def busy_leader(**overrides: object) -> Log:
    """A log with several epochs, segments, producers, and transactions that are committed, aborted and open."""
    log = new_log(**{"segment_ms": 1000, "index_interval_bytes": 0, **overrides})
    first, second = Client(log, pid=1), Client(log, pid=2, epoch=3)
    for number in range(4):
        log.become_leader(2 * number)
        now = NOW + number * MINUTE
        append(log, batch(3, timestamp=now, producer=(9, 0, 3 * number)), now)
        first.send(b"a", timestamp=now)
        second.send(b"b", b"c", timestamp=now)
        append(log, batch(2, timestamp=now), now)
        first.commit(now_ms=now)
        second.abort(coordinator_epoch=number, now_ms=now)
        first.send(b"d", timestamp=now)
        if number % 2:
            first.abort(now_ms=now)
        log.write_pending()
    first.send(b"open", timestamp=NOW + 3 * MINUTE)
    log.write_pending()
    return log


# -- valid batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes_max", [1, 300, 1000, 1 << 20])
@pytest.mark.parametrize("cut", [0, 1, 40, 70])
def test_follower_gets_the_log_of_its_leader(size_bytes_max: int, cut: int) -> None:
    leader = busy_leader()
    follower = open_at(new_disk(), SETTINGS)
    replicate(leader, follower, size_bytes_max=size_bytes_max, cut=cut)
    check_equal(leader, follower)
    assert len(follower.segments) == len(leader.segments)


def test_follower_rolls_by_its_own_settings() -> None:
    leader = busy_leader(segment_ms=1 << 40)
    follower = open_at(new_disk(), topic(segment_bytes=400))
    assert len(replicate(leader, follower)) == 1
    assert len(leader.segments) == 1
    assert len(follower.segments) > 5
    check_equal(leader, follower)


def test_batches_of_one_fetch_are_written_with_one_call() -> None:
    leader = new_log()
    write(leader, *(batch(2) for _ in range(50)))
    disk = new_disk()
    follower = open_at(disk, SETTINGS)
    replicate(leader, follower)
    assert sum(call.name in ("pwrite", "pwritev") for call in disk.calls) == 1
    assert follower.appended_bytes == leader.appended_bytes


def test_large_fetch_is_written_immediately_behind_the_pending_batches() -> None:
    leader = new_log()
    write(leader, batch(), *(batch(1, size=9000) for _ in range(5)))
    disk = new_disk()
    follower = open_at(disk, SETTINGS)
    parts = contents(leader)
    assert follower.append_as_follower(memoryview(parts[0]), leader_epoch=0, now_ms=NOW) == (0, 1)
    assert follower.written_end_offset == 0
    rest = b"".join(parts[1:])
    assert len(rest) > COPIED_BYTES_MAX
    assert follower.append_as_follower(memoryview(rest), leader_epoch=0, now_ms=NOW) == (1, 6)
    assert (follower.written_end_offset, follower.pending) == (6, [])
    check_equal(leader, follower)


def test_nothing_is_appended_from_an_incomplete_batch() -> None:
    leader, follower = new_log(), new_log()
    write(leader, batch(3))
    data = contents(leader)[0]
    for size in (0, 1, 60, 61, len(data) - 1):
        assert follower.append_as_follower(memoryview(data)[:size], leader_epoch=0, now_ms=NOW) == (0, 0)
    assert (follower.log_end_offset, follower.epochs.epochs, follower.pending) == (0, [], [])


def test_follower_that_becomes_leader_continues_sequences_and_transactions() -> None:
    leader, follower = busy_leader(), open_at(new_disk(), SETTINGS)
    replicate(leader, follower)
    end = follower.log_end_offset
    follower.become_leader(8)
    assert append(follower, batch(3, timestamp=NOW + 3 * MINUTE, producer=(9, 0, 9)))[1] < end  # a duplicate
    assert append(follower, batch(1, timestamp=NOW + 3 * MINUTE, producer=(9, 0, 12))) == (end, end + 1)
    assert end_txn(follower, 1, commit=False) == end + 1
    follower.write_pending()
    assert (follower.epochs.epochs[-2:], follower.epochs.starts[-1]) == ([6, 8], end)
    assert b"open" not in [record.value for record in read_committed(follower)]


def test_unsequenced_batches_of_coordinators_are_replicated() -> None:
    leader, follower = new_log(), new_log()
    append_txn(leader, txn_batch(b"x", sequence=-1), sequenced=False)
    end_txn(leader, commit=True)
    leader.write_pending()
    replicate(leader, follower)
    check_equal(leader, follower)


@pytest.mark.parametrize("seed", range(4))
def test_replicated_batches_survive_a_crash_with_epochs_and_transactions(seed: int) -> None:
    leader, disk = busy_leader(), new_disk()
    follower = open_at(disk, SETTINGS)
    replicate(leader, follower, size_bytes_max=500)
    sync(follower)
    again = open_at(disk.crash(Random(seed), "power"), SETTINGS, recovery_point=follower.recovery_point)
    again.ended = leader.ended  # not stored: only the leader and its followers know the high watermark
    check_equal(leader, again)


def follower_with_an_older_file_of_epochs(disk: MemoryDisk) -> tuple[Log, Log]:
    """Return a leader and its follower after a power failure that brought back an older file."""
    leader = new_log()
    for epoch in (1, 2):
        leader.become_leader(epoch)
        append(leader, batch(3))
        leader.write_pending()
    replicate(leader, open_at(disk, SETTINGS))
    older = LeaderEpochs()
    older.assign(1, 0)
    disk.write_file(f"{FOLDER}/{EPOCHS_FILE}", older.to_text().encode(), sync=True)
    follower = open_at(disk, SETTINGS)
    append(leader, batch(3))
    leader.write_pending()
    replicate(leader, follower)
    return leader, follower


def test_epochs_that_recovery_found_are_in_their_file_when_the_segment_is_sealed() -> None:
    """Recovery reads the epochs from a sealed segment only once."""
    disk = new_disk()
    leader, follower = follower_with_an_older_file_of_epochs(disk)
    follower.roll()
    assert disk.read_file(f"{FOLDER}/{EPOCHS_FILE}") == leader.epochs.to_text().encode()


def test_segment_is_read_by_recovery_until_its_epochs_are_in_their_file() -> None:
    disk = new_disk()
    leader, follower = follower_with_an_older_file_of_epochs(disk)
    disk.fail("write_file", errno.ENOSPC, path=EPOCHS_FILE, times=None)
    follower.roll()
    with pytest.raises(OSError, match="epochs"):
        follower.sync_sealed(follower.segments[0])
    assert follower.recovery_point == 0
    disk.heal()
    append(leader, batch(3))
    leader.write_pending()
    replicate(leader, follower)
    follower.roll()
    follower.sync_sealed(follower.segments[0])
    assert disk.read_file(f"{FOLDER}/{EPOCHS_FILE}") == leader.epochs.to_text().encode()


# -- gaps -------------------------------------------------------------------------------------------------------------


def compacted_leader(path: Path) -> CompactionFixture:
    fixture = CompactionFixture(path, compacted(segment_bytes=5000))
    for key in (b"x", b"a", b"b", b"y", b"b", b"a", b"z", b"b", b"c"):
        fixture.produce((key, b"v" * 50), (key, b"w"))
        fixture.roll()
    assert fixture.compact()
    fixture.produce((b"d", b"v"))
    return fixture


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("segment_bytes", [100, 200, 5000])
def test_gaps_of_a_compacted_log_survive_a_crash_of_the_follower(
    tmp_path: Path, policy: str, segment_bytes: int
) -> None:
    leader = compacted_leader(tmp_path)
    headers = [read_header(data) for data in contents(leader.log)]
    assert any(b.base_offset > a.next_offset for a, b in pairwise(headers)), "no gap"
    path, settings = tmp_path / "follower", topic(cleanup_policy=policy, segment_bytes=segment_bytes)
    path.mkdir()
    follower = StoreFixture(disk_with(path), path)
    follower.start(spec(settings=settings))
    replicate(leader.log, follower.log())
    assert contents(follower.log()) == contents(leader.log)
    sync(follower.log())
    follower.threads.run()
    follower.store.write_checkpoints({}, sync=False)
    follower.abandon()
    assert isinstance(follower.disk, MemoryDisk)
    for keep in ("process", "power"):
        again = StoreFixture(follower.disk.crash(Random(1), keep), path)  # type: ignore[arg-type]
        again.start(spec(settings=settings))
        assert contents(again.log()) == contents(leader.log)
        again.abandon()
    leader.abandon()


def test_follower_of_a_delete_topic_records_each_later_gap(tmp_path: Path) -> None:
    leader = compacted_leader(tmp_path)
    follower = StoreFixture(leader.disk, tmp_path / "follower")
    (tmp_path / "follower").mkdir()
    follower.start(spec(settings=topic()))
    replicate(leader.log, follower.log(), size_bytes_max=1)
    gaps = [end for (_, end), (base, _) in pairwise(offsets(leader.log)) if base > end]
    assert follower.log().first_dirty_offset == max([*gaps, 1])
    follower.abandon()
    leader.abandon()


# -- batches that do not fit ------------------------------------------------------------------------------------------


def state(log: Log) -> tuple[object, ...]:
    return (
        contents(log), log.log_end_offset, log.written_end_offset, log.epochs.epochs, log.epochs.starts,
        producer_state(log), dict(log.producers.open), log.ended, len(log.segments), log.active.size_bytes,
        list(log.active.offset_index.entries), log.pending[:],
    )  # fmt: skip


def damaged(data: bytes, position: int, size: int, value: int) -> bytes:
    return data[:position] + value.to_bytes(size, "big", signed=True) + data[position + size :]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-1] + b"?", CorruptMessage),
        (lambda data: damaged(data, CRC_POSITION, 4, 7), CorruptMessage),
        (lambda data: damaged(data, 16, 1, 1), CorruptMessage),  # magic
        (lambda data: damaged(data, 8, 4, 10), CorruptMessage),  # length
        (lambda data: damaged(data, 0, 8, 4), UnexpectedAppendOffset),  # base offset inside of the batch before
        (lambda data: damaged(data, 12, 4, 0), CorruptMessage),  # an older leader epoch than the batch before
        (lambda data: damaged(data, 12, 4, 3), CorruptMessage),  # a newer leader epoch than the leader
        (lambda data: damaged(data, 12, 4, -1), CorruptMessage),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_invalid_batch_among_valid_ones_changes_nothing(
    change: Callable[[bytes], bytes], error: type[Exception], number: int
) -> None:
    leader = new_log(segment_ms=1000)
    leader.become_leader(1)
    write(leader, batch(5, producer=(1, 0, 0)))
    leader.become_leader(2)
    for n in range(4):
        write(leader, batch(2, timestamp=NOW + n * MINUTE, producer=(1, 0, 5 + 2 * n)))
    follower = open_at(new_disk(), SETTINGS)
    parts = contents(leader)
    follower.append_as_follower(memoryview(parts[0]), leader_epoch=1, now_ms=NOW)
    before = state(follower)
    invalid = parts[1:]
    invalid[number] = change(invalid[number])
    with pytest.raises(error):
        follower.append_as_follower(memoryview(b"".join(invalid)), leader_epoch=2, now_ms=NOW)
    assert state(follower) == before
    follower.append_as_follower(memoryview(b"".join(parts[1:])), leader_epoch=2, now_ms=NOW)
    follower.write_pending()
    check_equal(leader, follower)


def test_batch_before_the_log_end_is_rejected_with_its_offsets() -> None:
    leader, follower = new_log(), new_log()
    write(leader, batch(5), batch(5))
    replicate(leader, follower)
    with pytest.raises(UnexpectedAppendOffset, match="offsets 5 to 9, the log ends at 10") as raised:
        follower.append_as_follower(memoryview(contents(leader)[1]), leader_epoch=0, now_ms=NOW)
    assert (raised.value.base_offset, raised.value.last_offset) == (5, 9)


def test_empty_log_starts_again_at_a_batch_that_begins_before_the_log_start() -> None:
    """DeleteRecords ended inside of the leader's batch, and the follower starts at the leader's log start offset."""
    leader, follower = new_log(), new_log()
    leader.become_leader(4)
    write(leader, batch(5), batch(5))
    follower.truncate_fully_and_start_at(7)
    data = contents(leader)[1]
    with pytest.raises(CorruptMessage):
        follower.append_as_follower(memoryview(data[:-1] + b"?"), leader_epoch=4, now_ms=NOW)
    assert (follower.log_start_offset, follower.log_end_offset) == (7, 7)
    assert follower.append_as_follower(memoryview(data), leader_epoch=4, now_ms=NOW) == (5, 10)
    follower.write_pending()
    assert (follower.log_start_offset, contents(follower)) == (5, [data])
    assert (follower.epochs.epochs, follower.epochs.starts) == ([4], [5])
    follower.advance_log_start(7)
    assert contents(follower) == [data]


# -- failing disks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write_file", "create", "pwrite", "pwritev", "any"])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_failed_write_leaves_none_of_the_batches(kind: str, skip: int) -> None:
    leader = new_log(segment_ms=1000)
    for n in range(4):
        leader.become_leader(n)
        write(leader, batch(3, timestamp=NOW + n * MINUTE, size=9000, producer=(1, 0, 6 * n)))
        write(leader, batch(3, timestamp=NOW + n * MINUTE, size=9000, producer=(1, 0, 6 * n + 3)))
    disk = new_disk()
    follower = open_at(disk, SETTINGS)
    parts = contents(leader)
    follower.append_as_follower(memoryview(parts[0]), leader_epoch=0, now_ms=NOW)
    follower.write_pending()
    before = contents(follower), follower.epochs.epochs, producer_state(follower)
    disk.fail(kind, errno.ENOSPC, skip=skip, applied_bytes=100)
    rest = memoryview(b"".join(parts[1:]))
    try:
        follower.append_as_follower(rest, leader_epoch=9, now_ms=NOW)
    except WriteFailed:
        disk.heal()
        assert (contents(follower), follower.epochs.epochs, producer_state(follower)) == before
        assert (follower.log_end_offset, follower.pending, follower.failure) == (3, [], None)
        follower.append_as_follower(rest, leader_epoch=9, now_ms=NOW)
    disk.heal()
    follower.write_pending()
    check_equal(leader, follower)


def test_stored_bytes_are_those_of_the_leader() -> None:
    leader, follower = new_log(), new_log()
    leader.become_leader(6)
    write(leader, batch(2))
    replicate(leader, follower)
    assert contents(follower) == [stored(batch(2), 0, 6)]
