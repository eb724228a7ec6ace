"""Logs that had no synced records when a broker ended: they are not taken for lost ones, which would stop elections."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from sim_client import Client
from sim_directories import BROKERS, TWO_DIRS, VALUES, places_in
from sim_script import append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

_MIN_ISR = {"min.insync.replicas": "2"}


def test_log_that_was_never_synced_is_not_lost_when_all_directories_are_back() -> None:
    """A power failure took the folder of broker 2. Its next start misses another directory, which has come back since.

    That directory has no trace of the log, so broker 2 had no synced records, and the other replicas decide.
    """

    async def script(world: World) -> None:
        (place,) = await create_topic(world, "t", partitions=1, **_MIN_ISR)
        broker = world.hosts[2].broker
        assert broker is not None
        broker.replicas.commits.start_sync = lambda partition: None  # type: ignore[method-assign]
        await append_until(Client(world, "producer"), place, VALUES)  # brokers 1 and 3 have synced them
        await until(lambda: values_on(world, place, 2) == VALUES)
        assert places_in(world, 2, "/data") == [place]
        for number in BROKERS:
            world.hosts[number].kill("power")
        if places_in(world, 2, "/data"):
            world.hosts[2].disk.remove_tree("/data/t-0")
        configure(world, 2)
        await start(world, 2)
        await until(lambda: state_of(world, place).lost_end(2) is not None)
        await stop(world, 2)
        configure(world, 2, **TWO_DIRS)
        await start(world, *BROKERS)
        await until(lambda: all(values_on(world, place, number) == VALUES for number in BROKERS))

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("seed", range(4))
def test_partitions_without_records_have_leaders_after_a_clean_stop_and_a_power_failure(seed: int) -> None:
    """The ids of their folders were never synced."""

    async def script(world: World) -> None:
        places = await create_topic(world, "t", partitions=4, **_MIN_ISR)
        await append_until(Client(world, "producer"), places[0], VALUES)
        await asyncio.sleep(20)
        await stop(world, *BROKERS)
        for number in BROKERS:
            host = world.hosts[number]
            host.disk = host.disk.crash(Random(seed * 10 + number), "power")
        await start(world, *BROKERS)
        await until(lambda: all(state_of(world, place).leader in BROKERS for place in places))

    play(script, settings=TWO_DIRS, has_topic=False)


def test_empty_log_that_joined_the_isr_in_another_directory_is_found_there() -> None:
    """Broker 2 has run with one directory since. The folder in the directory that comes back is the older one."""

    async def script(world: World) -> None:
        await create_topic(world, "t", partitions=4, **_MIN_ISR)
        place = places_in(world, 2, "/data2")[0]
        await stop(world, 2)
        configure(world, 2)
        await start(world, 2)
        await until(lambda: 2 in state_of(world, place).isr)
        for number in BROKERS:
            world.hosts[number].kill("process")
        configure(world, 2, **TWO_DIRS)
        await start(world, *BROKERS)
        await until(lambda: state_of(world, place).leader in BROKERS)

    play(script, settings=TWO_DIRS, has_topic=False)
