"""What clients get from a broker for partitions that another broker leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.metadata.embedded import FILE_NAME, EmbeddedStore
from ottla.broker.metadata.nodes import broker_json, broker_path, state_path, topic_path
from ottla.broker.metadata.store import Changed, Create, Put
from ottla.broker.metadata.view import ClusterView
from ottla.model.errors import ErrorCode
from ottla.model.types import Endpoint
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire import Message
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

pytestmark = pytest.mark.broker

OTHER = 77
EPOCH = 5
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
OFFSETS = "__consumer_offsets"


async def move_leaders(data: Path, broker_id: int) -> None:
    """Let another broker lead: partition 0 of ``t`` has its replica here too, 1 is only there, 2 stays here."""
    store = EmbeddedStore.open(data / FILE_NAME)
    view = ClusterView()
    view.apply([Changed(path, node) for path, node in (await store.load("/")).items()])
    alive = broker_json([Endpoint("PLAINTEXT", "127.0.0.1", 1)], rack=None, incarnation=b"1", timestamp_ms=0)
    await store.multi([Create(broker_path(OTHER), alive)])
    for name in ("t", OFFSETS):
        topic = view.topics[name]
        moved = {0: (broker_id, OTHER), 1: (OTHER,)} if name == "t" else dict.fromkeys(range(50), (broker_id, OTHER))
        partitions = tuple(
            replace(each, leader=OTHER, leader_epoch=EPOCH, partition_epoch=9, replicas=moved[number], isr=(OTHER,))
            if number in moved
            else each
            for number, each in enumerate(topic.partitions)
        )
        topic = replace(topic, partitions=partitions)
        await store.multi(
            [Put(topic_path(name), topic.assignment_json()), Put(state_path(name), topic.state_json())]
        )  # fmt: skip
    await store.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("led-elsewhere")
    with BrokerProcess.start(data) as started:
        with RawClient(started.bootstrap) as client:
            client.create_topic("t", 3)
            for number in range(3):
                client.ask(produce_request(("t", number, batch_of(b"one"))), 9)
            answer = client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
            (row,) = answer.coordinators
            assert row.error_code == 0
        # Not a clean stop: the next start raises the epochs of the partitions that it leads.
        started.kill()
        asyncio.run(move_leaders(data, row.node_id))
        started.launch()
        yield started


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        yield connected


def ask(client: RawClient, request: Message, version: int) -> ErrorCode:
    """Return the error code of the only partition in the answer."""
    answer = client.ask(request, version)
    (topic,) = answer.responses if hasattr(answer, "responses") else answer.topics
    partitions = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    return ErrorCode(partitions[0].error_code)


@pytest.mark.parametrize("number", [0, 1])
def test_requests_are_sent_to_the_leader(client: RawClient, number: int) -> None:
    """The broker answers the same whether it has a replica (0) or not (1)."""
    wanted = ListOffsetsPartition(partition_index=number, timestamp=-1)
    requests: list[tuple[Message, int]] = [
        (produce_request(("t", number, batch_of(b"two"))), 9),
        (fetch_request({"t": [fetch_from(number, 0)]}), 11),
        (ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]), 7),
        (OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[
                OffsetForLeaderPartition(partition=number, leader_epoch=0)
            ])],
        ), 4),
        (DeleteRecordsRequest(topics=[
            DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=number, offset=0)])
        ], timeout=1000), 2),
    ]  # fmt: skip
    assert [ask(client, request, version) for request, version in requests] == [NOT_LEADER] * len(requests)


def topic_id(client: RawClient) -> bytes:
    answer = client.ask(MetadataRequest(topics=None), 12)
    return next(bytes(each.topic_id) for each in answer.topics if each.name == "t")


def hint(leader: Any) -> tuple[int, int] | None:
    return None if leader is None else (leader.leader_id, leader.leader_epoch)


def addresses(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_produce_reply_names_the_leader_and_its_address(client: RawClient, version: int) -> None:
    """KIP-951: both for a partition with a replica here and for one without; once if one leader has both."""
    key = topic_id(client) if version >= 13 else "t"
    batches = [(key, number, batch_of(b"two")) for number in (0, 1, 2, 3)]
    answer = client.ask(produce_request(*batches), version)
    rows = {row.index: row for each in answer.responses for row in each.partition_responses}
    assert [rows[number].error_code for number in range(4)] == [NOT_LEADER, NOT_LEADER, 0, UNKNOWN]
    expected = None if version < 10 else (OTHER, EPOCH)
    assert [hint(rows[number].current_leader) for number in range(4)] == [expected, expected, None, None]
    assert addresses(answer) == ([] if version < 10 else [(OTHER, "127.0.0.1", 1, None)])
    alone = client.ask(produce_request((key, 0, batch_of(b"two"))), version)
    assert addresses(alone) == addresses(answer)


@pytest.mark.parametrize("version", [15, 16, 17, 18])
def test_fetch_reply_names_the_leader_and_its_address(client: RawClient, version: int) -> None:
    key = topic_id(client)
    fenced = fetch_from(0, 0)
    fenced.current_leader_epoch = EPOCH - 1
    answer = client.ask(fetch_request({key: [fenced, fetch_from(1, 0), fetch_from(2, 0), fetch_from(3, 0)]}), version)
    rows = {row.partition_index: row for each in answer.responses for row in each.partitions}
    codes = [ErrorCode.FENCED_LEADER_EPOCH, NOT_LEADER, 0, UNKNOWN]
    assert [rows[number].error_code for number in range(4)] == codes
    expected = None if version < 16 else (OTHER, EPOCH)
    assert [hint(rows[number].current_leader) for number in range(4)] == [expected, expected, None, None]
    assert addresses(answer) == ([] if version < 16 else [(OTHER, "127.0.0.1", 1, None)])


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(EPOCH, NOT_LEADER), (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_epoch_of_the_client_is_checked_first_where_there_is_a_replica(
    client: RawClient, epoch: int, code: ErrorCode
) -> None:
    fetched = fetch_from(0, 0)
    fetched.current_leader_epoch = epoch
    assert ask(client, fetch_request({"t": [fetched]}), 11) == code
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    assert ask(client, request, 7) == code


@pytest.mark.parametrize(("number", "code"), [(0, ErrorCode.NONE), (1, NOT_LEADER), (3, UNKNOWN)])
def test_every_replica_describes_its_producers(client: RawClient, number: int, code: ErrorCode) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[number])])
    assert ask(client, request, 0) == code


def test_unknown_partitions_are_still_unknown(client: RawClient) -> None:
    assert ask(client, fetch_request({"t": [fetch_from(3, 0)]}), 11) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(client, fetch_request({"u": [fetch_from(0, 0)]}), 11) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partition_that_stayed_here_is_served(client: RawClient) -> None:
    assert ask(client, produce_request(("t", 2, batch_of(b"two"))), 9) == ErrorCode.NONE
    assert ask(client, fetch_request({"t": [fetch_from(2, 0)]}), 11) == ErrorCode.NONE


def test_metadata_names_the_leaders_and_the_start_raised_only_our_epochs(client: RawClient) -> None:
    answer = client.ask(MetadataRequest(topics=None), 9)
    (topic,) = (each for each in answer.topics if each.name == "t")
    rows = {each.partition_index: each for each in topic.partitions}
    assert [(rows[number].leader_id, rows[number].leader_epoch) for number in (0, 1)] == [(OTHER, EPOCH)] * 2
    assert rows[2].leader_id != OTHER
    assert rows[2].leader_epoch == 1


def test_group_is_coordinated_by_the_leader_of_its_partition(client: RawClient) -> None:
    answer = client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert (answer.coordinators[0].error_code, answer.coordinators[0].node_id) == (ErrorCode.NONE, OTHER)
