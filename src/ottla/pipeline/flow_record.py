"""What a flow looked like when its checkpoint was last used: a file in the checkpoint, and how to make it.

    CHECKPOINT/ottla-flow.json

The record has the parts of a declaration that decide whether a checkpoint can be used again (`edits`). It is replaced
as a whole before the first batch of a run is written, so that it describes the flow that wrote the newest batch.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.pipeline.declaration import Flow, Framing, PythonStep, RegistrySchema, Source, TableSink
from ottla.pipeline.flow_digest import canonical, code_of, flow_digest
from ottla.pipeline.graph import Graph, decoded_columns
from ottla.pipeline.sql_shape import shape_of
from ottla.spark.source_offsets import batch_ids, read_offset_lines
from ottla.spark.stored_files import list_names, read_file, replace_file

FILE = "ottla-flow.json"
FORMAT = 2
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says of itself."""

    path: str
    #: whether a batch was planned in it
    exists: bool = False
    record: Record | None = None
    #: Spark's names of the operators that keep state
    operators: tuple[str, ...] = ()
    #: the number of shuffle partitions, which Spark fixes with the first batch
    partitions: int | None = None
    #: whether the newest batch was planned and not completed, so that Spark repeats it
    has_unfinished_batch: bool = False


def describe(graph: Graph, flow: Flow) -> Record:
    """Return the record of a flow as it is declared."""
    inputs = list(graph.reads_through_views(flow))
    sources = {name: graph.declaration.sources[name] for _, name in inputs if name in graph.declaration.sources}
    # Also those whose records a raw flow has stored.
    decoded = {source.name: source for reader, name in inputs if (source := graph.decoded_input(reader, name))}
    table = _written_table(graph, flow)
    record = {
        "format": FORMAT,
        "flow": flow.name,
        "version": flow.version,
        "kind": flow.kind,
        "digest": flow_digest(graph, flow),
        "reads": list(_reads(graph, flow)),
        "columns": {name: _columns_read(graph, reader, name) for reader, name in inputs},
        "sources": {name: _describe_source(source) for name, source in (sources | decoded).items()},
        "starting_offsets": {name: canonical(source.starting_offsets) for name, source in sources.items()},
        "watermarks": {name: _watermark(graph, name) for _, name in inputs},
        "decodes": graph.decodes(flow) is not None,
        "steps": _steps(graph, flow),
        "views": {view.name: _describe_view(graph, view) for view in _views(graph, flow)},
        "deduplicate": list(flow.deduplicate),
        "expectations": {one.name: [one.predicate.text, one.on_violation] for one in flow.expectations},
        "second_read": bool(flow.deduplicate and (flow.expectations or (flow.late_rows and not flow.steps))),
        "late_read": bool(flow.late_rows and flow.steps),
        "late_rows": str(flow.late_rows) if flow.late_rows is not None else None,
        "emit": flow.emit,
        "table": _describe_table(*table) if table is not None else None,
        "topics": sorted(sink.topic for sink in flow.topics),
    }
    written = [schema for sink in flow.topics for schema in (sink.registry, sink.key_registry) if schema is not None]
    if written:
        record["sink_schemas"] = [_describe_schema(schema) for schema in written]
    # As it is read back from the file, so that both can be compared.
    read: Record = json.loads(json.dumps(record))
    return read


def read_checkpoint(path: str) -> Checkpoint:
    """Return what is on disk of a checkpoint. Raise OSError if it cannot be read."""
    numbers = batch_ids(f"{path}/offsets")
    if not numbers:
        return Checkpoint(path=path)
    operators = sorted((name for name in list_names(f"{path}/state") if name.isdecimal()), key=int)
    return Checkpoint(
        path=path,
        exists=True,
        record=_read_record(path),
        operators=tuple(_operator(f"{path}/state/{name}/_metadata") for name in operators),
        partitions=_partitions(path, numbers[-1]),
        has_unfinished_batch=numbers[-1] not in batch_ids(f"{path}/commits"),
    )


def write_record(path: str, record: Record) -> None:
    """Replace the record of a checkpoint."""
    replace_file(f"{path}/{FILE}", json.dumps(record, indent=1, sort_keys=True).encode())


class FlowRecorder:
    """Writes the record of a flow into its checkpoint once in a run."""

    def __init__(self, path: str, record: Record) -> None:
        self._path = path
        self._record: Record | None = record

    def write_once(self) -> None:
        """Write the record if this run has not written it yet."""
        if self._record is not None:
            write_record(self._path, self._record)
            self._record = None


def checkpoints_in(directory: str) -> list[str]:
    """Return the names of the checkpoints of a pipeline, such as `orders-v1`."""
    return sorted(name for name in list_names(directory) if not name.startswith("."))


# -- describing -------------------------------------------------------------------------------------------------------


def _columns_read(graph: Graph, reader: Flow, name: str) -> dict[str, str] | None:
    """Return the columns of an input as the flow that reads it sees them: decoded, if it decodes them."""
    source = graph.decoded_input(reader, name)
    return decoded_columns(source) if source is not None else graph.column_types(name)


def _views(graph: Graph, flow: Flow) -> Iterator[Flow]:
    for name in flow.input_names:
        reads = graph.declaration.flows.get(name)
        if reads is not None and reads.kind == "view":
            yield from _views(graph, reads)
            yield reads


def _reads(graph: Graph, flow: Flow) -> Iterator[str]:
    """Yield the streams that a query reads, in its order and as often as it reads them: Spark numbers them so."""
    names: list[str] = []
    own = {name.lower(): name for name in flow.input_names}
    for step in flow.steps:
        read = step.inputs if isinstance(step, PythonStep) else shape_of(step.sql.text).reads
        names += [own[name.lower()] for name in read if name.lower() in own]
    for name in names if flow.steps else flow.input_names:
        source, reads = graph.declaration.sources.get(name), graph.declaration.flows.get(name)
        if source is not None:
            yield f"topic {source.topic}"
        elif reads is not None and reads.kind == "view":
            yield from _reads(graph, reads)
        elif reads is not None and reads.kind == "table":
            table = _written_table(graph, reads)
            yield f"table {table[0]}/{table[1].name}" if table is not None else f"flow {name}"


def _steps(graph: Graph, flow: Flow) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for step in flow.steps:
        if isinstance(step, PythonStep):
            described.append({"python": step.function, "code": _code_digest(code_of(graph, step))})
        else:
            described.append({"sql": shape_of(step.sql.text).as_json()})
    return described


def _code_digest(code: str) -> str:
    """Return a digest of Python code that comments and formatting do not change."""
    try:
        code = ast.dump(ast.parse(code))
    except (SyntaxError, ValueError):
        pass
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _describe_view(graph: Graph, view: Flow) -> dict[str, Any]:
    return {
        "steps": _steps(graph, view),
        "expectations": {one.name: [one.predicate.text, one.on_violation] for one in view.expectations},
        "deduplicate": list(view.deduplicate),
        "watermark": _watermark(graph, view.name),
    }


def _describe_source(source: Source) -> dict[str, Any]:
    return {
        "topic": source.topic,
        "format": source.format,
        "framing": _describe_framing(source.framing),
        "null_values": source.null_values,
        "schema_file": source.schema_file,
        # Records of earlier releases do not have it.
        **({"registry": _describe_schema(source.registry)} if source.registry is not None else {}),
        **({"key_registry": _describe_schema(source.key_registry)} if source.key_registry is not None else {}),
    }


def _describe_schema(schema: RegistrySchema) -> dict[str, Any]:
    return {"subject": schema.subject, "version": schema.pinned.version if schema.pinned is not None else None}


def _describe_framing(framing: Framing | None) -> dict[str, Any] | None:
    if framing is None:
        return None
    return {"ids": {str(number): file for number, file in framing.schema_files.items()}, "any_id": framing.any_id}


def _watermark(graph: Graph, name: str) -> list[Any] | None:
    mark = graph.watermark_of(name)
    return [mark.column, mark.delay_ms] if mark is not None else None


def _written_table(graph: Graph, flow: Flow) -> tuple[str, TableSink] | None:
    """Return the zone and the table that a flow writes."""
    target = graph.declaration.flows.get(flow.target)
    return (target.zone, target.table) if target is not None and target.table is not None else None


def _describe_table(zone: str, table: TableSink) -> dict[str, Any]:
    return {
        "path": f"{zone}/{table.name}",
        "format": table.format,
        "partition_by": [str(one) for one in table.partition_by],
        "keys": list(table.keys),
        "sequence_by": list(table.sequence_by),
        "delete_when": table.delete_when.text if table.delete_when is not None else None,
        "history": table.history,
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_record(path: str) -> Record | None:
    """Return the record of a checkpoint; None if it has none, or one of another format."""
    try:
        record = json.loads(read_file(f"{path}/{FILE}") or b"null")
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("format") == FORMAT else None


def _operator(directory: str) -> str:
    """Return Spark's name of a stateful operator; `state` if its metadata has another form than expected."""
    for name in ("metadata", *(f"v2/{name}" for name in list_names(f"{directory}/v2"))):
        for line in (read_file(f"{directory}/{name}") or b"").splitlines():
            try:
                return str(json.loads(line)["operatorInfo"]["operatorName"])
            except (ValueError, KeyError, TypeError):
                continue
    return "state"


def _partitions(path: str, number: int) -> int | None:
    try:
        return int(json.loads((read_offset_lines(path, number) or [])[1])["conf"]["spark.sql.shuffle.partitions"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None
