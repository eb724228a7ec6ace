"""The graph of a pipeline as Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources

from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph_mermaid import draw_mermaid

_OWN = """\
  paid: {zone: trusted, from: staged, deduplicate: order_id, description: '<orders> & "more"'}
  again: {zone: trusted, from: paid, kind: view}
  out: {zone: refined, from: paid, to: [{topic: shop.out}, {table: out}]}
  more: {zone: refined, from: paid, append_to: out}
  same: {zone: refined, from: again, to: [{topic: shop.out}]}
"""


def _frames(text: str) -> dict[str, list[str]]:
    """Return the ids of the boxes in each frame."""
    found = re.findall(r"  subgraph frame_(\w+)\[\w+\]\n((?:    .*\n)*)  end\n", text)
    return {name: re.findall(r"^    (\w+)\[", inside, re.M) for name, inside in found}


def test_boxes_stand_in_the_frame_of_their_zone(read: Callable[..., Declaration]) -> None:
    assert _frames(draw_mermaid(read(HEAD + _OWN))) == {
        "sources": ["source_orders"],
        "staging": ["flow_staged"],
        "trusted": ["flow_paid", "flow_again"],
        "refined": ["flow_more", "flow_same", "flow_out"],
        "topics": ["topic_1"],
    }


def test_each_edge_connects_two_boxes(read: Callable[..., Declaration]) -> None:
    text = draw_mermaid(read(HEAD + _OWN))
    edges = re.findall(r"^  (\w+) --> (\w+)$", text, re.M)
    boxes = {box for inside in _frames(text).values() for box in inside}
    assert {box for edge in edges for box in edge} == boxes
    assert ("flow_paid", "flow_out") in edges and ("flow_more", "flow_out") in edges
    assert ("flow_out", "topic_1") in edges and ("flow_same", "topic_1") in edges


def test_labels_have_details_and_views_a_dashed_border(read: Callable[..., Declaration]) -> None:
    text = draw_mermaid(read(HEAD + _OWN))
    assert 'flow_paid["paid<br/>deduplicates order_id"]' in text
    assert 'flow_again["again<br/>view"]' in text and "  class flow_again view\n" in text
    assert "  accTitle: Pipeline shop\n" in text and "paid reads staged" in text


def test_characters_with_a_meaning_in_mermaid_are_replaced_in_labels(read: Callable[..., Declaration]) -> None:
    flow = "  odd: {zone: trusted, from: staged, sql: SELECT * FROM staged, deduplicate: 'a\"#<b>'}\n"
    text = draw_mermaid(read(HEAD + flow))
    assert "deduplicates a#quot;#35;#lt;b#gt;" in text


def test_example_pipeline_has_a_line_for_each_box_and_edge(read: Callable[..., Declaration]) -> None:
    text = draw_mermaid(read(resources.files("ottla.pipeline").joinpath("templates", "shop.yaml").read_text()))
    assert text.startswith("---\ntitle: Pipeline shop\n---\nflowchart LR\n")
    assert sum(map(len, _frames(text).values())) >= 15 and "```" not in text


def test_own_zones_are_frames(read: Callable[..., Declaration]) -> None:
    zones = "zones:\n" + "".join(f"  z{at}: {{reads_from: [sources, z{at}]}}\n" for at in range(9))
    flows = "flows:\n" + "".join(f"  f{at}: {{zone: z{at}, from: orders}}\n" for at in range(9))
    text = draw_mermaid(read(HEAD.partition("flows:")[0] + zones + flows))
    assert list(_frames(text)) == ["sources", *(f"z{at}" for at in range(9))]
