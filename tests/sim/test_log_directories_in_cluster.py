"""Log directories that are missing, replaced or come back: no replica leads without its acknowledged records."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from sim_client import Client
from sim_host import SimulatedDisk
from sim_script import append, append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

import ottla.broker.membership as membership_module
from ottla.cluster.view import NO_LEADER
from ottla.log.folders import partition_of
from ottla.testing.history import Place
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

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
    folders = map(partition_of, world.hosts[number].disk.listdir(directory))
    return [Place(*each) for each in folders if each is not None and each.topic == "t"]


def _is_lost(world: World, place: Place) -> bool:
    """Return whether broker 3 is the only replica that counts, and its log is lost."""
    state = state_of(world, place)
    lost = state.lost_end(3)
    return state.isr == (3,) and state.unclean == (lost,)


async def _start_killed(world: World, number: int, monkeypatch: pytest.MonkeyPatch, *, is_marked: bool = False) -> None:
    """Start a broker that is killed before it has marked lost and unclean logs, or after it."""
    host, mark = world.hosts[number], membership_module.Membership._mark_unclean

    async def killed(self: membership_module.Membership, *ends: Any) -> None:
        monkeypatch.setattr(membership_module.Membership, "_mark_unclean", mark)
        if is_marked:
            await mark(self, *ends)
        world.loop.call_soon(host.kill, "process")
        await asyncio.sleep(1000)

    monkeypatch.setattr(membership_module.Membership, "_mark_unclean", killed)
    host.start()
    await until(lambda: not host.is_running)


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
        await until(lambda: all(_is_lost(world, place) for place in lost))
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


def test_directory_that_comes_back_after_another_was_lost_does_not_count() -> None:
    """Its logs were copied to another directory, and got further records there. Then that one was lost."""

    async def script(world: World) -> None:
        client = Client(world, "producer")
        places = await _written(world, min_isr=1)
        moved = _places_in(world, 3, "/data2")
        await stop(world, 3)
        configure(world, 3)
        await start(world, 3)
        await _is_complete(world, places)
        for place in moved:
            await append_until(client, place, ["late"])
        await stop(world, 1, 2)
        await until(lambda: all(state_of(world, place).isr == (3,) for place in moved))
        await stop(world, 3)
        world.hosts[3].disk.empty_directory("/data")
        await start(world, 3)
        assert all(_is_lost(world, place) for place in moved)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert moved and all(_is_lost(world, place) for place in moved)

    play(script, settings=TWO_DIRS, has_topic=False)


async def _reassign(world: World, place: Place, *replicas: int) -> None:
    partition = ReassignablePartition(partition_index=place.partition, replicas=list(replicas))
    topic = ReassignableTopic(name=place.topic, partitions=[partition])
    await Client(world, "operator").ask(AlterPartitionReassignmentsRequest(timeout=3000, topics=[topic]), 0, broker=1)
    await until(lambda: {*state_of(world, place).isr} == {*state_of(world, place).replicas} == {*replicas})


def test_folder_that_stayed_when_its_partition_was_moved_away_is_not_used_again() -> None:
    """The partition is moved away while the broker is down, and comes back to another directory."""

    async def script(world: World) -> None:
        client = Client(world, "producer")
        (place,) = await _written(world, min_isr=1, partitions=1)
        await stop(world, 3)
        await _reassign(world, place, 1, 2)
        await start(world, 3)
        await create_topic(world, "other")
        assert _places_in(world, 3, "/data") == [place], "the folder of an unknown partition stays"
        await _reassign(world, place, 1, 2, 3)
        await append_until(client, place, ["late"])
        assert (_places_in(world, 3, "/data"), _places_in(world, 3, "/data2")) == ([], [place])
        await stop(world, 1, 2)
        await until(lambda: state_of(world, place).isr == (3,))
        await stop(world, 3)
        await start(world, 3)
        await until(lambda: state_of(world, place).leader == 3)
        assert values_on(world, place, 3) == [*VALUES, "late"]

    play(script, settings=TWO_DIRS, has_topic=False)


def test_directory_that_comes_back_late_does_not_replace_newer_logs_after_killed_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The directory that was absent is the first one, and its clean stop file names the log."""

    async def script(world: World) -> None:
        client = Client(world, "producer")
        (place,) = await _written(world, min_isr=1, partitions=1)
        assert _places_in(world, 3, "/data") == [place]
        await stop(world, 3)
        configure(world, 3, **{"log.dirs": "/data2"})
        await start(world, 3)
        await _is_complete(world, [place])
        await append_until(client, place, ["late"])
        await stop(world, 1, 2)
        await until(lambda: state_of(world, place).isr == (3,))
        world.hosts[3].kill("process")
        configure(world, 3, **TWO_DIRS)
        await _start_killed(world, 3, monkeypatch)
        for _ in range(2):
            await start(world, 3)
            await until(lambda: state_of(world, place).leader == 3)
            assert values_on(world, place, 3) == [*VALUES, "late"]
            await stop(world, 3)

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
            assert _is_lost(world, place)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_start_that_is_killed_before_it_marks_lost_logs_does_not_forget_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        (place,) = await _written(world, min_isr=1, partitions=1)
        await stop(world, 1, 2)
        await until(lambda: state_of(world, place).isr == (3,))
        world.hosts[3].replace_disk(SimulatedDisk())
        await _start_killed(world, 3, monkeypatch)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert state_of(world, place).leader == NO_LEADER
        assert _is_lost(world, place)

    play(script, has_topic=False)


def test_start_that_is_killed_does_not_take_logs_of_a_missing_directory_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two directories are left, in which a start creates the folders of logs that it does not find."""

    async def script(world: World) -> None:
        await _written(world, min_isr=1, partitions=6)
        await stop(world, *BROKERS)
        lost = _places_in(world, 3, "/data3")
        configure(world, 3, **TWO_DIRS)
        await _start_killed(world, 3, monkeypatch)
        await start(world, 3)
        await asyncio.sleep(5)
        assert lost and all(_is_lost(world, place) for place in lost)

    play(script, settings={"log.dirs": "/data,/data2,/data3"}, has_topic=False)


def test_directory_that_comes_back_is_electable_after_a_killed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        places = await _written(world, min_isr=1)
        await stop(world, *BROKERS)
        configure(world, 3)
        await start(world, 3)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await _start_killed(world, 3, monkeypatch, is_marked=True)
        await start(world, *BROKERS)
        await _is_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_log_that_an_older_copy_of_its_directory_lacks_is_lost() -> None:
    async def script(world: World) -> None:
        client, host = Client(world, "admin"), world.hosts[3]
        await create_topic(world, "other")
        await stop(world, 3)
        disk = host.disk
        older = {file: disk.read_file(f"/data2/{file}") or b"" for file in ("meta.properties", "incarnation.json")}
        await start(world, 3)
        (place,) = await _written(world, min_isr=1, partitions=1)
        assert _places_in(world, 3, "/data2") == [place]
        # Now the other directory has the fewest logs, and a start creates missing ones there.
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="other")], timeout=3000)
        assert [row.error_code for row in (await client.ask(request, 6)).responses] == [0]
        await until(lambda: "other-0" not in host.disk.listdir("/data"))
        await stop(world, 1, 2)
        await until(lambda: state_of(world, place).isr == (3,))
        await stop(world, 3)
        disk = host.disk
        disk.empty_directory("/data2")
        for file, content in older.items():
            disk.write_file(f"/data2/{file}", content, sync=True)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert _is_lost(world, place)

    play(script, settings=TWO_DIRS, has_topic=False)


@pytest.mark.parametrize("damage", ["topic id", "topic id, and a killed start", "folder, and a killed start"])
def test_log_whose_folder_was_damaged_after_a_clean_stop_is_lost(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        (place,) = await _written(world, min_isr=1, partitions=1)
        await stop(world, *BROKERS)
        disk = world.hosts[3].disk
        if damage.startswith("folder"):
            disk.remove_tree("/data/t-0")
        else:
            disk.write_file("/data/t-0/partition.metadata", b"", sync=True)
        if damage.endswith("killed start"):
            await _start_killed(world, 3, monkeypatch)
        await start(world, *BROKERS)
        await asyncio.sleep(5)
        assert state_of(world, place).leader == NO_LEADER
        assert _is_lost(world, place)

    play(script, has_topic=False)
