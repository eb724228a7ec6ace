"""Transactions between their shard and the log: what is decided is carried out, however late the disk is."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata, make_transaction_apis
from tests.unit.broker.request_fixtures import request_context
from tests.unit.coordinators.classic_fixtures import DictTopics
from tests.unit.coordinators.test_runtime import HandDrivenWheel
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA, ManagerFixture

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import CoordinatorContext, Producer
from ottla.broker.transactions.records import TransactionState
from ottla.broker.transactions.replies import end_reply
from ottla.broker.transactions.requests import EndTransaction, InitProducer
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC, MarkerWriter, TransactionRuntime
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

CLIENT = Client("c", "/127.0.0.1", 3)
PRODUCER_ID = 7


class TransactionRuntimeFixture(ManagerFixture):
    """A runtime on one partition of ``__transaction_state``, and a topic to write to."""

    def __init__(self, path: Path, config: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(path)
        settings = BrokerSettings()
        compact = TopicSettings.resolve({"cleanup.policy": "compact", **config}, settings)
        self.state = self.add(name=TRANSACTION_TOPIC, settings=compact)
        self.orders = self.add(name="orders", settings=TopicSettings.resolve(config, settings))
        topics = DictTopics()
        topics.create("orders", 1)
        topics.create(TRANSACTION_TOPIC, 1)
        self.wheel: Any = HandDrivenWheel()
        parts = {"clock": self.clock, "wheel": self.wheel, "replicas": self.manager, "begin_turn": lambda: None}
        self.lost: list[str] = []
        self.markers = MarkerWriter(
            on_written=lambda *_: None, on_lost=lambda partition: self.lost.append(str(partition.name)), **parts
        )
        self.runtime = TransactionRuntime(
            markers=self.markers, loop=asyncio.get_running_loop(),
            context=CoordinatorContext(settings=settings, topics=topics), **parts,
        )  # fmt: skip
        self.runtime.serve({0: self.state})

    def ask(self, operate: Callable[..., Any], build: Callable[[Any], Message] = lambda _: Message()) -> Any:
        return self.runtime.run("x", operate, build, lambda code: EndTxnResponse(error_code=code))

    async def turn_disk(self) -> None:
        """Whatever is pending is written and synced, and what follows from it too."""
        for _ in range(10):
            self.manager.commits.write_turn()
            self.threads.run()
            await asyncio.sleep(0)

    async def begin(self) -> None:
        init = InitProducer(transactional_id="x", timeout_ms=60_000)
        self.ask(lambda shard, now: shard.init_producer_id(init, PRODUCER_ID, now))
        producer = Producer(PRODUCER_ID, 0)
        names = [
            TopicPartition(topic.name, number)
            for topic in _add_request().v3_and_below_topics
            for number in topic.partitions
        ]
        self.ask(lambda shard, now: shard.add_partitions("x", producer, names, CLIENT, now))
        await self.turn_disk()

    def commit(self) -> Any:
        request = EndTransaction("x", Producer(PRODUCER_ID, 0), True)
        return self.ask(
            lambda shard, now: shard.end_txn(request, CLIENT, now, own_epoch=False, fresh_producer_id=None),
            lambda result: end_reply(result, CLIENT.version),
        )

    @property
    def x(self) -> TransactionState:
        return self.runtime.shard("x").values["x"].state


def test_outcome_that_reaches_the_disk_late_is_carried_out_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        answer = fixture.commit()
        fixture.manager.commits.write_turn()  # written; the sync has not come back yet
        fixture.clock.now += 6  # offsets.commit.timeout.ms is five seconds
        fixture.manager.commits.expire_writers()
        assert answer.result().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (fixture.x, fixture.markers.written) == (TransactionState.PREPARE_COMMIT, 0)
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


def test_marker_is_tried_again_until_its_partition_takes_it(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.orders.set_room(False)
        fixture.commit()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.PREPARE_COMMIT, 0)
        fixture.orders.set_room(True)
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


def test_marker_whose_write_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    """A coordinator has applied the marker to its state when it was appended."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.disk.fail("write", errno.ENOSPC, path="orders-0")
        fixture.disk.fail("create", errno.ENOSPC, path="orders-0")
        fixture.commit()
        await fixture.turn_disk()
        assert fixture.lost == ["orders-0"]
        assert fixture.x == TransactionState.PREPARE_COMMIT
        fixture.disk.heal()
        fixture.manager.storage.check_free_space()
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.lost, fixture.x) == (["orders-0"], TransactionState.COMPLETE_COMMIT)

    asyncio.run(run())


def test_complete_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    """The disk of ``__transaction_state`` becomes full after the markers were written."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        fixture.manager.commits.write_turn()
        fixture.threads.run()
        fixture.state.set_room(False)
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.PREPARE_COMMIT, 1)
        fixture.state.set_room(True)
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


def test_transaction_ends_if_its_markers_are_durable_when_the_next_leader_epoch_is_applied(tmp_path: Path) -> None:
    """The shard is kept, but until ``serve`` it appends nothing."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        fixture.manager.commits.write_turn()
        fixture.threads.run()
        fixture.manager.apply_state(fixture.state, replace(ONLY_REPLICA, leader_epoch=1))
        await fixture.turn_disk()
        assert fixture.markers.written == 1
        fixture.runtime.refresh()
        assert fixture.x == TransactionState.PREPARE_COMMIT
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


@pytest.mark.parametrize("is_here", [True, False])
def test_marker_of_a_partition_that_another_broker_leads_is_still_needed(tmp_path: Path, is_here: bool) -> None:
    """``is_here``: this broker has a replica of it."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        elsewhere = replace(ONLY_REPLICA, leader=2, leader_epoch=1, replicas=(1, 2))
        fixture.manager.apply_state(fixture.orders, elsewhere)
        fixture.manager._exists = lambda topic, number, by_id: (topic, number) == (b"orders", 0)
        orders = fixture.manager.topics[b"orders"]
        if not is_here:
            del fixture.manager.topics[b"orders"]
        fixture.commit()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.PREPARE_COMMIT, 0)
        fixture.manager.topics[b"orders"] = orders
        fixture.manager.apply_state(fixture.orders, replace(elsewhere, leader=1, leader_epoch=2))
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


def test_deleted_partition_needs_no_marker(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.manager.remove_topic(b"orders", lambda: "0")
        fixture.commit()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 0)

    asyncio.run(run())


def test_marker_of_a_shard_that_was_loaded_again_is_not_tried_any_more(tmp_path: Path) -> None:
    """The new life of the shard has a delivery of its own; a second one could end the client's next transaction."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.orders.set_room(False)
        fixture.commit()
        await fixture.turn_disk()
        ((_, earlier),) = fixture.wheel.timers
        fixture.wheel.timers.clear()
        fixture.runtime.reload(fixture.runtime._shards[0])
        while fixture.runtime.is_loading:
            await asyncio.sleep(0)
        fixture.orders.set_room(True)
        earlier.expire()
        assert fixture.markers.written == 0
        for _, timer in fixture.wheel.timers:
            timer.expire()
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)

    asyncio.run(run())


def test_transaction_ends_in_two_turns_where_the_page_cache_is_enough(tmp_path: Path) -> None:
    """Nobody may come for a long time: what follows from a write must not wait for the next request."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path, {"flush.acks.all": "false"})
        await fixture.begin()
        answer = fixture.commit()
        fixture.manager.commits.write_turn()
        assert answer.result().error_code == ErrorCode.NONE
        await asyncio.sleep(0)
        fixture.manager.commits.write_turn()
        assert (fixture.x, fixture.markers.written) == (TransactionState.COMPLETE_COMMIT, 1)
        assert fixture.state.log.written_end_offset == fixture.state.log.log_end_offset
        assert fixture.orders.log.written_end_offset == fixture.orders.log.log_end_offset

    asyncio.run(run())


# -- requests that wait for the markers of the previous transaction ----------------------------------------------------


def _add_request() -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=PRODUCER_ID, v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )  # fmt: skip


#: by API, a request that waits for markers, as the dispatcher calls its handler
_WAITING_REQUESTS: dict[str, Callable[[Any, Any], Any]] = {
    "AddPartitionsToTxn": lambda apis, context: apis.add_partitions_to_txn(_add_request(), context),
    "AddOffsetsToTxn": lambda apis, context: apis.add_offsets_to_txn(
        AddOffsetsToTxnRequest(transactional_id="x", producer_id=PRODUCER_ID, producer_epoch=0, group_id="g"),
        context,
    ),
    "EndTxn": lambda apis, context: apis.end_txn(
        EndTxnRequest(transactional_id="x", producer_id=PRODUCER_ID, producer_epoch=0, committed=True),
        context,
    ),
    "InitProducerId": lambda apis, context: apis.init_producer_id(
        InitProducerIdRequest(transactional_id="x", transaction_timeout=60_000), context
    ),
}


@pytest.mark.parametrize("api", _WAITING_REQUESTS)
def test_request_continues_when_markers_became_durable_before_its_task_started(tmp_path: Path, api: str) -> None:
    """The handler returns a coroutine that the loop starts later; the markers may become durable in between."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        assert fixture.runtime.has_outstanding_markers("x")
        unused = SimpleNamespace(expect=lambda *_: None, note_arrived=lambda _: None)
        groups = SimpleNamespace(partition_for=lambda _: 0)
        apis = make_transaction_apis(
            metadata=make_metadata(), transactions=fixture.runtime, groups=groups, awaited_commits=unused
        )  # fmt: skip
        answer = _WAITING_REQUESTS[api](apis, request_context(3, client=CLIENT))
        await fixture.turn_disk()
        assert fixture.x == TransactionState.COMPLETE_COMMIT
        task = asyncio.ensure_future(answer)
        await fixture.turn_disk()
        assert task.done(), "the request sleeps although no markers are outstanding"
        assert not getattr(task.result(), "error_code", 0)

    asyncio.run(run())


def test_requests_that_wait_for_markers_are_woken_in_order_when_complete_is_applied(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        woken: list[int] = []

        async def wait(number: int) -> None:
            await fixture.runtime.wait_for_markers("x")
            assert not fixture.runtime.has_outstanding_markers("x")
            woken.append(number)

        tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert woken == []
        await fixture.turn_disk()
        assert woken == [0, 1, 2]
        await asyncio.gather(*tasks)
        assert not fixture.runtime._marker_waiters

    asyncio.run(run())


def test_request_waits_on_when_complete_could_not_be_appended(tmp_path: Path) -> None:
    """All markers are durable, but the log of the coordinator is full: the next transaction cannot begin yet."""

    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        waits = asyncio.ensure_future(fixture.runtime.wait_for_markers("x"))
        fixture.manager.commits.write_turn()
        fixture.threads.run()
        fixture.state.set_room(False)
        await fixture.turn_disk()
        assert (fixture.x, fixture.markers.written) == (TransactionState.PREPARE_COMMIT, 1)
        assert not waits.done()
        fixture.state.set_room(True)
        fixture.runtime.expire()
        await fixture.turn_disk()
        assert fixture.x == TransactionState.COMPLETE_COMMIT
        assert waits.done()

    asyncio.run(run())


def test_request_is_woken_when_the_shard_is_loaded_again(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.orders.set_room(False)
        fixture.commit()
        await fixture.turn_disk()
        waits = asyncio.ensure_future(fixture.runtime.wait_for_markers("x"))
        await asyncio.sleep(0)
        fixture.runtime.reload(fixture.runtime._shards[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waits.done(), "the client must learn that the coordinator is loading"

    asyncio.run(run())


def test_request_that_is_cancelled_while_it_waits_leaves_no_waiter(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = TransactionRuntimeFixture(tmp_path)
        await fixture.begin()
        fixture.commit()
        waits = asyncio.ensure_future(fixture.runtime.wait_for_markers("x"))
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        assert not fixture.runtime._marker_waiters
        await fixture.turn_disk()

    asyncio.run(run())
