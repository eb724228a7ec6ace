"""min.insync.replicas is part of a partition's state, so that leader and controller never disagree about it."""

from __future__ import annotations

import asyncio

from sim_client import Client, Lost
from sim_script import (
    BROKER,
    TOPIC,
    alter_config,
    append,
    append_until,
    configure,
    create_topic,
    play,
    start,
    state_of,
    stop,
    until,
    values_on,
)
from sim_world import World

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

BROKERS = (1, 2, 3)


def _controller(world: World) -> int:
    assert world.replication is not None
    controller = world.replication.store.view.controller
    assert controller is not None
    return controller.broker_id


async def _led_by(world: World, leader: int) -> Place:
    """Return a partition of a topic that this broker leads."""
    places = await create_topic(world, "t", partitions=6)
    return next(place for place in places if state_of(world, place).leader == leader)


async def _isolate_leader(client: Client, place: Place) -> None:
    """Cut the leader from its followers, and wait until they left the ISR because they lack a record."""
    world, leader = client.world, state_of(client.world, place).leader
    for number in BROKERS:
        if number != leader:
            world.network.cut(f"broker-{number}", f"broker-{leader}")
            world.network.cut(f"broker-{leader}", f"broker-{number}")
    assert await append(client, place, ["not acknowledged"], broker=leader) != 0
    await until(lambda: len(state_of(world, place).isr) == 1)


def test_leader_with_a_smaller_value_in_its_file_uses_that_of_the_controller() -> None:
    """In the middle of a rolling change: a leader that has 1 in its file must not acknowledge alone."""

    async def script(world: World) -> None:
        controller = _controller(world)
        leader = next(number for number in BROKERS if number != controller)
        await stop(world, leader)
        configure(world, leader, **{"min.insync.replicas": "1"})
        await start(world, leader)
        place = await _led_by(world, leader)
        client = Client(world, "producer")
        assert await append(client, place, ["a"], broker=leader) == 0
        await _isolate_leader(client, place)
        while state_of(world, place).leader == leader:
            try:
                assert await append(client, place, ["b"], broker=leader) != 0
            except Lost:
                pass
            await asyncio.sleep(0.2)
        world.network.heal_all()
        await until(lambda: len(state_of(world, place).isr) == 3)
        assert values_on(world, place, state_of(world, place).leader)[0] == "a"

    play(script, settings={"min.insync.replicas": "2"}, has_topic=False)


def test_controller_that_learns_late_of_a_smaller_value_elects_no_replica_that_is_no_longer_eligible() -> None:
    async def script(world: World) -> None:
        controller = _controller(world)
        place = await _led_by(world, next(number for number in BROKERS if number != controller))
        leader = state_of(world, place).leader
        client = Client(world, "producer")
        await append_until(client, place, ["a"])
        await _isolate_leader(client, place)
        assert len(state_of(world, place).elr) == 2
        loop, store = world.loop, world.ensemble._stores[f"broker-{controller}"]
        receive, late_until = store.receive_changes, world.loop.time() + 3
        store.receive_changes = lambda *change: loop.call_later(max(late_until - loop.time(), 0), receive, *change)
        assert await alter_config(Client(world, "operator"), TOPIC, "t", "min.insync.replicas", "1", broker=leader) == 0
        await until(lambda: state_of(world, place).min_isr == 1)
        assert state_of(world, place).elr == (), "both change at once"
        for number in range(20):
            assert await append(client, place, [f"b{number}"], broker=leader) == 0
        await asyncio.sleep(6)
        assert state_of(world, place).leader == leader
        world.network.heal_all()
        await until(lambda: len(state_of(world, place).isr) == 3)
        assert values_on(world, place, controller)[-20:] == [f"b{number}" for number in range(20)]

    play(script, settings={"min.insync.replicas": "2"}, has_topic=False)


def test_default_depends_on_the_replicas_of_each_partition() -> None:
    async def script(world: World) -> None:
        first, second = await create_topic(world, "t", partitions=2)
        assert [state_of(world, place).min_isr for place in (first, second)] == [2, 2]
        target = [number for number in BROKERS if number != state_of(world, first).replicas[-1]]
        row = ReassignablePartition(partition_index=0, replicas=target)
        topic = ReassignableTopic(name="t", partitions=[row])
        await Client(world, "operator").ask(AlterPartitionReassignmentsRequest(timeout=3000, topics=[topic]), 0)
        await until(lambda: len(state_of(world, first).replicas) == 2)
        await until(lambda: [state_of(world, place).min_isr for place in (first, second)] == [1, 2])
        leader = state_of(world, second).leader
        for number in BROKERS:
            if number != leader:
                world.hosts[number].kill("process")
        await until(lambda: len(state_of(world, second).isr) == 1)
        assert await append(Client(world, "producer"), second, ["v"]) == ErrorCode.NOT_ENOUGH_REPLICAS

    play(script, settings={"min.insync.replicas": None}, has_topic=False)


def test_value_of_the_cluster_can_be_changed_and_that_of_one_broker_cannot() -> None:
    async def script(world: World) -> None:
        (place,) = await create_topic(world, "t")
        client = Client(world, "operator")
        assert state_of(world, place).min_isr == 2
        name = "min.insync.replicas"
        assert await alter_config(client, BROKER, "2", name, "1", broker=2) == ErrorCode.INVALID_CONFIG
        assert await alter_config(client, BROKER, "", name, "3", broker=2) == 0
        await until(lambda: state_of(world, place).min_isr == 3)
        assert await alter_config(client, TOPIC, "t", name, "1", broker=2) == 0
        await until(lambda: state_of(world, place).min_isr == 1)

    play(script, settings={"min.insync.replicas": "2"}, has_topic=False)
