"""DeleteRecords in a simulated cluster: an answer holds after elections and power failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sim_client import Client, batch
from sim_script import play, until
from sim_world import World

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.testing.raw import produce_request
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

COUNT = 10


async def produced(world: World) -> tuple[Client, Place, int]:
    """Write COUNT records. Return a client, the partition and its leader."""
    client, place = Client(world, "client"), world.places[0]
    leader = leader_of(world, place)
    for number in range(COUNT):
        content = batch([f"secret-{number}"], world.now_ms())
        reply = await client.ask(produce_request((place.topic, place.partition, content), acks=-1), 11, broker=leader)
        assert reply.responses[0].partition_responses[0].error_code == 0
    return client, place, leader


async def delete(client: Client, place: Place, leader: int, *, offset: int = COUNT, timeout_ms: int = 60_000) -> Any:
    rows = [DeleteRecordsPartition(partition_index=place.partition, offset=offset)]
    topics = [DeleteRecordsTopic(name=place.topic, partitions=rows)]
    reply = await client.ask(DeleteRecordsRequest(topics=topics, timeout=timeout_ms), 2, broker=leader)
    return reply.topics[0].partitions[0]


def leader_of(world: World, place: Place) -> int:
    replication: Any = world.replication
    return int(replication.store.leader_of(place))


def state_of(world: World, place: Place) -> Any:
    replication: Any = world.replication
    return replication.store.view.topics[place.topic].partitions[place.partition]


def start_at(world: World, place: Place, number: int) -> int:
    """Return the synced log start of a broker that serves the partition, -1 if it does not."""
    broker = world.hosts[number].broker
    replica = broker.replicas.find(*place) if broker is not None and world.hosts[number].is_ready else None
    return replica.log.synced_start_offset if replica is not None else -1


def test_records_that_were_deleted_do_not_come_back_with_another_leader() -> None:
    async def script(world: World) -> None:
        client, place, leader = await produced(world)
        row = await delete(client, place, leader)
        assert (row.error_code, row.low_watermark) == (0, COUNT)
        world.hosts[leader].kill("process")
        starts = {number: start_at(world, place, number) for number in world.hosts if number != leader}
        assert set(starts.values()) == {COUNT}, starts
        while leader_of(world, place) in (leader, -1):
            await asyncio.sleep(0.1)
        assert start_at(world, place, leader_of(world, place)) == COUNT

    play(script)


@pytest.mark.parametrize("offset", [4, COUNT])
def test_records_that_were_deleted_do_not_come_back_after_a_power_failure_of_all_brokers(offset: int) -> None:
    async def script(world: World) -> None:
        client, place, leader = await produced(world)
        for number, host in world.hosts.items():
            host.disk_delay_s = 0.002 if number == leader else 0.5
        row = await delete(client, place, leader, offset=offset)
        assert row.error_code == 0
        for host in world.hosts.values():
            host.kill("power")
        for host in world.hosts.values():
            host.start()
        while min(start_at(world, place, number) for number in world.hosts) < 0:
            await asyncio.sleep(0.1)
        assert min(start_at(world, place, number) for number in world.hosts) >= offset

    play(script)


def test_answer_waits_for_all_replicas_that_may_be_elected() -> None:
    """A follower in the ISR cannot be reached: the leader answers when it has left the ISR, or that time is over."""

    async def script(world: World) -> None:
        client, place, leader = await produced(world)
        away = next(number for number in state_of(world, place).isr if number != leader)
        host = world.hosts[away]
        for other in world.hosts.values():
            world.network.cut(host.name, other.name)
            world.network.cut(other.name, host.name)
        row = await delete(client, place, leader, timeout_ms=100)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        content = batch(["more"], world.now_ms())  # a replica that has all records does not leave the ISR
        request = produce_request((place.topic, place.partition, content), acks=1)
        await client.ask(request, 11, broker=leader)
        row = await delete(client, place, leader)
        assert row.error_code == 0
        assert away not in state_of(world, place).isr
        assert start_at(world, place, away) < COUNT
        world.network.heal_all()
        while away not in state_of(world, place).isr:
            await asyncio.sleep(0.001)
        assert start_at(world, place, away) >= COUNT, "it could be elected with the deleted records"

    play(script)


def test_replica_that_was_away_joins_only_without_the_deleted_records() -> None:
    """It has all other records when it returns: its first fetch must not be enough to join."""

    async def script(world: World) -> None:
        client, place, leader = await produced(world)
        away = next(number for number in state_of(world, place).isr if number != leader)
        world.hosts[away].kill("process")
        row = await delete(client, place, leader)
        assert row.error_code == 0
        assert away not in state_of(world, place).isr
        world.hosts[away].disk_delay_s = 1.0
        world.hosts[away].start()
        while away not in state_of(world, place).isr:
            await asyncio.sleep(0.001)
        assert start_at(world, place, away) == COUNT, "it could be elected with the deleted records"

    play(script)


def test_records_that_are_committed_and_deleted_between_two_samples_are_not_compared() -> None:
    async def script(world: World) -> None:
        client, place, leader = await produced(world)
        replication: Any = world.replication
        replication.sample()
        for number in range(4):
            content = batch([f"more-{number}"], world.now_ms())
            await client.ask(produce_request((place.topic, place.partition, content), acks=-1), 11, broker=leader)
        manager: Any = getattr(world.hosts[leader].broker, "replicas", None)
        manager.delete_records(manager.find(*place), COUNT + 3)
        assert max(start_at(world, place, number) for number in world.hosts if number != leader) == 0
        replication.sample()

    play(script)


def test_only_a_deletion_that_was_asked_for_lets_a_follower_start_after_its_leader() -> None:
    async def script(world: World) -> None:
        _, place, leader = await produced(world)
        replication: Any = world.replication
        managers: dict[int, Any] = {number: host.broker.replicas for number, host in world.hosts.items() if host.broker}
        replicas = {number: manager.find(*place) for number, manager in managers.items()}
        await until(lambda: {each.high_watermark for each in replicas.values()} == {COUNT})
        assert replication._differing_ends() == []
        ahead = next(number for number in world.hosts if number != leader)
        managers[ahead].followers.follow_log_start(replicas[ahead], 4)
        assert len(replication._differing_ends()) == 1, "nothing was to be deleted"
        world.deletions.ask(place, 4)
        assert replication._differing_ends() == []
        managers[ahead].followers.follow_log_start(replicas[ahead], 5)
        assert len(replication._differing_ends()) == 1, "more was deleted than asked for"
        world.deletions.ask(place, 6)
        managers[leader].delete_records(replicas[leader], 6)
        assert len(replication._differing_ends()) == 1, "the followers start before the leader"
        await until(lambda: replication._differing_ends() == [])

    play(script)
