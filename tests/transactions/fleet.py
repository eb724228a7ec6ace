"""Worker processes that are killed, frozen and replaced, and come back when they ended by themselves."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_END_S_MAX = 60.0
#: a worker that ends at once, again and again, is not what is tested here
_ENDS_MAX_PER_KILL = 4
_PR_SET_PDEATHSIG = 1


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
                [sys.executable, str(self._script), *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

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
