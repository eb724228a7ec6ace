"""The demonstration on a cluster that loses a worker halfway: its tables are those of a run in one process.

    make campaign NAME=spark-cluster

Takes minutes, and so it is not among the tests that always run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import SparkCluster

from ottla.demo.check import Lake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "OTTLA_SPARK_CLUSTER" not in os.environ, reason="takes minutes: make campaign NAME=spark-cluster runs it"
    ),
]

_EVENTS = 3_000
_SEED = 7
#: so slow that many batches come after the one with which the worker dies
_RATE = 30.0
_PATIENCE_S = 400.0
_LOOK_S = 0.1
_RAW = ("orders_raw", "payments_raw", "clicks_raw")
_ZONES = ("raw", "staging", "trusted", "refined", "quarantine")
#: when a record was sent, by our clock: differs between runs of the same shop
_OF_THE_RUN = ("_timestamp",)


def test_a_run_that_loses_a_worker_makes_the_tables_of_a_run_in_one_process(tmp_path: Path) -> None:
    local = Demo(tmp_path / "local", "--master", "local[2]")
    local.finish()
    with SparkCluster.start(tmp_path / "spark", workers=2) as cluster:
        demo = Demo(tmp_path / "demo", "--master", cluster.master, "--rate", str(_RATE))
        try:
            demo.wait_until(lambda: demo.rows_through() >= _EVENTS // 2, "half of the events are in the raw zone")
            assert cluster.cores_used() == 2, "both workers are at work"
            seen = demo.rows_through()
            cluster.kill_worker(0)
            demo.finish()
        finally:
            demo.close()
        assert cluster.workers_alive() == 1
    print(f"a worker was killed with {seen} of {_EVENTS} events in the raw zone; {demo.restarts()} flows started again")
    for zone in _ZONES:
        names = local.lake.tables(zone)
        assert demo.lake.tables(zone) == names and names
        for name in names:
            ours, theirs = rows_of(demo.lake, zone, name), rows_of(local.lake, zone, name)
            print(f"{zone}/{name}: {ours.total()} rows")
            assert ours == theirs, f"{zone}/{name}: {describe(ours - theirs)} instead of {describe(theirs - ours)}"


def rows_of(lake: Lake, zone: str, table: str) -> Counter[str]:
    """Rows as they are but for what is of one run alone."""
    return Counter(
        repr(sorted((name, value) for name, value in row.items() if name not in _OF_THE_RUN))
        for row in lake.rows(zone, table)
    )


def describe(rows: Counter[str]) -> str:
    return f"{rows.total()} rows ({list(rows)[:2]})"


class Demo:
    """`ottla demo`, as somebody would call it."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.lake = Lake(directory / "lake")
        self._directory = directory
        self._status = directory / "lake" / "_status" / "shop.json"
        self._log = directory.with_suffix(".log")
        # The test kills a worker; the demonstration would also kill its driver and its broker.
        command = [sys.executable, "-m", "ottla", "demo", "--no-kills", "--events", str(_EVENTS), "--seed", str(_SEED)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*command, "--data", str(directory), *words], stdout=log, stderr=log)

    def rows_through(self) -> int:
        """Events that have been written to the raw zone."""
        return sum(flow["rows"] for flow in self._flows() if flow["name"] in _RAW)

    def restarts(self) -> int:
        return sum(flow["restarts"] for flow in self._flows())

    def _flows(self) -> list[dict[str, Any]]:
        flows: list[dict[str, Any]] = json.loads(self._status.read_text())["flows"] if self._status.exists() else []
        return flows

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self._process.poll() is None, f"the demonstration has ended before {what}\n{self._output()}"
            assert time.monotonic() < deadline, f"not within {_PATIENCE_S:.0f} s: {what}\n{self._output()}"
            time.sleep(_LOOK_S)

    def finish(self) -> None:
        """Wait for its end; all of its own figures must be right."""
        code = self._process.wait(_PATIENCE_S)
        assert code == 0, self._output()
        figures = self._output().splitlines()[-1]
        assert figures.endswith("figures are right.") and len(set(figures.split()[:3:2])) == 1, figures
        print(f"{self._directory.name}: {figures}")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(_PATIENCE_S)

    def _output(self) -> str:
        return self._log.read_text(errors="replace")[-10_000:]
