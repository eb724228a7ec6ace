"""Runs a script step by step in a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sim_world import World


def play(script: Callable[[World], Awaitable[None]], *, seed: int = 1) -> None:
    """Run a script in a world of three brokers that has its topic and no faults."""
    world = World(seed, brokers=3)

    async def main() -> None:
        for host in world.hosts.values():
            host.start()
        await world._create_topic()
        await asyncio.sleep(1)
        await script(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    assert world.violations == {}
