"""Runs of `spark-pipelines`, which is a program of its own with a Spark Connect server."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.java import find_java

#: of Spark Connect, which pyspark does not install
_NEEDED = ("pyspark", "grpc", "grpc_status", "google.rpc", "zstandard")
for _name in _NEEDED:
    # Skips the module that imports this one.
    pytest.importorskip(_name, reason=f"{_name} is missing: pip install '.[sdp]'")
_COMMAND = Path(sys.modules["pyspark"].__file__ or "").parent / "bin" / "spark-pipelines"
#: the machine has few cores and the tests few rows
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark-declarative-pipelines.md"
#: the commands that the documentation shows, in order
COMMANDS = tuple(
    line.strip()
    for line in _PAGE.read_text().partition("## Try it")[2].partition("\n## ")[0].splitlines()
    if line.startswith("    ")
)
#: the arguments of the documented run
DOCUMENTED = tuple(next(shlex.split(line)[1:] for line in COMMANDS if line.startswith("spark-pipelines ")))


def environment(bootstrap: str) -> dict[str, str]:
    """The variables of a run. With SPARK_TESTING the server of a run gets a free port; otherwise it is always 15002."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",
        "OTTLA_BOOTSTRAP_SERVER": bootstrap,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(_COMMAND.parent), os.environ["PATH"]]),
    }


@contextmanager
def started(directory: Path, bootstrap: str, words: Sequence[str] = DOCUMENTED) -> Iterator[Any]:
    """A run in the background, in a process group of its own."""
    settings = [word for name, value in _SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    with (directory / "run.log").open("ab") as log:
        command = [str(_COMMAND), words[0], *settings, *words[1:]]
        process = subprocess.Popen(
            command, cwd=directory, env=environment(bootstrap), stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


def run(directory: Path, bootstrap: str, words: Sequence[str] = DOCUMENTED) -> None:
    """A run to its end."""
    with started(directory, bootstrap, words) as process:
        code = process.wait(540)
    log = (directory / "run.log").read_text(errors="replace")
    assert code == 0 and "has FAILED" not in log, log[-6000:]
