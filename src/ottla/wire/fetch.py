"""Fetch (1) v4-v18, by hand: fixed-size rows are unpacked in one call, and file regions are sent without being read.

v4 isolation level. v5 log start offset. v7 fetch sessions. v9 current leader epoch. v11 rack. v12 flexible, last
fetched epoch. v13 topic ids. v15 replica state as a tagged field. v16 node endpoints. v17 directory id of a replica.
v18 high watermark of a follower as a tagged field.

A follower of this broker also sends, as a tagged field of each partition, the offset up to which it has synced its log
(`replica_fetch.py`). Apache Kafka has no field for it, and ignores tags that it does not know.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ottla.wire.codec import REQUEST_ELEMENTS_MAX
from ottla.wire.frame import (
    HEADER_TAGS_MAX,
    TAGS_MAX,
    Buffer,
    read_compact_length,
    read_uvarint,
    skip_client_id,
    skip_tags,
)
from ottla.wire.leader_hints import LeaderHint, leader_field
from ottla.wire.primitives import WireError, write_uvarint

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
SESSIONS_FROM = 7
RACK_FROM = 11
#: versions in which the replica id is a tagged field
REPLICA_STATE_FROM = 15
REPLICA_STATE_TAG = 1
#: tag of the offset up to which a follower has synced its log; far above those that Kafka assigns
SYNCED_END_OFFSET_TAG = 10_000
#: tag in the reply to a follower: a writer waits until followers have synced its batch
SYNC_WANTED_TAG = 10_000
#: versions in which a row with an error may name the leader, and the reply its address
LEADERS_FROM = 16
_LEADER_TAG = 1

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_TWO_INT32 = Struct(">ii")
_START_V4 = Struct(">iiiib")
_START_V7 = Struct(">iiiibii")
_START_V15 = Struct(">iiibii")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
REPLICA_STATE = Struct(">iq")
_INT64 = Struct(">q")

# A follower's request for partitions of one topic, the most frequent one, has a fixed layout after its first fields:
# one topic with its id and fewer than 127 rows, each with one tagged field, then this, replica state and no tags.
ONE_TOPIC_END = b"\0\1\1\1\1\x0d"
#: the fields of a partition, its only tagged field with its size, the synced end offset
FOLLOWER_ROW = Struct(">iiqiqi4sq")
SYNCED_TAG_START = b"\1" + write_uvarint(SYNCED_END_OFFSET_TAG) + b"\x08"
_ONE_TOPIC_HEAD_BYTES = 18
_ONE_TOPIC_TAIL_BYTES = len(ONE_TOPIC_END) + REPLICA_STATE.size + 1


class FetchPartition(NamedTuple):
    """One partition that a client wants to read."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    size_bytes_max: int
    #: the follower has synced everything below it; -1 if it was not sent
    synced_end_offset: int = -1


class FetchRequest(NamedTuple):
    """A topic is its name's bytes, or its id's from v13 on."""

    max_wait_ms: int
    min_bytes: int
    size_bytes_max: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[FetchPartition]]]
    forgotten: list[tuple[bytes, list[int]]]
    #: the broker that copies the log, and the epoch of its registration; -1 for a consumer
    replica_id: int = -1
    replica_epoch: int = -1
    #: the consumer's rack; empty if it has none
    rack: str = ""


def parse_fetch(buffer: Buffer, start: int, end: int, version: int) -> FetchRequest:
    """Parse the frame ``buffer[start:end]``, header included. Raises WireError, IndexError or struct.error."""
    position = skip_client_id(buffer, start + 8, end)
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        position = skip_tags(buffer, position, end, HEADER_TAGS_MAX)
    session_id, session_epoch = 0, -1
    replica_id = replica_epoch = -1
    if version >= REPLICA_STATE_FROM:
        wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _START_V15.unpack_from(buffer, position)
        position += _START_V15.size
        row = _read_one_topic(buffer, position, end) if end - position > _ONE_TOPIC_TAIL_BYTES else None
        if row is not None:
            topic, replica_id, replica_epoch = row
            return FetchRequest(
                wait_ms, min_bytes, max_bytes, isolation == 1, session_id, session_epoch, [topic], [], replica_id,
                replica_epoch,
            )  # fmt: skip
    elif version >= SESSIONS_FROM:
        replica_id, wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _START_V7.unpack_from(
            buffer, position
        )
        position += _START_V7.size
    else:
        replica_id, wait_ms, min_bytes, max_bytes, isolation = _START_V4.unpack_from(buffer, position)
        position += _START_V4.size
    topics: list[tuple[bytes, list[FetchPartition]]] = []
    count, position = _read_count(buffer, position, end, flexible)
    elements = count
    for _ in range(count):
        name, position = _read_topic(buffer, position, end, version)
        partitions, position = _read_partitions(buffer, position, end, version)
        elements += len(partitions)
        if elements > REQUEST_ELEMENTS_MAX:
            raise WireError(f"more than {REQUEST_ELEMENTS_MAX} topics and partitions")
        if flexible:
            position = skip_tags(buffer, position, end)
        topics.append((name, partitions))
    forgotten: list[tuple[bytes, list[int]]] = []
    if version >= SESSIONS_FROM:
        count, position = _read_count(buffer, position, end, flexible)
        elements += count
        for _ in range(count):
            name, position = _read_topic(buffer, position, end, version)
            numbers, position = _read_count(buffer, position, end, flexible)
            elements += numbers
            if elements > REQUEST_ELEMENTS_MAX:
                raise WireError(f"more than {REQUEST_ELEMENTS_MAX} topics and partitions")
            indexes = [_INT32.unpack_from(buffer, position + 4 * n)[0] for n in range(numbers)]
            position += 4 * numbers
            if flexible:
                position = skip_tags(buffer, position, end)
            forgotten.append((name, indexes))
    rack = ""
    if version >= RACK_FROM:
        rack, position = _read_rack(buffer, position, end, flexible)
    if flexible:
        if version >= REPLICA_STATE_FROM and position < end and buffer[position]:
            replica_id, replica_epoch = _read_replica_state(buffer, position, end)
        position = skip_tags(buffer, position, end)
    if position > end:
        # The bytes behind the end belong to another request.
        raise WireError("the request does not end within the frame")
    return FetchRequest(
        wait_ms, min_bytes, max_bytes, isolation == 1, session_id, session_epoch, topics, forgotten, replica_id,
        replica_epoch, rack,
    )  # fmt: skip


def _read_one_topic(
    buffer: Buffer, position: int, end: int
) -> tuple[tuple[bytes, list[FetchPartition]], int, int] | None:
    """Return topic, replica id and replica epoch of a request with the layout that followers use most; None for others.

    Only a fast path: ``parse_fetch`` reads such a request to the same result without it.
    """
    size = end - position - _ONE_TOPIC_HEAD_BYTES - _ONE_TOPIC_TAIL_BYTES
    count, rest = divmod(size, FOLLOWER_ROW.size)
    if rest or not 0 < count < 127 or buffer[position] != 2 or buffer[position + 17] != count + 1 or buffer[end - 1]:
        return None
    start, tail = position + _ONE_TOPIC_HEAD_BYTES, end - _ONE_TOPIC_TAIL_BYTES
    if buffer[tail : tail + len(ONE_TOPIC_END)] != ONE_TOPIC_END:
        return None
    partitions = []
    for index, epoch, offset, last_epoch, log_start, max_bytes, tag, synced in FOLLOWER_ROW.iter_unpack(
        bytes(buffer[start:tail])
    ):
        if tag != SYNCED_TAG_START:
            return None
        partitions.append(FetchPartition(index, epoch, offset, last_epoch, log_start, max_bytes, synced))
    replica_id, replica_epoch = REPLICA_STATE.unpack_from(buffer, tail + len(ONE_TOPIC_END))
    return (bytes(buffer[position + 1 : position + 17]), partitions), replica_id, replica_epoch


def _read_replica_state(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return replica id and replica epoch from the tagged fields of a request; -1 and -1 if they are absent."""
    found = find_tag(buffer, position, end, REPLICA_STATE_TAG)
    if found is None:
        return -1, -1
    start, size = found
    if size < REPLICA_STATE.size:
        raise WireError(f"a replica state of {size} bytes")
    replica_id, replica_epoch = REPLICA_STATE.unpack_from(buffer, start)
    return replica_id, replica_epoch


def _read_synced_end_offset(buffer: Buffer, position: int, end: int) -> int:
    found = find_tag(buffer, position, end, SYNCED_END_OFFSET_TAG)
    if found is None:
        return -1
    start, size = found
    if size != _INT64.size:
        raise WireError(f"a synced end offset of {size} bytes")
    return int(_INT64.unpack_from(buffer, start)[0])


def find_tag(buffer: Buffer, position: int, end: int, tag: int) -> tuple[int, int] | None:
    """Return position and size of one tagged field of the section at ``position``; None if it is absent.

    Raise WireError or IndexError if the section is malformed.
    """
    count, position = read_uvarint(buffer, position)
    if count > TAGS_MAX:
        raise WireError(f"{count} tagged fields")
    found = None
    for _ in range(count):
        number, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        if number == tag:
            found = position, size
        position += size
        if position > end:
            raise WireError("a tagged field does not end within the frame")
    return found


def _read_topic(buffer: Buffer, position: int, end: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS_FROM:
        length = 16
    elif version >= FLEXIBLE_FROM:
        length, position = read_compact_length(buffer, position)
    else:
        (length,) = _INT16.unpack_from(buffer, position)
        position += 2
    if length < 0 or position + length > end:
        raise WireError("a topic does not end within the frame")
    return bytes(buffer[position : position + length]), position + length


def _read_partitions(buffer: Buffer, position: int, end: int, version: int) -> tuple[list[FetchPartition], int]:
    flexible = version >= FLEXIBLE_FROM
    count, position = _read_count(buffer, position, end, flexible)
    partitions: list[FetchPartition] = []
    if flexible:
        unpack, size = _PARTITION_V12.unpack_from, _PARTITION_V12.size
        for _ in range(count):
            index, epoch, offset, last_epoch, log_start, max_bytes = unpack(buffer, position)
            position += size
            if position < end and not buffer[position]:
                partitions.append(FetchPartition(index, epoch, offset, last_epoch, log_start, max_bytes))
                position += 1
                continue
            following = skip_tags(buffer, position, end)
            synced = _read_synced_end_offset(buffer, position, end)
            partitions.append(FetchPartition(index, epoch, offset, last_epoch, log_start, max_bytes, synced))
            position = following
        return partitions, position
    shape = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    following = position + count * shape.size
    if following > end:
        raise WireError("partitions do not end within the frame")
    for row in shape.iter_unpack(bytes(buffer[position:following])):
        if version >= 9:
            index, epoch, offset, log_start, max_bytes = row
        elif version >= 5:
            index, offset, log_start, max_bytes = row
            epoch = -1
        else:
            index, offset, max_bytes = row
            epoch = log_start = -1
        partitions.append(FetchPartition(index, epoch, offset, -1, log_start, max_bytes))
    return partitions, following


def _read_rack(buffer: Buffer, position: int, end: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        length, position = read_compact_length(buffer, position)
    else:
        (length,) = _INT16.unpack_from(buffer, position)
        position += 2
    if not length:
        return "", position
    if length < 0 or position + length > end:
        raise WireError("the rack is null or does not end within the frame")
    try:
        return bytes(buffer[position : position + length]).decode(), position + length
    except UnicodeDecodeError:
        raise WireError("the rack is not UTF-8") from None


def _read_count(buffer: Buffer, position: int, end: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = read_uvarint(buffer, position)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(buffer, position)
        position += 4
    if count < 0 or count * 3 > end - position or count > REQUEST_ELEMENTS_MAX:
        raise WireError(f"an array of {count} elements in {end - position} bytes")
    return count, position


class ReplyShape:
    """The fixed pieces of a reply in one version."""

    __slots__ = ("flexible", "partition", "partition_tail", "topic_ids", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.flexible = version >= FLEXIBLE_FROM
        self.topic_ids = version >= TOPIC_IDS_FROM
        # index, error, high watermark, last stable offset, [log start], aborted = null, [preferred replica = -1]
        middle = "q" if version >= 5 else ""
        aborted = "b" if self.flexible else "i"
        preferred = "i" if version >= 11 else ""
        self.partition = Struct(f">ihqq{middle}{aborted}{preferred}")
        self.partition_tail = b"\0" if self.flexible else b""

    @property
    def throttle_position(self) -> int:
        """Return where the throttle time begins in a reply frame."""
        return 9 if self.flexible else 8

    def reply_start(self, throttle_ms: int, error_code: int, session_id: int) -> bytes:
        head = b"\0" if self.flexible else b""
        if self.version >= SESSIONS_FROM:
            return head + _THROTTLE_ERROR_SESSION.pack(throttle_ms, error_code, session_id)
        return head + _INT32.pack(throttle_ms)

    def partition_start(
        self,
        index: int,
        error_code: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        records_bytes: int,
        aborted: list[tuple[int, int]] | None = None,
        preferred_replica: int = -1,
    ) -> bytes:
        """Return everything before the records. ``aborted`` is None for a read_uncommitted reader."""
        fields = [index, error_code, high_watermark, last_stable_offset]
        if self.version >= 5:
            fields.append(log_start_offset)
        fields.append(0 if self.flexible else -1)
        if self.version >= RACK_FROM:
            fields.append(preferred_replica)
        head = self.partition.pack(*fields)
        if aborted is not None:
            head = self._with_aborted(head, aborted)
        if self.flexible:
            return head + write_uvarint(records_bytes + 1)
        return head + _INT32.pack(records_bytes)

    def _with_aborted(self, head: bytes, aborted: list[tuple[int, int]]) -> bytes:
        width = 1 if self.flexible else 4
        preferred_bytes = 4 if self.version >= 11 else 0
        before = head[: len(head) - preferred_bytes - width]
        rows = b"".join(_ABORTED.pack(*row) + self.partition_tail for row in aborted)
        return before + self.count(len(aborted)) + rows + head[len(head) - preferred_bytes :]

    def partition_end(self, diverging: tuple[int, int] | None, leader: LeaderHint | None = None) -> bytes:
        """Return everything behind the records: the tagged fields, with a diverging epoch or the leader if given."""
        if leader is not None:
            return b"\1" + leader_field(_LEADER_TAG, leader)
        if diverging is None or not self.flexible:
            return self.partition_tail
        value = _DIVERGING.pack(*diverging) + b"\0"
        return b"\1\0" + write_uvarint(len(value)) + value

    def topic(self, name: bytes) -> bytes:
        if self.topic_ids:
            return name
        return (write_uvarint(len(name) + 1) if self.flexible else _INT16.pack(len(name))) + name

    def count(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self.flexible else _INT32.pack(count)


#: the tagged fields behind the records, with only SYNC_WANTED_TAG, which has no value
SYNC_WANTED = b"\1" + write_uvarint(SYNC_WANTED_TAG) + b"\0"
_THROTTLE_ERROR_SESSION = Struct(">ihi")
_ABORTED = Struct(">qq")
_DIVERGING = Struct(">iq")
_shapes: dict[int, ReplyShape] = {}


def reply_shape(version: int) -> ReplyShape:
    shape = _shapes.get(version)
    if shape is None:
        shape = _shapes[version] = ReplyShape(version)
    return shape


def frame_start(correlation_id: int, body_bytes: int) -> bytes:
    return _TWO_INT32.pack(body_bytes + 4, correlation_id)
