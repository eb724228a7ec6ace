"""Checks of a declaration as a whole: rules of zones and kinds, queries, columns, expectations.

The deep check is Spark's own analysis of every query. The function that DEEP_CHECK names is imported when it is needed,
so that nothing here needs Spark.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import cast

from ottla.model.extras import SPARK, missing
from ottla.pipeline.declaration import PREVIOUS, Declaration, Flow, PythonStep, SqlStep, TableSink, TopicSink
from ottla.pipeline.expectations import check_predicate
from ottla.pipeline.graph import Graph, check_graph
from ottla.pipeline.lineage import lineage_flaws
from ottla.pipeline.problems import Place, Problem, Problems, suggestion
from ottla.pipeline.sql import Query, read_query
from ottla.pipeline.zone_rules import zones_with
from ottla.spark.table_schema import HISTORY_COLUMNS

#: module and function of `validate --deep`
DEEP_CHECK = "ottla.pipeline.analysis:analyse"


class DeepCheckMissing(RuntimeError):
    """Spark is not installed."""


def check_declaration(declaration: Declaration, problems: Problems, unzoned: Collection[str] = ()) -> None:
    """Add everything that is wrong and can be known without Spark. The zones of `unzoned` flows are not known."""
    graph = Graph(declaration, unzoned)
    check_graph(graph, problems)
    for flow in declaration.flows.values():
        if flow.name not in unzoned:
            _Rules(graph, flow, problems).check()
        _StepRules(graph, flow, problems).check()
        _check_columns(graph, flow, problems)


def deep_check(declaration: Declaration) -> tuple[Problem, ...]:
    """Return what Spark finds wrong. Raise DeepCheckMissing if it is not installed."""
    module, _, function = DEEP_CHECK.partition(":")
    try:
        analyse = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise DeepCheckMissing(f"the deep check needs Spark: {missing(str(error.name), SPARK)}") from None
    return tuple(cast(Iterable[Problem], analyse(declaration)))


class _Rules:
    """Checks the rules of a flow's zone and kind."""

    def __init__(self, graph: Graph, flow: Flow, problems: Problems) -> None:
        self._graph = graph
        self._flow = flow
        self._problems = problems

    def check(self) -> None:
        flow = self._flow
        if self._graph.stores_bytes(flow):
            self._check_raw()
        self._check_decoding()
        self._check_zone()
        if flow.kind == "view":
            self._check_view()
        if flow.kind == "materialized_view":
            self._check_materialized_view()
        if (
            len(flow.inputs) > 1
            and not flow.steps
            and not self._graph.stores_bytes(flow)
            and self._graph.decodes(flow) is None
        ):
            self._refuse(
                f"reads {len(flow.inputs)} inputs and does not say what to do with them", "add sql: or python:"
            )
        if flow.append_to is not None and flow.sinks:
            self._refuse("has both 'to' and 'append_to'", "keep one", flow.append_to.place)
        self._check_time()
        self._check_sinks()
        self._check_expectation_names()

    def _check_raw(self) -> None:
        flow = self._flow
        if len(flow.inputs) > 1:
            self._refuse("reads several sources", f"{flow.zone} keeps bytes as received: write one flow per source")
        for what, given in (
            ("steps", flow.steps), ("expectations", flow.expectations), ("'deduplicate'", flow.deduplicate),
            ("a watermark", flow.watermark), ("'quarantine'", flow.quarantine), ("'late_rows'", flow.late_rows),
        ):  # fmt: skip
            if given:
                advice = f"{flow.zone} keeps bytes as received: move that to a later zone"
                self._refuse(f"is in zone {flow.zone} and has {what}", advice)
        if flow.kind != "table":
            self._refuse(f"is in zone {flow.zone} and of kind {flow.kind}", f"remove 'kind': {flow.zone} is a table")

    def _check_decoding(self) -> None:
        flow = self._flow
        source = self._graph.decodes(flow)
        if source is None:
            return
        if len(flow.inputs) > 1 and not flow.steps:
            self._refuse(
                f"decodes {source.name!r} and reads other inputs",
                "add sql: or python:, or decode it in a flow of its own",
            )
        if flow.kind != "table":
            self._refuse(
                f"decodes {source.name!r} and is of kind {flow.kind}", "remove 'kind': what is rejected must be stored"
            )

    def _check_zone(self) -> None:
        """Check the rules of the flow's zone, for zones without bytes."""
        flow, zones = self._flow, self._graph.declaration.zones
        zone = zones[flow.zone]
        if zone.content == "fields" and flow.kind not in zone.kinds:
            others = [one.name for one in zones.values() if flow.kind in one.kinds and one.content == "fields"]
            moved = f", or move it to {' or '.join(others)}" if others else ""
            kind = flow.kind.replace("_", " ")
            self._refuse(f"is a {kind} in {zone.name}", f"write kind: {' or '.join(zone.kinds)}{moved}")
        has = _keys_of(flow)
        for key in zone.forbids:
            if has[key]:
                others = zones_with(zones, key)
                advice = f"move it to a flow of zone {' or '.join(others)}" if others else "remove it"
                self._refuse(f"is in zone {zone.name} and has {key!r}", advice)
        for key in zone.requires:
            if not has[key]:
                self._refuse(f"is in zone {zone.name} and has no {key!r}, which the zone requires", f"add {key}:")

    def _check_view(self) -> None:
        flow = self._flow
        stored = {
            "'to'": flow.sinks,
            "'append_to'": flow.append_to,
            "'late_rows'": flow.late_rows,
            "'trigger'": flow.trigger,
        }
        for what, given in stored.items():
            if given:
                self._refuse(f"is a view and has {what}", "a view stores nothing: remove it, or write kind: table")
        if any(one.on_violation == "quarantine" for one in flow.expectations):
            self._refuse("is a view and puts rows in quarantine", "a view stores nothing: write kind: table")

    def _check_materialized_view(self) -> None:
        flow = self._flow
        for what, given in (
            ("'deduplicate'", flow.deduplicate), ("'late_rows'", flow.late_rows), ("'append_to'", flow.append_to),
            ("a watermark", flow.watermark), ("'emit: changes'", flow.emit == "changes"),
        ):  # fmt: skip
            if given:
                self._refuse(f"is a materialized view and has {what}", "it is computed as a whole: remove that")
        for sink in flow.sinks:
            if isinstance(sink, TopicSink) or sink.keys:
                what = "a topic" if isinstance(sink, TopicSink) else "keys"
                self._refuse(
                    f"is a materialized view and has {what} in 'to'", "it replaces a table: remove that", sink.place
                )
        for name in flow.input_names:
            reads = self._graph.declaration.flows.get(name)
            if reads is not None and reads.kind == "view":
                self._refuse(f"is a materialized view and reads the view {name!r}", f"make {name} a table")

    def _check_time(self) -> None:
        flow = self._flow
        # The watermark of a flow on a cycle is not known; `check_graph` reports the cycle.
        marked = flow.name not in self._graph.order or self._graph.watermark_of(flow.name) is not None
        words = {word for step in flow.steps if isinstance(step, SqlStep) for word in read_query(step.sql.text).words}
        advice = "add watermark: to the source, with a column and a delay"
        if flow.deduplicate and not marked:
            self._refuse("drops duplicates and has no watermark, so it would remember every row for ever", advice)
        if flow.late_rows is not None and not marked:
            self._refuse("has 'late_rows' and no watermark, so nothing is ever late", advice, flow.late_rows.place)
        if flow.kind != "table":
            return
        streams = any(self._is_stream(name) for name in flow.input_names)
        if "GROUP" in words and flow.emit == "final" and not marked and streams:
            self._refuse(
                "aggregates without a watermark, so nothing is ever final", f"{advice}, or write emit: changes"
            )
        if "SESSION_WINDOW" in words and flow.emit == "changes":
            self._refuse("has session windows, which Spark gives once only", "write emit: final")

    def _is_stream(self, name: str) -> bool:
        flow = self._graph.declaration.flows.get(name)
        return flow is None or flow.kind != "materialized_view"

    def _check_sinks(self) -> None:
        flow = self._flow
        tables = [sink for sink in flow.sinks if isinstance(sink, TableSink)]
        if len(tables) > 1:
            self._refuse(
                "has two tables in 'to'", "keep one; another flow can read it and write the other", tables[1].place
            )
        for table in tables:
            if table.format == "parquet" and (table.keys or flow.emit == "changes"):
                self._refuse("merges rows into Parquet, which cannot", "write format: delta", table.place)
            elif flow.emit == "changes" and not table.keys:
                self._refuse("emits changes to a table without keys", "add keys: to the table", table.place)
            elif flow.emit == "changes" and table.history and not table.sequence_by:
                what = "keeps the history of changes, whose rows have no position of a record"
                self._refuse(what, "add sequence_by: COLUMN to the table", table.place)
        for number, topic in enumerate(flow.topics):
            if any(topic.topic == other.topic for other in flow.topics[:number]):
                self._refuse(f"writes topic {topic.topic!r} twice", "remove one", topic.place)
            if topic.key is not None:
                continue
            advice = "add key: COLUMN to the topic"
            if flow.emit == "changes":
                self._refuse("emits changes to a topic without a key", advice, topic.place)
            elif topic.compacted:
                self._refuse("writes a compacted topic without a key", advice, topic.place)
            elif topic.tombstone_when is not None:
                self._refuse("writes tombstones without a key, which delete nothing", advice, topic.place)

    def _check_expectation_names(self) -> None:
        seen: set[str] = set()
        for one in self._flow.expectations:
            if one.name and one.name in seen:
                self._refuse(
                    f"has two expectations named {one.name!r}", "rename one: metrics are kept by name", one.place
                )
            seen.add(one.name)

    def _refuse(self, what: str, instead: str, place: Place | None = None) -> None:
        self._problems.add(place or self._flow.place, f"flow {self._flow.name!r} {what}", instead)


def _keys_of(flow: Flow) -> dict[str, bool]:
    """Return which of `ZONE_FLOW_KEYS` a flow has."""
    has = {
        "description": flow.description,
        "sql": any(isinstance(step, SqlStep) for step in flow.steps),
        "python": any(isinstance(step, PythonStep) for step in flow.steps),
        "expect": flow.expectations,
        "deduplicate": flow.deduplicate,
        "watermark": flow.watermark,
        "late_rows": flow.late_rows,
        "append_to": flow.append_to,
        "trigger": flow.trigger,
        "topic": flow.topics,
    }
    return {key: bool(given) for key, given in has.items()}


class _StepRules:
    """Checks the steps of a flow: that queries parse, and that each step reads names that it has."""

    def __init__(self, graph: Graph, flow: Flow, problems: Problems) -> None:
        self._graph = graph
        self._flow = flow
        self._problems = problems
        #: names that the next step may read, by their lower case
        self._known = {name.lower(): name for name in flow.input_names}
        #: names that steps have read, in lower case
        self._used: set[str] = set()

    def check(self) -> None:
        flow = self._flow
        queries = [read_query(step.sql.text) for step in flow.steps if isinstance(step, SqlStep)]
        for number, step in enumerate(flow.steps):
            if number:
                self._known[PREVIOUS] = PREVIOUS
            if isinstance(step, SqlStep):
                self._check_query(step, read_query(step.sql.text))
            else:
                for name in step.inputs:
                    self._check_name(name, step.place)
            if step.name is not None:
                self._known[step.name.lower()] = step.name
        if not flow.steps or any(query.flaws for query in queries):
            return
        for one in flow.inputs:
            if one.name.lower() not in self._used:
                self._refuse(
                    one.place, f" names {one.name!r} in 'from' and never reads it", "use it in a step, or remove it"
                )
        last = flow.steps[-1]
        if isinstance(last, SqlStep) and queries[-1].drops_lineage:
            inputs = ", ".join(flow.input_names)
            advice = (
                f"select _topic, _partition, _offset, or add lineage_range({inputs}) AS _lineage to an aggregate, "
                f"lineage({inputs}) AS _lineage to a join"
            )
            self._refuse(last.place, ": the rows of this query cannot be traced to their records", advice)

    def _check_query(self, step: SqlStep, query: Query) -> None:
        for flaw in query.flaws or lineage_flaws(step.sql.text):
            self._refuse(step.sql.place_of(flaw.position), f": this SQL does not parse: {flaw.what}", flaw.instead)
        for token in query.tables:
            self._check_name(token.text, step.sql.place_of(token.position))

    def _check_name(self, name: str, place: Place) -> None:
        """Add a problem if a step reads a name that it does not have."""
        declared = {one.lower(): one for one in (*self._graph.declaration.sources, *self._graph.declaration.flows)}
        folded = name.lower()
        self._used.add(folded)
        if folded in self._known:
            return
        if folded in declared:
            what = f" reads {name!r}, which is not in its 'from'"
            self._refuse(place, what, f"add {declared[folded]} to 'from'")
        elif folded == PREVIOUS:
            self._refuse(place, ": there is no step before this one", "read a name from 'from'")
        else:
            advice = suggestion(name, self._known.values(), none="add it to 'from'")
            self._refuse(place, f" reads {name!r}, which is none of its inputs", advice)

    def _refuse(self, place: Place, what: str, instead: str) -> None:
        self._problems.add(place, f"flow {self._flow.name!r}{what}", instead)


def _check_columns(graph: Graph, flow: Flow, problems: Problems) -> None:
    columns = graph.result_columns(flow.name)
    for expectation in flow.expectations:
        check_predicate(expectation.predicate, f"the expectation {expectation.name!r}", columns, problems)
    for sink in flow.sinks:
        key, predicate = (
            ("delete_when", sink.delete_when)
            if isinstance(sink, TableSink)
            else ("tombstone_when", sink.tombstone_when)
        )
        if predicate is not None:
            check_predicate(predicate, f"flow {flow.name!r}: {key}", columns, problems)
    if columns is None:
        return
    for sink in flow.sinks:
        own = HISTORY_COLUMNS if isinstance(sink, TableSink) and sink.history else ()
        for column in sorted({column.lower() for column in columns}.intersection(own)):
            what = f"flow {flow.name!r}: the rows have the column {column!r}, which a table with history adds"
            problems.add(sink.place, what, "rename it")
    check_named_columns(flow, columns, problems)


def check_named_columns(flow: Flow, columns: Collection[str], problems: Problems) -> None:
    """Add a problem for each column that `deduplicate` or a sink names and that the rows of the flow do not have."""
    named = [("deduplicate", column, flow.place) for column in flow.deduplicate]
    for sink in flow.sinks:
        if isinstance(sink, TableSink):
            named += [("partition_by", one.column, sink.place) for one in sink.partition_by]
            named += [("keys", column, sink.place) for column in sink.keys]
            named += [("sequence_by", column, sink.place) for column in sink.sequence_by]
        else:
            named += [("key", column, sink.place) for column in sink.key_columns]
            named += [("value", column, sink.place) for column in sink.value]
    known = {column.lower() for column in columns}
    for key, column, place in named:
        if column.lower() not in known:
            what = f"flow {flow.name!r}: {key} names {column!r}, which is not a column of the rows"
            problems.add(place, what, suggestion(column, columns, none=""))
