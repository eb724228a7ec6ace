"""Why a classic group rebalances, found from what its members say and from what the coordinator sees.

The classic protocol carries reasons only since JoinGroup 8 and LeaveGroup 5, and then as free text. What is missing is
inferred from what we remember; a detail says so where that is a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

from ottla.coordinator.classic_member import CONSUMER, ClassicMember, Protocols, subscribed_topics
from ottla.coordinator.journal import CAUSES_MAX, Cause, CauseKind, Rebalance
from ottla.coordinator.outcome import Client, Moment, Topics, World

#: what the Java clients write into ``reason``; text may follow
_REASON_ADMIN = "member was removed by an admin"
_REASON_POLL = "poll timeout has expired"
_REASON_METADATA = "cached metadata has changed"

#: topics that a detail names before it only counts the rest
_NAMES_MAX = 3


class ClassicJournal:
    """What one group remembers to say why it rebalanced."""

    def __init__(self, group_id: str, world: World) -> None:
        self._group_id = group_id
        self._world = world
        self._rebalance: _OngoingRebalance | None = None
        #: members when the last rebalance was finished
        self._settled_size = 0
        self._returning = _ReturningMembers()
        self._topics_seen = _TopicsAtGeneration()

    def loaded(self, members: Collection[ClassicMember], now: Moment) -> None:
        self._settled_size = len(members)
        self._returning = _ReturningMembers(members, now)

    def generation_began(self, topics: Iterable[str] | None) -> None:
        self._topics_seen.remember(topics, self._world.topics)

    def note(self, cause: Cause, now: Moment) -> None:
        """The first one starts the rebalance."""
        if self._rebalance is None:
            self._rebalance = _OngoingRebalance(started=now, members_before=self._settled_size)
        self._rebalance.add(cause)

    def note_member(self, kind: CauseKind, member: ClassicMember, detail: str, now: Moment) -> None:
        self.note(_cause(kind, member, detail), now)

    def joined(self, member: ClassicMember, reason: str | None, now: Moment) -> None:
        """A member that the group did not have."""
        if self._is_returning(member, now):
            cause = _cause(CauseKind.COORDINATOR_MOVED, member, "it was a member before and joined anew", reason)
        else:
            cause = _cause(CauseKind.JOINED, member, reason)
        self.note(cause, now)

    def rejoined(self, member: ClassicMember, reason: str | None, change: str, is_leader: bool, now: Moment) -> None:
        """A leader, or a member with other bytes than before, that joins a group which was at rest."""
        topics_change = self._topics_seen.change(self._world.topics)
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
        """A static member whose place was taken."""
        taken = f"{client.client_id} at {client.host} took its place"
        self.note(_cause(CauseKind.STATIC_MEMBER_FENCED, old, taken, change, reason), now)

    def left(
        self, member: ClassicMember, reason: str | None, by_instance: bool, is_behind: bool, client: Client, now: Moment
    ) -> None:
        """By its own wish, an administrator's, or because its application stopped polling.

        librdkafka gives no reason. Who had records to read, and neither joined nor committed for longer than its poll
        interval, did not poll; who had none may just have been idle.
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
        """The group is at rest again."""
        ongoing = self._rebalance
        assert ongoing is not None, "a rebalance starts with a cause"
        self._rebalance = None
        self._settled_size = members_after
        return Rebalance(
            group_id=self._group_id,
            group_type="classic",
            generation=generation,
            started_ms=ongoing.started.wall_ms,
            duration_ms=round((now.monotonic_s - ongoing.started.monotonic_s) * 1000),
            members_before=ongoing.members_before,
            members_after=members_after,
            causes=tuple(ongoing.causes),
            causes_left_out=ongoing.causes_left_out,
        )

    def _is_returning(self, member: ClassicMember, now: Moment) -> bool:
        """Only who starts a rebalance: the others follow because they are told to."""
        return self._rebalance is None and self._returning.has(member, now)


def subscription_change(
    old: Protocols, new: Protocols, *, protocol_type: str | None, chosen: str | None, is_from_log: bool
) -> str:
    """What a member says differently now, as text; empty if it is nothing that it chose.

    The bytes of a cooperative member change with every rebalance, because they tell what it owns: so topics are
    compared where we can read them. Of a member from the log we know only the chosen protocol.
    """
    names_old, names_new = [name for name, _ in old], [name for name, _ in new]
    if names_old != names_new and not is_from_log:
        return f"protocols were {', '.join(names_old)} and are {', '.join(names_new)}"
    old_bytes, new_bytes = dict(old).get(chosen or ""), dict(new).get(chosen or "")
    if old_bytes is None or new_bytes is None or old_bytes == new_bytes:
        return ""
    if protocol_type != CONSUMER:
        return "its metadata is different"
    topics_old, topics_new = subscribed_topics(old_bytes), subscribed_topics(new_bytes)
    if topics_old is None or topics_new is None:
        return "its metadata is different"
    added = [f"subscribed to {name}" for name in sorted(topics_new - topics_old)]
    return _listed(added + [f"unsubscribed from {name}" for name in sorted(topics_old - topics_new)])


@dataclass(slots=True, kw_only=True)
class _OngoingRebalance:
    """From the first cause until the leader's assignment is stored, through as many attempts as that takes."""

    started: Moment
    members_before: int
    causes: list[Cause] = field(default_factory=list)
    causes_left_out: int = 0

    def add(self, cause: Cause) -> None:
        if cause in self.causes:
            return
        if len(self.causes) < CAUSES_MAX:
            self.causes.append(cause)
        else:
            self.causes_left_out += 1


class _ReturningMembers:
    """Those whom a fresh load found in the log; while their first session lasts, they come back because we moved."""

    def __init__(self, members: Iterable[ClassicMember] = (), now: Moment | None = None) -> None:
        self._until: dict[Hashable, float] = {}
        for member in members:
            assert now is not None
            for identity in _identities(member):
                self._until[identity] = now.monotonic_s + member.session_timeout_ms / 1000

    def has(self, member: ClassicMember, now: Moment) -> bool:
        """A dynamic member that lost its id is known again by its client id and host."""
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
        """What is different now, as text; empty if nothing is, or if we do not know what the members read."""
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
                changes.append(f"{name} with {count} partitions was deleted and created anew with {count_now}")
            else:
                changes.append(f"{name} went from {count} to {count_now} partitions")
        return _listed(changes)


def _cause(kind: CauseKind, member: ClassicMember, *details: str | None) -> Cause:
    """With all that is known of who it was."""
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


def _listed(texts: list[str]) -> str:
    more = len(texts) - _NAMES_MAX
    return "; ".join(texts[:_NAMES_MAX]) + (f"; and {more} more" if more > 0 else "")
