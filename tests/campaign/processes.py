"""The processes of campaigns: brokers with ports of their own, clients, workers that are replaced, whole sessions."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ottla.testing import BrokerProcess

#: No outgoing connection is ever given a port of this range, so none can take it while its broker is down.
_PORTS = range(20_000, 32_000)
_POLL_S = 0.02
_STOP_S_MAX = 300.0
_SHOWN_CHARACTERS = 2000
_END_S_MAX = 60.0
#: a worker that ends at once, again and again, is not what is tested here
_ENDS_MAX_PER_KILL = 4
_PR_SET_PDEATHSIG = 1


def wait_until(
    condition: Callable[[], bool],
    what: str | Callable[[], object] = "the condition is true",
    timeout_s: float = 120.0,
    *,
    poll_s: float = _POLL_S,
) -> None:
    """Poll until the condition is true. Raise TimeoutError with ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(poll_s)


# -- brokers --------------------------------------------------------------------------------------------------------


def free_port(avoid: Collection[int] = ()) -> int:
    """Return a port that is free now. It does not follow from a seed: two campaigns with one seed may run at once."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if port in avoid:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def check_log(broker: BrokerProcess) -> None:
    """Raise AssertionError if a broker has logged an error. Neither clients nor kills are errors of the broker."""
    text = broker.errors()
    for sign in ("Traceback", " ERROR ", "differ from a replay"):
        assert sign not in text, text[-5000:]


# -- clients and workers --------------------------------------------------------------------------------------------


class ClientProcess:
    """A process whose lines a thread passes to ``on_line``; it stops when its standard input is closed."""

    def __init__(self, name: str, command: Sequence[str], on_line: Callable[[str, str], None]) -> None:
        self.name = name
        self._on_line = on_line
        self._stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_line(self.name, line.rstrip("\n"))

    def check_running(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"{self.name} ended with code {code}: {self._errors()}")

    def stop(self, timeout_s: float = _STOP_S_MAX) -> str:
        """Ask the client to stop and wait for its end. Return what went wrong, empty if nothing did."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.join(timeout_s)

    def join(self, timeout_s: float = _STOP_S_MAX) -> str:
        """Wait for the end of the process, which is killed after the timeout. Return what went wrong."""
        problem = ""
        try:
            if (code := self._process.wait(timeout_s)) != 0:
                problem = f"{self.name} ended with code {code}: {self._errors()}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            problem = f"{self.name} did not stop within {timeout_s:.0f} s"
        self._thread.join()
        self._stderr.close()
        return problem

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self.join()

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-_SHOWN_CHARACTERS:]


class Fleet:
    """``command(worker, life)`` gives the arguments of a script for each life of each worker."""

    def __init__(self, script: Path, command: Callable[[int, int], list[str]], workers: int, output: Path) -> None:
        self.kills = 0
        self.freezes = 0
        #: lives that ended by themselves, as a producer does that was fenced or has met a fatal error
        self.ends = 0
        self.output = output
        self._script = script
        self._command = command
        self._lives = [0] * workers
        self._born_at = [0.0] * workers
        self._workers = [self._spawn(number) for number in range(workers)]
        self._frozen: list[tuple[int, subprocess.Popen[bytes]]] = []

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        self._lives[number] += 1
        self._born_at[number] = time.monotonic()
        arguments = self._command(number, self._lives[number])
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(self._script), *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )  # fmt: skip

    @property
    def eldest(self) -> int:
        """The worker that has been at work for the longest time."""
        return self._born_at.index(min(self._born_at))

    def tend(self) -> None:
        """Whoever ended is replaced."""
        for number, process in enumerate(self._workers):
            if process.poll() is not None:
                self.ends += 1
                limit = _ENDS_MAX_PER_KILL * (self.kills + self.freezes + 10)
                assert self.ends <= limit, f"workers end by themselves: {self.output.read_text()[-2000:]}"
                self._workers[number] = self._spawn(number)

    def kill(self, number: int) -> None:
        """kill -9, and a successor at once."""
        self._end(self._workers[number])
        self.kills += 1
        self._workers[number] = self._spawn(number)

    def freeze_and_replace(self, number: int) -> None:
        """SIGSTOP, and a successor at once: when it is thawed it is a zombie."""
        process = self._workers[number]
        process.send_signal(signal.SIGSTOP)
        self.freezes += 1
        self._frozen.append((number, process))
        self._workers[number] = self._spawn(number)

    def thaw(self) -> None:
        """Zombies go on where they stood."""
        for _, process in self._frozen:
            process.send_signal(signal.SIGCONT)

    def await_zombies(self) -> None:
        """One that finds itself replaced must end. If it was frozen before it had begun, that is its successor."""
        self.thaw()
        deadline = time.monotonic() + _END_S_MAX
        for number, current in enumerate(self._workers):
            rivals = [current, *(process for owner, process in self._frozen if owner == number)]
            while sum(process.poll() is None for process in rivals) > 1:
                assert time.monotonic() < deadline, "a zombie works on as if nobody had taken its place"
                time.sleep(0.05)

    def close(self) -> None:
        for process in [*self._workers, *(process for _, process in self._frozen)]:
            self._end(process)
        self._frozen.clear()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


def end_with_parent() -> None:
    """No process is left when the one that started it was killed itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# -- sessions -------------------------------------------------------------------------------------------------------


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
            if os.getsid(pid) == driver.pid and is_alive(pid):
                yield pid


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes that a process has started, and that those have started."""
    parents = {}
    for each in _pids():
        with suppress(OSError):
            parents[each] = int(_stat(each)[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent and more, behind a name in parentheses that may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
