"""ConsumerGroup: a group of the consumer protocol (KIP-848) as a pure state machine.

Theory of operation
-------------------
There are three kinds of epochs, and each follows the one before it:

    group epoch ──────► assignment epoch ──────► member epoch
    goes up when the    the target assignment    each member follows on its own, in the responses to
    members, their      is computed for the      its own heartbeats: see reconcile.py
    subscriptions or    newest group epoch, by
    the topics change   an assignor on the
                        next heartbeat

    Empty ──join──► Assigning ──heartbeat──► Reconciling ──all members at the assignment epoch──► Stable
      ▲                 ▲                         │                                                 │
      └ last one leaves └───────────── the group epoch goes up ◄────────────────────────────────────┘

One heartbeat runs all of these steps, in this order; each step sees the records of the steps before it (``Draft``):

1. find the member or add it; a static member may replace its predecessor
2. update the member's subscription and properties; resolve its regular expression
3. bump the group epoch if the member joined, if its subscription changed, or if topics changed
4. compute the target assignment if the group epoch is ahead of the assignment epoch
5. reconcile this one member
6. respond with its epoch, and with its assignment if that changed or if the request was a full one

Invariants: a partition has at most one owner, because it is assigned only when no member owns it, and a member loses it
only by a heartbeat that does not report it, or when the member is removed. Epochs never decrease, except to -2, which
marks a static member that left temporarily, and to 0, the first epoch of its successor.

A group can contain members of the classic protocol while an application migrates from one protocol to the other. The
group answers their JoinGroup, SyncGroup, Heartbeat and LeaveGroup from the same state: their generation is the member
epoch, and REBALANCE_IN_PROGRESS in a Heartbeat response tells them to rejoin, which runs step 5. No request is parked.

Time: there are no timers. Each member has deadlines, a heartbeat moves them, and ``wake_at`` is never later than the
earliest of them; ``expire`` removes members that missed a deadline and computes ``wake_at``.

Differences from Kafka 4.3: a regular expression is resolved within the heartbeat, not by a background task; only large
groups wait between two computations of the target assignment; a commit must have the member's current epoch, while
Kafka accepts an older one for partitions that the member already owned at that epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment
from ottla.broker.groups.classic_members import sync_wait_ms
from ottla.broker.groups.consumer_causes import cause_of
from ottla.broker.groups.consumer_steps import LEAVE_STATIC_EPOCH, GroupSteps, Wait
from ottla.broker.groups.consumer_stored import Draft
from ottla.broker.groups.context import GroupOutcome
from ottla.broker.groups.journal import Cause, CauseKind
from ottla.broker.groups.reconcile import STABLE, UNRELEASED_PARTITIONS, UNREVOKED_PARTITIONS, from_sets
from ottla.broker.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataValue,
    CoordinatorRecord,
    TopicPartitions,
)
from ottla.broker.groups.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    Sender,
    Sync,
    SyncResult,
)
from ottla.broker.groups.subscription import (
    Assignment,
    PartitionsByTopic,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.wire import WireError

LEAVE_EPOCH: Final = -1
PROTOCOL_TYPE: Final = "consumer"


class ConsumerGroup(GroupSteps):
    """One group. Handlers return records; only ``replay`` changes ``stored``."""

    group_type: Final = "consumer"
    protocol_type: Final = PROTOCOL_TYPE
    #: Unknown, because no record stores when the group became empty. Its offsets expire by their commit timestamps.
    state_since_ms: Final = -1

    # -- describe and check ------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.stored.state

    @property
    def is_deleted(self) -> bool:
        return self.stored.has_no_records

    @property
    def is_empty(self) -> bool:
        return not self.stored.members

    @property
    def members(self) -> Mapping[str, ConsumerGroupMemberMetadataValue]:
        return self.stored.members

    @property
    def group_epoch(self) -> int:
        return self.stored.epoch

    def subscribed_topics(self) -> set[str]:
        return self.stored.subscribed_topics()

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.stored.subscribed_topics()

    def check_commit(self, sender: Sender, *, has_epoch: bool, transactional: bool = False) -> None:
        """Raise Refused if this member may not commit offsets now. ``has_epoch``: the request can have its epoch."""
        member_id, _, epoch = sender
        if epoch < 0 and (self.is_empty or transactional):
            return  # an administrator, a consumer that assigns its own partitions, or an old producer
        member = self._member(member_id)
        if member.classic_member_metadata is None and not has_epoch and not transactional:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                "A member of the consumer protocol must commit with OffsetCommit 9 or newer.",
            )
        self._check_epoch_is_current(member_id, member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise Refused if this member may not fetch committed offsets now."""
        if member_id is None and epoch < 0:
            return
        self._check_epoch_is_current(member_id or "", self._member(member_id or ""), epoch)

    # -- the consumer protocol ---------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now: Moment) -> GroupOutcome[ConsumerHeartbeatResult]:
        """Handle ConsumerGroupHeartbeat. Raise KafkaError if it is refused."""
        check_heartbeat(request, self._context.settings.group_consumer_assignors)
        with Draft(self.stored, now, request.client.may_see) as draft:
            result = (
                self._end_membership(request, draft) if request.member_epoch < 0 else self._heartbeat(request, draft)
            )
            self._maybe_finish(draft)
        return draft.outcome(result)

    def _heartbeat(self, request: ConsumerHeartbeat, draft: Draft) -> ConsumerHeartbeatResult:
        stored, now = self.stored, draft.now
        is_joining = request.member_epoch == 0
        owned = request.owned
        self._check_size(request.member_id)
        member_id = request.member_id or self._context.new_uuid()
        if request.instance_id is None:
            if not is_joining:
                self._check_epoch(member_id, request.member_epoch, owned)
        elif is_joining:
            self._replace_static(request.instance_id, member_id, draft, is_classic=False)
        else:
            self._check_instance(request.instance_id, member_id)
            self._check_epoch(member_id, request.member_epoch, owned)
        before = stored.members.get(member_id)
        changed = self._update(member_id, before, _updated_member(before, request), draft)
        self._maybe_bump(changed, draft)
        old = stored.current(member_id)
        current = self._reconcile(member_id, owned, changed, draft)
        self._wait(Wait.SESSION, member_id, self._context.session_timeout_ms(self.group_id), now)
        has_subscription = request.topic_names is not None or request.topic_regex is not None
        is_full = request.rebalance_timeout_ms != -1 and has_subscription and owned is not None
        has_assignment = is_joining or is_full or current.assigned_partitions != old.assigned_partitions
        return ConsumerHeartbeatResult(
            member_id=member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self._context.heartbeat_interval_ms(self.group_id),
            assignment=current.assigned_partitions if has_assignment else None,
        )

    def _end_membership(self, request: ConsumerHeartbeat, draft: Draft) -> ConsumerHeartbeatResult:
        """Remove a member, or note that a static member is away for a while."""
        member_id, instance_id = request.member_id, request.instance_id
        member = self._member(member_id) if instance_id is None else self._check_instance(instance_id, member_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # The static member keeps its partitions until it rejoins under another member id or its session expires.
            left = replace(
                self.stored.current(member_id),
                member_epoch=LEAVE_STATIC_EPOCH,
                state=STABLE,
                partitions_pending_revocation=(),
            )
            draft.emit(ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id), left)
            self._deadlines[Wait.REVOCATION].pop(member_id, None)
        else:
            detail = "the protocol has no room for a reason: it was closed, or its application stopped polling"
            self._remove({member_id: cause_of(CauseKind.LEFT, member_id, member, detail)}, draft)
        return ConsumerHeartbeatResult(member_id=member_id, member_epoch=request.member_epoch)

    # -- members of the classic protocol -----------------------------------------------------------------------------

    def join_classic(self, join: Join, now: Moment) -> GroupOutcome[JoinResult]:
        """Handle JoinGroup without parking it. The generation is the member epoch, and there is no leader."""
        with Draft(self.stored, now, join.client.may_see) as draft:
            try:
                result = self._join_classic(join, draft)
            except KafkaError as error:
                # Only INVALID_SESSION_TIMEOUT, which does not depend on the group, returns the member id.
                member_id = join.member_id if error.code == ErrorCode.INVALID_SESSION_TIMEOUT else ""
                return GroupOutcome(result=JoinResult(error_code=error.code, member_id=member_id))
            self._maybe_finish(draft)
        return draft.outcome(result)

    def _join_classic(self, join: Join, draft: Draft) -> JoinResult:
        stored, client, now = self.stored, join.client, draft.now
        instance_id = join.group_instance_id
        member_id = join.member_id or self._context.new_uuid()
        self._check_join(join, member_id)
        if not join.member_id and instance_id is None and join.needs_member_id:
            return JoinResult(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        subscription = _subscription(join)
        if instance_id is not None:
            if join.member_id:
                self._check_instance(instance_id, member_id)
            else:
                self._replace_static(instance_id, member_id, draft, is_classic=True)
        before = stored.members.get(member_id)
        known = before or _new_member(client)
        member = ConsumerGroupMemberMetadataValue(
            instance_id=known.instance_id if instance_id is None else instance_id,
            rack_id=subscription.rack_id or known.rack_id,
            client_id=client.client_id,
            client_host=client.host,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            subscribed_topic_regex="",
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            server_assignor=known.server_assignor,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=join.session_timeout_ms, supported_protocols=join.protocols
            ),
        )
        changed = self._update(member_id, before, member, draft)
        self._maybe_bump(changed, draft)
        current = self._reconcile(member_id, self._by_id(subscription.owned_partitions), changed, draft)
        self._deadlines[Wait.JOIN].pop(member_id, None)
        self._wait(Wait.SESSION, member_id, join.session_timeout_ms, now)
        self._wait(Wait.SYNC, member_id, sync_wait_ms(join.rebalance_timeout_ms), now)
        return JoinResult(
            member_id=member_id,
            generation=current.member_epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=join.protocols[0][0],
        )

    def _check_join(self, join: Join, member_id: str) -> None:
        """Raise Refused if the session timeout or the protocols are invalid, or if the group is full."""
        settings, stored = self._context.settings, self.stored
        shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest <= join.session_timeout_ms <= longest:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
        self._check_size(member_id)
        is_supported = any(stored.classic_protocols[name] == stored.classic_count for name, _ in join.protocols)
        if join.protocol_type != PROTOCOL_TYPE or not is_supported:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def sync_classic(self, sync: Sync, now: Moment) -> SyncResult:
        """Handle SyncGroup: return the assignment that the coordinator computed."""
        try:
            member_id = sync.sender.member_id
            classic = self._check_classic(sync.sender)
            protocol, metadata = classic.supported_protocols[0]
            if sync.protocol_type not in (None, PROTOCOL_TYPE) or sync.protocol_name not in (None, protocol):
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            current = self.stored.current(member_id)
            # A member that must revoke partitions has joined this rebalance; its next Heartbeat tells it to rejoin.
            if self.stored.epoch > current.member_epoch and current.state != UNREVOKED_PARTITIONS:
                self._await_join(member_id, now)
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            return SyncResult(error.code)
        self._deadlines[Wait.SYNC].pop(member_id, None)
        self._wait(Wait.SESSION, member_id, classic.session_timeout_ms, now)
        version = decode_subscription(metadata).version
        assignment = Assignment(partitions=self._by_name(current.assigned_partitions), version=version)
        return SyncResult(
            ErrorCode.NONE, sync.protocol_type, sync.protocol_name, encode_assignment(assignment, version)
        )

    def heartbeat_classic(self, sender: Sender, now: Moment) -> ErrorCode:
        """Handle Heartbeat: return REBALANCE_IN_PROGRESS if a rejoin would assign or revoke partitions."""
        member_id = sender.member_id
        try:
            classic = self._check_classic(sender)
            self._wait(Wait.SESSION, member_id, classic.session_timeout_ms, now)
            current = self.stored.current(member_id)
            if (
                current.member_epoch < self.stored.epoch
                or current.state == UNREVOKED_PARTITIONS
                or (current.state == UNRELEASED_PARTITIONS and not self._waits_for_others(member_id))
            ):
                self._await_join(member_id, now)
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def leave_classic(self, leaving: Sequence[Leaving], now: Moment) -> GroupOutcome[LeaveResult]:
        """Handle LeaveGroup, with which an administrator also removes members of either protocol."""
        removed: dict[str, Cause] = {}
        codes = []
        for each in leaving:
            try:
                member_id, cause = self._find_leaving(each)
                removed[member_id] = cause
                codes.append(ErrorCode.NONE)
            except KafkaError as error:
                codes.append(error.code)
        result = LeaveResult(ErrorCode.NONE, codes)
        with Draft(self.stored, now) as draft:
            if removed:
                self._remove(removed, draft)
                self._maybe_finish(draft)
        return draft.outcome(result)

    def _find_leaving(self, leaving: Leaving) -> tuple[str, Cause]:
        """Return the id of the member to remove and the cause. Raise Refused if there is no such member."""
        member_id, instance_id, reason = leaving
        kind = CauseKind.LEFT
        if instance_id is not None and not member_id:
            member_id, kind = self.stored.static_members.get(instance_id, ""), CauseKind.REMOVED
        member = self._member(member_id) if instance_id is None else self._check_instance(instance_id, member_id)
        return member_id, cause_of(kind, member_id, member, reason or "")

    def _check_classic(self, sender: Sender) -> ClassicMemberMetadata:
        """Return the metadata of a classic member. Raise Refused if it is not one, or not in this generation."""
        member_id, instance_id, generation = sender
        member = self._member(member_id) if instance_id is None else self._check_instance(instance_id, member_id)
        if member.classic_member_metadata is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != self.stored.current(member_id).member_epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        return member.classic_member_metadata

    def _await_join(self, member_id: str, now: Moment) -> None:
        """Set the deadline for a rejoin, unless an earlier response has set it."""
        if member_id not in self._deadlines[Wait.JOIN]:
            self._wait(Wait.JOIN, member_id, self.stored.members[member_id].rebalance_timeout_ms, now)

    def _waits_for_others(self, member_id: str) -> bool:
        """Return whether another member still owns a partition of this member's target assignment."""
        return any(
            self._is_owned_by_other(member_id, topic_id, number)
            for topic_id, numbers in self.stored.target(member_id)
            for number in numbers
        )

    def _by_id(self, partitions: PartitionsByTopic) -> TopicPartitions:
        by_id = {self._context.topics.topic_id(name): set(numbers) for name, numbers in partitions}
        return from_sets({topic_id: numbers for topic_id, numbers in by_id.items() if topic_id is not None})

    def _by_name(self, partitions: TopicPartitions) -> PartitionsByTopic:
        names = ((self._context.topics.topic_name(topic_id), numbers) for topic_id, numbers in partitions)
        return tuple((name, numbers) for name, numbers in names if name is not None)

    # -- deletion ----------------------------------------------------------------------------------------------------

    def tombstones(self) -> list[CoordinatorRecord]:
        return self.stored.tombstones()

    def retire(self, error_code: ErrorCode) -> GroupOutcome[None]:
        """Return an empty outcome, because this group never parks a request."""
        return GroupOutcome()


def check_heartbeat(request: ConsumerHeartbeat, assignors: Sequence[str]) -> None:
    """Raise Refused if the request is invalid for every group."""
    epoch = request.member_epoch
    needs_id = request.makes_member_id or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise Refused(ErrorCode.INVALID_REQUEST, "A member id is needed.")
    for name, text in (
        ("group id", request.group_id),
        ("instance id", request.instance_id),
        ("rack id", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise Refused(ErrorCode.INVALID_REQUEST, f"{name} must not be empty; leave it out instead.")
    if epoch == 0:
        if request.rebalance_timeout_ms == -1:
            raise Refused(ErrorCode.INVALID_REQUEST, "To join, give a rebalance timeout.")
        if request.owned is None or request.owned:
            raise Refused(ErrorCode.INVALID_REQUEST, "To join, give an empty list of owned partitions.")
        if request.topic_names is None and request.topic_regex is None:
            raise Refused(ErrorCode.INVALID_REQUEST, "To join, give topic names or a regular expression.")
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise Refused(ErrorCode.INVALID_REQUEST, "Only a static member, with an instance id, can leave for a while.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise Refused(ErrorCode.INVALID_REQUEST, f"There is no member epoch {epoch}.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor} here; choose one of {', '.join(assignors)}.",
        )


def _updated_member(
    before: ConsumerGroupMemberMetadataValue | None, request: ConsumerHeartbeat
) -> ConsumerGroupMemberMetadataValue:
    """Return the properties of a member after a heartbeat, which has only those that have changed."""
    client, names, regex = request.client, request.topic_names, request.topic_regex
    known = before or _new_member(client)
    timeout_ms = request.rebalance_timeout_ms
    return ConsumerGroupMemberMetadataValue(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=known.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=known.server_assignor if request.server_assignor is None else request.server_assignor,
    )


def _subscription(join: Join) -> Subscription:
    """Return the subscription in the first protocol; all protocols of a member have the same subscription.

    :raises Refused: if it cannot be decoded.
    """
    try:
        return decode_subscription(join.protocols[0][1])
    except WireError:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None


def _new_member(client: Client) -> ConsumerGroupMemberMetadataValue:
    """Return the default properties of a member that has not joined yet."""
    return ConsumerGroupMemberMetadataValue(
        client_id=client.client_id, client_host=client.host, subscribed_topic_regex="", rebalance_timeout_ms=-1
    )
