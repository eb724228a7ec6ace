"""`ottla pipeline plan`: the table, the document and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.flow_record import FlowRecorder, describe
from ottla.pipeline.graph import Graph
from ottla.pipeline.load import load

_FILE = """\
name: shop
storage: lake
sources:
  clicks: {topic: clicks, format: json, schema: {page: string}}
flows:
  staged: {zone: staging, from: clicks}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that has run once."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "shop.yaml"
    file.write_text(_FILE)
    declaration = load(str(file))
    checkpoint = tmp_path / "lake" / "_checkpoints" / "shop" / "staged-v1"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n{}")
    FlowRecorder(str(checkpoint), describe(Graph(declaration), declaration.flows["staged"])).write_once()
    return file


def test_plan_shows_that_nothing_has_changed(ottla: Any, shop: Path) -> None:
    result = ottla("pipeline", "plan", "shop.yaml")
    assert (result.exit_code, result.stdout) == (0, "FLOW    PLAN       WHY\nstaged  unchanged\n")


def test_plan_shows_what_needs_a_new_checkpoint_and_the_remedy(ottla: Any, shop: Path) -> None:
    shop.write_text(_FILE.replace("topic: clicks", "topic: visits"))
    result = ottla("pipeline", "plan", "shop.yaml")
    assert result.exit_code == 1
    assert "staged  needs a new checkpoint  reads topic visits, before topic clicks: the offsets" in result.stdout
    assert (
        "staged: write 'version: 2' in the flow, then run 'ottla pipeline backfill shop.yaml staged'" in result.stdout
    )
    assert result.stderr.startswith("error: 'ottla pipeline run' would not start: staged; ")
    document = json.loads(ottla("pipeline", "plan", "shop.yaml", "-o", "json").stdout)
    assert [(row["flow"], row["plan"]) for row in document] == [("staged", "needs a new checkpoint")]
    assert document[0]["remedy"].startswith("write 'version: 2'")


def test_plan_shows_flows_that_are_new_or_removed(ottla: Any, shop: Path) -> None:
    shop.write_text(_FILE.replace("staged:", "typed:"))
    result = ottla("pipeline", "plan", "shop.yaml")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[1].split()[:2] == ["typed", "new"]
    assert lines[2] == "staged  removed  no longer declared; its checkpoint and table stay as they are"


def test_run_refuses_with_the_words_of_the_plan(ottla: Any, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.admin.failure import Failure
    from ottla.cli import pipeline_plan

    shop.write_text(_FILE.replace("topic: clicks", "topic: visits"))
    shown: list[str] = []
    monkeypatch.setattr("click.echo", lambda line, err: shown.append(line))
    with pytest.raises(Failure, match="the pipeline was not started; each line above has the remedy"):
        pipeline_plan.check_start(load(str(shop)), "ottla pipeline backfill shop.yaml")
    (line,) = shown
    assert line.startswith("flow staged needs a new checkpoint: reads topic visits, before topic clicks")
    pipeline_plan.check_start(load(str(shop)), "ottla pipeline backfill shop.yaml", ("staged",))
    assert shown[1].startswith("flow staged keeps state: reads topic visits")


def test_run_warns_that_a_flow_without_a_checkpoint_adds_all_rows_to_its_table_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    from ottla.cli import pipeline_plan

    columns = {"page": ["a"], "_key": [b""], "_topic": ["t"], "_partition": pa.array([0], pa.int32()), "_offset": [0]}
    times = pa.array([0], pa.timestamp("us", "UTC"))
    write_deltalake("lake/staging/staged", pa.table({**columns, "_timestamp": times}))
    shop.write_text(_FILE.replace("from: clicks}", "from: clicks, version: 2}"))
    shown: list[str] = []
    monkeypatch.setattr("click.echo", lambda line, err: shown.append(line))
    pipeline_plan.check_start(load(str(shop)), "ottla pipeline backfill shop.yaml")
    assert shown == [
        "flow staged is new: the table staging/staged has rows, which would be in it twice: run "
        "'ottla pipeline backfill shop.yaml staged'"
    ]
