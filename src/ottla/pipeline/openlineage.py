"""OpenLineage events of a run: START, RUNNING, COMPLETE and FAIL of the pipeline and of each flow, with their datasets.

Events are made from the status that a run publishes every second (`Observer`), so that flows know nothing of lineage.
Each start of a flow is a run of its own in OpenLineage; the run of the pipeline is its parent.

The events are plain JSON, written here: docs/decisions/0012-openlineage.md says why no client library is used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.client.protocol.metadata import parse_bootstrap
from ottla.pipeline.column_lineage import column_lineage
from ottla.pipeline.declaration import Declaration, Flow, SqlStep
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.lineage import DECODED_COLUMNS, RAW_COLUMNS
from ottla.pipeline.status import FlowStatus, RunStatus

Event = dict[str, Any]
#: names and types of columns, in order
Columns = Sequence[tuple[str, str]]
Emit = Callable[[Event], None]

_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
_FACETS: Final = "https://openlineage.io/spec/facets"
_PRODUCER: Final = "https://pypi.org/project/ottla"
#: a running flow is reported so often
_RUNNING_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Dataset:
    """A topic or a table by OpenLineage's naming rules."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDatasets:
    """What a flow reads and writes."""

    inputs: tuple[Dataset, ...]
    #: the first one has the rows of the result, side outputs come last
    outputs: tuple[Dataset, ...]
    #: how many of the outputs have the rows of the result
    results: int
    #: by column of the result, the column of the only input that it equals; empty if that is not known
    same_columns: Mapping[str, str] = field(default_factory=dict)
    #: by name, the inputs of a flow that are datasets themselves
    named: Mapping[str, Dataset] = field(default_factory=dict)


def topic_dataset(brokers: str, topic: str) -> Dataset:
    """Return the dataset of a topic: its namespace is the first broker.

    >>> topic_dataset("b1:9092,b2:9092", "orders")
    Dataset(namespace='kafka://b1:9092', name='orders')
    """
    host, port = parse_bootstrap(brokers)[0]
    return Dataset(f"kafka://{host}:{port}", topic)


def table_dataset(path: str) -> Dataset:
    """Return the dataset of a table in a directory or in an object store.

    >>> table_dataset("/lake/raw/orders"), table_dataset("s3://bucket/lake/raw/orders")
    (Dataset(namespace='file', name='/lake/raw/orders'), Dataset(namespace='s3://bucket', name='lake/raw/orders'))
    """
    parts = urlsplit(path)
    if not parts.scheme or parts.scheme == "file":
        return Dataset("file", parts.path)
    scheme = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}.get(parts.scheme, parts.scheme)
    keeps_slash = scheme in ("hdfs", "abfss")
    return Dataset(f"{scheme}://{parts.netloc}", parts.path if keeps_slash else parts.path.lstrip("/"))


def datasets_of(graph: Graph, layout: Layout, flow: Flow) -> FlowDatasets:
    """Return what a flow reads, by way of views as well, and what it writes."""
    declaration = graph.declaration
    inputs = tuple(dict.fromkeys(_read_datasets(graph, layout, flow)))
    target = declaration.flows[flow.target]
    outputs = [topic_dataset(declaration.brokers, sink.topic) for sink in flow.topics]
    if target.table is not None:
        outputs.insert(0, table_dataset(layout.table(target.zone, target.table.name)))
    results = len(outputs)
    for directory, side in flow.side_outputs:
        if side.table:
            outputs.append(table_dataset(layout.table(directory, side.table)))
        elif side.topic:
            outputs.append(topic_dataset(declaration.brokers, side.topic))
    same = _same_columns(graph, flow) if len(inputs) == 1 else {}
    views = {name for name in flow.input_names if name in declaration.flows and declaration.flows[name].kind == "view"}
    named = {} if views else dict(zip(flow.input_names, _read_datasets(graph, layout, flow), strict=True))
    return FlowDatasets(inputs=inputs, outputs=tuple(outputs), results=results, same_columns=same, named=named)


def _read_datasets(graph: Graph, layout: Layout, flow: Flow) -> Iterator[Dataset]:
    declaration = graph.declaration
    for _, name in graph.reads_through_views(flow):
        source = declaration.sources.get(name)
        if source is not None:
            yield topic_dataset(declaration.brokers, source.topic)
        elif (table := declaration.flows[name].table) is not None:
            yield table_dataset(layout.table(declaration.flows[name].zone, table.name))


def _same_columns(graph: Graph, flow: Flow) -> dict[str, str]:
    """Return the columns that a flow without steps passes on. Fields of a record are parts of its value."""
    if flow.steps:
        return {}
    if graph.stores_bytes(flow):
        return {name: name.lstrip("_") for name in RAW_COLUMNS}
    columns = graph.result_columns(flow.name)
    if columns is None:
        return {}
    if graph.decodes(flow) is None:
        return {name: name for name in columns}
    from_raw = flow.input_names[0] in graph.declaration.flows
    own = {"_key": "key"} | {name: name if from_raw else name.lstrip("_") for name in DECODED_COLUMNS if name != "_key"}
    return {name: own.get(name, "value") for name in columns}


class EventBuilder:
    """Builds the events of one pipeline."""

    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        *,
        namespace: str,
        schemas: Mapping[str, Columns],
        engine_version: str,
        own_version: str,
    ) -> None:
        self._declaration: Declaration = graph.declaration
        self._namespace = namespace
        self._schemas = schemas
        self._versions = engine_version, own_version
        stored = [flow for flow in self._declaration.flows.values() if flow.kind != "view"]
        self._datasets = {flow.name: datasets_of(graph, layout, flow) for flow in stored}
        #: the columns of datasets, where they are known
        self._columns: dict[Dataset, Columns] = {}
        for flow in stored:
            datasets = self._datasets[flow.name]
            if flow.table is not None and flow.name in schemas:
                self._columns[datasets.outputs[0]] = schemas[flow.name]
        for source in self._declaration.sources.values():
            if source.columns:
                dataset = topic_dataset(self._declaration.brokers, source.topic)
                self._columns[dataset] = [(column.name, column.type.lower()) for column in source.columns]

    def flow_event(
        self, kind: str, flow: str, run: str, parent: str, *, rows: int = 0, error: str | None = None
    ) -> Event:
        """Return an event of a flow; `run` and `parent` are ids of its run and of that of the pipeline."""
        datasets = self._datasets[flow]
        with_rows = kind in ("RUNNING", "COMPLETE", "FAIL")
        outputs = [
            self._output(flow, datasets, at, rows if with_rows and at < datasets.results else None)
            for at in range(len(datasets.outputs))
        ]
        facets = {
            "processing_engine": _facet(
                "1-1-1/ProcessingEngineRunFacet",
                name="spark", version=self._versions[0], openlineageAdapterVersion=self._versions[1],
            ),
            "parent": _facet(
                "1-2-0/ParentRunFacet",
                run={"runId": parent}, job={"namespace": self._namespace, "name": self._declaration.name},
            ),
        }  # fmt: skip
        job = {
            "namespace": self._namespace,
            "name": f"{self._declaration.name}.{flow}",
            "facets": self._job_facets(self._declaration.flows[flow]),
        }
        inputs = [self._dataset(one) for one in datasets.inputs]
        return _event(kind, run, job, facets, error, inputs=inputs, outputs=outputs)

    def pipeline_event(self, kind: str, run: str, *, error: str | None = None) -> Event:
        """Return an event of the pipeline as a whole."""
        ends = all(self._declaration.trigger_of(flow).ends for flow in self._declaration.flows.values())
        facets: dict[str, Any] = {"jobType": _job_type("BATCH" if ends else "STREAMING", "PIPELINE")}
        if self._declaration.description:
            facets["documentation"] = _facet("1-1-0/DocumentationJobFacet", description=self._declaration.description)
        job = {"namespace": self._namespace, "name": self._declaration.name, "facets": facets}
        return _event(kind, run, job, {}, error, inputs=[], outputs=[])

    def _job_facets(self, flow: Flow) -> dict[str, Any]:
        ends = self._declaration.trigger_of(flow).ends or flow.kind == "materialized_view"
        facets: dict[str, Any] = {"jobType": _job_type("BATCH" if ends else "STREAMING", "FLOW")}
        if flow.description:
            facets["documentation"] = _facet("1-1-0/DocumentationJobFacet", description=flow.description)
        queries = [step.sql.text.strip() for step in flow.steps if isinstance(step, SqlStep)]
        if queries:
            facets["sql"] = _facet("1-1-0/SQLJobFacet", query=";\n".join(queries), dialect="spark")
        return facets

    def _dataset(self, dataset: Dataset, columns: Columns | None = None) -> Event:
        facets: dict[str, Any] = {}
        columns = columns or self._columns.get(dataset)
        if columns:
            fields = [{"name": name, "type": kind} for name, kind in columns]
            facets["schema"] = _facet("1-2-0/SchemaDatasetFacet", fields=fields)
        return {"namespace": dataset.namespace, "name": dataset.name, "facets": facets}

    def _output(self, flow: str, datasets: FlowDatasets, at: int, rows: int | None) -> Event:
        is_result = at < datasets.results
        columns = self._schemas.get(flow) if is_result else None
        output = self._dataset(datasets.outputs[at], columns)
        fields = self._column_lineage(self._declaration.flows[flow], datasets) if is_result else {}
        if fields:
            output["facets"]["columnLineage"] = _facet("1-2-0/ColumnLineageDatasetFacet", fields=fields)
        if rows is not None:
            statistics = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=rows)
            output["outputFacets"] = {"outputStatistics": statistics}
        return output

    def _column_lineage(self, flow: Flow, datasets: FlowDatasets) -> dict[str, Any]:
        """Return the fields of the column lineage facet, for columns whose origin is certain."""
        if datasets.same_columns:
            (source,) = datasets.inputs
            return {
                name: {"inputFields": [_input_field(source, read, _kind_of(name, read))]}
                for name, read in datasets.same_columns.items()
            }
        step = flow.steps[0] if len(flow.steps) == 1 else None
        columns = {name: self._columns.get(dataset) for name, dataset in datasets.named.items()}
        known = {name: [column for column, _ in found] for name, found in columns.items() if found}
        if not isinstance(step, SqlStep) or not known or len(known) != len(flow.input_names):
            return {}
        return {
            name: {
                "inputFields": [
                    _input_field(datasets.named[one.table], one.column, origin.kind) for one in origin.columns
                ]
            }
            for name, origin in column_lineage(step.sql.text, known).items()
        }


@dataclass(slots=True)
class _FlowRun:
    """One start of a flow."""

    id: str
    #: of the flow, when it started
    restarts: int
    rows: int
    #: when the last event was sent
    reported: float


class Observer:
    """Turns the changing status of a run into events. Called from one thread."""

    def __init__(self, builder: EventBuilder, emit: Emit, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._builder = builder
        self._emit = emit
        self._clock = clock
        self._parent = ""
        self._is_ended = False
        #: flows that run, by name
        self._runs: dict[str, _FlowRun] = {}
        #: flows that will not start again
        self._ended: set[str] = set()

    def observe(self, status: RunStatus) -> None:
        """Emit the events for everything that has changed since the last call."""
        if not self._parent:
            self._parent = _run_id(status.run)
            self._emit(self._builder.pipeline_event("START", self._parent))
        for flow in status.flows:
            if flow.name not in self._ended:
                self._observe_flow(flow)
        if status.state == "ended" and not self._is_ended:
            self._is_ended = True
            failed = status.failed
            error = "; ".join(f"{flow.name}: {flow.error}" for flow in failed) if failed else None
            self._emit(self._builder.pipeline_event("FAIL" if failed else "COMPLETE", self._parent, error=error))

    def _observe_flow(self, flow: FlowStatus) -> None:
        run = self._runs.get(flow.name)
        if run is not None and flow.restarts > run.restarts:
            # It has failed since the last call, and may run again already.
            self._send("FAIL", flow, run, flow.error or "the flow has failed")
            del self._runs[flow.name]
            run = None
        if run is None and flow.state in ("running", "done", "failed"):
            run = _FlowRun(str(uuid.uuid4()), flow.restarts, flow.rows if flow.restarts else 0, self._clock())
            self._runs[flow.name] = run
            self._send("START", flow, run)
        if flow.state in ("done", "failed", "stopped"):
            self._ended.add(flow.name)
            if run is not None:
                self._send("FAIL" if flow.state == "failed" else "COMPLETE", flow, run, flow.error)
        elif run is not None and self._clock() - run.reported >= _RUNNING_EVERY_S:
            run.reported = self._clock()
            self._send("RUNNING", flow, run)

    def _send(self, kind: str, flow: FlowStatus, run: _FlowRun, error: str | None = None) -> None:
        rows = flow.rows - run.rows
        error = error if kind == "FAIL" else None
        self._emit(self._builder.flow_event(kind, flow.name, run.id, self._parent, rows=rows, error=error))


def _run_id(run: str) -> str:
    """Return the id of a run as a UUID."""
    try:
        return str(uuid.UUID(run))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, run))


def _event(
    kind: str,
    run: str,
    job: Event,
    run_facets: Event,
    error: str | None,
    *,
    inputs: Iterable[Event],
    outputs: Iterable[Event],
) -> Event:
    facets = dict(run_facets)
    if error is not None:
        facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON")
    return {
        "eventType": kind,
        "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "producer": _PRODUCER,
        "schemaURL": f"{_SPEC}#/$defs/RunEvent",
        "run": {"runId": run, "facets": facets},
        "job": job,
        "inputs": list(inputs),
        "outputs": list(outputs),
    }


def _facet(schema: str, **values: Any) -> Event:
    name = schema.partition("/")[2]
    return {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}", **values}


def _job_type(processing: str, kind: str) -> Event:
    return _facet("2-0-4/JobTypeJobFacet", processingType=processing, integration="OTTLA", jobType=kind)


def _kind_of(name: str, read: str) -> str:
    return "IDENTITY" if read.lstrip("_") == name.lstrip("_") else "TRANSFORMATION"


def _input_field(source: Dataset, read: str, kind: str) -> Event:
    transformations = [{"type": "DIRECT", "subtype": kind}]
    return {"namespace": source.namespace, "name": source.name, "field": read, "transformations": transformations}
