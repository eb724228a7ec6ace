"""The log of one partition: ``append`` takes record batches, ``read`` returns file regions.

    append ──► pending ──write_pending──► file (page cache) ──sync──► disk
               log_end_offset             written_end_offset          synced_end_offset

The methods run on the event loop unless they say that they run in a thread. Their cost depends on the number of
batches, not on the number of records. ``append`` validates a batch, assigns its offsets and adds its bytes to the
pending list. The broker writes the pending batches of all logs once per turn of the event loop, before it sends any
reply, so that twenty small produce requests cost one system call per log. ``append`` writes a batch larger than
``PENDING_BATCH_BYTES_MAX`` immediately, without a copy, from the receive buffer.

``append`` also takes the batches of transactions; ``append_marker`` appends the control batch that ends a transaction.
A read_committed consumer gets the records below ``first_unstable_offset`` and the list of aborted transactions in them.

`log_state.py` has the state and its invariants. If ``append`` raises, it has changed nothing.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from struct import Struct

from crc32c import crc32c

from ottla.log import replication, truncation
from ottla.log.epochs import LeaderEpochs
from ottla.log.file_region import FileRegion
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.log_state import LogState
from ottla.log.opening import open_for
from ottla.log.producers import (
    ProducerEntry,
    Producers,
    load_producers,
    load_snapshot,
    replay_segments,
    snapshot_path,
)
from ottla.log.segment import Segment, segment_number
from ottla.log.times import FindRecord, find_newest, find_offset
from ottla.log.transactions import EndedTransaction, marker_batch
from ottla.log.truncation import EPOCHS_FILE
from ottla.log.validation import raise_if_invalid, raise_if_too_large
from ottla.model.batch import (
    CODEC_MASK,
    CODEC_MAX,
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
)
from ottla.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
)
from ottla.model.records import find_timestamp, max_timestamp_record
from ottla.model.settings import TopicSettings
from ottla.model.types import FrameBuffer

log = logging.getLogger(__name__)

#: a batch up to this size becomes pending; a larger one is written immediately and without a copy
PENDING_BATCH_BYTES_MAX = 32768
#: more pending bytes than this are written before the end of the event loop's turn
PENDING_BYTES_MAX = 1 << 20
#: cached positions of the offsets that sequential readers will ask for next
_HINTS_MAX = 32
#: a batch that is decompressed to find a timestamp may be this many times larger than max.message.bytes
_INFLATE_MAX = 16

#: the codec bits and the flags of batches that need a full check: a masked value above CODEC_MAX has a flag set
_CHECKED_FLAGS_OR_CODEC = CONTROL | TRANSACTIONAL | CODEC_MASK
_unpack_header = HEADER.unpack_from
_pack_prefix = PREFIX.pack
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AND_CRC = Struct(">Ih")
_TIMESTAMP = Struct(">q")


class Log(LogState):
    """The log of one partition. All access to its files goes through this class."""

    # -- append ---------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        now_ms: int,
        transactional: bool = False,
        sequenced: bool = True,
        opened: TopicSettings | None = None,
    ) -> tuple[int, int]:
        """Append the client's batch in ``buffer[start:end]``. Return its base offset and the offset after its last.

        Raise the KafkaError for the reply, OSError, or NeedsOpening if opening the batch would block the event loop
        too long. In these cases the log is unchanged.

        ``view`` is a view of ``buffer``. The caller must not use the buffer afterwards: timestamps are changed in
        place. For a duplicate batch of an idempotent producer, return the offsets of the first one. A transactional
        batch is valid only with ``transactional``; the caller then guarantees that the transaction exists. Pass
        ``sequenced=False`` for a coordinator's batch on behalf of a producer, which has no sequence number. ``opened``
        are the settings with which the batch was opened elsewhere: it is opened again only if the log's settings
        have changed. Only such a batch may lack records, because they were diverted to a dead-letter topic.
        """
        size = end - start
        if size < HEADER_BYTES:
            raise InvalidRecord(f"the request has {size} bytes of records, fewer than a batch header")
        (
            base, length, _, magic, crc, attributes, delta, base_ts, max_ts, producer_id, producer_epoch, sequence,
            count,
        ) = _unpack_header(buffer, start)  # fmt: skip
        if (
            length + LENGTH_END != size or magic != MAGIC or base or delta + 1 != count or count <= 0
            or attributes & _CHECKED_FLAGS_OR_CODEC > CODEC_MAX or (producer_id >= 0 and sequence < 0)
            or base_ts > max_ts or size > self._max_message_bytes
        ):  # fmt: skip
            raise_if_invalid(
                BatchHeader._make(_unpack_header(buffer, start)), size, self._max_message_bytes,
                transactional=transactional, sequenced=sequenced, has_gaps=opened is not None,
            )  # fmt: skip
        if crc32c(view[start + CRC_FROM : end]) != crc:
            raise CorruptMessage("the batch's checksum does not match its bytes")
        if not self._plain or max_ts - now_ms > self._after_max_ms:
            buffer, view, start, end, max_ts = self._transform(buffer, view, start, end, now_ms=now_ms, opened=opened)
            size = end - start
            length = size - LENGTH_END
            if max_ts - now_ms > self._after_max_ms:
                raise InvalidTimestamp(f"timestamp {max_ts} is too far ahead of the broker's clock")

        entry: ProducerEntry | None = None
        if producer_id >= 0:
            producers = self._producers or self.producers
            entry = producers.entries.get(producer_id)
            if (
                entry is None or entry.epoch != producer_epoch or entry.next_sequence != sequence
                or entry.txn_bit != attributes & TRANSACTIONAL
            ):  # fmt: skip
                in_txn = attributes & TRANSACTIONAL != 0
                entry, repeated = producers.check(producer_id, producer_epoch, sequence, delta, transactional=in_txn)
                if repeated is not None:
                    return repeated.base_offset, repeated.last_offset + 1
                if self.refused.first:
                    self.refused.check(producer_id, sequence, is_known=entry.next_sequence != -1)

        if not self._prepared:
            self._prepare()
        segment = self.active
        base = self.log_end_offset
        last = base + delta
        if (
            segment.size_bytes + size > self._segment_bytes
            or max_ts > self._roll_after_ms
            or last - segment.base_offset > RELATIVE_OFFSET_MAX
            or len(segment.offset_index.entries) >= self._index_entries_max
        ) and segment.size_bytes:
            segment = self.roll()

        if size <= PENDING_BATCH_BYTES_MAX:
            self.pending.append(_pack_prefix(base, length, self.leader_epoch))
            self.pending.append(buffer[start + PREFIX_BYTES : end])
            # Before ``size_bytes``, so that a reader in another thread never takes these bytes for written.
            segment.pending_bytes += size
        else:
            if self.pending:
                self.write_pending()
            head = _pack_prefix(base, length, self.leader_epoch)
            self.disk.pwritev(segment.file.fd, [head, view[start + PREFIX_BYTES : end]], segment.size_bytes)
            self.written_end_offset = last + 1
        if not segment.size_bytes:
            self.begin_segment(max_ts, now_ms)
        segment.note_append(last, size, max_ts, self._index_interval_bytes)
        if entry is not None:
            is_new = entry.next_sequence < 0
            if sequenced:
                entry.note(sequence, delta, base, max_ts)
            else:
                entry.note_unsequenced(base, last, max_ts)
            if entry.txn_bit != attributes & TRANSACTIONAL:
                self.producers.begin(producer_id, entry, base)
            if is_new:
                self.producers.add(producer_id, entry)
        self.log_end_offset = last + 1
        self.appended_bytes += size
        if segment.pending_bytes > PENDING_BYTES_MAX:
            self.write_pending()
        return base, last + 1

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> tuple[int, int]:
        """Append the marker that ends the producer's transaction. Return the marker's offset and the offset after it.

        Raise the KafkaError for the reply, or OSError; the log is then unchanged. Like Kafka, append the marker even
        if no transaction is open, because a newer epoch in the marker fences the producer.
        """
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        batch = marker_batch(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=now_ms
        )
        if not commit:
            self.aborted_in(self.active)  # loading a damaged index may raise: do it before any change
        if not self._prepared:
            self._prepare()
        segment, size, base = self.active, len(batch), self.log_end_offset
        if self.needs_roll(size, now_ms, base):
            segment = self.roll()
        self.pending.append(_pack_prefix(base, size - LENGTH_END, self.leader_epoch))
        self.pending.append(batch[PREFIX_BYTES:])
        segment.pending_bytes += size
        if not segment.size_bytes:
            self.begin_segment(now_ms, now_ms)
        segment.note_append(base, size, now_ms, self._index_interval_bytes)
        ended = self.producers.end(
            producer_id, producer_epoch, coordinator_epoch=coordinator_epoch, offset=base, timestamp=now_ms
        )
        if ended is not None:
            self.ended.append(ended)
            if not commit:
                segment.aborted.append(ended)
        self.log_end_offset = base + 1
        self.appended_bytes += size
        if segment.pending_bytes > PENDING_BYTES_MAX:
            self.write_pending()
        return base, base + 1

    def append_as_follower(self, records: memoryview, *, leader_epoch: int, now_ms: int) -> tuple[int, int]:
        """Append the complete batches in ``records`` exactly as the leader stores them, in epoch ``leader_epoch``.

        Return the first offset and the log end offset. Raise CorruptMessage, UnexpectedAppendOffset or OSError; the log
        then has none of the batches, and no pending ones. `replication.py` explains the rules.
        """
        return replication.append_as_follower(self, records, leader_epoch=leader_epoch, now_ms=now_ms)

    def _transform(
        self, buffer: FrameBuffer, view: memoryview, start: int, end: int, *, now_ms: int, opened: TopicSettings | None
    ) -> tuple[FrameBuffer, memoryview, int, int, int]:
        """Return the batch (buffer, view, start, end, max timestamp) as the topic's settings require it.

        Validate the records, change the codec and set the append time, each only if the settings ask for it.
        """
        settings = self.settings
        header = BatchHeader._make(_unpack_header(buffer, start))
        max_ts = header.max_timestamp
        if opened is not settings:
            stored = open_for(
                self.name.topic, settings, view[start:end], header, now_ms=now_ms, budget=self.inline_budget
            )
            if stored is not None:
                buffer = bytearray(stored)
                view, start, end = memoryview(buffer), 0, len(buffer)
        (attributes,) = _ATTRIBUTES.unpack_from(buffer, start + 21)
        raise_if_too_large(end - start, settings.max_message_bytes, settings.segment_bytes)
        if settings.log_append_time:
            # The base timestamp stays: with LOG_APPEND_TIME set, readers use the max timestamp for every record.
            max_ts = now_ms
            _TIMESTAMP.pack_into(buffer, start + 35, max_ts)
            _ATTRIBUTES_AND_CRC.pack_into(buffer, start + 17, 0, attributes | LOG_APPEND_TIME)
            crc = crc32c(view[start + CRC_FROM : end])
            _ATTRIBUTES_AND_CRC.pack_into(buffer, start + 17, crc, attributes | LOG_APPEND_TIME)
        return buffer, view, start, end, max_ts

    def write_pending(self) -> None:
        """Write all pending batches with one system call. If it raises OSError, the log no longer contains them."""
        if self.pending:
            segment = self.active
            try:
                self.disk.pwrite(segment.file.fd, b"".join(self.pending), segment.written_bytes)
            except OSError as error:
                try:
                    self.undo_pending()
                except OSError as unread:
                    # The state in memory no longer matches the file.
                    self.failure = f"{error}; then {unread}"
                raise
            self.pending.clear()
            segment.pending_bytes = 0
        self.written_end_offset = self.log_end_offset

    def _prepare(self) -> None:
        """Create the folder, record the leader epoch and load the timestamps that ``append`` needs.

        This runs before the first append instead of at the start, so that opening thousands of logs reads no file.
        """
        self.prepare_segment()
        if self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self._epochs_synced = False
        if not self._epochs_synced:
            self.write_epochs(self.epochs, sync=False)
        self._prepared = True

    def prepare_segment(self) -> None:
        """Create the folder if the log has none, and load the timestamps by which the log rolls."""
        truncation.complete(self)
        self.make_folder_if_new()
        self.active.load_times()
        self.active.load_first_timestamp()
        self._roll_after_ms = self._roll_deadline()

    def make_folder_if_new(self) -> None:
        """Create the folder if the log was created without it."""
        if self.make_folder is not None:
            self.make_folder()
            self.make_folder = None

    def write_epochs(self, epochs: LeaderEpochs, *, sync: bool) -> None:
        """Write the epochs to their file and use them. Raise WriteFailed, without a change."""
        self.disk.write_file(os.path.join(self.directory, EPOCHS_FILE), epochs.to_text().encode(), sync=sync)
        self.epochs, self._epochs_synced, self._epochs_written = epochs, sync, True

    # -- segments -------------------------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """Seal the active segment. Return the new active segment, which starts at the log end offset."""
        truncation.complete(self)
        self.write_pending()
        self._truncate_failed_write()
        if not self._epochs_written:
            with suppress(OSError):  # on a full disk ``sync_sealed`` fails then, and the next roll tries again
                self.write_epochs(self.epochs, sync=False)
        sealed = self.active
        # If the disk is too full for the snapshot, recovery replays from an older one: the log can still roll.
        with suppress(OSError):
            self._write_snapshot(sync=False)
        segment = Segment(self.disk, self.directory, self.log_end_offset)
        self.segments.append(segment)
        self.active = segment
        self._roll_after_ms = self._roll_deadline()
        self.on_roll(self, sealed)
        return segment

    def maybe_roll_by_age(self, now_ms: int) -> None:
        """Roll the active segment if segment.ms has passed, because compaction skips the active segment.

        The age counts from the first timestamp or from the first append, whichever is later: a producer may send old
        timestamps.
        """
        active = self.active
        if active.size_bytes and not self.make_folder:
            since_ms = max(active.load_first_timestamp(), self._active_since_ms)
            if now_ms - since_ms > self._segment_ms and self.written_end_offset == self.log_end_offset:
                self.roll()

    def _truncate_failed_write(self) -> None:
        """Truncate the bytes of a failed write after the last batch, because a clean start trusts file sizes."""
        active = self.active
        if active.is_open and self.disk.size(active.file.fd) > active.written_bytes:
            self.disk.truncate(active.file.fd, active.written_bytes)

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Advance the log start offset. Return the dropped segments: those that end before it. The caller deletes them.

        Keep a segment that is not synced, and all after it. A power failure could bring back an incomplete file of a
        dropped segment, and recovery would then discard all segments that follow it, even synced ones.
        """
        return truncation.advance_log_start(self, offset)

    # -- read -----------------------------------------------------------------------------------------------------

    def read(self, offset: int, size_bytes_max: int, end_offset: int, *, at_least_one: bool) -> FileRegion | None:
        """Return complete batches of one segment, from ``offset``'s batch to ``end_offset``; None if there are none.

        Raise OffsetOutOfRange if ``offset`` is not in the log. ``end_offset`` is the high watermark or the last stable
        offset. With ``at_least_one``, return the first batch even if it is larger than ``size_bytes_max``.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}")
        if offset >= end_offset:
            return None
        hint = self._hints.get(offset)
        if hint is not None:
            segment, position = hint
        else:
            segment = self.segments[segment_number(self.segments, offset)]
            position = segment.position_of(offset)
        end = segment.written_bytes
        if end_offset < self.written_end_offset:
            known = self._hints.get(end_offset)
            end = min(end, known[1] if known is not None and known[0] is segment else segment.position_of(end_offset))
        if position >= end:
            return self._read_next_segment(segment, size_bytes_max, end_offset, at_least_one=at_least_one)
        size, next_offset = segment.whole_batches(position, end, size_bytes_max, at_least_one=at_least_one)
        if size <= 0:
            return None
        if position + size == end and segment is self.active and end_offset >= self.written_end_offset:
            next_offset = self.written_end_offset
        if next_offset is not None:
            if len(self._hints) >= _HINTS_MAX:
                del self._hints[next(iter(self._hints))]
            self._hints[next_offset] = segment, position + size
        return FileRegion(self.disk, segment.file, position, size)

    def _read_next_segment(
        self, segment: Segment, size_bytes_max: int, end_offset: int, *, at_least_one: bool
    ) -> FileRegion | None:
        """Read from the segment after ``segment``: compaction may have removed the last batches of ``segment``."""
        self._hints.clear()  # they may lead to the end of ``segment``
        following = segment_number(self.segments, segment.base_offset) + 1
        if following >= len(self.segments):
            return None
        return self.read(self.segments[following].base_offset, size_bytes_max, end_offset, at_least_one=at_least_one)

    # -- transactions ---------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of all transactions that are open or whose marker is not yet replicated, or None."""
        began = next(iter((self._producers or self.producers).open.values()), None)
        for each in self.ended:
            if began is None or each.first_offset < began:
                began = each.first_offset
        return None if began is None else max(began, self.log_start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of every aborted transaction that overlaps [start, end)."""
        return [(each.producer_id, each.first_offset) for each in self.aborted_between(start, end)]

    def aborted_between(self, start: int, end: int) -> list[EndedTransaction]:
        """Return every aborted transaction that overlaps [start, end)."""
        found = []
        for segment in self.segments[segment_number(self.segments, start) :]:
            for each in self.aborted_in(segment):
                if each.last_offset >= start and each.first_offset < end:
                    found.append(each)
                if each.last_stable_offset >= end:
                    # Every transaction that began below ``end`` had ended before this marker.
                    return found
        return found

    def aborted_within(self, offset: int, region: FileRegion, end_offset: int) -> list[tuple[int, int]]:
        """Return the aborted transactions in ``region``, which ``read`` returned for ``offset`` and ``end_offset``."""
        segments = self.segments[segment_number(self.segments, offset) :]
        if not any(map(self.aborted_in, segments)):
            return []
        for segment in segments:
            if segment.is_open and segment.file is region.file:
                after = segment.offset_after(region.position + region.size_bytes)
                if after is not None:
                    end_offset = min(end_offset, after)
                break
        return self.aborted_transactions(offset, end_offset)

    def aborted_in(self, segment: Segment) -> list[EndedTransaction]:
        """Return the segment's aborted transactions; rebuild a damaged transaction index from the batches."""
        try:
            return segment.aborted
        except ValueError as error:
            log.warning("transaction index is rebuilt path=%s reason=%s", segment.path(".txnindex"), error)
        following = segment_number(self.segments, segment.base_offset) + 1
        end = self.segments[following].base_offset if following < len(self.segments) else self.log_end_offset
        producers, replay_from = load_snapshot(self.disk, self.directory, segment.base_offset)
        ended = replay_segments(producers, self.segments, replay_from, end)
        segment.aborted = [each for each in ended if each.last_offset >= segment.base_offset]
        if segment is self.active:
            segment.indexed_bytes = -1
        else:
            # No sync: after a power failure the index is rebuilt again. No error: a full disk must not fail a fetch.
            with suppress(OSError):
                segment.write_aborted()
        return segment.aborted

    # -- times ----------------------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp: int, end_offset: int, find: FindRecord = find_timestamp
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after ``timestamp``; None if there is none."""
        inflate_max = self.settings.max_message_bytes * _INFLATE_MAX
        return find_offset(
            list(self.segments), timestamp, find,
            log_start_offset=self.log_start_offset, end_offset=end_offset, inflate_max=inflate_max,
        )  # fmt: skip

    def newest_timestamp(self, find: FindRecord = max_timestamp_record) -> tuple[int, int] | None:
        """Return offset and timestamp of the written record with the largest timestamp; None if there is none."""
        inflate_max = self.settings.max_message_bytes * _INFLATE_MAX
        return find_newest(list(self.segments), find, end_offset=self.written_end_offset, inflate_max=inflate_max)

    # -- sync -----------------------------------------------------------------------------------------------------

    def sync_sealed(self, segment: Segment) -> None:
        """Sync the segment, its snapshot and the epochs, then write the indexes. Runs in a thread."""
        if not self._epochs_written:
            raise OSError(errno.ENOSPC, "the leader epochs are not in their file yet", self.directory)
        later = [each.base_offset for each in self.segments if each.base_offset > segment.base_offset]
        snapshots = [snapshot_path(self.directory, offset) for offset in later[:1]]
        segment.sync_sealed([os.path.join(self.directory, EPOCHS_FILE), *snapshots])

    # -- producers ------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> Producers:
        """Return the producer state; load it on first use."""
        if self._producers is None:
            self._producers = load_producers(self.disk, self.directory, self.segments, self._producers_offset)
        return self._producers

    def _write_snapshot(self, *, sync: bool) -> None:
        """Write a snapshot of the producer state at the log end. Recovery replays from the newest snapshot."""
        path = snapshot_path(self.directory, self.log_end_offset)
        if self._producers is None and self._producers_offset == self.log_end_offset and self.disk.exists(path):
            return  # the existing file is the same snapshot
        self.disk.write_file(path, self.producers.to_snapshot(), sync=sync)

    # -- truncate -------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Remove every batch whose last offset is at or above ``offset``, and all pending batches.

        Raise OSError if that fails. The truncation is synced. `truncation.py` explains the steps.
        """
        truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches and start the empty log at ``offset``, which may be outside of it.

        Raise OSError if that fails. The result is synced.
        """
        truncation.truncate_fully_and_start_at(self, offset)

    def undo_pending(self) -> None:
        """Remove all pending batches, because they could not be written to a full disk: this needs no free space."""
        undone = b"".join(self.pending)
        self.forget_from(self.written_end_offset)
        self.active.undo_pending(self.written_end_offset)
        self._roll_after_ms = self._roll_deadline()
        with suppress(OSError):  # the next append reports that the producers cannot be read
            self.refused.note(undone, 0, len(undone), self.producers)

    def flush_files(self) -> None:
        """Write and sync the batches, then the indexes, the snapshot and the epochs, for a clean stop."""
        if self.make_folder is not None:
            return
        truncation.complete(self)
        self.write_pending()
        self._truncate_failed_write()
        job = self.start_sync()
        job.run()
        self.note_synced(job)
        for segment in self.segments:
            segment.write_indexes()
        self._write_snapshot(sync=True)
        if not self._epochs_synced:
            self.write_epochs(self.epochs, sync=True)
