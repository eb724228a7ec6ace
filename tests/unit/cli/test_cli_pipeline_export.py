"""`ottla pipeline export`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ottla.model import extras

_PYTHON = """
from ottla.pipeline import Pipeline

shop = Pipeline("shop", storage="lake")
shop.source("orders", topic="orders", format="json", schema={"id": "bigint"})
shop.flow("staged", zone="staging", from_="orders")


@shop.table(zone="trusted")
def trusted(staged):
    return staged.where("id > 1")
"""
_YAML = """
name: small
storage: lake
sources:
  orders: {topic: orders, format: avro, schema_file: order.avsc}
flows:
  staged: {zone: staging, from: orders}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    (tmp_path / "small.yaml").write_text(_YAML)
    return tmp_path


def test_export_writes_a_project_with_its_schema_files(ottla: Any, directory: Path) -> None:
    result = ottla("pipeline", "export", "small.yaml", "--to", "sdp")
    assert (result.exit_code, result.output) == (0, "Wrote 4 files to small-sdp. Next: small-sdp/README.md\n")
    files = {str(path.relative_to(directory)) for path in (directory / "small-sdp").rglob("*") if path.is_file()}
    assert files == {
        "small-sdp/README.md",
        "small-sdp/schemas/order.avsc",
        "small-sdp/spark-pipeline.yml",
        "small-sdp/transformations/small.py",
    }
    module = (directory / "small-sdp/transformations/small.py").read_text()
    assert 'formats.Avro(read_schema(str(ROOT / "schemas/order.avsc")))' in module


def test_export_overwrites_files_only_with_force(ottla: Any, directory: Path) -> None:
    out = directory / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    result = ottla("pipeline", "export", "small.yaml", "--to", "sdp", "--out", "out")
    assert result.exit_code == 1
    assert result.stderr == "error: out is not empty; choose another --out, or add --force to overwrite its files\n"
    assert ottla("pipeline", "export", "small.yaml", "--to", "sdp", "--out", "out", "--force").exit_code == 0
    assert (out / "mine.txt").read_text() == "mine"


def test_export_fails_if_a_part_is_not_exported_and_writes_the_others(ottla: Any, directory: Path) -> None:
    assert ottla("pipeline", "init").exit_code == 0
    result = ottla("pipeline", "export", "shop.yaml", "--to", "sdp", "-o", "json")
    assert result.exit_code == 1
    assert result.stderr == "error: 1 part not exported; the lines above say why\n"
    report = json.loads(result.stdout)
    assert [note["what"] for note in report["notes"] if not note["exported"]] == [
        "flow 'orders_trusted': late rows in topic shop.orders.late"
    ]
    assert report["command"][:2] == ["spark-pipelines", "run"]
    assert "def revenue_per_minute():" in (directory / "shop-sdp/transformations/shop.py").read_text()


def test_export_of_python_copies_the_module_and_needs_allow_code(ottla: Any, directory: Path) -> None:
    (directory / "exported_pipeline.py").write_text(_PYTHON)
    assert "add --allow-code" in ottla("pipeline", "export", "exported_pipeline.py", "--to", "sdp").stderr
    result = ottla("pipeline", "export", "exported_pipeline.py", "--to", "sdp", "--allow-code")
    assert result.exit_code == 0
    assert (
        "changed: flow 'trusted': the function exported_pipeline:trusted; it must work with Spark Connect"
        in result.stdout
    )
    assert (directory / "shop-sdp/modules/exported_pipeline.py").read_text() == _PYTHON
    module = (directory / "shop-sdp/transformations/shop.py").read_text()
    assert '_exported_pipeline.trusted(spark.readStream.table("staged"))' in module


def test_file_with_problems_is_not_exported(ottla: Any, directory: Path) -> None:
    (directory / "small.yaml").write_text(_YAML.replace("zone: staging", "zone: stagin"))
    result = ottla("pipeline", "export", "small.yaml", "--to", "sdp")
    assert (result.exit_code, (directory / "small-sdp").exists()) == (1, False)
    assert "small.yaml has 1 problem" in result.stderr


def test_missing_extra_is_named(ottla: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = ottla("pipeline", "export", "small.yaml", "--to", "sdp")
    assert result.exit_code == 1
    assert extras.missing("pyarrow", extras.SPARK) in result.output
