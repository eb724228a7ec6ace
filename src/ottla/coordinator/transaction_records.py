"""The records of ``__transaction_state``, and what a handler of transactions decides. Kafka's own keys and values.

A key is an int16 version 0 and the transactional id. A value starts with an int16 version: 0 is written, or 1
(flexible) when it must carry what only transactions of version 2 have; both are read. A null value removes the id.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import groupby
from typing import ClassVar, Final, NamedTuple

from ottla.coordinator.outcome import Producer, Ticket
from ottla.model.types import TopicPartition
from ottla.wire import Message, Struct, WireError, decode, encode
from ottla.wire.schema import Array, Field


class TransactionState(IntEnum):
    """Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class Ending(StrEnum):
    """How a transaction ended; only metrics tell the last from the second."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"


class TransactionLogKey(NamedTuple):
    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """All that is durable of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    #: in order; an id in the state Empty has none, and null in the log
    partitions: tuple[TopicPartition, ...] = ()
    last_update_ms: int
    start_ms: int = -1
    # What version 1 adds in tagged fields
    previous_producer_id: int = -1
    next_producer_id: int = -1
    #: 0 or 1: the old protocol; 2: KIP-890
    client_transaction_version: int = 0
    next_producer_epoch: int = -1


class TransactionRecord(NamedTuple):
    """One change. Without a value the id is forgotten."""

    key: TransactionLogKey
    value: TransactionLogValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Markers that end a transaction: one for each of its partitions, to be written until all are durable."""

    transactional_id: str
    producer: Producer
    #: the leader epoch of the coordinator's own partition: a marker of an older coordinator is refused
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class TransactionOutcome:
    """What a handler decided: records are appended as one batch and replayed, then replies leave and markers go out."""

    records: list[TransactionRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Message]] = field(default_factory=list)
    #: begun when the records are durable
    deliveries: list[Delivery] = field(default_factory=list)
    #: of the transaction whose outcome is settled by the records
    ending: Ending | None = None


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_transaction(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key, and the value or None for a tombstone.

    :raises ValueError: if the id or a number is too large for its field.
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
    """None for a key of a version that no Kafka wrote so far.

    :raises WireError: if the bytes are damaged, or the value is of an unknown version or in an unknown state.
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
    __slots__ = ("partition_ids", "topic")

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", "string", (0, 1), default=""),
        Field("partition_ids", Array("int32"), (0, 1), default=()),
    )

    def __init__(self, *, topic: str = "", partition_ids: Sequence[int] = ()) -> None:
        self.topic = topic
        self.partition_ids = partition_ids


@dataclass(slots=True, kw_only=True)
class _Value(Message):
    """Kafka's TransactionLogValue, with its fields in its order."""

    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("producer_id", "int64", (0, 1), default=0),
        Field("previous_producer_id", "int64", (1, 1), tag=0, tag_versions=(1, 1), default=-1),
        Field("next_producer_id", "int64", (1, 1), tag=1, tag_versions=(1, 1), default=-1),
        Field("producer_epoch", "int16", (0, 1), default=0),
        Field("next_producer_epoch", "int16", (1, 1), tag=3, tag_versions=(1, 1), default=-1),
        Field("timeout_ms", "int32", (0, 1), default=0),
        Field("state", "int8", (0, 1), default=0),
        Field("partitions", Array(_Partitions), (0, 1), nullable_versions=(0, 1), default=()),
        Field("last_update_ms", "int64", (0, 1), default=0),
        Field("start_ms", "int64", (0, 1), default=0),
        Field("client_transaction_version", "int16", (1, 1), tag=2, tag_versions=(1, 1), default=0),
    )

    producer_id: int = 0
    previous_producer_id: int = -1
    next_producer_id: int = -1
    producer_epoch: int = 0
    next_producer_epoch: int = -1
    timeout_ms: int = 0
    state: int = 0
    partitions: Sequence[_Partitions] | None = ()
    last_update_ms: int = 0
    start_ms: int = 0
    client_transaction_version: int = 0


_INT16: Final = struct.Struct(">h")
#: version and length of the transactional id
_KEY: Final = struct.Struct(">hh")
_KEY_VERSION: Final = 0


def _needs_tags(value: TransactionLogValue) -> bool:
    return (
        value.client_transaction_version > 0
        or value.previous_producer_id != -1
        or value.next_producer_id != -1
        or value.next_producer_epoch != -1
    )


def _by_topic(partitions: tuple[TopicPartition, ...]) -> list[_Partitions]:
    return [
        _Partitions(topic=topic, partition_ids=[each.partition for each in those])
        for topic, those in groupby(partitions, lambda each: each.topic)
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
