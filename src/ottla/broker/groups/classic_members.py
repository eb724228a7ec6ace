"""The members of a classic group: who leads, and which protocols and topics they share. Pure.

Invariant: the leader is a member, or None if there are no members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ottla.broker.groups.classic_member import ClassicMember, subscribed_topics
from ottla.broker.groups.requests import Join
from ottla.model.errors import ErrorCode, Refused


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
