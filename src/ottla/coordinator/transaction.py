"""TransactionShard: all transactional ids of one partition of ``__transaction_state``. Pure.

                  AddPartitions         EndTxn                markers are durable
    Empty ──────────► Ongoing ──┬──► PrepareCommit ──► CompleteCommit ──┬──► Ongoing: the next transaction
      ▲                         └──► PrepareAbort ───► CompleteAbort ───┤
      │                    EndTxn, InitProducerId, timeout              │
      └─────────────────────────── InitProducerId ──────────────────────┘

An id belongs to one producer id and epoch. InitProducerId raises the epoch: whoever had it before is fenced. From
Prepare on the outcome is settled and only its markers are missing (``Delivery``); until they are durable everybody is
told CONCURRENT_TRANSACTIONS and comes back. A restarted coordinator hands out the delivery of every Prepare it finds.

A request that arrives late must not end a later transaction (KAFKA-17754). Clients of KIP-890 (EndTxn 5, Produce 12)
get a new epoch with every transaction, so that the epoch says which transaction is meant. Those before it use one epoch
for many: here the order in which the client sent its requests decides. A client has one connection to its coordinator
at a time and a connection keeps the order, so that a request from an older connection than the newest one seen, or with
an earlier correlation id on the same, was sent before it. Such a request changes nothing. If that is ever wrong about a
client, it is told to retry until its transaction times out and it is fenced. For the same reason a marker is written
only while its delivery is the one that the shard waits for (``awaits``).

Rules and codes are those of Kafka 4.3 (TransactionCoordinator, TransactionMetadata), except where a fenced producer
could disturb the current one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ottla.coordinator.outcome import Client, Moment, Producer, Ticket, World
from ottla.coordinator.regex import matching_topics
from ottla.coordinator.transaction_records import (
    Delivery,
    Ending,
    TransactionLogKey,
    TransactionLogValue,
    TransactionOutcome,
    TransactionRecord,
    TransactionState,
)
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.messages.describe_transactions import TopicData
from ottla.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.list_transactions import ListTransactionsRequest
from ottla.wire.messages.list_transactions import TransactionState as ListedTransaction

#: a client never gets the last epoch: it is kept to fence the one who has the epoch before it
EPOCH_LAST_OF_CLIENTS: Final = 32766
_EPOCH_MAX: Final = 32767
#: transactions with an epoch each
_VERSION_2: Final = 2
#: from this version on its client speaks that protocol
_END_TXN_V2_FROM: Final = 5
#: clients before these versions know a fenced producer only as INVALID_PRODUCER_EPOCH
_INIT_FENCED_FROM: Final = 4
_ADD_FENCED_FROM: Final = 2
_END_FENCED_FROM: Final = 2

_ONGOING: Final = TransactionState.ONGOING
#: the outcome is settled, markers are missing; Kafka never writes the last one but has a number for it
_PREPARED: Final = (
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)
#: begun, and not over for readers of every partition
_UNDER_WAY: Final = (_ONGOING, *_PREPARED)
_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
#: a group cannot have this name
_NO_GROUP: Final = ""
#: groups of one id whose order is remembered
_ORDERS_MAX: Final = 32
#: no epoch: nobody's request can be the retry of one that was served
_NOBODY: Final = -1


@dataclass(slots=True)
class _Soft:
    """What is lost with the process."""

    #: handed out and not yet followed by its Complete; one delivery is told from another by its identity
    delivery: Delivery | None = None
    is_delivered: bool = False
    #: the epoch that was replaced by the current one at the request of its owner, who may not have got the answer and
    #: ask again; _NOBODY when the owner was fenced; None when this is not known
    last_epoch: int | None = None
    #: the newest request of an old client: whose it was, its connection and its correlation id. By the group whose
    #: offsets it commits, as clients have a connection to each of their coordinators; _NO_GROUP for all other requests
    newest: dict[str, tuple[Producer, int, int]] = field(default_factory=dict)


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, world: World, coordinator_epoch: int) -> None:
        self._world = world
        self._coordinator_epoch = coordinator_epoch
        self.values: dict[str, TransactionLogValue] = {}
        self._soft: dict[str, _Soft] = {}

    # -- durable --------------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, producer: Producer | None = None) -> None:
        """Apply one record of the log. The same at load and at run time; a record sets all of its id."""
        assert producer is None, "__transaction_state is not written in transactions"
        (transactional_id,), value = record
        if value is None or value.state == TransactionState.DEAD:
            self.values.pop(transactional_id, None)
            self._soft.pop(transactional_id, None)
            return
        self.values[transactional_id] = value
        soft = self._soft.get(transactional_id)
        if soft is not None and value.state not in _PREPARED:
            soft.delivery = None

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """A marker that does not belong here: nothing of this log is written in a transaction."""

    def resume(self, now: Moment) -> None:
        """The whole log was replayed: markers of what was settled go out again, under the new coordinator epoch."""
        self._soft.clear()
        for transactional_id, value in self.values.items():
            if value.state in _PREPARED:
                self._soft_of(transactional_id).delivery = self._delivery(transactional_id, value)

    def after_load(self, now: Moment) -> TransactionOutcome:
        outcome = TransactionOutcome()
        for transactional_id, soft in self._soft.items():
            if soft.delivery is None:
                continue
            if soft.delivery.partitions:
                outcome.deliveries.append(soft.delivery)
            else:
                soft.is_delivered = True
                outcome.records += self._completion(transactional_id, now).records
        return outcome

    def settle(self, transactional_id: str, now: Moment, *, changed: bool) -> TransactionOutcome | None:
        return None

    @property
    def sleepers(self) -> Mapping[str, Any]:
        """Nobody: an id needs no alarm of its own, as ``expire`` looks at all of them every few seconds."""
        return {}

    def durable(self) -> dict[str, object]:
        """All that was replayed, to be compared with another replay."""
        return dict(self.values)

    @staticmethod
    def changes_soft_state(records: Sequence[TransactionRecord]) -> bool:
        return bool(records)

    def discard_soft_state(self, transactional_id: str, now: Moment) -> None:
        """The records that a handler made were not stored: back to what is."""
        soft = self._soft.get(transactional_id)
        if soft is None:
            return
        value = self.values.get(transactional_id)
        if value is None:
            del self._soft[transactional_id]
        elif value.state not in _PREPARED:  # else its markers are under way, or durable, and ``expire`` goes on
            soft.delivery = None
            soft.last_epoch = None

    def retire(self, error_code: ErrorCode) -> TransactionOutcome:
        """The shard goes away. Nobody waits here."""
        return TransactionOutcome()

    # -- a producer begins ----------------------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether InitProducerId, or EndTxn, will take a fresh producer id: allocate one and pass it on."""
        value = self.values.get(transactional_id)
        return value is None or value.producer_epoch >= EPOCH_LAST_OF_CLIENTS

    def init_producer_id(
        self, request: InitProducerIdRequest, fresh_producer_id: int | None, client: Client, ticket: Ticket, now: Moment
    ) -> TransactionOutcome:
        """InitProducerId (22) v0-v6 with a transactional id. v3 producer id and epoch (KIP-360), v6 two-phase commit.

        The fresh producer id is used or not.
        """
        try:
            outcome = self._init_producer_id(request, fresh_producer_id, now)
        except KafkaError as error:
            code = _fenced_as_known(error.code, client.version, _INIT_FENCED_FROM)
            return _answer(ticket, InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
        value = outcome.records[0].value
        assert value is not None
        if value.state == TransactionState.EMPTY:
            reply = InitProducerIdResponse(producer_id=value.producer_id, producer_epoch=value.producer_epoch)
        else:
            # The transaction of the one before is being aborted; the client comes back and gets an epoch above that.
            code = ErrorCode.CONCURRENT_TRANSACTIONS
            reply = InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        outcome.replies.append((ticket, reply))
        return outcome

    def _init_producer_id(
        self, request: InitProducerIdRequest, fresh_producer_id: int | None, now: Moment
    ) -> TransactionOutcome:
        transactional_id = request.transactional_id
        assert transactional_id is not None, "a producer without a transactional id has no shard"
        self._init_check(request)
        expected = Producer(request.producer_id, request.producer_epoch) if request.producer_id != -1 else None
        value = self.values.get(transactional_id)
        if value is None:
            value = TransactionLogValue(
                producer_id=_fresh(fresh_producer_id), producer_epoch=0, timeout_ms=request.transaction_timeout,
                state=TransactionState.EMPTY, last_update_ms=now.wall_ms,
            )  # fmt: skip
            return self._initialized(transactional_id, value, _NOBODY)
        if value.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_retry = expected is not None and self._init_is_retry(transactional_id, value, expected)
        # Kafka aborts an ongoing transaction for any epoch of the right producer id: here only the current one may.
        if expected not in (None, _producer(value)) and (not is_retry or value.state == _ONGOING):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        last_epoch = expected.epoch if expected is not None else _NOBODY
        if value.state == _ONGOING:
            return self._fence(transactional_id, value, now, last_epoch)
        # A retry gets what was given for the first request, whose answer was lost.
        if not is_retry or value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
            if value.producer_epoch >= EPOCH_LAST_OF_CLIENTS:
                value = _changed(value, now, producer_id=_fresh(fresh_producer_id), producer_epoch=0)
            else:
                value = _changed(value, now, producer_epoch=value.producer_epoch + 1)
        value = replace(
            value, state=TransactionState.EMPTY, timeout_ms=request.transaction_timeout, partitions=(), start_ms=-1,
            last_update_ms=now.wall_ms,
        )  # fmt: skip
        return self._initialized(transactional_id, value, last_epoch)

    def _init_check(self, request: InitProducerIdRequest) -> None:
        if not request.transactional_id or (request.producer_id == -1) != (request.producer_epoch == -1):
            raise Refused(ErrorCode.INVALID_REQUEST)
        if request.enable2_pc:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared_txn:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        if not 0 < request.transaction_timeout <= self._world.settings.transaction_max_timeout_ms:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    def _init_is_retry(self, transactional_id: str, value: TransactionLogValue, expected: Producer) -> bool:
        """Whether the current epoch was given to a request that expected the same, and nobody else came between."""
        soft = self._soft.get(transactional_id)
        if soft is None or soft.last_epoch != expected.epoch:
            return False
        if expected.producer_id == value.producer_id:
            return expected.epoch + 1 == value.producer_epoch
        return expected.producer_id == value.previous_producer_id and expected.epoch >= EPOCH_LAST_OF_CLIENTS

    def _initialized(self, transactional_id: str, value: TransactionLogValue, last_epoch: int) -> TransactionOutcome:
        self._soft_of(transactional_id).last_epoch = last_epoch
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), value)])

    # -- what the transaction touches -----------------------------------------------------------------------------

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, client: Client, ticket: Ticket, now: Moment
    ) -> TransactionOutcome:
        """AddPartitionsToTxn (24) v0-v3, of a client. v2 PRODUCER_FENCED."""
        transactional_id = request.v3_and_below_transactional_id
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = [
            TopicPartition(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions
        ]
        codes = _internal(partitions)
        outcome = TransactionOutcome()
        if not codes:
            outcome, codes = self._add_checked(transactional_id, producer, partitions, now, client)
        for name, code in codes.items():
            codes[name] = _fenced_as_known(code, client.version, _ADD_FENCED_FROM)
        outcome.replies.append((ticket, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(codes))))
        return outcome

    def add_partitions_of(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], verify_only: bool,
        ticket: Ticket, now: Moment,
    ) -> TransactionOutcome:  # fmt: skip
        """One transaction of AddPartitionsToTxn (24) v4-v5, sent by brokers. The reply has this transaction alone."""
        outcome = TransactionOutcome()
        if verify_only:
            codes = self._unknown(partitions) or {
                name: self.verify(transactional_id, producer, name) for name in partitions
            }  # fmt: skip
        else:
            outcome, codes = self._add_checked(transactional_id, producer, partitions, now, None)
        outcome.replies.append((ticket, _result(transactional_id, codes)))
        return outcome

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> ErrorCode:
        """Whether this producer may write to the partition now. For Produce see ``write_error``."""
        try:
            value = self._value(transactional_id)
            _check_producer(value, producer)
        except KafkaError as error:
            return error.code
        if value.state in _PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in value.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def add_offsets(
        self, request: AddOffsetsToTxnRequest, offsets_partition: TopicPartition, client: Client, ticket: Ticket,
        now: Moment,
    ) -> TransactionOutcome:  # fmt: skip
        """AddOffsetsToTxn (25) v0-v4. v2 PRODUCER_FENCED. The partition is where the group's offsets are kept."""
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            outcome = self._add(request.transactional_id, producer, [offsets_partition], now, client)
        except KafkaError as error:
            code = _fenced_as_known(error.code, client.version, _ADD_FENCED_FROM)
            return _answer(ticket, AddOffsetsToTxnResponse(error_code=code))
        outcome.replies.append((ticket, AddOffsetsToTxnResponse()))
        return outcome

    def _add_checked(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], now: Moment,
        old_client: Client | None,
    ) -> tuple[TransactionOutcome, dict[TopicPartition, ErrorCode]]:  # fmt: skip
        """All partitions are added, or none."""
        codes = self._unknown(partitions)
        if codes or not partitions:
            return TransactionOutcome(), codes
        try:
            outcome = self._add(transactional_id, producer, partitions, now, old_client)
        except KafkaError as error:
            return TransactionOutcome(), dict.fromkeys(partitions, error.code)
        return outcome, dict.fromkeys(partitions, ErrorCode.NONE)

    def _unknown(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """What to answer if one of them does not exist; nothing if all do."""
        count = self._world.topics.partition_count
        known = [0 <= name.partition < (count(name.topic) or 0) for name in partitions]
        if all(known):
            return {}
        return {
            name: ErrorCode.OPERATION_NOT_ATTEMPTED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for name, exists in zip(partitions, known, strict=True)
        }

    def _add(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], now: Moment,
        old_client: Client | None,
    ) -> TransactionOutcome:  # fmt: skip
        """``old_client``: who asks, if it uses one epoch for many transactions."""
        value = self._value(transactional_id)
        if value.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check_producer(value, producer)
        if old_client is not None:
            self._check_order(transactional_id, producer, old_client)
        merged = {*value.partitions, *partitions}
        if value.state == _ONGOING and len(merged) == len(value.partitions):
            return TransactionOutcome()
        value = _changed(
            value, now, state=_ONGOING, partitions=tuple(sorted(merged)),
            start_ms=value.start_ms if value.state == _ONGOING else now.wall_ms,
            client_transaction_version=_VERSION_2 if old_client is None else 0,
        )  # fmt: skip
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), value)])

    # -- the end --------------------------------------------------------------------------------------------------

    def end_txn(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, ticket: Ticket, now: Moment
    ) -> TransactionOutcome:
        """EndTxn (26) v0-v5. v2 PRODUCER_FENCED, v5 an epoch for every transaction (KIP-890), which is returned.

        The fresh producer id is used or not; None unless ``needs_producer_id``.
        """
        end = self._end_v1 if client.version < _END_TXN_V2_FROM else self._end_v2
        try:
            outcome, producer = end(request, fresh_producer_id, client, now)
        except KafkaError as error:
            code = _fenced_as_known(error.code, client.version, _END_FENCED_FROM)
            return _answer(ticket, EndTxnResponse(error_code=code))
        outcome.replies.append(
            (ticket, EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch))
        )
        return outcome

    def _end_v1(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> tuple[TransactionOutcome, Producer]:
        value = self._value(request.transactional_id)
        producer = Producer(request.producer_id, request.producer_epoch)
        _check_producer(value, producer)
        if value.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._check_order(request.transactional_id, producer, client)
        if value.state == _ONGOING:
            prepared = _changed(
                value, now, state=_prepare(commit=request.committed), client_transaction_version=0
            )  # fmt: skip
            return self._settled(request.transactional_id, prepared, now), _NO_PRODUCER
        if value.state != _complete(commit=request.committed):
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        return TransactionOutcome(), _NO_PRODUCER

    def _end_v2(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> tuple[TransactionOutcome, Producer]:
        """An epoch belongs to one transaction: the current one ends it, the one before it asks for the answer again."""
        value = self._value(request.transactional_id)
        producer = Producer(request.producer_id, request.producer_epoch)
        is_retry = self._end_is_retry(request.transactional_id, value, producer)
        if not is_retry:
            _check_producer(value, producer)
        if value.state in _PREPARED:
            # The current epoch belongs to the next transaction, which begins when all markers of this one are durable.
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if is_retry:
            if value.state != _complete(commit=request.committed):
                raise Refused(ErrorCode.INVALID_TXN_STATE)
            if value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
                raise Refused(ErrorCode.PRODUCER_FENCED)
            return TransactionOutcome(), _producer(value)
        if value.state != _ONGOING and request.committed:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        is_exhausted = value.producer_epoch >= EPOCH_LAST_OF_CLIENTS
        prepared = _changed(
            value, now, state=_prepare(commit=request.committed), producer_epoch=value.producer_epoch + 1,
            next_producer_id=_fresh(fresh_producer_id) if is_exhausted else -1,
            start_ms=value.start_ms if value.state == _ONGOING else now.wall_ms, client_transaction_version=_VERSION_2,
        )  # fmt: skip
        self._soft_of(request.transactional_id).last_epoch = value.producer_epoch
        return self._settled(request.transactional_id, prepared, now), _producer(_completed(prepared, now))

    def _end_is_retry(self, transactional_id: str, value: TransactionLogValue, producer: Producer) -> bool:
        """Whether the transaction of this epoch was ended, and nobody else came between."""
        if value.client_transaction_version < _VERSION_2 or value.state in (TransactionState.EMPTY, _ONGOING):
            return False
        soft = self._soft.get(transactional_id)
        if soft is not None and soft.last_epoch not in (None, producer.epoch):
            return False
        if producer.producer_id == value.producer_id:
            return producer.epoch + 1 == value.producer_epoch
        return (
            producer == (value.previous_producer_id, EPOCH_LAST_OF_CLIENTS)
            and value.producer_epoch == 0
            and value.state not in _PREPARED
        )

    def _settled(self, transactional_id: str, prepared: TransactionLogValue, now: Moment) -> TransactionOutcome:
        """The outcome is decided. Without partitions there is nothing to wait for."""
        ending = Ending.COMMITTED if prepared.state == TransactionState.PREPARE_COMMIT else Ending.ABORTED
        key = TransactionLogKey(transactional_id)
        if not prepared.partitions:
            return TransactionOutcome(records=[TransactionRecord(key, _completed(prepared, now))], ending=ending)
        soft = self._soft_of(transactional_id)
        soft.delivery = self._delivery(transactional_id, prepared)
        soft.is_delivered = False
        return TransactionOutcome(records=[TransactionRecord(key, prepared)], deliveries=[soft.delivery], ending=ending)

    def has_outstanding_markers(self, transactional_id: str) -> bool:
        """Return whether the transaction is in a Prepare state: the next one cannot begin before its Complete."""
        value = self.values.get(transactional_id)
        return value is not None and value.state in _PREPARED

    def awaits(self, delivery: Delivery) -> bool:
        """Whether this very delivery is under way. One of an earlier life of the shard could end a later transaction
        of a client that uses one epoch for many: its markers must not be written any more.
        """
        soft = self._soft.get(delivery.transactional_id)
        return soft is not None and soft.delivery is delivery

    def delivered(self, delivery: Delivery, now: Moment) -> TransactionOutcome:
        """All markers of this very delivery are durable. Of any other, one that is over: nothing happens."""
        if not self.awaits(delivery):
            return TransactionOutcome()
        self._soft_of(delivery.transactional_id).is_delivered = True
        return self._completion(delivery.transactional_id, now)

    def _completion(self, transactional_id: str, now: Moment) -> TransactionOutcome:
        prepared = self.values[transactional_id]
        completed = _completed(prepared, now)
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), completed)])

    def _delivery(self, transactional_id: str, prepared: TransactionLogValue) -> Delivery:
        return Delivery(
            transactional_id=transactional_id,
            producer=_producer(prepared),
            coordinator_epoch=self._coordinator_epoch,
            commit=prepared.state == TransactionState.PREPARE_COMMIT,
            partitions=prepared.partitions,
        )

    # -- time -----------------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> list[tuple[str, TransactionOutcome]]:
        """By id: a transaction that took too long is aborted and its producer fenced, an id that was idle is forgotten.

        Also what could not be stored when its markers were done.
        """
        idle_before_ms = now.wall_ms - self._world.settings.transactional_id_expiration_ms
        outcomes = []
        for transactional_id, value in self.values.items():
            if value.state == _ONGOING:
                if value.start_ms + value.timeout_ms < now.wall_ms:
                    # A client of KIP-890 may ask to abort what was aborted already, and learns its new epoch.
                    is_new = value.client_transaction_version >= _VERSION_2
                    last_epoch = value.producer_epoch if is_new else _NOBODY
                    outcome = self._fence(transactional_id, value, now, last_epoch)
                    outcome.ending = Ending.TIMED_OUT
                    outcomes.append((transactional_id, outcome))
            elif value.state in _PREPARED:
                if self._soft_of(transactional_id).is_delivered:
                    outcomes.append((transactional_id, self._completion(transactional_id, now)))
            elif value.last_update_ms <= idle_before_ms:
                tombstone = TransactionRecord(TransactionLogKey(transactional_id), None)
                outcomes.append((transactional_id, TransactionOutcome(records=[tombstone])))
        return outcomes

    def _fence(
        self, transactional_id: str, value: TransactionLogValue, now: Moment, last_epoch: int
    ) -> TransactionOutcome:
        """Abort the ongoing transaction. With the epoch of its markers its producer can do nothing any more."""
        self._soft_of(transactional_id).last_epoch = last_epoch
        epoch = min(value.producer_epoch + 1, _EPOCH_MAX)
        prepared = _changed(value, now, state=TransactionState.PREPARE_ABORT, producer_epoch=epoch)
        return self._settled(transactional_id, prepared, now)

    # -- questions ------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """One id of DescribeTransactions (65) v0."""
        if not transactional_id:
            return DescribedTransaction(error_code=ErrorCode.INVALID_REQUEST)
        value = self.values.get(transactional_id)
        if value is None:
            return DescribedTransaction(
                transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            )
        topics: dict[str, list[int]] = {}
        for name in value.partitions:
            topics.setdefault(name.topic, []).append(name.partition)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=_NAMES[value.state],
            transaction_timeout=value.timeout_ms,
            transaction_start_time=value.start_ms,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            topics=[TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
        )

    def list_transactions(self, request: ListTransactionsRequest, now: Moment) -> list[ListedTransaction]:
        """ListTransactions (66) v0-v2. v1 duration, v2 pattern of the id. An empty filter takes all.

        :raises Refused: INVALID_REGULAR_EXPRESSION.
        """
        pattern = request.transactional_id_pattern
        ids = matching_topics(pattern, self.values) if pattern else tuple(self.values)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
        listed = []
        for transactional_id in ids:
            value = self.values[transactional_id]
            name = _NAMES[value.state]
            if (
                (not states or name in states)
                and (not producer_ids or value.producer_id in producer_ids)
                and (request.duration_filter < 0 or now.wall_ms - value.start_ms > request.duration_filter)
            ):
                listed.append(
                    ListedTransaction(
                        transactional_id=transactional_id, producer_id=value.producer_id, transaction_state=name
                    )
                )
        return listed

    def census(self) -> tuple[Counter[str], int | None]:
        """Ids by the name of their state, and when the oldest transaction that is under way began."""
        counts = Counter(_NAMES[value.state] for value in self.values.values())
        oldest_ms = min((value.start_ms for value in self.values.values() if value.state in _UNDER_WAY), default=None)
        return counts, oldest_ms

    # -- parts ----------------------------------------------------------------------------------------------------

    def _value(self, transactional_id: str) -> TransactionLogValue:
        value = self.values.get(transactional_id)
        if value is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST)
        return value

    def _soft_of(self, transactional_id: str) -> _Soft:
        return self._soft.setdefault(transactional_id, _Soft())

    def check_order_of_offsets(self, transactional_id: str, producer: Producer, group: str, client: Client) -> None:
        """Refuse offsets that an old client committed before others of the same group; they were verified before."""
        self._check_order(transactional_id, producer, client, group)

    def _check_order(
        self, transactional_id: str, producer: Producer, client: Client, group: str = _NO_GROUP
    ) -> None:  # fmt: skip
        """Refuse a request that its client sent before one that was served."""
        if not client.connection:
            return
        newest = self._soft_of(transactional_id).newest
        if group in newest:
            whose, connection, correlation_id = newest[group]
            # Correlation ids may wrap, and a client may always send the same.
            is_earlier = (client.correlation_id - correlation_id) & 0xFFFFFFFF > 0x7FFFFFFF
            if whose == producer and (
                client.connection < connection or (client.connection == connection and is_earlier)
            ):  # fmt: skip
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif len(newest) >= _ORDERS_MAX:
            del newest[next(name for name in newest if name != _NO_GROUP)]
        newest[group] = (producer, client.connection, client.correlation_id)


def write_error(code: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """What a client is told whose write the coordinator does not expect in this transaction.

    ``adds``: the request, by its version, adds what it writes to by itself.
    """
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return code
    # Old clients retry what they know, and this does not make them look for a new leader first.
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _COORDINATOR_TROUBLE else code


def unknown_state_filters(request: ListTransactionsRequest) -> list[str]:
    """The filters of ListTransactions that name no state; they go back in the response."""
    known = set(_NAMES.values())
    return [name for name in request.state_filters if name not in known]


_COORDINATOR_TROUBLE: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_NO_PRODUCER: Final = Producer(-1, -1)
_INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")


def _answer(ticket: Ticket, message: Message) -> TransactionOutcome:
    return TransactionOutcome(replies=[(ticket, message)])


def _producer(value: TransactionLogValue) -> Producer:
    return Producer(value.producer_id, value.producer_epoch)


def _check_producer(value: TransactionLogValue, producer: Producer) -> None:
    if producer.producer_id != value.producer_id:
        raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.epoch != value.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED)


def _fresh(producer_id: int | None) -> int:
    if producer_id is None:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "this takes a fresh producer id: retry")
    return producer_id


def _fenced_as_known(code: ErrorCode, version: int, known_from: int) -> ErrorCode:
    if code == ErrorCode.PRODUCER_FENCED and version < known_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _changed(value: TransactionLogValue, now: Moment, **changes: Any) -> TransactionLogValue:
    """The value after a change. The producer id before it is kept for one step, for who asks again."""
    changes.setdefault("next_producer_id", -1)
    changed = replace(value, previous_producer_id=-1, next_producer_epoch=-1, last_update_ms=now.wall_ms, **changes)
    if changed.producer_id == value.producer_id:
        return changed
    return replace(changed, previous_producer_id=value.producer_id)


def _prepare(*, commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


def _complete(*, commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def _completed(prepared: TransactionLogValue, now: Moment) -> TransactionLogValue:
    state = _complete(commit=prepared.state == TransactionState.PREPARE_COMMIT)
    if prepared.next_producer_id == -1:
        return _changed(prepared, now, state=state, partitions=())
    epoch = max(prepared.next_producer_epoch, 0)
    return _changed(
        prepared, now, state=state, partitions=(), producer_id=prepared.next_producer_id, producer_epoch=epoch
    )


def _internal(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """What to answer if one of them is the broker's own; nothing if none is. Markers there are not for clients."""
    if not any(name.topic in _INTERNAL_TOPICS for name in partitions):
        return {}
    return {
        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if name.topic in _INTERNAL_TOPICS
        else ErrorCode.OPERATION_NOT_ATTEMPTED
        for name in partitions
    }


def _result(transactional_id: str, codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResponse:
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=_by_topic(codes))
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def _by_topic(codes: dict[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, code in codes.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=code)
        topics.setdefault(name.topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results) for topic, results in topics.items()
    ]
