"""Clean stops of one broker of a simulated cluster while no records are written."""

from __future__ import annotations

import asyncio

import pytest
from sim_client import Client
from sim_script import append, append_until, play, start, state_of, until
from sim_world import World

from ottla.broker.broker import Broker


def test_leader_without_new_records_does_not_add_a_broker_that_stops_to_the_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker has all records and is registered until its logs are closed, but no longer fetches."""
    complete_writes = Broker._complete_writes

    async def complete_writes_slowly(broker: Broker) -> None:
        await asyncio.sleep(5)
        await complete_writes(broker)

    async def script(world: World) -> None:
        place, client = world.places[0], Client(world, "producer")
        await append_until(client, place, ["first"])
        stopping = next(number for number in state_of(world, place).isr if number != state_of(world, place).leader)
        monkeypatch.setattr(Broker, "_complete_writes", complete_writes_slowly)
        world.hosts[stopping].stop()
        await until(lambda: all(stopping not in state_of(world, each).isr for each in world.places))
        while world.hosts[stopping].is_running:
            assert all(stopping not in state_of(world, each).isr for each in world.places)
            await asyncio.sleep(0.005)
        monkeypatch.undo()
        assert await append(client, place, ["second"]) == 0
        await start(world, stopping)
        await until(lambda: all(stopping in state_of(world, each).isr for each in world.places))

    play(script)
