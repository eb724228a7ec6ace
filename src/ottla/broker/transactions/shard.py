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
from ottla.broker.transactions.requests import Codes, EndTransaction, InitProducer, TransactionFilter
from ottla.broker.transactions.transitions import (
    EPOCH_LAST_OF_CLIENTS,
    EPOCH_MAX,
    NO_PRODUCER,
    PREPARED,
    STATE_NAMES,
    VERSION_2,
    changed,
    check_producer,
    complete_state,
    complete_value,
    internal_topic_errors,
    prepare_state,
    producer_of,
    require_producer_id,
)
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.types import TopicPartition

_ONGOING: Final = TransactionState.ONGOING
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
        if soft is not None and value.state not in PREPARED:
            soft.delivery = None

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Ignore the marker, because no record of ``__transaction_state`` belongs to a transaction."""

    def resume(self, now: Moment) -> None:
        """Create a delivery for each id in a Prepare state, with the new coordinator epoch; runs after the replay."""
        self._soft_states.clear()
        for transactional_id, value in self.values.items():
            if value.state in PREPARED:
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
        elif value.state not in PREPARED:  # in a Prepare state the delivery continues
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
        self, request: InitProducer, fresh_producer_id: int | None, now: Moment
    ) -> TransactionOutcome[Producer | ErrorCode]:
        """Handle InitProducerId with a transactional id. ``fresh_producer_id`` is used only if needed."""
        try:
            outcome = self._init_producer_id(request, fresh_producer_id, now)
        except KafkaError as error:
            return TransactionOutcome(result=error.code)
        value = outcome.records[0].value
        assert value is not None
        if value.state == TransactionState.EMPTY:
            outcome.result = producer_of(value)
        else:
            # The outcome aborts the transaction of the previous producer. The client retries and gets a higher epoch.
            outcome.result = ErrorCode.CONCURRENT_TRANSACTIONS
        return outcome

    def _init_producer_id(
        self, request: InitProducer, fresh_producer_id: int | None, now: Moment
    ) -> TransactionOutcome[Any]:
        """Return the record with the new epoch, or the abort of the ongoing transaction. Raise Refused if invalid."""
        transactional_id = request.transactional_id
        self._check_init(request)
        expected = Producer(request.producer_id, request.producer_epoch) if request.producer_id != -1 else None
        value = self.values.get(transactional_id)
        if value is None:
            value = TransactionLogValue(
                producer_id=require_producer_id(fresh_producer_id), producer_epoch=0,
                timeout_ms=request.timeout_ms, state=TransactionState.EMPTY, last_update_ms=now.wall_ms,
            )  # fmt: skip
            return self._init_outcome(transactional_id, value, _NO_EPOCH)
        if value.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_retry = expected is not None and self._init_is_retry(transactional_id, value, expected)
        # Kafka aborts an ongoing transaction for any epoch of the producer id; Ottla requires the current epoch.
        if expected not in (None, producer_of(value)) and (not is_retry or value.state == _ONGOING):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        last_epoch = expected.epoch if expected is not None else _NO_EPOCH
        if value.state == _ONGOING:
            return self._fence(transactional_id, value, now, last_epoch)
        # A retry gets the same producer id and epoch as the first request, whose reply was lost.
        if not is_retry or value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
            if value.producer_epoch >= EPOCH_LAST_OF_CLIENTS:
                value = changed(value, now, producer_id=require_producer_id(fresh_producer_id), producer_epoch=0)
            else:
                value = changed(value, now, producer_epoch=value.producer_epoch + 1)
        value = replace(
            value, state=TransactionState.EMPTY, timeout_ms=request.timeout_ms, partitions=(), start_ms=-1,
            last_update_ms=now.wall_ms,
        )  # fmt: skip
        return self._init_outcome(transactional_id, value, last_epoch)

    def _check_init(self, request: InitProducer) -> None:
        """Raise Refused for the first invalid field."""
        if not request.transactional_id or (request.producer_id == -1) != (request.producer_epoch == -1):
            raise Refused(ErrorCode.INVALID_REQUEST)
        if request.two_phase_commit:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        if not 0 < request.timeout_ms <= self._context.settings.transaction_max_timeout_ms:
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
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        client: Client,
        now: Moment,
    ) -> TransactionOutcome[Codes]:
        """Handle AddPartitionsToTxn of a client, which is older than KIP-890."""
        if codes := internal_topic_errors(partitions):
            return TransactionOutcome(result=codes)
        return self._add_checked(transactional_id, producer, partitions, now, old_client=client)

    def add_partitions_of(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        now: Moment,
        *,
        verify_only: bool,
    ) -> TransactionOutcome[Codes]:
        """Handle one transaction of AddPartitionsToTxn, sent by brokers, or of Produce and TxnOffsetCommit."""
        if not verify_only:
            return self._add_checked(transactional_id, producer, partitions, now)
        codes = self._unknown_partition_errors(partitions)
        return TransactionOutcome(
            result=codes or {name: self.verify(transactional_id, producer, name) for name in partitions}
        )

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> ErrorCode:
        """Return NONE if this producer may append to the partition now, else the error. Also see ``write_error``."""
        try:
            value = self._require_value(transactional_id)
            check_producer(value, producer)
        except KafkaError as error:
            return error.code
        if value.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in value.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def add_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        offsets_partition: TopicPartition,
        client: Client,
        now: Moment,
    ) -> TransactionOutcome[ErrorCode]:
        """Handle AddOffsetsToTxn of a client.

        ``offsets_partition`` is the partition of ``__consumer_offsets`` that has the offsets of the group.
        """
        try:
            outcome = self._add(transactional_id, producer, [offsets_partition], now, old_client=client)
        except KafkaError as error:
            return TransactionOutcome(result=error.code)
        outcome.result = ErrorCode.NONE
        return outcome

    def _add_checked(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        now: Moment,
        *,
        old_client: Client | None = None,
    ) -> TransactionOutcome[Codes]:
        """Add all partitions, or none if one is unknown."""
        codes = self._unknown_partition_errors(partitions)
        if codes or not partitions:
            return TransactionOutcome(result=codes)
        try:
            outcome = self._add(transactional_id, producer, partitions, now, old_client=old_client)
        except KafkaError as error:
            return TransactionOutcome(result=dict.fromkeys(partitions, error.code))
        outcome.result = dict.fromkeys(partitions, ErrorCode.NONE)
        return outcome

    def _unknown_partition_errors(self, partitions: Sequence[TopicPartition]) -> Codes:
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
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        now: Moment,
        *,
        old_client: Client | None,
    ) -> TransactionOutcome[Any]:
        """Return the outcome that adds the partitions. Raise KafkaError if the producer may not add partitions now.

        ``old_client`` is the client if it is older than KIP-890, else None.
        """
        value = self._require_value(transactional_id)
        if value.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        check_producer(value, producer)
        if old_client is not None:
            self._check_order(transactional_id, producer, old_client)
        merged = {*value.partitions, *partitions}
        if value.state == _ONGOING and len(merged) == len(value.partitions):
            return TransactionOutcome()
        value = changed(
            value, now, state=_ONGOING, partitions=tuple(sorted(merged)),
            start_ms=value.start_ms if value.state == _ONGOING else now.wall_ms,
            client_transaction_version=VERSION_2 if old_client is None else 0,
        )  # fmt: skip
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), value)])

    # -- EndTxn and markers ---------------------------------------------------------------------------------------

    def end_txn(
        self, request: EndTransaction, client: Client, now: Moment, *, own_epoch: bool, fresh_producer_id: int | None
    ) -> TransactionOutcome[Producer | ErrorCode]:
        """Handle EndTxn. With ``own_epoch`` (KIP-890), the result is the producer of the next transaction.

        ``fresh_producer_id`` is used only if needed; it is None unless ``needs_producer_id``.
        """
        try:
            if own_epoch:
                return self._end_v2(request, fresh_producer_id, now)
            return self._end_v1(request, client, now)
        except KafkaError as error:
            return TransactionOutcome(result=error.code)

    def _end_v1(self, request: EndTransaction, client: Client, now: Moment) -> TransactionOutcome[Producer | ErrorCode]:
        """End the transaction of a client before KIP-890. A request for a transaction that has ended is a retry."""
        transactional_id, producer, commit = request
        value = self._require_value(transactional_id)
        check_producer(value, producer)
        if value.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._check_order(transactional_id, producer, client)
        if value.state == _ONGOING:
            prepared = changed(value, now, state=prepare_state(commit=commit), client_transaction_version=0)
            outcome = self._prepare_outcome(transactional_id, prepared, now)
            outcome.result = NO_PRODUCER
            return outcome
        if value.state != complete_state(commit=commit):
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        return TransactionOutcome(result=NO_PRODUCER)

    def _end_v2(
        self, request: EndTransaction, fresh_producer_id: int | None, now: Moment
    ) -> TransactionOutcome[Producer | ErrorCode]:
        """End the transaction of the current epoch. A request with the previous epoch is a retry after a lost reply."""
        transactional_id, producer, commit = request
        value = self._require_value(transactional_id)
        is_retry = self._end_is_retry(transactional_id, value, producer)
        if not is_retry:
            check_producer(value, producer)
        if value.state in PREPARED:
            # The current epoch belongs to the next transaction, which starts when all markers of this one are durable.
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if is_retry:
            if value.state != complete_state(commit=commit):
                raise Refused(ErrorCode.INVALID_TXN_STATE)
            if value.producer_epoch > EPOCH_LAST_OF_CLIENTS:
                raise Refused(ErrorCode.PRODUCER_FENCED)
            return TransactionOutcome(result=producer_of(value))
        if value.state != _ONGOING and commit:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        is_exhausted = value.producer_epoch >= EPOCH_LAST_OF_CLIENTS
        prepared = changed(
            value,
            now,
            state=prepare_state(commit=commit),
            producer_epoch=value.producer_epoch + 1,
            next_producer_id=require_producer_id(fresh_producer_id) if is_exhausted else -1,
            start_ms=value.start_ms if value.state == _ONGOING else now.wall_ms,
            client_transaction_version=VERSION_2,
        )
        self._soft_state(transactional_id).last_epoch = value.producer_epoch
        outcome = self._prepare_outcome(transactional_id, prepared, now)
        outcome.result = producer_of(complete_value(prepared, now))
        return outcome

    def _end_is_retry(self, transactional_id: str, value: TransactionLogValue, producer: Producer) -> bool:
        """Return whether this producer has ended the transaction already and no other producer has fenced it since."""
        if value.client_transaction_version < VERSION_2 or value.state in (TransactionState.EMPTY, _ONGOING):
            return False
        soft = self._soft_states.get(transactional_id)
        if soft is not None and soft.last_epoch not in (None, producer.epoch):
            return False
        if producer.producer_id == value.producer_id:
            return producer.epoch + 1 == value.producer_epoch
        return (
            producer == (value.previous_producer_id, EPOCH_LAST_OF_CLIENTS)
            and value.producer_epoch == 0
            and value.state not in PREPARED
        )

    def _prepare_outcome(
        self, transactional_id: str, prepared: TransactionLogValue, now: Moment
    ) -> TransactionOutcome[Any]:
        """Return the Prepare record and the delivery, or the Complete record if the transaction has no partitions."""
        ending = Ending.COMMITTED if prepared.state == TransactionState.PREPARE_COMMIT else Ending.ABORTED
        key = TransactionLogKey(transactional_id)
        if not prepared.partitions:
            return TransactionOutcome(records=[TransactionRecord(key, complete_value(prepared, now))], ending=ending)
        soft = self._soft_state(transactional_id)
        soft.delivery = self._new_delivery(transactional_id, prepared)
        soft.is_delivered = False
        return TransactionOutcome(records=[TransactionRecord(key, prepared)], deliveries=[soft.delivery], ending=ending)

    def has_outstanding_markers(self, transactional_id: str) -> bool:
        """Return whether the transaction is in a Prepare state: the next one cannot start before its Complete."""
        value = self.values.get(transactional_id)
        return value is not None and value.state in PREPARED

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
        completed = complete_value(prepared, now)
        return TransactionOutcome(records=[TransactionRecord(TransactionLogKey(transactional_id), completed)])

    def _new_delivery(self, transactional_id: str, prepared: TransactionLogValue) -> Delivery:
        """Return a delivery of the markers for a Prepare record, with the current coordinator epoch."""
        return Delivery(
            transactional_id=transactional_id,
            producer=producer_of(prepared),
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
                    is_version_2 = value.client_transaction_version >= VERSION_2
                    last_epoch = value.producer_epoch if is_version_2 else _NO_EPOCH
                    outcome = self._fence(transactional_id, value, now, last_epoch)
                    outcome.ending = Ending.TIMED_OUT
                    outcomes.append((transactional_id, outcome))
            elif value.state in PREPARED:
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
        epoch = min(value.producer_epoch + 1, EPOCH_MAX)
        prepared = changed(value, now, state=TransactionState.PREPARE_ABORT, producer_epoch=epoch)
        return self._prepare_outcome(transactional_id, prepared, now)

    # -- ListTransactions, metrics ------------------------------------------------------------

    def list_transactions(self, wanted: TransactionFilter, now: Moment) -> list[tuple[str, TransactionLogValue]]:
        """Return the transactional ids that match, with their state.

        :raises Refused: INVALID_REGULAR_EXPRESSION if the pattern is invalid.
        """
        ids = matching_topics(wanted.pattern, self.values) if wanted.pattern else tuple(self.values)
        found = [(transactional_id, self.values[transactional_id]) for transactional_id in ids]
        return [
            (transactional_id, value)
            for transactional_id, value in found
            if (not wanted.states or STATE_NAMES[value.state] in wanted.states)
            and (not wanted.producer_ids or value.producer_id in wanted.producer_ids)
            and (wanted.duration_ms < 0 or now.wall_ms - value.start_ms > wanted.duration_ms)
        ]

    def count_by_state(self) -> tuple[Counter[str], int | None]:
        """Return the number of ids per state, and the start time of the oldest transaction that has not ended."""
        counts = Counter(STATE_NAMES[value.state] for value in self.values.values())
        oldest_ms = min(
            (value.start_ms for value in self.values.values() if value.state in (_ONGOING, *PREPARED)), default=None
        )
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
