"""The two kills of a demonstration: the driver with `kill -9`, then the broker. A state machine without processes.

    RUNNING --driver due--> DRIVER_DEAD --pause--> DRIVER_STARTING --rows written--> DRIVER_BACK
    DRIVER_BACK --broker due--> BROKER_DEAD --pause--> BROKER_STARTING --ready--> BROKER_BACK --rows written--> DONE

`Facts` is the state of the demonstration at one moment. `Actions` starts and kills its processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ottla.demo.journal import Journal

_KILL_STYLE = "bold red"
_BACK_STYLE = "bold green"


class Step(IntEnum):
    RUNNING = 0
    DRIVER_DEAD = 1
    DRIVER_STARTING = 2
    DRIVER_BACK = 3
    BROKER_DEAD = 4
    BROKER_STARTING = 5
    BROKER_BACK = 6
    DONE = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The state of the demonstration at one moment."""

    now: float
    #: final figures that were read from the topic with the results
    final: int = 0
    #: rows that the current run has written, over all flows
    rows: int = 0
    broker_is_ready: bool = True
    #: where the shop waits until it may continue, "" if it does not
    shop_waits_at: str = ""
    shop_has_ended: bool = False
    #: whether the shop waits before the orders of the till, and the table of orders has all that were sent before
    has_all_orders: bool = False


class Actions(Protocol):
    """The kills and starts of processes. Each function returns the id of the process."""

    def kill_driver(self) -> int: ...

    def start_driver(self) -> int: ...

    def kill_broker(self) -> int: ...

    def start_broker(self) -> int: ...


When = Callable[[Facts], bool]


class Kills:
    """Kills the driver and the broker once each, and notes in the journal when they work again."""

    def __init__(
        self, actions: Actions, journal: Journal, *, driver_when: When | None, broker_when: When, pause_s: float
    ) -> None:
        """Without `driver_when` only the broker is killed."""
        self._actions = actions
        self._journal = journal
        self._driver_when = driver_when
        self._broker_when = broker_when
        #: how long a killed process stays dead, so that people can see it
        self._pause_s = pause_s
        self.step = Step.RUNNING if driver_when is not None else Step.DRIVER_BACK
        #: when the last kill happened
        self._killed_at = 0.0
        #: rows of the run when the broker was killed
        self._rows_before = 0

    @property
    def broker_is_up(self) -> bool:
        return self.step not in (Step.BROKER_DEAD, Step.BROKER_STARTING)

    def advance(self, facts: Facts) -> None:
        """Take the next step if its condition is true."""
        after_s = facts.now - self._killed_at
        if self.step is Step.RUNNING and self._driver_when is not None and self._driver_when(facts):
            pid = self._actions.kill_driver()
            self._note_kill(facts, Step.DRIVER_DEAD, f"kill -9 {pid}: the driver and its Java process are dead")
        elif self.step is Step.DRIVER_DEAD and after_s >= self._pause_s:
            pid = self._actions.start_driver()
            self._journal.add(f"ottla pipeline run, again: process {pid} starts Spark and takes over")
            self.step = Step.DRIVER_STARTING
        elif self.step is Step.DRIVER_STARTING and facts.rows:
            self._note_recovery(Step.DRIVER_BACK, f"the new driver writes rows, {after_s:.0f} s after the kill")
        elif self.step is Step.DRIVER_BACK and self._broker_when(facts):
            self._rows_before = facts.rows
            pid = self._actions.kill_broker()
            self._note_kill(facts, Step.BROKER_DEAD, f"kill -9 {pid}: the broker is dead")
        elif self.step is Step.BROKER_DEAD and after_s >= self._pause_s:
            pid = self._actions.start_broker()
            self._journal.add(f"ottla broker, again: process {pid} recovers the log")
            self.step = Step.BROKER_STARTING
        elif self.step is Step.BROKER_STARTING and facts.broker_is_ready:
            self._note_recovery(Step.BROKER_BACK, f"the broker serves again, {after_s:.1f} s after the kill")
        elif self.step is Step.BROKER_BACK and facts.rows > self._rows_before:
            self._note_recovery(Step.DONE, f"the pipeline writes rows again, {after_s:.0f} s after the kill")

    def _note_kill(self, facts: Facts, step: Step, text: str) -> None:
        self.step = step
        self._killed_at = facts.now
        self._journal.add(text, _KILL_STYLE)

    def _note_recovery(self, step: Step, text: str) -> None:
        self.step = step
        self._journal.add(text, _BACK_STYLE)
