"""The parts of a picture about clients: groups and their members, quotas and ACLs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ottla.admin import acls, group_requests, quotas
from ottla.admin.acls import Acl
from ottla.client.protocol.metadata import Node
from ottla.health.asker import Asker
from ottla.health.types import GroupPicture, MemberPicture, Part
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.security.acls import Operation, PatternType, Permission, ResourceType
from ottla.wire import WireError, decode
from ottla.wire.group_records import ConsumerProtocolSubscription
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest

#: groups in one request
_GROUPS_MAX = 100
_ELEMENTS_MAX = 1_000_000
_ALL_ACLS = Acl(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
#: the first version of DescribeAcls with patterns
_ACLS_VERSION_MIN = 1


def read_groups(asker: Asker, nodes: Iterable[Node], groups_max: int) -> dict[str, GroupPicture]:
    """Return the consumer groups, the first of them with their members: groups in a rebalance come first."""
    found: dict[str, GroupPicture] = {}
    by_id = {node.broker_id: node for node in nodes}
    for node in by_id.values():
        answer = asker.ask(Part.GROUPS, node, ListGroupsRequest())
        if answer is None or not asker.accepts(Part.GROUPS, answer.error_code):
            continue
        for listing in filter(None, map(group_requests.listing, answer.groups)):
            found[listing.group_id] = GroupPicture(listing=listing, coordinator=node.broker_id)
    active = [each for each in found.values() if each.listing.state not in ("Empty", "Dead")]
    active.sort(key=lambda each: (not each.is_rebalancing, each.listing.group_id))
    if len(active) > groups_max:
        asker.refused(Part.MEMBERS, f"only those of {groups_max} groups were read, of {len(active)} with members")
    for members in _read_members(asker, active[:groups_max], by_id):
        found |= {name: replace(found[name], members=each) for name, each in members.items()}
    return dict(sorted(found.items()))


def _read_members(
    asker: Asker, groups: Collection[GroupPicture], nodes: Mapping[int, Node]
) -> Iterator[dict[str, tuple[MemberPicture, ...]]]:
    """Yield the members of these groups, in parts."""
    for number, node in nodes.items():
        for is_consumer in (False, True):
            names = [
                each.listing.group_id
                for each in groups
                if each.coordinator == number and (each.listing.group_type == "consumer") is is_consumer
            ]
            for start in range(0, len(names), _GROUPS_MAX):
                part = names[start : start + _GROUPS_MAX]
                yield (_describe_consumer if is_consumer else _describe_classic)(asker, node, part)


def _describe_classic(asker: Asker, node: Node, names: Sequence[str]) -> dict[str, tuple[MemberPicture, ...]]:
    answer = asker.ask(Part.MEMBERS, node, DescribeGroupsRequest(groups=names))
    return {
        row.group_id: tuple(
            MemberPicture(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                instance_id=each.group_instance_id or None,
                topics=_subscribed(bytes(each.member_metadata)),
                partitions=group_requests.assigned(bytes(each.member_assignment)),
            )
            for each in row.members
        )
        for row in _accepted(asker, answer)
    }


def _describe_consumer(asker: Asker, node: Node, names: Sequence[str]) -> dict[str, tuple[MemberPicture, ...]]:
    answer = asker.ask(Part.MEMBERS, node, ConsumerGroupDescribeRequest(group_ids=names))
    return {
        row.group_id: tuple(
            MemberPicture(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                instance_id=each.instance_id or None,
                topics=None if each.subscribed_topic_regex else frozenset(each.subscribed_topic_names),
                partitions=tuple(
                    TopicPartition(topic.topic_name, number)
                    for topic in each.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for each in row.members
        )
        for row in _accepted(asker, answer)
    }


def _accepted(asker: Asker, answer: Any) -> Iterator[Any]:
    """Yield the groups in a reply. A group that was deleted, or whose coordinator has moved, is left out."""
    left_out = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for row in answer.groups if answer is not None else ():
        if row.error_code not in left_out and asker.accepts(Part.MEMBERS, row.error_code):
            yield row


def _subscribed(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if it is not in the format of Kafka's consumers."""
    if len(metadata) < 2:
        return None
    version = min(int.from_bytes(metadata[:2], "big"), ConsumerProtocolSubscription.VERSIONS[1])
    try:
        message, _ = decode(ConsumerProtocolSubscription, version, metadata, 2, _ELEMENTS_MAX)
    except WireError:
        return None
    return frozenset(message.topics)


def read_quotas(asker: Asker, nodes: Iterable[Node]) -> tuple[dict[str, Any], ...]:
    answer = asker.ask_any(Part.QUOTAS, nodes, DescribeClientQuotasRequest(components=[], strict=False))
    if answer is None or not asker.accepts(Part.QUOTAS, answer.error_code, answer.error_message):
        return ()
    return tuple(quotas.rows_of(answer))


def read_acls(asker: Asker, nodes: Iterable[Node]) -> frozenset[Acl] | None:
    """Return the ACLs; None if the cluster has no authorizer."""
    answer = asker.ask_any(Part.ACLS, nodes, acls.describe_request(_ALL_ACLS), _ACLS_VERSION_MIN)
    if answer is not None and answer.error_code == ErrorCode.SECURITY_DISABLED:
        return None
    if answer is None or not asker.accepts(Part.ACLS, answer.error_code, answer.error_message):
        return frozenset()
    return frozenset(acls.acls_of(answer))
