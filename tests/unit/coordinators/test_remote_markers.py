"""Markers for partitions that other brokers lead reach them, whatever happens to the brokers meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_transaction_apis
from tests.unit.broker.request_fixtures import request_context
from tests.unit.coordinators.test_transaction_runtime import TransactionRuntimeFixture
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.transactions.records import Delivery, TransactionState
from ottla.broker.transactions.remote_markers import REQUEST_MARKERS_MAX, QueuedMarker, RemoteMarkers
from ottla.client.async_connections import PeerUnreachable
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

LEADER, OTHER_LEADER = 7, 8
Codes = Callable[[int, TopicPartition], int]


class FakeProgress:
    """The partitions of one delivery that are not done."""

    def __init__(self, *names: TopicPartition, producer_id: int = 1) -> None:
        self.delivery = Delivery(
            transactional_id="x", producer=Producer(producer_id, 3), coordinator_epoch=5, commit=True,
            partitions=names, transaction_version=2,
        )  # fmt: skip
        self.remaining = set(names)
        self.is_awaited = True

    def remove(self, name: TopicPartition) -> None:
        self.remaining.remove(name)


class Brokers:
    """Other brokers: they answer each marker with a code, or cannot be reached."""

    def __init__(self, leader: int | None = LEADER) -> None:
        self.leader = leader
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.code_of: Codes = lambda broker, name: 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.retried: list[QueuedMarker] = []
        self.remote = RemoteMarkers(leader_of=lambda name: self.leader, send=self.answer)

    async def answer(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests.append((broker_id, request))
        await self.answering.wait()
        return WriteTxnMarkersResponse(markers=[
            WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[
                WritableTxnMarkerTopicResult(name=topic.name, partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=number, error_code=self.code_of(broker_id, TopicPartition(topic.name, number))
                    )
                    for number in topic.partition_indexes
                ])
                for topic in marker.topics
            ])
            for marker in request.markers
        ])  # fmt: skip

    def send(self, progress: FakeProgress) -> bool:
        return all(self.remote.send(progress, name, self.retried.append) for name in progress.delivery.partitions)

    async def idle(self) -> None:
        while self.remote._queues and self.answering.is_set():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)


def names(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def sent(request: WriteTxnMarkersRequest) -> list[tuple[int, list[tuple[str, list[int]]]]]:
    return [
        (marker.producer_id, [(topic.name, list(topic.partition_indexes)) for topic in marker.topics])
        for marker in request.markers
    ]


def test_markers_of_several_transactions_share_a_request() -> None:
    async def run() -> None:
        brokers = Brokers()
        first = FakeProgress(*names("a", 2), *names("b", 1))
        second = FakeProgress(*names("a", 1), producer_id=2)
        assert brokers.send(first)
        assert brokers.send(second)
        await brokers.idle()
        ((broker, request),) = brokers.requests
        assert broker == LEADER
        assert sent(request) == [(1, [("a", [0, 1]), ("b", [0])]), (2, [("a", [0])])]
        marker = request.markers[0]
        assert (marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result) == (3, 5, True)
        assert marker.transaction_version == 2
        assert not first.remaining
        assert not second.remaining
        assert (brokers.retried, brokers.remote.written) == ([], 4)

    asyncio.run(run())


def test_markers_that_arrive_during_a_request_share_the_next_one() -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.answering.clear()
        brokers.send(FakeProgress(*names("a", 1)))
        await brokers.idle()
        brokers.send(FakeProgress(*names("b", 1), producer_id=2))
        brokers.send(FakeProgress(*names("c", 1), producer_id=3))
        await brokers.idle()
        assert len(brokers.requests) == 1, "one request at a time"
        brokers.answering.set()
        await brokers.idle()
        assert sent(brokers.requests[1][1]) == [(2, [("b", [0])]), (3, [("c", [0])])]

    asyncio.run(run())


def test_request_has_a_bounded_number_of_markers() -> None:
    async def run() -> None:
        brokers = Brokers()
        progress = FakeProgress(*names("a", REQUEST_MARKERS_MAX + 1))
        brokers.send(progress)
        await brokers.idle()
        sizes = [len(request.markers[0].topics[0].partition_indexes) for _, request in brokers.requests]
        assert (sizes, progress.remaining) == ([REQUEST_MARKERS_MAX, 1], set())

    asyncio.run(run())


def test_all_markers_of_an_unreachable_broker_are_retried() -> None:
    async def run() -> None:
        brokers = Brokers()

        async def fail(broker_id: int, request: WriteTxnMarkersRequest) -> Any:
            brokers.send(second)  # queued while the request is in flight
            raise PeerUnreachable("gone")

        brokers.remote = RemoteMarkers(leader_of=lambda name: LEADER, send=fail)
        first, second = FakeProgress(*names("a", 2)), FakeProgress(*names("b", 1))
        brokers.send(first)
        await brokers.idle()
        assert [each.name for each in brokers.retried] == [*names("a", 2), *names("b", 1)]
        assert first.remaining == set(names("a", 2))

    asyncio.run(run())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_marker_that_was_refused_is_retried_and_the_others_are_done(code: ErrorCode) -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.code_of = lambda broker, name: code if name.partition == 1 else 0
        progress = FakeProgress(*names("a", 3))
        brokers.send(progress)
        await brokers.idle()
        assert progress.remaining == {TopicPartition("a", 1)}
        assert [each.name for each in brokers.retried] == [TopicPartition("a", 1)]

    asyncio.run(run())


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_marker_of_a_newer_owner_is_not_needed(code: ErrorCode) -> None:
    async def run() -> None:
        brokers = Brokers()
        brokers.code_of = lambda broker, name: code
        progress = FakeProgress(*names("a", 1))
        brokers.send(progress)
        await brokers.idle()
        assert (progress.remaining, brokers.retried, brokers.remote.written) == (set(), [], 0)

    asyncio.run(run())


def test_marker_that_the_shard_does_not_await_any_more_is_not_sent() -> None:
    async def run() -> None:
        brokers = Brokers()
        progress = FakeProgress(*names("a", 1))
        brokers.send(progress)
        progress.is_awaited = False
        await brokers.idle()
        assert (brokers.requests, brokers.retried) == ([], [])

    asyncio.run(run())


def test_marker_without_a_live_leader_is_not_queued() -> None:
    async def run() -> None:
        brokers = Brokers(leader=None)
        assert not brokers.send(FakeProgress(*names("a", 1)))
        await brokers.idle()
        assert brokers.requests == []

    asyncio.run(run())


# -- two brokers ------------------------------------------------------------------------------------------------------


class Cluster:
    """Broker 1 coordinates the transaction. Broker 2 leads the partition, until broker 1 does."""

    def __init__(self, path: Path) -> None:
        (path / "1").mkdir()
        (path / "2").mkdir()
        self.coordinator, self.leader = TransactionRuntimeFixture(path / "1"), TransactionRuntimeFixture(path / "2")
        self.is_up = True
        self.requests = 0
        self.leader_id: int | None = 2
        self.coordinator.markers._remote = RemoteMarkers(leader_of=lambda name: self.leader_id, send=self.send)
        elsewhere = replace(ONLY_REPLICA, leader=2, leader_epoch=1, replicas=(1, 2))
        self.coordinator.manager.apply_state(self.coordinator.orders, elsewhere)

    async def send(self, broker_id: int, request: WriteTxnMarkersRequest) -> Any:
        self.requests += 1
        if not self.is_up:
            raise PeerUnreachable("broker 2 is down")
        apis = make_transaction_apis(markers=self.leader.markers)
        return await apis.write_txn_markers(request, request_context(2))  # type: ignore[misc]

    async def settle(self) -> None:
        for _ in range(5):
            await self.coordinator.turn_disk()
            await self.leader.turn_disk()

    async def retry(self) -> None:
        timers, self.coordinator.wheel.timers = self.coordinator.wheel.timers, []
        for _, timer in timers:
            timer.expire()
        await self.settle()


def test_transaction_is_complete_when_the_other_broker_has_its_marker(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path)
        await cluster.coordinator.begin()
        cluster.coordinator.commit()
        await cluster.settle()
        assert cluster.coordinator.x == TransactionState.COMPLETE_COMMIT
        assert (cluster.coordinator.markers.written, cluster.leader.markers.written) == (0, 1)

    asyncio.run(run())


def test_marker_is_kept_while_its_leader_is_down_and_follows_the_leadership(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path)
        cluster.is_up = False
        await cluster.coordinator.begin()
        cluster.coordinator.commit()
        await cluster.settle()
        cluster.leader_id = None  # its registration has expired
        await cluster.retry()
        await cluster.retry()
        assert (cluster.coordinator.x, cluster.requests) == (TransactionState.PREPARE_COMMIT, 1)
        here = replace(ONLY_REPLICA, leader=1, leader_epoch=2)
        cluster.coordinator.manager.apply_state(cluster.coordinator.orders, here)
        await cluster.retry()
        assert (cluster.coordinator.x, cluster.requests) == (TransactionState.COMPLETE_COMMIT, 1)
        assert (cluster.coordinator.markers.written, cluster.leader.markers.written) == (1, 0)

    asyncio.run(run())
