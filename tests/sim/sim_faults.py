"""Faults, drawn from the seed."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import TYPE_CHECKING

from sim_host import BrokerHost

if TYPE_CHECKING:
    from sim_world import World

#: the kinds of faults and how often each is drawn
WEIGHTS = {
    "kill": 3,
    "power failure": 4,
    "kill while writing": 3,
    "power failure while writing": 5,
    "clean stop": 2,
    "reset connections": 3,
    "cut": 2,
    "slow disk": 2,
    "full disk": 2,
    "disk error": 1,
    "metadata": 2,
    "quiet": 3,
}


class Faults:
    """Lets faults happen until it is told to heal everything."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/faults")
        self._restarts: dict[BrokerHost, float] = {}

    async def run(self, seconds: float) -> None:
        """Draw faults for a time; restart brokers that do not run after a delay."""
        world, rng = self._world, self._rng
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
        elif host not in self._restarts:
            self._restarts[host] = now + self._rng.choice((0.0, 0.2, 2.0)) * self._rng.random()
        elif now >= self._restarts[host]:
            host.start()

    def _strike(self) -> None:
        world, rng = self._world, self._rng
        (fault,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        host = rng.choice(list(world.hosts.values()))
        world.trace(f"fault: {fault}")
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
        elif fault == "reset connections":
            world.network.reset_some(rng.random())
        elif fault == "cut":
            self._cut(host)
        elif fault == "slow disk":
            host.disk_delay_s = rng.choice((0.002, 0.05, 0.5))
        elif fault == "full disk":
            self._fill(host)
        elif fault == "metadata":
            self._disturb_metadata(host)
        elif fault == "disk error":
            host.disk.fail(rng.choice(("sync", "write")), errno.EIO, skip=rng.randint(0, 5), times=1)

    def _cut(self, host: BrokerHost) -> None:
        client = self._rng.choice(self._world.client_names)
        pairs = [(client, host.name), (host.name, client)]
        for pair in self._rng.choice((pairs, pairs[:1], pairs[1:])):
            self._world.network.cut(*pair)
            self._world.loop.call_later(self._rng.uniform(0.1, 6), self._world.network.heal, *pair)

    def _disturb_metadata(self, host: BrokerHost) -> None:
        """Disturb the connection of a broker to the metadata store."""
        ensemble, rng = self._world.ensemble, self._rng
        kind = rng.choice(("break", "lose answer", "cut"))
        if kind == "break":
            ensemble.break_connection(host.name)
        elif kind == "lose answer":
            ensemble.lose_answer(host.name, applied=rng.random() < 0.5)
        else:
            ensemble.cut(host.name)
            self._world.loop.call_later(rng.uniform(0.1, 8), ensemble.heal, host.name)

    def _fill(self, host: BrokerHost) -> None:
        disk = host.disk
        host.was_full = True
        disk.free = 0
        disk.fail("space", errno.ENOSPC, times=None)

        def empty() -> None:
            for each in (disk, host.disk):
                each.free = each.total
                each.heal()

        self._world.loop.call_later(self._rng.uniform(0.1, 3), empty)

    def heal(self) -> None:
        """End all faults for good: what does not run is started, and started again until it runs."""
        self._world.network.heal_all()
        for host in self._world.hosts.values():
            self._world.ensemble.heal(host.name)
        for host in self._world.hosts.values():
            host.disk_delay_s = 0.002
            host.disk.free = host.disk.total
            host.disk.heal()
            host.disk._cut_at = None
            host.keep_running = True
            if not host.is_running:
                host.start()
