"""Groups as their coordinators describe them, with the epochs and targets that kafka-consumer-groups prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.admin.group_requests import assigned
from ottla.cli.kafka.connection import Admin
from ottla.cli.kafka.errors import RequestError, check
from ottla.client.cluster import Cluster, Isolation
from ottla.client.errors import BrokerError, UnsupportedByBroker
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

#: the first and the last version of OffsetFetch that names all partitions of a group, and topics by their names
_OFFSET_FETCH = 2, 9
_CLASSIC, _CONSUMER = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] = ()
    epoch: int | None = None
    #: whether it uses the consumer protocol; None if the broker does not say
    upgraded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of consumers."""

    name: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[Member, ...]
    epoch: int | None = None
    target_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int | None


def describe(admin: Admin, name: str) -> Group:
    """Return a group. Raise RequestError if it does not exist."""

    def ask(cluster: Cluster) -> Group:
        return cluster.retry_at_coordinator(
            CoordinatorType.GROUP, name, lambda node, deadline: _ask(cluster, node, name, deadline)
        )

    return admin.call(ask)


def _ask(cluster: Cluster, node: Node, name: str, deadline: float) -> Group:
    from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
    from ottla.wire.messages.describe_groups import DescribeGroupsRequest

    try:
        row = cluster.ask(node, ConsumerGroupDescribeRequest(group_ids=[name]), deadline=deadline).groups[0]
        if row.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            _check(row)
            return _of_consumers(node, row)
    except UnsupportedByBroker:
        pass
    row = cluster.ask(node, DescribeGroupsRequest(groups=[name]), deadline=deadline).groups[0]
    _check(row)
    return _classic(node, row)


def _check(row: Any) -> None:
    if row.error_code:
        raise BrokerError(row.error_code, row.group_id, row.error_message)


def _of_consumers(node: Node, row: Any) -> Group:
    members = tuple(
        Member(
            member_id=each.member_id,
            instance_id=each.instance_id or "",
            client_id=each.client_id,
            host=each.client_host,
            assignment=_partitions(each.assignment),
            target=_partitions(each.target_assignment),
            epoch=each.member_epoch,
            upgraded={_CLASSIC: False, _CONSUMER: True}.get(each.member_type),
        )
        for each in row.members
    )
    return Group(
        name=row.group_id, state=row.group_state, assignor=row.assignor_name, coordinator=node, members=members,
        epoch=row.group_epoch, target_epoch=row.assignment_epoch,
    )  # fmt: skip


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions
    )


def _classic(node: Node, row: Any) -> Group:
    members = tuple(
        Member(
            member_id=each.member_id,
            instance_id=each.group_instance_id or "",
            client_id=each.client_id,
            host=each.client_host,
            assignment=assigned(each.member_assignment),
        )
        for each in row.members
    )
    return Group(
        name=row.group_id, state=row.group_state, assignor=row.protocol_data, coordinator=node, members=members
    )


def committed(admin: Admin, group: str) -> dict[TopicPartition, Committed]:
    """Return the committed offsets of a group, by partition."""
    from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    first, last = _OFFSET_FETCH

    def ask(cluster: Cluster) -> Any:
        return cluster.retry_at_coordinator(
            CoordinatorType.GROUP,
            group,
            lambda node, deadline: cluster.ask(node, request, deadline=deadline, version_min=first, version_max=last),
        )

    answer = admin.call(ask)
    rows = answer.groups[0] if answer.groups else answer
    if rows.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        check(rows.error_code)
    found = {}
    for topic in rows.topics:
        for row in topic.partitions:
            check(row.error_code)
            if row.committed_offset >= 0:
                epoch = None if row.committed_leader_epoch < 0 else row.committed_leader_epoch
                found[TopicPartition(topic.name, row.partition_index)] = Committed(row.committed_offset, epoch)
    return found


def offsets_at(admin: Admin, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of each partition at a time; -1 if there is no record since then."""
    wanted = dict.fromkeys(partitions, time_ms)
    if not wanted:
        return {}
    rows = admin.call(lambda cluster: cluster.list_offset_rows(wanted, isolation=Isolation.READ_UNCOMMITTED))
    return {name: row.offset for name, row in rows.items()}


def leaders(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Return the leader of each partition of these topics, -1 for none. Raise RequestError for an unknown topic."""
    found: dict[TopicPartition, int] = {}
    for row in admin.cluster_metadata(topics).topics if topics else ():
        if row.error_code:
            raise RequestError(row.error_code)
        found |= {TopicPartition(row.name or "", each.partition_index): each.leader_id for each in row.partitions}
    return found
