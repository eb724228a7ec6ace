"""The demonstration: a broker, a shop that sends events to it, the pipeline `shop` on Spark, and a view of them.

    live       until it is stopped; the shop's clock runs faster than real time, so that minutes become final
    bounded    a number of events; then all results are compared with what the shop has sent

Both kill their own driver and their own broker once (`kills`), and both compare every final figure with the shop's.

A bounded run waits twice: at half of its events for the first final figure, after which the driver is killed; and
before the orders of a till that was offline, which must arrive too late, until all orders before them are in the
tables, after which the broker is killed.

It stops in this order: the shop, Spark after its batches, the broker. A second Ctrl-C kills Spark and the broker.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ottla.client.cluster import Cluster
from ottla.demo.check import LATE_ORDERS, REVENUE, CommittedRecords, Lake, check, parse_revenue
from ottla.demo.commands import Command, commands_after, commands_to_try, short_path
from ottla.demo.counts import TableCounts
from ottla.demo.journal import Entry, Journal
from ottla.demo.kills import Facts, Kills, Step
from ottla.demo.parts import Driver, write_declaration
from ottla.demo.play import Player, create_topics
from ottla.demo.processes import Processes, StartPipeline, Stopped
from ottla.demo.shop import CLICKS, ORDERS, PAYMENTS, Event, Revenue, ShopEvents
from ottla.demo.show import (
    Scene,
    describe_comparison,
    describe_moment,
    print_checks,
    print_journal,
    print_trace,
    print_zones,
)
from ottla.demo.trace import trace_figure
from ottla.demo.web_console import WebConsole
from ottla.model.errors import OttlaError
from ottla.pipeline import load
from ottla.pipeline.layout import Layout
from ottla.pipeline.run_log import log_path
from ottla.pipeline.status import RunStatus, StatusFiles

LISTENER_ANY = "PLAINTEXT://127.0.0.1:0"
#: events per minute of a live shop: at 100 events per second one of its minutes takes a second
_PER_MINUTE = 100.0
#: duration of every bounded run by the shop's clock, so that late events are late even if there are few events
_BOUNDED_MINUTES = 60
#: between two live shops with the same directory, by their clocks
_OPENING_AFTER = timedelta(minutes=10)
_LIVE_TRIGGER = "every 2s"
_BOUNDED_TRIGGER = "every 1s"
#: For a few thousand rows, compiling less is faster, one task per step is enough, and Java needs little memory.
_SPARK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "640m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_WATCH_S = 0.25
_LINE_EVERY_S = 5.0
#: limit for the figures of revenue in memory
_REVENUE_MAX = 1_000
#: a pipeline that makes no progress for this time has failed
_SILENCE_S_MAX = 180.0
#: how long people can look at a process that was killed, and at a result before the next kill
_PAUSE_S = 2.0
_LOOK_AT_RESULT_S = 5.0
#: names of the two places where a bounded shop waits
_HALF = "half of the events"
_TILL = "orders that must arrive too late"


class DemoRefused(OttlaError):
    """The demonstration cannot begin with these options. The text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `ottla demo`."""

    #: None runs until it is stopped
    events: int | None = None
    #: events per second; None: 100 if live, else as fast as possible
    rate: float | None = None
    seed: int = 1
    #: None for a new directory, deleted at the end unless `keep`
    data: Path | None = None
    keep: bool = False
    #: whether the driver and the broker are killed; tests may leave the driver alive
    kills: bool = True
    kills_driver: bool = True
    listener: str = LISTENER_ANY
    #: whether the listener may be another address than loopback
    insecure: bool = False
    metrics: str | None = None
    #: URL of the console; None for no console
    console: str | None = None
    #: where Spark runs; None for this machine
    master: str | None = None
    #: how long a killed process stays dead
    pause_s: float = _PAUSE_S


def run(options: Options, start_pipeline: StartPipeline = Driver) -> bool:
    """Run a demonstration; return whether every figure is right. Raise Stopped when a bounded run is stopped."""
    console = Console()
    with _stop_on_signals() as signals, _directory(options, console) as directory:
        demo = _Demo(options, directory, console, signals, start_pipeline)
        return demo.run_bounded(options.events) if options.events is not None else demo.run_live()


class _Signals:
    """The stop requests of the user."""

    def __init__(self) -> None:
        #: after the first one
        self.stop = threading.Event()
        #: after the second one
        self.hurry = threading.Event()

    def receive(self, number: int, frame: FrameType | None) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


class _Demo:
    """One demonstration, in one directory. Everything but the shop runs in the main thread."""

    def __init__(
        self, options: Options, directory: Path, console: Console, signals: _Signals, start_pipeline: StartPipeline
    ) -> None:
        # Config
        self._options = options
        self._directory = directory
        self._console = console
        self._signals = signals
        self._clock_file = directory / "clock.json"
        self._lake = Lake(directory / "lake")
        # State
        self._journal = Journal(echo=self._echo)
        self._web: WebConsole | None = None
        self._scene = Scene(elapsed_s=lambda: self._journal.elapsed_s, entries=self._journal.entries)
        self._processes = Processes(
            directory, self._scene, self._journal, listener=options.listener, insecure=options.insecure,
            metrics=options.metrics, start_pipeline=start_pipeline,
        )  # fmt: skip
        self._processes.on_kill = self._forget_result
        self._files: StatusFiles | None = None
        self._counts: TableCounts | None = None
        self._kills: Kills | None = None
        self._shop = ShopEvents()
        self._revenue: dict[tuple[datetime, str], Revenue] = {}
        #: values of all records with results and with late orders, for the checks of a bounded run
        self._records: list[bytes] = []
        self._late: list[bytes] = []
        #: when the first figure since the last kill became final
        self._result_at: float | None = None
        self._printed_at = 0.0

    def run_live(self) -> bool:
        """Run until stopped; return whether every final figure equals the shop's."""
        rate = self._options.rate or _PER_MINUTE
        self._shop = ShopEvents(self._options.seed, start=self._opening(), per_minute=_PER_MINUTE)
        self._scene.heading = f"{rate:g} events per second; a minute of the shop takes a second. Ctrl-C stops all"
        if self._options.kills:
            self._kills = Kills(
                self._processes, self._journal, pause_s=self._options.pause_s,
                driver_when=self._result_was_seen if self._options.kills_driver else None,
                broker_when=self._result_was_seen,
            )  # fmt: skip
        with self._started(_LIVE_TRIGGER) as cluster:
            player = Player(cluster, self._shop, rate=rate)
            with self._playing(player) as results, self._view():
                while not self._signals.stop.wait(_WATCH_S):
                    self._watch(player, results)
                    self._write_clock(player)
            self._write_clock(player)
            self._print("Stopping: the shop, then Spark after its batches, then the broker. Ctrl-C again kills them.")
            if self._revenue and self._broker_is_up and not self._signals.hurry.is_set():
                self._print_trace(cluster)
        print_journal(self._console, self._journal.entries)
        self._print(f"Stopped. {describe_comparison(self._scene).capitalize()}.")
        self._print_kept("The next run with this directory continues.")
        return not self._scene.wrong

    def run_bounded(self, count: int) -> bool:
        """Send so many events; return whether every result is right."""
        self._shop = ShopEvents(self._options.seed, per_minute=count / _BOUNDED_MINUTES, limit=count)
        self._scene.heading = f"{count:,} events with seed {self._options.seed}, an hour of the shop's time"
        if self._options.kills:
            self._kills = Kills(
                self._processes, self._journal, pause_s=self._options.pause_s,
                driver_when=_first_half_has_results if self._options.kills_driver else None,
                broker_when=lambda facts: facts.shop_has_ended or facts.has_all_orders,
            )  # fmt: skip
        with self._started(_BOUNDED_TRIGGER) as cluster:
            player = Player(
                cluster, self._shop, rate=self._options.rate, pause_before=self._pause_before(count), close_minutes=True
            )
            with self._playing(player) as results:
                with self._view():
                    complete = self._wait_for_results(player, results)
                if not complete:
                    self._print(f"No progress for {_SILENCE_S_MAX:.0f} s: {self._describe_pipeline()}")
                self._stop_driver()
                self._read_records(results)
            trace = trace_figure(cluster, self._lake)
        checks = check(self._shop.totals, self._lake, self._records, self._late)
        print_zones(self._console, self._lake)
        if trace is not None:
            print_trace(self._console, trace)
            checks.append(trace.check)
        print_journal(self._console, self._journal.entries)
        print_checks(self._console, checks)
        wrong = sum(not one.right for one in checks)
        self._print_kept()
        self._print(f"{len(checks) - wrong} of {len(checks)} figures are right.")
        return not wrong

    # -- processes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _started(self, trigger: str) -> Iterator[Cluster]:
        """Start the broker and the driver; yield a client. Stop both at the end, the driver first."""
        try:
            pid = self._processes.start_broker()
            bootstrap = self._processes.wait_for_broker(self._signals.stop)
            self._journal.add(f"ottla broker: process {pid} serves {bootstrap}")
            with Cluster(bootstrap) as cluster:
                create_topics(cluster)
                if self._options.console is not None:
                    self._web = WebConsole(bootstrap, self._directory, self._options.console)
                spark = {**_SPARK, **({"spark.master": self._options.master} if self._options.master else {})}
                write_declaration(
                    self._processes.file, brokers=bootstrap, storage="./lake", trigger=trigger, spark=spark
                )
                declaration = load(str(self._processes.file))
                layout = Layout.of(declaration)
                self._counts = TableCounts(declaration)
                self._files = StatusFiles(layout)
                self._print_paths(bootstrap, log_path(layout))
                pid = self._processes.start_driver()
                self._journal.add(f"ottla pipeline run: process {pid} starts Spark")
                yield cluster
        finally:
            self._stop_driver()
            if self._web is not None:
                self._web.stop()
            self._processes.stop_broker(self._signals.hurry)

    @property
    def _broker_is_up(self) -> bool:
        return self._kills is None or self._kills.broker_is_up

    def _stop_driver(self) -> None:
        self._processes.stop_driver(self._signals.hurry, broker_is_up=self._broker_is_up)

    def _forget_result(self) -> None:
        self._result_at = None

    @contextmanager
    def _playing(self, player: Player) -> Iterator[_Results]:
        """Send events until the block ends; yield readers of the results."""
        player.start()
        self._journal.add("the shop sends events")
        try:
            # Each thread has a client of its own.
            with Cluster(self._processes.broker.bootstrap) as cluster:
                yield _Results(CommittedRecords(cluster, REVENUE), CommittedRecords(cluster, LATE_ORDERS))
                player.check()
        finally:
            player.stop()

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self, player: Player, results: _Results, *, has_all_orders: bool = False) -> Facts:
        """Update the scene, and take the next step of the kills."""
        player.check()
        kills = self._kills
        if self._broker_is_up:
            self._processes.broker.check()
            self._read_records(results)
        status = self._read_status()
        facts = Facts(
            now=time.monotonic(),
            final=self._scene.equal + self._scene.wrong,
            rows=sum(flow.rows for flow in status.flows) if status is not None else 0,
            broker_is_ready=kills is None
            or kills.step is not Step.BROKER_STARTING
            or self._processes.is_broker_ready(),
            shop_waits_at=player.waits_at,
            shop_has_ended=player.has_ended,
            has_all_orders=has_all_orders,
        )
        if kills is not None:
            kills.advance(facts)
        self._scene.sent = player.sent
        if not sys.stdout.isatty() and time.monotonic() - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self._print(describe_moment(self._scene))
        return facts

    def _read_records(self, results: _Results) -> None:
        new = results.revenue.read()
        if self._options.events is not None:
            self._records += new
            self._late += results.late.read()
        for at, one in map(parse_revenue, new):
            self._revenue[at] = one
            # Figures of an earlier run with the same directory are shown, but this shop does not know them.
            expected = self._shop.totals.revenue.get(at)
            if expected is not None:
                self._compare(expected == one, at, one)
        for oldest in sorted(self._revenue)[: max(len(self._revenue) - _REVENUE_MAX, 0)]:
            del self._revenue[oldest]
        self._scene.revenue = dict(self._revenue)

    def _compare(self, is_equal: bool, at: tuple[datetime, str], one: Revenue) -> None:
        self._scene.equal += is_equal
        self._scene.wrong += not is_equal
        figure = f"{at[0]:%H:%M} {at[1]} {one.amount:,.2f}"
        if self._scene.equal + self._scene.wrong == 1:
            self._journal.add(f"the first figure is final: {figure}", "green")
        if self._result_at is None:
            self._result_at = time.monotonic()
        if not is_equal:
            self._journal.add(
                f"{figure} differs from the shop's {self._shop.totals.revenue[at].amount:,.2f}", "bold red"
            )

    def _read_status(self) -> RunStatus | None:
        """Return the status that the current driver has written; None if it has written none yet."""
        pipeline = self._processes.pipeline
        if pipeline is None or self._files is None:
            return None
        pipeline.check()
        status = self._files.read()
        if status is None or status.pid != pipeline.pid:
            # The status is that of an earlier run.
            return None
        if self._scene.starting_since_s is not None:
            self._journal.add(f"Spark has started after {self._journal.elapsed_s - self._scene.starting_since_s:.0f} s")
            self._scene.starting_since_s = None
            self._scene.driver = f"process {pipeline.pid}, runs {len(status.flows)} flows on Spark"
        assert self._counts is not None, "set together with the status files"
        self._scene.status = self._counts.add_to(status)
        return status

    def _result_was_seen(self, facts: Facts) -> bool:
        """Return whether a figure became final since the last kill, and people have had time to look at it."""
        return self._result_at is not None and facts.now - self._result_at >= _LOOK_AT_RESULT_S

    # -- bounded ------------------------------------------------------------------------------------------------------

    def _pause_before(self, count: int) -> Callable[[Event, int], str]:
        passed: set[str] = set()

        def pause_before(event: Event, sent: int) -> str:
            place = _TILL if event.held_back else _HALF if self._kills is not None and sent >= count // 2 else ""
            if place in passed:
                return ""
            passed.add(place)
            return place

        return pause_before

    def _wait_for_results(self, player: Player, results: _Results) -> bool:
        """Wait until the pipeline has all results. Return False if it makes no progress for too long."""
        moved_at, before = time.monotonic(), None
        missing = _Missing(self._lake)
        while time.monotonic() - moved_at < _SILENCE_S_MAX:
            totals = self._shop.totals
            has_all_orders = player.waits_at == _TILL and self._lake.count("trusted", "orders") >= totals.good[ORDERS]
            facts = self._watch(player, results, has_all_orders=has_all_orders)
            step = self._kills.step if self._kills is not None else Step.DONE
            if (player.waits_at == _HALF and step > Step.RUNNING) or (has_all_orders and step >= Step.BROKER_DEAD):
                player.resume()
            if player.has_ended and step >= Step.BROKER_BACK and self._is_complete(missing):
                return True
            flows = self._scene.status.flows if self._scene.status is not None else []
            now = (facts.final, step, player.sent.total, [(flow.rows, flow.quarantined, flow.state) for flow in flows])
            if now != before:
                moved_at, before = time.monotonic(), now
            if self._signals.stop.wait(_WATCH_S):
                raise Stopped
        return False

    def _is_complete(self, missing: _Missing) -> bool:
        totals = self._shop.totals
        # A flow writes its table first, then its topics.
        if len(self._records) < len(totals.revenue) or len(self._late) < totals.held_back:
            return False
        expected = {
            ("trusted", "orders"): totals.good[ORDERS],
            ("trusted", "payments_trusted"): totals.good[PAYMENTS],
            ("trusted", "clicks_trusted"): totals.good[CLICKS],
            ("refined", "paid_orders"): totals.paid,
            ("refined", "revenue_per_minute"): len(totals.revenue),
            ("refined", "clicks_per_minute"): len(totals.clicks),
        }
        return missing.is_empty(expected)

    def _describe_pipeline(self) -> str:
        flows = self._scene.status.flows if self._scene.status is not None else []
        errors = [f"{flow.name}: {flow.error}" for flow in flows if flow.error]
        pipeline = self._processes.pipeline
        return "\n".join([*errors, pipeline.tail() if pipeline is not None else ""])

    def _opening(self) -> datetime:
        reached = None
        if self._clock_file.exists():
            reached = datetime.fromisoformat(json.loads(self._clock_file.read_text())["clock"])
        return opening_after(reached, datetime.now(UTC))

    def _write_clock(self, player: Player) -> None:
        self._clock_file.write_text(json.dumps({"clock": player.sent.clock.isoformat()}))

    # -- printing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _view(self) -> Iterator[None]:
        if not sys.stdout.isatty():
            self._print(self._scene.heading)
            yield
            return
        with Live(self._scene, console=self._console, refresh_per_second=4, vertical_overflow="crop"):
            yield

    def _print(self, text: str) -> None:
        # The terminal wraps long lines, so that paths and commands can be copied whole.
        self._console.print(Text(text), soft_wrap=True)

    def _echo(self, entry: Entry) -> None:
        if not sys.stdout.isatty():
            self._print(f"{entry.time}  {entry.text}")
        if self._web is not None:
            self._web.show(entry)

    def _print_paths(self, bootstrap: str, log: Path) -> None:
        if self._web is not None and (url := self._web.wait_until_ready()):
            login = f"; log in as admin with the password {self._web.password} to change things"
            self._print(f"Open {url} in a browser{login if self._web.password else ''}")
        self._print("While this runs, try in another terminal:")
        self._print_commands(commands_to_try(bootstrap, self._processes.file))
        logs = ", ".join(short_path(path) for path in (self._directory / "broker.log", self._processes.driver_log, log))
        self._print(f"Logs: {logs}")
        if self._options.data is None and not self._options.keep:
            self._print("Records and tables are deleted at the end. --keep (make demo KEEP=1) keeps them.")

    def _print_kept(self, more: str = "") -> None:
        """Say where records and tables are, and what to try with them, if they are kept."""
        if self._options.data is None and not self._options.keep:
            return
        directory = short_path(self._directory)
        self._print(f"{directory} has the broker's data, the tables (lake), shop.yaml and the logs. {more}".rstrip())
        if not self._revenue:
            return
        self._print("Try:")
        data, insecure = self._directory / "broker", self._options.insecure
        self._print_commands(commands_after(self._processes.listener, data, self._processes.file, insecure=insecure))

    def _print_commands(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._console.print(Text(f"  {command.text}", style="cyan"), soft_wrap=True)

    def _print_trace(self, cluster: Cluster) -> None:
        trace = trace_figure(cluster, self._lake)
        if trace is not None:
            print_trace(self._console, trace)
            self._scene.wrong += not trace.check.right


class _Results(NamedTuple):
    """Readers of the topics with results."""

    revenue: CommittedRecords
    late: CommittedRecords


def opening_after(reached: datetime | None, now: datetime) -> datetime:
    """Return where the clock of a shop begins: now, or after an earlier shop with the same directory if that is later.

    A minute must not have events of two shops, because each compares the results with its own events only. A
    demonstration that was killed may have sent some minutes more than `reached`.
    """
    begin = now if reached is None else max(now, reached + _OPENING_AFTER)
    return begin.replace(second=0, microsecond=0)


def _first_half_has_results(facts: Facts) -> bool:
    return facts.shop_waits_at == _HALF and facts.final > 0


class _Missing:
    """The tables that do not have all of their rows yet. A table that has them is not counted again."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._complete: set[tuple[str, str]] = set()

    def is_empty(self, expected: Mapping[tuple[str, str], int]) -> bool:
        for table, count in expected.items():
            if table not in self._complete:
                if self._lake.count(*table) < count:
                    return False
                self._complete.add(table)
        return True


@contextmanager
def _directory(options: Options, console: Console) -> Iterator[Path]:
    if options.data is not None:
        if options.events is not None and options.data.exists() and any(options.data.iterdir()):
            raise DemoRefused(f"{options.data} is not empty, and its rows would be counted: choose a new directory")
        options.data.mkdir(parents=True, exist_ok=True)
        yield options.data.resolve()
        return
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        yield directory
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
            console.print("Records and tables are deleted. --keep (make demo KEEP=1) keeps them.")


@contextmanager
def _stop_on_signals() -> Iterator[_Signals]:
    """Yield the requests of SIGINT (Ctrl-C) and SIGTERM. The parts are in other sessions and do not receive them."""
    signals = _Signals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signals.receive) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
