"""A member of a classic group: its properties from JoinGroup, its assignment, and its parked requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import NEVER, Moment, Ticket
from ottla.broker.groups.records import MemberMetadata
from ottla.broker.groups.requests import Join, LeaderView, Protocols
from ottla.broker.groups.subscription import decode_subscription
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
