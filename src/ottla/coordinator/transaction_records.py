"""The records of ``__transaction_state``, and what a handler of transactions decides. Kafka's own keys and values.

A key is an int16 version 0 and the transactional id. A value starts with an int16 version: 0 is written, or 1 (flexible)
when it must carry what only transactions of version 2 have; both are read. A null value removes the id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ottla.coordinator.outcome import Producer, Ticket
from ottla.model.types import TopicPartition
from ottla.wire import Message


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


class TransactionLogKey(NamedTuple):
    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """All that is durable of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    #: null in the log when there are none
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
