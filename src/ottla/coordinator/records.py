"""The records of ``__consumer_offsets``: Kafka's own keys and values, as objects and as bytes.

A key starts with an int16 that says what the record is (``TYPE``); it is also the version of the key's schema. A value
starts with an int16 version. A null value removes what the key names. We write the versions that other tools parse
(OffsetCommitValue 3, GroupMetadataValue 3, version 0 of the consumer group records) and read every version that Kafka
ever wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ottla.wire import Message, WireError, decode, encode
from ottla.wire import group_records as schemas

# -- keys -------------------------------------------------------------------------------------------------------------


class OffsetCommitKey(NamedTuple):
    """Read as type 0 or 1, written as 1."""

    group: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """Type 2: a classic group."""

    group: str


class ConsumerGroupMetadataKey(NamedTuple):
    """Type 3: the epoch of a group of the consumer protocol."""

    group: str


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """Type 4: written by Kafka up to 4.0; read and ignored, and removed with its group."""

    group: str


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """Type 5."""

    group: str
    member_id: str


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """Type 6."""

    group: str


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """Type 7."""

    group: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """Type 8."""

    group: str
    member_id: str


class ConsumerGroupRegularExpressionKey(NamedTuple):
    """Type 16."""

    group: str
    regular_expression: str


# -- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int
    #: only version 1, which clients from before 2.1 asked for with a retention of their own, has it; -1 otherwise
    expire_timestamp: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    #: when the group came into its state; -1 in old versions
    current_state_timestamp: int = -1
    members: tuple[MemberMetadata, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    epoch: int
    #: tagged field 0 since 4.1; 0 where it is missing
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """What is kept of a member that speaks the classic protocol in a group of the consumer protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int


#: topic id -> partitions; compared as a whole, so keep both in order
TopicPartitions = tuple[tuple[bytes, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: TopicPartitions = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int
    previous_member_epoch: int
    #: Kafka's numbers: 0 stable, 1 unrevoked partitions, 2 unreleased partitions
    state: int
    assigned_partitions: TopicPartitions = ()
    partitions_pending_revocation: TopicPartitions = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...]
    version: int
    timestamp: int


Key = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


class CoordinatorRecord(NamedTuple):
    """One change. Without a value it removes what the key names."""

    key: Key
    value: Value | None


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The key, and the value or None for a tombstone.

    :raises ValueError: if a string or a number is too large for its field.
    """
    key, value = record
    try:
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            return _encode_offset_commit_key(key), None if value is None else _encode_offset_commit_value(value)
        number = _TYPES[type(key)]
        parts = [_INT16.pack(number)]
        for text in key:
            data = text.encode()
            parts += _INT16.pack(len(data)), data
    except struct.error as error:
        raise ValueError(f"a value of {key} does not fit its field: {error}") from None
    if value is None:
        return b"".join(parts), None
    number_of_value, version, to_schema = _WRITTEN[type(value)]
    assert number_of_value == number, f"{type(value).__name__} does not belong to {type(key).__name__}"
    body = encode(to_schema(value), version)
    if isinstance(value, ConsumerGroupMemberMetadataValue):
        assert body.endswith(_NO_TAGS)
        body = body.removesuffix(_NO_TAGS) + _encode_classic_tag(value.classic_member_metadata)
    return b"".join(parts), _INT16.pack(version) + body


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """None for what Ottla has no use for: share and streams groups, and the partition metadata that Kafka gave up.

    :raises WireError: if the bytes are damaged, or the value is of a version that no Kafka wrote so far.
    """
    try:
        (number,) = _INT16.unpack_from(key)
        decoded = _decode_key(number, key)
        if decoded is None or value is None:
            return decoded and CoordinatorRecord(decoded, None)
        (version,) = _INT16.unpack_from(value)
    except struct.error:
        raise WireError("a record of a group is cut short") from None
    except UnicodeDecodeError as error:
        raise WireError(f"a key of a group has a string that is not UTF-8: {error}") from None
    if number not in _READ:
        return None
    schema, from_schema = _READ[number]
    message, _ = decode(schema, version, value, _INT16.size)
    read = from_schema(message)
    if isinstance(read, ConsumerGroupMemberMetadataValue):
        read = replace(read, classic_member_metadata=_decode_classic_tag(value))
    return CoordinatorRecord(decoded, read)


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_INT64_PAIR: Final = struct.Struct(">qq")
#: type and length of the group; version, offset and length of the metadata; the same with the leader epoch
_OFFSET_KEY: Final = struct.Struct(">hh")
_OFFSET_VALUE_1: Final = struct.Struct(">hqh")
_OFFSET_VALUE_3: Final = struct.Struct(">hqih")

_OFFSET_COMMIT: Final = 1
_TYPES: Final[dict[type[Key], int]] = {
    GroupMetadataKey: 2,
    ConsumerGroupMetadataKey: 3,
    ConsumerGroupPartitionMetadataKey: 4,
    ConsumerGroupMemberMetadataKey: 5,
    ConsumerGroupTargetAssignmentMetadataKey: 6,
    ConsumerGroupTargetAssignmentMemberKey: 7,
    ConsumerGroupCurrentMemberAssignmentKey: 8,
    ConsumerGroupRegularExpressionKey: 16,
}
#: keys of strings only, and how many they have
_KEYS: Final[dict[int, tuple[Callable[..., Key], int]]] = {
    number: (key, len(key._fields)) for key, number in _TYPES.items()
}


def _decode_key(number: int, key: bytes) -> Key | None:
    if number in (0, _OFFSET_COMMIT):
        group, position = _read_string(key, _INT16.size)
        topic, position = _read_string(key, position)
        return OffsetCommitKey(group, topic, _INT32.unpack_from(key, position)[0])
    if number not in _KEYS:
        return None
    make, count = _KEYS[number]
    position, strings = _INT16.size, []
    for _ in range(count):
        text, position = _read_string(key, position)
        strings.append(text)
    return make(*strings)


def _read_string(buffer: bytes, position: int) -> tuple[str, int]:
    start = position + _INT16.size
    end = start + _INT16.unpack_from(buffer, position)[0]
    if not start <= end <= len(buffer):
        raise WireError(f"a key of a group has a string of {end - start} bytes, with {len(buffer) - start} bytes left")
    return buffer[start:end].decode(), end


def _encode_offset_commit_key(key: OffsetCommitKey) -> bytes:
    # Written by hand, as is the value: there is one of these per partition in every commit.
    group, topic = key.group.encode(), key.topic.encode()
    return b"".join(
        (
            _OFFSET_KEY.pack(_OFFSET_COMMIT, len(group)),
            group,
            _INT16.pack(len(topic)),
            topic,
            _INT32.pack(key.partition),
        )
    )


def _encode_offset_commit_value(value: OffsetCommitValue) -> bytes:
    metadata = value.metadata.encode()
    if value.expire_timestamp == -1:
        head = _OFFSET_VALUE_3.pack(3, value.offset, value.leader_epoch, len(metadata))
        return head + metadata + _INT64.pack(value.commit_timestamp)
    # GroupCoordinatorRecordHelpers: only version 1 can say when an offset expires; the leader epoch is lost.
    head = _OFFSET_VALUE_1.pack(1, value.offset, len(metadata))
    return head + metadata + _INT64_PAIR.pack(value.commit_timestamp, value.expire_timestamp)


# The classic member metadata is a tagged struct that may be null. It must be written even when it is null: where the
# tag is missing, Kafka takes the member for one that speaks the classic protocol. Where it is missing, we do not.

_NO_TAGS: Final = b"\x00"
_NULL_STRUCT: Final = b"\x00"
_STRUCT: Final = b"\x01"


def _encode_classic_tag(classic: ClassicMemberMetadata | None) -> bytes:
    data = _NULL_STRUCT
    if classic is not None:
        protocols = [
            schemas.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.supported_protocols
        ]
        message = schemas.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms, supported_protocols=protocols
        )
        data = _STRUCT + encode(message, 0)
    size, size_bytes = len(data), bytearray()
    while size > 0x7F:
        size_bytes.append(size & 0x7F | 0x80)
        size >>= 7
    size_bytes.append(size)
    # One tagged field, with the tag 0.
    return b"\x01\x00" + size_bytes + data


def _decode_classic_tag(value: bytes) -> ClassicMemberMetadata | None:
    """Look for it in the value of a member, which was decoded before: lengths need no second check."""
    position = _INT16.size
    for _ in range(4):
        position = _skip_compact(value, position)
    topics, position = _read_varint(value, position)
    for _ in range(topics - 1):
        position = _skip_compact(value, position)
    position = _skip_compact(value, position) + _INT32.size
    position = _skip_compact(value, position)
    tags, position = _read_varint(value, position)
    for _ in range(tags):
        tag, position = _read_varint(value, position)
        size, position = _read_varint(value, position)
        data = value[position : position + size]
        position += size
        if tag == 0 and data != _NULL_STRUCT:
            return _decode_classic(data)
    return None


def _decode_classic(data: bytes) -> ClassicMemberMetadata:
    message, end = decode(schemas.ClassicMemberMetadata, 0, data, len(_STRUCT))
    if not data.startswith(_STRUCT) or end != len(data):
        raise WireError("the classic member metadata is not as long as its tag says")
    return ClassicMemberMetadata(
        session_timeout_ms=message.session_timeout_ms,
        supported_protocols=tuple((each.name or "", each.metadata) for each in message.supported_protocols),
    )


def _skip_compact(buffer: bytes, position: int) -> int:
    length, position = _read_varint(buffer, position)
    return position + max(0, length - 1)


def _read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while buffer[position] > 0x7F:
        value |= (buffer[position] & 0x7F) << shift
        shift += 7
        position += 1
    return value | buffer[position] << shift, position + 1


# From and to the schemas. A null that the object cannot hold is read as "".


def _read_offset_commit(message: schemas.OffsetCommitValue) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata or "",
        commit_timestamp=message.commit_timestamp,
        expire_timestamp=message.expire_timestamp,
    )


def _read_group(message: schemas.GroupMetadataValue) -> GroupMetadataValue:
    members = [
        MemberMetadata(
            member_id=member.member_id or "",
            group_instance_id=member.group_instance_id,
            client_id=member.client_id or "",
            client_host=member.client_host or "",
            rebalance_timeout=member.rebalance_timeout,
            session_timeout=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in message.members
    ]
    return GroupMetadataValue(
        protocol_type=message.protocol_type or "",
        generation=message.generation,
        protocol=message.protocol,
        leader=message.leader,
        current_state_timestamp=message.current_state_timestamp,
        members=tuple(members),
    )


def _group(value: GroupMetadataValue) -> schemas.GroupMetadataValue:
    members = [
        schemas.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout,
            session_timeout=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    ]
    return schemas.GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        current_state_timestamp=value.current_state_timestamp,
        members=members,
    )


def _read_member(message: schemas.ConsumerGroupMemberMetadataValue) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        client_id=message.client_id or "",
        client_host=message.client_host or "",
        subscribed_topic_names=tuple(message.subscribed_topic_names),
        subscribed_topic_regex=message.subscribed_topic_regex,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        server_assignor=message.server_assignor,
    )


def _member(value: ConsumerGroupMemberMetadataValue) -> schemas.ConsumerGroupMemberMetadataValue:
    return schemas.ConsumerGroupMemberMetadataValue(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=value.subscribed_topic_names,
        subscribed_topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
    )


def _read_current_assignment(
    message: schemas.ConsumerGroupCurrentMemberAssignmentValue,
) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=message.member_epoch,
        previous_member_epoch=message.previous_member_epoch,
        state=message.state,
        assigned_partitions=_read_partitions(message.assigned_partitions),
        partitions_pending_revocation=_read_partitions(message.partitions_pending_revocation),
    )


def _current_assignment(
    value: ConsumerGroupCurrentMemberAssignmentValue,
) -> schemas.ConsumerGroupCurrentMemberAssignmentValue:
    return schemas.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=value.state,
        assigned_partitions=_partitions(value.assigned_partitions),
        partitions_pending_revocation=_partitions(value.partitions_pending_revocation),
    )


def _read_partitions(topics: Sequence[schemas.TopicIdPartitions]) -> TopicPartitions:
    return tuple((topic.topic_id, tuple(topic.partitions)) for topic in topics)


def _partitions(topics: TopicPartitions) -> list[schemas.TopicIdPartitions]:
    return [schemas.TopicIdPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics]


#: by type of the record: the schema of its value, and how to make an object of it
_READ: Final[dict[int, tuple[type[Message], Callable[[Any], Value]]]] = {
    0: (schemas.OffsetCommitValue, _read_offset_commit),
    1: (schemas.OffsetCommitValue, _read_offset_commit),
    2: (schemas.GroupMetadataValue, _read_group),
    3: (
        schemas.ConsumerGroupMetadataValue,
        lambda message: ConsumerGroupMetadataValue(epoch=message.epoch, metadata_hash=message.metadata_hash),
    ),
    5: (schemas.ConsumerGroupMemberMetadataValue, _read_member),
    6: (
        schemas.ConsumerGroupTargetAssignmentMetadataValue,
        lambda message: ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=message.assignment_epoch),
    ),
    7: (
        schemas.ConsumerGroupTargetAssignmentMemberValue,
        lambda message: ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=_read_partitions(message.topic_partitions)
        ),
    ),
    8: (schemas.ConsumerGroupCurrentMemberAssignmentValue, _read_current_assignment),
    16: (
        schemas.ConsumerGroupRegularExpressionValue,
        lambda message: ConsumerGroupRegularExpressionValue(
            topics=message.topics, version=message.version, timestamp=message.timestamp
        ),
    ),
}
#: the type of its record, the version that is written, and how to bring it into the schema
_WRITTEN: Final[dict[type[Value], tuple[int, int, Callable[[Any], Message]]]] = {
    GroupMetadataValue: (2, 3, _group),
    ConsumerGroupMetadataValue: (
        3,
        0,
        lambda value: schemas.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash),
    ),
    ConsumerGroupMemberMetadataValue: (5, 0, _member),
    ConsumerGroupTargetAssignmentMetadataValue: (
        6,
        0,
        lambda value: schemas.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=value.assignment_epoch),
    ),
    ConsumerGroupTargetAssignmentMemberValue: (
        7,
        0,
        lambda value: schemas.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=_partitions(value.topic_partitions)
        ),
    ),
    ConsumerGroupCurrentMemberAssignmentValue: (8, 0, _current_assignment),
    ConsumerGroupRegularExpressionValue: (
        16,
        0,
        lambda value: schemas.ConsumerGroupRegularExpressionValue(
            topics=value.topics, version=value.version, timestamp=value.timestamp
        ),
    ),
}
