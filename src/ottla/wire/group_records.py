"""What consumer groups keep as bytes outside of requests: values of ``__consumer_offsets``, the "consumer" protocol.

The tables are those of Apache Kafka 4.3. Tagged fields that Ottla makes no use of are left out; they are skipped.
Each of these is written after an int16 with its version, which is not part of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ottla.wire.schema import NEVER_FLEXIBLE, ZERO_UUID, Array, Field, Message, Struct

# -- values of __consumer_offsets -------------------------------------------------------------------------------------
# A string is nullable here even where Kafka allows no null: one odd null must not keep a whole log from loading.


@dataclass(slots=True, kw_only=True)
class OffsetCommitValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("offset", "int64", (0, 4), default=0),
        Field("leader_epoch", "int32", (3, 4), default=-1),
        Field("metadata", "string", (0, 4), nullable_versions=(0, 4)),
        Field("commit_timestamp", "int64", (0, 4), default=0),
        Field("expire_timestamp", "int64", (1, 1), default=-1),
    )

    offset: int = 0
    leader_epoch: int = -1
    metadata: str | None = None
    commit_timestamp: int = 0
    expire_timestamp: int = -1


@dataclass(slots=True, kw_only=True)
class MemberMetadata(Struct):
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_id", "string", (0, 4), nullable_versions=(0, 4)),
        Field("group_instance_id", "string", (3, 4), nullable_versions=(3, 4)),
        Field("client_id", "string", (0, 4), nullable_versions=(0, 4)),
        Field("client_host", "string", (0, 4), nullable_versions=(0, 4)),
        Field("rebalance_timeout", "int32", (1, 4), default=-1),
        Field("session_timeout", "int32", (0, 4), default=0),
        Field("subscription", "bytes", (0, 4), default=b""),
        Field("assignment", "bytes", (0, 4), default=b""),
    )

    member_id: str | None = None
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    rebalance_timeout: int = -1
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class GroupMetadataValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("protocol_type", "string", (0, 4), nullable_versions=(0, 4)),
        Field("generation", "int32", (0, 4), default=0),
        Field("protocol", "string", (0, 4), nullable_versions=(0, 4)),
        Field("leader", "string", (0, 4), nullable_versions=(0, 4)),
        Field("current_state_timestamp", "int64", (2, 4), default=-1),
        Field("members", Array(MemberMetadata), (0, 4), default=()),
    )

    protocol_type: str | None = None
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = -1
    members: Sequence[MemberMetadata] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMetadataValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("epoch", "int32", (0, 0), default=0),
        Field("metadata_hash", "int64", (0, 0), tag=0, tag_versions=(0, 0), default=0),
    )

    epoch: int = 0
    metadata_hash: int = 0


@dataclass(slots=True, kw_only=True)
class ClassicProtocol(Struct):
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", "string", (0, 0), nullable_versions=(0, 0)),
        Field("metadata", "bytes", (0, 0), default=b""),
    )

    name: str | None = None
    metadata: bytes = b""


@dataclass(slots=True, kw_only=True)
class ClassicMemberMetadata(Message):
    """Tagged field 0 of the next one, on its own: Kafka writes null there as a tag that holds the byte 0."""

    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("session_timeout_ms", "int32", (0, 0), default=0),
        Field("supported_protocols", Array(ClassicProtocol), (0, 0), default=()),
    )

    session_timeout_ms: int = 0
    supported_protocols: Sequence[ClassicProtocol] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("instance_id", "string", (0, 0), nullable_versions=(0, 0)),
        Field("rack_id", "string", (0, 0), nullable_versions=(0, 0)),
        Field("client_id", "string", (0, 0), nullable_versions=(0, 0)),
        Field("client_host", "string", (0, 0), nullable_versions=(0, 0)),
        Field("subscribed_topic_names", Array("string"), (0, 0), default=()),
        Field("subscribed_topic_regex", "string", (0, 0), nullable_versions=(0, 0)),
        Field("rebalance_timeout_ms", "int32", (0, 0), default=-1),
        Field("server_assignor", "string", (0, 0), nullable_versions=(0, 0)),
    )

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    subscribed_topic_names: Sequence[str] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("assignment_epoch", "int32", (0, 0), default=0),)

    assignment_epoch: int = 0


@dataclass(slots=True, kw_only=True)
class TopicIdPartitions(Struct):
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic_id", "uuid", (0, 0), default=ZERO_UUID),
        Field("partitions", Array("int32"), (0, 0), default=()),
    )

    topic_id: bytes = ZERO_UUID
    partitions: Sequence[int] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("topic_partitions", Array(TopicIdPartitions), (0, 0), default=()),)

    topic_partitions: Sequence[TopicIdPartitions] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_epoch", "int32", (0, 0), default=0),
        Field("previous_member_epoch", "int32", (0, 0), default=0),
        Field("state", "int8", (0, 0), default=0),
        Field("assigned_partitions", Array(TopicIdPartitions), (0, 0), default=()),
        Field("partitions_pending_revocation", Array(TopicIdPartitions), (0, 0), default=()),
    )

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: Sequence[TopicIdPartitions] = ()
    partitions_pending_revocation: Sequence[TopicIdPartitions] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array("string"), (0, 0), default=()),
        Field("version", "int64", (0, 0), default=0),
        Field("timestamp", "int64", (0, 0), default=0),
    )

    topics: Sequence[str] = ()
    version: int = 0
    timestamp: int = 0


# -- the "consumer" protocol ------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TopicPartitions(Struct):
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", "string", (0, 3), default=""),
        Field("partitions", Array("int32"), (0, 3), default=()),
    )

    topic: str = ""
    partitions: Sequence[int] = ()


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolSubscription(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = NEVER_FLEXIBLE
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array("string"), (0, 3), default=()),
        Field("user_data", "bytes", (0, 3), nullable_versions=(0, 3)),
        Field("owned_partitions", Array(TopicPartitions), (1, 3), default=()),
        Field("generation_id", "int32", (2, 3), default=-1),
        Field("rack_id", "string", (3, 3), nullable_versions=(3, 3)),
    )

    topics: Sequence[str] = ()
    user_data: bytes | None = None
    owned_partitions: Sequence[TopicPartitions] = ()
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerProtocolAssignment(Message):
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = NEVER_FLEXIBLE
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("assigned_partitions", Array(TopicPartitions), (0, 3), default=()),
        Field("user_data", "bytes", (0, 3), nullable_versions=(0, 3)),
    )

    assigned_partitions: Sequence[TopicPartitions] = ()
    user_data: bytes | None = None
