"""What is advertised is served: every API in every version, and how a client finds out which."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.testing.raw import Closed, RawClient, batch_of, fetch_from, fetch_request, produce_request, request_bytes
from ottla.wire import APIS, Message, request_class
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_producers import DescribeProducersRequest
from ottla.wire.messages.describe_producers import TopicRequest as ProducersOfTopic
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

#: the versions that each row of ApiVersions must allow at least: what clients in use send
NEEDED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3), 44: (0, 1), 60: (0, 2), 61: (0, 0), 74: (0, 1),
    75: (0, 0),
}  # fmt: skip

#: a request with something in it, for each API whose empty request says little
REQUESTS: dict[int, Callable[[Any], Message]] = {
    0: lambda topic: produce_request((topic.name, 0, batch_of(b"v"))),
    1: lambda topic: fetch_request({topic.name: [fetch_from(0, 0)]}),
    2: lambda topic: ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(name=topic.name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        ],
    ),
    18: lambda _: ApiVersionsRequest(client_software_name="raw", client_software_version="1"),
    19: lambda topic: CreateTopicsRequest(
        topics=[CreatableTopic(name=topic.name + "-new", num_partitions=1, replication_factor=1)], validate_only=True
    ),
    20: lambda _: DeleteTopicsRequest(topic_names=["clause-nothing"], topics=[DeleteTopicState(name="clause-nothing")]),
    21: lambda topic: DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(name=topic.name, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])
        ]
    ),
    22: lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout=60_000),
    23: lambda topic: OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic=topic.name, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            )
        ]
    ),
    32: lambda topic: DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=topic.name, configuration_keys=None)],
        include_synonyms=True, include_documentation=True,
    ),
    37: lambda topic: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic.name, count=2, assignments=None)], validate_only=True
    ),
    61: lambda topic: DescribeProducersRequest(topics=[ProducersOfTopic(name=topic.name, partition_indexes=[0])]),
}  # fmt: skip


def error_codes(value: Any) -> set[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list | tuple):
        return {code for each in value for code in error_codes(each)}
    if not hasattr(value, "FIELDS"):
        return set()
    found = {value.error_code} if hasattr(value, "error_code") else set()
    return found | {code for field in value.FIELDS for code in error_codes(getattr(value, field.name))}


def advertised(client: RawClient) -> dict[int, tuple[int, int]]:
    return {row.api_key: (row.min_version, row.max_version) for row in client.ask(ApiVersionsRequest(), 0).api_keys}


def test_apis_that_clients_need_are_advertised(client: RawClient) -> None:
    assert NEEDED.items() <= advertised(client).items()


def test_nothing_is_advertised_that_is_not_served(client: RawClient, topic: Any) -> None:
    for api_key, (first, last) in advertised(client).items():
        for version in range(max(first, APIS[api_key].versions[0]), last + 1):
            client.ask(valid_request(api_key, version, topic), version)


def valid_request(api_key: int, version: int, topic: Any) -> Any:
    request: Any = REQUESTS.get(api_key, lambda _: request_class(api_key)())(topic)
    if api_key in (0, 1) and version >= 13:
        (request.topic_data if api_key == 0 else request.topics)[0].topic_id = topic.id
    return request


@pytest.mark.parametrize("api_key", NEEDED, ids=lambda key: APIS[key].name)
def test_every_version_of_an_api_answers_without_an_error(client: RawClient, topic: Any, api_key: int) -> None:
    first, last = NEEDED[api_key]
    for version in range(max(first, APIS[api_key].versions[0]), last + 1):
        answer = client.ask(valid_request(api_key, version, topic), version)
        assert error_codes(answer) <= ({3} if api_key == 20 else {0}), (version, answer)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_before_v3_is_advertised_for_old_clients_and_closes_the_connection(
    client: RawClient, version: int
) -> None:
    client.send_frame(struct.pack(">hhih", 0, version, 1, -1) + bytes(30))
    assert client.receive_until_closed() == b""


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_api_versions_of_an_unknown_version_are_answered_in_v0(client: RawClient, version: int) -> None:
    client.send_frame(struct.pack(">hhih", 18, version, 9, -1) + b"\xff" * 20)
    answer = client.receive(18, 0, 9)
    assert answer.error_code == 35
    (row,) = answer.api_keys
    assert (row.api_key, row.min_version, row.max_version) == (18, 0, 4)
    client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)


@pytest.mark.parametrize("name", ["raw", "a", "apache-kafka-java", "4.3.0", "a.b-c"])
def test_client_software_may_have_any_sensible_name(client: RawClient, name: str) -> None:
    for version in (3, 4):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=name)
        assert client.ask(request, version).error_code == 0


@pytest.mark.parametrize("name", ["", "-a", "a-", ".", "a b", "a\n", "ž", "a/b"])
def test_client_software_with_an_odd_name_is_an_invalid_request(client: RawClient, name: str) -> None:
    for version in (3, 4):
        for odd in ({"client_software_name": name}, {"client_software_version": name}):
            request = ApiVersionsRequest(**{"client_software_name": "a", "client_software_version": "b"} | odd)
            answer = client.ask(request, version)
            assert answer.error_code == 42
            assert not answer.api_keys


def test_api_versions_may_be_asked_for_at_any_time(client: RawClient, topic: Any) -> None:
    for _ in range(3):
        client.ask(MetadataRequest(topics=[]), 9)
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_feature_levels_are_those_of_kafka_4_3(client: RawClient) -> None:
    levels = {"group.version": (0, 1), "metadata.version": (7, 30), "transaction.version": (0, 2)}
    for version in (3, 4):
        answer = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), version)
        assert answer.finalized_features_epoch >= 0
        finalized = {f.name: (f.min_version_level, f.max_version_level) for f in answer.finalized_features}
        assert finalized == {name: (level, level) for name, (_, level) in levels.items()}
        supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
        # Clients of v3 cannot parse a feature that starts at 0.
        assert supported == {name: row for name, row in levels.items() if version >= 4 or row[0] > 0}


def test_features_without_a_served_api_are_not_advertised(client: RawClient) -> None:
    """Share groups and streams groups would be used by clients that see their feature."""
    answer = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    served = {row.api_key for row in answer.api_keys}
    for feature, api_keys in {"share.version": range(76, 80), "streams.version": (88, 89)}.items():
        assert feature not in {f.name for f in answer.finalized_features}
        assert not served & set(api_keys)


def test_client_without_an_id_is_served(ottla_broker: Any) -> None:
    for client_id in (None, ""):
        with RawClient(ottla_broker.bootstrap, client_id=client_id) as client:
            for version in (8, 9):
                client.ask(MetadataRequest(topics=[]), version)


def test_unknown_tagged_fields_are_skipped_in_header_and_body(client: RawClient) -> None:
    frame = request_bytes(MetadataRequest(topics=[]), 9, 1, None)
    assert frame.endswith(b"\0")
    tags = b"\x02\x09\x00\x28\x03new"
    client.send_frame(frame[:10] + tags + frame[11:-1] + tags)
    client.receive(3, 9, 1)


def test_cut_request_closes_the_connection(ottla_broker: Any) -> None:
    frame = request_bytes(MetadataRequest(topics=[]), 9, 1)
    for cut in range(8, len(frame)):
        with RawClient(ottla_broker.bootstrap) as client:
            client.send_frame(frame[:cut])
            with pytest.raises(Closed):
                client.receive_frame()
