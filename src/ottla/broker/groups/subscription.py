"""Subscriptions and assignments of the protocol type "consumer", which classic clients exchange as bytes.

The coordinator decodes these bytes only where it needs the topics of a member: to expire the offsets of topics without
a subscriber, to name the cause of a rebalance, and to admit a classic member to a group of the consumer protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.wire import REQUEST_ELEMENTS_MAX, WireError, decode, encode
from ottla.wire.group_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartitions

#: topic -> partitions, in the client's order
PartitionsByTopic = tuple[tuple[str, tuple[int, ...]], ...]

VERSION_MAX: Final = 3

_VERSION: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription that a member sends in JoinGroup."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    #: since version 1: the partitions that a cooperative member still owns
    owned_partitions: PartitionsByTopic = ()
    #: since version 2: the generation in which the member was assigned its owned partitions
    generation_id: int = -1
    #: since version 3
    rack_id: str | None = None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The assignment that the leader of a group sends for one member in SyncGroup."""

    partitions: PartitionsByTopic = ()
    user_data: bytes | None = None
    version: int


def decode_subscription(data: bytes) -> Subscription:
    """Return the decoded subscription. A version above ``VERSION_MAX`` is decoded, and reported, as ``VERSION_MAX``.

    This is possible because newer versions only append fields.

    :raises WireError: if the bytes are not a subscription.
    """
    version = _read_version(data)
    message, _ = decode(ConsumerProtocolSubscription, version, data, _VERSION.size, REQUEST_ELEMENTS_MAX)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned_partitions=_from_schema(message.owned_partitions),
        generation_id=message.generation_id,
        rack_id=message.rack_id,
        version=version,
    )


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the bytes in the version of the subscription, without the fields that this version does not have."""
    message = ConsumerProtocolSubscription(
        topics=subscription.topics,
        user_data=subscription.user_data,
        owned_partitions=_to_schema(subscription.owned_partitions),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return _VERSION.pack(subscription.version) + encode(message, subscription.version)


def decode_assignment(data: bytes) -> Assignment:
    """Return the decoded assignment. Empty bytes, for a member that the leader left out, have no partitions.

    :raises WireError: if the bytes are not an assignment.
    """
    if not data:
        return Assignment(version=0)
    version = _read_version(data)
    message, _ = decode(ConsumerProtocolAssignment, version, data, _VERSION.size, REQUEST_ELEMENTS_MAX)
    return Assignment(
        partitions=_from_schema(message.assigned_partitions), user_data=message.user_data, version=version
    )


def encode_assignment(assignment: Assignment, version: int) -> bytes:
    """Return the bytes in this version, which may differ from the version of the assignment."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=_to_schema(assignment.partitions), user_data=assignment.user_data
    )
    return _VERSION.pack(version) + encode(message, version)


def _read_version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError("bytes of the consumer protocol start with a version, and these are too short for one")
    version: int = _VERSION.unpack_from(data)[0]
    return min(version, VERSION_MAX)


def _from_schema(topics: Sequence[TopicPartitions]) -> PartitionsByTopic:
    return tuple((topic.topic, tuple(topic.partitions)) for topic in topics)


def _to_schema(topics: PartitionsByTopic) -> list[TopicPartitions]:
    return [TopicPartitions(topic=topic, partitions=partitions) for topic, partitions in topics]
