"""The executors and the Python workers among the processes of a driver's session."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.processes import descendants, is_alive, session_of, wait_until

_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_EXECUTOR_ID = b"--executor-id"
#: Python processes of a session are started as ``python -m pyspark.daemon`` and similar
_PYTHON_MODULES = (b"pyspark.", b"ottla.spark.stream_server")


@dataclass(frozen=True, slots=True)
class Executor:
    """A JVM that runs tasks, and the Python processes that it has started for them."""

    number: int
    pid: int

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Spark may have told it to end meanwhile, which it does now."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 for all of it; returns when it is gone."""
        victims = self._signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, victims)), f"the end of executor {self.number}")

    def _signal(self, number: signal.Signals) -> list[int]:
        pids = [self.pid, *descendants(self.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def executors_of(driver: subprocess.Popen[bytes]) -> list[Executor]:
    """Those that live now, the oldest first."""
    found = []
    for pid in session_of(driver):
        with suppress(OSError):
            words = _command(pid)
            if _EXECUTOR in words and _EXECUTOR_ID in words:
                found.append(Executor(int(words[words.index(_EXECUTOR_ID) + 1]), pid))
    return sorted(found, key=lambda executor: executor.number)


def workers_of(driver: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of the Python processes that serve Spark, the oldest first."""
    found = []
    for pid in session_of(driver):
        with suppress(OSError):
            if any(word.startswith(_PYTHON_MODULES) for word in _command(pid)):
                found.append(pid)
    return sorted(found)


def _command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
