"""`ottla spark repair` against a broker, without Spark: a checkpoint of a topic that was created again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import main
from ottla.client.cluster import Cluster
from ottla.model.types import TopicPartition
from ottla.testing.raw import batch_of

pytestmark = pytest.mark.broker


def test_repair_shows_the_plan_and_changes_the_checkpoint_only_with_execute(ottla_broker: Any, tmp_path: Path) -> None:
    topic = f"repair-{os.getpid()}"
    with Cluster(ottla_broker.bootstrap, timeout_s=60) as cluster:
        cluster.create_topic(topic, 2)
        cluster.produce(TopicPartition(topic, 0), batch_of(b"a", b"b", b"c"))
        cluster.produce(TopicPartition(topic, 1), batch_of(b"d"))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    before = f'v1\n{{"batchWatermarkMs":0}}\n{{"{topic}":{{"0":9,"1":1,"2":4}}}}'
    (tmp_path / "offsets" / "0").write_text(before)
    (tmp_path / "commits" / "0").write_text("v1\n{}")

    def repair(*words: str) -> Result:
        return CliRunner().invoke(main, ["spark", "repair", str(tmp_path), "-b", ottla_broker.bootstrap, *words])

    undecided = repair()
    assert undecided.exit_code == 1 and "choose --to earliest or --to latest" in undecided.stderr
    shown = repair("--to", "earliest", "-o", "json")
    assert shown.exit_code == 0 and "nothing was changed" in shown.stderr
    rows = json.loads(shown.stdout)
    assert [(row["partition_id"], row["state"], row["new_offset"], row["read_again"]) for row in rows] == [
        (0, "truncated", 0, 3), (1, "ok", 1, 0), (2, "absent", 4, 0),
    ]  # fmt: skip
    assert (rows[0]["checkpoint_offset"], rows[0]["log_start_offset"], rows[0]["log_end_offset"]) == (9, 0, 3)
    assert "does not exist" in shown.stderr
    assert (tmp_path / "offsets" / "0").read_text() == before

    assert repair("--to", "latest", "--execute").exit_code == 0
    assert (tmp_path / "offsets" / "0").read_text() == before.replace('"0":9', '"0":3')
    again = repair("--to", "latest", "--execute")
    assert again.exit_code == 0 and "nothing to repair" in again.stderr
    elsewhere = CliRunner().invoke(main, ["spark", "repair", str(tmp_path / "nowhere"), "-b", ottla_broker.bootstrap])
    assert elsewhere.exit_code == 1 and "has no offsets of a batch" in elsewhere.stderr
