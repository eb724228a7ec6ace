"""Transactional batches for partitions of one broker whose transaction another broker coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import (
    UNUSED,
    make_metadata,
    make_transaction_apis,
    make_view,
    partition,
    topic_changes,
)
from tests.unit.broker.request_fixtures import request_context
from tests.unit.broker.test_produce_opening import Connection, SlowOpener, settle
from tests.unit.log.log_fixtures import NOW, topic
from tests.unit.log.store_fixtures import spec
from tests.unit.log.txn_fixtures import txn_batch
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA, ManagerFixture

from ottla.broker.access.permissions import ALL_ALLOWED
from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.coordinators.request_order import RequestOrder
from ottla.broker.coordinators.runtime import StaleConnection
from ottla.broker.produce.api import ProduceApi
from ottla.broker.transactions.checks import Term, TransactionChecks, term_of
from ottla.client.async_connections import PeerUnreachable
from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.raw import produce_request, read_answer, request_bytes
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

COORDINATOR = 2
PRODUCER = Producer(1, 0)
ORDERS = TopicPartition("orders", 0)


def added(names: list[TopicPartition], code: int = 0) -> AddPartitionsToTxnResponse:
    """Return the reply of a coordinator to a broker."""
    rows = [
        AddPartitionsToTxnTopicResult(name=name.topic, results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=code)
        ])
        for name in names
    ]  # fmt: skip
    result = AddPartitionsToTxnResult(transactional_id="x", topic_results=rows)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


class Coordinator:
    """The other broker: it answers each question with the next code when the test lets it."""

    def __init__(self) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.codes: list[int] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.is_up = True
        #: False: the broker of the test coordinates the transactions itself
        self.is_elsewhere = True

    def leader_of(self, name: TopicPartition) -> int | None:
        return COORDINATOR if self.is_elsewhere else None

    async def ask(self, broker_id: int, request: Any, version: int, *, timeout_s: float = 10.0) -> Any:
        assert (broker_id, version) == (COORDINATOR, 5)
        self.requests.append(request)
        await self.answering.wait()
        if not self.is_up:
            raise PeerUnreachable("down")
        code = self.codes.pop(0) if self.codes else 0
        return AddPartitionsToTxnResponse(results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=[
                AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                    for number in topic.partitions
                ])
                for topic in each.topics
            ])
            for each in request.transactions
        ])  # fmt: skip


def no_replica(topic: str, number: int) -> None:
    """Return that this broker has no replica of a partition."""


def replicas_in(term: Term) -> Callable[[str, int], Any]:
    """Return a function that finds a replica of each partition, in this term."""
    return lambda topic, number: SimpleNamespace(topic_id=term.topic_id, leader_epoch=term.leader_epoch)


class ProducerFixture(ManagerFixture):
    """A broker with one partition, and producers whose coordinator is elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.orders = self.add()
        self.coordinator = Coordinator()
        self.checks = TransactionChecks(self.coordinator, self.manager.find)
        self.manager.referrers.append(self.checks)
        self.transactions: Any = SimpleNamespace(partition_for=lambda name: 0)
        self.api = ProduceApi(
            metadata=make_metadata(make_view()), replicas=self.manager, clock=self.clock, access=ALL_ALLOWED,
            throttling=UNUSED, schemas=UNUSED, checks=self.checks, transactions=self.transactions,
        )  # fmt: skip
        self.connection: Any = Connection()

    def coordinate_here(self, add: Callable[..., object], verify: Callable[..., ErrorCode]) -> None:
        """Let this broker coordinate the transactions, with these functions in the place of its shard."""

        async def no_markers(transactional_id: str) -> None: ...

        transactions = self.transactions
        transactions.wait_for_markers, transactions.run = no_markers, add
        transactions.shard = lambda transactional_id: SimpleNamespace(verify=verify)
        self.coordinator.is_elsewhere = False

    async def send(self, version: int, data: bytes | None = None) -> None:
        await self.send_to(version, ("orders", 0, data or txn_batch()))

    async def send_to(self, version: int, *batches: tuple[str, int, bytes]) -> None:
        request = produce_request(*batches, acks=1)
        request.transactional_id = "x"
        frame = bytearray(request_bytes(request, version, 7, "test"))
        self.api.handle(self.connection, frame, memoryview(frame), 0, len(frame), version, 7)
        await settle()

    async def answer(self, version: int) -> ErrorCode:
        """Return the error code of the latest reply, which has one."""
        (code,) = await self.answers(version)
        return code

    async def answers(self, version: int) -> list[ErrorCode]:
        """Return the error codes of the latest reply."""
        for _ in range(3):
            self.manager.commits.write_turn()
            await settle()
        reply = read_answer(self.connection.slots[-1].data[4:], 0, version, 7)
        return [ErrorCode(row.error_code) for each in reply.responses for row in each.partition_responses]


def played(
    path: Path, script: Callable[[Any], Coroutine[Any, Any, None]], kind: type[ProducerFixture] = ProducerFixture
) -> None:
    async def play() -> None:
        fixture = kind(path)
        await script(fixture)
        assert fixture.connection.muted == 0
        await fixture.api.stop()
        await fixture.checks.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("version", "verify_only"), [(9, True), (12, False)])
def test_first_batch_asks_the_coordinator_and_the_next_does_not(
    tmp_path: Path, version: int, verify_only: bool
) -> None:
    async def script(fixture: ProducerFixture) -> None:
        await fixture.send(version)
        assert await fixture.answer(version) == 0
        await fixture.send(version, txn_batch(sequence=1))
        assert await fixture.answer(version) == 0
        ((transaction,),) = (request.transactions for request in fixture.coordinator.requests)
        assert transaction.verify_only is verify_only
        assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("x", 1, 0)
        assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("orders", [0])]
        assert fixture.orders.log.log_end_offset == 2

    played(tmp_path, script)


@pytest.mark.parametrize(
    ("version", "code", "answered"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (9, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (9, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_batch_that_the_coordinator_refuses_is_not_appended(
    tmp_path: Path, version: int, code: ErrorCode, answered: ErrorCode
) -> None:
    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinator.codes = [code]
        await fixture.send(version)
        assert await fixture.answer(version) == answered
        assert fixture.orders.log.log_end_offset == 0

    played(tmp_path, script)


def test_client_retries_when_this_broker_becomes_the_coordinator_while_it_adds_the_partition(tmp_path: Path) -> None:
    """The shard is not loaded when the partition is to be added, and is loaded when the batch is verified."""

    async def script(fixture: ProducerFixture) -> None:
        is_added = False

        def add(transactional_id: str, do: object, build: object, refuse: Callable[[int], object]) -> object:
            return added([ORDERS]) if is_added else refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        def verify(transactional_id: str, producer: Producer, name: TopicPartition) -> ErrorCode:
            return ErrorCode.NONE if is_added else ErrorCode.TRANSACTION_ABORTABLE

        fixture.coordinate_here(add, verify)
        await fixture.send(12)
        assert await fixture.answer(12) == ErrorCode.NOT_ENOUGH_REPLICAS
        # A batch that was in flight behind it must not be the first one of the producer.
        is_added = True
        await fixture.send(12, txn_batch(sequence=1))
        assert await fixture.answer(12) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in (0, 1):
            await fixture.send(12, txn_batch(sequence=sequence))
            assert await fixture.answer(12) == 0

    played(tmp_path, script)


def test_batch_is_refused_if_its_partition_is_in_the_transaction_but_not_stored(tmp_path: Path) -> None:
    """The next coordinator may not have the partition, and would end the transaction without a marker for it."""

    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinate_here(
            lambda transactional_id, do, build, refuse: refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            lambda transactional_id, producer, name: ErrorCode.NONE,
        )
        await fixture.send(12)
        assert await fixture.answer(12) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert fixture.orders.log.log_end_offset == 0

    played(tmp_path, script)


def test_client_retries_while_the_coordinator_cannot_be_reached(tmp_path: Path) -> None:
    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinator.is_up = False
        await fixture.send(9)
        assert await fixture.answer(9) == ErrorCode.NOT_ENOUGH_REPLICAS
        fixture.coordinator.is_up = True
        await fixture.send(9)
        assert await fixture.answer(9) == 0

    played(tmp_path, script)


def test_question_is_repeated_while_the_previous_transaction_ends(tmp_path: Path) -> None:
    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
        await fixture.send(12)
        fixture.checks.marker_written(ORDERS, PRODUCER.producer_id)  # of the previous transaction
        while len(fixture.coordinator.requests) < 3:
            await asyncio.sleep(0.001)
        await settle()
        assert await fixture.answer(12) == 0

    played(tmp_path, script)


def test_marker_during_the_question_makes_the_answer_worthless(tmp_path: Path) -> None:
    """Otherwise the batch would open a transaction that nothing ends."""

    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinator.answering.clear()
        await fixture.send(9)
        fixture.checks.marker_written(ORDERS, PRODUCER.producer_id)
        fixture.coordinator.answering.set()
        await settle()
        assert await fixture.answer(9) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert fixture.orders.log.log_end_offset == 0

    played(tmp_path, script)


@pytest.mark.parametrize("asks_again", [False, True])
def test_partition_that_is_removed_during_the_question_has_no_verdict(tmp_path: Path, asks_again: bool) -> None:
    """A question is asked again while the markers of the previous transaction are written."""

    async def script(fixture: ProducerFixture) -> None:
        fixture.coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS] if asks_again else []
        fixture.coordinator.answering.clear()
        await fixture.send(9)
        fixture.manager.remove(fixture.orders, "unique")
        fixture.manager.check_invariants()
        fixture.coordinator.answering.set()
        while len(fixture.coordinator.requests) <= asks_again:
            await asyncio.sleep(0)
            fixture.manager.check_invariants()
        await settle()
        assert await fixture.answer(9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    played(tmp_path, script)


def test_verdict_holds_for_one_request_in_one_leader_epoch_and_for_its_producer() -> None:
    async def run() -> None:
        term = Term(b"topic", 3)
        checks = TransactionChecks(Coordinator(), replicas_in(term))
        with checks.request() as request:
            await request.ask(COORDINATOR, "x", PRODUCER, {ORDERS: term}, verify_only=True)
            assert checks.verdict(ORDERS, Producer(1, 1), term) == ErrorCode.NOT_COORDINATOR
            assert checks.verdict(ORDERS, PRODUCER, Term(b"topic", 4)) == ErrorCode.NOT_COORDINATOR
            assert checks.verdict(ORDERS, PRODUCER, Term(b"new topic", 3)) == ErrorCode.NOT_COORDINATOR
            checks.marker_written(ORDERS, 2)
            checks.marker_written(TopicPartition("orders", 1), 1)
            for _ in range(2):
                assert checks.verdict(ORDERS, PRODUCER, term) == ErrorCode.NONE
            checks.marker_written(ORDERS, 1)
            assert checks.verdict(ORDERS, PRODUCER, term) == ErrorCode.NOT_COORDINATOR
        with checks.request() as request:
            await request.ask(COORDINATOR, "x", PRODUCER, {ORDERS: term}, verify_only=True)
        assert checks.verdict(ORDERS, PRODUCER, term) == ErrorCode.NOT_COORDINATOR

    asyncio.run(run())


def test_end_of_a_request_leaves_the_verdict_of_a_later_request() -> None:
    async def run() -> None:
        term = Term(b"topic", 3)
        checks = TransactionChecks(Coordinator(), replicas_in(term))
        with checks.request() as later:
            with checks.request() as earlier:
                for request in (earlier, later):
                    await request.ask(COORDINATOR, "x", PRODUCER, {ORDERS: term}, verify_only=True)
            assert checks.verdict(ORDERS, PRODUCER, term) == ErrorCode.NONE

    asyncio.run(run())


# -- batches that are opened off the event loop ------------------------------------------------------------------------


class OpenerFixture(ProducerFixture):
    """A broker with a compacted topic, whose batches are opened when the test says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opener = SlowOpener()
        self.manager.opener = self.opener  # type: ignore[assignment]
        self.compacted = self.add(0, name="compacted", settings=topic(cleanup_policy="compact"))

    def verdict(self) -> ErrorCode:
        """Return the verdict about the producer in the compacted topic."""
        return self.checks.verdict(self.compacted.name, PRODUCER, term_of(self.compacted))

    async def send_large(self, version: int, *others: tuple[str, int, bytes]) -> None:
        """Send a batch that is too large for the event loop to open, and wait until the opener has it."""
        await self.send_to(version, ("compacted", 0, LARGE), *others)
        assert len(self.opener.waiting) == 1
        assert self.compacted.log.log_end_offset == 0


LARGE = txn_batch(*[b"v"] * 2000)


@pytest.mark.parametrize("version", [9, 12])
def test_batch_that_is_opened_elsewhere_is_appended_with_the_verdict(tmp_path: Path, version: int) -> None:
    async def script(fixture: OpenerFixture) -> None:
        await fixture.send_large(version)
        await fixture.opener.release()
        assert await fixture.answer(version) == 0
        assert fixture.compacted.log.log_end_offset == 2000
        assert len(fixture.coordinator.requests) == 1
        assert fixture.verdict() == ErrorCode.NOT_COORDINATOR, "the request has been handled"

    played(tmp_path, script, OpenerFixture)


def test_batches_behind_one_that_is_opened_elsewhere_are_appended_with_their_verdicts(tmp_path: Path) -> None:
    async def script(fixture: OpenerFixture) -> None:
        second = fixture.add(1, name="compacted", settings=topic(cleanup_policy="compact"))
        await fixture.send_large(9, ("orders", 0, txn_batch()), ("compacted", 1, LARGE))
        await fixture.opener.release()
        await fixture.opener.release()
        assert await fixture.answers(9) == [0, 0, 0]
        assert [each.log.log_end_offset for each in (fixture.compacted, fixture.orders, second)] == [2000, 1, 2000]
        assert len(fixture.coordinator.requests) == 1

    played(tmp_path, script, OpenerFixture)


def test_batch_that_is_opened_twice_is_appended_with_the_verdict(tmp_path: Path) -> None:
    async def script(fixture: OpenerFixture) -> None:
        await fixture.send_large(9)
        fixture.manager.configure(b"compacted", topic(cleanup_policy="compact", compression_type="zstd"))
        await fixture.opener.release()
        await fixture.opener.release()
        assert await fixture.answer(9) == 0
        assert len(fixture.coordinator.requests) == 1

    played(tmp_path, script, OpenerFixture)


def test_marker_while_the_batch_is_opened_makes_the_client_retry(tmp_path: Path) -> None:
    """The marker ended the transaction: the batch would open one that nothing ends."""

    async def script(fixture: OpenerFixture) -> None:
        await fixture.send_large(9)
        fixture.checks.marker_written(fixture.compacted.name, PRODUCER.producer_id)
        await fixture.opener.release()
        assert await fixture.answer(9) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert fixture.compacted.log.log_end_offset == 0
        fixture.coordinator.codes = [ErrorCode.TRANSACTION_ABORTABLE]
        await fixture.send_to(9, ("compacted", 0, LARGE))
        assert await fixture.answer(9) == ErrorCode.INVALID_TXN_STATE, "the retry asks again"

    played(tmp_path, script, OpenerFixture)


def test_new_leader_epoch_while_the_batch_is_opened_makes_the_client_retry(tmp_path: Path) -> None:
    """Another leader may have appended the marker."""

    async def script(fixture: OpenerFixture) -> None:
        await fixture.send_large(9)
        fixture.manager.apply_state(fixture.compacted, replace(ONLY_REPLICA, leader_epoch=1))
        await fixture.opener.release()
        assert await fixture.answer(9) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert fixture.compacted.log.log_end_offset == 0

    played(tmp_path, script, OpenerFixture)


def test_topic_that_is_created_again_while_the_batch_is_opened_makes_the_client_retry(tmp_path: Path) -> None:
    """No marker is written to a deleted topic, so the transaction may have ended."""

    async def script(fixture: OpenerFixture) -> None:
        await fixture.send_large(9)
        fixture.manager.remove_topic(b"compacted", lambda: "unique")
        created = fixture.manager.add(
            spec(fixture.compacted.name, topic_id=bytes(15) + b"2", settings=topic(cleanup_policy="compact")),
            ONLY_REPLICA,
        )
        await fixture.opener.release()
        assert await fixture.answer(9) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert created.log.log_end_offset == 0

    played(tmp_path, script, OpenerFixture)


def test_batch_that_the_opener_refuses_leaves_no_verdict(tmp_path: Path) -> None:
    async def script(fixture: OpenerFixture) -> None:
        records = [Record(timestamp=NOW, key=None, value=b"v")] * 2000
        keyless = build_batch(records, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        await fixture.send_to(9, ("compacted", 0, keyless))
        assert fixture.verdict() == ErrorCode.NONE
        await fixture.opener.release()
        assert await fixture.answer(9) == ErrorCode.INVALID_RECORD
        assert fixture.verdict() == ErrorCode.NOT_COORDINATOR

    played(tmp_path, script, OpenerFixture)


def test_questions_of_many_producers_share_a_request() -> None:
    async def run() -> None:
        coordinator = Coordinator()
        coordinator.answering.clear()
        checks = TransactionChecks(coordinator, no_replica)
        ids = ["first", "a", "b", "b"]
        asked = [
            asyncio.ensure_future(checks.ask(COORDINATOR, each, PRODUCER, [ORDERS], verify_only=True)) for each in ids
        ]
        await settle()
        coordinator.answering.set()
        answers = await asyncio.gather(*asked)
        assert answers == [{ORDERS: ErrorCode.NONE}] * 4
        sent = [[each.transactional_id for each in request.transactions] for request in coordinator.requests]
        assert sent == [["first", "a", "b"], ["b"]], "a request names an id once"

    asyncio.run(run())


# -- offsets ----------------------------------------------------------------------------------------------------------


class GroupsFixture:
    """A group coordinator that commits what it gets, and the transaction coordinator on another broker."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.committed = 0
        self.replica = SimpleNamespace(leader_epoch=4, topic_id=b"offsets")
        view = make_view()
        view.apply(topic_changes("orders", [partition(1, (1,))]))
        self.checks = TransactionChecks(self.coordinator, lambda topic, number: self.replica)
        self.apis = make_transaction_apis(
            metadata=make_metadata(view), checks=self.checks, groups=self,
            transactions=SimpleNamespace(partition_for=lambda name: 0),
            replicas=SimpleNamespace(find=lambda topic, number: self.replica),
        )  # fmt: skip
        self.offsets_order: RequestOrder[tuple[str, str]] = RequestOrder(10)

    def partition_for(self, group: str) -> int:
        return 7

    def check_connection(self, group: str, client: Client) -> None:
        if client.connection == 1:
            raise StaleConnection("older than the coordinator")

    def run(self, group: str, operate: object, build: object, refuse: Callable[[int], Any]) -> Any:
        self.committed += 1
        return refuse(0)

    async def commit(self, version: int, *, connection: int = 5, correlation_id: int = 1) -> ErrorCode:
        rows = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        request = TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=1, producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=rows)],
        )  # fmt: skip
        client = Client("c", "/h", version, connection, correlation_id)
        context: Any = request_context(version, client=client)
        answer: Any = await self.apis.txn_offset_commit(request, context)  # type: ignore[misc]
        return ErrorCode(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(("version", "verify_only"), [(3, True), (5, False)])
def test_offsets_are_committed_when_the_other_coordinator_agrees(version: int, verify_only: bool) -> None:
    async def run() -> None:
        fixture = GroupsFixture()
        assert await fixture.commit(version) == 0
        ((transaction,),) = (request.transactions for request in fixture.coordinator.requests)
        assert transaction.verify_only is verify_only
        assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("__consumer_offsets", [7])]
        assert fixture.committed == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "code", "answered"),
    [
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (5, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_offsets_that_the_other_coordinator_refuses_are_not_committed(
    version: int, code: ErrorCode, answered: ErrorCode
) -> None:
    async def run() -> None:
        fixture = GroupsFixture()
        fixture.coordinator.codes = [code]
        assert await fixture.commit(version) == answered
        assert fixture.committed == 0

    asyncio.run(run())


def test_delayed_offsets_of_an_older_client_are_not_committed() -> None:
    async def run() -> None:
        fixture = GroupsFixture()
        assert await fixture.commit(3, connection=6, correlation_id=9) == 0
        assert await fixture.commit(3, connection=6, correlation_id=8) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await fixture.commit(3, connection=5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(StaleConnection):
            await fixture.commit(3, connection=1)
        assert fixture.committed == 1

    asyncio.run(run())


def test_marker_during_the_question_about_offsets_makes_the_client_retry() -> None:
    async def run() -> None:
        fixture = GroupsFixture()
        fixture.coordinator.answering.clear()
        commit = asyncio.ensure_future(fixture.commit(3))
        await settle()
        fixture.checks.marker_written(TopicPartition("__consumer_offsets", 7), 1)
        fixture.coordinator.answering.set()
        assert await commit == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fixture.committed == 0

    asyncio.run(run())
