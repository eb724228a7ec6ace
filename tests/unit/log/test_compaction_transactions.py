"""Compaction of transactions: aborted records go, markers stay as long as anything needs them, readers see the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NOW, append, contents
from tests.unit.log.store_fixtures import disk_with
from tests.unit.log.txn_fixtures import Client, end_txn, read_committed, stable_end

from ottla.env.disk import RealDisk
from ottla.log.cleaner import CleanJob, clean, clean_in_process
from ottla.log.compaction import _job_of, plan_compaction
from ottla.model.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, read_header
from ottla.model.records import Record, build_batch
from ottla.model.settings import BrokerSettings
from ottla.testing.disk import MemoryDisk

RETENTION_MS = 1000
LATER = NOW + 10 * RETENTION_MS


@pytest.fixture
def fixture(tmp_path: Path) -> CompactionFixture:
    return CompactionFixture(tmp_path, compacted(delete_retention_ms=RETENTION_MS))


def seal(fixture: CompactionFixture) -> None:
    """Everything so far is sealed; something of no account follows."""
    fixture.log.write_pending()
    fixture.roll()
    fixture.produce((b"end", b"end"))


def expire(fixture: CompactionFixture) -> None:
    """The broker forgets its producers."""
    fixture.log.expire_producers(1 << 60)


def committed(fixture: CompactionFixture) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_committed(fixture.log) if record.key != b"end"}


def batches(fixture: CompactionFixture) -> list[tuple[int, int, int]]:
    """(base offset, attributes without the horizon, record count) of what is not plain."""
    headers = [read_header(data) for data in contents(fixture.log)]
    return [
        (header.base_offset, header.attributes & ~DELETE_HORIZON, header.record_count)
        for header in headers
        if header.attributes & TRANSACTIONAL
    ]


DATA, MARKER = TRANSACTIONAL, TRANSACTIONAL | CONTROL


def test_aborted_records_go_and_stand_for_nothing(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    client.send(b"1", key=b"a")
    client.commit()
    client.send(b"2", key=b"a")
    client.send(b"2", key=b"b")
    client.abort()
    expire(fixture)
    seal(fixture)
    assert fixture.compact()
    assert committed(fixture) == {b"a": b"1"}
    assert batches(fixture) == [(0, DATA, 1), (1, MARKER, 1), (4, MARKER, 1)]


def test_committed_records_stand_for_older_ones(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    fixture.produce((b"a", b"0"))
    client.send(b"1", key=b"a")
    client.commit()
    client.send(b"2", key=b"a")
    client.commit()
    expire(fixture)
    seal(fixture)
    assert fixture.compact()
    assert committed(fixture) == {b"a": b"2"}
    assert batches(fixture) == [(2, MARKER, 1), (3, DATA, 1), (4, MARKER, 1)]


def test_committed_deletion_goes_after_its_time(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    fixture.produce((b"a", b"0"))
    client.send(None, key=b"a")  # type: ignore[arg-type]
    client.commit()
    expire(fixture)
    seal(fixture)
    assert fixture.compact()
    assert committed(fixture) == {b"a": None}
    seal(fixture)
    assert fixture.compact(LATER)
    assert committed(fixture) == {}


def test_marker_stays_while_a_record_of_its_transaction_does(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    client.send(b"1", key=b"a")
    client.send(b"1", key=b"b")
    client.commit()
    expire(fixture)
    for number in range(4):
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    assert batches(fixture) == [(0, DATA, 1), (1, DATA, 1), (2, MARKER, 1)]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_goes_when_its_transaction_has_been_gone_for_the_delete_retention(
    fixture: CompactionFixture, commit: bool
) -> None:
    client = Client(fixture.log)
    client.send(b"1", key=b"a")
    end_txn(fixture.log, commit=commit)
    fixture.produce((b"a", b"2"))
    expire(fixture)

    def markers_after(now_ms: int) -> list[tuple[int, int, int]]:
        seal(fixture)
        assert fixture.compact(now_ms)
        return batches(fixture)

    assert markers_after(NOW) == [(1, MARKER, 1)]
    # 1 this pass took the records  2 the first that finds none sets the time  3 until then it stays
    assert markers_after(LATER) == [(1, MARKER, 1)]
    assert markers_after(LATER + RETENTION_MS - 1) == [(1, MARKER, 1)]
    assert markers_after(LATER + RETENTION_MS) == []
    assert committed(fixture) == {b"a": b"2"}


def test_row_of_the_index_goes_before_the_marker(fixture: CompactionFixture) -> None:
    """A row whose marker is missing would hide all that its producer wrote later."""
    client = Client(fixture.log)
    client.send(b"1", key=b"a")
    client.abort()
    client.send(b"2", key=b"b")
    client.commit()
    expire(fixture)
    seal(fixture)
    assert fixture.compact()
    assert fixture.log.aborted_transactions(0, 99) == [(1, 0)]
    seal(fixture)
    assert fixture.compact(LATER)
    assert fixture.log.aborted_transactions(0, 99) == []
    assert (1, MARKER, 1) in batches(fixture)
    seal(fixture)
    assert fixture.compact(LATER * 2)
    assert committed(fixture) == {b"b": b"2"}


def test_last_batch_of_a_known_producer_stays_without_its_aborted_records(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    client.send(b"1", b"2", key=b"a")
    client.abort()
    for number in range(4):
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    assert batches(fixture) == [(0, DATA, 0), (2, MARKER, 1)]
    fixture.restart()
    assert fixture.log.producers.entries[1].next_sequence == 2
    assert fixture.log.first_unstable_offset is None


def test_only_marker_of_a_known_producer_stays_for_its_epoch(fixture: CompactionFixture) -> None:
    end_txn(fixture.log, 1, 5, commit=True)
    for number in range(4):
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    assert batches(fixture) == [(0, MARKER, 0)]
    fixture.disk.remove(f"{fixture.log.directory}/{fixture.log.log_end_offset:020d}.snapshot")
    fixture = crashed(fixture)
    assert fixture.log.producers.entries[1].epoch == 5


def crashed(fixture: CompactionFixture) -> CompactionFixture:
    """The process died, and everything but the logs is lost."""
    disk: MemoryDisk = fixture.disk
    for name in fixture.files():
        if name.endswith((".snapshot", ".txnindex", ".index")):
            disk.remove(f"{fixture.log.directory}/{name}")
    disk.remove(f"{fixture.path}/recovery-point-offset-checkpoint")
    fixture.abandon()
    return fixture.crash(disk)


def test_place_of_an_aborted_batch_at_the_end_is_kept_by_nobody(tmp_path: Path) -> None:
    """Were it still its producer's, a log that is replayed would have a transaction without an end."""
    settings = compacted(delete_retention_ms=RETENTION_MS, segment_bytes=700, max_message_bytes=700)
    fixture = CompactionFixture(tmp_path, settings)
    client, other = Client(fixture.log, 1), Client(fixture.log, 2)
    fixture.produce((b"b", b"b" * 300))
    client.send(b"1", key=b"a")
    client.send(b"2", key=b"a")
    fixture.log.write_pending()
    fixture.roll()
    client.abort()
    other.send(b"3" * 300, key=b"c")
    other.commit()
    for number in range(4):
        expire(fixture)
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    headers = [read_header(data) for data in contents(fixture.log)]
    assert [(each.base_offset, each.last_offset, each.producer_id) for each in headers[:2]] == [(0, 0, -1), (2, 2, -1)]
    assert 3 not in [each.base_offset for each in headers], "the marker is gone"
    fixture = crashed(fixture)
    assert fixture.log.first_unstable_offset is None
    assert committed(fixture) == {b"b": b"b" * 300, b"c": b"3" * 300}


def test_transaction_that_is_open_keeps_everything_behind_it_from_compaction(fixture: CompactionFixture) -> None:
    fixture.produce((b"a", b"1"))
    fixture.roll()
    Client(fixture.log).send(b"2", key=b"a")
    seal(fixture)
    fixture.settle()
    plan = plan_compaction(fixture.log, stable_end(fixture.log), NOW)
    assert plan is not None
    assert plan.end_offset == 1


def test_transaction_whose_marker_is_behind_the_range_is_known(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    fixture.produce((b"a", b"1"))
    client.send(b"2", key=b"a")
    fixture.log.write_pending()
    fixture.roll()
    client.abort()
    fixture.log.write_pending()
    assert fixture.compact()
    assert [pair for pair in fixture.pairs() if pair[1] == b"a"] == [(0, b"a", b"1")]


def test_rows_of_several_segments_end_up_in_their_common_output(fixture: CompactionFixture) -> None:
    clients = [Client(fixture.log, pid) for pid in (1, 2)]
    for client in clients:
        client.send(b"1", key=b"a")
        client.abort()
        seal(fixture)
    assert fixture.compact()
    assert fixture.segments()[0] == 0
    assert [row.producer_id for row in fixture.log.segments[0].aborted] == [1, 2]
    files = [name for name in fixture.files() if name.endswith(".txnindex")]
    assert files == [f"{0:020d}.txnindex"]
    fixture.restart()
    assert fixture.log.aborted_transactions(0, 99) == [(1, 0), (2, 3)]


def test_index_that_loses_its_last_row_does_not_come_back(fixture: CompactionFixture) -> None:
    client = Client(fixture.log)
    client.send(b"1", key=b"a")
    client.abort()
    expire(fixture)
    for number in range(2):
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    fixture.restart()
    assert fixture.log.aborted_transactions(0, 99) == []


def test_batches_that_the_map_has_no_room_for_keep_their_transactions(
    fixture: CompactionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.log.compaction.KEY_BYTES", 1 << 30)
    client, other = Client(fixture.log, 1), Client(fixture.log, 2)
    fixture.produce((b"a", b"1"))
    other.send(b"1", key=b"b")
    other.commit()
    client.send(b"1", key=b"c")
    client.abort()
    seal(fixture)
    assert fixture.compact()
    assert committed(fixture) == {b"a": b"1", b"b": b"1"}
    assert fixture.log.aborted_transactions(0, 99) == [(1, 3)]


def test_process_knows_of_transactions_what_the_thread_does(tmp_path: Path) -> None:
    fixture = CompactionFixture(tmp_path, compacted(delete_retention_ms=RETENTION_MS), disk_with(tmp_path))
    client, other = Client(fixture.log, 1), Client(fixture.log, 2)
    for number in range(6):
        client.send(b"%d" % number, key=b"a")
        client.abort() if number % 2 else client.commit()
    other.send(b"x", key=b"b")
    other.commit()
    seal(fixture)
    fixture.settle()
    plan = plan_compaction(fixture.log, fixture.log.written_end_offset, NOW)
    assert plan is not None
    job = _job_of(plan, NOW, BrokerSettings())
    assert CleanJob.from_json(job.to_json()) == job
    for source in job.sources:
        Path(source.path).parent.mkdir(exist_ok=True)
        Path(source.path).write_bytes(fixture.disk.read_file(source.path) or b"")
    frames = list(clean(RealDisk(), job))
    assert list(clean_in_process(job)) == frames == list(clean(fixture.disk, job))
    fixture.abandon()


def test_control_batch_of_nobody_stays(fixture: CompactionFixture) -> None:
    """Kafka's controllers write such batches; they end no transaction."""
    record = Record(timestamp=NOW, key=b"\0\0\0\2", value=b"")
    foreign = bytearray(build_batch([record], control=True))
    fixture.produce((b"a", b"1"))
    offset = fixture.log.log_end_offset
    foreign[0:8] = offset.to_bytes(8, "big")
    fixture.disk.pwrite(fixture.log.active.file.fd, bytes(foreign), fixture.log.active.written_bytes)
    fixture.log.active.note_append(offset, len(foreign), NOW, 100)
    fixture.log.log_end_offset = fixture.log.written_end_offset = offset + 1
    for number in range(3):
        seal(fixture)
        assert fixture.compact(NOW + number * 10 * RETENTION_MS)
    assert bytes(foreign) in contents(fixture.log)
    assert append(fixture.log, build_batch([Record(timestamp=NOW, key=b"k")]))[0] > offset
