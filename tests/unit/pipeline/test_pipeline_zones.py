"""Own zones of a pipeline: their order, their rules, and the four that hold without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.problems import Place
from ottla.pipeline.zone_rules import DEFAULT_ZONES, may_decode

_SOURCES = HEAD.partition("flows:")[0]
_ZONES = """\
zones:
  landing: {content: bytes}
  silver: {reads_from: [sources, landing, silver], forbids: [deduplicate, topic]}
  gold: {requires: [description, expect], kinds: [table, view]}
flows:
"""
_GOOD = """\
  kept: {zone: landing, from: orders}
  typed: {zone: silver, from: kept}
  direct: {zone: silver, from: orders}
  paid:
    zone: gold
    from: typed
    description: Orders with an amount.
    deduplicate: order_id
    expect: [{name: paid, that: amount > 0, on_violation: drop}]
"""


def test_own_zones_take_the_place_of_the_four(read: Callable[..., Declaration]) -> None:
    declaration = read(_SOURCES + _ZONES + _GOOD)
    assert list(declaration.zones) == ["landing", "silver", "gold"]
    assert declaration.zones["gold"].reads_from == ("silver", "gold")
    graph = Graph(declaration)
    flows = declaration.flows
    assert [graph.stores_bytes(flows[name]) for name in ("kept", "typed", "paid")] == [True, False, False]
    decoded = {name: graph.decodes(flows[name]) for name in flows}
    orders = declaration.sources["orders"]
    assert decoded == {"kept": None, "typed": orders, "direct": orders, "paid": None}
    assert flows["typed"].quarantine is not None and flows["paid"].quarantine is None


def test_default_zones_are_those_of_the_page() -> None:
    written = {name: replace(zone, place=Place("")) for name, zone in DEFAULT_ZONES.items()}
    assert {name: zone.reads_from for name, zone in written.items()} == {
        "raw": ("sources",),
        "staging": ("sources", "raw", "staging"),
        "trusted": ("staging", "trusted"),
        "refined": ("trusted", "refined"),
    }
    assert [name for name in DEFAULT_ZONES if may_decode(DEFAULT_ZONES, name)] == ["staging"]


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        (
            "{zone: gold, from: typed, description: x}",
            "flow 'bad' is in zone gold and has no 'expect', which the zone requires; add expect:",
        ),
        (
            "{zone: gold, from: typed, kind: materialized_view, description: x, expect: [{name: a, that: amount > 0}]}",
            "flow 'bad' is a materialized view in gold; write kind: table or view, or move it to silver",
        ),
        (
            "{zone: gold, from: orders, description: x, expect: [{name: a, that: amount > 0}]}",
            "flow 'bad' is in zone gold and reads the source 'orders'; decode it in a flow of zone silver",
        ),
        (
            "{zone: gold, from: kept, description: x, expect: [{name: a, that: amount > 0}]}",
            "flow 'bad' is in zone gold and reads 'kept' of zone landing; put a flow of zone silver in between",
        ),
        (
            "{zone: silver, from: typed, deduplicate: order_id}",
            "flow 'bad' is in zone silver and has 'deduplicate'; move it to a flow of zone gold",
        ),
        (
            "{zone: silver, from: typed, to: {topic: out}}",
            "flow 'bad' is in zone silver and has 'topic'; move it to a flow of zone gold",
        ),
        (
            "{zone: landing, from: orders, expect: [{name: a, that: 'true'}]}",
            "flow 'bad' is in zone landing and has expectations; landing keeps bytes as received: "
            "move that to a later zone",
        ),
        (
            "{zone: staging, from: orders}",
            "flow 'bad': zone 'staging' is not known; write one of landing, silver, gold",
        ),
    ],
)
def test_violated_rule_of_a_zone_is_reported(problems: Callable[..., list[str]], flow: str, problem: str) -> None:
    found = problems(f"{_SOURCES}{_ZONES}{_GOOD}  bad: {flow}\n")
    assert any(problem in one for one in found), found


@pytest.mark.parametrize(
    ("zones", "problem"),
    [
        ("{a: {reads_from: [sources, b]}, b: {}}", "zone 'a' reads from 'b', which is a later zone"),
        ("{a: {reads_from: surces}}", "zone 'a' reads from 'surces', which is not a zone; write sources"),
        ("{a: {reads_from: a}}", "no zone reads sources; add sources to reads_from of a zone"),
        ("{a: {requires: expectations}}", "zone 'a': requires: 'expectations' is not known; write expect"),
        ("{a: {requires: expect, forbids: expect}}", "zone 'a' both requires and forbids 'expect'; keep one"),
        ("{a: {content: bytes, forbids: expect}}", "zone 'a': forbids does not apply to content bytes; remove it"),
        ("{a: {}, b: {content: bytes}}", "zone 'b' has content bytes and reads from other zones"),
        ("{late: {}}", "zone 'late': the name is reserved; choose another name"),
        ("{a: {color: red}}", "zone 'a': unknown key 'color'"),
        ("[a, b]", "'zones' is a list"),
    ],
)
def test_zone_that_cannot_be_is_reported(problems: Callable[..., list[str]], zones: str, problem: str) -> None:
    found = problems(f"{_SOURCES}zones: {zones}\nflows:\n  one: {{zone: a, from: orders}}\n")
    assert any(problem in one for one in found), found
