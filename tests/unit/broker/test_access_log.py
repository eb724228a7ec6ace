"""The log and the metrics of refused requests: they name the right that a client lacks, and no client can fill them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from tests.unit.broker.memory_broker import MemoryBroker

from ottla.broker.access.listening import Listening
from ottla.broker.access.permissions import Access
from ottla.security.acls import Authorizer, ResourceType
from ottla.testing.raw import batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages import describe_topic_partitions, list_groups, list_transactions, metadata
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

PRODUCE = 0
LOGGER = "ottla.broker.access.permissions"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access(Authorizer(), monotonic=lambda: clock.now)


def deny(access: Access, name: str, *, quiet: bool = False) -> None:
    connection: Any = SimpleNamespace(principal="User:mallory", peer_host="10.0.0.1")
    assert not access.may(connection, PRODUCE, ResourceType.TOPIC, name, quiet=quiet)


def test_denial_names_principal_right_and_resource_once_a_minute(
    access: Access, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        deny(access, "orders")
    assert caplog.messages == [
        "request denied principal=User:mallory host=10.0.0.1 api=Produce operation=WRITE resource=TOPIC name=orders"
    ]
    clock.now = 61.0
    deny(access, "orders")
    assert len(caplog.messages) == 2


def test_client_that_tries_many_names_does_not_fill_the_log(
    access: Access, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        deny(access, f"guess-{number}")
    assert len(caplog.messages) == 100
    clock.now = 61.0
    deny(access, "orders")
    assert caplog.messages[100:101] == ["further requests were denied and not logged count=900"]
    assert len(caplog.messages) == 102


def test_name_that_is_left_out_of_a_list_is_no_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with MemoryBroker(tmp_path) as broker:
            topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
            await broker.root.decoded(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
            client = broker.connect("User:mallory")
            await client.decoded(metadata.MetadataRequest(topics=None), 12)
            await client.decoded(list_groups.ListGroupsRequest(), 5)
            await client.decoded(list_transactions.ListTransactionsRequest(), 2)
            await client.decoded(describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[], cursor=None), 0)
            assert not [each for each in caplog.records if each.name == LOGGER]
            await client.decoded(produce_request(("orders", 0, batch_of(b"x")), acks=1), 11)
            assert len([each for each in caplog.records if each.name == LOGGER]) == 1

    uvloop.run(main())


async def _page(broker: MemoryBroker) -> list[str]:
    return b"".join(await broker.broker.metrics.fill()).decode().splitlines()


def test_metrics_page_has_refusals_by_api_and_type_of_resource(tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryBroker(tmp_path) as broker:
            assert not [line for line in await _page(broker) if "authorization_refused" in line]
            client = broker.connect("User:mallory")
            for number in range(3):
                name = f"guess-{number}"
                await client.decoded(produce_request((name, 0, batch_of(b"x")), acks=1), 11)
            await client.decoded(fetch_request({"guess-0": [fetch_from(0, 0)]}, max_wait=0), 12)
            topics = [metadata.MetadataRequestTopic(name=name) for name in ("a", "b")]
            await client.decoded(metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
            lines = [line for line in await _page(broker) if "authorization_refused" in line and line[0] != "#"]
            assert lines == [
                'ottla_authorization_refused_total{api="Produce",resource="TOPIC"} 3',
                'ottla_authorization_refused_total{api="Fetch",resource="TOPIC"} 1',
                'ottla_authorization_refused_total{api="Metadata",resource="TOPIC"} 2',
            ]

    uvloop.run(main())


def test_metrics_page_has_logins_by_listener_and_mechanism(tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryBroker(tmp_path) as broker:
            listener: Any = SimpleNamespace(
                accepted=lambda: {"PLAIN": 7}, refused=lambda: {"TLS": 1, "PLAIN": 2, "none": 3}
            )
            listening = next(each for each in broker.broker.components if isinstance(each, Listening))
            listening.security = {"CLIENTS": listener}
            lines = [line for line in await _page(broker) if line.startswith("ottla_authentications")]
            assert lines == [
                'ottla_authentications_total{listener="CLIENTS",mechanism="PLAIN"} 7',
                'ottla_authentications_failed_total{listener="CLIENTS",mechanism="TLS"} 1',
                'ottla_authentications_failed_total{listener="CLIENTS",mechanism="PLAIN"} 2',
                'ottla_authentications_failed_total{listener="CLIENTS",mechanism="none"} 3',
            ]

    uvloop.run(main())
