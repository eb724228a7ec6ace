"""Steps that the scripts about log directories share. Broker 3 is the one whose directories change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sim_client import Client
from sim_script import append_until, create_topic, start, state_of, stop, until, values_on
from sim_world import World

from ottla.broker.cluster.unclean_logs import UncleanLogs
from ottla.broker.metadata.view import NO_LEADER
from ottla.log.folders import partition_of
from ottla.testing.history import Place
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

TWO_DIRS = {"log.dirs": "/data,/data2"}
THREE_DIRS = {"log.dirs": "/data,/data2,/data3"}
VALUES = ["a", "b", "c"]
BROKERS = (1, 2, 3)


async def written(world: World, *, min_isr: int = 1, partitions: int = 4) -> list[Place]:
    """Return the partitions of a topic, each with VALUES."""
    client = Client(world, "producer")
    places = await create_topic(world, "t", partitions=partitions, **{"min.insync.replicas": str(min_isr)})
    for place in places:
        await append_until(client, place, VALUES)
    await until(lambda: all(values_on(world, place, number) == VALUES for place in places for number in BROKERS))
    return places


def places_in(world: World, number: int, directory: str) -> list[Place]:
    """Return the partitions that have folders in a directory of a broker."""
    folders = map(partition_of, world.hosts[number].disk.listdir(directory))
    return [Place(*each) for each in folders if each is not None and each.topic == "t"]


async def stop_others(world: World, place: Place) -> None:
    """Stop brokers 1 and 2, and wait until broker 3 is the only in-sync replica."""
    await stop(world, 1, 2)
    await until(lambda: state_of(world, place).isr == (3,))


def is_lost(world: World, place: Place) -> bool:
    """Return whether broker 3 is the only replica that counts, and its log is lost."""
    state = state_of(world, place)
    lost = state.lost_end(3)
    return state.isr == (3,) and state.unclean == (lost,)


async def start_with_lost(world: World, *places: Place, brokers: tuple[int, ...] = BROKERS) -> None:
    """Start brokers, and check that the logs of broker 3 are lost and that nobody leads without them."""
    await start(world, *brokers)
    await asyncio.sleep(5)
    for place in places:
        assert is_lost(world, place)
        assert state_of(world, place).leader == NO_LEADER


async def start_killed(world: World, number: int, monkeypatch: pytest.MonkeyPatch, *, is_marked: bool = False) -> None:
    """Start a broker that is killed before it has marked lost and unclean logs, or after it."""
    host, mark = world.hosts[number], UncleanLogs._write

    async def killed(self: UncleanLogs, *ends: Any) -> None:
        monkeypatch.setattr(UncleanLogs, "_write", mark)
        if is_marked:
            await mark(self, *ends)
        world.loop.call_soon(host.kill, "process")
        await asyncio.sleep(1000)

    monkeypatch.setattr(UncleanLogs, "_write", killed)
    host.start()
    await until(lambda: not host.is_running)


async def until_complete(world: World, places: list[Place], values: list[str] = VALUES) -> None:
    """Wait until all replicas are in sync, and check that they have all records."""
    await until(lambda: all(len(state_of(world, place).isr) == len(BROKERS) for place in places))
    assert all(values_on(world, place, number) == values for place in places for number in BROKERS)


async def reassign(world: World, place: Place, *replicas: int) -> None:
    """Move a partition to these brokers, and wait until they are in sync."""
    partition = ReassignablePartition(partition_index=place.partition, replicas=list(replicas))
    topic = ReassignableTopic(name=place.topic, partitions=[partition])
    await Client(world, "operator").ask(AlterPartitionReassignmentsRequest(timeout=3000, topics=[topic]), 0, broker=1)
    await until(lambda: {*state_of(world, place).isr} == {*state_of(world, place).replicas} == {*replicas})
