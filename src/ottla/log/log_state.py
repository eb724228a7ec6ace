"""The state of a log in memory: its segments, its offsets, and what follows from them without access to a file.

`log.py` has the operations that read and write files.

Invariants:

- log_start <= written_end and synced_end <= written_end <= log_end.
- Offsets in the file are consecutive, except for the gaps that compaction leaves in sealed segments.
- Only ``truncate_to`` and ``replace_segments`` change batches below ``written_end_offset``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.env.disk import Disk
from ottla.log.cleaned_segment import CleanedSegment
from ottla.log.epochs import LeaderEpochs
from ottla.log.index import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX
from ottla.log.opening import InlineBudget, is_plain
from ottla.log.producers import Producers
from ottla.log.refused import RefusedSequences
from ottla.log.segment import NO_TIMESTAMP, Segment, SyncJob, base_offset_of, segment_number
from ottla.log.transactions import EndedTransaction
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.log.log import Log
    from ottla.log.truncation import Truncation, UnsyncedTruncation

Buffer = bytes | bytearray | memoryview


class LogState:
    """The state of the log of one partition."""

    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        settings: TopicSettings,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        epochs: LeaderEpochs,
        producers: Producers | None,
        epochs_synced: bool = False,
    ) -> None:
        # Shared
        self.disk = disk
        self.directory = directory
        self.name = name
        #: creates the folder before the first append, so that creating a topic is cheap; None if the folder exists
        self.make_folder: Callable[[], None] | None = None
        #: called with each segment that was sealed
        self.on_roll: Callable[[Log, Segment], None] = _ignore
        #: called before truncations
        self.lower_checkpoints: Callable[[Sequence[Truncation]], None] = _ignore
        #: called before a batch that does not follow the log end is appended, with the log end; see `replication.py`
        self.on_gap: Callable[[Log, int], None] = _ignore
        #: how many bytes of batches may still be opened in this turn; all logs of a broker share one budget
        self.inline_budget = InlineBudget()

        # Contents
        self.lost_synced = False  # whether recovery did not find all records that had been synced
        self.segments = segments
        self.active = segments[-1]
        self.epochs = epochs
        #: None until first used; then loaded as of ``_producers_offset``, because no producer has appended since
        self._producers = producers
        self._producers_offset = log_end_offset
        #: transactions whose marker may still be at or above the high watermark, ordered by marker offset
        self.ended: list[EndedTransaction] = []
        #: whether ``leader-epoch-checkpoint`` is synced and equals ``epochs``
        self._epochs_synced = epochs_synced
        #: whether the file has all of ``epochs``: recovery may have found epochs that it lacks
        self._epochs_written = epochs_synced
        #: sealed segments whose indexes could not be written because the disk was full
        self.sealed_unindexed: list[Segment] = []
        #: segments that were dropped from the log start and whose files may still exist, or reappear after a crash
        self.undeleted: list[Segment] = []
        #: the partition was deleted: its folder was renamed, and the log must not use its files any more
        self.deleted = False
        #: why the log is offline: its files were unreadable at the start, or a failed write could not be undone
        self.failure: str | None = None
        #: a truncation whose changes of the files are not synced yet; nothing is appended before
        self.unsynced_truncation: UnsyncedTruncation | None = None

        # Offsets
        #: the first offset that readers may fetch
        self.log_start_offset = log_start_offset
        #: the log does not start before this offset after a power failure
        self.synced_start_offset = log_start_offset
        #: the offset of the next record
        self.log_end_offset = log_end_offset
        #: all batches below this offset are written to the file
        self.written_end_offset = log_end_offset
        #: all batches below this offset are synced and survive a power failure
        self.synced_end_offset = log_end_offset
        #: all records below this offset were compacted: they have only one value per key
        self.first_dirty_offset = 0
        self.is_uncleanable = False  # whether a batch or file is unreadable: no compaction until the next start
        self.leader_epoch = max(epochs.latest, 0)

        # Pending
        #: the batches at the end of the active segment that are not yet written; it holds their total size
        self.pending: list[Buffer] = []
        #: bytes appended since the process started; only differences are meaningful
        self.appended_bytes = 0
        #: offset -> segment and position: where reads ended, and sequential readers (each follower, consumers) continue
        self._hints: dict[int, tuple[Segment, int]] = {}
        self.refused = RefusedSequences()
        #: a batch with a newer timestamp is appended to a new segment
        self._roll_after_ms = 0
        #: the broker's time when the active segment got its first batch; 0 if that was before the process started
        self._active_since_ms = 0
        #: whether ``_prepare`` has run since the start of the process or of this leadership
        self._prepared = False
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        """Use ``settings`` from the next batch on."""
        self.settings = settings
        # Copies of the settings that every append reads: one attribute access instead of two.
        self._max_message_bytes = settings.max_message_bytes
        self._segment_bytes = settings.segment_bytes
        self._index_interval_bytes = settings.index_interval_bytes
        self._index_entries_max = settings.segment_index_bytes // OFFSET_ENTRY_BYTES
        self.flush_acks_all = settings.flush_acks_all
        self.flush_messages = settings.flush_messages
        self._after_max_ms = (1 << 62) if settings.log_append_time else settings.message_timestamp_after_max_ms
        #: whether ``append`` needs only the batch header
        self._plain = is_plain(settings)
        self._roll_after_ms = self._roll_deadline()

    def become_leader(self, epoch: int) -> None:
        """Append the following batches with ``epoch``. The first of them adds the epoch to the epoch history."""
        self.leader_epoch = epoch
        self._prepared = False

    def note_high_watermark(self, high_watermark: int) -> None:
        """Forget the ended transactions whose marker is below the high watermark: they can no longer be truncated."""
        self.ended = [each for each in self.ended if each.last_offset >= high_watermark]

    # -- segments -------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def needs_roll(self, size_bytes: int, max_timestamp: int, last_offset: int) -> bool:
        """Return whether a batch with these properties must be appended to a new segment."""
        segment = self.active
        return segment.size_bytes > 0 and (
            segment.size_bytes + size_bytes > self._segment_bytes
            or max_timestamp > self._roll_after_ms
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or len(segment.offset_index.entries) >= self._index_entries_max
        )

    def begin_segment(self, first_timestamp: int, now_ms: int) -> None:
        self.active.first_timestamp = first_timestamp
        self._active_since_ms = now_ms
        self._roll_after_ms = self._roll_deadline()

    @property
    def _segment_ms(self) -> int:
        settings = self.settings
        return min(settings.segment_ms, settings.max_compaction_lag_ms) if settings.compact else settings.segment_ms

    def _roll_deadline(self) -> int:
        first = self.active.first_timestamp
        if first == NO_TIMESTAMP:
            return (1 << 63) - 1
        return first + self._segment_ms - self.settings.segment_jitter_ms

    def drop_first_segments(self, count: int) -> list[Segment]:
        """Drop the first segments and return them."""
        dropped, self.segments = self.segments[:count], self.segments[count:]
        for segment in dropped:
            segment.dropped = True
        self.undeleted += dropped
        self._hints.clear()
        self.epochs.truncate_from_start(self.log_start_offset)
        self._epochs_synced = False
        return dropped

    def replace_segments(self, sources: list[Segment], cleaned: CleanedSegment) -> bool:
        """Replace ``sources`` by the compacted segment. Return False if one of them is no longer in the log.

        The file of ``cleaned`` is open and is renamed later. Readers of the old segments keep their files and indexes
        open as long as they need them.
        """
        first = bisect_left(self.segments, cleaned.base_offset, key=base_offset_of)
        end = first + len(sources)
        if self.segments[first:end] != sources or end >= len(self.segments):
            return False
        self.segments = [*self.segments[:first], cleaned, *self.segments[end:]]
        cleaned.swap_sources = sources
        for segment in sources:
            segment.dropped = True
        self._hints.clear()
        return True

    def replace_active(self, number: int, active: Segment) -> None:
        """Replace the segments from ``number`` on, all of which were dropped, by one new segment."""
        self.segments = [*self.segments[:number], active]
        self.active = active
        self.sealed_unindexed = [segment for segment in self.sealed_unindexed if not segment.dropped]
        self._roll_after_ms = self._roll_deadline()

    def forget_from(self, end_offset: int) -> None:
        """Set the log end offset to ``end_offset`` and forget all later offsets, except those in the segments."""
        self.pending.clear()
        self._hints.clear()
        self.log_end_offset = self.written_end_offset = end_offset
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.synced_start_offset = min(self.synced_start_offset, end_offset)
        if self.epochs.truncate_from_end(end_offset):
            self._epochs_synced = False
        self._prepared = False
        self._producers, self._producers_offset = None, end_offset
        self.ended = [each for each in self.ended if each.last_offset < end_offset]

    # -- sync -----------------------------------------------------------------------------------------------------

    def unsynced(self) -> list[tuple[Segment, int]]:
        """Return the segments with written bytes that are not synced, each with its written size."""
        first = segment_number(self.segments, self.synced_end_offset)
        sizes = [(segment, segment.written_bytes) for segment in self.segments[first:]]
        return [(segment, size) for segment, size in sizes if size and segment.synced_bytes < size]

    def start_sync(self) -> SyncJob:
        """Return the job that syncs everything that is written now. ``note_synced`` takes it when it is complete."""
        return SyncJob(self.unsynced(), self.active, self.written_end_offset)

    def note_synced(self, job: SyncJob) -> None:
        """Record that the job is complete. It proves nothing about a segment that was truncated meanwhile."""
        if not job.active.dropped:
            self.synced_end_offset = max(self.synced_end_offset, job.end_offset)
        self.note_segments_synced(job.segments)

    def note_segments_synced(self, segments: list[tuple[Segment, int]]) -> None:
        """Record that the segments are synced up to the given sizes. Ignore dropped segments."""
        for segment, size in segments:
            if not segment.dropped:
                segment.synced_bytes = max(segment.synced_bytes, size)
        number = segment_number(self.segments, self.synced_end_offset)
        while (segment := self.segments[number]) is not self.active and segment.synced_bytes >= segment.size_bytes:
            number += 1
            self.synced_end_offset = max(self.synced_end_offset, self.segments[number].base_offset)
        if segment is self.active and segment.synced_bytes >= segment.written_bytes:
            self.synced_end_offset = self.written_end_offset  # a truncation has synced the active segment meanwhile

    @property
    def recovery_point(self) -> int:
        """Return the offset from whose segment on recovery must read the batches and rebuild the indexes.

        The recovery point is never inside the active segment. Recovery reads that segment from its start anyway, and a
        recovery point at its end would skip it after the roll, before its indexes are written.
        """
        for segment in (*self.undeleted, *self.segments[:-1]):
            if segment.indexed_bytes != segment.size_bytes:
                return min(segment.base_offset, self.synced_end_offset)
        return min(self.synced_end_offset, self.active.base_offset)

    # -- producers ------------------------------------------------------------------------------------------------

    @property
    def idle_producers(self) -> int:
        """Producers that can be forgotten; 0 as long as the state of producers is not loaded."""
        return self._producers.idle_count if self._producers is not None else 0

    @property
    def producer_count(self) -> int:
        return self._producers.count if self._producers is not None else 0

    def expire_producers(self, older_than_ms: int) -> None:
        if self._producers is not None:
            self._producers.expire(older_than_ms)


def _ignore(*_: object) -> None:
    pass
