"""Transactions in a log: who may write, what ends one, what readers of committed records see, and what survives."""

from __future__ import annotations

from struct import Struct

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
    open_at,
    sync,
    topic,
    write,
)
from tests.unit.log.txn_fixtures import Client, append_txn, end_txn, read_committed, stable_end, txn_batch, values

from ottla.log.log import Log
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.log.transactions import EndedTransaction, index_from_bytes, index_to_bytes, read_marker
from ottla.model.batch import read_header
from ottla.model.errors import (
    ErrorCode,
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaError,
    OutOfOrderSequence,
    Refused,
    UnknownProducerId,
)
from ottla.model.records import iterate_records
from ottla.model.settings import TopicSettings
from ottla.testing.disk import MemoryDisk

INVALID_TXN_STATE = ErrorCode.INVALID_TXN_STATE
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


# -- appending ------------------------------------------------------------------------------------------------------


def test_transactional_batch_needs_somebody_who_vouches_for_it() -> None:
    log = new_log()
    with pytest.raises(Refused) as error:
        append(log, txn_batch())
    assert code_of(error) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert append_txn(log, txn_batch()) == (0, 1)


def test_whoever_vouches_may_send_plain_batches_too() -> None:
    log = new_log()
    assert append_txn(log, batch(2)) == (0, 2)
    assert log.first_unstable_offset is None


@pytest.mark.parametrize(("change", "code"), [(0x20, 87), (0x07, 76)])
def test_nothing_else_about_a_transactional_batch_is_excused(change: int, code: int) -> None:
    data = bytearray(txn_batch())
    data[22] |= change
    with pytest.raises(KafkaError) as error:
        append_txn(new_log(), bytes(data))
    assert code_of(error) == code


def test_transactional_batch_needs_a_producer() -> None:
    with pytest.raises(InvalidRecord):
        append_txn(new_log(), txn_batch(pid=-1, epoch=-1, sequence=-1))


def test_clients_need_a_sequence_and_coordinators_do_not() -> None:
    log = new_log()
    with pytest.raises(InvalidRecord):
        append_txn(log, txn_batch(sequence=-1))
    for base in range(3):
        assert append_txn(log, txn_batch(sequence=-1), sequenced=False) == (base, base + 1)
    assert log.first_unstable_offset == 0
    end_txn(log, commit=True)
    assert append_txn(log, txn_batch(epoch=2, sequence=-1), sequenced=False) == (4, 5)
    with pytest.raises(InvalidProducerEpoch):
        append_txn(log, txn_batch(epoch=1, sequence=-1), sequenced=False)


def test_plain_batch_within_a_transaction_is_refused() -> None:
    log = new_log()
    client = Client(log)
    client.send()
    with pytest.raises(Refused) as error:
        client.send_plain()
    assert code_of(error) == INVALID_TXN_STATE
    client.commit()
    assert client.send_plain() == 2


def test_plain_batch_of_a_newer_epoch_does_not_leave_the_transaction_either() -> None:
    log = new_log()
    Client(log).send()
    with pytest.raises(Refused) as error:
        append(log, batch(producer=(1, 1, 0)))
    assert code_of(error) == INVALID_TXN_STATE


def test_batch_of_a_newer_epoch_goes_on_with_the_transaction() -> None:
    log = new_log()
    Client(log).send()
    append_txn(log, txn_batch(epoch=1))
    assert log.first_unstable_offset == 0
    end_txn(log, epoch=1, commit=False)
    log.write_pending()
    assert log.aborted_transactions(0, 10) == [(1, 0)]


def test_repeated_batch_of_an_open_transaction_has_its_old_offsets() -> None:
    log = new_log()
    Client(log).send()
    assert append_txn(log, txn_batch()) == (0, 1)
    assert log.log_end_offset == 1


@pytest.mark.parametrize("is_next_open", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize(("sequence", "count"), [(0, 1), (0, 2), (0, 3), (0, 9), (1, 1), (1, 5), (2, 2), (3, 1)])
def test_reused_sequence_of_an_ended_transaction_is_neither_a_duplicate_nor_appended(
    sequence: int, count: int, commit: bool, is_next_open: bool
) -> None:
    """librdkafka reuses sequence numbers of purged records after an abort; acknowledging them would lose records."""
    log = new_log()
    client = Client(log)
    client.send(b"1", b"2")
    client.send(b"3", b"4")
    end_txn(log, commit=commit)
    if is_next_open:
        client.send(b"5")
    end = log.log_end_offset
    with pytest.raises(UnknownProducerId):
        append_txn(log, txn_batch(*[b"x"] * count, sequence=sequence))
    assert log.log_end_offset == end


def test_producer_continues_with_the_next_epoch_after_a_reused_sequence() -> None:
    log = new_log()
    Client(log).send(b"1", b"2")
    end_txn(log, commit=False)
    with pytest.raises(UnknownProducerId):
        append_txn(log, txn_batch(b"3"))
    assert append_txn(log, txn_batch(b"3", epoch=1)) == (3, 4)


def test_repeated_batch_of_an_open_transaction_is_a_duplicate_although_an_earlier_one_has_ended() -> None:
    log = new_log()
    client = Client(log)
    client.send(b"1", b"2")
    end_txn(log, commit=False)
    client.send(b"3")
    client.send(b"4", b"5")
    end = log.log_end_offset
    assert append_txn(log, txn_batch(b"3", sequence=2)) == (3, 4)
    with pytest.raises(OutOfOrderSequence):
        append_txn(log, txn_batch(b"3", b"4", sequence=2))
    assert log.log_end_offset == end


# -- markers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_a_control_batch_of_one_record(commit: bool) -> None:
    log = new_log()
    Client(log, pid=7, epoch=3).send()
    log.become_leader(5)
    end_txn(log, 7, 3, commit=commit, coordinator_epoch=9)
    log.write_pending()
    data = contents(log)[1]
    header = read_header(data)
    assert (header.base_offset, header.last_offset_delta, header.record_count, header.leader_epoch) == (1, 0, 1, 5)
    assert (header.attributes, header.producer_id, header.producer_epoch, header.base_sequence) == (0x30, 7, 3, -1)
    (record,) = iterate_records(data)
    assert record.key == bytes([0, 0, 0, commit])
    assert record.value == bytes([0, 0, 0, 0, 0, 9])
    assert (record.timestamp, header.max_timestamp) == (NOW, NOW)
    assert read_marker(data) == (commit, 9)


def test_marker_without_a_transaction_is_written_and_aborts_nothing() -> None:
    log = new_log()
    assert end_txn(log, commit=False, coordinator_epoch=4) == 0
    log.write_pending()
    assert log.aborted_transactions(0, 10) == []
    assert log.producers.entries[1].coordinator_epoch == 4


def test_marker_of_a_replaced_coordinator_is_refused() -> None:
    log = new_log()
    client = Client(log)
    client.send()
    client.commit(coordinator_epoch=3)
    client.send()
    with pytest.raises(Refused) as error:
        client.abort(coordinator_epoch=2)
    assert code_of(error) == FENCED
    assert log.log_end_offset == 3
    assert client.abort(coordinator_epoch=3) == 3


def test_marker_of_an_older_producer_epoch_is_refused() -> None:
    log = new_log()
    Client(log, epoch=2).send()
    with pytest.raises(InvalidProducerEpoch):
        end_txn(log, epoch=1, commit=True)


def test_marker_of_a_newer_epoch_fences_the_producer() -> None:
    log = new_log()
    client = Client(log)
    client.send()
    end_txn(log, epoch=1, commit=False)
    assert not log.producers.open
    with pytest.raises(InvalidProducerEpoch):
        client.send()
    with pytest.raises(OutOfOrderSequence):
        append_txn(log, txn_batch(epoch=1, sequence=1))
    assert append_txn(log, txn_batch(epoch=1)) == (2, 3)


def test_delayed_marker_of_version_2_does_not_end_the_next_transaction() -> None:
    """A marker of version 2 has the epoch of the next transaction (KIP-1228)."""
    log = new_log()

    def end_version_2() -> None:
        log.append_marker(1, 1, commit=True, coordinator_epoch=0, now_ms=NOW, transaction_version=2)

    Client(log).send()
    end_version_2()
    end_version_2()  # a retry after a lost answer; no transaction is open
    Client(log, epoch=1).send()
    with pytest.raises(InvalidProducerEpoch):
        end_version_2()
    assert log.producers.open


def test_sequences_go_on_behind_a_marker_of_the_same_epoch() -> None:
    log = new_log()
    client = Client(log)
    client.send(b"1", b"2")
    client.commit()
    with pytest.raises(OutOfOrderSequence):
        append_txn(log, txn_batch(sequence=5))
    assert client.send(b"3") == 3


def test_marker_that_cannot_be_written_did_not_end_anything() -> None:
    disk = new_disk()
    log = new_log(disk)
    client = Client(log)
    client.send(b"1")
    log.write_pending()
    client.abort()
    disk.fail("write")
    with pytest.raises(OSError):
        log.write_pending()
    assert (log.log_end_offset, log.first_unstable_offset, log.aborted_transactions(0, 9)) == (1, 0, [])
    client.commit()
    log.write_pending()
    assert values(log) == [b"1"]


def test_marker_goes_into_the_next_segment_when_this_one_is_full_or_old() -> None:
    log = new_log(segment_bytes=100, max_message_bytes=100, segment_ms=1000)
    client = Client(log)
    client.send()
    client.commit()
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    client.commit(now_ms=NOW + 5000)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


# -- the last stable offset -------------------------------------------------------------------------------------------


def test_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    log = new_log()
    one, two = Client(log, 1), Client(log, 2)
    write(log, batch(3))
    assert log.first_unstable_offset is None
    one.send()
    two.send()
    assert log.first_unstable_offset == 3
    one.commit()
    log.write_pending()
    assert stable_end(log) == 4
    two.abort()
    log.write_pending()
    assert stable_end(log) == 7
    assert log.first_unstable_offset is None


def test_ended_transaction_is_unstable_until_the_high_watermark_is_behind_its_marker() -> None:
    log = new_log()
    client = Client(log)
    client.send()
    client.commit()
    assert log.first_unstable_offset == 0
    log.note_high_watermark(1)
    assert log.first_unstable_offset == 0
    log.note_high_watermark(2)
    assert log.first_unstable_offset is None


def test_truncation_keeps_the_ends_that_are_left_and_opens_the_others_again() -> None:
    log = new_log()
    one, two = Client(log, 1), Client(log, 2)
    one.send()
    two.send()
    one.commit()
    two.commit()
    log.write_pending()
    log.truncate_to(3)
    assert log.producers.open == {2: 1}
    assert [each.last_offset for each in log.ended] == [2]
    assert log.first_unstable_offset == 0


def test_first_unstable_offset_is_not_below_the_log_start() -> None:
    log = new_log()
    client = Client(log)
    client.send(b"1", b"2", b"3")
    log.write_pending()
    log.advance_log_start(2)
    assert log.first_unstable_offset == 2


def test_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = new_log()
    one, two = Client(log, 1), Client(log, 2)
    one.send()
    two.send()
    two.commit()
    log.expire_producers(NOW + 1)
    assert log.producers.entries.keys() == {1}
    assert log.first_unstable_offset == 0


# -- aborted transactions ---------------------------------------------------------------------------------------------


def test_readers_of_committed_records_see_neither_open_nor_aborted_ones() -> None:
    log = new_log()
    one, two, three = Client(log, 1), Client(log, 2), Client(log, 3)
    one.send(b"a")
    two.send(b"b")
    write(log, batch())
    two.abort()
    one.send(b"c")
    one.commit()
    two.send(b"d")
    three.send(b"open")
    two.commit()
    three.send(b"open")
    log.write_pending()
    assert values(log) == [b"a", b"v" * 10, b"c", b"d"]


def test_aborted_transactions_are_those_that_overlap() -> None:
    log = new_log()
    one, two = Client(log, 1), Client(log, 2)
    one.send()  # 0
    two.send()  # 1
    two.abort()  # 2
    two.send()  # 3
    one.abort()  # 4
    two.abort()  # 5
    log.write_pending()
    assert log.aborted_transactions(0, 6) == [(2, 1), (1, 0), (2, 3)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(3, 4) == [(1, 0), (2, 3)]
    assert log.aborted_transactions(5, 6) == [(2, 3)]
    assert log.aborted_transactions(6, 9) == []


def test_transaction_over_several_segments_is_in_the_index_of_its_marker() -> None:
    log = new_log(segment_bytes=100, max_message_bytes=100)
    client = Client(log)
    for _ in range(4):
        client.send()
    client.abort()
    log.write_pending()
    assert [bool(segment.aborted) for segment in log.segments] == [False, False, False, False, True]
    for offset in range(4):
        assert log.aborted_transactions(offset, offset + 1) == [(1, 0)]
    assert values(log) == []


def test_list_of_a_fetch_is_about_what_it_returns() -> None:
    """Not about the whole segment: that could be a list of many thousands with every fetch."""
    log = new_log(index_interval_bytes=0)
    client = Client(log)
    for _ in range(50):
        client.send()
        client.abort()
    log.write_pending()
    size = len(txn_batch())
    region = log.read(0, size, stable_end(log), at_least_one=True)
    assert region is not None
    assert log.aborted_within(0, region, stable_end(log)) == [(1, 0)]
    region = log.read(0, 1 << 20, stable_end(log), at_least_one=True)
    assert region is not None
    assert len(log.aborted_within(0, region, stable_end(log))) == 50


@pytest.mark.parametrize("size", [1, 100, 300, 1 << 20])
@pytest.mark.parametrize("interval", [0, 150, 4096])
def test_fetches_of_any_size_leave_out_the_same(size: int, interval: int) -> None:
    log = new_log(segment_bytes=700, max_message_bytes=700, index_interval_bytes=interval)
    clients = [Client(log, pid) for pid in (1, 2, 3)]
    committed = []
    for number in range(40):
        client = clients[number * 7 % 3]
        value = b"%d" % number
        base = client.send(value)
        if number % 4 == 1:
            client.abort()
            committed = [each for each in committed if each[1] != client.pid or each[2]]
        elif number % 4 == 3:
            committed = [(b, p, done or p == client.pid) for b, p, done in [*committed, (base, client.pid, True)]]
            client.commit()
        else:
            committed.append((base, client.pid, False))
    for client in clients:
        client.commit()
    log.write_pending()
    expected = [base for base, _, _ in committed]
    assert [record.offset for record in read_committed(log, size_bytes_max=size)] == expected
    for start in range(0, log.log_end_offset, 3):
        found = [record.offset for record in read_committed(log, start=start, size_bytes_max=size)]
        assert found == [base for base in expected if base >= start]


# -- files ----------------------------------------------------------------------------------------------------------


def two_aborted(disk: MemoryDisk, settings: TopicSettings) -> Log:
    """0-1 aborted, 2 of another that is open, 3-4 aborted."""
    log = open_at(disk, settings)
    client, other = Client(log, 5), Client(log, 6)
    client.send(b"x")
    client.abort(coordinator_epoch=2)
    other.send(b"y")
    client.send(b"z")
    client.abort(coordinator_epoch=3)
    log.write_pending()
    return log


def test_index_file_is_kafkas() -> None:
    disk = new_disk()
    two_aborted(disk, topic()).flush_files()
    data = disk.read_file(f"{FOLDER}/{0:020d}.txnindex")
    assert data is not None
    assert list(Struct(">hqqqq").iter_unpack(data)) == [(0, 5, 0, 1, 2), (0, 5, 3, 4, 2)]


def test_log_without_aborted_transactions_has_no_index_file() -> None:
    disk = new_disk()
    log = new_log(disk)
    client = Client(log)
    client.send()
    client.commit()
    log.flush_files()
    assert not disk.exists(f"{FOLDER}/{0:020d}.txnindex")


@pytest.mark.parametrize("kind", ["clean", "kill"])
def test_open_and_aborted_transactions_survive_a_restart(kind: str) -> None:
    disk, settings = new_disk(), topic()
    log = two_aborted(disk, settings)
    log = open_at(disk, settings, clean=clean_stop(log) if kind == "clean" else None)
    assert log.first_unstable_offset == 2
    assert log.aborted_transactions(0, 9) == [(5, 0), (5, 3)]
    entry = log.producers.entries[5]
    assert (entry.coordinator_epoch, entry.txn_first_offset, log.producers.entries[6].txn_first_offset) == (3, -1, 2)
    end_txn(log, 6, commit=True)
    log.write_pending()
    assert values(log) == [b"y"]


def test_recovery_knows_transactions_that_began_in_segments_it_does_not_read() -> None:
    disk = new_disk()
    settings = topic(segment_bytes=200, max_message_bytes=200)
    log = open_at(disk, settings)

    def rolled(of: Log, sealed: Segment) -> None:
        of.sync_sealed(sealed)
        of.note_segments_synced([(sealed, sealed.size_bytes)])

    log.on_roll = rolled
    client, other = Client(log, 1), Client(log, 2)
    client.send(b"x")
    other.send(b"y")
    for _ in range(3):
        write(log, batch(size=100))
    client.abort()
    other.send(b"z")
    log.write_pending()
    sync(log)
    assert len(log.segments) > 3
    reads = len(disk.calls)
    opened = open_at(disk, settings, recovery_point=log.recovery_point)
    first = f"{0:020d}.log"
    reads_of_first = [call for call in disk.calls[reads:] if call.name == "pread" and call.path.endswith(first)]
    assert len(reads_of_first) == 1, "its end only"
    assert opened.aborted_transactions(0, 99) == [(1, 0)]
    assert opened.first_unstable_offset == stable_end(log) == 1


def test_recovery_without_the_snapshot_of_a_segment_reads_from_an_older_one_on() -> None:
    disk = new_disk()
    settings = topic(segment_bytes=200, max_message_bytes=200)
    log = open_at(disk, settings)
    client = Client(log, 1)
    client.send(b"x")
    for _ in range(3):
        write(log, batch(size=100))
    client.abort()
    log.write_pending()
    for segment in log.segments[:-1]:
        segment.write_indexes()
    sync(log)
    for name in disk.listdir(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")
    assert open_at(disk, settings, recovery_point=log.recovery_point).aborted_transactions(0, 99) == [(1, 0)]


def test_recovery_of_a_segment_does_not_rest_on_a_snapshot_from_its_middle() -> None:
    """The snapshot of a clean stop knows who is open there, not who was aborted before."""
    disk, settings = new_disk(), topic()
    log = two_aborted(disk, settings)
    log = open_at(disk, settings, clean=clean_stop(log))
    write(log, batch())
    sync(log)
    opened = open_at(disk, settings, recovery_point=log.recovery_point)
    assert opened.aborted_transactions(0, 99) == [(5, 0), (5, 3)]
    assert opened.first_unstable_offset == 2


def test_segment_whose_end_is_the_recovery_point_of_its_time_has_its_index_after_a_crash() -> None:
    """Noted while it was active, the recovery point must not say that its indexes are on disk."""
    disk, settings = new_disk(), topic()
    log = two_aborted(disk, settings)
    sync(log)
    point = log.recovery_point
    log.roll()
    write(log, batch())
    opened = open_at(disk, settings, recovery_point=point)
    assert [segment.base_offset for segment in opened.segments] == [0, 5]
    assert opened.aborted_transactions(0, 99) == [(5, 0), (5, 3)]


def test_dropped_segment_that_a_crash_brings_back_has_its_index() -> None:
    disk, settings = new_disk(), topic()
    log = two_aborted(disk, settings)
    end_txn(log, 6, commit=True)
    log.write_pending()
    sync(log)
    assert log.advance_log_start(log.log_end_offset)
    write(log, batch())
    sync(log)
    opened = open_at(disk, settings, recovery_point=log.recovery_point)
    assert opened.log_start_offset == 0
    assert values(opened)[:1] == [b"y"]


def test_truncated_log_forgets_aborted_transactions_behind_the_cut_for_good() -> None:
    disk, settings = new_disk(), topic()
    log = two_aborted(disk, settings)
    log = open_at(disk, settings, clean=clean_stop(log))
    log.truncate_to(4)
    assert log.aborted_transactions(0, 9) == [(5, 0)]
    assert log.producers.open == {6: 2, 5: 3}
    log.truncate_to(1)
    assert log.aborted_transactions(0, 9) == []
    assert log.producers.open == {5: 0}
    end_txn(log, 5, commit=True, coordinator_epoch=2)
    log = open_at(disk, settings, clean=clean_stop(log))
    assert log.aborted_transactions(0, 9) == []
    assert values(log) == [b"x"]


def test_index_goes_with_its_segment() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=100, max_message_bytes=100)
    client = Client(log)
    for _ in range(2):
        client.send()
        client.abort()
    log.write_pending()
    for segment in log.segments:
        segment.sync()
        segment.write_indexes()
        segment.synced_bytes = segment.size_bytes
    assert disk.exists(f"{FOLDER}/{1:020d}.txnindex")
    for segment in log.advance_log_start(2):
        segment.delete_files()
    assert not disk.exists(f"{FOLDER}/{1:020d}.txnindex")
    assert log.aborted_transactions(0, 9) == [(1, 2)]


def test_orphaned_index_is_removed_at_start() -> None:
    disk = new_disk()
    disk.write_file(f"{FOLDER}/{7:020d}.txnindex", b"", sync=True)
    new_log(disk)
    assert not disk.exists(f"{FOLDER}/{7:020d}.txnindex")


@pytest.mark.parametrize("damage", ["torn", "version", "backwards", "foreign"])
def test_damaged_index_is_rebuilt(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    disk, settings = new_disk(), topic()
    note = clean_stop(two_aborted(disk, settings))
    path = f"{FOLDER}/{0:020d}.txnindex"
    rows = [EndedTransaction(5, 0, 1, 2), EndedTransaction(5, 3, 4, 2)]
    data = {
        "torn": index_to_bytes(rows)[:-1], "version": b"\0\1" + index_to_bytes(rows)[2:],
        "backwards": index_to_bytes(rows[::-1]), "foreign": b"\xff" * 68,
    }[damage]  # fmt: skip
    disk.write_file(path, data, sync=True)
    log = open_at(disk, settings, clean=note)
    assert log.aborted_transactions(0, 9) == [(5, 0), (5, 3)]
    assert "transaction index is rebuilt" in caplog.text
    clean_stop(log)
    assert index_from_bytes(disk.read_file(path) or b"", 0) == rows


def test_abort_is_added_to_what_an_earlier_life_left() -> None:
    disk, settings = new_disk(), topic()
    log = open_at(disk, settings, clean=clean_stop(two_aborted(disk, settings)))
    end_txn(log, 6, commit=False)
    note = clean_stop(log)
    assert open_at(disk, settings, clean=note).aborted_transactions(0, 9) == [(5, 0), (5, 3), (6, 2)]


def test_snapshot_carries_open_transactions_in_order_of_their_start() -> None:
    log = new_log()
    Client(log, 9).send()
    Client(log, 3).send()
    append_txn(log, txn_batch(pid=4, sequence=-1), sequenced=False)
    producers = Producers.from_snapshot(log.producers.to_snapshot())
    assert list(producers.open.items()) == [(9, 0), (3, 1), (4, 2)]
    assert producers.entries[4].batches == log.producers.entries[4].batches
    assert producers.entries[4].next_sequence == 0


def test_roll_within_a_transaction_leaves_a_snapshot_that_knows_it() -> None:
    disk = new_disk()
    log = new_log(disk)
    Client(log, 9).send()
    log.roll()
    data = disk.read_file(f"{FOLDER}/{1:020d}.snapshot")
    assert Producers.from_snapshot(data or b"").open == {9: 0}


# -- time -----------------------------------------------------------------------------------------------------------


def test_no_time_is_found_at_or_beyond_the_last_stable_offset() -> None:
    log = new_log()
    client = Client(log)
    write(log, batch(timestamp=NOW))
    client.send(timestamp=NOW + 5)
    log.write_pending()
    end = stable_end(log)
    assert log.offset_for_timestamp(NOW, end) == (0, NOW)
    assert log.offset_for_timestamp(NOW + 5, end) is None
    assert log.offset_for_timestamp(NOW + 5, log.written_end_offset) == (1, NOW + 5)
