"""A transaction ends as it was told to, or somebody hears that it is not known."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cluster import Cut, FakeCluster, Silence

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError, Fenced, OutcomeUnknown, Unreachable
from ottla.client.producing import Producer
from ottla.client.transactions import TransactionalProducer
from ottla.model.batch import read_header
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BATCH = build_batch([Record(timestamp=1, key=None, value=b"v")])


@pytest.fixture
def producer(fake: FakeCluster, cluster: Cluster) -> TransactionalProducer:
    producer = TransactionalProducer(cluster, "x", 10_000)
    producer.init()
    return producer


@pytest.fixture
def old(fake: FakeCluster, cluster: Cluster) -> TransactionalProducer:
    """A producer in a cluster whose transactions are of version 1."""
    fake.features = {"transaction.version": 1}
    producer = TransactionalProducer(cluster, "x")
    producer.init()
    return producer


def ends(fake: FakeCluster) -> list[tuple[int, int, bool]]:
    return [(r.producer_id, r.producer_epoch, r.committed) for r in fake.requests("EndTxn")]


def written_by(fake: FakeCluster) -> list[tuple[int, int]]:
    """Epoch and sequence of every batch that was sent."""
    headers = [
        read_header(row.records)
        for request in fake.requests("Produce")
        for topic in request.topic_data
        for row in topic.partition_data
    ]
    return [(header.producer_epoch, header.base_sequence) for header in headers]


def test_init_waits_for_the_transaction_of_another(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("InitProducerId", 51, 51, 14, 16, Cut)
    assert TransactionalProducer(cluster, "x", 1234).init() == Producer(7, 0)
    assert fake.requests("InitProducerId")[-1].transaction_timeout == 1234


def test_partitions_join_with_their_first_batch(fake: FakeCluster, producer: TransactionalProducer) -> None:
    producer.begin()
    producer.send(P0, BATCH)
    producer.commit()
    assert not fake.requests("AddPartitionsToTxn")
    assert fake.versions_of("Produce") <= {12, 13}
    assert fake.versions_of("EndTxn") == {5}
    assert fake.requests("Produce")[0].transactional_id == "x"


def test_every_end_brings_a_new_epoch_that_counts_from_zero(fake: FakeCluster, producer: TransactionalProducer) -> None:
    for _ in range(2):
        producer.begin()
        producer.send(P0, BATCH)
        producer.commit()
        fake.written.clear()
    assert ends(fake) == [(7, 0, True), (7, 1, True)]
    assert written_by(fake) == [(0, 0), (1, 0)]


def test_where_transactions_are_older_partitions_are_announced_once_each(
    fake: FakeCluster, old: TransactionalProducer
) -> None:
    fake.plan("AddPartitionsToTxn", 51, 14)
    old.begin()
    for tp in (P0, P1, P0):
        old.send(tp, BATCH)
    old.commit()
    announced = [list(request.v3_and_below_topics[0].partitions) for request in fake.requests("AddPartitionsToTxn")]
    assert announced == [[0], [0], [0], [1]]
    assert max(fake.versions_of("Produce")) == 11
    assert max(fake.versions_of("EndTxn")) == 4


def test_where_transactions_are_older_sequences_go_on(fake: FakeCluster, old: TransactionalProducer) -> None:
    for _ in range(2):
        old.begin()
        old.send(P0, BATCH)
        old.commit()
    assert written_by(fake) == [(0, 0), (0, 1)]


def test_an_empty_transaction_asks_nobody(fake: FakeCluster, producer: TransactionalProducer) -> None:
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    assert not ends(fake)


@pytest.mark.parametrize("failure", [Cut, Silence, 51, 7, 14, 15, 16])
def test_an_end_without_an_answer_is_asked_for_again_with_the_same_ids(
    fake: FakeCluster, producer: TransactionalProducer, failure: Any
) -> None:
    fake.plan("EndTxn", failure, failure)
    producer.begin()
    producer.send(P0, BATCH)
    producer.commit()
    assert ends(fake) == [(7, 0, True)] * 3


def test_an_end_that_nobody_answers_is_unknown(
    fake: FakeCluster, producer: TransactionalProducer, clock: list[float]
) -> None:
    fake.plan("EndTxn", *[Cut] * 10_000)
    producer.begin()
    producer.send(P0, BATCH)
    with pytest.raises(OutcomeUnknown, match="look at what was written"):
        producer.commit()
    assert 1029 < clock[0] <= 1030
    with pytest.raises(ClientError, match=r"outcome is unknown; call init\(\)"):
        producer.begin()
    fake.next.clear()
    producer.init()
    producer.begin()


def test_an_end_that_never_went_out_is_known_not_to_have_happened(
    fake: FakeCluster, producer: TransactionalProducer
) -> None:
    producer.begin()
    producer.send(P0, BATCH)
    producer.flush()
    fake.down = {1, 2}
    producer._cluster.close()
    with pytest.raises(Unreachable):
        producer._end(committed=True)


@pytest.mark.parametrize("code", [47, 52, 90])
def test_fencing_at_the_end_is_told(fake: FakeCluster, producer: TransactionalProducer, code: int) -> None:
    fake.plan("EndTxn", code)
    producer.begin()
    producer.send(P0, BATCH)
    with pytest.raises(Fenced) as told:
        producer.commit()
    assert not told.value.outcome_unknown
    with pytest.raises(ClientError, match="fenced by another producer"):
        producer.begin()


def test_fencing_behind_an_end_without_an_answer_leaves_the_outcome_open(
    fake: FakeCluster, producer: TransactionalProducer
) -> None:
    fake.plan("EndTxn", Cut, 90)
    producer.begin()
    producer.send(P0, BATCH)
    with pytest.raises(Fenced) as told:
        producer.commit()
    assert told.value.outcome_unknown


def test_fencing_while_sending_is_told(fake: FakeCluster, producer: TransactionalProducer) -> None:
    fake.plan("Produce", 47)
    producer.begin()
    producer.send(P0, BATCH)
    with pytest.raises(Fenced, match="another producer has the transactional id"):
        producer.commit()
    assert not ends(fake)


def test_a_transaction_with_a_refused_batch_can_only_be_aborted(
    fake: FakeCluster, producer: TransactionalProducer
) -> None:
    fake.plan("Produce", 10)
    producer.begin()
    producer.send(P0, BATCH)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        producer.flush()
    with pytest.raises(ClientError, match=r"has failed; call abort\(\)"):
        producer.commit()
    producer.abort()
    producer.begin()
    producer.send(P0, BATCH)
    producer.commit()
    assert ends(fake) == [(7, 0, False), (7, 1, True)]
    assert written_by(fake) == [(0, 0), (1, 0)]


def test_where_transactions_are_older_a_failed_one_is_followed_by_a_new_epoch(
    fake: FakeCluster, old: TransactionalProducer
) -> None:
    fake.plan("Produce", 10)
    old.begin()
    old.send(P0, BATCH)
    with pytest.raises(BrokerError):
        old.flush()
    old.abort()
    again = fake.requests("InitProducerId")[-1]
    assert (again.producer_id, again.producer_epoch) == (7, 0)


def test_an_abort_of_what_never_reached_the_coordinator_starts_anew(
    fake: FakeCluster, producer: TransactionalProducer
) -> None:
    fake.plan("EndTxn", 48)
    producer.begin()
    producer.send(P0, BATCH)
    producer.abort()
    assert len(fake.requests("InitProducerId")) == 2
    producer.begin()


def test_batches_under_way_arrive_before_the_abort(fake: FakeCluster, producer: TransactionalProducer) -> None:
    producer.begin()
    producer.send(P0, BATCH)
    producer.abort()
    assert [api for _, api, _, _ in fake.asked if api in ("Produce", "EndTxn")] == ["Produce", "EndTxn"]


def test_steps_out_of_order_say_what_is_missing(fake: FakeCluster, cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    with pytest.raises(ClientError, match=r"call init\(\)"):
        producer.begin()
    producer.init()
    with pytest.raises(ClientError, match=r"call begin\(\)"):
        producer.send(P0, BATCH)
    producer.begin()
    with pytest.raises(ClientError, match="commit or abort it"):
        producer.begin()
