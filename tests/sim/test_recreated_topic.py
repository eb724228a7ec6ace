"""A topic is deleted and created again while one of its replicas is down after a power failure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sim_admin import Administrator
from sim_client import NOT_LEADER, Client, Lost, batch
from sim_host import BrokerHost
from sim_invariants import batches_of
from sim_script import play
from sim_world import World

from ottla.broker.cluster.run_start import RunStart
from ottla.broker.metadata.nodes import state_path
from ottla.broker.metadata.store import Node, Put
from ottla.model.records import iterate_records
from ottla.testing.history import Place
from ottla.testing.raw import produce_request

PLACE = Place("again", 0)
METADATA = "/data/again-0/partition.metadata"


async def produce(world: World, client: Client, value: str) -> None:
    """Send a record with acks=all to the leader. Retry while that broker starts or is not the leader yet."""
    content = batch([value], world.now_ms())
    request = produce_request((PLACE.topic, PLACE.partition, content), acks=-1, timeout_ms=2000)
    code = None
    while code != 0:
        try:
            reply = await client.ask(request, 11, broker=state(world).leader)
            code = reply.responses[0].partition_responses[0].error_code
            assert code in (0, *NOT_LEADER)
        except Lost as error:
            if "refuses the connection" not in str(error):
                raise
        await asyncio.sleep(0.1)


def state(world: World) -> Any:
    replication: Any = world.replication
    return replication.store.view.topics[PLACE.topic].partitions[PLACE.partition]


def values(host: BrokerHost) -> list[str]:
    """Return the records in the log of a broker; none if it does not have the partition."""
    partition = host.broker.replicas.find(*PLACE) if host.is_ready and host.broker is not None else None
    found = batches_of(partition.log) if partition is not None else ()
    return [(each.value or b"").rstrip(b".").decode() for _, content in found for each in iterate_records(content)]


async def create(world: World, client: Administrator) -> None:
    await client.create_topic(PLACE.topic)
    while any(host.is_ready and PLACE.topic not in host.broker.view.topics for host in world.hosts.values()):  # type: ignore[union-attr]
        await asyncio.sleep(0.01)


async def elect_another_leader(world: World) -> None:
    """Let the leader's process end and start, so that the leader epoch is no longer 0."""
    first = state(world).leader
    world.hosts[first].kill("process")
    while state(world).leader in (first, -1):
        await asyncio.sleep(0.1)
    world.hosts[first].start()
    while len(state(world).isr) < 3:
        await asyncio.sleep(0.1)


async def recreate_while_one_is_down(world: World, *, is_damaged: bool, has_later_epoch: bool) -> None:
    """Check that a follower that was down meanwhile gets the new topic's records before it is in sync."""
    client = Administrator(world, "admin")
    await create(world, client)
    if has_later_epoch:
        await elect_another_leader(world)
    for number in range(10):
        await produce(world, client, f"old-{number}")
    leader = state(world).leader
    host = world.hosts[next(number for number in world.hosts if number != leader)]
    while host.broker.replicas.find(*PLACE).log.synced_end_offset < 10:  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
    host.kill("power")
    if is_damaged:
        host.disk.write_file(METADATA, b"", sync=True)
    else:
        assert b"topic_id: " in (host.disk.read_file(METADATA) or b""), "the sync of the log included it"
    await client.delete_topic(PLACE.topic)
    await create(world, client)
    expected = [f"new-{number}" for number in range(4)]
    for value in expected:
        await produce(world, client, value)
    host.start()
    while (found := values(host)) != expected:
        assert found == expected[: len(found)], "the follower uses the records of the earlier topic"
        assert host.broker_id not in state(world).isr, "it could be elected without the records"
        assert not any("start failed" in reason for reason in host.ends)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_power_failure_keeps_the_topic_id_of_a_log_that_was_synced(seed: int) -> None:
    async def script(world: World) -> None:
        await recreate_while_one_is_down(world, is_damaged=False, has_later_epoch=False)

    play(script, seed=seed)


@pytest.mark.parametrize("has_later_epoch", [False, True])
def test_replica_without_a_topic_id_copies_the_log_again(has_later_epoch: bool) -> None:
    """With a later epoch than the new topic's, the broker would not start with the log."""

    async def script(world: World) -> None:
        await recreate_while_one_is_down(world, is_damaged=True, has_later_epoch=has_later_epoch)
        assert any(
            "unidentified-stray" in folder for host in world.hosts.values() for folder in host.disk.listdir("/data")
        )

    play(script)


def put_in_sync(world: World, broker: int) -> None:
    """Add a broker to the ISR, as if the topic had been created before the registration of its last run was deleted."""
    node: Node = world.ensemble.tree()[state_path(PLACE.topic)]
    content = json.loads(node.value)
    _, _, isr, epoch, *_ = content["partitions"][0]
    content["partitions"][0][2:4] = [*isr, broker], epoch + 1
    world.ensemble.multi(
        world.ensemble.connect("test"), [Put(state_path(PLACE.topic), json.dumps(content).encode(), node.version)]
    )


@pytest.mark.parametrize("is_run_begun", [False, True])
@pytest.mark.parametrize("damage", ["process", "power"])
def test_broker_that_has_opened_the_log_of_an_earlier_topic_does_not_use_it(
    damage: str, is_run_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted and created again between the two reads of the metadata of a start."""

    async def script(world: World) -> None:
        client = Administrator(world, "admin")
        await create(world, client)
        await elect_another_leader(world)
        for number in range(10):
            await produce(world, client, f"old-{number}")
        await asyncio.sleep(1)
        leader = state(world).leader
        host = world.hosts[next(number for number in world.hosts if number != leader)]
        host.kill(damage)
        has_opened_logs, may_go_on = asyncio.Event(), asyncio.Event()
        begin_run = RunStart._begin_run

        async def wait_and_begin_run(self: RunStart, *given: Any) -> None:
            if is_run_begun:
                await begin_run(self, *given)
            has_opened_logs.set()
            await may_go_on.wait()
            if not is_run_begun:
                await begin_run(self, *given)

        monkeypatch.setattr(RunStart, "_begin_run", wait_and_begin_run)
        host.start()
        await has_opened_logs.wait()
        await client.delete_topic(PLACE.topic)
        await create(world, client)
        await produce(world, client, "new-0")
        if not is_run_begun:
            put_in_sync(world, host.broker_id)
        may_go_on.set()
        while (found := values(host)) != ["new-0"]:
            assert found == [], "the broker uses the records of the earlier topic"
            if is_run_begun or host.is_ready:
                assert host.broker_id not in state(world).isr, "it could be elected without the records"
            ends = [end for end in state(world).unclean if end.broker == host.broker_id]
            assert all(end.end_offset <= 0 for end in ends), "the end of the earlier log counts for the new one"
            await asyncio.sleep(0.001)

    play(script)
