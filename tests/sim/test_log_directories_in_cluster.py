"""Log directories that are missing, replaced or come back: no replica leads without its acknowledged records."""

from __future__ import annotations

import asyncio
import errno

import pytest
from sim_client import Client
from sim_host import SimulatedDisk
from sim_script import append, append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

import ottla.broker.membership as membership_module
from ottla.cluster.view import LOG_LOST, NO_LEADER, LogEnd
from ottla.testing.history import Place

TWO_DIRS = {"log.dirs": "/data,/data2"}
VALUES = ["a", "b", "c"]
BROKERS = (1, 2, 3)


async def _written(world: World, *, min_isr: int, partitions: int = 4) -> list[Place]:
    """Return the partitions of a topic, each with VALUES."""
    client = Client(world, "producer")
    places = await create_topic(world, "t", partitions=partitions, **{"min.insync.replicas": str(min_isr)})
    for place in places:
        await append_until(client, place, VALUES)
    await until(lambda: all(values_on(world, place, number) == VALUES for place in places for number in BROKERS))
    return places


def _places_in(world: World, number: int, directory: str) -> list[Place]:
    folders = [folder for folder in world.hosts[number].disk.listdir(directory) if folder.startswith("t-")]
    return [Place("t", int(folder.removeprefix("t-"))) for folder in folders]


async def _is_complete(world: World, places: list[Place]) -> None:
    """Wait until all replicas are in sync, and have all records."""
    await until(lambda: all(len(state_of(world, place).isr) == len(BROKERS) for place in places))
    assert all(values_on(world, place, number) == VALUES for place in places for number in BROKERS)


@pytest.mark.parametrize("change", ["removed from log.dirs", "not mounted"])
def test_last_broker_without_a_log_directory_leads_only_what_it_has(change: str) -> None:
    """All brokers stop cleanly. The last one starts first, without its second directory."""

    async def script(world: World) -> None:
        places = await _written(world, min_isr=2)
        await stop(world, *BROKERS)
        lost, kept = _places_in(world, 3, "/data2"), _places_in(world, 3, "/data")
        assert lost and kept
        if change == "not mounted":
            world.hosts[3].disk.remove_tree("/data2")
        else:
            configure(world, 3)
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in kept))
        assert all(state_of(world, place).leader == NO_LEADER for place in lost)
        await start(world, 1, 2)
        await _is_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_directory_that_comes_back_makes_its_logs_electable_again() -> None:
    """Nothing was committed while the directory was absent, because no other replica was eligible."""

    async def script(world: World) -> None:
        places = await _written(world, min_isr=1)
        await stop(world, *BROKERS)
        lost = _places_in(world, 3, "/data2")
        configure(world, 3)
        await start(world, *BROKERS)
        await until(lambda: all(state_of(world, place).unclean == (LogEnd(3, -1, LOG_LOST),) for place in lost))
        await asyncio.sleep(5)
        assert all(state_of(world, place).leader == NO_LEADER for place in lost)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await start(world, 3)
        await _is_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_directory_that_comes_back_late_does_not_replace_newer_logs() -> None:
    async def script(world: World) -> None:
        client = Client(world, "producer")
        places = await _written(world, min_isr=2)
        await stop(world, 3)
        configure(world, 3)
        await start(world, 3)
        await _is_complete(world, places)
        for place in places:
            await append_until(client, place, ["late"])
        await until(lambda: all(values_on(world, place, 3) == [*VALUES, "late"] for place in places))
        await stop(world, *BROKERS)
        configure(world, 3, **TWO_DIRS)
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in places))
        assert all(values_on(world, place, 3) == [*VALUES, "late"] for place in places)
        assert len([each for each in world.hosts[3].disk.listdir("/data2") if each.endswith("-stray")]) == 2

    play(script, settings=TWO_DIRS, has_topic=False)


def test_failed_directory_that_is_removed_from_the_settings_has_lost_its_logs() -> None:
    async def script(world: World) -> None:
        places = await _written(world, min_isr=1)
        await stop(world, 1, 2)
        host, client = world.hosts[3], Client(world, "other")
        lost = _places_in(world, 3, "/data2")
        host.disk.fail("write", errno.EIO, times=None, path="/data2")
        for place in places:
            await append(client, place, ["x"], broker=3)
        await until(lambda: all(state_of(world, place).leader == NO_LEADER for place in lost))
        await stop(world, 3)
        host.disk.heal()
        configure(world, 3)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        for place in lost:
            assert state_of(world, place).leader == NO_LEADER
            assert state_of(world, place).unclean == (LogEnd(3, -1, LOG_LOST),)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_start_that_is_killed_before_it_marks_lost_logs_does_not_forget_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        (place,) = await _written(world, min_isr=1, partitions=1)
        await stop(world, 1, 2)
        await until(lambda: state_of(world, place).isr == (3,))
        host = world.hosts[3]
        host.replace_disk(SimulatedDisk())
        mark = membership_module.Membership._mark_unclean

        async def killed(self: membership_module.Membership, *_: object) -> None:
            monkeypatch.setattr(membership_module.Membership, "_mark_unclean", mark)
            world.loop.call_soon(host.kill, "process")
            await asyncio.sleep(1000)

        monkeypatch.setattr(membership_module.Membership, "_mark_unclean", killed)
        host.start()
        await until(lambda: not host.is_running)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert state_of(world, place).leader == NO_LEADER
        assert state_of(world, place).unclean == (LogEnd(3, -1, LOG_LOST),)

    play(script, has_topic=False)


def test_log_whose_folder_lost_its_topic_id_after_a_clean_stop_is_lost() -> None:
    async def script(world: World) -> None:
        (place,) = await _written(world, min_isr=1, partitions=1)
        await stop(world, *BROKERS)
        world.hosts[3].disk.write_file("/data/t-0/partition.metadata", b"", sync=True)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert state_of(world, place).leader == NO_LEADER
        assert state_of(world, place).unclean == (LogEnd(3, -1, LOG_LOST),)

    play(script, has_topic=False)
