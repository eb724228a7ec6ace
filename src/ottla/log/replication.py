"""The append of a follower: batches exactly as the leader stores them, with their offsets and leader epochs.

The leader has validated the records. The follower checks what could have changed on the way and what would damage its
own log: complete batches, their checksums, increasing offsets, and leader epochs that do not decrease. All batches are
checked before the first one is appended. The cost depends on the number of batches, not on the number of records.

Compaction leaves gaps between offsets. A gap is always inside a segment, because a new segment starts at the log end
offset, and not at the first batch in it: recovery takes a gap between segments for lost batches. ``Log.on_gap`` records
that the log has gaps, because recovery takes a gap in a topic that was never compacted for lost batches, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.log.epochs import LeaderEpochs
from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, CRC_FROM, HEADER_BYTES, LENGTH_END, LENGTH_MIN, MAGIC, BatchHeader, read_header
from ottla.model.errors import CorruptMessage, UnexpectedAppendOffset

if TYPE_CHECKING:
    from ottla.log.log import Log

#: the batches of one call are copied and written at the end of the turn up to this size, else written immediately
COPIED_BYTES_MAX = 32768


class _Batch(NamedTuple):
    #: the bytes of the batch, in the buffer of the caller
    start: int
    end: int
    header: BatchHeader


class _Checked(NamedTuple):
    """Valid batches, and what they mean for the log."""

    batches: list[_Batch]
    #: the leader epochs after the append; None if they do not change
    epochs: LeaderEpochs | None
    #: the offset before the last gap; None if there is no gap
    gap_at: int | None
    has_producers: bool
    has_markers: bool


def append_as_follower(of: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> tuple[int, int]:
    """Append the complete batches in ``records``: `Log.append_as_follower`."""
    header = read_header(records) if len(records) >= HEADER_BYTES else None
    end_offset, epochs = of.log_end_offset, of.epochs
    if header is not None and _restarts_log(of, header):
        end_offset, epochs = header.base_offset, LeaderEpochs()
    checked = _check(records, end_offset, epochs, leader_epoch)
    if not checked.batches:
        return end_offset, end_offset
    # Everything that may raise without a change to the log comes first: loading files, then writing small files.
    if checked.has_producers:
        _ = of.producers
    if checked.has_markers:
        of.aborted_in(of.active)
    if end_offset < of.log_end_offset:
        of.truncate_fully_and_start_at(end_offset)
    of.prepare_segment()
    if checked.gap_at is not None:
        _note_gap(of, checked.gap_at)
    if checked.epochs is not None:
        of.write_epochs(checked.epochs, sync=False)
    try:
        _apply(of, records, checked.batches, now_ms)
    except OSError as error:
        try:
            of.truncate_to(end_offset)
        except OSError as unread:
            of.failure = f"{error}; then {unread}"
        raise
    return checked.batches[0].header.base_offset, of.log_end_offset


def _restarts_log(of: Log, first: BatchHeader) -> bool:
    """Return whether the log is empty and starts inside of the first batch, because DeleteRecords ended there."""
    end_offset = of.log_end_offset
    return of.log_start_offset == end_offset and first.base_offset < end_offset <= first.last_offset


def _check(records: memoryview, end_offset: int, known_epochs: LeaderEpochs, leader_epoch: int) -> _Checked:
    """Return the complete batches. Raise CorruptMessage or UnexpectedAppendOffset if one of them is invalid.

    ``end_offset`` and ``known_epochs`` are those of the log before the append.
    """
    batches: list[_Batch] = []
    gap_at: int | None = None
    has_producers = has_markers = False
    epoch = known_epochs.latest
    new_epochs: list[tuple[int, int]] = []
    start, size = 0, len(records)
    while start + HEADER_BYTES <= size:
        header = read_header(records, start)
        end = start + header.length + LENGTH_END
        if header.length < LENGTH_MIN or header.magic != MAGIC or header.last_offset_delta < 0:
            raise CorruptMessage(f"a batch from the leader has an invalid header: {header}")
        if end > size:
            break
        if header.base_offset < end_offset:
            raise UnexpectedAppendOffset(header.base_offset, header.last_offset, end_offset)
        if crc32c(records[start + CRC_FROM : end]) != header.crc:
            raise CorruptMessage(f"the checksum of the batch at offset {header.base_offset} does not match its bytes")
        if not epoch <= header.leader_epoch <= leader_epoch:
            raise CorruptMessage(
                f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch}; it must be at least "
                f"that of the batch before it, {epoch}, and at most that of the leader, {leader_epoch}"
            )
        if header.leader_epoch > epoch:
            epoch = header.leader_epoch
            new_epochs.append((epoch, header.base_offset))
        if header.base_offset > end_offset:
            gap_at = end_offset
        if header.producer_id >= 0:
            has_producers = True
            has_markers = has_markers or header.attributes & CONTROL != 0
        batches.append(_Batch(start, end, header))
        start, end_offset = end, header.next_offset
    epochs: LeaderEpochs | None = None
    if new_epochs:
        epochs = known_epochs.copy()
        for each, start_offset in new_epochs:
            epochs.assign(each, start_offset)
    return _Checked(batches, epochs, gap_at, has_producers, has_markers)


def _note_gap(of: Log, offset: int) -> None:
    """Record that the log has a gap at ``offset``, unless recovery knows it already."""
    if not of.first_dirty_offset or (not of.settings.compact and offset > of.first_dirty_offset):
        of.on_gap(of, max(offset, 1))


def _apply(of: Log, records: memoryview, batches: list[_Batch], now_ms: int) -> None:
    """Append valid batches. Raise OSError if a write fails; some of the batches may then be in the log."""
    segment = of.active
    # The bytes from here on count as pending, but are not yet in ``Log.pending``
    unflushed = batches[0].start
    for start, end, header in batches:
        size = end - start
        if of.needs_roll(size, header.max_timestamp, header.last_offset):
            _flush(of, records[unflushed:start])
            unflushed = start
            segment = of.roll()
        segment.pending_bytes += size
        if not segment.size_bytes:
            of.begin_segment(header.max_timestamp, now_ms)
        segment.note_append(header.last_offset, size, header.max_timestamp, of.settings.index_interval_bytes)
        if header.producer_id >= 0:
            _apply_to_producers(of, header, records[start:end])
            if of.refused.first:
                of.refused.forget(header.producer_id)
        of.log_end_offset = header.next_offset
        of.appended_bytes += size
    _flush(of, records[unflushed : batches[-1].end])


def _apply_to_producers(of: Log, header: BatchHeader, batch: memoryview) -> None:
    marker = read_marker(batch) if header.attributes & CONTROL else None
    if marker is None:
        of.producers.replay(header, batch)
        return
    ended = of.producers.end(
        header.producer_id, header.producer_epoch, coordinator_epoch=marker.coordinator_epoch,
        offset=header.base_offset, timestamp=header.max_timestamp,
    )  # fmt: skip
    if ended is not None:
        of.ended.append(ended)
        if not marker.commit:
            of.active.aborted.append(ended)


def _flush(of: Log, data: memoryview) -> None:
    """Add the bytes to the pending ones, as a copy, or write both to the file."""
    if len(data) <= COPIED_BYTES_MAX:
        of.pending.append(bytes(data))
        return
    segment = of.active
    of.disk.pwritev(segment.file.fd, [b"".join(of.pending), data], segment.written_bytes)
    of.pending.clear()
    segment.pending_bytes = 0
    of.written_end_offset = of.log_end_offset
