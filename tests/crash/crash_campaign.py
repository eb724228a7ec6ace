"""One campaign: its seed, how many kills, the brokers it starts, and what it has to report."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storm import Storm

from campaign.checker import check
from campaign.history import Anomalies, History, Outcome
from campaign.processes import free_port
from campaign.report import shorten_each
from ottla.testing import BrokerProcess
from ottla.testing.process import BrokerFailed


@dataclass(slots=True)
class Campaign:
    """The hand that a test plays."""

    name: str
    seed: int
    kills: int
    figures: list[str]
    directory: Path
    brokers: list[BrokerProcess] = field(default_factory=list)
    launch_s_max: float = 0.0
    launches: int = 0

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)

    def start(self, settings: Mapping[str, str] | None = None, data: Path | None = None) -> BrokerProcess:
        """A broker on a port that stays its own while it is down, and in a directory that stays when it is killed."""
        listener = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
        quiet = {"log.dir.free.bytes.min": "0"}
        broker = BrokerProcess.start(data or self.directory / "data", {**listener, **quiet, **(settings or {})})
        self.brokers.append(broker)
        return broker

    def kill(self, broker: BrokerProcess) -> None:
        """kill -9, after a look at what it has said in this life."""
        assert "Traceback" not in broker.errors(), broker.errors()
        broker.kill()

    def relaunch(self, broker: BrokerProcess) -> float:
        """Start a broker that was ended; how long that took."""
        started = time.monotonic()
        broker.launch()
        took = time.monotonic() - started
        self.launches += 1
        self.launch_s_max = max(self.launch_s_max, took)
        return took

    def close(self) -> None:
        """End every broker; may be called again."""
        while self.brokers:
            broker = self.brokers.pop()
            broker.kill()
            print(f"the last broker on {broker.bootstrap} wrote:\n{broker.errors()[-3000:]}")
            broker.close()

    def say(self, line: str) -> None:
        self.figures.append(f"{self.name}: {line} (seed {self.seed})")

    def verdict(self, storm: Storm, history: History) -> Anomalies:
        """Check the history, note the figures; what was found, with what reached clients."""
        found = check(history)
        lost = len(found.get("lost-write", [])) + len(found.get("unseen", []))
        self.say(
            f"{history.count(Outcome.ACKNOWLEDGED)} acknowledged, {history.count(Outcome.REFUSED)} refused, "
            f"{lost} lost, {len(found.get('duplicate', []))} duplicates, {len(storm.errors)} errors at clients, "
            f"{self.launches} restarts, slowest {self.launch_s_max:.2f} s, "
            f"longest time without an acknowledgement {storm.gap_s_max:.2f} s"
        )
        if storm.errors:
            found["errors-at-clients"] = storm.errors
        return shorten_each(found)


def refusal_to_start(broker: BrokerProcess) -> str:
    """Start a broker that may not be able to; what it says then, empty when it started."""
    try:
        broker.launch()
    except BrokerFailed as error:
        return str(error)
    return ""


def launch_and_kill(broker: BrokerProcess, delay_s: float) -> bool:
    """Start a broker and kill -9 it that long after its process began; whether it was still starting."""

    def kill() -> None:
        while broker._process is None:
            time.sleep(0.001)
        broker._process.send_signal(signal.SIGKILL)

    timer = threading.Timer(delay_s, kill)
    timer.start()
    try:
        broker.launch()
    except BrokerFailed:
        return True
    finally:
        timer.join()
    broker.kill()
    return False
