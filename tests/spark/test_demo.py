"""The demonstration with an end, in the session that all tests share. Its broker is killed with SIGKILL on the way."""

from __future__ import annotations

import itertools
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.demo.run import Options, run
from ottla.pipeline import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker

_numbers = itertools.count(1)


class PipelineThread:
    """Stands in for the driver process, because the start of Spark takes most of the time.

    A thread cannot be killed. `test_kills` and the campaigns kill driver processes.
    """

    def __init__(self, spark: SparkSession, file: Path) -> None:
        from ottla.pipeline.run import Supervisor

        self.pid = next(_numbers)
        self._supervisor = Supervisor(load(str(file)), spark)
        self._supervisor.status.pid = self.pid
        self._thread = threading.Thread(target=self._supervisor.run)
        self._thread.start()

    def check(self) -> None:
        assert self._thread.is_alive(), self.tail()

    def tail(self) -> str:
        return "\n".join(f"{flow.name}: {flow.state} {flow.error}" for flow in self._supervisor.status.flows)

    def stop(self, hurry: threading.Event | None = None) -> int:
        self._supervisor.request_stop()
        self._thread.join(60)
        return 0

    def kill(self) -> int:
        raise AssertionError("a thread cannot be killed")


def test_every_figure_of_the_demonstration_is_right(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(events=400, seed=11, data=tmp_path / "demo", kills_driver=False, pause_s=0.0)
    right = run(options, lambda file, _: PipelineThread(spark, file))
    printed = capsys.readouterr().out
    assert right, printed
    for words in (
        "zone raw", "zone staging", "zone trusted", "zone refined", "quarantine", "not JSON",
        "one figure, traced back to its records", "the broker is dead", "the broker serves again",
    ):  # fmt: skip
        assert words in printed
    assert re.search(r"^(\d+) of \1 figures are right\.$", printed, re.M)
