"""Measure what an attack costs everybody else: the latency of a well-behaved client and the broker's memory.

    def test_flood() -> None:
        with Attacked() as target:
            with RawClient(target.bootstrap) as attacker:
                ...
                target.report().check()  # while the attacker's connections are still open

``Attacked`` starts a broker process, and a bystander (`bystander.py`) in a process of its own that produces one record,
fetches it and asks for metadata, over and over. Everything from the start of the block to ``report()`` is measured.

``check()`` asserts what no busy machine can change: the broker runs, has logged no traceback, has answered the
bystander (also in a round of requests that began after the attack) and has grown by less than 64 MB. With
``OTTLA_HOSTILE=1`` (campaign `hostile`, on a quiet machine) it also asserts that no request of the bystander took
200 ms. ``scaled(short, full)`` gives an attack its size in ``make test`` and in ``make campaign NAME=hostile``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.testing import BrokerProcess

STRICT = os.environ.get("OTTLA_HOSTILE") == "1"
MIB = 1 << 20
LATENCY_MS_MAX = 200.0
GROWTH_BYTES_MAX = 64 * MIB

_ROOT = Path(__file__).resolve().parent.parent.parent
_SAMPLE_S = 0.02
#: the longest that the bystander may take to finish its last round; a broker that blocks longer fails in any mode
_LAST_ROUND_S_MAX = 90.0


def scaled(short: int, full: int) -> int:
    """Return the size of an attack: ``short`` in ``make test``, ``full`` in ``make campaign NAME=hostile``."""
    return full if STRICT else short


@dataclass(frozen=True, slots=True)
class Report:
    """The cost of an attack for everybody else."""

    rounds: int
    requests: int
    worst_ms: float
    worst_api: str
    #: the most CPU time that the broker's event loop used while the bystander waited for one answer
    worst_cpu_ms: float
    growth_bytes: int
    alive: bool
    log: str

    def check(self, *, latency_ms_max: float = LATENCY_MS_MAX, growth_bytes_max: int = GROWTH_BYTES_MAX) -> None:
        """Raise AssertionError if the attack was noticed; the latency counts only in ``make campaign NAME=hostile``."""
        print(f"hostile: {self}")
        assert self.alive, self.log[-3000:]
        assert "Traceback" not in self.log, self.log[self.log.index("Traceback") - 300 :][:3000]
        assert self.rounds >= 1
        assert self.growth_bytes < growth_bytes_max, f"the broker grew by {self.growth_bytes / MIB:.0f} MB"
        if STRICT:
            assert self.worst_ms < latency_ms_max, f"{self.worst_api} took {self.worst_ms:.0f} ms"

    def __str__(self) -> str:
        return (
            f"worst latency {self.worst_ms:.1f} ms ({self.worst_api}) of {self.requests} requests, "
            f"most CPU time of the loop in one of them {self.worst_cpu_ms:.1f} ms, "
            f"memory growth {self.growth_bytes / MIB:.1f} MB"
        )


class Attacked:
    """A broker process under attack, with a bystander that measures latency and a sampler of its memory."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.process = BrokerProcess.start(settings=settings)
        self._bystander: subprocess.Popen[str] | None = None
        self._memory = _MemorySampler(self.process.pid)

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    def measure(self) -> None:
        """Start to measure again: call it when the preparation of an attack (topics, records) is done."""
        self._stop_bystander()
        self._bystander = _start_bystander(self.bootstrap, self.process.pid)
        self._memory.start()

    def report(self) -> Report:
        """Let the bystander finish one more round, and return what was measured."""
        figures = self._stop_bystander()
        growth = self._memory.stop()
        return Report(
            rounds=int(figures["rounds"]),
            requests=int(figures["requests"]),
            worst_ms=float(figures["worst_ms"]),
            worst_api=str(figures["worst_api"]),
            worst_cpu_ms=float(figures["worst_cpu_ms"]),
            growth_bytes=growth,
            alive=self.process.running,
            log=self.process.errors(),
        )

    def __enter__(self) -> Self:
        try:
            self.measure()
        except BaseException:
            self.process.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._memory.stop()
            if self._bystander is not None:
                self._bystander.kill()
                self._bystander.communicate()
        finally:
            self.process.close()

    def _stop_bystander(self) -> dict[str, float | str]:
        bystander, self._bystander = self._bystander, None
        if bystander is None:
            return {}
        try:
            figures, errors = bystander.communicate("\n", timeout=_LAST_ROUND_S_MAX)
        except subprocess.TimeoutExpired:
            bystander.kill()
            bystander.communicate()
            raise AssertionError(f"the broker answered nothing for {_LAST_ROUND_S_MAX:.0f} s") from None
        assert bystander.returncode == 0, f"the bystander failed: {errors}\n{self.process.errors()[-3000:]}"
        return dict(json.loads(figures))


def _start_bystander(bootstrap: str, broker_pid: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.hostile.bystander", bootstrap, str(broker_pid)]
    pipe = subprocess.PIPE
    bystander = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=_ROOT)
    assert bystander.stdout is not None
    if bystander.stdout.readline() != "ready\n":
        _, errors = bystander.communicate()
        raise AssertionError(f"the bystander did not start: {errors}")
    return bystander


# -- memory ---------------------------------------------------------------------------------------------------------


class _MemorySampler:
    """The largest resident memory of a process and its children, less what they had at the start.

    The kernel keeps the peak of a process itself (VmHWM), so a peak between two samples counts too.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._before = 0
        self._peak = 0

    def start(self) -> None:
        """Forget earlier peaks and sample in a thread until ``stop``."""
        self.stop()
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # resets VmHWM to the present size
        self._before = self._peak = _resident_bytes(self._pid, "VmRSS")
        self._done.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the growth in bytes since ``start``."""
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._thread = None
            self._look()
        return self._peak - self._before

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self._peak = max(self._peak, _resident_bytes(self._pid, "VmHWM"))


def _resident_bytes(pid: int, field: str, parent_command: bytes = b"") -> int:
    """Return a size of a process and all its children from /proc; 0 for a process that has ended.

    A child that has not executed its program yet still has the memory, and the command line, of its parent.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/status").read_text()
        # A child belongs to the thread that started it.
        threads = Path(f"/proc/{pid}/task").iterdir()
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return 0
    if command == parent_command:
        return 0
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    own = int(found[1]) * 1024 if found else 0
    return own + sum(_resident_bytes(int(child), field, command) for child in children)
