"""The supervisor: all flows of a pipeline in one Spark session, each a query of its own with its own checkpoint.

A flow that fails is started again after a while, the others go on, and its readers keep what is there. Flows whose
trigger ends run in the order of the graph, a few at a time, so that one reads all that those before it have written;
the others run all at once, but start a few at a time: each starts processes, and Spark gives up on slow ones.

Spark reports the progress of queries through a listener; counts of rows come from the writer (`zones`), which knows
them exactly. All state of the supervisor changes in one thread, but for counters of `FlowStatus`.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import ottla
from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition
from ottla.pipeline.analysis import schemas_of
from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import Declaration, Flow, Trigger
from ottla.pipeline.flow_digest import flow_digest
from ottla.pipeline.flow_record import FlowRecorder, describe
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import Inputs, Pins
from ottla.pipeline.lag import EndOffsets, merge_offsets
from ottla.pipeline.late import count_late
from ottla.pipeline.layout import Layout
from ottla.pipeline.maintenance import MaintenanceThread
from ottla.pipeline.openlineage_run import RunLineage
from ottla.pipeline.ownership import Ownership, TakenOver
from ottla.pipeline.pinned_schemas import pin_schemas
from ottla.pipeline.plan import EXPECTATION_FAILED, FunctionRefused, Planner, QueryRefused, own_modules
from ottla.pipeline.preflight import topics_written
from ottla.pipeline.source_options import cluster_options
from ottla.pipeline.start_plan import check_tables
from ottla.pipeline.status import FlowStatus, RunStatus, StatusFiles
from ottla.pipeline.table_fit import in_pipeline_words
from ottla.pipeline.zones import Batch, Counts, FlowWriter, watermark_of_batch
from ottla.spark.batch_manifest import ManifestFiles, TableWasReplaced, batch_digest
from ottla.spark.checkpoint_files import CheckpointFiles
from ottla.spark.commit_errors import CheckpointMismatch
from ottla.spark.listening import QueryListener
from ottla.spark.progress import ProgressPublisher, offsets_of
from ottla.spark.session import ConnectRefused, is_local
from ottla.spark.source_offsets import read_source_offsets
from ottla.spark.spark_internals import (
    activate_session,
    check_file_system,
    is_connect,
    java_errors,
    planned_batch,
    query_of_batch,
)
from ottla.spark.staging import open_filesystem
from ottla.spark.table_commit import BatchMismatch
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import SchemaMismatch
from ottla.spark.wire_format import SchemaRefused

log = logging.getLogger("ottla.pipeline")

_LOOK_S = 0.1
_STATUS_EVERY_S = 1.0
_STOP_S_MAX = 60.0
#: a query's last progress may arrive after its end
_EVENTS_S_MAX = 5.0
#: how Spark writes the watermark of a first batch
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"
#: how Spark begins to say that a query runs
_SETTLED = ("Waiting", "Processing")
_PACKAGES = ("ottla", "pyspark_ottla", "pyspark_ottla_table")
#: exceptions of Spark, of tables, of Ottla and of the operating system, whose messages are sentences
_FAILURES: tuple[type[Exception], ...] = (PySparkException, *java_errors(), DeltaError, OttlaError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """Exponential back-off of a failed flow; reset after it has run without a failure for `well_after_s`."""

    first_s: float = 1.0
    longest_s: float = 60.0
    well_after_s: float = 300.0
    #: of flows whose trigger ends; without a limit such a run would not end
    attempts_max: int = 3

    def wait_s(self, failures: int) -> float:
        """
        >>> [Restarts().wait_s(failures) for failures in (1, 2, 3, 10)]
        [1.0, 2.0, 4.0, 60.0]
        """
        return float(min(self.first_s * 2 ** min(failures - 1, 30), self.longest_s))


class Running(Protocol):
    """A flow at work."""

    def failure(self) -> BaseException | None:
        """Why it has ended, None if it goes on or has done its work."""

    def ended(self) -> bool: ...

    def settled(self) -> bool:
        """Whether all that it needs has been started."""

    def stop(self) -> None: ...


@dataclass(slots=True)
class Session:
    """What flows share."""

    spark: SparkSession
    declaration: Declaration
    graph: Graph
    layout: Layout
    inputs: Inputs
    ends: EndOffsets

    def enter_thread(self) -> None:
        """Make the session that of the calling thread. Call it at the start of each thread."""
        activate_session(self.spark)


class Supervisor:
    """Runs a pipeline, or some `flows` of it, until it has ended or is stopped."""

    def __init__(
        self,
        declaration: Declaration,
        spark: SparkSession,
        *,
        trigger: Trigger | None = None,
        flows: Collection[str] | None = None,
        restarts: Restarts | None = None,
        active_max: int = 3,
        show: Callable[[RunStatus], None] | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        if is_connect(spark):
            raise ConnectRefused("the given session")
        # Config
        chosen = flows
        declaration = pin_schemas(declaration, continues=True)
        if trigger is not None:
            every = {name: replace(flow, trigger=None) for name, flow in declaration.flows.items()}
            declaration = replace(declaration, trigger=trigger, flows=every)
        self._declaration = declaration
        self._spark = spark
        self._restarts = restarts or Restarts()
        #: so many flows start at a time, and of those that end, so many run
        self._active_max = active_max
        self._show = show or (lambda status: None)
        # State
        layout = Layout.of(declaration)
        self._files = StatusFiles(layout)
        #: whether this run has written the status file, and from then on expects to find its own status there
        self._is_published = False
        #: None: `run` claims the pipeline itself, and gives it up at its end
        self._ownership = ownership
        self._is_replaced = False
        self._stopping = threading.Event()
        run = ownership.identity.run if ownership is not None else None
        self.status = RunStatus.begin(declaration.name, declaration.file, str(spark.sparkContext.master), run)
        graph = Graph(declaration)
        check_file_system(spark, layout.checkpoints)
        schemas = schemas_of(spark, graph, chosen)
        check_tables(graph, layout, {name: schema.jsonValue() for name, schema in schemas.items()})
        inputs = Inputs(spark, declaration, layout, schemas)
        self._session = Session(spark, declaration, graph, layout, inputs, EndOffsets.of(declaration))
        #: queries are planned and started side by side, which is most of what a start costs
        self._starts = ThreadPoolExecutor(active_max, "start")
        self._flows = [
            _Supervised(self._session, declaration.flows[name], self._restarts, self._starts)
            for name in graph.order
            if declaration.flows[name].kind != "view" and (chosen is None or name in chosen)
        ]
        self.status.flows = [flow.status for flow in self._flows]
        self._lineage = RunLineage.of(graph, layout, schemas)

    def request_stop(self) -> None:
        """From any thread, or a signal handler: end as soon as possible, with everything in order."""
        self._stopping.set()

    def run(self) -> RunStatus:
        """Run until every flow has ended or a stop is requested. A flow that fails raises nothing: see its status.

        Raise AlreadyRunning if another run owns the pipeline, TakenOver if another run has become its owner.
        """
        if self._ownership is None:
            with Ownership.of(self._declaration, self.status.run) as self._ownership:
                return self._run(self._ownership)
        return self._run(self._ownership)

    def _run(self, ownership: Ownership) -> RunStatus:
        ownership.claim(log.info)
        self._publish()
        ship_code(self._session)
        make_topics(self._declaration)
        listener = _Listener({flow.flow.name: flow for flow in self._flows})
        publisher = ProgressPublisher({**cluster_options(self._declaration), "groupIdPrefix": self._declaration.name})
        for one in (listener, publisher):
            self._spark.streams.addListener(one)
        try:
            with self._session.ends, MaintenanceThread(self._declaration, self._session.layout):
                self._supervise()
        finally:
            self._stop_flows()
            self._starts.shutdown(wait=False, cancel_futures=True)
            for one in (listener, publisher):
                self._spark.streams.removeListener(one)
            publisher.close()
            self.status.state = "ended"
            self._publish()
            self._lineage.close()
        if self._is_replaced:
            raise TakenOver(ownership.pipeline, ownership.other)
        return self.status

    def _supervise(self) -> None:
        published = 0.0
        while not self._stopping.is_set() and not self._is_replaced:
            for flow in self._flows:
                flow.look(time.monotonic(), may_start=self._may_start(flow))
            if all(flow.status.state in ("done", "failed") for flow in self._flows):
                return
            if time.monotonic() - published >= _STATUS_EVERY_S:
                self._publish()
                published = time.monotonic()
                if self._files.asked_to_stop(self.status.run):
                    return
            self._stopping.wait(_LOOK_S)

    def _may_start(self, flow: _Supervised) -> bool:
        names = set(_stored_inputs(self._session.graph, flow.flow))
        for above in self._flows:
            target = above.flow.append_to.name if above.flow.append_to is not None else above.flow.name
            if target not in names:
                continue
            if above.flow.kind == "materialized_view" and not self._session.inputs.location(above.flow).exists():
                return False
            if flow.trigger.ends and above.trigger.ends and above.status.state not in ("done", "failed"):
                return False
        if not flow.trigger.ends and self._has_no_input(flow.flow):
            return False
        running = [one for one in self._flows if one.status.state == "running"]
        return sum(one.trigger.ends or one.starting for one in running) < self._active_max

    def _has_no_input(self, flow: Flow) -> bool:
        """Return whether a flow reads tables alone and none of them exists yet.

        Spark runs a first batch also without rows. At the first start of a pipeline, empty batches of all its flows
        would delay the rows of the first ones.
        """
        session = self._session
        if any(name in session.declaration.sources for _, name in session.graph.reads_through_views(flow)):
            return False
        stored = (session.declaration.flows[name] for name in _stored_inputs(session.graph, flow))
        return not any(session.inputs.location(one).exists() for one in stored)

    def _stop_flows(self) -> None:
        self.status.state = "stopping"
        self._publish()
        threads = [threading.Thread(target=flow.stop, daemon=True) for flow in self._flows]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _STOP_S_MAX
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            threads[0].join(_STATUS_EVERY_S)
            threads = [thread for thread in threads if thread.is_alive()]
            # A status that is not renewed would be shown as that of a run that has crashed.
            self._publish()

    def _publish(self) -> None:
        self.status.updated_ms = int(time.time() * 1000)
        for flow in self._flows:
            flow.refresh()
        self._find_replacement()
        if not self._is_replaced:
            try:
                self._files.write(self.status)
                self._is_published = True
            except OSError as error:
                log.warning("the status of %s was not written: %s", self.status.pipeline, error)
        self._lineage.observe(self.status)
        self._show(self.status)

    def _find_replacement(self) -> None:
        """Note whether another run has taken over the pipeline; the status file is that run's from then on.

        The group cannot tell a run that was frozen for long that another one has come and has ended already. The
        status file can.
        """
        assert self._ownership is not None
        is_foreign = self._is_published and self._files.belongs_to_another(self.status.run)
        if (self._ownership.was_replaced or is_foreign) and not self._is_replaced:
            self._is_replaced = True
            log.error("another run has taken over the pipeline %s; this one stops", self.status.pipeline)


class _Supervised:
    """One flow: started, watched, started again."""

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
        """Start, go on, or end: whatever is due."""
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
            with suppress(*_FAILURES):
                self._running.stop()
            self._running = None
        if self.status.state not in ("done", "failed"):
            self.status.state = "stopped"

    def count(self, number: int, counts: Counts) -> None:
        """A batch was written."""
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
        for name in _stored_inputs(self._session.graph, self.flow):
            with suppress(*_FAILURES):
                table = self._session.inputs.location(self._session.declaration.flows[name]).table()
                read = versions.get(str(table.metadata().id), table.version() + 1)
                behind += max(table.version() + 1 - read, 0)
        return behind

    def _start(self, now: float) -> None:
        self.has_ended.clear()
        self._started_at = now
        kind = _View if self.flow.kind == "materialized_view" else _Stream
        self._running = kind(self._session, self)
        self.starting = True
        self.status.state = "running"

    def _fail(self, error: BaseException, now: float) -> None:
        self._failures += 1
        self.status.error = describe_failure(error)
        log.info("flow %s has failed, in detail:\n%s", self.flow.name, error)
        final = is_final(error) or (self.trigger.ends and self._failures >= self._restarts.attempts_max)
        if final:
            self.status.state = "failed"
            log.error("flow %s has failed: %s", self.flow.name, self.status.error)
            return
        wait_s = self._restarts.wait_s(self._failures)
        self.status.state = "restarting"
        self.status.restarts += 1
        self._start_at = now + wait_s
        log.warning("flow %s is started again in %.0f s: %s", self.flow.name, wait_s, self.status.error)


class _Stream:
    """A flow as a streaming query."""

    def __init__(self, session: Session, supervised: _Supervised) -> None:
        self._has_ended = supervised.has_ended
        self._started: Future[StreamingQuery] = supervised.starts.submit(self._start, session, supervised)

    @staticmethod
    def _start(session: Session, supervised: _Supervised) -> StreamingQuery:
        session.enter_thread()
        flow = supervised.flow
        checkpoint = session.layout.checkpoint(flow)
        pins = Pins(checkpoint, joined_tables(session, flow))
        work = Planner(session.spark, session.graph, lambda name: session.inputs.stream(name, pins)).work(flow)
        if not work.rows.isStreaming:
            raise QueryNeverGrows(flow)
        supervised.scans = work.scans
        writer = FlowWriter(session.declaration, session.layout, flow, work)
        manifests, computation = ManifestFiles(checkpoint), flow_digest(session.graph, flow)
        recorder = FlowRecorder(checkpoint, describe(session.graph, flow))
        stored = (session.declaration.flows[name].table for name in _stored_inputs(session.graph, flow))
        parquet = any(table is not None and table.format == "parquet" for table in stored)
        files = CheckpointFiles(checkpoint)
        files.repair()

        def write(rows: DataFrame, number: int) -> None:
            query = query_of_batch(session.spark)
            # Operators inside of steps know the watermark of the batch before.
            mark = read_watermark(checkpoint, number - 1 if flow.steps else number) if flow.late_rows else None
            reads = manifests.decide(number, pins.tables) if pins.tables else None
            planned = planned_batch(session.spark, query)
            if parquet:
                planned.append(read_source_offsets(checkpoint, number))
            digest = batch_digest(planned, reads, computation)
            files.sync_plan(number)
            recorder.write_once()
            supervised.count(number, writer.write(rows, Batch(f"{query}.{flow.name}", number, mark, digest)))
            files.sync()

        stream = work.rows.writeStream.foreachBatch(write).queryName(flow.name).option("checkpointLocation", checkpoint)
        stream = stream.outputMode("update" if flow.emit == "changes" else "append")
        return stream.trigger(**trigger_options(supervised.trigger)).start()

    def ended(self) -> bool:
        if not self._started.done():
            return False
        if self._started.exception() is None:
            return not self._started.result().isActive
        # A query that did not start sends no events.
        self._has_ended.set()
        return True

    def settled(self) -> bool:
        return self._started.done() and str(self._started.result().status["message"]).startswith(_SETTLED)

    def failure(self) -> BaseException | None:
        return self._started.exception() or self._started.result().exception()

    def stop(self) -> None:
        if not self._started.cancel():
            self._started.result(_STOP_S_MAX).stop()


class _View:
    """A materialized view: a thread that computes it as a whole, again and again unless its trigger ends."""

    def __init__(self, session: Session, supervised: _Supervised) -> None:
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
        trigger = self._supervised.trigger
        interval_s = max(trigger.interval_ms / 1000, 1.0)
        seen: dict[str, int] = {}
        try:
            self._session.enter_thread()
            for number in _numbers():
                versions = self._versions()
                if trigger.ends or versions != seen:
                    self._supervised.count(number, refresh_view(self._session, self._supervised.flow))
                    seen = versions
                if trigger.ends or self._stop.wait(interval_s):
                    break
        except BaseException as error:  # noqa: BLE001
            # The supervisor takes a thread that has ended without a failure for a view that is complete.
            self._failure = error
        finally:
            self._supervised.has_ended.set()

    def _versions(self) -> dict[str, int]:
        flows = self._session.declaration.flows
        names = _stored_inputs(self._session.graph, self._supervised.flow)
        found = {name: self._session.inputs.location(flows[name]) for name in names}
        return {name: location.table().version() for name, location in found.items() if location.exists()}


class QueryNeverGrows(OttlaError):
    def __init__(self, flow: Flow) -> None:
        super().__init__(
            f"flow {flow.name} is a table that reads materialized views alone, so no row would ever come: write "
            "kind: materialized_view"
        )


def refresh_view(session: Session, flow: Flow) -> Counts:
    """Compute a materialized view from all rows that its inputs have now: one version of each of them."""
    read = session.inputs.pinned(name for _, name in session.graph.reads_through_views(flow))
    work = Planner(session.spark, session.graph, read).work(flow)
    writer = FlowWriter(session.declaration, session.layout, flow, work, replace=True)
    return writer.write(work.rows, Batch(flow.name, 0))


class _Listener(QueryListener):
    """Spark calls it from one thread, in the order of events."""

    def __init__(self, flows: dict[str, _Supervised]) -> None:
        self._flows = flows
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:
        self._names[str(event.runId)] = event.name

    def onQueryProgress(self, event: Any) -> None:
        flow = self._flows.get(event.progress.name)
        if flow is not None:
            flow.progress(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        flow = self._flows.get(self._names.get(str(event.runId), ""))
        if flow is not None:
            flow.status.rows_per_second = 0.0

    def onQueryTerminated(self, event: Any) -> None:
        flow = self._flows.get(self._names.pop(str(event.runId), ""))
        if flow is not None:
            flow.has_ended.set()


# -- small things -----------------------------------------------------------------------------------------------------


def trigger_options(trigger: Trigger) -> dict[str, Any]:
    """A trigger in Spark's words."""
    if trigger.kind == "once":
        return {"once": True}
    if trigger.kind == "available-now":
        return {"availableNow": True}
    return {"processingTime": f"{trigger.interval_ms} milliseconds"}


def is_final(error: BaseException) -> bool:
    """Whether another attempt can only fail the same way."""
    if isinstance(error, QueryRefused | FunctionRefused | QueryNeverGrows | SchemaRefused):
        return True
    # Spark gives the text of an exception that was raised in a batch, not the exception.
    classes = (BatchMismatch, CheckpointMismatch, TableWasReplaced, WatermarkMissing, SchemaMismatch)
    return any(mark in str(error) for mark in (EXPECTATION_FAILED, *(each.__name__ for each in classes)))


def describe_failure(error: BaseException) -> str:
    """Return the message of a failure as one line. Spark wraps it in other messages and in stack traces."""
    text = in_pipeline_words(str(error))
    if EXPECTATION_FAILED in text:
        return text[text.index(EXPECTATION_FAILED) :].splitlines()[0].partition(" SQLSTATE")[0].strip("'\" .")
    # The message of an exception of Ottla is a sentence; other exceptions need their names.
    own = re.findall(r"^(?:Caused by: )?ottla(?:\.\w+)+: (.+)$", text, re.M)
    raised = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt): .+)$", text, re.M)
    # Of Java's exceptions the first line says who was called, the second what happened.
    java = re.findall(r"^: (.+)$", text, re.M)
    name = "" if isinstance(error, _FAILURES) else f"{type(error).__name__}: "
    said = [f"{name}{line}" for line in text.splitlines()]
    line: str = [*own[-1:], *raised[-1:], *java, *said, type(error).__name__][0]
    return line.partition("terminated with exception: ")[2] or line


class WatermarkMissing(OttlaError):
    """The offset log of a checkpoint lacks a batch whose watermark decides which rows are late."""

    def __init__(self, checkpoint: str, number: int) -> None:
        super().__init__(
            f"{checkpoint}/offsets/{number} is missing, which has the watermark by which rows are late. Without it, "
            "late rows would reach no output, so nothing was written. Restore the checkpoint from a copy that has the "
            "file, or raise `version` of the flow, which begins with a new checkpoint"
        )


def read_watermark(checkpoint: str, number: int) -> Any:
    """Return the watermark that a batch began with, from Spark's offset log; None before the first batch.

    Raise WatermarkMissing if the log does not have the batch.
    """
    if number < 0:
        return None
    filesystem, path = open_filesystem(f"{checkpoint}/offsets/{number}")
    try:
        with filesystem.open_input_stream(path) as stream:
            return watermark_of_batch(json.loads(bytes(stream.read()).decode().splitlines()[1]))
    except FileNotFoundError:
        raise WatermarkMissing(checkpoint, number) from None


def _table_versions(sources: list[Any]) -> Iterator[tuple[str, int]]:
    for source in sources:
        with suppress(ValueError, TypeError):
            offset = json.loads(source.endOffset)
            if {"table", "version", "index", "snapshot"} <= set(offset):
                yield offset["table"], offset["version"]


def _stored_inputs(graph: Graph, flow: Flow) -> Iterator[str]:
    """Yield the flows whose tables a flow reads, directly or by way of views."""
    return (name for _, name in graph.reads_through_views(flow) if name in graph.declaration.flows)


def joined_tables(session: Session, flow: Flow) -> tuple[TableLocation, ...]:
    """Return the tables of materialized views that a stream joins and that have versions, unlike parquet files."""
    views = (session.declaration.flows[name] for name in _stored_inputs(session.graph, flow))
    tables = {
        session.inputs.location(view).uri: session.inputs.location(view)
        for view in views
        if view.kind == "materialized_view" and view.table is not None and view.table.format == "delta"
    }
    return tuple(tables[uri] for uri in sorted(tables))


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def make_topics(declaration: Declaration) -> None:
    """Create the topics that flows write and that do not exist. The brokers choose what a declaration leaves open."""
    topics = topics_written(declaration)
    if not topics:
        return
    with open_cluster(declaration) as cluster:
        there = cluster.topics(sorted(topics))
        for topic in sorted(topics.keys() - there.keys()):
            sink = topics[topic]
            cluster.create_topic(topic, (sink and sink.partitions) or -1, sink.config if sink else {})


def ship_code(session: Session) -> None:
    """Tasks elsewhere need our packages, and everywhere the modules of Python steps."""
    context = session.spark.sparkContext
    for path in own_modules(session.graph):
        context.addPyFile(path)
    if not is_local(str(context.master)):
        context.addPyFile(zip_packages(tempfile.mkdtemp(prefix="ottla-")))


def zip_packages(directory: str) -> str:
    """Our packages as one file that Python can import from."""
    root = Path(ottla.__file__).resolve().parent.parent
    content = Path(directory) / "content"
    for name in _PACKAGES:
        shutil.copytree(root / name, content / name, ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(Path(directory) / "ottla-packages"), "zip", content)


@contextmanager
def stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C and the usual signal of process managers end a run in order. Only in the main thread."""
    before = {one: signal.signal(one, lambda *_: supervisor.request_stop()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
