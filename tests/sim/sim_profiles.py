"""Profiles: what a run has in addition to the general faults of ``sim_faults.py``.

A profile is a kind of run that aims at one class of bugs: it has few faults of other kinds, so that its own faults meet
the states that they need, and the run stays short. A seed draws its profile first. Half of the seeds have the general
profile, which has the faults of ``sim_faults.py`` and a cluster with three replicas and ``min.insync.replicas=2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from sim_faults import CLUSTER_WEIGHTS

GENERAL = "general"

#: faults of ``sim_faults.py`` that most profiles have beside their own
_PROCESSES = {"kill": 2, "clean stop": 2, "kill while writing": 1, "quiet": 2}
_POWER = {"power failure": 1, "power failure while writing": 2, "late power failure": 1}
_NETWORK = {
    "cut brokers": 2,
    "isolate": 1,
    "cut from store": 1,
    "expire session": 1,
    "pause": 1,
    "reset connections": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a run of this profile is made of."""

    #: how often each kind of fault is drawn; empty for the general faults
    weights: Mapping[str, int] = field(default_factory=dict)
    #: log directories of each broker
    log_dirs: int = 1
    #: pairs of replication factor and min.insync.replicas, of which a seed draws one
    replication: tuple[tuple[int, int], ...] = ()
    #: other values of min.insync.replicas that brokers may start with
    configured_min_in_sync: tuple[int, ...] = ()
    #: clients beside those of a general run
    clients: tuple[str, ...] = ()
    #: most members of a group with the consumer protocol
    consumer_members: int = 0
    #: whether each broker is in a rack of its own, with readers of the closest replica
    racks: bool = False
    #: fewest brokers with which the profile is drawn
    brokers_min: int = 3
    #: how long faults happen; 0 for as long as in a general run
    fault_s: float = 14.0


PROFILES: dict[str, Profile] = {
    GENERAL: Profile(brokers_min=1, fault_s=0.0),
    "log directories": Profile(
        log_dirs=3,
        weights={
            **_PROCESSES, "power failure": 1, "power failure while writing": 1, "cut brokers": 1,
            "lose a log directory": 6, "fail a log directory": 3, "exchange log directories": 2,
            "start without a log directory": 5, "restart all without a log directory": 6,
        },
    ),
    "starts": Profile(
        log_dirs=2,
        weights={
            **_PROCESSES, "power failure": 1, "cut brokers": 1, "metadata": 1, "end starts": 8,
            "lose a log directory and end starts": 6,
        },
    ),
    "replicas": Profile(
        replication=((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (5, 1), (5, 2), (5, 3)),
        weights={**_PROCESSES, **_POWER, **_NETWORK, "kill all": 1, "move leaders": 2},
    ),
    "clocks": Profile(
        brokers_min=1, weights={**_PROCESSES, **_POWER, **_NETWORK, "set wall clock": 4, "clock rate": 3, "suspend": 5},
    ),
    "metadata store": Profile(
        weights={**_PROCESSES, **_POWER, **_NETWORK, "metadata": 2, "slow watches": 5, "old reads": 5,
                 "move leaders": 2},
    ),
    "routes": Profile(weights={**_PROCESSES, "power failure": 1, "cut brokers": 1, "refuse connections": 6}),
    "moves": Profile(clients=("mover", "mover"), weights={**_PROCESSES, **_POWER, **_NETWORK, "move leaders": 1}),
    "min.insync.replicas": Profile(
        replication=((3, 1),), configured_min_in_sync=(1, 2), clients=("min.insync.replicas",), fault_s=20.0,
        weights={**_PROCESSES, **_NETWORK, "slow watches": 3, "roll min.insync.replicas": 4,
                 "lower min.insync.replicas late": 6},
    ),
    "clients": Profile(
        brokers_min=1, clients=("compacted",), consumer_members=3, racks=True, fault_s=12.0,
        weights={**_PROCESSES, **_POWER, **_NETWORK, "isolate a coordinator": 1, "slow disk": 1},
    ),
    "topic names": Profile(
        fault_s=10.0, clients=("recreator", "recreator"),
        weights={**_PROCESSES, "power failure": 2, "expire session": 1},
    ),
    "late jobs": Profile(brokers_min=1, weights={**_PROCESSES, **_POWER, "late jobs": 4, "slow disk": 1}),
}  # fmt: skip

#: the profiles that seeds draw; the others run only when they are asked for (``--profile``)
ENABLED: tuple[str, ...] = tuple(PROFILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster of one run, drawn from the seed and its profile."""

    profile: str
    log_dirs: int
    replication_factor: int
    #: the lowest value of min.insync.replicas in this run
    min_in_sync: int
    #: the value at its start
    configured_min_in_sync: int
    weights: Mapping[str, int]
    fault_s: float
    clients: tuple[str, ...]
    consumer_members: int
    racks: bool

    @property
    def may_lose_power(self) -> bool:
        """Return whether a power failure keeps every acknowledged record.

        If ``min.insync.replicas`` is half of the replicas or less, the only synced copies of a record may be on brokers
        that are no longer in the ISR (decision 0015).
        """
        return 2 * self.min_in_sync > self.replication_factor

    @property
    def directories(self) -> list[str]:
        """Return the paths of the log directories; none of them is a part of another one's name."""
        return ["/data"] if self.log_dirs == 1 else [f"/data-{number}" for number in range(1, self.log_dirs + 1)]


def draw_profile(seed: int, brokers: int) -> str:
    """Return the profile of a seed: the general one for every second seed."""
    rng = Random(f"{seed}/profile")
    names = [name for name in ENABLED if name != GENERAL and PROFILES[name].brokers_min <= brokers]
    return rng.choice(names) if names and rng.random() < 0.5 else GENERAL


def draw_shape(seed: int, brokers: int, name: str) -> Shape:
    """Return the cluster of a seed with this profile."""
    rng, profile = Random(f"{seed}/shape"), PROFILES[name]
    factor = min(brokers, 3)
    pairs = [pair for pair in profile.replication if pair[0] <= brokers] or [(factor, 2 if factor == 3 else 1)]
    replication_factor, min_in_sync = rng.choice(pairs)
    is_cluster, keeps_power = brokers > 1, brokers == 1 or 2 * min_in_sync > replication_factor
    weights = {
        kind: weight for kind, weight in profile.weights.items()
        if (keeps_power or "power" not in kind) and (is_cluster or kind not in CLUSTER_WEIGHTS)
    }  # fmt: skip
    return Shape(
        profile=name, log_dirs=profile.log_dirs, replication_factor=replication_factor, min_in_sync=min_in_sync,
        configured_min_in_sync=rng.choice(profile.configured_min_in_sync or (min_in_sync,)),
        weights=weights, fault_s=profile.fault_s, clients=profile.clients, racks=profile.racks and is_cluster,
        consumer_members=rng.randint(2, profile.consumer_members) if profile.consumer_members else 0,
    )  # fmt: skip
