"""Requests to the group coordinator from messages, and messages from its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Topics
from ottla.broker.groups.classic import STABLE, ClassicGroup
from ottla.broker.groups.consumer import ConsumerGroup
from ottla.broker.groups.records import TopicPartitions
from ottla.broker.groups.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    FetchedGroup,
    FetchedOffset,
    FetchTopic,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    OffsetCommit,
    OffsetFetch,
    OffsetResult,
    OffsetRow,
    OffsetTopic,
    Sender,
    Sync,
    SyncResult,
)
from ottla.broker.groups.shard import Group
from ottla.model.errors import ErrorCode, shortened
from ottla.wire.messages import consumer_group_describe as descriptions
from ottla.wire.messages import consumer_group_heartbeat as heartbeats
from ottla.wire.messages import offset_fetch
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from ottla.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ottla.wire.messages.list_groups import ListedGroup
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: first versions of JoinGroup in which a new member needs an id, a missing protocol name is null, and there is
#: skip_assignment
_MEMBER_ID_REQUIRED_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_ASSIGNMENT_FROM = 9
#: first version of LeaveGroup with several members, each with an error code
_BATCH_LEAVE_FROM = 3
#: first version of ConsumerGroupHeartbeat in which the client makes its member id
_CLIENT_MEMBER_ID_FROM = 1
#: first versions of OffsetCommit with a member epoch, and of OffsetCommit and OffsetFetch with topic ids
_MEMBER_EPOCH_FROM = 9
_TOPIC_IDS_FROM = 10
#: first version of DescribeGroups with GROUP_ID_NOT_FOUND
_DESCRIBE_NOT_FOUND_FROM = 6


# -- the classic protocol ---------------------------------------------------------------------------------------------


def read_join(request: JoinGroupRequest, client: Client) -> Join:
    """Return a JoinGroup request. Version 0 has no rebalance timeout."""
    timeout_ms = request.rebalance_timeout if request.rebalance_timeout >= 0 else request.session_timeout
    return Join(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client=client,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=timeout_ms,
        reason=request.reason,
        needs_member_id=client.version >= _MEMBER_ID_REQUIRED_FROM,
        knows_skip_assignment=client.version >= _SKIP_ASSIGNMENT_FROM,
    )


def join_reply(result: JoinResult, version: int) -> JoinGroupResponse:
    """Return the reply to a JoinGroup request of this version."""
    protocol_name = result.protocol_name
    if protocol_name is None and version < _NULL_PROTOCOL_FROM:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=result.error_code,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=each.metadata
            )
            for each in result.members
        ],
    )


def refused_join(member_id: str, code: int, version: int) -> JoinGroupResponse:
    """Return the reply to a JoinGroup request that is refused as a whole."""
    return join_reply(JoinResult(error_code=ErrorCode(code), member_id=member_id), version)


def read_sync(request: SyncGroupRequest) -> Sync:
    """Return a SyncGroup request."""
    return Sync(
        group_id=request.group_id,
        sender=Sender(request.member_id, request.group_instance_id, request.generation_id),
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={each.member_id: each.assignment for each in request.assignments},
    )


def sync_reply(result: SyncResult) -> SyncGroupResponse:
    """Return the reply to a SyncGroup request."""
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def read_heartbeat(request: HeartbeatRequest) -> Sender:
    """Return the sender of a Heartbeat request."""
    return Sender(request.member_id, request.group_instance_id, request.generation_id)


def heartbeat_reply(code: int) -> HeartbeatResponse:
    """Return the reply to a Heartbeat request."""
    return HeartbeatResponse(error_code=code)


def read_leave(request: LeaveGroupRequest, version: int) -> list[Leaving]:
    """Return the members that a LeaveGroup request removes."""
    if version < _BATCH_LEAVE_FROM:
        return [Leaving(request.member_id)]
    return [Leaving(each.member_id, each.group_instance_id, each.reason) for each in request.members]


def leave_reply(result: LeaveResult, leaving: list[Leaving], version: int) -> LeaveGroupResponse:
    """Return the reply to a LeaveGroup request of this version."""
    if result.error_code:
        return LeaveGroupResponse(error_code=result.error_code)
    if version < _BATCH_LEAVE_FROM:
        return LeaveGroupResponse(error_code=result.members[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code)
            for each, code in zip(leaving, result.members, strict=True)
        ]
    )


# -- the consumer protocol --------------------------------------------------------------------------------------------


def read_consumer_heartbeat(request: heartbeats.ConsumerGroupHeartbeatRequest, client: Client) -> ConsumerHeartbeat:
    """Return a ConsumerGroupHeartbeat request."""
    owned = request.topic_partitions
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        client=client,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout,
        topic_names=request.subscribed_topic_names,
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if owned is None else tuple((each.topic_id, tuple(each.partitions)) for each in owned),
        makes_member_id=client.version >= _CLIENT_MEMBER_ID_FROM,
    )


def consumer_heartbeat_reply(result: ConsumerHeartbeatResult) -> heartbeats.ConsumerGroupHeartbeatResponse:
    """Return the reply to a ConsumerGroupHeartbeat request."""
    assignment = None
    if result.assignment is not None:
        assignment = heartbeats.Assignment(
            topic_partitions=[
                heartbeats.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in result.assignment
            ]
        )
    return heartbeats.ConsumerGroupHeartbeatResponse(
        error_code=result.error_code,
        error_message=result.error_message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval=result.heartbeat_interval_ms,
        assignment=assignment,
    )


# -- offsets ----------------------------------------------------------------------------------------------------------


def read_commit(request: OffsetCommitRequest, client: Client) -> OffsetCommit:
    """Return an OffsetCommit request."""
    by_id = client.version >= _TOPIC_IDS_FROM
    return OffsetCommit(
        group_id=request.group_id,
        sender=Sender(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch),
        client=client,
        topics=[
            OffsetTopic(
                None if by_id else topic.name,
                topic.topic_id,
                [
                    OffsetRow(
                        row.partition_index,
                        row.committed_offset,
                        row.committed_leader_epoch,
                        row.committed_metadata or "",
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        retention_ms=request.retention_time,
        has_member_epoch=client.version >= _MEMBER_EPOCH_FROM,
    )


def commit_reply(results: Iterable[OffsetResult]) -> OffsetCommitResponse:
    """Return the reply to an OffsetCommit request, with one entry per topic."""
    topics: dict[tuple[str, bytes], list[OffsetCommitResponsePartition]] = {}
    for name, topic_id, partition, code in results:
        row = OffsetCommitResponsePartition(partition_index=partition, error_code=code)
        topics.setdefault((name, topic_id), []).append(row)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=rows)
            for (name, topic_id), rows in topics.items()
        ]
    )


def refused_commit(topics: Iterable[OffsetCommitRequestTopic], code: int) -> list[OffsetCommitResponseTopic]:
    """Return the same error code for every partition of these topics."""
    return [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
                for row in topic.partitions
            ],
        )
        for topic in topics
    ]


def read_fetch(group: offset_fetch.OffsetFetchRequestGroup, version: int, *, require_stable: bool) -> OffsetFetch:
    """Return an OffsetFetch request for one group."""
    by_id, topics = version >= _TOPIC_IDS_FROM, None
    if group.topics is not None:
        topics = [
            FetchTopic(None if by_id else topic.name, topic.topic_id, topic.partition_indexes) for topic in group.topics
        ]
    return OffsetFetch(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        topics=topics,
        by_id=by_id,
        require_stable=require_stable,
    )


def fetch_reply(group_id: str, fetched: FetchedGroup) -> offset_fetch.OffsetFetchResponseGroup:
    """Return the reply to OffsetFetch for one group. A partition without a committed offset has the offset -1."""
    return offset_fetch.OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=fetched.error_code,
        topics=[
            offset_fetch.OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=[_fetched_row(row) for row in topic.offsets]
            )
            for topic in fetched.topics
        ],
    )


def _fetched_row(row: FetchedOffset) -> offset_fetch.OffsetFetchResponsePartitions:
    value = row.value
    if value is None:
        return offset_fetch.OffsetFetchResponsePartitions(
            partition_index=row.partition,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=row.error_code,
        )
    return offset_fetch.OffsetFetchResponsePartitions(
        partition_index=row.partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def read_offset_delete(request: OffsetDeleteRequest) -> dict[str, list[int]]:
    """Return the partitions of an OffsetDelete request by topic."""
    partitions: dict[str, list[int]] = {}
    for topic in request.topics:
        partitions.setdefault(topic.name, []).extend(row.partition_index for row in topic.partitions)
    return partitions


def offset_delete_reply(results: ErrorCode | list[OffsetResult]) -> OffsetDeleteResponse:
    """Return the reply to an OffsetDelete request."""
    if isinstance(results, ErrorCode):
        return OffsetDeleteResponse(error_code=results)
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for name, _, partition, code in results:
        row = OffsetDeleteResponsePartition(partition_index=partition, error_code=code)
        topics.setdefault(name, []).append(row)
    return OffsetDeleteResponse(
        topics=[OffsetDeleteResponseTopic(name=name, partitions=rows) for name, rows in topics.items()]
    )


# -- list and describe ------------------------------------------------------------------------------------------------


def listed_group(group: Group) -> ListedGroup:
    """Return a group as ListGroups shows it."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state,
        group_type=group.group_type,
    )


def deleted_groups(codes: Mapping[str, ErrorCode]) -> DeleteGroupsResponse:
    """Return the reply to a DeleteGroups request."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items()]
    )


def described_group(group_id: str, group: Group | None, version: int) -> DescribedGroup:
    """Return a group as DescribeGroups shows it. Only a Stable group has a protocol and metadata."""
    if not isinstance(group, ClassicGroup):
        if version < _DESCRIBE_NOT_FOUND_FROM:
            return DescribedGroup(group_id=group_id, group_state="Dead")
        name = shortened(group_id)
        text = f"Group {name} is not a classic group." if group is not None else f"Group {name} not found."
        return DescribedGroup(
            group_id=group_id, group_state="Dead", error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text
        )
    protocol = group.generation.protocol_name if group.state == STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata(protocol),
                member_assignment=each.assignment,
            )
            for each in group.members.values()
        ],
    )


def described_consumer_group(group_id: str, group: Group | None, topics: Topics) -> descriptions.DescribedGroup:
    """Return a group as ConsumerGroupDescribe shows it."""
    if not isinstance(group, ConsumerGroup):
        name = shortened(group_id)
        text = f"Group {name} is not a consumer group." if group is not None else f"Group {name} not found."
        code = ErrorCode.GROUP_ID_NOT_FOUND
        return descriptions.DescribedGroup(group_id=group_id, error_code=code, error_message=text)
    stored = group.stored
    return descriptions.DescribedGroup(
        group_id=group_id,
        group_state=stored.state,
        group_epoch=stored.epoch,
        assignment_epoch=stored.assignment_epoch,
        assignor_name=group.assignor_name(),
        members=[
            descriptions.Member(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=stored.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                subscribed_topic_regex=member.subscribed_topic_regex,
                assignment=_described_assignment(stored.owned(member_id), topics),
                target_assignment=_described_assignment(stored.target(member_id), topics),
                member_type=0 if member.classic_member_metadata is not None else 1,
            )
            for member_id, member in stored.members.items()
        ],
    )


def _described_assignment(partitions: TopicPartitions, topics: Topics) -> descriptions.Assignment:
    """Return the partitions with topic names, without deleted topics, because those have no name."""
    return descriptions.Assignment(
        topic_partitions=[
            descriptions.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for topic_id, numbers in partitions
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )
