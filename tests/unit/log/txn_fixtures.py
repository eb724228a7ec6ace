"""What the tests of transactions share: batches of transactions, their ends, and a reader of committed records."""

from __future__ import annotations

from dataclasses import dataclass

from tests.unit.log.log_fixtures import NOW, append, batch, split

from ottla.log.log import Log
from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, TRANSACTIONAL, read_header
from ottla.model.records import Record, build_batch, iterate_records


def txn_batch(
    *values: bytes | None, pid: int = 1, epoch: int = 0, sequence: int = 0, key: bytes = b"k", timestamp: int = NOW,
    codec: int = 0,
) -> bytes:  # fmt: skip
    records = [Record(timestamp=timestamp, key=key, value=value) for value in values or (b"v",)]
    return build_batch(
        records, codec=codec, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def append_txn(log: Log, data: bytes, now_ms: int = NOW, *, sequenced: bool = True) -> tuple[int, int]:
    buffer = bytearray(data)
    return log.append(buffer, memoryview(buffer), 0, len(buffer), now_ms, transactional=True, sequenced=sequenced)


class Client:
    """A producer with transactions that counts for itself."""

    def __init__(self, log: Log, pid: int = 1, epoch: int = 0) -> None:
        self.log, self.pid, self.epoch, self.sequence = log, pid, epoch, 0

    def send(self, *values: bytes, key: bytes = b"k", timestamp: int = NOW) -> int:
        """Send a batch within the transaction; its base offset."""
        data = txn_batch(*values, pid=self.pid, epoch=self.epoch, sequence=self.sequence, key=key, timestamp=timestamp)
        base, end = append_txn(self.log, data, timestamp)
        self.sequence += end - base
        return base

    def send_plain(self, count: int = 1) -> int:
        base, _ = append(self.log, batch(count, producer=(self.pid, self.epoch, self.sequence)))
        self.sequence += count
        return base

    def commit(self, coordinator_epoch: int = 0, now_ms: int = NOW) -> int:
        return end_txn(self.log, self.pid, self.epoch, commit=True, coordinator_epoch=coordinator_epoch, now_ms=now_ms)

    def abort(self, coordinator_epoch: int = 0, now_ms: int = NOW) -> int:
        return end_txn(self.log, self.pid, self.epoch, commit=False, coordinator_epoch=coordinator_epoch, now_ms=now_ms)


def end_txn(
    log: Log, pid: int = 1, epoch: int = 0, *, commit: bool, coordinator_epoch: int = 0, now_ms: int = NOW
) -> int:
    """Append a marker; its offset."""
    base, end = log.append_marker(pid, epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms)
    assert end == base + 1
    return base


def stable_end(log: Log) -> int:
    """What the last stable offset is once all that was written is committed."""
    log.note_high_watermark(log.written_end_offset)
    first = log.first_unstable_offset
    return log.written_end_offset if first is None else min(first, log.written_end_offset)


def read_committed(
    log: Log, end: int | None = None, *, start: int | None = None, size_bytes_max: int = 1 << 20
) -> list[Record]:
    """What a consumer of committed records makes of the log: fetch by fetch, each with its own list of aborted ones."""
    end = stable_end(log) if end is None else end
    offset = log.log_start_offset if start is None else start
    found: list[Record] = []
    while offset < end and (region := log.read(offset, size_bytes_max, end, at_least_one=True)) is not None:
        aborted = sorted(log.aborted_within(offset, region, end), key=lambda each: each[1])
        ignored: set[int] = set()
        for data in split(region.read()):
            header = read_header(data)
            while aborted and aborted[0][1] <= header.last_offset:
                ignored.add(aborted.pop(0)[0])
            if header.attributes & CONTROL:
                marker = read_marker(data)
                if marker is not None and not marker.commit:
                    ignored.discard(header.producer_id)
            elif not header.attributes & TRANSACTIONAL or header.producer_id not in ignored:
                found += [record for record in iterate_records(data) if record.offset >= offset]
            next_offset = header.next_offset
        offset = next_offset
    return found


def values(log: Log, end: int | None = None) -> list[bytes | None]:
    return [record.value for record in read_committed(log, end)]


@dataclass(slots=True)
class Sent:
    """A batch, or a marker when it has no records."""

    base: int
    next: int
    pid: int
    records: list[Record]
    commit: bool = False


class History:
    """All that was ever sent to a log, and what a reader of committed records must therefore see."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def cut(self, end: int) -> None:
        self.sent = [each for each in self.sent if each.next <= end]

    def open_transactions(self, end: int = 1 << 60) -> dict[int, int]:
        """First offset of the transaction of each producer that is open at ``end``."""
        began: dict[int, int] = {}
        for each in self.sent:
            if each.next > end:
                break
            if each.pid >= 0 and each.records:
                began.setdefault(each.pid, each.base)
            elif each.pid >= 0:
                began.pop(each.pid, None)
        return began

    def stable_end(self, log: Log) -> int:
        end = log.written_end_offset
        return max(min(self.open_transactions(end).values(), default=end), log.log_start_offset)

    def visible(self, log: Log) -> list[Record]:
        """From the log's start on."""
        aborted: set[int] = set()
        undecided: dict[int, list[int]] = {}
        for each in self.sent:
            if each.pid >= 0 and each.records:
                undecided.setdefault(each.pid, []).append(each.base)
            elif each.pid >= 0:
                decided = undecided.pop(each.pid, [])
                aborted |= set() if each.commit else set(decided)
        end, start = self.stable_end(log), log.log_start_offset
        batches = [each for each in self.sent if each.base < end and each.base not in aborted]
        return [record for each in batches for record in each.records if record.offset >= start]

    def check(self, log: Log, *, compacts: bool) -> None:
        """Raise AssertionError unless the log knows its open transactions and readers see what was committed."""
        known = log.producers.open
        assert known.keys() == self.open_transactions().keys()
        assert list(known.values()) == sorted(known.values())
        assert stable_end(log) == self.stable_end(log)
        expected = self.visible(log)
        for size in (1, 400, 1 << 20):
            found = read_committed(log, size_bytes_max=size)
            if not compacts:
                assert found == expected
                continue
            assert all(record in expected for record in found)
            assert [record.offset for record in found] == sorted({record.offset for record in found})
            seen = {record.key: record for record in found}
            for key, record in {record.key: record for record in expected}.items():
                # A deletion goes when its time is over; what it deleted does not come back.
                assert seen.get(key) == record or (record.value is None and key not in seen), record
