"""Jobs of threads on segments: sync those that are sealed, delete the files of those that are dropped.

A job works on the segments that its log had when it was submitted. The log may be truncated, or deleted, before the job
is done, so its result counts only for the segments that the log still has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk, WriteFailed
from ottla.env.tasks import Threads
from ottla.log.log import Log
from ottla.log.segment import Segment

log = logging.getLogger(__name__)


class SegmentJobs:
    """Submits the jobs. All methods run on the event loop."""

    def __init__(self, disk: Disk, threads: Threads, *, sync_failed: Callable[[Log, OSError], None]) -> None:
        """``sync_failed`` is called when a sealed segment of a log could not be synced."""
        self._disk = disk
        self._threads = threads
        self._sync_failed = sync_failed

    def sync_sealed(self, of: Log, sealed: Segment) -> None:
        """Sync a sealed segment and write its indexes in a thread; the recovery point then advances past it."""
        segments, of.sealed_unindexed = [*of.sealed_unindexed, sealed], []
        sizes = [(segment, segment.size_bytes) for segment in segments]

        def work() -> None:
            for segment in segments:
                of.sync_sealed(segment)

        def done(error: OSError | None) -> None:
            remaining = [segment for segment in segments if not segment.dropped]
            if not remaining:
                return
            if error is None:
                of.note_segments_synced(sizes)
                # Close the files, so that sealed segments use no file descriptors. Readers open them again.
                for segment in remaining:
                    segment.release_file()
            elif error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
                # Only indexes or snapshots are missing. Until they are written, recovery would read the segments.
                log.warning(
                    "sealed segment has no index yet, retrying at the next roll dir=%s error=%s", of.directory, error
                )
                of.sealed_unindexed += remaining
            elif isinstance(error, WriteFailed):
                self._sync_failed(of, error)
            else:
                log.error("sealed segment has no index, a file is unreadable dir=%s error=%s", of.directory, error)
                of.sealed_unindexed += remaining

        self._threads.submit(work, done)

    def delete_dropped(self, of: Log, dropped: Sequence[Segment]) -> None:
        """Delete the files of these segments, which the log has just dropped, in a thread."""
        # Delete older segments first, even those of an earlier job that is not done yet. A power failure between two
        # jobs in the other order would leave a gap, and recovery would discard all segments after it.
        undeleted = of.undeleted.copy()

        def work() -> None:
            if not of.deleted:
                # Sync the names of the remaining segments first: a power failure must not lose these too.
                self._disk.fsync_dir(of.directory)
                for segment in undeleted:
                    segment.delete_files()
                # Sync before the recovery point advances: a segment without indexes must not reappear below it.
                self._disk.fsync_dir(of.directory)

        def done(error: OSError | None) -> None:
            if error is None:
                of.undeleted = [segment for segment in of.undeleted if segment not in undeleted]
            elif not of.deleted:
                log.error("could not remove segments from path=%s error=%s", first, error)

        # ``done`` refers to the segments, so that their files close after they were deleted.
        first, last = dropped[0].path(".log"), dropped[-1].path(".log")
        log.info("segments deleted first=%s last=%s count=%d", first, last, len(dropped))
        self._threads.submit(work, done)
