"""The classic group protocol, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinator.classic_room import DELAY_S, REBALANCE_MS, SESSION_MS, ClassicRoom, subscription

from ottla.coordinator.classic import NEW_MEMBER_TIMEOUT_MS, ClassicGroup
from ottla.coordinator.journal import CAUSES_MAX, Cause, CauseKind
from ottla.coordinator.outcome import NEVER
from ottla.coordinator.subscription import Assignment, encode_assignment
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.leave_group import MemberIdentity

MAX_INT = 2**31 - 1


@pytest.fixture
def room() -> ClassicRoom:
    return ClassicRoom()


# -- joining an empty group -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [5999, 1_800_001, -1])
def test_session_timeout_out_of_bounds_is_refused(room: ClassicRoom, session_ms: int) -> None:
    ticket = room.join(session_ms=session_ms)
    assert room.joined(ticket).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert room.group.is_disposable


def test_member_id_nobody_knows_is_refused(room: ClassicRoom) -> None:
    assert room.joined(room.join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_join_without_protocol_is_refused(room: ClassicRoom, protocol_type: str, protocols: dict[str, bytes]) -> None:
    ticket = room.join(protocol_type=protocol_type, protocols=protocols)
    assert room.joined(ticket).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_refusal_has_a_null_protocol_from_version_7_and_an_empty_one_before(room: ClassicRoom) -> None:
    assert room.joined(room.join("ghost", version=6)).protocol_name == ""
    assert room.joined(room.join("ghost", version=7)).protocol_name is None


def test_version_4_gets_an_id_first_and_joins_with_it(room: ClassicRoom) -> None:
    first = room.joined(room.join(client="app", version=4))
    assert (first.error_code, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "app-1")
    assert (room.group.state, room.group.is_disposable) == ("Empty", False)
    ticket = room.join(first.member_id, version=4)
    room.pass_time(DELAY_S)
    assert room.joined(ticket).member_id == "app-1"


def test_version_3_is_let_in_at_once(room: ClassicRoom) -> None:
    room.join(version=3)
    assert room.group.state == "PreparingRebalance"


def test_static_member_is_let_in_at_once(room: ClassicRoom) -> None:
    room.join(instance="i", version=9)
    assert list(room.group.members) == ["i-1"]


def test_pending_id_expires_after_its_session_timeout(room: ClassicRoom) -> None:
    pending = room.joined(room.join(version=4)).member_id
    room.pass_time(SESSION_MS / 1000)
    assert room.group.is_disposable
    assert room.joined(room.join(pending, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_with_an_instance_id_is_refused(room: ClassicRoom) -> None:
    pending = room.joined(room.join(version=4)).member_id
    assert room.joined(room.join(pending, instance="i", version=5)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_first_rebalance_waits_for_the_initial_delay(room: ClassicRoom) -> None:
    ticket = room.join()
    room.pass_time(DELAY_S - 0.001)
    assert ticket in room.waiting
    room.pass_time(0.001)
    assert room.joined(ticket).generation_id == 1


def test_initial_delay_is_extended_while_members_arrive(room: ClassicRoom) -> None:
    room.join()
    room.pass_time(2)
    late = room.join()
    room.pass_time(2)
    assert late in room.waiting
    room.pass_time(2)
    assert room.joined(late).generation_id == 1


def test_initial_delay_is_capped_by_the_rebalance_timeout(room: ClassicRoom) -> None:
    first = room.join(rebalance_ms=7000)
    for _ in range(20):
        room.pass_time(1)
        room.join(rebalance_ms=7000)
        if first not in room.waiting:
            break
    # 3 s, then 3 s, then the 1 s that the second extension leaves of 7 - 3.
    assert room.now == 1007


def test_no_initial_delay_means_at_once() -> None:
    room = ClassicRoom(group_initial_rebalance_delay_ms="0")
    assert room.joined(room.join()).generation_id == 1


def test_version_0_has_its_session_timeout_as_rebalance_timeout(room: ClassicRoom) -> None:
    room.join(rebalance_ms=-1, version=0)
    assert room.group.members["c-1"].rebalance_timeout_ms == SESSION_MS


# -- the answer to a join ---------------------------------------------------------------------------------------------


def test_first_joiner_leads_and_only_the_leader_sees_the_members(room: ClassicRoom) -> None:
    first, second = room.join(), room.join()
    room.pass_time(2 * DELAY_S)
    assert room.joined(first).leader == room.joined(second).leader == room.joined(first).member_id
    assert [each.member_id for each in room.joined(first).members] == ["c-1", "c-2"]
    assert not room.joined(second).members


def test_leader_sees_the_metadata_of_the_chosen_protocol(room: ClassicRoom) -> None:
    first = room.join(protocols={"a": b"1a", "b": b"1b"})
    room.join(protocols={"b": b"2b", "c": b"2c"})
    room.pass_time(2 * DELAY_S)
    answer = room.joined(first)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "b")
    assert [each.metadata for each in answer.members] == [b"1b", b"2b"]


def test_protocol_with_most_votes_among_the_common_ones_wins(room: ClassicRoom) -> None:
    first = room.join(protocols={"only": b"", "a": b"", "b": b""})
    room.join(protocols={"b": b"", "a": b""})
    room.join(protocols={"b": b"", "a": b""})
    room.pass_time(2 * DELAY_S)
    assert room.joined(first).protocol_name == "b"


def test_other_protocol_type_is_refused(room: ClassicRoom) -> None:
    room.join()
    assert room.joined(room.join(protocol_type="connect")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_no_common_protocol_is_refused(room: ClassicRoom) -> None:
    room.join(protocols={"a": b""})
    assert room.joined(room.join(protocols={"b": b""})).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_empty_group_may_change_its_protocol_type(room: ClassicRoom) -> None:
    (member,) = room.stable(1)
    room.leave(member)
    room.join(protocol_type="connect", protocols={"p": b""})
    assert room.group.protocol_type == "connect"


# -- group.max.size ---------------------------------------------------------------------------------------------------


def test_member_above_the_limit_is_turned_away_while_joining() -> None:
    room = ClassicRoom(group_max_size="2")
    room.join()
    room.join()
    answer = room.joined(room.join())
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_member_above_the_limit_is_turned_away_when_stable() -> None:
    room = ClassicRoom(group_max_size="2")
    _, follower = room.stable(2)
    assert room.joined(room.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert room.joined(room.join(follower)).error_code == ErrorCode.NONE
    assert room.group.state == "Stable"


def test_parked_member_of_a_full_group_may_ask_again() -> None:
    room = ClassicRoom(group_max_size="1")
    room.join()
    again = room.join("c-1")
    room.pass_time(DELAY_S)
    assert room.joined(again).error_code == ErrorCode.NONE


def test_last_to_rejoin_goes_when_the_limit_was_lowered(room: ClassicRoom) -> None:
    leader, second, third = room.stable(3)
    room.configure(group_max_size="2")
    tickets = [room.join(leader), room.join(second)]
    assert room.joined(room.join(third)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [room.joined(ticket).generation_id for ticket in tickets] == [2, 2]
    assert list(room.group.members) == [leader, second]


def test_loaded_group_above_the_limit_rebalances(room: ClassicRoom) -> None:
    room.stable(3)
    room.configure(group_max_size="2")
    room.restart()
    assert room.group.state == "PreparingRebalance"


# -- joining again ----------------------------------------------------------------------------------------------------


def test_leader_that_rejoins_a_stable_group_starts_a_rebalance(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    room.join(leader)
    assert room.group.state == "PreparingRebalance"


def test_unchanged_follower_gets_the_current_generation_at_once(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    answer = room.joined(room.join(follower))
    assert (answer.generation_id, answer.leader, list(answer.members)) == (1, leader, [])
    assert room.group.state == "Stable"


def test_changed_follower_starts_a_rebalance(room: ClassicRoom) -> None:
    _, follower = room.stable()
    room.join(follower, protocols={"range": subscription("other")})
    assert room.group.state == "PreparingRebalance"


def test_unchanged_member_gets_the_same_generation_while_completing(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    again = room.joined(room.join("c-1"))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert not room.joined(room.join("c-2")).members
    assert room.group.state == "CompletingRebalance"


def test_changed_member_while_completing_sends_everybody_back(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    parked = room.sync("c-2")
    room.join("c-1", protocols={"range": subscription("other")})
    assert room.synced(parked).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert room.group.state == "PreparingRebalance"


def test_second_join_supersedes_the_parked_one(room: ClassicRoom) -> None:
    first = room.join()
    second = room.join("c-1")
    assert room.joined(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    room.pass_time(DELAY_S)
    assert room.joined(second).error_code == ErrorCode.NONE


def test_new_member_makes_a_stable_group_rebalance_until_all_rejoined(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    new = room.join()
    assert new in room.waiting
    room.join(leader)
    assert new in room.waiting
    room.join(follower)
    assert room.joined(new).generation_id == 2


def test_pending_id_counts_as_not_yet_joined(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    room.join(version=4)
    room.leave("c-2")
    ticket = room.join(leader)
    assert ticket in room.waiting
    room.pass_time(SESSION_MS / 1000)
    assert room.joined(ticket).generation_id == 2


# -- time in PreparingRebalance ---------------------------------------------------------------------------------------


def test_dynamic_member_that_does_not_rejoin_is_dropped_after_the_rebalance_timeout(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    ticket = room.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        assert room.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
        room.pass_time(5)
    assert room.joined(ticket).generation_id == 2
    assert list(room.group.members) == [leader]


def test_leader_that_does_not_rejoin_is_replaced_by_who_did(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join()
    ticket = room.join(follower)
    room.pass_time(SESSION_MS / 1000)
    assert room.joined(ticket).leader == follower
    assert leader not in room.group.members


def test_static_member_that_does_not_rejoin_stays_but_does_not_lead(room: ClassicRoom) -> None:
    room.join(instance="i0", version=5, session_ms=1_000_000)
    room.join(instance="i1", version=5, session_ms=1_000_000)
    room.pass_time(2 * DELAY_S)
    room.settle(["i0-1", "i1-2"])
    ticket = room.join("i1-2", instance="i1", version=5, protocols={"range": b"new"}, session_ms=1_000_000)
    room.pass_time(REBALANCE_MS / 1000)
    assert room.joined(ticket).leader == "i1-2"
    assert set(room.group.members) == {"i0-1", "i1-2"}


def test_when_no_static_member_rejoins_the_group_waits_again(room: ClassicRoom) -> None:
    room.join(instance="i0", version=5, session_ms=1_000_000)
    room.pass_time(DELAY_S)
    room.settle(["i0-1"])
    come_from_the_other_protocol(room, Cause(kind=CauseKind.PROTOCOL_CHANGED))
    room.pass_time(3 * REBALANCE_MS / 1000)
    assert (room.group.state, room.group.generation) == ("PreparingRebalance", 1)
    assert room.joined(room.join("i0-1", instance="i0", version=5)).generation_id == 2


def test_new_member_has_five_minutes_for_its_first_join(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    new = room.join(rebalance_ms=MAX_INT)
    while room.now < 1006 + NEW_MEMBER_TIMEOUT_MS / 1000 - 1:
        room.heartbeat(leader)
        room.heartbeat("c-2")
        room.pass_time(1)
    assert new in room.waiting
    room.pass_time(1)
    answer = room.joined(new)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_parked_member_does_not_expire(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    ticket = room.join(leader)
    for _ in range(5):
        room.heartbeat(follower)
        room.pass_time(9)
    assert ticket in room.waiting
    room.join(follower)
    assert room.joined(ticket).error_code == ErrorCode.NONE


# -- SyncGroup --------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_sync_and_then_all_are_answered_with_one_record(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    follower = room.sync("c-2")
    assert follower in room.waiting
    leader = room.sync("c-1", assignments={"c-1": b"one", "c-2": b"two"})
    assert (room.synced(leader).assignment, room.synced(follower).assignment) == (b"one", b"two")
    assert room.synced(leader).protocol_name == "range"
    (record,) = room.records
    assert (record.generation, record.leader, record.protocol) == (1, "c-1", "range")
    assert [each.assignment for each in record.members] == [b"one", b"two"]


def test_sync_of_a_stable_group_is_answered_at_once(room: ClassicRoom) -> None:
    _, follower = room.stable()
    assert room.synced(room.sync(follower)).assignment == b"a1"


def test_member_whom_the_leader_forgot_gets_a_readable_nothing(room: ClassicRoom) -> None:
    room.join()
    room.pass_time(DELAY_S)
    assert room.synced(room.sync("c-1")).assignment == encode_assignment(Assignment(version=0), 0)


def test_member_of_another_protocol_type_whom_the_leader_forgot_gets_no_bytes(room: ClassicRoom) -> None:
    room.join(protocol_type="connect", protocols={"p": b""})
    room.pass_time(DELAY_S)
    assert room.synced(room.sync("c-1")).assignment == b""


def test_sync_while_preparing_says_that_a_rebalance_is_in_progress(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join(leader)
    assert room.synced(room.sync(follower)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_of_another_generation_is_refused(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    assert room.synced(room.sync(leader, 7)).error_code == ErrorCode.ILLEGAL_GENERATION


def test_sync_of_a_stranger_is_refused(room: ClassicRoom) -> None:
    assert room.synced(room.sync("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("protocol_type", "protocol_name"), [("connect", None), (None, "sticky")])
def test_sync_with_another_protocol_is_refused(
    room: ClassicRoom, protocol_type: str | None, protocol_name: str | None
) -> None:
    leader, _ = room.stable()
    ticket = room.sync(leader, protocol_type=protocol_type, protocol_name=protocol_name)
    assert room.synced(ticket).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_second_sync_supersedes_the_parked_one(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    first = room.sync("c-2")
    second = room.sync("c-2")
    assert room.synced(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second in room.waiting


def test_members_that_never_sync_are_removed_and_the_rest_rebalances(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    room.sync("c-1")
    for _ in range(REBALANCE_MS // 5000):
        room.heartbeat("c-1")
        room.heartbeat("c-2")
        room.pass_time(5)
    assert (room.group.state, list(room.group.members)) == ("PreparingRebalance", ["c-1"])


def test_leader_that_never_syncs_is_removed_and_parked_syncs_are_sent_back(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    parked = room.sync("c-2")
    for _ in range(REBALANCE_MS // 5000):
        room.heartbeat("c-1")
        room.pass_time(5)
    assert room.synced(parked).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert room.group.leader_id == "c-2"


# -- Heartbeat and sessions -------------------------------------------------------------------------------------------


def test_heartbeat_is_good_while_completing_and_stable(room: ClassicRoom) -> None:
    room.join()
    room.pass_time(DELAY_S)
    assert room.heartbeat("c-1") == ErrorCode.NONE
    room.settle(["c-1"])
    assert room.heartbeat("c-1") == ErrorCode.NONE


def test_heartbeat_while_preparing_tells_of_it_and_renews_the_session(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join(leader)
    room.pass_time(9)
    assert room.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    room.pass_time(9)
    assert follower in room.group.members


def test_heartbeat_of_a_stranger_or_another_generation_is_refused(room: ClassicRoom) -> None:
    assert room.heartbeat("ghost") == ErrorCode.UNKNOWN_MEMBER_ID
    leader, _ = room.stable()
    assert room.heartbeat("ghost") == ErrorCode.UNKNOWN_MEMBER_ID
    assert room.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION


def test_silent_member_is_removed_after_its_session_timeout(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    room.pass_time(5)
    room.heartbeat(leader)
    room.pass_time(5)
    assert (room.group.state, list(room.group.members)) == ("PreparingRebalance", [leader])


def test_session_expiry_removes_static_members_too(room: ClassicRoom) -> None:
    room.stable(1, static=True)
    room.pass_time(SESSION_MS / 1000)
    assert (room.group.state, room.group.members) == ("Empty", {})


def test_group_whose_last_member_expired_is_empty_with_a_record_and_a_new_generation(room: ClassicRoom) -> None:
    room.stable(1)
    room.pass_time(SESSION_MS / 1000)
    record = room.records[-1]
    assert (record.generation, record.members, record.leader, record.protocol) == (2, (), None, None)
    assert record.protocol_type == "consumer"
    assert room.group.wake_at == NEVER


def test_heartbeat_sets_no_timer(room: ClassicRoom) -> None:
    room.stable(2)
    before = room.group.wake_at
    room.now += 1
    room.heartbeat("c-1")
    assert room.group.wake_at == before


# -- static members ---------------------------------------------------------------------------------------------------


def test_returning_static_follower_is_answered_at_once_without_rebalance(room: ClassicRoom) -> None:
    leader, _ = room.stable(2, static=True)
    answer = room.joined(room.join(instance="i1", version=9, host="/10.0.0.2"))
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (1, leader, False)
    assert room.group.state == "Stable"
    assert [each.member_id for each in room.records[-1].members] == [leader, answer.member_id]
    assert room.synced(room.sync(answer.member_id, instance="i1")).assignment == b"a1"
    assert room.group.members[answer.member_id].client_host == "/10.0.0.2"


def test_returning_static_leader_skips_the_assignment_from_version_9(room: ClassicRoom) -> None:
    room.stable(2, static=True)
    answer = room.joined(room.join(instance="i0", version=9))
    assert (answer.leader, answer.skip_assignment, len(answer.members)) == (answer.member_id, True, 2)


def test_returning_static_leader_sees_its_old_id_as_leader_before_version_9(room: ClassicRoom) -> None:
    leader, _ = room.stable(2, static=True)
    answer = room.joined(room.join(instance="i0", version=8))
    assert (answer.leader, answer.skip_assignment, list(answer.members)) == (leader, False, [])
    assert room.group.leader_id == answer.member_id


def test_old_process_of_a_static_member_is_fenced(room: ClassicRoom) -> None:
    _, old = room.stable(2, static=True)
    room.join(instance="i1", version=9)
    assert room.heartbeat(old, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert room.synced(room.sync(old, instance="i1")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert room.joined(room.join(old, instance="i1", version=9)).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert room.leave(MemberIdentity(member_id=old, group_instance_id="i1")).members[0].error_code == 82
    with pytest.raises(Refused) as refused:
        room.group.check_commit(old, "i1", 1, room.moment)
    assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID


def test_old_process_is_fenced_while_its_join_is_parked(room: ClassicRoom) -> None:
    old = room.join(instance="i", version=5)
    new = room.join(instance="i", version=5)
    assert room.joined(old).error_code == ErrorCode.FENCED_INSTANCE_ID
    room.pass_time(2 * DELAY_S)
    assert room.joined(new).error_code == ErrorCode.NONE


def test_static_member_replaced_while_completing_fences_a_parked_sync_and_rebalances(room: ClassicRoom) -> None:
    room.join(instance="i0", version=5)
    room.join(instance="i1", version=5)
    room.pass_time(2 * DELAY_S)
    parked = room.sync("i1-2", instance="i1")
    room.join(instance="i1", version=5)
    assert room.synced(parked).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert room.group.state == "PreparingRebalance"


def test_returning_static_member_with_other_topics_starts_a_rebalance(room: ClassicRoom) -> None:
    room.stable(2, static=True)
    ticket = room.join(instance="i1", version=9, protocols={"range": subscription("t", "u")})
    assert ticket in room.waiting
    assert room.group.state == "PreparingRebalance"


def test_returning_static_member_that_owns_nothing_yet_starts_no_rebalance(room: ClassicRoom) -> None:
    room.join(instance="i", version=5, protocols={"range": subscription("t", owned=(("t", (0, 1)),))})
    room.pass_time(DELAY_S)
    room.settle(["i-1"])
    assert room.joined(room.join(instance="i", version=9)).error_code == ErrorCode.NONE
    assert room.group.state == "Stable"


def test_returning_static_member_that_changes_the_chosen_protocol_starts_a_rebalance(room: ClassicRoom) -> None:
    room.join(instance="i", version=5, protocols={"a": b"", "b": b""})
    room.pass_time(DELAY_S)
    room.settle(["i-1"])
    room.join(instance="i", version=9, protocols={"b": b"", "a": b""})
    assert (room.group.state, room.group.protocol_name) == ("CompletingRebalance", "b")


def test_replaced_static_member_is_not_waited_for_under_its_old_id(room: ClassicRoom) -> None:
    room.join()
    room.join(instance="i", version=5)
    room.pass_time(2 * DELAY_S)
    room.sync("c-1")
    new = room.joined(room.join(instance="i", version=9)).member_id
    for _ in range(2 * REBALANCE_MS // 5000):
        room.heartbeat("c-1")
        room.heartbeat(new, instance="i")
        room.pass_time(5)
    assert (room.group.state, room.group.generation) == ("Stable", 1)


def test_member_id_of_an_unknown_instance_is_refused(room: ClassicRoom) -> None:
    room.stable(1)
    assert room.heartbeat("c-1", instance="ghost") == ErrorCode.UNKNOWN_MEMBER_ID


# -- LeaveGroup -------------------------------------------------------------------------------------------------------


def test_leave_before_version_3_has_its_code_on_top(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    assert room.leave("ghost", version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert room.leave(leader, version=2).error_code == ErrorCode.NONE
    assert leader not in room.group.members


def test_leave_from_version_3_has_a_code_per_member(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    answer = room.leave(leader, "ghost", version=3)
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for each in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


def test_leaver_makes_the_others_rebalance(room: ClassicRoom) -> None:
    _, follower = room.stable()
    room.leave(follower)
    assert room.group.state == "PreparingRebalance"


def test_last_leaver_leaves_an_empty_group_with_a_record(room: ClassicRoom) -> None:
    ids = room.stable(2)
    room.leave(*ids)
    assert (room.group.state, room.group.generation) == ("Empty", 2)
    assert room.records[-1].members == ()


def test_administrator_removes_a_static_member_by_instance_id(room: ClassicRoom) -> None:
    leader, _ = room.stable(2, static=True)
    answer = room.leave(MemberIdentity(group_instance_id="i1"), MemberIdentity(group_instance_id="ghost"))
    assert [each.error_code for each in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert answer.members[0].member_id == ""
    assert list(room.group.members) == [leader]


def test_leave_that_names_nobody_is_refused(room: ClassicRoom) -> None:
    room.stable(1)
    assert room.leave(MemberIdentity()).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_may_leave_without_a_rebalance(room: ClassicRoom) -> None:
    room.stable(1)
    pending = room.joined(room.join(version=4)).member_id
    assert room.leave(pending).members[0].error_code == ErrorCode.NONE
    assert room.group.state == "Stable"


def test_leaver_with_a_parked_join_is_told(room: ClassicRoom) -> None:
    room.stable(2)
    parked = room.join("c-1")
    room.leave("c-1")
    assert room.joined(parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaver_with_a_parked_sync_is_told(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    parked = room.sync("c-2")
    room.leave("c-2")
    assert room.synced(parked).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_of_the_last_missing_member_completes_the_join(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    ticket = room.join(leader)
    room.leave(follower)
    assert room.joined(ticket).generation_id == 2


def test_leave_during_the_initial_delay_does_not_end_it(room: ClassicRoom) -> None:
    stays = room.join()
    room.join()
    room.leave("c-2")
    assert stays in room.waiting


# -- commits ----------------------------------------------------------------------------------------------------------


def commit(room: ClassicRoom, member_id: str, generation: int, instance: str | None = None) -> int:
    try:
        room.group.check_commit(member_id, instance, generation, room.moment)
    except Refused as refused:
        return refused.code
    return ErrorCode.NONE


def test_anybody_may_commit_to_an_empty_group_without_a_generation(room: ClassicRoom) -> None:
    assert commit(room, "", -1) == ErrorCode.NONE
    assert commit(room, "someone", -1) == ErrorCode.NONE
    assert commit(room, "someone", 0) == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_members_in_their_generation_may_commit(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    assert commit(room, leader, 1) == ErrorCode.NONE
    assert commit(room, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(room, "ghost", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(room, leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert commit(room, leader, -1) == ErrorCode.ILLEGAL_GENERATION


def test_commit_is_refused_while_completing_and_accepted_while_preparing(room: ClassicRoom) -> None:
    room.join()
    room.pass_time(DELAY_S)
    assert commit(room, "c-1", 1) == ErrorCode.REBALANCE_IN_PROGRESS
    room.settle(["c-1"])
    room.join()
    assert room.group.state == "PreparingRebalance"
    assert commit(room, "c-1", 1) == ErrorCode.NONE


def test_commit_renews_the_session(room: ClassicRoom) -> None:
    room.stable(1)
    room.pass_time(9)
    commit(room, "c-1", 1)
    room.pass_time(9)
    assert room.group.state == "Stable"


def test_retired_group_sends_everybody_to_look_for_the_coordinator(room: ClassicRoom) -> None:
    room.stable(1)
    room.group.retire(ErrorCode.NOT_COORDINATOR)
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert room.group.state == "Dead"
    assert (commit(room, "c-1", 1), room.heartbeat("c-1"), room.leave("c-1").error_code) == (unavailable,) * 3
    assert room.joined(room.join()).error_code == room.synced(room.sync("c-1")).error_code == unavailable


def test_retiring_answers_everybody_who_waits(room: ClassicRoom) -> None:
    leader, _ = room.stable()
    join = room.join(leader)
    room.take(room.group.retire(ErrorCode.NOT_COORDINATOR))
    assert (room.joined(join).error_code, room.joined(join).member_id) == (ErrorCode.NOT_COORDINATOR, leader)
    assert (room.waiting, room.group.wake_at) == (set(), NEVER)


# -- load -------------------------------------------------------------------------------------------------------------


def test_loaded_group_is_stable_and_its_members_have_fresh_sessions(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.now += 100
    room.restart()
    assert (room.group.state, room.group.generation, room.group.leader_id) == ("Stable", 1, leader)
    assert room.synced(room.sync(follower)).assignment == b"a1"
    room.pass_time(9)
    assert list(room.group.members) == [leader, follower]
    room.pass_time(1)
    assert room.group.state == "Empty"


def test_loaded_empty_group_keeps_its_generation_and_since_when(room: ClassicRoom) -> None:
    room.stable(1)
    room.leave("c-1")
    since = room.group.state_since_ms
    room.restart()
    assert (room.group.state, room.group.generation, room.group.state_since_ms) == ("Empty", 2, since)
    assert not room.group.is_disposable


def test_replay_moves_nothing_but_the_record(room: ClassicRoom) -> None:
    room.stable(1)
    record = room.records[-1]
    fresh = ClassicGroup("g", room.world)
    fresh.replay(record)
    assert (fresh.stored, fresh.state, fresh.members) == (record, "Empty", {})


def test_members_that_were_still_joining_are_gone_after_a_restart(room: ClassicRoom) -> None:
    ticket = room.join()
    room.restart()
    assert room.joined(ticket).error_code == ErrorCode.NOT_COORDINATOR
    assert room.group.is_disposable


# -- questions --------------------------------------------------------------------------------------------------------


def test_stable_group_is_described_with_metadata(room: ClassicRoom) -> None:
    room.stable(1, static=True)
    described = room.group.describe(5)
    (member,) = described.members
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert (member.member_id, member.group_instance_id, member.client_id) == ("i0-1", "i0", "c")
    assert member.client_host == "/10.0.0.1"
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"a0")


def test_group_that_rebalances_is_described_without_metadata_and_protocol(room: ClassicRoom) -> None:
    room.stable(2)
    room.join("c-1")
    described = room.group.describe(5)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {each.member_metadata for each in described.members} == {b""}


def test_subscribed_topics_are_those_of_all_members(room: ClassicRoom) -> None:
    room.join(protocols={"range": subscription("a")})
    room.join(protocols={"range": subscription("b")})
    room.pass_time(2 * DELAY_S)
    assert room.group.subscribed_topics() == {"a", "b"}
    assert room.group.is_subscribed("a")
    assert not room.group.is_subscribed("c")


def test_topics_of_unreadable_consumers_may_be_any(room: ClassicRoom) -> None:
    room.join(protocols={"range": b"?"})
    room.pass_time(DELAY_S)
    assert room.group.subscribed_topics() is None
    assert room.group.is_subscribed("anything")


def test_topics_of_another_protocol_type_are_unknown(room: ClassicRoom) -> None:
    room.join(protocol_type="connect", protocols={"p": b""})
    room.pass_time(DELAY_S)
    assert room.group.subscribed_topics() is None
    assert not room.group.is_subscribed("anything")


def test_simple_group_has_no_protocol_type(room: ClassicRoom) -> None:
    assert (room.group.protocol_type, room.group.state, room.group.is_empty) == (None, "Empty", True)


# -- why it rebalanced ------------------------------------------------------------------------------------------------


def causes(room: ClassicRoom) -> list[Cause]:
    return list(room.rebalances[-1].causes)


def test_first_rebalance_was_caused_by_those_who_joined(room: ClassicRoom) -> None:
    room.join(client="app", host="/10.0.0.7", reason="because", version=3)
    room.pass_time(DELAY_S)
    room.settle(["app-1"])
    (entry,) = room.rebalances
    assert entry.causes == (
        Cause(kind=CauseKind.JOINED, member_id="app-1", client_id="app", client_host="/10.0.0.7", detail="because"),
    )
    assert (entry.generation, entry.members_before, entry.members_after) == (1, 0, 1)
    assert (entry.started_ms, entry.duration_ms) == (1_700_001_000_000, DELAY_S * 1000)


def test_interrupted_attempts_are_one_rebalance(room: ClassicRoom) -> None:
    room.join()
    room.pass_time(DELAY_S)
    room.join()
    room.join("c-1")
    room.settle(["c-1", "c-2"])
    (entry,) = room.rebalances
    assert (entry.generation, [each.member_id for each in entry.causes]) == (2, ["c-1", "c-2"])


def test_causes_are_bounded(room: ClassicRoom) -> None:
    room.stable(CAUSES_MAX + 3)
    assert (len(causes(room)), room.rebalances[-1].causes_left_out) == (CAUSES_MAX, 3)


def rest(room: ClassicRoom, *members: str) -> None:
    """The rebalance that is under way comes to its end."""
    for member in members:
        room.join(member)
    if members:
        room.settle(list(members))


def test_leaver_is_a_cause_with_its_reason(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.leave(MemberIdentity(member_id=follower, reason="the consumer is being closed"))
    rest(room, leader)
    (cause,) = causes(room)
    assert (cause.kind, cause.member_id, cause.detail) == (CauseKind.LEFT, follower, "the consumer is being closed")
    assert (room.rebalances[-1].members_before, room.rebalances[-1].members_after) == (2, 1)


def test_group_that_became_empty_is_a_finished_rebalance(room: ClassicRoom) -> None:
    ids = room.stable(2)
    room.leave(*ids)
    assert [each.kind for each in causes(room)] == [CauseKind.LEFT, CauseKind.LEFT]
    assert (room.rebalances[-1].generation, room.rebalances[-1].members_after) == (2, 0)


def test_removal_by_instance_id_was_an_administrator(room: ClassicRoom) -> None:
    room.stable(1, static=True)
    room.leave(MemberIdentity(group_instance_id="i0"), client="ops")
    (cause,) = causes(room)
    assert (cause.kind, cause.group_instance_id) == (CauseKind.REMOVED, "i0")
    assert "ops" in cause.detail


def test_removal_by_the_admin_client_was_an_administrator(room: ClassicRoom) -> None:
    room.stable(1)
    room.leave(MemberIdentity(member_id="c-1", reason="member was removed by an admin"))
    assert causes(room)[0].kind is CauseKind.REMOVED


def test_session_timeout_is_a_cause(room: ClassicRoom) -> None:
    room.stable(1)
    room.pass_time(SESSION_MS / 1000)
    (cause,) = causes(room)
    assert (cause.kind, cause.detail) == (CauseKind.SESSION_TIMEOUT, "no heartbeat for 10000 ms")


def test_leaver_that_says_so_exceeded_its_poll_interval(room: ClassicRoom) -> None:
    room.stable(1)
    room.leave(MemberIdentity(member_id="c-1", reason="consumer poll timeout has expired."))
    assert causes(room)[0].kind is CauseKind.MAX_POLL_INTERVAL


@pytest.mark.parametrize("behind", [True, False])
def test_silent_leaver_exceeded_its_poll_interval_if_records_waited_for_it(room: ClassicRoom, behind: bool) -> None:
    room.stable(1)
    for _ in range(REBALANCE_MS // 5000 + 1):
        room.heartbeat("c-1")
        room.pass_time(5)
    room.leave("c-1", version=4, behind=behind)
    (cause,) = causes(room)
    assert cause.kind is (CauseKind.MAX_POLL_INTERVAL if behind else CauseKind.LEFT)
    assert cause.detail.startswith("inferred") == behind


def test_leaver_without_reason_that_committed_lately_just_left(room: ClassicRoom) -> None:
    room.stable(1)
    for _ in range(REBALANCE_MS // 5000 + 1):
        commit(room, "c-1", 1)
        room.pass_time(5)
    room.leave("c-1", version=4)
    assert causes(room)[0].kind is CauseKind.LEFT


def test_member_that_did_not_rejoin_in_time_exceeded_its_poll_interval(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        room.heartbeat(follower)
        room.pass_time(5)
    room.settle([leader])
    assert [each.kind for each in causes(room)] == [CauseKind.LEADER_REJOINED, CauseKind.MAX_POLL_INTERVAL]
    assert causes(room)[1].member_id == follower


def test_what_was_due_first_is_the_cause_when_the_coordinator_looks_late(room: ClassicRoom) -> None:
    for _ in range(2):
        room.join(session_ms=20_000, rebalance_ms=8000)
    room.pass_time(2 * DELAY_S)
    room.settle(["c-1", "c-2"])
    room.join("c-1", session_ms=20_000, rebalance_ms=8000)
    room.now += 30
    room.take(room.group.expire(room.moment))
    room.settle(["c-1"])
    assert causes(room)[-1].kind is CauseKind.MAX_POLL_INTERVAL


def test_member_that_never_synced_is_a_cause(room: ClassicRoom) -> None:
    room.join()
    room.join()
    room.pass_time(2 * DELAY_S)
    room.sync("c-1")
    for _ in range(REBALANCE_MS // 5000):
        room.heartbeat("c-1")
        room.heartbeat("c-2")
        room.pass_time(5)
    rest(room, "c-1")
    (cause,) = causes(room)
    assert (cause.kind, cause.member_id) == (CauseKind.NEVER_SYNCED, "c-2")


def test_new_subscription_is_a_cause_that_names_the_topics(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join(follower, protocols={"range": subscription("u")})
    room.join(leader)
    room.settle([leader, follower])
    (cause,) = causes(room)
    assert cause.kind is CauseKind.SUBSCRIPTION_CHANGED
    assert cause.detail == "subscribed to u; unsubscribed from t"


def test_rejoin_that_only_tells_what_it_owns_adds_no_cause(room: ClassicRoom) -> None:
    leader, follower = room.stable()
    room.join()
    room.join(follower, protocols={"range": subscription("t", owned=(("t", (0,)),))})
    rest(room, leader)
    assert [each.kind for each in causes(room)] == [CauseKind.JOINED]


def test_leader_that_rejoins_after_partitions_were_added_found_them(room: ClassicRoom) -> None:
    room.topics.create("t", 3)
    room.stable(1)
    room.topics.grow("t", 6)
    rest(room, "c-1")
    (cause,) = causes(room)
    assert (cause.kind, cause.detail) == (CauseKind.TOPICS_CHANGED, "t went from 3 to 6 partitions")


def test_leader_that_rejoins_after_a_topic_was_created_found_it(room: ClassicRoom) -> None:
    room.stable(1)
    room.topics.create("t", 3)
    rest(room, "c-1")
    (cause,) = causes(room)
    assert (cause.kind, cause.detail) == (CauseKind.TOPICS_CHANGED, "t was created with 3 partitions")


def test_topic_created_anew_is_told_from_one_that_grew(room: ClassicRoom) -> None:
    room.topics.create("t", 3)
    room.stable(1)
    room.topics.create("t", 3)
    rest(room, "c-1")
    assert causes(room)[0].detail == "t with 3 partitions was deleted and created anew with 3"


def test_leader_that_says_that_metadata_changed_is_believed(room: ClassicRoom) -> None:
    room.stable(1)
    room.join("c-1", reason="cached metadata has changed", version=8)
    room.settle(["c-1"])
    assert causes(room)[0].kind is CauseKind.TOPICS_CHANGED


def test_leader_that_rejoins_for_its_own_reason_is_a_cause(room: ClassicRoom) -> None:
    room.topics.create("t", 3)
    room.stable(1)
    room.topics.create("elsewhere", 3)
    room.join("c-1", reason="rebalance enforced by user", version=8)
    room.settle(["c-1"])
    (cause,) = causes(room)
    assert (cause.kind, cause.detail) == (CauseKind.LEADER_REJOINED, "rebalance enforced by user")


@pytest.mark.parametrize("as_whom", ["c-1", ""])
def test_members_that_come_back_after_a_load_came_because_the_coordinator_moved(
    room: ClassicRoom, as_whom: str
) -> None:
    room.stable(2)
    room.restart()
    room.join(as_whom)
    room.join("c-1")
    room.join("c-2")
    room.settle(list(room.group.members))
    assert [each.kind for each in causes(room)] == [CauseKind.COORDINATOR_MOVED]


def test_member_from_the_log_has_no_other_protocols_until_it_names_them(room: ClassicRoom) -> None:
    room.stable(1)
    room.restart()
    for protocols in ({"range": subscription("t"), "sticky": b""}, {"range": subscription("t")}):
        room.join("c-1", protocols=protocols)
        room.settle(["c-1"])
    first, second = (entry.causes[0] for entry in room.rebalances[-2:])
    assert first.kind is CauseKind.COORDINATOR_MOVED
    assert second.detail == "protocols were range, sticky and are range"


def test_stranger_that_joins_after_a_load_just_joined(room: ClassicRoom) -> None:
    room.stable(1)
    room.restart()
    room.join(client="other", host="/10.0.0.2")
    room.join("c-1")
    room.settle(["c-1", "other-2"])
    assert [each.kind for each in causes(room)] == [CauseKind.JOINED]


def test_leader_that_rejoins_long_after_a_load_did_so_for_itself(room: ClassicRoom) -> None:
    room.stable(1)
    room.restart()
    for _ in range(3):
        room.pass_time(4)
        room.heartbeat("c-1")
    rest(room, "c-1")
    assert causes(room)[0].kind is CauseKind.LEADER_REJOINED


def test_static_member_replaced_with_a_rebalance_is_a_cause(room: ClassicRoom) -> None:
    room.stable(1, static=True)
    room.join(instance="i0", version=9, host="/10.0.0.2", protocols={"range": subscription("u")})
    room.settle(list(room.group.members))
    (cause,) = causes(room)
    assert (cause.kind, cause.member_id, cause.group_instance_id) == (CauseKind.STATIC_MEMBER_FENCED, "i0-1", "i0")
    assert "/10.0.0.2" in cause.detail


def come_from_the_other_protocol(room: ClassicRoom, cause: Cause | None) -> None:
    """The group as a downgrade leaves it: its members, without an assignment."""
    stored = room.group.stored
    assert stored is not None
    room.group = ClassicGroup("g", room.world)
    room.group.replay(replace(stored, members=tuple(replace(each, assignment=b"") for each in stored.members)))
    room.group.resume(room.moment, cause)


@pytest.mark.parametrize("given", [Cause(kind=CauseKind.PROTOCOL_CHANGED, detail="now classic"), None])
def test_members_without_an_assignment_rebalance_for_the_given_cause(room: ClassicRoom, given: Cause | None) -> None:
    room.stable(1)
    come_from_the_other_protocol(room, given)
    assert room.heartbeat("c-1") == ErrorCode.REBALANCE_IN_PROGRESS
    rest(room, "c-1")
    assert causes(room)[:1] == [given or Cause(kind=CauseKind.COORDINATOR_MOVED)]
