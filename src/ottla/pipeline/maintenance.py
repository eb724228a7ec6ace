"""Compaction and vacuum of a pipeline's tables, safe while its flows run.

Compaction rewrites files with `dataChange=false`: streams do not read the rows again. The replaced files stay, because
readers of older versions need them, until a vacuum deletes them.

A vacuum must not delete a file that a flow still needs. Three readers need files of old versions:

- a stream that has read a table up to version v needs files that commits from v on have added, also if a compaction has
  replaced them since; a stream that still reads its first snapshot needs the files of that version;
- a batch that joins a table has pinned a version of it in its manifest, and needs it again if it is repeated;
- a backfill reads tables from the beginning, with checkpoints of its own.

Every such file was replaced by the commit v + 1 or later. So a vacuum is safe if it retains all that was replaced since
the oldest of these commits: `retention_needed` returns that time, plus an hour for files that are written before
they are committed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from deltalake.exceptions import DeltaError

from ottla.env.tasks import keep_thread
from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import Compaction, Declaration, Vacuum
from ottla.pipeline.duration import format_duration
from ottla.pipeline.layout import Layout
from ottla.spark import maintenance
from ottla.spark.batch_manifest import Manifest, ManifestFiles
from ottla.spark.source_offsets import HEADER_LINES, batch_ids, read_offset_lines
from ottla.spark.stored_files import list_names, open_filesystem
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import read_actions, snapshot_files

log = logging.getLogger("ottla.pipeline")

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_LOOK_S: Final = 10.0
#: how many of the last commits are searched for a compaction
_HISTORY: Final = 1000


class RetentionTooShort(OttlaError):
    """A vacuum would delete files that a flow needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A Delta table of a pipeline."""

    #: zone and name, such as trusted/orders
    name: str
    location: TableLocation
    compact: Compaction | None = None
    vacuum: Vacuum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A reader of a table, and the time since which it needs replaced files."""

    reader: str
    version: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What a vacuum has deleted, or would delete."""

    table: str
    files: int
    retained_ms: int


def tables_of(declaration: Declaration, layout: Layout) -> Iterator[Table]:
    """Yield the Delta tables that flows write: results, quarantine, late rows."""
    for flow in declaration.flows.values():
        sink = flow.table
        if sink is not None and sink.format == "delta":
            path = f"{flow.zone}/{sink.name}"
            location = TableLocation.at(layout.table(flow.zone, sink.name))
            yield Table(name=path, location=location, compact=sink.compact, vacuum=sink.vacuum)
        for directory, side in flow.side_outputs if flow.kind != "view" else ():
            if side.table:
                location = TableLocation.at(layout.table(directory, side.table))
                yield Table(name=f"{directory}/{side.table}", location=location)


def retention_needed(declaration: Declaration, layout: Layout, table: Table, now_ms: int) -> tuple[int, Need | None]:
    """Return how long replaced files of a table must be retained, in ms, and the reader that needs them longest."""
    oldest = min(needs_of(declaration, layout, table, now_ms), key=lambda need: need.since_ms, default=None)
    return (now_ms - oldest.since_ms if oldest is not None else 0) + _HOUR_MS, oldest


def needs_of(declaration: Declaration, layout: Layout, table: Table, now_ms: int) -> Iterator[Need]:
    """Yield what the flows of a pipeline, and its backfills, still need of a table."""
    delta = table.location.table()
    table_id = str(delta.metadata().id)
    commits = _CommitTimes(table.location, delta.version(), now_ms)
    for reader, checkpoint in _checkpoints(declaration, layout):
        started_ms, lines, manifest = _read_progress(checkpoint)
        for version in _versions_read(lines, table_id):
            since_ms = commits.after(version) if started_ms is None else started_ms
            yield Need(reader=reader, version=version, since_ms=since_ms)
        read = manifest.reads.get(table.location.uri) if manifest is not None else None
        if read is not None and read.table_id == table_id:
            yield Need(reader=reader, version=read.version, since_ms=commits.after(read.version))


def compact_table(table: Table, *, target_file_size_bytes: int | None = None) -> maintenance.Compacted:
    """Put small files of a table together. Raise DeltaError if other writers changed the same files meanwhile."""
    settings = table.compact.target_file_size_bytes if table.compact is not None else None
    return maintenance.compact(table.location, target_file_bytes=target_file_size_bytes or settings)


def file_sizes(table: Table) -> list[int]:
    """Return the sizes of the files of a table, in bytes."""
    return [file.size_bytes for file in snapshot_files(table.location.table())]


def vacuum_table(
    declaration: Declaration,
    layout: Layout,
    table: Table,
    *,
    retain_ms: int,
    dry_run: bool = False,
    extend: bool = False,
    now_ms: int | None = None,
) -> Vacuumed:
    """Delete files that were replaced more than `retain_ms` ago.

    Raise RetentionTooShort if a flow needs some of them; with `extend`, retain those as well instead.
    """
    needed_ms, need = retention_needed(declaration, layout, table, now_ms or int(time.time() * 1000))
    if retain_ms < needed_ms and not extend:
        if need is None:
            raise RetentionTooShort(
                f"{table.name}: retain at least 1h, because files of writes under way would be deleted"
            )
        least_ms = -(-needed_ms // _MINUTE_MS) * _MINUTE_MS
        raise RetentionTooShort(
            f"{table.name}: {need.reader} still needs files of version {need.version}; retain at least "
            f"{format_duration(least_ms)}, or run the pipeline until the flow has read the table"
        )
    hours = -(-max(retain_ms, needed_ms) // _HOUR_MS)
    files = maintenance.vacuum(table.location, hours=hours, dry_run=dry_run)
    return Vacuumed(table=table.name, files=len(files), retained_ms=hours * _HOUR_MS)


class MaintenanceThread:
    """A thread that compacts and vacuums the tables of a running pipeline, as their settings say.

    A failure is logged: the next turn repeats it, and flows are never disturbed.
    """

    def __init__(self, declaration: Declaration, layout: Layout, *, clock: Callable[[], float] = time.time) -> None:
        self._declaration = declaration
        self._layout = layout
        self._clock = clock
        tables = tables_of(declaration, layout)
        self._tables = [one for one in tables if one.compact is not None or one.vacuum is not None]
        #: when this process last tried, by the name of the table and what was done; unix time in s
        self._tried: dict[tuple[str, str], float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._tables:
            self._thread = keep_thread(self._run, "table-maintenance")
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def turn(self) -> list[tuple[str, str]]:
        """Do what is due now, and return it."""
        done = []
        for table in self._tables:
            for what, every_ms in _intervals(table):
                last = self._tried.get((table.name, what))
                if last is not None and self._clock() - last < every_ms / 1000:
                    continue
                try:
                    if not table.location.exists():
                        continue
                    if last is None:
                        last = _last_done(table, what)
                        if last is not None and self._clock() - last < every_ms / 1000:
                            self._tried[table.name, what] = last
                            continue
                    self._tried[table.name, what] = self._clock()
                    self._maintain(table, what)
                    done.append((table.name, what))
                except (DeltaError, OttlaError, OSError, ValueError) as error:
                    log.warning("the table %s was not maintained (%s): %s", table.name, what, error)
        return done

    def _maintain(self, table: Table, what: str) -> None:
        if what == "compact":
            compacted = compact_table(table)
            log.info("compacted %s: %d files became %d", table.name, compacted.files_before, compacted.files_after)
            return
        assert table.vacuum is not None, "only tables with vacuum are due for it"
        vacuumed = vacuum_table(self._declaration, self._layout, table, retain_ms=table.vacuum.retain_ms, extend=True)
        log.info("vacuum of %s: %d files deleted", table.name, vacuumed.files)

    def _run(self) -> None:
        self.turn()
        while not self._stop.wait(_LOOK_S):
            self.turn()


def _last_done(table: Table, what: str) -> float | None:
    """Return when a table was last compacted or vacuumed, by its history; None if that is not in it."""
    operation = {"compact": "OPTIMIZE", "vacuum": "VACUUM"}[what]
    for entry in table.location.table().history(_HISTORY):
        if str(entry.get("operation", "")).startswith(operation):
            return float(entry["timestamp"]) / 1000
    return None


def _intervals(table: Table) -> Iterator[tuple[str, int]]:
    if table.compact is not None:
        yield "compact", table.compact.every_ms
    if table.vacuum is not None:
        yield "vacuum", table.vacuum.every_ms


# -- what is on disk --------------------------------------------------------------------------------------------------


def _checkpoints(declaration: Declaration, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the checkpoints of the flows, and those of backfills that have not ended."""
    streams = [flow for flow in declaration.flows.values() if flow.kind == "table"]
    for flow in streams:
        yield f"flow {flow.name}", layout.checkpoint(flow)
    for run in list_names(f"{layout.storage}/_backfill"):
        scratch = layout.scratch(run)
        for flow in streams:
            yield f"a backfill of flow {flow.name}", scratch.checkpoint(flow)


def _read_progress(checkpoint: str) -> tuple[int | None, list[str], Manifest | None]:
    """Return the offsets after the last complete batch of a checkpoint, and its newest manifest.

    If no batch is complete, the first one is repeated from the version that the table had then. In this case the first
    value is the time when it was planned, and the offsets are those at its end; else the first value is None.
    """
    planned = batch_ids(f"{checkpoint}/offsets")
    if not planned:
        return None, [], None
    complete = [one for one in batch_ids(f"{checkpoint}/commits") if one in planned]
    number = max(complete, default=min(planned))
    lines = (read_offset_lines(checkpoint, number) or [])[HEADER_LINES:]
    started_ms = None
    if not complete:
        filesystem, path = open_filesystem(f"{checkpoint}/offsets/{number}")
        started_ms = (filesystem.get_file_info(path).mtime_ns or 0) // 1_000_000
    with suppress(ValueError, KeyError, TypeError):
        return started_ms, lines, ManifestFiles(checkpoint).newest()
    return started_ms, lines, None


def _versions_read(lines: Iterable[str], table_id: str) -> Iterator[int]:
    """Yield the versions up to which a table was read, from the offsets of all sources of a query."""
    for line in lines:
        try:
            offset = json.loads(line)
            is_table = offset["table"] == table_id
        except (ValueError, TypeError, KeyError):
            continue  # the offsets of a topic or of files
        if is_table:
            yield int(offset["version"])


class _CommitTimes:
    """The times of the commits of a table."""

    def __init__(self, location: TableLocation, latest: int, now_ms: int) -> None:
        self._files = location.files()
        self._latest = latest
        self._now_ms = now_ms

    def after(self, version: int) -> int:
        """Return when the first commit after a version was made; now if there is none."""
        for one in range(version + 1, self._latest + 1):
            for action in read_actions(self._files, one) or ():
                if "commitInfo" in action and "timestamp" in action["commitInfo"]:
                    return int(action["commitInfo"]["timestamp"])
        return self._now_ms
