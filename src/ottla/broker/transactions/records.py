"""The records of ``__transaction_state`` with Kafka's keys and values, and the result of an operation on transactions.

A key is an int16 version 0 and the transactional id. A value starts with an int16 version. Ottla writes version 1
(flexible) if the value has a field that only transactions of version 2 use, else version 0, and reads both. A null
value is a tombstone: it deletes the transactional id.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import IntEnum, StrEnum
from itertools import groupby
from typing import Final, NamedTuple

from ottla.broker.coordinators.outcome import Outcome, Producer, R
from ottla.model.types import TopicPartition
from ottla.wire import Message, Struct, WireError, decode, encode
from ottla.wire.schema import Array, field


class TransactionState(IntEnum):
    """The states of a transaction, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class Ending(StrEnum):
    """How a transaction ended. Only metrics distinguish TIMED_OUT from ABORTED."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"


class TransactionLogKey(NamedTuple):
    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """The durable state of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    #: sorted; in the state Empty there are none, and the log has null
    partitions: tuple[TopicPartition, ...] = ()
    last_update_ms: int
    #: when the transaction started; -1 in the state Empty
    start_ms: int = -1
    # The following are tagged fields of version 1.
    previous_producer_id: int = -1
    next_producer_id: int = -1
    #: 0 or 1: the protocol before KIP-890; 2: KIP-890
    client_transaction_version: int = 0
    next_producer_epoch: int = -1


class TransactionRecord(NamedTuple):
    """One record. Without a value it is a tombstone, which deletes the transactional id."""

    key: TransactionLogKey
    value: TransactionLogValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The markers that end a transaction: one per partition. Each append is retried until the marker is durable."""

    transactional_id: str
    producer: Producer
    #: leader epoch of the partition of ``__transaction_state``; a log rejects a marker with an older epoch
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    #: 2: the epoch of the markers is higher than that of the records, so it tells this transaction from the next one
    transaction_version: int = 0


@dataclass(slots=True)
class TransactionOutcome(Outcome[R]):
    """What an operation on a transactional id decided."""

    records: list[TransactionRecord] = dataclass_field(default_factory=list)
    #: the runtime starts to append these markers when the records are durable
    deliveries: list[Delivery] = dataclass_field(default_factory=list)
    #: set if the records decide whether a transaction commits or aborts
    ending: Ending | None = None


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_transaction(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the bytes of the key and of the value. The value is None for a tombstone.

    :raises ValueError: if the transactional id or a number is too large for its field.
    """
    transactional_id = record.key.transactional_id.encode()
    value = record.value
    try:
        key = _KEY.pack(_KEY_VERSION, len(transactional_id)) + transactional_id
        if value is None:
            return key, None
        message = _Value(
            producer_id=value.producer_id,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            producer_epoch=value.producer_epoch,
            next_producer_epoch=value.next_producer_epoch,
            timeout_ms=value.timeout_ms,
            state=value.state,
            partitions=None if value.state == TransactionState.EMPTY else _by_topic(value.partitions),
            last_update_ms=value.last_update_ms,
            start_ms=value.start_ms,
            client_transaction_version=value.client_transaction_version,
        )
        version = 1 if _needs_tags(value) else 0
        return key, _INT16.pack(version) + encode(message, version)
    except struct.error as error:
        raise ValueError(f"a value of {record.key} does not fit its field: {error}") from None


def decode_transaction(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Return the record, or None if the version of the key is unknown.

    :raises WireError: if the bytes are damaged, or if the version of the value or the state is unknown.
    """
    try:
        (version,) = _INT16.unpack_from(key)
        if version != _KEY_VERSION:
            return None
        _, length = _KEY.unpack_from(key)
        if length < 0 or len(key) != _KEY.size + length:
            raise WireError("a key of a transaction is not as long as it says")
        decoded = TransactionLogKey(key[_KEY.size :].decode())
        if value is None:
            return TransactionRecord(decoded, None)
        (version,) = _INT16.unpack_from(value)
    except struct.error:
        raise WireError("a record of a transaction is cut short") from None
    except UnicodeDecodeError as error:
        raise WireError(f"a transactional id is not UTF-8: {error}") from None
    message, _ = decode(_Value, version, value, _INT16.size)
    try:
        state = TransactionState(message.state)
    except ValueError:
        raise WireError(f"{message.state} is not the state of a transaction") from None
    return TransactionRecord(decoded, _from_message(message, state))


class _Partitions(Struct):
    topic: str = field("string", (0, 1), default="")
    partition_ids: Sequence[int] = field(Array("int32"), (0, 1), default=())


class _Value(Message, versions=(0, 1), flexible_from=1):
    """The schema of Kafka's TransactionLogValue, with the fields in Kafka's order."""

    producer_id: int = field("int64", (0, 1), default=0)
    previous_producer_id: int = field("int64", (1, 1), tag=0, tag_versions=(1, 1), default=-1)
    next_producer_id: int = field("int64", (1, 1), tag=1, tag_versions=(1, 1), default=-1)
    producer_epoch: int = field("int16", (0, 1), default=0)
    next_producer_epoch: int = field("int16", (1, 1), tag=3, tag_versions=(1, 1), default=-1)
    timeout_ms: int = field("int32", (0, 1), default=0)
    state: int = field("int8", (0, 1), default=0)
    partitions: Sequence[_Partitions] | None = field(Array(_Partitions), (0, 1), nullable_versions=(0, 1), default=())
    last_update_ms: int = field("int64", (0, 1), default=0)
    start_ms: int = field("int64", (0, 1), default=0)
    client_transaction_version: int = field("int16", (1, 1), tag=2, tag_versions=(1, 1), default=0)


_INT16: Final = struct.Struct(">h")
#: version, length of the transactional id
_KEY: Final = struct.Struct(">hh")
_KEY_VERSION: Final = 0


def _needs_tags(value: TransactionLogValue) -> bool:
    """Return whether a tagged field differs from its default, so that the value needs version 1."""
    return (
        value.client_transaction_version > 0
        or value.previous_producer_id != -1
        or value.next_producer_id != -1
        or value.next_producer_epoch != -1
    )


def _by_topic(partitions: tuple[TopicPartition, ...]) -> list[_Partitions]:
    return [
        _Partitions(topic=topic, partition_ids=[name.partition for name in of_topic])
        for topic, of_topic in groupby(partitions, lambda name: name.topic)
    ]


def _from_message(message: _Value, state: TransactionState) -> TransactionLogValue:
    partitions = sorted(
        TopicPartition(topic.topic, number) for topic in message.partitions or () for number in topic.partition_ids
    )
    return TransactionLogValue(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.timeout_ms,
        state=state,
        partitions=tuple(partitions),
        last_update_ms=message.last_update_ms,
        start_ms=message.start_ms,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        client_transaction_version=message.client_transaction_version,
        next_producer_epoch=message.next_producer_epoch,
    )
