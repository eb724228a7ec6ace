"""Runs a script step by step in a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sim_client import Client, batch
from sim_profiles import GENERAL
from sim_world import World

from ottla.testing.history import Place
from ottla.testing.raw import produce_request


async def produce(client: Client, place: Place, broker: int, sequence: int, *, producer_id: int = 7) -> int:
    """Send a batch of a producer to a broker and return the error code."""
    content = batch(
        [f"v{sequence}"], client.world.now_ms(), producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    reply = await client.ask(produce_request((place.topic, place.partition, content), acks=-1), 11, broker=broker)
    return int(reply.responses[0].partition_responses[0].error_code)


def play(
    script: Callable[[World], Awaitable[None]], *, seed: int = 1, brokers: int = 3, profile: str = GENERAL
) -> None:
    """Run a script in a world that has its topic and no faults."""
    world = World(seed, brokers=brokers, profile=profile)

    async def main() -> None:
        for host in world.hosts.values():
            host.start()
        await world._create_topic()
        await asyncio.sleep(1)
        async with asyncio.timeout(300):
            await script(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    assert world.violations == {}
