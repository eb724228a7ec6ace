"""Leaders of a simulated cluster while the metadata store cannot be reached."""

from __future__ import annotations

import asyncio
from typing import Any

from sim_client import Client, batch
from sim_script import play
from sim_world import World

from ottla.broker.partitions.partition import Partition, Role
from ottla.testing.history import Place
from ottla.testing.raw import produce_request


async def produce(client: Client, place: Place, broker: int) -> int:
    content = batch(["value"], client.world.now_ms())
    request = produce_request((place.topic, place.partition, content), acks=-1, timeout_ms=1000)
    reply = await client.ask(request, 11, broker=broker)
    return int(reply.responses[0].partition_responses[0].error_code)


def replica(world: World, place: Place, number: int) -> Partition:
    broker = world.hosts[number].broker
    assert broker is not None
    found = broker.replicas.find(*place)
    assert found is not None
    return found


async def stall(world: World, number: int, stalled_s: float) -> None:
    life = world.hosts[number]._life
    assert life is not None
    world.loop.pause_life(life)
    await asyncio.sleep(stalled_s)
    world.loop.resume_life(life)


def leaders_of(world: World) -> dict[Place, int]:
    replication: Any = world.replication
    return {place: replication.store.leader_of(place) for place in world.places}


def test_leaders_resume_without_the_store_after_a_stall_of_one_broker() -> None:
    """All in-sync replicas fetch again in the same epoch, so no other leader was elected."""

    async def script(world: World) -> None:
        client, leaders = Client(world, "producer"), leaders_of(world)
        for host in world.hosts.values():
            host.cut_from_store()
        await asyncio.sleep(20)
        assert {await produce(client, place, leader) for place, leader in leaders.items()} == {0}
        for number in world.hosts:
            await stall(world, number, 2.2)
            led = [replica(world, place, leader) for place, leader in leaders.items() if leader == number]
            while any(each.role is Role.LEADER for each in led):
                await asyncio.sleep(0.001)
            assert all(each.suspended is not None for each in led), "others may have been elected meanwhile"
            await asyncio.sleep(3)
            assert {await produce(client, place, leader) for place, leader in leaders.items()} == {0}
        epochs = {replica(world, place, leader).leader_epoch for place, leader in leaders.items()}
        assert epochs == {0}
        for host in world.hosts.values():
            host.heal_store(completely=True)
        await asyncio.sleep(10)

    play(script)


def test_leader_does_not_resume_while_another_one_leads() -> None:
    """The leader stalls without the store, the others reach it again and elect a leader. Old fetches prove nothing."""

    async def script(world: World) -> None:
        place = world.places[0]
        leader = leaders_of(world)[place]
        for host in world.hosts.values():
            host.cut_from_store()
        await asyncio.sleep(20)
        assert await produce(Client(world, "producer"), place, leader) == 0
        life = world.hosts[leader]._life
        assert life is not None
        world.loop.pause_life(life)
        for number, host in world.hosts.items():
            if number != leader:
                host.heal_store()
        while leaders_of(world)[place] in (leader, -1):
            await asyncio.sleep(0.1)
        world.loop.resume_life(life)
        stale = replica(world, place, leader)
        while stale.role is Role.LEADER:
            await asyncio.sleep(0.001)
        for _ in range(1000):
            await asyncio.sleep(0.01)
            assert stale.role is not Role.LEADER or stale.leader_epoch > 0
        world.hosts[leader].heal_store(completely=True)
        await asyncio.sleep(10)

    play(script)
