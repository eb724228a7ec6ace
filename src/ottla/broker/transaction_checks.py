"""Asks the transaction coordinator on another broker whether a batch may begin a transaction in a partition (KIP-890).

    first batch of a transaction ──► guard ──► AddPartitionsToTxn to the coordinator ──► verdict ──► append
                                       └── a marker of this producer is written: no verdict, the client retries

Clients with KIP-890 add the partition with their first batch; for older ones the coordinator only verifies that it was
added. If this broker coordinates the transaction itself, it asks its own shard when it appends, and needs no verdict.

A verdict that allows a batch holds only until the transaction ends. Each question therefore has a guard, which the
marker of the producer removes. Without it a delayed batch could be appended after the marker, and nothing would end the
transaction that it opens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ottla.coordinator.outcome import Producer
from ottla.coordinator.transaction_runtime import TRANSACTION_TOPIC
from ottla.env.tasks import Tasks
from ottla.model.batch import HEADER_BYTES, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, OttlaError, Refused
from ottla.model.types import FrameBuffer, TopicPartition
from ottla.wire import Message
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.wire.produce import ProduceRequest

_VERSION = 5
#: transactions in one request
_REQUEST_TRANSACTIONS_MAX = 500
#: as long as a request waits for the markers of the previous transaction on the coordinator itself
_CONCURRENT_WAIT_S = 1.0
_CONCURRENT_RETRY_S = 0.005
#: verdicts that no batch has used yet; each belongs to a request that is being handled
_VERDICTS_MAX = 10_000

Codes = dict[TopicPartition, ErrorCode]


class Asker(Protocol):
    """Sends requests to other brokers."""

    def leader_of(self, name: TopicPartition) -> int | None: ...

    async def ask(self, broker_id: int, request: Message, version: int, *, timeout_s: float = ...) -> object: ...


class _Key(NamedTuple):
    name: TopicPartition
    producer: Producer


class _Guard:
    """One question, and its answer when it is known."""

    __slots__ = ("code", "leader_epoch")

    def __init__(self, leader_epoch: int) -> None:
        #: of the partition when the question was asked
        self.leader_epoch = leader_epoch
        self.code: ErrorCode | None = None


class _Question(NamedTuple):
    transaction: AddPartitionsToTxnTransaction
    answer: asyncio.Future[Codes]


class TransactionChecks:
    """The questions of this broker to transaction coordinators on other brokers."""

    def __init__(self, peers: Asker) -> None:
        self._peers = peers
        self._guards: dict[_Key, _Guard] = {}
        self._tasks = Tasks()
        #: broker id -> questions for its coordinators; a broker has an entry while a task asks it
        self._queues: dict[int, deque[_Question]] = {}

    def coordinator_of(self, partition: int) -> int | None:
        """Return the other live broker that leads this partition of ``__transaction_state``; None if there is none."""
        return self._peers.leader_of(TopicPartition(TRANSACTION_TOPIC, partition))

    async def check(
        self, broker_id: int, transactional_id: str, producer: Producer, partitions: dict[TopicPartition, int], *,
        verify_only: bool,
    ) -> None:  # fmt: skip
        """Get the verdicts about these partitions, which are given with their leader epochs, for ``take``.

        While the markers of the previous transaction are written, the question is repeated for ``_CONCURRENT_WAIT_S``.
        Each question has new guards: these markers make earlier answers void, not the next one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONCURRENT_WAIT_S
        while True:
            guards = {_Key(name, producer): _Guard(epoch) for name, epoch in partitions.items()}
            while len(self._guards) + len(guards) > _VERDICTS_MAX and self._guards:
                del self._guards[next(iter(self._guards))]
            self._guards.update(guards)
            codes = await self.ask(broker_id, transactional_id, producer, list(partitions), verify_only=verify_only)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values() or loop.time() >= deadline:
                break
            await asyncio.sleep(_CONCURRENT_RETRY_S)
        for key, guard in guards.items():
            guard.code = codes[key.name]

    def take(self, name: TopicPartition, producer: Producer, leader_epoch: int) -> ErrorCode:
        """Return the verdict about a batch, and forget it. Without a valid one the error makes the client retry."""
        guard = self._guards.pop(_Key(name, producer), None)
        if guard is None or guard.code is None or guard.leader_epoch != leader_epoch:
            return ErrorCode.NOT_COORDINATOR
        return guard.code

    def marker_written(self, name: TopicPartition, producer_id: int) -> None:
        """Forget the verdicts about a producer whose transaction a marker has ended."""
        if self._guards:
            ended = [key for key in self._guards if key.name == name and key.producer.producer_id == producer_id]
            for key in ended:
                del self._guards[key]

    async def ask(
        self, broker_id: int, transactional_id: str, producer: Producer, names: Sequence[TopicPartition], *,
        verify_only: bool,
    ) -> Codes:  # fmt: skip
        """Return the error codes of the coordinator for these partitions."""
        topics: dict[str, list[int]] = {}
        for name in names:
            topics.setdefault(name.topic, []).append(name.partition)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id, producer_id=producer.producer_id, producer_epoch=producer.epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in topics.items()],
        )  # fmt: skip
        codes = await self._queue(broker_id, transaction)
        return {name: _retriable(codes.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)) for name in names}

    async def stop(self) -> None:
        await self._tasks.stop()

    def _queue(self, broker_id: int, transaction: AddPartitionsToTxnTransaction) -> asyncio.Future[Codes]:
        question = _Question(transaction, asyncio.get_running_loop().create_future())
        if broker_id in self._queues:
            self._queues[broker_id].append(question)
        else:
            self._queues[broker_id] = deque([question])
            self._tasks.start(self._ask_queue(broker_id), f"transactions of broker {broker_id}")
        return question.answer

    async def _ask_queue(self, broker_id: int) -> None:
        """Ask until the queue is empty. Questions that arrive during a request share the next one."""
        queue = self._queues[broker_id]
        asked: list[_Question] = []
        try:
            while queue:
                asked = _take_distinct(queue)
                request = AddPartitionsToTxnRequest(transactions=[question.transaction for question in asked])
                reply = await self._peers.ask(broker_id, request, _VERSION)
                _answer(asked, reply)
        except OttlaError:
            pass  # the broker cannot be reached: clients retry
        finally:
            del self._queues[broker_id]
            for question in (*asked, *queue):
                if not question.answer.done():
                    question.answer.set_result(_all(question, ErrorCode.COORDINATOR_NOT_AVAILABLE))


def find_inconsistency(request: ProduceRequest, buffer: FrameBuffer) -> Refused | None:
    """Return the error for all batches of a request if one cannot belong to the request's transaction, else None."""
    producer_ids: set[int] = set()
    for _, partitions in request.topics:
        for data in partitions:
            if data.start >= 0 and data.end - data.start >= HEADER_BYTES:
                header = read_header(buffer, data.start)
                if header.attributes & TRANSACTIONAL:
                    producer_ids.add(header.producer_id)
    if producer_ids and request.transactional_id is None:
        return Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id"
        )
    if len(producer_ids) > 1:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the batches of a transaction are of one producer id")
    return None


def _take_distinct(queue: deque[_Question]) -> list[_Question]:
    """Remove and return questions of different transactional ids, because a reply has one entry for each."""
    taken: dict[str, _Question] = {}
    while queue and len(taken) < _REQUEST_TRANSACTIONS_MAX:
        if queue[0].transaction.transactional_id in taken:
            break
        question = queue.popleft()
        taken[question.transaction.transactional_id] = question
    return list(taken.values())


def _answer(asked: Sequence[_Question], reply: object) -> None:
    """Answer the questions of one request."""
    error = ErrorCode(reply.error_code)  # type: ignore[attr-defined]
    results = {each.transactional_id: each for each in reply.results_by_transaction}  # type: ignore[attr-defined]
    for question in asked:
        result = results.get(question.transaction.transactional_id)
        if error or result is None:
            codes = _all(question, error or ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            codes = {
                TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
                for topic in result.topic_results
                for row in topic.results_by_partition
            }
        if not question.answer.done():
            question.answer.set_result(codes)


def _all(question: _Question, code: ErrorCode) -> Codes:
    return {
        TopicPartition(topic.name, number): code for topic in question.transaction.topics for number in topic.partitions
    }


def _retriable(code: ErrorCode) -> ErrorCode:
    """Return the code, but a retriable one for partitions that are too new for the coordinator to know them."""
    unknown = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in unknown else code
