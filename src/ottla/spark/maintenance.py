"""Maintenance of a Delta table: compaction, vacuum, checkpoints and expiry of the log.

Compaction rewrites small files as larger ones and changes no row. Streams skip its commits, and appends continue
meanwhile. Vacuum deletes replaced files. Older versions that need them cannot be read any more, also not by a stream
that is further behind than the hours of the vacuum. Both are safe to repeat.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from ottla.spark.options import OptionError
from ottla.spark.table_location import TableLocation
from ottla.spark.table_sync import sync_commit

log = logging.getLogger("ottla.spark")

_LOG_RETENTION = "delta.logRetentionDuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    files_before: int
    files_after: int


def compact(
    location: TableLocation, *, target_file_bytes: int | None = None, order_by: tuple[str, ...] = ()
) -> Compacted:
    """Put small files of each partition together; with ``order_by``, rows that are near in these columns as well."""
    table = location.table()
    before = set(table.get_add_actions(flatten=True)["path"].to_pylist()) if location.local else set()
    if order_by:
        metrics = table.optimize.z_order(list(order_by), target_size=target_file_bytes)
    else:
        metrics = table.optimize.compact(target_size=target_file_bytes)
    if location.local and metrics["numFilesAdded"]:
        table.update_incremental()
        added = set(table.get_add_actions(flatten=True)["path"].to_pylist()) - before
        sync_commit(location, table.version(), [unquote(path) for path in added])
    return Compacted(files_before=metrics["numFilesRemoved"], files_after=metrics["numFilesAdded"])


def vacuum(location: TableLocation, *, hours: int = 168, dry_run: bool = False) -> list[str]:
    """Delete files that no version of the last ``hours`` has, also those of failed writes. Return their paths.

    A write that takes longer than ``hours`` loses its files: choose more than the longest one takes.
    """
    if hours < 1 and not dry_run:
        raise OptionError("vacuum keeps at least one hour: files of writes that are under way would be deleted")
    # Full: files of attempts that were never committed are in no log.
    return location.table().vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)


def checkpoint(location: TableLocation) -> int:
    """Write the table's state next to its log, so that opening it reads one file. Return its version."""
    table = location.table()
    table.create_checkpoint()
    return table.version()


def expire(location: TableLocation, *, keep: timedelta | None = None) -> None:
    """Delete commits that are older than the table keeps its log (``keep`` sets that) and covered by a checkpoint."""
    table = location.table()
    if keep is not None:
        interval = f"interval {int(keep.total_seconds())} seconds"
        if table.metadata().configuration.get(_LOG_RETENTION) != interval:
            table.alter.set_table_properties({_LOG_RETENTION: interval})
    table.create_checkpoint()
    table.cleanup_metadata()


def maybe_maintain(location: TableLocation, batch_id: int, *, every: int, vacuum_hours: int | None) -> bool:
    """Compact and vacuum a table after each ``every``-th batch. A failure is logged: the batch is committed already."""
    if not every or (batch_id + 1) % every:
        return False
    try:
        done = compact(location)
        log.info("compacted %s: %d files became %d", location.uri, done.files_before, done.files_after)
        if vacuum_hours is not None:
            vacuum(location, hours=vacuum_hours)
    except (DeltaError, OSError) as error:
        log.warning("the table %s was not maintained after batch %d: %s", location.uri, batch_id, error)
        return False
    return True


def delete_partitions_before(location: TableLocation, column: str, oldest: date) -> None:
    """Delete the partitions of a table whose day is before ``oldest``. A failure is logged: the next call retries."""
    try:
        location.table().delete(f"{column} < '{oldest.isoformat()}'")
    except (DeltaError, OSError) as error:
        log.warning("old partitions of the table %s were not deleted: %s", location.uri, error)
