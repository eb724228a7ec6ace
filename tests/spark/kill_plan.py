"""What is to happen in a campaign, drawn from its seed: the lives of drivers, and the blows that they get."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from kill_driver import TABLE, TOPIC

#: a process comes to these once, with its first batch
FIRST_PLACES = tuple(f"{TOPIC} {step}" for step in ("fenced others", "claimed", "read token"))
TOPIC_PLACES = tuple(f"{TOPIC} {step}" for step in ("start", "sending", "sent", "sent token", "decided", "end"))
TABLE_PLACES = tuple(f"{TABLE} {step}" for step in ("start", "prepared", "committed", "end"))

_DELAY_S_MAX = 2.0
#: from the start of the interpreter until about the first commit
_START_S = (3.0, 18.0)


class Victim(Enum):
    """Who dies, or falls asleep, under a driver that has to live on."""

    BROKER = "broker"
    EXECUTOR = "executor"
    #: frozen until others have done its work, then woken
    SLEEPER = "sleeping executor"


class End(Enum):
    """How a driver's life ends."""

    #: killed before or in its first batches
    AT_START = "at start"
    #: killed at any moment
    AT_MOMENT = "at a moment"
    #: killed at a step of a commit
    AT_PLACE = "at a step"
    #: frozen, replaced, woken, and killed together with its successor
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One blow under a driver that lives on: while a commit waits at a place, or after a delay."""

    victim: Victim
    place: str | None = None
    delay_s: float = 0.0
    #: which of several, between 0 and 1
    which: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim.value} {f'at {self.place!r}' if self.place else f'after {self.delay_s:.2f} s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One driver's."""

    #: tasks run in JVMs of their own
    cluster: bool = False
    blows: tuple[Blow, ...] = ()
    end: End
    place: str | None = None
    #: it dies in its first commit, not in a later one
    first: bool = False
    delay_s: float = 0.0
    #: together with the driver
    broker_dies: bool = False

    def __str__(self) -> str:
        blows = "".join(f", {blow}" for blow in self.blows)
        where = f" {'first ' if self.first else ''}{self.place!r}" if self.place else f" {self.delay_s:.2f} s"
        return (
            f"{'local-cluster' if self.cluster else 'local'}{blows}; {self.end.value}{where}"
            f"{' with the broker' if self.broker_dies else ''}"
        )


def draw_life(rng: random.Random) -> Life:
    """The next one."""
    if rng.random() < 0.35:
        return _draw_cluster_life(rng)
    end = rng.choices(list(End), (2, 3, 5, 2))[0]
    broker_dies = rng.random() < 0.5
    if end is End.AT_START:
        return Life(end=end, delay_s=rng.uniform(*_START_S), broker_dies=broker_dies)
    if end is End.AT_PLACE:
        place = rng.choice(FIRST_PLACES + TOPIC_PLACES + TABLE_PLACES)
        if place in FIRST_PLACES or rng.random() < 0.3:
            return Life(end=end, place=place, first=True, broker_dies=broker_dies)
    else:
        place = rng.choice(TOPIC_PLACES + TABLE_PLACES) if end is End.FROZEN and rng.random() < 0.7 else None
    blows = tuple(_draw_broker_blow(rng) for _ in range(rng.randint(1, 3)))
    return Life(end=end, place=place, blows=blows, delay_s=rng.uniform(0, _DELAY_S_MAX), broker_dies=broker_dies)


def _draw_cluster_life(rng: random.Random) -> Life:
    """Starting one costs most, so that it has to bear most."""
    blows = tuple(
        _draw_broker_blow(rng) if rng.random() < 0.2 else _draw_executor_blow(rng) for _ in range(rng.randint(3, 5))
    )
    end = rng.choices((End.AT_MOMENT, End.AT_PLACE, End.FROZEN), (4, 4, 1))[0]
    return Life(
        cluster=True,
        blows=blows,
        end=end,
        place=None if end is End.AT_MOMENT else rng.choice(TOPIC_PLACES + TABLE_PLACES),
        delay_s=rng.uniform(0, _DELAY_S_MAX),
        broker_dies=rng.random() < 0.5,
    )


def _draw_broker_blow(rng: random.Random) -> Blow:
    # The table's commits do not need the broker.
    place = rng.choice(TOPIC_PLACES) if rng.random() < 0.5 else None
    return Blow(victim=Victim.BROKER, place=place, delay_s=rng.uniform(0, _DELAY_S_MAX))


def _draw_executor_blow(rng: random.Random) -> Blow:
    victim = Victim.SLEEPER if rng.random() < 0.15 else Victim.EXECUTOR
    return Blow(victim=victim, delay_s=rng.uniform(0, _DELAY_S_MAX), which=rng.random())
