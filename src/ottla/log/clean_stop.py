"""The clean stop of the log directories: the next start then need not read the logs to find their ends.

The clean stop file of a directory has no entry for a log with unreadable files, so that the next start recovers that
log. A directory that cannot be written gets no such file. The others do, because without it their replicas may lack
records, and a partition whose other replicas may lack records too has no leader then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from ottla.env.disk import Disk, WriteFailed
from ottla.env.tasks import Threads
from ottla.log.checkpoints import write_clean_stop
from ottla.log.directories import LogDir
from ottla.log.log import Log
from ottla.model.errors import CorruptMessage

log = logging.getLogger(__name__)

#: more logs than this are flushed by threads
_FLUSH_HERE_MAX = 16


def stop_cleanly(
    disk: Disk, dirs: Sequence[LogDir], threads: Threads, write_checkpoints: Callable[[LogDir], None]
) -> bool:
    """Flush all logs, then write the checkpoints and the clean stop file of each directory.

    Report the directories that cannot be written. Return whether there is none.
    """
    failed: dict[LogDir, OSError] = {}
    flushes = [
        partial(_flush, each, directory, failed)
        for directory in dirs
        for each in directory.logs.values()
        if _is_written(each)
    ]
    if len(flushes) > _FLUSH_HERE_MAX:
        threads.run_all(flushes)
    else:
        for flush in flushes:
            flush()
    for directory in dirs:
        try:
            if directory not in failed:
                write_checkpoints(directory)
                ends = {str(name): _end(each) for name, each in directory.logs.items() if _is_written(each)}
                write_clean_stop(disk, directory.path, ends)
        except OSError as error:
            failed[directory] = error
    for directory, failure in failed.items():
        log.error("the stop is not clean: a log directory cannot be written path=%s error=%s", directory.path, failure)
    return not failed


def _is_written(of: Log) -> bool:
    """Return whether the files of a log are there and can be written."""
    return of.make_folder is None and of.failure is None


def _end(of: Log) -> tuple[int, int, int, int]:
    """Return what the clean stop file has about a log."""
    active = of.active
    return of.log_end_offset, active.base_offset, active.size_bytes, of.size_bytes - active.size_bytes


def _flush(of: Log, directory: LogDir, failed: dict[LogDir, OSError]) -> None:
    try:
        of.flush_files()
    except WriteFailed as error:
        failed[directory] = error
    except (OSError, CorruptMessage) as error:
        log.error("log cannot be stopped cleanly, a file is unreadable dir=%s error=%s", of.directory, error)
        of.failure = str(error)
