"""The snippets of README.md and docs/guides/testing.md run as they are written, in their order, against a broker."""

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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory in which `.venv/bin/ottla` is this checkout's command."""
    script = tmp_path / ".venv" / "bin" / "ottla"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla "$@"\n')
    script.chmod(0o755)
    return tmp_path


def test_readme_tour_runs_in_its_order(fresh_ottla_broker: BrokerProcess, checkout: Path) -> None:
    tour = [one for one in snippets((ROOT / "README.md").read_text()) if one.heading == "Tour"]
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


def test_other_readme_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    # test_up_processes.py runs the tour of a cluster, test_operations_pages.py the commands of the page on security.
    tours = ("Tour", "A cluster on one machine", "Security")
    others = [one for one in snippets((ROOT / "README.md").read_text()) if one.heading not in tours]
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
