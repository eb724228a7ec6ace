"""Requests to the transaction coordinator from messages, and messages from its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.groups.requests import OffsetCommit, OffsetResult, OffsetRow, OffsetTopic, Sender
from ottla.broker.transactions.records import TransactionLogValue
from ottla.broker.transactions.requests import EndTransaction, InitProducer, TransactionFilter
from ottla.broker.transactions.transitions import STATE_NAMES
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import ZERO_UUID
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
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
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: request versions from which on clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH
_INIT_FENCED_FROM = 4
_ADD_FENCED_FROM = 2
_END_FENCED_FROM = 2


def read_init(request: InitProducerIdRequest) -> InitProducer:
    """Return an InitProducerId request with a transactional id."""
    assert request.transactional_id is not None, "a producer without a transactional id has no shard"
    return InitProducer(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        timeout_ms=request.transaction_timeout,
        two_phase_commit=request.enable2_pc,
        keep_prepared=request.keep_prepared_txn,
    )


def init_reply(result: Producer | int, version: int) -> InitProducerIdResponse:
    """Return the reply to an InitProducerId request, with a producer or an error code."""
    if isinstance(result, Producer):
        return InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
    code = _translate_fenced(result, version, _INIT_FENCED_FROM)
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def add_partitions_reply(codes: Mapping[TopicPartition, int], version: int) -> AddPartitionsToTxnResponse:
    """Return the reply to an AddPartitionsToTxn request of a client."""
    known = {name: _translate_fenced(code, version, _ADD_FENCED_FROM) for name, code in codes.items()}
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(known))


def added_partitions(transactional_id: str, codes: Mapping[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    """Return the reply to an AddPartitionsToTxn request of a broker, for one transaction."""
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=_by_topic(codes))
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def _by_topic(codes: Mapping[TopicPartition, int]) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, code in codes.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=code)
        topics.setdefault(name.topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results) for topic, results in topics.items()
    ]


def add_offsets_reply(code: int, version: int) -> AddOffsetsToTxnResponse:
    """Return the reply to an AddOffsetsToTxn request."""
    return AddOffsetsToTxnResponse(error_code=_translate_fenced(code, version, _ADD_FENCED_FROM))


def read_end(request: EndTxnRequest) -> EndTransaction:
    """Return an EndTxn request."""
    producer = Producer(request.producer_id, request.producer_epoch)
    return EndTransaction(request.transactional_id, producer, request.committed)


def end_reply(result: Producer | int, version: int) -> EndTxnResponse:
    """Return the reply to an EndTxn request, with the producer of the next transaction or an error code."""
    if isinstance(result, Producer):
        return EndTxnResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
    return EndTxnResponse(error_code=_translate_fenced(result, version, _END_FENCED_FROM))


def _translate_fenced(code: int, version: int, known_from: int) -> int:
    """Return the code, with INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions below ``known_from``."""
    if code == ErrorCode.PRODUCER_FENCED and version < known_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def read_txn_offset_commit(request: TxnOffsetCommitRequest, client: Client) -> OffsetCommit:
    """Return a TxnOffsetCommit request."""
    return OffsetCommit(
        group_id=request.group_id,
        sender=Sender(request.member_id, request.group_instance_id, request.generation_id),
        client=client,
        topics=[
            OffsetTopic(
                topic.name,
                ZERO_UUID,
                [
                    OffsetRow(
                        row.partition_index,
                        row.committed_offset,
                        row.committed_leader_epoch,
                        row.committed_metadata or "",
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        producer=Producer(request.producer_id, request.producer_epoch),
    )


def txn_offset_commit_reply(results: Iterable[OffsetResult]) -> TxnOffsetCommitResponse:
    """Return the reply to a TxnOffsetCommit request, with one entry per topic."""
    topics: dict[str, list[TxnOffsetCommitResponsePartition]] = {}
    for name, _, partition, code in results:
        row = TxnOffsetCommitResponsePartition(partition_index=partition, error_code=code)
        topics.setdefault(name, []).append(row)
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name=name, partitions=rows) for name, rows in topics.items()]
    )


def described_transaction(transactional_id: str, value: TransactionLogValue | None) -> DescribedTransaction:
    """Return a transaction as DescribeTransactions shows it."""
    if not transactional_id:
        return DescribedTransaction(error_code=ErrorCode.INVALID_REQUEST)
    if value is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribedTransaction(transactional_id=transactional_id, error_code=code)
    topics: dict[str, list[int]] = {}
    for name in value.partitions:
        topics.setdefault(name.topic, []).append(name.partition)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[value.state],
        transaction_timeout=value.timeout_ms,
        transaction_start_time=value.start_ms,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        topics=[TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
    )


def read_filter(request: ListTransactionsRequest) -> TransactionFilter:
    """Return which transactions a ListTransactions request asks for."""
    return TransactionFilter(
        set(request.state_filters),
        set(request.producer_id_filters),
        request.duration_filter,
        request.transactional_id_pattern,
    )


def listed_transaction(transactional_id: str, value: TransactionLogValue) -> ListedTransaction:
    """Return a transaction as ListTransactions shows it."""
    return ListedTransaction(
        transactional_id=transactional_id, producer_id=value.producer_id, transaction_state=STATE_NAMES[value.state]
    )
