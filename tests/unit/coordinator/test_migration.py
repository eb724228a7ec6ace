"""Groups that change their protocol while they run, and groups that speak both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinator.consumer_room import (
    CLASSIC_SESSION_MS,
    REBALANCE_MS,
    ClassicConsumer,
    Consumer,
    ConsumerRoom,
    snapshot,
)

from ottla.coordinator.classic import ClassicGroup
from ottla.coordinator.consumer import ConsumerGroup
from ottla.coordinator.journal import CauseKind
from ottla.coordinator.migration import can_upgrade, downgrade_records, should_downgrade, upgrade_records
from ottla.coordinator.outcome import Client
from ottla.coordinator.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from ottla.coordinator.subscription import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

CLIENT = Client("admin", "/10.0.0.9", 5)


@pytest.fixture
def room() -> ConsumerRoom:
    made = ConsumerRoom()
    made.topics.create("t", 4)
    return made


def classic_member(
    name: str, *numbers: int, user_data: bytes | None = None, instance: str | None = None
) -> MemberMetadata:
    assignment = Assignment(partitions=(("t", numbers),), user_data=user_data, version=1)
    return MemberMetadata(
        member_id=name,
        group_instance_id=instance,
        client_id="classic",
        client_host="/10.0.0.2",
        rebalance_timeout=REBALANCE_MS,
        session_timeout=CLASSIC_SESSION_MS,
        subscription=encode_subscription(Subscription(topics=("t",), version=1)),
        assignment=encode_assignment(assignment, 1),
    )


def classic_group(room: ConsumerRoom, *members: MemberMetadata, protocol_type: str = "consumer") -> ClassicGroup:
    group = ClassicGroup("g", room.world)
    group.replay(
        GroupMetadataValue(
            protocol_type=protocol_type,
            generation=7,
            protocol="cooperative-sticky",
            leader=members[0].member_id,
            members=members,
        )
    )
    group.resume(room.moment)
    return group


def upgraded(room: ConsumerRoom, *members: MemberMetadata) -> ConsumerGroup:
    """As the shard does it: the room's group becomes the converted one."""
    classic = classic_group(room, *members)
    can_upgrade(classic, room.world)
    records = upgrade_records(classic, room.world, room.moment)
    assert (records[0].key, records[0].value) == (GroupMetadataKey("g"), None)
    room.log = records[1:]
    room.restart()
    return room.group


def members_of_old(room: ConsumerRoom, *names: str) -> list[ClassicConsumer]:
    """Clients that were in the classic group and do not know what happened."""
    clients = []
    for name in names:
        client = ClassicConsumer(room, name, "t")
        client.epoch, client.must_join = room.group.stored.current(name).member_epoch, False
        described = room.group.stored.current(name).assigned_partitions
        client.owned = {("t", number) for _, numbers in described for number in numbers}
        clients.append(client)
    return clients


# -- upgrade ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "may"), [("disabled", False), ("downgrade", False), ("upgrade", True), ("bidirectional", True)]
)
def test_policy_says_who_may_upgrade(policy: str, may: bool) -> None:
    room = ConsumerRoom(group_consumer_migration_policy=policy)
    group = classic_group(room, classic_member("a"))
    if may:
        can_upgrade(group, room.world)
    else:
        with pytest.raises(Refused) as caught:
            can_upgrade(group, room.world)
        assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def refuse(room: ConsumerRoom, *members: MemberMetadata, protocol_type: str = "consumer") -> str:
    with pytest.raises(Refused) as caught:
        can_upgrade(classic_group(room, *members, protocol_type=protocol_type), room.world)
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    return str(caught.value)


def test_connect_workers_are_not_upgraded(room: ConsumerRoom) -> None:
    assert "protocol type" in refuse(room, classic_member("a"), protocol_type="connect")


def test_assignor_with_data_of_its_own_is_not_upgraded(room: ConsumerRoom) -> None:
    assert "lost" in refuse(room, classic_member("a", 0, user_data=b"x"))


def test_partition_with_two_owners_is_not_upgraded(room: ConsumerRoom) -> None:
    assert "two members" in refuse(room, classic_member("a", 0), classic_member("b", 0))


def test_bytes_that_cannot_be_read_are_not_upgraded(room: ConsumerRoom) -> None:
    assert "cannot be read" in refuse(room, replace(classic_member("a"), subscription=b"\0"))
    assert "cannot be read" in refuse(room, replace(classic_member("a"), assignment=b"\0"))


def test_group_that_is_too_large_is_not_upgraded() -> None:
    room = ConsumerRoom(group_consumer_max_size="1")
    assert "max.size" in refuse(room, classic_member("a"), classic_member("b"))


def test_classic_members_stay_with_what_they_had(room: ConsumerRoom) -> None:
    group = upgraded(room, classic_member("a", 0, 1), classic_member("b", 2, 3, instance="i"))
    assert group.group_epoch == 7
    assert group.state == "Stable"
    assert group.stored.static_members == {"i": "b"}
    assert [member.member_type for member in group.describe(1).members] == [0, 0]
    assert len(group.stored.owners) == 4


def test_newcomer_makes_the_classic_members_join_again_and_share(room: ConsumerRoom) -> None:
    upgraded(room, classic_member("a", 0, 1), classic_member("b", 2, 3))
    a, b = members_of_old(room, "a", "b")
    new = Consumer(room, "new", "t")
    new.heartbeat()
    assert (new.epoch, new.owned) == (8, set())
    assert a.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    room.settle(a, b, new, rounds_max=8)
    assert sorted(len(each.owned) for each in (a, b, new)) == [1, 1, 2]
    assert a.owned | b.owned | new.owned == {("t", number) for number in range(4)}
    assert room.causes() == [CauseKind.PROTOCOL_CHANGED, CauseKind.JOINED]


def test_sessions_of_classic_members_are_those_they_asked_for(room: ConsumerRoom) -> None:
    upgraded(room, classic_member("a", 0))
    room.pass_time(CLASSIC_SESSION_MS / 1000 + 1)
    assert room.group.is_empty


def test_topic_that_is_gone_is_left_behind(room: ConsumerRoom) -> None:
    room.topics.delete("t")
    assert upgraded(room, classic_member("a", 0)).stored.owners == {}


def test_group_in_its_first_rebalance_can_be_upgraded(room: ConsumerRoom) -> None:
    """Nobody has an assignment yet, and no protocol was chosen."""
    classic = ClassicGroup("g", room.world)
    request = ClassicConsumer(room, "", "t").join_request()
    classic.join(request, Client("c", "/h", 3), object(), room.moment)
    can_upgrade(classic, room.world)
    room.log = upgrade_records(classic, room.world, room.moment)[1:]
    room.restart()
    new = Consumer(room, "new", "t")
    new.heartbeat()
    assert (new.epoch, len(new.owned)) == (1, 2)


# -- classic members in a consumer group ------------------------------------------------------------------------------


def mixed(room: ConsumerRoom) -> tuple[Consumer, ClassicConsumer]:
    new, old = Consumer(room, "new", "t"), ClassicConsumer(room, "old", "t")
    new.heartbeat()
    room.settle(new, old)
    return new, old


def test_classic_member_joins_a_consumer_group(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    assert (len(new.owned), len(old.owned)) == (2, 2)
    assert room.group.stored.classic_count == 1


def test_join_is_answered_at_once_and_without_a_leader(room: ConsumerRoom) -> None:
    room.join("new", "t")
    answer = ClassicConsumer(room, "old", "t").join()
    assert (answer.error_code, answer.generation_id, answer.leader, list(answer.members)) == (0, 3, "", [])
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "cooperative-sticky")


def test_member_without_an_id_is_sent_away_to_come_back_with_one(room: ConsumerRoom) -> None:
    room.join("new", "t")
    answer = ClassicConsumer(room, "", "t").join(version=4)
    assert (answer.error_code, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "made-1")
    assert len(room.group.members) == 1
    assert ClassicConsumer(room, "", "t").join(version=3).error_code == 0


def test_join_that_does_not_fit_is_refused(room: ConsumerRoom) -> None:
    mixed(room)
    other = ClassicConsumer(room, "other", "t")
    assert other.join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert other.join(protocols=[]).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    strange = other.join_request().protocols[0]
    strange.name = "strange"
    assert other.join(protocols=[strange]).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert other.join(session_timeout=1).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert len(room.group.members) == 2


def test_classic_member_hears_of_a_rebalance_on_its_heartbeat(room: ConsumerRoom) -> None:
    _, old = mixed(room)
    assert old.heartbeat() == 0
    room.join("third", "t")
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_member_is_called_back_when_its_partitions_are_free(room: ConsumerRoom) -> None:
    new = Consumer(room, "new", "t")
    new.heartbeat()
    old = ClassicConsumer(room, "old", "t")
    old.heartbeat()
    assert (old.owned, old.heartbeat()) == (set(), 0), "it waits for others"
    new.heartbeat()
    new.heartbeat()
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.heartbeat()
    assert len(old.owned) == 2


def test_eager_member_that_owns_nothing_when_it_joins_moves_on_at_once(room: ConsumerRoom) -> None:
    _, old = mixed(room)
    room.join("third", "t")
    old.owned = set()
    assert old.join().generation_id == room.group.group_epoch


def test_wrong_generation_and_stranger_are_refused(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    old.epoch -= 1
    assert old.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    request = HeartbeatRequest(group_id="g", generation_id=new.epoch, member_id="new")
    answer = room.take(room.group.heartbeat_classic(request, CLIENT, object(), room.moment))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID  # type: ignore[attr-defined]


def test_classic_member_that_does_not_join_again_is_thrown_out(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    room.join("third", "t")
    for _ in range(13):
        old.must_join = False
        old.heartbeat()
        new.heartbeat()
        room.pass_time(5)
    assert "old" not in room.group.members


def test_classic_member_that_never_syncs_is_thrown_out(room: ConsumerRoom) -> None:
    new = Consumer(room, "new", "t")
    new.heartbeat()
    old = ClassicConsumer(room, "old", "t")
    old.join(session_timeout=300_000)
    for _ in range(13):
        new.heartbeat()
        room.pass_time(5)
    assert set(room.group.members) == {"new"}


def test_classic_member_commits_with_its_generation_and_an_old_version(room: ConsumerRoom) -> None:
    _, old = mixed(room)
    room.group.check_commit("old", None, old.epoch, room.moment, 5)
    with pytest.raises(Refused) as caught:
        room.group.check_commit("old", None, old.epoch - 1, room.moment, 5)
    assert caught.value.code == ErrorCode.ILLEGAL_GENERATION


def test_classic_member_leaves(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    answer = old.leave()
    assert (answer.error_code, [each.error_code for each in answer.members]) == (0, [0])
    new.heartbeat()
    assert len(new.owned) == 4


def test_administrator_removes_members_of_either_protocol_by_instance(room: ConsumerRoom) -> None:
    Consumer(room, "new", "t", instance="a").heartbeat()
    members = [MemberIdentity(group_instance_id="a"), MemberIdentity(group_instance_id="b")]
    request = LeaveGroupRequest(group_id="g", members=members)
    answer = room.take(room.group.leave_classic(request, CLIENT, object(), room.moment))
    assert isinstance(answer, LeaveGroupResponse)
    assert [each.error_code for each in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert room.group.is_empty
    assert room.causes() == [CauseKind.REMOVED]


def test_single_leave_of_old_versions_answers_on_top(room: ConsumerRoom) -> None:
    mixed(room)
    request = LeaveGroupRequest(group_id="g", member_id="nobody")
    client = Client("c", "/h", 2)
    answer = room.take(room.group.leave_classic(request, client, object(), room.moment))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID  # type: ignore[attr-defined]


def test_static_member_changes_its_protocol_without_leaving_first(room: ConsumerRoom) -> None:
    old = ClassicConsumer(room, "", "t", instance="a")
    room.settle(Consumer(room, "other", "t"), old)
    new = Consumer(room, "new", "t", instance="a")
    new.heartbeat()
    assert (new.error, new.owned) == (0, old.owned)
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


def test_restart_finds_a_mixed_group(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    before = snapshot(room.group)
    room.restart()
    assert snapshot(room.group) == before
    room.settle(new, old)


# -- downgrade --------------------------------------------------------------------------------------------------------


def test_group_is_downgraded_when_only_classic_members_are_left(room: ConsumerRoom) -> None:
    new, _ = mixed(room)
    assert not should_downgrade(room.group, room.world)
    new.leave()
    assert should_downgrade(room.group, room.world)


def test_empty_group_is_not_downgraded(room: ConsumerRoom) -> None:
    one = Consumer(room, "one", "t")
    one.heartbeat()
    one.leave()
    assert not should_downgrade(room.group, room.world)


def test_policy_keeps_a_group_as_it_is() -> None:
    room = ConsumerRoom(group_consumer_migration_policy="upgrade")
    room.topics.create("t", 4)
    new, _ = mixed(room)
    new.leave()
    assert not should_downgrade(room.group, room.world)


def test_downgraded_group_is_classic_with_the_same_members(room: ConsumerRoom) -> None:
    new, old = mixed(room)
    new.leave()
    records = downgrade_records(room.group, room.moment)
    value = records[-1].value
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.protocol, value.leader) == (old.epoch, "cooperative-sticky", "old")
    assert value.protocol_type == "consumer"
    assert [each.assignment for each in value.members] == [b""]
    for record in records[:-1]:
        assert record.value is None
        room.group.replay(record)
    assert room.group.is_deleted


def test_group_can_go_there_and_back_again(room: ConsumerRoom) -> None:
    upgraded(room, classic_member("a", 0, 1), classic_member("b", 2, 3))
    a, b = members_of_old(room, "a", "b")
    new = Consumer(room, "new", "t")
    room.settle(new, a, b)
    new.leave()
    value = downgrade_records(room.group, room.moment)[-1].value
    assert isinstance(value, GroupMetadataValue)
    classic = ClassicGroup("g", room.world)
    classic.replay(value)
    classic.resume(room.moment)
    assert (classic.generation, set(classic.members)) == (a.epoch, {"a", "b"})
    assert classic.state == "PreparingRebalance"
    can_upgrade(classic, room.world)
