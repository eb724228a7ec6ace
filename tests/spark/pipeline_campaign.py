"""Exactly once through a pipeline under kill -9, frozen processes and power failures, with the settings that ship.

    make campaign NAME=pipeline-kills KILLS=150 ROWS=1000000 SEED=1 BROKERS=3

``ottla pipeline run`` runs the pipeline of ``pipeline_file.py`` in a process of its own. The life of each driver is
drawn from the seed (``pipeline_plan.py``): brokers, Python workers or executors are killed or frozen during it, and
the pipeline has to go on; then the driver is killed with all its processes, alone or together with a power failure of
the disk that has the checkpoints, or it is frozen until a successor has committed, and woken. After the last life the
pipeline runs once more to its end. Then ``pipeline_judge.py`` must find every event in exactly one place.

With several brokers (``campaign_brokers.py``) a blow on a broker is one on the leader of the input or of the output, on
a coordinator or on the controller, and the pipeline must make progress while a broker is down.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from campaign_brokers import Brokers, start_brokers
from campaign_directory import run_in_directory
from campaign_input import PARTITIONS, produce
from checkpoint_disk import CheckpointDisk
from driver_processes import PATIENCE_S, DriverProcesses
from kill_judge import log_ends
from kill_processes import executors_of, workers_of
from pipeline_file import EVENTS, LATEST, PIPELINE, RESULT, SCORED, TIER_OF, TIERS, event, tier_changes, write_pipeline
from pipeline_judge import Outputs
from pipeline_plan import Blow, End, Life, Victim, draw_life

from campaign.processes import kill_session, signal_session, wait_until
from campaign.report import Report
from ottla.client.cluster import Cluster
from ottla.pipeline.ownership import group_of

_CLUSTER = "local-cluster[2,1,1024]"
#: the shipped value: the kit for tests sets another
_BROKER = {"group.initial.rebalance.delay.ms": "3000"}
_BATCHES_PER_KILL = 4
_ROWS_MIN = 30
#: rows and changed tiers that are produced while a life waits for progress
_TRICKLE_S = 1.5
_STATUS_S = 1.0
_FINISH_S_MAX = 1200.0
#: each of these tables gets a new version when the pipeline makes progress
_PROGRESS = (RESULT, TIER_OF, LATEST)


@dataclass(slots=True)
class Figures:
    """Counts of a campaign."""

    seed: int
    rows: int = 0
    tier_changes: int = 0
    drivers: int = 0
    power_cuts: int = 0
    workers: int = 0
    executors: int = 0
    brokers: int = 0
    frozen_drivers: int = 0
    frozen_executors: int = 0
    frozen_brokers: int = 0
    #: blows on brokers by the roles of the victims
    roles: Counter[str] = field(default_factory=Counter)
    result: int = 0
    rejected: int = 0
    late: int = 0
    undecodable: int = 0
    batches: int = 0

    @property
    def kills(self) -> int:
        """All blows: processes that were killed or frozen."""
        killed = self.drivers + self.workers + self.executors + self.brokers
        return killed + self.frozen_drivers + self.frozen_executors + self.frozen_brokers

    def __str__(self) -> str:
        roles = ", ".join(f"{role} {count}" for role, count in sorted(self.roles.items()))
        return (
            f"{self.rows} rows, {self.tier_changes} changes of tiers, {self.batches} batches of the result; "
            f"{self.kills} blows: {self.drivers} drivers killed, {self.power_cuts} of them with a power failure of the "
            f"checkpoints' disk, {self.workers} Python workers, {self.executors} executors and {self.brokers} brokers "
            f"killed, {self.frozen_drivers} drivers, {self.frozen_executors} executors and {self.frozen_brokers} "
            f"brokers frozen and woken ({roles}); {self.result} rows in table and topic, {self.rejected} in "
            f"quarantine, {self.late} late, {self.undecodable} undecodable; SEED={self.seed}: "
            "every row in exactly one place"
        )


@dataclass(slots=True)
class Campaign:
    """One campaign: lives until there were enough blows."""

    kills: int
    rows: int
    seed: int
    directory: Path
    report: Report
    #: instead of those that the seed gives
    lives: Iterable[Life] = ()
    #: processes the rows that are left, instead of a last driver
    finish: Callable[[Path], None] | None = None
    broker_count: int = 1
    #: settings besides those that ship
    spark: Mapping[str, str] = field(default_factory=dict)
    brokers: Brokers = field(init=False)
    drivers: DriverProcesses = field(init=False)
    disk: CheckpointDisk = field(init=False)
    file: Path = field(init=False)
    figures: Figures = field(init=False)
    tiers: Iterator[list[bytes]] = field(init=False)
    #: when rows were produced for the last time, and when the status was read for the last time
    produced_s: float = 0.0
    status_s: float = 0.0

    def run(self) -> Figures:
        """Run all lives; return the figures. Raise AssertionError if an event is not in exactly one place."""
        self.figures = Figures(self.seed)
        self.tiers = tier_changes(self.seed)
        self.drivers = DriverProcesses(self.directory)
        self.disk = CheckpointDisk(self.directory)
        self.brokers = start_brokers(
            self.broker_count, self.directory, _BROKER, seed=self.seed, input_topic=EVENTS, output_topic=SCORED,
            group=group_of(PIPELINE), say=self.report.say,
        )  # fmt: skip
        is_right = False
        try:
            if self.disk.missing:
                self.report.say(f"no power failures: {self.disk.missing}")
            self._prepare()
            for life in self.lives or self._drawn_lives():
                self.report.progress(self.figures.kills, self.kills, "kills")
                self.report.say(f"{self.report.seconds:.0f} s, {self.figures.kills} kills: {life}")
                self._live(life)
            self._finish()
            self._judge()
            is_right = True
        finally:
            self.drivers.close()
            self.brokers.close()
            self.disk.close(keep=not is_right)
        self.figures.roles = self.brokers.blows
        return self.figures

    def _drawn_lives(self) -> Iterator[Life]:
        rng = random.Random(self.seed)
        while self.figures.kills < self.kills:
            yield draw_life(rng)

    def _prepare(self) -> None:
        with Cluster(self.brokers.bootstrap) as cluster:
            for topic in (EVENTS, TIERS):
                cluster.create_topic(topic, PARTITIONS)
        batch_rows = max(self._share // _BATCHES_PER_KILL, _ROWS_MIN)
        self.file = write_pipeline(
            self.directory, self.brokers.bootstrap, self.disk.checkpoints, batch_rows, self.spark
        )  # fmt: skip

    # -- lives ------------------------------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        before = self._versions()
        self._feed()
        driver = self._start_driver(cluster=life.cluster)
        if life.end is End.AT_START:
            self._sleep(driver, life.delay_s)
        else:
            self._await_progress(driver, before)
            for blow in life.blows:
                self._strike(driver, blow)
            self._feed()
            self._sleep(driver, life.delay_s)
        if life.end is End.FROZEN:
            driver = self._replace_frozen(driver)
        if life.end is End.POWER_CUT:
            self.disk.cut_power(driver)
            self.figures.power_cuts += not self.disk.missing
        else:
            kill_session(driver)
        self.figures.drivers += 1
        if life.broker_dies:
            self._kill_broker()

    def _strike(self, driver: subprocess.Popen[bytes], blow: Blow) -> None:
        """Kill or freeze a process that the driver needs. The pipeline must make progress afterwards."""
        self._feed()
        self._sleep(driver, blow.delay_s)
        if blow.victim is Victim.BROKER:
            self._strike_broker(driver, blow)
        elif blow.victim is Victim.EXECUTOR:
            self._strike_executor(driver, blow)
        else:
            self._wait_until(driver, lambda: bool(workers_of(driver)), "a Python worker runs")
            workers = workers_of(driver)
            with suppress(ProcessLookupError):
                os.kill(workers[int(blow.which * len(workers))], signal.SIGKILL)
            self.figures.workers += 1
        self._await_progress(driver, self._versions())

    def _strike_broker(self, driver: subprocess.Popen[bytes], blow: Blow) -> None:
        """Kill a broker and start it again, or freeze it. The pipeline goes on while a broker of a cluster is down."""
        if blow.frozen_s:
            self.brokers.pause()
            try:
                self._sleep(driver, blow.frozen_s)
            finally:
                self.brokers.resume()
            self.figures.frozen_brokers += 1
            return
        self.brokers.kill()
        self.figures.brokers += 1
        try:
            if self.brokers.work_without_one:
                self._await_progress(driver, self._versions())
        finally:
            self.brokers.launch()

    def _strike_executor(self, driver: subprocess.Popen[bytes], blow: Blow) -> None:
        self._wait_until(driver, lambda: bool(executors_of(driver)), "an executor runs")
        executors = executors_of(driver)
        executor = executors[int(blow.which * len(executors))]
        if not blow.frozen_s:
            executor.kill()
            self.figures.executors += 1
            return
        executor.freeze()
        try:
            self._sleep(driver, blow.frozen_s)
        finally:
            executor.wake()
        self.figures.frozen_executors += 1

    def _kill_broker(self) -> None:
        """Kill a broker and start it again."""
        self.brokers.kill()
        self.figures.brokers += 1
        self.brokers.launch()

    def _replace_frozen(self, driver: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Freeze the driver, start a successor, wake the driver when the successor has committed.

        Return the successor. It must make progress also when the driver is awake, and the driver must end by itself.
        """
        signal_session(driver, signal.SIGSTOP)
        before = self._versions()
        successor = self._start_driver()
        self._feed()
        self._await_progress(successor, before)
        signal_session(driver, signal.SIGCONT)
        self.figures.frozen_drivers += 1
        self._feed()
        self._wait_until(successor, lambda: driver.poll() is not None, "the woken driver ends because it was replaced")
        assert driver.returncode == 1, f"the woken driver ended with {driver.returncode}: {self.drivers.output()}"
        kill_session(driver)
        self._await_progress(successor, self._versions())
        return successor

    def _finish(self) -> None:
        """Process the rows that are left."""
        while self.figures.rows < self.rows:
            self._feed()
        if self.finish is not None:
            self.finish(self.file)
            return
        driver = self._start_driver("--once")
        deadline = time.monotonic() + _FINISH_S_MAX
        while driver.poll() is None:
            assert time.monotonic() < deadline, f"the last run does not end: {self.drivers.output()}"
            self._assert_no_flow_failed(driver)
            time.sleep(0.2)
        assert driver.returncode == 0, self.drivers.output()

    def _judge(self) -> None:
        figures = self.figures
        assert sum(log_ends(self.brokers.bootstrap, EVENTS).values()) == figures.rows
        outputs = Outputs.read(self._storage, self.brokers.bootstrap)
        problems = outputs.problems(figures.rows)
        assert not problems, "\n".join((f"SEED={self.seed}:", *problems))
        figures.result, figures.rejected = len(outputs.result), len(outputs.rejected)
        figures.late, figures.undecodable = len(outputs.late), len(outputs.undecodable)
        figures.batches = self._versions()[0] + 1
        self.brokers.compare_replicas([EVENTS, TIERS, SCORED])

    # -- drivers ----------------------------------------------------------------------------------------------------

    def _start_driver(self, *arguments: str, cluster: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(self.file), *arguments]
        if cluster:
            return self.drivers.start([*command, "--master", _CLUSTER], self.drivers.cluster_variables())
        return self.drivers.start(command, {})

    def _await_progress(self, driver: subprocess.Popen[bytes], before: tuple[int, ...]) -> None:
        """Return when each table has a newer version than before. Rows and tiers are produced meanwhile."""

        def has_progress() -> bool:
            if time.monotonic() - self.produced_s > _TRICKLE_S:
                self._produce(_ROWS_MIN)
            return all(now > then for now, then in zip(self._versions(), before, strict=True))

        self._wait_until(driver, has_progress, f"new versions of {', '.join(_PROGRESS)} after {before}")

    def _sleep(self, driver: subprocess.Popen[bytes], delay_s: float) -> None:
        until = time.monotonic() + delay_s
        self._wait_until(driver, lambda: time.monotonic() >= until, "time passes")

    def _wait_until(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
        def is_true() -> bool:
            assert driver.poll() is None, f"the driver ended by itself: {self.drivers.output()}"
            self._assert_no_flow_failed(driver)
            return condition()

        wait_until(is_true, lambda: f"{what}\n{self._describe()}", PATIENCE_S)

    def _assert_no_flow_failed(self, driver: subprocess.Popen[bytes]) -> None:
        if time.monotonic() - self.status_s < _STATUS_S:
            return
        self.status_s = time.monotonic()
        with suppress(FileNotFoundError):
            status = json.loads(self._status.read_bytes())
            failed = [f"{flow['name']}: {flow['error']}" for flow in status["flows"] if flow["state"] == "failed"]
            assert status["pid"] != driver.pid or not failed, "\n".join(("flows have failed:", *failed))

    def _describe(self) -> str:
        """Return what the driver has reported: the status of its flows and the end of its output."""
        status = self._status.read_text() if self._status.exists() else "no status"
        return f"{status}\n{self.drivers.output()}"

    @property
    def _storage(self) -> Path:
        return self.directory / "lake"

    @property
    def _status(self) -> Path:
        return self._storage / "_status" / f"{PIPELINE}.json"

    def _versions(self) -> tuple[int, ...]:
        """Return the newest version of each table that shows progress, -1 for a table that does not exist."""
        logs = ((self._storage / table / "_delta_log").glob("*.json") for table in _PROGRESS)
        return tuple(max((int(path.stem) for path in paths if path.stem.isdigit()), default=-1) for paths in logs)

    # -- rows -------------------------------------------------------------------------------------------------------

    @property
    def _share(self) -> int:
        return self.rows // max(self.kills, 1)

    def _feed(self) -> None:
        """Produce the rows that belong to one kill."""
        self._produce(max(min(self._share, self.rows - self.figures.rows), _ROWS_MIN))

    def _produce(self, count: int) -> None:
        """Produce events, and change the tiers of some accounts."""
        changed = next(self.tiers)
        produce(self.brokers.bootstrap, TIERS, [None] * len(changed), changed)
        numbers = range(self.figures.rows, self.figures.rows + count)
        produce(self.brokers.bootstrap, EVENTS, [None] * count, [event(number) for number in numbers])
        self.figures.rows += count
        self.figures.tier_changes += 1
        self.produced_s = time.monotonic()


def run(report: Report, *, kills: int, rows: int, seed: int | None, brokers: int) -> None:
    def play(seed: int, directory: Path) -> None:
        report.figure(str(Campaign(kills, rows, seed, directory, report, broker_count=brokers).run()))

    run_in_directory(report, seed, play)
