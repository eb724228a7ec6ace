"""The members of a classic group: what each sent in JoinGroup, who leads, and which protocols they share. Pure.

Invariant: the leader is a member, or None if there are no members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import NEVER, Moment, Ticket
from ottla.broker.groups.records import MemberMetadata
from ottla.broker.groups.requests import Join, LeaderView, Protocols
from ottla.broker.groups.subscription import decode_subscription
from ottla.model.errors import ErrorCode, Refused
from ottla.wire import WireError

#: the protocol type whose metadata the coordinator can decode
CONSUMER = "consumer"
_SYNC_WAIT_MS_MIN = 1000


class PendingMember(NamedTuple):
    """A member id that was given out with MEMBER_ID_REQUIRED."""

    deadline: float
    client_host: str


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """One member, identified by ``member_id``."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    #: after a load it has only the protocol that the group chose
    protocols: Protocols
    assignment: bytes = b""

    # Soft state
    #: its first join is not answered: it cannot send heartbeats yet, and may expire while its join is parked
    is_new: bool = False
    #: was loaded from the log and has not joined since
    is_from_log: bool = False
    parked_join: Ticket | None = None
    parked_sync: Ticket | None = None
    #: monotonic seconds; ignored while ``expires_at`` returns NEVER
    session_deadline: float = NEVER
    #: monotonic seconds of its last join, sync or commit; a member that only sends heartbeats does not poll
    last_progress: float = 0.0

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def expires_at(self) -> float:
        """Return the session deadline, or NEVER while a request of the member is parked, except for its first join.

        A client sends no heartbeats while it waits for the response to a parked request.
        """
        if not self.is_new and (self.parked_join is not None or self.parked_sync is not None):
            return NEVER
        return self.session_deadline

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the member's client has sent: names and metadata."""
        names = len(self.member_id) + len(self.client_id) + len(self.group_instance_id or "")
        return names + sum(len(name) + len(metadata) for name, metadata in self.protocols)

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata for this protocol; empty bytes if the member does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the member's most preferred protocol among the candidates."""
        return next(name for name, _ in self.protocols if name in candidates)

    def seen_by_leader(self, protocol: str | None) -> LeaderView:
        return LeaderView(self.member_id, self.group_instance_id, self.metadata(protocol))

    def stored(self, protocol: str | None) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


def joining_member(member_id: str, join: Join, now: Moment) -> ClassicMember:
    """Return a new member with the properties of this request."""
    return ClassicMember(
        member_id=member_id,
        group_instance_id=join.group_instance_id,
        client_id=join.client.client_id,
        client_host=join.client.host,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        session_timeout_ms=join.session_timeout_ms,
        protocols=join.protocols,
        last_progress=now.monotonic_s,
    )


def loaded_member(stored: MemberMetadata, protocol: str | None, now: Moment) -> ClassicMember:
    """Return a member with the properties from its record and a new session."""
    return ClassicMember(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        # Version 0 of the record has no rebalance timeout.
        rebalance_timeout_ms=stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout,
        session_timeout_ms=stored.session_timeout,
        protocols=((protocol or "", stored.subscription),),
        assignment=stored.assignment,
        is_from_log=True,
        session_deadline=now.monotonic_s + stored.session_timeout / 1000,
        last_progress=now.monotonic_s,
    )


def replacement(old: ClassicMember, member_id: str, client: Client, now: Moment) -> ClassicMember:
    """Return the successor of a static member under a new member id, with the old assignment and protocols."""
    return replace(
        old,
        member_id=member_id,
        client_id=client.client_id,
        client_host=client.host,
        is_new=False,
        parked_join=None,
        parked_sync=None,
        last_progress=now.monotonic_s,
    )


class ClassicMembers:
    """The members of one group."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        #: by member id, in the order in which they joined
        self.by_id: dict[str, ClassicMember] = {}
        self.leader_id: str | None = None
        #: group instance id -> member id
        self._static: dict[str, str] = {}
        #: protocol name -> number of members that support it
        self._supporters: Counter[str] = Counter()

    def find(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """Return the member. Raise Refused if it is unknown or if another member has its instance id."""
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is not None and current != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{group_instance_id} is another process now")
            if current is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member is called {group_instance_id}")
        member = self.by_id.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self._group_id}; join again")
        return member

    def id_of(self, group_instance_id: str | None) -> str | None:
        """Return the member id of a static member; None if there is no such member."""
        return self._static.get(group_instance_id) if group_instance_id is not None else None

    def insert(self, member: ClassicMember) -> None:
        """Add a member. The first one leads."""
        self.by_id[member.member_id] = member
        self._supporters.update(member.protocol_names)
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """Remove a member. If it led, the first of the others leads."""
        del self.by_id[member.member_id]
        self._supporters.subtract(member.protocol_names)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.by_id), None)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Put the successor of a static member, with the same protocols, in its place."""
        assert old.group_instance_id is not None
        del self.by_id[old.member_id]
        self.by_id[new.member_id] = new
        self._static[old.group_instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id

    def refresh(self, member: ClassicMember, join: Join) -> None:
        """Give a member the protocols and timeouts of its new join."""
        self._supporters.subtract(member.protocol_names)
        member.protocols = join.protocols
        self._supporters.update(member.protocol_names)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        member.is_from_log = False

    def share_one_of(self, protocols: Iterable[str]) -> bool:
        """Return whether all members support one of these protocols."""
        return any(self._supporters[name] == len(self.by_id) for name in protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support; of equals the first voted for."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.by_id)}
        votes = Counter(member.vote(candidates) for member in self.by_id.values())
        return max(votes, key=votes.__getitem__)

    def elect_leader(self) -> bool:
        """Keep the leader if it joined, else elect the first member that joined. Return False if no member joined."""
        leader = self.by_id.get(self.leader_id or "")
        if leader is None or leader.parked_join is None:
            leader = next((each for each in self.by_id.values() if each.parked_join is not None), None)
        if leader is None:
            return False
        self.leader_id = leader.member_id
        return True

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout."""
        return max((each.rebalance_timeout_ms for each in self.by_id.values()), default=0)

    def subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        """Return the topics of all consumers; None if the metadata of one cannot be decoded."""
        each = [subscribed_topics(member.metadata(protocol)) for member in self.by_id.values()]
        known = [topics for topics in each if topics is not None]
        return frozenset[str]().union(*known) if len(known) == len(each) else None


def sync_wait_ms(timeout_ms: int) -> int:
    """Return the time that members have for SyncGroup: the rebalance timeout, or a second if that is longer.

    kafkajs's test suite joins with a rebalance timeout of 0 and then sends SyncGroup. Kafka removes such a member at
    once, or not, by chance.
    """
    return max(timeout_ms, _SYNC_WAIT_MS_MIN)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in metadata of the protocol type "consumer"; None if the bytes cannot be decoded."""
    try:
        return frozenset(decode_subscription(metadata).topics)
    except WireError:
        return None
