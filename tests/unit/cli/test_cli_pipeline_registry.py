"""Commands of pipelines whose schemas are in a registry: which of them need it, and what they say without it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

_YAML = """
name: small
storage: lake
parameters: {login: {secret: true}}
properties: {schema.registry.url: "http://127.0.0.1:PORT", schema.registry.basic.auth.user.info: "${login}"}
sources:
  orders: {topic: orders, format: avro, schema: {registry: orders-value}}
flows:
  staged: {zone: staging, from: orders}
"""
_TEST = """
tests:
  - {name: one, flow: staged, given: {orders: [{id: 1}]}, expect: {rows: [{id: 1}]}}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline whose registry does not run."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (tmp_path / "small.yaml").write_text(_YAML.replace("PORT", str(port)))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "one.yaml").write_text(_TEST)
    return tmp_path


@pytest.mark.parametrize("command", ["plan", "run", "backfill", "test"])
def test_command_that_needs_the_registry_says_that_it_does_not_answer(
    ottla: Any, directory: Path, command: str
) -> None:
    result = ottla("pipeline", command, "small.yaml", "--param", "login=ada:geheim")
    assert result.exit_code == 1
    assert "source orders: the schema registry does not answer" in result.output
    assert "start it with 'ottla registry', or correct schema.registry.url" in result.output
    assert "geheim" not in result.output
    result = ottla("pipeline", command, "small.yaml")
    assert result.exit_code == 1 and "login" in result.output


@pytest.mark.parametrize("words", [("validate",), ("graph",), ("export", "--to", "sdp")])
def test_other_commands_do_not_need_it(ottla: Any, directory: Path, words: tuple[str, ...]) -> None:
    result = ottla("pipeline", words[0], "small.yaml", *words[1:])
    assert result.exit_code == 0, result.output
