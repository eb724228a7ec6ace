"""APIs of transactions: find the shard of the transactional id and pass the request to the coordinator.

InitProducerId also serves idempotent producers without a transactional id, which need no coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ottla.broker.component import Component, ServedApi
from ottla.broker.coordinators.log_errors import RETRIABLE
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.groups.runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.request import RequestContext
from ottla.broker.transactions.awaited_commits import AwaitedCommits
from ottla.broker.transactions.checks import Term, TransactionChecks, term_of
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.records import Delivery
from ottla.broker.transactions.replies import (
    add_offsets_reply,
    add_partitions_reply,
    added_partitions,
    described_transaction,
    end_reply,
    init_reply,
    listed_transaction,
    read_end,
    read_filter,
    read_init,
    read_txn_offset_commit,
    txn_offset_commit_reply,
)
from ottla.broker.transactions.runtime import MarkerWriter, TransactionRuntime
from ottla.broker.transactions.transitions import unknown_states, write_error
from ottla.env.deferred import SLICE_ROWS
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.types import TopicPartition
from ottla.security.acls import ResourceType
from ottla.wire import Message
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ottla.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Answer = Message | Awaitable[Message]

#: first version of AddPartitionsToTxn with several transactions, which brokers send
_BATCH_FROM = 4
#: first version of EndTxn whose clients have an epoch for each transaction
_OWN_EPOCH_FROM = 5
_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
#: older clients rediscover the coordinator after COORDINATOR_LOAD_IN_PROGRESS
_LOADING_KNOWN_FROM = 2
#: first version of TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE
_ABORTABLE_FROM = 4
#: first version of TxnOffsetCommit that adds the group's partition to the transaction
_IMPLICIT_FROM = 5


class TransactionApis(Component):
    """The APIs of transactions."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        groups: GroupRuntime,
        transactions: TransactionRuntime,
        markers: MarkerWriter,
        checks: TransactionChecks,
        awaited_commits: AwaitedCommits,
        producer_ids: ProducerIds,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._markers = markers
        self._checks = checks
        self._awaited_commits = awaited_commits
        self._producer_ids = producer_ids

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            22: ServedApi(0, 5, self.init_producer_id),
            24: ServedApi(0, 5, self.add_partitions_to_txn),
            25: ServedApi(0, 4, self.add_offsets_to_txn),
            26: ServedApi(0, 5, self.end_txn),
            27: ServedApi(1, 2, self.write_txn_markers),
            28: ServedApi(0, 5, self.txn_offset_commit),
            65: ServedApi(0, 0, self.describe_transactions, large_reply=True),
            66: ServedApi(0, 2, self.list_transactions, large_reply=True),
        }

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        """InitProducerId (22) v0-v5. v2 flexible. v3 producer id and epoch in the request. v4 PRODUCER_FENCED."""

        def refuse(code: int) -> InitProducerIdResponse:
            return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)

        transactional_id = request.transactional_id
        if transactional_id is None:
            if (request.producer_id == -1) != (request.producer_epoch == -1):
                return refuse(ErrorCode.INVALID_REQUEST)
            if not context.access.may_any_topic(context.connection, context.api_key) and not context.may_cluster():
                return refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            try:
                return InitProducerIdResponse(producer_id=await self._producer_ids.next(), producer_epoch=0)
            except KafkaError as error:
                return refuse(error.code)
        if not context.may(ResourceType.TRANSACTIONAL_ID, transactional_id):
            return refuse(_REFUSED)
        await self._transactions.wait_for_markers(transactional_id)
        init = read_init(request)
        try:
            fresh = await self._fresh_producer_id(transactional_id)
        except KafkaError as error:
            return refuse(error.code)
        answer: Any = await _finished(
            self._transactions.run(
                transactional_id,
                lambda shard, now: shard.init_producer_id(init, fresh, now),
                lambda result: init_reply(result, context.version),
                refuse,
            )
        )
        return answer  # type: ignore[no-any-return]

    def add_partitions_to_txn(self, request: AddPartitionsToTxnRequest, context: RequestContext) -> Answer:
        """AddPartitionsToTxn (24) v0-v5. v2 PRODUCER_FENCED. v4 many transactions, between brokers."""
        if context.version >= _BATCH_FROM:
            if not context.may_cluster("for another broker"):
                return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return self._add_batch(request)
        if (refused := _refused_additions(request, context)) is not None:
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refused)
        self._transactions.check_connection(request.v3_and_below_transactional_id, context.client)
        return self._after_markers(
            request.v3_and_below_transactional_id, lambda: self._add_partitions(request, context)
        )

    def _add_partitions(self, request: AddPartitionsToTxnRequest, context: RequestContext) -> Answer:
        transactional_id = request.v3_and_below_transactional_id
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        names = [
            TopicPartition(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions
        ]
        return self._transactions.run(
            transactional_id,
            lambda shard, now: shard.add_partitions(transactional_id, producer, names, context.client, now),
            lambda codes: add_partitions_reply(codes, context.version),
            lambda code: AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=_refused_topics(request.v3_and_below_topics, code)
            ),
        )

    async def _add_batch(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        answers: list[Any] = [self._add_one(each) for each in request.transactions]
        results: list[AddPartitionsToTxnResult] = []
        for answer in answers:
            finished: Any = await _finished(answer)
            results.extend(finished.results_by_transaction)
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    def _add_one(self, each: AddPartitionsToTxnTransaction) -> Answer:
        producer = Producer(each.producer_id, each.producer_epoch)
        names = [TopicPartition(topic.name, number) for topic in each.topics for number in topic.partitions]
        if any(name.topic == OFFSETS_TOPIC for name in names):
            self._awaited_commits.note_arrived(each.transactional_id)

        def refuse(code: int) -> AddPartitionsToTxnResponse:
            rows = _refused_topics(each.topics, code)
            result = AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=rows)
            return AddPartitionsToTxnResponse(results_by_transaction=[result])

        return self._transactions.run(
            each.transactional_id,
            lambda shard, now: shard.add_partitions_of(
                each.transactional_id, producer, names, now, verify_only=each.verify_only
            ),
            lambda codes: added_partitions(each.transactional_id, codes),
            refuse,
        )

    def add_offsets_to_txn(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> Answer:
        """AddOffsetsToTxn (25) v0-v4. v2 PRODUCER_FENCED."""
        if not context.may(ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return AddOffsetsToTxnResponse(error_code=_REFUSED)
        if not context.may(ResourceType.GROUP, request.group_id):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        self._transactions.check_connection(request.transactional_id, context.client)
        return self._after_markers(request.transactional_id, lambda: self._add_offsets(request, context))

    def _add_offsets(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> Answer:
        where = TopicPartition(OFFSETS_TOPIC, self._groups.partition_for(request.group_id))
        producer = Producer(request.producer_id, request.producer_epoch)
        self._awaited_commits.expect(request.transactional_id, context.connection)
        return self._transactions.run(
            request.transactional_id,
            lambda shard, now: shard.add_offsets(request.transactional_id, producer, where, context.client, now),
            lambda code: add_offsets_reply(code, context.version),
            lambda code: AddOffsetsToTxnResponse(error_code=code),
        )

    def end_txn(self, request: EndTxnRequest, context: RequestContext) -> Answer:
        """EndTxn (26) v0-v5. v2 PRODUCER_FENCED. v5 every transaction has an epoch of its own."""
        if not context.may(ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return EndTxnResponse(error_code=_REFUSED)
        self._awaited_commits.note_arrived(request.transactional_id)
        if context.version < _OWN_EPOCH_FROM:
            self._transactions.check_connection(request.transactional_id, context.client)
        return self._after_markers(request.transactional_id, lambda: self._end_or_allocate(request, context))

    def _end_or_allocate(self, request: EndTxnRequest, context: RequestContext) -> Answer:
        """End the transaction; allocate a producer id first if the epochs of the current one are used up."""
        try:
            needs_id = self._transactions.shard(request.transactional_id).needs_producer_id(request.transactional_id)
        except KafkaError as error:
            return EndTxnResponse(error_code=error.code)
        if needs_id:
            return self._end_with_fresh_id(request, context)
        return self._end(request, None, context)

    async def _end_with_fresh_id(self, request: EndTxnRequest, context: RequestContext) -> Message:
        try:
            fresh = await self._producer_ids.next()
        except KafkaError as error:
            return EndTxnResponse(error_code=error.code)
        return await _finished(self._end(request, fresh, context))

    def _end(self, request: EndTxnRequest, fresh: int | None, context: RequestContext) -> Answer:
        end = read_end(request)
        return self._transactions.run(
            request.transactional_id,
            lambda shard, now: shard.end_txn(
                end, context.client, now, own_epoch=context.version >= _OWN_EPOCH_FROM, fresh_producer_id=fresh
            ),
            lambda result: end_reply(result, context.version),
            lambda code: EndTxnResponse(error_code=code),
        )

    def txn_offset_commit(self, request: TxnOffsetCommitRequest, context: RequestContext) -> Answer:
        """TxnOffsetCommit (28) v0-v5. v3 member and generation. v5 adds the group's partition to the transaction."""

        def refuse(code: int) -> TxnOffsetCommitResponse:
            if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < _LOADING_KNOWN_FROM:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return TxnOffsetCommitResponse(topics=_refused_offsets(request.topics, code))

        if not request.group_id:
            return refuse(ErrorCode.INVALID_GROUP_ID)
        if not context.may(ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return refuse(_REFUSED)
        if not context.may(ResourceType.GROUP, request.group_id):
            return refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        request.topics, refused = self._split_offsets(request.topics, context)
        if not request.topics:
            return TxnOffsetCommitResponse(topics=_joined(refused))
        answer = self._commit_verified(request, context, refuse)
        return _commit_some(answer, refused) if refused else answer

    def _split_offsets(
        self, topics: Sequence[TxnOffsetCommitRequestTopic], context: RequestContext
    ) -> tuple[list[TxnOffsetCommitRequestTopic], list[TxnOffsetCommitResponseTopic]]:
        """Return the offsets to commit, and the errors of topics that the client may not use or that do not exist."""
        accepted: list[TxnOffsetCommitRequestTopic] = []
        refused: list[TxnOffsetCommitResponseTopic] = []
        for topic in topics:
            if not context.may(ResourceType.TOPIC, topic.name):
                refused += _refused_offsets([topic], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            known = self._metadata.view.topics.get(topic.name)
            count = len(known.partitions) if known is not None else 0
            parts = [row for row in topic.partitions if 0 <= row.partition_index < count]
            missing = [row for row in topic.partitions if not 0 <= row.partition_index < count]
            if parts:
                accepted.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=parts))
            if missing:
                unknown = TxnOffsetCommitRequestTopic(name=topic.name, partitions=missing)
                refused += _refused_offsets([unknown], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return accepted, refused

    async def _commit_verified(self, request: TxnOffsetCommitRequest, context: RequestContext, refuse: Any) -> Message:
        """Add the partition of the group's offsets to the transaction, then commit the offsets in it."""
        adds = context.version >= _IMPLICIT_FROM
        if not adds:
            self._groups.check_connection(request.group_id, context.client)
        code = await self._add_offsets_partition(request, verify_only=not adds)
        if code:
            code = write_error(ErrorCode(code), knows_abortable=context.version >= _ABORTABLE_FROM, adds=adds)
            return refuse(RETRIABLE.get(code, code))  # type: ignore[no-any-return]
        if not adds:
            key = request.transactional_id, request.group_id
            try:
                self._groups.offsets_order.check(
                    key, Producer(request.producer_id, request.producer_epoch), context.client
                )
            except KafkaError:
                return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # type: ignore[no-any-return]
        commit = read_txn_offset_commit(request, context.client)
        return await _finished(
            self._groups.run(
                request.group_id,
                lambda shard, now: shard.commit_offsets(commit, now),
                txn_offset_commit_reply,
                refuse,
            )
        )

    async def _add_offsets_partition(self, request: TxnOffsetCommitRequest, *, verify_only: bool) -> int:
        """Add the partition of the group's offsets to the transaction, or verify that it was. Return the error code."""
        where = TopicPartition(OFFSETS_TOPIC, self._groups.partition_for(request.group_id))
        coordinator = self._checks.coordinator_of(self._transactions.partition_for(request.transactional_id))
        if coordinator is not None:
            producer = Producer(request.producer_id, request.producer_epoch)
            terms = {where: self._term(where)}
            with self._checks.request() as checks:
                await checks.ask(coordinator, request.transactional_id, producer, terms, verify_only=verify_only)
                return self._checks.verdict(where, producer, self._term(where))
        await self._transactions.wait_for_markers(request.transactional_id)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.transactional_id, producer_id=request.producer_id,
            producer_epoch=request.producer_epoch, verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=where.topic, partitions=[where.partition])],
        )  # fmt: skip
        checked: Any = await _finished(self._add_one(transaction))
        return int(checked.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code)

    def _term(self, name: TopicPartition) -> Term:
        partition = self._replicas.find(name.topic, name.partition)
        return term_of(partition) if partition is not None else Term(b"", -1)

    def write_txn_markers(self, request: WriteTxnMarkersRequest, context: RequestContext) -> Answer:
        """WriteTxnMarkers (27) v1-v2. From other brokers, and from an administrator who aborts a hanging transaction.

        v2 transaction version.
        """
        if not context.may_cluster(quiet=True) and not context.may_cluster("as an administrator"):
            return WriteTxnMarkersResponse(markers=[_refused_marker(marker) for marker in request.markers])
        return self._write_markers(request)

    async def _write_markers(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Append the markers of all transactions, and wait until all of them are durable or have failed."""
        deliveries = (each for marker in request.markers for each in _deliveries(marker))
        writes: list[Awaitable[list[int]]] = []
        while part := list(islice(deliveries, SLICE_ROWS)):
            writes.append(asyncio.gather(*map(self._markers.write_once, part)))
            await asyncio.sleep(0)  # serve others
        codes = iter([code for each in writes for code in await each])
        markers = [
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=number, error_code=next(codes))
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
        return WriteTxnMarkersResponse(markers=markers)

    def describe_transactions(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        """DescribeTransactions (65) v0."""
        states = []
        for transactional_id in dict.fromkeys(request.transactional_ids):
            try:
                if not context.may(ResourceType.TRANSACTIONAL_ID, transactional_id):
                    raise Refused(_REFUSED)
                value = self._transactions.shard(transactional_id).values.get(transactional_id)
                described = described_transaction(transactional_id, value)
                described.topics = [
                    each for each in described.topics if context.may(ResourceType.TOPIC, each.topic, quiet=True)
                ]
                states.append(described)
            except KafkaError as error:
                states.append(DescribedTransaction(transactional_id=transactional_id, error_code=error.code))
        return DescribeTransactionsResponse(transaction_states=states)

    def list_transactions(self, request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
        """ListTransactions (66) v0-v2. v1 duration. v2 pattern of the id."""
        unknown = unknown_states(request.state_filters)
        if self._transactions.is_loading:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ListTransactionsResponse(error_code=code, unknown_state_filters=unknown)
        wanted, now = read_filter(request), self._transactions.now()
        try:
            found = [each for shard in self._transactions.shards() for each in shard.list_transactions(wanted, now)]
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown)
        listed = [
            listed_transaction(transactional_id, value)
            for transactional_id, value in found
            if context.may(ResourceType.TRANSACTIONAL_ID, transactional_id, quiet=True)
        ]
        return ListTransactionsResponse(transaction_states=listed, unknown_state_filters=unknown)

    async def _fresh_producer_id(self, transactional_id: str) -> int | None:
        try:
            needed = self._transactions.shard(transactional_id).needs_producer_id(transactional_id)
        except KafkaError:
            return None  # the caller refuses the request and gives the reason
        return await self._producer_ids.next() if needed else None

    def _after_markers(self, transactional_id: str, ask: Callable[[], Answer]) -> Answer:
        """Return the answer of ``ask``, which is called when the last transaction of this id has all its markers."""
        if self._transactions.has_outstanding_markers(transactional_id):
            return self._wait_then(transactional_id, ask)
        return ask()

    async def _wait_then(self, transactional_id: str, ask: Callable[[], Answer]) -> Message:
        await self._transactions.wait_for_markers(transactional_id)
        return await _finished(ask())


def _refused_additions(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult] | None:
    """Return the answer for a client that may not add all of these partitions: then none is added. None if it may."""
    topics = request.v3_and_below_topics
    if not context.may(ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return _refused_topics(topics, _REFUSED)
    allowed = {topic.name: context.may(ResourceType.TOPIC, topic.name) for topic in topics}
    if all(allowed.values()):
        return None
    codes = {True: ErrorCode.OPERATION_NOT_ATTEMPTED, False: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    return [row for topic in topics for row in _refused_topics([topic], codes[allowed[topic.name]])]


def _refused_topics(topics: Sequence[AddPartitionsToTxnTopic], code: int) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _refused_offsets(topics: Sequence[TxnOffsetCommitRequestTopic], code: int) -> list[TxnOffsetCommitResponseTopic]:
    return [
        TxnOffsetCommitResponseTopic(name=topic.name, partitions=[
            TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
            for row in topic.partitions
        ])
        for topic in topics
    ]  # fmt: skip


async def _commit_some(answer: Awaitable[Message], refused: Sequence[TxnOffsetCommitResponseTopic]) -> Message:
    """Return an answer with the rows of the offsets that were not passed to the coordinator."""
    reply: Any = await answer
    reply.topics = _joined([*reply.topics, *refused])
    return reply  # type: ignore[no-any-return]


def _joined(topics: Iterable[TxnOffsetCommitResponseTopic]) -> list[TxnOffsetCommitResponseTopic]:
    """Return the rows with one entry per topic."""
    found: dict[str, TxnOffsetCommitResponseTopic] = {}
    for topic in topics:
        if (earlier := found.setdefault(topic.name, topic)) is not topic:
            earlier.partitions = [*earlier.partitions, *topic.partitions]
    return list(found.values())


def _deliveries(marker: WritableTxnMarker) -> Iterator[Delivery]:
    """Return the marker of one transaction, for each of its partitions."""
    producer = Producer(marker.producer_id, marker.producer_epoch)
    for topic in marker.topics:
        for number in topic.partition_indexes:
            yield Delivery(
                transactional_id="",
                producer=producer,
                coordinator_epoch=marker.coordinator_epoch,
                commit=marker.transaction_result,
                partitions=(TopicPartition(topic.name, number),),
                transaction_version=marker.transaction_version,
            )


def _refused_marker(marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                for number in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


async def _finished(answer: Answer) -> Message:
    return answer if isinstance(answer, Message) else await answer
