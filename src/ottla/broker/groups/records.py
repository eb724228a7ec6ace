"""The records of ``__consumer_offsets``: Kafka's keys and values, as objects and as bytes.

A key starts with an int16, which is the record type and also the version of the key's schema (``_TYPES``). A value
starts with an int16 version. A null value is a tombstone: it deletes the entry of the key. Ottla writes the versions
that other tools parse (OffsetCommitValue 3, GroupMetadataValue 3, version 0 of the consumer group records) and reads
every version that any Kafka release has written.
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
    """Type 0 or 1: a committed offset. Ottla reads both types and writes type 1."""

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
    """Type 4: Kafka wrote it up to 4.0. Ottla ignores the value and deletes the record together with its group."""

    group: str


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """Type 5: a member of a group of the consumer protocol."""

    group: str
    member_id: str


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """Type 6: the epoch of the target assignment of a group."""

    group: str


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """Type 7: the target assignment of a member."""

    group: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """Type 8: the current assignment of a member."""

    group: str
    member_id: str


class ConsumerGroupRegularExpressionKey(NamedTuple):
    """Type 16: the topics that match a regular expression of a group."""

    group: str
    regular_expression: str


# -- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int
    #: only in version 1, for clients before 2.1 that set a retention time in OffsetCommit; -1 otherwise
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
    #: when the group entered its state; -1 in old versions
    current_state_timestamp: int = -1
    members: tuple[MemberMetadata, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    epoch: int
    #: tagged field 0 since Kafka 4.1; 0 if it is missing
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """The classic protocol's data of a member that uses it in a group of the consumer protocol."""

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


#: (topic id, partitions) of each topic; both are sorted, because values are compared for equality
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
    """One record. Without a value it is a tombstone, which deletes the entry of the key."""

    key: Key
    value: Value | None


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return the bytes of the key and of the value. The value is None for a tombstone.

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
    value_type, version, to_schema = _TO_SCHEMA[type(value)]
    assert value_type == number, f"{type(value).__name__} does not belong to {type(key).__name__}"
    body = encode(to_schema(value), version)
    if isinstance(value, ConsumerGroupMemberMetadataValue):
        assert body.endswith(_NO_TAGS)
        body = body.removesuffix(_NO_TAGS) + _encode_classic_tag(value.classic_member_metadata)
    return b"".join(parts), _INT16.pack(version) + body


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Return the record, or None if Ottla ignores its type (share groups, streams groups, type 4 with a value).

    :raises WireError: if the bytes are damaged, or if the version of the value is unknown.
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
    if number not in _FROM_SCHEMA:
        return None
    schema, from_schema = _FROM_SCHEMA[number]
    message, _ = decode(schema, version, value, _INT16.size)
    read = from_schema(message)
    if isinstance(read, ConsumerGroupMemberMetadataValue):
        read = replace(read, classic_member_metadata=_decode_classic_tag(value))
    return CoordinatorRecord(decoded, read)


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_INT64_PAIR: Final = struct.Struct(">qq")
#: type, length of the group
_OFFSET_KEY: Final = struct.Struct(">hh")
#: version, offset, length of the metadata
_OFFSET_VALUE_1: Final = struct.Struct(">hqh")
#: version, offset, leader epoch, length of the metadata
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
#: record type -> class of its key, number of strings in the key; only for keys that consist of strings
_KEYS: Final[dict[int, tuple[Callable[..., Key], int]]] = {
    number: (key, len(key._fields)) for key, number in _TYPES.items()
}


def _decode_key(number: int, key: bytes) -> Key | None:
    """Return the key, or None if Ottla ignores records of this type."""
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
    # Encoded without the schema for speed, like the value: every OffsetCommit has one record per partition.
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
    # As in Kafka's GroupCoordinatorRecordHelpers: only version 1 has expire_timestamp, and it has no leader epoch.
    head = _OFFSET_VALUE_1.pack(1, value.offset, len(metadata))
    return head + metadata + _INT64_PAIR.pack(value.commit_timestamp, value.expire_timestamp)


# The classic member metadata is a nullable tagged struct. Ottla writes the tag even for null, because Kafka takes a
# member without the tag for a member of the classic protocol. Ottla reads a missing tag as null.

_NO_TAGS: Final = b"\x00"
_NULL_STRUCT: Final = b"\x00"
_STRUCT: Final = b"\x01"


def _encode_classic_tag(classic: ClassicMemberMetadata | None) -> bytes:
    """Return the tagged fields of a member's value: the classic member metadata with the tag 0."""
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
    """Return the classic member metadata in the bytes of a member's value, or None.

    The caller has already decoded the value, so the lengths are not checked again.
    """
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


# Conversion between the objects and the schemas. Null is read as "" for fields that are not optional in the object.


def _offset_commit_from_schema(message: schemas.OffsetCommitValue) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata or "",
        commit_timestamp=message.commit_timestamp,
        expire_timestamp=message.expire_timestamp,
    )


def _group_from_schema(message: schemas.GroupMetadataValue) -> GroupMetadataValue:
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


def _group_to_schema(value: GroupMetadataValue) -> schemas.GroupMetadataValue:
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


def _member_from_schema(message: schemas.ConsumerGroupMemberMetadataValue) -> ConsumerGroupMemberMetadataValue:
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


def _member_to_schema(value: ConsumerGroupMemberMetadataValue) -> schemas.ConsumerGroupMemberMetadataValue:
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


def _current_assignment_from_schema(
    message: schemas.ConsumerGroupCurrentMemberAssignmentValue,
) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=message.member_epoch,
        previous_member_epoch=message.previous_member_epoch,
        state=message.state,
        assigned_partitions=_partitions_from_schema(message.assigned_partitions),
        partitions_pending_revocation=_partitions_from_schema(message.partitions_pending_revocation),
    )


def _current_assignment_to_schema(
    value: ConsumerGroupCurrentMemberAssignmentValue,
) -> schemas.ConsumerGroupCurrentMemberAssignmentValue:
    return schemas.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=value.state,
        assigned_partitions=_partitions_to_schema(value.assigned_partitions),
        partitions_pending_revocation=_partitions_to_schema(value.partitions_pending_revocation),
    )


def _partitions_from_schema(topics: Sequence[schemas.TopicIdPartitions]) -> TopicPartitions:
    return tuple((topic.topic_id, tuple(topic.partitions)) for topic in topics)


def _partitions_to_schema(topics: TopicPartitions) -> list[schemas.TopicIdPartitions]:
    return [schemas.TopicIdPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics]


#: record type -> schema of the value, conversion from the schema to the object
_FROM_SCHEMA: Final[dict[int, tuple[type[Message], Callable[[Any], Value]]]] = {
    0: (schemas.OffsetCommitValue, _offset_commit_from_schema),
    1: (schemas.OffsetCommitValue, _offset_commit_from_schema),
    2: (schemas.GroupMetadataValue, _group_from_schema),
    3: (
        schemas.ConsumerGroupMetadataValue,
        lambda message: ConsumerGroupMetadataValue(epoch=message.epoch, metadata_hash=message.metadata_hash),
    ),
    5: (schemas.ConsumerGroupMemberMetadataValue, _member_from_schema),
    6: (
        schemas.ConsumerGroupTargetAssignmentMetadataValue,
        lambda message: ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=message.assignment_epoch),
    ),
    7: (
        schemas.ConsumerGroupTargetAssignmentMemberValue,
        lambda message: ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=_partitions_from_schema(message.topic_partitions)
        ),
    ),
    8: (schemas.ConsumerGroupCurrentMemberAssignmentValue, _current_assignment_from_schema),
    16: (
        schemas.ConsumerGroupRegularExpressionValue,
        lambda message: ConsumerGroupRegularExpressionValue(
            topics=message.topics, version=message.version, timestamp=message.timestamp
        ),
    ),
}
#: class of the value -> record type, version that Ottla writes, conversion from the object to the schema
_TO_SCHEMA: Final[dict[type[Value], tuple[int, int, Callable[[Any], Message]]]] = {
    GroupMetadataValue: (2, 3, _group_to_schema),
    ConsumerGroupMetadataValue: (
        3,
        0,
        lambda value: schemas.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash),
    ),
    ConsumerGroupMemberMetadataValue: (5, 0, _member_to_schema),
    ConsumerGroupTargetAssignmentMetadataValue: (
        6,
        0,
        lambda value: schemas.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=value.assignment_epoch),
    ),
    ConsumerGroupTargetAssignmentMemberValue: (
        7,
        0,
        lambda value: schemas.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=_partitions_to_schema(value.topic_partitions)
        ),
    ),
    ConsumerGroupCurrentMemberAssignmentValue: (8, 0, _current_assignment_to_schema),
    ConsumerGroupRegularExpressionValue: (
        16,
        0,
        lambda value: schemas.ConsumerGroupRegularExpressionValue(
            topics=value.topics, version=value.version, timestamp=value.timestamp
        ),
    ),
}
