"""`ottla schema` against a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from edge_broker import edge_broker
from registry_process import RegistryProcess

from ottla.cli.main import main

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "sum", "type": "double", "default": 0.0}]}  # type: ignore[misc]
THIRD = {**FIRST, "fields": [{"name": "other", "type": "string"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("schemas")
    for name, schema in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        (folder / f"{name}.avsc").write_text(json.dumps(schema))
    return {path.stem: str(path) for path in folder.iterdir()}


def run(registry: RegistryProcess, *words: str) -> Result:
    return CliRunner().invoke(main, ["schema", *words, "--registry", registry.url], prog_name="ottla")


def test_schema_is_registered_listed_read_compared_and_deleted(
    registry: RegistryProcess, files: dict[str, str]
) -> None:
    made = run(registry, "register", "orders-value", files["first"])
    assert made.output.splitlines()[1].split() == ["orders-value", "1", "1", "AVRO"]
    assert run(registry, "register", "orders-value", files["second"], "-o", "json").exit_code == 0
    listed = json.loads(run(registry, "list", "orders", "-o", "json").output)
    assert [(row["subject"], row["version"], row["id"]) for row in listed] == [("orders-value", 2, 2)]
    assert len(json.loads(run(registry, "list", "--all", "-o", "json").output)) == 2
    assert json.loads(run(registry, "get", "orders-value", "1", "--text").output) == FIRST
    assert json.loads(run(registry, "get", "2", "--text").output) == SECOND
    assert '"name": "sum"' in run(registry, "get", "orders-value").output
    lines = run(registry, "diff", "orders-value", "1").output.splitlines()
    assert lines[0] == "--- orders-value 1"
    assert '+      "name": "sum",' in lines
    preview = run(registry, "delete", "orders-value", "--dry-run", "-o", "json")
    assert [row["status"] for row in json.loads(preview.output)] == ["would be deleted"] * 2
    assert run(registry, "delete", "orders-value").exit_code == 0
    assert run(registry, "delete", "orders-value", "--permanent").exit_code == 0
    assert run(registry, "get", "orders-value").exit_code == 3


def test_incompatible_schema_is_reported_with_exit_code_1(registry: RegistryProcess, files: dict[str, str]) -> None:
    run(registry, "register", "checked", files["first"])
    assert run(registry, "check", "checked", files["second"]).output == "compatible\n"
    refused = run(registry, "check", "checked", files["third"])
    assert refused.exit_code == 1
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.output
    failed = run(registry, "register", "checked", files["third"])
    assert failed.exit_code == 1
    assert "40901" in failed.output


def test_level_and_mode_are_shown_and_changed(registry: RegistryProcess) -> None:
    assert run(registry, "config").output.splitlines()[1].split() == ["<global>", "BACKWARD"]
    assert run(registry, "config", "s", "--set", "full").output.splitlines()[1].split() == ["s", "FULL"]
    assert run(registry, "config", "s", "--unset").output.splitlines()[1].split() == ["s", "BACKWARD"]
    assert run(registry, "mode", "s", "--set", "READONLY").output.splitlines()[1].split() == ["s", "READONLY"]
    assert run(registry, "mode", "s", "--unset", "-o", "json").exit_code == 0


def test_registry_that_does_not_answer_is_named() -> None:
    result = CliRunner().invoke(main, ["schema", "list", "--registry", "http://127.0.0.1:1"], prog_name="ottla")
    assert result.exit_code == 4
    assert "ottla registry" in result.output
