"""Backfill: recompute flows from old records and replace the rows that the streams have written.

A backfill first runs all flows to the end of their inputs, so that stream and backfill have read the same. Then each
flow is computed from the beginning by the same plan, into tables that readers do not see. Its rows then replace those
of the range, in one commit per table. Streams skip such commits, because the flows that read the table are recomputed
as well.

The result equals that of the stream, except for late rows: a batch has none, so that rows which were behind the
watermark of the stream are in it.

The range is compared with the time of the record for rows that come from one record; for other rows with the time
by which their table is partitioned, or else with the column of their watermark. A table without any of these is
replaced as a whole.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.model.errors import OttlaError
from ottla.pipeline.analysis import schemas_of
from ottla.pipeline.declaration import Declaration, Flow, Trigger
from ottla.pipeline.flow_runs import Session, refresh_view, start_query
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import Inputs
from ottla.pipeline.lag import EndOffsets
from ottla.pipeline.layout import Layout, partition_name
from ottla.pipeline.lineage import OFFSET, PARTITION, TIMESTAMP
from ottla.pipeline.ownership import Ownership, TakenOver
from ottla.pipeline.pinned_schemas import pin_schemas
from ottla.pipeline.plan import Planner, quoted
from ottla.pipeline.run import Supervisor, ship_code
from ottla.pipeline.status import RunStatus
from ottla.pipeline.zones import TABLE_FORMAT, Batch, Counts, FlowWriter
from ottla.spark.offsets import PartitionOffsets
from ottla.spark.source_offsets import batch_ids, read_source_offsets
from ottla.spark.table_location import TableLocation

Origin = Literal["raw", "log"]

_AVAILABLE_NOW = Trigger(kind="available-now")


class BackfillRefused(OttlaError):
    """The backfill is not possible; the text says what to do first."""


@dataclass(frozen=True, slots=True)
class Range:
    """From `since` up to, not including, `until`; an open end is None."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def everything(self) -> bool:
        return self.since is None and self.until is None

    def holds(self, column: str) -> Column:
        """Return the condition for rows of the range, which is never null. A row without a time is in no range."""
        time = F.col(quoted(column))
        holds = time.isNotNull()
        if self.since is not None:
            holds = holds & (time >= F.lit(self.since))
        if self.until is not None:
            holds = holds & (time < F.lit(self.until))
        return F.coalesce(holds, F.lit(False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The result of a backfill for one table."""

    flow: str
    table: str
    #: rows that have replaced others
    rows: int
    #: None: the table as a whole
    partitions: int | None


class Backfill:
    """One backfill of a pipeline that does not run."""

    def __init__(
        self,
        declaration: Declaration,
        spark: SparkSession,
        *,
        range: Range | None = None,
        flows: Collection[str] = (),
        origin: Origin = "raw",
        show: Callable[[RunStatus], None] | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        declaration = pin_schemas(declaration, continues=True)
        self._declaration = declaration
        self._spark = spark
        self._range = range or Range()
        self._origin = origin
        self._show = show
        #: None: `run` claims the pipeline itself, and gives it up at its end
        self._ownership = ownership
        self._graph = Graph(declaration)
        self._layout = Layout.of(declaration)
        self._scratch = self._layout.scratch(uuid.uuid4().hex)
        self._chosen = choose(self._graph, flows)
        #: flows that failed before the backfill, and flows that read them: their rows are unchanged
        self.left_out: set[str] = set()

    def run(self) -> list[Replaced]:
        """Recompute the chosen flows. Raise AlreadyRunning if a run owns the pipeline."""
        if self._ownership is None:
            with Ownership.of(self._declaration, uuid.uuid4().hex) as self._ownership:
                return self._run()
        return self._run()

    def _run(self) -> list[Replaced]:
        self.left_out = self._catch_up()
        schemas = schemas_of(self._spark, self._graph)
        inputs = Inputs(self._spark, _from_the_beginning(self._declaration), self._layout, schemas)
        session = Session(
            self._spark, self._declaration, self._graph, self._layout, inputs, EndOffsets.of(self._declaration)
        )
        ship_code(session)
        done: list[Replaced] = []
        try:
            for name in self._graph.order:
                if self._ownership is not None and self._ownership.was_replaced:
                    raise TakenOver(self._declaration.name, self._ownership.other)
                flow = self._declaration.flows[name]
                if name not in self._chosen - self.left_out or flow.append_to is not None or flow.table is None:
                    continue
                if flow.kind == "materialized_view":
                    counts = refresh_view(session, flow)
                    done.append(Replaced(flow=name, table=flow.table.name, rows=counts.rows, partitions=None))
                else:
                    done += self._replace(session, flow)
        finally:
            if TableLocation.at(self._scratch.storage).local:
                shutil.rmtree(self._scratch.storage, ignore_errors=True)
        return done

    def _catch_up(self) -> set[str]:
        """Run the chosen flows and their inputs to the end. Return the chosen flows that failures leave out."""
        needed = set(self._chosen)
        for name in reversed(self._graph.order):
            if name in needed:
                needed.update(self._graph.inputs[name])
        supervisor = Supervisor(
            self._declaration, self._spark, trigger=_AVAILABLE_NOW, flows=needed, show=self._show,
            ownership=self._ownership,
        )  # fmt: skip
        left_out = {flow.name for flow in supervisor.run().flows if flow.state != "done"}
        for name in self._graph.order:
            if name in left_out:
                left_out.add(self._declaration.flows[name].target)
            if any(one in left_out for one in self._graph.inputs[name]):
                left_out.add(name)
        return left_out & self._chosen

    def _replace(self, session: Session, flow: Flow) -> Iterator[Replaced]:
        others = (one for one in self._declaration.flows.values() if one is not flow)
        writers = [flow, *(one for one in others if one.target == flow.name)]
        for one in writers:
            self._compute(session, one)
        assert flow.table is not None
        columns = [partition_name(one) for one in flow.table.partition_by]
        yield self._put_in_place(flow, flow.zone, flow.table.name, self._time_of(session, flow), columns)
        for one in writers:
            for directory, side in one.side_outputs:
                if side.table and self._has_table(directory, side.table):
                    yield self._put_in_place(one, directory, side.table, TIMESTAMP, [])

    def _compute(self, session: Session, flow: Flow) -> Counts:
        """Compute a flow from the beginning, into tables of the scratch layout."""
        total = Counts()
        work = Planner(self._spark, self._graph, lambda name: self._read(session, flow, name)).work(flow)
        writer = FlowWriter(self._declaration, self._scratch, flow, work, with_topics=False)

        def write(rows: DataFrame, number: int) -> None:
            total.add(writer.write(rows, Batch(flow.name, number)))

        stream = work.rows.writeStream.foreachBatch(write).queryName(f"backfill-{flow.name}")
        stream = stream.option("checkpointLocation", self._scratch.checkpoint(flow))
        start_query(stream, flow, _AVAILABLE_NOW).awaitTermination()
        return total

    def _read(self, session: Session, flow: Flow, name: str) -> DataFrame:
        reads = self._declaration.flows.get(name)
        if reads is not None and self._graph.stores_bytes(reads) and self._origin == "log":
            rows = self._read_log(session, reads, reads.input_names[0])
        elif reads is None:
            rows = self._read_log(session, flow, name)
        else:
            rows = session.inputs.stream(name)
        if not flow.steps and not flow.deduplicate and not self._range.everything and TIMESTAMP in rows.columns:
            # Each row comes from one record, so records outside of the range are not needed.
            rows = rows.where(self._range.holds(TIMESTAMP))
        return rows

    def _read_log(self, session: Session, reader: Flow, source: str) -> DataFrame:
        """Return the records that the stream has read; later ones are for the stream."""
        offsets = committed_offsets(self._layout.checkpoint(reader))
        topic = self._declaration.sources[source].topic
        read = [
            (F.col(PARTITION) == tp.partition) & (F.col(OFFSET) < offset)
            for tp, offset in offsets.items()
            if tp.topic == topic
        ]
        within = reduce(lambda one, two: one | two, read, F.lit(False))
        return session.inputs.stream(source).where(within)

    def _time_of(self, session: Session, flow: Flow) -> str | None:
        assert flow.table is not None
        columns = {field.name for field in session.inputs.batch(flow.name).schema}
        mark = self._graph.watermark_of(flow.name)
        partition_by = [one.column for one in flow.table.partition_by if one.part is not None]
        wanted = [TIMESTAMP, *partition_by, *([mark.column] if mark is not None else [])]
        return next((name for name in wanted if name in columns), None)

    def _has_table(self, directory: str, table: str) -> bool:
        """Return whether the stream or the backfill has written a table."""
        layouts = (self._layout, self._scratch)
        return any(TableLocation.at(layout.table(directory, table)).exists() for layout in layouts)

    def _put_in_place(
        self, flow: Flow, directory: str, table: str, column: str | None, partition_by: list[str]
    ) -> Replaced:
        """Replace the rows of the range in a table by those of the backfill. `column` has the time of a row."""
        target = TableLocation.at(self._layout.table(directory, table))
        computed = TableLocation.at(self._scratch.table(directory, table))
        if not computed.exists():
            new = self._load(target).limit(0)
        else:
            new = self._load(computed)
        whole = self._range.everything or column is None or not target.exists()
        partitions: int | None = None
        writer_options = {"partitionBy": ",".join(partition_by)}
        if whole:
            rows = new
            writer_options["overwriteSchema"] = "true"
        else:
            assert column is not None
            old = self._load(target)
            new = new.where(self._range.holds(column))
            affected = _affected(old.where(self._range.holds(column)), new, partition_by)
            kept = old.where(~self._range.holds(column))
            if affected is not None:
                partitions = len(affected)
                if not affected:
                    return Replaced(flow=flow.name, table=table, rows=0, partitions=0)
                where = f"`{partition_by[0]}` IN ({', '.join(_literal(value) for value in affected)})"
                kept = kept.where(F.col(quoted(partition_by[0])).isin(*affected))
                writer_options["replaceWhere"] = where
            rows = kept.unionByName(new, allowMissingColumns=True)
        count = new.count()
        rows.write.format(TABLE_FORMAT).mode("overwrite").options(**writer_options).save(target.uri)
        return Replaced(flow=flow.name, table=table, rows=count, partitions=partitions)

    def _load(self, location: TableLocation) -> DataFrame:
        return self._spark.read.format(TABLE_FORMAT).load(location.uri)


def choose(graph: Graph, names: Collection[str]) -> set[str]:
    """Return the flows to recompute: those with these names and all that read them; without names, all but raw flows.

    Raise BackfillRefused for an unknown name.
    """
    flows = graph.declaration.flows
    for name in names:
        if name not in flows:
            raise BackfillRefused(f"there is no flow {name!r}: name one of {', '.join(flows)}")
    chosen = set(names) or {name for name in graph.order if not graph.stores_bytes(flows[name])}
    for name in graph.order:
        if any(one in chosen for one in graph.inputs[name]):
            chosen.add(name)
        if name in chosen:
            chosen.add(flows[name].target)
    # Rows of flows that share a table cannot be distinguished: if one is computed again, so are the others.
    return chosen | {one.name for one in flows.values() if one.target in chosen}


def committed_offsets(checkpoint: str) -> PartitionOffsets:
    """Return the offsets up to which a flow has read its topics, from its checkpoint."""
    completed = batch_ids(f"{checkpoint}/commits")
    if not completed:
        return PartitionOffsets()
    offsets = PartitionOffsets()
    # One line for each input. That of a table has another form; that of an input without rows so far is a dash.
    for line in read_source_offsets(checkpoint, completed[-1]).split("\n"):
        with suppress(ValueError):
            offsets.update(PartitionOffsets.from_json(line))
    return offsets


def _from_the_beginning(declaration: Declaration) -> Declaration:
    sources = {
        name: replace(source, starting_offsets="earliest", max_offsets_per_trigger=None)
        for name, source in declaration.sources.items()
    }
    return replace(declaration, sources=sources)


def _affected(old: DataFrame, new: DataFrame, partition_by: list[str]) -> list[object] | None:
    """Return the values of the first partition column with rows in the range; None if the whole table is rewritten."""
    if not partition_by:
        return None
    name = quoted(partition_by[0])
    found = old.select(name).union(new.select(name)).distinct().collect()
    values: list[object] = sorted((row[0] for row in found if row[0] is not None), key=str)
    return values if len(values) == len(found) else None


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
