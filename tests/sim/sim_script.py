"""Runs a script step by step in a simulated cluster, and the steps that several scripts need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sim_client import Client, Lost, batch
from sim_host import PORT, SETTINGS
from sim_invariants import batches_of
from sim_profiles import GENERAL
from sim_world import CLUSTER_SETTINGS, World

from ottla.broker.metadata.view import PartitionView
from ottla.model.records import iterate_records
from ottla.model.settings import BrokerSettings
from ottla.testing.history import Place
from ottla.testing.raw import produce_request
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

#: resource types of IncrementalAlterConfigs
TOPIC, BROKER = 2, 4


def play(
    script: Callable[[World], Awaitable[None]], *, seed: int = 1, brokers: int = 3, profile: str = GENERAL,
    settings: Mapping[str, str | None] | None = None, has_topic: bool = True,
) -> None:  # fmt: skip
    """Run a script in a world that has its topic and no faults.

    ``settings`` are those of all brokers, in addition to the usual ones. Without ``has_topic`` the script creates its
    own topics.
    """
    world = World(seed, brokers=brokers, profile=profile)
    for number in world.hosts if settings else ():
        configure(world, number, **(settings or {}))

    async def main() -> None:
        for host in world.hosts.values():
            host.start()
        if has_topic:
            await world._create_topic()
            await asyncio.sleep(1)
        else:
            await until(lambda: all(host.is_ready for host in world.hosts.values()))
        async with asyncio.timeout(300):
            await script(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    assert world.violations == {}


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait in virtual time until a condition is true."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.01)


def configure(world: World, number: int, **settings: str | None) -> None:
    """Give a broker these settings when it starts next, in addition to the usual ones; None removes one of those."""
    host = world.hosts[number]
    own = {"broker.id": str(number), "listeners": f"PLAINTEXT://{host.name}:{PORT}"}
    given = {**SETTINGS, **own, **CLUSTER_SETTINGS, **settings}
    host._settings = BrokerSettings.parse({name: value for name, value in given.items() if value is not None})


async def create_topic(
    world: World, name: str, *, partitions: int = 1, replicas: int = 3, **config: str
) -> list[Place]:  # fmt: skip
    """Create a topic, wait until all running brokers know it, and return its partitions."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)
    admin = Client(world, f"create-{name}")
    code = -1
    while code != 0:
        try:
            (made,) = (await admin.ask(CreateTopicsRequest(topics=[topic], timeout=5000), 7)).topics
            code = made.error_code
        except Lost:
            pass
        await asyncio.sleep(0.1)
    brokers = [host.broker for host in world.hosts.values() if host.broker is not None and host.is_ready]
    await until(lambda: all(name in broker.view.topics for broker in brokers))
    return [Place(name, number) for number in range(partitions)]


async def alter_config(client: Client, kind: int, resource: str, name: str, value: str, *, broker: int) -> int:
    """Set a setting of a topic or of brokers by a request to one broker, and return the error code."""
    config = AlterableConfig(name=name, config_operation=0, value=value)
    changed = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])
    (row,) = (await client.ask(IncrementalAlterConfigsRequest(resources=[changed]), 1, broker=broker)).responses
    return int(row.error_code)


async def produce(client: Client, place: Place, broker: int, sequence: int, *, producer_id: int = 7) -> int:
    """Send a batch of a producer to a broker and return the error code."""
    content = batch(
        [f"v{sequence}"], client.world.now_ms(), producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    reply = await client.ask(produce_request((place.topic, place.partition, content), acks=-1), 11, broker=broker)
    return int(reply.responses[0].partition_responses[0].error_code)


async def append(client: Client, place: Place, values: Sequence[str], *, broker: int | None = None) -> int:
    """Send one batch with acks=all to a broker, to the leader by default, and return the error code."""
    content = batch(list(values), client.world.now_ms())
    request = produce_request((place.topic, place.partition, content), acks=-1, timeout_ms=2000)
    leader = state_of(client.world, place).leader if broker is None else broker
    reply = await client.ask(request, 11, broker=leader)
    return int(reply.responses[0].partition_responses[0].error_code)


async def append_until(client: Client, place: Place, values: Sequence[str]) -> None:
    """Send one batch with acks=all to the leader until it is acknowledged."""
    code = -1
    while code != 0:
        try:
            code = await append(client, place, values)
        except Lost:
            pass
        await asyncio.sleep(0.1)


def state_of(world: World, place: Place) -> PartitionView:
    """Return the state of a partition in the metadata store."""
    assert world.replication is not None
    return world.replication.store.view.topics[place.topic].partitions[place.partition]


def values_on(world: World, place: Place, number: int) -> list[str]:
    """Return the values of a replica's records."""
    broker = world.hosts[number].broker
    replica = broker.replicas.find(*place) if broker is not None else None
    assert replica is not None
    records = (record for _, content in batches_of(replica.log) for record in iterate_records(content))
    return [(record.value or b"").rstrip(b".").decode() for record in records]


async def stop(world: World, *numbers: int) -> None:
    """Stop brokers cleanly, one after the other."""
    for number in numbers:
        world.hosts[number].stop()
        await until(lambda number=number: not world.hosts[number].is_running)  # type: ignore[misc]


async def start(world: World, *numbers: int) -> None:
    """Start brokers, and wait until they are ready."""
    for number in numbers:
        world.hosts[number].start()
    await until(lambda: all(world.hosts[number].is_ready for number in numbers))
