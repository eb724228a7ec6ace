"""The tutorial docs/guides/schema-evolution.md: its commands run as they are written, and print what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.foreign,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "schema-evolution.md"
SCHEMAS = ROOT / "examples" / "schema_evolution"
DEADLINE_S = 120


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that the scripts read, for the processes of the page's first command on free ports."""
    first = _blocks()[1].split()
    assert first[:3] == ["ottla", "up", "--data"]
    data = tmp_path_factory.mktemp("evolution")
    process = subprocess.Popen(
        [sys.executable, "-m", *first[:3], str(data), "--port", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), "")
        found = dict(word.split("=", 1) for word in ready.split()[2:])
        yield {"OTTLA_BOOTSTRAP_SERVER": ready.split()[1], "REGISTRY": found["registry"], "REST": found["rest"]}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)


def _blocks() -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_commands_of_the_page_print_what_it_shows(addresses: dict[str, str]) -> None:
    _install, _start, *rest = _blocks()
    assert len(rest) == 6
    for command, shown in zip(rest[::2], rest[1::2], strict=True):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("python ", f"{sys.executable} ")],
            cwd=ROOT, env={**os.environ, **addresses}, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert _without_reasons(done.stdout) == _without_reasons(shown), command
    _check_table_of_readers(rest[-1], addresses["REGISTRY"])


def test_reader_names_the_scripts_to_run_first_if_the_topic_does_not_exist(addresses: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCHEMAS / "read.py")],
        env={**os.environ, **addresses, "TOPIC": "missing"}, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    expected = "topic missing does not exist; run curl.sh, then evolve.sh, then this script again"
    assert done.stderr.splitlines()[-1] == expected  # after warnings of foreign packages


def _without_reasons(text: str) -> str:
    """Return the text without fastavro's reasons, which another release may word in another way."""
    return re.sub(r"cannot be read: .+", "cannot be read", text)


def _check_table_of_readers(shown: str, registry: str) -> None:
    """Check that a reader can read a version exactly if the registry calls the two schemas compatible."""
    rows = re.findall(r"^version (\d)  ((?:yes|no).*)$", shown, re.MULTILINE)
    assert len(rows) == 5
    with httpx.Client(base_url=registry, timeout=DEADLINE_S) as client:
        client.put("/config/sales-value", json={"compatibility": "BACKWARD"})
        for version, cells in rows:
            for reader, cell in enumerate(cells.split(), 1):
                text = (SCHEMAS / f"order-{reader}.avsc").read_text()
                answer = client.post(f"/compatibility/subjects/sales-value/versions/{version}", json={"schema": text})
                assert answer.json() == {"is_compatible": cell == "yes"}, (version, reader)
