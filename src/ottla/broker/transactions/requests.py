"""Requests to the transaction coordinator and their results, without the format of the wire protocol.

The result of a request is a producer, an error code, or an error code for each partition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ottla.broker.coordinators.outcome import Producer
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

Codes = dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """InitProducerId with a transactional id."""

    transactional_id: str
    #: the producer that the client was before; -1 and -1 if it is new
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int
    two_phase_commit: bool = False
    keep_prepared: bool = False


class EndTransaction(NamedTuple):
    """EndTxn."""

    transactional_id: str
    producer: Producer
    commit: bool


class TransactionFilter(NamedTuple):
    """Which transactions are listed. Empty collections, a negative duration and no pattern match all."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    pattern: str | None = None
