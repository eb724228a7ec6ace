"""`schema.validation=dlq` in a cluster: other brokers lead the partitions of the dead letters, followers get gaps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from tests.edge.registry_stand_in import registry_stand_in

from campaign.checker import check_replicas
from ottla.testing import ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

pytestmark = pytest.mark.broker

TOPIC, DEAD = "validated", "validated-dead"
GOOD = b"\0\0\0\0\1good"
WAIT_S = 60


def use_registry(client: RawClient, url: str) -> None:
    config = AlterableConfig(name="schema.registry.url", config_operation=0, value=url)
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    (row,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert row.error_code == 0, row.error_message


def create(client: RawClient, name: str, replicas: Sequence[Sequence[int]], **settings: str) -> None:
    rows = [CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)]
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows, configs=configs)
    (made,) = client.ask(CreateTopicsRequest(topics=[topic], timeout=30_000), 7).topics
    assert made.error_code == 0, made.error_message


def read(bootstrap: str, topic: str, count: int) -> list[tuple[int, int, bytes | None, dict[str, bytes]]]:
    """Return partition, offset, value and headers of ``count`` records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    found: list[Any] = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None
        found.append((message.partition(), message.offset(), message.value(), dict(message.headers() or [])))
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def test_dead_letters_are_appended_by_other_brokers(ottla_cluster: ClusterProcess) -> None:
    ids = sorted(ottla_cluster.brokers)
    replicas = [ids[number:] + ids[:number] for number in range(3)]
    with registry_stand_in() as (registry, url), RawClient(ottla_cluster.brokers[ids[0]].bootstrap) as client:
        registry.add("any", '"string"')
        use_registry(client, url)
        create(client, DEAD, [*replicas[1:], replicas[0]])
        create(client, TOPIC, replicas, schema_validation="dlq", schema_validation_dlq_topic=DEAD)
        errors: list[Any] = []

        def note(error: Any, message: Message) -> None:
            if error is not None:
                errors.append(error)

        producer = Producer({"bootstrap.servers": ottla_cluster.bootstrap, "enable.idempotence": True, "linger.ms": 50})
        for _ in range(2):
            for number in range(3):
                for value in (GOOD, b"bad", GOOD):
                    producer.produce(TOPIC, value, b"key", number, on_delivery=note)
            assert producer.flush(WAIT_S) == 0
        assert errors == []
        use_registry(client, "")
    stored = read(ottla_cluster.bootstrap, TOPIC, 12)
    assert [(number, offset) for number, offset, _, _ in stored] == [
        (number, offset) for number in range(3) for offset in (0, 2, 3, 5)
    ]
    dead = read(ottla_cluster.bootstrap, DEAD, 6)
    assert [(number, offset, value) for number, offset, value, _ in dead] == [
        (number, offset, b"bad") for number in range(3) for offset in range(2)
    ]
    assert {(headers["_topic"], int(headers["_partition"])) for _, _, _, headers in dead} == {
        (TOPIC.encode(), number) for number in range(3)
    }
    directories = {number: Path(broker.data) for number, broker in ottla_cluster.brokers.items()}
    deadline = time.monotonic() + WAIT_S
    for topic, ends in ((TOPIC, dict.fromkeys(range(3), 6)), (DEAD, dict.fromkeys(range(3), 2))):
        while differences := check_replicas(directories, topic, ends):
            assert time.monotonic() < deadline, differences
            time.sleep(0.01)


def test_transactions_are_committed_in_a_topic_with_validation(ottla_cluster: ClusterProcess) -> None:
    """Brokers ask the registry about the id in the first batches: for two of three, the coordinator is elsewhere."""
    ids = sorted(ottla_cluster.brokers)
    replicas = [ids[number:] + ids[:number] for number in range(3)]
    with registry_stand_in() as (registry, url), RawClient(ottla_cluster.brokers[ids[0]].bootstrap) as client:
        registry.add("any", '"string"')
        use_registry(client, url)
        create(client, "validated-transactions", replicas, schema_validation="reject")
        producer = Producer({"bootstrap.servers": ottla_cluster.bootstrap, "transactional.id": "validated"})
        producer.init_transactions(WAIT_S)
        for _ in range(2):
            producer.begin_transaction()
            for number in range(3):
                producer.produce("validated-transactions", GOOD, b"key", number)
            producer.commit_transaction(WAIT_S)
        use_registry(client, "")
    stored = read(ottla_cluster.bootstrap, "validated-transactions", 6)
    assert [(number, offset) for number, offset, _, _ in stored] == [
        (number, offset) for number in range(3) for offset in (0, 2)
    ]
