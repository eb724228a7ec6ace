"""Exactly once through Spark under kill -9: drivers and the broker die at points drawn from a seed.

    python tests/spark/kill_campaign.py --kills 50 --rows 1000000 --seed 1

A driver copies one topic to another (``kill_driver.py``). Again and again it is killed with its JVM and its workers: at
any moment, or at a step of a commit; half of the time the broker dies with it. Sometimes the broker dies first and the
driver has to bear it. Sometimes the driver is frozen, and comes back to life when its successor has committed. In the
end a read_committed consumer of librdkafka must find every
row once.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.model.types import TopicPartition
from ottla.spark.encode import encode
from ottla.testing import BrokerProcess

PARTITIONS = 3
STEPS = ("start", "fenced others", "read token", "sending", "sent", "sent token", "decided", "end")
#: a process comes to these once, with its first batch
FIRST_STEPS = ("fenced others", "read token")
#: a driver's start, its first batch or its end, on a machine that has other things to do
PATIENCE_S = 180.0

_INPUT, _OUTPUT = "in", "out"
_BATCHES_PER_KILL = 8
_DELAY_S_MAX = 2.0
_PORTS = range(20_000, 32_000)


@dataclass(slots=True)
class Figures:
    """What happened."""

    seed: int
    rows: int = 0
    kills: int = 0
    at_steps: int = 0
    frozen: int = 0
    broker_kills: int = 0
    batches: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows} rows in {self.batches} batches, {self.kills} drivers killed ({self.at_steps} at a step of a "
            f"commit), {self.frozen} frozen and woken, {self.broker_kills} brokers killed, {self.seconds:.0f} s, "
            f"--seed {self.seed}: every row once"
        )


@dataclass(slots=True)
class Campaign:
    """One campaign, from its seed."""

    kills: int
    rows: int
    seed: int
    directory: Path
    zombies: bool = True
    say: Callable[[str], None] = lambda line: None
    broker: BrokerProcess = field(init=False)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    rng: random.Random = field(init=False)
    figures: Figures = field(init=False)

    def run(self) -> Figures:
        """Play it, and judge."""
        began = time.monotonic()
        self.rng = random.Random(self.seed)
        self.figures = Figures(self.seed)
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{_free_port()}", "log.dir.free.bytes.min": "0"}
        self.broker = BrokerProcess.start(self.directory / "data", settings)
        try:
            with Cluster(self.broker.bootstrap) as cluster:
                cluster.create_topic(_INPUT, PARTITIONS)
                cluster.create_topic(_OUTPUT, PARTITIONS)
            for number in range(self.kills):
                self._feed(number)
                self._blow(number)
            self._finish()
            self._judge()
        finally:
            for driver in self.drivers:
                kill_session(driver)
            self.broker.close()
        self.figures.seconds = time.monotonic() - began
        return self.figures

    # -- blows ------------------------------------------------------------------------------------------------------

    def _blow(self, number: int) -> None:
        """One driver's life and end."""
        kind = self.rng.choices(("moment", "step", "broker", "freeze"), (4, 4, 2, 2 if self.zombies else 0))[0]
        step, delay_s = self.rng.choice(STEPS), self.rng.uniform(0, _DELAY_S_MAX)
        broker_dies = self.rng.random() < 0.5
        self.say(f"{number}: {kind} {step if kind == 'step' else f'{delay_s:.2f} s'}, broker dies: {broker_dies}")
        if kind == "step":
            driver = self._die_at(step, number, at_first=step in FIRST_STEPS or self.rng.random() < 0.5)
        else:
            driver = self._start_driver()
            self._await_commit(driver, beyond=self._last_commit())
            time.sleep(delay_s)
        if kind == "broker":
            self._restart_broker()
            self._produce(self.rows // self.kills // 10 + 1)
            self._await_commit(driver, beyond=self._last_commit())
        if kind == "freeze":
            self._freeze_and_replace(driver)
        kill_session(driver)
        self.figures.kills += 1
        if broker_dies:
            self._restart_broker()

    def _restart_broker(self) -> None:
        assert "Traceback" not in self.broker.errors(), self.broker.errors()
        self.broker.kill()
        self.broker.launch()
        self.figures.broker_kills += 1

    def _die_at(self, step: str, number: int, *, at_first: bool) -> subprocess.Popen[bytes]:
        """A driver that has died in a commit: its first one, or a later one."""
        armed = self.directory / f"armed-{number}"
        if at_first:
            armed.touch()
        last = self._last_commit()
        driver = self._start_driver("--die-at", step, "--armed", str(armed))
        if not at_first:
            self._await_commit(driver, beyond=last)
            armed.touch()
            # A commit must come to the step: the rows may have been used up.
            self._produce(self.rows // self.kills // 10 + 1)
        _wait_until(lambda: driver.poll() is not None, f"the driver dies at {step!r}", self._output)
        self.figures.at_steps += 1
        return driver

    def _freeze_and_replace(self, driver: subprocess.Popen[bytes]) -> None:
        """The driver sleeps while another goes on, and wakes up believing that nothing has happened."""
        signal_session(driver, signal.SIGSTOP)
        last = self._last_commit()
        successor = self._start_driver()
        self._produce(self.rows // self.kills // 10 + 1)
        self._await_commit(successor, beyond=last)
        signal_session(driver, signal.SIGCONT)
        # Both claim the next batches; whatever they make of that, no row may be lost or doubled.
        self._produce(self.rows // self.kills // 10 + 1)
        time.sleep(self.rng.uniform(0, _DELAY_S_MAX))
        kill_session(successor)
        self.figures.frozen += 1

    def _finish(self) -> None:
        # Its first commit sweeps what the dead have staged.
        self._produce(PARTITIONS)
        driver = self._start_driver("--once")
        _wait_until(lambda: driver.poll() is not None, "the last driver ends", self._output)
        assert driver.returncode == 0, self._output()
        kill_session(driver)
        self.figures.batches = self._last_commit() + 1

    # -- drivers ----------------------------------------------------------------------------------------------------

    def _start_driver(self, *more: str) -> subprocess.Popen[bytes]:
        batch_rows = max(self.rows // max(self.kills, 1) // _BATCHES_PER_KILL, 10)
        command = [
            sys.executable, str(Path(__file__).with_name("kill_driver.py")), "--bootstrap", self.broker.bootstrap,
            "--input", _INPUT, "--output", _OUTPUT, "--checkpoint", str(self._checkpoint),
            "--batch-rows", str(batch_rows), *more,
        ]  # fmt: skip
        with (self.directory / "drivers.log").open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.drivers.append(driver)
        return driver

    def _await_commit(self, driver: subprocess.Popen[bytes], beyond: int) -> None:
        def has_committed() -> bool:
            assert driver.poll() is None, f"the driver ended by itself: {self._output()}"
            return self._last_commit() > beyond

        _wait_until(has_committed, "a driver commits a batch", self._output)

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def _last_commit(self) -> int:
        """The newest batch that Spark knows to be done."""
        names = [path.name for path in self._checkpoint.glob("commits/*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _output(self) -> str:
        return (self.directory / "drivers.log").read_text(errors="replace")[-5000:]

    # -- rows -------------------------------------------------------------------------------------------------------

    def _feed(self, number: int) -> None:
        """This life's part of the rows."""
        share = self.rows // self.kills
        self._produce(share if number else self.rows - share * (self.kills - 1))

    def _produce(self, count: int) -> None:
        numbers = range(self.figures.rows, self.figures.rows + count)
        values = [b"row %d" % number for number in numbers]
        keys = [None if number % 10 == 0 else b"key %d" % (number % 1000) for number in numbers]
        now_ms = int(time.time() * 1000)
        with Cluster(self.broker.bootstrap) as cluster, cluster.producer() as producer:
            for partition in range(PARTITIONS):
                batches = encode(
                    pa.array(keys[partition::PARTITIONS], pa.binary()),
                    pa.array(values[partition::PARTITIONS], pa.binary()),
                    None, None, codec=0, batch_bytes_max=100_000, now_ms=now_ms,
                )  # fmt: skip
                for batch in batches:
                    producer.send(TopicPartition(_INPUT, partition), batch.data)
        self.figures.rows += count

    def _judge(self) -> None:
        found = _committed_values(self.broker.bootstrap)
        expected = {b"row %d" % number for number in range(self.figures.rows)}
        lost, doubled = expected - found.keys(), [value for value, count in found.items() if count > 1]
        foreign = found.keys() - expected
        assert not lost and not doubled and not foreign, (
            f"--seed {self.seed}: {len(lost)} rows lost ({sorted(lost)[:5]}), {len(doubled)} doubled "
            f"({sorted(doubled)[:5]}), {len(foreign)} foreign\n{self._output()}"
        )
        staged = list(self._checkpoint.glob("ottla-staging/*/*"))
        assert not staged, f"staged files were left: {staged}"


def kill_session(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 for a driver and all that it has started; returns when none of them is left."""
    deadline = time.monotonic() + PATIENCE_S
    while signal_session(driver, signal.SIGKILL):
        driver.poll()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.wait()


def signal_session(driver: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """How many there were to signal."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError, FileNotFoundError):
                if os.getsid(int(name)) == driver.pid and not _is_zombie(int(name)):
                    os.kill(int(name), number)
                    found += 1
    return found


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _committed_values(bootstrap: str) -> Counter[bytes]:
    places = [TopicPartition(_OUTPUT, number) for number in range(PARTITIONS)]
    with Cluster(bootstrap) as cluster:
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation=Isolation.READ_UNCOMMITTED)
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True, "check.crcs": True, "log_level": 2,
    }  # fmt: skip
    found: Counter[bytes] = Counter()
    unfinished = {place for place in places if ends[place].offset}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([Place(_OUTPUT, number, 0) for number in range(PARTITIONS)])
        deadline = time.monotonic() + PATIENCE_S
        while unfinished:
            assert time.monotonic() < deadline, f"a transaction was left open in {unfinished}"
            for message in consumer.consume(10_000, 0.5):
                error, place = message.error(), TopicPartition(message.topic(), message.partition())
                if error is None:
                    found[message.value()] += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif message.offset() >= ends[place].offset:
                    unfinished.discard(place)
    return found


def _wait_until(condition: Callable[[], bool], what: str, output: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}\n{output()}"
        time.sleep(0.05)


def _free_port() -> int:
    """No outgoing connection is ever given a port of this range, so none can take it while the broker is away."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def main() -> None:
    parser = argparse.ArgumentParser(description="Exactly once through Spark under kill -9.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ottla-spark-kills-"))
    print(f"--seed {given.seed}, in {directory}", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)

    print(Campaign(given.kills, given.rows, given.seed, directory, say=say).run())
    # Only a campaign that went well leaves nothing to look at.
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
