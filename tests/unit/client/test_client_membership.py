"""Members of a classic group: who is leader assigns, who is removed learns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fake_cluster import Cut, FakeCluster

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, RemovedFromGroup
from ottla.client.membership import DescribedMember, Membership, members_of, remove_members
from ottla.model.errors import ErrorCode
from ottla.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from ottla.wire.messages.heartbeat import HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.wire.messages.leave_group import LeaveGroupResponse
from ottla.wire.messages.sync_group import SyncGroupResponse


@pytest.fixture
def member(fake: FakeCluster, cluster: Cluster) -> Membership:
    return Membership(cluster, "g", protocol_type="type", protocol="v1", session_timeout_s=10)


def joined(*, leader: str = "me", code: int = 0, members: tuple[str, ...] = ()) -> Any:
    rows = [JoinGroupResponseMember(member_id=name, metadata=name.encode()) for name in members]
    return lambda broker, request: JoinGroupResponse(
        error_code=code, generation_id=3, leader=leader, member_id="me", members=rows, protocol_name="v1"
    )


def synced(assignment: bytes = b"", code: int = 0) -> Any:
    return lambda broker, request: SyncGroupResponse(error_code=code, assignment=assignment)


def beaten(code: int = 0) -> Any:
    return lambda broker, request: HeartbeatResponse(error_code=code)


def assign(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {name: b"for " + metadata for name, metadata in members.items()}


def test_leader_assigns_and_gets_its_own_assignment(fake: FakeCluster, member: Membership) -> None:
    fake.plan("JoinGroup", joined(code=ErrorCode.MEMBER_ID_REQUIRED), joined(members=("me", "you")))
    fake.plan("SyncGroup", synced(b"for me"))
    assert member.join(b"metadata", assign) == b"for me"
    first, second = fake.requests("JoinGroup")
    assert (first.member_id, second.member_id) == ("", "me")
    assert (second.session_timeout, second.protocol_type, second.group_instance_id) == (10_000, "type", None)
    assert bytes(second.protocols[0].metadata) == b"metadata"
    (sync,) = fake.requests("SyncGroup")
    assert {row.member_id: bytes(row.assignment) for row in sync.assignments} == {"me": b"for me", "you": b"for you"}
    assert (sync.member_id, sync.generation_id) == ("me", 3)


def test_follower_assigns_nothing(fake: FakeCluster, member: Membership) -> None:
    fake.plan("JoinGroup", joined(leader="you"))
    fake.plan("SyncGroup", synced(b"given"))
    assert member.join(b"", assign) == b"given"
    assert list(fake.requests("SyncGroup")[0].assignments) == []


def test_join_and_sync_are_repeated_at_the_coordinator_that_answers(fake: FakeCluster, member: Membership) -> None:
    fake.plan("JoinGroup", Cut, joined(code=ErrorCode.NOT_COORDINATOR), joined())
    fake.plan("SyncGroup", Cut, synced(b"given"))
    assert member.join(b"", assign) == b"given"
    assert len(fake.requests("JoinGroup")) == 3


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION])
def test_rebalance_asks_the_member_to_join_again_with_its_id(
    fake: FakeCluster, member: Membership, code: ErrorCode
) -> None:
    fake.plan("JoinGroup", joined(), joined())
    fake.plan("SyncGroup", synced(code=code), synced(b"given"))
    assert member.join(b"", assign) is None
    assert member.join(b"", assign) == b"given"
    fake.plan("Heartbeat", beaten(), beaten(code))
    assert member.heartbeat()
    assert not member.heartbeat()
    assert fake.requests("JoinGroup")[1].member_id == "me"
    assert fake.requests("Heartbeat")[0].generation_id == 3


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID])
def test_removed_member_learns_it_and_joins_as_a_new_one(
    fake: FakeCluster, member: Membership, code: ErrorCode
) -> None:
    fake.plan("JoinGroup", joined(), joined())
    fake.plan("SyncGroup", synced(), synced())
    member.join(b"", assign)
    fake.plan("Heartbeat", beaten(code))
    with pytest.raises(RemovedFromGroup) as raised:
        member.heartbeat()
    assert "active members" not in str(raised.value)  # the remedy for a commit into a group that others use
    member.join(b"", assign)
    assert fake.requests("JoinGroup")[1].member_id == ""


def test_group_of_another_kind_is_an_error(fake: FakeCluster, member: Membership) -> None:
    fake.plan("JoinGroup", joined(code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    with pytest.raises(BrokerError, match="group g: INCONSISTENT_GROUP_PROTOCOL"):
        member.join(b"", assign)


def test_member_leaves_once_and_ignores_errors(fake: FakeCluster, member: Membership) -> None:
    member.leave()
    assert fake.requests("LeaveGroup") == []
    fake.plan("JoinGroup", joined())
    fake.plan("SyncGroup", synced())
    member.join(b"", assign)
    fake.plan("LeaveGroup", Cut, lambda broker, request: LeaveGroupResponse())
    member.leave()
    member.leave()
    assert [request.members[0].member_id for request in fake.requests("LeaveGroup")] == ["me", "me"]


def test_members_are_described_and_a_missing_group_has_none(fake: FakeCluster, cluster: Cluster) -> None:
    rows = [DescribedGroupMember(member_id="me", client_id="c", member_metadata=b"metadata", member_assignment=b"mine")]

    def described(code: int, *members: DescribedGroupMember) -> Any:
        group = DescribedGroup(group_id="g", error_code=code, members=members)
        return lambda broker, request: DescribeGroupsResponse(groups=[group])

    fake.plan("DescribeGroups", described(0, *rows), described(ErrorCode.GROUP_ID_NOT_FOUND), described(30))
    assert members_of(cluster, "g") == {"me": DescribedMember("c", b"metadata", b"mine")}
    assert members_of(cluster, "g") == {}
    with pytest.raises(BrokerError, match="does not let this client use the group"):
        members_of(cluster, "g")


def test_members_are_removed_at_the_coordinator_that_answers(fake: FakeCluster, cluster: Cluster) -> None:
    moved = LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    fake.plan("LeaveGroup", lambda broker, request: moved, lambda broker, request: LeaveGroupResponse())
    remove_members(cluster, "g", ["a", "b"], "ended")
    rows = [(row.member_id, row.reason) for row in fake.requests("LeaveGroup")[1].members]
    assert rows == [("a", "ended"), ("b", "ended")]
