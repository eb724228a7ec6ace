"""Two admin clients that change the same metadata at the same time: no acknowledged change is lost."""

from __future__ import annotations

import uuid
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from drivers import DEADLINE_S

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

ROUNDS = 20
_INVALID_PARTITIONS = 37


@pytest.fixture(scope="module")
def admins(ottla_broker: BrokerProcess) -> tuple[AdminClient, AdminClient]:
    return tuple(AdminClient({"bootstrap.servers": ottla_broker.bootstrap}) for _ in range(2))


@pytest.fixture
def topics(admins: tuple[AdminClient, AdminClient]) -> list[str]:
    names = [f"admins-{uuid.uuid4().hex[:12]}" for _ in range(ROUNDS)]
    created = admins[0].create_topics([NewTopic(name, 4, 1) for name in names])
    for future in created.values():
        future.result(DEADLINE_S)
    return names


def code_of(future: Future[None]) -> int:
    """Return the error code of the answer."""
    try:
        future.result(DEADLINE_S)
    except KafkaException as error:
        return error.args[0].code()
    return 0


def test_partitions_added_by_two_clients_at_once_are_never_removed(
    admins: tuple[AdminClient, AdminClient], topics: list[str]
) -> None:
    for number, topic in enumerate(topics):
        # The client that is asked first alternates, so that each of them often is the first.
        pairs = list(zip(admins, (8, 6), strict=True))[:: -1 if number % 2 else 1]
        calls = [(count, admin.create_partitions([NewPartitions(topic, count)])[topic]) for admin, count in pairs]
        codes = {count: code_of(future) for count, future in calls}
        assert codes in ({8: 0, 6: 0}, {8: 0, 6: _INVALID_PARTITIONS})
        described = admins[0].list_topics(topic, timeout=DEADLINE_S).topics[topic]
        assert len(described.partitions) == 8


def test_settings_changed_by_two_clients_at_once_are_all_kept(
    admins: tuple[AdminClient, AdminClient], topics: list[str]
) -> None:
    wanted = {"retention.ms": "1000", "segment.bytes": "2000000"}
    for topic in topics:
        calls = []
        for admin, (name, value) in zip(admins, wanted.items(), strict=True):
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            calls += admin.incremental_alter_configs([resource]).values()
        for future in calls:
            future.result(DEADLINE_S)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    for resource in resources:
        settings = admins[0].describe_configs([resource])[resource].result(DEADLINE_S)
        assert {name: settings[name].value for name in wanted} == wanted
