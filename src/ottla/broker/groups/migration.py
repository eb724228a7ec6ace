"""Online migration of a group between the classic and the consumer protocol. Pure.

Upgrade: the first member that joins with the consumer protocol converts a classic group to the consumer protocol. The
classic members keep their last assignment, and their generation becomes the group epoch and their member epoch.

Downgrade: when the last member of the consumer protocol has left and classic members remain, the group becomes a
classic group. Its generation is the highest epoch of its members.

``group.consumer.migration.policy`` allows each direction. An empty group is not converted: the shard replaces it.
Facts: KIP-848; ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup of Kafka 4.2.
"""

from __future__ import annotations

from collections import Counter

from ottla.broker.coordinators.outcome import CoordinatorContext, Moment
from ottla.broker.groups.classic import ClassicGroup
from ottla.broker.groups.classic_members import ClassicMember
from ottla.broker.groups.consumer import PROTOCOL_TYPE, ConsumerGroup
from ottla.broker.groups.consumer_stored import metadata_hash
from ottla.broker.groups.reconcile import STABLE, from_sets
from ottla.broker.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    TopicPartitions,
)
from ottla.broker.groups.subscription import (
    Subscription,
    decode_assignment,
    decode_subscription,
)
from ottla.model.errors import ErrorCode, Refused
from ottla.wire import WireError

# -- classic to consumer ----------------------------------------------------------------------------------------------


def can_upgrade(classic: ClassicGroup, context: CoordinatorContext) -> None:
    """Raise Refused if a group with members cannot be converted to the consumer protocol.

    :raises Refused: GROUP_ID_NOT_FOUND, which is a fatal error for the client; the text gives the reason.
    """
    settings = context.settings
    if settings.group_consumer_migration_policy not in ("upgrade", "bidirectional"):
        raise _no_upgrade(classic, "group.consumer.migration.policy does not allow it")
    if classic.protocol_type != PROTOCOL_TYPE:
        raise _no_upgrade(classic, f"its protocol type is {classic.protocol_type!r} and not 'consumer'")
    if len(classic.members) > settings.group_consumer_max_size:
        raise _no_upgrade(classic, "it has more members than group.consumer.max.size")
    owned: set[tuple[str, int]] = set()
    for member in classic.members.values():
        try:
            assignment = decode_assignment(member.assignment)
            _subscription(member, classic.generation.protocol_name)
        except WireError:
            raise _no_upgrade(
                classic, f"the subscription or the assignment of {member.member_id} cannot be read"
            ) from None
        if assignment.user_data:
            reason = "its assignor sends data of its own, which would be lost; change to one that comes with the client"
            raise _no_upgrade(classic, reason)
        partitions = {(topic, number) for topic, numbers in assignment.partitions for number in numbers}
        if owned & partitions:
            raise _no_upgrade(classic, "its assignor gave a partition to two members")
        owned |= partitions


def upgrade_records(classic: ClassicGroup, context: CoordinatorContext, now: Moment) -> list[CoordinatorRecord]:
    """Return the tombstone of the classic group and the records of the consumer group, with all members Stable."""
    group, epoch = classic.group_id, classic.generation.number
    members = {each.member_id: _upgraded(each, classic.generation.protocol_name) for each in classic.members.values()}
    assigned = {each.member_id: _assigned(each, context) for each in classic.members.values()}
    names = {name for member in members.values() for name in member.subscribed_topic_names}
    epoch_value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash(names, context.topics))
    assignment_value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    records = [CoordinatorRecord(GroupMetadataKey(group), None)]
    for member_id, member in members.items():
        records.append(CoordinatorRecord(ConsumerGroupMemberMetadataKey(group, member_id), member))
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group), epoch_value))
    for member_id, partitions in assigned.items():
        target = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions)
        records.append(CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group, member_id), target))
    records.append(CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group), assignment_value))
    for member_id, partitions in assigned.items():
        current = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch, previous_member_epoch=epoch, state=STABLE, assigned_partitions=partitions
        )
        records.append(CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group, member_id), current))
    return records


def _no_upgrade(classic: ClassicGroup, reason: str) -> Refused:
    text = f"Classic group {classic.group_id} cannot change to the consumer protocol: {reason}."
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _subscription(member: ClassicMember, protocol: str | None) -> Subscription:
    """Return the member's subscription for this protocol, or for its first protocol if it does not support this one.

    A member that joined after the protocol was chosen may not support it. All protocols of a member have the same
    subscription.
    """
    return decode_subscription(member.metadata(protocol) or (member.protocols[0][1] if member.protocols else b""))


def _upgraded(member: ClassicMember, protocol: str | None) -> ConsumerGroupMemberMetadataValue:
    """Return the record of a classic member in the consumer group."""
    subscription = _subscription(member, protocol)
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms, supported_protocols=member.protocols
        ),
    )


def _assigned(member: ClassicMember, context: CoordinatorContext) -> TopicPartitions:
    """Return the member's assignment by topic id, without deleted topics."""
    partitions: dict[bytes, set[int]] = {}
    for name, numbers in decode_assignment(member.assignment).partitions:
        topic_id = context.topics.topic_id(name)
        if topic_id is not None:
            partitions.setdefault(topic_id, set()).update(numbers)
    return from_sets(partitions)


# -- consumer to classic ----------------------------------------------------------------------------------------------


def should_downgrade(group: ConsumerGroup, context: CoordinatorContext) -> bool:
    """Return whether only classic members are left, and policy and ``group.max.size`` allow a classic group of them."""
    count = len(group.members)
    return (
        0 < count == group.stored.classic_count
        and context.settings.group_consumer_migration_policy in ("downgrade", "bidirectional")
        and count <= context.settings.group_max_size
    )


def downgrade_records(group: ConsumerGroup, now: Moment) -> list[CoordinatorRecord]:
    """Return the tombstones of the consumer group and the record of the classic group. All members must be classic.

    The record has no assignments, so that the members rebalance, even if a coordinator loads the record from the log.
    """
    protocols = {
        member_id: member.classic_member_metadata.supported_protocols
        for member_id, member in group.members.items()
        if member.classic_member_metadata is not None
    }
    assert len(protocols) == len(group.members)
    chosen = _choose_protocol(list(protocols.values()))
    value = GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        # Not the group epoch: it went up when the last consumer member left, and no classic member has seen it.
        generation=max(group.stored.current(member_id).member_epoch for member_id in protocols),
        protocol=chosen,
        leader=next(iter(protocols)),
        current_state_timestamp=now.wall_ms,
        members=tuple(_downgraded(group, member_id, chosen) for member_id in protocols),
    )
    return [*group.tombstones(), CoordinatorRecord(GroupMetadataKey(group.group_id), value)]


def _choose_protocol(protocols: list[tuple[tuple[str, bytes], ...]]) -> str:
    """Return the protocol that most members prefer among those that all support; of equals the first by name."""
    supporters = Counter(name for each in protocols for name, _ in each)
    shared = {name for name, count in supporters.items() if count == len(protocols)}
    votes = Counter(next((name for name, _ in each if name in shared), each[0][0]) for each in protocols)
    return max(sorted(votes), key=lambda name: votes[name])


def _downgraded(group: ConsumerGroup, member_id: str, protocol: str) -> MemberMetadata:
    """Return the entry of a classic member in the record of the classic group."""
    member = group.members[member_id]
    assert member.classic_member_metadata is not None
    supported = member.classic_member_metadata.supported_protocols
    metadata = dict(supported).get(protocol, supported[0][1])
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic_member_metadata.session_timeout_ms,
        subscription=metadata,
        assignment=b"",
    )
