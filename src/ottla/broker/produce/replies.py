"""The replies of Produce, which wait until the batches of their request are as durable as ``acks`` asks for.

`broker/partitions` calls ``on_write_complete`` of a writer when its batch is written, or committed, or durable
(``Partition.until``), or when that has failed or taken longer than the timeout of the request.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from ottla.broker.access.throttling import with_throttle_time
from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.produce.request import Request, Shortcut
from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.connection import Connection, Slot
from ottla.wire.produce import LEADERS_FROM, TOPIC_IDS_FROM, PartitionResult, build_produce_reply, throttle_position

PRODUCE = 0
_unpack_int32 = Struct(">i").unpack_from

#: results by topic: its name, or its id from v13 on
Topics = list[tuple[bytes, list[PartitionResult]]]


class TemplateReply(Slot):
    """The reply to a request whose only batch was appended. It is its own writer."""

    __slots__ = ("_correlation_id", "_reply", "_shortcut", "deadline")

    def __init__(self, connection: Connection, shortcut: Shortcut, reply: bytes, correlation_id: int) -> None:
        self.connection = connection
        self.api_key = PRODUCE
        self.started = started = connection.turn_started
        self.data = self.parts = None
        self._reply = reply
        self._shortcut = shortcut
        self._correlation_id = correlation_id
        self.deadline = started + shortcut.timeout_s

    def on_write_complete(self, error_code: int) -> None:
        if not error_code:
            self.fill(self._reply)
            return
        shortcut = self._shortcut
        topics = [(shortcut.topic, [PartitionResult(shortcut.partition.name.partition, error_code)])]
        (throttle_ms,) = _unpack_int32(self._reply, throttle_position(self._reply, shortcut.version))
        self.fill(
            _error_reply(
                self.connection, self._correlation_id, shortcut.version, topics, shortcut.hints, throttle_ms=throttle_ms
            )
        )

    def tell_throttle_time(self, throttle_ms: int) -> None:
        """Let the reply name the time for which the connection is muted."""
        position = throttle_position(self._reply, self._shortcut.version)
        self._reply = with_throttle_time(self._reply, position, throttle_ms)


class CollectedReply(Slot):
    """The reply to any other request: it is sent when the last of its partitions is complete.

    With acks=0 there is no reply, and an error closes the connection.
    """

    __slots__ = (
        "_correlation_id", "_has_errors", "_hints", "_incomplete", "_throttle_ms", "_version", "deadline", "opening",
        "topics", "wants_reply",
    )  # fmt: skip

    def __init__(self, request: Request, hints: LeaderHints, deadline: float) -> None:
        super().__init__(request.connection, PRODUCE, request.connection.turn_started)
        self._throttle_ms = 0
        self._correlation_id = request.correlation_id
        self._version = request.version
        self._hints = hints
        self._has_errors = False
        #: partitions that wait, plus one until every batch of the request has been handled
        self._incomplete = 1
        self.wants_reply = request.parsed.acks != 0
        self.topics: Topics = []
        self.deadline = deadline
        #: the task that opens and appends some of the batches; None if there is none
        self.opening: asyncio.Task[None] | None = None
        if self.wants_reply:
            request.connection.enqueue(self)

    def writer(self, topic: int, place: int) -> PartitionWriter:
        """Return what the batch of one partition waits with."""
        self._incomplete += 1
        return PartitionWriter(self, topic, place)

    def refuse(self, topic: int, place: int, error: KafkaError) -> None:
        """Answer for one partition with an error."""
        self._has_errors = True
        results = self.topics[topic][1]
        results[place] = PartitionResult(
            results[place].partition, int(error.code), record_errors=error.record_errors, message=str(error) or None
        )

    def complete(self, topic: int, place: int, error_code: int) -> None:
        """The batch of one partition is durable, or has failed."""
        if error_code:
            self._has_errors = True
            results = self.topics[topic][1]
            results[place] = PartitionResult(results[place].partition, error_code)
        self._complete_one()

    def end(self) -> None:
        """Every batch of the request has been appended or refused; some may still wait for a write or a sync."""
        if self.wants_reply:
            self._complete_one()
        elif self._has_errors:
            self.connection.close()
        else:
            self.connection.touch()  # a reply would, and there is none: the connection is not idle

    def tell_throttle_time(self, throttle_ms: int) -> None:
        """Let the reply name the time for which the connection is muted. Called before the reply is sent."""
        self._throttle_ms = throttle_ms
        if self.data is not None:
            self.data = self._build()

    def _complete_one(self) -> None:
        self._incomplete -= 1
        if not self._incomplete:
            self.fill(self._build())

    def _build(self) -> bytes:
        correlation_id, version, throttle_ms = self._correlation_id, self._version, self._throttle_ms
        if not self._has_errors:
            return build_produce_reply(correlation_id, version, self.topics, throttle_ms=throttle_ms)
        return _error_reply(self.connection, correlation_id, version, self.topics, self._hints, throttle_ms=throttle_ms)


class PartitionWriter:
    """Waits for the batch of one partition of a ``CollectedReply``."""

    __slots__ = ("_place", "_reply", "_topic", "deadline")

    def __init__(self, reply: CollectedReply, topic: int, place: int) -> None:
        self._reply = reply
        self._topic = topic
        self._place = place
        self.deadline = reply.deadline

    def on_write_complete(self, error_code: int) -> None:
        self._reply.complete(self._topic, self._place, error_code)


def _error_reply(
    connection: Connection, correlation_id: int, version: int, topics: Topics, hints: LeaderHints, *, throttle_ms: int
) -> bytes:
    """Return a reply with errors. It names the leaders of partitions that other brokers lead (KIP-951)."""
    if version < LEADERS_FROM:
        return build_produce_reply(correlation_id, version, topics, throttle_ms=throttle_ms)
    leaders = []
    by_id = version >= TOPIC_IDS_FROM
    for key, results in topics:
        for place, result in enumerate(results):
            if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader = hints.leader_of(key, result.partition, by_id=by_id)
                leaders.append(leader)
                results[place] = result._replace(leader=leader)
    nodes = hints.addresses(leaders, connection) if leaders else []
    return build_produce_reply(correlation_id, version, topics, nodes, throttle_ms)
