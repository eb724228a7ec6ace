"""Many runs of mixed clients, each a process of its own, some at a time: they wait more than they work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from campaign.processes import free_port
from campaign.report import shorten_each

_SCRIPT = Path(__file__).with_name("mixed.py")
_AT_A_TIME = 4
_RUN_S_MAX = 240.0


class MixedRuns:
    """Plays one run a seed; what they had to tell is added up."""

    def __init__(self, directory: Path) -> None:
        #: by seed what a run found, which is nothing unless the broker or the run has failed
        self.found: dict[int, dict[str, list[str]]] = {}
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        #: what libraries said of records that were not, or perhaps not, stored
        self.send_errors: Counter[str] = Counter()
        self.kills = 0
        self._directory = directory

    def play(self, seeds: Iterable[int]) -> None:
        """All of them. Whatever ends this, no process is left."""
        waiting = list(seeds)
        under_way: list[_Run] = []
        try:
            while waiting or under_way:
                while waiting and len(under_way) < _AT_A_TIME:
                    port = free_port(avoid=[run.port for run in under_way])
                    under_way.append(_Run(waiting.pop(0), port, self._directory))
                for run in [run for run in under_way if run.is_over]:
                    under_way.remove(run)
                    run.end()
                    self._collect(run)
                time.sleep(0.05)
        finally:
            for run in under_way:
                run.end()

    def _collect(self, run: _Run) -> None:
        told = run.result()
        self.outcomes.update(told.get("outcomes", {}))
        self.faults.update(told.get("faults", {}))
        self.send_errors.update(told.get("send_errors", {}))
        self.kills += told.get("kills", 0)
        print(f"seed {run.seed}: {told.get('seconds', 0):.1f} s, {sum(told.get('faults', {}).values())} faults")
        if not told["anomalies"]:
            shutil.rmtree(run.directory)
            return
        shown = shorten_each(told["anomalies"])
        kept = shutil.move(run.directory, tempfile.mkdtemp(prefix="ottla-mixed-"))
        self.found[run.seed] = {"repeat with": [run.command], "kept in": [kept], **shown}
        print(self.found[run.seed], flush=True)


class _Run:
    def __init__(self, seed: int, port: int, directory: Path) -> None:
        self.seed = seed
        self.port = port
        self.directory = directory / f"run-{seed}"
        self.directory.mkdir()
        self.command = f"{sys.executable} {_SCRIPT} --seed {seed}"
        self._output = self.directory / "result.json"
        self._errors = self.directory / "errors.log"
        arguments = ["--seed", str(seed), "--directory", str(self.directory), "--listener", f"127.0.0.1:{port}"]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        self._deadline = time.monotonic() + _RUN_S_MAX
        self._is_late = False

    @property
    def is_over(self) -> bool:
        self._is_late = time.monotonic() > self._deadline
        return self._is_late or self._process.poll() is not None

    def end(self) -> None:
        """The run and its broker, which is in the same process group."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def result(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads(self._output.read_text())
        except ValueError:
            why = f"still ran after {_RUN_S_MAX:.0f} s" if self._is_late else f"exit code {self._process.returncode}"
            told = {"anomalies": {"no result": [why, self._errors.read_text()[-2000:]]}}
        return told
