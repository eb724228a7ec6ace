"""The supervisor: all flows of a pipeline in one Spark session, each a query of its own with its own checkpoint.

A failed flow restarts after a back-off; the flows that read its table continue with the rows that exist. Flows whose
trigger ends run in the order of the graph, a few at a time, so that a flow reads everything that the flows before it
have written. Other flows run at the same time, but only a few start at once: each start creates processes, and Spark
gives up on processes that are slow to answer.

Spark reports the progress of queries through a listener; counts of rows come from the writer (`zones`), which knows
them exactly. The supervisor's thread changes all state, except for counters of `FlowStatus`.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import ottla
from ottla.env.tracing import Spans
from ottla.pipeline.analysis import schemas_of
from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import Declaration, Flow, Trigger
from ottla.pipeline.flow_runs import Restarts, Session, SupervisedFlow
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import Inputs
from ottla.pipeline.lag import EndOffsets
from ottla.pipeline.layout import Layout
from ottla.pipeline.maintenance import MaintenanceThread
from ottla.pipeline.openlineage_run import RunLineage
from ottla.pipeline.ownership import Ownership, TakenOver
from ottla.pipeline.pinned_schemas import pin_schemas
from ottla.pipeline.plan import own_modules
from ottla.pipeline.preflight import topics_written
from ottla.pipeline.source_options import cluster_options
from ottla.pipeline.start_plan import check_tables
from ottla.pipeline.status import NodeStatus, RunStatus, StatusFiles
from ottla.pipeline.traces import BatchTraces
from ottla.spark.listening import QueryListener
from ottla.spark.progress import ProgressPublisher
from ottla.spark.session import ConnectRefused, is_local
from ottla.spark.spark_internals import check_file_system, is_connect

log = logging.getLogger("ottla.pipeline")

_LOOK_S = 0.1
_STATUS_EVERY_S = 1.0
_STOP_S_MAX: Final = 60.0
_PACKAGES: Final = ("ottla", "pyspark_ottla", "pyspark_ottla_table")


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
        spans: Spans | None = None,
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
        #: how many flows may start at the same time, and how many flows whose trigger ends may run
        self._active_max = active_max
        self._show = show or (lambda status: None)
        #: None: batches are not traced
        self._traces = BatchTraces(spans, declaration.name) if spans is not None else None
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
        #: queries are planned and started in parallel: these two take most of the time of a start
        self._starts = ThreadPoolExecutor(active_max, "start")
        self._flows = [
            SupervisedFlow(self._session, declaration.flows[name], self._restarts, self._starts)
            for name in graph.order
            if declaration.flows[name].kind != "view" and (chosen is None or name in chosen)
        ]
        self.status.flows = [flow.status for flow in self._flows]
        self.status.nodes = nodes_of(graph)
        self._lineage = RunLineage(graph, layout, schemas)

    def request_stop(self) -> None:
        """Let `run` stop the flows in order and return. May be called from any thread, and by a signal handler."""
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
        listener = _Listener({flow.flow.name: flow for flow in self._flows}, self._traces)
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

    def _may_start(self, flow: SupervisedFlow) -> bool:
        names = set(self._session.graph.stored_inputs(flow.flow))
        for above in self._flows:
            if above.flow.target not in names:
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
        """Return whether a flow reads only tables and none of them exists yet.

        Spark runs a first batch also without rows. At the first start of a pipeline, empty batches of all its flows
        would delay the rows of the first ones.
        """
        session = self._session
        if any(name in session.declaration.sources for _, name in session.graph.reads_through_views(flow)):
            return False
        return not any(location.exists() for _, location in session.stored_inputs(flow))

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
            # A run whose status is not renewed would be shown as crashed.
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
        """Note whether another run has taken over the pipeline; the status file belongs to that run from then on.

        If the other run came and ended while this one was frozen, the group no longer knows it. Its status file is
        still there.
        """
        assert self._ownership is not None
        is_foreign = self._is_published and self._files.belongs_to_another(self.status.run)
        if (self._ownership.was_replaced or is_foreign) and not self._is_replaced:
            self._is_replaced = True
            log.error("another run has taken over the pipeline %s; this one stops", self.status.pipeline)


class _Listener(QueryListener):
    """Spark calls it from one thread, in the order of events."""

    def __init__(self, flows: dict[str, SupervisedFlow], traces: BatchTraces | None) -> None:
        self._flows = flows
        self._traces = traces
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:
        self._names[str(event.runId)] = event.name

    def onQueryProgress(self, event: Any) -> None:
        flow = self._flows.get(event.progress.name)
        if flow is not None:
            flow.progress(event.progress)
            if self._traces is not None:
                self._traces.note(flow.flow.name, event.progress)

    def onQueryIdle(self, event: Any) -> None:
        flow = self._flows.get(self._names.get(str(event.runId), ""))
        if flow is not None:
            flow.status.rows_per_second = 0.0

    def onQueryTerminated(self, event: Any) -> None:
        flow = self._flows.get(self._names.pop(str(event.runId), ""))
        if flow is not None:
            flow.has_ended.set()


def make_topics(declaration: Declaration) -> None:
    """Create the topics that flows write and that do not exist. Brokers have defaults for what the sink leaves open."""
    topics = topics_written(declaration)
    if not topics:
        return
    with open_cluster(declaration) as cluster:
        existing = cluster.topics(sorted(topics))
        for topic in sorted(topics.keys() - existing.keys()):
            sink = topics[topic]
            cluster.create_topic(topic, (sink and sink.partitions) or -1, sink.config if sink else {})


def ship_code(session: Session) -> None:
    """Send the modules of Python steps to the tasks, and to other machines also the packages of Ottla."""
    context = session.spark.sparkContext
    for path in own_modules(session.graph):
        context.addPyFile(path)
    if not is_local(str(context.master)):
        context.addPyFile(zip_packages(tempfile.mkdtemp(prefix="ottla-")))


def zip_packages(directory: str) -> str:
    """Write the packages of Ottla to a zip file, from which Python can import, and return its path."""
    root = Path(ottla.__file__).resolve().parent.parent
    content = Path(directory) / "content"
    for name in _PACKAGES:
        shutil.copytree(root / name, content / name, ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(Path(directory) / "ottla-packages"), "zip", content)


@contextmanager
def stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """Stop the run in order on SIGINT (Ctrl-C) and SIGTERM while the block runs. Only for the main thread."""
    before = {one: signal.signal(one, lambda *_: supervisor.request_stop()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def nodes_of(graph: Graph) -> list[NodeStatus]:
    """Return the sources and the flows of a pipeline, each after everything that it reads."""
    declaration = graph.declaration
    sources = [
        NodeStatus(name=each.name, kind="source", zone="sources", topics=[each.topic])
        for each in declaration.sources.values()
    ]
    flows = [declaration.flows[name] for name in graph.order]
    return sources + [
        NodeStatus(
            name=flow.name, kind=flow.kind, zone=flow.zone, inputs=list(graph.inputs[flow.name]),
            topics=[sink.topic for sink in flow.topics],
        )
        for flow in flows
    ]  # fmt: skip
