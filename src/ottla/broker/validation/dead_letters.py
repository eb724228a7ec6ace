"""Appends invalid records to dead-letter topics: to a partition of this broker, or to the broker that leads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import TopicView
from ottla.broker.partitions.group_commit import AwaitedWrite
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.env.clock import Clock
from ottla.log.opening import NeedsOpening
from ottla.model.batch import read_header
from ottla.model.errors import (
    ErrorCode,
    InvalidConfig,
    KafkaError,
    NotLeaderOrFollower,
    OttlaError,
    Refused,
    UnknownTopicOrPartition,
)
from ottla.model.settings import TopicSettings
from ottla.model.settings_registry import NO_VALIDATION
from ottla.model.types import TopicPartition
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

#: how long a write may take
_WRITE_S = 10.0


class Peers(Protocol):
    """Sends requests to other brokers."""

    def leader_of(self, name: TopicPartition) -> int | None: ...

    async def produce(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        """Return the reply. Raise OttlaError if the broker cannot be reached."""


class DeadLetters:
    """The dead-letter topics of this broker's partitions."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        topics: TopicApis,
        peers: Peers,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._peers = peers
        self._loop = loop
        self._clock = clock

    def batch_bytes_max(self, topic: str) -> int:
        """Return the size of the largest batch that a dead-letter topic takes, or will take when it is created."""
        view = self._metadata.view.topics.get(topic)
        if view is not None:
            return self._metadata.topic_settings(view).max_message_bytes
        return TopicSettings.resolve({}, self._metadata.settings).max_message_bytes

    async def write(
        self, topic: str, source: Partition, batches: Sequence[bytes], acks: int, begin_turn: Callable[[], None]
    ) -> None:
        """Append batches and return when they are as durable as ``acks`` asks for. Raise KafkaError.

        A dead-letter topic is created with the defaults of the broker if `auto.create.topics.enable` allows it.
        """
        view = await self._find_or_create(topic)
        if self._metadata.topic_settings(view).schema_action != NO_VALIDATION:
            raise InvalidConfig("it has schema.validation itself")
        name = TopicPartition(topic, source.name.partition % len(view.partitions))
        acks = acks or 1  # a batch without an acknowledgement must not be appended before its invalid records are
        try:
            partition = self._replicas.leader_of(topic.encode(), name.partition)
        except NotLeaderOrFollower:
            await self._send(name, batches, acks)
        else:
            await self._append(partition, batches, acks, begin_turn)

    async def _find_or_create(self, topic: str) -> TopicView:
        view = self._metadata.view.topics.get(topic)
        if view is None and self._metadata.settings.auto_create_topics_enable:
            try:
                view = await self._topics.create_topic_by_default(topic)
            except KafkaError as error:
                text = f"the topic does not exist and cannot be created: {error}"
                raise UnknownTopicOrPartition(text) from None
        if view is None:
            raise UnknownTopicOrPartition("the topic does not exist; create it")
        return view

    async def _append(
        self, partition: Partition, batches: Sequence[bytes], acks: int, begin_turn: Callable[[], None]
    ) -> None:
        if acks == -1:
            partition.check_enough_replicas()
        end_offset = 0
        for batch in batches:
            end_offset = await self._append_one(partition, batch, begin_turn)
        written = AwaitedWrite(self._loop, self._clock.monotonic() + _WRITE_S)
        self._replicas.commits.wait(partition, partition.until(acks), end_offset, written)
        code = await written.code
        if code:
            raise Refused(ErrorCode(code), ErrorCode(code).name)

    async def _append_one(self, partition: Partition, batch: bytes, begin_turn: Callable[[], None]) -> int:
        """Append a batch and return the offset after it."""
        replicas, now_ms = self._replicas, self._clock.wall_ms()
        opened: TopicSettings | None = None
        while True:
            begin_turn()
            buffer = bytearray(batch)
            try:
                _, end = replicas.append(
                    partition, buffer, memoryview(buffer), 0, len(buffer), now_ms, opened=opened
                )  # fmt: skip
                return end
            except NeedsOpening as needs:  # the dead-letter topic has a codec of its own, or it is compacted
                rules, opened = needs.opening
            if rules is not None:
                stored = await replicas.opener.open_batch(batch, rules, read_header(batch).record_count)
                batch = batch if stored is None else stored

    async def _send(self, name: TopicPartition, batches: Sequence[bytes], acks: int) -> None:
        leader = self._peers.leader_of(name)
        if leader is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader")
        for batch in batches:
            data = PartitionProduceData(index=name.partition, records=batch)
            request = ProduceRequest(
                acks=acks, timeout=int(_WRITE_S * 1000),
                topic_data=[TopicProduceData(name=name.topic, partition_data=[data])],
            )  # fmt: skip
            try:
                reply = await self._peers.produce(leader, request)
            except OttlaError as error:
                raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {leader}: {error}") from None
            result = reply.responses[0].partition_responses[0]
            if result.error_code:
                code = ErrorCode(result.error_code)
                raise Refused(code, f"broker {leader}: {result.error_message or code.name}")
