"""The snippets of README.md, docs/start/tour.md and docs/guides/testing.md run as they are written, in their order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED_ADDRESS = "127.0.0.1:9092"
#: how the commands begin that create an environment; tests/packaging runs them for each extra
INSTALL = ("python3 -m venv ", ". .venv/bin/activate", "pip install ")
DEADLINE_S = 90


class Snippet(NamedTuple):
    """One fenced block of a page."""

    heading: str
    language: str
    text: str


def snippets(page: str) -> list[Snippet]:
    found, heading = [], ""
    for part in re.finditer(r"^## (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<text>.*?)^```$", page, re.M | re.S):
        if part["heading"]:
            heading = part["heading"]
        else:
            found.append(Snippet(heading, part["language"], part["text"]))
    return found


def run(snippet: Snippet, broker: BrokerProcess, directory: Path) -> str:
    """Run a snippet of the tour and return what it prints. Only the address differs from the page."""
    text = snippet.text.replace(DOCUMENTED_ADDRESS, broker.bootstrap)
    assert snippet.language in ("sh", "python"), snippet
    command = ["bash", "-euo", "pipefail", "-c", text] if snippet.language == "sh" else [sys.executable, "-c", text]
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVER": broker.bootstrap}
    done = subprocess.run(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{snippet.text}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr and "error" not in done.stderr.replace("0 errors", ""), done.stderr
    return done.stdout


def make_environment(directory: Path) -> Path:
    """Create `.venv/bin` with this checkout's `ottla` in a directory, and return its path."""
    commands = directory / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "ottla").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla "$@"\n')
    (commands / "ottla").chmod(0o755)
    (commands / "activate").write_text(f"export PATH={commands}:$PATH\n")
    return commands


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a virtual environment that is active."""
    monkeypatch.setenv("PATH", str(make_environment(tmp_path)), prepend=os.pathsep)
    return tmp_path


def test_quick_start_of_the_readme_runs_as_written(fresh_ottla_broker: BrokerProcess, checkout: Path) -> None:
    start, *rest = [one for one in snippets((ROOT / "README.md").read_text()) if one.heading == "Quick start"]
    *install, command = start.text.splitlines()
    assert all(line.startswith(INSTALL) for line in install) and command == "ottla broker"
    printed = [run(one, fresh_ottla_broker, checkout) for one in rest]
    assert printed[0].endswith("\nhello world\n")
    assert printed[1] == "[b'hello world', b'from Python']\n"


def test_tour_runs_in_its_order(fresh_ottla_broker: BrokerProcess, checkout: Path) -> None:
    tour = snippets((ROOT / "docs" / "start" / "tour.md").read_text())
    if shutil.which("kcat") is None:
        tour = [one for one in tour if "kcat" not in one.text]
    printed = [run(one, fresh_ottla_broker, checkout) for one in tour]
    told = {name: out for one, out in zip(tour, printed, strict=True) for name in _landmarks(one.text)}
    assert told.get("kcat", "hello world\n") == "hello world\n"
    assert " k1 first\n" in told["produce orders"]
    assert sorted(re.findall(r"b'(\w+)'", told["consumer.consume"])) == ["first", "second"]
    assert re.search(r"^TOTAL LAG +0 \(\d of 3 partitions have no commit\)$", told["group describe billing"], re.M)
    assert told["consume invoices"].startswith("sent\n")
    assert re.search(r"^records +100000$", told["perf produce load"], re.M)


def _landmarks(text: str) -> list[str]:
    names = ("kcat", "produce orders", "consumer.consume", "group describe billing", "consume invoices")
    return [name for name in (*names, "perf produce load") if name in text]


def test_other_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    # test_up_processes.py runs the commands for a cluster, test_spark_page.py those for Spark.
    tours = ("Quick start", "A cluster", "Spark")
    pages = (ROOT / "README.md", ROOT / "docs" / "start" / "install.md")
    others = [one for page in pages for one in snippets(page.read_text()) if one.heading not in tours]
    commands = [line for one in others for line in one.text.splitlines() if not line.startswith(INSTALL)]
    assert commands
    for line in commands:
        assert (match := re.match(r"make ([\w-]+)", line)) and match[1] in targets, line


def test_examples_of_the_testing_page_pass(tmp_path: Path) -> None:
    pytest.importorskip("aiokafka")
    page = snippets((ROOT / "docs" / "guides" / "testing.md").read_text())
    *tests, script = [one.text for one in page if one.language == "python"]
    (tmp_path / "test_examples.py").write_text("\n\n".join(tests))
    (tmp_path / "script.py").write_text(script)
    for command in (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "test_examples.py"],
        ["script.py"],
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert sum(one.count("def test_") for one in tests) == 5
