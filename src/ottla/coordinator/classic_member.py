"""A member of a classic group: what it said of itself, what it was given, and where its parked requests wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ottla.coordinator.outcome import NEVER, Client, Moment, Outcome, Ticket
from ottla.coordinator.records import MemberMetadata
from ottla.coordinator.subscription import decode_subscription
from ottla.model.errors import ErrorCode
from ottla.wire import WireError
from ottla.wire.messages.describe_groups import DescribedGroupMember
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

#: name and metadata of the assignment strategies that a member knows, the one it likes best first
Protocols = tuple[tuple[str, bytes], ...]

#: the protocol type whose bytes we can read
CONSUMER = "consumer"
#: the version of JoinGroup from which a missing protocol name is null
NULL_PROTOCOL_FROM = 7


class Parked(NamedTuple):
    """A request that waits for others."""

    ticket: Ticket
    #: of the request: null and the empty string are told apart from version to version
    version: int


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """One member, by ``member_id``."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    #: after a load only the group's chosen one is known
    protocols: Protocols
    assignment: bytes = b""

    # Soft state
    #: has never been told its first generation: it cannot heartbeat yet, and may expire while its join is parked
    is_new: bool = False
    #: came from the log and has not joined since
    is_from_log: bool = False
    parked_join: Parked | None = None
    parked_sync: Parked | None = None
    #: monotonic seconds; counts only while ``expires_at`` says so
    session_deadline: float = NEVER
    #: when it last joined, synced or committed: a member that only heartbeats does not poll
    last_progress: float = 0.0

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def expires_at(self) -> float:
        """Somebody whose request we hold back cannot be asked for heartbeats; only a first join may wait too long."""
        if not self.is_new and (self.parked_join is not None or self.parked_sync is not None):
            return NEVER
        return self.session_deadline

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """What it said for this protocol; nothing if it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    def described_to_leader(self, protocol: str | None) -> JoinGroupResponseMember:
        return JoinGroupResponseMember(
            member_id=self.member_id, group_instance_id=self.group_instance_id, metadata=self.metadata(protocol)
        )

    def described(self, protocol: str | None) -> DescribedGroupMember:
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol),
            member_assignment=self.assignment,
        )

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


def joining_member(member_id: str, request: JoinGroupRequest, client: Client, now: Moment) -> ClassicMember:
    """The member that this request asks for."""
    return ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=rebalance_timeout_ms(request.rebalance_timeout, request.session_timeout),
        session_timeout_ms=request.session_timeout,
        protocols=protocols_of(request),
        last_progress=now.monotonic_s,
    )


def loaded_member(stored: MemberMetadata, protocol: str | None, now: Moment) -> ClassicMember:
    """A member as the log knows it, with a fresh session."""
    return ClassicMember(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(stored.rebalance_timeout, stored.session_timeout),
        session_timeout_ms=stored.session_timeout,
        protocols=((protocol or "", stored.subscription),),
        assignment=stored.assignment,
        is_from_log=True,
        session_deadline=now.monotonic_s + stored.session_timeout / 1000,
        last_progress=now.monotonic_s,
    )


def replacement(old: ClassicMember, member_id: str, client: Client, now: Moment) -> ClassicMember:
    """The next process of a static member, before it says what it knows: it has what its predecessor was given."""
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


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return tuple((each.name, each.metadata) for each in request.protocols)


def rebalance_timeout_ms(asked_ms: int, session_timeout_ms: int) -> int:
    """Version 0 cannot ask for one."""
    return asked_ms if asked_ms >= 0 else session_timeout_ms


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Of metadata of the protocol type "consumer"; None if it is something else."""
    try:
        return frozenset(decode_subscription(metadata).topics)
    except WireError:
        return None


def refused_join(member_id: str, code: int, version: int) -> JoinGroupResponse:
    protocol = None if version >= NULL_PROTOCOL_FROM else ""
    return JoinGroupResponse(member_id=member_id, error_code=code, protocol_name=protocol)


def refuse_join(parked: Parked, member_id: str, code: ErrorCode, out: Outcome) -> None:
    out.replies.append((parked.ticket, refused_join(member_id, code, parked.version)))
