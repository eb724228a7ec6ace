"""The bytes that clients of the classic protocol exchange under the protocol type "consumer".

To the coordinator they are opaque, except where it must know what a member wants: to describe a group, to expire the
offsets of topics that nobody reads, and to let such a member into a group of the consumer protocol.
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
    """What a member brings when it joins."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    #: since version 1: what a cooperative member still holds
    owned_partitions: PartitionsByTopic = ()
    #: since version 2: when it got them
    generation_id: int = -1
    #: since version 3
    rack_id: str | None = None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the leader of a group gives to a member."""

    partitions: PartitionsByTopic = ()
    user_data: bytes | None = None
    version: int


def decode_subscription(data: bytes) -> Subscription:
    """A version above ours is read as our newest, and so it is told: a newer one only adds at the end.

    :raises WireError: if the bytes are no subscription.
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
    """In the version it names; what that version lacks is left out."""
    message = ConsumerProtocolSubscription(
        topics=subscription.topics,
        user_data=subscription.user_data,
        owned_partitions=_to_schema(subscription.owned_partitions),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return _VERSION.pack(subscription.version) + encode(message, subscription.version)


def decode_assignment(data: bytes) -> Assignment:
    """No bytes at all are no partitions: what a member gets that the leader forgot.

    :raises WireError: if the bytes are no assignment.
    """
    if not data:
        return Assignment(version=0)
    version = _read_version(data)
    message, _ = decode(ConsumerProtocolAssignment, version, data, _VERSION.size, REQUEST_ELEMENTS_MAX)
    return Assignment(
        partitions=_from_schema(message.assigned_partitions), user_data=message.user_data, version=version
    )


def encode_assignment(assignment: Assignment, version: int) -> bytes:
    """In the version that the member reads, which need not be the one it was decoded from."""
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
