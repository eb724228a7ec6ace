"""Asks the transaction coordinator on another broker whether a batch may begin a transaction in a partition (KIP-890).

    first batch of a transaction ──► guard ──► AddPartitionsToTxn to the coordinator ──► verdict ──► append
                                       └── a marker of this producer is written: no verdict, the client retries

Clients with KIP-890 add the partition with their first batch; for older ones the coordinator only verifies that it was
added. If this broker coordinates the transaction itself, it asks its own shard in the same way. For clients before
KIP-890 no verdict is needed then: they send a batch after the reply that their partition was added.

A verdict that allows a batch holds only until the transaction ends. Each question therefore has a guard, which the
marker of the producer removes. Without it a delayed batch could be appended after the marker, and nothing would end the
transaction that it opens. A verdict does not hold in a later leader epoch, because another leader may have appended the
marker, nor for a new topic of the same name.

A verdict belongs to the request that asked for it (``RequestChecks``), from the question until the request has been
handled. ``verdict`` only looks at it: a batch that is opened off the event loop is verified before and after that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.partitions.partition import Partition
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC
from ottla.env.tasks import Tasks
from ottla.model.batch import HEADER_BYTES, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, OttlaError, Refused
from ottla.model.types import FrameBuffer, TopicPartition
from ottla.wire import Message
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResult,
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
#: each verdict belongs to a request that is being handled; above this number the oldest is removed, and its client
#: retries
_VERDICTS_MAX = 10_000

Codes = dict[TopicPartition, ErrorCode]


class Asker(Protocol):
    """Sends requests to other brokers."""

    def leader_of(self, name: TopicPartition) -> int | None: ...

    async def ask(self, broker_id: int, request: Message, version: int, *, timeout_s: float = ...) -> object: ...


class Term(NamedTuple):
    """The time for which one broker leads a partition of one topic: no other broker appends a marker meanwhile."""

    topic_id: bytes
    leader_epoch: int


def term_of(partition: Partition) -> Term:
    """Return the current term of a partition's leader."""
    return Term(partition.topic_id, partition.leader_epoch)


class _Key(NamedTuple):
    name: TopicPartition
    producer: Producer


class _Guard:
    """One question, and its answer when it is known."""

    __slots__ = ("code", "term")

    def __init__(self, term: Term) -> None:
        #: of the partition when the question was asked
        self.term = term
        self.code: ErrorCode | None = None


class _Question(NamedTuple):
    transaction: AddPartitionsToTxnTransaction
    answer: asyncio.Future[Codes]


class RequestChecks:
    """The questions that one request asks. ``TransactionChecks.verdict`` returns the answers until the block ends.

    with checks.request() as request_checks:
        await request_checks.ask(...)
        # handle the request to its end
    """

    def __init__(self, checks: TransactionChecks) -> None:
        self._checks = checks
        self._guards: dict[_Key, _Guard] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._checks.remove_guards(self._guards)

    async def ask(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        partitions: Mapping[TopicPartition, Term],
        *,
        verify_only: bool,
    ) -> None:
        """Get the verdicts about these partitions.

        While the markers of the previous transaction are written, the question is repeated for ``_CONCURRENT_WAIT_S``.
        Each question has new guards: these markers make earlier answers void, not the next one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONCURRENT_WAIT_S
        while True:
            guards = self._new_guards(producer, partitions)
            codes = await self._checks.ask(
                broker_id, transactional_id, producer, list(partitions), verify_only=verify_only
            )
            if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values() or loop.time() >= deadline:
                break
            await asyncio.sleep(_CONCURRENT_RETRY_S)
        for key, guard in guards.items():
            guard.code = codes[key.name]

    async def ask_here(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Mapping[TopicPartition, Term],
        answer: Callable[[], Awaitable[object]],
    ) -> None:
        """Get the verdicts from ``answer``, which returns the reply of this broker's own coordinator."""
        guards = self._new_guards(producer, partitions)
        reply: Any = await answer()
        results = {each.transactional_id: each for each in reply.results_by_transaction}
        codes = _codes_of(ErrorCode(reply.error_code), results.get(transactional_id), partitions)
        for key, guard in guards.items():
            guard.code = _retriable(codes.get(key.name, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _new_guards(self, producer: Producer, partitions: Mapping[TopicPartition, Term]) -> dict[_Key, _Guard]:
        """Add guards for the partitions that this broker still leads: the verdict about another one does not hold."""
        checks = self._checks
        guards = {
            _Key(name, producer): _Guard(term) for name, term in partitions.items() if checks.is_current(name, term)
        }
        self._guards.update(guards)
        checks.add_guards(guards)
        return guards


class TransactionChecks:
    """The questions of this broker to transaction coordinators, above all to those on other brokers."""

    def __init__(self, peers: Asker, find: Callable[[str, int], Partition | None]) -> None:
        """``find`` returns the replica of a partition on this broker."""
        self._peers = peers
        self._find = find
        self._guards: dict[_Key, _Guard] = {}
        self._tasks = Tasks()
        #: broker id -> questions for its coordinators; a broker has an entry while a task asks it
        self._queues: dict[int, deque[_Question]] = {}

    def coordinator_of(self, partition: int) -> int | None:
        """Return the other live broker that leads this partition of ``__transaction_state``; None if there is none."""
        return self._peers.leader_of(TopicPartition(TRANSACTION_TOPIC, partition))

    def request(self) -> RequestChecks:
        """Return what gets the verdicts for one request."""
        return RequestChecks(self)

    def is_current(self, name: TopicPartition, term: Term) -> bool:
        """Return whether the term of a partition has not ended."""
        partition = self._find(*name)
        return partition is not None and term_of(partition) == term

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        if self._guards:
            self._guards = {key: guard for key, guard in self._guards.items() if key.name != partition.name}

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if there is a verdict about a partition that is not served."""
        assert {key.name for key in self._guards} <= {partition.name for partition in served}, "_guards"

    def add_guards(self, guards: Mapping[_Key, _Guard]) -> None:
        """Add the guards of questions that are about to be asked."""
        while len(self._guards) + len(guards) > _VERDICTS_MAX and self._guards:
            del self._guards[next(iter(self._guards))]
        self._guards.update(guards)

    def remove_guards(self, guards: Mapping[_Key, _Guard]) -> None:
        """Remove these guards, but not those that a later request of the same producer has put in their place."""
        for key, guard in guards.items():
            if self._guards.get(key) is guard:
                del self._guards[key]

    def verdict(self, name: TopicPartition, producer: Producer, term: Term) -> ErrorCode:
        """Return the verdict about a batch. If there is none that holds in this term, the error lets the client retry.

        Call it immediately before each append: a marker may have removed the verdict since the last call.
        """
        guard = self._guards.get(_Key(name, producer))
        if guard is None or guard.code is None or guard.term != term:
            return ErrorCode.NOT_COORDINATOR
        return guard.code

    def marker_written(self, name: TopicPartition, producer_id: int) -> None:
        """Remove the verdicts about a producer whose transaction a marker has ended."""
        if self._guards:
            ended = [key for key in self._guards if key.name == name and key.producer.producer_id == producer_id]
            for key in ended:
                del self._guards[key]

    async def ask(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        names: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Codes:
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
                    question.answer.set_result(dict.fromkeys(_names(question), ErrorCode.COORDINATOR_NOT_AVAILABLE))


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
        if not question.answer.done():
            result = results.get(question.transaction.transactional_id)
            question.answer.set_result(_codes_of(error, result, _names(question)))


def _codes_of(error: ErrorCode, result: AddPartitionsToTxnResult | None, names: Iterable[TopicPartition]) -> Codes:
    """Return the error codes for the partitions of a transaction in a reply."""
    if error or result is None:
        return dict.fromkeys(names, error or ErrorCode.UNKNOWN_SERVER_ERROR)
    return {
        TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for topic in result.topic_results
        for row in topic.results_by_partition
    }


def _names(question: _Question) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in question.transaction.topics for number in topic.partitions]


def _retriable(code: ErrorCode) -> ErrorCode:
    """Return the code, but a retriable one for partitions that are too new for the coordinator to know them."""
    unknown = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in unknown else code
