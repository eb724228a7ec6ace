"""The causes of rebalances in a classic group, from requests of its members and observations of the coordinator.

Requests have a reason only since JoinGroup 8 and LeaveGroup 5, and it is free text. Without a reason, the coordinator
infers the cause from earlier requests; the detail of an uncertain cause starts with "inferred".
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment, Topics
from ottla.broker.groups.classic_generation import ClassicGeneration
from ottla.broker.groups.classic_members import CONSUMER, ClassicMember, subscribed_topics
from ottla.broker.groups.context import GroupContext
from ottla.broker.groups.journal import Cause, CauseKind, OngoingRebalance, Rebalance, listed, subscription_changes
from ottla.broker.groups.requests import Protocols

#: texts that Java clients send in ``reason``; more text may follow
_REASON_ADMIN = "member was removed by an admin"
_REASON_POLL = "poll timeout has expired"
_REASON_METADATA = "cached metadata has changed"


class ClassicJournal:
    """Collects the causes of the rebalances of one group."""

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self._group_id = group_id
        self._context = context
        #: until the leader's assignment is stored; it may take several generations
        self._rebalance: OngoingRebalance | None = None
        #: number of members at the end of the last rebalance
        self._size_before = 0
        self._returning = _ReturningMembers()
        self._topics_seen = _TopicsAtGeneration()

    def loaded(self, members: Collection[ClassicMember], now: Moment) -> None:
        """Remember the members that were loaded from the log."""
        self._size_before = len(members)
        self._returning = _ReturningMembers(members, now)

    def generation_began(self, topics: Iterable[str] | None) -> None:
        """Remember the ids and partition counts of the subscribed topics; ``topics`` is None if they are unknown."""
        self._topics_seen.remember(topics, self._context.topics)

    def note(self, cause: Cause, now: Moment) -> None:
        """Add a cause. The first cause starts the rebalance."""
        if self._rebalance is None:
            self._rebalance = OngoingRebalance(started=now, members_before=self._size_before)
        self._rebalance.add(cause)

    def note_member(self, kind: CauseKind, member: ClassicMember, detail: str, now: Moment) -> None:
        """Add a cause that concerns one member."""
        self.note(_cause(kind, member, detail), now)

    def joined(self, member: ClassicMember, reason: str | None, now: Moment) -> None:
        """Add the cause for the join of a new member."""
        if self._is_returning(member, now):
            cause = _cause(CauseKind.COORDINATOR_MOVED, member, "it was a member before and joined again", reason)
        else:
            cause = _cause(CauseKind.JOINED, member, reason)
        self.note(cause, now)

    def rejoined(self, member: ClassicMember, reason: str | None, change: str, is_leader: bool, now: Moment) -> None:
        """Add the cause for a join of the leader, or of a member with changed metadata, outside a rebalance."""
        topics_change = self._topics_seen.change(self._context.topics)
        if change:
            cause = _cause(CauseKind.SUBSCRIPTION_CHANGED, member, change, reason)
        elif self._is_returning(member, now):
            cause = _cause(CauseKind.COORDINATOR_MOVED, member, "it rejoined after the group was loaded", reason)
        elif not is_leader:
            cause = _cause(CauseKind.SUBSCRIPTION_CHANGED, member, reason or "its metadata changed, its topics did not")
        elif topics_change or _REASON_METADATA in (reason or ""):
            cause = _cause(CauseKind.TOPICS_CHANGED, member, topics_change, reason)
        else:
            cause = _cause(CauseKind.LEADER_REJOINED, member, reason)
        self.note(cause, now)

    def replaced(self, old: ClassicMember, client: Client, change: str, reason: str | None, now: Moment) -> None:
        """Add the cause for the replacement of a static member."""
        taken = f"{client.client_id} at {client.host} took its place"
        self.note(_cause(CauseKind.STATIC_MEMBER_FENCED, old, taken, change, reason), now)

    def left(
        self,
        member: ClassicMember,
        reason: str | None,
        client: Client,
        now: Moment,
        *,
        by_instance: bool,
        is_behind: bool,
    ) -> None:
        """Add the cause for a LeaveGroup: the member left, an administrator removed it, or it stopped polling.

        librdkafka sends no reason. If the member had unread records, and did not join, sync or commit for longer than
        its max.poll.interval.ms, its application stopped polling. Without unread records it may just have been idle.
        """
        idle_ms = round((now.monotonic_s - member.last_progress) * 1000)
        if by_instance or (reason or "").startswith(_REASON_ADMIN):
            cause = _cause(CauseKind.REMOVED, member, reason, f"by {client.client_id} at {client.host}")
        elif reason is not None and _REASON_POLL in reason:
            cause = _cause(CauseKind.MAX_POLL_INTERVAL, member, reason)
        elif not reason and is_behind and idle_ms > member.rebalance_timeout_ms:
            text = f"inferred: records waited, and its last join, sync or commit was {idle_ms} ms ago"
            cause = _cause(CauseKind.MAX_POLL_INTERVAL, member, text)
        else:
            cause = _cause(CauseKind.LEFT, member, reason)
        self.note(cause, now)

    def finished(self, generation: int, members_after: int, now: Moment) -> Rebalance:
        """End the rebalance and return it."""
        ongoing = self._rebalance
        assert ongoing is not None, "a rebalance starts with a cause"
        self._rebalance = None
        self._size_before = members_after
        return ongoing.finished(self._group_id, "classic", generation, members_after, now)

    def _is_returning(self, member: ClassicMember, now: Moment) -> bool:
        """Return whether the member starts a rebalance because the coordinator moved.

        Members that join during a rebalance do so because the coordinator asked them to.
        """
        return self._rebalance is None and self._returning.has(member, now)


def subscription_change(member: ClassicMember, new: Protocols, generation: ClassicGeneration) -> str:
    """Return a text about the changes of a member's protocols or topics; empty if neither changed.

    The metadata of a cooperative member changes with every rebalance, because it contains the owned partitions.
    Therefore topics are compared if the metadata can be decoded. A member from the log only has the chosen protocol.
    """
    names_old, names_new = [name for name, _ in member.protocols], [name for name, _ in new]
    if names_old != names_new and not member.is_from_log:
        return f"protocols were {', '.join(names_old)} and are {', '.join(names_new)}"
    chosen = generation.protocol_name or ""
    old_bytes, new_bytes = dict(member.protocols).get(chosen), dict(new).get(chosen)
    if old_bytes is None or new_bytes is None or old_bytes == new_bytes:
        return ""
    if generation.protocol_type != CONSUMER:
        return "its metadata is different"
    topics_old, topics_new = subscribed_topics(old_bytes), subscribed_topics(new_bytes)
    if topics_old is None or topics_new is None:
        return "its metadata is different"
    return listed(subscription_changes(topics_old, topics_new))


class _ReturningMembers:
    """Members that were loaded from the log: during their first session they rejoin because the coordinator moved."""

    def __init__(self, members: Iterable[ClassicMember] = (), now: Moment | None = None) -> None:
        self._until: dict[Hashable, float] = {}
        for member in members:
            assert now is not None
            for identity in _identities(member):
                self._until[identity] = now.monotonic_s + member.session_timeout_ms / 1000

    def has(self, member: ClassicMember, now: Moment) -> bool:
        """Return whether the member was loaded. A dynamic member with a new id is recognised by client id and host."""
        return any(now.monotonic_s < self._until.get(identity, 0.0) for identity in _identities(member))


class _TopicsAtGeneration:
    """The ids and partition counts of the subscribed topics when a generation began."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes | None, int | None]] | None = None
        self._version = -1

    def remember(self, names: Iterable[str] | None, topics: Topics) -> None:
        self._version = topics.version
        self._seen = None if names is None else {name: _state(name, topics) for name in sorted(names)}

    def change(self, topics: Topics) -> str:
        """Return a text about the changed topics; empty if none changed or if the subscriptions are unknown."""
        if self._seen is None or topics.version == self._version:
            return ""
        changes = []
        for name, (topic_id, count) in self._seen.items():
            id_now, count_now = _state(name, topics)
            if (topic_id, count) == (id_now, count_now):
                continue
            if count is None:
                changes.append(f"{name} was created with {count_now} partitions")
            elif count_now is None:
                changes.append(f"{name} with {count} partitions was deleted")
            elif topic_id != id_now:
                changes.append(f"{name} with {count} partitions was deleted and created again with {count_now}")
            else:
                changes.append(f"{name} went from {count} to {count_now} partitions")
        return listed(changes)


def _cause(kind: CauseKind, member: ClassicMember, *details: str | None) -> Cause:
    """Return a cause with the properties of the member."""
    return Cause(
        kind=kind,
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        group_instance_id=member.group_instance_id,
        detail="; ".join(detail for detail in details if detail),
    )


def _identities(member: ClassicMember) -> list[Hashable]:
    if member.group_instance_id is not None:
        return [("instance", member.group_instance_id)]
    return [("member", member.member_id), ("client", member.client_id, member.client_host)]


def _state(name: str, topics: Topics) -> tuple[bytes | None, int | None]:
    return topics.topic_id(name), topics.partition_count(name)
