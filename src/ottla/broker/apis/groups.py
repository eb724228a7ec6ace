"""APIs of consumer groups: find the shard of the group and pass the request to the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any

from ottla.broker.apis.topics import create_internal_topic
from ottla.broker.apis.transactions import create_transaction_topic
from ottla.broker.nodes import Nodes, may_lead, send_away_if_cut_off
from ottla.broker.services import RequestContext, Services
from ottla.cluster.view import NO_LEADER
from ottla.coordinator.classic_member import join_error
from ottla.coordinator.group_runtime import OFFSETS_TOPIC
from ottla.coordinator.offsets import refuse_commit, refused_topics
from ottla.coordinator.outcome import Client
from ottla.coordinator.pending_reply import PendingReply, Unstored
from ottla.coordinator.transaction_runtime import TRANSACTION_TOPIC
from ottla.env.log_limit import LogLimit
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.features import GROUP_VERSION
from ottla.security.acls import ResourceType
from ottla.wire import Message
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from ottla.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
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

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

Answer = Message | Awaitable[Message]

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
#: the topic in which coordinators keep their state, by key type
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_TOPIC}
_NOT_ASKED = -(1 << 31)
_RESOURCES = {_GROUP: ResourceType.GROUP, _TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_REFUSALS = {
    _GROUP: _REFUSED, _TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _SHARE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}  # fmt: skip
#: first version of OffsetFetch with an error of the group
_GROUP_ERROR_FROM = 2
#: first version of OffsetFetch with several groups
_MANY_GROUPS_FROM = 8
#: first version of SyncGroup in which the protocol type and the protocol name are required
_SYNC_PROTOCOL_FROM = 5


def find_coordinator(services: Services, request: FindCoordinatorRequest, context: RequestContext) -> Answer:
    """FindCoordinator (10) v0-v6. v1 key type. v4 many keys."""
    missing = _TOPICS.get(request.key_type)
    keys = request.coordinator_keys if context.version >= 4 else [request.key]
    if (
        missing is not None
        and missing not in services.view.topics
        and any(_may_find(context, request.key_type, key) for key in keys)
    ):
        return _create_and_find(services, request, context)
    return _coordinators(services, request, context)


async def _create_and_find(
    services: Services, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Create the topic of the coordinators, then answer. If it cannot be created, no coordinator is available.

    Another broker may not know yet that it coordinates, and some clients do not retry what it refuses then. As in
    Kafka, they are told to ask again.
    """
    try:
        if request.key_type == _TRANSACTION:
            await create_transaction_topic(services)
        else:
            await _create_offsets_topic(services)
    except KafkaError as error:
        log.error("an internal topic cannot be created topic=%s error=%s", _TOPICS[request.key_type], error)
    return _coordinators(services, request, context, only_here=True)


async def _create_offsets_topic(services: Services) -> None:
    """Create ``__consumer_offsets`` unless it exists. Raise a KafkaError if there are fewer brokers than replicas."""
    settings = services.settings
    factor = settings.offsets_topic_replication_factor
    config = {
        "cleanup.policy": "compact", "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }  # fmt: skip
    await create_internal_topic(
        services, OFFSETS_TOPIC, partitions=settings.offsets_topic_num_partitions,
        replication_factor=factor if settings.is_set("offsets.topic.replication.factor") else None,
        config=lambda _: config,
    )  # fmt: skip


def _coordinators(
    services: Services, request: FindCoordinatorRequest, context: RequestContext, *, only_here: bool = False
) -> FindCoordinatorResponse:
    """Return the coordinators; with ``only_here`` those on other brokers are not available yet."""
    keys = request.coordinator_keys if context.version >= 4 else [request.key]
    nodes = Nodes(services, context)
    send_away_if_cut_off(services, context)
    if only_here:
        nodes.by_id = {number: node for number, node in nodes.by_id.items() if number == services.broker_id}
    found = [
        _coordinator(services, nodes, request.key_type, key)
        if _may_find(context, request.key_type, key)
        else Coordinator(key=key, node_id=-1, port=-1, error_code=_REFUSALS[request.key_type], error_message=None)
        for key in keys
    ]
    first = found[0] if found else Coordinator()
    return FindCoordinatorResponse(
        error_code=first.error_code, error_message=first.error_message, node_id=first.node_id, host=first.host,
        port=first.port, coordinators=found,
    )  # fmt: skip


def _may_find(context: RequestContext, key_type: int, key: str) -> bool:
    if key_type == _SHARE:
        return context.may_cluster("share groups")
    resource = _RESOURCES.get(key_type)
    return resource is None or context.may(resource, key)


def _coordinator(services: Services, nodes: Nodes, key_type: int, key: str) -> Coordinator:
    """Return the broker that leads the partition of the internal topic in which this key has its state."""
    if (name := _TOPICS.get(key_type)) is not None:
        topic = services.view.topics.get(name)
        number = (services.groups if key_type == _GROUP else services.transactions).partition_for(key)
        leader = topic.partitions[number].leader if topic is not None else NO_LEADER
        is_led = leader != services.broker_id or may_lead(services.replicas.find(name, number))
        if is_led and leader not in nodes.just_lost and (node := nodes.by_id.get(leader)) is not None:
            return Coordinator(key=key, node_id=leader, host=node.host, port=node.port, error_message=None)
        code, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"partition {number} of {name} has no leader now; try again"
        return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
    code, text = ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)


# -- members ----------------------------------------------------------------------------------------------------------


def join_group(services: Services, request: JoinGroupRequest, context: RequestContext) -> Answer:
    """JoinGroup (11) v0-v9. v1 rebalance timeout. v4 member id required. v5 static members. v8 reason. v9 skip."""
    if not context.may(ResourceType.GROUP, request.group_id):
        return join_error(request.member_id, _REFUSED, context.version)
    return services.groups.run_parked(
        request.group_id,
        lambda shard, ticket, now: shard.join_group(request, _seeing(context), ticket, now),
        lambda code: join_error(request.member_id, code, context.version),
    )


def sync_group(services: Services, request: SyncGroupRequest, context: RequestContext) -> Answer:
    """SyncGroup (14) v0-v5. v3 static members. v5 protocol type and name, which Kafka checks before the rights."""
    if context.version >= _SYNC_PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not context.may(ResourceType.GROUP, request.group_id):
        return SyncGroupResponse(error_code=_REFUSED)
    return services.groups.run_parked(
        request.group_id,
        lambda shard, ticket, now: shard.sync_group(request, context.client, ticket, now),
        lambda code: SyncGroupResponse(error_code=code),
    )


def heartbeat(services: Services, request: HeartbeatRequest, context: RequestContext) -> Answer:
    """Heartbeat (12) v0-v4. v3 static members. While groups are loading, the answer is no error."""
    if not context.may(ResourceType.GROUP, request.group_id):
        return HeartbeatResponse(error_code=_REFUSED)
    return services.groups.run(
        request.group_id,
        lambda shard, ticket, now: shard.heartbeat(request, context.client, ticket, now),
        lambda code: HeartbeatResponse(error_code=0 if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else code),
    )


def leave_group(services: Services, request: LeaveGroupRequest, context: RequestContext) -> Answer:
    """LeaveGroup (13) v0-v5. v3 many members. v5 reason."""
    if not context.may(ResourceType.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=_REFUSED)
    return services.groups.run(
        request.group_id,
        lambda shard, ticket, now: shard.leave_group(request, context.client, ticket, now),
        lambda code: LeaveGroupResponse(error_code=code),
    )


def consumer_group_heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> Answer:
    """ConsumerGroupHeartbeat (68) v0-v1. v1 the client makes the member id; regular expressions.

    UNSUPPORTED_VERSION if an administrator has disabled the protocol with the feature ``group.version``.
    """
    if not services.view.feature_level(GROUP_VERSION):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=None)
    if not context.may(ResourceType.GROUP, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=_REFUSED, error_message=None)
    if any(not context.may(ResourceType.TOPIC, name) for name in request.subscribed_topic_names or ()):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None)
    return services.groups.run(
        request.group_id,
        lambda shard, ticket, now: shard.consumer_heartbeat(request, _seeing(context), ticket, now),
        lambda code: ConsumerGroupHeartbeatResponse(error_code=code, error_message=None),
    )


def _seeing(context: RequestContext) -> Client:
    """Return the client with the topics that it may know: a regular expression must not find others for it."""
    if context.access.authorizer is None:
        return context.client
    return context.client._replace(may_see=partial(context.access.may_describe, context.connection, ResourceType.TOPIC))


# -- offsets ----------------------------------------------------------------------------------------------------------


def offset_commit(services: Services, request: OffsetCommitRequest, context: RequestContext) -> Answer:
    """OffsetCommit (8) v2-v10. v5 no retention. v6 leader epoch. v7 static members. v9 member epoch. v10 topic ids."""
    if not context.may(ResourceType.GROUP, request.group_id):
        return refuse_commit(request, _REFUSED)
    codes = {(topic.name, topic.topic_id): _topic_code(services, context, topic) for topic in request.topics}
    refused = [
        row
        for topic in request.topics
        if (code := codes[topic.name, topic.topic_id])
        for row in refused_topics([topic], code)
    ]
    if refused:
        request.topics = [topic for topic in request.topics if not codes[topic.name, topic.topic_id]]
        if not request.topics:
            return OffsetCommitResponse(topics=refused)
    answer = services.groups.run(
        request.group_id,
        lambda shard, ticket, now: shard.commit_offsets(request, context.client, ticket, now),
        lambda code: refuse_commit(request, code),
    )
    return _with_topics(answer, refused) if refused else answer


def _topic_code(services: Services, context: RequestContext, topic: Any, *, quiet: bool = False) -> int:
    """Return the error for a topic that the client may not use; 0 if it may. ``topic`` has a name or an id."""
    if context.access.authorizer is None:
        return 0
    known = services.view.topics_by_id.get(topic.topic_id) if not topic.name else None
    name = topic.name or (known.name if known is not None else "")
    if not name:
        return 0  # the coordinator answers that the id is unknown
    try:
        context.access.check_topic(context.connection, context.api_key, name, quiet=quiet)
    except KafkaError as error:
        return error.code
    return 0


async def _with_topics(answer: Answer, refused: Sequence[Any]) -> Message:
    """Return an answer with rows for the topics that the client may not use."""
    reply: Any = await answer if isinstance(answer, Awaitable) else answer
    if not getattr(reply, "error_code", 0):
        reply.topics = [*reply.topics, *refused]
    return reply  # type: ignore[no-any-return]


def offset_fetch(services: Services, request: OffsetFetchRequest, context: RequestContext) -> Answer:
    """OffsetFetch (9) v1-v10. v2 null asks for all. v5 leader epoch. v7 stable. v8 many groups. v9 epoch. v10 ids."""
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
    parts = [_fetch_group(services, group, request.require_stable, context) for group in asked]
    waits = [(part, wait) for part, wait in parts if isinstance(wait, PendingReply)]
    answers = [part for part, _ in parts]
    if waits:
        return _fetch_when_durable(answers, waits, request, version)
    return _fetched(answers, request, version)


def _fetch_group(
    services: Services, group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext
) -> tuple[OffsetFetchResponseGroup, bool | PendingReply]:
    runtime = services.groups
    if not context.may(ResourceType.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=_REFUSED), True
    refused = []
    if context.access.authorizer is not None and group.topics is not None:
        codes = [(topic, _topic_code(services, context, topic)) for topic in group.topics]
        refused = [_unfetched(topic, code) for topic, code in codes if code]
        group.topics = [topic for topic, code in codes if not code]
    try:
        shard = runtime.shard(group.group_id)
        answer = shard.fetch_offsets(group, context.client, runtime.now(), require_stable=require_stable)
        if context.access.authorizer is not None and group.topics is None:
            answer.topics = [topic for topic in answer.topics if not _topic_code(services, context, topic, quiet=True)]
        answer.topics = [*answer.topics, *refused]
        return answer, runtime.durable(group.group_id)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code), True


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
    answers: list[OffsetFetchResponseGroup], waits: Iterable[tuple[OffsetFetchResponseGroup, PendingReply]],
    request: OffsetFetchRequest, version: int,
) -> OffsetFetchResponse:  # fmt: skip
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


def offset_delete(services: Services, request: OffsetDeleteRequest, context: RequestContext) -> Answer:
    """OffsetDelete (47) v0."""
    if not context.may(ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=_REFUSED)
    refused = [topic for topic in request.topics if not context.may(ResourceType.TOPIC, topic.name)]
    # As in Kafka, the coordinator is asked also if no topic is left: it knows whether the group exists.
    request.topics = [topic for topic in request.topics if topic not in refused]
    answer = services.groups.run(
        request.group_id,
        lambda shard, ticket, now: shard.delete_offsets(request, context.client, ticket, now),
        lambda code: OffsetDeleteResponse(error_code=code),
    )
    return _with_topics(answer, [_undeleted(topic) for topic in refused]) if refused else answer


def _undeleted(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


# -- list and describe ------------------------------------------------------------------------------------------------


def list_groups(services: Services, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """ListGroups (16) v0-v5. v4 states. v5 types. Only groups that this broker coordinates."""
    if services.groups.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    groups: list[ListedGroup] = []
    for shard in services.groups.shards():
        groups.extend(shard.list_groups(states, types))
    if not context.may_cluster("all", quiet=True):
        groups = [group for group in groups if context.may(ResourceType.GROUP, group.group_id, quiet=True)]
    return ListGroupsResponse(groups=groups)


def describe_groups(
    services: Services, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """DescribeGroups (15) v0-v6. v3 authorized operations. v4 static members. v6 GROUP_ID_NOT_FOUND."""
    groups = []
    for group_id in dict.fromkeys(request.groups):
        try:
            if not context.may(ResourceType.GROUP, group_id):
                raise Refused(_REFUSED)
            described = services.groups.shard(group_id).describe_group(group_id, context.version)
        except KafkaError as error:
            described = DescribedGroup(group_id=group_id, error_code=error.code)
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
        groups.append(described)
    return DescribeGroupsResponse(groups=groups)


def consumer_group_describe(
    services: Services, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """ConsumerGroupDescribe (69) v0-v1. v1 member type."""
    groups = []
    for group_id in dict.fromkeys(request.group_ids):
        try:
            if not group_id:
                raise Refused(ErrorCode.INVALID_GROUP_ID)
            if not context.may(ResourceType.GROUP, group_id):
                raise Refused(_REFUSED)
            described = services.groups.shard(group_id).describe_consumer_group(group_id, context.version)
            if context.access.authorizer is not None and not all(
                context.may(ResourceType.TOPIC, name) for name in _topics_of(described)
            ):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group reads topics that are not yours to see")
        except KafkaError as error:
            described = DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=str(error))
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
        groups.append(described)
    return ConsumerGroupDescribeResponse(groups=groups)


def _topics_of(described: DescribedConsumerGroup) -> set[str]:
    """Return the topics that the members of a group have, and those that they subscribe to."""
    names = {name for member in described.members for name in member.subscribed_topic_names}
    assignments = (each for member in described.members for each in (member.assignment, member.target_assignment))
    return names | {each.topic_name for assignment in assignments for each in assignment.topic_partitions}


def delete_groups(services: Services, request: DeleteGroupsRequest, context: RequestContext) -> Answer:
    """DeleteGroups (42) v0-v2. Groups may be in different shards."""
    client = context.client

    def refuse(ids: list[str], code: int) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=each, error_code=code) for each in ids])

    names = list(dict.fromkeys(request.groups_names))
    refused = [name for name in names if not context.may(ResourceType.GROUP, name)]
    parts: list[Any] = services.groups.run_many(
        [name for name in names if name not in refused],
        lambda ids: lambda shard, ticket, now: shard.delete_groups(ids, client, ticket, now),
        lambda ids: partial(refuse, ids),
    )
    parts.append(refuse(refused, _REFUSED))
    if any(isinstance(part, PendingReply) for part in parts):
        return _gather_deleted(parts)
    return DeleteGroupsResponse(results=[result for part in parts for result in part.results])


async def _gather_deleted(parts: list[Any]) -> DeleteGroupsResponse:
    results: list[DeletableGroupResult] = []
    for part in parts:
        answer: Any = await part if isinstance(part, PendingReply) else part
        results.extend(answer.results)
    return DeleteGroupsResponse(results=results)
