"""Requests to the transaction coordinator from messages, and messages from its results."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.groups.requests import OffsetCommit, OffsetResult, OffsetRow, OffsetTopic, Sender
from ottla.wire import ZERO_UUID
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


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
