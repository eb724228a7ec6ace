"""The steps of a heartbeat in a consumer group, and its members' deadlines. The handlers of both protocols use them.

See ``consumer.py`` for the theory of operation. Each step reads ``stored`` and adds records to the draft; the draft
replays them, so that the next step sees them in ``stored``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from ottla.broker.coordinators.outcome import NEVER, Moment
from ottla.broker.groups.assignors import ASSIGNORS, MemberSpec
from ottla.broker.groups.consumer_causes import RebalanceWatch, TopicsSeen, cause_of, subscription_change
from ottla.broker.groups.consumer_stored import Draft, StoredGroup, metadata_hash
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import Cause, CauseKind, listed
from ottla.broker.groups.reconcile import UNREVOKED_PARTITIONS, Goal, is_reconciled, is_subset, reconcile
from ottla.broker.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    TopicPartitions,
)
from ottla.broker.groups.regex import matching_topics
from ottla.model.errors import ErrorCode, Refused

#: the member epoch of a static member that left temporarily
LEAVE_STATIC_EPOCH: Final = -2

#: After a change of topics all regular expressions are matched again, at most once per this interval (as in Kafka).
_REGEX_REFRESH_MIN_S: Final = 10.0

#: Each member that joins causes a computation of the target assignment. A group with more owned partitions than this
#: computes it at most once per interval, so a member may have to wait for it until its next heartbeat. (Kafka uses an
#: interval of one second in every group.)
_ASSIGN_AT_ONCE_MAX: Final = 1000
_ASSIGN_INTERVAL_S: Final = 1.0


class Wait(Enum):
    """The kinds of deadlines of a member."""

    SESSION = "session"
    REVOCATION = "revocation"
    #: for classic members: to rejoin after REBALANCE_IN_PROGRESS, and to send SyncGroup after a join
    JOIN = "join"
    SYNC = "sync"


_MISSED: Final[Mapping[Wait, tuple[CauseKind, str]]] = {
    Wait.SESSION: (CauseKind.SESSION_TIMEOUT, "no heartbeat came in time"),
    Wait.REVOCATION: (CauseKind.MAX_POLL_INTERVAL, "it did not give up its partitions within its rebalance timeout"),
    Wait.JOIN: (CauseKind.MAX_POLL_INTERVAL, "it did not join again within its rebalance timeout"),
    Wait.SYNC: (CauseKind.NEVER_SYNCED, "it did not sync within its rebalance timeout"),
}


class GroupSteps:
    """The durable and the soft state of a group, and the steps that emit records."""

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.group_id = group_id
        self.stored = StoredGroup(group_id)
        #: monotonic seconds; no deadline is earlier
        self.wake_at = NEVER

        self._context = context
        self._deadlines: dict[Wait, dict[str, float]] = {wait: {} for wait in Wait}
        self._watch = RebalanceWatch(group_id)
        self._topics_seen = TopicsSeen()
        #: (version of the topics, resulting group epoch) of the last computation of the metadata hash, and of the last
        #: match of the regular expressions. A computation is valid only if its group epoch was stored.
        self._hashed = self._matched = (-1, 0)
        #: earliest time of the next match of all expressions, and of the next computation of a large group's target
        self._match_after_s = 0.0
        self._assign_after_s = 0.0

    # -- durable state -----------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of this group. A member's tombstone also removes its deadlines."""
        self.stored.replay(record)
        if record.value is None and isinstance(record.key, ConsumerGroupMemberMetadataKey):
            self._forget(record.key.member_id)

    def resume(self, now: Moment) -> None:
        """Start a session for every member that has none. Return immediately if all members have one."""
        sessions, revocations = self._deadlines[Wait.SESSION], self._deadlines[Wait.REVOCATION]
        if len(sessions) == len(self.stored.members):
            return
        for member_id, member in self.stored.members.items():
            if member_id in sessions:
                continue
            self._wait(Wait.SESSION, member_id, self._session_timeout_ms(member), now)
            unrevoked = self.stored.current(member_id).state == UNREVOKED_PARTITIONS
            if unrevoked and member.classic_member_metadata is None and member_id not in revocations:
                self._wait(Wait.REVOCATION, member_id, member.rebalance_timeout_ms, now)

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> GroupOutcome[None]:
        """Remove all members that missed a deadline, in one group epoch, and compute ``wake_at``."""
        late: dict[str, Cause] = {}
        self.wake_at = NEVER
        for wait, deadlines in self._deadlines.items():
            for member_id, deadline in list(deadlines.items()):
                member = self.stored.members.get(member_id)
                if member is None:
                    del deadlines[member_id]  # the records of the member's join were never stored
                elif wait in (Wait.JOIN, Wait.SYNC) and member.classic_member_metadata is None:
                    del deadlines[member_id]  # the member has changed to the consumer protocol
                elif deadline > now.monotonic_s:
                    self.wake_at = min(self.wake_at, deadline)
                else:
                    kind, detail = _MISSED[wait]
                    late.setdefault(member_id, cause_of(kind, member_id, member, detail))
        with Draft(self.stored, now) as draft:
            if late:
                self._remove(late, draft)
                self._maybe_finish(draft)
        for member_id in late:
            self._forget(member_id)
        return draft.outcome()

    def _wait(self, wait: Wait, member_id: str, timeout_ms: int, now: Moment) -> None:
        deadline = now.monotonic_s + timeout_ms / 1000
        self._deadlines[wait][member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def _forget(self, member_id: str) -> None:
        for deadlines in self._deadlines.values():
            deadlines.pop(member_id, None)

    def _session_timeout_ms(self, member: ConsumerGroupMemberMetadataValue) -> int:
        if member.classic_member_metadata is not None:
            return member.classic_member_metadata.session_timeout_ms
        return self._context.session_timeout_ms(self.group_id)

    # -- step 1: find or check the member ----------------------------------------------------------------------------

    def _member(self, member_id: str) -> ConsumerGroupMemberMetadataValue:
        """Return the member. Raise Refused if the group has no such member."""
        member = self.stored.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {self.group_id} has no member {member_id}.")
        return member

    def _check_size(self, member_id: str) -> None:
        """Raise Refused if the group is full and this is not one of its members."""
        size_max = self._context.settings.group_consumer_max_size
        if len(self.stored.members) >= size_max and member_id not in self.stored.members:
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group is full: group.consumer.max.size allows {size_max} members.",
            )

    def _check_epoch(self, member_id: str, epoch: int, owned: TopicPartitions | None) -> None:
        """Raise Refused if the epoch is neither the member's current epoch nor a valid previous one.

        The previous epoch is valid if the member owns only assigned partitions, because the response with the current
        epoch may have been lost.
        """
        self._member(member_id)
        current = self.stored.current(member_id)
        if epoch == current.member_epoch:
            return
        if epoch == current.previous_member_epoch and is_subset(owned, current.assigned_partitions):
            return
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"Member epoch {epoch} is not {current.member_epoch}. Give up all partitions and rejoin with epoch 0.",
        )

    def _check_epoch_is_current(self, member_id: str, member: ConsumerGroupMemberMetadataValue, epoch: int) -> None:
        """Raise Refused if this is not the member's current epoch."""
        expected = self.stored.current(member_id).member_epoch
        if epoch != expected:
            is_classic = member.classic_member_metadata is not None
            raise Refused(
                ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH,
                f"The member is at epoch {expected}, not at {epoch}.",
            )

    def _check_instance(self, instance_id: str, member_id: str) -> ConsumerGroupMemberMetadataValue:
        """Return the static member. Raise Refused if no member has the instance id, or if another member has it."""
        holder = self.stored.static_members.get(instance_id)
        if holder is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"No member has the instance id {instance_id}.")
        if holder != member_id:
            raise Refused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"The instance id {instance_id} is now that of member {holder}.",
            )
        return self.stored.members[holder]

    def _replace_static(self, instance_id: str, member_id: str, draft: Draft, *, is_classic: bool) -> None:
        """Replace the member with this instance id, if there is one, by the joining member.

        The joining member gets the subscription, the target and the assignment of its predecessor.

        :raises Refused: if the predecessor is still active.
        """
        stored, group = self.stored, self.group_id
        holder = stored.static_members.get(instance_id)
        if holder is None:
            return
        member, current = stored.members[holder], stored.current(holder)
        # If both members use the consumer protocol, the old one must have left. A change of the protocol proves that
        # the client restarted, so then the old one need not have left.
        both_consumer = not is_classic and member.classic_member_metadata is None
        if both_consumer and current.member_epoch != LEAVE_STATIC_EPOCH:
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"The instance id {instance_id} is in use by member {holder}. Wait for it to leave or to time out.",
            )
        target = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=stored.target(holder))
        if holder != member_id:
            for record in stored.member_tombstones(holder):
                draft.add(record)
            draft.emit(ConsumerGroupMemberMetadataKey(group, member_id), member)
            draft.emit(ConsumerGroupTargetAssignmentMemberKey(group, member_id), target)
            detail = f"it took over from {holder}"
            draft.causes.append(cause_of(CauseKind.STATIC_MEMBER_FENCED, member_id, member, detail))
        initial = replace(current, member_epoch=0, previous_member_epoch=0)
        draft.emit(ConsumerGroupCurrentMemberAssignmentKey(group, member_id), initial)

    # -- step 2: update the subscription -----------------------------------------------------------------------------

    def _update(
        self,
        member_id: str,
        before: ConsumerGroupMemberMetadataValue | None,
        member: ConsumerGroupMemberMetadataValue,
        draft: Draft,
    ) -> bool:
        """Emit the member's record if its properties changed. Return whether its subscription changed."""
        if member == before:
            return False
        expression = member.subscribed_topic_regex or ""
        resolved = None
        if expression and expression not in self.stored.regexes:
            resolved = self._match(expression, draft)
        is_converting = self.stored.classic_count == len(self.stored.members) > 0
        if is_converting and member.classic_member_metadata is None:
            draft.causes.append(cause_of(CauseKind.PROTOCOL_CHANGED, member_id, member, "now of the consumer protocol"))
        if before is None:
            draft.causes.append(cause_of(CauseKind.JOINED, member_id, member))
        draft.emit(ConsumerGroupMemberMetadataKey(self.group_id, member_id), member)
        if resolved is not None:
            if not self.stored.regexes:
                self._matched = (self._context.topics.version, self.stored.epoch)
            draft.emit(ConsumerGroupRegularExpressionKey(self.group_id, expression), resolved)
        self._drop_regexes(draft)
        old = before if before is not None else ConsumerGroupMemberMetadataValue(client_id="", client_host="")
        change = subscription_change(old, member)
        if change and before is not None:
            draft.causes.append(cause_of(CauseKind.SUBSCRIPTION_CHANGED, member_id, member, change))
        return bool(change)

    def _match(self, expression: str, draft: Draft) -> ConsumerGroupRegularExpressionValue:
        """Return the topics that an expression matches, without those that the client may not know.

        As in Kafka, the result is that of the member whose heartbeat needed it, for all members with the expression.
        """
        topics = self._context.topics
        found = matching_topics(expression, topics.names())
        if draft.may_see is not None:
            found = tuple(filter(draft.may_see, found))
        return ConsumerGroupRegularExpressionValue(topics=found, version=topics.version, timestamp=draft.now.wall_ms)

    def _drop_regexes(self, draft: Draft) -> None:
        """Emit tombstones for regular expressions without subscribers."""
        for expression in [each for each in self.stored.regexes if not self.stored.regex_subscribers[each]]:
            draft.emit(ConsumerGroupRegularExpressionKey(self.group_id, expression), None)

    # -- step 3: bump the group epoch --------------------------------------------------------------------------------

    def _maybe_bump(self, changed: bool, draft: Draft) -> None:
        """Bump the group epoch if the subscription, the regular expressions' matches or the topics changed."""
        version = self._context.topics.version
        is_matching = bool(self.stored.regexes) and not self._is_up_to_date(self._matched)
        is_matching = is_matching and draft.now.monotonic_s >= self._match_after_s
        if is_matching:
            self._match_again(draft)
        causes = draft.causes
        if not causes and not changed and not is_matching and self._is_up_to_date(self._hashed):
            return
        names = self.stored.subscribed_topics()
        hashed = metadata_hash(names, self._context.topics)
        if not changed and not causes and hashed != self.stored.metadata_hash:
            causes.append(Cause(kind=CauseKind.TOPICS_CHANGED, detail=self._topics_seen.change(self._context.topics)))
        regexes_changed = any(isinstance(record.key, ConsumerGroupRegularExpressionKey) for record in draft.records)
        if changed or regexes_changed or hashed != self.stored.metadata_hash or self.stored.epoch_value is None:
            self._bump(hashed, causes, draft)
        self._topics_seen.remember(names, self._context.topics)
        self._hashed = (version, self.stored.epoch)
        if is_matching:
            self._matched = (version, self.stored.epoch)

    def _is_up_to_date(self, computed: tuple[int, int]) -> bool:
        """Return whether a computation used the current version of the topics and its group epoch was stored."""
        version, epoch = computed
        return version == self._context.topics.version and epoch <= self.stored.epoch

    def _match_again(self, draft: Draft) -> None:
        """Match all regular expressions against the current topics and emit the changed results."""
        self._match_after_s = draft.now.monotonic_s + _REGEX_REFRESH_MIN_S
        for expression, old in list(self.stored.regexes.items()):
            new = self._match(expression, draft)
            if new.topics != old.topics:
                draft.emit(ConsumerGroupRegularExpressionKey(self.group_id, expression), new)
                changes = [f"{expression!r} now matches {name}" for name in new.topics if name not in old.topics]
                changes += [f"{name} was deleted" for name in old.topics if name not in new.topics]
                draft.causes.append(Cause(kind=CauseKind.TOPICS_CHANGED, detail=listed(changes)))

    def _bump(self, hashed: int, causes: Sequence[Cause], draft: Draft) -> None:
        epoch = self.stored.epoch + 1
        value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=hashed)
        draft.emit(ConsumerGroupMetadataKey(self.group_id), value)
        counts = draft.members_before, len(self.stored.members)
        draft.rebalances.extend(self._watch.begin(epoch, counts, causes, draft.now))

    def _remove(self, leaving: Mapping[str, Cause], draft: Draft) -> None:
        """Remove these members and bump the group epoch. The next heartbeat computes a target without them."""
        for member_id in leaving:
            for record in self.stored.member_tombstones(member_id):
                draft.add(record)
        self._drop_regexes(draft)
        hashed = metadata_hash(self.stored.subscribed_topics(), self._context.topics)
        self._bump(hashed, list(leaving.values()), draft)

    def _maybe_finish(self, draft: Draft) -> None:
        """End the ongoing rebalance if the records of this draft make the group Stable or Empty."""
        if self._watch.is_rebalancing and draft.records and self.stored.state in ("Stable", "Empty"):
            draft.rebalances.extend(self._watch.finish(len(self.stored.members), draft.now))

    # -- step 4: compute the target assignment -----------------------------------------------------------------------

    def _assign(self, draft: Draft) -> None:
        """Compute the target assignment for the group epoch and emit the changed targets."""
        stored, group, topics = self.stored, self.group_id, self._context.topics
        specs: dict[str, MemberSpec] = {}
        ids_of: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
        for member_id, member in stored.members.items():
            subscription = (member.subscribed_topic_names, member.subscribed_topic_regex)
            if subscription not in ids_of:
                ids_of[subscription] = self._topic_ids(member)
            specs[member_id] = MemberSpec(ids_of[subscription], member.instance_id)
        counts = {
            topic_id: topics.partition_count(name) or 0
            for topic_id in frozenset[bytes]().union(*ids_of.values())
            if (name := topics.topic_name(topic_id)) is not None
        }
        targets = {member_id: stored.target(member_id) for member_id in specs}
        for member_id, partitions in ASSIGNORS[self.assignor_name()](specs, targets, counts).items():
            value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions)
            if value != stored.targets.get(member_id):
                draft.emit(ConsumerGroupTargetAssignmentMemberKey(group, member_id), value)
        epoch = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=stored.epoch)
        draft.emit(ConsumerGroupTargetAssignmentMetadataKey(group), epoch)

    def assignor_name(self) -> str:
        """Return the assignor that most members request; of equals, or without requests, the first configured one."""
        configured: Sequence[str] = self._context.settings.group_consumer_assignors
        votes = Counter(member.server_assignor for member in self.stored.members.values())
        return max(configured, key=lambda name: votes[name])

    def _topic_ids(self, member: ConsumerGroupMemberMetadataValue) -> frozenset[bytes]:
        ids = (self._context.topics.topic_id(name) for name in self.stored.topics_of(member))
        return frozenset(topic_id for topic_id in ids if topic_id is not None)

    # -- step 5: reconcile the member --------------------------------------------------------------------------------

    def _reconcile(
        self, member_id: str, owned: TopicPartitions | None, changed: bool, draft: Draft
    ) -> ConsumerGroupCurrentMemberAssignmentValue:
        """Move the member towards its target assignment. Return its new current assignment."""
        stored, now = self.stored, draft.now
        is_due = now.monotonic_s >= self._assign_after_s or len(stored.owners) <= _ASSIGN_AT_ONCE_MAX
        if stored.epoch > stored.assignment_epoch and is_due:
            self._assign(draft)
            self._assign_after_s = now.monotonic_s + _ASSIGN_INTERVAL_S
        old, member = stored.current(member_id), stored.members[member_id]
        if not changed and is_reconciled(old, stored.assignment_epoch):
            return old
        goal = Goal(
            target_epoch=stored.assignment_epoch,
            target=stored.target(member_id),
            topic_ids=self._topic_ids(member),
            subscription_changed=changed,
            owned=owned,
            is_owned_by_other=lambda topic_id, number: self._is_owned_by_other(member_id, topic_id, number),
        )
        current = reconcile(old, goal)
        if current != old or member_id not in stored.currents:
            draft.emit(ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id), current)
            # Classic members have the deadlines JOIN and SYNC instead of REVOCATION.
            if current.state == UNREVOKED_PARTITIONS and member.classic_member_metadata is None:
                self._wait(Wait.REVOCATION, member_id, member.rebalance_timeout_ms, now)
            else:
                self._deadlines[Wait.REVOCATION].pop(member_id, None)
        return current

    def _is_owned_by_other(self, member_id: str, topic_id: bytes, number: int) -> bool:
        return self.stored.owners.get((topic_id, number), member_id) != member_id
