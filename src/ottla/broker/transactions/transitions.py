"""How the value of a transactional id changes, and the checks before it. Pure functions on records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ottla.broker.coordinators.outcome import Moment, Producer
from ottla.broker.transactions.records import TransactionLogValue, TransactionState
from ottla.broker.transactions.requests import Codes
from ottla.model.errors import ErrorCode, Refused
from ottla.model.types import TopicPartition

#: the highest epoch that a client gets; the coordinator needs ``EPOCH_MAX`` to fence the producer with this epoch
EPOCH_LAST_OF_CLIENTS: Final = 32766
EPOCH_MAX: Final = 32767
#: client transaction version of KIP-890: each transaction has its own epoch
VERSION_2: Final = 2

#: commit or abort is decided, markers are missing. Kafka defines PREPARE_EPOCH_FENCE but never writes it to the log
PREPARED: Final = (
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)
STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}


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


def unknown_states(names: Iterable[str]) -> list[str]:
    """Return the names that are not those of a state."""
    known = set(STATE_NAMES.values())
    return [name for name in names if name not in known]


_COORDINATOR_RETRIABLE: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
NO_PRODUCER: Final = Producer(-1, -1)
_INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")


def producer_of(value: TransactionLogValue) -> Producer:
    return Producer(value.producer_id, value.producer_epoch)


def check_producer(value: TransactionLogValue, producer: Producer) -> None:
    """Raise Refused if the id has another producer id or another epoch."""
    if producer.producer_id != value.producer_id:
        raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.epoch != value.producer_epoch:
        raise Refused(ErrorCode.PRODUCER_FENCED)


def require_producer_id(producer_id: int | None) -> int:
    """Return the new producer id. Raise Refused if the caller has not allocated one."""
    if producer_id is None:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "a new producer id is needed and none was allocated: retry")
    return producer_id


def changed(value: TransactionLogValue, now: Moment, **changes: Any) -> TransactionLogValue:
    """Return the value with these changes. It keeps the previous producer id until the next change, for retries."""
    changes.setdefault("next_producer_id", -1)
    result = replace(value, previous_producer_id=-1, next_producer_epoch=-1, last_update_ms=now.wall_ms, **changes)
    if result.producer_id == value.producer_id:
        return result
    return replace(result, previous_producer_id=value.producer_id)


def prepare_state(*, commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT


def complete_state(*, commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def complete_value(prepared: TransactionLogValue, now: Moment) -> TransactionLogValue:
    """Return the value of the Complete record that follows a Prepare record."""
    state = complete_state(commit=prepared.state == TransactionState.PREPARE_COMMIT)
    if prepared.next_producer_id == -1:
        return changed(prepared, now, state=state, partitions=())
    epoch = max(prepared.next_producer_epoch, 0)
    return changed(
        prepared, now, state=state, partitions=(), producer_id=prepared.next_producer_id, producer_epoch=epoch
    )


def internal_topic_errors(partitions: Sequence[TopicPartition]) -> Codes:
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
