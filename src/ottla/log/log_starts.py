"""The log start checkpoint of a directory: the log start offsets that the names of segments do not tell.

    a log start advances (DeleteRecords, retention) ──► a thread writes and syncs the file; one write for all logs that
                                                        moved meanwhile ──► ``Log.synced_start_offset`` advances
    a truncation, a clean stop, a name used again   ──► the event loop writes and syncs the file

The file is never written without a sync: a power failure could then lose the version that was synced for DeleteRecords.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, WriteFailed
from ottla.env.tasks import Threads
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.log.truncation import is_restarting
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]


class LogStarts:
    """The log start checkpoint of one directory. The methods run on the event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: contents of the file, or of its next version
        self._offsets: Offsets = {}
        #: guards the file
        self._file = Lock()
        #: whether a thread writes the file, and whether it must be written again after that
        self._is_writing = self._is_outdated = False
        #: increases when the event loop writes the file, perhaps with lower offsets
        self._generation = 0

    def write(self, offsets: Offsets, write: Callable[[Offsets], None]) -> None:
        """Write the file with ``write`` now. Raise WriteFailed."""
        self._offsets = offsets
        self._generation += 1
        with self._file:
            write(offsets)

    def write_in_thread(
        self,
        threads: Threads,
        current: Callable[[], Offsets],
        write: Callable[[Offsets], None],
        synced: Callable[[Offsets], None],
        failed: Callable[[OSError], None],
    ) -> None:
        """Write the file with ``write`` in a thread, then call ``synced`` with its content, or ``failed``.

        ``current`` returns the content. It is called again if the file is outdated when the thread has ended.
        """
        self._offsets = written = current()
        self._is_outdated = self._is_writing
        if self._is_writing:
            return
        self._is_writing = True
        generation = self._generation

        def work() -> None:
            nonlocal written
            with self._file:
                # Not those from before the lock: a truncation may have written lower ones meanwhile.
                written = self._offsets
                write(written)

        def done(error: OSError | None) -> None:
            self._is_writing = False
            if error is not None:
                log.error("the log start checkpoint could not be written path=%s error=%s", self._path, error)
                if isinstance(error, WriteFailed) and error.errno not in NO_ROOM and error.errno not in NO_DESCRIPTORS:
                    failed(error)
                return
            is_current = generation == self._generation
            if is_current:
                synced(written)
            if self._is_outdated or not is_current:
                self.write_in_thread(threads, current, write, synced, failed)

        threads.submit(work, done)


def starts_of(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Return the log start offsets that the names of the segments, also after a power failure, do not tell."""
    return {
        name: each.log_start_offset
        for name, each in logs.items()
        if each.log_start_offset > first_segment(each).base_offset or is_restarting(each)
    }


def first_segment(of: Log) -> Segment:
    """Return the first segment that exists, or that a power failure can bring back because it is being deleted."""
    return (of.undeleted or of.segments)[0]
