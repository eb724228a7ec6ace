"""Brokers that live in memory: a socket whose other end answers within the same call, by handlers that a test sets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any

from ottla.model.batch import read_header
from ottla.wire import APIS, decode, encode, request_class, request_header_version, response_header_version
from ottla.wire.frame import frame_reply
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from ottla.wire.messages.end_txn import EndTxnResponse
from ottla.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from ottla.wire.messages.init_producer_id import InitProducerIdResponse
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

_START = Struct(">hhih")
TOPIC_ID = bytes(range(16))


class Cut(Exception):
    """Raised by a handler: the connection ends here, without an answer."""


class Silence(Exception):
    """Raised by a handler: no answer ever comes."""


Handler = Callable[[int, Any], Any]


class FakeCluster:
    """Brokers 1 and 2 at fake:9001 and fake:9002; topic `t` with two partitions, both led by broker 1."""

    def __init__(self) -> None:
        self.versions = {key: api.versions for key, api in APIS.items()}
        self.features = {"transaction.version": 2}
        self.leaders = {("t", 0): 1, ("t", 1): 1}
        self.topic_id = TOPIC_ID
        self.controller = 1
        self.coordinator = 2
        self.down: set[int] = set()
        #: brokers that accept connections and answer nothing, as a process that is stopped by SIGSTOP does
        self.paused: set[int] = set()
        self.asked: list[tuple[int, str, int, Any]] = []
        #: what happens to the next requests of an API; an error code, an exception, a handler; None: the usual
        self.next: dict[str, deque[Any]] = {}
        self.producer = (7, 0)
        #: sequences in the order in which they were written, by partition
        self.written: dict[tuple[str, int], list[int]] = {}
        self.in_flight_max = 0

    def connect(self, address: tuple[str, int], timeout: float | None = None) -> FakeSocket:
        broker_id = address[1] - 9000
        if broker_id in self.down or broker_id not in (1, 2):
            raise ConnectionRefusedError(111, "Connection refused")
        return FakeSocket(self, broker_id)

    def plan(self, name: str, *steps: Any) -> None:
        self.next.setdefault(name, deque()).extend(steps)

    def requests(self, name: str) -> list[Any]:
        return [request for _, api, _, request in self.asked if api == name]

    def versions_of(self, name: str) -> set[int]:
        return {version for _, api, version, _ in self.asked if api == name}

    def answer(self, broker_id: int, api: str, version: int, request: Any) -> Any:
        self.asked.append((broker_id, api, version, request))
        step = self.next[api].popleft() if self.next.get(api) else None
        if isinstance(step, type) and issubclass(step, Exception):
            raise step
        if callable(step):
            return step(broker_id, request)
        return getattr(self, f"_{api}")(broker_id, request, step or 0)

    # The usual answers

    def _ApiVersions(self, broker_id: int, request: Any, code: int) -> Any:
        rows = [ApiVersion(api_key=k, min_version=v[0], max_version=v[1]) for k, v in self.versions.items()]
        features = [FinalizedFeatureKey(name=name, max_version_level=v) for name, v in self.features.items()]
        return ApiVersionsResponse(error_code=code, api_keys=rows, finalized_features=features)

    def _Metadata(self, broker_id: int, request: Any, code: int) -> Any:
        names = {name for name, _ in self.leaders}
        wanted = sorted(names) if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            MetadataResponseTopic(name=name, topic_id=self.topic_id, error_code=code if name in names else 3,
                                  partitions=[
                MetadataResponsePartition(partition_index=number, leader_id=leader, leader_epoch=5)
                for (topic, number), leader in sorted(self.leaders.items())
                if topic == name
            ])
            for name in wanted
        ]  # fmt: skip
        brokers = [MetadataResponseBroker(node_id=number, host="fake", port=9000 + number) for number in (1, 2)]
        return MetadataResponse(brokers=brokers, controller_id=self.controller, topics=topics)

    def _FindCoordinator(self, broker_id: int, request: Any, code: int) -> Any:
        port = 9000 + self.coordinator
        where = {"node_id": self.coordinator, "host": "fake", "port": port, "error_code": code}
        rows = [Coordinator(key=key, **where) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=rows, **where)

    def _InitProducerId(self, broker_id: int, request: Any, code: int) -> Any:
        return InitProducerIdResponse(error_code=code, producer_id=self.producer[0], producer_epoch=self.producer[1])

    def _EndTxn(self, broker_id: int, request: Any, code: int) -> Any:
        return EndTxnResponse(
            error_code=code, producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )

    def _AddPartitionsToTxn(self, broker_id: int, request: Any, code: int) -> Any:
        topics = [
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                for number in topic.partitions
            ])
            for topic in request.v3_and_below_topics
        ]  # fmt: skip
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _Produce(self, broker_id: int, request: Any, code: int) -> Any:
        topics = []
        for topic in request.topic_data:
            rows = []
            for row in topic.partition_data:
                name = topic.name or "t"
                failed = code if broker_id == self.leaders[name, row.index] else 6
                if not failed:
                    failed = self._write(name, row.index, read_header(row.records).base_sequence)
                rows.append(PartitionProduceResponse(index=row.index, error_code=failed, base_offset=11))
            topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=rows))
        return ProduceResponse(responses=topics)

    def _write(self, topic: str, partition: int, sequence: int) -> int:
        """As a leader does: a repetition is taken for done, a gap refused; batches here have one record."""
        written = self.written.setdefault((topic, partition), [])
        if sequence in written:
            return 0
        if sequence != (written[-1] + 1 if written else 0) and sequence != -1:
            return 45
        written.append(sequence)
        return 0

    def _ListOffsets(self, broker_id: int, request: Any, code: int) -> Any:
        topics = [
            ListOffsetsTopicResponse(name=topic.name, partitions=[
                ListOffsetsPartitionResponse(
                    partition_index=row.partition_index,
                    error_code=code if broker_id == self.leaders[topic.name, row.partition_index] else 6,
                    offset=100 + row.partition_index if row.timestamp == -1 else 5,
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ]  # fmt: skip
        return ListOffsetsResponse(topics=topics)

    def _OffsetCommit(self, broker_id: int, request: Any, code: int) -> Any:
        topics = [
            OffsetCommitResponseTopic(name=topic.name, partitions=[
                OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
                for row in topic.partitions
            ])
            for topic in request.topics
        ]  # fmt: skip
        return OffsetCommitResponse(topics=topics)

    def _Fetch(self, broker_id: int, request: Any, code: int) -> Any:
        return fetch_answer(request, error_code=code)


def fetch_answer(request: Any, **fields: Any) -> Any:
    """A reply for the one partition that was asked for."""
    (topic,) = request.topics
    row = PartitionData(
        partition_index=topic.partitions[0].partition, **{"high_watermark": 100, "records": b""} | fields
    )
    return FetchResponse(
        responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[row])]
    )


class FakeSocket:
    """A connection whose other end answers within the same call."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._arrived = b""
        self._answers = bytearray()
        self._is_cut = False
        self._is_silent = False
        self._timeout_s = 0.0

    def sendall(self, data: bytes) -> None:
        if self._is_cut or self._broker_id in self._cluster.down:
            raise BrokenPipeError(32, "Broken pipe")
        if self._broker_id in self._cluster.paused:
            return
        self._arrived += data
        while len(self._arrived) >= 4 and not self._is_cut:
            size = int.from_bytes(self._arrived[:4], "big")
            if len(self._arrived) < 4 + size:
                return
            frame, self._arrived = self._arrived[4 : 4 + size], self._arrived[4 + size :]
            self._take(frame)

    def sendmsg(self, pieces: list[memoryview]) -> int:
        # A part of it, as a full socket takes; never so little that a large request would be joined a thousand times.
        size = sum(map(len, pieces))
        data = b"".join(pieces)[: max(100, size // 3)]
        self.sendall(data)
        return len(data)

    def _take(self, frame: bytes) -> None:
        api_key, version, correlation_id, length = _START.unpack_from(frame)
        position = _START.size + length + (1 if request_header_version(api_key, version) == 2 else 0)
        request, end = decode(request_class(api_key), version, frame, position)
        assert end == len(frame), "a request ends with its frame"
        try:
            answer = self._cluster.answer(self._broker_id, APIS[api_key].name, version, request)
        except Cut:
            self._is_cut = True
            return
        except Silence:
            self._is_silent = True
            return
        body = encode(answer, version)
        self._answers += frame_reply(correlation_id, body, response_header_version(api_key, version))

    def recv_into(self, buffer: memoryview) -> int:
        if self._broker_id in self._cluster.paused:
            time.sleep(self._timeout_s)
            raise TimeoutError("timed out")
        # In small pieces, as a network may deliver them.
        piece = self._answers[: min(len(buffer), 1000)]
        if not piece and self._is_silent:
            raise TimeoutError("timed out")
        del self._answers[: len(piece)]
        buffer[: len(piece)] = piece
        return len(piece)

    def settimeout(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self._timeout_s = timeout_s

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass

    def close(self) -> None:
        self._is_cut = True
