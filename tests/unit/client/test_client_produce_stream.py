"""Batches are written once and in order, whatever happens to the requests that carry them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cluster import Cut, FakeCluster, Silence

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, Fenced, TimedOut
from ottla.client.producing import IN_FLIGHT_MAX, Producer, ProduceStream, produce_body
from ottla.model.batch import TRANSACTIONAL, checksum, read_header
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.wire import decode
from ottla.wire.messages.produce import ProduceRequest

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(value: bytes = b"v", count: int = 1) -> bytes:
    return build_batch([Record(timestamp=1, key=None, value=value) for _ in range(count)])


@pytest.fixture
def stream(fake: FakeCluster, cluster: Cluster) -> ProduceStream:
    return ProduceStream(cluster, Producer(7, 3))


@pytest.mark.parametrize("version", range(3, 14))
def test_a_request_is_written_in_every_version(version: int) -> None:
    batches = {P0: b"first", TopicPartition("u", 4): b"second", P1: b"third"}
    ids = {"t": b"t" * 16, "u": b"u" * 16}
    body = b"".join(produce_body(version, ids, batches, acks=-1, transactional_id="x", timeout_ms=9))
    request, end = decode(ProduceRequest, version, body, 0)
    assert end == len(body)
    assert (request.transactional_id, request.acks, request.timeout) == ("x", -1, 9)
    found = {
        (topic.name or chr(topic.topic_id[0]), row.index): row.records
        for topic in request.topic_data
        for row in topic.partition_data
    }
    assert found == {("t", 0): b"first", ("t", 1): b"third", ("u", 4): b"second"}


def test_the_producer_is_written_into_the_header(fake: FakeCluster, cluster: Cluster) -> None:
    stream = ProduceStream(cluster, Producer(7, 3), transactional_id="x", versions=(3, 11))
    data = bytearray(batch(count=5))
    stream.send(P0, data)
    header = read_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 0)
    assert header.attributes & TRANSACTIONAL
    assert header.crc == checksum(data)


def test_sequences_count_records_and_partitions_apart(stream: ProduceStream) -> None:
    sent = [(P0, bytearray(batch(count=5))), (P1, bytearray(batch())), (P0, bytearray(batch()))]
    for tp, data in sent:
        stream.send(tp, data)
    assert [read_header(data).base_sequence for _, data in sent] == [0, 0, 5]


def test_sequences_start_again_behind_the_last(stream: ProduceStream) -> None:
    stream._sequences[P0] = (1 << 31) - 2
    stream._known_in.add(P0)
    sent = [bytearray(batch(count=3)), bytearray(batch())]
    for data in sent:
        stream.send(P0, data)
    assert [read_header(data).base_sequence for data in sent] == [(1 << 31) - 2, 1]


def test_batches_of_several_partitions_share_a_request(fake: FakeCluster, stream: ProduceStream) -> None:
    for tp in (P0, P1):
        stream.send(tp, batch())
    stream.flush()
    (request,) = fake.requests("Produce")
    assert len(request.topic_data[0].partition_data) == 2


def test_large_batches_go_out_before_the_flush(fake: FakeCluster, stream: ProduceStream) -> None:
    for tp in (P0, P1):
        stream.send(tp, batch(b"v" * 700_000))
    assert len(fake.requests("Produce")) == 1


def test_at_most_five_requests_are_in_flight(fake: FakeCluster, stream: ProduceStream) -> None:
    for _ in range(50):
        stream.send(P0, batch())
        (lane,) = stream._lanes.values()
        assert lane.connection.in_flight <= IN_FLIGHT_MAX
    stream.flush()
    assert fake.written["t", 0] == list(range(50))


@pytest.mark.parametrize("failure", [3, 5, 6, 7, 19, 20, 51, 56, 74, 100, Cut, Silence])
def test_what_may_pass_is_sent_again_in_order(fake: FakeCluster, stream: ProduceStream, failure: Any) -> None:
    fake.plan("Produce", None, failure, None, None, failure)
    for _ in range(20):
        stream.send(P0, batch())
        stream.send(P1, batch())
    stream.flush()
    assert fake.written == {("t", 0): list(range(20)), ("t", 1): list(range(20))}


def test_a_batch_that_was_written_before_the_connection_broke_is_not_written_twice(
    fake: FakeCluster, stream: ProduceStream
) -> None:
    def write_and_cut(broker_id: int, request: Any) -> Any:
        fake._Produce(broker_id, request, 0)
        raise Cut

    fake.plan("Produce", write_and_cut)
    stream.send(P0, batch())
    stream.flush()
    assert fake.written["t", 0] == [0]
    first, second = fake.requests("Produce")
    assert first == second


def test_a_leader_change_is_followed(fake: FakeCluster, stream: ProduceStream) -> None:
    for number in range(12):
        if number == 6:
            fake.leaders["t", 0] = 2
        stream.send(P0, batch())
    stream.flush()
    assert fake.written["t", 0] == list(range(12))


def test_first_batch_is_acknowledged_before_the_next_one_is_sent(fake: FakeCluster, stream: ProduceStream) -> None:
    """The broker becomes the leader after it has refused the first batch. It accepts any first sequence of a producer
    that it does not know, so a second batch in flight would take the place of the first."""

    def accept_any_first_sequence(broker_id: int, request: Any) -> Any:
        row = request.topic_data[0].partition_data[0]
        fake.written.setdefault(("t", 0), [read_header(row.records).base_sequence])
        return fake._Produce(broker_id, request, 0)

    fake.plan("Produce", 6, *[accept_any_first_sequence] * 20)
    for _ in range(10):
        stream.send(P0, batch())
    stream.flush()
    assert fake.written["t", 0] == list(range(10))


@pytest.mark.parametrize(("timeout_s", "expected_ms"), [(10.0, 4000), (30.0, 12_000), (120.0, 12_000)])
def test_broker_gives_up_before_the_attempt_of_the_client_ends(
    fake: FakeCluster, clock: list[float], timeout_s: float, expected_ms: int
) -> None:
    with Cluster("fake:9001,fake:9002", timeout_s=timeout_s) as cluster:
        cluster.produce(P0, batch())
    assert [request.timeout for request in fake.requests("Produce")] == [expected_ms]


def test_a_duplicate_is_an_acknowledgement(fake: FakeCluster, stream: ProduceStream) -> None:
    fake.plan("Produce", 46)
    stream.send(P0, batch())
    stream.flush()
    assert len(fake.requests("Produce")) == 1


def test_a_gap_before_the_first_batch_is_an_error(fake: FakeCluster, stream: ProduceStream) -> None:
    fake.plan("Produce", 45)
    stream.send(P0, batch())
    with pytest.raises(BrokerError, match="records before these are missing"):
        stream.flush()


def test_a_refusal_breaks_the_stream(fake: FakeCluster, stream: ProduceStream) -> None:
    fake.plan("Produce", 10)
    stream.send(P0, batch())
    with pytest.raises(BrokerError, match=r"records for t-0: MESSAGE_TOO_LARGE.*max\.message\.bytes"):
        stream.flush()
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        stream.send(P0, batch())
    assert stream.is_broken


@pytest.mark.parametrize("code", [47, 90])
def test_an_old_epoch_is_fenced(fake: FakeCluster, stream: ProduceStream, code: int) -> None:
    fake.plan("Produce", code)
    stream.send(P0, batch())
    with pytest.raises(Fenced):
        stream.flush()


def test_a_leader_that_never_comes_back_ends_with_the_timeout(
    fake: FakeCluster, stream: ProduceStream, clock: list[float]
) -> None:
    fake.plan("Produce", *[19] * 10_000)
    stream.send(P0, batch())
    with pytest.raises(TimedOut, match="NOT_ENOUGH_REPLICAS"):
        stream.flush()
    assert 1029 < clock[0] <= 1030


@pytest.mark.parametrize("data", [b"", b"x" * 100, batch() + batch(), batch()[:-1]])
def test_what_is_not_one_batch_is_refused_and_nothing_changes(
    fake: FakeCluster, stream: ProduceStream, data: bytes
) -> None:
    with pytest.raises(ValueError, match="batch"):
        stream.send(P0, data)
    stream.send(P0, batch())
    stream.flush()
    assert fake.written["t", 0] == [0]


def test_topics_without_ids_are_written_by_name(fake: FakeCluster, stream: ProduceStream) -> None:
    fake.topic_id = bytes(16)
    stream.send(P0, batch())
    stream.flush()
    assert fake.versions_of("Produce") == {12}


def test_one_batch_is_appended_as_it_is(fake: FakeCluster, cluster: Cluster) -> None:
    assert cluster.produce(P0, batch()) == 11
    (request,) = fake.requests("Produce")
    assert request.topic_data[0].partition_data[0].records == batch()


def test_one_batch_is_appended_again_while_its_failure_may_pass(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("Produce", 6, Cut, 19)
    assert cluster.produce(P1, batch()) == 11
