"""Faults, drawn from the seed.

With several brokers a run has one of several profiles. A profile without power failures allows no loss of records that
were read. A profile with a damaged disk wipes one disk, or restores an old copy of it. One copy of the data is lost
then, so no other process may end until the cluster knows that this copy is lost.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim_fault_sequences import FAULT_SEQUENCES, FaultSequences
from sim_host import BrokerHost, Keep, SimulatedDisk
from sim_log_dir_faults import LOG_DIR_FAULTS, LogDirFaults
from sim_setting_faults import SETTING_FAULTS, SettingFaults

if TYPE_CHECKING:
    from sim_world import World

#: the kinds of faults and how often each is drawn
WEIGHTS = {
    "kill": 3,
    "power failure": 4,
    "kill while writing": 3,
    "power failure while writing": 5,
    "clean stop": 2,
    "pause": 1,
    "reset connections": 3,
    "cut client": 2,
    "slow disk": 2,
    "full disk": 2,
    "disk error": 1,
    "metadata": 2,
    "quiet": 3,
}
#: faults that need several brokers
CLUSTER_WEIGHTS = {
    "pause": 4,
    "cut brokers": 5,
    "isolate": 3,
    "cut from store": 3,
    "expire session": 3,
    "kill all": 1,
    "power failure of all": 1,
    "damaged disk": 0,
    **FAULT_SEQUENCES,
}
_POWER_FAILURES = tuple(kind for kind in (WEIGHTS | CLUSTER_WEIGHTS) if "power failure" in kind)
#: kinds of faults that do not happen in a run of a cluster, by the profile of the run
PROFILES: dict[str, tuple[str, ...]] = {
    "everything": (),
    "no power failures": _POWER_FAILURES,
    "network only": (
        *_POWER_FAILURES, "kill", "kill while writing", "kill all", "full disk", "disk error", "slow disk",
    ),
    "processes only": ("cut client", "cut brokers", "isolate", "cut from store", "expire session", "metadata"),
    "damaged disk": ("kill all", "power failure of all"),
    "sequences": tuple(kind for kind in (WEIGHTS | CLUSTER_WEIGHTS) if kind not in FAULT_SEQUENCES),
}  # fmt: skip
#: wall clocks are wrong by up to this time: longer than a transaction may last
_CLOCK_OFFSET_MS = 20 * 60 * 1000
#: the monotonic clocks of two machines differ less than the part of a session that the lease leaves free
_CLOCK_RATES = (0.9, 1.1)
#: faults that end or stop a process, or keep it from the metadata store
_ENDS = (
    "kill", "power", "stop", "pause", "isolate", "store", "expire", "disk", "metadata", "end ", "fail", "exchange",
    "controller", "old reads", "suspend",
)  # fmt: skip


class Faults:
    """Lets faults happen until it is told to heal everything."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/faults")
        self._restarts: dict[BrokerHost, float] = {}
        self._weights = dict(WEIGHTS)
        #: copies of disks that may be restored
        self._copies: dict[BrokerHost, SimulatedDisk] = {}
        #: hosts that a client keeps from starting
        self._kept_down: dict[BrokerHost, None] = {}
        #: the host whose disk was damaged
        self._damaged: BrokerHost | None = None
        self.profile = ""
        self._log_dirs = LogDirFaults(world, self._rng, lambda: not self._is_fragile(), self._set_damaged)
        if world.shape.weights:
            self.profile = world.shape.profile
            self._weights = dict(world.shape.weights)
        elif world.is_cluster:
            self.profile = self._rng.choice(list(PROFILES))
            self._weights |= CLUSTER_WEIGHTS
            if self.profile == "damaged disk":
                self._weights["damaged disk"] = 8
            for kind in PROFILES[self.profile]:
                self._weights[kind] = 0
        self._settings = SettingFaults(world, self._rng, lambda: not self._is_fragile())
        self._sequences = FaultSequences(world, self._rng, lambda: not self._is_fragile())

    async def run(self, seconds: float) -> None:
        """Draw faults for a time; restart brokers that do not run after a delay."""
        world, rng = self._world, self._rng
        if self.profile:
            world.trace(f"faults: {self.profile}")
        until = world.loop.time() + seconds
        due = world.loop.time() + rng.expovariate(1)
        while (now := world.loop.time()) < until:
            for host in world.hosts.values():
                self._maybe_restart(host, now)
            if now >= due:
                due = now + rng.expovariate(1 / 1.2)
                self._strike()
            await asyncio.sleep(0.05)

    def _maybe_restart(self, host: BrokerHost, now: float) -> None:
        if host.is_running:
            self._restarts.pop(host, None)
        elif self._log_dirs.is_kept_down(host) or host in self._kept_down:
            pass
        elif host not in self._restarts:
            self._restarts[host] = now + self._rng.choice((0.0, 0.2, 2.0)) * self._rng.random()
        elif now >= self._restarts[host]:
            host.start()

    def keep_down(self, host: BrokerHost, keep: Keep) -> bool:
        """End the process of a host and start it no more until ``let_up``. Return False if it may not end now."""
        if self._is_fragile() or self._world.is_over:
            return False
        self._kept_down[host] = None
        host.kill(keep)
        return True

    def let_up(self, host: BrokerHost) -> None:
        """Let a host start again."""
        self._kept_down.pop(host, None)

    def _strike(self) -> None:
        world, rng = self._world, self._rng
        (fault,) = rng.choices(list(self._weights), list(self._weights.values()))
        host = self._choose_host()
        world.trace(f"fault: {fault} {host.name}")
        if self._is_fragile() and any(word in fault for word in _ENDS):
            return
        self._on_process(fault, host)
        self._on_network(fault, host)
        self._on_disk(fault, host)
        self._on_clock(fault, host)
        if fault in FAULT_SEQUENCES:
            self._sequences.strike(fault, host)
        elif fault in LOG_DIR_FAULTS:
            self._log_dirs.strike(fault, host)
        elif fault in SETTING_FAULTS:
            self._settings.strike(fault, host)

    def _choose_host(self) -> BrokerHost:
        """Return a random host, the one of a leader, or the one of the controller."""
        world, rng = self._world, self._rng
        hosts = list(world.hosts.values())
        host = rng.choice(hosts)
        if world.replication is None:
            return host
        role = rng.choice(("any", "leader", "controller"))
        store = world.replication.store
        chosen: int | None = None
        if role == "leader":
            # Leaders of internal topics are coordinators.
            places = [place for place, _ in store.partitions()]
            chosen = store.leader_of(rng.choice(places)) if places else None
        elif role == "controller" and store.view.controller is not None:
            chosen = store.view.controller.broker_id
        return host if chosen is None else world.hosts[chosen]

    # -- processes ------------------------------------------------------------------------------------------------

    def _on_process(self, fault: str, host: BrokerHost) -> None:
        rng = self._rng
        if fault == "kill":
            host.kill("process")
        elif fault == "power failure":
            host.kill("power")
        elif fault == "kill while writing":
            host.kill_at_change(rng.randint(0, 12), "process", rng.randrange(1 << 30))
        elif fault == "power failure while writing":
            host.kill_at_change(rng.randint(0, 12), "power", rng.randrange(1 << 30))
        elif fault == "clean stop":
            host.stop()
        elif fault == "end starts":
            host.kill(rng.choice(("process", "power") if self._world.shape.may_lose_power else ("process",)))
            self._log_dirs.end_starts(host)
        elif fault == "pause":
            host.pause()
            self._later(rng.choice((0.5, 3.0, 12.0)) * rng.random(), host.resume)
        elif fault == "suspend":
            host.suspend()
            self._later(rng.choice((1.0, 6.0, 12.0)) * rng.random(), host.resume)
        elif fault in ("kill all", "power failure of all"):
            for each in self._world.hosts.values():
                each.kill("process" if fault == "kill all" else "power")

    # -- network --------------------------------------------------------------------------------------------------

    def _on_network(self, fault: str, host: BrokerHost) -> None:
        world, rng = self._world, self._rng
        others = [each for each in world.hosts.values() if each is not host]
        if fault == "reset connections":
            world.network.reset_some(rng.random())
        elif fault == "cut client":
            self._cut(rng.choice(world.client_names), host.name, rng.uniform(0.1, 6))
        elif fault == "cut brokers":
            seconds = rng.uniform(0.1, 10)
            for other in rng.sample(others, rng.randint(1, len(others))):
                self._cut(other.name, host.name, seconds)
        elif fault == "isolate":
            self._isolate(host, others)
        elif fault == "cut from store":
            if rng.random() < 0.3:
                # As if only the way back was cut: the store applies a request and its answer is lost.
                world.ensemble.lose_answer(host.name, applied=True)
            host.cut_from_store()
            self._later(rng.uniform(0.1, 12), host.heal_store)
        elif fault == "expire session":
            world.ensemble.expire(host.name)
        elif fault == "metadata":
            self._disturb_metadata(host)
        elif fault == "refuse connections" and others:
            other = rng.choice(others)
            world.network.refuse(host.name, other.name)
            self._later(rng.uniform(1, 8), world.network.accept, host.name, other.name)
        elif fault == "slow watches":
            world.ensemble.delay_watches(host.name, rng.uniform(0.5, 4))
            self._later(rng.uniform(2, 8), world.ensemble.catch_up, host.name)
        elif fault == "old reads":
            world.ensemble.lag(host.name, rng.uniform(0.2, 4))
            self._later(rng.uniform(2, 8), world.ensemble.catch_up, host.name)
            if rng.random() < 0.4:
                host.kill("process")  # the next process reads from the server that lags

    def _on_clock(self, fault: str, host: BrokerHost) -> None:
        rng = self._rng
        if fault == "set wall clock":
            host.clock.offset_ms = rng.randint(-_CLOCK_OFFSET_MS, _CLOCK_OFFSET_MS)
        elif fault == "clock rate":
            host.clock.set_rate(rng.uniform(*_CLOCK_RATES))

    def _cut(self, one: str, other: str, seconds: float) -> None:
        """Cut the way between two hosts in one or both directions."""
        pairs = [(one, other), (other, one)]
        for pair in self._rng.choice((pairs, pairs[:1], pairs[1:])):
            self._world.network.cut(*pair)
            self._later(seconds * self._rng.uniform(0.8, 1), self._world.network.heal, *pair)

    def _isolate(self, host: BrokerHost, others: list[BrokerHost]) -> None:
        """Cut a broker from all others and from the store; some clients still reach it, some do not."""
        seconds = self._rng.choice((5, 12, 18)) * self._rng.random()
        for other in others:
            self._cut(other.name, host.name, seconds)
        for client in self._world.client_names:
            if self._rng.random() < 0.5:
                self._cut(client, host.name, seconds)
        host.cut_from_store()
        self._later(seconds, host.heal_store)

    def _disturb_metadata(self, host: BrokerHost) -> None:
        """Disturb the connection of a broker to the metadata store."""
        ensemble, rng = self._world.ensemble, self._rng
        kind = rng.choice(("break", "lose answer", "cut"))
        if kind == "break":
            ensemble.break_connection(host.name)
        elif kind == "lose answer":
            ensemble.lose_answer(host.name, applied=rng.random() < 0.5)
        else:
            host.cut_from_store()
            self._later(rng.uniform(0.1, 8), host.heal_store)

    # -- disks ----------------------------------------------------------------------------------------------------

    def _on_disk(self, fault: str, host: BrokerHost) -> None:
        rng = self._rng
        if fault == "slow disk":
            host.disk_delay_s = rng.choice((0.002, 0.05, 0.5))
        elif fault == "full disk":
            self._fill(host)
        elif fault == "disk error":
            host.disk.fail(rng.choice(("sync", "write")), errno.EIO, skip=rng.randint(0, 5), times=1)
        elif fault == "damaged disk":
            self._damage(host)
        elif fault == "late jobs":
            host.late_jobs = rng.choice((0.0, 0.02, 0.2))

    def _fill(self, host: BrokerHost) -> None:
        disk = host.disk
        host.was_full = True
        disk.free = 0
        disk.fail("space", errno.ENOSPC, times=None)

        def empty() -> None:
            for each in (disk, host.disk):
                each.free = each.total
                each.heal()

        self._later(self._rng.uniform(0.1, 3), empty)

    def _damage(self, host: BrokerHost) -> None:
        """Lose one disk of the cluster, or restore an old copy of it; once in a run, when all replicas are in sync."""
        replication = self._world.replication
        assert replication is not None
        if self._damaged is not None:
            return
        if not self._copies:
            self._copies = {each: each.copy_disk() for each in self._world.hosts.values()}
            return
        if replication.store.out_of_sync() or not all(each.is_ready for each in self._world.hosts.values()):
            return
        self._damaged = host
        wiped = self._rng.random() < 0.5
        self._world.trace(f"{host.name}: {'its disk is wiped' if wiped else 'an old copy of its disk is restored'}")
        host.replace_disk(SimulatedDisk() if wiped else self._copies[host])

    def _set_damaged(self, host: BrokerHost) -> None:
        self._damaged = host

    def _is_fragile(self) -> bool:
        """Return whether a copy of the data is lost and the cluster does not know it yet."""
        replication, host = self._world.replication, self._damaged
        if self._log_dirs.is_busy:
            return True
        return host is not None and replication is not None and (
            not host.is_ready or replication.store.lost_logs_of(host.broker_id)
        )  # fmt: skip

    # -- the end --------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, call: Callable[..., None], *args: str) -> None:
        self._world.loop.call_later(seconds, call, *args)

    def heal(self) -> None:
        """End all faults for good: what does not run is started, and started again until it runs."""
        self._settings.end()
        self._world.network.heal_all()
        for host in self._world.hosts.values():
            host.resume()
            host.heal_store(completely=True)
            self._world.ensemble.delay_watches(host.name, 0.0)
        for host in self._world.hosts.values():
            host.disk_delay_s = 0.002
            host.disk.free = host.disk.total
            host.disk.heal()
            host.disk._cut_at = None
            host.end_no_more_starts()
            host.late_jobs = 0.0
            self._world.ensemble.catch_up(host.name)
            host.keep_running = True
            if not host.is_running:
                host.start()
        self._log_dirs.heal()
