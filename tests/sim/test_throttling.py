"""Quotas of a broker in virtual time: rates over a minute, muted connections, and changes of quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from sim_host import PORT, WALL_START_MS, BrokerHost
from sim_loop import ContextLoop, VirtualLoop
from sim_network import ClientStream, SimulatedNetwork
from sim_world import CLUSTER_SETTINGS

from ottla.model.errors import ErrorCode
from ottla.security.quotas import Quota
from ottla.testing.metadata_store import SimulatedEnsemble
from ottla.testing.raw import batch_of, fetch_from, fetch_request, produce_request, read_answer, request_bytes
from ottla.wire import Message
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC = "events"
APP = [("client-id", "app")]


class Client:
    """One connection to a broker."""

    def __init__(self, world: World, stream: ClientStream, client_id: str) -> None:
        self._world = world
        self.stream = stream
        self._client_id = client_id
        self._number = 0

    def send(self, request: Message, version: int) -> asyncio.Future[Any]:
        self._number += 1
        number, reply = self._number, self._world.loop.create_future()
        frame = self.stream.request(request_bytes(request, version, number, self._client_id))

        def received(done: asyncio.Future[bytes]) -> None:
            if done.exception() is None:
                reply.set_result(read_answer(done.result(), request.API_KEY, version, number))
            else:
                reply.set_exception(done.exception() or OSError())

        frame.add_done_callback(received)
        return reply

    async def ask(self, request: Message, version: int) -> Any:
        return await self.send(request, version)

    async def set_quota(self, entity: list[tuple[str, str | None]] = APP, **rates: float | None) -> None:
        parts = [AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        ops = [OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()]
        entry = AlterClientQuotasRequestEntryData(entity=parts, ops=ops)
        (row,) = (await self.ask(AlterClientQuotasRequest(entries=[entry]), 1)).entries
        assert row.error_code == 0, row.error_message


class World:
    """Brokers in virtual time, with a topic of one partition."""

    def __init__(self, brokers: int, settings: dict[str, str]) -> None:
        self.loop = VirtualLoop()
        self.network = SimulatedNetwork(self.loop, Random(1), lambda line: None)
        ensemble = SimulatedEnsemble(ContextLoop(self.loop, None), Random(2))
        self.hosts = {
            number: BrokerHost(
                number, loop=self.loop, network=self.network, ensemble=ensemble, trace=lambda line: None,
                rng=Random(number), settings={**(CLUSTER_SETTINGS if brokers > 1 else {}), **settings},
            )
            for number in range(1, brokers + 1)
        }  # fmt: skip

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def throttling(self) -> Any:
        broker = self.hosts[1].broker
        assert broker is not None
        return broker.local.throttling

    async def connect(self, client_id: str = "app", *, broker: int = 1, host: str = "client") -> Client:
        return Client(self, await self.network.connect(host, f"broker-{broker}", PORT), client_id)


Script = Callable[[World, Client], Awaitable[None]]


def play(script: Script, *, brokers: int = 1, **settings: str) -> None:
    """Run a script with an administrator's connection."""
    world = World(brokers, {name.replace("_", "."): value for name, value in settings.items()})
    failures: list[BaseException] = []
    world.loop.on_exception = lambda where, error: failures.append(error)

    async def main() -> None:
        for host in world.hosts.values():
            host.start()
        while not all(host.is_ready for host in world.hosts.values()):
            await asyncio.sleep(0.01)
        admin = await world.connect("admin", host="admin")
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=brokers)
        (made,) = (await admin.ask(CreateTopicsRequest(topics=[topic], timeout=5000), 7)).topics
        assert made.error_code == 0
        await asyncio.sleep(1)
        await script(world, admin)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    assert failures == []


def produce(size: int, acks: int = 1) -> Message:
    return produce_request((TOPIC, 0, batch_of(bytes(size), timestamp=WALL_START_MS)), acks=acks)


async def fetch(client: Client, offset: int, version: int = 11, **fields: Any) -> Any:
    return await client.ask(fetch_request({TOPIC: [fetch_from(0, offset)]}, **fields), version)


def rows_of(reply: Any) -> list[Any]:
    return [row for topic in reply.responses for row in topic.partitions]


# -- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "in_flight", "connections"), [(100, 1, 1), (2_000, 5, 1), (15_000, 1, 1), (2_000, 2, 4)]
)
def test_rate_of_producers_over_a_minute_is_within_10_percent_of_the_quota(
    size: int, in_flight: int, connections: int
) -> None:
    sent = 0

    async def script(world: World, admin: Client) -> None:
        nonlocal sent
        await admin.set_quota(producer_byte_rate=10_000)
        end = world.now + 60

        async def run(client: Client) -> None:
            nonlocal sent
            while world.now < end:
                reply = await client.ask(produce(size), 9)
                assert reply.responses[0].partition_responses[0].error_code == 0
                if world.now < end:
                    sent += len(request_bytes(produce(size), 9, 1, "app"))

        clients = [await world.connect() for _ in range(connections)]
        await asyncio.gather(*(run(client) for client in clients for _ in range(in_flight)))

    play(script)
    assert sent / 60 == pytest.approx(10_000, rel=0.1)


@pytest.mark.parametrize(("size", "version"), [(1_000, 4), (4_000, 11), (15_000, 11)])
def test_rate_of_consumers_over_a_minute_is_within_10_percent_of_the_quota(size: int, version: int) -> None:
    received = 0

    async def script(world: World, admin: Client) -> None:
        nonlocal received
        for _ in range(700_000 // size):
            await admin.ask(produce(size), 9)
        await admin.set_quota(consumer_byte_rate=10_000)
        client, offset, end = await world.connect(), 0, world.now + 60
        while world.now < end:
            for row in rows_of(await fetch(client, offset, version)):
                received += len(row.records) if world.now < end else 0
                offset += len(row.records) // size

    play(script)
    assert received / 60 == pytest.approx(10_000, rel=0.1)


# -- muting -----------------------------------------------------------------------------------------------------------


def test_reply_is_sent_at_once_and_the_next_request_waits_for_the_throttle_time() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=10_000)
        client = await world.connect()
        started = world.now
        first, second, third = (client.send(produce(20_000), version) for version in (3, 9, 12))
        reply = await first
        throttle_s = reply.throttle_time / 1000
        assert world.now - started < 0.1 and throttle_s == pytest.approx(1, rel=0.05)
        await asyncio.sleep(throttle_s - (world.now - started) - 0.2)
        assert not second.done() and world.throttling.muted == 1
        assert (await second).throttle_time == pytest.approx(2000, rel=0.05)
        assert world.now - started == pytest.approx(throttle_s, abs=0.2)
        assert (await third).throttle_time == pytest.approx(2000, rel=0.05)
        assert world.now - started == pytest.approx(3, abs=0.3)

    play(script)


def test_connection_is_muted_after_a_produce_without_acknowledgement() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=10_000)
        client = await world.connect()
        client.send(produce(30_000, acks=0), 9)
        client.stream._waiting.clear()
        started = world.now
        await client.ask(MetadataRequest(topics=[]), 9)
        assert world.now - started == pytest.approx(2, abs=0.2)

    play(script)


def test_failed_produce_names_the_throttle_time() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=10_000)
        for partition, version in ((0, 9), (7, 9), (7, 12)):
            client = await world.connect(f"app-{partition}-{version}")
            await admin.set_quota([("client-id", f"app-{partition}-{version}")], producer_byte_rate=10_000)
            damaged = bytearray(batch_of(bytes(20_000)))
            damaged[-1] ^= 1
            reply = await client.ask(produce_request((TOPIC, partition, bytes(damaged))), version)
            assert reply.responses[0].partition_responses[0].error_code != 0
            assert reply.throttle_time == pytest.approx(1000, rel=0.05)

    play(script)


def test_first_batch_of_a_transaction_names_the_throttle_time() -> None:
    async def script(world: World, admin: Client) -> None:
        find = FindCoordinatorRequest(key="x", key_type=1)
        while (await admin.ask(find, 3)).error_code:
            await asyncio.sleep(0.1)
        producer = await admin.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout=60_000), 4)
        assert producer.error_code == 0
        await admin.set_quota(producer_byte_rate=10_000)
        client = await world.connect()
        for sequence in (0, 1):
            batch = batch_of(
                bytes(20_000), timestamp=WALL_START_MS, producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch, base_sequence=sequence, transactional=True,
            )  # fmt: skip
            started = world.now
            reply = await client.ask(produce_request((TOPIC, 0, batch), acks=-1, transactional_id="x"), 12)
            assert reply.responses[0].partition_responses[0].error_code == 0
            assert reply.throttle_time == pytest.approx(1000 + 1000 * sequence, rel=0.05)
            assert world.now - started == pytest.approx(sequence, abs=0.2), "the reply is sent at once"

    play(script)


def test_first_batch_of_a_transaction_counts_its_time_once() -> None:
    async def script(world: World, admin: Client) -> None:
        find = FindCoordinatorRequest(key="x", key_type=1)
        while (await admin.ask(find, 3)).error_code:
            await asyncio.sleep(0.1)
        producer = await admin.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout=60_000), 4)
        await admin.set_quota(request_percentage=0.0001)
        taken: list[float] = []
        take_time = world.throttling.take_time

        def count(connection: Any, started: float) -> int:
            taken.append(world.throttling.monotonic() - started)
            return 5 if take_time(connection, started) == 0 else 0

        world.throttling.take_time = count
        client = await world.connect()
        batch = batch_of(
            b"x", timestamp=WALL_START_MS, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        reply = await client.ask(produce_request((TOPIC, 0, batch), acks=-1, transactional_id="x"), 12)
        assert (len(taken), reply.throttle_time) == (1, 5)
        assert taken[0] < 0.001, "the time in which the request waits for the coordinator is not counted"

    play(script)


def test_clients_of_another_quota_are_not_muted() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=1_000)
        await (await world.connect()).ask(produce(50_000), 9)
        other, started = await world.connect("other"), world.now
        for _ in range(20):
            assert (await other.ask(produce(50_000), 9)).throttle_time == 0
        assert world.now - started < 1

    play(script)


@pytest.mark.parametrize("rate", [1_000_000.0, None])
def test_changed_quota_unmutes_connections(rate: float | None) -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=100)
        client = await world.connect()
        assert (await client.ask(produce(50_000), 9)).throttle_time > 400_000
        waiting = client.send(produce(100), 9)
        await asyncio.sleep(5)
        assert not waiting.done()
        await admin.set_quota(producer_byte_rate=rate)
        changed = world.now
        await waiting
        assert world.now - changed < 1 and world.throttling.muted == 0

    play(script)


def test_lower_quota_does_not_lengthen_the_time_that_a_client_was_told() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=10_000)
        client, started = await world.connect(), world.now
        assert (await client.ask(produce(40_000), 9)).throttle_time == pytest.approx(3000, rel=0.05)
        await admin.set_quota(producer_byte_rate=10)
        await client.ask(MetadataRequest(topics=[]), 9)
        assert world.now - started == pytest.approx(3, abs=0.3)

    play(script)


@pytest.mark.parametrize("is_reset", [False, True])
def test_connection_that_its_client_closes_while_it_is_muted_is_forgotten(is_reset: bool) -> None:
    async def script(world: World, admin: Client) -> None:
        server: Any = world.hosts[1].broker and world.hosts[1].broker.server
        before = len(server.connections)
        await admin.set_quota(producer_byte_rate=10_000)
        client = await world.connect()
        await client.ask(produce(60_000), 9)
        assert world.throttling.muted == 1
        if is_reset:
            client.stream._link.reset()
            await asyncio.sleep(1)
        else:
            client.stream.close()
            await asyncio.sleep(6)  # it is read from again when the throttle time is over, up to its end
        assert world.throttling.muted == 0 and len(server.connections) == before

    play(script)


# -- Fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11])
def test_fetch_over_quota_gets_no_records_and_a_later_one_gets_them(version: int) -> None:
    async def script(world: World, admin: Client) -> None:
        for _ in range(3):
            await admin.ask(produce(10_000), 9)
        await admin.set_quota(consumer_byte_rate=5_000)
        client = await world.connect()
        (row,) = rows_of(await fetch(client, 0, version))
        assert len(row.records) > 10_000  # one batch is sent even if it is larger than the quota
        reply = await fetch(client, 1, version)
        assert rows_of(reply) == [] and reply.throttle_time == pytest.approx(1000, rel=0.1)
        started = world.now
        (row,) = rows_of(await fetch(client, 1, version))
        assert len(row.records) > 10_000 and world.now - started == pytest.approx(1, abs=0.2)

    play(script)


def test_session_of_a_throttled_fetch_goes_on() -> None:
    async def script(world: World, admin: Client) -> None:
        for _ in range(3):
            await admin.ask(produce(10_000), 9)
        await admin.set_quota(consumer_byte_rate=5_000)
        client = await world.connect()
        reply = await fetch(client, 0, session=(0, 0))
        session = reply.session_id
        assert session and rows_of(reply)
        reply = await client.ask(fetch_request({TOPIC: [fetch_from(0, 1)]}, session=(session, 1)), 11)
        assert reply.session_id == session and reply.throttle_time and not rows_of(reply)
        reply = await client.ask(fetch_request({}, session=(session, 2)), 11)
        assert reply.session_id == session and reply.error_code == 0
        assert rows_of(reply)[0].records  # what was held back
        # A full fetch that is throttled begins no session: the client cannot know its partitions.
        reply = await fetch(client, 2, session=(0, 0))
        assert reply.session_id == 0 and reply.throttle_time and not rows_of(reply)

    play(script)


def test_waiting_fetch_that_is_woken_over_quota_gets_no_records() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(consumer_byte_rate=5_000)
        client, other = await world.connect(), await world.connect()
        waiting = [
            each.send(fetch_request({TOPIC: [fetch_from(0, 0)]}, max_wait=60_000), 11) for each in (client, other)
        ]
        await asyncio.sleep(1)
        assert not any(each.done() for each in waiting)
        await admin.ask(produce(10_000), 9)
        replies = await asyncio.gather(*waiting)
        (served,) = (reply for reply in replies if rows_of(reply))
        (throttled,) = (reply for reply in replies if not rows_of(reply))
        assert served.throttle_time == 0 and throttled.throttle_time == pytest.approx(1000, rel=0.1)
        assert world.throttling.throttled[Quota.FETCH] == 1

    play(script)


def test_fetch_that_waits_for_more_bytes_than_the_quota_allows_is_answered() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.ask(produce(30_000), 9)
        await admin.set_quota(consumer_byte_rate=5_000)
        client, started = await world.connect(), world.now
        assert rows_of(await fetch(client, 0, min_bytes=25_000, max_wait=30_000))
        assert world.now - started < 1

    play(script)


def test_pipelined_fetch_over_quota_gets_no_records() -> None:
    async def script(world: World, admin: Client) -> None:
        for _ in range(2):
            await admin.ask(produce(10_000), 9)
        await admin.set_quota(consumer_byte_rate=5_000)
        client = await world.connect()
        replies = [client.send(fetch_request({TOPIC: [fetch_from(0, n)]}), 11) for n in (0, 1)]
        first, second = await asyncio.gather(*replies)
        assert rows_of(first) and not rows_of(second) and second.throttle_time

    play(script)


# -- clusters ---------------------------------------------------------------------------------------------------------


def test_quota_applies_on_all_brokers_but_not_to_replication() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota([("user", None)], consumer_byte_rate=1.0, request_percentage=1000.0)
        await admin.set_quota(producer_byte_rate=10_000)
        await asyncio.sleep(1)
        topics = [MetadataRequestTopic(name=TOPIC)]
        leader = (await admin.ask(MetadataRequest(topics=topics), 9)).topics[0].partitions[0].leader_id
        client = await world.connect(broker=leader)
        # Acknowledged when all replicas have fetched it.
        reply = await client.ask(produce(40_000, acks=-1), 9)
        assert reply.responses[0].partition_responses[0].error_code == 0
        assert reply.throttle_time == pytest.approx(3000, rel=0.1)

    play(script, brokers=3)


# -- controller mutations ---------------------------------------------------------------------------------------------


def create(name: str, partitions: int) -> Message:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)], timeout=5000
    )


def test_strict_mutation_quota_refuses_changes_until_the_debt_is_paid() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(controller_mutation_rate=1.0)
        client = await world.connect()
        (made,) = (await client.ask(create("large", 14), 7)).topics  # 11 may be created at once
        assert made.error_code == 0
        for request, version, rows in (
            (create("next", 1), 6, "topics"),
            (DeleteTopicsRequest(topic_names=["large"], timeout=5000), 5, "responses"),
            (
                CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)]),
                3,
                "results",
            ),
        ):
            other = await world.connect()
            reply = await other.ask(request, version)
            (row,) = getattr(reply, rows)
            assert row.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert 2000 < reply.throttle_time <= 3000
        started = world.now
        (made,) = (await client.ask(create("next", 1), 7)).topics
        assert made.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        (made,) = (await client.ask(create("next", 1), 7)).topics
        assert made.error_code == 0 and world.now - started == pytest.approx(3, abs=0.3)

    play(script)


def test_mutation_quota_mutes_clients_that_do_not_know_its_error() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(controller_mutation_rate=1.0)
        client, started = await world.connect(), world.now
        reply = await client.ask(create("large", 14), 5)
        assert reply.topics[0].error_code == 0 and reply.throttle_time == pytest.approx(3000, rel=0.1)
        reply = await client.ask(DeleteTopicsRequest(topic_names=["large"], timeout=5000), 4)
        assert reply.responses[0].error_code == 0 and reply.throttle_time == pytest.approx(14_000, rel=0.1)
        assert world.now - started == pytest.approx(3, abs=0.3)
        topic = CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)
        reply = await client.ask(CreatePartitionsRequest(topics=[topic], timeout=5000), 2)
        assert reply.results[0].error_code == 0 and reply.throttle_time == pytest.approx(2000, rel=0.2)

    play(script)


# -- request time -----------------------------------------------------------------------------------------------------


def test_request_time_over_quota_is_throttled_by_a_second_at_most() -> None:
    async def script(world: World, admin: Client) -> None:
        clock: Any = world.hosts[1].clock
        throttling = world.throttling
        await admin.set_quota(request_percentage=1.0)
        client = await world.connect()
        requests: list[tuple[Message, int]] = [
            (MetadataRequest(topics=[]), 9), (MetadataRequest(topics=[]), 9), (produce(100), 9), (produce(100), 12),
            (fetch_request({TOPIC: [fetch_from(0, 0)]}), 11), (fetch_request({TOPIC: [fetch_from(0, 0)]}), 12),
            (create("a", 1), 7),
        ]  # fmt: skip
        for request, version in requests:
            await asyncio.sleep(12)  # nothing is owed any more
            # Each look at the clock takes 20 ms, so a request takes at least 20 ms, of 10 ms that are allowed.
            throttling.monotonic = _Costly(world.loop, clock.monotonic)
            reply = await client.ask(request, version)
            throttling.monotonic = clock.monotonic
            assert 0 < reply.throttle_time <= 1000, request
        assert world.throttling.throttled[Quota.REQUEST] >= len(requests)

    play(script)


class _Costly:
    """A clock that takes 20 ms to read."""

    def __init__(self, loop: VirtualLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic

    def __call__(self) -> float:
        self._loop._now += 0.02
        return self._monotonic()


# -- connections ------------------------------------------------------------------------------------------------------


def test_connections_of_an_address_over_quota_are_closed_after_the_throttle_time() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota([("ip", None)], connection_creation_rate=1.0)
        await admin.set_quota([("ip", "10.0.0.9")], connection_creation_rate=2.0)
        outcomes = []
        for number in range(22):  # ten seconds' worth is allowed at once
            client = await world.connect(host="10.0.0.9")
            started = world.now
            try:
                await client.ask(MetadataRequest(topics=[]), 9)
                outcomes.append(number)
            except ConnectionResetError:
                assert world.now - started > 0.1
        assert outcomes == list(range(20)) or outcomes == [*range(20), 21]
        await (await world.connect(host="10.0.0.10")).ask(MetadataRequest(topics=[]), 9)
        assert world.throttling.throttled[Quota.CONNECTION] in (1, 2)

    play(script)


def test_connections_over_the_rate_of_the_broker_are_served_later() -> None:
    async def script(world: World, admin: Client) -> None:
        started, clients = world.now, [await world.connect() for _ in range(40)]
        await asyncio.gather(*(client.ask(MetadataRequest(topics=[]), 9) for client in clients))
        assert world.now - started == pytest.approx(10, abs=1)  # 20 at once, then 2 per second

    play(script, max_connection_creation_rate="2")


@pytest.mark.parametrize(("name", "is_limited"), [("PLAINTEXT", True), ("OTHER", False)])
def test_connections_over_the_rate_of_their_listener_are_served_later(name: str, is_limited: bool) -> None:
    async def script(world: World, admin: Client) -> None:
        world.throttling.limit_connections({name: 2}, "")
        started, clients = world.now, [await world.connect() for _ in range(30)]
        await asyncio.gather(*(client.ask(MetadataRequest(topics=[]), 9) for client in clients))
        assert world.now - started == pytest.approx(5 if is_limited else 0, abs=1)

    play(script)


def test_common_rate_does_not_apply_to_the_listener_of_other_brokers() -> None:
    async def script(world: World, admin: Client) -> None:
        world.throttling.limit_connections({"": 1}, "PLAINTEXT")
        started, clients = world.now, [await world.connect() for _ in range(30)]
        await asyncio.gather(*(client.ask(MetadataRequest(topics=[]), 9) for client in clients))
        assert world.now - started < 1

    play(script)


# -- figures ----------------------------------------------------------------------------------------------------------


def test_metrics_page_has_the_throttle_time_of_each_quota() -> None:
    async def script(world: World, admin: Client) -> None:
        await admin.set_quota(producer_byte_rate=10_000)
        await (await world.connect()).ask(produce(30_000), 9)
        broker: Any = world.hosts[1].broker
        page = b"".join(await broker.metrics.fill()).decode().splitlines()
        assert 'ottla_throttled_total{quota="producer_byte_rate"} 1' in page
        assert 'ottla_throttled_total{quota="connection_creation_rate"} 0' in page
        assert "ottla_connections_muted 1" in page
        (line,) = (line for line in page if line.startswith('ottla_throttle_seconds_total{quota="producer_byte_rate"}'))
        assert float(line.split()[1]) == pytest.approx(2, rel=0.05)

    play(script)
