"""Reconciliation of a consumer group member: from the partitions that it owns to its target assignment. Pure.

Each member has a state and an epoch; a partition is owned by at most one member at any time.

                  nothing to revoke, all new ones are free
             ┌────────────────────────────────────────────────┐
             │                                                ▼
    Stable ──┼── must revoke partitions ───► Unrevoked ──► next target ──► Stable
             │                                 │ still reports one: stays at its old epoch
             └── others still own some ──► Unreleased ──► Stable, after they revoked them

1. Unrevoked: the member keeps the partitions that are both assigned and in the target. Its other partitions are pending
   revocation: the member still owns them and must stop reading them. It stays at its epoch until a heartbeat reports
   owned partitions without them.
2. Then the member moves to the epoch of the target and is assigned the new partitions that no other member owns.
3. Unreleased: other members still own some of the new partitions. Later heartbeats assign them, at the same epoch.

Facts: KIP-848; CurrentAssignmentBuilder of Kafka 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.broker.groups.records import ConsumerGroupCurrentMemberAssignmentValue, TopicPartitions
from ottla.model.errors import ErrorCode, Refused

STABLE: Final = 0
UNREVOKED_PARTITIONS: Final = 1
UNRELEASED_PARTITIONS: Final = 2

#: the current assignment of a member that has just joined: epoch 0, without partitions
NEW_MEMBER: Final = ConsumerGroupCurrentMemberAssignmentValue(member_epoch=0, previous_member_epoch=0, state=STABLE)

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()

#: topic id -> partitions
Partitions = Mapping[bytes, Collection[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The target of a member, and the conditions under which it can reach it."""

    target_epoch: int
    target: TopicPartitions
    #: existing topics that the member is subscribed to; partitions of other topics are not assigned, even if targeted
    topic_ids: Collection[bytes]
    subscription_changed: bool
    #: the owned partitions that the member reports; None if the heartbeat has no such list
    owned: TopicPartitions | None
    #: whether another member owns the partition
    is_owned_by_other: Callable[[bytes, int], bool]


def is_reconciled(current: ConsumerGroupCurrentMemberAssignmentValue, target_epoch: int) -> bool:
    """Return whether the member has reached the target assignment of this epoch."""
    return current.state == STABLE and current.member_epoch == target_epoch


def is_subset(owned: TopicPartitions | None, of: TopicPartitions) -> bool:
    """Return whether ``of`` contains all owned partitions; False if the member did not report them."""
    if owned is None:
        return False
    whole = as_sets(of)
    return all(whole.get(topic_id, _NO_PARTITIONS) >= set(partitions) for topic_id, partitions in owned)


def reconcile(
    current: ConsumerGroupCurrentMemberAssignmentValue, goal: Goal
) -> ConsumerGroupCurrentMemberAssignmentValue:
    """Return the member's next assignment, or the same one if it must wait.

    :raises Refused: FENCED_MEMBER_EPOCH if the log has an unknown state and the member may own partitions.
    """
    if current.state == STABLE:
        if current.member_epoch != goal.target_epoch:
            return _advance(current, goal, current.member_epoch)
        return _drop_unsubscribed(current, goal) if goal.subscription_changed else current
    if current.state == UNREVOKED_PARTITIONS:
        if _reports_any(goal.owned, as_sets(current.partitions_pending_revocation)):
            return _drop_unsubscribed(current, goal) if goal.subscription_changed else current
        # The member has revoked all pending partitions, which completes its epoch; the target may be several ahead.
        return _advance(current, goal, min(current.member_epoch + 1, goal.target_epoch))
    if current.state == UNRELEASED_PARTITIONS:
        return _advance(current, goal, current.member_epoch)
    # A newer coordinator stored this state: only a member that owns no partitions can continue.
    if goal.owned is None or goal.owned:
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The log has state {current.state} for this member, which is unknown here. Rejoin without partitions.",
        )
    return _advance(current, goal, goal.target_epoch)


def as_sets(partitions: TopicPartitions) -> dict[bytes, set[int]]:
    return {topic_id: set(numbers) for topic_id, numbers in partitions}


def from_sets(partitions: Partitions) -> TopicPartitions:
    """Return the partitions sorted, without topics that have no partitions."""
    return tuple((topic_id, tuple(sorted(numbers))) for topic_id, numbers in sorted(partitions.items()) if numbers)


def _advance(
    current: ConsumerGroupCurrentMemberAssignmentValue, goal: Goal, epoch: int
) -> ConsumerGroupCurrentMemberAssignmentValue:
    """Move the member towards the target as far as possible. ``epoch`` is its epoch if it must revoke partitions."""
    assigned, target = as_sets(current.assigned_partitions), as_sets(goal.target)
    keep: dict[bytes, set[int]] = {}
    revoke: dict[bytes, set[int]] = {}
    is_complete = True
    for topic_id in target.keys() | assigned.keys():
        wanted = target.get(topic_id, _NO_PARTITIONS) if topic_id in goal.topic_ids else _NO_PARTITIONS
        has = assigned.get(topic_id, set())
        keep[topic_id] = has & wanted
        revoke[topic_id] = has - wanted
    if any(revoke.values()) and _reports_any(goal.owned, revoke):
        return _moved(current, epoch, UNREVOKED_PARTITIONS, keep, revoke)
    for topic_id, wanted in target.items():
        if topic_id not in goal.topic_ids:
            continue
        for partition in wanted - keep[topic_id]:
            if goal.is_owned_by_other(topic_id, partition):
                is_complete = False
            else:
                keep[topic_id].add(partition)
    return _moved(current, goal.target_epoch, STABLE if is_complete else UNRELEASED_PARTITIONS, keep, {})


def _drop_unsubscribed(
    current: ConsumerGroupCurrentMemberAssignmentValue, goal: Goal
) -> ConsumerGroupCurrentMemberAssignmentValue:
    """Revoke the partitions of unsubscribed topics, after a changed subscription and before a new target exists."""
    assigned = as_sets(current.assigned_partitions)
    dropped = {topic_id: numbers for topic_id, numbers in assigned.items() if topic_id not in goal.topic_ids}
    if not dropped:
        return current
    keep = from_sets({topic_id: numbers for topic_id, numbers in assigned.items() if topic_id not in dropped})
    revoke = as_sets(current.partitions_pending_revocation)
    for topic_id, numbers in dropped.items():
        revoke.setdefault(topic_id, set()).update(numbers)
    if _reports_any(goal.owned, revoke):
        return replace(
            current,
            state=UNREVOKED_PARTITIONS,
            assigned_partitions=keep,
            partitions_pending_revocation=from_sets(revoke),
        )
    return replace(current, assigned_partitions=keep)


def _reports_any(owned: TopicPartitions | None, of: Partitions) -> bool:
    """Return whether the member still owns one of these; True if it does not report its owned partitions."""
    if owned is None:
        return True
    return any(number in of.get(topic_id, ()) for topic_id, numbers in owned for number in numbers)


def _moved(
    current: ConsumerGroupCurrentMemberAssignmentValue, epoch: int, state: int, assigned: Partitions, revoke: Partitions
) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=epoch,
        previous_member_epoch=current.member_epoch if epoch != current.member_epoch else current.previous_member_epoch,
        state=state,
        assigned_partitions=from_sets(assigned),
        partitions_pending_revocation=from_sets(revoke),
    )
