"""The classic group protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup), as a state machine. Pure.

                     first join                all joined, or timeout
            Empty ───────────────► Preparing ──────────────────────────► Completing
              ▲                     Rebalance ◄────────────────────────── Rebalance
              │  no members         ▲   │      join with changed metadata,    │
              └─────────────────────┼───┘      leave, expiry, no SyncGroup    │ the leader's SyncGroup
                                    │                                         ▼
                                    └────────────────────────────────────── Stable
            Dead: retired, from any state     leader rejoins, or as above

A rebalance has two steps. In PreparingRebalance the group parks every JoinGroup. When all members have joined, or the
longest rebalance timeout has passed, the group removes dynamic members that did not join, increments the generation,
and answers every parked join; the leader's response lists the members. In CompletingRebalance the group parks every
SyncGroup until the leader's arrives with the assignments of all members. They become the group's record, and the group
answers all parked syncs. An Empty group first waits for ``group.initial.rebalance.delay.ms``, and longer while more
members join, so that a starting deployment does not rebalance once per process.

The durable state is one record per group. The group emits it when a generation has its assignments, when the group
becomes Empty, and when a static member was replaced without a rebalance. ``replay`` stores it; all other state is soft
and ``resume`` rebuilds it after a load. Handlers change the soft state immediately; if their records are not stored,
the shard discards the object.

`classic_members.py` has the members, `classic_generation.py` what they agreed on, `classic_parked.py` the requests that
wait, and `classic_deadlines.py` the deadlines. There are no timers: ``expire`` handles the deadlines that have passed,
in their order.

Invariants
  1  The leader is a member, or None if the group has no members.
  2  Joins are parked in PreparingRebalance only, syncs in CompletingRebalance only.
  3  At least one protocol is supported by all members.
  4  PreparingRebalance has a join deadline. While a member has not synced its generation, there is a sync deadline.

Differences from Kafka 4.3: Kafka never answers a parked JoinGroup or SyncGroup if the same member sends another one or
leaves; Ottla answers REBALANCE_IN_PROGRESS or UNKNOWN_MEMBER_ID. In Kafka a member whose connection closes while its
first join is parked stays for up to five minutes; in Ottla it leaves (``abandon``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import NEVER, Moment, Ticket
from ottla.broker.groups.classic_causes import ClassicJournal, subscription_change
from ottla.broker.groups.classic_deadlines import ClassicDeadlines, Deadline, InitialDelay
from ottla.broker.groups.classic_generation import ClassicGeneration
from ottla.broker.groups.classic_members import (
    CONSUMER,
    ClassicMember,
    ClassicMembers,
    PendingMember,
    joining_member,
    loaded_member,
    replacement,
    sync_wait_ms,
)
from ottla.broker.groups.classic_parked import AnyOutcome, ParkedRequests, reject_join
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import Cause, CauseKind
from ottla.broker.groups.records import GroupMetadataValue
from ottla.broker.groups.requests import Join, JoinResult, LeaveResult, Leaving, Sender, Sync, SyncResult
from ottla.model.errors import ErrorCode, Refused

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

#: A new member sends no heartbeats before its first join is answered; this timeout applies until then.
NEW_MEMBER_TIMEOUT_MS: Final = 300_000
ID_PREFIX_CHARACTERS_MAX: Final = 1000
#: Lower bound of the join deadline that is set again when no member has joined.
WAIT_AGAIN_MS_MIN: Final = 1000


class ClassicGroup:
    """One classic group."""

    group_type: Final = "classic"

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.group_id = group_id
        self._context = context

        #: the durable state; only ``replay`` sets it
        self.stored: GroupMetadataValue | None = None

        # The group
        self.state: str = EMPTY
        #: wall clock; -1 if unknown
        self.state_since_ms = -1
        self._members = ClassicMembers(group_id)
        self.members = self._members.by_id
        self.generation = ClassicGeneration(self._members)

        # Parked requests and deadlines
        self._parked = ParkedRequests()
        self._deadlines = ClassicDeadlines(self.members)
        self.pending = self._deadlines.pending
        #: ids of members that know this generation and have not sent SyncGroup
        self._unsynced: set[str] = set()
        #: None unless the group was empty before this rebalance
        self._initial_delay: InitialDelay | None = None

        self._journal = ClassicJournal(group_id, context)

    # -- durable ------------------------------------------------------------------------------------------------------

    def replay(self, value: GroupMetadataValue) -> None:
        """Store the group's record. At run time the handler that made it has changed the soft state already."""
        self.stored = value

    def resume(self, now: Moment, cause: Cause | None = None) -> None:
        """Rebuild the soft state from the record. Every member starts a new session.

        Consumers without any assignment were downgraded from the consumer protocol: they rebalance, for this cause.
        """
        stored = self.stored
        if stored is None:
            return
        self.state = STABLE if stored.members else EMPTY
        self.state_since_ms = stored.current_state_timestamp
        for each in stored.members:
            self._members.insert(loaded_member(each, stored.protocol, now))
        if stored.leader in self.members:
            self._members.leader_id = stored.leader
        self.generation.load(stored)
        self._journal.loaded(self.members.values(), now)
        self._journal.generation_began(self.generation.topics)
        self._deadlines.find_wake_at()
        is_unassigned = self.protocol_type == CONSUMER and not any(each.assignment for each in stored.members)
        if len(self.members) > self._context.settings.group_max_size:
            text = f"{len(self.members)} members are more than group.max.size allows"
            cause = Cause(kind=CauseKind.COORDINATOR_MOVED, detail=text)
        elif not self.members or not is_unassigned:
            return
        self._journal.note(cause or Cause(kind=CauseKind.COORDINATOR_MOVED), now)
        self._prepare_rebalance(now, GroupOutcome())

    # -- JoinGroup ----------------------------------------------------------------------------------------------------

    def join(self, join: Join, ticket: Ticket, now: Moment) -> GroupOutcome[JoinResult]:
        """Handle JoinGroup."""
        out: GroupOutcome[JoinResult] = GroupOutcome()
        member_id = join.member_id
        settings = self._context.settings
        shortest_ms, longest_ms = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest_ms <= join.session_timeout_ms <= longest_ms:
            reject_join(ticket, member_id, ErrorCode.INVALID_SESSION_TIMEOUT, out)
        elif not self._has_room(member_id):
            reject_join(ticket, "", ErrorCode.GROUP_MAX_SIZE_REACHED, out)
            self._remove_rejected(member_id, now, out)
        elif self.state == DEAD:
            reject_join(ticket, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, out)
        elif not self._supports(join):
            reject_join(ticket, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, out)
        elif not member_id:
            self._join_new(join, ticket, now, out)
        elif member_id in self.pending and join.group_instance_id is None:
            self._add(member_id, join, ticket, now, out)
        else:
            try:
                member = self._members.find(member_id, join.group_instance_id)
            except Refused as refused:
                reject_join(ticket, member_id, refused.code, out)
            else:
                self._rejoin(member, join, ticket, now, out)
        return out

    def _has_room(self, member_id: str) -> bool:
        """Return whether group.max.size admits the member. In PreparingRebalance only parked joins count."""
        size_max = self._context.settings.group_max_size
        member = self.members.get(member_id)
        if self.state == PREPARING:
            return (member is not None and member.parked_join is not None) or self._parked.joins < size_max
        if self.state in (COMPLETING, STABLE):
            return member is not None or len(self.members) < size_max
        return True

    def _remove_rejected(self, member_id: str, now: Moment, out: AnyOutcome) -> None:
        self.pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, out)
        self._maybe_complete_join(now, out)

    def _supports(self, join: Join) -> bool:
        names = {name for name, _ in join.protocols}
        if self.state == EMPTY:
            return bool(join.protocol_type and names)
        return join.protocol_type == self.protocol_type and self._members.share_one_of(names)

    def _join_new(self, join: Join, ticket: Ticket, now: Moment, out: AnyOutcome) -> None:
        instance_id = join.group_instance_id
        # A client id may be as long as a protocol string can be; the member id must not exceed that length.
        prefix = (join.client.client_id if instance_id is None else instance_id)[:ID_PREFIX_CHARACTERS_MAX]
        member_id = f"{prefix}-{self._context.new_uuid()}"
        if self._members.id_of(instance_id) is not None:
            self._replace_static(member_id, join, ticket, now, out)
        elif instance_id is not None or not join.needs_member_id:
            self._add(member_id, join, ticket, now, out)
        else:
            self.pending[member_id] = PendingMember(
                self._deadlines.due_in(join.session_timeout_ms, now), join.client.host
            )
            reject_join(ticket, member_id, ErrorCode.MEMBER_ID_REQUIRED, out)

    def _add(self, member_id: str, join: Join, ticket: Ticket, now: Moment, out: AnyOutcome) -> None:
        self.pending.pop(member_id, None)
        member = joining_member(member_id, join, now)
        member.is_new = True
        member.session_deadline = self._deadlines.due_in(NEW_MEMBER_TIMEOUT_MS, now)
        self.generation.protocol_type = join.protocol_type
        self._members.insert(member)
        self._parked.park_join(member, ticket, out)
        if self._initial_delay is not None:
            self._initial_delay.has_new = True
        self._journal.joined(member, join.reason, now)
        self._rebalance_or_complete(now, out)

    def _rejoin(self, member: ClassicMember, join: Join, ticket: Ticket, now: Moment, out: AnyOutcome) -> None:
        """Handle the join of a known member. Repeat the result for a follower that joins with unchanged protocols."""
        is_leader = member.member_id == self.leader_id
        is_same = join.protocols == member.protocols
        member.last_progress = now.monotonic_s
        if is_same and (self.state == COMPLETING or (self.state == STABLE and not is_leader)):
            self._deadlines.renew(member, now)
            out.replies.append((ticket, self.generation.join_result(member)))
            return
        change = subscription_change(member, join.protocols, self.generation)
        if self.state != PREPARING:
            self._journal.rejoined(member, join.reason, change, is_leader, now)
        elif change:
            self._journal.note_member(CauseKind.SUBSCRIPTION_CHANGED, member, change, now)
        self._members.refresh(member, join)
        self._parked.park_join(member, ticket, out)
        self._rebalance_or_complete(now, out)

    def _replace_static(self, member_id: str, join: Join, ticket: Ticket, now: Moment, out: AnyOutcome) -> None:
        """Replace a static member that restarted without its member id, and fence the old member id."""
        old = self.members[self._members.id_of(join.group_instance_id) or ""]
        leader_before = self.leader_id
        self._parked.refuse(old, ErrorCode.FENCED_INSTANCE_ID, out)
        self._unsynced.discard(old.member_id)
        member = replacement(old, member_id, join.client, now)
        self._members.replace(old, member)
        self._members.refresh(member, join)
        self._deadlines.renew(member, now)
        if self.state == STABLE and self.generation.admits(member, old):
            result = self.generation.join_result(member)
            if join.knows_skip_assignment:
                result.skip_assignment = member_id == self.leader_id
            else:
                # Without skip_assignment, a client that sees itself as the leader computes an unneeded assignment.
                result.leader, result.members = leader_before or "", ()
            out.records.append(self.generation.record(self.group_id, self.state_since_ms))
            out.replies.append((ticket, result))
            return
        change = subscription_change(old, member.protocols, self.generation)
        self._journal.replaced(old, join.client, change, join.reason, now)
        self._parked.park_join(member, ticket, out)
        self._rebalance_or_complete(now, out)

    # -- the rebalance ------------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, now: Moment, out: AnyOutcome) -> None:
        if self.state == PREPARING:
            self._maybe_complete_join(now, out)
        else:
            self._prepare_rebalance(now, out)

    def _prepare_rebalance(self, now: Moment, out: AnyOutcome) -> None:
        if self.state == COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                if self._parked.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), out):
                    self._deadlines.renew(member, now)
        self._unsynced.clear()
        self._deadlines.sync = NEVER
        self._initial_delay, was_empty = None, self.state == EMPTY
        self._enter(PREPARING, now)
        if was_empty:
            delay_ms = self._context.settings.group_initial_rebalance_delay_ms
            self._initial_delay = InitialDelay(delay_ms, self._members.rebalance_timeout_ms())
            self._deadlines.await_joins(delay_ms, now)
            if delay_ms == 0:
                self._complete_join(now, out)
        elif self._have_all_joined():
            self._complete_join(now, out)
        else:
            self._deadlines.await_joins(self._members.rebalance_timeout_ms(), now)

    def _have_all_joined(self) -> bool:
        return self._parked.joins == len(self.members) and not self.pending

    def _maybe_complete_join(self, now: Moment, out: AnyOutcome) -> None:
        if self.state == PREPARING and self._initial_delay is None and self._have_all_joined():
            self._complete_join(now, out)

    def _end_join_wait(self, now: Moment, out: AnyOutcome) -> None:
        wait_ms = None
        if self._initial_delay is not None:
            wait_ms = self._initial_delay.extend(self._context.settings.group_initial_rebalance_delay_ms)
        if wait_ms is None:
            self._complete_join(now, out)
        else:
            self._deadlines.await_joins(wait_ms, now)

    def _complete_join(self, now: Moment, out: AnyOutcome) -> None:
        """Start the next generation: all members joined, or the join deadline has passed."""
        timeout_ms = self._members.rebalance_timeout_ms()
        for member in [each for each in self.members.values() if each.parked_join is None and not each.is_static]:
            text = f"it did not rejoin within {timeout_ms} ms"
            self._journal.note_member(CauseKind.MAX_POLL_INTERVAL, member, text, now)
            self._remove(member, out)
        if self.members and not self._members.elect_leader():
            # Only static members are left and none joined: wait until one joins or until their sessions expire.
            self._deadlines.await_joins(max(self._members.rebalance_timeout_ms(), WAIT_AGAIN_MS_MIN), now)
            return
        self._deadlines.join = NEVER
        self.generation.begin_next()
        self._journal.generation_began(self.generation.topics)
        if not self.members:
            self._enter(EMPTY, now)
            out.records.append(self.generation.record(self.group_id, self.state_since_ms))
            out.rebalances.append(self._journal.finished(self.generation.number, len(self.members), now))
            return
        self._enter(COMPLETING, now)
        self._deadlines.await_syncs(sync_wait_ms(self._members.rebalance_timeout_ms()), now)
        for member in self.members.values():
            self._unsynced.add(member.member_id)
            self._parked.answer_join(member, self.generation.join_result(member), out)
            member.is_new = False
            member.last_progress = now.monotonic_s
            self._deadlines.renew(member, now)

    # -- SyncGroup ----------------------------------------------------------------------------------------------------

    def sync(self, sync: Sync, ticket: Ticket, now: Moment) -> GroupOutcome[SyncResult]:
        """Handle SyncGroup."""
        out: GroupOutcome[SyncResult] = GroupOutcome()
        try:
            member = self._known_in_generation(sync.sender)
            self.generation.check_protocol(sync)
            if self.state == PREPARING:
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        except Refused as refused:
            out.result = SyncResult(refused.code)
            return out
        member.last_progress = now.monotonic_s
        self._unsynced.discard(member.member_id)
        if self.state == STABLE:
            self._deadlines.renew(member, now)
            out.result = self.generation.sync_result(member)
            return out
        self._parked.park_sync(member, ticket, out)
        if member.member_id == self.leader_id:
            self._assign(sync.assignments, now, out)
        return out

    def _assign(self, assignments: Mapping[str, bytes], now: Moment, out: AnyOutcome) -> None:
        """Store the leader's assignments. A member that the leader left out gets an empty assignment."""
        empty = self.generation.empty_assignment
        self._enter(STABLE, now)
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, empty)
            if self._parked.answer_sync(member, self.generation.sync_result(member), out):
                self._deadlines.renew(member, now)
        out.records.append(self.generation.record(self.group_id, self.state_since_ms))
        out.rebalances.append(self._journal.finished(self.generation.number, len(self.members), now))

    # -- Heartbeat, LeaveGroup, OffsetCommit --------------------------------------------------------------------------

    def heartbeat(self, sender: Sender, now: Moment) -> ErrorCode:
        """Handle Heartbeat. The error code REBALANCE_IN_PROGRESS makes the member rejoin."""
        try:
            member = self._known_in_generation(sender)
        except Refused as refused:
            return refused.code
        self._deadlines.renew(member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == PREPARING else ErrorCode.NONE

    def leave(
        self,
        leaving: Sequence[Leaving],
        client: Client,
        now: Moment,
        is_behind: Callable[[ClassicMember], bool] = lambda _: False,
    ) -> GroupOutcome[LeaveResult]:
        """Handle LeaveGroup. ``is_behind`` returns whether a member has unread records; only the journal uses it."""
        out: GroupOutcome[LeaveResult] = GroupOutcome()
        size_before = len(self.members)
        if self.state == DEAD:
            out.result = LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            codes = [self._remove_leaving(each, client, is_behind, now, out) for each in leaving]
            out.result = LeaveResult(ErrorCode.NONE, codes)
        if len(self.members) < size_before and self.state in (COMPLETING, STABLE):
            self._prepare_rebalance(now, out)
        else:
            self._maybe_complete_join(now, out)
        return out

    def _remove_leaving(
        self,
        leaving: Leaving,
        client: Client,
        is_behind: Callable[[ClassicMember], bool],
        now: Moment,
        out: AnyOutcome,
    ) -> ErrorCode:
        """Remove one member. An administrator removes a static member by its instance id, without a member id."""
        member_id, instance_id, reason = leaving
        if self.pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        by_instance = not member_id and instance_id is not None
        if by_instance:
            member_id = self._members.id_of(instance_id) or ""
        try:
            member = self._members.find(member_id, instance_id if member_id else None)
        except Refused as refused:
            return refused.code
        self._journal.left(member, reason, client, now, by_instance=by_instance, is_behind=is_behind(member))
        self._remove(member, out)
        return ErrorCode.NONE

    def abandon(self, ticket: Ticket, now: Moment) -> GroupOutcome[None]:
        """Answer a parked request whose client has closed the connection.

        A new dynamic member leaves, because its client never received its member id or generation. Any other member
        keeps its session, because its client may reconnect, or its process restart, with the same id.
        """
        out: GroupOutcome[None] = GroupOutcome()
        member = self._parked.member_of(ticket)
        if member is None:
            return out
        if member.is_new and not member.is_static:
            text = "its connection closed before its first join was answered"
            self._journal.note_member(CauseKind.LEFT, member, text, now)
            self._remove(member, out)
            self._maybe_complete_join(now, out)
            return out
        member.is_new = False
        self._parked.refuse(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        self._deadlines.renew(member, now)
        return out

    def check_commit(self, sender: Sender, now: Moment, *, transactional: bool = False) -> None:
        """Raise Refused if the sender may not commit offsets; otherwise renew the member's session.

        Members may commit in their generation, and any client while the group is empty. A transactional commit is also
        allowed without a member id and during a rebalance. The error code applies to every partition of the request.
        """
        if self.state == DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if sender.generation < 0 and self.state == EMPTY:
            return
        if sender.generation < 0 and not sender.member_id and sender.group_instance_id is None:
            if transactional:
                return
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members; only they may commit")
        member = self._known_in_generation(sender)
        if self.state == COMPLETING and not transactional:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        member.last_progress = now.monotonic_s
        self._deadlines.renew(member, now)

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> GroupOutcome[None]:
        """Handle all passed deadlines, in the order of the deadlines."""
        out: GroupOutcome[None] = GroupOutcome()
        at = now.monotonic_s
        if at < self.wake_at:
            return out
        for kind, member_id in self._deadlines.passed(at):
            # An earlier deadline's handler may have changed or removed this deadline, so check it again.
            if kind is Deadline.PENDING and member_id in self.pending:
                del self.pending[member_id]
                self._complete_if_all_joined(now, out)
            elif kind is Deadline.SESSION and member_id in self.members and self.members[member_id].expires_at <= at:
                self._end_session(self.members[member_id], now, out)
            elif kind is Deadline.JOIN and self._deadlines.join <= at:
                self._end_join_wait(now, out)
            elif kind is Deadline.SYNC and self._deadlines.sync <= at:
                self._end_sync_wait(now, out)
        self._deadlines.find_wake_at()
        return out

    def _end_session(self, member: ClassicMember, now: Moment, out: AnyOutcome) -> None:
        text = f"no heartbeat for {member.session_timeout_ms} ms"
        if member.is_new:
            text = f"its first join was not answered within {NEW_MEMBER_TIMEOUT_MS} ms"
        self._journal.note_member(CauseKind.SESSION_TIMEOUT, member, text, now)
        self._remove(member, out)
        if self.state == PREPARING:
            self._complete_if_all_joined(now, out)
        else:
            self._prepare_rebalance(now, out)

    def _complete_if_all_joined(self, now: Moment, out: AnyOutcome) -> None:
        """Complete the join if all members joined. As in Kafka, an expiry also ends the initial rebalance delay."""
        if self.state == PREPARING and self._have_all_joined():
            self._complete_join(now, out)

    def _end_sync_wait(self, now: Moment, out: AnyOutcome) -> None:
        self._deadlines.sync = NEVER
        if not self._unsynced:
            return
        wait_ms = sync_wait_ms(self._members.rebalance_timeout_ms())
        text = f"no SyncGroup within {wait_ms} ms of generation {self.generation.number}"
        for member in [each for each in self.members.values() if each.member_id in self._unsynced]:
            self._journal.note_member(CauseKind.NEVER_SYNCED, member, text, now)
            self._remove(member, out)
        self._prepare_rebalance(now, out)

    def retire(self, error_code: ErrorCode) -> GroupOutcome[None]:
        """Answer all parked requests with this error code and stop the group. The stored record does not change."""
        out: GroupOutcome[None] = GroupOutcome()
        for member in self.members.values():
            self._parked.refuse(member, error_code, out)
        self.state = DEAD
        self._deadlines.clear()
        return out

    # -- describe -----------------------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float:
        """Return the time at which ``expire`` has to run, not later than the earliest deadline."""
        return self._deadlines.wake_at

    @property
    def protocol_type(self) -> str | None:
        """Return the protocol type of the members; None if no member ever joined: the group only has offsets."""
        return self.generation.protocol_type

    @property
    def leader_id(self) -> str | None:
        return self._members.leader_id

    @property
    def is_empty(self) -> bool:
        return self.state == EMPTY

    @property
    def is_disposable(self) -> bool:
        """Return whether the group has no record, no members and no pending member ids, so that it can be deleted."""
        return self.stored is None and not self.members and not self.pending

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics of all members of this generation; None if a member's metadata cannot be decoded."""
        return None if self.generation.topics is None else set(self.generation.topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read this topic: any topic, if a consumer's metadata cannot be decoded."""
        return self.generation.is_subscribed(topic)

    # -- members ------------------------------------------------------------------------------------------------------

    def _known_in_generation(self, sender: Sender) -> ClassicMember:
        if self.state == DEAD:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = self._members.find(sender.member_id, sender.group_instance_id)
        self.generation.check_number(sender.generation)
        return member

    def _remove(self, member: ClassicMember, out: AnyOutcome) -> None:
        """Remove the member. Answer its parked requests with UNKNOWN_MEMBER_ID, so that its client joins as new."""
        self._parked.refuse(member, ErrorCode.UNKNOWN_MEMBER_ID, out)
        self._members.remove(member)
        self._unsynced.discard(member.member_id)

    # -- derived state ------------------------------------------------------------------------------------------------

    def _enter(self, state: str, now: Moment) -> None:
        self.state = state
        self.state_since_ms = now.wall_ms
