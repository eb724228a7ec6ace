"""A log directory that cannot be used when a broker starts: its logs are offline, and complete when it can be used."""

from __future__ import annotations

import asyncio
import errno

import pytest
from sim_client import Client
from sim_directories import BROKERS, TWO_DIRS, VALUES, places_in, until_complete, written
from sim_script import append, append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

from ottla.broker.metadata.view import LOG_LOST, LOG_OFFLINE, NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest

OFFLINE, LOST = [(3, LOG_OFFLINE)], [(3, LOG_LOST)]

#: calls of the disk that fail below the second directory, so that it is found to be unusable at different steps
FAULTS = {
    "nothing can be read": ("read", errno.EIO),
    "nothing can be written": ("write_file", errno.EROFS),
    "the lock cannot be opened": ("open", errno.EACCES),
    "folders cannot be listed": ("listdir", errno.EIO),
    "nothing can be synced": ("fsync_dir", errno.EIO),
}


async def _stopped(world: World, *, min_isr: int = 1) -> tuple[list[Place], list[Place]]:
    """Write VALUES to all partitions, stop all brokers, broker 3 last.

    Return the partitions whose logs are in the second directory of broker 3, and the others.
    """
    await written(world, min_isr=min_isr)
    await stop(world, *BROKERS)
    in_second, in_first = places_in(world, 3, "/data2"), places_in(world, 3, "/data")
    assert in_second and in_first
    return in_second, in_first


def _marks(world: World, place: Place) -> list[tuple[int, int]]:
    return [(end.broker, end.end_offset) for end in state_of(world, place).unclean]


def _break(world: World, path: str = "/data2/", kind: str = "any") -> None:
    world.hosts[3].disk.fail(kind, errno.EIO, times=None, path=path)


async def _start_without(world: World, offline: list[Place], *numbers: int) -> None:
    """Start brokers while the second directory of broker 3 cannot be used."""
    _break(world)
    await start(world, *numbers)
    await until(lambda: all(_marks(world, place) == OFFLINE for place in offline))


async def _restart_healed(world: World) -> None:
    await stop(world, 3)  # the disk of the next process has no faults
    await start(world, 3)


@pytest.mark.parametrize("fault", FAULTS)
def test_last_broker_leads_what_it_has_and_the_rest_when_the_directory_can_be_used(fault: str) -> None:
    async def script(world: World) -> None:
        offline, kept = await _stopped(world)
        kind, error = FAULTS[fault]
        world.hosts[3].disk.fail(kind, error, times=None, path="/data2")
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in kept))
        await asyncio.sleep(5)
        client = Client(world, "other")
        for place in offline:
            assert (state_of(world, place).leader, _marks(world, place)) == (NO_LEADER, OFFLINE)
            assert await append(client, place, ["x"], broker=3) == ErrorCode.KAFKA_STORAGE_ERROR
        reply = await client.ask(DescribeLogDirsRequest(topics=None), 4, broker=3)
        assert {each.log_dir: each.error_code for each in reply.results} == {
            "/data": 0, "/data2": ErrorCode.KAFKA_STORAGE_ERROR,
        }  # fmt: skip
        await _restart_healed(world)
        await until(lambda: all(state_of(world, place).leader == 3 for place in (*offline, *kept)))
        assert all(values_on(world, place, 3) == VALUES for place in (*offline, *kept))

    play(script, settings=TWO_DIRS, has_topic=False)


def test_new_partitions_are_created_in_the_usable_directory() -> None:
    async def script(world: World) -> None:
        offline, kept = await _stopped(world)
        await _start_without(world, offline, *BROKERS)
        await create_topic(world, "new", partitions=4)
        world.hosts[3].disk.heal()
        assert not [folder for folder in world.hosts[3].disk.listdir("/data2") if folder.startswith("new-")]
        assert len([folder for folder in world.hosts[3].disk.listdir("/data") if folder.startswith("new-")]) == 4
        await _restart_healed(world)
        await until_complete(world, [*offline, *kept])

    play(script, settings=TWO_DIRS, has_topic=False)


def test_first_directory_may_be_the_unusable_one() -> None:
    async def script(world: World) -> None:
        in_second, in_first = await _stopped(world)
        _break(world, "/data/")
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in in_second))
        assert all(_marks(world, place) == OFFLINE for place in in_first)
        await _restart_healed(world)
        await until(lambda: all(state_of(world, place).leader == 3 for place in (*in_second, *in_first)))
        assert all(values_on(world, place, 3) == VALUES for place in (*in_second, *in_first))

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("starts", [1, 3])
def test_logs_stay_offline_for_as_many_starts_as_the_directory_cannot_be_used(starts: int) -> None:
    async def script(world: World) -> None:
        offline, kept = await _stopped(world)
        await _start_without(world, offline, *BROKERS)
        for _ in range(starts):
            await stop(world, 3)
            await _start_without(world, offline, 3)
            await asyncio.sleep(5)
            assert all(_marks(world, place) == OFFLINE for place in offline)
            assert all(state_of(world, place).leader == NO_LEADER for place in offline)
        await _restart_healed(world)
        await until_complete(world, [*offline, *kept])

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("change", ["removed from log.dirs", "replaced by an empty disk"])
def test_logs_are_lost_when_the_unusable_directory_is_given_up(change: str) -> None:
    async def script(world: World) -> None:
        offline, kept = await _stopped(world)
        await _start_without(world, offline, *BROKERS)
        await stop(world, 3)
        if change == "removed from log.dirs":
            configure(world, 3)
        else:
            world.hosts[3].disk.empty_directory("/data2")
        await start(world, 3)
        await until(lambda: all(_marks(world, place) == LOST for place in offline))
        await asyncio.sleep(5)
        assert all(state_of(world, place).leader == NO_LEADER for place in offline)
        if change == "removed from log.dirs":
            await stop(world, 3)
            configure(world, 3, **TWO_DIRS)
            await start(world, 3)
            await until_complete(world, [*offline, *kept])

    play(script, settings=TWO_DIRS, has_topic=False)


def test_other_replicas_lead_meanwhile_and_the_log_follows_them_afterwards() -> None:
    async def script(world: World) -> None:
        client = Client(world, "other")
        offline, kept = await _stopped(world, min_isr=2)
        _break(world)
        await start(world, *BROKERS)
        for place in (*offline, *kept):
            await append_until(client, place, ["late"])
        await _restart_healed(world)
        await until_complete(world, [*offline, *kept], [*VALUES, "late"])

    play(script, settings=TWO_DIRS, has_topic=False)


def test_older_directory_is_not_trusted_when_the_newer_one_is_missing() -> None:
    """The log is created anew in the first directory. That one fails, is lost, and then the older one comes back."""

    async def script(world: World) -> None:
        client = Client(world, "other")
        moved, _ = await _stopped(world, min_isr=2)
        configure(world, 3)
        await start(world, *BROKERS)
        await until(lambda: all(len(state_of(world, place).isr) == len(BROKERS) for place in moved))
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        _break(world)
        await start(world, 3)
        await until(lambda: all(len(state_of(world, place).isr) == len(BROKERS) for place in moved))
        for place in moved:
            await append_until(client, place, ["late"])
        await until(lambda: all(values_on(world, place, 3) == [*VALUES, "late"] for place in moved))
        await stop(world, *BROKERS)
        world.hosts[3].disk.empty_directory("/data")
        await start(world, 3)
        await asyncio.sleep(5)
        for place in moved:
            assert (state_of(world, place).leader, LOST[0] in _marks(world, place)) == (NO_LEADER, True)
        await start(world, 1, 2)
        await until_complete(world, moved, [*VALUES, "late"])

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("step", range(5))
def test_directory_that_fails_at_any_call_of_a_start_loses_nothing(step: int) -> None:
    """All calls in the directory fail from a certain one on, and none after the next start."""

    async def script(world: World) -> None:
        offline, kept = await _stopped(world)
        places = [*offline, *kept]
        for skip in range(step, 100, 5):
            world.hosts[3].disk.fail("any", errno.EIO, skip=skip, times=None, path="/data2/")
            await start(world, 3)
            await stop(world, 3)
            await start(world, 3)
            await until(lambda: all(state_of(world, place).leader == 3 for place in places))
            assert all(values_on(world, place, 3) == VALUES for place in places), skip
            await stop(world, 3)

    play(script, settings=TWO_DIRS, has_topic=False)
