"""Offsets that are committed in transactions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from clients import LIBRARIES, Confluent
from reading import committed_offsets, create_topic

from ottla.model.errors import ErrorCode
from ottla.testing import BrokerProcess
from ottla.testing.history import Place
from ottla.testing.raw import RawClient
from ottla.wire import Message
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

pytestmark = [pytest.mark.broker, pytest.mark.client]

#: the last versions of clients that use one epoch for many transactions
_INIT_V, _OFFSETS_V, _COMMIT_V, _END_V = 5, 4, 4, 4


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_first_group_of_a_broker_can_commit_in_a_transaction(
    fresh_ottla_broker: BrokerProcess, library: str
) -> None:  # fmt: skip
    (place,) = create_topic(fresh_ottla_broker.bootstrap, "work", 1)
    connect = LIBRARIES[library]
    with closing(connect(fresh_ottla_broker.bootstrap, "worker", "worker", 60_000)) as client:
        client.begin()
        client.send(place, "done")
        client.offsets("first-group", place, 7)
        client.end(commit=True)


def test_offsets_that_arrive_late_are_not_committed_with_a_later_transaction(
    fresh_ottla_broker: BrokerProcess,
) -> None:
    bootstrap = fresh_ottla_broker.bootstrap
    (place,) = create_topic(bootstrap, "work", 1)
    committed_offsets(bootstrap, "group", [place])
    Confluent(bootstrap, "worker", "first", 60_000).close()
    with RawClient(bootstrap) as given_up, RawClient(bootstrap) as client:
        made = client.ask(InitProducerIdRequest(transactional_id="worker", transaction_timeout=60_000), _INIT_V)
        worker = {
            "transactional_id": "worker", "producer_id": made.producer_id, "producer_epoch": made.producer_epoch,
        }  # fmt: skip
        add_offsets = AddOffsetsToTxnRequest(group_id="group", **worker)
        # The first transaction gives up on a request of its own, and is aborted before that request arrives.
        _do(client, add_offsets, _OFFSETS_V)
        _do(client, EndTxnRequest(committed=False, **worker), _END_V)
        _do(client, add_offsets, _OFFSETS_V)
        client.ask(_commit_offset(worker, place, 10), _COMMIT_V)
        given_up.ask(_commit_offset(worker, place, 6), _COMMIT_V)
        _do(client, EndTxnRequest(committed=True, **worker), _END_V)
    assert committed_offsets(bootstrap, "group", [place]) == {place: 10}


def _do(client: RawClient, request: Message, version: int) -> None:
    """Ask until the transaction before this one has ended."""
    deadline = time.monotonic() + 60
    while (code := client.ask(request, version).error_code) == ErrorCode.CONCURRENT_TRANSACTIONS:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert code == ErrorCode.NONE


def _commit_offset(worker: Mapping[str, Any], place: Place, offset: int) -> TxnOffsetCommitRequest:
    row = TxnOffsetCommitRequestPartition(partition_index=place.partition, committed_offset=offset)
    topic = TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])
    return TxnOffsetCommitRequest(group_id="group", topics=[topic], **worker)
