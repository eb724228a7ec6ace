"""Where the topics of a cluster are placed, and how many replicas internal topics have."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.admin_fixtures import Admin, create_skeleton
from tests.unit.broker.cluster_fixtures import broker_changes, make_context, no_replicas

from ottla.broker.coordination.find_coordinator import CoordinatorApis
from ottla.broker.groups.runtime import OFFSETS_TOPIC
from ottla.broker.metadata.cluster_metadata import ResolvedSettings
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.nodes import broker_path
from ottla.broker.metadata.store import Create, Delete
from ottla.broker.metadata.view import PartitionView, TopicView
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest


class ClusterAdmin(Admin):
    """The handlers of broker 1 in a cluster."""

    def __init__(self, store: EmbeddedStore, properties: dict[str, str]) -> None:
        super().__init__(store, broker_id=1)
        self.metadata.settings = BrokerSettings.parse({"log.dirs": "unused", "broker.id": "1", **properties})
        numbers: Any = SimpleNamespace(partition_for=lambda key: 0)
        self.coordinators = CoordinatorApis(
            metadata=self.metadata, replicas=no_replicas(), topics=self.topics, groups=numbers, transactions=numbers
        )

    async def register(self, *brokers: int) -> None:
        for broker_id in brokers:
            await self.store.multi(
                [Create(each.path, each.node.value) for each in broker_changes(broker_id) if each.node]
            )

    async def stop(self, broker_id: int) -> None:
        await self.store.multi([Delete(broker_path(broker_id), 0)])

    async def create(self, **wanted: Any) -> tuple[int, list[tuple[int, tuple[int, ...], tuple[int, ...]]]]:
        """Return the error code, and leader, replicas and ISR of each partition."""
        topic = CreatableTopic(name="t", **{"num_partitions": -1, "replication_factor": -1, **wanted})
        answer = await self.topics.create_topics(CreateTopicsRequest(topics=[topic]), self.context)
        return answer.topics[0].error_code, self.partitions("t")

    async def grow(self, count: int) -> int:
        wanted = CreatePartitionsTopic(name="t", count=count, assignments=None)
        answer = await self.topics.create_partitions(CreatePartitionsRequest(topics=[wanted]), self.context)
        return int(answer.results[0].error_code)

    def partitions(self, name: str) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        topic = self.view.topics.get(name)
        return [] if topic is None else [(each.leader, each.replicas, each.isr) for each in topic.partitions]

    async def find(self, kind: int) -> int:
        """Return the error code of FindCoordinator, which creates the internal topic if it is missing."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["k"])
        answer: Any = self.coordinators.find_coordinator(request, make_context(4))
        if inspect.isawaitable(answer):
            answer = await answer
        return int(answer.coordinators[0].error_code)


def run(path: Path, test: Any, **properties: str) -> None:
    async def main() -> None:
        store = EmbeddedStore.open(path / "metadata.db")
        await create_skeleton(store)
        admin = ClusterAdmin(store, {name.replace("_", "."): value for name, value in properties.items()})
        await admin.open()
        await test(admin)
        await store.close()

    asyncio.run(main())


def test_new_topics_are_placed_on_the_live_brokers(tmp_path: Path) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await admin.stop(2)
        code, partitions = await admin.create(num_partitions=4, replication_factor=2)
        assert code == 0
        assert {leader for leader, _, _ in partitions} == {0, 1}
        assert all(sorted(replicas) == [0, 1] and replicas == isr for _, replicas, isr in partitions)

    run(tmp_path, test)


def test_registered_brokers_that_are_down_get_replicas_if_the_live_ones_are_too_few(tmp_path: Path) -> None:
    """As in Kafka: a topic with three replicas can be created while one of three brokers is down."""

    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await admin.stop(2)
        assert await admin.create(replication_factor=4) == (ErrorCode.INVALID_REPLICATION_FACTOR, [])
        code, partitions = await admin.create(num_partitions=6, replication_factor=3)
        assert code == 0
        assert all(sorted(replicas) == [0, 1, 2] and sorted(isr) == [0, 1] for _, replicas, isr in partitions)
        assert {leader for leader, _, _ in partitions} == {0, 1}
        assert await admin.grow(8) == 0
        added = admin.partitions("t")[6:]
        assert all(sorted(replicas) == [0, 1, 2] and sorted(isr) == [0, 1] for _, replicas, isr in added)

    run(tmp_path, test)


def assigned(*brokers: int) -> dict[str, Any]:
    return {"assignments": [CreatableReplicaAssignment(partition_index=0, broker_ids=list(brokers))]}


def test_assigned_replica_that_is_down_is_not_in_sync(tmp_path: Path) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await admin.stop(2)
        assert await admin.create(**assigned(2, 0)) == (0, [(0, (2, 0), (0,))])

    run(tmp_path, test)


@pytest.mark.parametrize("brokers", [(2,), (0, 9)])
def test_assignment_without_a_live_or_with_an_unknown_broker_is_rejected(
    tmp_path: Path, brokers: tuple[int, ...]
) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await admin.stop(2)
        assert await admin.create(**assigned(*brokers)) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])

    run(tmp_path, test)


@pytest.mark.parametrize(("brokers", "replicas"), [((), 1), ((0, 1), 2), ((0, 1, 2, 3), 3)])
@pytest.mark.parametrize(("kind", "name"), [(0, OFFSETS_TOPIC), (1, TRANSACTION_TOPIC)])
def test_internal_topic_has_three_replicas_or_as_many_as_there_are_brokers(
    tmp_path: Path, brokers: tuple[int, ...], replicas: int, kind: int, name: str
) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(*brokers)
        await admin.find(kind)
        assert {len(ids) for _, ids, _ in admin.partitions(name)} == {replicas}
        settings = admin.metadata.topic_settings(admin.view.topics[name])
        assert settings.min_insync_replicas == (2 if replicas == 3 else 1)

    run(tmp_path, test)


@pytest.mark.parametrize(("kind", "name"), [(0, OFFSETS_TOPIC), (1, TRANSACTION_TOPIC)])
@pytest.mark.parametrize("coordinator", [0, 1])
def test_coordinator_on_another_broker_is_not_named_when_its_topic_was_just_created(
    tmp_path: Path, kind: int, name: str, coordinator: int
) -> None:
    """The other broker may not know it yet. librdkafka's admin client does not retry what it would refuse."""

    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1)
        # The first replica of partition 0 follows from the topic id.
        admin.metadata.new_id = lambda: coordinator.to_bytes(4, "big") + bytes(12)
        code = await admin.find(kind)
        assert admin.partitions(name)[0][0] == coordinator
        assert code == (0 if coordinator == 1 else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await admin.find(kind) == 0

    run(tmp_path, test)


def test_broker_that_is_down_becomes_a_replica_of_an_internal_topic(tmp_path: Path) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await admin.stop(2)
        await admin.find(0)
        partitions = admin.partitions(OFFSETS_TOPIC)
        assert {leader for leader, _, _ in partitions} == {0, 1}
        assert all(sorted(ids) == [0, 1, 2] and sorted(isr) == [0, 1] for _, ids, isr in partitions)

    run(tmp_path, test)


def test_internal_topic_waits_for_as_many_brokers_as_its_setting_says(tmp_path: Path) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1)
        assert await admin.find(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not admin.partitions(OFFSETS_TOPIC)
        await admin.register(2)
        await admin.find(0)
        assert {len(ids) for _, ids, _ in admin.partitions(OFFSETS_TOPIC)} == {3}

    run(tmp_path, test, offsets_topic_replication_factor="3")


@pytest.mark.parametrize(
    ("overrides", "broker", "replicas", "expected"),
    [
        ({}, {}, 1, 1),
        ({}, {}, 2, 1),
        ({}, {}, 3, 2),
        ({}, {"min.insync.replicas": "1"}, 3, 1),
        ({"min.insync.replicas": "3"}, {"min.insync.replicas": "1"}, 3, 3),
    ],
)
def test_min_insync_replicas_is_two_with_three_replicas_unless_it_is_set(
    overrides: dict[str, str], broker: dict[str, str], replicas: int, expected: int
) -> None:
    settings = TopicSettings.resolve(overrides, BrokerSettings.parse(broker), replicas)
    assert settings.min_insync_replicas == expected


def test_topics_with_the_same_overrides_share_their_settings_until_the_broker_settings_change() -> None:
    resolved = ResolvedSettings()

    def topic(replicas: int, **config: str) -> TopicView:
        partition = PartitionView(leader=1, leader_epoch=0, replicas=tuple(range(replicas)), isr=(0,))
        return TopicView(name="any", topic_id=bytes(16), partitions=(partition,), config=config)

    broker, other = BrokerSettings.parse({}), BrokerSettings.parse({"log.retention.ms": "1000"})
    found = resolved.of(topic(3), broker)
    assert resolved.of(topic(3), broker) is found
    assert resolved.of(topic(1), broker).min_insync_replicas == 1
    assert resolved.of(topic(3, **{"retention.ms": "7"}), broker).retention_ms == 7
    assert resolved.of(topic(3), other).retention_ms == 1000
    assert resolved.of(topic(3), broker) == found
