"""Exactly once through Spark under kill -9: drivers, executors and brokers die at points drawn from a seed.

    make campaign NAME=spark-kills KILLS=100 ROWS=1000000 SEED=1 BROKERS=3

A driver copies one topic to another and to a table (``kill_driver.py``). Its life is drawn (``kill_plan.py``): the
broker, or an executor with its workers, is killed under it, or an executor is frozen until others have done its work
and woken, and it has to bear that; in the end it is killed itself
with all that it has started, at any moment or at a step of a commit, half of the time together with the broker; or it
is frozen, and comes back to life when its successor has committed. When all is over, readers that are not ours
(``kill_judge.py``) must find every row once, and every offset of the input once, in the topic and in the table.

With several brokers (``campaign_brokers.py``) a blow on a broker is one on the leader of the input or of the output, on
a coordinator or on the controller. It is killed, and both queries must commit while it is down; or it is paused.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from campaign_brokers import Brokers, start_brokers
from campaign_directory import run_in_directory
from campaign_input import PARTITIONS, produce
from driver_processes import PATIENCE_S, DriverProcesses
from kill_driver import DIE, GROUP, REACHED, TABLE, TOPIC, WAIT, checkpoint_of
from kill_judge import assert_each_once, log_ends, rows_of_table, rows_of_topic
from kill_plan import Blow, End, Life, Victim, draw_life
from kill_processes import Executor, executors_of

from campaign.processes import kill_session, signal_session, wait_until
from campaign.report import Report
from ottla.client.cluster import Cluster

SINKS = (TOPIC, TABLE)

_INPUT, _OUTPUT = "in", "out"
_CLUSTER = "local-cluster[2,1,1024]"
_BATCHES_PER_KILL = 4
_LAST_BATCHES = 2
_FINISH_S_MAX = 600.0
_BROKER = {"log.dir.free.bytes.min": "0"}
#: a broker of a cluster is paused instead of killed with this probability, for a time in this range
_PAUSED = 0.25
_PAUSED_S = (1.0, 15.0)


@dataclass(slots=True)
class Figures:
    """What happened."""

    seed: int
    rows: int = 0
    drivers: int = 0
    executors: int = 0
    brokers: int = 0
    paused_brokers: int = 0
    #: blows on brokers by the roles of the victims
    roles: Counter[str] = field(default_factory=Counter)
    frozen: int = 0
    slept: int = 0
    #: drivers that ended by themselves: fenced, or out of executors
    gave_up: int = 0
    places: Counter[str] = field(default_factory=Counter)
    batches: dict[str, int] = field(default_factory=dict)

    @property
    def kills(self) -> int:
        return self.drivers + self.executors + self.brokers + self.paused_brokers

    def __str__(self) -> str:
        batches = " and ".join(f"{count} to the {sink}" for sink, count in self.batches.items())
        places = ", ".join(f"{place} {count}" for place, count in sorted(self.places.items()))
        roles = ", ".join(f"{role} {count}" for role, count in sorted(self.roles.items()))
        return (
            f"{self.rows} rows in batches, {batches}; {self.kills} blows: {self.drivers} drivers, {self.executors} "
            f"executors, {self.brokers} brokers killed, {self.paused_brokers} brokers paused ({roles}); {self.frozen} "
            f"drivers and {self.slept} executors frozen and woken, "
            f"{self.gave_up} drivers gave up by themselves; {sum(self.places.values())} blows at steps of commits "
            f"({places}); SEED={self.seed}: every row once in topic and table"
        )


class _DriverEnded(Exception):
    """By itself, after it had lost executors: Spark may do that, and the next one resumes."""


@dataclass(slots=True)
class Campaign:
    """One campaign: lives until there were enough kills."""

    kills: int
    rows: int
    seed: int
    directory: Path
    report: Report
    broker_count: int = 1
    brokers: Brokers = field(init=False)
    #: which blows on brokers of a cluster are pauses
    pauses: random.Random = field(init=False)
    drivers: DriverProcesses = field(init=False)
    figures: Figures = field(init=False)
    #: the driver that lives now has lost executors
    wounded: bool = False

    def run(self) -> Figures:
        """Play it, and judge."""
        self.figures = Figures(self.seed)
        self.drivers = DriverProcesses(self.directory)
        self.pauses = random.Random(f"{self.seed} pauses")
        self.brokers = start_brokers(
            self.broker_count, self.directory, _BROKER, seed=self.seed, input_topic=_INPUT, output_topic=_OUTPUT,
            group=GROUP, say=self.report.say,
        )  # fmt: skip
        try:
            with Cluster(self.brokers.bootstrap) as cluster:
                cluster.create_topic(_INPUT, PARTITIONS)
                cluster.create_topic(_OUTPUT, PARTITIONS)
            for life in self._drawn_lives():
                self.report.progress(self.figures.kills, self.kills, "kills")
                self.report.say(f"{self.report.seconds:.0f} s, {self.figures.kills} kills: {life}")
                self._live(life)
            self._finish()
            self._judge()
        finally:
            self.drivers.close()
            self.brokers.close()
        self.figures.roles = self.brokers.blows
        return self.figures

    def _drawn_lives(self) -> Iterable[Life]:
        rng = random.Random(self.seed)
        while self.figures.kills < self.kills:
            yield draw_life(rng)

    # -- lives ------------------------------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        self.wounded = False
        before = self._last_commits()
        self._feed()
        if life.first:
            self._order(life.place, DIE)
        driver = self._start_driver(cluster=life.cluster)
        with suppress(_DriverEnded):
            if life.end is End.AT_START:
                self._sleep(driver, life.delay_s)
            elif life.first:
                self._await_death(driver, life.place)
            else:
                self._await_commits(driver, before)
                for blow in life.blows:
                    self._strike(driver, blow)
                self._end(driver, life)
        self._bury(driver)
        for sink in SINKS:
            for order in self.directory.glob(f"{sink} *"):
                order.unlink()
        (self.directory / REACHED).unlink(missing_ok=True)
        if life.broker_dies:
            self._kill_broker()

    def _strike(self, driver: subprocess.Popen[bytes], blow: Blow) -> None:
        """Kill somebody whom the driver needs; it must go on."""
        if blow.place is not None:
            self._hold(driver, blow.place)
        else:
            self._feed()
            self._sleep(driver, blow.delay_s)
        if blow.victim is Victim.BROKER:
            self._strike_broker(driver)
        else:
            self._wait_until(driver, lambda: bool(executors_of(driver)), "an executor runs")
            executors = executors_of(driver)
            executor = executors[int(blow.which * len(executors))]
            self.wounded = True
            if blow.victim is Victim.SLEEPER:
                self._outlive(driver, executor)
            else:
                executor.kill()
                self.figures.executors += 1
        self._await_more(driver)

    def _outlive(self, driver: subprocess.Popen[bytes], executor: Executor) -> None:
        """An executor sleeps until Spark has given it up and others have done its work, and then goes on with it."""
        executor.freeze()
        try:
            self._await_more(driver)
        finally:
            executor.wake()
        self.figures.slept += 1

    def _await_more(self, driver: subprocess.Popen[bytes]) -> None:
        """Some rows later, each query has done one more batch."""
        before = self._last_commits()
        self._produce(PARTITIONS)
        self._await_commits(driver, before)

    def _strike_broker(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill a broker, or pause one of a cluster. Both queries must commit while a broker of a cluster is down."""
        if self.brokers.work_without_one and self.pauses.random() < _PAUSED:
            self.brokers.pause()
            self._release_commit()
            try:
                self._sleep(driver, self.pauses.uniform(*_PAUSED_S))
            finally:
                self.brokers.resume()
            self.figures.paused_brokers += 1
            return
        self.brokers.kill()
        self.figures.brokers += 1
        self._release_commit()
        try:
            if self.brokers.work_without_one:
                self._await_more(driver)
        finally:
            self.brokers.launch()

    def _kill_broker(self) -> None:
        """Kill a broker and start it again."""
        self.brokers.kill()
        self.figures.brokers += 1
        self.brokers.launch()

    def _release_commit(self) -> None:
        """Let a commit that is held go on, without the broker."""
        (self.directory / REACHED).unlink(missing_ok=True)

    def _end(self, driver: subprocess.Popen[bytes], life: Life) -> None:
        if life.end is End.FROZEN:
            self._freeze_and_replace(driver, life)
        elif life.place is not None:
            self._order(life.place, DIE)
            self._feed()
            self._await_death(driver, life.place)
        else:
            self._feed()
            self._sleep(driver, life.delay_s)

    def _freeze_and_replace(self, driver: subprocess.Popen[bytes], life: Life) -> None:
        """The driver sleeps while another goes on, and wakes up believing that nothing has happened."""
        if life.place is not None:
            self._hold(driver, life.place)
        signal_session(driver, signal.SIGSTOP)
        (self.directory / REACHED).unlink(missing_ok=True)
        before = self._last_commits()
        self.wounded = False
        successor = self._start_driver()
        self._feed()
        self._await_commits(successor, before)
        signal_session(driver, signal.SIGCONT)
        self.figures.frozen += 1
        # Both claim the next batches; whatever they make of that, no row may be lost or doubled.
        self._produce(self._share // 2 + PARTITIONS)
        time.sleep(life.delay_s)
        self._bury(successor)

    def _bury(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill it, if it has not come to its end."""
        alive = driver.poll() is None
        kill_session(driver)
        if alive or driver.returncode == -signal.SIGKILL:
            self.figures.drivers += 1
        else:
            self.figures.gave_up += 1

    def _finish(self) -> None:
        """Copy what is left. The first commit sweeps what the dead have staged."""
        self._produce(max(self.rows - self.figures.rows, PARTITIONS))
        batch_rows = max(self.rows // _LAST_BATCHES, 1)
        driver = self._start_driver(batch_rows=batch_rows, once=True)
        assert driver.wait(_FINISH_S_MAX) == 0, self.drivers.output()
        self.figures.batches = {sink: last + 1 for sink, last in zip(SINKS, self._last_commits(), strict=True)}

    def _judge(self) -> None:
        ends = log_ends(self.brokers.bootstrap, _INPUT)
        where = f"SEED={self.seed}"
        assert_each_once(rows_of_topic(self.brokers.bootstrap, _OUTPUT), self.figures.rows, ends, f"{where}, topic")
        assert_each_once(rows_of_table(self._table), self.figures.rows, ends, f"{where}, table")
        staged = list(checkpoint_of(self.directory, TOPIC).glob("ottla-staging/*/*"))
        assert not staged, f"staged files were left: {staged}"
        self.brokers.compare_replicas([_INPUT, _OUTPUT])

    # -- drivers ----------------------------------------------------------------------------------------------------

    def _start_driver(
        self, *, cluster: bool = False, batch_rows: int | None = None, once: bool = False
    ) -> subprocess.Popen[bytes]:
        batch_rows = batch_rows or max(self._share // _BATCHES_PER_KILL, 10)
        command = [
            sys.executable, str(Path(__file__).with_name("kill_driver.py")), "--bootstrap", self.brokers.bootstrap,
            "--input", _INPUT, "--output", _OUTPUT, "--table", str(self._table), "--directory", str(self.directory),
            "--batch-rows", str(batch_rows), "--master", _CLUSTER if cluster else "local[2]",
        ]  # fmt: skip
        if once:
            command.append("--once")
        return self.drivers.start(command, self.drivers.cluster_variables())

    def _order(self, place: str | None, what: str) -> None:
        """What the next commit that comes to this place has to do."""
        assert place is not None
        draft = self.directory / "draft"
        draft.write_text(what)
        draft.rename(self.directory / place)
        self.figures.places[place] += 1

    def _hold(self, driver: subprocess.Popen[bytes], place: str) -> None:
        """Returns when a commit waits there."""
        self._order(place, WAIT)
        self._feed()
        self._wait_until(driver, (self.directory / REACHED).exists, f"a commit comes to {place!r}")

    def _await_commits(self, driver: subprocess.Popen[bytes], before: tuple[int, ...]) -> None:
        """Each query has done one more batch."""

        def have_committed() -> bool:
            return all(now > then for now, then in zip(self._last_commits(), before, strict=True))

        self._wait_until(driver, have_committed, "both queries commit a batch")

    def _await_death(self, driver: subprocess.Popen[bytes], place: str | None) -> None:
        self._wait(lambda: driver.poll() is not None, f"the driver dies at {place!r}")
        assert self.wounded or driver.returncode == -signal.SIGKILL, f"it ended by itself: {self.drivers.output()}"

    def _sleep(self, driver: subprocess.Popen[bytes], delay_s: float) -> None:
        until = time.monotonic() + delay_s
        self._wait_until(driver, lambda: time.monotonic() >= until, "time passes")

    def _wait_until(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
        def is_true() -> bool:
            if condition():
                return True
            if driver.poll() is not None:
                assert self.wounded, f"the driver ended by itself: {self.drivers.output()}"
                raise _DriverEnded
            return False

        self._wait(is_true, what)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, lambda: f"{what}\n{self.drivers.output()}", PATIENCE_S)

    @property
    def _table(self) -> Path:
        return self.directory / "table"

    def _last_commits(self) -> tuple[int, ...]:
        """The newest batch that Spark knows to be done, of each query."""
        found = []
        for sink in SINKS:
            names = [path.name for path in checkpoint_of(self.directory, sink).glob("commits/*")]
            found.append(max((int(name) for name in names if name.isdigit()), default=-1))
        return tuple(found)

    # -- rows -------------------------------------------------------------------------------------------------------

    @property
    def _share(self) -> int:
        return self.rows // max(self.kills, 1)

    def _feed(self) -> None:
        """One kill's part of the rows."""
        self._produce(max(min(self._share, self.rows - self.figures.rows), 10 * PARTITIONS))

    def _produce(self, count: int) -> None:
        numbers = range(self.figures.rows, self.figures.rows + count)
        values = [b"row %d" % number for number in numbers]
        keys = [None if number % 10 == 0 else b"key %d" % (number % 1000) for number in numbers]
        produce(self.brokers.bootstrap, _INPUT, keys, values)
        self.figures.rows += count


def run(report: Report, *, kills: int, rows: int, seed: int | None, brokers: int) -> None:
    def play(seed: int, directory: Path) -> None:
        report.figure(str(Campaign(kills, rows, seed, directory, report, broker_count=brokers).run()))

    run_in_directory(report, seed, play)
