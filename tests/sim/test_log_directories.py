"""Brokers with several log directories, and starts that end at a step, in a simulated cluster."""

from __future__ import annotations

import asyncio
from itertools import count

from sim_client import Client
from sim_host import BrokerHost
from sim_script import play, produce
from sim_world import World


async def until_ready(host: BrokerHost) -> None:
    while not host.is_ready:
        await asyncio.sleep(0.01)


async def until_in_sync(world: World) -> None:
    assert world.replication is not None
    while world.replication.store.out_of_sync():
        await asyncio.sleep(0.1)


def test_broker_whose_first_log_directory_was_replaced_by_an_empty_disk_starts() -> None:
    """The other directories name the cluster, and the store names the same one."""

    async def script(world: World) -> None:
        assert world.replication is not None
        place = world.places[0]
        leader = world.replication.store.leader_of(place)
        assert leader is not None
        for sequence in range(5):
            assert await produce(Client(world, f"producer-{sequence}"), place, leader, 0, producer_id=sequence) == 0
        host = world.hosts[leader]
        host.kill("process")
        host.disk.empty_directory(world.shape.directories[0])
        host.start()
        await until_ready(host)
        await until_in_sync(world)
        assert host.broker is not None
        replica = host.broker.replicas.find(*place)
        assert replica is not None
        assert replica.log.log_end_offset == 5

    play(script, profile="log directories")


def test_directory_that_another_disk_is_mounted_at_is_empty() -> None:
    async def script(world: World) -> None:
        first, second, _ = world.shape.directories
        host = world.hosts[1]
        host.kill("process")
        before = {path: sorted(host.disk.listdir(path)) for path in (first, second)}
        host.disk.exchange(first, second)
        assert sorted(host.disk.listdir(first)) == before[second]
        host.disk.empty_directory(first)
        assert host.disk.listdir(first) == []
        assert sorted(host.disk.listdir(second)) == before[first]

    play(script, profile="log directories")


def test_start_ends_at_each_of_its_steps() -> None:
    async def script(world: World) -> None:
        host = world.hosts[1]
        host.kill("process")
        ended = 0
        for steps in count():
            host.start_ends = [(steps, "process")]
            host.start()
            while host.is_running and not host.is_ready:
                await asyncio.sleep(0.001)
            if host.is_ready:
                break
            assert host.start_steps == steps + 1
            ended += 1
        assert ended > 20
        await until_in_sync(world)

    play(script)
