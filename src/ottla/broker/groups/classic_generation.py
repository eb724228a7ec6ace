"""A generation of a classic group: the protocol that its members agreed on, their topics, and their results. Pure."""

from __future__ import annotations

from typing import Final

from ottla.broker.groups.classic_members import CONSUMER, ClassicMember, ClassicMembers, subscribed_topics
from ottla.broker.groups.records import CoordinatorRecord, GroupMetadataKey, GroupMetadataValue
from ottla.broker.groups.requests import JoinResult, Sync, SyncResult
from ottla.broker.groups.subscription import Assignment, encode_assignment
from ottla.model.errors import ErrorCode, Refused

_NO_PARTITIONS: Final = encode_assignment(Assignment(version=0), 0)


class ClassicGeneration:
    """The current generation of one group with these members."""

    def __init__(self, members: ClassicMembers) -> None:
        self._members = members
        self.number = 0
        #: None if no member ever joined: the group only has offsets
        self.protocol_type: str | None = None
        #: chosen for this generation
        self.protocol_name: str | None = None
        #: subscribed topics of all members in this generation; None if unknown
        self.topics: frozenset[str] | None = None

    def load(self, stored: GroupMetadataValue) -> None:
        """Take the generation from the group's record, whose members are loaded."""
        self.number = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol
        self._find_topics()

    def begin_next(self) -> None:
        """Begin the next generation with the present members."""
        self.number += 1
        self.protocol_name = self._members.choose_protocol() if self._members.by_id else None
        self._find_topics()

    def _find_topics(self) -> None:
        is_known = self.protocol_type == CONSUMER
        self.topics = self._members.subscribed_topics(self.protocol_name) if is_known else None

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read this topic: any topic, if a consumer's metadata cannot be decoded."""
        return self.protocol_type == CONSUMER if self.topics is None else topic in self.topics

    def admits(self, replacement: ClassicMember, old: ClassicMember) -> bool:
        """Return whether a static member can be replaced in this generation: the protocol and its topics are the same.

        Kafka compares the protocols only, so new topics get no partitions.
        """
        if self._members.choose_protocol() != self.protocol_name:
            return False
        before, after = old.metadata(self.protocol_name), replacement.metadata(self.protocol_name)
        return self.protocol_type != CONSUMER or subscribed_topics(before) == subscribed_topics(after)

    def check_number(self, number: int) -> None:
        """Raise Refused if a member sent the number of another generation."""
        if number != self.number:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, f"the generation is {self.number}, not {number}")

    def check_protocol(self, sync: Sync) -> None:
        """Raise Refused if a SyncGroup names another protocol."""
        pairs = (sync.protocol_type, self.protocol_type), (sync.protocol_name, self.protocol_name)
        if any(sent is not None and chosen is not None and sent != chosen for sent, chosen in pairs):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def join_result(self, member: ClassicMember) -> JoinResult:
        """Return the result of the join of a member. That of the leader lists the members."""
        leader_id = self._members.leader_id
        others = self._members.by_id.values() if member.member_id == leader_id else ()
        return JoinResult(
            member_id=member.member_id,
            generation=self.number,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name or None,
            leader=leader_id or "",
            members=[each.seen_by_leader(self.protocol_name) for each in others],
        )

    @property
    def empty_assignment(self) -> bytes:
        """Return the assignment of a member that the leader left out."""
        return _NO_PARTITIONS if self.protocol_type == CONSUMER else b""

    def sync_result(self, member: ClassicMember) -> SyncResult:
        """Return the result of the SyncGroup of a member: its assignment."""
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def record(self, group_id: str, state_since_ms: int) -> CoordinatorRecord:
        """Return the group's record with this generation and its members."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "", generation=self.number, protocol=self.protocol_name,
            leader=self._members.leader_id, current_state_timestamp=state_since_ms,
            members=tuple(each.stored(self.protocol_name) for each in self._members.by_id.values()),
        )  # fmt: skip
        return CoordinatorRecord(GroupMetadataKey(group_id), value)
