"""The graph of a pipeline as SVG: the places of boxes and lines, and the document."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib import resources
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph_layout import Box, Layout, Size, lay_out
from ottla.pipeline.graph_svg import draw_svg, layout_of, picture_of

_SVG = "{http://www.w3.org/2000/svg}"


def _random_graph(seed: int) -> tuple[dict[str, Size], list[tuple[str, str]]]:
    chance = random.Random(seed)
    columns = chance.randint(1, 6)
    boxes = {
        f"b{at}": Size(chance.randrange(columns), chance.uniform(80, 300), chance.uniform(20, 120))
        for at in range(chance.randint(1, 25))
    }
    names = sorted(boxes)
    edges = [
        (one, other) for one in names for other in names
        if boxes[one].column < boxes[other].column and chance.random() < 0.15
    ]  # fmt: skip
    return boxes, edges


def _overlap(one: Box, other: Box) -> bool:
    return one.x < other.right and other.x < one.right and one.y < other.bottom and other.y < one.bottom


def _check_layout(layout: Layout) -> None:
    for one, other in combinations(layout.boxes.values(), 2):
        assert not _overlap(one, other)
    for box in layout.boxes.values():
        assert box.x >= 0 and box.y >= 0 and box.right <= layout.width + 0.01 and box.bottom <= layout.height + 0.01
    for line in layout.lines:
        assert all(one[0] <= other[0] for one, other in pairwise(line.points)), "an edge goes back to the left"
        start, end = layout.boxes[line.start], layout.boxes[line.end]
        assert line.points[0][0] == start.right and start.y < line.points[0][1] < start.bottom
        assert line.points[-1][0] == end.x and end.y < line.points[-1][1] < end.bottom
        # Between columns no box stands; within a column a line is horizontal, in a lane of its own.
        for (x1, y1), (x2, y2) in list(pairwise(line.points))[1::2]:
            assert y1 == y2
            for box in layout.boxes.values():
                assert not (x1 < box.right and box.x < x2 and box.y < y1 < box.bottom), "an edge crosses a box"


@pytest.mark.parametrize("seed", range(40))
def test_boxes_do_not_overlap_and_edges_go_to_the_right_around_them(seed: int) -> None:
    boxes, edges = _random_graph(seed)
    layout = lay_out(boxes, edges)
    assert set(layout.boxes) == set(boxes) and len(layout.lines) == len(edges)
    _check_layout(layout)
    assert lay_out(boxes, edges) == layout


def test_chain_is_drawn_on_one_height() -> None:
    layout = lay_out({name: Size(at, 100, 40) for at, name in enumerate("abc")}, [("a", "b"), ("b", "c")])
    assert len({box.y for box in layout.boxes.values()}) == 1


def test_empty_graph_has_a_layout() -> None:
    assert lay_out({}, []).boxes == {}


_OWN = """\
  paid: {zone: trusted, from: staged, deduplicate: order_id, description: '<orders> & "more"'}
  again: {zone: trusted, from: paid, kind: view}
  long_name_of_a_flow_that_goes_on_and_on_and_on_and_never_ends: {zone: refined, from: again}
  out: {zone: refined, from: paid, to: [{topic: shop.out}, {table: out}]}
  more: {zone: refined, from: paid, append_to: out}
"""


def test_document_is_complete_and_texts_fit_their_boxes(read: Callable[..., Declaration]) -> None:
    declaration = read(HEAD + _OWN)
    picture = picture_of(declaration)
    assert picture.groups == ("sources", "staging", "trusted", "refined", "topics")
    _check_layout(layout_of(picture))
    root = ElementTree.fromstring(draw_svg(declaration))
    assert root.findtext(f"{_SVG}title") == "Pipeline shop"
    assert "paid reads staged" in (root.findtext(f"{_SVG}desc") or "")
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title description"
    drawn = [text.text or "" for text in root.iter(f"{_SVG}text")]
    for name in ("orders", "staged", "paid", "again", "out", "more", "shop.out", "trusted"):
        assert name in drawn
    for group in root.iter(f"{_SVG}g"):
        box = group.find(f"{_SVG}rect")
        if box is None or "box" not in (box.get("class") or ""):
            continue
        right = float(box.get("x", 0)) + float(box.get("width", 0))
        bottom = float(box.get("y", 0)) + float(box.get("height", 0))
        for text in group.iter(f"{_SVG}text"):
            size = 13 if text.get("class") == "name" else 11
            assert float(text.get("x", 0)) + len(text.text or "") * size * 7 / 11 < right - 6
            assert float(text.get("y", 0)) < bottom


def test_document_has_colours_for_light_and_dark_mode_and_refers_to_nothing_outside(
    read: Callable[..., Declaration],
) -> None:
    text = draw_svg(read(resources.files("ottla.pipeline").joinpath("templates", "shop.yaml").read_text()))
    assert "@media (prefers-color-scheme:dark)" in text
    assert not re.findall(r"href|@import|<script|url\((?!#)", text)
    assert re.findall(r"https?://[^\"']+", text) == ["http://www.w3.org/2000/svg"]


def test_own_zones_are_columns_with_colours(read: Callable[..., Declaration]) -> None:
    zones = "zones:\n" + "".join(f"  z{at}: {{reads_from: [sources, z{at}]}}\n" for at in range(9))
    flows = "flows:\n" + "".join(f"  f{at}: {{zone: z{at}, from: orders}}\n" for at in range(9))
    declaration = read(HEAD.partition("flows:")[0] + zones + flows)
    picture = picture_of(declaration)
    assert picture.groups == ("sources", *(f"z{at}" for at in range(9)))
    assert len(set(picture.columns.values())) == 10
    _check_layout(layout_of(picture))
