"""A log directory that fails while the broker runs, and whose partitions get new logs in another one meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

import pytest
from sim_client import Client
from sim_directories import (
    BROKERS,
    THREE_DIRS,
    TWO_DIRS,
    VALUES,
    places_in,
    reassign,
    start_with_lost,
    stop_others,
    until_complete,
    written,
)
from sim_script import append, append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

from ottla.broker.cluster.failed_directories import FailedDirectories
from ottla.broker.cluster.registration import Registration
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.broker.metadata.view import LOG_OFFLINE, NO_LEADER
from ottla.broker.partitions.partition import Role
from ottla.log.directories import LogDir
from ottla.testing.history import Place
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.elect_leaders import ElectLeadersRequest


async def _fail(world: World, place: Place, directory: str, value: str) -> None:
    """Let a directory of broker 3 fail at the append of a record."""
    assert place in places_in(world, 3, directory)
    world.hosts[3].disk.fail("write", errno.EIO, times=None, path=f"{directory}/")
    await append_until(Client(world, "producer"), place, [value])
    await until(lambda: 3 not in state_of(world, place).isr)


async def _fail_last(world: World, place: Place, directory: str) -> None:
    """Let a directory of broker 3 fail, which has the only in-sync replica."""
    world.hosts[3].disk.fail("write", errno.EIO, times=None, path=f"{directory}/")
    assert await append(Client(world, "other"), place, ["not stored"], broker=3) != 0
    await until(lambda: [end.end_offset for end in state_of(world, place).unclean] == [LOG_OFFLINE])


async def _recreate(world: World, place: Place, value: str) -> None:
    """Move a partition away from broker 3 and back, and append a record."""
    await reassign(world, place, 1, 2)
    await reassign(world, place, 1, 2, 3)
    await append_until(Client(world, "producer"), place, [value])


async def _recreated(world: World) -> Place:
    """Return a partition whose log was created again in the second directory of broker 3, because the first one failed.

    Broker 3 has the only in-sync replica and was killed, and both directories can be used again.
    """
    (place,) = await written(world, partitions=1)
    await _fail(world, place, "/data", "x")
    await _recreate(world, place, "late")
    await stop_others(world, place)
    world.hosts[3].kill("process")
    assert places_in(world, 3, "/data") == places_in(world, 3, "/data2") == [place]
    return place


def test_folder_that_stayed_in_a_failed_directory_is_not_used() -> None:
    async def script(world: World) -> None:
        place = await _recreated(world)
        await start(world, 3)
        await until(lambda: state_of(world, place).leader == 3)
        assert values_on(world, place, 3) == [*VALUES, "x", "late"]
        assert places_in(world, 3, "/data") == []

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("change", ["removed from log.dirs", "cannot be used"])
def test_folder_that_stayed_is_not_used_when_the_newer_one_is_missing(change: str) -> None:
    async def script(world: World) -> None:
        place = await _recreated(world)
        if change == "cannot be used":
            world.hosts[3].disk.fail("any", errno.EIO, times=None, path="/data2/")
        else:
            configure(world, 3, **{"log.dirs": "/data"})
        await start_with_lost(world, place)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await start(world, 3)
        await until_complete(world, [place], [*VALUES, "x", "late"])

    play(script, settings=TWO_DIRS, has_topic=False)


def test_log_that_stayed_in_a_failed_directory_is_complete_although_another_one_is_missing() -> None:
    """The metadata say that this log is offline since the run that had the directory, so no other can replace it."""

    async def script(world: World) -> None:
        places = await written(world, partitions=2)
        (place,) = places_in(world, 3, "/data")
        await stop_others(world, place)
        await _fail_last(world, place, "/data")
        await stop(world, 3)
        configure(world, 3, **{"log.dirs": "/data"})
        await start(world, 3)
        await until(lambda: state_of(world, place).leader == 3)
        assert values_on(world, place, 3) == VALUES
        (other,) = {*places} - {place}
        assert state_of(world, other).leader == NO_LEADER

    play(script, settings=TWO_DIRS, has_topic=False)


def test_newest_of_three_folders_is_used_after_two_directories_failed() -> None:
    async def script(world: World) -> None:
        (place,) = await written(world, partitions=1)
        await _fail(world, place, "/data", "x")
        await _recreate(world, place, "y")
        (second,) = (path for path in ("/data2", "/data3") if places_in(world, 3, path))
        await stop_others(world, place)
        await _fail_last(world, place, second)
        await stop(world, 3)
        await start(world, *BROKERS)
        await until_complete(world, [place], [*VALUES, "x", "y"])
        assert places_in(world, 3, second) == [place]
        assert places_in(world, 3, "/data") == []

    play(script, settings=THREE_DIRS, has_topic=False)


@pytest.mark.parametrize("is_written", [False, True])
def test_broker_that_is_killed_while_it_reports_a_failed_directory_keeps_its_logs(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(world: World) -> None:
        places = await written(world)
        host, write_dirs = world.hosts[3], Registration.write_dirs

        async def killed(self: Registration, dirs: RegisteredDirs) -> None:
            monkeypatch.setattr(Registration, "write_dirs", write_dirs)
            if is_written:
                await write_dirs(self, dirs)
            world.loop.call_soon(host.kill, "process")
            await asyncio.sleep(1000)

        await stop_others(world, places[0])
        await until(lambda: all(state_of(world, place).isr == (3,) for place in places))
        monkeypatch.setattr(Registration, "write_dirs", killed)
        await _fail_last(world, places_in(world, 3, "/data2")[0], "/data2")
        await until(lambda: not host.is_running)
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in places))
        assert all(values_on(world, place, 3) == VALUES for place in places)

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("moment", ["its file is written", "the logs are marked"])
def test_directory_that_fails_while_another_is_reported_keeps_its_logs(
    is_missing: bool, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed when the store knows of the first directory. Then the second one is back, or is missing."""

    async def script(world: World) -> None:
        places = await written(world, partitions=6)
        host, write_dirs, mark_logs = world.hosts[3], Registration.write_dirs, FailedDirectories._mark_logs
        await stop_others(world, places[0])
        await until(lambda: all(state_of(world, place).isr == (3,) for place in places))
        second = places_in(world, 3, "/data2")

        async def killed(self: Registration, dirs: RegisteredDirs) -> None:
            monkeypatch.setattr(Registration, "write_dirs", write_dirs)
            await write_dirs(self, dirs)
            world.loop.call_soon(host.kill, "process")
            await asyncio.sleep(1000)

        async def marked(self: FailedDirectories, failed: Sequence[LogDir]) -> None:
            monkeypatch.setattr(FailedDirectories, "_mark_logs", mark_logs)
            await mark_logs(self, failed)
            if moment == "the logs are marked":
                host.disk.fail("write", errno.EIO, times=None, path="/data2/")
                assert await append(Client(world, "late"), second[0], ["not stored"], broker=3) != 0

        monkeypatch.setattr(Registration, "write_dirs", killed)
        monkeypatch.setattr(FailedDirectories, "_mark_logs", marked)
        if moment == "its file is written":
            host.disk.fail("any", errno.EIO, times=None, path="/data2/incarnation.json")
        await _fail_last(world, places_in(world, 3, "/data")[0], "/data")
        await until(lambda: not host.is_running)
        if is_missing:
            configure(world, 3, **{"log.dirs": "/data,/data3"})
            await start_with_lost(world, *second)
            await stop(world, *BROKERS)
            configure(world, 3, **THREE_DIRS)
        await start(world, *BROKERS)
        await until_complete(world, places)

    play(script, settings=THREE_DIRS, has_topic=False)


def test_report_of_a_failed_directory_is_repeated_slowly_while_another_one_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt reads the whole metadata. A log is created when the other directory has room."""

    async def script(world: World) -> None:
        (place,) = await written(world, partitions=1)
        host, mark_logs = world.hosts[3], FailedDirectories._mark_logs
        attempts = 0

        async def counted(self: FailedDirectories, failed: Sequence[LogDir]) -> None:
            nonlocal attempts
            attempts += 1
            await mark_logs(self, failed)

        monkeypatch.setattr(FailedDirectories, "_mark_logs", counted)
        host.disk.fail("any", errno.ENOSPC, times=None, path="/data2/incarnation.json")
        await _fail(world, place, "/data", "x")
        (new,) = await create_topic(world, "new")
        await asyncio.sleep(20)
        assert host.broker is not None and host.broker.replicas.find(*new) is None
        assert 5 <= attempts <= 12
        host.disk.heal()
        await until(lambda: host.broker is not None and host.broker.replicas.find(*new) is not None)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_leader_without_the_store_does_not_lead_again_because_another_log_is_to_be_created() -> None:
    """The log of a new partition of its topic waits until the other directories of the broker have room."""

    async def script(world: World) -> None:
        places, host, client = await written(world, partitions=6, min_isr=2), world.hosts[3], Client(world, "operator")
        await client.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=3000), 2, broker=1)
        for path in ("/data2", "/data3"):
            host.disk.fail("any", errno.ENOSPC, times=None, path=f"{path}/incarnation.json")
        await _fail(world, places_in(world, 3, "/data")[0], "/data", "x")
        topic = CreatePartitionsTopic(name="t", count=9, assignments=None)
        await client.ask(CreatePartitionsRequest(topics=[topic], timeout=3000), 3, broker=1)
        broker = host.broker
        assert broker is not None
        await until(lambda: len(broker.view.topics["t"].partitions) == 9)
        (place, *_) = (each for each in places if state_of(world, each).leader == 3)
        host.cut_from_store()
        for other in (1, 2):
            world.network.cut(host.name, world.hosts[other].name)
            world.network.cut(world.hosts[other].name, host.name)
        await until(lambda: state_of(world, place).leader not in (3, NO_LEADER))
        replica = broker.replicas.find(*place)
        assert replica is not None
        await until(lambda: replica.suspended is not None)
        for _ in range(300):
            assert replica.role is Role.FOLLOWER
            await asyncio.sleep(0.01)
        host.disk.heal()
        host.heal_store()
        world.network.heal_all()
        await until(lambda: all(broker.replicas.find("t", number) is not None for number in range(9)))

    play(script, settings=THREE_DIRS, has_topic=False)
