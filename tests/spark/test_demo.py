"""The demonstration with an end, in the session that all tests share."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.demo.run import Options, run
from ottla.pipeline import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


class PipelineThread:
    """Stands in for the pipeline's process, whose start is most of what it costs."""

    def __init__(self, spark: SparkSession, file: Path) -> None:
        from ottla.pipeline.run import Supervisor

        self.pid = os.getpid()
        self._supervisor = Supervisor(load(str(file)), spark)
        self._thread = threading.Thread(target=self._supervisor.run)
        self._thread.start()

    def check(self) -> None:
        assert self._thread.is_alive(), self.tail()

    def tail(self) -> str:
        return "\n".join(f"{flow.name}: {flow.state} {flow.error}" for flow in self._supervisor.status.flows)

    def stop(self) -> int:
        self._supervisor.request_stop()
        self._thread.join(60)
        return 0


def test_every_figure_of_the_demonstration_is_right(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = run(Options(events=400, seed=11, data=tmp_path / "demo"), lambda file, _: PipelineThread(spark, file))
    printed = capsys.readouterr().out
    assert right, printed
    for word in ("zone raw", "zone staging", "zone trusted", "zone refined", "quarantine", "not JSON"):
        assert word in printed
