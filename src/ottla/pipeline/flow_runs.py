"""One flow of a running pipeline: started, watched, restarted after a failure.

    waiting --may start--> running --ended--> done | stopped
                           running --failed--> restarting --back-off over--> running
                           running --failed for good, or too often--> failed

A flow runs as a streaming query (`StreamRun`), a materialized view as a thread that computes it as a whole (`ViewRun`).
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from ottla.model.types import TopicPartition
from ottla.pipeline.declaration import Declaration, Flow, Trigger
from ottla.pipeline.exactly_once import FlowBatches
from ottla.pipeline.failures import FAILURES, describe_failure, is_final
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import Inputs, Pins
from ottla.pipeline.lag import EndOffsets, merge_offsets
from ottla.pipeline.late import count_late
from ottla.pipeline.layout import Layout
from ottla.pipeline.plan import Planner, QueryNeverGrows
from ottla.pipeline.status import FlowStatus
from ottla.pipeline.zones import Batch, Counts, FlowWriter
from ottla.spark.progress import offsets_of
from ottla.spark.spark_internals import activate_session
from ottla.spark.table_location import TableLocation

log = logging.getLogger("ottla.pipeline")

_STOP_S_MAX: Final = 60.0
#: a query's last progress may arrive after its end
_EVENTS_S_MAX: Final = 5.0
#: how Spark writes the watermark of a first batch
_NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"
#: the status message of a query that runs begins with one of these
_RUNNING_MESSAGES: Final = ("Waiting", "Processing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """Exponential back-off of a failed flow; reset after it has run without a failure for `well_after_s`."""

    first_s: float = 1.0
    longest_s: float = 60.0
    well_after_s: float = 300.0
    #: of flows whose trigger ends; without a limit such a run would not end
    attempts_max: int = 3

    def wait_s(self, failures: int) -> float:
        """Return the pause before the next start, after so many failures in a row.

        >>> [Restarts().wait_s(failures) for failures in (1, 2, 3, 10)]
        [1.0, 2.0, 4.0, 60.0]
        """
        return float(min(self.first_s * 2 ** min(failures - 1, 30), self.longest_s))


@dataclass(slots=True)
class Session:
    """What all flows of a run share."""

    spark: SparkSession
    declaration: Declaration
    graph: Graph
    layout: Layout
    inputs: Inputs
    ends: EndOffsets

    def enter_thread(self) -> None:
        """Make the session that of the calling thread. Call it at the start of each thread."""
        activate_session(self.spark)

    def stored_inputs(self, flow: Flow) -> Iterator[tuple[Flow, TableLocation]]:
        """Yield the flows whose tables a flow reads, directly or by way of views, and where the tables are."""
        flows = (self.declaration.flows[name] for name in self.graph.stored_inputs(flow))
        return ((each, self.inputs.location(each)) for each in flows)


class Running(Protocol):
    """A start of a flow."""

    def failure(self) -> BaseException | None:
        """Return why it has ended; None if it continues or is complete."""

    def ended(self) -> bool:
        """Return whether it does not run any more."""

    def settled(self) -> bool:
        """Return whether everything that it needs has been started."""

    def stop(self) -> None:
        """Stop it, and wait for its end for at most a minute."""


class SupervisedFlow:
    """The state of one flow. The supervisor's thread changes it, except for counters of `FlowStatus`."""

    def __init__(self, session: Session, flow: Flow, restarts: Restarts, starts: ThreadPoolExecutor) -> None:
        self._session = session
        self.starts = starts
        self.flow = flow
        self.trigger = session.declaration.trigger_of(flow)
        self._restarts = restarts
        self.status = FlowStatus(name=flow.name, zone=flow.zone, kind=flow.kind, trigger=str(self.trigger))
        self._running: Running | None = None
        self._failures = 0
        self._started_at = 0.0
        self.starting = False
        self._start_at = 0.0
        #: set when all events of the query have arrived, or the view has ended
        self.has_ended = threading.Event()
        #: where the last batch ended: the next offset of each partition, the next version of each table by its id
        self._read_offsets: dict[TopicPartition, int] = {}
        self._read_versions: dict[str, int] = {}
        #: how often the query reads its input for a batch
        self.scans = 1

    def look(self, now: float, *, may_start: bool) -> None:
        """Start the flow if it is time, or update its state if it has ended or failed."""
        running = self._running
        if self.status.state in ("done", "failed"):
            return
        if running is None:
            if may_start and now >= self._start_at:
                self._start(now)
            return
        if self._failures and now - self._started_at > self._restarts.well_after_s:
            self._failures = 0
        if not running.ended():
            self.starting = self.starting and not running.settled()
            return
        self.has_ended.wait(_EVENTS_S_MAX)
        self._running = None
        failure = running.failure()
        if failure is None:
            self.status.state = "done" if self.trigger.ends else "stopped"
        else:
            self._fail(failure, now)

    def stop(self) -> None:
        if self._running is not None:
            with suppress(*FAILURES):
                self._running.stop()
            self._running = None
        if self.status.state not in ("done", "failed"):
            self.status.state = "stopped"

    def count(self, number: int, counts: Counts) -> None:
        """Add the counts of a batch that was written."""
        status = self.status
        status.batch = number
        status.rows += counts.rows
        status.quarantined += counts.quarantined
        status.dropped += counts.dropped
        status.late += counts.late
        for name, count in counts.violations.items():
            status.violations[name] = status.violations.get(name, 0) + count

    def progress(self, progress: Any) -> None:
        """Take the figures of a batch, or of a trigger without one, from Spark."""
        status = self.status
        status.rows_per_second = progress.processedRowsPerSecond if progress.numInputRows else 0.0
        status.rows_in += progress.numInputRows // self.scans
        mark = (progress.eventTime or {}).get("watermark", "")
        status.watermark = mark if mark not in ("", _NO_WATERMARK) else status.watermark
        if self.flow.late_rows is None:
            rows, groups = count_late(progress.stateOperators)
            status.late += rows
            status.late_groups += groups
        # One assignment each, because `refresh` reads them in another thread.
        self._read_offsets = merge_offsets(offsets_of(one.description, one.endOffset) for one in progress.sources)
        self._read_versions = dict(_table_versions(progress.sources))
        ends = self._session.ends
        ends.note(self._read_offsets)
        for source in progress.sources:
            ends.note(offsets_of(source.description, source.latestOffset))
        if self._read_offsets:
            status.lag = ends.lag(self._read_offsets)

    def refresh(self) -> None:
        """Renew the lag: records of topics and commits of tables that the flow has not read yet."""
        offsets, versions = self._read_offsets, self._read_versions
        if (offsets or versions) and self.status.state in ("running", "restarting"):
            self.status.lag = self._session.ends.lag(offsets) + (self._commits_behind(versions) if versions else 0)

    def _commits_behind(self, versions: dict[str, int]) -> int:
        behind = 0
        for _, location in self._session.stored_inputs(self.flow):
            with suppress(*FAILURES):
                table = location.table()
                read = versions.get(str(table.metadata().id), table.version() + 1)
                behind += max(table.version() + 1 - read, 0)
        return behind

    def _start(self, now: float) -> None:
        self.has_ended.clear()
        self._started_at = now
        kind = ViewRun if self.flow.kind == "materialized_view" else StreamRun
        self._running = kind(self._session, self)
        self.starting = True
        self.status.state = "running"

    def _fail(self, error: BaseException, now: float) -> None:
        self._failures += 1
        self.status.error = describe_failure(error)
        log.info("flow %s has failed, in detail:\n%s", self.flow.name, error)
        if is_final(error) or (self.trigger.ends and self._failures >= self._restarts.attempts_max):
            self.status.state = "failed"
            log.error("flow %s has failed: %s", self.flow.name, self.status.error)
            return
        wait_s = self._restarts.wait_s(self._failures)
        self.status.state = "restarting"
        self.status.restarts += 1
        self._start_at = now + wait_s
        log.warning("flow %s is started again in %.0f s: %s", self.flow.name, wait_s, self.status.error)


class StreamRun:
    """A start of a flow as a streaming query."""

    def __init__(self, session: Session, supervised: SupervisedFlow) -> None:
        self._has_ended = supervised.has_ended
        self._started: Future[StreamingQuery] = supervised.starts.submit(self._start, session, supervised)

    @staticmethod
    def _start(session: Session, supervised: SupervisedFlow) -> StreamingQuery:
        session.enter_thread()
        flow = supervised.flow
        checkpoint = session.layout.checkpoint(flow)
        pins = Pins(checkpoint, _joined_tables(session, flow))
        work = Planner(session.spark, session.graph, lambda name: session.inputs.stream(name, pins)).work(flow)
        if not work.rows.isStreaming:
            raise QueryNeverGrows(flow)
        supervised.scans = work.scans
        batches = FlowBatches(session.spark, session.graph, flow, layout=session.layout, work=work, pins=pins)

        def write(rows: DataFrame, number: int) -> None:
            supervised.count(number, batches.write(rows, number))

        stream = work.rows.writeStream.foreachBatch(write).queryName(flow.name).option("checkpointLocation", checkpoint)
        return start_query(stream, flow, supervised.trigger)

    def ended(self) -> bool:
        if not self._started.done():
            return False
        if self._started.exception() is None:
            return not self._started.result().isActive
        # A query that did not start sends no events.
        self._has_ended.set()
        return True

    def settled(self) -> bool:
        return self._started.done() and str(self._started.result().status["message"]).startswith(_RUNNING_MESSAGES)

    def failure(self) -> BaseException | None:
        return self._started.exception() or self._started.result().exception()

    def stop(self) -> None:
        if not self._started.cancel():
            self._started.result(_STOP_S_MAX).stop()


class ViewRun:
    """A start of a materialized view: a thread that recomputes it when an input has a new version.

    A view whose trigger ends is computed once.
    """

    def __init__(self, session: Session, supervised: SupervisedFlow) -> None:
        self._session = session
        self._supervised = supervised
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"view-{supervised.flow.name}", daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def settled(self) -> bool:
        return True

    def failure(self) -> BaseException | None:
        return self._failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(_STOP_S_MAX)

    def _run(self) -> None:
        trigger, flow = self._supervised.trigger, self._supervised.flow
        interval_s = max(trigger.interval_ms / 1000, 1.0)
        seen: dict[str, int] = {}
        try:
            self._session.enter_thread()
            for number in itertools.count():
                inputs = self._session.stored_inputs(flow)
                versions = {each.name: place.table().version() for each, place in inputs if place.exists()}
                if trigger.ends or versions != seen:
                    self._supervised.count(number, refresh_view(self._session, flow))
                    seen = versions
                if trigger.ends or self._stop.wait(interval_s):
                    break
        except BaseException as error:  # noqa: BLE001
            # The supervisor would take a thread that has ended without a failure for a view that is complete.
            self._failure = error
        finally:
            self._supervised.has_ended.set()


def refresh_view(session: Session, flow: Flow) -> Counts:
    """Compute a materialized view from all rows that its inputs have now: one version of each of them."""
    read = session.inputs.pinned(name for _, name in session.graph.reads_through_views(flow))
    work = Planner(session.spark, session.graph, read).work(flow)
    writer = FlowWriter(session.declaration, session.layout, flow, work, replace=True)
    return writer.write(work.rows, Batch(flow.name, 0))


def start_query(stream: DataStreamWriter, flow: Flow, trigger: Trigger) -> StreamingQuery:
    """Start a query in the output mode of a flow, with this trigger."""
    stream = stream.outputMode("update" if flow.emit == "changes" else "append")
    return stream.trigger(**_trigger_options(trigger)).start()


def _trigger_options(trigger: Trigger) -> dict[str, Any]:
    """Return the arguments of `DataStreamWriter.trigger`."""
    if trigger.kind == "once":
        return {"once": True}
    if trigger.kind == "available-now":
        return {"availableNow": True}
    return {"processingTime": f"{trigger.interval_ms} milliseconds"}


def _table_versions(sources: list[Any]) -> Iterator[tuple[str, int]]:
    """Yield the id and the next version of each table among the sources of a progress."""
    for source in sources:
        with suppress(ValueError, TypeError):
            offset = json.loads(source.endOffset)
            if {"table", "version", "index", "snapshot"} <= set(offset):
                yield offset["table"], offset["version"]


def _joined_tables(session: Session, flow: Flow) -> tuple[TableLocation, ...]:
    """Return the tables of materialized views that a stream joins and that have versions, unlike Parquet files."""
    tables = {
        location.uri: location
        for view, location in session.stored_inputs(flow)
        if view.kind == "materialized_view" and view.table is not None and view.table.format == "delta"
    }
    return tuple(tables[uri] for uri in sorted(tables))
