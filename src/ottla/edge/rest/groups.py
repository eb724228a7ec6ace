"""Consumer groups for the proxy: description, members with their partitions, and lag. Blocking functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, UnsupportedByBroker
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.edge.rest.admin import check
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import WireError, decode
from ottla.wire.group_records import ConsumerProtocolAssignment
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

_CONSUMER: Final = "consumer"
_CONSUMER_MEMBER: Final = 1
_CLASSIC_MEMBER: Final = 0
_ELEMENTS_MAX: Final = 1_000_000
#: OffsetFetch for all partitions of a group in a list of groups
_OFFSET_FETCH_MAX: Final = 9
_STATES: Final = {
    "preparingrebalance": "PREPARING_REBALANCE", "completingrebalance": "COMPLETING_REBALANCE", "stable": "STABLE",
    "dead": "DEAD", "empty": "EMPTY", "assigning": "ASSIGNING", "reconciling": "RECONCILING",
}  # fmt: skip


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    partitions: Sequence[TopicPartition]


class Group(NamedTuple):
    """A consumer group."""

    group_id: str
    is_simple: bool
    assignor: str
    state: str
    #: CONSUMER or CLASSIC
    protocol: str
    is_mixed: bool
    coordinator_id: int
    members: Sequence[Member]


class Lag(NamedTuple):
    """How far a group is behind the end of a partition; the fields have the names of the REST API."""

    topic_name: str
    partition_id: int
    consumer_id: str
    instance_id: str | None
    client_id: str
    current_offset: int
    log_end_offset: int
    lag: int


def list_groups(cluster: Cluster) -> list[Group]:
    """Return all consumer groups that the identity may see."""

    def attempt(deadline: float) -> list[str]:
        names: set[str] = set()
        answer = cluster.metadata([], deadline)
        for row in answer.brokers:
            listed = cluster.ask(Node(row.node_id, row.host, row.port), ListGroupsRequest(), deadline=deadline)
            check(listed.error_code, "groups")
            names |= {each.group_id for each in listed.groups if each.protocol_type in ("", _CONSUMER)}
        return sorted(names)

    names = cluster.retry("groups", attempt)
    found = (describe_group(cluster, name) for name in names)
    return [group for group in found if group is not None]


def describe_group(cluster: Cluster, group_id: str) -> Group | None:
    """Return a group; None if it does not exist or is no group of consumers."""

    def attempt(node: Node, deadline: float) -> Group | None:
        group = _describe_consumer_protocol(cluster, node, group_id, deadline)
        return group if group is not None else _describe_classic(cluster, node, group_id, deadline)

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group_id, attempt)


def _describe_consumer_protocol(cluster: Cluster, node: Node, group_id: str, deadline: float) -> Group | None:
    try:
        answer = cluster.ask(node, ConsumerGroupDescribeRequest(group_ids=[group_id]), deadline=deadline)
    except UnsupportedByBroker:
        return None
    (row,) = answer.groups
    # A group of the classic protocol is not found by this request.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, f"group {group_id}", row.error_message)
    members = [
        Member(each.member_id, each.instance_id, each.client_id, [
            TopicPartition(topic.topic_name, number)
            for topic in (each.assignment.topic_partitions if each.assignment else ()) for number in topic.partitions
        ])
        for each in row.members
    ]  # fmt: skip
    kinds = {each.member_type for each in row.members}
    return Group(
        group_id, False, row.assignor_name, state_name(row.group_state), "CONSUMER",
        {_CLASSIC_MEMBER, _CONSUMER_MEMBER} <= kinds, node.broker_id, members,
    )  # fmt: skip


def _describe_classic(cluster: Cluster, node: Node, group_id: str, deadline: float) -> Group | None:
    answer = cluster.ask(node, DescribeGroupsRequest(groups=[group_id]), deadline=deadline)
    (row,) = answer.groups
    if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(row.error_code, f"group {group_id}", row.error_message)
    if row.group_state == "Dead" or row.protocol_type not in ("", _CONSUMER):
        return None
    members = [
        Member(each.member_id, each.group_instance_id, each.client_id, _partitions(bytes(each.member_assignment)))
        for each in row.members
    ]
    return Group(
        group_id, not row.protocol_type, row.protocol_data, state_name(row.group_state), "CLASSIC", False,
        node.broker_id, members,
    )  # fmt: skip


def _partitions(assignment: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment; none if it is not in the format of Kafka's consumers."""
    if len(assignment) < 2:
        return []
    version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.VERSIONS[1])
    try:
        message, _ = decode(ConsumerProtocolAssignment, version, assignment, 2, _ELEMENTS_MAX)
    except WireError:
        return []
    return sorted(TopicPartition(row.topic, n) for row in message.assigned_partitions for n in row.partitions)


def state_name(word: str) -> str:
    """Return the REST name of a group's state.

    >>> state_name("PreparingRebalance"), state_name("Other")
    ('PREPARING_REBALANCE', 'UNKNOWN')
    """
    return _STATES.get(word.lower(), "UNKNOWN")


def group_lags(cluster: Cluster, group: Group) -> list[Lag]:
    """Return the lag of each partition with a committed offset, in the order of topics and partitions."""
    committed = _committed(cluster, group.group_id)
    # Ends are read after the commits, so that a lag is never negative.
    ends = _ends(cluster, committed)
    owners = {tp: member for member in group.members for tp in member.partitions}
    no_member = Member("", None, "", ())
    lags = []
    for tp in sorted(committed.keys() & ends.keys()):
        owner = owners.get(tp, no_member)
        behind = max(ends[tp] - committed[tp], 0)
        lags.append(Lag(*tp, owner.member_id, owner.instance_id, owner.client_id, committed[tp], ends[tp], behind))
    return lags


def _committed(cluster: Cluster, group_id: str) -> dict[TopicPartition, int]:
    request = OffsetFetchRequest(
        group_id=group_id, topics=None, groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)]
    )

    def attempt(node: Node, deadline: float) -> dict[TopicPartition, int]:
        answer = cluster.ask(node, request, deadline=deadline, version_min=2, version_max=_OFFSET_FETCH_MAX)
        rows: Any = answer.groups[0] if answer.groups else answer
        check(rows.error_code, f"offsets of group {group_id}")
        return {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in rows.topics for row in topic.partitions
            if not row.error_code and row.committed_offset >= 0
        }  # fmt: skip

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group_id, attempt)


def _ends(cluster: Cluster, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the end of each partition that exists; a topic may have been deleted after the commit."""
    topics = cluster.topics({tp.topic for tp in partitions})
    existing = [tp for tp in partitions if tp.topic in topics and tp.partition < topics[tp.topic].partitions]
    if not existing:
        return {}
    try:
        found = cluster.list_offsets(dict.fromkeys(existing, LATEST), isolation=Isolation.READ_COMMITTED)
    except BrokerError as error:
        if error.code not in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise
        return {}
    return {tp: at.offset for tp, at in found.items()}
