"""A member of a classic consumer group: join, sync, heartbeat, leave.

The coordinator chooses a leader and sends each member the assignment that the leader has made. The metadata of members
and the assignments are bytes, whose meaning only the caller knows.

    member = Membership(cluster, "group", protocol_type="my-type", protocol="v1", session_timeout_s=10)
    while (assignment := member.join(b"me", assign)) is None:
        pass                                        # another rebalance has started
    while member.heartbeat():
        time.sleep(2)                               # False: a rebalance has started, join again

A member that sends no heartbeat for `session_timeout_s` is removed from the group. It learns that from its next
request, which raises RemovedFromGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from ottla.client.cluster import Cluster, only_row
from ottla.client.errors import BrokerError, ClientError, RemovedFromGroup
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.model.errors import ErrorCode
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

#: receives the metadata of each member by member id, returns the assignment of each member
Assign = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]

#: the first version with a rebalance timeout
_JOIN_GROUP_MIN: Final = 1
#: the first version that names members in a list
_LEAVE_GROUP_MIN: Final = 3
#: later versions repeat the protocol of the group, which the coordinator knows
_SYNC_GROUP_MAX: Final = 4
#: an empty group waits for group.initial.rebalance.delay.ms, which is 3 s unless the cluster changes it
_JOIN_S_MORE: Final = 30.0
_REQUEST_S_MAX: Final = 5.0
_REMOVED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_REJOIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})

_T = TypeVar("_T")


class Membership:
    """One member of one group. Not thread safe."""

    def __init__(
        self, cluster: Cluster, group: str, *, protocol_type: str, protocol: str, session_timeout_s: float
    ) -> None:
        # Config
        self.group = group
        self.session_timeout_s = session_timeout_s
        self._cluster = cluster
        self._protocol_type = protocol_type
        self._protocol = protocol
        # State
        #: given by the coordinator; empty before the first join and after the group has removed this member
        self._member_id = ""
        self._generation = -1

    def join(self, metadata: bytes, assign: Assign) -> bytes | None:
        """Join, or join again after a rebalance. Return the assignment; None if another rebalance has started.

        The coordinator answers when every other member has joined again or was removed, so this takes up to
        `session_timeout_s`. `assign` is called if this member is the leader. Raise RemovedFromGroup if the group has
        removed this member since its last request.
        """
        answer = self._at_coordinator(
            lambda node, deadline: self._join(node, deadline, metadata), 2 * self.session_timeout_s + _JOIN_S_MORE
        )
        self._generation = answer.generation_id
        assignments: Mapping[str, bytes] = {}
        if answer.leader == self._member_id:
            assignments = assign({row.member_id: bytes(row.metadata) for row in answer.members})
        return self._at_coordinator(
            lambda node, deadline: self._sync(node, deadline, assignments), 2 * self.session_timeout_s + _JOIN_S_MORE
        )

    def heartbeat(self) -> bool:
        """Keep the membership alive. Return False if a rebalance has started: join again.

        Raise RemovedFromGroup if the group has removed this member.
        """

        def attempt(node: Node, deadline: float) -> bool:
            request = HeartbeatRequest(group_id=self.group, generation_id=self._generation, member_id=self._member_id)
            code = self._cluster.ask(node, request, deadline=deadline).error_code
            if code in _REJOIN:
                return False
            self._check(code)
            return True

        return self._at_coordinator(attempt, _REQUEST_S_MAX)

    def leave(self) -> None:
        """Leave the group, so that it need not wait for the session to expire. Errors are ignored."""
        if not self._member_id:
            return
        member_id, self._member_id = self._member_id, ""
        with suppress(ClientError):
            remove_members(self._cluster, self.group, [member_id])

    def _join(self, node: Node, deadline: float, metadata: bytes) -> JoinGroupResponse:
        def ask() -> JoinGroupResponse:
            timeout_ms = int(self.session_timeout_s * 1000)
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout=timeout_ms,
                rebalance_timeout=timeout_ms,
                member_id=self._member_id,
                protocol_type=self._protocol_type,
                protocols=[JoinGroupRequestProtocol(name=self._protocol, metadata=metadata)],
            )
            answer: JoinGroupResponse = self._cluster.ask(node, request, deadline=deadline, version_min=_JOIN_GROUP_MIN)
            return answer

        answer = ask()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = ask()
        self._check(answer.error_code)
        self._member_id = answer.member_id
        return answer

    def _sync(self, node: Node, deadline: float, assignments: Mapping[str, bytes]) -> bytes | None:
        rows = [SyncGroupRequestAssignment(member_id=name, assignment=given) for name, given in assignments.items()]
        request = SyncGroupRequest(
            group_id=self.group, generation_id=self._generation, member_id=self._member_id, assignments=rows
        )
        answer = self._cluster.ask(node, request, deadline=deadline, version_max=_SYNC_GROUP_MAX)
        if answer.error_code in _REJOIN:
            return None
        self._check(answer.error_code)
        return bytes(answer.assignment)

    def _check(self, code: int) -> None:
        if code in _REMOVED:
            self._member_id = ""
            raise RemovedFromGroup(code, f"group {self.group}")
        if code:
            raise BrokerError(code, f"group {self.group}")

    def _at_coordinator(self, attempt: Callable[[Node, float], _T], timeout_s: float) -> _T:
        # A coordinator holds the answer to JoinGroup and SyncGroup back until the other members have joined.
        return self._cluster.retry_at_coordinator(
            CoordinatorType.GROUP, self.group, attempt, timeout_s=timeout_s, attempt_s_max=timeout_s
        )


class DescribedMember(NamedTuple):
    """A member as the coordinator describes it.

    While the group rebalances, the metadata are empty, and the assignment is the last one; older brokers send none.
    """

    client_id: str
    metadata: bytes
    assignment: bytes


def members_of(cluster: Cluster, group: str) -> dict[str, DescribedMember]:
    """Return the members by member id; empty for a group that does not exist."""

    def attempt(node: Node, deadline: float) -> dict[str, DescribedMember]:
        answer: Any = cluster.ask(node, DescribeGroupsRequest(groups=[group]), deadline=deadline)
        row = only_row(answer.groups, str(node))
        if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        if row.error_code:
            raise BrokerError(row.error_code, f"group {group}", row.error_message)
        return {
            each.member_id: DescribedMember(each.client_id, bytes(each.member_metadata), bytes(each.member_assignment))
            for each in row.members
        }

    return cluster.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)


def remove_members(cluster: Cluster, group: str, member_ids: Iterable[str], reason: str | None = None) -> None:
    """Remove members from the group, so that it need not wait for their sessions to expire.

    A removed member that still runs gets UNKNOWN_MEMBER_ID for its next request, and can join again. Unknown ids are
    ignored. The broker logs the reason.
    """
    members = [MemberIdentity(member_id=each, reason=reason) for each in member_ids]
    request = LeaveGroupRequest(group_id=group, members=members)

    def attempt(node: Node, deadline: float) -> None:
        answer: Any = cluster.ask(node, request, deadline=deadline, version_min=_LEAVE_GROUP_MIN)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"group {group}")

    cluster.retry_at_coordinator(
        CoordinatorType.GROUP, group, attempt, timeout_s=_REQUEST_S_MAX, attempt_s_max=_REQUEST_S_MAX
    )
