"""Compaction: choose the log to compact, write the output of the cleaner, replace segments. One log at a time.

    plan ──► read a chunk, write the output ──► ... ──► output synced ──► segments replaced ──► files renamed ──► ...
    loop     thread, one frame of the cleaner           thread            loop                  thread

A pass reads the sealed segments below the last stable offset and the recovery point (so that only synced segments are
compacted), up to the first segment that is younger than ``min.compaction.lag.ms``. A log is due if more than
``min.cleanable.dirty.ratio`` of these bytes were appended since the last pass, or if some of them are older than
``max.compaction.lag.ms``. The log with the largest dirty ratio is compacted first.

A crash is safe at any point. Outputs replace their sources in the order of offsets. The names of each output are synced
before the next output starts, and the cleaner's checkpoint is written last. A tombstone is therefore never removed
before the records that it deletes, and an interrupted pass is repeated. Retention does not delete an output before it
is renamed, because its ``synced_bytes`` is still -1. If retention or a truncation drops a source meanwhile, the pass is
abandoned. A truncation first completes the renaming of an output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk, RealDisk, WriteFailed
from ottla.env.tasks import Threads
from ottla.log.cleaned_segment import CleanedSegment
from ottla.log.cleaner import (
    KEY_BYTES,
    CleanerFailed,
    CleanJob,
    Frames,
    Kind,
    Source,
    Uncleanable,
    clean,
    clean_in_process,
)
from ottla.log.index import TIME_ENTRY_BYTES
from ottla.log.log import Log
from ottla.log.segment import Segment, segment_number
from ottla.log.store import LogStore
from ottla.model.batch import HEADER_BYTES
from ottla.model.errors import KafkaError
from ottla.model.settings import BrokerSettings

log = logging.getLogger(__name__)

#: fewer bytes than this are compacted in the broker's process, because starting another process costs more
PROCESS_BYTES_MIN = 256 * 1024
#: the same limit for the number of records, because compressed batches can hold many records in few bytes
PROCESS_RECORDS_MIN = 10_000
_LONG_MAX = (1 << 63) - 1
#: a decompressed batch may be this many times larger than max.message.bytes, or have the size below: protection
#: against decompression bombs
_INFLATE_MAX = 16
_INFLATE_BYTES_MIN = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """A log that is due for compaction, and the sealed segments that the pass reads."""

    log: Log
    sources: list[Segment]
    first_dirty_offset: int
    end_offset: int
    #: share of the bytes that were appended since the last pass
    dirty_ratio: float

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.sources)

    @property
    def records_max(self) -> int:
        """Return an upper bound of the number of records in the sources."""
        return self.end_offset - self.sources[0].base_offset


def plan_compaction(of: Log, last_stable_offset: int, now_ms: int) -> CompactionPlan | None:
    """Return the plan of a pass over this log; None if it is not due."""
    segments, settings = of.segments, of.settings
    first_dirty = of.first_dirty_offset
    if not of.log_start_offset <= first_dirty <= of.log_end_offset:
        first_dirty = of.log_start_offset
    dirty_from = segment_number(segments, first_dirty)
    limit = min(of.active.base_offset, last_stable_offset, of.recovery_point)
    # A segment ends at the base offset of the next one: the active segment is never included.
    end = segment_number(segments, limit)
    if settings.min_compaction_lag_ms > 0:
        end = _first_young(segments, dirty_from, end, now_ms - settings.min_compaction_lag_ms)
    dirty = segments[dirty_from:end]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (dirty_bytes + sum(segment.size_bytes for segment in segments[:dirty_from]))
    if ratio <= settings.min_cleanable_dirty_ratio and not _is_overdue(dirty, settings.max_compaction_lag_ms, now_ms):
        return None
    return CompactionPlan(
        log=of, sources=segments[:end], first_dirty_offset=first_dirty, end_offset=segments[end].base_offset,
        dirty_ratio=ratio,
    )  # fmt: skip


def _first_young(segments: list[Segment], first: int, end: int, older_than_ms: int) -> int:
    """Return the number of the first segment with a timestamp after ``older_than_ms``; ``end`` if there is none."""
    for number in range(first, end):
        segments[number].load_times()
        if segments[number].max_timestamp > older_than_ms:
            return number
    return end


def _is_overdue(dirty: list[Segment], lag_ms: int, now_ms: int) -> bool:
    # Read the first batch of each segment only for the few topics that set max.compaction.lag.ms.
    return lag_ms < _LONG_MAX and any(0 < segment.load_first_timestamp() < now_ms - lag_ms for segment in dirty)


class Compactor:
    """Compacts the logs of a broker, one at a time. Runs on the event loop; ``_Pass.work`` runs in a thread."""

    def __init__(self, *, disk: Disk, store: LogStore, threads: Threads, monotonic: Callable[[], float]) -> None:
        self._disk = disk
        self._store = store
        self._threads = threads
        self._monotonic = monotonic
        self._pass: _Pass | None = None
        self._stopped = False
        #: an output has replaced its sources, but renaming its files failed: ``resume`` must retry that first
        self._rename_pending = False

    @property
    def busy(self) -> bool:
        """Return whether a pass is running or waits for ``resume``."""
        return self._pass is not None

    def start(self, plans: Iterable[CompactionPlan], now_ms: int, settings: BrokerSettings) -> bool:
        """Start a pass over the dirtiest log whose disk has space for the output. Return False if there is none."""
        assert self._pass is None
        for plan in sorted(plans, key=lambda plan: -plan.dirty_ratio):
            directory = self._store.dir_of(plan.log)
            output_bytes = min(plan.size_bytes, plan.log.settings.segment_bytes)
            try:
                if not self._stopped and not directory.offline and self._disk.free_bytes(directory.path) > output_bytes:
                    self._begin(plan, now_ms, settings)
                    return True
            except OSError as error:
                self._failed(plan.log, error)
            except KafkaError as error:
                self._mark_uncleanable(plan.log, error)
        return False

    def resume(self) -> None:
        """Retry a renaming that failed because of a full disk or missing file descriptors."""
        if self._rename_pending and self._pass is not None:
            self._rename_pending = False
            self._submit(self._pass)

    def stop(self) -> None:
        """Start no further pass, and abandon the running one after its current step."""
        self._stopped = True

    def _begin(self, plan: CompactionPlan, now_ms: int, settings: BrokerSettings) -> None:
        of = plan.log
        if not of.active.size_bytes and not of.active.is_open:
            # Create the active file: recovery treats gaps in the last file as damage, so a source must not be the last.
            of.active.open_file()
        job = _job_of(plan, now_ms, settings)
        is_large = plan.size_bytes >= PROCESS_BYTES_MIN or plan.records_max >= PROCESS_RECORDS_MIN
        own_process = isinstance(self._disk, RealDisk) and is_large
        frames = clean_in_process(job) if own_process else clean(self._disk, job)
        self._pass = _Pass(self._disk, plan, frames, self._monotonic())
        self._submit(self._pass)

    def _submit(self, running: _Pass) -> None:
        self._threads.submit(running.work, lambda error: self._step_done(running, error))

    def _step_done(self, running: _Pass, error: OSError | None) -> None:
        """Handle the result of a step: replace segments, abandon or finish the pass, or submit the next step."""
        of = running.plan.log
        directory = self._store.dir_of(of)
        if of.deleted or directory.offline:
            self._abandon(running)
        elif running.swapped is not None and not running.swapping:
            running.finish_swap()
            self._submit(running)
        elif running.swapped is None and running.has_dropped_source():
            self._abandon(running)
        elif error is not None:
            self._failed(of, error)
            if running.swapping and not directory.offline:
                self._rename_pending = True
            else:
                self._abandon(running)
        elif running.failure is not None:
            if isinstance(running.failure, Uncleanable):
                self._mark_uncleanable(of, running.failure)
            else:
                log.error("compaction failed and will be retried dir=%s reason=%s", of.directory, running.failure)
            self._abandon(running)
        elif running.end_offset is not None and running.is_intact_below(running.end_offset):
            self._finish(running, running.end_offset)
        elif running.end_offset is not None or self._stopped or not of.settings.compact or not running.maybe_replace():
            self._abandon(running)
        else:
            self._submit(running)

    def _failed(self, of: Log, error: OSError) -> None:
        if error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
            log.warning("compaction is postponed dir=%s error=%s", of.directory, error)
        elif isinstance(error, WriteFailed):
            self._store.on_dir_failed(self._store.dir_of(of), error)
        else:
            self._mark_uncleanable(of, error)

    def _mark_uncleanable(self, of: Log, reason: Exception) -> None:
        log.error("log cannot be compacted until the next start dir=%s reason=%s", of.directory, reason)
        of.is_uncleanable = True

    def _abandon(self, running: _Pass) -> None:
        def done(error: OSError | None) -> None:
            self._pass = None

        self._threads.submit(running.discard, done)

    def _finish(self, running: _Pass, end_offset: int) -> None:
        of = running.plan.log
        directory = self._store.dir_of(of)
        self._store.checkpoints.note_cleaned(directory, of, end_offset)
        log.info(
            "log compacted topic=%s partition=%d bytes_before=%d bytes_after=%d segments_before=%d segments_after=%d "
            "end_offset=%d seconds=%.3f",
            *of.name, running.bytes_before, running.bytes_after, running.segments_before, running.segments_after,
            end_offset, self._monotonic() - running.started,
        )  # fmt: skip

        def done(error: OSError | None) -> None:
            self._pass = None
            # Without the checkpoint, compaction after the next start reads more than necessary, but loses nothing.
            if error is not None and not of.deleted and not directory.offline:
                self._failed(of, error)

        self._threads.submit(lambda: self._store.checkpoints.write_cleaner_offsets(directory), done)


class _Pass:
    """One pass over one log. ``work`` does one step in a thread; other methods run on the loop between two steps."""

    def __init__(self, disk: Disk, plan: CompactionPlan, frames: Frames, started: float) -> None:
        self._disk = disk
        self.plan = plan
        self._frames = frames
        self.started = started

        # The output being written
        self._output: CleanedSegment | None = None
        self._first_source = 0
        #: number of sources whose output is complete, or that need no change
        self._sources_done = 0
        self._index = self._time_index = self._txn_index = b""
        #: a synced output and its sources, which it has not yet replaced in the log
        self.closed: tuple[CleanedSegment, list[Segment]] | None = None
        #: an output that has replaced its sources in the log; while ``swapping``, its files must still be renamed
        self.swapped: tuple[CleanedSegment, list[Segment]] | None = None
        self.swapping = False

        # Result
        self.end_offset: int | None = None
        self.failure: CleanerFailed | Uncleanable | None = None
        self.bytes_before = self.bytes_after = 0
        self.segments_before = self.segments_after = 0

    def work(self) -> None:
        """Do one step: rename the files of an output, or process the cleaner's next frame. Runs in a thread."""
        if self.swapping:
            assert self.swapped is not None
            self.swapped[0].swap_files()
            self.swapping = False
            return
        try:
            self._process_frame()
        except (CleanerFailed, Uncleanable) as error:
            self.failure = error

    def _process_frame(self) -> None:
        frame = next(self._frames)
        if frame.kind == Kind.OUTPUT:
            self._first_source = frame.values()["first"]
            base_offset = self.plan.sources[self._first_source].base_offset
            self._output = CleanedSegment(self._disk, self.plan.log.directory, base_offset)
            self._output.open_cleaned()
        elif frame.kind == Kind.DATA:
            assert self._output is not None
            self._output.append_cleaned(frame.payload)
        elif frame.kind == Kind.INDEX:
            self._index = frame.payload
        elif frame.kind == Kind.TIME_INDEX:
            self._time_index = frame.payload
        elif frame.kind == Kind.TXN_INDEX:
            self._txn_index = frame.payload
        elif frame.kind == Kind.CLOSED:
            values = frame.values()
            self._close_output(values["sources"], values["changed"], values["size_bytes"], values["times"])
        elif frame.kind == Kind.END:
            self.end_offset = frame.values()["end_offset"]

    def _close_output(self, count: int, changed: bool, size_bytes: int, times: list[int]) -> None:
        output, sources = self._output, self.plan.sources[self._first_source : self._first_source + count]
        assert output is not None and output.size_bytes == size_bytes
        self._sources_done = self._first_source + count
        self.bytes_before += sum(segment.size_bytes for segment in sources)
        self.segments_before += len(sources)
        self.bytes_after += size_bytes
        self.segments_after += 1
        if not changed or not size_bytes:
            output.remove_cleaned()
        else:
            first, newest, newest_offset = times
            output.finish_cleaned(self._index, self._time_index, self._txn_index, (first, newest, newest_offset))
            for segment in sources:
                segment.open_for_readers()
            self.closed = output, sources
        self._output = None

    def has_dropped_source(self) -> bool:
        """Return whether retention or a truncation has dropped a source that the pass still needs."""
        return any(segment.dropped for segment in self.plan.sources[self._sources_done :])

    def is_intact_below(self, end_offset: int) -> bool:
        """Return whether the log has only compacted batches below ``end_offset``: False after a truncation below it."""
        known = set(self.plan.sources)
        return all(segment in known for segment in self.plan.log.segments if segment.base_offset < end_offset)

    def maybe_replace(self) -> bool:
        """Replace the sources of a synced output in the log, if there is one. Return False if a source was dropped."""
        if self.closed is None:
            return True
        cleaned, sources = self.closed
        if not self.plan.log.replace_segments(sources, cleaned):
            return False
        self.closed, self.swapped, self.swapping = None, self.closed, True
        return True

    def finish_swap(self) -> None:
        """Record that the files of the output are renamed and synced, and close them."""
        assert self.swapped is not None
        cleaned, sources = self.swapped
        cleaned.synced_bytes = cleaned.size_bytes
        # Close the files to limit the number of open files of a log. Readers open the output again under its final
        # name; the sources close with their last reader.
        cleaned.release_file()
        done = self._sources_done
        self.plan.sources[done - len(sources) : done] = [cleaned] * len(sources)
        self.swapped = None

    def discard(self) -> None:
        """End the cleaner and delete an output that was not used. Runs in a thread."""
        self._frames.close()
        output = self._output or (self.closed[0] if self.closed else None)
        if output is not None and not self.plan.log.deleted:
            with suppress(OSError):
                output.remove_cleaned()


def _job_of(plan: CompactionPlan, now_ms: int, settings: BrokerSettings) -> CleanJob:
    topic = plan.log.settings
    # Limit the output's size so that its indexes cannot exceed segment.index.bytes, whatever the sizes of its batches.
    entry_bytes_min = max(topic.index_interval_bytes, HEADER_BYTES)
    index_bytes_max = topic.segment_index_bytes // TIME_ENTRY_BYTES * entry_bytes_min
    buffer_bytes = settings.log_cleaner_dedupe_buffer_size * settings.log_cleaner_io_buffer_load_factor
    return CleanJob(
        sources=tuple(
            Source(path=each.path(".log"), base_offset=each.base_offset, size_bytes=each.size_bytes)
            for each in plan.sources
        ),
        first_dirty_offset=plan.first_dirty_offset,
        end_offset=plan.end_offset,
        now_ms=now_ms,
        delete_retention_ms=topic.delete_retention_ms,
        output_bytes_max=min(topic.segment_bytes, index_bytes_max),
        index_interval_bytes=topic.index_interval_bytes,
        keys_max=max(int(buffer_bytes / KEY_BYTES), 1),
        read_bytes=max(settings.log_cleaner_io_buffer_size, HEADER_BYTES),
        inflate_bytes_max=max(topic.max_message_bytes * _INFLATE_MAX, _INFLATE_BYTES_MIN),
        producers=plan.log.producers.rows(),
        aborted=tuple(plan.log.aborted_between(plan.sources[0].base_offset, plan.end_offset)),
    )
