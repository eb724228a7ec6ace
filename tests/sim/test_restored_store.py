"""A metadata store that was restored from an older backup, in a simulated cluster."""

from __future__ import annotations

import asyncio

from sim_script import play, start, state_of, stop
from sim_world import World

from ottla.broker.metadata.seen_metadata import FILE_NAME


async def change_and_stop(world: World) -> None:
    """Change the ISR without a new leader epoch, then stop all brokers."""
    place = world.places[0]
    leader = state_of(world, place).leader
    other = next(number for number in world.hosts if number != leader)
    await stop(world, other)
    await start(world, other)
    while len(state_of(world, place).isr) < len(world.hosts):
        await asyncio.sleep(0.1)
    await stop(world, *world.hosts)


def test_broker_does_not_start_with_a_store_that_lost_changes_which_it_has_seen() -> None:
    async def script(world: World) -> None:
        backup = world.ensemble._tree.copy()
        await change_and_stop(world)
        assert world.ensemble._tree.load("/") != backup.load("/")
        world.ensemble._tree = backup
        host = world.hosts[1]
        host.start()
        while host.is_running:
            await asyncio.sleep(1)
        (reason,) = [text for text in host.ends if text.startswith("start failed")]
        assert "restored from an older backup" in reason
        assert f"/data/{FILE_NAME}" in reason, "an operator who accepts that records may be lost deletes it"
        world.violations.pop("store-epoch-moved-back", None)  # this is what the test did

    play(script)


def test_broker_waits_for_a_server_that_lags() -> None:
    async def script(world: World) -> None:
        world.ensemble.lag("broker-1", 6.0)
        await change_and_stop(world)
        started = world.loop.time()
        await start(world, 1)
        assert world.hosts[1].ends == {"clean stop": world.hosts[1].starts - 1}
        assert world.loop.time() > started

    play(script)
