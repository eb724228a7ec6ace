"""What a log remembers of each idempotent producer, so that a retry is stored once.

Per producer id: its epoch and its last five batches (a client has at most five in flight). The rules are
ProducerAppendInfo's: the same batch again is answered with the offset it has; an older epoch is fenced; a newer one
starts at sequence 0; otherwise the sequence must follow; a producer we know nothing of may start anywhere, because
retention may have dropped what we knew.

``.snapshot`` is Kafka's format with one addition: Kafka keeps the last batch only, so a client whose earlier replies
were lost around a restart gets OUT_OF_ORDER_SEQUENCE_NUMBER there. We append the older batches of the window behind
Kafka's entries, inside the checksum, where Kafka's reader does not look.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

from crc32c import crc32c

from ottla.model.batch import SEQUENCES
from ottla.model.errors import InvalidProducerEpoch, OutOfOrderSequence

WINDOW = 5

_SNAPSHOT_HEAD = Struct(">hII")
_SNAPSHOT_VERSION = 1
_CRC_END = 6
_ENTRY = Struct(">qhiqiqiq")
_WINDOW_ENTRY = Struct(">qiiqq")


class ProducedBatch(NamedTuple):
    """One batch of the window."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry:
    """One producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "next_sequence", "timestamp", "txn_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        #: the sequence that the next batch must start with; -1 when nothing of this epoch was seen
        self.next_sequence = -1
        #: newest timestamp seen; the entry expires when it is old
        self.timestamp = -1
        #: oldest first, at most WINDOW
        self.batches: list[ProducedBatch] = []
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    def duplicate_of(self, base_sequence: int, last_sequence: int) -> ProducedBatch | None:
        for batch in self.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def note(self, base_sequence: int, last_offset_delta: int, base_offset: int, timestamp: int) -> None:
        last_sequence = (base_sequence + last_offset_delta) % SEQUENCES
        batches = self.batches
        if len(batches) == WINDOW:
            del batches[0]
        batches.append(ProducedBatch(base_sequence, last_sequence, base_offset, base_offset + last_offset_delta))
        self.next_sequence = (last_sequence + 1) % SEQUENCES
        self.timestamp = timestamp


class Producers:
    """All producers of one log."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> tuple[ProducerEntry, ProducedBatch | None]:
        """The producer's entry, and the batch that this one repeats. Raises when the batch must be refused.

        Nothing changes here: the caller notes the batch once everything else about it is known to be right.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return ProducerEntry(epoch), None
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id} epoch {epoch} is older than {entry.epoch}")
        if epoch > entry.epoch:
            if base_sequence != 0:
                raise OutOfOrderSequence(f"producer {producer_id} epoch {epoch} must start at sequence 0")
            return ProducerEntry(epoch), None
        if entry.next_sequence not in (base_sequence, -1):
            duplicate = entry.duplicate_of(base_sequence, (base_sequence + last_offset_delta) % SEQUENCES)
            if duplicate is None:
                raise OutOfOrderSequence(
                    f"producer {producer_id} sent sequence {base_sequence}, expected {entry.next_sequence}"
                )
            return entry, duplicate
        return entry, None

    def note(
        self, producer_id: int, epoch: int, base_sequence: int, delta: int, base_offset: int, timestamp: int
    ) -> None:
        """Replay a batch that the log already holds: no checks, the log is the truth."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
        entry.note(base_sequence, delta, base_offset, timestamp)

    def expire(self, older_than_ms: int) -> None:
        """Forget producers whose newest batch is older, unless a transaction of theirs is open."""
        for producer_id, entry in list(self.entries.items()):
            if entry.timestamp < older_than_ms and entry.txn_first_offset < 0:
                del self.entries[producer_id]

    def to_snapshot(self) -> bytes:
        rows, older = [], []
        for producer_id, entry in self.entries.items():
            last = entry.batches[-1] if entry.batches else ProducedBatch(-1, -1, -1, -1)
            delta = last.last_offset - last.base_offset
            rows.append(
                _ENTRY.pack(
                    producer_id, entry.epoch, last.last_sequence, last.last_offset, delta, entry.timestamp,
                    entry.coordinator_epoch, entry.txn_first_offset,
                )
            )  # fmt: skip
            older += [_WINDOW_ENTRY.pack(producer_id, *batch) for batch in entry.batches[:-1]]
        body = len(rows).to_bytes(4, "big") + b"".join(rows) + b"".join(older)
        return _SNAPSHOT_VERSION.to_bytes(2, "big") + int(crc32c(body)).to_bytes(4, "big") + body

    @classmethod
    def from_snapshot(cls, data: bytes) -> Producers:
        """Load a snapshot; raises ValueError when it is damaged."""
        try:
            version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        except error:
            raise ValueError("snapshot is too short") from None
        entries_end = _SNAPSHOT_HEAD.size + count * _ENTRY.size
        if version != _SNAPSHOT_VERSION or crc32c(data[_CRC_END:]) != crc or len(data) < entries_end:
            raise ValueError("snapshot is damaged")
        producers = cls()
        window = data[entries_end:]
        older: dict[int, list[ProducedBatch]] = {}
        whole = len(window) // _WINDOW_ENTRY.size * _WINDOW_ENTRY.size
        for producer_id, *batch in _WINDOW_ENTRY.iter_unpack(window[:whole]):
            older.setdefault(producer_id, []).append(ProducedBatch(*batch))
        for row in _ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size : entries_end]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = row
            entry = producers.entries[producer_id] = ProducerEntry(epoch)
            entry.timestamp, entry.coordinator_epoch, entry.txn_first_offset = timestamp, coordinator_epoch, txn_first
            if last_sequence >= 0:
                entry.batches = older.get(producer_id, [])
                entry.note((last_sequence - delta) % SEQUENCES, delta, last_offset - delta, timestamp)
        return producers
