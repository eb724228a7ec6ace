"""The place of each node of a pipeline in a drawing: columns from left to right, each after everything it reads. Pure.

column 0          column 1          column 2
orders ─────────► orders_raw ─────► orders_staged
payments ───────► payments_raw
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: units of the drawing
NODE_WIDTH: Final = 184
NODE_HEIGHT: Final = 52
_GAP_X: Final = 40
_GAP_Y: Final = 18
_MARGIN: Final = 4
#: rounds that move nodes beside those that they read
_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """The upper left corner of a node."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """A curve from one node to the one that reads it."""

    source: str
    target: str
    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of nodes and edges."""

    width: int
    height: int
    nodes: Sequence[PlacedNode]
    edges: Sequence[PlacedEdge]


def draw(inputs: Mapping[str, Sequence[str]]) -> Drawing:
    """Return the places of nodes. ``inputs`` has, for each node, the nodes that it reads; unknown ones are ignored.

    >>> [(node.name, node.x, node.y) for node in draw({"a": [], "b": ["a"]}).nodes]
    [('a', 4, 4), ('b', 228, 4)]
    """
    known = {name: [each for each in read if each in inputs and each != name] for name, read in inputs.items()}
    columns = _columns(known)
    rows = _rows(columns, known)
    places = {
        name: (_MARGIN + column * (NODE_WIDTH + _GAP_X), _MARGIN + row * (NODE_HEIGHT + _GAP_Y))
        for column, names in enumerate(columns)
        for row, name in enumerate(rows[column])
        if name in names
    }
    edges = [
        PlacedEdge(source, target, _curve(places[source], places[target]))
        for target, sources in known.items()
        for source in sources
    ]
    tallest = max((len(names) for names in columns), default=1)
    width = max(len(columns), 1) * (NODE_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    height = tallest * (NODE_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    return Drawing(width, height, [PlacedNode(name, *place) for name, place in places.items()], edges)


def _columns(inputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the nodes of each column: one more than the last column of the nodes that they read."""
    depth: dict[str, int] = {}
    waiting = list(inputs)
    for _ in range(len(inputs) + 1):  # each round places at least one node, unless the rest is a cycle
        placed = [name for name in waiting if all(each in depth for each in inputs[name])]
        for name in placed:
            depth[name] = max((depth[each] + 1 for each in inputs[name]), default=0)
        waiting = [name for name in waiting if name not in depth]
        if not placed:
            break
    last = max(depth.values(), default=-1)
    depth |= dict.fromkeys(waiting, last + 1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in inputs:
        columns[depth[name]].append(name)
    return columns


def _rows(columns: list[list[str]], inputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the nodes of each column in an order in which edges cross less: beside the nodes that they read."""
    ordered = [list(names) for names in columns]
    readers: dict[str, list[str]] = {}
    for name, read in inputs.items():
        for each in read:
            readers.setdefault(each, []).append(name)
    for number in range(_ROUNDS):
        neighbours: Mapping[str, Sequence[str]] = readers if number % 2 else inputs
        place = {name: row for names in ordered for row, name in enumerate(names)}
        for names in ordered:
            means = {
                name: sum(place[each] for each in near) / len(near) if (near := neighbours.get(name)) else place[name]
                for name in names
            }
            names.sort(key=means.__getitem__)
            place |= {name: row for row, name in enumerate(names)}
    return ordered


def _curve(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + NODE_WIDTH, source[1] + NODE_HEIGHT // 2
    x2, y2 = target[0], target[1] + NODE_HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
