"""tools/install.py: says what it downloads, shows progress, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
        [sys.executable, str(_TOOL), "spark"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment, "PIP_ENDS": ends},
    )  # fmt: skip


def test_sizes_and_large_steps_are_shown(environment: dict[str, str]) -> None:
    process = start(environment, "0")
    out, err = process.communicate(timeout=60)
    first, *steps, last = out.splitlines()
    assert (process.returncode, err) == (0, "")
    assert first.startswith(f"Installing Ottla with its extra spark into {sys.prefix}: about ")
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
