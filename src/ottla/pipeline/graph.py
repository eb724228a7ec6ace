"""Sources and flows as a graph: which flow reads which, their order, and the columns and watermarks of their rows.

Rows go from sources through the zones, and only forward; `zone_rules` says which zones a zone may read. Staging may
read a source itself, because the topic has the same bytes as raw for as long as its retention lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ottla.pipeline.declaration import Declaration, Flow, Input, Source, TableSink, TopicSink, Watermark
from ottla.pipeline.lineage import DECODED_COLUMNS, RAW_COLUMNS, RECORD_COLUMNS, TIMESTAMP
from ottla.pipeline.problems import Place, Problems, suggestion
from ottla.pipeline.zone_rules import SOURCES, Zones, may_decode, may_read
from ottla.spark.table_schema import CHANGE_TYPE, HISTORY_COLUMNS


@dataclass(slots=True)
class Graph:
    """The graph of a declaration. Names in `from` that do not exist have no edge."""

    declaration: Declaration
    #: flows whose zone could not be read; rules that depend on it are not checked
    unzoned: Collection[str] = ()
    #: by flow, the sources and flows whose rows go into it, appended ones included
    inputs: dict[str, tuple[str, ...]] = field(init=False)
    #: the names of each cycle, in the direction of rows; empty in a graph that can run
    cycles: tuple[tuple[str, ...], ...] = field(init=False)
    #: flows, each after everything that it reads; those on a cycle are left out
    order: tuple[str, ...] = field(init=False)
    #: known columns of each flow, with "" for a type that only Spark knows; filled in the order of the graph
    _columns: dict[str, dict[str, str] | None] = field(init=False, default_factory=dict)
    _watermarks: dict[str, Watermark | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        flows = self.declaration.flows
        known = {*self.declaration.sources, *flows}
        appended: dict[str, list[str]] = {}
        for flow in flows.values():
            if flow.append_to is not None:
                appended.setdefault(flow.append_to.name, []).append(flow.name)
        self.inputs = {
            flow.name: tuple(name for name in (*flow.input_names, *appended.get(flow.name, ())) if name in known)
            for flow in flows.values()
        }
        self.order, self.cycles = _sort(self.inputs)
        self._watermarks = {source.name: source.watermark for source in self.declaration.sources.values()}
        for name in self.order:
            of_inputs = (self._watermarks[one] for one in self.inputs[name])
            self._watermarks[name] = flows[name].watermark or next((one for one in of_inputs if one is not None), None)
            self._columns[name] = self._find_columns(flows[name])

    def zone_of(self, name: str) -> str:
        """Return the zone of a flow, or `sources` for a source."""
        flow = self.declaration.flows.get(name)
        return flow.zone if flow is not None else SOURCES

    def stores_bytes(self, flow: Flow) -> bool:
        """Return whether a flow stores records as they were received."""
        return self.declaration.zones[flow.zone].content == "bytes"

    def readers_of(self, name: str) -> tuple[str, ...]:
        return tuple(flow for flow, inputs in self.inputs.items() if name in inputs)

    def sources_of(self, name: str) -> tuple[str, ...]:
        """Return every source whose rows may be in this flow, in the order of the file."""
        above = self.above(name)
        return tuple(source for source in self.declaration.sources if source in above)

    def above(self, *names: str) -> set[str]:
        """Return these flows, and all flows and sources whose rows may be in them."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting.extend(self.inputs.get(one, ()))
        return seen

    def reads_through_views(self, flow: Flow) -> Iterator[tuple[Flow, str]]:
        """Yield the sources and stored flows that a flow reads, directly or by way of views.

        Each comes with the flow that reads it: the flow itself, or a view.
        """
        for name in flow.input_names:
            reads = self.declaration.flows.get(name)
            if reads is not None and reads.kind == "view":
                yield from self.reads_through_views(reads)
            elif reads is not None or name in self.declaration.sources:
                yield flow, name

    def stored_inputs(self, flow: Flow) -> Iterator[str]:
        """Yield the flows whose tables a flow reads, directly or by way of views."""
        return (name for _, name in self.reads_through_views(flow) if name in self.declaration.flows)

    def decodes(self, flow: Flow) -> Source | None:
        """Return the source whose values this flow decodes, the first if there are several; None if there is none."""
        found = (self.decoded_input(flow, name) for name in flow.input_names)
        return next((source for source in found if source is not None), None)

    def decoded_input(self, flow: Flow, name: str) -> Source | None:
        """Return the source whose values a flow decodes when it reads this input; None if it does not decode it."""
        return self.source_of(name) if may_decode(self.declaration.zones, flow.zone) else None

    def source_of(self, name: str) -> Source | None:
        """Return the source whose undecoded records an input has: itself, or that of a raw flow; else None."""
        reads = self.declaration.flows.get(name)
        if reads is not None and self.stores_bytes(reads):
            name = next((one for one in reads.input_names if one in self.declaration.sources), "")
        return self.declaration.sources.get(name)

    def result_columns(self, name: str) -> tuple[str, ...] | None:
        """Return the columns of the rows of a flow; None if they are not certain, because it has steps."""
        columns = self._columns.get(name)
        return None if columns is None else tuple(columns)

    def column_types(self, name: str) -> dict[str, str] | None:
        """Return names and types of the columns of a source or flow, where they are certain without Spark."""
        source = self.declaration.sources.get(name)
        columns = self._columns.get(name) if source is None else decoded_columns(source)
        return None if columns is None or "" in columns.values() else columns

    def watermark_of(self, name: str) -> Watermark | None:
        """Return the watermark of the rows of a source or flow: its own, or the first one of its inputs."""
        return self._watermarks.get(name)

    def _find_columns(self, flow: Flow) -> dict[str, str] | None:
        if flow.steps or flow.name in self.unzoned:
            return None
        if self.stores_bytes(flow):
            return dict(RAW_COLUMNS)
        source = self.decodes(flow)
        if source is not None:
            return decoded_columns(source)
        return self._columns_read(flow.input_names[0]) if len(flow.input_names) == 1 else None

    def _columns_read(self, name: str) -> dict[str, str] | None:
        """Return the columns that readers of a flow get: a keyed table has some that its rows do not have."""
        columns, flow = self._columns.get(name), self.declaration.flows.get(name)
        if columns is None or flow is None:
            return columns
        return {each: columns.get(each, "") for each in stored_columns(flow, tuple(columns))}


def decoded_columns(source: Source) -> dict[str, str] | None:
    """Return names and types of the columns of decoded records; None if only the decoder knows them."""
    if not source.columns:
        return None
    key_type = source.key_type or ("STRING" if source.key_format == "string" else "BINARY")
    return {column.name: column.type for column in source.columns} | DECODED_COLUMNS | {"_key": key_type}


def stored_columns(flow: Flow, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that readers of a flow get, from the columns of its result."""
    if flow.table is None or not flow.table.keys:
        return columns
    # The change type of the input is not that of the keyed table.
    own = tuple(name for name in columns if name != CHANGE_TYPE)
    history = HISTORY_COLUMNS if flow.table.history else ()
    return (*own, *history, *((CHANGE_TYPE,) if flow.table.feeds_deletes else ()))


def sequence_of(sink: TableSink, columns: Collection[str], *, emits_changes: bool) -> tuple[str, ...]:
    """Return the columns that order the rows of one key in a table; empty if the later batch decides.

    After `sequence_by` comes the position of the record, so that two records never tie. Results that change with each
    batch have no position: a later one is newer.
    """
    if emits_changes:
        return sink.sequence_by
    position = (TIMESTAMP, *reversed(RECORD_COLUMNS))
    given = {name.lower() for name in sink.sequence_by}
    return (*sink.sequence_by, *(name for name in position if name in columns and name not in given))


def check_graph(graph: Graph, problems: Problems) -> None:
    """Add a problem for unknown names, duplicate names, cycles, and zones in the wrong order."""
    _check_names(graph, problems)
    _check_outputs(graph, problems)
    _check_topics(graph, problems)
    for cycle in graph.cycles:
        flow = graph.declaration.flows[cycle[-1]]
        drawn = " -> ".join(cycle)
        place = next((one.place for one in flow.inputs if one.name == cycle[-2]), flow.place)
        problems.add(place, f"rows would go around in a cycle: {drawn}", "take one of these names out of a 'from'")
    for flow in graph.declaration.flows.values():
        for one in flow.inputs:
            zoned = flow.name not in graph.unzoned and one.name not in graph.unzoned
            _check_input(graph, flow, one, problems, zoned=zoned)
        _check_append(graph, flow, problems)
        _check_own_topics(graph, flow, problems)
        _check_watermark(graph, flow, problems)
    for source in graph.declaration.sources.values():
        _check_source(graph, source, problems)


def _check_names(graph: Graph, problems: Problems) -> None:
    # SQL ignores the case of names, and so do some file systems.
    seen: dict[str, Source | Flow] = {}
    everything: list[Source | Flow] = [*graph.declaration.sources.values(), *graph.declaration.flows.values()]
    for one in everything:
        first = seen.setdefault(one.name.lower(), one)
        if first is not one:
            kind = "source" if isinstance(first, Source) else "flow"
            what = f"{one.name!r} is also the name of the {kind} in {first.place.seen_from(one.place)}"
            problems.add(one.place, what, f"rename one, for instance to {one.name}_{_zone_word(one)}")
        if one.name.lower() == "previous":
            problems.add(one.place, "'previous' is what steps call the step before", "choose another name")


def _zone_word(one: Source | Flow) -> str:
    return "topic" if isinstance(one, Source) else one.zone


def _check_outputs(graph: Graph, problems: Problems) -> None:
    tables: dict[tuple[str, str], str] = {}
    for flow in graph.declaration.flows.values():
        outputs: list[tuple[str, str, Place]] = [
            (flow.zone, sink.name, sink.place) for sink in flow.sinks if isinstance(sink, TableSink)
        ]
        outputs += [(directory, side.table, side.place) for directory, side in flow.side_outputs if side.table]
        for directory, table, place in outputs:
            first = tables.setdefault((directory, table.lower()), flow.name)
            if first != flow.name:
                what = f"the table {table!r} is already written by flow {first!r}"
                problems.add(place, what, f"rename it, or write append_to: {first} instead of 'to'")


def _check_topics(graph: Graph, problems: Problems) -> None:
    """Add a problem if two flows write a topic with different settings: either of them may create it."""
    written: dict[str, tuple[str, TopicSink]] = {}
    for flow in graph.declaration.flows.values():
        for sink in flow.topics:
            first, other = written.setdefault(sink.topic, (flow.name, sink))
            if (sink.partitions, sink.config) != (other.partitions, other.config):
                what = f"flow {flow.name!r} makes the topic {sink.topic!r} other than flow {first!r} does"
                problems.add(sink.place, what, "write the same 'partitions' and 'config' in both")


def _check_input(graph: Graph, flow: Flow, one: Input, problems: Problems, *, zoned: bool) -> None:
    declaration = graph.declaration
    if one.name not in declaration.sources and one.name not in declaration.flows:
        what = f"flow {flow.name!r} reads {one.name!r}, which is neither a source nor a flow"
        instead = suggestion(one.name, _readable(graph, flow), none="declare a source of that name")
        topic = next((source.name for source in declaration.sources.values() if source.topic == one.name), None)
        problems.add(one.place, what, f"that is a topic; write its source, {topic}" if topic else instead)
        return
    zone = graph.zone_of(one.name)
    if zoned and not may_read(declaration.zones, flow.zone, zone):
        problems.add(one.place, *_zone_violation(declaration.zones, flow, one.name, zone))
    reads = declaration.flows.get(one.name)
    if reads is not None and reads.kind != "view" and reads.table is None and reads.append_to is None:
        what = f"flow {flow.name!r} reads {one.name!r}, which is written to a topic only"
        problems.add(one.place, what, f"add '- table: {one.name}' to its 'to', or read the topic as a source")
    if reads is not None and reads.append_to is not None:
        what = f"flow {flow.name!r} reads {one.name!r}, whose rows go to the table of {reads.append_to.name!r}"
        problems.add(one.place, what, f"read {reads.append_to.name}")


def _readable(graph: Graph, flow: Flow) -> list[str]:
    """Return the names that this flow may read, for suggestions; all names if there are none."""
    names = [*graph.declaration.sources, *(name for name in graph.declaration.flows if name != flow.name)]
    zones = graph.declaration.zones
    return [name for name in names if may_read(zones, flow.zone, graph.zone_of(name))] or names


def _zone_violation(zones: Zones, flow: Flow, name: str, zone: str) -> tuple[str, str]:
    what = f"flow {flow.name!r} is in zone {flow.zone} and reads {name!r} of zone {zone}"
    decoding = next((one for one in zones if may_decode(zones, one)), None)
    if zone == SOURCES:
        what = f"flow {flow.name!r} is in zone {flow.zone} and reads the source {name!r}"
        if decoding is None:
            return what, f"add {SOURCES} to reads_from of a zone"
        return what, f"decode it in a flow of zone {decoding}, and read that"
    if zones[flow.zone].content == "bytes":
        moved = f", or move the flow to {decoding}" if decoding is not None else ""
        return what, f"{flow.zone} keeps what a source gave: read a source{moved}"
    order = list(zones)
    if order.index(zone) > order.index(flow.zone):
        return what, f"rows go forward only: move {flow.name!r} to zone {zone}, or read an earlier flow"
    # The zone of an intermediate flow: one that this zone may read, and that may read the other.
    chain = (one for one in zones[flow.zone].reads_from if one != SOURCES and may_read(zones, one, zone))
    between = next(chain, order[order.index(flow.zone) - 1])
    if between in (zone, flow.zone):
        return what, f"read a flow of zone {' or '.join(zones[flow.zone].reads_from)}"
    return what, f"put a flow of zone {between} in between, and read that"


def _check_append(graph: Graph, flow: Flow, problems: Problems) -> None:
    if flow.append_to is None:
        return
    target = graph.declaration.flows.get(flow.append_to.name)
    place = flow.append_to.place
    if target is None:
        tables = [
            one.name
            for one in graph.declaration.flows.values()
            if one.zone == flow.zone and one.table and one is not flow
        ]
        what = f"flow {flow.name!r} appends to {flow.append_to.name!r}, which is not a flow"
        problems.add(place, what, suggestion(flow.append_to.name, tables, none="declare that flow first"))
    elif target.kind != "table" or target.table is None:
        what = f"flow {flow.name!r} appends to {target.name!r}, which has no table that rows are added to"
        problems.add(place, what, "name a flow of kind table")
    elif target.zone != flow.zone:
        what = f"flow {flow.name!r} of zone {flow.zone} appends to {target.name!r} of zone {target.zone}"
        problems.add(place, what, f"write zone: {target.zone}, or choose another table")


def _check_own_topics(graph: Graph, flow: Flow, problems: Problems) -> None:
    """Add a problem if a flow writes a topic that its own rows come from: a cycle through the broker."""
    written = [(sink.topic, sink.place) for sink in flow.topics]
    written += [(side.topic, side.place) for _, side in flow.side_outputs if side.topic]
    sources = graph.sources_of(flow.name) if written else ()
    topics = {graph.declaration.sources[name].topic: name for name in sources}
    for topic, place in written:
        if topic in topics:
            what = (
                f"rows would go around in a cycle: {topics[topic]} -> {flow.name} -> topic {topic} -> {topics[topic]}"
            )
            problems.add(place, what, "write to another topic")


def _check_watermark(graph: Graph, flow: Flow, problems: Problems) -> None:
    columns = graph.result_columns(flow.name)
    mark = flow.watermark
    if mark is not None and columns is not None and mark.column not in columns:
        what = f"flow {flow.name!r}: the watermark's column {mark.column!r} is not a column of the rows"
        problems.add(mark.place, what, suggestion(mark.column, columns, none="declare a schema first"))


def _check_source(graph: Graph, source: Source, problems: Problems) -> None:
    if not graph.readers_of(source.name):
        problems.add(source.place, f"source {source.name!r} is read by no flow", "add it to a 'from', or remove it")
    mark = source.watermark
    if mark is None or not source.columns or mark.column in ("", TIMESTAMP):
        return
    column = next((one for one in source.columns if one.name == mark.column), None)
    called = f"source {source.name!r}: the watermark's column {mark.column!r}"
    times = [one.name for one in source.columns if one.is_event_time] or [TIMESTAMP]
    if column is None:
        problems.add(mark.place, f"{called} is not in the schema", suggestion(mark.column, times, none=""))
    elif not column.is_event_time:
        advice = f"make it a timestamp, or write {' or '.join(times)}"
        problems.add(mark.place, f"{called} is of type {column.type}", advice)


def _sort(inputs: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the flows, each after its inputs, and the cycles. Flows on a cycle or after one are in no order."""
    waits = {name: {one for one in reads if one in inputs} for name, reads in inputs.items()}
    readers: dict[str, list[str]] = {name: [] for name in inputs}
    for name, reads in waits.items():
        for one in reads:
            readers[one].append(name)
    order = [name for name, reads in waits.items() if not reads]
    for name in order:
        for reader in readers[name]:
            waits[reader].discard(name)
            if not waits[reader]:
                order.append(reader)
    left = {name: tuple(one for one in inputs[name] if waits.get(one)) for name, reads in waits.items() if reads}
    return tuple(order), tuple(_cycles(left))


def _cycles(left: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield one cycle of each group of flows that read each other. `left` has the inputs of flows without an order."""
    visited: set[str] = set()
    for start in left:
        path: dict[str, None] = {}
        name = start
        while name not in path and name not in visited:
            path[name] = None
            name = left[name][0]
        visited.update(path)
        if name in path:
            # The walk went from readers to what they read; rows go the other way.
            walked = list(path)
            around = walked[walked.index(name) :][::-1]
            yield (*around[-1:], *around)
