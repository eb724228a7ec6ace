"""`ottla schema` against a registry, and the commands of docs/operate/registry.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from edge_broker import IS_KAFKA, edge_broker
from registry_process import RegistryProcess

from ottla.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "registry.md"
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


def test_check_reports_that_a_subject_has_no_versions(registry: RegistryProcess, files: dict[str, str]) -> None:
    found = run(registry, "check", "misspelled", files["first"])
    assert (found.exit_code, found.output) == (0, "compatible: misspelled has no versions yet\n")
    found = run(registry, "check", "misspelled", files["first"], "-o", "json")
    assert json.loads(found.output) == {"subject": "misspelled", "is_compatible": True, "messages": []}


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


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_commands_of_the_registry_page_run_in_their_order(
    registry: RegistryProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTTLA_REGISTRY", registry.url)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", registry.bootstrap)
    printed = {}
    for command in _commands_of_the_registry_page():
        assert not (code := _run_command(command, registry, printed)) or command.startswith("echo 'no schema'"), (
            command, code, printed[command],
        )  # fmt: skip
    ends = {end: text for command, text in printed.items() for end in ("versions/latest", "users -s avro -e")
            if command.endswith(end)}  # fmt: skip
    assert json.loads(ends["versions/latest"])["subject"] == "parcels-value"
    assert ends["users -s avro -e"] == '{"name":"Ann","age":{"int":31}}\n{"name":"Bob","age":null}\n'
    refused = [command for command, text in printed.items() if '"error_code"' in text]
    assert len(refused) == 1 and "40901" in printed[refused[0]]
    if not IS_KAFKA:
        assert "Broker failed to validate record" in printed["echo 'no schema' | ottla produce parcels"]


def _commands_of_the_registry_page() -> Iterator[str]:
    """Yield the commands of the second terminal."""
    headings = ["Try it", "Records on the command line", "Associations of topics and subjects"]
    headings += [] if IS_KAFKA else ["Validation in the broker"]
    for heading in headings:
        (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        text = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
        # A command ends where its quotes are closed and no backslash continues it.
        command = ""
        for line in text.splitlines(keepends=True):
            command += line
            if command.count("'") % 2 == 0 and not line.endswith("\\\n"):
                if not command.startswith("ottla up"):
                    yield command.strip()
                command = ""


def _run_command(command: str, registry: RegistryProcess, printed: dict[str, str]) -> int:
    """Run a command and note what it prints. Return its exit code. Only the address differs from the page."""
    text = command.replace("http://127.0.0.1:8081", registry.url)
    piped = re.fullmatch(r"(?:echo '([^']*)' \| )?ottla (.+)", text)
    if piped is None:
        done = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, timeout=60)
        printed[command] = done.stdout + done.stderr
        return done.returncode
    lines = None if piped[1] is None else f"{piped[1]}\n"
    result = CliRunner().invoke(main, shlex.split(piped[2]), input=lines, prog_name="ottla")
    printed[command] = result.stdout if result.exit_code == 0 else result.output
    return result.exit_code


def test_subjects_are_completed(registry: RegistryProcess, files: dict[str, str], tmp_path: Path) -> None:
    run(registry, "register", "completed-value", files["first"])
    environment = {
        "_OTTLA_COMPLETE": "zsh_complete",
        "COMP_LINE": f"ottla schema get --registry {registry.url} compl",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    result = CliRunner().invoke(main, [], env=environment, prog_name="ottla")
    assert (result.stdout, result.stderr) == ("names\ncompleted-value\n", "")
