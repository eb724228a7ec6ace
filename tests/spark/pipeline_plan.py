"""The plan of a campaign over a pipeline, drawn from its seed: the lives of drivers and the blows during each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

_DELAY_S_MAX = 3.0
#: from the start of the interpreter until about the first commits
_START_S = (2.0, 25.0)
#: how long a broker or an executor is frozen
_FROZEN_S = (1.0, 15.0)


class Victim(Enum):
    """The process that is killed or frozen while the driver has to go on."""

    BROKER = "broker"
    #: a Python process that Spark has started
    WORKER = "worker"
    #: with its Python processes; exists only in a cluster
    EXECUTOR = "executor"


class End(Enum):
    """How the life of a driver ends. It is always killed with all its processes."""

    #: while it starts or writes its first batches
    AT_START = "killed at start"
    KILLED = "killed"
    #: together with a power failure of the disk that has the checkpoints
    POWER_CUT = "power cut"
    #: frozen until a successor has committed, then woken
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One blow during a life: a process is killed, or frozen for a while."""

    victim: Victim
    #: between the production of rows and the blow
    delay_s: float
    #: 0: the process is killed
    frozen_s: float = 0.0
    #: which one of several processes, between 0 and 1
    which: float = 0.0

    def __str__(self) -> str:
        what = f"frozen for {self.frozen_s:.1f} s" if self.frozen_s else "killed"
        return f"{self.victim.value} {what} after {self.delay_s:.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The life of one driver."""

    #: tasks run in two executors
    cluster: bool = False
    blows: tuple[Blow, ...] = ()
    end: End
    delay_s: float
    #: the broker is killed together with the driver
    broker_dies: bool = False

    def __str__(self) -> str:
        blows = "".join(f"{blow}; " for blow in self.blows)
        return (
            f"{'local-cluster' if self.cluster else 'local'}: {blows}{self.end.value} after {self.delay_s:.2f} s"
            f"{' with the broker' if self.broker_dies else ''}"
        )


def draw_life(rng: random.Random) -> Life:
    """Return the next life."""
    cluster = rng.random() < 0.3
    end = rng.choices(list(End), (2, 3, 4, 2))[0]
    if cluster and end is End.AT_START:
        # The start of a cluster takes long; a life that ends then would be wasted.
        end = End.KILLED
    broker_dies = end is not End.FROZEN and rng.random() < 0.3
    if end is End.AT_START:
        return Life(end=end, delay_s=rng.uniform(*_START_S), broker_dies=broker_dies)
    blows = tuple(_draw_blow(rng, cluster=cluster) for _ in range(rng.randint(2, 4)))
    return Life(
        cluster=cluster, blows=blows, end=end, delay_s=rng.uniform(0, _DELAY_S_MAX), broker_dies=broker_dies
    )  # fmt: skip


def _draw_blow(rng: random.Random, *, cluster: bool) -> Blow:
    victim = rng.choices(list(Victim), (4, 1, 4) if cluster else (5, 4, 0))[0]
    is_frozen = victim is not Victim.WORKER and rng.random() < 0.25
    return Blow(
        victim=victim,
        delay_s=rng.uniform(0, _DELAY_S_MAX),
        frozen_s=rng.uniform(*_FROZEN_S) if is_frozen else 0.0,
        which=rng.random(),
    )
