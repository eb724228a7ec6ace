"""Connections between brokers that are refused although, or because, of the process at the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sim_script import play
from sim_world import World


def controller_of(world: World) -> int:
    replication: Any = world.replication
    return int(replication.store.view.controller.broker_id)


def epoch_of(world: World, number: int) -> int:
    """Return the epoch of a broker's registration, -1 if it has none."""
    replication: Any = world.replication
    broker = replication.store.view.brokers.get(number)
    return broker.epoch if broker is not None else -1


def test_broker_with_a_wrong_route_removes_a_healthy_one_at_most_once() -> None:
    """One broker resolves the name of the controller to an address where no process listens."""

    async def script(world: World) -> None:
        victim = controller_of(world)
        source = f"broker-{next(number for number in world.hosts if number != victim)}"
        connect: Callable[..., Any] = world.network.connect_protocol

        async def connect_protocol(client: str, target: str, port: int, factory: Any) -> Any:
            if (client, target) == (source, f"broker-{victim}"):
                raise ConnectionRefusedError(f"{target} refuses")
            return await connect(client, target, port, factory)

        world.network.connect_protocol = connect_protocol  # type: ignore[method-assign]
        world.network.reset_some(1.0)
        epochs = {epoch_of(world, victim)}
        for _ in range(300):
            await asyncio.sleep(0.1)
            epochs.add(epoch_of(world, victim))
        epochs.discard(-1)
        assert len(epochs) <= 2, f"the broker registered {len(epochs) - 1} times again"

    play(script)


def test_processes_that_end_together_with_the_controller_are_noticed_before_their_sessions_end() -> None:
    """The new controller has not probed the other one before, but follows it."""

    async def script(world: World) -> None:
        first = controller_of(world)
        second = next(number for number in world.hosts if number != first)
        for number in (first, second):
            world.hosts[number].kill("process")
        await asyncio.sleep(1.0)  # the sessions end after 6 s
        assert {epoch_of(world, first), epoch_of(world, second)} == {-1}

    play(script)
