"""Answers come in the order of the requests, whatever each of them waits for."""

from __future__ import annotations

from typing import Any

from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest


def test_parked_fetch_holds_back_what_was_asked_after_it(client: RawClient, topic: Any) -> None:
    other = RawClient(f"{client.socket.getpeername()[0]}:{client.socket.getpeername()[1]}")
    first = client.send(ApiVersionsRequest(), 0)
    parked = client.send(fetch_request({topic.name: [fetch_from(0, 0)]}, max_wait=30_000), 11)
    after = client.send(MetadataRequest(topics=[]), 9)
    client.receive(18, 0, first)
    with other:
        other.ask(produce_request((topic.name, 0, batch_of(b"v"))), 9)
    (row,) = client.receive(1, 11, parked).responses[0].partitions
    assert row.records
    client.receive(3, 9, after)


def test_produce_without_acknowledgement_leaves_a_gap_and_no_bytes(client: RawClient, topic: Any) -> None:
    batch = batch_of(b"v")
    first = client.send(produce_request((topic.name, 0, batch)), 9)
    client.send(produce_request((topic.name, 0, batch), acks=0), 9)
    third = client.send(produce_request((topic.name, 0, batch), acks=-1), 9)
    offsets = [client.receive(0, 9, which).responses[0].partition_responses[0].base_offset for which in (first, third)]
    assert offsets == [0, 2]


def test_pipelined_produces_are_applied_in_order(client: RawClient, topic: Any) -> None:
    sent = [client.send(produce_request((topic.name, 0, batch_of(b"%d" % number)), acks=-1), 9) for number in range(50)]
    offsets = [client.receive(0, 9, which).responses[0].partition_responses[0].base_offset for which in sent]
    assert offsets == list(range(50))


def test_fetch_behind_a_produce_sees_it(client: RawClient, topic: Any) -> None:
    for acks in (1, -1):
        produced = client.send(produce_request((topic.name, 0, batch_of(b"v")), acks=acks), 9)
        offset = 0 if acks == 1 else 1
        fetched = client.send(fetch_request({topic.name: [fetch_from(0, offset)]}, max_wait=10_000), 11)
        client.receive(0, 9, produced)
        assert client.receive(1, 11, fetched).responses[0].partitions[0].records


def test_produce_behind_the_creation_of_its_topic_finds_it(client: RawClient, topic: Any) -> None:
    name = topic.name + "-new"
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    created = client.send(CreateTopicsRequest(topics=topics, timeout=10_000), 7)
    produced = client.send(produce_request((name, 0, batch_of(b"v"))), 9)
    assert client.receive(19, 7, created).topics[0].error_code == 0
    assert client.receive(0, 9, produced).responses[0].partition_responses[0].error_code == 0


def test_requests_of_all_kinds_are_answered_in_order(client: RawClient, topic: Any) -> None:
    sent = []
    for number in range(60):
        request: Any = (
            ApiVersionsRequest(),
            MetadataRequest(topics=None),
            produce_request((topic.name, 0, batch_of(b"v")), acks=-1),
            fetch_request({topic.name: [fetch_from(0, 0)]}, max_wait=10),
        )[number % 4]
        version = (0, 9, 9, 11)[number % 4]
        sent.append((request.API_KEY, version, client.send(request, version)))
    for expected in sent:
        client.receive(*expected)
