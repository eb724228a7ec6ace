"""Requests of transactions, with defaults that are right: a test names only what it is about."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

#: the last versions of clients that use one epoch for many transactions
INIT_V, ADD_V, OFFSETS_V, END_V, COMMIT_V, PRODUCE_V = 5, 3, 4, 4, 4, 11
#: AddPartitionsToTxn is a batch of transactions, sent by brokers, from here on
BATCH_FROM = 4
#: PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before these versions
INIT_FENCED_FROM, ADD_FENCED_FROM, OFFSETS_FENCED_FROM, END_FENCED_FROM = 4, 2, 2, 2

READ_COMMITTED = 1
_CONCURRENT_TRANSACTIONS = 51

Places = Mapping[str, Sequence[int]]


class Owner(NamedTuple):
    """Who has a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int


def init(transactional_id: str | None, timeout_ms: int = 60_000, **fields: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=timeout_ms, **fields)


def init_again(owner: Owner, timeout_ms: int = 60_000) -> InitProducerIdRequest:
    """From one who had the id before (KIP-360)."""
    return init(owner.transactional_id, timeout_ms, producer_id=owner.producer_id, producer_epoch=owner.epoch)


def add(owner: Owner, places: Places) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=owner.transactional_id, v3_and_below_producer_id=owner.producer_id,
        v3_and_below_producer_epoch=owner.epoch, v3_and_below_topics=_topics(places),
    )  # fmt: skip


def add_batch(*transactions: tuple[Owner, Places], verify_only: bool = False) -> AddPartitionsToTxnRequest:
    """As brokers say it."""
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=owner.transactional_id, producer_id=owner.producer_id, producer_epoch=owner.epoch,
                verify_only=verify_only, topics=_topics(places),
            )
            for owner, places in transactions
        ]
    )  # fmt: skip


def _topics(places: Places) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in places.items()]


def add_offsets(owner: Owner, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=owner.transactional_id, producer_id=owner.producer_id, producer_epoch=owner.epoch,
        group_id=group,
    )  # fmt: skip


def end(owner: Owner, *, commit: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=owner.transactional_id, producer_id=owner.producer_id, producer_epoch=owner.epoch,
        committed=commit,
    )  # fmt: skip


def txn_commit(
    owner: Owner, group: str, offsets: Mapping[tuple[str, int], int], generation: int = -1, member: str = "",
    instance: str | None = None, metadata: str | None = "",
) -> TxnOffsetCommitRequest:  # fmt: skip
    return TxnOffsetCommitRequest(
        transactional_id=owner.transactional_id, group_id=group, producer_id=owner.producer_id,
        producer_epoch=owner.epoch, generation_id=generation, member_id=member, group_instance_id=instance,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, number), offset in offsets.items()
        ],
    )  # fmt: skip


def write(
    owner: Owner, topic: str | bytes, sequence: int = 0, *values: bytes, partition: int = 0, acks: int = -1,
    transactional_id: str | None = "of the owner", transactional: bool = True, **fields: Any,
) -> ProduceRequest:  # fmt: skip
    """One batch of the owner; what it says of itself can be said wrongly."""
    batch = batch_of(
        *(values or (b"v",)), producer_id=owner.producer_id, producer_epoch=owner.epoch, base_sequence=sequence,
        transactional=transactional, **fields,
    )  # fmt: skip
    named = owner.transactional_id if transactional_id == "of the owner" else transactional_id
    return produce_request((topic, partition, batch), acks=acks, transactional_id=named)


def markers(*rows: tuple[Owner, bool, Places], coordinator_epoch: int = 0) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=owner.producer_id, producer_epoch=owner.epoch, transaction_result=commit,
                coordinator_epoch=coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=numbers) for name, numbers in places.items()
                ],
            )
            for owner, commit, places in rows
        ]
    )  # fmt: skip


def producers_of(places: Places) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=numbers) for name, numbers in places.items()]
    )


def list_offsets(topic: str, timestamp: int, isolation: int = READ_COMMITTED) -> ListOffsetsRequest:
    row = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[row])]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


# -- steps that many tests begin with ---------------------------------------------------------------------------------


def begin(client: RawClient, transactional_id: str, timeout_ms: int = 60_000) -> Owner:
    """Get the id; whoever had it is fenced, and waited for."""
    answer = until_free(client, lambda: client.ask(init(transactional_id, timeout_ms), INIT_V))
    assert answer.error_code == 0, answer
    return Owner(transactional_id, answer.producer_id, answer.producer_epoch)


def until_free(client: RawClient, ask: Any) -> Any:
    """Ask again while the transaction before is being ended."""
    deadline = time.monotonic() + 60
    while (answer := ask()).error_code == _CONCURRENT_TRANSACTIONS:
        assert time.monotonic() < deadline, "the transaction before does not end"
        time.sleep(0.01)
    return answer


def await_settled(client: RawClient, transactional_id: str) -> str:
    """The state of the id, when it is none of those that pass."""
    deadline = time.monotonic() + 60
    while True:
        (told,) = client.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
        if not told.transaction_state.startswith("Prepare") and told.error_code not in (14, 15, 16):
            return str(told.transaction_state)
        assert time.monotonic() < deadline, told
        time.sleep(0.01)


def await_transactions(client: RawClient) -> None:
    """The topic of transactions is made when somebody asks for it; after a start it is loaded first."""
    deadline = time.monotonic() + 60
    while (
        client.ask(FindCoordinatorRequest(key="any", key_type=1), 1).error_code
        or client.ask(DescribeTransactionsRequest(transactional_ids=["nobody"]), 0).transaction_states[0].error_code
        != 105
        # Kafka fetches producer ids for the first that asks.
        or client.ask(init(None), INIT_V).error_code
    ):
        assert time.monotonic() < deadline, "there is no transaction coordinator"
        time.sleep(0.05)
