"""What Produce reads from a frame: the parsed request, and the bytes that the next request is likely to repeat.

A client that writes to one partition sends the same bytes in front of every batch. So the connection remembers them
with everything that they mean (``Shortcut``), and a request that starts with them is not parsed; librdkafka's always
do. Any change of topics, leaders or ACLs increases the generation of the replicas, which invalidates all shortcuts.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.partitions.partition import Partition
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.wire.produce import FLEXIBLE_FROM, PartitionData, ProduceRequest, ReplyTemplate

_unpack_int32 = Struct(">i").unpack_from
_TAGS_BEHIND_BATCH = b"\0\0\0"


class Request(NamedTuple):
    """A parsed request. It has the positions of its batches, but not the frame, whose buffer is used again."""

    connection: Connection
    version: int
    correlation_id: int
    parsed: ProduceRequest


class Shortcut:
    """The parts of a request to a single partition that the next request of the connection is likely to repeat."""

    __slots__ = (
        "acks", "flexible", "generation", "hints", "partition", "prefix", "prefix_end", "tail_bytes", "template",
        "timeout_ms", "timeout_s", "topic", "transactional_id", "version",
    )  # fmt: skip

    def __init__(
        self, request: Request, prefix: bytes, partition: Partition, generation: int, hints: LeaderHints
    ) -> None:
        version, parsed = request.version, request.parsed
        self.generation = generation
        self.version = version
        #: the frame's bytes between the correlation id and the length of the batch
        self.prefix = prefix
        self.prefix_end = 8 + len(prefix)
        self.flexible = version >= FLEXIBLE_FROM
        #: what follows the batch: the empty tags of partition, topic and request
        self.tail_bytes = len(_TAGS_BEHIND_BATCH) if self.flexible else 0
        self.partition = partition
        #: its name, or its id from v13 on
        self.topic = parsed.topics[0][0]
        self.acks = parsed.acks
        self.timeout_ms = parsed.timeout_ms
        self.timeout_s = parsed.timeout_ms / 1000
        self.template = ReplyTemplate(self.topic, partition.name.partition, version)
        self.hints = hints
        #: None outside of a transaction
        self.transactional_id = parsed.transactional_id

    def batch_start(self, buffer: FrameBuffer, start: int, end: int) -> int:
        """Return where the batch of the frame ``buffer[start:end]`` begins; -1 if the request must be parsed.

        The batch ends ``tail_bytes`` before the end of the frame.
        """
        position = start + self.prefix_end
        if buffer[start + 8 : position] != self.prefix:
            return -1
        if self.flexible:
            byte = buffer[position]
            position += 1
            size = byte & 0x7F
            shift = 7
            while byte > 0x7F and shift < 35:
                byte = buffer[position]
                position += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            batch_end = position + size - 1
            if not size or end - batch_end != 3 or buffer[batch_end:end] != _TAGS_BEHIND_BATCH:
                return -1
            return position
        (size,) = _unpack_int32(buffer, position)
        position += 4
        return position if position + size == end and size >= 0 else -1

    def request(self, connection: Connection, correlation_id: int) -> Request:
        """Return the request that starts with the remembered bytes, without its batch."""
        parsed = ProduceRequest(self.transactional_id, self.acks, self.timeout_ms, [])
        return Request(connection, self.version, correlation_id, parsed)


def prefix_of(data: PartitionData, buffer: FrameBuffer, start: int, version: int) -> bytes:
    """Return the bytes of a request for a single batch between the correlation id and the length of the batch."""
    size = data.end - data.start
    length_bytes = 4 if version < FLEXIBLE_FROM else max((size + 1).bit_length() + 6, 7) // 7
    return bytes(buffer[start + 8 : data.start - length_bytes])
