"""One campaign: its seed, its size, the processes it starts, and what it has to report."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clients import Confluent

from campaign.processes import Fleet, check_log, free_port
from ottla.testing import BrokerProcess

_CHANGED = 0.2
_ANYBODY = 0.2
#: what the broker checks itself: groups and transactions are what a replay of their logs gives
VERIFY = {"group.verify.interval.ms": "500"}


@dataclass(slots=True)
class Campaign:
    """The hand that a test plays."""

    name: str
    seed: int
    kills: int
    records: int
    runs: int
    figures: list[str]
    directory: Path
    brokers: list[BrokerProcess] = field(default_factory=list)
    fleets: list[Fleet] = field(default_factory=list)
    broker_kills: int = 0

    def start_broker(self) -> BrokerProcess:
        """A broker on a port that stays its own while it is down."""
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", "log.dir.free.bytes.min": "0",
            "offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            # Checkpoints between kills too, so that recovery begins where one says.
            "log.flush.offset.checkpoint.interval.ms": "700",
            **VERIFY,
        }  # fmt: skip
        broker = BrokerProcess.start(self.directory / "data", settings)
        self.brokers.append(broker)
        return broker

    def start_fleet(self, script: str, command: Callable[[int, int], list[str]], workers: int) -> Fleet:
        path = Path(__file__).with_name(script)
        fleet = Fleet(path, command, workers, self.directory / f"{script}.log")
        self.fleets.append(fleet)
        return fleet

    def blows(self, workers: int) -> list[Callable[[BrokerProcess, Fleet], None]]:
        """What happens, in order: two kills of the broker for three of a worker, and zombies besides."""
        rng = random.Random(self.seed)
        of_broker = round(self.kills * 2 / 5)
        blows: list[Callable[[BrokerProcess, Fleet], None]] = [self._kill_broker] * of_broker

        def victim(fleet: Fleet) -> int:
            # Whoever was started just now has no transaction yet, but that should happen too.
            return rng.randrange(workers) if rng.random() < _ANYBODY else fleet.eldest

        def kill(_: BrokerProcess, fleet: Fleet) -> None:
            fleet.kill(victim(fleet))

        def make_zombie(_: BrokerProcess, fleet: Fleet) -> None:
            fleet.thaw()
            fleet.freeze_and_replace(victim(fleet))

        blows += [kill] * (self.kills - of_broker)
        blows += [make_zombie] * max(round(self.kills * _CHANGED), 1)
        rng.shuffle(blows)
        return blows

    def _kill_broker(self, broker: BrokerProcess, _: Fleet) -> None:
        kill_and_launch(broker)
        self.broker_kills += 1

    def end_transactions(self, bootstrap: str, transactional_ids: list[str]) -> None:
        """Whatever dead workers left open is aborted, as their successors would do."""
        for transactional_id in transactional_ids:
            Confluent(bootstrap, transactional_id, "last", 60_000).close()

    def say(self, line: str) -> None:
        self.figures.append(f"{self.name}: {line} (seed {self.seed})")

    def close(self) -> None:
        """End every process; may be called again."""
        while self.fleets:
            fleet = self.fleets.pop()
            fleet.close()
            print(f"workers wrote:\n{fleet.output.read_text()[-3000:]}")
        while self.brokers:
            broker = self.brokers.pop()
            broker.kill()
            print(f"the last broker wrote:\n{broker.errors()[-3000:]}")
            broker.close()


def kill_and_launch(broker: BrokerProcess) -> None:
    broker.kill()
    check_log(broker)
    broker.launch()
