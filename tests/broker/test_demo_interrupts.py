"""Ctrl-C at several moments of a demonstration: no traceback, the right exit code, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.demo.parts import session_members

pytestmark = pytest.mark.broker

_WAIT_S_MAX = 120.0
#: Runs a demonstration whose driver is a small program instead of Spark. Arguments: moment, directory, events.
_DEMO = """
import sys
from pathlib import Path
from ottla.demo import parts, run
from ottla.model.errors import OttlaError

moment, directory, events = sys.argv[1:]

class Driver(parts.Part):
    def __init__(self, file, log):
        super().__init__("driver", ["demo_driver", moment], log)

if moment == "broker":
    def is_ready(broker):
        print("process", broker.pid, "is not ready", flush=True)
        return False
    parts.Broker.ready = property(is_ready)
if moment == "dead broker":
    run._Demo._result_was_seen = lambda self, facts: facts.now > 0
options = run.Options(events=int(events) or None, data=Path(directory), kills_driver=False, pause_s=3600)
try:
    sys.exit(0 if run.run(options, Driver) else 1)
except run.Stopped:
    sys.exit(130)
except OttlaError as error:
    sys.exit(f"error: {error}")
"""
#: has a child process in a process group of its own, as Spark's Python workers are
_DRIVER = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "shutdown":
    signal.signal(signal.SIGTERM, lambda *_: print("received SIGTERM", flush=True))
subprocess.Popen(["sleep", "3600"], process_group=0)
print("driver runs", flush=True)
while True:
    time.sleep(3600)
"""


class Demo:
    """A demonstration in a process, with the lines that it has printed."""

    def __init__(self, directory: Path, moment: str, events: int) -> None:
        (directory / "demo_driver.py").write_text(_DRIVER)
        self.driver_log = directory / "data" / "driver.log"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DEMO, moment, str(directory / "data"), str(events)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} was not printed: {self.lines}, {self.process.communicate()[1]}")

    def wait_for_driver(self, text: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while not self.driver_log.exists() or text not in self.driver_log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Return exit code and standard error. No process of the demonstration may be left."""
        out, err = self.process.communicate(timeout=_WAIT_S_MAX)
        text = "".join([*self.lines, out])
        parts = set(map(int, re.findall(r"process (\d+)", text)))
        assert parts
        assert not any(session_members(pid) for pid in parts), text
        return self.process.returncode, err


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.communicate()


@pytest.mark.parametrize(("moment", "events", "code"), [("broker", 500, 130), ("running", 0, 0), ("running", 500, 130)])
def test_ctrl_c_ends_all_processes(tmp_path: Path, demos: list[Demo], moment: str, events: int, code: int) -> None:
    demo = Demo(tmp_path, moment, events)
    demos.append(demo)
    if moment == "broker":
        demo.read_until("is not ready")
    else:
        demo.read_until("the shop sends events")
        demo.wait_for_driver("driver runs")
    demo.interrupt()
    assert demo.end() == (code, "")


def test_ctrl_c_while_the_broker_is_dead_ends_all_processes(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "dead broker", 0)
    demos.append(demo)
    demo.read_until("the broker is dead")
    demo.interrupt()
    assert demo.end() == (0, "")


def test_second_ctrl_c_kills_a_driver_that_takes_long_to_stop(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "shutdown", 0)
    demos.append(demo)
    demo.read_until("the shop sends events")
    demo.wait_for_driver("driver runs")
    demo.interrupt()
    demo.wait_for_driver("received SIGTERM")
    demo.interrupt()
    assert demo.end() == (0, "")


def test_processes_end_when_the_demonstration_is_killed(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "running", 0)
    demos.append(demo)
    demo.read_until("serves 127.0.0.1")
    (broker,) = map(int, re.findall(r"process (\d+) serves", "".join(demo.lines)))
    demo.process.kill()
    demo.process.communicate()
    deadline = time.monotonic() + _WAIT_S_MAX
    while session_members(broker):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The stand-in for the driver does not watch its standard input, as `ottla pipeline run` does.
    for pid in _pids_of_drivers(demo):
        os.killpg(pid, signal.SIGKILL)


def _pids_of_drivers(demo: Demo) -> list[int]:
    return [int(pid) for pid in re.findall(r"pipeline run: process (\d+)", "".join(demo.lines))]
