"""Ottla's broker, started the way a user starts it: `ottla broker`, and nothing but its command line.

With COMPILED set to a directory of tools/compile_hot_modules.py the broker runs the compiled hot modules from there.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from benchmarks.processes import BrokerProcess, wait_until

START_SECONDS_MAX = 60.0
#: set by `--compiled`
COMPILED: Path | None = None


def available() -> str | None:
    """None when `ottla` is installed beside this Python or on PATH, else one line that says what to do."""
    if ottla_command() is None:
        return "the `ottla` command was not found; install the project first (pip install -e .)"
    return None


class Ottla(BrokerProcess):
    """One broker on the embedded store; settings are passed with -X, as a user would."""

    name = "ottla"

    def __init__(
        self, *, parent: Path | None = None, settings: dict[str, str] | None = None, broker_id: int | None = None
    ) -> None:
        super().__init__(parent=parent)
        self._settings = settings or {}
        self._broker_id = broker_id

    def start(self) -> None:
        """Returns once the broker has printed its ready line."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._said_ready():
            self.check_alive()
            wait_until(deadline, f"starting {self.name}")

    def prepare(self) -> None:
        """Nothing: an empty directory is enough."""

    def launch(self) -> None:
        # A line of an earlier start in the same directory must not count as this one's.
        self._log_path.unlink(missing_ok=True)
        command = [ottla_command() or "ottla", "broker", "--data", str(self.data_directory)]
        command += ["--listener", f"PLAINTEXT://{self.bootstrap}"]
        if self._broker_id is not None:
            command += ["--id", str(self._broker_id)]
        for name, value in self._settings.items():
            command += ["-X", f"{name}={value}"]
        self._spawn(command, env={**os.environ, "PYTHONPATH": str(COMPILED)} if COMPILED else None)

    def _said_ready(self) -> bool:
        text = self._log_path.read_text(errors="replace")
        return any(line.startswith("ready") for line in text.splitlines())


class ZooKeeper(Ottla):
    """The metadata store of a cluster of Ottla: `ottla zookeeper`."""

    name = "zookeeper"

    def launch(self) -> None:
        self._log_path.unlink(missing_ok=True)
        self._spawn(
            [ottla_command() or "ottla", "zookeeper", "--data", str(self.data_directory), "--listen", self.bootstrap]
        )


def ottla_command() -> str | None:
    """Return the path of `ottla`, beside this Python or on PATH; None if it is not installed."""
    beside = Path(sys.executable).with_name("ottla")
    return str(beside) if beside.exists() else shutil.which("ottla")
