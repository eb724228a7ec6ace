"""The transactions of a cluster, from its coordinators and from the leaders of partitions.

Coordinators know transactional ids: the producer of each, the state of its transaction, and the partitions without a
marker. Leaders know producers: which of them have records without a marker. A transaction hangs if it is open at a
leader and unknown to its coordinator: it never ends, and read_committed consumers cannot read beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ottla.admin.client import AdminClient, nodes_of
from ottla.admin.error_codes import TryAgain, check, failure_of
from ottla.admin.failure import Failure, NotFound
from ottla.admin.outages import TRANSACTIONS_TOPIC, incomplete_list, without_leader
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.model.errors import ErrorCode
from ottla.model.figures import format_first
from ottla.model.printable import shown
from ottla.model.types import TopicPartition
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.list_transactions import ListTransactionsRequest
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

#: partitions in one request
_PARTITIONS_MAX = 500
_DURATION_FROM, _PATTERN_FROM = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(TransactionListing):
    """A transactional id as its coordinator describes it."""

    producer_epoch: int
    timeout_ms: int
    #: None while no transaction is open
    started_ms: int | None
    #: partitions without a marker
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Records of one producer in one partition that have no marker yet."""

    name: TopicPartition
    leader: Node
    producer_id: int
    producer_epoch: int
    #: of the producer's last marker here; None before the first
    coordinator_epoch: int | None
    start_offset: int
    #: of the producer's last record here
    last_timestamp: int

    def is_same(self, other: OpenTransaction) -> bool:
        """Return whether this is the same transaction; more records may have been added to it."""
        return (self.name, self.producer_id, self.start_offset) == (other.name, other.producer_id, other.start_offset)


class Transactions:
    """The transactions of one cluster."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    # At the coordinators

    def list_ids(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the ids at all coordinators that pass all filters. An empty filter passes all.

        :raises ValueError: if the cluster does not understand the pattern.
        """
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producer_ids,
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        version_min = _PATTERN_FROM if pattern is not None else 0 if longer_than_ms is None else _DURATION_FROM
        return self._client.retry_transient(lambda: self._list_ids(request, version_min))

    def _list_ids(self, request: ListTransactionsRequest, version_min: int) -> list[TransactionListing]:
        listings = []
        for node in self._client.brokers():
            answer = self._client.ask(node, request, version_min)
            if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                pattern = request.transactional_id_pattern
                raise ValueError(f"{pattern!r} is not a regular expression in RE2 syntax, which the cluster expects")
            check(answer.error_code, f"transactions of {node}")
            listings += [
                TransactionListing(
                    transactional_id=row.transactional_id,
                    producer_id=row.producer_id,
                    state=row.transaction_state,
                    coordinator=node,
                )
                for row in answer.transaction_states
            ]
        return sorted(listings, key=lambda listing: listing.transactional_id)

    def missing_ids(self) -> list[Failure]:
        """Return why a list of ids is not complete: no broker lists the ids of a coordinator that is offline."""
        offline = without_leader(self._client.topics().get(TRANSACTIONS_TOPIC))
        return [incomplete_list("transactional ids", TRANSACTIONS_TOPIC, offline)] if offline else []

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, Transaction | None]:
        """Return each of these ids; None if its coordinator does not know it."""
        wanted = list(dict.fromkeys(transactional_ids))
        return self._client.retry_transient(lambda: self._describe(wanted))

    def _describe(self, wanted: Sequence[str]) -> dict[str, Transaction | None]:
        coordinators = self._client.coordinators(CoordinatorType.TRANSACTION, wanted)
        described: dict[str, Transaction | None] = {}
        for node in dict.fromkeys(coordinators.values()):
            ids = [one for one in wanted if coordinators[one] == node]
            answer = self._client.ask(node, DescribeTransactionsRequest(transactional_ids=ids))
            for row in answer.transaction_states:
                described[row.transactional_id] = None
                if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    continue
                check(row.error_code, f"transaction {shown(row.transactional_id)}")
                names = (TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions)
                described[row.transactional_id] = Transaction(
                    transactional_id=row.transactional_id,
                    coordinator=node,
                    producer_id=row.producer_id,
                    producer_epoch=row.producer_epoch,
                    state=row.transaction_state,
                    timeout_ms=row.transaction_timeout,
                    started_ms=row.transaction_start_time if row.transaction_start_time >= 0 else None,
                    partitions=tuple(sorted(names)),
                )
        return {one: described.get(one) for one in wanted}

    # At the leaders

    def find_leaders(
        self, topics: Sequence[str] | None = None
    ) -> tuple[dict[TopicPartition, Node], list[TopicPartition]]:
        """Return the leader of each partition of these topics, or of all, and the partitions without a leader."""
        metadata = self._client.metadata(topics)
        nodes = nodes_of(metadata)
        leaders: dict[TopicPartition, Node] = {}
        leaderless = []
        for topic in metadata.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name or "", row.partition_index)
                if row.leader_id in nodes:
                    leaders[name] = nodes[row.leader_id]
                else:
                    leaderless.append(name)
        return leaders, sorted(leaderless)

    def find_open_in(self, name: TopicPartition) -> list[OpenTransaction]:
        """Return the open transactions of one partition. Raise NotFound if it does not exist."""
        return self._client.retry_transient(lambda: self.find_open({name: self._find_leader(name)}))

    def _find_leader(self, name: TopicPartition) -> Node:
        leaders, leaderless = self.find_leaders([name.topic])
        if name in leaderless:
            raise TryAgain(f"{shown(str(name))} has no leader; see 'ottla topic describe {shown(name.topic)}'")
        if name not in leaders:
            raise NotFound(f"{shown(str(name))} does not exist; see 'ottla topic describe {shown(name.topic)}'")
        return leaders[name]

    def find_open(self, leaders: dict[TopicPartition, Node]) -> list[OpenTransaction]:
        """Return all open transactions in these partitions. A partition that was deleted meanwhile has none."""
        found: list[OpenTransaction] = []
        for node in sorted(set(leaders.values())):
            names = sorted(name for name, leader in leaders.items() if leader == node)
            for start in range(0, len(names), _PARTITIONS_MAX):
                found += self._find_open_at(node, names[start : start + _PARTITIONS_MAX])
        return sorted(found, key=lambda one: (one.name, one.start_offset))

    def _find_open_at(self, node: Node, names: Iterable[TopicPartition]) -> Iterator[OpenTransaction]:
        numbers: dict[str, list[int]] = {}
        for name in names:
            numbers.setdefault(name.topic, []).append(name.partition)
        topics = [TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in numbers.items()]
        answer = self._client.ask(node, DescribeProducersRequest(topics=topics))
        for topic in answer.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name, row.partition_index)
                if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                check(row.error_code, f"producers of {shown(str(name))}", row.error_message)
                for producer in row.active_producers:
                    if producer.current_txn_start_offset >= 0:
                        epoch = producer.coordinator_epoch
                        yield OpenTransaction(
                            name=name,
                            leader=node,
                            producer_id=producer.producer_id,
                            producer_epoch=producer.producer_epoch,
                            coordinator_epoch=epoch if epoch >= 0 else None,
                            start_offset=producer.current_txn_start_offset,
                            last_timestamp=producer.last_timestamp,
                        )

    # At both

    def find_hanging(
        self, topics: Sequence[str] | None, before_ms: int
    ) -> tuple[list[OpenTransaction], list[TopicPartition]]:
        """Return the hanging transactions whose last record is older, and the partitions without a leader."""
        return self._client.retry_transient(lambda: self._find_hanging(topics, before_ms))

    def _find_hanging(
        self, topics: Sequence[str] | None, before_ms: int
    ) -> tuple[list[OpenTransaction], list[TopicPartition]]:
        leaders, leaderless = self.find_leaders(topics)
        return self.find_unknown(leaders, before_ms), leaderless

    def find_unknown(self, leaders: dict[TopicPartition, Node], before_ms: int) -> list[OpenTransaction]:
        """Return the transactions in these partitions that no coordinator knows, and whose last record is older."""
        # 1 transactions that are open at leaders  2 without those that coordinators know  3 that are still open: a
        # marker may have been written between the first step and the second.
        old = [one for one in self.find_open(leaders) if one.last_timestamp < before_ms]
        known = self.find_known({one.producer_id for one in old})
        suspects = [one for one in old if (one.producer_id, one.name) not in known]
        again = self.find_open({one.name: one.leader for one in suspects})
        return [one for one in suspects if any(one.is_same(other) for other in again)]

    def find_known(self, producer_ids: Iterable[int]) -> dict[tuple[int, TopicPartition], Transaction]:
        """Return the transactions of these producers that coordinators know and will end, by producer and partition."""
        wanted = sorted(producer_ids)
        if not wanted:
            return {}
        listed = self.list_ids(producer_ids=wanted)
        described = self.describe(listing.transactional_id for listing in listed)
        return {
            (transaction.producer_id, name): transaction
            for transaction in described.values()
            if transaction is not None
            for name in transaction.partitions
        }

    # Ending

    def find_one(
        self, name: TopicPartition, *, start_offset: int | None = None, producer_id: int | None = None
    ) -> OpenTransaction:
        """Return the open transaction of a partition that starts at an offset, or of a producer. Raise NotFound."""
        everything = self.find_open_in(name)
        for one in everything:
            if one.start_offset == start_offset or one.producer_id == producer_id:
                return one
        asked = f"that starts at offset {start_offset}" if producer_id is None else f"of producer {producer_id}"
        others = format_first(f"producer {one.producer_id} from offset {one.start_offset}" for one in everything)
        raise NotFound(
            f"{shown(str(name))} has no open transaction {asked}, nothing was aborted; open there: {others or 'none'}"
        )

    def check_hanging(self, found: OpenTransaction) -> None:
        """Raise Failure if a coordinator knows this transaction, and will end it."""
        known = self.find_known([found.producer_id]).get((found.producer_id, found.name))
        if known is not None:
            raise Failure(
                f"the transaction does not hang: its coordinator knows it as {shown(known.transactional_id)}, "
                f"{known.state}, and will end it; nothing was aborted, see "
                f"'ottla txn describe {shown(known.transactional_id)}', or add --force"
            )

    def write_abort_marker(self, one: OpenTransaction) -> None:
        """Abort an open transaction in its partition: read_committed consumers never get its records."""
        marker = WritableTxnMarker(
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=one.name.topic, partition_indexes=[one.name.partition])],
            # A producer without a marker has no coordinator epoch yet. No leader refuses epoch 0.
            coordinator_epoch=one.coordinator_epoch or 0,
        )
        answer = self._client.ask(one.leader, WriteTxnMarkersRequest(markers=[marker]))
        codes = [row.error_code for result in answer.markers for topic in result.topics for row in topic.partitions]
        if len(codes) != 1:
            raise Failure(f"{one.leader} did not report whether it wrote the marker; check with 'ottla txn hanging'")
        if codes[0]:
            raise _marker_failure(codes[0], one)


def _marker_failure(code: int, one: OpenTransaction) -> Failure:
    subject = shown(str(one.name))
    if code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return Failure(
            f"{subject}: producer {one.producer_id} has a newer epoch than {one.producer_epoch}; nothing was aborted, "
            "check again with 'ottla txn hanging'"
        )
    if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
        return Failure(
            f"{subject}: a newer coordinator than that of epoch {one.coordinator_epoch or 0} has written here; nothing "
            "was aborted, check again with 'ottla txn hanging'"
        )
    return failure_of(code, subject)
