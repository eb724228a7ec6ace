"""Produce (0) v3-v13, by hand: the request is parsed in place, not copied; the reply is joined from few pieces.

v3 batches of format 2 only, transactional id. v5 log start offset. v8 record errors. v9 flexible. v10 leader hints.
v12 implicit transactions. v13 topic id instead of name.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from ottla.wire.frame import (
    HEADER_TAGS_MAX,
    Buffer,
    read_compact_length,
    read_uvarint,
    skip_client_id,
    skip_tags,
)
from ottla.wire.leader_hints import LeaderHint, NodeAddress, leader_field, reply_tags
from ottla.wire.primitives import WireError, write_uvarint

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
#: versions in which a result with an error may name the leader, and the reply its address
LEADERS_FROM = 10
_LEADER_TAG = 0
#: topics and partitions of one request; a request of 1 MB, the default of producers, has room for 14,000 batches
PARTITIONS_MAX = 20_000

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ACKS_TIMEOUT = Struct(">hi")
_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_SIZE_CORRELATION = Struct(">ii")


class PartitionData(NamedTuple):
    """The position of one partition's batch in the request; start and end are -1 if there is none."""

    partition: int
    start: int
    end: int


class ProduceRequest(NamedTuple):
    """A request as positions into its frame. A topic is its name's bytes, or its id's from v13 on."""

    #: None outside of a transaction
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, list[PartitionData]]]


class PartitionResult(NamedTuple):
    """What happened to one partition's batch."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    #: position in the batch and text of each invalid record, and a text for the batch; v8 and newer (KIP-467)
    record_errors: Sequence[tuple[int, str]] = ()
    message: str | None = None
    #: the leader of the partition, for LEADERS_FROM and newer
    leader: LeaderHint | None = None


def parse_produce(buffer: Buffer, start: int, end: int, version: int) -> ProduceRequest:
    """Parse the frame ``buffer[start:end]``, header included. Raises WireError, IndexError or struct.error."""
    position = skip_client_id(buffer, start + 8, end)
    if version >= FLEXIBLE_FROM:
        return _parse_flexible(buffer, skip_tags(buffer, position, end, HEADER_TAGS_MAX), end, version)
    (length,) = _INT16.unpack_from(buffer, position)
    transactional_id = _text(buffer, position + 2, length, end)
    position += 2 + (length if length > 0 else 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    (topic_count,) = _INT32.unpack_from(buffer, position + 6)
    position += 10
    _check_count(topic_count, position, end)
    total = topic_count
    topics: list[tuple[bytes, list[PartitionData]]] = []
    for _ in range(topic_count):
        (name_length,) = _INT16.unpack_from(buffer, position)
        if name_length < 0:
            raise WireError("a topic without a name")
        name = bytes(buffer[position + 2 : position + 2 + name_length])
        position += 2 + name_length
        (count,) = _INT32.unpack_from(buffer, position)
        position += 4
        _check_count(count, position, end)
        total += count
        if total > PARTITIONS_MAX:
            raise WireError(f"more than {PARTITIONS_MAX} partitions")
        partitions: list[PartitionData] = []
        for _ in range(count):
            index, size = _SIZE_CORRELATION.unpack_from(buffer, position)
            position += 8
            if size < 0:
                partitions.append(PartitionData(index, -1, -1))
                continue
            following = position + size
            if following > end:
                raise WireError("records do not end within the frame")
            partitions.append(PartitionData(index, position, following))
            position = following
        topics.append((name, partitions))
    if position > end:
        # The bytes behind the end belong to another request.
        raise WireError("the request does not end within the frame")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _parse_flexible(buffer: Buffer, position: int, end: int, version: int) -> ProduceRequest:
    length, position = read_compact_length(buffer, position)
    transactional_id = _text(buffer, position, length, end)
    position += max(length, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    topic_count, position = read_uvarint(buffer, position + 6)
    _check_count(topic_count - 1, position, end)
    total = topic_count - 1
    topics: list[tuple[bytes, list[PartitionData]]] = []
    for _ in range(topic_count - 1):
        if version >= TOPIC_IDS_FROM:
            length = 16
        else:
            length, position = read_compact_length(buffer, position)
            if length < 0:
                raise WireError("a topic without a name")
        name = bytes(buffer[position : position + length])
        count, position = read_uvarint(buffer, position + length)
        _check_count(count - 1, position, end)
        total += count - 1
        if total > PARTITIONS_MAX:
            raise WireError(f"more than {PARTITIONS_MAX} partitions")
        partitions: list[PartitionData] = []
        for _ in range(count - 1):
            (index,) = _INT32.unpack_from(buffer, position)
            size, position = read_uvarint(buffer, position + 4)
            if not size:
                partitions.append(PartitionData(index, -1, -1))
                following = position
            else:
                following = position + size - 1
                if following > end:
                    raise WireError("records do not end within the frame")
                partitions.append(PartitionData(index, position, following))
            position = skip_tags(buffer, following, end)
        position = skip_tags(buffer, position, end)
        topics.append((name, partitions))
    skip_tags(buffer, position, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _check_count(count: int, position: int, end: int) -> None:
    # Every element takes at least three bytes, so that a count cannot make us allocate what was not sent.
    if count < 0 or count * 3 > end - position:
        raise WireError(f"an array of {count} elements in {end - position} bytes")


def build_produce_reply(
    correlation_id: int,
    version: int,
    topics: list[tuple[bytes, list[PartitionResult]]],
    nodes: Sequence[NodeAddress] = (),
    throttle_ms: int = 0,
) -> bytes:
    """Return the whole reply frame. ``nodes`` are the addresses of the leaders in the results."""
    flexible = version >= FLEXIBLE_FROM
    out: list[bytes] = [b"\0" if flexible else b"", _count(len(topics), flexible)]
    for name, results in topics:
        out.append(_topic(name, version))
        out.append(_count(len(results), flexible))
        for result in results:
            out.append(_result(result, version))
        if flexible:
            out.append(b"\0")
    throttle = _INT32.pack(throttle_ms)
    out.append(throttle + reply_tags(nodes) if flexible else throttle)
    body = b"".join(out)
    return _SIZE_CORRELATION.pack(len(body) + 4, correlation_id) + body


def throttle_position(reply: bytes, version: int) -> int:
    """Return where the throttle time begins in a reply that names no leaders."""
    return len(reply) - (5 if version >= FLEXIBLE_FROM else 4)


def _result(result: PartitionResult, version: int) -> bytes:
    if version < 5:
        return _RESULT_V3.pack(*result[:4])
    fixed = _RESULT_V5.pack(*result[:5])
    if version < 8:
        return fixed
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    end = tags if result.leader is None else b"\1" + leader_field(_LEADER_TAG, result.leader)
    errors = [_count(len(result.record_errors), flexible)]
    for batch_index, text in result.record_errors:
        errors += (_INT32.pack(batch_index), _nullable(text, flexible), tags)
    return fixed + b"".join(errors) + _nullable(result.message, flexible) + end


class ReplyTemplate:
    """A reply for one partition that differs only in correlation id and offsets, as most replies do."""

    __slots__ = ("_head", "_pack", "_size", "_tail", "_with_start")

    def __init__(self, name: bytes, index: int, version: int) -> None:
        whole = build_produce_reply(0, version, [(name, [PartitionResult(index, 0, -1, -1, -1)])])
        fields = 3 if version >= 5 else 2
        # Base offset, append time and log start offset are the only run of -1 bytes of this length.
        at = whole.rindex(b"\xff" * 8 * fields)
        self._size = len(whole) - 4
        self._head = whole[8:at]
        self._tail = whole[at + 8 * fields :]
        self._with_start = fields == 3
        self._pack = Struct(f">ii{len(self._head)}s{'q' * fields}{len(self._tail)}s").pack

    def fill(self, correlation_id: int, base_offset: int, log_append_time: int, log_start_offset: int) -> bytes:
        if self._with_start:
            return self._pack(
                self._size, correlation_id, self._head, base_offset, log_append_time, log_start_offset, self._tail
            )
        return self._pack(self._size, correlation_id, self._head, base_offset, log_append_time, self._tail)


def _text(buffer: Buffer, position: int, length: int, end: int) -> str | None:
    if length < 0:
        return None
    if position + length > end:
        raise WireError("a text does not end within the frame")
    try:
        return bytes(buffer[position : position + length]).decode()
    except UnicodeDecodeError:
        raise WireError("the transactional id is not UTF-8") from None


def _topic(name: bytes, version: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return name
    if version >= FLEXIBLE_FROM:
        return write_uvarint(len(name) + 1) + name
    return _INT16.pack(len(name)) + name


def _count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else _INT32.pack(count)


def _nullable(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (write_uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data
