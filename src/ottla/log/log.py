"""A partition's log: batches in, file regions out.

    append ──► pending ──write_pending──► file (page cache) ──sync──► disk
               log_end_offset             written_end_offset          synced_end_offset

Everything here runs on the event loop and takes its time per batch, never per record. ``append`` checks a batch,
gives it offsets and puts its bytes aside; the broker then writes all pending batches of all logs once per turn of its
loop, before any reply goes out, so that twenty small produces cost one system call. A batch too large for that is
written at once, straight from the receive buffer.

A transaction's batches are batches like any other; ``append_marker`` writes the control batch that ends it. Readers of
committed records get what lies below ``first_unstable_offset``, and a list of the transactions in it to leave out.

Invariants: log_start <= written_end, synced_end <= written_end <= log_end; offsets in the file are dense but where
compaction left gaps, inside sealed segments; what lies below ``written_end_offset`` never changes unless
``truncate_to`` or ``replace_segments`` says so; ``append`` changes nothing when it raises.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from struct import Struct

from crc32c import crc32c

from ottla.env.disk import Disk
from ottla.log.epochs import LeaderEpochs
from ottla.log.index import OFFSET_ENTRY_BYTES, POSITION_MASK, RELATIVE_OFFSET_MAX
from ottla.log.opening import InlineBudget, limits_past, open_inline, rules_for
from ottla.log.producers import ProducerEntry, Producers, load_snapshot, remove_snapshots, snapshot_path
from ottla.log.segment import NO_TIMESTAMP, FileRegion, Segment
from ottla.log.times import FindRecord, find_newest, find_offset
from ottla.log.transactions import EndedTransaction, marker_batch
from ottla.log.validation import batch_bytes_max, refuse_if_too_large, refuse_unless_allowed
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
from ottla.model.types import FrameBuffer, TopicPartition

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

#: a batch up to this size waits to be written with others; a larger one is written at once, uncopied
PENDING_BATCH_BYTES_MAX = 32768
#: pending bytes that are written without waiting for the end of the turn
PENDING_BYTES_MAX = 1 << 20
EPOCHS_FILE = "leader-epoch-checkpoint"
#: remembered (offset, position) pairs of readers that read on
_HINTS_MAX = 64
#: a batch that is opened to find a time may be this many times larger than the largest message
_INFLATE_MAX = 16

#: what a client's batch may not be, and its codec: above the largest codec, it needs a closer look
_REFUSED_OR_CODEC = CONTROL | TRANSACTIONAL | CODEC_MASK
_unpack_header = HEADER.unpack_from
_pack_prefix = PREFIX.pack
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AND_CRC = Struct(">Ih")
_TIMESTAMP = Struct(">q")


class Log:
    """One partition's batches. The only entrance to its files."""

    def __init__(
        self, *, disk: Disk, directory: str, name: TopicPartition, settings: TopicSettings, segments: list[Segment],
        log_start_offset: int, log_end_offset: int, epochs: LeaderEpochs, producers: Producers | None,
        epochs_synced: bool = False,
    ) -> None:  # fmt: skip
        # Shared
        self._disk = disk
        self.directory = directory
        self.name = name
        #: a log that was never written has no folder yet, so that making topics costs nothing; called before the first
        self.make_folder: Callable[[], None] | None = None
        #: called with a segment that will not change any more
        self.on_roll: Callable[[Log, Segment], None] = _nobody_rolled
        #: what this turn may still spend on opening batches; the logs of a broker share one
        self.inline_budget = InlineBudget()

        # Contents
        self.segments = segments
        self.active = segments[-1]
        self.epochs = epochs
        #: None until first needed: then they are loaded as of this offset, for none of theirs came since
        self._producers = producers
        self._producers_offset = log_end_offset
        #: transactions whose marker may not be below the high watermark yet, in order of their markers
        self.ended: list[EndedTransaction] = []
        #: whether ``leader-epoch-checkpoint`` is durable and says what ``epochs`` does
        self._epochs_synced = epochs_synced
        #: sealed segments whose indexes could not be written for want of room
        self.unfinished: list[Segment] = []
        #: dropped segments without indexes, whose files a crash could still bring back
        self.leaving: list[Segment] = []
        #: the partition was deleted: its folder has another name, and its files are no longer ours
        self.gone = False
        #: why the log is offline: its files could not be read at the start, or it could not undo a failed write
        self.failure: str | None = None

        # Offsets
        #: the first offset that readers may have
        self.log_start_offset = log_start_offset
        #: the offset that the next record gets
        self.log_end_offset = log_end_offset
        #: everything below is in the file
        self.written_end_offset = log_end_offset
        #: everything below survives a power cut
        self.synced_end_offset = log_end_offset
        #: everything below was compacted once; its newest value per key is the only one there
        self.first_dirty_offset = 0
        self.leader_epoch = max(epochs.latest, 0)

        # Pending
        self.pending: list[Buffer] = []
        self.pending_bytes = 0
        #: bytes appended in this life of the process; only differences mean anything
        self.appended_bytes = 0
        #: size of the active file without what is pending
        self.written_bytes = self.active.size_bytes
        self._hints: dict[int, tuple[Segment, int]] = {}
        #: a batch with a newer timestamp goes into the next segment
        self._roll_after_ms = 0
        #: the broker's time when the active segment got its first batch; 0 when that was in another life
        self._active_since_ms = 0
        #: whether the first batch of this leadership, or of this life, has been prepared for
        self._prepared = False
        self.configure(settings)

    # -- append ---------------------------------------------------------------------------------------------------

    def append(
        self, buffer: FrameBuffer, view: memoryview, start: int, end: int, now_ms: int, transactional: bool = False,
        sequenced: bool = True, opened: TopicSettings | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Append the client's batch that fills ``buffer[start:end]``: its base offset and the offset behind it.

        ``view`` looks at the same buffer, which is the caller's to give away: timestamps are patched in place. A batch
        that an idempotent producer sent before gets the offsets it already has. Only with ``transactional`` it may be
        part of a transaction, and begin one: whoever says so knows that the transaction is there. A coordinator that
        writes on behalf of a producer has no sequences. ``opened`` are the settings for which the batch was opened
        elsewhere: it is not opened again while they are the log's. Raise the KafkaError to answer with, OSError, or
        NeedsOpening if opening the batch would hold up the loop; then nothing has changed.
        """
        size = end - start
        if size < HEADER_BYTES:
            raise InvalidRecord("no whole batch in the request")
        (
            base, length, _, magic, crc, attributes, delta, base_ts, max_ts, producer_id, producer_epoch, sequence,
            count,
        ) = _unpack_header(buffer, start)  # fmt: skip
        if (
            length + LENGTH_END != size or magic != MAGIC or base or delta + 1 != count or count <= 0
            or attributes & _REFUSED_OR_CODEC > CODEC_MAX or (producer_id >= 0 and sequence < 0)
            or base_ts > max_ts or size > self._max_message_bytes
        ):  # fmt: skip
            refuse_unless_allowed(
                BatchHeader._make(_unpack_header(buffer, start)), size, self._max_message_bytes,
                transactional=transactional, sequenced=sequenced,
            )  # fmt: skip
        if crc32c(view[start + CRC_FROM : end]) != crc:
            raise CorruptMessage("the batch's checksum does not match its bytes")
        if not self._plain or max_ts - now_ms > self._after_max_ms:
            buffer, view, start, end, max_ts = self._transform(buffer, view, start, end, now_ms, opened)
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
            self.pending_bytes += size
        else:
            if self.pending_bytes:
                self.write_pending()
            head = _pack_prefix(base, length, self.leader_epoch)
            self._disk.pwritev(segment.file.fd, [head, view[start + PREFIX_BYTES : end]], self.written_bytes)
            self.written_bytes += size
            self.written_end_offset = last + 1
        if not segment.size_bytes:
            self._begin_segment(max_ts, now_ms)
        segment.note_append(last, size, max_ts, self._index_interval_bytes)
        if entry is not None:
            if entry.next_sequence < 0:
                self.producers.entries[producer_id] = entry
            if sequenced:
                entry.note(sequence, delta, base, max_ts)
            else:
                entry.note_unsequenced(base, last, max_ts)
            if entry.txn_bit != attributes & TRANSACTIONAL:
                self.producers.begin(producer_id, entry, base)
        self.log_end_offset = last + 1
        self.appended_bytes += size
        if self.pending_bytes > PENDING_BYTES_MAX:
            self.write_pending()
        return base, last + 1

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, now_ms: int
    ) -> tuple[int, int]:
        """End the producer's transaction: the marker's offset and the one behind it.

        Without an open transaction the marker is written all the same, as Kafka does: a newer epoch in it fences the
        producer. Raises as ``append`` does, and then nothing has changed.
        """
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        batch = marker_batch(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=now_ms
        )
        if not commit:
            self._aborted_in(self.active)  # what is damaged shows now, while nothing has changed
        if not self._prepared:
            self._prepare()
        segment, size, base = self.active, len(batch), self.log_end_offset
        if (
            segment.size_bytes + size > self._segment_bytes
            or now_ms > self._roll_after_ms
            or base - segment.base_offset > RELATIVE_OFFSET_MAX
            or len(segment.offset_index.entries) >= self._index_entries_max
        ) and segment.size_bytes:
            segment = self.roll()
        self.pending.append(_pack_prefix(base, size - LENGTH_END, self.leader_epoch))
        self.pending.append(batch[PREFIX_BYTES:])
        self.pending_bytes += size
        if not segment.size_bytes:
            self._begin_segment(now_ms, now_ms)
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
        if self.pending_bytes > PENDING_BYTES_MAX:
            self.write_pending()
        return base, base + 1

    def _transform(
        self, buffer: FrameBuffer, view: memoryview, start: int, end: int, now_ms: int, opened: TopicSettings | None
    ) -> tuple[FrameBuffer, memoryview, int, int, int]:
        """Do what some topics ask for: check the records, change the codec, write the broker's time into the batch."""
        settings = self.settings
        header = BatchHeader._make(_unpack_header(buffer, start))
        max_ts = header.max_timestamp
        if opened is not settings and (rules := rules_for(settings, header, now_ms)) is not None:
            stored = open_inline(view[start:end], header, rules, settings, self.inline_budget)
            if stored is not None:
                buffer = bytearray(stored)
                view, start, end = memoryview(buffer), 0, len(buffer)
        (attributes,) = _ATTRIBUTES.unpack_from(buffer, start + 21)
        refuse_if_too_large(end - start, settings.max_message_bytes, settings.segment_bytes)
        if settings.log_append_time:
            # Base timestamp stays: readers take the largest for every record when the bit is set.
            max_ts = now_ms
            _TIMESTAMP.pack_into(buffer, start + 35, max_ts)
            _ATTRIBUTES_AND_CRC.pack_into(buffer, start + 17, 0, attributes | LOG_APPEND_TIME)
            crc = crc32c(view[start + CRC_FROM : end])
            _ATTRIBUTES_AND_CRC.pack_into(buffer, start + 17, crc, attributes | LOG_APPEND_TIME)
        return buffer, view, start, end, max_ts

    def write_pending(self) -> None:
        """Write everything that is pending with one call. On OSError the log is as if it had never been appended."""
        if self.pending:
            try:
                self._disk.pwrite(self.active.file.fd, b"".join(self.pending), self.written_bytes)
            except OSError as error:
                try:
                    self.truncate_to(self.written_end_offset)
                except OSError as unread:
                    # What is in memory no longer describes the file.
                    self.failure = f"{error}; then {unread}"
                raise
            self.pending.clear()
            self.written_bytes += self.pending_bytes
            self.pending_bytes = 0
        self.written_end_offset = self.log_end_offset

    def become_leader(self, epoch: int) -> None:
        """From now on batches carry ``epoch``; it enters the history with the first of them."""
        self.leader_epoch = epoch
        self._prepared = False

    def _prepare(self) -> None:
        """What can wait until a log is written to, so that opening a thousand of them reads nothing."""
        if self.make_folder is not None:
            self.make_folder()
            self.make_folder = None
        if self.epochs.assign(self.leader_epoch, self.log_end_offset):
            self._epochs_synced = False
        if not self._epochs_synced:
            self._write_epochs(sync=False)
        self.active.load_times()
        self.active.load_first_timestamp()
        self._roll_after_ms = self._roll_deadline()
        self._prepared = True

    def _write_epochs(self, *, sync: bool) -> None:
        path = os.path.join(self.directory, EPOCHS_FILE)
        self._disk.write_file(path, self.epochs.to_text().encode(), sync=sync)
        self._epochs_synced = sync

    # -- segments -------------------------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """Close the active segment and start the next at the log's end."""
        self.write_pending()
        self._trim()
        sealed = self.active
        # Without room for a snapshot recovery replays from an older one: no reason to keep a log from moving on.
        with suppress(OSError):
            self._write_snapshot(sync=False)
        segment = Segment(self._disk, self.directory, self.log_end_offset)
        self.segments.append(segment)
        self.active = segment
        self.written_bytes = 0
        self._roll_after_ms = self._roll_deadline()
        self.on_roll(self, sealed)
        return segment

    def _begin_segment(self, first_timestamp: int, now_ms: int) -> None:
        self.active.first_timestamp = first_timestamp
        self._active_since_ms = now_ms
        self._roll_after_ms = self._roll_deadline()

    def maybe_roll_quiet(self, now_ms: int) -> None:
        """Roll an active segment that has waited long enough for its next batch: compaction cannot have it before.

        A batch with an old timestamp of its producer's has not waited.
        """
        active = self.active
        if active.size_bytes and not self.make_folder:
            since_ms = max(active.load_first_timestamp(), self._active_since_ms)
            if now_ms - since_ms > self._segment_ms and self.written_end_offset == self.log_end_offset:
                self.roll()

    @property
    def _segment_ms(self) -> int:
        settings = self.settings
        return min(settings.segment_ms, settings.max_compaction_lag_ms) if settings.compact else settings.segment_ms

    def _trim(self) -> None:
        """Cut what a failed write left behind the last batch: after a clean start sizes are trusted."""
        if self.active.is_open and self._disk.size(self.active.file.fd) > self.written_bytes:
            self._disk.truncate(self.active.file.fd, self.written_bytes)

    def _roll_deadline(self) -> int:
        first = self.active.first_timestamp
        if first == NO_TIMESTAMP:
            return (1 << 63) - 1
        return first + self._segment_ms - self.settings.segment_jitter_ms

    def configure(self, settings: TopicSettings) -> None:
        """Take changed topic settings; they hold from the next batch on."""
        self.settings = settings
        # What every append looks at, one attribute away.
        self._max_message_bytes = settings.max_message_bytes
        self._segment_bytes = settings.segment_bytes
        self._index_interval_bytes = settings.index_interval_bytes
        self._index_entries_max = settings.segment_index_bytes // OFFSET_ENTRY_BYTES
        self.flush_acks_all = settings.flush_acks_all
        self.flush_messages = settings.flush_messages
        self._after_max_ms = (1 << 62) if settings.log_append_time else settings.message_timestamp_after_max_ms
        #: nothing about a batch has to be looked at or changed beyond its header
        self._plain = (
            not settings.compact
            and not settings.log_append_time
            and settings.compression_type == "producer"
            and batch_bytes_max(settings.segment_bytes) >= settings.max_message_bytes
            and not limits_past(settings)
        )
        self._roll_after_ms = self._roll_deadline()

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Move the log's start forward; returns the segments before it, which are no longer part of the log.

        One that is not on disk yet stays for another time: after a power cut it would come back torn, and recovery
        would take what follows it, synced or not, for lost.
        """
        if offset < self.log_start_offset:
            return []
        if offset >= self.log_end_offset and self.active.size_bytes:
            self.roll()
        keep = bisect_right(self.segments, offset, key=_base_offset) - 1
        unsynced = (n for n, each in enumerate(self.segments[:keep]) if each.synced_bytes < each.size_bytes)
        keep = next(unsynced, keep)
        if keep and not self.active.is_open:
            # Once the others are gone, the name of this file may be all that tells where the log goes on.
            self.active.open_file()
        self.log_start_offset = offset
        if not keep:
            return []
        dropped, self.segments = self.segments[:keep], self.segments[keep:]
        for segment in dropped:
            segment.dropped = True
        self.leaving += [segment for segment in dropped if segment.indexed_bytes != segment.size_bytes]
        self._hints.clear()
        self.epochs.truncate_from_start(offset)
        self._epochs_synced = False
        return dropped

    def replace_segments(self, sources: list[Segment], cleaned: Segment) -> bool:
        """Let a compacted segment stand for those it was made from; False when one of them is no longer here.

        Its file is open and will have its name soon. Readers of the old ones keep them, files and indexes, as long as
        they need them.
        """
        first = bisect_left(self.segments, cleaned.base_offset, key=_base_offset)
        behind = first + len(sources)
        if self.segments[first:behind] != sources or behind >= len(self.segments):
            return False
        self.segments = [*self.segments[:first], cleaned, *self.segments[behind:]]
        for segment in sources:
            segment.dropped = True
        self._hints.clear()
        return True

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # -- read -----------------------------------------------------------------------------------------------------

    def read(self, offset: int, size_bytes_max: int, end_offset: int, *, at_least_one: bool) -> FileRegion | None:
        """Whole batches from the one that holds ``offset`` on, all below ``end_offset``; None when there are none.

        ``end_offset`` is the high watermark or the last stable offset. Everything comes from one segment. With
        ``at_least_one`` the first batch is returned even when it alone is larger than the maximum.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}")
        if offset >= end_offset:
            return None
        hint = self._hints.pop(offset, None)
        if hint is not None:
            segment, position = hint
        else:
            segment = self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]
            position = segment.position_of(offset)
        end = self.written_bytes if segment is self.active else segment.size_bytes
        if end_offset < self.written_end_offset:
            end = min(end, segment.position_of(end_offset))
        if position >= end:
            return self._read_next_segment(segment, size_bytes_max, end_offset, at_least_one=at_least_one)
        size, next_offset = segment.whole_batches(position, end, size_bytes_max, at_least_one=at_least_one)
        if size <= 0:
            return None
        if position + size == end and segment is self.active and end_offset >= self.written_end_offset:
            next_offset = self.written_end_offset
        if next_offset is not None:
            # A reader that reads on comes back with this offset.
            if len(self._hints) >= _HINTS_MAX:
                self._hints.clear()
            self._hints[next_offset] = segment, position + size
        return FileRegion(self._disk, segment.file, position, size)

    def _read_next_segment(
        self, segment: Segment, size_bytes_max: int, end_offset: int, *, at_least_one: bool
    ) -> FileRegion | None:
        """Compaction can leave nothing behind ``offset`` in its segment; the next batch is then in a later one."""
        following = bisect_right(self.segments, segment.base_offset, key=_base_offset)
        if following >= len(self.segments):
            return None
        return self.read(self.segments[following].base_offset, size_bytes_max, end_offset, at_least_one=at_least_one)

    # -- transactions ---------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose end may yet be lost; None when there is none."""
        began = next(iter((self._producers or self.producers).open.values()), None)
        for each in self.ended:
            if began is None or each.first_offset < began:
                began = each.first_offset
        return None if began is None else max(began, self.log_start_offset)

    def note_high_watermark(self, high_watermark: int) -> None:
        """The ends of transactions below it are there to stay."""
        self.ended = [each for each in self.ended if each.last_offset >= high_watermark]

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction that reaches into [start, end)."""
        return [(each.producer_id, each.first_offset) for each in self.aborted_between(start, end)]

    def aborted_between(self, start: int, end: int) -> list[EndedTransaction]:
        found = []
        for segment in self.segments[max(bisect_right(self.segments, start, key=_base_offset) - 1, 0) :]:
            for each in self._aborted_in(segment):
                if each.last_offset >= start and each.first_offset < end:
                    found.append(each)
                if each.last_stable_offset >= end:
                    # Whatever began below the end was over by then.
                    return found
        return found

    def aborted_within(self, offset: int, region: FileRegion, end_offset: int) -> list[tuple[int, int]]:
        """The aborted transactions in what ``read`` just gave for ``offset`` and ``end_offset``."""
        segments = self.segments[max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0) :]
        if not any(map(self._aborted_in, segments)):
            return []
        for segment in segments:
            if segment.is_open and segment.file is region.file:
                behind = segment.offset_behind(region.position + region.size_bytes)
                if behind is not None:
                    end_offset = min(end_offset, behind)
                break
        return self.aborted_transactions(offset, end_offset)

    def _aborted_in(self, segment: Segment) -> list[EndedTransaction]:
        try:
            return segment.aborted
        except ValueError as error:
            log.warning("transaction index is rebuilt path=%s reason=%s", segment.path(".txnindex"), error)
        following = bisect_right(self.segments, segment.base_offset, key=_base_offset)
        end = self.segments[following].base_offset if following < len(self.segments) else self.log_end_offset
        producers, replay_from = load_snapshot(self._disk, self.directory, segment.base_offset)
        ended = self._replay(producers, replay_from, end)
        segment.aborted = [each for each in ended if each.last_offset >= segment.base_offset]
        if segment is self.active:
            segment.indexed_bytes = -1
        else:
            # Not synced: after a power cut it is rebuilt once more. Nor is it worth failing a fetch on a full disk.
            with suppress(OSError):
                segment.write_aborted(sync=False)
        return segment.aborted

    # -- times ----------------------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp: int, end_offset: int, find: FindRecord = find_timestamp
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after ``timestamp``; None if there is none.

        ``find`` opens the batch that holds it.
        """
        inflate_max = self.settings.max_message_bytes * _INFLATE_MAX
        return find_offset(list(self.segments), timestamp, self.log_start_offset, end_offset, inflate_max, find)

    def newest_timestamp(self, find: FindRecord = max_timestamp_record) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the largest timestamp in the file; None if there is none.

        ``find`` opens the batch that holds it.
        """
        inflate_max = self.settings.max_message_bytes * _INFLATE_MAX
        return find_newest(list(self.segments), self.written_end_offset, inflate_max, find)

    # -- sync -----------------------------------------------------------------------------------------------------

    def unsynced(self) -> list[tuple[Segment, int]]:
        """The segments that hold what a power cut would take, each with the size that is to be synced."""
        first = max(bisect_right(self.segments, self.synced_end_offset, key=_base_offset) - 1, 0)
        sizes = [(s, self.written_bytes if s is self.active else s.size_bytes) for s in self.segments[first:]]
        return [(segment, size) for segment, size in sizes if size and segment.synced_bytes < size]

    def note_synced(self, segments: list[tuple[Segment, int]], end_offset: int | None = None) -> None:
        """These segments are on disk up to these sizes; with ``end_offset``, so is everything below it."""
        for segment, size in segments:
            segment.synced_bytes = max(segment.synced_bytes, size)
        if end_offset is not None:
            self.synced_end_offset = max(self.synced_end_offset, min(end_offset, self.log_end_offset))
        number = max(bisect_right(self.segments, self.synced_end_offset, key=_base_offset) - 1, 0)
        while self.segments[number] is not self.active and (
            self.segments[number].synced_bytes >= self.segments[number].size_bytes
        ):
            number += 1
            self.synced_end_offset = max(self.synced_end_offset, self.segments[number].base_offset)

    @property
    def recovery_point(self) -> int:
        """After a crash the segments before the one that holds this offset need not be read, nor their indexes made.

        Never within the active segment, which is read from its start anyway: once it is sealed, its end would say that
        it need not be, before its indexes are there.
        """
        for segment in (*self.leaving, *self.segments[:-1]):
            if segment.indexed_bytes != segment.size_bytes:
                return min(segment.base_offset, self.synced_end_offset)
        return min(self.synced_end_offset, self.active.base_offset)

    def sync_sealed(self, segment: Segment) -> None:
        """Put on disk all that recovery will not look at again once the recovery point has passed. In a thread."""
        segment.sync()
        self._sync_file(os.path.join(self.directory, EPOCHS_FILE))
        for following in self.segments:
            if following.base_offset > segment.base_offset:
                self._sync_file(snapshot_path(self.directory, following.base_offset))
                break
        segment.write_indexes()

    def _sync_file(self, path: str) -> None:
        """Sync a small file that somebody else may be replacing: what counts is that this version is whole."""
        if self._disk.exists(path):
            fd = self._disk.open(path)
            try:
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)

    # -- producers ------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> Producers:
        if self._producers is None:
            self._producers = self._load_producers(self._producers_offset)
        return self._producers

    def _write_snapshot(self, *, sync: bool) -> None:
        """Write what is known of producers at the log's end. Replay after a crash starts from the newest."""
        path = snapshot_path(self.directory, self.log_end_offset)
        if self._producers is None and self._producers_offset == self.log_end_offset and self._disk.exists(path):
            return  # the snapshot that would be written is the one that is there
        self._disk.write_file(path, self.producers.to_snapshot(), sync=sync)

    def expire_producers(self, older_than_ms: int) -> None:
        if self._producers is not None:
            self._producers.expire(older_than_ms)

    def _load_producers(self, end_offset: int) -> Producers:
        """Producer state as of ``end_offset``: the newest readable snapshot up to it, then the batches."""
        if not end_offset:
            return Producers()
        producers, replay_from = load_snapshot(self._disk, self.directory, end_offset)
        if replay_from < end_offset:
            self._replay(producers, replay_from, end_offset)
        return producers

    def _replay(self, producers: Producers, start: int, end: int) -> list[EndedTransaction]:
        """Bring producers that are known as of ``start`` up to ``end``; the transactions aborted in between."""
        aborted: list[EndedTransaction] = []
        for segment in self.segments[max(bisect_right(self.segments, start, key=_base_offset) - 1, 0) :]:
            for position, header in segment.headers(segment.position_of(start)):
                if header.base_offset >= end:
                    return aborted
                batch = segment.batch(position, header) if header.attributes & CONTROL else b""
                if (ended := producers.replay(header, batch)) is not None:
                    aborted.append(ended)
        return aborted

    # -- truncate -------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Forget every batch that reaches ``offset`` or beyond, and all that is pending.

        Nothing here needs room on the disk, and the files come last: a full disk is what most often brings us here,
        to undo appends that could not be written.
        """
        if offset >= self.log_end_offset:
            return
        offset = min(offset, self.written_end_offset)
        undo = offset == self.written_end_offset
        self.pending.clear()
        self.pending_bytes = 0
        self._hints.clear()
        # Behind this position the file may hold parts of a write that failed: nothing there is looked at.
        self.active.size_bytes = self.written_bytes
        while len(self.segments) > 1 and self.segments[-1].base_offset > offset:
            self.segments.pop().delete_files()
        if self.segments[0].base_offset > offset:
            self.segments.pop().delete_files()
            self.segments.append(Segment(self._disk, self.directory, offset))
            self.segments[0].open_file()
        self.active = segment = self.segments[-1]
        if offset != self.written_end_offset:
            segment.size_bytes = segment.position_of(offset)
            self.written_end_offset = self._end_of(segment)
        self.written_bytes = segment.size_bytes
        self.log_end_offset = end_offset = self.written_end_offset
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.epochs.truncate_from_end(end_offset)
        self._epochs_synced = False
        self._prepared = False
        self._producers, self._producers_offset = None, end_offset
        self.ended = [each for each in self.ended if each.last_offset < end_offset]
        segment.truncate(segment.size_bytes, end_offset)
        self._roll_after_ms = self._roll_deadline()
        if not undo:  # snapshots describe what is in the file: no pending batch is in one
            remove_snapshots(self._disk, self.directory, behind=end_offset)

    def _end_of(self, segment: Segment) -> int:
        end = segment.base_offset
        for _, header in segment.headers(segment.offset_index.entry_at_most(segment.size_bytes - 1) & POSITION_MASK):
            end = header.next_offset
        return end

    def flush_files(self) -> None:
        """Clean stop: the data, and then all that describes it, goes to disk."""
        if self.make_folder is not None:
            return
        self.write_pending()
        self._trim()
        unsynced = self.unsynced()
        for segment, _ in unsynced:
            segment.sync()
        self.note_synced(unsynced, self.log_end_offset)
        for segment in self.segments:
            segment.write_indexes()
        self._write_snapshot(sync=True)
        if not self._epochs_synced:
            self._write_epochs(sync=True)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _nobody_rolled(log: Log, segment: Segment) -> None:
    pass
