"""The records of ``__consumer_offsets``: Kafka's own keys and values, as objects and as bytes.

A key starts with an int16 that says what the record is (``TYPE``); it is also the version of the key's schema. A value
starts with an int16 version. A null value removes what the key names. We write the versions that other tools parse
(OffsetCommitValue 3, GroupMetadataValue 3, version 0 of the consumer group records) and read every version that Kafka
ever wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
