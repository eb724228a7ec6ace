"""TransactionShard: all transactional ids of one partition of ``__transaction_state``. Pure: no I/O.

                  AddPartitions         EndTxn                markers are durable
    Empty ──────────► Ongoing ──┬──► PrepareCommit ──► CompleteCommit ──┬──► Ongoing: the next transaction
      ▲                         └──► PrepareAbort ───► CompleteAbort ───┤
      │                    EndTxn, InitProducerId, timeout              │
      └─────────────────────────── InitProducerId ──────────────────────┘

A transactional id belongs to one producer id and epoch. InitProducerId increments the epoch, which fences the previous
producer. The Prepare record decides whether the transaction commits or aborts; after it only the markers are missing
(``Delivery``). Until all markers are durable, requests get CONCURRENT_TRANSACTIONS and the client retries. A restarted
coordinator starts a delivery for every transactional id in a Prepare state.

A delayed request must not end a later transaction (KAFKA-17754). Clients with KIP-890 (EndTxn 5, Produce 12) get a new
epoch with every transaction, so the epoch identifies the transaction. Older clients use one epoch for many
transactions. For them the shard compares the order in which the client sent its requests (`request_order.py`). A
request that was sent before the latest one changes nothing and gets a retriable error. If a client violates this
assumption, it retries until its transaction times out and the producer is fenced. For the same reason a marker is
appended only while the shard waits for its delivery (``awaits_delivery``).

Rules and error codes are those of Kafka 4.3 (TransactionCoordinator, TransactionMetadata), except where a fenced
producer could interfere with the current producer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import CoordinatorContext, Moment, Producer
from ottla.broker.coordinators.request_order import SentRequest, check_order
from ottla.broker.groups.regex import matching_topics
from ottla.broker.transactions.records import (
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

#: the highest epoch that a client gets; the coordinator needs ``_EPOCH_MAX`` to fence the producer with this epoch
EPOCH_LAST_OF_CLIENTS: Final = 32766
_EPOCH_MAX: Final = 32767
#: client transaction version of KIP-890: each transaction has its own epoch
_VERSION_2: Final = 2
#: EndTxn version from which on the client uses ``_VERSION_2``
_END_TXN_V2_FROM: Final = 5
#: request versions from which on clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH
_INIT_FENCED_FROM: Final = 4
_ADD_FENCED_FROM: Final = 2
_END_FENCED_FROM: Final = 2

_ONGOING: Final = TransactionState.ONGOING
#: commit or abort is decided, markers are missing. Kafka defines PREPARE_EPOCH_FENCE but never writes it to the log
_PREPARED: Final = (
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)
#: started, and not ended in all partitions
_NOT_ENDED: Final = (_ONGOING, *_PREPARED)
_STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
#: value of ``_SoftState.last_epoch`` if no request can be a retry of an earlier one
_NO_EPOCH: Final = -1


@dataclass(slots=True)
class _SoftState:
    """The state of a transactional id that is not in the log."""

    #: the delivery that the shard waits for until the Complete record; compared by identity
    delivery: Delivery | None = None
    #: whether all markers of the delivery are durable
    is_delivered: bool = False
    #: the previous epoch, if its producer requested the current one: the producer may have lost the reply and retry.
    #: _NO_EPOCH if the previous producer was fenced; None if unknown
    last_epoch: int | None = None
    #: the latest request of a client before KIP-890
    latest: SentRequest | None = None


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, context: CoordinatorContext, coordinator_epoch: int) -> None:
        self._context = context
        self._coordinator_epoch = coordinator_epoch
        #: transactional id -> durable state
        self.values: dict[str, TransactionLogValue] = {}
        self._soft_states: dict[str, _SoftState] = {}

    # -- durable state --------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, producer: Producer | None = None) -> None:
        """Apply one record of the log, at load and at run time. A record has the complete state of its id."""
        assert producer is None, "__transaction_state is not written in transactions"
        (transactional_id,), value = record
        if value is None or value.state == TransactionState.DEAD:
            self.values.pop(transactional_id, None)
            self._soft_states.pop(transactional_id, None)
            return
        self.values[transactional_id] = value
        soft = self._soft_states.get(transactional_id)
        if soft is not None and value.state not in _PREPARED:
            soft.delivery = None

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Ignore the marker, because no record of ``__transaction_state`` belongs to a transaction."""

    def resume(self, now: Moment) -> None:
        """Create a delivery for each id in a Prepare state, with the new coordinator epoch; runs after the replay."""
        self._soft_states.clear()
        for transactional_id, value in self.values.items():
            if value.state in _PREPARED:
                self._soft_state(transactional_id).delivery = self._new_delivery(transactional_id, value)

    def after_load(self, now: Moment) -> TransactionOutcome[Any]:
        """Return the deliveries of ``resume``, and a Complete record for each of them that has no partitions."""
        outcome: TransactionOutcome[Any] = TransactionOutcome()
        for transactional_id, soft in self._soft_states.items():
            if soft.delivery is None:
                continue
            if soft.delivery.partitions:
                outcome.deliveries.append(soft.delivery)
            else:
                soft.is_delivered = True
                outcome.records += self._complete_outcome(transactional_id, now).records
        return outcome

    def follow_up_of(self, transactional_id: str, now: Moment, *, changed: bool) -> TransactionOutcome[Any] | None:
        """Return None, because no operation on a transactional id has a follow-up."""
        return None

    @property
    def expirables(self) -> Mapping[str, Any]:
        """Return no ids: none needs a timer, because ``expire`` checks all of them every few seconds."""
        return {}

    def durable(self) -> dict[str, object]:
        """Return the durable state, for the comparison with another replay."""
        return dict(self.values)

    @staticmethod
    def changes_soft_state(records: Sequence[TransactionRecord]) -> bool:
        return bool(records)

    def discard_soft_state(self, transactional_id: str, now: Moment) -> None:
        """Reset the soft state to match the durable state, because the records of an operation were not appended."""
        soft = self._soft_states.get(transactional_id)
        if soft is None:
            return
        value = self.values.get(transactional_id)
        if value is None:
            del self._soft_states[transactional_id]
        elif value.state not in _PREPARED:  # in a Prepare state the delivery continues
            soft.delivery = None
            soft.last_epoch = None

    def retire(self, error_code: ErrorCode) -> TransactionOutcome[Any]:
        """Return an empty outcome for the unload of the shard: no request is parked here."""
        return TransactionOutcome()

    # -- InitProducerId -------------------------------------------------------------------------------------------

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Return whether InitProducerId or EndTxn may need a new producer id, which the caller has to allocate."""
        value = self.values.get(transactional_id)
        return value is None or value.producer_epoch >= EPOCH_LAST_OF_CLIENTS

    def init_producer_id(
        self, request: InitProducerIdRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> TransactionOutcome[Message]:
        """Handle InitProducerId (22) v0-v6 with a transactional id.

        v3 adds producer id and epoch (KIP-360), v6 two-phase commit. ``fresh_producer_id`` is used only if needed.
        """
        try:
            outcome = self._init_producer_id(request, fresh_producer_id, now)
        except KafkaError as error:
            code = _translate_fenced(error.code, client.version, _INIT_FENCED_FROM)
            return TransactionOutcome(result=InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
        value = outcome.records[0].value
        assert value is not None
        if value.state == TransactionState.EMPTY:
            reply = InitProducerIdResponse(producer_id=value.producer_id, producer_epoch=value.producer_epoch)
        else:
            # The outcome aborts the transaction of the previous producer. The client retries and gets a higher epoch.
            code = ErrorCode.CONCURRENT_TRANSACTIONS
            reply = InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        outcome.result = reply
        return outcome

    def _init_producer_id(
        self, request: InitProducerIdRequest, fresh_producer_id: int | None, now: Moment
    ) -> TransactionOutcome[Any]:
        """Return the record with the new epoch, or the abort of the ongoing transaction. Raise Refused if invalid."""
        transactional_id = request.transactional_id
        assert transactional_id is not None, "a producer without a transactional id has no shard"
        self._check_init(request)
        expected = Producer(request.producer_id, request.producer_epoch) if request.producer_id != -1 else None
        value = self.values.get(transactional_id)
        if value is None:
            value = TransactionLogValue(
                producer_id=_require_producer_id(fresh_producer_id), producer_epoch=0,
                timeout_ms=request.transaction_timeout, state=TransactionState.EMPTY, last_update_ms=now.wall_ms,
            )  # fmt: skip
            return self._init_outcome(transactional_id, value, _NO_EPOCH)
        if value.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_retry = expected is not None and self._init_is_retry(transactional_id, value, expected)
        # Kafka aborts an ongoing transaction for any epoch of the producer id; Ottla requires the current epoch.
        if expected not in (None, _producer_of(value)) and (not is_retry or value.state == _ONGOING):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        last_epoch = expected.epoch if expected is not None else _NO_EPOCH
        if value.state == _ONGOING:
            return self._fence(transactional_id, value, now, last_epoch)
        # A retry gets the same producer id and epoch as the first request, whose reply was lost.
        if not is_retry or value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
            if value.producer_epoch >= EPOCH_LAST_OF_CLIENTS:
                value = _changed(value, now, producer_id=_require_producer_id(fresh_producer_id), producer_epoch=0)
            else:
                value = _changed(value, now, producer_epoch=value.producer_epoch + 1)
        value = replace(
            value, state=TransactionState.EMPTY, timeout_ms=request.transaction_timeout, partitions=(), start_ms=-1,
            last_update_ms=now.wall_ms,
        )  # fmt: skip
        return self._init_outcome(transactional_id, value, last_epoch)

    def _check_init(self, request: InitProducerIdRequest) -> None:
        """Raise Refused for the first invalid field."""
        if not request.transactional_id or (request.producer_id == -1) != (request.producer_epoch == -1):
            raise Refused(ErrorCode.INVALID_REQUEST)
        if request.enable2_pc:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared_txn:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        if not 0 < request.transaction_timeout <= self._context.settings.transaction_max_timeout_ms:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    def _init_is_retry(self, transactional_id: str, value: TransactionLogValue, expected: Producer) -> bool:
        """Return whether an earlier request with the same expected producer got the current epoch."""
        soft = self._soft_states.get(transactional_id)
        if soft is None or soft.last_epoch != expected.epoch:
            return False
        if expected.producer_id == value.producer_id:
            return expected.epoch + 1 == value.producer_epoch
        return expected.producer_id == value.previous_producer_id and expected.epoch >= EPOCH_LAST_OF_CLIENTS

    def _init_outcome(
        self, transactional_id: str, value: TransactionLogValue, last_epoch: int
    ) -> TransactionOutcome[Any]:
        self._soft_state(transactional_id).last_epoch = last_epoch
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), value)])

    # -- AddPartitionsToTxn, AddOffsetsToTxn ----------------------------------------------------------------------

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, client: Client, now: Moment
    ) -> TransactionOutcome[Message]:
        """Handle AddPartitionsToTxn (24) v0-v3, sent by clients. v2 adds PRODUCER_FENCED."""
        transactional_id = request.v3_and_below_transactional_id
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = [
            TopicPartition(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions
        ]
        codes = _internal_topic_errors(partitions)
        outcome: TransactionOutcome[Any] = TransactionOutcome()
        if not codes:
            outcome, codes = self._add_checked(transactional_id, producer, partitions, now, client)
        for name, code in codes.items():
            codes[name] = _translate_fenced(code, client.version, _ADD_FENCED_FROM)
        outcome.result = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(codes))
        return outcome

    def add_partitions_of(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], verify_only: bool,
        now: Moment,
    ) -> TransactionOutcome[Message]:  # fmt: skip
        """Handle one transaction of AddPartitionsToTxn (24) v4-v5, sent by brokers, or of Produce and TxnOffsetCommit.

        The reply has only this transaction.
        """
        outcome: TransactionOutcome[Any] = TransactionOutcome()
        if verify_only:
            codes = self._unknown_partition_errors(partitions) or {
                name: self.verify(transactional_id, producer, name) for name in partitions
            }  # fmt: skip
        else:
            outcome, codes = self._add_checked(transactional_id, producer, partitions, now, None)
        outcome.result = _broker_response(transactional_id, codes)
        return outcome

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> ErrorCode:
        """Return NONE if this producer may append to the partition now, else the error. Also see ``write_error``."""
        try:
            value = self._require_value(transactional_id)
            _check_producer(value, producer)
        except KafkaError as error:
            return error.code
        if value.state in _PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in value.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def add_offsets(
        self, request: AddOffsetsToTxnRequest, offsets_partition: TopicPartition, client: Client,
        now: Moment,
    ) -> TransactionOutcome[Message]:  # fmt: skip
        """Handle AddOffsetsToTxn (25) v0-v4. v2 adds PRODUCER_FENCED.

        ``offsets_partition`` is the partition of ``__consumer_offsets`` that has the offsets of the group.
        """
        producer = Producer(request.producer_id, request.producer_epoch)
        try:
            outcome = self._add(request.transactional_id, producer, [offsets_partition], now, client)
        except KafkaError as error:
            code = _translate_fenced(error.code, client.version, _ADD_FENCED_FROM)
            return TransactionOutcome(result=AddOffsetsToTxnResponse(error_code=code))
        outcome.result = AddOffsetsToTxnResponse()
        return outcome

    def _add_checked(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition], now: Moment,
        old_client: Client | None,
    ) -> tuple[TransactionOutcome[Any], dict[TopicPartition, ErrorCode]]:  # fmt: skip
        """Add all partitions, or none if one is unknown. Return the outcome and the error code of each partition."""
        codes = self._unknown_partition_errors(partitions)
        if codes or not partitions:
            return TransactionOutcome(), codes
        try:
            outcome = self._add(transactional_id, producer, partitions, now, old_client)
        except KafkaError as error:
            return TransactionOutcome(), dict.fromkeys(partitions, error.code)
        return outcome, dict.fromkeys(partitions, ErrorCode.NONE)

    def _unknown_partition_errors(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Return the error code of each partition if one of them does not exist, else an empty dict."""
        count = self._context.topics.partition_count
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
    ) -> TransactionOutcome[Any]:  # fmt: skip
        """Return the outcome that adds the partitions. Raise KafkaError if the producer may not add partitions now.

        ``old_client`` is the client if it is older than KIP-890, else None.
        """
        value = self._require_value(transactional_id)
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

    # -- EndTxn and markers ---------------------------------------------------------------------------------------

    def end_txn(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> TransactionOutcome[Message]:
        """Handle EndTxn (26) v0-v5. v2 adds PRODUCER_FENCED, v5 returns a new epoch for the next transaction (KIP-890).

        ``fresh_producer_id`` is used only if needed; it is None unless ``needs_producer_id``.
        """
        end = self._end_v1 if client.version < _END_TXN_V2_FROM else self._end_v2
        try:
            outcome, producer = end(request, fresh_producer_id, client, now)
        except KafkaError as error:
            code = _translate_fenced(error.code, client.version, _END_FENCED_FROM)
            return TransactionOutcome(result=EndTxnResponse(error_code=code))
        outcome.result = EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
        return outcome

    def _end_v1(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> tuple[TransactionOutcome[Any], Producer]:
        """End the transaction of a client before KIP-890. A request for a transaction that has ended is a retry."""
        value = self._require_value(request.transactional_id)
        producer = Producer(request.producer_id, request.producer_epoch)
        _check_producer(value, producer)
        if value.state in _PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._check_order(request.transactional_id, producer, client)
        if value.state == _ONGOING:
            prepared = _changed(
                value, now, state=_prepare_state(commit=request.committed), client_transaction_version=0
            )  # fmt: skip
            return self._prepare_outcome(request.transactional_id, prepared, now), _NO_PRODUCER
        if value.state != _complete_state(commit=request.committed):
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        return TransactionOutcome(), _NO_PRODUCER

    def _end_v2(
        self, request: EndTxnRequest, fresh_producer_id: int | None, client: Client, now: Moment
    ) -> tuple[TransactionOutcome[Any], Producer]:
        """End the transaction of the current epoch. A request with the previous epoch is a retry after a lost reply."""
        value = self._require_value(request.transactional_id)
        producer = Producer(request.producer_id, request.producer_epoch)
        is_retry = self._end_is_retry(request.transactional_id, value, producer)
        if not is_retry:
            _check_producer(value, producer)
        if value.state in _PREPARED:
            # The current epoch belongs to the next transaction, which starts when all markers of this one are durable.
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if is_retry:
            if value.state != _complete_state(commit=request.committed):
                raise Refused(ErrorCode.INVALID_TXN_STATE)
            if value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
                raise Refused(ErrorCode.PRODUCER_FENCED)
            return TransactionOutcome(), _producer_of(value)
        if value.state != _ONGOING and request.committed:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        is_exhausted = value.producer_epoch >= EPOCH_LAST_OF_CLIENTS
        prepared = _changed(
            value, now, state=_prepare_state(commit=request.committed), producer_epoch=value.producer_epoch + 1,
            next_producer_id=_require_producer_id(fresh_producer_id) if is_exhausted else -1,
            start_ms=value.start_ms if value.state == _ONGOING else now.wall_ms, client_transaction_version=_VERSION_2,
        )  # fmt: skip
        self._soft_state(request.transactional_id).last_epoch = value.producer_epoch
        next_producer = _producer_of(_complete_value(prepared, now))
        return self._prepare_outcome(request.transactional_id, prepared, now), next_producer

    def _end_is_retry(self, transactional_id: str, value: TransactionLogValue, producer: Producer) -> bool:
        """Return whether this producer has ended the transaction already and no other producer has fenced it since."""
        if value.client_transaction_version < _VERSION_2 or value.state in (TransactionState.EMPTY, _ONGOING):
            return False
        soft = self._soft_states.get(transactional_id)
        if soft is not None and soft.last_epoch not in (None, producer.epoch):
            return False
        if producer.producer_id == value.producer_id:
            return producer.epoch + 1 == value.producer_epoch
        return (
            producer == (value.previous_producer_id, EPOCH_LAST_OF_CLIENTS)
            and value.producer_epoch == 0
            and value.state not in _PREPARED
        )

    def _prepare_outcome(
        self, transactional_id: str, prepared: TransactionLogValue, now: Moment
    ) -> TransactionOutcome[Any]:
        """Return the Prepare record and the delivery, or the Complete record if the transaction has no partitions."""
        ending = Ending.COMMITTED if prepared.state == TransactionState.PREPARE_COMMIT else Ending.ABORTED
        key = TransactionLogKey(transactional_id)
        if not prepared.partitions:
            return TransactionOutcome(records=[TransactionRecord(key, _complete_value(prepared, now))], ending=ending)
        soft = self._soft_state(transactional_id)
        soft.delivery = self._new_delivery(transactional_id, prepared)
        soft.is_delivered = False
        return TransactionOutcome(records=[TransactionRecord(key, prepared)], deliveries=[soft.delivery], ending=ending)

    def has_outstanding_markers(self, transactional_id: str) -> bool:
        """Return whether the transaction is in a Prepare state: the next one cannot start before its Complete."""
        value = self.values.get(transactional_id)
        return value is not None and value.state in _PREPARED

    def awaits_delivery(self, delivery: Delivery) -> bool:
        """Return whether the shard waits for this delivery object.

        A delivery from before a reload of the shard could end a later transaction of a client that uses one epoch for
        many transactions. Its markers must not be appended.
        """
        soft = self._soft_states.get(delivery.transactional_id)
        return soft is not None and soft.delivery is delivery

    def delivered(self, delivery: Delivery, now: Moment) -> TransactionOutcome[Any]:
        """Return the Complete record, because all markers are durable; empty if the shard awaits another delivery."""
        if not self.awaits_delivery(delivery):
            return TransactionOutcome()
        self._soft_state(delivery.transactional_id).is_delivered = True
        return self._complete_outcome(delivery.transactional_id, now)

    def _complete_outcome(self, transactional_id: str, now: Moment) -> TransactionOutcome[Any]:
        prepared = self.values[transactional_id]
        completed = _complete_value(prepared, now)
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), completed)])

    def _new_delivery(self, transactional_id: str, prepared: TransactionLogValue) -> Delivery:
        """Return a delivery of the markers for a Prepare record, with the current coordinator epoch."""
        return Delivery(
            transactional_id=transactional_id,
            producer=_producer_of(prepared),
            coordinator_epoch=self._coordinator_epoch,
            commit=prepared.state == TransactionState.PREPARE_COMMIT,
            partitions=prepared.partitions,
            transaction_version=prepared.client_transaction_version,
        )

    # -- expiration -----------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> list[tuple[str, TransactionOutcome[Any]]]:
        """Return the outcomes that abort transactions after their timeout and delete idle ids, each with its id.

        Also return the Complete records whose append failed after the markers became durable.
        """
        idle_before_ms = now.wall_ms - self._context.settings.transactional_id_expiration_ms
        outcomes = []
        for transactional_id, value in self.values.items():
            if value.state == _ONGOING:
                if value.start_ms + value.timeout_ms < now.wall_ms:
                    # A client with KIP-890 may abort a transaction that has timed out; the reply has its new epoch.
                    is_version_2 = value.client_transaction_version >= _VERSION_2
                    last_epoch = value.producer_epoch if is_version_2 else _NO_EPOCH
                    outcome = self._fence(transactional_id, value, now, last_epoch)
                    outcome.ending = Ending.TIMED_OUT
                    outcomes.append((transactional_id, outcome))
            elif value.state in _PREPARED:
                if self._soft_state(transactional_id).is_delivered:
                    outcomes.append((transactional_id, self._complete_outcome(transactional_id, now)))
            elif value.last_update_ms <= idle_before_ms:
                tombstone = TransactionRecord(TransactionLogKey(transactional_id), None)
                outcomes.append((transactional_id, TransactionOutcome(records=[tombstone])))
        return outcomes

    def _fence(
        self, transactional_id: str, value: TransactionLogValue, now: Moment, last_epoch: int
    ) -> TransactionOutcome[Any]:
        """Abort the ongoing transaction with the next epoch, which fences its producer."""
        self._soft_state(transactional_id).last_epoch = last_epoch
        epoch = min(value.producer_epoch + 1, _EPOCH_MAX)
        prepared = _changed(value, now, state=TransactionState.PREPARE_ABORT, producer_epoch=epoch)
        return self._prepare_outcome(transactional_id, prepared, now)

    # -- DescribeTransactions, ListTransactions, metrics ------------------------------------------------------------

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Return the reply of DescribeTransactions (65) v0 for one transactional id."""
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
            transaction_state=_STATE_NAMES[value.state],
            transaction_timeout=value.timeout_ms,
            transaction_start_time=value.start_ms,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            topics=[TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
        )

    def list_transactions(self, request: ListTransactionsRequest, now: Moment) -> list[ListedTransaction]:
        """Return the transactions that match ListTransactions (66) v0-v2. An empty filter matches all.

        v1 adds the duration filter, v2 the pattern of the transactional id.

        :raises Refused: INVALID_REGULAR_EXPRESSION if the pattern is invalid.
        """
        pattern = request.transactional_id_pattern
        ids = matching_topics(pattern, self.values) if pattern else tuple(self.values)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
        listed = []
        for transactional_id in ids:
            value = self.values[transactional_id]
            name = _STATE_NAMES[value.state]
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

    def count_by_state(self) -> tuple[Counter[str], int | None]:
        """Return the number of ids per state, and the start time of the oldest transaction that has not ended."""
        counts = Counter(_STATE_NAMES[value.state] for value in self.values.values())
        oldest_ms = min((value.start_ms for value in self.values.values() if value.state in _NOT_ENDED), default=None)
        return counts, oldest_ms

    # -- checks ---------------------------------------------------------------------------------------------------

    def _require_value(self, transactional_id: str) -> TransactionLogValue:
        """Return the durable state of an id. Raise Refused if the id is unknown."""
        value = self.values.get(transactional_id)
        if value is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST)
        return value

    def _soft_state(self, transactional_id: str) -> _SoftState:
        return self._soft_states.setdefault(transactional_id, _SoftState())

    def _check_order(self, transactional_id: str, producer: Producer, client: Client) -> None:
        """Raise Refused for a request that the client sent before the latest request that the shard has handled."""
        soft = self._soft_state(transactional_id)
        soft.latest = check_order(soft.latest, producer, client)


def write_error(code: ErrorCode, *, knows_abortable: bool, adds: bool) -> ErrorCode:
    """Return the error code for a Produce or TxnOffsetCommit request that the coordinator rejects with ``code``.

    ``adds``: requests of this version also add the partition to the transaction.
    """
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and adds:
        # The request was to add the partition, and did not: the coordinator was moving. The retry adds it.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return code
    # Old clients retry after NOT_ENOUGH_REPLICAS without a metadata request for a new leader.
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _COORDINATOR_RETRIABLE else code


def unknown_state_filters(request: ListTransactionsRequest) -> list[str]:
    """Return the state filters of ListTransactions that are not the name of a state, for the response."""
    known = set(_STATE_NAMES.values())
    return [name for name in request.state_filters if name not in known]


_COORDINATOR_RETRIABLE: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_NO_PRODUCER: Final = Producer(-1, -1)
_INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")


def _producer_of(value: TransactionLogValue) -> Producer:
    return Producer(value.producer_id, value.producer_epoch)


def _check_producer(value: TransactionLogValue, producer: Producer) -> None:
    """Raise Refused if the id has another producer id or another epoch."""
    if producer.producer_id != value.producer_id:
        raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.epoch != value.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED)


def _require_producer_id(producer_id: int | None) -> int:
    """Return the new producer id. Raise Refused if the caller has not allocated one."""
    if producer_id is None:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "a new producer id is needed and none was allocated: retry")
    return producer_id


def _translate_fenced(code: ErrorCode, version: int, known_from: int) -> ErrorCode:
    """Return the code, with INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions below ``known_from``."""
    if code == ErrorCode.PRODUCER_FENCED and version < known_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _changed(value: TransactionLogValue, now: Moment, **changes: Any) -> TransactionLogValue:
    """Return the value with these changes. It keeps the previous producer id until the next change, for retries."""
    changes.setdefault("next_producer_id", -1)
    changed = replace(value, previous_producer_id=-1, next_producer_epoch=-1, last_update_ms=now.wall_ms, **changes)
    if changed.producer_id == value.producer_id:
        return changed
    return replace(changed, previous_producer_id=value.producer_id)


def _prepare_state(*, commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


def _complete_state(*, commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def _complete_value(prepared: TransactionLogValue, now: Moment) -> TransactionLogValue:
    """Return the value of the Complete record that follows a Prepare record."""
    state = _complete_state(commit=prepared.state == TransactionState.PREPARE_COMMIT)
    if prepared.next_producer_id == -1:
        return _changed(prepared, now, state=state, partitions=())
    epoch = max(prepared.next_producer_epoch, 0)
    return _changed(
        prepared, now, state=state, partitions=(), producer_id=prepared.next_producer_id, producer_epoch=epoch
    )


def _internal_topic_errors(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Return the error code of each partition if one belongs to an internal topic, else an empty dict.

    A client must not append markers to an internal topic.
    """
    if not any(name.topic in _INTERNAL_TOPICS for name in partitions):
        return {}
    return {
        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if name.topic in _INTERNAL_TOPICS
        else ErrorCode.OPERATION_NOT_ATTEMPTED
        for name in partitions
    }


def _broker_response(transactional_id: str, codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResponse:
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
