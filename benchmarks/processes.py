"""A broker as a child process: start, stop, and what it costs according to /proc.

Both brokers are started, stopped and measured by this one file, so that neither gets a kinder ruler.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 60.0
#: below the range from which Linux serves outgoing connections and sockets that bind port 0
_PORTS = range(20_000, 32_000)
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    """A broker in its own directory and its own session, so that Ctrl-C reaches it only through stop()."""

    #: Shown in error messages and result tables.
    name = "broker"

    def __init__(self, *, parent: Path | None = None) -> None:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=parent))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def launch(self) -> None:
        """Starts the process and returns at once; start() also waits until it serves."""
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def halt(self) -> None:
        """Stops the process cleanly and keeps its directory: launch() then continues with the same data."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
            _wait_unreaped(process.pid, STOP_SECONDS_MAX)
            # Until it is reaped its id belongs to nobody else, so this hits only what it left behind.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill the process with SIGKILL and keep its directory."""
        process = self._process
        assert process is not None, "the broker was not started"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def discard(self) -> None:
        """Kill the process and remove its directory, of which nothing is needed any more."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.stop()

    def stop(self) -> None:
        """Stops the process and removes its directory; calling it twice is fine."""
        self.halt()
        shutil.rmtree(self.directory, ignore_errors=True)
        # Last, so that a second Ctrl-C leaves the work to the interpreter's exit.
        atexit.unregister(self.stop)

    def _spawn(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        assert self._process is None, "the broker runs already"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        raise BrokerFailed(f"{self.name} ended with status {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 20) -> str:
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _log_path(self) -> Path:
        return self.directory / "output.log"


class BrokerFailed(RuntimeError):
    """A broker did not start, or ended while it was measured; the message holds the end of its output."""


def _wait_unreaped(pid: int, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def free_port() -> int:
    """Return a port that is free now. No socket that asks for any port is ever given one of this range."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, with all its threads and its children, living and ended."""
    ticks = 0
    for fields in _family_stat(pid):
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident memory of a process and its children, and the part of it that is not backed by files.

    Mapped log segments count as resident although the kernel takes them back at will, so the second
    figure says more about a broker under load.
    """
    resident = own = 0
    for fields in _family_stat(pid):
        for line in Path(f"/proc/{fields[-1]}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmRSS":
                resident += int(value.split()[0])
            elif name in ("RssAnon", "RssShmem"):
                own += int(value.split()[0])
    return resident / 1024, own / 1024


def proportional_mb(pid: int) -> float:
    """Memory of a process and its children, what several of them share counted once (PSS)."""
    kilobytes = 0
    for fields in _family_stat(pid):
        try:
            rollup = Path(f"/proc/{fields[-1]}/smaps_rollup").read_text()
        except OSError:
            # Workers come and go.
            continue
        found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
        kilobytes += int(found[1]) if found else 0
    return kilobytes / 1024


def _family_stat(pid: int) -> list[list[str]]:
    """Of a process and its descendants: the fields of /proc/PID/stat after the command name, then the pid."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        stats[int(entry.name)] = [*fields, entry.name]
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    family = [pid]
    for member in family:
        family.extend(children.get(member, []))
    return [stats[member] for member in family if member in stats]


def wait_until(deadline: float, what: str) -> None:
    """One step of a poll loop: raises past the deadline, else naps too briefly to blur a figure."""
    if time.monotonic() > deadline:
        raise BrokerFailed(f"{what} took too long")
    time.sleep(0.002)
