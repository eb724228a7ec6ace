"""The producer state of a log: deduplicates the batches of idempotent producers and tracks open transactions.

The state of a producer id is its epoch and its last five batches (a client has at most five in flight). The rules are
those of Kafka's ProducerAppendInfo:

- A duplicate batch gets the offsets of the first one.
- A batch with an older epoch is rejected (the producer is fenced). A newer epoch must start at sequence number 0.
- Otherwise the sequence number must follow the last one.
- An unknown producer may start with any sequence number, because its state may have expired.

A transaction begins with its first batch and ends with a marker. A marker with a newer epoch fences the producer, whose
next batch then has an older epoch. While a transaction is open, the producer's batches must belong to it. A marker with
an older coordinator epoch is rejected, because that coordinator was replaced. A batch of an ended transaction is not
treated as a duplicate, because no client resends it: a client ends a transaction only after each of its batches was
acknowledged or dropped.

Memory: the object of an active producer has about 600 bytes. A log with more than ``_FEW`` producers keeps the idle
ones, and those with a single batch, as rows of the snapshot. A row has 200 bytes, the garbage collector does not visit
it, and a snapshot copies it without decoding. A row becomes an object when its producer sends another batch.

``.snapshot`` files have Kafka's format with one addition. Kafka stores only the last batch of each producer. A client
that lost earlier replies around a restart of Kafka gets OUT_OF_ORDER_SEQUENCE_NUMBER. Ottla therefore writes the older
batches of the window after Kafka's entries: the checksum covers them, and Kafka's reader ignores them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from struct import Struct, error
from typing import NamedTuple

from crc32c import crc32c

from ottla.env.disk import Disk, read_derived_file
from ottla.log.segment import Segment, segment_number
from ottla.log.transactions import EndedTransaction, read_marker
from ottla.model.batch import CONTROL, SEQUENCES, TRANSACTIONAL, BatchHeader
from ottla.model.errors import ErrorCode, InvalidProducerEpoch, OutOfOrderSequence, Refused, UnknownProducerId

WINDOW = 5

#: a log keeps up to this number of producers as objects, even if they are idle
_FEW = 64
#: maximum number of objects per log, and the number of objects that become rows when it is exceeded
_ACTIVE_MAX = 512
_DEMOTED_AT_ONCE = 64

#: batches that are replayed on the event loop while a partition is added: a few milliseconds
_REPLAY_BYTES_MAX = 256 << 10

_SNAPSHOT_HEAD = Struct(">hII")
_SNAPSHOT_VERSION = 1
_CRC_END = 6
_ENTRY = Struct(">qhiqiqiq")
_WINDOW_ENTRY = Struct(">qiiqq")
_PRODUCER_ID = _ROW_TIMESTAMP = Struct(">q")
_ROW_TIMESTAMP_AT = 26


class ProducedBatch(NamedTuple):
    """One of the last ``WINDOW`` batches of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "next_sequence", "timestamp", "txn_bit", "txn_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        #: the sequence number of the next batch; -1 if the producer is unknown and any number is valid
        self.next_sequence = -1
        #: timestamp of the last batch or marker; the entry expires by it
        self.timestamp = -1
        #: oldest first, at most WINDOW
        self.batches: list[ProducedBatch] = []
        #: coordinator epoch of the last marker
        self.coordinator_epoch = -1
        #: first offset of the open transaction; -1 if none is open
        self.txn_first_offset = -1
        #: TRANSACTIONAL while a transaction is open, else 0; a batch with this bit needs no check of its transaction
        self.txn_bit = 0

    def duplicate_of(self, base_sequence: int, last_sequence: int) -> ProducedBatch | None:
        """Return the batch of the window with these sequence numbers; None if there is none."""
        for batch in self.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def ended_transaction_has(self, sequence: int) -> bool:
        """Return whether a record with this sequence number was appended in a transaction that has ended."""
        return any(
            (not self.txn_bit or batch.base_offset < self.txn_first_offset)
            and (sequence - batch.base_sequence) % SEQUENCES <= batch.last_offset - batch.base_offset
            for batch in self.batches
        )

    def note(self, base_sequence: int, last_offset_delta: int, base_offset: int, timestamp: int) -> None:
        """Apply an appended batch with a sequence number."""
        last_sequence = (base_sequence + last_offset_delta) % SEQUENCES
        batches = self.batches
        if len(batches) == WINDOW:
            del batches[0]
        batches.append(ProducedBatch(base_sequence, last_sequence, base_offset, base_offset + last_offset_delta))
        self.next_sequence = (last_sequence + 1) % SEQUENCES
        self.timestamp = timestamp

    def note_unsequenced(self, base_offset: int, last_offset: int, timestamp: int) -> None:
        """Apply a batch that a coordinator appended for the producer; it has no sequence number and no duplicates."""
        self.batches = [ProducedBatch(-1, -1, base_offset, last_offset)]
        self.next_sequence = 0
        self.timestamp = timestamp

    def with_epoch(self, epoch: int) -> ProducerEntry:
        """Return the entry of the same producer with a newer epoch: no batches, the same open transaction."""
        entry = ProducerEntry(epoch)
        entry.timestamp, entry.coordinator_epoch = self.timestamp, self.coordinator_epoch
        entry.txn_first_offset, entry.txn_bit = self.txn_first_offset, self.txn_bit
        return entry


class Producers:
    """The state of all producers of one log."""

    __slots__ = ("_idle", "_idle_windows", "entries", "open")

    def __init__(self) -> None:
        #: active producers, including all with an open transaction
        self.entries: dict[int, ProducerEntry] = {}
        #: snapshot rows of the idle producers by producer id, the longest idle first
        self._idle: dict[int, bytes] = {}
        #: older batches of the idle producers, in the format of the snapshot; no entry if there are none
        self._idle_windows: dict[int, bytes] = {}
        #: first offsets of the open transactions by producer id, in increasing order
        self.open: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Return the number of producers."""
        return len(self.entries) + len(self._idle)

    @property
    def idle_count(self) -> int:
        """Return the number of producers that ``evict`` can remove."""
        return len(self._idle)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the entry of a producer; None if the producer is unknown. An idle producer becomes active."""
        entry = self.entries.get(producer_id)
        if entry is None and (row := self._idle.pop(producer_id, None)) is not None:
            entry = _entry_of(row, self._idle_windows.pop(producer_id, b""))
            self.entries[producer_id] = entry
            if len(self.entries) > _ACTIVE_MAX:
                self._demote()
        return entry

    def add(self, producer_id: int, entry: ProducerEntry) -> None:
        """Add the entry of a producer id, or of a new epoch of it, after its first batch was applied."""
        if len(self.entries) < _FEW or entry.txn_bit or producer_id in self.entries:
            self.entries[producer_id] = entry
        else:
            self._put_idle(producer_id, entry)

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield the id and the entry of every producer."""
        yield from self.entries.items()
        for producer_id, row in self._idle.items():
            yield producer_id, _entry_of(row, self._idle_windows.get(producer_id, b""))

    def evict(self, count: int) -> int:
        """Remove up to ``count`` idle producers, the longest idle first. Return how many were removed."""
        evicted = list(islice(self._idle, count))
        for producer_id in evicted:
            self._drop_idle(producer_id)
        return len(evicted)

    def _demote(self) -> None:
        """Convert the first ``_DEMOTED_AT_ONCE`` entries to rows, except those with an open transaction."""
        for producer_id in list(islice(self.entries, _DEMOTED_AT_ONCE)):
            entry = self.entries.pop(producer_id)
            if entry.txn_bit:
                self.entries[producer_id] = entry
            else:
                self._put_idle(producer_id, entry)

    def _put_idle(self, producer_id: int, entry: ProducerEntry) -> None:
        self._idle[producer_id] = _row_of(producer_id, entry)
        if len(entry.batches) > 1:
            self._idle_windows[producer_id] = _window_of(producer_id, entry)

    def _drop_idle(self, producer_id: int) -> None:
        del self._idle[producer_id]
        self._idle_windows.pop(producer_id, None)

    # -- batches --------------------------------------------------------------------------------------------------

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int, *, transactional: bool = False
    ) -> tuple[ProducerEntry, ProducedBatch | None]:
        """Return the producer's entry and the batch of which this one is a duplicate, or None.

        Raise the KafkaError for the reply if the batch is invalid. The state does not change: the caller applies the
        batch after all other checks. A coordinator's batch has no sequence number; only its epoch is checked.
        """
        entry = self.get(producer_id)
        if entry is None:
            return ProducerEntry(epoch), None
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id} epoch {epoch} is older than {entry.epoch}")
        if epoch > entry.epoch:
            if base_sequence > 0:
                raise OutOfOrderSequence(f"producer {producer_id} epoch {epoch} must start at sequence 0")
            entry = entry.with_epoch(epoch)
        elif base_sequence >= 0 and entry.next_sequence not in (base_sequence, -1):
            if transactional and entry.ended_transaction_has(base_sequence):
                # librdkafka reuses the sequence numbers of records that it purged in an abort, even if the broker had
                # appended them. Kafka acknowledges the batch as a duplicate if it has the same number of records, which
                # loses them. Otherwise Kafka replies OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal for the producer.
                # With UNKNOWN_PRODUCER_ID the client aborts the transaction, bumps its epoch (KIP-360) and continues.
                raise UnknownProducerId(
                    f"producer {producer_id} sent sequence {base_sequence} of a transaction that has ended"
                )
            duplicate = entry.duplicate_of(base_sequence, (base_sequence + last_offset_delta) % SEQUENCES)
            if duplicate is None:
                raise OutOfOrderSequence(
                    f"producer {producer_id} sent sequence {base_sequence}, expected {entry.next_sequence}"
                )
            return entry, duplicate
        if entry.txn_bit and not transactional:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open since offset {entry.txn_first_offset}; end it first",
            )
        return entry, None

    def begin(self, producer_id: int, entry: ProducerEntry, first_offset: int) -> None:
        """Open a transaction of the producer at ``first_offset``."""
        entry.txn_first_offset, entry.txn_bit = first_offset, TRANSACTIONAL
        self.open[producer_id] = first_offset

    # -- markers --------------------------------------------------------------------------------------------------

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int = 0) -> None:
        """Raise a KafkaError if the marker's producer epoch or coordinator epoch is older than the known one.

        In transactions of version 2 a marker has a higher epoch than the records that it ends. If the open transaction
        has the epoch of the marker, it is the next one, and the marker was delayed (KIP-1228).
        """
        entry = self.get(producer_id)
        if entry is None:
            return
        is_delayed = transaction_version >= 2 and epoch == entry.epoch and entry.txn_first_offset >= 0
        if epoch < entry.epoch or is_delayed:
            raise InvalidProducerEpoch(f"marker for producer {producer_id} epoch {epoch} is older than {entry.epoch}")
        if coordinator_epoch < entry.coordinator_epoch:
            raise Refused(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {entry.coordinator_epoch}",
            )

    def end(
        self, producer_id: int, epoch: int, *, coordinator_epoch: int, offset: int, timestamp: int
    ) -> EndedTransaction | None:
        """Apply the marker at ``offset``. Return the transaction that it ends; None if none was open."""
        entry = self.get(producer_id)
        is_new = False
        if entry is None or entry.epoch != epoch:
            entry = entry.with_epoch(epoch) if entry is not None else ProducerEntry(epoch)
            # As in ProducerAppendInfo: a producer with a known epoch but without a batch starts at sequence 0.
            entry.next_sequence = 0
            is_new = True
        entry.coordinator_epoch, entry.timestamp = coordinator_epoch, timestamp
        entry.txn_first_offset, entry.txn_bit = -1, 0
        if is_new:
            self.add(producer_id, entry)
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return None
        return EndedTransaction(producer_id, first_offset, offset, next(iter(self.open.values()), offset + 1))

    # -- replay ---------------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader, batch: bytes | memoryview) -> EndedTransaction | None:
        """Apply a batch of the log, without checks. Return the transaction that it aborts, or None.

        ``batch`` is read only if it is a control batch.
        """
        if header.producer_id < 0:
            return None
        if header.attributes & CONTROL:
            return self._replay_control(header, batch)
        self.note(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
            base_offset=header.base_offset, timestamp=header.max_timestamp,
            transactional=bool(header.attributes & TRANSACTIONAL),
        )  # fmt: skip
        return None

    def note(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        *,
        base_offset: int,
        timestamp: int,
        transactional: bool = False,
    ) -> None:
        """Apply a data batch of the log, without checks."""
        entry = self.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = entry.with_epoch(epoch) if entry is not None else ProducerEntry(epoch)
        is_new = entry.next_sequence < 0
        if base_sequence >= 0:
            entry.note(base_sequence, last_offset_delta, base_offset, timestamp)
        else:
            entry.note_unsequenced(base_offset, base_offset + last_offset_delta, timestamp)
        if transactional and not entry.txn_bit:
            self.begin(producer_id, entry, base_offset)
        if is_new:
            self.add(producer_id, entry)

    def _replay_control(self, header: BatchHeader, batch: bytes | memoryview) -> EndedTransaction | None:
        marker = read_marker(batch)
        if marker is None:
            # Compaction keeps an empty control batch only for its producer epoch.
            known = self.get(header.producer_id)
            if known is None or known.epoch < header.producer_epoch:
                epoch = header.producer_epoch
                entry = known.with_epoch(epoch) if known is not None else ProducerEntry(epoch)
                entry.next_sequence, entry.timestamp = 0, header.max_timestamp
                self.add(header.producer_id, entry)
            return None
        ended = self.end(
            header.producer_id, header.producer_epoch, coordinator_epoch=marker.coordinator_epoch,
            offset=header.base_offset, timestamp=header.max_timestamp,
        )  # fmt: skip
        return None if marker.commit else ended

    def expire(self, older_than_ms: int) -> None:
        """Remove the producers whose last batch is older than ``older_than_ms`` and that have no open transaction."""
        for producer_id, entry in list(self.entries.items()):
            if entry.timestamp < older_than_ms and entry.txn_first_offset < 0:
                del self.entries[producer_id]
        read = _ROW_TIMESTAMP.unpack_from
        for producer_id in [
            each for each, row in self._idle.items() if read(row, _ROW_TIMESTAMP_AT)[0] < older_than_ms
        ]:
            self._drop_idle(producer_id)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        """Return the content of a ``.snapshot`` file."""
        parts = [self.count.to_bytes(4, "big"), *self._rows()]
        parts += [_window_of(*each) for each in self.entries.items()]
        parts += self._idle_windows.values()
        body = b"".join(parts)
        return _SNAPSHOT_VERSION.to_bytes(2, "big") + int(crc32c(body)).to_bytes(4, "big") + body

    def rows(self) -> bytes:
        """Return the rows of all producers in the format of the snapshot, without their older batches."""
        return b"".join(self._rows())

    def _rows(self) -> list[bytes]:
        return [*(_row_of(*each) for each in self.entries.items()), *self._idle.values()]

    @classmethod
    def from_snapshot(cls, data: bytes) -> Producers:
        """Return the producers in a snapshot. Raise ValueError if it is damaged."""
        try:
            version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        except error:
            raise ValueError("snapshot is too short") from None
        entries_end = _SNAPSHOT_HEAD.size + count * _ENTRY.size
        if version != _SNAPSHOT_VERSION or crc32c(data[_CRC_END:]) != crc or len(data) < entries_end:
            raise ValueError("snapshot is damaged")
        producers = cls()
        began = []
        windows: dict[int, bytes] = {}
        for at in range(entries_end, len(data) - _WINDOW_ENTRY.size + 1, _WINDOW_ENTRY.size):
            (producer_id,) = _PRODUCER_ID.unpack_from(data, at)
            windows[producer_id] = windows.get(producer_id, b"") + data[at : at + _WINDOW_ENTRY.size]
        for at in range(_SNAPSHOT_HEAD.size, entries_end, _ENTRY.size):
            producer_id, *_, txn_first = _ENTRY.unpack_from(data, at)
            row, window = data[at : at + _ENTRY.size], windows.get(producer_id, b"")
            if txn_first >= 0:
                began.append((txn_first, producer_id))
            if txn_first >= 0 or len(producers.entries) < _FEW:
                producers.entries[producer_id] = _entry_of(row, window)
                continue
            producers._idle[producer_id] = row
            if window:
                producers._idle_windows[producer_id] = window
        for txn_first, producer_id in sorted(began):
            producers.begin(producer_id, producers.entries[producer_id], txn_first)
        return producers


def last_offsets(rows: bytes) -> dict[int, tuple[int, int]]:
    """Return the last offset and the epoch of each producer; the offset is -1 if the log has only markers of it."""
    return {row[0]: (row[3], row[1]) for row in _ENTRY.iter_unpack(rows)}


def _row_of(producer_id: int, entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else ProducedBatch(-1, -1, -1, -1)
    return _ENTRY.pack(
        producer_id, entry.epoch, last.last_sequence, last.last_offset, last.last_offset - last.base_offset,
        entry.timestamp, entry.coordinator_epoch, entry.txn_first_offset,
    )  # fmt: skip


def _window_of(producer_id: int, entry: ProducerEntry) -> bytes:
    return b"".join([_WINDOW_ENTRY.pack(producer_id, *batch) for batch in entry.batches[:-1]])


def _entry_of(row: bytes, window: bytes) -> ProducerEntry:
    """Return the entry for a row of the snapshot and its older batches, without its open transaction."""
    _, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, _ = _ENTRY.unpack(row)
    entry = ProducerEntry(epoch)
    entry.next_sequence, entry.timestamp, entry.coordinator_epoch = 0, timestamp, coordinator_epoch
    if last_sequence >= 0:
        entry.batches = [ProducedBatch(*batch) for _, *batch in _WINDOW_ENTRY.iter_unpack(window)]
        entry.note((last_sequence - delta) % SEQUENCES, delta, last_offset - delta, timestamp)
    elif last_offset >= 0:
        entry.note_unsequenced(last_offset - delta, last_offset, timestamp)
    return entry


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, f"{offset:020d}.snapshot")


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Return the offsets of the producer snapshots in ``directory``, newest first."""
    stems = (name.removesuffix(".snapshot") for name in disk.listdir(directory) if name.endswith(".snapshot"))
    return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)


def remove_snapshots(disk: Disk, directory: str, *, after: int) -> None:
    """Delete the snapshots with an offset larger than ``after``: they contain batches that were truncated."""
    for offset in snapshot_offsets(disk, directory):
        if offset > after:
            disk.remove(snapshot_path(directory, offset))


def load_snapshot(disk: Disk, directory: str, end_offset: int) -> tuple[Producers, int]:
    """Return the newest valid snapshot at or below ``end_offset`` and its offset; no producers and 0 if none exists."""
    for offset in snapshot_offsets(disk, directory):
        if offset <= end_offset:
            try:
                return Producers.from_snapshot(read_derived_file(disk, snapshot_path(directory, offset)) or b""), offset
            except ValueError:
                continue
    return Producers(), 0


def load_producers(disk: Disk, directory: str, segments: list[Segment], end_offset: int) -> Producers:
    """Return the producer state as of ``end_offset``: load the newest readable snapshot, replay the batches."""
    if not end_offset:
        return Producers()
    producers, replay_from = load_snapshot(disk, directory, end_offset)
    if replay_from < end_offset:
        replay_segments(producers, segments, replay_from, end_offset)
    return producers


def replay_segments(producers: Producers, segments: list[Segment], start: int, end: int) -> list[EndedTransaction]:
    """Apply the batches from ``start`` to ``end`` to ``producers``. Return the transactions aborted in them."""
    aborted: list[EndedTransaction] = []
    for segment, position, header in _headers(segments, start, end):
        batch = segment.batch(position, header) if header.attributes & CONTROL else b""
        if (ended := producers.replay(header, batch)) is not None:
            aborted.append(ended)
    return aborted


def read_ended(
    disk: Disk, directory: str, segments: list[Segment], high_watermark: int, end: int
) -> list[EndedTransaction]:
    """Return the transactions of a log whose markers are at or above the high watermark and below ``end``.

    Snapshots have the open transactions only, and the transaction indexes the aborted ones only. So if there is such a
    marker, the batches are replayed, from a snapshot below the high watermark on. If these are many, the first offsets
    of the transactions are not looked for and count as 0: the high watermark passes the markers in a moment, and a
    start must not read whole segments. Raise OSError or CorruptMessage.
    """
    headers = (header for _, _, header in _headers(segments, high_watermark, end))
    markers = [(header.producer_id, header.base_offset) for header in headers if header.attributes & CONTROL]
    if not markers:
        return []
    producers, replay_from = load_snapshot(disk, directory, high_watermark)
    first = segment_number(segments, replay_from)
    size_bytes = sum(segment.size_bytes for segment in segments[first:]) - segments[first].position_of(replay_from)
    if size_bytes > _REPLAY_BYTES_MAX:
        return [EndedTransaction(producer_id, 0, offset, 0) for producer_id, offset in markers]
    ended = []
    for segment, position, header in _headers(segments, replay_from, end):
        batch = segment.batch(position, header) if header.attributes & CONTROL else b""
        began = producers.open.get(header.producer_id) if batch else None
        producers.replay(header, batch)
        if began is not None and header.base_offset >= high_watermark and header.producer_id not in producers.open:
            ended.append(EndedTransaction(header.producer_id, began, header.base_offset, began))
    return ended


def _headers(segments: list[Segment], start: int, end: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Yield the batches from the one that has offset ``start`` to the offset ``end``."""
    for segment in segments[segment_number(segments, start) :]:
        for position, header in segment.headers(segment.position_of(start)):
            if header.base_offset >= end:
                return
            yield segment, position, header
