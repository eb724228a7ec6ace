"""Metadata, DescribeCluster and DescribeTopicPartitions: who is there, and where is my topic."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.pytest_plugin import StartBroker
from ottla.testing.raw import RawClient
from ottla.wire import ZERO_UUID
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

VERSIONS = range(14)
NOT_ASKED = -(2**31)
UNKNOWN_ID = b"\7" * 16
ILLEGAL = ["", ".", "..", "a b", "a/b", "ž", "x" * 250, "a\n"]

every_version = pytest.mark.parametrize("version", VERSIONS)


def named(*names: str, create: bool = False, **fields: Any) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)


def by_id(*ids: bytes) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids])


def codes(answer: Any) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in answer.topics}


@every_version
def test_topic_is_described(client: RawClient, new_topic: Any, version: int) -> None:
    topic = new_topic(partitions=3)
    answer = client.ask(named(topic.name), version)
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == "{}:{}".format(*client.socket.getpeername())
    assert answer.controller_id == (broker.node_id if version >= 1 else -1)
    (found,) = answer.topics
    assert (found.error_code, found.name, found.is_internal) == (0, topic.name, False)
    assert found.topic_id == (topic.id if version >= 10 else ZERO_UUID)
    assert [p.partition_index for p in found.partitions] == [0, 1, 2]
    for partition in found.partitions:
        assert (partition.error_code, partition.leader_id) == (0, broker.node_id)
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [broker.node_id]
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert list(partition.offline_replicas) == []


@every_version
def test_null_asks_for_all_topics_and_an_empty_list_for_none(client: RawClient, topic: Any, version: int) -> None:
    if version == 0:
        assert topic.name in codes(client.ask(named(), 0))
    else:
        assert topic.name in codes(client.ask(MetadataRequest(topics=None), version))
        assert client.ask(named(), version).topics == ()


@every_version
def test_all_topics_creates_none(client: RawClient, version: int) -> None:
    before = codes(client.ask(MetadataRequest(topics=None), 9))
    client.ask(MetadataRequest(topics=None if version else []), version)
    assert codes(client.ask(MetadataRequest(topics=None), 9)) == before


@pytest.mark.parametrize("version", range(4, 14))
def test_unknown_topic_without_auto_creation_is_unknown(client: RawClient, version: int) -> None:
    (found,) = client.ask(named("clause-nowhere"), version).topics
    assert (found.error_code, found.name, found.partitions) == (3, "clause-nowhere", ())
    assert found.topic_id == ZERO_UUID


@every_version
def test_unknown_topic_is_created_when_the_request_allows_it(client: RawClient, version: int) -> None:
    name = f"clause-made-by-metadata-{version}"
    (found,) = client.ask(named(name, create=True), version).topics
    assert (found.error_code, len(found.partitions)) == (0, 1)
    (again,) = client.ask(named(name), version).topics
    assert (again.error_code, len(again.partitions)) == (0, 1)


@every_version
def test_topic_deleted_a_moment_ago_is_unknown_first_and_created_in_the_background(
    client: RawClient, topic: Any, version: int
) -> None:
    client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout=10_000), 6)
    assert codes(client.ask(named(topic.name, create=True), version)) == {topic.name: 3}
    while codes(client.ask(named(topic.name), 9))[topic.name]:
        pass
    (found,) = client.ask(named(topic.name, create=True), 12).topics
    assert (found.error_code, len(found.partitions)) == (0, 1)
    assert found.topic_id != topic.id


def test_topic_deleted_a_moment_ago_is_not_created_without_auto_creation(client: RawClient, topic: Any) -> None:
    client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout=10_000), 6)
    for _ in range(3):
        assert codes(client.ask(named(topic.name), 9)) == {topic.name: 3}
    assert topic.name not in codes(client.ask(MetadataRequest(topics=None), 9))


def test_broker_may_forbid_auto_creation(start_ottla_broker: StartBroker) -> None:
    broker = start_ottla_broker(settings={"auto.create.topics.enable": "false"})
    with RawClient(broker.bootstrap) as client:
        for version in VERSIONS:
            assert codes(client.ask(named("wanted", create=True), version)) == {"wanted": 3}


@every_version
def test_illegal_name_is_an_invalid_topic_and_is_not_created(client: RawClient, version: int) -> None:
    assert codes(client.ask(named(*ILLEGAL, create=True), version)) == dict.fromkeys(ILLEGAL, 17)


@every_version
def test_topic_is_described_once_however_often_it_is_named(client: RawClient, topic: Any, version: int) -> None:
    assert len(client.ask(named(*[topic.name] * 1000), version).topics) == 1


@pytest.mark.parametrize("version", [12, 13])
def test_topic_is_found_by_its_id(client: RawClient, topic: Any, version: int) -> None:
    (found,) = client.ask(by_id(topic.id), version).topics
    assert (found.error_code, found.name, found.topic_id) == (0, topic.name, topic.id)


@pytest.mark.parametrize("version", [12, 13])
def test_unknown_id_is_unknown_and_has_no_name(client: RawClient, version: int) -> None:
    (found,) = client.ask(by_id(UNKNOWN_ID), version).topics
    assert (found.error_code, found.name, found.topic_id) == (100, None, UNKNOWN_ID)


@pytest.mark.parametrize("version", [10, 11])
def test_asking_by_id_before_v12_is_an_invalid_request(client: RawClient, topic: Any, version: int) -> None:
    for request in (by_id(topic.id), by_id(UNKNOWN_ID), by_id(ZERO_UUID)):
        (found,) = client.ask(request, version).topics
        assert (found.error_code, found.name) == (42, "")
    mixed = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name), MetadataRequestTopic(topic_id=topic.id)])
    assert codes(client.ask(mixed, version)) == {topic.name: 42, "": 42}


@pytest.mark.parametrize("version", range(8, 14))
def test_authorized_operations_are_told_when_asked_for(client: RawClient, topic: Any, version: int) -> None:
    (found,) = client.ask(named(topic.name), version).topics
    assert found.topic_authorized_operations == NOT_ASKED
    (found,) = client.ask(named(topic.name, include_topic_authorized_operations=True), version).topics
    assert found.topic_authorized_operations == 0b1101_1111_1000
    if version <= 10:
        asked = client.ask(named(include_cluster_authorized_operations=True), version)
        assert asked.cluster_authorized_operations == 0b1_1111_1010_0000
        assert client.ask(named(), version).cluster_authorized_operations == NOT_ASKED


def test_leader_epoch_does_not_go_back_after_a_restart(fresh_ottla_broker: BrokerProcess) -> None:
    epochs = []
    for _ in range(3):
        with RawClient(fresh_ottla_broker.bootstrap) as client:
            (found,) = client.ask(named("kept", create=True), 9).topics
            epochs.append(found.partitions[0].leader_epoch)
        fresh_ottla_broker.kill()
        fresh_ottla_broker.launch()
    assert epochs == sorted(epochs)


# -- DescribeCluster ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_cluster_is_described(client: RawClient, version: int) -> None:
    answer = client.ask(DescribeClusterRequest(include_fenced_brokers=True), version)
    (broker,) = answer.brokers
    assert (answer.error_code, answer.error_message, answer.controller_id) == (0, None, broker.broker_id)
    assert answer.cluster_id == client.ask(named(), 9).cluster_id
    assert answer.cluster_authorized_operations == NOT_ASKED
    asked = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert asked.cluster_authorized_operations == 0b1_1111_1010_0000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (0, 115), (3, 115), (-1, 115)])
def test_broker_knows_endpoints_of_brokers_only(client: RawClient, version: int, endpoint_type: int, code: int) -> None:
    assert client.ask(DescribeClusterRequest(endpoint_type=endpoint_type), version).error_code == code


# -- DescribeTopicPartitions ----------------------------------------------------------------------------------------


def describe(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
    place = cursor and DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=place or None
    )


def pages(answer: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    rows = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in answer.topics]
    cursor = answer.next_cursor
    return rows, None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_topics_are_described_in_order_of_name(client: RawClient, new_topic: Any) -> None:
    one, two = new_topic(partitions=2), new_topic()
    first, second = sorted([(one.name, 0, [0, 1]), (two.name, 0, [0])])
    assert pages(client.ask(describe(two.name, one.name), 0)) == ([first, second], None)


def test_no_names_ask_for_all_topics(client: RawClient, topic: Any) -> None:
    assert topic.name in [name for name, _, _ in pages(client.ask(describe(), 0))[0]]


def test_unknown_topic_is_unknown(client: RawClient) -> None:
    assert pages(client.ask(describe("clause-nowhere"), 0)) == ([("clause-nowhere", 3, [])], None)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_cursor_leads_from_page_to_page(client: RawClient, new_topic: Any, limit: int) -> None:
    topics = sorted([new_topic(partitions=3), new_topic(partitions=2)])
    found, cursor = [], None
    while True:
        rows, cursor = pages(client.ask(describe(*(t.name for t in topics), limit=limit, cursor=cursor), 0))
        found += [(name, number) for name, _, numbers in rows for number in numbers]
        assert sum(len(numbers) for _, _, numbers in rows) <= limit
        if cursor is None:
            break
    assert found == [(topics[0].name, n) for n in range(3)] + [(topics[1].name, n) for n in range(2)]


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_still_gives_a_partition(client: RawClient, topic: Any, limit: int) -> None:
    assert pages(client.ask(describe(topic.name, limit=limit), 0))[0] == [(topic.name, 0, [0])]


def test_cursor_that_cannot_be_is_an_invalid_request(client: RawClient, topic: Any) -> None:
    for cursor in ((topic.name, -1), ("clause-nowhere", 0), ("a", 0), ("zzz", -5)):
        assert pages(client.ask(describe(topic.name, cursor=cursor), 0)) == ([(topic.name, 42, [])], None)
