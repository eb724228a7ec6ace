"""APIs of consumer groups: find the shard of the group and pass the request to the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ottla.broker.client import Client
from ottla.broker.component import Component, ServedApi
from ottla.broker.coordinators.pending_reply import PendingReply, Unstored
from ottla.broker.groups.replies import (
    commit_reply,
    consumer_heartbeat_reply,
    deleted_groups,
    described_consumer_group,
    described_group,
    fetch_reply,
    heartbeat_reply,
    join_reply,
    leave_reply,
    listed_group,
    offset_delete_reply,
    read_commit,
    read_consumer_heartbeat,
    read_fetch,
    read_heartbeat,
    read_join,
    read_leave,
    read_offset_delete,
    read_sync,
    refused_commit,
    refused_join,
    sync_reply,
)
from ottla.broker.groups.runtime import GroupRuntime
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.request import RequestContext
from ottla.env.deferred import between_slices
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.features import GROUP_VERSION
from ottla.security.acls import ResourceType
from ottla.wire import Message
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from ottla.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Answer = Message | Awaitable[Message]

_NOT_ASKED = -(1 << 31)
_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
#: first version of OffsetFetch with an error of the group
_GROUP_ERROR_FROM = 2
#: first version of OffsetFetch with several groups
_MANY_GROUPS_FROM = 8
#: first version of SyncGroup in which the protocol type and the protocol name are required
_SYNC_PROTOCOL_FROM = 5


class GroupApis(Component):
    """The APIs of consumer groups."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        groups: GroupRuntime,
    ) -> None:
        self._metadata = metadata
        self._groups = groups

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            8: ServedApi(2, 10, self.offset_commit),
            9: ServedApi(1, 10, self.offset_fetch, large_reply=True),
            11: ServedApi(0, 9, self.join_group),
            12: ServedApi(0, 4, self.heartbeat),
            13: ServedApi(0, 5, self.leave_group),
            14: ServedApi(0, 5, self.sync_group),
            15: ServedApi(0, 6, self.describe_groups, large_reply=True),
            16: ServedApi(0, 5, self.list_groups, large_reply=True),
            42: ServedApi(0, 2, self.delete_groups),
            47: ServedApi(0, 0, self.offset_delete),
            68: ServedApi(0, 1, self.consumer_group_heartbeat),
            69: ServedApi(0, 1, self.consumer_group_describe, large_reply=True),
        }

    # -- members ------------------------------------------------------------------------------------------------------

    def join_group(self, request: JoinGroupRequest, context: RequestContext) -> Answer:
        """JoinGroup (11) v0-v9. v1 rebalance timeout. v4 member id required. v5 static members. v8 reason. v9 skip."""
        if not context.may(ResourceType.GROUP, request.group_id):
            return refused_join(request.member_id, _REFUSED, context.version)
        join = read_join(request, _seeing(context))
        return self._groups.run_parkable(
            request.group_id,
            lambda shard, ticket, now: shard.join_group(join, ticket, now),
            lambda result: join_reply(result, context.version),
            lambda code: refused_join(request.member_id, code, context.version),
        )

    def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> Answer:
        """SyncGroup (14) v0-v5. v3 static members. v5 protocol type and name, which Kafka checks before the rights."""
        if context.version >= _SYNC_PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not context.may(ResourceType.GROUP, request.group_id):
            return SyncGroupResponse(error_code=_REFUSED)
        sync = read_sync(request)
        return self._groups.run_parkable(
            request.group_id,
            lambda shard, ticket, now: shard.sync_group(sync, ticket, now),
            sync_reply,
            lambda code: SyncGroupResponse(error_code=code),
        )

    def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> Answer:
        """Heartbeat (12) v0-v4. v3 static members. While groups are loading, the answer is no error."""
        if not context.may(ResourceType.GROUP, request.group_id):
            return heartbeat_reply(_REFUSED)
        sender = read_heartbeat(request)
        return self._groups.run(
            request.group_id,
            lambda shard, now: shard.heartbeat(request.group_id, sender, now),
            heartbeat_reply,
            lambda code: heartbeat_reply(0 if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else code),
        )

    def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> Answer:
        """LeaveGroup (13) v0-v5. v3 many members. v5 reason."""
        if not context.may(ResourceType.GROUP, request.group_id):
            return LeaveGroupResponse(error_code=_REFUSED)
        leaving = read_leave(request, context.version)
        return self._groups.run(
            request.group_id,
            lambda shard, now: shard.leave_group(request.group_id, leaving, context.client, now),
            lambda result: leave_reply(result, leaving, context.version),
            lambda code: LeaveGroupResponse(error_code=code),
        )

    def consumer_group_heartbeat(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Answer:
        """ConsumerGroupHeartbeat (68) v0-v1. v1 the client makes the member id; regular expressions.

        UNSUPPORTED_VERSION if an administrator has disabled the protocol with the feature ``group.version``.
        """
        if not self._metadata.view.feature_level(GROUP_VERSION):
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=None)
        if not context.may(ResourceType.GROUP, request.group_id):
            return ConsumerGroupHeartbeatResponse(error_code=_REFUSED, error_message=None)
        if any(not context.may(ResourceType.TOPIC, name) for name in request.subscribed_topic_names or ()):
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None)
        heartbeat = read_consumer_heartbeat(request, _seeing(context))
        return self._groups.run(
            request.group_id,
            lambda shard, now: shard.consumer_heartbeat(heartbeat, now),
            consumer_heartbeat_reply,
            lambda code: ConsumerGroupHeartbeatResponse(error_code=code, error_message=None),
        )

    # -- offsets ------------------------------------------------------------------------------------------------------

    def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> Answer:
        """OffsetCommit (8) v2-v10. v5 no retention. v6 leader epoch. v7 static members. v9 member epoch. v10 ids."""
        if not context.may(ResourceType.GROUP, request.group_id):
            return OffsetCommitResponse(topics=refused_commit(request.topics, _REFUSED))
        codes = {(topic.name, topic.topic_id): self._topic_code(context, topic) for topic in request.topics}
        refused = [
            row
            for topic in request.topics
            if (code := codes[topic.name, topic.topic_id])
            for row in refused_commit([topic], code)
        ]
        if refused:
            request.topics = [topic for topic in request.topics if not codes[topic.name, topic.topic_id]]
            if not request.topics:
                return OffsetCommitResponse(topics=refused)
        commit = read_commit(request, context.client)
        answer = self._groups.run(
            request.group_id,
            lambda shard, now: shard.commit_offsets(commit, now),
            commit_reply,
            lambda code: OffsetCommitResponse(topics=refused_commit(request.topics, code)),
        )
        return _with_topics(answer, refused) if refused else answer

    def _topic_code(self, context: RequestContext, topic: Any, *, quiet: bool = False) -> int:
        """Return the error for a topic that the client may not use; 0 if it may. ``topic`` has a name or an id."""
        if context.access.authorizer is None:
            return 0
        known = self._metadata.view.topics_by_id.get(topic.topic_id) if not topic.name else None
        name = topic.name or (known.name if known is not None else "")
        if not name:
            return 0  # the coordinator answers that the id is unknown
        try:
            context.access.check_topic(context.connection, context.api_key, name, quiet=quiet)
        except KafkaError as error:
            return error.code
        return 0

    def offset_fetch(self, request: OffsetFetchRequest, context: RequestContext) -> Answer:
        """OffsetFetch (9) v1-v10. v2 null asks for all. v5 leader epoch. v7 stable. v8 groups. v9 epoch. v10 ids."""
        version = context.version
        asked: Sequence[OffsetFetchRequestGroup] = request.groups
        if version < _MANY_GROUPS_FROM:
            topics = None
            if request.topics is not None:
                topics = [
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in request.topics
                ]
            asked = [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]
        parts = [self._fetch_group(group, request.require_stable, context) for group in asked]
        waits = [(part, wait) for part, wait in parts if isinstance(wait, PendingReply)]
        answers = [part for part, _ in parts]
        if waits:
            return _fetch_when_durable(answers, waits, request, version)
        return _fetched(answers, request, version)

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext
    ) -> tuple[OffsetFetchResponseGroup, bool | PendingReply]:
        runtime = self._groups
        if not context.may(ResourceType.GROUP, group.group_id):
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=_REFUSED), True
        refused = []
        if context.access.authorizer is not None and group.topics is not None:
            codes = [(topic, self._topic_code(context, topic)) for topic in group.topics]
            refused = [_unfetched(topic, code) for topic, code in codes if code]
            group.topics = [topic for topic, code in codes if not code]
        try:
            shard = runtime.shard(group.group_id)
            wanted = read_fetch(group, context.version, require_stable=require_stable)
            answer = fetch_reply(group.group_id, shard.fetch_offsets(wanted))
            if context.access.authorizer is not None and group.topics is None:
                answer.topics = [topic for topic in answer.topics if not self._topic_code(context, topic, quiet=True)]
            answer.topics = [*answer.topics, *refused]
            return answer, runtime.durable(group.group_id)
        except KafkaError as error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code), True

    def offset_delete(self, request: OffsetDeleteRequest, context: RequestContext) -> Answer:
        """OffsetDelete (47) v0."""
        if not context.may(ResourceType.GROUP, request.group_id):
            return OffsetDeleteResponse(error_code=_REFUSED)
        refused = [topic for topic in request.topics if not context.may(ResourceType.TOPIC, topic.name)]
        # As in Kafka, the coordinator is asked also if no topic is left: it knows whether the group exists.
        request.topics = [topic for topic in request.topics if topic not in refused]
        partitions = read_offset_delete(request)
        answer = self._groups.run(
            request.group_id,
            lambda shard, _: shard.delete_offsets(request.group_id, partitions),
            offset_delete_reply,
            lambda code: OffsetDeleteResponse(error_code=code),
        )
        return _with_topics(answer, [_undeleted(topic) for topic in refused]) if refused else answer

    # -- list and describe --------------------------------------------------------------------------------------------

    def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        """ListGroups (16) v0-v5. v4 states. v5 types. Only groups that this broker coordinates."""
        if self._groups.is_loading:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = [listed_group(group) for shard in self._groups.shards() for group in shard.list_groups(states, types)]
        if not context.may_cluster("all", quiet=True):
            groups = [group for group in groups if context.may(ResourceType.GROUP, group.group_id, quiet=True)]
        return ListGroupsResponse(groups=groups)

    async def describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        """DescribeGroups (15) v0-v6. v3 authorized operations. v4 static members. v6 GROUP_ID_NOT_FOUND."""
        groups = []
        for row, group_id in enumerate(dict.fromkeys(request.groups)):
            await between_slices(row)
            try:
                if not context.may(ResourceType.GROUP, group_id):
                    raise Refused(_REFUSED)
                described = described_group(
                    group_id, self._groups.shard(group_id).groups.get(group_id), context.version
                )
            except KafkaError as error:
                described = DescribedGroup(group_id=group_id, error_code=error.code)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
            groups.append(described)
        return DescribeGroupsResponse(groups=groups)

    async def consumer_group_describe(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe (69) v0-v1. v1 member type."""
        groups = []
        for row, group_id in enumerate(dict.fromkeys(request.group_ids)):
            await between_slices(row)
            try:
                if not group_id:
                    raise Refused(ErrorCode.INVALID_GROUP_ID)
                if not context.may(ResourceType.GROUP, group_id):
                    raise Refused(_REFUSED)
                group = self._groups.shard(group_id).groups.get(group_id)
                described = described_consumer_group(group_id, group, self._groups.context.topics)
                if context.access.authorizer is not None and not all(
                    context.may(ResourceType.TOPIC, name) for name in _topics_of(described)
                ):
                    raise Refused(
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group reads topics that are not yours to see"
                    )
            except KafkaError as error:
                described = DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=str(error))
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
            groups.append(described)
        return ConsumerGroupDescribeResponse(groups=groups)

    def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> Answer:
        """DeleteGroups (42) v0-v2. Groups may be in different shards."""
        names = list(dict.fromkeys(request.groups_names))
        refused = [name for name in names if not context.may(ResourceType.GROUP, name)]
        parts: list[Any] = self._groups.run_many(
            [name for name in names if name not in refused],
            lambda ids: lambda shard, _: shard.delete_groups(ids),
            deleted_groups,
            lambda ids: lambda code: deleted_groups(dict.fromkeys(ids, ErrorCode(code))),
        )
        parts.append(deleted_groups(dict.fromkeys(refused, _REFUSED)))
        if any(isinstance(part, PendingReply) for part in parts):
            return _gather_deleted(parts)
        return DeleteGroupsResponse(results=[result for part in parts for result in part.results])


def _seeing(context: RequestContext) -> Client:
    """Return the client with the topics that it may know: a regular expression must not find others for it."""
    if context.access.authorizer is None:
        return context.client
    return context.client._replace(may_see=partial(context.access.may_describe, context.connection, ResourceType.TOPIC))


async def _with_topics(answer: Answer, refused: Sequence[Any]) -> Message:
    """Return an answer with rows for the topics that the client may not use."""
    reply: Any = await answer if isinstance(answer, Awaitable) else answer
    if not getattr(reply, "error_code", 0):
        reply.topics = [*reply.topics, *refused]
    return reply  # type: ignore[no-any-return]


def _unfetched(topic: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=number, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
            )
            for number in topic.partition_indexes
        ],
    )


async def _fetch_when_durable(
    answers: list[OffsetFetchResponseGroup],
    waits: Iterable[tuple[OffsetFetchResponseGroup, PendingReply]],
    request: OffsetFetchRequest,
    version: int,
) -> OffsetFetchResponse:
    for part, wait in waits:
        done = await wait
        if isinstance(done, Unstored):
            part.error_code, part.topics = done.error_code, ()
    return _fetched(answers, request, version)


def _fetched(answers: list[OffsetFetchResponseGroup], request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    if version >= _MANY_GROUPS_FROM:
        return OffsetFetchResponse(groups=answers)
    (only,) = answers
    if only.error_code:
        topics = _refused_partitions(request, only.error_code) if version < _GROUP_ERROR_FROM else []
        return OffsetFetchResponse(error_code=only.error_code, topics=topics)
    return OffsetFetchResponse(topics=[
        OffsetFetchResponseTopic(name=topic.name, partitions=[
            OffsetFetchResponsePartition(
                partition_index=row.partition_index, committed_offset=row.committed_offset,
                committed_leader_epoch=row.committed_leader_epoch, metadata=row.metadata, error_code=row.error_code,
            )
            for row in topic.partitions
        ])
        for topic in only.topics
    ])  # fmt: skip


def _refused_partitions(request: OffsetFetchRequest, code: int) -> list[OffsetFetchResponseTopic]:
    """Return rows with the error of the whole request: v1 has no other field for it."""
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=number, committed_offset=-1, committed_leader_epoch=-1, error_code=code
                )
                for number in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]


def _undeleted(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


def _topics_of(described: DescribedConsumerGroup) -> set[str]:
    """Return the topics that the members of a group have, and those that they subscribe to."""
    names = {name for member in described.members for name in member.subscribed_topic_names}
    assignments = (each for member in described.members for each in (member.assignment, member.target_assignment))
    return names | {each.topic_name for assignment in assignments for each in assignment.topic_partitions}


async def _gather_deleted(parts: list[Any]) -> DeleteGroupsResponse:
    results: list[DeletableGroupResult] = []
    for part in parts:
        answer: Any = await part if isinstance(part, PendingReply) else part
        results.extend(answer.results)
    return DeleteGroupsResponse(results=results)
