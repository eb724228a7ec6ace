"""Requests to the group coordinator and their results, without the format of the wire protocol.

`replies.py` reads the requests from messages and builds messages from the results. What depends on the version of a
request is a field here, so that the state machines know no versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.groups.records import OffsetCommitValue, TopicPartitions
from ottla.model.errors import ErrorCode

#: name and metadata of the protocols (assignment strategies) that a member supports, the most preferred first
Protocols = tuple[tuple[str, bytes], ...]


class Sender(NamedTuple):
    """The member that a request says it is from."""

    member_id: str
    group_instance_id: str | None
    #: of a classic member; the member epoch of a member of the consumer protocol
    generation: int


# -- the classic protocol ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup."""

    group_id: str
    #: empty for a new member
    member_id: str
    group_instance_id: str | None
    client: Client
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str | None
    #: whether a new dynamic member gets its id first, and then joins with it
    needs_member_id: bool
    #: whether the client knows the leader without a task, of ``JoinResult.skip_assignment``
    knows_skip_assignment: bool

    @property
    def size_bytes(self) -> int:
        """Return the size of the member that this request asks for, about."""
        names = len(self.client.client_id) + len(self.group_instance_id or "")
        return names + sum(len(name) + len(metadata) for name, metadata in self.protocols)


class LeaderView(NamedTuple):
    """A member, as the leader of its group sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class JoinResult:
    """The generation that a member has joined, or an error."""

    error_code: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    #: for the leader: all members
    members: Sequence[LeaderView] = ()
    #: the leader must not assign partitions, because the assignments have not changed
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup."""

    group_id: str
    sender: Sender
    #: None if the request does not say it
    protocol_type: str | None
    protocol_name: str | None
    #: member id -> assignment, from the leader
    assignments: Mapping[str, bytes]


class SyncResult(NamedTuple):
    """The assignment of a member, or an error."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """A member that LeaveGroup removes. An administrator may name a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveResult(NamedTuple):
    """An error of the whole request, or the error code of each member."""

    error_code: ErrorCode
    members: Sequence[ErrorCode] = ()


# -- the consumer protocol --------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None, and the timeout -1, mean that a property of the member has not changed."""

    group_id: str
    member_id: str
    #: 0 to join, negative to leave
    member_epoch: int
    instance_id: str | None
    client: Client
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: Sequence[str] | None
    topic_regex: str | None
    server_assignor: str | None
    #: partitions that the member has
    owned: TopicPartitions | None
    #: whether the client, and not the coordinator, makes the id of a new member
    makes_member_id: bool

    @property
    def size_bytes(self) -> int:
        """Return the bytes that a group keeps for the member that this request asks for."""
        return sum(map(len, self.topic_names or ())) + len(self.topic_regex or "") + len(self.client.client_id)


@dataclass(slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The epoch and the assignment of a member, or an error."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    #: None if it has not changed
    assignment: TopicPartitions | None = None


# -- offsets ----------------------------------------------------------------------------------------------------------


class OffsetRow(NamedTuple):
    """An offset to commit."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class OffsetTopic(NamedTuple):
    """The offsets to commit in one topic."""

    #: None if the request identifies the topic by its id
    name: str | None
    topic_id: bytes
    rows: Sequence[OffsetRow]


@dataclass(slots=True, kw_only=True)
class OffsetCommit:
    """OffsetCommit, or TxnOffsetCommit."""

    group_id: str
    sender: Sender
    client: Client
    topics: Sequence[OffsetTopic]
    #: how long the offsets are kept; -1 for the time in the settings
    retention_ms: int = -1
    #: whether the request can have the epoch of a member of the consumer protocol
    has_member_epoch: bool = False
    #: the offsets are committed with the transaction of this producer
    producer: Producer | None = None


class OffsetResult(NamedTuple):
    """The result for one partition."""

    topic: str
    topic_id: bytes
    partition: int
    error_code: ErrorCode


class FetchTopic(NamedTuple):
    """A topic whose committed offsets are fetched."""

    #: None if the request identifies the topic by its id
    name: str | None
    topic_id: bytes
    partitions: Sequence[int]


@dataclass(slots=True, kw_only=True)
class OffsetFetch:
    """OffsetFetch, for one group."""

    group_id: str
    #: None if the request is not from a member of the consumer protocol
    member_id: str | None
    member_epoch: int
    #: None for all topics with committed offsets
    topics: Sequence[FetchTopic] | None
    #: whether the reply identifies topics by their ids
    by_id: bool
    require_stable: bool


class FetchedOffset(NamedTuple):
    """A committed offset; without a value there is none."""

    partition: int
    value: OffsetCommitValue | None
    error_code: ErrorCode = ErrorCode.NONE


class FetchedTopic(NamedTuple):
    """The committed offsets of one topic."""

    name: str
    topic_id: bytes
    offsets: Sequence[FetchedOffset]


class FetchedGroup(NamedTuple):
    """The committed offsets of one group, or an error."""

    error_code: ErrorCode
    topics: Sequence[FetchedTopic] = ()
