"""Groups that change their protocol while they run, and groups that speak both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinators.consumer_fixtures import (
    CLASSIC_SESSION_MS,
    REBALANCE_MS,
    ClassicConsumer,
    Consumer,
    ConsumerFixture,
    snapshot,
)

from ottla.broker.client import Client
from ottla.broker.groups.classic import ClassicGroup
from ottla.broker.groups.consumer import ConsumerGroup
from ottla.broker.groups.journal import CauseKind
from ottla.broker.groups.migration import can_upgrade, downgrade_records, should_downgrade, upgrade_records
from ottla.broker.groups.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from ottla.broker.groups.replies import described_consumer_group, leave_reply, read_heartbeat, read_join, read_leave
from ottla.broker.groups.requests import Sender
from ottla.broker.groups.subscription import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

CLIENT = Client("admin", "/10.0.0.9", 5)


@pytest.fixture
def fixture() -> ConsumerFixture:
    made = ConsumerFixture()
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


def classic_group(fixture: ConsumerFixture, *members: MemberMetadata, protocol_type: str = "consumer") -> ClassicGroup:
    group = ClassicGroup("g", fixture.context)
    group.replay(
        GroupMetadataValue(
            protocol_type=protocol_type,
            generation=7,
            protocol="cooperative-sticky",
            leader=members[0].member_id,
            members=members,
        )
    )
    group.resume(fixture.moment)
    return group


def upgraded(fixture: ConsumerFixture, *members: MemberMetadata) -> ConsumerGroup:
    """As the shard does it: the fixture's group becomes the converted one."""
    classic = classic_group(fixture, *members)
    can_upgrade(classic, fixture.context)
    records = upgrade_records(classic, fixture.context, fixture.moment)
    assert (records[0].key, records[0].value) == (GroupMetadataKey("g"), None)
    fixture.log = records[1:]
    fixture.restart()
    return fixture.group


def members_of_old(fixture: ConsumerFixture, *names: str) -> list[ClassicConsumer]:
    """Clients that were in the classic group and do not know what happened."""
    clients = []
    for name in names:
        client = ClassicConsumer(fixture, name, "t")
        client.epoch, client.must_join = fixture.group.stored.current(name).member_epoch, False
        described = fixture.group.stored.current(name).assigned_partitions
        client.owned = {("t", number) for _, numbers in described for number in numbers}
        clients.append(client)
    return clients


# -- upgrade ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "may"), [("disabled", False), ("downgrade", False), ("upgrade", True), ("bidirectional", True)]
)
def test_policy_says_who_may_upgrade(policy: str, may: bool) -> None:
    fixture = ConsumerFixture(group_consumer_migration_policy=policy)
    group = classic_group(fixture, classic_member("a"))
    if may:
        can_upgrade(group, fixture.context)
    else:
        with pytest.raises(Refused) as caught:
            can_upgrade(group, fixture.context)
        assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def refuse(fixture: ConsumerFixture, *members: MemberMetadata, protocol_type: str = "consumer") -> str:
    with pytest.raises(Refused) as caught:
        can_upgrade(classic_group(fixture, *members, protocol_type=protocol_type), fixture.context)
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    return str(caught.value)


def test_connect_workers_are_not_upgraded(fixture: ConsumerFixture) -> None:
    assert "protocol type" in refuse(fixture, classic_member("a"), protocol_type="connect")


def test_assignor_with_data_of_its_own_is_not_upgraded(fixture: ConsumerFixture) -> None:
    assert "lost" in refuse(fixture, classic_member("a", 0, user_data=b"x"))


def test_partition_with_two_owners_is_not_upgraded(fixture: ConsumerFixture) -> None:
    assert "two members" in refuse(fixture, classic_member("a", 0), classic_member("b", 0))


def test_bytes_that_cannot_be_read_are_not_upgraded(fixture: ConsumerFixture) -> None:
    assert "cannot be read" in refuse(fixture, replace(classic_member("a"), subscription=b"\0"))
    assert "cannot be read" in refuse(fixture, replace(classic_member("a"), assignment=b"\0"))


def test_group_that_is_too_large_is_not_upgraded() -> None:
    fixture = ConsumerFixture(group_consumer_max_size="1")
    assert "max.size" in refuse(fixture, classic_member("a"), classic_member("b"))


def test_classic_members_stay_with_what_they_had(fixture: ConsumerFixture) -> None:
    group = upgraded(fixture, classic_member("a", 0, 1), classic_member("b", 2, 3, instance="i"))
    assert group.group_epoch == 7
    assert group.state == "Stable"
    assert group.stored.static_members == {"i": "b"}
    assert [member.member_type for member in described_consumer_group("g", group, fixture.topics).members] == [0, 0]
    assert len(group.stored.owners) == 4


def test_newcomer_makes_the_classic_members_join_again_and_share(fixture: ConsumerFixture) -> None:
    upgraded(fixture, classic_member("a", 0, 1), classic_member("b", 2, 3))
    a, b = members_of_old(fixture, "a", "b")
    new = Consumer(fixture, "new", "t")
    new.heartbeat()
    assert (new.epoch, new.owned) == (8, set())
    assert a.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    fixture.become_stable(a, b, new, rounds_max=8)
    assert sorted(len(each.owned) for each in (a, b, new)) == [1, 1, 2]
    assert a.owned | b.owned | new.owned == {("t", number) for number in range(4)}
    assert fixture.causes() == [CauseKind.PROTOCOL_CHANGED, CauseKind.JOINED]


def test_sessions_of_classic_members_are_those_they_asked_for(fixture: ConsumerFixture) -> None:
    upgraded(fixture, classic_member("a", 0))
    fixture.pass_time(CLASSIC_SESSION_MS / 1000 + 1)
    assert fixture.group.is_empty


def test_topic_that_is_gone_is_left_behind(fixture: ConsumerFixture) -> None:
    fixture.topics.delete("t")
    assert upgraded(fixture, classic_member("a", 0)).stored.owners == {}


def test_group_in_its_first_rebalance_can_be_upgraded(fixture: ConsumerFixture) -> None:
    """Nobody has an assignment yet, and no protocol was chosen."""
    classic = ClassicGroup("g", fixture.context)
    request = ClassicConsumer(fixture, "", "t").join_request()
    classic.join(read_join(request, Client("c", "/h", 3)), object(), fixture.moment)
    can_upgrade(classic, fixture.context)
    fixture.log = upgrade_records(classic, fixture.context, fixture.moment)[1:]
    fixture.restart()
    new = Consumer(fixture, "new", "t")
    new.heartbeat()
    assert (new.epoch, len(new.owned)) == (1, 2)


# -- classic members in a consumer group ------------------------------------------------------------------------------


def mixed(fixture: ConsumerFixture) -> tuple[Consumer, ClassicConsumer]:
    new, old = Consumer(fixture, "new", "t"), ClassicConsumer(fixture, "old", "t")
    new.heartbeat()
    fixture.become_stable(new, old)
    return new, old


def test_classic_member_joins_a_consumer_group(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    assert (len(new.owned), len(old.owned)) == (2, 2)
    assert fixture.group.stored.classic_count == 1


def test_join_is_answered_at_once_and_without_a_leader(fixture: ConsumerFixture) -> None:
    fixture.join("new", "t")
    answer = ClassicConsumer(fixture, "old", "t").join()
    assert (answer.error_code, answer.generation_id, answer.leader, list(answer.members)) == (0, 3, "", [])
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "cooperative-sticky")


def test_member_without_an_id_is_sent_away_to_come_back_with_one(fixture: ConsumerFixture) -> None:
    fixture.join("new", "t")
    answer = ClassicConsumer(fixture, "", "t").join(version=4)
    assert (answer.error_code, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "made-1")
    assert len(fixture.group.members) == 1
    assert ClassicConsumer(fixture, "", "t").join(version=3).error_code == 0


def test_join_that_does_not_fit_is_refused(fixture: ConsumerFixture) -> None:
    mixed(fixture)
    other = ClassicConsumer(fixture, "other", "t")
    assert other.join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert other.join(protocols=[]).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    strange = other.join_request().protocols[0]
    strange.name = "strange"
    assert other.join(protocols=[strange]).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert other.join(session_timeout=1).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert len(fixture.group.members) == 2


def test_classic_member_hears_of_a_rebalance_on_its_heartbeat(fixture: ConsumerFixture) -> None:
    _, old = mixed(fixture)
    assert old.heartbeat() == 0
    fixture.join("third", "t")
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_member_is_called_back_when_its_partitions_are_free(fixture: ConsumerFixture) -> None:
    new = Consumer(fixture, "new", "t")
    new.heartbeat()
    old = ClassicConsumer(fixture, "old", "t")
    old.heartbeat()
    assert (old.owned, old.heartbeat()) == (set(), 0), "it waits for others"
    new.heartbeat()
    new.heartbeat()
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.heartbeat()
    assert len(old.owned) == 2


def test_eager_member_that_owns_nothing_when_it_joins_moves_on_at_once(fixture: ConsumerFixture) -> None:
    _, old = mixed(fixture)
    fixture.join("third", "t")
    old.owned = set()
    assert old.join().generation_id == fixture.group.group_epoch


def test_wrong_generation_and_stranger_are_refused(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    old.epoch -= 1
    assert old.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    request = HeartbeatRequest(group_id="g", generation_id=new.epoch, member_id="new")
    code = fixture.group.heartbeat_classic(read_heartbeat(request), fixture.moment)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_member_that_does_not_join_again_is_thrown_out(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    fixture.join("third", "t")
    for _ in range(13):
        old.must_join = False
        old.heartbeat()
        new.heartbeat()
        fixture.pass_time(5)
    assert "old" not in fixture.group.members


def test_classic_member_that_never_syncs_is_thrown_out(fixture: ConsumerFixture) -> None:
    new = Consumer(fixture, "new", "t")
    new.heartbeat()
    old = ClassicConsumer(fixture, "old", "t")
    old.join(session_timeout=300_000)
    for _ in range(13):
        new.heartbeat()
        fixture.pass_time(5)
    assert set(fixture.group.members) == {"new"}


def test_classic_member_commits_with_its_generation_and_an_old_version(fixture: ConsumerFixture) -> None:
    _, old = mixed(fixture)
    fixture.group.check_commit(Sender("old", None, old.epoch), has_epoch=False)
    with pytest.raises(Refused) as caught:
        fixture.group.check_commit(Sender("old", None, old.epoch - 1), has_epoch=False)
    assert caught.value.code == ErrorCode.ILLEGAL_GENERATION


def test_classic_member_leaves(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    answer = old.leave()
    assert (answer.error_code, [each.error_code for each in answer.members]) == (0, [0])
    new.heartbeat()
    assert len(new.owned) == 4


def test_administrator_removes_members_of_either_protocol_by_instance(fixture: ConsumerFixture) -> None:
    Consumer(fixture, "new", "t", instance="a").heartbeat()
    members = [MemberIdentity(group_instance_id="a"), MemberIdentity(group_instance_id="b")]
    request = LeaveGroupRequest(group_id="g", members=members)
    result = fixture.take(fixture.group.leave_classic(read_leave(request, 5), fixture.moment))
    assert result == (0, [0, ErrorCode.UNKNOWN_MEMBER_ID])
    assert fixture.group.is_empty
    assert fixture.causes() == [CauseKind.REMOVED]


def test_single_leave_of_old_versions_answers_on_top(fixture: ConsumerFixture) -> None:
    mixed(fixture)
    request = LeaveGroupRequest(group_id="g", member_id="nobody")
    leaving = read_leave(request, 2)
    answer = leave_reply(fixture.take(fixture.group.leave_classic(leaving, fixture.moment)), leaving, 2)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_changes_its_protocol_without_leaving_first(fixture: ConsumerFixture) -> None:
    old = ClassicConsumer(fixture, "", "t", instance="a")
    fixture.become_stable(Consumer(fixture, "other", "t"), old)
    new = Consumer(fixture, "new", "t", instance="a")
    new.heartbeat()
    assert (new.error, new.owned) == (0, old.owned)
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


def test_restart_finds_a_mixed_group(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    before = snapshot(fixture.group)
    fixture.restart()
    assert snapshot(fixture.group) == before
    fixture.become_stable(new, old)


# -- downgrade --------------------------------------------------------------------------------------------------------


def test_group_is_downgraded_when_only_classic_members_are_left(fixture: ConsumerFixture) -> None:
    new, _ = mixed(fixture)
    assert not should_downgrade(fixture.group, fixture.context)
    new.leave()
    assert should_downgrade(fixture.group, fixture.context)


def test_empty_group_is_not_downgraded(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    one.leave()
    assert not should_downgrade(fixture.group, fixture.context)


def test_policy_keeps_a_group_as_it_is() -> None:
    fixture = ConsumerFixture(group_consumer_migration_policy="upgrade")
    fixture.topics.create("t", 4)
    new, _ = mixed(fixture)
    new.leave()
    assert not should_downgrade(fixture.group, fixture.context)


def test_downgraded_group_is_classic_with_the_same_members(fixture: ConsumerFixture) -> None:
    new, old = mixed(fixture)
    new.leave()
    records = downgrade_records(fixture.group, fixture.moment)
    value = records[-1].value
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.protocol, value.leader) == (old.epoch, "cooperative-sticky", "old")
    assert value.protocol_type == "consumer"
    assert [each.assignment for each in value.members] == [b""]
    for record in records[:-1]:
        assert record.value is None
        fixture.group.replay(record)
    assert fixture.group.is_deleted


def test_group_can_go_there_and_back_again(fixture: ConsumerFixture) -> None:
    upgraded(fixture, classic_member("a", 0, 1), classic_member("b", 2, 3))
    a, b = members_of_old(fixture, "a", "b")
    new = Consumer(fixture, "new", "t")
    fixture.become_stable(new, a, b)
    new.leave()
    value = downgrade_records(fixture.group, fixture.moment)[-1].value
    assert isinstance(value, GroupMetadataValue)
    classic = ClassicGroup("g", fixture.context)
    classic.replay(value)
    classic.resume(fixture.moment)
    assert (classic.generation.number, set(classic.members)) == (a.epoch, {"a", "b"})
    assert classic.state == "PreparingRebalance"
    can_upgrade(classic, fixture.context)
