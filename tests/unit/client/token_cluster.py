"""A cluster in memory that keeps tokens, so that the commit protocol of Spark sinks can run on it."""

from __future__ import annotations

from typing import Any

from fake_cluster import FakeCluster, fetch_answer

from ottla.model.batch import CONTROL, read_header
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.types import TopicPartition
from ottla.spark.staging import Staged, StagingWriter
from ottla.spark.tokens import TOKEN_PARTITIONS, TOKEN_TOPIC, token_partition
from ottla.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from ottla.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.messages.metadata import MetadataResponseBroker
from ottla.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

NAME = "query"
TOKENS = TopicPartition(TOKEN_TOPIC, token_partition(NAME))
_LATEST = -1


class TokenCluster(FakeCluster):
    """Two brokers; broker 1 leads all partitions. Tokens are kept, and each broker may show other ones."""

    def __init__(self) -> None:
        super().__init__()
        self.leaders |= {(TOKEN_TOPIC, number): 1 for number in range(TOKEN_PARTITIONS)}
        # Older versions name topics by their names.
        self.versions |= {0: (3, 12), 1: (4, 12)}
        self.brokers = 2
        self.policy = "compact"
        self.describe_error = 0
        self.created: list[Any] = []
        #: the partition of the tokens: batches with one record each
        self.log: list[bytes] = []
        #: what a broker shows instead
        self.shown: dict[int, list[bytes]] = {}
        self.rows_written = 0
        self._producers_of_tokens: set[int] = set()

    def append(self, batch: bytes) -> int:
        offset = len(self.log)
        self.log.append(offset.to_bytes(8, "big") + batch[8:])
        return offset

    def keys(self) -> list[bytes | None]:
        """The keys of the records in the log, without markers."""
        return [next(iterate_records(batch)).key for batch in self.log if not read_header(batch).attributes & CONTROL]

    def _shown_by(self, broker_id: int) -> list[bytes]:
        return self.shown.get(broker_id, self.log)

    def _Metadata(self, broker_id: int, request: Any, code: int) -> Any:
        answer = super()._Metadata(broker_id, request, code)
        answer.brokers = [
            MetadataResponseBroker(node_id=number, host="fake", port=9000 + number)
            for number in range(1, self.brokers + 1)
        ]
        return answer

    def _CreateTopics(self, broker_id: int, request: Any, code: int) -> Any:
        (topic,) = request.topics
        self.created.append(topic)
        self.leaders |= {(topic.name, number): 1 for number in range(topic.num_partitions)}
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name, error_code=code)])

    def _DescribeConfigs(self, broker_id: int, request: Any, code: int) -> Any:
        (resource,) = request.resources
        assert (resource.resource_type, list(resource.configuration_keys)) == (2, ["cleanup.policy"])
        configs = [DescribeConfigsResourceResult(name="cleanup.policy", value=self.policy)]
        row = DescribeConfigsResult(
            error_code=self.describe_error, resource_type=2, resource_name=resource.resource_name, configs=configs
        )
        return DescribeConfigsResponse(results=[row])

    def _Produce(self, broker_id: int, request: Any, code: int) -> Any:
        topics = []
        for topic in request.topic_data:
            rows = [
                PartitionProduceResponse(
                    index=row.index, error_code=code, base_offset=0 if code else self._take(topic.name, request, row)
                )
                for row in topic.partition_data
            ]
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=rows))
        return ProduceResponse(responses=topics)

    def _take(self, topic: str, request: Any, row: Any) -> int:
        if topic != TOKEN_TOPIC:
            self.rows_written += read_header(row.records).record_count
            return 0
        assert (row.index, request.acks) == (TOKENS.partition, -1)
        if request.transactional_id is not None:
            self._producers_of_tokens.add(read_header(row.records).producer_id)
        return self.append(bytes(row.records))

    def _EndTxn(self, broker_id: int, request: Any, code: int) -> Any:
        if request.producer_id in self._producers_of_tokens:
            self._producers_of_tokens.discard(request.producer_id)
            self.append(_marker(request.producer_id, commit=request.committed))
        return super()._EndTxn(broker_id, request, code)

    def _ListOffsets(self, broker_id: int, request: Any, code: int) -> Any:
        (topic,) = request.topics
        (row,) = topic.partitions
        offset = len(self._shown_by(broker_id)) if row.timestamp == _LATEST else 0
        answer = ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=code, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[answer])])

    def _Fetch(self, broker_id: int, request: Any, code: int) -> Any:
        batches = self._shown_by(broker_id)
        start = request.topics[0].partitions[0].fetch_offset
        return fetch_answer(
            request, error_code=code, high_watermark=len(batches), records=b"".join(batches[start : start + 2])
        )


def _marker(producer_id: int, *, commit: bool) -> bytes:
    record = Record(timestamp=0, key=bytes((0, 0, 0, commit)), value=bytes(6))
    return build_batch([record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True)


def staged() -> list[Staged]:
    """Return one task with one row for partition 0 of topic t."""
    writer = StagingWriter(None, inline_bytes_max=1 << 20)
    writer.add(TopicPartition("t", 0), build_batch([Record(timestamp=0, key=b"k", value=b"v")]), 1)
    return [writer.finish()]
