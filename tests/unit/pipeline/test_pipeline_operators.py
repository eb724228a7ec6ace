"""What operators need of a declaration: several sources in one flow, and examples that are as they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_pipeline import HEAD

from ottla.model.types import TopicPartition
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.load import load

_EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples" / "operators").glob("*.yaml"))
_TWO = """\
  more:
    topic: more
    format: string
flows:
  both: {zone: staging, from: [orders, more], sql: SELECT * FROM orders UNION ALL SELECT * FROM more}
"""


@pytest.mark.parametrize("file", _EXAMPLES, ids=lambda file: file.stem)
def test_example_is_without_problems_and_says_on_top_what_it_is(file: Path) -> None:
    load(str(file))
    assert file.read_text(encoding="utf-8").startswith("# ")


def test_flow_of_staging_with_steps_decodes_all_its_sources(read: Callable[..., Declaration]) -> None:
    graph = Graph(read(HEAD.partition("flows:")[0] + _TWO))
    assert [graph.source_of(name) for name in ("orders", "more")] == list(graph.declaration.sources.values())
    assert graph.decodes(graph.declaration.flows["both"]) is graph.declaration.sources["orders"]


def test_flow_that_does_not_say_what_to_do_with_two_sources_is_refused(
    problems: Callable[..., list[str]],
) -> None:
    (problem,) = problems(HEAD.partition("flows:")[0] + _TWO.partition(", sql:")[0] + "}\n")
    assert "decodes 'orders' and reads other inputs" in problem and "add sql: or python:" in problem


def test_backfill_knows_how_far_a_flow_has_read_each_of_its_topics(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")
    from ottla.pipeline.backfill import committed_offsets

    for directory in ("commits", "offsets"):
        (tmp_path / directory).mkdir()
    (tmp_path / "commits" / "3").write_text("v1\n{}")
    table = '{"table":"t","version":1,"index":0,"snapshot":true}'
    (tmp_path / "offsets" / "3").write_text('v1\n{}\n{"orders":{"0":5,"1":6}}\n' + table + '\n-\n{"more":{"0":7}}')
    assert committed_offsets(str(tmp_path)) == {
        TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 6, TopicPartition("more", 0): 7,
    }  # fmt: skip
