"""Schemas of consumer groups besides requests: values of ``__consumer_offsets``, and the "consumer" protocol.

The tables are those of Apache Kafka 4.3. Tagged fields that Ottla does not use are left out; a decoder skips them.
Each of these is written after an int16 with its version, which is not part of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.wire.schema import ZERO_UUID, Array, Message, Struct, field

# -- values of __consumer_offsets -------------------------------------------------------------------------------------
# A string is nullable here even where Kafka allows no null, so that an unexpected null does not stop the load of a log.


class OffsetCommitValue(Message, versions=(0, 4), flexible_from=4):
    offset: int = field("int64", (0, 4), default=0)
    leader_epoch: int = field("int32", (3, 4), default=-1)
    metadata: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    commit_timestamp: int = field("int64", (0, 4), default=0)
    expire_timestamp: int = field("int64", (1, 1), default=-1)


class MemberMetadata(Struct):
    member_id: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    group_instance_id: str | None = field("string", (3, 4), nullable_versions=(3, 4), default=None)
    client_id: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    client_host: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    rebalance_timeout: int = field("int32", (1, 4), default=-1)
    session_timeout: int = field("int32", (0, 4), default=0)
    subscription: bytes = field("bytes", (0, 4), default=b"")
    assignment: bytes = field("bytes", (0, 4), default=b"")


class GroupMetadataValue(Message, versions=(0, 4), flexible_from=4):
    protocol_type: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    generation: int = field("int32", (0, 4), default=0)
    protocol: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    leader: str | None = field("string", (0, 4), nullable_versions=(0, 4), default=None)
    current_state_timestamp: int = field("int64", (2, 4), default=-1)
    members: Sequence[MemberMetadata] = field(Array(MemberMetadata), (0, 4), default=())


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible_from=0):
    epoch: int = field("int32", (0, 0), default=0)
    metadata_hash: int = field("int64", (0, 0), tag=0, tag_versions=(0, 0), default=0)


class ClassicProtocol(Struct):
    name: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    metadata: bytes = field("bytes", (0, 0), default=b"")


class ClassicMemberMetadata(Message, versions=(0, 0), flexible_from=0):
    """Tagged field 0 of the next one, on its own: Kafka writes null there as a tag that holds the byte 0."""

    session_timeout_ms: int = field("int32", (0, 0), default=0)
    supported_protocols: Sequence[ClassicProtocol] = field(Array(ClassicProtocol), (0, 0), default=())


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible_from=0):
    instance_id: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    rack_id: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    client_id: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    client_host: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    subscribed_topic_names: Sequence[str] = field(Array("string"), (0, 0), default=())
    subscribed_topic_regex: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)
    rebalance_timeout_ms: int = field("int32", (0, 0), default=-1)
    server_assignor: str | None = field("string", (0, 0), nullable_versions=(0, 0), default=None)


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible_from=0):
    assignment_epoch: int = field("int32", (0, 0), default=0)


class TopicIdPartitions(Struct):
    topic_id: bytes = field("uuid", (0, 0), default=ZERO_UUID)
    partitions: Sequence[int] = field(Array("int32"), (0, 0), default=())


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible_from=0):
    topic_partitions: Sequence[TopicIdPartitions] = field(Array(TopicIdPartitions), (0, 0), default=())


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible_from=0):
    member_epoch: int = field("int32", (0, 0), default=0)
    previous_member_epoch: int = field("int32", (0, 0), default=0)
    state: int = field("int8", (0, 0), default=0)
    assigned_partitions: Sequence[TopicIdPartitions] = field(Array(TopicIdPartitions), (0, 0), default=())
    partitions_pending_revocation: Sequence[TopicIdPartitions] = field(Array(TopicIdPartitions), (0, 0), default=())


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible_from=0):
    topics: Sequence[str] = field(Array("string"), (0, 0), default=())
    version: int = field("int64", (0, 0), default=0)
    timestamp: int = field("int64", (0, 0), default=0)


# -- the "consumer" protocol ------------------------------------------------------------------------------------------


class TopicPartitions(Struct):
    topic: str = field("string", (0, 3), default="")
    partitions: Sequence[int] = field(Array("int32"), (0, 3), default=())


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: Sequence[str] = field(Array("string"), (0, 3), default=())
    user_data: bytes | None = field("bytes", (0, 3), nullable_versions=(0, 3), default=None)
    owned_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions), (1, 3), default=())
    generation_id: int = field("int32", (2, 3), default=-1)
    rack_id: str | None = field("string", (3, 3), nullable_versions=(3, 3), default=None)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions), (0, 3), default=())
    user_data: bytes | None = field("bytes", (0, 3), nullable_versions=(0, 3), default=None)
