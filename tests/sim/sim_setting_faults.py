"""Changes of min.insync.replicas that brokers learn of at different times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from sim_client import Lost
from sim_host import BrokerHost
from sim_operators import TOPIC_RESOURCE, MinInSyncOperator

from ottla.testing.history import Place

if TYPE_CHECKING:
    from sim_world import World

SETTING_FAULTS = ("roll min.insync.replicas", "lower min.insync.replicas late")
_LOOK_S = 0.05
_WAIT_S = 6.0


class SettingFaults:
    """Runs the steps of these faults, one fault at a time."""

    def __init__(self, world: World, rng: Random, may_end: Callable[[], bool]) -> None:
        self._world = world
        self._rng = rng
        #: whether a process may end now
        self._may_end = may_end
        self._task: asyncio.Task[None] | None = None

    def strike(self, fault: str, host: BrokerHost) -> None:
        """Begin a fault of ``SETTING_FAULTS``."""
        if self._task is None or self._task.done():
            steps = self._roll() if fault == "roll min.insync.replicas" else self._lower()
            self._task = asyncio.create_task(steps)

    def end(self) -> None:
        """Begin no further step, and give all brokers the same static setting."""
        if self._task is not None:
            self._task.cancel()
        for host in self._world.hosts.values():
            host.configure({"min.insync.replicas": str(self._world.shape.configured_min_in_sync)})

    async def _roll(self) -> None:
        """Change the static setting of one broker after the other, each with a restart."""
        value = self._rng.choice(("1", "2"))
        hosts = list(self._world.hosts.values())
        self._rng.shuffle(hosts)
        self._world.trace(f"min.insync.replicas {value} in the settings of one broker after the other")
        for host in hosts:
            host.configure({"min.insync.replicas": value})
            if self._may_end():
                host.stop()
            await asyncio.sleep(self._rng.uniform(0.5, 4))

    async def _lower(self) -> None:
        """Lower the topic's setting while the leader is alone in the ISR and the controller learns of it later."""
        world, rng = self._world, self._rng
        assert world.replication is not None
        place = rng.choice(world.places)
        controller, leader = world.replication.store.view.controller, world.replication.store.leader_of(place)
        if controller is None or leader is None:
            return
        operator = MinInSyncOperator(world, "operator")
        pairs = [
            pair
            for host in world.hosts.values() if host.broker_id != leader
            for pair in ((host.name, f"broker-{leader}"), (f"broker-{leader}", host.name))
        ]  # fmt: skip
        for pair in pairs:
            world.network.cut(*pair)
        try:
            if await self._is_alone(place, leader):
                await asyncio.sleep(rng.uniform(0, 2.5))
                name = f"broker-{controller.broker_id}"
                world.ensemble.delay_watches(name, rng.uniform(1, 3))
                await operator.set_min_in_sync(TOPIC_RESOURCE, place.topic, "1", broker=leader)
                await asyncio.sleep(rng.uniform(1, 3))
                world.ensemble.delay_watches(name, 0)
        except Lost:
            pass
        finally:
            for pair in pairs:
                world.network.heal(*pair)

    async def _is_alone(self, place: Place, leader: int) -> bool:
        """Wait until the leader is the only in-sync replica; return False if that takes too long."""
        replication: Any = self._world.replication
        until = self._world.loop.time() + _WAIT_S
        while self._world.loop.time() < until:
            state = replication.store.view.topics[place.topic].partitions[place.partition]
            if state.isr == (leader,):
                return True
            await asyncio.sleep(_LOOK_S)
        return False
