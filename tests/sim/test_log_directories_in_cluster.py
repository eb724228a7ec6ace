"""Log directories that are missing, replaced or come back: no replica leads without its acknowledged records."""

from __future__ import annotations

import asyncio
import errno

import pytest
from sim_client import Client
from sim_directories import (
    BROKERS,
    THREE_DIRS,
    TWO_DIRS,
    VALUES,
    is_lost,
    places_in,
    reassign,
    start_killed,
    start_with_lost,
    stop_others,
    until_complete,
    written,
)
from sim_host import SimulatedDisk
from sim_script import append, append_until, configure, create_topic, play, start, state_of, stop, until, values_on
from sim_world import World

from ottla.broker.metadata.view import NO_LEADER
from ottla.log.dir_checkpoints import RECOVERY_POINTS
from ottla.testing.history import Place
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


@pytest.mark.parametrize("change", ["removed from log.dirs", "not mounted"])
def test_last_broker_without_a_log_directory_leads_only_what_it_has(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All brokers stop cleanly. The last one starts first, without its second directory."""

    async def script(world: World) -> None:
        places = await written(world, min_isr=2)
        await stop(world, *BROKERS)
        lost, kept = places_in(world, 3, "/data2"), places_in(world, 3, "/data")
        assert lost and kept
        if change == "not mounted":
            world.hosts[3].disk.remove_tree("/data2")
        else:
            configure(world, 3)
        await start(world, 3)
        await until(lambda: all(state_of(world, place).leader == 3 for place in kept))
        assert all(state_of(world, place).leader == NO_LEADER for place in lost)
        assert "log directories of the last run are missing: /data2. " in caplog.text
        assert "logs are lost: " in caplog.text
        assert f"partitions=2 first={min(f'{place.topic}-{place.partition}' for place in lost)}" in caplog.text
        await start(world, 1, 2)
        await until_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_directory_that_comes_back_makes_its_logs_electable_again() -> None:
    """Nothing was committed while the directory was absent, because no other replica was eligible."""

    async def script(world: World) -> None:
        places = await written(world)
        await stop(world, *BROKERS)
        lost = places_in(world, 3, "/data2")
        configure(world, 3)
        await start(world, *BROKERS)
        await until(lambda: all(is_lost(world, place) for place in lost))
        await asyncio.sleep(5)
        assert all(state_of(world, place).leader == NO_LEADER for place in lost)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await start(world, 3)
        await until_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


async def _restart_without_second(world: World, places: list[Place], appended: list[Place]) -> None:
    """Restart broker 3 without its second directory, wait for the copies of its logs, and append to some of them."""
    await stop(world, 3)
    configure(world, 3)
    await start(world, 3)
    await until_complete(world, places)
    for place in appended:
        await append_until(Client(world, "late"), place, ["late"])


def test_directory_that_comes_back_late_does_not_replace_newer_logs() -> None:
    async def script(world: World) -> None:
        places = await written(world, min_isr=2)
        await _restart_without_second(world, places, places)
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
        places = await written(world)
        moved = places_in(world, 3, "/data2")
        await _restart_without_second(world, places, moved)
        await stop(world, 1, 2)
        await until(lambda: all(state_of(world, place).isr == (3,) for place in moved))
        await stop(world, 3)
        world.hosts[3].disk.empty_directory("/data")
        await start(world, 3)
        assert all(is_lost(world, place) for place in moved)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        assert moved
        await start_with_lost(world, *moved)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_folder_that_stayed_when_its_partition_was_moved_away_is_not_used_again() -> None:
    """The partition is moved away while the broker is down, and comes back to another directory."""

    async def script(world: World) -> None:
        client = Client(world, "producer")
        (place,) = await written(world, partitions=1)
        await stop(world, 3)
        await reassign(world, place, 1, 2)
        await start(world, 3)
        await create_topic(world, "other")
        assert places_in(world, 3, "/data") == [place], "the folder of an unknown partition stays"
        await reassign(world, place, 1, 2, 3)
        await append_until(client, place, ["late"])
        assert (places_in(world, 3, "/data"), places_in(world, 3, "/data2")) == ([], [place])
        await stop_others(world, place)
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
        (place,) = await written(world, partitions=1)
        assert places_in(world, 3, "/data") == [place]
        await stop(world, 3)
        configure(world, 3, **{"log.dirs": "/data2"})
        await start(world, 3)
        await until_complete(world, [place])
        await append_until(client, place, ["late"])
        await stop_others(world, place)
        world.hosts[3].kill("process")
        configure(world, 3, **TWO_DIRS)
        await start_killed(world, 3, monkeypatch)
        for _ in range(2):
            await start(world, 3)
            await until(lambda: state_of(world, place).leader == 3)
            assert values_on(world, place, 3) == [*VALUES, "late"]
            await stop(world, 3)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_failed_directory_that_is_removed_from_the_settings_has_lost_its_logs() -> None:
    async def script(world: World) -> None:
        places = await written(world)
        await stop(world, 1, 2)
        host, client = world.hosts[3], Client(world, "other")
        lost = places_in(world, 3, "/data2")
        host.disk.fail("write", errno.EIO, times=None, path="/data2")
        for place in places:
            await append(client, place, ["x"], broker=3)
        await until(lambda: all(state_of(world, place).leader == NO_LEADER for place in lost))
        await stop(world, 3)
        host.disk.heal()
        configure(world, 3)
        await start_with_lost(world, *lost)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_start_that_is_killed_before_it_marks_lost_logs_does_not_forget_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        (place,) = await written(world, partitions=1)
        await stop_others(world, place)
        world.hosts[3].replace_disk(SimulatedDisk())
        await start_killed(world, 3, monkeypatch)
        await start_with_lost(world, place)

    play(script, has_topic=False)


def test_start_that_is_killed_does_not_take_logs_of_a_missing_directory_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two directories are left, in which a start creates the folders of logs that it does not find."""

    async def script(world: World) -> None:
        await written(world, partitions=6)
        await stop(world, *BROKERS)
        lost = places_in(world, 3, "/data3")
        configure(world, 3, **TWO_DIRS)
        await start_killed(world, 3, monkeypatch)
        assert lost
        await start_with_lost(world, *lost, brokers=(3,))

    play(script, settings=THREE_DIRS, has_topic=False)


def test_directory_that_comes_back_is_electable_after_a_killed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        places = await written(world)
        await stop(world, *BROKERS)
        configure(world, 3)
        await start(world, 3)
        await stop(world, 3)
        configure(world, 3, **TWO_DIRS)
        await start_killed(world, 3, monkeypatch, is_marked=True)
        await start(world, *BROKERS)
        await until_complete(world, places)

    play(script, settings=TWO_DIRS, has_topic=False)


def test_log_that_an_older_copy_of_its_directory_lacks_is_lost() -> None:
    async def script(world: World) -> None:
        client, host = Client(world, "admin"), world.hosts[3]
        await create_topic(world, "other")
        await stop(world, 3)
        disk = host.disk
        older = {file: disk.read_file(f"/data2/{file}") or b"" for file in ("meta.properties", "incarnation.json")}
        await start(world, 3)
        (place,) = await written(world, partitions=1)
        assert places_in(world, 3, "/data2") == [place]
        # Now the other directory has the fewest logs, and a start creates missing ones there.
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="other")], timeout=3000)
        assert [row.error_code for row in (await client.ask(request, 6)).responses] == [0]
        await until(lambda: "other-0" not in host.disk.listdir("/data"))
        await stop_others(world, place)
        await stop(world, 3)
        disk = host.disk
        disk.empty_directory("/data2")
        for file, content in older.items():
            disk.write_file(f"/data2/{file}", content, sync=True)
        await start_with_lost(world, place)

    play(script, settings=TWO_DIRS, has_topic=False)


async def _with_recovery_point(world: World) -> Place:
    """Return a partition with several segments, after the checkpoints were written."""
    config = {"min.insync.replicas": "1", "segment.bytes": "100"}
    (place,) = await create_topic(world, "t", **config)
    for value in VALUES:
        await append_until(Client(world, f"producer-{value}"), place, [value])
    await until_complete(world, [place])
    await asyncio.sleep(61)
    assert b"t 0 2" in (world.hosts[3].disk.read_file(f"/data/{RECOVERY_POINTS}") or b"")
    return place


@pytest.mark.parametrize("damage", ["topic id", "topic id, and a killed start", "folder, and a killed start"])
@pytest.mark.parametrize("end", ["clean stop", "kill"])
def test_log_whose_folder_was_damaged_is_lost(damage: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean stop file, or the recovery point, proves that the log had synced records."""

    async def script(world: World) -> None:
        place = await _with_recovery_point(world)
        if end == "clean stop":
            await stop(world, *BROKERS)
        else:
            await stop_others(world, place)
            world.hosts[3].kill("process")
        disk = world.hosts[3].disk
        if damage.startswith("folder"):
            disk.remove_tree("/data/t-0")
        else:
            disk.write_file("/data/t-0/partition.metadata", b"", sync=True)
        if damage.endswith("killed start"):
            await start_killed(world, 3, monkeypatch)
        await start_with_lost(world, place)

    play(script, has_topic=False)


def test_recovery_point_of_an_earlier_topic_does_not_prove_that_a_log_had_records() -> None:
    async def script(world: World) -> None:
        place = await _with_recovery_point(world)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout=3000)
        assert [row.error_code for row in (await Client(world, "admin").ask(request, 6)).responses] == [0]
        await create_topic(world, "t", **{"min.insync.replicas": "1"})
        await stop_others(world, place)
        world.hosts[3].kill("process")
        assert b"t 0 2" in (world.hosts[3].disk.read_file(f"/data/{RECOVERY_POINTS}") or b"")
        await start(world, 3)
        await until(lambda: state_of(world, place).leader == 3)

    play(script, has_topic=False)
