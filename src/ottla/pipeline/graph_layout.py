"""Where the boxes and lines of a drawn graph are: a layered layout, pure and deterministic.

Boxes stand in columns, and every edge goes from a column to one further right. An edge that passes columns in between
gets a lane there, which is a box without content: so no edge crosses a box, and lanes and boxes keep their distance.

1. order: boxes of a column are sorted by the mean position of their neighbours, in sweeps to the right and to the left,
   which leaves few crossings;
2. heights: each box moves towards the mean height of its neighbours, as far as the others of its column leave room;
3. ports: the edges at one side of a box are spread over it, in the order of their other ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 8
_LANE_HEIGHT = 8.0


@dataclass(frozen=True, slots=True)
class Size:
    """A box to place: its column, counted from the left, and its size."""

    column: int
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Box:
    """A placed box. `x` and `y` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Line:
    """An edge, as points from left to right: the right side of one box, two for each lane, the left side of another."""

    start: str
    end: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The placed graph."""

    boxes: Mapping[str, Box]
    lines: tuple[Line, ...]
    #: the left edge and the width of each column
    columns: tuple[tuple[float, float], ...]
    width: float
    height: float


def lay_out(
    boxes: Mapping[str, Size], edges: Iterable[tuple[str, str]], *, column_gap: float = 56.0, row_gap: float = 18.0
) -> Layout:
    """Return the layout of a graph. Every edge must go from a column to one further right."""
    paths, lanes = _with_lanes(boxes, edges)
    sizes = {**boxes, **lanes}
    neighbours = _Neighbours(paths)
    columns: list[list[str]] = [[] for _ in range(1 + max((one.column for one in sizes.values()), default=-1))]
    for name, size in sizes.items():
        columns[size.column].append(name)
    for sweep in range(_SWEEPS):
        _sort_columns(columns, neighbours, to_right=sweep % 2 == 0)
    tops = _tops(columns, sizes, neighbours, row_gap)
    spans: list[tuple[float, float]] = []
    for names in columns:
        x = spans[-1][0] + spans[-1][1] + column_gap if spans else 0.0
        spans.append((x, max((sizes[name].width for name in names), default=0.0)))
    placed = {
        name: Box(spans[size.column][0], tops[name], spans[size.column][1], size.height) for name, size in sizes.items()
    }
    height = max((box.bottom for box in placed.values()), default=0.0)
    width = spans[-1][0] + spans[-1][1] if spans else 0.0
    lines = _lines(paths, placed)
    return Layout({name: placed[name] for name in boxes}, lines, tuple(spans), width, height)


class _Neighbours:
    """The neighbours of each box and lane, to the left and to the right."""

    def __init__(self, paths: Sequence[tuple[str, ...]]) -> None:
        self.left: dict[str, list[str]] = {}
        self.right: dict[str, list[str]] = {}
        for path in paths:
            for one, other in pairwise(path):
                self.right.setdefault(one, []).append(other)
                self.left.setdefault(other, []).append(one)


def _with_lanes(
    boxes: Mapping[str, Size], edges: Iterable[tuple[str, str]]
) -> tuple[list[tuple[str, ...]], dict[str, Size]]:
    """Return the path of each edge through the columns, and the lanes on the paths."""
    paths: list[tuple[str, ...]] = []
    lanes: dict[str, Size] = {}
    for start, end in dict.fromkeys(edges):
        first, last = boxes[start].column, boxes[end].column
        assert first < last, f"the edge from {start} to {end} does not go to the right"
        between = [f"{start}\0{end}\0{column}" for column in range(first + 1, last)]
        lanes |= {name: Size(first + 1 + at, 0.0, _LANE_HEIGHT) for at, name in enumerate(between)}
        paths.append((start, *between, end))
    return paths, lanes


def _sort_columns(columns: list[list[str]], neighbours: _Neighbours, *, to_right: bool) -> None:
    position = {name: float(at) for names in columns for at, name in enumerate(names)}
    beside = neighbours.left if to_right else neighbours.right
    for names in columns if to_right else reversed(columns):
        wanted = {name: _mean([position[one] for one in beside.get(name, ())], position[name]) for name in names}
        names.sort(key=lambda name: (wanted[name], position[name]))
        position |= {name: float(at) for at, name in enumerate(names)}


def _tops(
    columns: Sequence[Sequence[str]], sizes: Mapping[str, Size], neighbours: _Neighbours, gap: float
) -> dict[str, float]:
    """Return the upper edge of each box and lane; the smallest is 0."""
    tops: dict[str, float] = {}
    for names in columns:
        y = 0.0
        for name in names:
            tops[name] = y
            y += sizes[name].height + gap
    for sweep in range(_SWEEPS):
        beside = neighbours.left if sweep % 2 == 0 else neighbours.right
        for names in columns if sweep % 2 == 0 else reversed(columns):
            wanted = {}
            for name in names:
                centres = [tops[one] + sizes[one].height / 2 for one in beside.get(name, ())]
                half = sizes[name].height / 2
                wanted[name] = _mean(centres, tops[name] + half) - half
            tops |= _spread(names, wanted, sizes, gap)
    least = min(tops.values(), default=0.0)
    return {name: top - least for name, top in tops.items()}


def _spread(
    names: Sequence[str], wanted: Mapping[str, float], sizes: Mapping[str, Size], gap: float
) -> dict[str, float]:
    """Return upper edges near the wanted ones, in the order of `names` and without overlaps.

    Boxes that want the same room form a block, which stands at the mean of what its boxes want.
    """
    # Each block: its names, the height from its top to the end of its last gap, and the sum of wanted tops.
    blocks: list[tuple[list[str], float, float]] = []
    for name in names:
        block = ([name], sizes[name].height + gap, wanted[name])
        while blocks and blocks[-1][2] / len(blocks[-1][0]) + blocks[-1][1] > block[2] / len(block[0]):
            above, height, total = blocks.pop()
            # A box of the lower block wants to stand `height` below the top of the merged one.
            block = ([*above, *block[0]], height + block[1], total + block[2] - height * len(block[0]))
        blocks.append(block)
    tops = {}
    for members, _, total in blocks:
        y = total / len(members)
        for name in members:
            tops[name] = y
            y += sizes[name].height + gap
    return tops


def _lines(paths: Sequence[tuple[str, ...]], placed: Mapping[str, Box]) -> tuple[Line, ...]:
    out_ports = _ports(paths, placed, outgoing=True)
    in_ports = _ports(paths, placed, outgoing=False)
    lines = []
    for path in paths:
        points = [(placed[path[0]].right, out_ports[path])]
        for name in path[1:-1]:
            lane = placed[name]
            middle = lane.y + lane.height / 2
            points += [(lane.x, middle), (lane.right, middle)]
        points.append((placed[path[-1]].x, in_ports[path]))
        lines.append(Line(path[0], path[-1], tuple(points)))
    return tuple(lines)


def _ports(
    paths: Sequence[tuple[str, ...]], placed: Mapping[str, Box], *, outgoing: bool
) -> dict[tuple[str, ...], float]:
    """Return the height at which each path leaves its first box, or reaches its last one."""
    by_box: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        by_box.setdefault(path[0] if outgoing else path[-1], []).append(path)
    ports = {}
    for name, ends in by_box.items():
        next_to = {path: placed[path[1] if outgoing else path[-2]] for path in ends}
        ends.sort(key=lambda path: next_to[path].y + next_to[path].height / 2)
        box = placed[name]
        for at, path in enumerate(ends):
            ports[path] = box.y + box.height * (at + 1) / (len(ends) + 1)
    return ports


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
