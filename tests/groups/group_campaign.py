"""The hand that a test plays: a seed, a length, groups that end with the test, and a place for figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checker import Anomalies, History, check, figures_of
from group_run import GroupRun

from campaign.report import shorten_each


@dataclass(frozen=True, slots=True)
class Campaign:
    """What a test is given."""

    name: str
    seed: int
    changes: int
    long: bool
    #: nobody ends it
    spare_broker: bool
    new_run: Callable[..., GroupRun]
    figures: list[str]

    def say(self, line: str) -> None:
        self.figures.append(f"{self.name}: {line}")

    def verdict(self, history: History) -> Anomalies:
        """Check what was seen, and note the figures."""
        found = check(history)
        self.say(f"{figures_of(history)} (seed {self.seed})")
        return shorten_each(found)
