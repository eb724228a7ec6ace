"""The graph of a pipeline as SVG: zones as columns, one colour per zone, in light and in dark mode.

The file needs nothing else: no script, no font, no other file. Its text is set in a monospaced font, whose characters
are all equally wide, so that the width of a box is known without a font. Longer texts are cut.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from ottla.pipeline.declaration import Declaration, Flow, Source, TableSink, TopicSink
from ottla.pipeline.duration import format_duration
from ottla.pipeline.graph import Graph
from ottla.pipeline.graph_layout import Box, Layout, Size, lay_out

#: of a character in a monospaced font, in parts of the font size. The widest common one has 0.603, which some viewers
#: round up to whole pixels: 7 of 11
_CHARACTER_WIDTH: Final = 0.64
_NAME_SIZE: Final = 13
_DETAIL_SIZE: Final = 11
_LINE_HEIGHT: Final = 16
_PADDING: Final = 12
_NAME_CHARACTERS_MAX: Final = 40
_DETAIL_CHARACTERS_MAX: Final = 46
_COLUMN_WIDTH_MIN: Final = 150
_MARGIN: Final = 24
_HEAD: Final = 56
_ZONE_HEAD: Final = 38
_ZONE_PADDING: Final = 14
_COLUMN_GAP: Final = 64

#: (border and heading, filling) in light mode, then in dark mode
_SOURCE_COLOURS = (("#57606a", "#eef1f4"), ("#9aa4ae", "#1f252b"))
_ZONE_COLOURS = (
    (("#8a5a1a", "#fbf1e1"), ("#d9a860", "#2c2416")),
    (("#1f5fa8", "#e8f1fb"), ("#79b0ee", "#16263a")),
    (("#1d7a45", "#e6f5ec"), ("#6fce97", "#14291d")),
    (("#7a3fa0", "#f4ebfa"), ("#c79be8", "#2a1b36")),
    (("#a33a3a", "#fbeaea"), ("#ee9a9a", "#351a1a")),
    (("#0f7480", "#e2f5f6"), ("#62cdd8", "#10292c")),
)


@dataclass(frozen=True, slots=True)
class Node:
    """A box: a name and lines of details, in a group (a zone, `sources` or `topics`)."""

    id: str
    name: str
    details: tuple[str, ...]
    group: str
    #: a view stores nothing and is drawn with a dashed border
    stored: bool = True

    @property
    def size(self) -> tuple[float, float]:
        width = max(
            _text_width(self.name, _NAME_SIZE), *(_text_width(one, _DETAIL_SIZE) for one in ("", *self.details))
        )
        height = _PADDING * 2 + _NAME_SIZE + _LINE_HEIGHT * len(self.details)
        return max(width + 2 * _PADDING, _COLUMN_WIDTH_MIN), float(height)


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: the boxes, the edges, and the groups from left to right with their columns."""

    title: str
    description: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    columns: dict[str, int]
    groups: tuple[str, ...]


def draw_svg(declaration: Declaration) -> str:
    """Return the graph of a declaration as an SVG document."""
    picture = picture_of(declaration)
    layout = layout_of(picture)
    return "\n".join(_document(picture, layout)) + "\n"


def picture_of(declaration: Declaration) -> Picture:
    """Return what is drawn of a declaration."""
    graph = Graph(declaration)
    nodes = [_source_node(source) for source in declaration.sources.values()]
    nodes += [_flow_node(graph, declaration.flows[name]) for name in graph.order]
    edges = [(_id(graph, one), f"flow:{name}") for name in graph.order for one in declaration.flows[name].input_names]
    for name in graph.order:
        flow = declaration.flows[name]
        if flow.append_to is not None:
            # Rows go to the table of the other flow, not through its steps; the order of columns is the same.
            edges.append((f"flow:{name}", f"flow:{flow.append_to.name}"))
        for sink in flow.sinks:
            if isinstance(sink, TopicSink):
                node = Node(f"topic:{sink.topic}", _cut(sink.topic, _NAME_CHARACTERS_MAX), (sink.format,), "topics")
                nodes += [node] if node.id not in {one.id for one in nodes} else []
                edges.append((f"flow:{name}", node.id))
    present = {node.group for node in nodes}
    groups = tuple(one for one in ("sources", *declaration.zones, "topics") if one in present)
    columns = _columns(nodes, edges, groups)
    return Picture(
        title=f"Pipeline {declaration.name}",
        description=declaration.description or _described(declaration, graph),
        nodes=tuple(nodes),
        edges=tuple(edges),
        columns=columns,
        groups=groups,
    )


def layout_of(picture: Picture) -> Layout:
    """Return the places of all boxes and edges."""
    sizes = {node.id: Size(picture.columns[node.id], *node.size) for node in picture.nodes}
    return lay_out(sizes, picture.edges, column_gap=_COLUMN_GAP)


def _columns(nodes: Sequence[Node], edges: Sequence[tuple[str, str]], groups: Sequence[str]) -> dict[str, int]:
    """Return the column of each box. A group has as many columns as its longest chain has boxes."""
    group_of = {node.id: node.group for node in nodes}
    ranks = {node.id: 0 for node in nodes}
    inside = [(one, other) for one, other in edges if group_of[one] == group_of[other]]
    # At most as many rounds as boxes: there are no cycles.
    for _ in nodes:
        longer = [(one, other) for one, other in inside if ranks[other] <= ranks[one]]
        if not longer:
            break
        for one, other in longer:
            ranks[other] = max(ranks[other], ranks[one] + 1)
    columns: dict[str, int] = {}
    first = 0
    for group in groups:
        members = [node.id for node in nodes if node.group == group]
        columns |= {one: first + ranks[one] for one in members}
        first += 1 + max(ranks[one] for one in members)
    return columns


def _id(graph: Graph, name: str) -> str:
    return f"flow:{name}" if name in graph.declaration.flows else f"source:{name}"


def _source_node(source: Source) -> Node:
    details = [f"topic {source.topic}", source.format]
    if source.watermark is not None:
        details[1] += f", watermark {format_duration(source.watermark.delay_ms)}"
    return Node(f"source:{source.name}", _cut(source.name, _NAME_CHARACTERS_MAX), _details(details), "sources")


def _flow_node(graph: Graph, flow: Flow) -> Node:
    details = []
    if flow.kind != "table":
        details.append(flow.kind.replace("_", " "))
    decodes = graph.decodes(flow)
    if decodes is not None:
        details.append(f"decodes {decodes.format}")
    if flow.steps:
        details.append(f"{len(flow.steps)} steps" if len(flow.steps) > 1 else "1 step")
    if flow.deduplicate:
        details.append(f"deduplicates {', '.join(flow.deduplicate)}")
    if flow.expectations:
        count = len(flow.expectations)
        details.append(f"{count} expectations" if count > 1 else "1 expectation")
    if flow.append_to is not None:
        details.append(f"appends to {flow.append_to.name}")
    table = flow.table
    if isinstance(table, TableSink) and table.keys:
        details.append(f"keyed by {', '.join(table.keys)}")
    for word, side in (("rejects to", flow.quarantine), ("late rows to", flow.late_rows)):
        if side is not None and flow.kind != "view":
            details.append(f"{word} {side.topic or side.table}")
    name = _cut(flow.name, _NAME_CHARACTERS_MAX)
    return Node(f"flow:{flow.name}", name, _details(details), flow.zone, stored=flow.kind != "view")


def _details(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(_cut(one, _DETAIL_CHARACTERS_MAX) for one in lines)


def _described(declaration: Declaration, graph: Graph) -> str:
    parts = [f"{name} reads {' and '.join(declaration.flows[name].input_names)}" for name in graph.order]
    return f"{len(declaration.sources)} sources and {len(declaration.flows)} flows: {'; '.join(parts)}."


# -- the document -----------------------------------------------------------------------------------------------------


def _document(picture: Picture, layout: Layout) -> Iterator[str]:
    width = layout.width + 2 * _MARGIN + 2 * _ZONE_PADDING
    height = layout.height + _HEAD + _ZONE_HEAD + 2 * _ZONE_PADDING + _MARGIN
    width = max(width, _text_width(picture.title, 20) + 2 * _MARGIN)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-labelledby="title description">'
    )
    yield f'<title id="title">{_text(picture.title)}</title>'
    yield f'<desc id="description">{_text(picture.description)}</desc>'
    yield f"<style>{_style(picture.groups)}</style>"
    yield (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0.5 L7.5 4 L0 7.5 Z"/></marker></defs>'
    )
    yield f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>'
    yield f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 16}">{_text(picture.title)}</text>'
    yield f'<g transform="translate({_MARGIN + _ZONE_PADDING} {_HEAD + _ZONE_HEAD + _ZONE_PADDING})">'
    for number, group in enumerate(picture.groups):
        yield _zone(picture, layout, number, group)
    for line in layout.lines:
        yield f'<path class="edge" marker-end="url(#arrow)" d="{_curve(line.points)}"/>'
    for node in picture.nodes:
        yield from _box(node, layout.boxes[node.id], picture.groups.index(node.group))
    yield "</g>"
    yield "</svg>"


def _zone(picture: Picture, layout: Layout, number: int, group: str) -> str:
    columns = [picture.columns[node.id] for node in picture.nodes if node.group == group]
    left = layout.columns[min(columns)][0]
    right = sum(layout.columns[max(columns)])
    width, height = right - left + 2 * _ZONE_PADDING, layout.height + 2 * _ZONE_PADDING + _ZONE_HEAD - 8
    head = _cut(group, int((right - left) / (_NAME_SIZE * _CHARACTER_WIDTH)))
    return (
        f'<rect class="zone z{number}" x="{left - _ZONE_PADDING:.1f}" y="{-_ZONE_PADDING - _ZONE_HEAD + 8}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="10"/>'
        f'<text class="head{number} head" x="{left:.1f}" y="-18">{_text(head)}</text>'
    )


def _box(node: Node, box: Box, number: int) -> Iterator[str]:
    label = ", ".join((node.name, *node.details))
    kind = "" if node.stored else " view"
    yield f"<g><title>{_text(label)}</title>"
    yield (
        f'<rect class="box b{number}{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="6"/>'
    )
    x, y = box.x + _PADDING, box.y + _PADDING + _NAME_SIZE - 2
    yield f'<text class="name" x="{x:.1f}" y="{y:.1f}">{_text(node.name)}</text>'
    for at, detail in enumerate(node.details, 1):
        yield f'<text class="detail" x="{x:.1f}" y="{y + at * _LINE_HEIGHT:.1f}">{_text(detail)}</text>'
    yield "</g>"


def _curve(points: Sequence[tuple[float, float]]) -> str:
    x, y = points[0]
    path = [f"M{x:.1f} {y:.1f}"]
    for at, (end_x, end_y) in enumerate(points[1:], 1):
        if at % 2 == 0:
            path.append(f"L{end_x:.1f} {end_y:.1f}")
        else:
            middle = (x + end_x) / 2
            path.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}")
        x, y = end_x, end_y
    return " ".join(path)


def _style(groups: Sequence[str]) -> str:
    colours = []
    zone = 0
    for group in groups:
        if group in ("sources", "topics"):
            colours.append(_SOURCE_COLOURS)
        else:
            colours.append(_ZONE_COLOURS[zone % len(_ZONE_COLOURS)])
            zone += 1
    light = _mode([one[0] for one in colours], page="#ffffff", box="#ffffff", text="#1f2328", detail="#4b5560")
    dark = _mode([one[1] for one in colours], page="#0f1317", box="#171c22", text="#e6edf3", detail="#aab4be")
    mono = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
    fixed = (
        f"text{{font-family:{mono}}}.title{{font-size:18px;font-weight:600}}.head{{font-size:{_NAME_SIZE}px;"
        f"font-weight:600}}.name{{font-size:{_NAME_SIZE}px;font-weight:600}}.detail{{font-size:{_DETAIL_SIZE}px}}"
        ".box{stroke-width:1.5}.view{stroke-dasharray:5 4}.edge{fill:none;stroke-width:1.5}"
    )
    return f"{fixed}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _mode(colours: Sequence[tuple[str, str]], *, page: str, box: str, text: str, detail: str) -> str:
    rules = [f".page{{fill:{page}}}.title,.name{{fill:{text}}}.detail{{fill:{detail}}}"]
    rules.append(f".edge{{stroke:{detail}}}marker .head{{fill:{detail}}}")
    for number, (strong, pale) in enumerate(colours):
        rules.append(f".z{number}{{fill:{pale}}}.b{number}{{fill:{box};stroke:{strong}}}.head{number}{{fill:{strong}}}")
    return "".join(rules)


def _text_width(text: str, size: int) -> float:
    """Return the width of a text in a monospaced font; wide characters take two places."""
    places = sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)
    return places * size * _CHARACTER_WIDTH


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _text(text: str) -> str:
    """Return a text as XML, without characters that XML does not allow."""
    return escape("".join(one if one.isprintable() else " " for one in text))
