"""Decide whether a transactional batch may be appended: the coordinator has its partition in the transaction (KIP-890).

For the first batch of a transaction in a partition, ``add`` asks the coordinator, which is this broker or another one
(`transaction_checks.py`), and ``check`` raises the error for a batch that it did not allow. For later batches the
producer state of the partition is enough.
"""

from __future__ import annotations

from functools import partial
from struct import Struct

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.coordinators.pending_reply import PendingReply
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.partition import Partition
from ottla.broker.transactions.checks import RequestChecks, Term, TransactionChecks, term_of
from ottla.broker.transactions.replies import added_partitions
from ottla.broker.transactions.runtime import TransactionRuntime
from ottla.broker.transactions.transitions import write_error
from ottla.model.batch import HEADER_BYTES, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.types import FrameBuffer, TopicPartition
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse

#: first version of Produce in which a batch adds its partition to the transaction (KIP-890)
IMPLICIT_FROM = 12
#: first version of Produce whose clients know TRANSACTION_ABORTABLE
_ABORTABLE_FROM = 11
_PRODUCER_AT = 43
_unpack_producer = Struct(">qh").unpack_from

#: partitions in which batches of a request begin a transaction, by producer
Beginnings = dict[Producer, dict[TopicPartition, Term]]


class TransactionalBatches:
    """Asks coordinators about the transactional batches of Produce requests."""

    def __init__(self, metadata: ClusterMetadata, checks: TransactionChecks, transactions: TransactionRuntime) -> None:
        self._metadata = metadata
        self._checks = checks
        self._transactions = transactions

    def other_coordinator(self, transactional_id: str) -> int | None:
        """Return the broker that coordinates this id; None if it is this broker, or if there is none now."""
        if not self._metadata.view.brokers:
            return None
        return self._checks.coordinator_of(self._transactions.partition_for(transactional_id))

    async def add(
        self,
        checks: RequestChecks,
        coordinator: int | None,
        transactional_id: str,
        beginnings: Beginnings,
        version: int,
    ) -> None:
        """Add the partitions to the transaction, and wait until the coordinator has stored that.

        ``coordinator`` is the broker that coordinates the transaction, None for this broker. ``check`` finds an error
        of the coordinator in ``checks``. The state of this broker's own coordinator is not enough: it has partitions
        that are in its log and not stored yet, and another coordinator may never have them.
        """
        for producer, partitions in beginnings.items():
            if coordinator is None:
                await self._transactions.wait_for_markers(transactional_id)
                add = partial(self._add_here, transactional_id, producer, list(partitions))
                await checks.ask_here(transactional_id, producer, partitions, add)
            else:
                verify_only = version < IMPLICIT_FROM
                await checks.ask(coordinator, transactional_id, producer, partitions, verify_only=verify_only)

    async def _add_here(self, transactional_id: str, producer: Producer, partitions: list[TopicPartition]) -> object:
        answer = self._transactions.run(
            transactional_id,
            lambda shard, now: shard.add_partitions_of(transactional_id, producer, partitions, now, verify_only=False),
            lambda codes: added_partitions(transactional_id, codes),
            lambda code: AddPartitionsToTxnResponse(error_code=code),
        )
        return await answer if isinstance(answer, PendingReply) else answer

    def check(
        self, partition: Partition, transactional_id: str, buffer: FrameBuffer, start: int, end: int, *, version: int
    ) -> None:
        """Raise Refused if the coordinator did not add the partition to the transaction of this batch.

        Call it immediately before each attempt to append the batch.
        """
        if end - start < HEADER_BYTES:
            return  # Log.append raises the error
        header = read_header(buffer, start)
        if not header.attributes & TRANSACTIONAL:
            return
        if is_in_transaction(partition, buffer, start, end):
            return
        producer = Producer(header.producer_id, header.producer_epoch)
        code, is_here = ErrorCode.NONE, self.other_coordinator(transactional_id) is None
        if is_here:
            code = self._verify_here(transactional_id, producer, partition.name)
        if not code and (version >= IMPLICIT_FROM or not is_here):
            code = self._checks.verdict(partition.name, producer, term_of(partition))
        if code:
            answered = write_error(code, knows_abortable=version >= _ABORTABLE_FROM, adds=version >= IMPLICIT_FROM)
            raise Refused(answered, "the transaction does not expect this batch")

    def _verify_here(self, transactional_id: str, producer: Producer, name: TopicPartition) -> ErrorCode:
        try:
            return self._transactions.shard(transactional_id).verify(transactional_id, producer, name)
        except KafkaError as error:
            return ErrorCode(error.code)


def is_in_transaction(partition: Partition, buffer: FrameBuffer, start: int, end: int) -> bool:
    """Return whether the partition knows the batch's transaction; also True for bytes that are no batch."""
    if end - start < HEADER_BYTES:
        return True
    producer_id, epoch = _unpack_producer(buffer, start + _PRODUCER_AT)
    entry = partition.log.producers.entries.get(producer_id)
    return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch


def begun_by(partition: Partition, buffer: FrameBuffer, start: int, end: int) -> Producer | None:
    """Return the producer of a batch that begins a transaction in the partition; None if the batch does not."""
    if is_in_transaction(partition, buffer, start, end):
        return None
    header = read_header(buffer, start)
    return Producer(header.producer_id, header.producer_epoch) if header.attributes & TRANSACTIONAL else None
