"""What a run would do with each flow, from the declaration and from what is on disk. Without Spark.

`ottla pipeline plan` shows it, and `run` and `backfill` refuse to start by the same decisions and with the same words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from deltalake.exceptions import DeltaError

from ottla.pipeline.declaration import Declaration, Flow
from ottla.pipeline.edits import Decision, decide
from ottla.pipeline.flow_record import checkpoints_in, describe, read_checkpoint
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.pinned_schemas import pin_schemas
from ottla.pipeline.problems import StartRefused
from ottla.pipeline.table_fit import schema_problem, table_problem
from ottla.spark.table_commit import schema_of
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import CHANGE_TYPE, Schema

_PARTITIONS = "spark.sql.shuffle.partitions"
_CHECKPOINT = re.compile(r"(.+)-v(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """The decisions for all stored flows, in the order of the graph."""

    decisions: tuple[Decision, ...]
    #: names of flows whose checkpoint is there and that the declaration no longer has
    removed: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[Decision, ...]:
        return tuple(one for one in self.decisions if one.refused)

    def check(self, keep: Collection[str] = ()) -> None:
        """Raise StartRefused if a run must not start. Flows in `keep` continue with their checkpoint nevertheless."""
        refused = [one for one in self.refused if one.flow not in keep or one.plan == "table refuses"]
        if refused:
            raise StartRefused(refused)


def plan_start(declaration: Declaration, backfill: str | None = None) -> StartPlan:
    """Return what a run would do.

    Raise OSError if checkpoints cannot be read, SchemasUnavailable if schemas cannot be fetched from the registry.

    `backfill` is the command that recomputes flows, to be named in remedies.
    """
    declaration = pin_schemas(declaration, continues=True)
    graph, layout = Graph(declaration), Layout.of(declaration)
    stored = [declaration.flows[name] for name in graph.order if declaration.flows[name].kind != "view"]
    command = backfill or f"ottla pipeline backfill {declaration.file}"
    decisions = tuple(_decide(graph, layout, flow, command) for flow in stored)
    names = {flow.name for flow in stored if flow.kind == "table"}
    found = [_CHECKPOINT.fullmatch(one) for one in checkpoints_in(f"{layout.checkpoints}/{layout.pipeline}")]
    removed = {match[1] for match in found if match is not None} - names
    return StartPlan(decisions=decisions, removed=tuple(sorted(removed)))


def check_tables(graph: Graph, layout: Layout, schemas: Mapping[str, Schema]) -> None:
    """Raise StartRefused if a table does not take the rows of its flow, whose columns Spark has found (`schemas`)."""
    command = f"ottla pipeline backfill {graph.declaration.file}"
    flows = (graph.declaration.flows[name] for name in graph.order if name in schemas)
    refused = [one for one in (_check_table(graph, layout, flow, schemas[flow.name], command) for flow in flows) if one]
    if refused:
        raise StartRefused(refused)


def _check_table(graph: Graph, layout: Layout, flow: Flow, rows: Schema, backfill: str) -> Decision | None:
    sink = graph.declaration.flows[flow.target].table
    # A materialized view replaces its table, and parquet files have no schema in common.
    if flow.kind != "table" or sink is None or sink.format != "delta":
        return None
    location = TableLocation.at(layout.table(flow.zone, sink.name))
    try:
        if not location.exists():
            return None
        table = location.table()
    except DeltaError:
        # A damaged table stops the flow with its own message; the other flows run.
        return None
    # The column of a change feed is not in the table.
    fields = [field for field in rows["fields"] if field["name"] != CHANGE_TYPE]
    written = {"type": "struct", "fields": fields}
    problem = schema_problem(sink, written, schema_of(table), table.metadata().partition_columns)
    return None if problem is None else _refused_by_table(flow, f"{flow.zone}/{sink.name}: {problem}", backfill)


def _refused_by_table(flow: Flow, problem: str, backfill: str) -> Decision:
    remedy = f"undo the change, or give the table another name and run '{backfill} {flow.name}'"
    return Decision(flow=flow.name, plan="table refuses", reasons=(problem,), remedy=remedy)


def _decide(graph: Graph, layout: Layout, flow: Flow, backfill: str) -> Decision:
    if flow.kind == "materialized_view":
        return Decision(flow=flow.name, plan="recomputed", reasons=("a materialized view keeps no state",))
    checkpoint = read_checkpoint(layout.checkpoint(flow))
    set_partitions = graph.declaration.spark.get(_PARTITIONS, "")
    partitions = int(set_partitions) if set_partitions.isdecimal() else None
    decision = decide(describe(graph, flow), checkpoint, partitions=partitions, backfill=backfill)
    if decision.plan == "needs a new checkpoint" or flow.table is None or flow.table.format != "delta":
        return decision
    location = TableLocation.at(layout.table(flow.zone, flow.table.name))
    try:
        if not location.exists():
            return decision
        table = location.table()
        problem = table_problem(
            flow.table, graph.column_types(flow.name), schema_of(table), table.metadata().partition_columns
        )
    except DeltaError as error:
        # A damaged table stops the flow with its own message; the other flows run.
        return replace(decision, reasons=(*decision.reasons, f"its table cannot be read: {error}"))
    path = f"{flow.zone}/{flow.table.name}"
    if problem is not None:
        return _refused_by_table(flow, f"{path}: {problem}", backfill)
    if decision.plan == "keeps state" and graph.column_types(flow.name) is None:
        notice = "only Spark knows its columns: run compares them with the table before it starts a flow"
        decision = replace(decision, reasons=(*decision.reasons, notice))
    if decision.plan == "new" and not flow.table.keys and table.file_uris():
        notice = f"the table {path} has rows, which would be in it twice: run '{backfill} {flow.name}'"
        return replace(decision, reasons=(*decision.reasons, notice))
    return decision
