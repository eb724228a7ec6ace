"""Clean stops of one broker of a simulated cluster."""

from __future__ import annotations

import asyncio
import errno
import os
from random import Random

import pytest
from sim_client import Client
from sim_directories import BROKERS, VALUES, stop_others, until_complete, written
from sim_script import append, append_until, play, start, state_of, stop, until, values_on
from sim_world import World

from ottla.broker.partitions.group_commit import GroupCommit
from ottla.log.log import Log


def test_leader_without_new_records_does_not_add_a_broker_that_stops_to_the_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker has all records and is registered until its logs are closed, but no longer fetches."""
    complete_writes = GroupCommit.complete_writes

    async def complete_writes_slowly(commits: GroupCommit, wait_s: float) -> None:
        await asyncio.sleep(5)
        await complete_writes(commits, wait_s)

    async def script(world: World) -> None:
        place, client = world.places[0], Client(world, "producer")
        await append_until(client, place, ["first"])
        stopping = next(number for number in state_of(world, place).isr if number != state_of(world, place).leader)
        monkeypatch.setattr(GroupCommit, "complete_writes", complete_writes_slowly)
        world.hosts[stopping].stop()
        await until(lambda: all(stopping not in state_of(world, each).isr for each in world.places))
        while world.hosts[stopping].is_running:
            assert all(stopping not in state_of(world, each).isr for each in world.places)
            await asyncio.sleep(0.005)
        monkeypatch.undo()
        assert await append(client, place, ["second"]) == 0
        await start(world, stopping)
        await until(lambda: all(stopping in state_of(world, each).isr for each in world.places))

    play(script)


def test_log_that_could_not_be_flushed_at_a_clean_stop_does_not_count_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last in-sync replica has not synced a record, cannot open its file at the stop, and loses power then."""

    async def script(world: World) -> None:
        (place,) = await written(world, min_isr=2, partitions=1)
        host, flush, file = world.hosts[3], Log.flush_files, "/data/t-0/00000000000000000000.log"
        assert host.broker is not None
        monkeypatch.setattr(host.broker.replicas.commits, "start_sync", lambda partition: None)
        await append_until(Client(world, "producer"), place, ["d"])
        await until(lambda: values_on(world, place, 3) == [*VALUES, "d"])
        await stop_others(world, place)

        def flush_others(of: Log) -> None:
            if of.name == place:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            flush(of)

        monkeypatch.setattr(Log, "flush_files", flush_others)
        await stop(world, 3)
        monkeypatch.undo()
        size, disks = host.disk.file_size(file) or 0, (host.disk.crash(Random(seed), "power") for seed in range(100))
        host.disk = next(each for each in disks if (each.file_size(file) or 0) < size)
        await start(world, *BROKERS)
        await until_complete(world, [place], [*VALUES, "d"])

    play(script, has_topic=False)
