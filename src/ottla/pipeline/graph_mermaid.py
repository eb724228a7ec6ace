"""The graph of a pipeline as Mermaid text: a box per source, flow and topic, a frame per zone, rows from left to right.

GitHub, GitLab, many editors and mkdocs draw Mermaid text in Markdown files; `mmdc` makes an SVG or PNG file of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.pipeline.declaration import Declaration, Flow, Source, TopicSink
from ottla.pipeline.duration import format_duration
from ottla.pipeline.graph import Graph

#: characters that Mermaid or HTML would interpret inside of a label, and Mermaid's codes for them
_CODES: Final = {"#": "#35;", "&": "#amp;", "<": "#lt;", ">": "#gt;", '"': "#quot;", "`": "#96;", "\\": "#92;"}


class Box(NamedTuple):
    """A source, flow or topic: its id in the text, its name and details, and the frame around it."""

    id: str
    lines: tuple[str, ...]
    #: a zone, `sources` or `topics`
    frame: str


def draw_mermaid(declaration: Declaration) -> str:
    """Return the graph of a declaration as Mermaid text."""
    return "\n".join(_lines(Graph(declaration))) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    declaration = graph.declaration
    flows = [declaration.flows[name] for name in graph.order]
    # Several flows may write one topic; the first of them says its format.
    topics: dict[str, TopicSink] = {}
    for sink in (sink for flow in flows for sink in flow.topics):
        topics.setdefault(sink.topic, sink)
    ids = {topic: f"topic_{number}" for number, topic in enumerate(topics, 1)}
    boxes = [_source_box(source) for source in declaration.sources.values()]
    boxes += [_flow_box(graph, flow) for flow in flows]
    boxes += [Box(ids[topic], (topic, sink.format), "topics") for topic, sink in topics.items()]
    yield from ("---", f"title: Pipeline {declaration.name}", "---", "flowchart LR")
    yield f"  accTitle: Pipeline {declaration.name}"
    yield f"  accDescr: {_one_line(declaration.description or _described(graph))}"
    for frame in ("sources", *declaration.zones, "topics"):
        inside = [box for box in boxes if box.frame == frame]
        if inside:
            yield f"  subgraph frame_{frame}[{frame}]"
            yield from (f'    {box.id}["{"<br/>".join(map(_label, box.lines))}"]' for box in inside)
            yield "  end"
    for flow in flows:
        yield from (f"  {_id(graph, name)} --> flow_{flow.name}" for name in flow.input_names)
        if flow.append_to is not None:
            yield f"  flow_{flow.name} --> flow_{flow.append_to.name}"
        yield from (f"  flow_{flow.name} --> {ids[sink.topic]}" for sink in flow.topics)
    views = [f"flow_{flow.name}" for flow in flows if flow.kind == "view"]
    if views:
        yield "  classDef view stroke-dasharray: 5 4"
        yield f"  class {','.join(views)} view"


def _id(graph: Graph, name: str) -> str:
    return f"flow_{name}" if name in graph.declaration.flows else f"source_{name}"


def _source_box(source: Source) -> Box:
    mark = source.watermark
    delay = f", watermark {format_duration(mark.delay_ms)}" if mark is not None else ""
    return Box(f"source_{source.name}", (source.name, f"topic {source.topic}", source.format + delay), "sources")


def _flow_box(graph: Graph, flow: Flow) -> Box:
    lines = [flow.name]
    if flow.kind != "table":
        lines.append(flow.kind.replace("_", " "))
    decodes = graph.decodes(flow)
    if decodes is not None:
        lines.append(f"decodes {decodes.format}")
    for noun, members in (("step", flow.steps), ("expectation", flow.expectations)):
        if members:
            lines.append(f"{len(members)} {noun}{'s' if len(members) > 1 else ''}")
    if flow.deduplicate:
        lines.append(f"deduplicates {', '.join(flow.deduplicate)}")
    if flow.append_to is not None:
        lines.append(f"appends to {flow.append_to.name}")
    if flow.table is not None and flow.table.keys:
        lines.append(f"keyed by {', '.join(flow.table.keys)}")
    for words, side in (("rejects to", flow.quarantine), ("late rows to", flow.late_rows)):
        if side is not None and flow.kind != "view":
            lines.append(f"{words} {side.topic or side.table}")
    return Box(f"flow_{flow.name}", tuple(lines), flow.zone)


def _described(graph: Graph) -> str:
    flows = graph.declaration.flows
    reads = "; ".join(f"{name} reads {' and '.join(flows[name].input_names)}" for name in graph.order)
    return f"{len(graph.declaration.sources)} sources and {len(flows)} flows: {reads}."


def _label(text: str) -> str:
    """Return a text that Mermaid draws as it is.

    >>> _label('a "b" <c>')
    'a #quot;b#quot; #lt;c#gt;'
    """
    return "".join(_CODES.get(each, each) for each in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())
