"""A transactional producer: its batches in all partitions become visible together or not at all.

    NEW --init--> READY --begin--> OPEN --commit/abort--> READY
                    OPEN --a send fails--> FAILED --abort--> READY
                    any --Fenced--> FENCED --init--> READY
                    OPEN --an end without an answer--> DOUBTFUL --init--> READY

With transactions of version 2 (KIP-890) a partition joins the transaction with its first batch, and the producer gets a
new epoch at every end, so that late batches of an ended transaction are refused. With version 1, partitions are added
at the coordinator first, and the producer is initialized again after an abort with batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Final, Self, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.errors import (
    FENCING_CODES,
    BrokerError,
    ClientError,
    Fenced,
    OutcomeUnknown,
    TimedOut,
    Unreachable,
)
from ottla.client.producing import INIT_PRODUCER_ID_MAX, VERSIONS_ALL, Producer, ProduceStream, check_batch
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

_FEATURE: Final = "transaction.version"
_FEATURE_LEVEL: Final = 2
#: the first versions for transactions of version 2
_PRODUCE_FROM: Final = 12
_END_TXN_FROM: Final = 5
#: later versions are for requests between brokers
_ADD_PARTITIONS_MAX: Final = 3
#: the first version in which a producer names its id and epoch, and learns if it was fenced
_INIT_OWNED_FROM: Final = 3

_T = TypeVar("_T")


class _State(Enum):
    NEW = "not initialized; call init()"
    READY = "outside of a transaction; call begin()"
    OPEN = "in a transaction; commit or abort it"
    FAILED = "in a transaction that has failed; call abort()"
    FENCED = "fenced by another producer; call init() to fence that one"
    DOUBTFUL = "at an end whose outcome is unknown; call init() and look at what was written"


class TransactionalProducer:
    """One transactional id. Not thread safe."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._state = _State.NEW
        self._producer = Producer(-1, -1)
        self._is_version_2 = False
        self._stream: ProduceStream | None = None
        #: partitions of the open transaction
        self._partitions: set[TopicPartition] = set()

    def close(self) -> None:
        """Close the connections. An open transaction stays open until it times out, or until the next init()."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._state = _State.NEW

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The life of a transaction

    def init(self) -> Producer:
        """Fence every earlier producer with this transactional id, and complete or abort its transaction.

        When this returns, the outcome of all earlier transactions is visible to readers.
        """
        return self._init(Producer(-1, -1))

    def _init(self, owner: Producer) -> Producer:
        self.close()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=self._timeout_ms,
            producer_id=owner.id,
            producer_epoch=owner.epoch,
        )
        version_min = _INIT_OWNED_FROM if owner.id >= 0 else 0

        def attempt(node: Node, deadline: float) -> Producer:
            connection = self._cluster.borrow(node, deadline)
            try:
                answer = connection.ask(
                    request, deadline=deadline, version_min=version_min, version_max=INIT_PRODUCER_ID_MAX
                )
                self._is_version_2 = connection.features.get(_FEATURE, 0) >= _FEATURE_LEVEL
            finally:
                self._cluster.give_back(connection)
            self._check(answer.error_code)
            return Producer(answer.producer_id, answer.producer_epoch)

        self._producer = self._at_coordinator(attempt)
        self._start_stream()
        self._partitions.clear()
        self._state = _State.READY
        return self._producer

    def _start_stream(self) -> None:
        lowest, highest = VERSIONS_ALL
        versions = (_PRODUCE_FROM, highest) if self._is_version_2 else (lowest, _PRODUCE_FROM - 1)
        self._stream = ProduceStream(
            self._cluster, self._producer, transactional_id=self.transactional_id, versions=versions
        )

    def begin(self) -> None:
        self._expect(_State.READY)
        self._state = _State.OPEN

    def send(self, tp: TopicPartition, batch: bytes | bytearray) -> None:
        """Queue one batch. A bytearray is changed in place; the caller must not change it before `flush` returns."""
        stream = self._expect(_State.OPEN)
        check_batch(batch)
        try:
            if tp not in self._partitions:
                # Before the request, because it may arrive although its reply is lost.
                self._partitions.add(tp)
                if not self._is_version_2:
                    self._add_partition(tp)
            stream.send(tp, batch)
        except ClientError as error:
            self._fail(error)
            raise

    def flush(self) -> None:
        """Wait until every batch is acknowledged."""
        stream = self._expect(_State.OPEN)
        try:
            stream.flush()
        except ClientError as error:
            self._fail(error)
            raise

    def commit(self) -> None:
        """Flush, then commit the transaction.

        :raises OutcomeUnknown: if no reply came in time: the transaction may be committed or not.
        :raises Fenced: if another producer has the transactional id; `outcome_unknown` says whether this commit may
            have succeeded.
        """
        self.flush()
        self._end(committed=True)

    def abort(self) -> None:
        """Abort the transaction: its records never become visible to read_committed consumers."""
        if self._state is not _State.FAILED:
            self._expect(_State.OPEN)
        stream = self._stream
        assert stream is not None
        if not stream.is_broken:
            # A batch that arrives after the end would belong to the next transaction.
            try:
                stream.flush()
            except Fenced as error:
                self._fail(error)
                raise
            except ClientError:
                assert stream.is_broken
        try:
            self._end(committed=False)
        except BrokerError as error:
            if error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            # The coordinator does not know the transaction, or it has ended already.
            self._init(self._producer)
            return
        if stream.is_broken:
            if self._is_version_2:
                # Brokers refuse batches of the old epoch that are still on their way.
                stream.close()
                self._start_stream()
            else:
                self._init(self._producer)

    # At the coordinator

    def _end(self, *, committed: bool) -> None:
        if not self._partitions:
            # The coordinator does not know a transaction without partitions.
            self._state = _State.READY
            return
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            committed=committed,
        )
        bounds = {"version_min": _END_TXN_FROM} if self._is_version_2 else {"version_max": _END_TXN_FROM - 1}
        was_sent = False

        def attempt(node: Node, deadline: float) -> Producer:
            nonlocal was_sent
            connection = self._cluster.borrow(node, deadline)
            repeated, was_sent = was_sent, True
            try:
                answer = connection.ask(request, deadline=deadline, **bounds)
            finally:
                self._cluster.give_back(connection)
            if answer.error_code in FENCING_CODES:
                raise Fenced(answer.error_code, self.transactional_id, outcome_unknown=repeated)
            self._check(answer.error_code)
            return Producer(answer.producer_id, answer.producer_epoch)

        try:
            producer = self._at_coordinator(attempt)
        except (TimedOut, Unreachable) as error:
            if not was_sent:
                raise
            self._state = _State.DOUBTFUL
            raise OutcomeUnknown(
                f"transaction of {self.transactional_id}: asked to {'commit' if committed else 'abort'}, and no answer "
                "came in time; call init(), then look at what was written"
            ) from error
        except ClientError as error:
            self._fail(error)
            raise
        self._partitions.clear()
        self._state = _State.READY
        if producer.id >= 0:
            self._producer = producer
        if self._stream is not None and not self._stream.is_broken:
            self._stream.continue_as(self._producer)

    def _add_partition(self, tp: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer.id,
            v3_and_below_producer_epoch=self._producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )

        def attempt(node: Node, deadline: float) -> None:
            answer = self._cluster.ask(node, request, deadline=deadline, version_max=_ADD_PARTITIONS_MAX)
            for topic in answer.results_by_topic_v3_and_below:
                for row in topic.results_by_partition:
                    self._check(row.partition_error_code)

        self._at_coordinator(attempt)

    def _at_coordinator(self, attempt: Callable[[Node, float], _T]) -> _T:
        return self._cluster.retry_at_coordinator(CoordinatorType.TRANSACTION, self.transactional_id, attempt)

    def _check(self, code: int) -> None:
        if code in FENCING_CODES:
            raise Fenced(code, self.transactional_id)
        if code:
            raise BrokerError(code, f"transactional id {self.transactional_id}")

    # State

    def _expect(self, state: _State) -> ProduceStream:
        if self._state is not state:
            raise ClientError(f"the producer {self.transactional_id} is {self._state.value}")
        assert self._stream is not None
        return self._stream

    def _fail(self, error: ClientError) -> None:
        self._state = _State.FENCED if isinstance(error, Fenced) else _State.FAILED
