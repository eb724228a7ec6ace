"""The demonstration itself: a broker, a shop that sends events to it, the pipeline `shop` on Spark, and a view of all.

    live       until it is stopped; the shop's clock runs faster than ours, so that minutes become final while one looks
    bounded    so many events, then everything is read back and compared with what the shop knows it has sent

A bounded run waits once on the way: orders of a till that was offline must come too late, and they do only if the
pipeline has seen how late it is.

Ends in order: 1 no more events  2 Spark, after the batch it is in  3 the broker.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.live import Live

from ottla.client.cluster import Cluster
from ottla.demo.check import LATE_ORDERS, REVENUE, CommittedRecords, Lake, check, parse_revenue
from ottla.demo.parts import Broker, PartFailed, Pipeline, RunningPipeline, write_declaration
from ottla.demo.play import Player, create_topics
from ottla.demo.shop import CLICKS, ORDERS, PAYMENTS, Revenue, ShopEvents
from ottla.demo.show import draw_moment, print_checks, print_zones, tell_moment
from ottla.model.errors import OttlaError
from ottla.pipeline import load
from ottla.pipeline.layout import Layout
from ottla.pipeline.status import RunStatus, StatusFiles

#: a free port, for whoever does not care
LISTENER_ANY = "PLAINTEXT://127.0.0.1:0"
#: of a live shop: at 100 events a second one of its minutes takes a second
_PER_MINUTE = 100.0
#: a bounded run is always as long by the shop's clock, so that late is late however few events there are
_BOUNDED_MINUTES = 60
_LIVE_TRIGGER = "every 2s"
_BOUNDED_TRIGGER = "every 1s"
#: a shop is small, and on a cluster the default is two hundred tasks for each step that keeps state
_LIVE_SPARK = {"spark.sql.shuffle.partitions": "2"}
#: who ends soon has no use for what the best compiler makes of long runs
_BOUNDED_SPARK = {**_LIVE_SPARK, "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
_LOOK_S = 0.5
_TELL_EVERY_S = 5.0
#: of revenue that was read and may be shown
_REVENUE_MAX = 1_000
#: Spark may start slowly, and then something must move
_SILENCE_S_MAX = 180.0
#: tables and causes are made to be read, not to fit
_WIDTH_MIN = 120


class DemoRefused(OttlaError):
    """The demonstration cannot begin like this; the text says how it can."""


class Stopped(Exception):
    """Somebody has asked for the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for."""

    #: None goes on until it is stopped
    events: int | None = None
    #: events a second; None: 100 if live, else as fast as possible
    rate: float | None = None
    seed: int = 1
    #: None for a new directory, removed in the end unless `keep`
    data: Path | None = None
    keep: bool = False
    listener: str = LISTENER_ANY
    metrics: str | None = None
    #: where Spark runs; None for this machine
    master: str | None = None


#: starts the pipeline of a file; the other path is for what it has to say
StartPipeline = Callable[[Path, Path], RunningPipeline]


def run(options: Options, start_pipeline: StartPipeline = Pipeline) -> bool:
    """Show it; False if a figure is not as it must be. Raises Stopped when a bounded run is stopped."""
    console = Console()
    if not console.is_terminal or console.width < _WIDTH_MIN:
        console = Console(width=_WIDTH_MIN)
    with _directory(options, console) as directory, _stop_on_signals() as stop:
        demo = _Demo(options, directory, console, stop, start_pipeline)
        return demo.run_bounded(options.events) if options.events is not None else demo.run_live()


class _Demo:
    """One demonstration, in one directory."""

    def __init__(
        self,
        options: Options,
        directory: Path,
        console: Console,
        stop: threading.Event,
        start_pipeline: StartPipeline,
    ) -> None:
        # Config
        self._options = options
        self._directory = directory
        self._console = console
        self._file = directory / "shop.yaml"
        self._clock_file = directory / "clock.json"
        self._start_pipeline = start_pipeline
        # Shared
        self._stop = stop
        self._shop = ShopEvents()
        self._pipeline: RunningPipeline | None = None
        self._files: StatusFiles | None = None
        self._revenue: dict[tuple[datetime, str], Revenue] = {}
        self._records: list[bytes] = []
        self._told_at = 0.0
        self._looked_at = 0.0

    def run_live(self) -> bool:
        rate = self._options.rate or _PER_MINUTE
        self._shop = ShopEvents(self._options.seed, start=self._opening(), per_minute=_PER_MINUTE)
        with self._broker() as broker:
            heading = f"broker {broker.bootstrap}   pipeline {self._file}   {rate:g} events a second   Ctrl-C stops all"
            with self._started_pipeline(broker, _LIVE_TRIGGER, _LIVE_SPARK), Cluster(broker.bootstrap) as cluster:
                player = Player(cluster, self._shop, rate=rate)
                other = Cluster(broker.bootstrap)
                with _in_background(player) as check_player, other, self._view(heading) as show:
                    revenue = CommittedRecords(other, REVENUE)
                    while not self._stop.wait(_LOOK_S):
                        broker.check()
                        check_player()
                        show(self._look(revenue))
                        self._clock_file.write_text(json.dumps({"clock": self._shop.clock.isoformat()}))
                self._console.print("Stopping: no more events; Spark ends its batch, then the broker ends ...")
        self._console.print("Stopped.")
        return True

    def run_bounded(self, count: int) -> bool:
        self._shop = ShopEvents(self._options.seed, per_minute=count / _BOUNDED_MINUTES, limit=count)
        with self._broker() as broker, Cluster(broker.bootstrap) as cluster:
            with self._started_pipeline(broker, _BOUNDED_TRIGGER, _BOUNDED_SPARK):
                revenue = CommittedRecords(cluster, REVENUE)
                heading = f"{count:,} events with seed {self._options.seed}, an hour of the shop's time"
                with self._view(heading) as show:
                    player = Player(
                        cluster,
                        self._shop,
                        rate=self._options.rate,
                        before_held_back=lambda: self._catch_up(revenue, show),
                        after_each=lambda: self._glance(revenue, show),
                    )
                    player.play()
                    player.close_minutes()
                    complete = self._wait(revenue, show, self._is_complete)
            if not complete:
                self._console.print(f"The pipeline has not come to the end; it said:\n{self._pipeline_tail()}")
            late = CommittedRecords(cluster, LATE_ORDERS).read()
            self._records += revenue.read()
        lake = Lake(self._directory / "lake")
        checks = check(self._shop.totals, lake, self._records, late)
        print_zones(self._console, lake)
        print_checks(self._console, checks)
        wrong = sum(not one.right for one in checks)
        self._console.print(f"{len(checks) - wrong} of {len(checks)} figures are right.")
        return not wrong

    # -- parts --------------------------------------------------------------------------------------------------------

    def _broker(self) -> Broker:
        options, directory = self._options, self._directory
        log = directory / "broker.log"
        broker = Broker(directory / "broker", log, listener=options.listener, metrics=options.metrics)
        with Cluster(broker.bootstrap) as cluster:
            create_topics(cluster)
        return broker

    @contextmanager
    def _started_pipeline(self, broker: Broker, trigger: str, spark: Mapping[str, str]) -> Iterator[None]:
        if self._options.master is not None:
            spark = {**spark, "spark.master": self._options.master}
        write_declaration(self._file, brokers=broker.bootstrap, storage="./lake", trigger=trigger, spark=spark)
        self._files = StatusFiles(Layout.of(load(str(self._file))))
        self._pipeline = self._start_pipeline(self._file, self._directory / "pipeline.log")
        try:
            yield
        finally:
            self._pipeline.stop()

    def _opening(self) -> datetime:
        """Where the shop's clock begins: now, or later if it has been there before."""
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        if not self._clock_file.exists():
            return now
        reached = datetime.fromisoformat(json.loads(self._clock_file.read_text())["clock"])
        return max(now, reached.replace(second=0, microsecond=0) + timedelta(minutes=1))

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self, revenue: CommittedRecords) -> RunStatus | None:
        """What the pipeline says of itself, once it does; and what it has earned since the last look."""
        assert self._pipeline is not None and self._files is not None
        self._pipeline.check()
        new = revenue.read()
        if self._options.events is not None:
            self._records += new
        self._revenue |= dict(map(parse_revenue, new))
        for oldest in sorted(self._revenue)[: max(len(self._revenue) - _REVENUE_MAX, 0)]:
            del self._revenue[oldest]
        status = self._files.read()
        # A status may still be there from a run before.
        return status if status is not None and status.pid == self._pipeline.pid else None

    def _glance(self, revenue: CommittedRecords, show: Callable[[RunStatus | None], None]) -> None:
        """Between events, and not after each of them."""
        if self._stop.is_set():
            raise Stopped
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            show(self._look(revenue))

    def _catch_up(self, revenue: CommittedRecords, show: Callable[[RunStatus | None], None]) -> None:
        if not self._wait(revenue, show, self._has_seen_orders):
            raise PartFailed(f"the pipeline stands still:\n{self._pipeline_tail()}")

    def _wait(
        self, revenue: CommittedRecords, show: Callable[[RunStatus | None], None], done: Callable[[RunStatus], bool]
    ) -> bool:
        """Wait until the pipeline has done its part; False if nothing has moved for too long."""
        moved_at, before = time.monotonic(), None
        while time.monotonic() - moved_at < _SILENCE_S_MAX:
            status = self._look(revenue)
            show(status)
            if status is not None:
                if done(status):
                    return True
                now = [(flow.rows, flow.quarantined, flow.late, flow.state) for flow in status.flows]
                if now != before:
                    moved_at, before = time.monotonic(), now
            if self._stop.wait(_LOOK_S):
                raise Stopped
        return False

    def _has_seen_orders(self, status: RunStatus) -> bool:
        return _rows(status)["orders_trusted"] >= self._shop.totals.good[ORDERS]

    def _is_complete(self, status: RunStatus) -> bool:
        totals, rows = self._shop.totals, _rows(status)
        expected = {
            "orders_trusted": totals.good[ORDERS], "payments_trusted": totals.good[PAYMENTS],
            "clicks_trusted": totals.good[CLICKS], "paid_orders": totals.paid,
            "revenue_per_minute": len(totals.revenue), "clicks_per_minute": len(totals.clicks),
        }  # fmt: skip
        late = sum(flow.late for flow in status.flows if flow.name == "orders_trusted")
        return all(rows[name] >= count for name, count in expected.items()) and late >= totals.held_back

    def _pipeline_tail(self) -> str:
        assert self._pipeline is not None
        status = self._files.read() if self._files is not None else None
        errors = [f"{flow.name}: {flow.error}" for flow in status.flows if flow.error] if status is not None else []
        return "\n".join([*errors, self._pipeline.tail()])

    @contextmanager
    def _view(self, heading: str) -> Iterator[Callable[[RunStatus | None], None]]:
        if sys.stdout.isatty():
            with Live(console=self._console, refresh_per_second=4, vertical_overflow="crop") as live:
                lines = self._console.height
                yield lambda status: live.update(draw_moment(self._shop, status, self._revenue, heading, lines))
            return
        self._console.print(heading)
        yield self._tell

    def _tell(self, status: RunStatus | None) -> None:
        if time.monotonic() - self._told_at >= _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._console.print(tell_moment(self._shop, status, self._revenue), highlight=False)


def _rows(status: RunStatus) -> dict[str, int]:
    return {flow.name: flow.rows for flow in status.flows}


@contextmanager
def _in_background(player: Player) -> Iterator[Callable[[], None]]:
    """Events are sent by a thread; what is yielded raises if that has failed."""
    failed: list[OttlaError] = []

    def play() -> None:
        try:
            player.play()
        except OttlaError as error:
            failed.append(error)

    def check_failure() -> None:
        if failed:
            raise PartFailed(f"events can no longer be sent: {failed[0]}") from failed[0]

    thread = threading.Thread(target=play, name="shop")
    thread.start()
    try:
        yield check_failure
    finally:
        player.stop()
        thread.join()


@contextmanager
def _directory(options: Options, console: Console) -> Iterator[Path]:
    if options.data is not None:
        if options.events is not None and options.data.exists() and any(options.data.iterdir()):
            raise DemoRefused(f"{options.data} is not empty, and what is in it would be counted: name a new directory")
        options.data.mkdir(parents=True, exist_ok=True)
        yield options.data.resolve()
        return
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        yield directory
    finally:
        if options.keep:
            console.print(f"Kept in {directory}: shop.yaml, the tables under lake, the logs of broker and pipeline.")
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM. The parts are in sessions of their own and hear nothing of it."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
