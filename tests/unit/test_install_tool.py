"""tools/install.py: says what it downloads, shows progress, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_TOOL = Path(__file__).resolve().parents[2] / "tools" / "install.py"
_PIP = """
import os, sys, time
print("Obtaining file:///ottla")
print("  Downloading click-8.5.1-py3-none-any.whl (126 kB)")
print("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)", flush=True)
print("a message of pip", file=sys.stderr)
if os.environ["PIP_ENDS"] == "never":
    time.sleep(3600)
print("  Building wheel for pyspark (pyproject.toml): started")
print("  Building wheel for pyspark (pyproject.toml): finished with status 'done'")
print("Installing collected packages: click, pyspark, ottla")
sys.exit(int(os.environ["PIP_ENDS"]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `python -m pip` is a small program."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text(_PIP)
    (tmp_path / "pip" / "__init__.py").touch()
    return {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}


def start(environment: dict[str, str], ends: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(_TOOL), "spark,edge"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment, "PIP_ENDS": ends},
    )  # fmt: skip


def test_sizes_and_large_steps_are_shown(environment: dict[str, str]) -> None:
    process = start(environment, "0")
    out, err = process.communicate(timeout=60)
    first, *steps, last = out.splitlines()
    assert (process.returncode, err) == (0, "")
    assert first.startswith(f"Installing Ottla with its extras spark,edge into {sys.prefix}: about ")
    assert " MB to download" in first
    assert steps == [
        "Downloading pyspark-4.3.0.tar.gz (455.9 MB)",
        "Building wheel for pyspark",
        "Installing 3 packages",
    ]
    assert last.startswith("Installed after ")


def test_failure_shows_the_message_of_pip(environment: dict[str, str]) -> None:
    process = start(environment, "3")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert out.endswith("a message of pip\n")


def test_ctrl_c_ends_pip_and_says_how_to_continue(environment: dict[str, str]) -> None:
    process = start(environment, "never")
    assert process.stdout is not None
    while "pyspark" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    # pip has the same standard output: this returns when both have ended.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out == "The installation was stopped; the next call continues it.\n"


def test_environment_is_created(tmp_path: Path, environment: dict[str, str]) -> None:
    # A module that stands in for venv, because the real one takes seconds.
    (tmp_path / "venv.py").write_text("import sys; open(sys.argv[1], 'w').close()")
    command = [sys.executable, str(_TOOL), "--venv", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "made").exists()


def test_ctrl_c_while_the_environment_is_created_shows_no_traceback(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    script = "import os, time; os.mkdir('made'); open('is_made', 'w').close(); time.sleep(3600)"
    (tmp_path / "venv.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(_TOOL), "--venv", "made"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "is_made").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("The creation was stopped; the next call begins again.\n")
    assert not (tmp_path / "made").exists()
