"""The classic group protocol, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinators.classic_fixtures import DELAY_S, REBALANCE_MS, SESSION_MS, ClassicFixture, subscription

from ottla.broker.coordinators.outcome import NEVER
from ottla.broker.groups.classic import NEW_MEMBER_TIMEOUT_MS, ClassicGroup
from ottla.broker.groups.journal import CAUSES_MAX, Cause, CauseKind
from ottla.broker.groups.replies import described_group
from ottla.broker.groups.requests import Sender
from ottla.broker.groups.subscription import Assignment, encode_assignment
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.leave_group import MemberIdentity

MAX_INT = 2**31 - 1


@pytest.fixture
def fixture() -> ClassicFixture:
    return ClassicFixture()


# -- joining an empty group -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [5999, 1_800_001, -1])
def test_session_timeout_out_of_bounds_is_refused(fixture: ClassicFixture, session_ms: int) -> None:
    ticket = fixture.join(session_ms=session_ms)
    assert fixture.joined(ticket).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert fixture.group.is_disposable


def test_member_id_nobody_knows_is_refused(fixture: ClassicFixture) -> None:
    assert fixture.joined(fixture.join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_join_without_protocol_is_refused(
    fixture: ClassicFixture, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    ticket = fixture.join(protocol_type=protocol_type, protocols=protocols)
    assert fixture.joined(ticket).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_refusal_has_a_null_protocol_from_version_7_and_an_empty_one_before(fixture: ClassicFixture) -> None:
    assert fixture.joined(fixture.join("ghost", version=6)).protocol_name == ""
    assert fixture.joined(fixture.join("ghost", version=7)).protocol_name is None


def test_version_4_gets_an_id_first_and_joins_with_it(fixture: ClassicFixture) -> None:
    first = fixture.joined(fixture.join(client="app", version=4))
    assert (first.error_code, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "app-1")
    assert (fixture.group.state, fixture.group.is_disposable) == ("Empty", False)
    ticket = fixture.join(first.member_id, version=4)
    fixture.pass_time(DELAY_S)
    assert fixture.joined(ticket).member_id == "app-1"


def test_version_3_is_let_in_at_once(fixture: ClassicFixture) -> None:
    fixture.join(version=3)
    assert fixture.group.state == "PreparingRebalance"


def test_static_member_is_let_in_at_once(fixture: ClassicFixture) -> None:
    fixture.join(instance="i", version=9)
    assert list(fixture.group.members) == ["i-1"]


def test_pending_id_expires_after_its_session_timeout(fixture: ClassicFixture) -> None:
    pending = fixture.joined(fixture.join(version=4)).member_id
    fixture.pass_time(SESSION_MS / 1000)
    assert fixture.group.is_disposable
    assert fixture.joined(fixture.join(pending, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_with_an_instance_id_is_refused(fixture: ClassicFixture) -> None:
    pending = fixture.joined(fixture.join(version=4)).member_id
    assert fixture.joined(fixture.join(pending, instance="i", version=5)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_first_rebalance_waits_for_the_initial_delay(fixture: ClassicFixture) -> None:
    ticket = fixture.join()
    fixture.pass_time(DELAY_S - 0.001)
    assert ticket in fixture.waiting
    fixture.pass_time(0.001)
    assert fixture.joined(ticket).generation_id == 1


def test_initial_delay_is_extended_while_members_arrive(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.pass_time(2)
    late = fixture.join()
    fixture.pass_time(2)
    assert late in fixture.waiting
    fixture.pass_time(2)
    assert fixture.joined(late).generation_id == 1


def test_initial_delay_is_capped_by_the_rebalance_timeout(fixture: ClassicFixture) -> None:
    first = fixture.join(rebalance_ms=7000)
    for _ in range(20):
        fixture.pass_time(1)
        fixture.join(rebalance_ms=7000)
        if first not in fixture.waiting:
            break
    # 3 s, then 3 s, then the 1 s that the second extension leaves of 7 - 3.
    assert fixture.now == 1007


def test_no_initial_delay_means_at_once() -> None:
    fixture = ClassicFixture(group_initial_rebalance_delay_ms="0")
    assert fixture.joined(fixture.join()).generation_id == 1


def test_version_0_has_its_session_timeout_as_rebalance_timeout(fixture: ClassicFixture) -> None:
    fixture.join(rebalance_ms=-1, version=0)
    assert fixture.group.members["c-1"].rebalance_timeout_ms == SESSION_MS


# -- the answer to a join ---------------------------------------------------------------------------------------------


def test_first_joiner_leads_and_only_the_leader_sees_the_members(fixture: ClassicFixture) -> None:
    first, second = fixture.join(), fixture.join()
    fixture.pass_time(2 * DELAY_S)
    assert fixture.joined(first).leader == fixture.joined(second).leader == fixture.joined(first).member_id
    assert [each.member_id for each in fixture.joined(first).members] == ["c-1", "c-2"]
    assert not fixture.joined(second).members


def test_leader_sees_the_metadata_of_the_chosen_protocol(fixture: ClassicFixture) -> None:
    first = fixture.join(protocols={"a": b"1a", "b": b"1b"})
    fixture.join(protocols={"b": b"2b", "c": b"2c"})
    fixture.pass_time(2 * DELAY_S)
    answer = fixture.joined(first)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "b")
    assert [each.metadata for each in answer.members] == [b"1b", b"2b"]


def test_protocol_with_most_votes_among_the_common_ones_wins(fixture: ClassicFixture) -> None:
    first = fixture.join(protocols={"only": b"", "a": b"", "b": b""})
    fixture.join(protocols={"b": b"", "a": b""})
    fixture.join(protocols={"b": b"", "a": b""})
    fixture.pass_time(2 * DELAY_S)
    assert fixture.joined(first).protocol_name == "b"


def test_other_protocol_type_is_refused(fixture: ClassicFixture) -> None:
    fixture.join()
    assert fixture.joined(fixture.join(protocol_type="connect")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_no_common_protocol_is_refused(fixture: ClassicFixture) -> None:
    fixture.join(protocols={"a": b""})
    assert fixture.joined(fixture.join(protocols={"b": b""})).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_empty_group_may_change_its_protocol_type(fixture: ClassicFixture) -> None:
    (member,) = fixture.stable(1)
    fixture.leave(member)
    fixture.join(protocol_type="connect", protocols={"p": b""})
    assert fixture.group.protocol_type == "connect"


# -- group.max.size ---------------------------------------------------------------------------------------------------


def test_member_above_the_limit_is_turned_away_while_joining() -> None:
    fixture = ClassicFixture(group_max_size="2")
    fixture.join()
    fixture.join()
    answer = fixture.joined(fixture.join())
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_member_above_the_limit_is_turned_away_when_stable() -> None:
    fixture = ClassicFixture(group_max_size="2")
    _, follower = fixture.stable(2)
    assert fixture.joined(fixture.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert fixture.joined(fixture.join(follower)).error_code == ErrorCode.NONE
    assert fixture.group.state == "Stable"


def test_parked_member_of_a_full_group_may_ask_again() -> None:
    fixture = ClassicFixture(group_max_size="1")
    fixture.join()
    again = fixture.join("c-1")
    fixture.pass_time(DELAY_S)
    assert fixture.joined(again).error_code == ErrorCode.NONE


def test_last_to_rejoin_goes_when_the_limit_was_lowered(fixture: ClassicFixture) -> None:
    leader, second, third = fixture.stable(3)
    fixture.configure(group_max_size="2")
    tickets = [fixture.join(leader), fixture.join(second)]
    assert fixture.joined(fixture.join(third)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [fixture.joined(ticket).generation_id for ticket in tickets] == [2, 2]
    assert list(fixture.group.members) == [leader, second]


def test_loaded_group_above_the_limit_rebalances(fixture: ClassicFixture) -> None:
    fixture.stable(3)
    fixture.configure(group_max_size="2")
    fixture.restart()
    assert fixture.group.state == "PreparingRebalance"


# -- joining again ----------------------------------------------------------------------------------------------------


def test_leader_that_rejoins_a_stable_group_starts_a_rebalance(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    fixture.join(leader)
    assert fixture.group.state == "PreparingRebalance"


def test_unchanged_follower_gets_the_current_generation_at_once(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    answer = fixture.joined(fixture.join(follower))
    assert (answer.generation_id, answer.leader, list(answer.members)) == (1, leader, [])
    assert fixture.group.state == "Stable"


def test_changed_follower_starts_a_rebalance(fixture: ClassicFixture) -> None:
    _, follower = fixture.stable()
    fixture.join(follower, protocols={"range": subscription("other")})
    assert fixture.group.state == "PreparingRebalance"


def test_unchanged_member_gets_the_same_generation_while_completing(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    again = fixture.joined(fixture.join("c-1"))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert not fixture.joined(fixture.join("c-2")).members
    assert fixture.group.state == "CompletingRebalance"


def test_changed_member_while_completing_sends_everybody_back(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    parked = fixture.sync("c-2")
    fixture.join("c-1", protocols={"range": subscription("other")})
    assert fixture.synced(parked).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert fixture.group.state == "PreparingRebalance"


def test_second_join_supersedes_the_parked_one(fixture: ClassicFixture) -> None:
    first = fixture.join()
    second = fixture.join("c-1")
    assert fixture.joined(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    fixture.pass_time(DELAY_S)
    assert fixture.joined(second).error_code == ErrorCode.NONE


def test_new_member_makes_a_stable_group_rebalance_until_all_rejoined(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    new = fixture.join()
    assert new in fixture.waiting
    fixture.join(leader)
    assert new in fixture.waiting
    fixture.join(follower)
    assert fixture.joined(new).generation_id == 2


def test_pending_id_counts_as_not_yet_joined(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    fixture.join(version=4)
    fixture.leave("c-2")
    ticket = fixture.join(leader)
    assert ticket in fixture.waiting
    fixture.pass_time(SESSION_MS / 1000)
    assert fixture.joined(ticket).generation_id == 2


# -- time in PreparingRebalance ---------------------------------------------------------------------------------------


def test_dynamic_member_that_does_not_rejoin_is_dropped_after_the_rebalance_timeout(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    ticket = fixture.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        assert fixture.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
        fixture.pass_time(5)
    assert fixture.joined(ticket).generation_id == 2
    assert list(fixture.group.members) == [leader]


def test_leader_that_does_not_rejoin_is_replaced_by_who_did(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join()
    ticket = fixture.join(follower)
    fixture.pass_time(SESSION_MS / 1000)
    assert fixture.joined(ticket).leader == follower
    assert leader not in fixture.group.members


def test_static_member_that_does_not_rejoin_stays_but_does_not_lead(fixture: ClassicFixture) -> None:
    fixture.join(instance="i0", version=5, session_ms=1_000_000)
    fixture.join(instance="i1", version=5, session_ms=1_000_000)
    fixture.pass_time(2 * DELAY_S)
    fixture.become_stable(["i0-1", "i1-2"])
    ticket = fixture.join("i1-2", instance="i1", version=5, protocols={"range": b"new"}, session_ms=1_000_000)
    fixture.pass_time(REBALANCE_MS / 1000)
    assert fixture.joined(ticket).leader == "i1-2"
    assert set(fixture.group.members) == {"i0-1", "i1-2"}


def test_when_no_static_member_rejoins_the_group_waits_again(fixture: ClassicFixture) -> None:
    fixture.join(instance="i0", version=5, session_ms=1_000_000)
    fixture.pass_time(DELAY_S)
    fixture.become_stable(["i0-1"])
    come_from_the_other_protocol(fixture, Cause(kind=CauseKind.PROTOCOL_CHANGED))
    fixture.pass_time(3 * REBALANCE_MS / 1000)
    assert (fixture.group.state, fixture.group.generation.number) == ("PreparingRebalance", 1)
    assert fixture.joined(fixture.join("i0-1", instance="i0", version=5)).generation_id == 2


def test_new_member_has_five_minutes_for_its_first_join(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    new = fixture.join(rebalance_ms=MAX_INT)
    while fixture.now < 1006 + NEW_MEMBER_TIMEOUT_MS / 1000 - 1:
        fixture.heartbeat(leader)
        fixture.heartbeat("c-2")
        fixture.pass_time(1)
    assert new in fixture.waiting
    fixture.pass_time(1)
    answer = fixture.joined(new)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_parked_member_does_not_expire(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    ticket = fixture.join(leader)
    for _ in range(5):
        fixture.heartbeat(follower)
        fixture.pass_time(9)
    assert ticket in fixture.waiting
    fixture.join(follower)
    assert fixture.joined(ticket).error_code == ErrorCode.NONE


# -- SyncGroup --------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_sync_and_then_all_are_answered_with_one_record(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    follower = fixture.sync("c-2")
    assert follower in fixture.waiting
    leader = fixture.sync("c-1", assignments={"c-1": b"one", "c-2": b"two"})
    assert (fixture.synced(leader).assignment, fixture.synced(follower).assignment) == (b"one", b"two")
    assert fixture.synced(leader).protocol_name == "range"
    (record,) = fixture.records
    assert (record.generation, record.leader, record.protocol) == (1, "c-1", "range")
    assert [each.assignment for each in record.members] == [b"one", b"two"]


def test_sync_of_a_stable_group_is_answered_at_once(fixture: ClassicFixture) -> None:
    _, follower = fixture.stable()
    assert fixture.synced(fixture.sync(follower)).assignment == b"a1"


def test_member_whom_the_leader_forgot_gets_a_readable_nothing(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.pass_time(DELAY_S)
    assert fixture.synced(fixture.sync("c-1")).assignment == encode_assignment(Assignment(version=0), 0)


def test_member_of_another_protocol_type_whom_the_leader_forgot_gets_no_bytes(fixture: ClassicFixture) -> None:
    fixture.join(protocol_type="connect", protocols={"p": b""})
    fixture.pass_time(DELAY_S)
    assert fixture.synced(fixture.sync("c-1")).assignment == b""


def test_sync_while_preparing_says_that_a_rebalance_is_in_progress(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join(leader)
    assert fixture.synced(fixture.sync(follower)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_of_another_generation_is_refused(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    assert fixture.synced(fixture.sync(leader, 7)).error_code == ErrorCode.ILLEGAL_GENERATION


def test_sync_of_a_stranger_is_refused(fixture: ClassicFixture) -> None:
    assert fixture.synced(fixture.sync("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("protocol_type", "protocol_name"), [("connect", None), (None, "sticky")])
def test_sync_with_another_protocol_is_refused(
    fixture: ClassicFixture, protocol_type: str | None, protocol_name: str | None
) -> None:
    leader, _ = fixture.stable()
    ticket = fixture.sync(leader, protocol_type=protocol_type, protocol_name=protocol_name)
    assert fixture.synced(ticket).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_second_sync_supersedes_the_parked_one(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    first = fixture.sync("c-2")
    second = fixture.sync("c-2")
    assert fixture.synced(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second in fixture.waiting


def test_members_that_never_sync_are_removed_and_the_rest_rebalances(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    fixture.sync("c-1")
    for _ in range(REBALANCE_MS // 5000):
        fixture.heartbeat("c-1")
        fixture.heartbeat("c-2")
        fixture.pass_time(5)
    assert (fixture.group.state, list(fixture.group.members)) == ("PreparingRebalance", ["c-1"])


def test_leader_that_never_syncs_is_removed_and_parked_syncs_are_sent_back(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    parked = fixture.sync("c-2")
    for _ in range(REBALANCE_MS // 5000):
        fixture.heartbeat("c-1")
        fixture.pass_time(5)
    assert fixture.synced(parked).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert fixture.group.leader_id == "c-2"


# -- Heartbeat and sessions -------------------------------------------------------------------------------------------


def test_heartbeat_is_good_while_completing_and_stable(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.pass_time(DELAY_S)
    assert fixture.heartbeat("c-1") == ErrorCode.NONE
    fixture.become_stable(["c-1"])
    assert fixture.heartbeat("c-1") == ErrorCode.NONE


def test_heartbeat_while_preparing_tells_of_it_and_renews_the_session(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join(leader)
    fixture.pass_time(9)
    assert fixture.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    fixture.pass_time(9)
    assert follower in fixture.group.members


def test_heartbeat_of_a_stranger_or_another_generation_is_refused(fixture: ClassicFixture) -> None:
    assert fixture.heartbeat("ghost") == ErrorCode.UNKNOWN_MEMBER_ID
    leader, _ = fixture.stable()
    assert fixture.heartbeat("ghost") == ErrorCode.UNKNOWN_MEMBER_ID
    assert fixture.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION


def test_silent_member_is_removed_after_its_session_timeout(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    fixture.pass_time(5)
    fixture.heartbeat(leader)
    fixture.pass_time(5)
    assert (fixture.group.state, list(fixture.group.members)) == ("PreparingRebalance", [leader])


def test_session_expiry_removes_static_members_too(fixture: ClassicFixture) -> None:
    fixture.stable(1, static=True)
    fixture.pass_time(SESSION_MS / 1000)
    assert (fixture.group.state, fixture.group.members) == ("Empty", {})


def test_group_whose_last_member_expired_is_empty_with_a_record_and_a_new_generation(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.pass_time(SESSION_MS / 1000)
    record = fixture.records[-1]
    assert (record.generation, record.members, record.leader, record.protocol) == (2, (), None, None)
    assert record.protocol_type == "consumer"
    assert fixture.group.wake_at == NEVER


def test_heartbeat_sets_no_timer(fixture: ClassicFixture) -> None:
    fixture.stable(2)
    before = fixture.group.wake_at
    fixture.now += 1
    fixture.heartbeat("c-1")
    assert fixture.group.wake_at == before


# -- static members ---------------------------------------------------------------------------------------------------


def test_returning_static_follower_is_answered_at_once_without_rebalance(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable(2, static=True)
    answer = fixture.joined(fixture.join(instance="i1", version=9, host="/10.0.0.2"))
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (1, leader, False)
    assert fixture.group.state == "Stable"
    assert [each.member_id for each in fixture.records[-1].members] == [leader, answer.member_id]
    assert fixture.synced(fixture.sync(answer.member_id, instance="i1")).assignment == b"a1"
    assert fixture.group.members[answer.member_id].client_host == "/10.0.0.2"


def test_returning_static_leader_skips_the_assignment_from_version_9(fixture: ClassicFixture) -> None:
    fixture.stable(2, static=True)
    answer = fixture.joined(fixture.join(instance="i0", version=9))
    assert (answer.leader, answer.skip_assignment, len(answer.members)) == (answer.member_id, True, 2)


def test_returning_static_leader_sees_its_old_id_as_leader_before_version_9(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable(2, static=True)
    answer = fixture.joined(fixture.join(instance="i0", version=8))
    assert (answer.leader, answer.skip_assignment, list(answer.members)) == (leader, False, [])
    assert fixture.group.leader_id == answer.member_id


def test_old_process_of_a_static_member_is_fenced(fixture: ClassicFixture) -> None:
    _, old = fixture.stable(2, static=True)
    fixture.join(instance="i1", version=9)
    assert fixture.heartbeat(old, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.synced(fixture.sync(old, instance="i1")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.joined(fixture.join(old, instance="i1", version=9)).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.leave(MemberIdentity(member_id=old, group_instance_id="i1")).members[0].error_code == 82
    with pytest.raises(Refused) as refused:
        fixture.group.check_commit(Sender(old, "i1", 1), fixture.moment)
    assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID


def test_old_process_is_fenced_while_its_join_is_parked(fixture: ClassicFixture) -> None:
    old = fixture.join(instance="i", version=5)
    new = fixture.join(instance="i", version=5)
    assert fixture.joined(old).error_code == ErrorCode.FENCED_INSTANCE_ID
    fixture.pass_time(2 * DELAY_S)
    assert fixture.joined(new).error_code == ErrorCode.NONE


def test_static_member_replaced_while_completing_fences_a_parked_sync_and_rebalances(fixture: ClassicFixture) -> None:
    fixture.join(instance="i0", version=5)
    fixture.join(instance="i1", version=5)
    fixture.pass_time(2 * DELAY_S)
    parked = fixture.sync("i1-2", instance="i1")
    fixture.join(instance="i1", version=5)
    assert fixture.synced(parked).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.group.state == "PreparingRebalance"


def test_returning_static_member_with_other_topics_starts_a_rebalance(fixture: ClassicFixture) -> None:
    fixture.stable(2, static=True)
    ticket = fixture.join(instance="i1", version=9, protocols={"range": subscription("t", "u")})
    assert ticket in fixture.waiting
    assert fixture.group.state == "PreparingRebalance"


def test_returning_static_member_that_owns_nothing_yet_starts_no_rebalance(fixture: ClassicFixture) -> None:
    fixture.join(instance="i", version=5, protocols={"range": subscription("t", owned=(("t", (0, 1)),))})
    fixture.pass_time(DELAY_S)
    fixture.become_stable(["i-1"])
    assert fixture.joined(fixture.join(instance="i", version=9)).error_code == ErrorCode.NONE
    assert fixture.group.state == "Stable"


def test_returning_static_member_that_changes_the_chosen_protocol_starts_a_rebalance(fixture: ClassicFixture) -> None:
    fixture.join(instance="i", version=5, protocols={"a": b"", "b": b""})
    fixture.pass_time(DELAY_S)
    fixture.become_stable(["i-1"])
    fixture.join(instance="i", version=9, protocols={"b": b"", "a": b""})
    assert (fixture.group.state, fixture.group.generation.protocol_name) == ("CompletingRebalance", "b")


def test_replaced_static_member_is_not_waited_for_under_its_old_id(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join(instance="i", version=5)
    fixture.pass_time(2 * DELAY_S)
    fixture.sync("c-1")
    new = fixture.joined(fixture.join(instance="i", version=9)).member_id
    for _ in range(2 * REBALANCE_MS // 5000):
        fixture.heartbeat("c-1")
        fixture.heartbeat(new, instance="i")
        fixture.pass_time(5)
    assert (fixture.group.state, fixture.group.generation.number) == ("Stable", 1)


def test_member_id_of_an_unknown_instance_is_refused(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    assert fixture.heartbeat("c-1", instance="ghost") == ErrorCode.UNKNOWN_MEMBER_ID


# -- LeaveGroup -------------------------------------------------------------------------------------------------------


def test_leave_before_version_3_has_its_code_on_top(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    assert fixture.leave("ghost", version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert fixture.leave(leader, version=2).error_code == ErrorCode.NONE
    assert leader not in fixture.group.members


def test_leave_from_version_3_has_a_code_per_member(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    answer = fixture.leave(leader, "ghost", version=3)
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for each in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


def test_leaver_makes_the_others_rebalance(fixture: ClassicFixture) -> None:
    _, follower = fixture.stable()
    fixture.leave(follower)
    assert fixture.group.state == "PreparingRebalance"


def test_last_leaver_leaves_an_empty_group_with_a_record(fixture: ClassicFixture) -> None:
    ids = fixture.stable(2)
    fixture.leave(*ids)
    assert (fixture.group.state, fixture.group.generation.number) == ("Empty", 2)
    assert fixture.records[-1].members == ()


def test_administrator_removes_a_static_member_by_instance_id(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable(2, static=True)
    answer = fixture.leave(MemberIdentity(group_instance_id="i1"), MemberIdentity(group_instance_id="ghost"))
    assert [each.error_code for each in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert answer.members[0].member_id == ""
    assert list(fixture.group.members) == [leader]


def test_leave_that_names_nobody_is_refused(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    assert fixture.leave(MemberIdentity()).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_may_leave_without_a_rebalance(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    pending = fixture.joined(fixture.join(version=4)).member_id
    assert fixture.leave(pending).members[0].error_code == ErrorCode.NONE
    assert fixture.group.state == "Stable"


def test_leaver_with_a_parked_join_is_told(fixture: ClassicFixture) -> None:
    fixture.stable(2)
    parked = fixture.join("c-1")
    fixture.leave("c-1")
    assert fixture.joined(parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaver_with_a_parked_sync_is_told(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    parked = fixture.sync("c-2")
    fixture.leave("c-2")
    assert fixture.synced(parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_of_the_last_missing_member_completes_the_join(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    ticket = fixture.join(leader)
    fixture.leave(follower)
    assert fixture.joined(ticket).generation_id == 2


def test_leave_during_the_initial_delay_does_not_end_it(fixture: ClassicFixture) -> None:
    stays = fixture.join()
    fixture.join()
    fixture.leave("c-2")
    assert stays in fixture.waiting


# -- commits ----------------------------------------------------------------------------------------------------------


def commit(fixture: ClassicFixture, member_id: str, generation: int, instance: str | None = None) -> int:
    try:
        fixture.group.check_commit(Sender(member_id, instance, generation), fixture.moment)
    except Refused as refused:
        return refused.code
    return ErrorCode.NONE


def test_anybody_may_commit_to_an_empty_group_without_a_generation(fixture: ClassicFixture) -> None:
    assert commit(fixture, "", -1) == ErrorCode.NONE
    assert commit(fixture, "someone", -1) == ErrorCode.NONE
    assert commit(fixture, "someone", 0) == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_members_in_their_generation_may_commit(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    assert commit(fixture, leader, 1) == ErrorCode.NONE
    assert commit(fixture, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(fixture, "ghost", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(fixture, leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert commit(fixture, leader, -1) == ErrorCode.ILLEGAL_GENERATION


def test_commit_is_refused_while_completing_and_accepted_while_preparing(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.pass_time(DELAY_S)
    assert commit(fixture, "c-1", 1) == ErrorCode.REBALANCE_IN_PROGRESS
    fixture.become_stable(["c-1"])
    fixture.join()
    assert fixture.group.state == "PreparingRebalance"
    assert commit(fixture, "c-1", 1) == ErrorCode.NONE


def test_commit_renews_the_session(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.pass_time(9)
    commit(fixture, "c-1", 1)
    fixture.pass_time(9)
    assert fixture.group.state == "Stable"


def test_retired_group_sends_everybody_to_look_for_the_coordinator(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.group.retire(ErrorCode.NOT_COORDINATOR)
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fixture.group.state == "Dead"
    assert (commit(fixture, "c-1", 1), fixture.heartbeat("c-1"), fixture.leave("c-1").error_code) == (unavailable,) * 3
    assert fixture.joined(fixture.join()).error_code == fixture.synced(fixture.sync("c-1")).error_code == unavailable


def test_retiring_answers_everybody_who_waits(fixture: ClassicFixture) -> None:
    leader, _ = fixture.stable()
    join = fixture.join(leader)
    fixture.take(fixture.group.retire(ErrorCode.NOT_COORDINATOR))
    assert (fixture.joined(join).error_code, fixture.joined(join).member_id) == (ErrorCode.NOT_COORDINATOR, leader)
    assert (fixture.waiting, fixture.group.wake_at) == (set(), NEVER)


# -- load -------------------------------------------------------------------------------------------------------------


def test_loaded_group_is_stable_and_its_members_have_fresh_sessions(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.now += 100
    fixture.restart()
    assert (fixture.group.state, fixture.group.generation.number, fixture.group.leader_id) == ("Stable", 1, leader)
    assert fixture.synced(fixture.sync(follower)).assignment == b"a1"
    fixture.pass_time(9)
    assert list(fixture.group.members) == [leader, follower]
    fixture.pass_time(1)
    assert fixture.group.state == "Empty"


def test_loaded_empty_group_keeps_its_generation_and_since_when(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.leave("c-1")
    since = fixture.group.state_since_ms
    fixture.restart()
    assert (fixture.group.state, fixture.group.generation.number, fixture.group.state_since_ms) == ("Empty", 2, since)
    assert not fixture.group.is_disposable


def test_replay_moves_nothing_but_the_record(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    record = fixture.records[-1]
    fresh = ClassicGroup("g", fixture.context)
    fresh.replay(record)
    assert (fresh.stored, fresh.state, fresh.members) == (record, "Empty", {})


def test_members_that_were_still_joining_are_gone_after_a_restart(fixture: ClassicFixture) -> None:
    ticket = fixture.join()
    fixture.restart()
    assert fixture.joined(ticket).error_code == ErrorCode.NOT_COORDINATOR
    assert fixture.group.is_disposable


# -- questions --------------------------------------------------------------------------------------------------------


def test_stable_group_is_described_with_metadata(fixture: ClassicFixture) -> None:
    fixture.stable(1, static=True)
    described = described_group("g", fixture.group, 5)
    (member,) = described.members
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert (member.member_id, member.group_instance_id, member.client_id) == ("i0-1", "i0", "c")
    assert member.client_host == "/10.0.0.1"
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"a0")


def test_group_that_rebalances_is_described_without_metadata_and_protocol(fixture: ClassicFixture) -> None:
    fixture.stable(2)
    fixture.join("c-1")
    described = described_group("g", fixture.group, 5)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {each.member_metadata for each in described.members} == {b""}


def test_subscribed_topics_are_those_of_all_members(fixture: ClassicFixture) -> None:
    fixture.join(protocols={"range": subscription("a")})
    fixture.join(protocols={"range": subscription("b")})
    fixture.pass_time(2 * DELAY_S)
    assert fixture.group.subscribed_topics() == {"a", "b"}
    assert fixture.group.is_subscribed("a")
    assert not fixture.group.is_subscribed("c")


def test_topics_of_unreadable_consumers_may_be_any(fixture: ClassicFixture) -> None:
    fixture.join(protocols={"range": b"?"})
    fixture.pass_time(DELAY_S)
    assert fixture.group.subscribed_topics() is None
    assert fixture.group.is_subscribed("anything")


def test_topics_of_another_protocol_type_are_unknown(fixture: ClassicFixture) -> None:
    fixture.join(protocol_type="connect", protocols={"p": b""})
    fixture.pass_time(DELAY_S)
    assert fixture.group.subscribed_topics() is None
    assert not fixture.group.is_subscribed("anything")


def test_simple_group_has_no_protocol_type(fixture: ClassicFixture) -> None:
    assert (fixture.group.protocol_type, fixture.group.state, fixture.group.is_empty) == (None, "Empty", True)


# -- why it rebalanced ------------------------------------------------------------------------------------------------


def causes(fixture: ClassicFixture) -> list[Cause]:
    return list(fixture.rebalances[-1].causes)


def test_first_rebalance_was_caused_by_those_who_joined(fixture: ClassicFixture) -> None:
    fixture.join(client="app", host="/10.0.0.7", reason="because", version=3)
    fixture.pass_time(DELAY_S)
    fixture.become_stable(["app-1"])
    (entry,) = fixture.rebalances
    assert entry.causes == (
        Cause(kind=CauseKind.JOINED, member_id="app-1", client_id="app", client_host="/10.0.0.7", detail="because"),
    )
    assert (entry.generation, entry.members_before, entry.members_after) == (1, 0, 1)
    assert (entry.started_ms, entry.duration_ms) == (1_700_001_000_000, DELAY_S * 1000)


def test_interrupted_attempts_are_one_rebalance(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.pass_time(DELAY_S)
    fixture.join()
    fixture.join("c-1")
    fixture.become_stable(["c-1", "c-2"])
    (entry,) = fixture.rebalances
    assert (entry.generation, [each.member_id for each in entry.causes]) == (2, ["c-1", "c-2"])


def test_causes_are_bounded(fixture: ClassicFixture) -> None:
    fixture.stable(CAUSES_MAX + 3)
    assert (len(causes(fixture)), fixture.rebalances[-1].causes_left_out) == (CAUSES_MAX, 3)


def rest(fixture: ClassicFixture, *members: str) -> None:
    """The rebalance that is under way comes to its end."""
    for member in members:
        fixture.join(member)
    if members:
        fixture.become_stable(list(members))


def test_leaver_is_a_cause_with_its_reason(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.leave(MemberIdentity(member_id=follower, reason="the consumer is being closed"))
    rest(fixture, leader)
    (cause,) = causes(fixture)
    assert (cause.kind, cause.member_id, cause.detail) == (CauseKind.LEFT, follower, "the consumer is being closed")
    assert (fixture.rebalances[-1].members_before, fixture.rebalances[-1].members_after) == (2, 1)


def test_group_that_became_empty_is_a_finished_rebalance(fixture: ClassicFixture) -> None:
    ids = fixture.stable(2)
    fixture.leave(*ids)
    assert [each.kind for each in causes(fixture)] == [CauseKind.LEFT, CauseKind.LEFT]
    assert (fixture.rebalances[-1].generation, fixture.rebalances[-1].members_after) == (2, 0)


def test_removal_by_instance_id_was_an_administrator(fixture: ClassicFixture) -> None:
    fixture.stable(1, static=True)
    fixture.leave(MemberIdentity(group_instance_id="i0"), client="ops")
    (cause,) = causes(fixture)
    assert (cause.kind, cause.group_instance_id) == (CauseKind.REMOVED, "i0")
    assert "ops" in cause.detail


def test_removal_by_the_admin_client_was_an_administrator(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.leave(MemberIdentity(member_id="c-1", reason="member was removed by an admin"))
    assert causes(fixture)[0].kind is CauseKind.REMOVED


def test_session_timeout_is_a_cause(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.pass_time(SESSION_MS / 1000)
    (cause,) = causes(fixture)
    assert (cause.kind, cause.detail) == (CauseKind.SESSION_TIMEOUT, "no heartbeat for 10000 ms")


def test_leaver_that_says_so_exceeded_its_poll_interval(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.leave(MemberIdentity(member_id="c-1", reason="consumer poll timeout has expired."))
    assert causes(fixture)[0].kind is CauseKind.MAX_POLL_INTERVAL


@pytest.mark.parametrize("behind", [True, False])
def test_silent_leaver_exceeded_its_poll_interval_if_records_waited_for_it(
    fixture: ClassicFixture, behind: bool
) -> None:
    fixture.stable(1)
    for _ in range(REBALANCE_MS // 5000 + 1):
        fixture.heartbeat("c-1")
        fixture.pass_time(5)
    fixture.leave("c-1", version=4, behind=behind)
    (cause,) = causes(fixture)
    assert cause.kind is (CauseKind.MAX_POLL_INTERVAL if behind else CauseKind.LEFT)
    assert cause.detail.startswith("inferred") == behind


def test_leaver_without_reason_that_committed_lately_just_left(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    for _ in range(REBALANCE_MS // 5000 + 1):
        commit(fixture, "c-1", 1)
        fixture.pass_time(5)
    fixture.leave("c-1", version=4)
    assert causes(fixture)[0].kind is CauseKind.LEFT


def test_member_that_did_not_rejoin_in_time_exceeded_its_poll_interval(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        fixture.heartbeat(follower)
        fixture.pass_time(5)
    fixture.become_stable([leader])
    assert [each.kind for each in causes(fixture)] == [CauseKind.LEADER_REJOINED, CauseKind.MAX_POLL_INTERVAL]
    assert causes(fixture)[1].member_id == follower


def test_what_was_due_first_is_the_cause_when_the_coordinator_looks_late(fixture: ClassicFixture) -> None:
    for _ in range(2):
        fixture.join(session_ms=20_000, rebalance_ms=8000)
    fixture.pass_time(2 * DELAY_S)
    fixture.become_stable(["c-1", "c-2"])
    fixture.join("c-1", session_ms=20_000, rebalance_ms=8000)
    fixture.now += 30
    fixture.take(fixture.group.expire(fixture.moment))
    fixture.become_stable(["c-1"])
    assert causes(fixture)[-1].kind is CauseKind.MAX_POLL_INTERVAL


def test_member_that_never_synced_is_a_cause(fixture: ClassicFixture) -> None:
    fixture.join()
    fixture.join()
    fixture.pass_time(2 * DELAY_S)
    fixture.sync("c-1")
    for _ in range(REBALANCE_MS // 5000):
        fixture.heartbeat("c-1")
        fixture.heartbeat("c-2")
        fixture.pass_time(5)
    rest(fixture, "c-1")
    (cause,) = causes(fixture)
    assert (cause.kind, cause.member_id) == (CauseKind.NEVER_SYNCED, "c-2")


def test_member_with_a_rebalance_timeout_of_zero_has_time_to_sync(fixture: ClassicFixture) -> None:
    fixture.join(rebalance_ms=0)
    fixture.pass_time(DELAY_S)
    fixture.take(fixture.group.expire(fixture.moment))
    fixture.sync("c-1")
    assert fixture.group.state == "Stable"


def test_new_subscription_is_a_cause_that_names_the_topics(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join(follower, protocols={"range": subscription("u")})
    fixture.join(leader)
    fixture.become_stable([leader, follower])
    (cause,) = causes(fixture)
    assert cause.kind is CauseKind.SUBSCRIPTION_CHANGED
    assert cause.detail == "subscribed to u; unsubscribed from t"


def test_rejoin_that_only_tells_what_it_owns_adds_no_cause(fixture: ClassicFixture) -> None:
    leader, follower = fixture.stable()
    fixture.join()
    fixture.join(follower, protocols={"range": subscription("t", owned=(("t", (0,)),))})
    rest(fixture, leader)
    assert [each.kind for each in causes(fixture)] == [CauseKind.JOINED]


def test_leader_that_rejoins_after_partitions_were_added_found_them(fixture: ClassicFixture) -> None:
    fixture.topics.create("t", 3)
    fixture.stable(1)
    fixture.topics.grow("t", 6)
    rest(fixture, "c-1")
    (cause,) = causes(fixture)
    assert (cause.kind, cause.detail) == (CauseKind.TOPICS_CHANGED, "t went from 3 to 6 partitions")


def test_leader_that_rejoins_after_a_topic_was_created_found_it(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.topics.create("t", 3)
    rest(fixture, "c-1")
    (cause,) = causes(fixture)
    assert (cause.kind, cause.detail) == (CauseKind.TOPICS_CHANGED, "t was created with 3 partitions")


def test_topic_created_anew_is_told_from_one_that_grew(fixture: ClassicFixture) -> None:
    fixture.topics.create("t", 3)
    fixture.stable(1)
    fixture.topics.create("t", 3)
    rest(fixture, "c-1")
    assert causes(fixture)[0].detail == "t with 3 partitions was deleted and created again with 3"


def test_leader_that_says_that_metadata_changed_is_believed(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.join("c-1", reason="cached metadata has changed", version=8)
    fixture.become_stable(["c-1"])
    assert causes(fixture)[0].kind is CauseKind.TOPICS_CHANGED


def test_leader_that_rejoins_for_its_own_reason_is_a_cause(fixture: ClassicFixture) -> None:
    fixture.topics.create("t", 3)
    fixture.stable(1)
    fixture.topics.create("elsewhere", 3)
    fixture.join("c-1", reason="rebalance enforced by user", version=8)
    fixture.become_stable(["c-1"])
    (cause,) = causes(fixture)
    assert (cause.kind, cause.detail) == (CauseKind.LEADER_REJOINED, "rebalance enforced by user")


@pytest.mark.parametrize("as_whom", ["c-1", ""])
def test_members_that_come_back_after_a_load_came_because_the_coordinator_moved(
    fixture: ClassicFixture, as_whom: str
) -> None:
    fixture.stable(2)
    fixture.restart()
    fixture.join(as_whom)
    fixture.join("c-1")
    fixture.join("c-2")
    fixture.become_stable(list(fixture.group.members))
    assert [each.kind for each in causes(fixture)] == [CauseKind.COORDINATOR_MOVED]


def test_member_from_the_log_has_no_other_protocols_until_it_names_them(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.restart()
    for protocols in ({"range": subscription("t"), "sticky": b""}, {"range": subscription("t")}):
        fixture.join("c-1", protocols=protocols)
        fixture.become_stable(["c-1"])
    first, second = (entry.causes[0] for entry in fixture.rebalances[-2:])
    assert first.kind is CauseKind.COORDINATOR_MOVED
    assert second.detail == "protocols were range, sticky and are range"


def test_stranger_that_joins_after_a_load_just_joined(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.restart()
    fixture.join(client="other", host="/10.0.0.2")
    fixture.join("c-1")
    fixture.become_stable(["c-1", "other-2"])
    assert [each.kind for each in causes(fixture)] == [CauseKind.JOINED]


def test_leader_that_rejoins_long_after_a_load_did_so_for_itself(fixture: ClassicFixture) -> None:
    fixture.stable(1)
    fixture.restart()
    for _ in range(3):
        fixture.pass_time(4)
        fixture.heartbeat("c-1")
    rest(fixture, "c-1")
    assert causes(fixture)[0].kind is CauseKind.LEADER_REJOINED


def test_static_member_replaced_with_a_rebalance_is_a_cause(fixture: ClassicFixture) -> None:
    fixture.stable(1, static=True)
    fixture.join(instance="i0", version=9, host="/10.0.0.2", protocols={"range": subscription("u")})
    fixture.become_stable(list(fixture.group.members))
    (cause,) = causes(fixture)
    assert (cause.kind, cause.member_id, cause.group_instance_id) == (CauseKind.STATIC_MEMBER_FENCED, "i0-1", "i0")
    assert "/10.0.0.2" in cause.detail


def come_from_the_other_protocol(fixture: ClassicFixture, cause: Cause | None) -> None:
    """The group as a downgrade leaves it: its members, without an assignment."""
    stored = fixture.group.stored
    assert stored is not None
    fixture.group = ClassicGroup("g", fixture.context)
    fixture.group.replay(replace(stored, members=tuple(replace(each, assignment=b"") for each in stored.members)))
    fixture.group.resume(fixture.moment, cause)


@pytest.mark.parametrize("given", [Cause(kind=CauseKind.PROTOCOL_CHANGED, detail="now classic"), None])
def test_members_without_an_assignment_rebalance_for_the_given_cause(
    fixture: ClassicFixture, given: Cause | None
) -> None:
    fixture.stable(1)
    come_from_the_other_protocol(fixture, given)
    assert fixture.heartbeat("c-1") == ErrorCode.REBALANCE_IN_PROGRESS
    rest(fixture, "c-1")
    assert causes(fixture)[:1] == [given or Cause(kind=CauseKind.COORDINATOR_MOVED)]
