"""Requests of consumer groups, with defaults that are right: a test names only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla.broker.groups.subscription import Subscription, encode_subscription
from ottla.testing.raw import RawClient
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

#: a topic by its name, or by its id in versions that use ids
TopicKey = str | bytes

MEMBER_ID_REQUIRED_FROM = 4
STATIC_FROM = 5
BATCH_LEAVE_FROM = 3
MANY_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10


def subscription(*topics: str, version: int = 3) -> bytes:
    return encode_subscription(Subscription(topics=topics, version=version))


SUBSCRIBED = subscription("one")


def join(group: str, member: str = "", protocols: Mapping[str, bytes] | None = None, **fields: Any) -> JoinGroupRequest:
    rows = {"range": SUBSCRIBED} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in rows.items()],
        **{"session_timeout": 30_000, "rebalance_timeout": 30_000, "protocol_type": "consumer"} | fields,
    )


def sync(
    group: str, generation: int, member: str, assignments: Mapping[str, bytes] | None = None, **fields: Any
) -> SyncGroupRequest:
    rows = [SyncGroupRequestAssignment(member_id=each, assignment=given) for each, given in (assignments or {}).items()]
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=rows,
        **{"protocol_type": "consumer", "protocol_name": "range"} | fields,
    )


def beat(group: str, generation: int, member: str, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def leave(group: str, *members: str | tuple[str, str | None]) -> LeaveGroupRequest:
    """Members by id, or by id and instance id; before v3 only the first counts."""
    pairs = [each if isinstance(each, tuple) else (each, None) for each in members]
    return LeaveGroupRequest(
        group_id=group,
        member_id=pairs[0][0] if pairs else "",
        members=[MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in pairs],
    )


def commit(
    group: str, offsets: Mapping[tuple[TopicKey, int], int | tuple[int, str | None]], generation: int = -1,
    member: str = "", leader_epoch: int = -1, **fields: Any,
) -> OffsetCommitRequest:  # fmt: skip
    """One topic entry for each partition; an offset may come with its metadata."""
    topics = []
    for (topic, partition), value in offsets.items():
        offset, metadata = value if isinstance(value, tuple) else (value, "")
        row = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata,
            committed_leader_epoch=leader_epoch,
        )  # fmt: skip
        topics.append(OffsetCommitRequestTopic(**_named(topic), partitions=[row]))
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics, **fields
    )


def fetch(
    group: str, topics: Mapping[TopicKey, Sequence[int]] | None, version: int, *, member: str | None = None,
    epoch: int = -1, stable: bool = False,
) -> OffsetFetchRequest:  # fmt: skip
    """Of one group; None asks for all topics."""
    if version < MANY_GROUPS_FROM:
        rows = None
        if topics is not None:
            rows = [OffsetFetchRequestTopic(name=str(name), partition_indexes=of) for name, of in topics.items()]
        return OffsetFetchRequest(group_id=group, topics=rows, require_stable=stable)
    return OffsetFetchRequest(groups=[asked(group, topics, member, epoch)], require_stable=stable)


def asked(
    group: str, topics: Mapping[TopicKey, Sequence[int]] | None, member: str | None = None, epoch: int = -1
) -> OffsetFetchRequestGroup:
    rows = None
    if topics is not None:
        rows = [OffsetFetchRequestTopics(**_named(topic), partition_indexes=of) for topic, of in topics.items()]
    return OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=rows)


def delete_offsets(group: str, topics: Mapping[str, Sequence[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for name, numbers in topics.items()
        ],
    )


def consumer_beat(
    group: str, member: str, epoch: int, owned: Mapping[bytes, Sequence[int]] | None = None, **fields: Any
) -> ConsumerGroupHeartbeatRequest:
    rows = None
    if owned is not None:
        rows = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in owned.items()
        ]
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, topic_partitions=rows, **fields
    )


def consumer_join(group: str, member: str, topics: Sequence[str] | None = ("one",), **fields: Any) -> Any:
    """The first heartbeat of a member: all that it must say."""
    return consumer_beat(
        group, member, 0, owned={}, **{"rebalance_timeout": 30_000, "subscribed_topic_names": topics} | fields
    )


def _named(topic: TopicKey) -> dict[str, Any]:
    return {"name": topic} if isinstance(topic, str) else {"topic_id": topic}


# -- steps that many tests begin with ---------------------------------------------------------------------------------


def become_member(client: RawClient, group: str, version: int = 9, **fields: Any) -> Any:
    """Join as the only member, however many steps this version takes; the answer with the generation."""
    answer = client.ask(join(group, **fields), version)
    if answer.error_code == 79:
        answer = client.ask(join(group, answer.member_id, **fields), version)
    assert answer.error_code == 0, answer
    return answer


def become_stable(client: RawClient, group: str, assignment: bytes = b"mine", **fields: Any) -> tuple[str, int]:
    """The only member of a group that is Stable: its id and its generation."""
    joined = become_member(client, group, **fields)
    synced = client.ask(sync(group, joined.generation_id, joined.member_id, {joined.member_id: assignment}), 3)
    assert synced.error_code == 0, synced
    return joined.member_id, joined.generation_id
