"""Convert a declaration into a project for Spark Declarative Pipelines (SDP). Pure: text in, text out.

    source                         temporary view of the topic's records
    flow of kind table             streaming table; rejected rows go to a second one, by the negated condition
    flow of kind view              temporary view
    flow of kind materialized_view materialized view
    table with keys                streaming table of all rows, and a materialized view of the newest row of each key
    topic                          sink and an append flow

The functions of a project may not ask Spark for the columns or types of their input, so the text contains everything
that has to be known. `Note` says what a project does not have, or has in another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.pipeline.declaration import (
    PREVIOUS,
    Declaration,
    Flow,
    PythonStep,
    SideOutput,
    Source,
    SqlStep,
    TableSink,
    TopicSink,
    Watermark,
)
from ottla.pipeline.graph import Graph, sequence_of
from ottla.pipeline.lineage import (
    OFFSET,
    PARTITION,
    RECORD_COLUMNS,
    TIMESTAMP,
    TOPIC,
    expand,
)
from ottla.pipeline.sdp.columns import headers_sql, key_sql, lineage_of_query, selects
from ottla.pipeline.sdp.decoding import columns_beside_undecoded, decoded_rows, undecoded_body, view_body
from ottla.pipeline.sdp.formats import ExportedFormats, key_expression
from ottla.pipeline.sdp.module import module_text
from ottla.pipeline.sdp.notes import Note, changed, flow_notes, left_out, pipeline_notes, why_topic_is_left_out
from ottla.pipeline.sdp.text import (
    Names,
    Relation,
    call_lines,
    definition,
    holds,
    identifier,
    list_literal,
    literal,
    mapping_lines,
    sink_definition,
    text_sql,
    with_query,
    word,
)
from ottla.pipeline.source_options import source_options
from ottla.pipeline.sql import read_query

DEFINITIONS: Final = "transformations"
_RAW: Final = (
    "key", "value", "headers", f"topic AS {TOPIC}", f"partition AS {PARTITION}", f"offset AS {OFFSET}",
    f"timestamp AS {TIMESTAMP}", "timestampType AS _timestamp_type",
)  # fmt: skip
_OWN_COLUMNS: Final = 'rows.colRegex("`[^_].*`")'


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What is written: text by path, and files to copy, by path, from paths relative to the declaration."""

    name: str
    files: Mapping[str, str]
    copies: Mapping[str, str]
    notes: tuple[Note, ...]
    #: topics that must exist before a run, because a run does not create them
    topics: tuple[TopicSink | SideOutput, ...]
    #: by flow, the dataset that has its rows
    datasets: Mapping[str, str]


@dataclass(slots=True)
class _Flow:
    """A flow on its way into a project."""

    flow: Flow
    #: computed completely at each run, from all rows of its inputs
    batch: bool
    #: the rows before expectations and deduplication
    rows: Relation | None = None
    #: the same as an expression, if only one definition reads them
    inline: str = ""
    #: which columns have the origin of a row
    lineage: str = ""
    #: what is known of the columns
    columns: tuple[str, ...] | None = None


@dataclass(slots=True)
class Exporter:
    """Converts one declaration."""

    declaration: Declaration
    graph: Graph = field(init=False)
    names: Names = field(init=False)
    #: a dictionary, so that each is there once
    notes: dict[Note, None] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    formats: ExportedFormats = field(init=False)
    modules: set[str] = field(default_factory=set)
    topics: dict[str, TopicSink | SideOutput] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)
    #: flows without a dataset
    left_out: set[str] = field(default_factory=set)
    #: by flow, the columns with the origin of its rows: `record`, `lineage`, or nothing certain
    lineage: dict[str, str] = field(default_factory=dict)
    #: names of temporary views by flow or source, and by whether they are computed from all rows
    views: dict[tuple[str, bool], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = Graph(self.declaration)
        self.formats = ExportedFormats(self.declaration)
        self.names = Names({name.lower() for name in (*self.declaration.sources, *self.declaration.flows)})

    def export(self) -> Project:
        modes = self._modes()
        for source in self.declaration.sources.values():
            self.lineage[source.name] = "record"
            for batch in sorted(modes[source.name]):
                self._source(source, batch)
        for name in self.graph.order:
            flow = self.declaration.flows[name]
            why = self._obstacle(flow)
            if why is not None:
                self.left_out.add(name)
                self._note(left_out(flow.place, f"flow {name!r}", why))
                for appended in self._appended_flows(flow):
                    why = f"it appends to {name!r}, which is not exported"
                    self._note(left_out(appended.place, f"flow {appended.name!r}", why))
                continue
            for batch in sorted(modes[name]) if flow.kind == "view" else (self._is_batch(flow),):
                self._flow(flow, batch)
        self._note(*pipeline_notes(self.declaration))
        for name in sorted(self.modules):
            self.formats.copies[f"modules/{name.partition('.')[0]}.py"] = f"{name.partition('.')[0]}.py"
        text = module_text(self.declaration, self.text, self.formats.constants, self.modules)
        return Project(
            name=self.declaration.name,
            files={f"{DEFINITIONS}/{word(self.declaration.name)}.py": text},
            copies=self.formats.copies,
            notes=tuple(sorted(self.notes)),
            topics=tuple(self.topics.values()),
            datasets=self.datasets,
        )

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _is_batch(self, flow: Flow) -> bool:
        return flow.kind == "materialized_view" or flow.emit == "changes"

    def _modes(self) -> dict[str, set[bool]]:
        """Return, for sources and views, whether readers want a stream (False), all rows (True), or both."""
        modes: dict[str, set[bool]] = {name: set() for name in (*self.declaration.sources, *self.declaration.flows)}
        for name in reversed(self.graph.order):
            flow = self.declaration.flows[name]
            own = (modes[name] or {False}) if flow.kind == "view" else {self._is_batch(flow)}
            modes[name] = own
            for one in flow.input_names:
                if one in self.declaration.sources or self.declaration.flows[one].kind == "view":
                    modes[one] |= own
        return modes

    def _obstacle(self, flow: Flow) -> str | None:
        """Return why a flow cannot be exported; None if it can."""
        missing = next((name for name in flow.input_names if name in self.left_out), None)
        if missing is not None:
            return f"it reads {missing!r}, which is not exported"
        batch = self._is_batch(flow)
        for name in flow.input_names:
            reads = self.declaration.flows.get(name)
            if reads is not None and not batch and _is_keyed(reads) and flow.kind != "view":
                return f"it reads the changes of the keyed table {name!r}, and a materialized view has no change feed"
        if flow.emit == "changes" and flow.table is None:
            return "it writes each change of a result to a topic, and streams of SDP have no update mode"
        if flow.append_to is not None and batch:
            return "it appends the changes of a result, and streams of SDP have no update mode"
        if not batch and flow.kind == "table" and not any(map(self._is_stream, flow.input_names)):
            return "it reads no stream; declare it with kind: materialized_view"
        table = flow.table
        if table is not None and table.keys and flow.emit == "final" and not batch and not self._sequence(flow):
            return "its keyed table has no sequence, and SDP does not keep the order of batches; add sequence_by"
        return None

    def _is_stream(self, name: str) -> bool:
        flow = self.declaration.flows.get(name)
        if flow is None:
            return True
        if flow.kind == "view":
            return any(map(self._is_stream, flow.input_names))
        return not self._is_batch(flow) and not _is_keyed(flow)

    def _sequence(self, flow: Flow) -> tuple[str, ...]:
        """Return the columns that order the rows of one key: as in a keyed table."""
        assert flow.table is not None, "rows have a sequence in a keyed table only"
        columns = (TIMESTAMP, *RECORD_COLUMNS) if self._lineage_of(flow) == "record" else ()
        return sequence_of(flow.table, columns, emits_changes=False)

    def _lineage_of(self, flow: Flow) -> str:
        """Return which columns with the origin of its rows a flow surely has: `record`, `lineage`, or nothing."""
        inputs = {self.lineage.get(name, "") for name in flow.input_names}
        known = inputs.pop() if len(inputs) == 1 else ""
        for step in flow.steps:
            known = lineage_of_query(step.sql.text, known) if isinstance(step, SqlStep) else ""
        return known

    # -- sources ------------------------------------------------------------------------------------------------------

    def _source(self, source: Source, batch: bool) -> None:
        name = self._view_name(source.name, batch)
        options = source_options(self.declaration, source, stream=not batch)
        reader = f'spark.{"read" if batch else "readStream"}.format("ottla")'
        body = [
            mapping_lines("options", options),
            f"records = {reader}.options(**CLUSTER, **options).load()",
            "return " + call_lines("records", ".selectExpr", map(literal, _RAW)),
        ]
        comment = {"comment": literal(source.description or f"Records of the topic {source.topic}")}
        self.text.append(definition("temporary_view", name, body, comment))

    def _view_name(self, name: str, batch: bool) -> str:
        """Return the name of a temporary view; the second of two gets a name of its own."""
        if (name, batch) not in self.views:
            is_first = (name, not batch) not in self.views
            self.views[name, batch] = name if is_first else self.names.unique(f"{name}_all" if batch else f"{name}_new")
        return self.views[name, batch]

    # -- flows --------------------------------------------------------------------------------------------------------

    def _flow(self, flow: Flow, batch: bool) -> None:
        self._note(*flow_notes(flow, self._all_rows(flow)))
        # A raw flow has the columns of records, but under other names than decoded rows.
        self.lineage[flow.name] = self._lineage_of(flow)
        work = _Flow(flow, batch, lineage=self.lineage[flow.name], columns=self.graph.result_columns(flow.name))
        undecoded = list(self._base(work))
        body = self._accepted(work)
        self._dataset(work, body)
        self._quarantine(work, undecoded)
        if not batch and flow.kind == "table":
            for sink in flow.topics:
                self._topic(work, sink)

    def _base(self, work: _Flow) -> Iterator[Relation]:
        """Find the rows before expectations. Yield views that contain records which could not be decoded."""
        flow = work.flow
        inputs = {name: self._input(flow, name, work.batch) for name in flow.input_names}
        source = self.graph.decodes(flow)
        if source is None and not flow.steps:
            rows = inputs[flow.input_names[0]]
            work.rows = replace(rows, watermark=flow.watermark or rows.watermark) if flow.deduplicate else rows
            return
        if source is not None and not flow.steps:
            view = self._decoded(flow, source, inputs[flow.input_names[0]])
            mark = self.graph.watermark_of(flow.name) if flow.deduplicate else None
            work.rows = decoded_rows(view, mark)
            yield view
            return
        for name in tuple(inputs):
            decoded = self.graph.decoded_input(flow, name)
            if decoded is not None:
                view = self._decoded(flow, decoded, inputs[name])
                inputs[name] = decoded_rows(view, decoded.watermark)
                yield view
        self._steps(work, inputs)

    def _input(self, flow: Flow, name: str, batch: bool) -> Relation:
        """Return the rows of an input, with a watermark if an operator of the flow may use one."""
        reads = self.declaration.flows.get(name)
        needed = bool(flow.steps or flow.deduplicate)
        mark = self._watermark(name) if needed else None
        if reads is None or reads.kind == "view":
            is_stream = not batch and self._is_stream(name)
            return Relation(name=self.views[name, batch], streaming=is_stream, watermark=mark if reads else None)
        return Relation(name=self.datasets[name], streaming=not batch and self._is_stream(name), watermark=mark)

    def _watermark(self, name: str) -> Watermark | None:
        """Return the watermark of a flow's rows, if they surely have its column."""
        mark = self.graph.watermark_of(name)
        flow = self.declaration.flows.get(name)
        if flow is not None and self.graph.stores_bytes(flow):
            return None
        if mark is None or flow is None or mark is flow.watermark:
            return mark
        columns = self.graph.result_columns(name)
        if columns is not None:
            return mark if mark.column.lower() in {one.lower() for one in columns} else None
        last = flow.steps[-1] if flow.steps else None
        if isinstance(last, SqlStep):
            return mark if selects(last.sql.text, mark.column) else None
        return None if last is not None else self._watermark(flow.input_names[0])

    def _decoded(self, flow: Flow, source: Source, records: Relation) -> Relation:
        """Define a view of decoded records, in which `__cause` says why a record could not be decoded."""
        name = self.names.unique(f"{flow.name}_decoded" if not flow.steps else f"{flow.name}_{source.name}_decoded")
        body = view_body(source, records, self.formats)
        self.text.append(definition("temporary_view", name, body))
        return Relation(name=name, streaming=records.streaming)

    def _steps(self, work: _Flow, inputs: Mapping[str, Relation]) -> None:
        """Define a view for each step but the last, whose rows are those of the flow."""
        flow, known = work.flow, dict(inputs)
        streaming = any(relation.streaming for relation in inputs.values())
        for number, step in enumerate(flow.steps, 1):
            expression = self._query(step, known) if isinstance(step, SqlStep) else self._call(step, known)
            if number == len(flow.steps) and self._is_read_once(flow):
                work.inline = expression
                return
            last = number == len(flow.steps)
            view = self.names.unique(f"{flow.name}_result" if last else f"{flow.name}_step_{number}")
            # Table and quarantine read the same stored rows: two computations could disagree about a row that is late
            # for one of them, or about a joined view that has changed in between.
            stored = last and not work.batch and _quarantines(flow) and flow.kind != "view"
            self.text.append(definition("table" if stored else "temporary_view", view, [f"return {expression}"]))
            result = Relation(name=view, streaming=streaming)
            known[PREVIOUS] = result
            if step.name is not None:
                known[step.name] = result
            if last:
                mark = flow.watermark if flow.deduplicate else None
                work.rows = replace(result, watermark=mark)

    def _is_read_once(self, flow: Flow) -> bool:
        """Return whether only one definition reads the result of the steps, and needs no watermark of its own."""
        return not _quarantines(flow) and not (flow.deduplicate and flow.watermark is not None)

    def _query(self, step: SqlStep, known: Mapping[str, Relation]) -> str:
        query = expand(step.sql.text.strip().rstrip(";").rstrip()).text
        named: dict[str, str] = {}
        for token in read_query(query).tables:
            relation = next((one for name, one in known.items() if name.lower() == token.text.lower()), None)
            if relation is not None and relation.sql != f"SELECT * FROM {token.text}":
                named[token.text.lower()] = relation.sql
        return f"spark.sql({literal(with_query(named, query))})"

    def _call(self, step: PythonStep, known: Mapping[str, Relation]) -> str:
        module, _, name = step.function.partition(":")
        self.modules.add(module)
        return f"_{module.replace('.', '_')}.{name}({', '.join(known[one].python for one in step.inputs)})"

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _accepted(self, work: _Flow) -> list[str]:
        """Return the statements that compute the rows of the flow."""
        flow = work.flow
        lines = [f"rows = {work.inline or (work.rows.python if work.rows else '')}"]
        for one in flow.expectations:
            if one.on_violation == "fail":
                failed = text_sql(f"an expectation with on_violation: fail does not hold: {one.name}")
                condition = f"CASE WHEN {holds(one.predicate.text)} THEN true ELSE raise_error({failed}) END"
                lines.append(f"rows = rows.where({literal(condition)})")
        for one in flow.expectations:
            if one.on_violation in ("drop", "quarantine"):
                lines.append(f"rows = rows.where({literal(holds(one.predicate.text))})")
        if flow.deduplicate:
            operator = "dropDuplicates" if work.batch else "dropDuplicatesWithinWatermark"
            lines.append(f"rows = rows.{operator}({list_literal(flow.deduplicate)})")
        for appended in self._appended_flows(flow):
            if appended.name not in self.left_out:
                # One query for all: two queries that write one Parquet table overwrite each other's commits.
                relation = Relation(name=self.datasets[appended.name], streaming=True)
                lines.append(f"rows = rows.unionByName({relation.python})")
        lines[-1] = lines[-1].replace("rows = ", "return ", 1)
        return lines

    def _appended_flows(self, flow: Flow) -> list[Flow]:
        """Return the flows whose rows go to the table of this one."""
        return [one for one in self.declaration.flows.values() if one.target == flow.name != one.name]

    def _dataset(self, work: _Flow, body: list[str]) -> None:
        """Define the dataset with the rows of a flow."""
        flow, arguments = work.flow, {}
        if flow.description:
            arguments["comment"] = literal(flow.description)
        if flow.kind == "view" or flow.table is None:
            name = self._view_name(flow.name, work.batch)
            self.datasets[flow.name] = name
            # Several topics get the same rows only if the rows are computed once. The table that rows of a flow with
            # `append_to` go to reads this view.
            stored = flow.kind == "table" and len(flow.sinks) > 1 and bool(flow.steps or flow.deduplicate)
            self.text.append(definition("table" if stored else "temporary_view", name, body, arguments))
            return
        table = flow.table
        assert table is not None, "a flow that is stored has a table"
        self.datasets[flow.name] = flow.name
        if work.batch:
            self.text.append(definition("materialized_view", flow.name, body, arguments))
        elif table.keys:
            self.text.append(definition("table", self._all_rows(flow), body, arguments))
            self._newest(flow, table)
        else:
            self.text.append(definition("table", flow.name, body, arguments))
        for other in (sink for sink in flow.sinks if isinstance(sink, TableSink) and sink is not table):
            what = f"flow {flow.name!r}: its second table {other.name!r}"
            self._note(left_out(other.place, what, f"it has the rows of {flow.name!r}"))

    def _all_rows(self, flow: Flow) -> str:
        """Return the streaming table that rows of a flow are appended to."""
        if not _is_keyed(flow) or self._is_batch(flow):
            return flow.name
        key = (f"{flow.name}\0rows", False)
        if key not in self.views:
            self.views[key] = self.names.unique(f"{flow.name}_rows")
        return self.views[key]

    def _newest(self, flow: Flow, table: TableSink) -> None:
        """Define a materialized view with the newest row of each key, or with all versions."""
        keys = ", ".join(map(identifier, table.keys))
        sequence = self._sequence(flow)
        rows = self._all_rows(flow)
        deleted = holds(table.delete_when.text) if table.delete_when is not None else ""
        if table.history:
            first = identifier(sequence[0])
            order = ", ".join(map(identifier, sequence))
            marks = f", {deleted} AS __deleted" if deleted else ""
            query = (
                f"SELECT *, {first} AS valid_from, lead({first}) OVER versions AS valid_to,\n"
                f"    lead(true) OVER versions IS NULL AS is_current{marks}\n"
                f"FROM {rows}\nWINDOW versions AS (PARTITION BY {keys} ORDER BY {order})"
            )
            if deleted:
                query = f"SELECT * EXCEPT (__deleted) FROM (\n{query}\n)\nWHERE NOT __deleted"
        else:
            order = ", ".join(f"{identifier(name)} DESC" for name in sequence)
            query = (
                f"SELECT * EXCEPT (__rank) FROM (\n"
                f"    SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS __rank FROM {rows}\n)\n"
                f"WHERE __rank = 1" + (f" AND NOT {deleted}" if deleted else "")
            )
        arguments = {"comment": literal(flow.description)} if flow.description else {}
        self.text.append(definition("materialized_view", flow.name, [f"return spark.sql({literal(query)})"], arguments))

    def _quarantine(self, work: _Flow, undecoded: Iterable[Relation]) -> None:
        """Define the quarantine of a flow: rows and records that the flow itself does not have."""
        flow = work.flow
        if flow.quarantine is None or flow.kind == "view":
            return
        parts = [(f"{view.name}_failed", undecoded_body(view)) for view in undecoded]
        refused = [one for one in flow.expectations if one.on_violation == "quarantine"]
        if refused and work.rows is not None:
            each = [f"CASE WHEN NOT {holds(one.predicate.text)} THEN {text_sql(one.name)} END" for one in refused]
            accepted = " AND ".join(holds(one.predicate.text) for one in refused)
            # The second definition computes its rows alone and drops no duplicates, so it needs no watermark.
            rows = replace(work.rows, watermark=None).python
            row = columns_beside_undecoded(have_position=work.lineage == "record") if parts else ("*",)
            cause = f"concat_ws('; ', {', '.join(each)}) AS _cause"
            columns = [literal(text) for text in (cause, *row)]
            body = [f"rows = {rows}", f"rows = rows.where({literal(f'NOT ({accepted})')})"]
            parts.append((f"{flow.name}_refused", [*body, "return " + call_lines("rows", ".selectExpr", columns)]))
        if parts:
            self._side(flow, flow.quarantine, parts, batch=work.batch)

    def _side(self, flow: Flow, side: SideOutput, parts: list[tuple[str, list[str]]], *, batch: bool) -> None:
        """Define a quarantine of one or several queries."""
        body = parts[0][1]
        if len(parts) > 1:
            views = [self.names.unique(part) for part, _ in parts]
            for view, (_, lines) in zip(views, parts, strict=True):
                self.text.append(definition("temporary_view", view, lines))
            first, *others = (Relation(name=view, streaming=not batch).python for view in views)
            body = ["return " + first + "".join(f".unionByName({one})" for one in others)]
        if side.table:
            name = self.names.unique(side.table)
            self.text.append(definition("materialized_view" if batch else "table", name, body))
            return
        self.topics.setdefault(side.topic or "", side)
        target = self._sink(f"{flow.name}_quarantine", side.topic or "", "exactly-once")
        header = "array(named_struct('key', '_cause', 'value', CAST(_cause AS BINARY))) AS headers"
        body = [*body[:-1], body[-1].replace("return ", "rows = ", 1)]
        body.append(f"return rows.selectExpr({literal('to_json(struct(*)) AS value')}, {literal(header)})")
        name = self.names.unique(f"write_{target}")
        self.text.append(definition("append_flow", name, body, {"target": literal(target)}))

    def _sink(self, base: str, topic: str, delivery: str) -> str:
        name = self.names.unique(f"{base}_to_{word(topic)}")
        options = {"topic": topic} | ({"ottla.delivery": delivery} if delivery != "exactly-once" else {})
        inner = ", ".join(f"{literal(key)}: {literal(value)}" for key, value in options.items())
        self.text.append(sink_definition(name, "ottla", f"{{**CLUSTER, {inner}}}"))
        return name

    def _topic(self, work: _Flow, sink: TopicSink) -> None:
        """Define a sink and the flow that writes the rows of a flow to it."""
        flow = work.flow
        names = sink.value or tuple(name for name in work.columns or () if not name.startswith("_"))
        why = why_topic_is_left_out(sink, names)
        if why is not None:
            self._note(left_out(sink.place, f"flow {flow.name!r}: the topic {sink.topic!r}", why))
            return
        self.topics.setdefault(sink.topic, sink)
        target = self._sink(flow.name, sink.topic, sink.delivery)
        dataset = self._all_rows(flow) if flow.table is not None else self.datasets[flow.name]
        body = [f"rows = {Relation(name=dataset, streaming=True).python}"]
        value = self._value(sink, names, target, body)
        if sink.tombstone_when is not None:
            value = f"CASE WHEN NOT {holds(sink.tombstone_when.text)} THEN {value} END"
        shown = []
        if sink.key_registry is not None:
            body.append(
                f"rows = formats.encode_column(rows, {self.formats.key(target, sink)}, {key_expression(sink)}, "
                f'into="__key")'
            )
            shown = ["__key AS key"]
        elif isinstance(sink.key, str):
            shown = [f"{key_sql(sink.key)} AS key"]
        shown.append(f"{value} AS value")
        if work.lineage:
            shown.append(f"{headers_sql(work.lineage)} AS headers")
        else:
            what = f"flow {flow.name!r}: headers with the lineage in {sink.topic!r}"
            self._note(changed(sink.place, what, "it is not certain which columns have it; name them in the query"))
        body.append("return " + call_lines("rows", ".selectExpr", map(literal, shown)))
        name = self.names.unique(f"write_{target}")
        self.text.append(definition("append_flow", name, body, {"target": literal(target)}))

    def _value(self, sink: TopicSink, names: tuple[str, ...], target: str, body: list[str]) -> str:
        """Return the SQL expression of the values of a sink. Add the statements that it needs to `body`."""
        if sink.format in ("bytes", "string"):
            return f"CAST({identifier(names[0])} AS BINARY)"
        if sink.format != "json" or sink.schema_id is not None or sink.registry is not None:
            constant, columns = self.formats.value(target, sink), list_literal(names)
            body.append(f'rows = formats.encode(rows, {constant}, columns={columns}, into="__value")')
        elif names:
            return f"to_json(struct({', '.join(map(identifier, names))}))"
        else:
            body.append(f'rows = rows.withColumn("__value", F.to_json(F.struct({_OWN_COLUMNS})))')
        return "__value"

    def _note(self, *notes: Note) -> None:
        self.notes.update(dict.fromkeys(notes))


def export(declaration: Declaration) -> Project:
    """Return the project of a declaration, and notes about what it does not have."""
    return Exporter(declaration).export()


def _quarantines(flow: Flow) -> bool:
    return any(one.on_violation == "quarantine" for one in flow.expectations)


def _is_keyed(flow: Flow) -> bool:
    return flow.table is not None and bool(flow.table.keys)
