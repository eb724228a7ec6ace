"""The processes a demonstration is made of: a broker, and a pipeline on Spark.

Each is in a session of its own, so that Ctrl-C in a terminal reaches the demonstration alone, which then ends them in
order. Each ends by itself when the demonstration is gone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ottla.model.errors import OttlaError

_LOOK_S = 0.05
_BROKER_START_S_MAX = 30.0
#: Spark ends the batch it is in first
_STOP_S_MAX = 90.0
_TAIL_LINES = 15


class PartFailed(OttlaError):
    """A process of the demonstration has ended, or does not do what it should; the text has its last words."""


class Part:
    """A process whose output goes to a file; ``more`` is added to its environment."""

    def __init__(self, name: str, words: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(more or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises if the process is not running."""
        code = self._process.poll()
        if code is not None:
            raise PartFailed(f"the {self.name} has ended with code {code}:\n{self.tail()}")

    def written(self) -> str:
        return self._log.read_text(errors="replace")

    def tail(self) -> str:
        """The end of what it wrote."""
        return "\n".join(self.written().splitlines()[-_TAIL_LINES:])

    def stop(self) -> int:
        """End it in order; the exit code."""
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Broker(Part):
    """A broker that serves."""

    def __init__(self, data: Path, log: Path, *, listener: str, metrics: str | None) -> None:
        words = ["ottla", "broker", "--data", str(data), "--listener", listener]
        words += ["--metrics", metrics] if metrics is not None else []
        super().__init__("broker", words, log, {"OTTLA_END_WITH_STDIN": "1", "PYTHONUNBUFFERED": "1"})
        try:
            self.bootstrap = self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _await_ready(self) -> str:
        deadline = time.monotonic() + _BROKER_START_S_MAX
        while time.monotonic() < deadline:
            ready = re.search(r"^ready (?:\w+://)?([^\s,]+)", self.written(), re.M)
            if ready:
                return ready[1]
            self.check()
            time.sleep(_LOOK_S)
        raise PartFailed(f"the broker did not start in {_BROKER_START_S_MAX:.0f} s:\n{self.tail()}")


class RunningPipeline(Protocol):
    """A pipeline at work, in whatever process."""

    @property
    def pid(self) -> int:
        """Of the process, as its status says."""

    def check(self) -> None: ...

    def tail(self) -> str: ...

    def stop(self) -> int: ...


class Pipeline(Part):
    """The pipeline in a file, from its start on: Spark takes a while."""

    def __init__(self, file: Path, log: Path) -> None:
        super().__init__("pipeline", ["ottla.demo.pipeline", str(file)], log)


def write_declaration(
    file: Path, *, brokers: str, storage: str, trigger: str, spark: Mapping[str, str] | None = None
) -> None:
    """The template `shop`, to be run here and now. The file stays readable: `ottla pipeline explain` draws it."""
    text = resources.files("ottla.pipeline").joinpath("templates", "shop.yaml").read_text(encoding="utf-8")
    for key, value in (("brokers", brokers), ("storage", storage), ("trigger", trigger)):
        text, count = re.subn(rf"^{key}: .*$", f"{key}: {value}", text, count=1, flags=re.M)
        assert count == 1, f"the template has a line {key}"
    settings = "".join(f'  {name}: "{value}"\n' for name, value in (spark or {}).items())
    text += f"\nspark:\n{settings}" if settings else ""
    file.write_text(text, encoding="utf-8")
