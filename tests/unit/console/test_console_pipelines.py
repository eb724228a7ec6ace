"""The graph of a pipeline in the console, and the documents that it is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.edge.console import rendering
from ottla.edge.console.flow_drawing import NODE_HEIGHT, NODE_WIDTH, draw
from ottla.edge.console.pipeline_status import parse, read_pipelines
from ottla.edge.console.sections.pipelines import drawing, pipeline
from ottla.pipeline.status import FlowStatus, NodeStatus, RunStatus

NOW_MS = 1_000_000
HOSTILE = '<script>alert("x")</script>'


def document(**changes: Any) -> dict[str, Any]:
    """Return the status of a run as a pipeline writes it."""
    status = RunStatus(
        pipeline="shop", file="shop.yaml", run="r", pid=1, host="h", master="local[2]", started_ms=1, updated_ms=NOW_MS,
        flows=[
            FlowStatus(
                name="orders_raw", zone="raw", kind="table", trigger="once", state="running", rows=12, lag=3,
                quarantined=2, violations={"amount": 2}, rows_per_second=1.5,
            ),
            FlowStatus(name="broken", zone="trusted", kind="table", trigger="once", state="failed", error=HOSTILE),
        ],
        nodes=[
            NodeStatus(name="orders", kind="source", zone="sources", topics=["shop.orders"]),
            NodeStatus(name="orders_raw", kind="table", zone="raw", inputs=["orders"]),
            NodeStatus(name="broken", kind="table", zone="trusted", inputs=["orders_raw"]),
        ],
    )  # fmt: skip
    written: dict[str, Any] = json.loads(json.dumps(status.as_json())) | changes
    return written


def test_status_of_a_pipeline_is_read_with_its_graph() -> None:
    row = parse(document(), now_ms=NOW_MS)
    assert (row.name, row.state, [node.name for node in row.failed]) == ("shop", "running", ["broken"])
    assert [(node.name, node.inputs) for node in row.nodes] == [
        ("orders", ()), ("orders_raw", ("orders",)), ("broken", ("orders_raw",)),
    ]  # fmt: skip
    assert row.nodes[1].violations == {"amount": 2}


def test_status_of_an_older_version_has_flows_without_edges() -> None:
    older = document()
    del older["nodes"]
    assert [node.inputs for node in parse(older, now_ms=NOW_MS).nodes] == [(), ()]


def test_run_that_has_not_written_for_half_a_minute_is_silent() -> None:
    assert parse(document(), now_ms=NOW_MS + 31_000).state == "silent"
    assert parse(document(state="ended"), now_ms=NOW_MS + 31_000).state == "ended"


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", '{"flows": [1]}', '{"flows": 1}', "x", '{"flows": [], "nodes": [[]]}']
)
def test_file_that_is_no_status_is_named_and_the_others_are_shown(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "_status"
    folder.mkdir()
    (folder / "shop.json").write_text(text)
    other = tmp_path / "other"
    (other / "_status").mkdir(parents=True)
    (other / "_status" / "shop.json").write_text(json.dumps(document()))
    rows, problems = read_pipelines([str(tmp_path), str(other), "ftp://x", "http://127.0.0.1:1/status"])
    assert [row.name for row in rows] == ["shop"]
    assert len(problems) == 3 and problems[0].startswith(str(tmp_path))


def test_page_shows_failed_flows_first_and_escapes_what_they_say() -> None:
    row = parse(document(), now_ms=NOW_MS)
    data = pipeline(row)
    assert [node["name"] for node in data["nodes"]] == ["broken", "orders", "orders_raw"]
    text = rendering.part("pipelines/body.html", cluster="main", drawing=drawing(row), **data)
    assert "<script>" not in text and "&lt;script&gt;" in text and "amount: 2" in text


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_nodes_do_not_overlap_and_lie_inside_of_the_drawing(pairs: list[tuple[int, int]]) -> None:
    """Also for cycles, which no pipeline has, but a document may have."""
    inputs: dict[str, list[str]] = {}
    for source, target in pairs:
        inputs.setdefault(str(target), []).append(str(source))
    made = draw(inputs)
    assert {node.name for node in made.nodes} == inputs.keys()
    corners = [(node.x, node.y) for node in made.nodes]
    assert len(set(corners)) == len(corners)
    for x, y in corners:
        assert 0 <= x <= made.width - NODE_WIDTH and 0 <= y <= made.height - NODE_HEIGHT


def test_node_is_right_of_everything_that_it_reads() -> None:
    made = draw({"d": ["b", "c"], "b": ["a"], "c": ["a", "missing"], "a": []})
    x = {node.name: node.x for node in made.nodes}
    assert x["a"] < x["b"] == x["c"] < x["d"]
    assert {(edge.source, edge.target) for edge in made.edges} == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
