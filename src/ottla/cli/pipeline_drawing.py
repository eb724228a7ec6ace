"""The description of a pipeline: plain data for programs, a tree by zones for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ottla.pipeline.declaration import Declaration, Flow, RegistrySchema, Sink, Source, SqlStep, TableSink
from ottla.pipeline.graph import Graph

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH_ELSEWHERE = 400


def describe(declaration: Declaration) -> dict[str, Any]:
    """Return the declaration with its defaults, the order of its flows, and their source topics."""
    graph = Graph(declaration)
    return {
        "name": declaration.name,
        "description": declaration.description,
        "environment": declaration.environment,
        "parameters": dict(declaration.parameters),
        "brokers": declaration.brokers,
        "storage": declaration.storage,
        "checkpoints": declaration.checkpoints,
        "trigger": str(declaration.trigger),
        "zones": list(declaration.zones),
        "sources": [_describe_source(source) for source in declaration.sources.values()],
        "flows": [_describe_flow(graph, declaration.flows[name]) for name in graph.order],
    }


def draw(picture: Mapping[str, Any]) -> None:
    """Print a tree: the sources, then the flows of each zone."""
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    head = Text.assemble((picture["name"], "bold"), f"  {picture['trigger']}, {picture['brokers']}")
    if picture["environment"]:
        head.append(f", environment {picture['environment']}")
    tree = Tree(head.append(f", tables in {picture['storage']}"), guide_style="dim")
    if picture["parameters"]:
        parameters = tree.add(Text("parameters", style="bold cyan"))
        for name, value in picture["parameters"].items():
            parameters.add(Text.assemble((name, "bold"), f" = {value}"))
    sources = tree.add(Text("sources", style="bold cyan"))
    for source in picture["sources"]:
        sources.add(_source_line(source))
    for zone in picture["zones"]:
        flows = [flow for flow in picture["flows"] if flow["zone"] == zone]
        branch = tree.add(Text(zone, style="bold cyan")) if flows else tree
        for flow in flows:
            kind = "" if flow["kind"] == "table" else f"  ({flow['kind'].replace('_', ' ')})"
            line = Text.assemble((flow["name"], "bold"), f" <- {', '.join(flow['from'])}{kind}")
            leaf = branch.add(line)
            for detail in _flow_lines(flow):
                leaf.add(Text(detail))
    # Wrap lines at the width of a terminal, but not in a file or a pipe.
    Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE).print(tree)


def _subject(schema: RegistrySchema | None) -> str | None:
    return schema.subject if schema is not None else None


def _describe_source(source: Source) -> dict[str, Any]:
    starting = source.starting_offsets
    return {
        "name": source.name,
        "topic": source.topic,
        "format": source.format,
        "columns": {column.name: column.type for column in source.columns},
        "schema_file": source.schema_file,
        "subject": _subject(source.registry),
        "key_format": source.key_format,
        "key_subject": _subject(source.key_registry),
        "starting_offsets": starting.isoformat() if isinstance(starting, datetime) else starting,
        "watermark": str(source.watermark) if source.watermark is not None else None,
    }


def _describe_flow(graph: Graph, flow: Flow) -> dict[str, Any]:
    mark = graph.watermark_of(flow.name)
    decodes = graph.decodes(flow)
    return {
        "name": flow.name,
        "zone": flow.zone,
        "kind": flow.kind,
        "description": flow.description,
        "from": list(flow.input_names),
        "read_by": list(graph.readers_of(flow.name)),
        "topics": [graph.declaration.sources[name].topic for name in graph.sources_of(flow.name)],
        "decodes": decodes.format if decodes is not None else None,
        "steps": [
            {"sql": step.sql.text} if isinstance(step, SqlStep) else {"python": step.function} for step in flow.steps
        ],
        "expect": [
            {"name": one.name, "that": one.predicate.text, "on_violation": one.on_violation}
            for one in flow.expectations
        ],
        "deduplicate": list(flow.deduplicate),
        "watermark": str(mark) if mark is not None else None,
        "emit": flow.emit,
        "to": [_describe_sink(flow, sink) for sink in flow.sinks],
        "append_to": flow.append_to.name if flow.append_to is not None else None,
        "quarantine": str(flow.quarantine) if flow.quarantine is not None else None,
        "late_rows": str(flow.late_rows) if flow.late_rows is not None else None,
        "trigger": str(graph.declaration.trigger_of(flow)),
        "version": flow.version,
    }


def _describe_sink(flow: Flow, sink: Sink) -> dict[str, Any]:
    if isinstance(sink, TableSink):
        return {
            "table": f"{flow.zone}/{sink.name}",
            "format": sink.format,
            "partition_by": [str(one) for one in sink.partition_by],
            "merge_schema": sink.merge_schema,
            "keys": list(sink.keys),
        }
    return {
        "topic": sink.topic,
        "format": sink.format,
        "subject": _subject(sink.registry),
        "key": sink.key,
        "key_format": sink.key_format,
        "key_subject": _subject(sink.key_registry),
        "value": list(sink.value),
        "delivery": sink.delivery,
        "tombstone_when": None if sink.tombstone_when is None else sink.tombstone_when.text,
        "partitions": sink.partitions,
        "config": dict(sink.config),
    }


def _source_line(source: Mapping[str, Any]) -> Text:
    from rich.text import Text

    watermark = f", watermark {source['watermark']}" if source["watermark"] else ""
    subject = f"subject {source['subject']}" if source["subject"] else ""
    fields = ", ".join(source["columns"]) or source["schema_file"] or subject
    key = f"; key {source['key_format']}: subject {source['key_subject']}" if source["key_subject"] else ""
    rest = f" <- topic {source['topic']} ({source['format']}: {fields}{key}){watermark}"
    return Text.assemble((source["name"], "bold"), rest)


def _flow_lines(flow: Mapping[str, Any]) -> Iterator[str]:
    if flow["decodes"]:
        yield f"decodes {flow['decodes']}"
    for step in flow["steps"]:
        yield f"sql {_shortened(step['sql'])}" if "sql" in step else f"python {step['python']}"
    for one in flow["expect"]:
        yield f"expects {one['name']}: {_shortened(one['that'])}, else {one['on_violation']}"
    if flow["deduplicate"]:
        yield f"each {', '.join(flow['deduplicate'])} once within the watermark ({flow['watermark']})"
    if flow["emit"] == "changes":
        yield "emits changes"
    for sink in flow["to"]:
        yield f"-> {_sink_line(sink)}"
    if flow["append_to"]:
        yield f"-> table of {flow['append_to']}"
    if flow["quarantine"]:
        yield f"rejects -> {flow['quarantine']}"
    if flow["late_rows"]:
        yield f"late -> {flow['late_rows']}"


def _sink_line(sink: Mapping[str, Any]) -> str:
    if "topic" in sink:
        columns = sink["key"] if isinstance(sink["key"], str) else ", ".join(sink["key"] or ())
        key = f", key {columns}" if columns else ""
        key += f" as {sink['key_format']}" if sink["key_format"] else ""
        tombstones = f", no value where {sink['tombstone_when']}" if sink["tombstone_when"] else ""
        made = [f"{sink['partitions']} partitions"] if sink["partitions"] else []
        made += [f"{name}={value}" for name, value in sorted(sink["config"].items())]
        as_new = f"; made with {', '.join(made)}" if made else ""
        return f"topic {sink['topic']} ({sink['format']}{key}{tombstones}, {sink['delivery']}{as_new})"
    by = f", by {', '.join(sink['partition_by'])}" if sink["partition_by"] else ""
    keys = f", one row per {', '.join(sink['keys'])}" if sink["keys"] else ""
    return f"table {sink['table']} ({sink['format']}{by}{keys})"


def _shortened(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 70 else f"{words[:67]}..."
