"""The kills of a demonstration: driver first, then the broker, each once, and the journal says so."""

from __future__ import annotations

from dataclasses import replace

from ottla.demo.journal import Journal
from ottla.demo.kills import Facts, Kills, Step


class Processes:
    """Records what is killed and started."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _call(self, name: str) -> int:
        self.calls.append(name)
        return 100 + len(self.calls)

    def kill_driver(self) -> int:
        return self._call("kill driver")

    def start_driver(self) -> int:
        return self._call("start driver")

    def kill_broker(self) -> int:
        return self._call("kill broker")

    def start_broker(self) -> int:
        return self._call("start broker")


def new_kills(processes: Processes, journal: Journal) -> Kills:
    return Kills(
        processes, journal, driver_when=lambda facts: facts.final > 0, broker_when=lambda facts: facts.final > 1,
        pause_s=2.0,
    )  # fmt: skip


def test_driver_and_broker_are_killed_once_each_and_started_again() -> None:
    processes, journal = Processes(), Journal(lambda: 0.0)
    kills = new_kills(processes, journal)
    facts = Facts(now=10.0)
    steps = []
    changes = [
        {"rows": 50}, {"final": 1}, {"now": 11.0, "rows": 0}, {"now": 12.0}, {}, {"rows": 1}, {}, {"final": 2},
        {"now": 13.0}, {"now": 14.0, "broker_is_ready": False}, {}, {"broker_is_ready": True}, {}, {"rows": 2}, {},
    ]  # fmt: skip
    for change in changes:
        facts = replace(facts, **change)  # type: ignore[arg-type]
        kills.advance(facts)
        steps.append(kills.step)
    assert steps == [
        Step.RUNNING, Step.DRIVER_DEAD, Step.DRIVER_DEAD, Step.DRIVER_STARTING, Step.DRIVER_STARTING, Step.DRIVER_BACK,
        Step.DRIVER_BACK, Step.BROKER_DEAD, Step.BROKER_DEAD, Step.BROKER_STARTING, Step.BROKER_STARTING,
        Step.BROKER_BACK, Step.BROKER_BACK, Step.DONE, Step.DONE,
    ]  # fmt: skip
    assert processes.calls == ["kill driver", "start driver", "kill broker", "start broker"]
    assert [entry.text for entry in journal.entries] == [
        "kill -9 101: the driver and its Java process are dead",
        "ottla pipeline run, again: process 102 starts Spark and takes over",
        "the new driver writes rows, 2 s after the kill",
        "kill -9 103: the broker is dead",
        "ottla broker, again: process 104 recovers the log",
        "the broker serves again, 2.0 s after the kill",
        "the pipeline writes rows again, 2 s after the kill",
    ]


def test_broker_is_not_asked_for_anything_while_it_is_dead() -> None:
    kills = new_kills(Processes(), Journal())
    up = []
    for kills.step in Step:
        up.append(kills.broker_is_up)
    assert [step for step, is_up in zip(Step, up, strict=True) if not is_up] == [Step.BROKER_DEAD, Step.BROKER_STARTING]


def test_driver_can_be_left_alive() -> None:
    processes = Processes()
    kills = Kills(processes, Journal(), driver_when=None, broker_when=lambda facts: facts.has_all_orders, pause_s=0.0)
    kills.advance(Facts(now=1.0, final=1))
    kills.advance(Facts(now=1.0, final=1, has_all_orders=True))
    assert processes.calls == ["kill broker"]
