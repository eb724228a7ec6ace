"""The processes of a driver: everything of its session, and the executors and Python workers among it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_EXECUTOR_ID = b"--executor-id"
#: Python processes of a session are started as ``python -m pyspark.daemon`` and similar
_PYTHON_MODULES = (b"pyspark.", b"ottla.spark.stream_server")
_END_S_MAX = 60.0


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
        deadline = time.monotonic() + _END_S_MAX
        while any(_is_alive(pid) for pid in victims):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> list[int]:
        pids = [self.pid, *_descendants(self.pid)]
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


def kill_session(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 for a driver and all that it has started; returns when none of them is left."""
    deadline = time.monotonic() + _END_S_MAX
    while signal_session(driver, signal.SIGKILL):
        driver.poll()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.wait()


def signal_session(driver: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """How many there were to signal."""
    found = 0
    for pid in session_of(driver):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            found += 1
    return found


def session_of(driver: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the ids of all processes of the driver's session."""
    for pid in _pids():
        with suppress(OSError):
            if os.getsid(pid) == driver.pid and _is_alive(pid):
                yield pid


def _command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _descendants(pid: int) -> list[int]:
    parents = {}
    for each in _pids():
        with suppress(OSError):
            parents[each] = int(_stat(each)[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent and more, behind a name in parentheses that may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
