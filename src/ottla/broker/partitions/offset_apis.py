"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.group_commit import AwaitedWrite
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.broker.request import RequestContext
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
#: first version of each special timestamp
_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


class OffsetApis(Component):
    """The APIs of offsets in logs."""

    def __init__(self, *, metadata: ClusterMetadata, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._loop = loop

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            2: ServedApi(1, 11, self.list_offsets),
            21: ServedApi(0, 2, self.delete_records),
            23: ServedApi(2, 4, self.offset_for_leader_epoch),
            61: ServedApi(0, 0, self.describe_producers, large_reply=True),
        }

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """ListOffsets (2) v1-v11. v2 isolation level. v4 leader epoch. v7 -3. v8 -4. v9 -5. v10 timeout. v11 -6."""
        seen = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                row = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                try:
                    if seen[topic.name, wanted.partition_index] > 1:
                        raise Refused(ErrorCode.INVALID_REQUEST)
                    context.check_topic(topic.name)
                    partition = self._replicas.leader_of(
                        topic.name.encode(), wanted.partition_index, wanted.current_leader_epoch
                    )
                    await self._list_offset(partition, wanted, request.isolation_level, context.version, row)
                except KafkaError as error:
                    row.error_code = error.code
                except OSError as error:
                    self._replicas.storage.note_read_error(partition.name, error)
                    row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                rows.append(row)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    async def _list_offset(
        self,
        partition: Partition,
        wanted: ListOffsetsPartition,
        isolation: int,
        version: int,
        row: ListOffsetsPartitionResponse,
    ) -> None:
        log, timestamp = partition.log, wanted.timestamp
        end_offset = partition.last_stable_offset if isolation == 1 else partition.high_watermark
        if timestamp < 0 and version < _SINCE.get(timestamp, 1 << 15):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        if timestamp not in (EARLIEST, EARLIEST_LOCAL) and not partition.has_committed_in_epoch:
            # An earlier leader may have reported a higher end. Clients of old versions do not know the first error.
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)
        if timestamp == LATEST:
            row.offset, row.leader_epoch = end_offset, partition.leader_epoch
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            row.offset = log.log_start_offset
            is_empty = log.log_start_offset == log.log_end_offset
            row.leader_epoch = partition.leader_epoch if is_empty else log.epochs.epoch_at(log.log_start_offset)
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            pass  # offset and epoch stay -1, because there is no tiered storage
        else:
            # This reads files and may decode a batch, so it does not run on the event loop.
            run, opener = self._loop.run_in_executor, self._replicas.opener
            if timestamp == MAX_TIMESTAMP:
                found = await run(None, log.newest_timestamp, opener.max_timestamp_record)
            else:
                found = await run(None, log.offset_for_timestamp, timestamp, end_offset, opener.find_timestamp)
            if found is not None and (isolation == 0 or found[0] < end_offset):
                row.offset, row.timestamp = found
                row.leader_epoch = log.epochs.epoch_at(row.offset)

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        """OffsetForLeaderEpoch (23) v2-v4. Brokers may ask about all topics."""
        is_broker = context.may_cluster("as a replica", quiet=True)
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                row = EpochEndOffset(partition=wanted.partition)
                try:
                    if not is_broker:
                        context.check_topic(topic.topic)
                    partition = self._replicas.leader_of(
                        topic.topic.encode(), wanted.partition, wanted.current_leader_epoch
                    )
                    row.leader_epoch, row.end_offset = partition.epoch_end(wanted.leader_epoch)
                except KafkaError as error:
                    row.error_code = error.code
                rows.append(row)
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        """DeleteRecords (21) v0-v2. Offset -1 means up to the high watermark.

        Answer when all in-sync replicas have moved the start of their logs, or with REQUEST_TIMED_OUT.
        """
        deadline = self._replicas.monotonic() + request.timeout / 1000
        topics: list[DeleteRecordsTopicResult] = []
        waiting: list[tuple[DeleteRecordsPartitionResult, Partition, int, AwaitedWrite]] = []
        for topic in request.topics:
            rows = []
            view = self._metadata.view.topics.get(topic.name)
            for wanted in topic.partitions:
                row = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
                try:
                    context.check_topic(topic.name)
                    if view is not None and view.internal:
                        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
                    partition = self._replicas.leader_of(topic.name.encode(), wanted.partition_index)
                    writer = AwaitedWrite(self._loop, deadline)
                    start = self._replicas.delete_records(partition, wanted.offset)
                    self._replicas.commits.wait(partition, Until.DELETED, start, writer)
                    waiting.append((row, partition, start, writer))
                except KafkaError as error:
                    row.error_code = error.code
                rows.append(row)
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
        for row, partition, start, writer in waiting:
            row.error_code = await writer.code
            row.low_watermark = partition.low_watermark if row.error_code else max(start, partition.low_watermark)
        return DeleteRecordsResponse(topics=topics)

    def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        """DescribeProducers (61) v0. As in Kafka every replica answers: tools ask one broker about all of its."""
        topics = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            rows = []
            # Answer each partition once, so that a request cannot multiply the size of its reply.
            for number in dict.fromkeys(topic.partition_indexes):
                row = PartitionResponse(partition_index=number, error_message=None)
                try:
                    context.check_topic(topic.name)
                    partition = self._replica_of(topic.name, number)
                    producers = partition.log.producers
                    row.active_producers = [
                        ProducerState(
                            producer_id=producer_id, producer_epoch=entry.epoch,
                            last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                            last_timestamp=entry.timestamp, coordinator_epoch=entry.coordinator_epoch,
                            current_txn_start_offset=entry.txn_first_offset,
                        )
                        for producer_id, entry in producers.items()
                    ]  # fmt: skip
                except KafkaError as error:
                    row.error_code = error.code
                except OSError as error:
                    self._replicas.storage.note_read_error(partition.name, error)
                    row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                rows.append(row)
            topics.append(TopicResponse(name=topic.name, partitions=rows))
        return DescribeProducersResponse(topics=topics)

    def _replica_of(self, topic: str, number: int) -> Partition:
        """Return the replica on this broker. Raise the KafkaError for the reply if there is none, or it is offline."""
        partition = self._replicas.find(topic, number)
        if partition is None or partition.offline:
            return self._replicas.leader_of(topic.encode(), number)
        return partition
