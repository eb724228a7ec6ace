"""The processes of a demonstration: a broker, and a driver (`ottla pipeline run`) with Spark.

Each one has a session of its own. So Ctrl-C in a terminal reaches the demonstration only, which then stops them in
order, and all processes that a part has started can be found and killed. Each part ends when the demonstration has
ended, because its standard input is closed then.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Protocol

from ottla.model.errors import OttlaError

_LOOK_S = 0.05
#: Spark completes its batches first
_STOP_S_MAX = 90.0
#: processes that have received SIGKILL end within milliseconds
_KILL_S_MAX = 10.0
_TAIL_LINES = 15
#: the first stops a part when its standard input is closed; numba is not needed for a hundred events per second; the
#: profile of the user is for another cluster
_ENVIRONMENT = {"OTTLA_END_WITH_STDIN": "1", "PYTHONUNBUFFERED": "1", "OTTLA_NUMBA": "0", "OTTLA_PROFILE": ""}


class PartFailed(OttlaError):
    """A process of the demonstration has ended, or makes no progress. The text names the log file."""


class Part:
    """A process whose output is appended to a log file. It is started by the constructor."""

    def __init__(self, name: str, words: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            #: where the output of this process begins in the log
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise PartFailed if the process is not running."""
        code = self._process.poll()
        if code is not None:
            last = next(
                (line for line in reversed(self.written().splitlines()) if line.strip()), "it has printed nothing"
            )
            raise PartFailed(f"the {self.name} has ended with code {code}: {last}; {self.log} has its output")

    def written(self) -> str:
        """Return what this process has printed."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.written().splitlines()[-_TAIL_LINES:])

    def stop(self, hurry: threading.Event | None = None) -> int:
        """Stop the process in order and return its exit code. Kill it when `hurry` is set, or after 90 s."""
        process = self._process
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S_MAX
            while process.poll() is None and time.monotonic() < deadline and not (hurry is not None and hurry.is_set()):
                time.sleep(_LOOK_S)
        return self.kill()

    def kill(self) -> int:
        """Send SIGKILL (`kill -9`) to the process and to all processes that it has started; return its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_S_MAX
        # Python workers of Spark have process groups of their own, but not sessions.
        while (members := session_members(self.pid) - {self.pid}) and time.monotonic() < deadline:
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(_LOOK_S)
        code = self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        return code


def session_members(session: int) -> set[int]:
    """Return the ids of the processes of a session that have not ended; none where there is no /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of a process is in parentheses and may contain anything.
            state, _, _, its_session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.add(int(path.parent.name))
    return found


class Broker(Part):
    """A broker. It serves when `ready` is true."""

    def __init__(self, data: Path, log: Path, *, listener: str, insecure: bool, metrics: str | None) -> None:
        words = ["ottla", "broker", "--data", str(data), "--listener", listener]
        words += ["--insecure"] if insecure else []
        words += ["--metrics", metrics] if metrics is not None else []
        super().__init__("broker", words, log)
        self._bootstrap = ""

    @property
    def ready(self) -> bool:
        """Return whether the broker accepts connections. Raise PartFailed if it has ended."""
        if not self._bootstrap:
            found = re.search(r"^ready (?:\w+://)?([^\s,]+)", self.written(), re.M)
            if found is None:
                self.check()
                return False
            self._bootstrap = found[1]
        return True

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of a broker that is ready."""
        assert self._bootstrap, "the broker is not ready"
        return self._bootstrap


class RunningPipeline(Protocol):
    """A run of the pipeline: a driver process, or in tests a thread."""

    @property
    def pid(self) -> int:
        """The process id that the status of the run has."""

    def check(self) -> None: ...

    def tail(self) -> str: ...

    def stop(self, hurry: threading.Event | None = None) -> int: ...

    def kill(self) -> int: ...


class Driver(Part):
    """`ottla pipeline run FILE`: the process that starts Spark and runs the flows."""

    def __init__(self, file: Path, log: Path) -> None:
        super().__init__("driver", ["ottla", "pipeline", "run", str(file)], log)


def write_declaration(
    file: Path, *, brokers: str, storage: str, trigger: str, spark: Mapping[str, str] | None = None
) -> None:
    """Write the template `shop` with these settings. `ottla pipeline explain` draws the file."""
    text = resources.files("ottla.pipeline").joinpath("templates", "shop.yaml").read_text(encoding="utf-8")
    for key, value in (("brokers", brokers), ("storage", storage), ("trigger", trigger)):
        text, count = re.subn(rf"^{key}: .*$", f"{key}: {value}", text, count=1, flags=re.M)
        assert count == 1, f"the template has a line {key}"
    settings = "".join(f'  {name}: "{value}"\n' for name, value in (spark or {}).items())
    text += f"\nspark:\n{settings}" if settings else ""
    file.write_text(text, encoding="utf-8")
