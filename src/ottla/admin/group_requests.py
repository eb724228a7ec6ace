"""The requests about consumer groups, at their coordinators. Commands call them through `cli/cluster.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.admin.group_state import GroupListing, GroupMember, GroupState
from ottla.client.cluster import Cluster, only_row
from ottla.client.errors import BrokerError, UnsupportedByBroker
from ottla.client.protocol.metadata import CoordinatorType, Node, by_topic
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import WireError, decode
from ottla.wire.group_records import ConsumerProtocolAssignment
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
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
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

#: states of groups; those of the consumer protocol that are not among them are shown as Unknown
_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_CONSUMER = "consumer"
_DEAD = "Dead"
#: the first version that can ask for all partitions of a group
_OFFSET_FETCH_MIN = 2
#: later versions name topics by their ids only
_OFFSET_FETCH_MAX = _OFFSET_COMMIT_MAX = 9
_ELEMENTS_MAX = 1_000_000
#: the first version of LeaveGroup that names several members
_SEVERAL_MEMBERS_FROM = 3
#: the reason that brokers log for a member that an administrator has removed
_REMOVAL = "removed by an administrator"


def listing(row: Any) -> GroupListing:
    """Return a row of ListGroups."""
    return GroupListing(
        group_id=row.group_id,
        is_simple=not row.protocol_type,
        state=_state(row.group_state),
        group_type=(row.group_type or "unknown").lower(),
        protocol_type=row.protocol_type,
    )


def describe(cluster: Cluster, group: str) -> GroupState:
    """Return a group of either protocol; one that does not exist has the state Dead."""

    def attempt(node: Node, deadline: float) -> GroupState:
        return _describe_consumer(cluster, node, group, deadline) or _describe_classic(cluster, node, group, deadline)

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def _describe_consumer(cluster: Cluster, node: Node, group: str, deadline: float) -> GroupState | None:
    """Return a group of the consumer protocol; None if it is of the classic protocol, or does not exist."""
    try:
        answer = cluster.ask(node, ConsumerGroupDescribeRequest(group_ids=[group]), deadline=deadline)
    except UnsupportedByBroker:
        return None
    return consumer_state(node, only_row(answer.groups, str(node)))


def consumer_state(node: Node, row: Any) -> GroupState | None:
    """Return a group from a row of ConsumerGroupDescribe; None if it is not of the consumer protocol."""
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    _check(row.error_code, row.group_id, row.error_message)
    members = [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.instance_id or None,
            client_id=each.client_id,
            host=each.client_host,
            partitions=tuple(
                sorted(
                    TopicPartition(topic.topic_name, number)
                    for topic in (each.assignment.topic_partitions if each.assignment else ())
                    for number in topic.partitions
                )
            ),
        )
        for each in row.members
    ]
    return _state_of(row.group_id, node, row.group_state, "consumer", row.assignor_name, members=members)


def _describe_classic(cluster: Cluster, node: Node, group: str, deadline: float) -> GroupState:
    answer = cluster.ask(node, DescribeGroupsRequest(groups=[group]), deadline=deadline)
    return classic_state(node, only_row(answer.groups, str(node)))


def classic_state(node: Node, row: Any) -> GroupState:
    """Return a group from a row of DescribeGroups; one that does not exist has the state Dead."""
    group = row.group_id
    if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return _state_of(group, node, _DEAD, "classic", "", members=[], is_simple=True)
    _check(row.error_code, group, row.error_message)
    members = [
        GroupMember(
            member_id=each.member_id,
            instance_id=each.group_instance_id or None,
            client_id=each.client_id,
            host=each.client_host,
            partitions=assigned(bytes(each.member_assignment)) if row.protocol_type == _CONSUMER else (),
        )
        for each in row.members
    ]
    is_simple = not row.protocol_type
    return _state_of(group, node, row.group_state, "classic", row.protocol_data, members=members, is_simple=is_simple)


def _state_of(
    group: str,
    node: Node,
    state: str,
    group_type: str,
    assignor: str,
    *,
    members: list[GroupMember],
    is_simple: bool = False,
) -> GroupState:
    return GroupState(
        group_id=group,
        is_simple=is_simple,
        state=_state(state),
        group_type=group_type,
        assignor=assignor or None,
        coordinator=node,
        members=tuple(sorted(members, key=lambda member: (member.client_id, member.member_id))),
    )


def assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment; none if it is not in the format of Kafka's consumers."""
    if len(assignment) < 2:
        return ()
    version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.VERSIONS[1])
    try:
        message, _ = decode(ConsumerProtocolAssignment, version, assignment, 2, _ELEMENTS_MAX)
    except WireError:
        return ()
    rows = message.assigned_partitions
    return tuple(sorted(TopicPartition(row.topic, number) for row in rows for number in row.partitions))


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """Return the committed offset of each partition that has one."""
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )

    def attempt(node: Node, deadline: float) -> dict[TopicPartition, int]:
        answer = cluster.ask(
            node, request, deadline=deadline, version_min=_OFFSET_FETCH_MIN, version_max=_OFFSET_FETCH_MAX
        )
        return committed_rows(answer.groups[0] if answer.groups else answer, group)

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def committed_rows(rows: Any, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets in the part of an OffsetFetch reply that is about one group. Raise BrokerError."""
    if rows.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        _check(rows.error_code, group)
    found = {}
    for topic in rows.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                raise BrokerError(row.error_code, str(tp))
            if row.committed_offset >= 0:
                found[tp] = row.committed_offset
    return dict(sorted(found.items()))


def commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Commit offsets of a group without members. Return the error codes of the partitions that were refused."""
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(partition_index=tp.partition, committed_offset=offsets[tp]) for tp in rows
            ],
        )
        for topic, rows in by_topic(offsets).items()
    ]

    def attempt(node: Node, deadline: float) -> dict[TopicPartition, int]:
        request = OffsetCommitRequest(group_id=group, topics=topics)
        answer = cluster.ask(node, request, deadline=deadline, version_max=_OFFSET_COMMIT_MAX)
        codes = _codes(answer)
        for code in codes.values():
            error = BrokerError(code, f"group {group}")
            # A request that reached a former coordinator has committed nothing.
            if error.retriable and len(codes) == len(offsets):
                raise error
        return codes

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Delete committed offsets of a group. Return the error codes of the partitions that were refused."""
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=tp.partition) for tp in rows]
        )
        for topic, rows in by_topic(partitions).items()
    ]

    def attempt(node: Node, deadline: float) -> dict[TopicPartition, int]:
        answer = cluster.ask(node, OffsetDeleteRequest(group_id=group, topics=topics), deadline=deadline)
        _check(answer.error_code, group)
        return _codes(answer)

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def _codes(answer: Any) -> dict[TopicPartition, int]:
    """Return the error codes of the partitions that were refused."""
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code
    }


def remove_members(cluster: Cluster, group: str, members: Sequence[GroupMember]) -> dict[str, int]:
    """Remove members of a group. Return the error codes of those that were refused, by member id."""
    rows = [
        MemberIdentity(member_id=each.member_id, group_instance_id=each.instance_id, reason=_REMOVAL)
        for each in members
    ]

    def attempt(node: Node, deadline: float) -> dict[str, int]:
        request = LeaveGroupRequest(group_id=group, members=rows)
        answer = cluster.ask(node, request, deadline=deadline, version_min=_SEVERAL_MEMBERS_FROM)
        _check(answer.error_code, group)
        return {row.member_id: row.error_code for row in answer.members if row.error_code}

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def delete(cluster: Cluster, group: str) -> None:
    """Delete a group. Raise BrokerError if it has members or does not exist."""

    def attempt(node: Node, deadline: float) -> None:
        answer = cluster.ask(node, DeleteGroupsRequest(groups_names=[group]), deadline=deadline)
        _check(only_row(answer.results, str(node)).error_code, group)

    cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def _check(code: int, group: str, text: str | None = None) -> None:
    if code:
        raise BrokerError(code, f"group {group}", text)


def _state(word: str) -> str:
    return word if word in _STATES else "Unknown"
