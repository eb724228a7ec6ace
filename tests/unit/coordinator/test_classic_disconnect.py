"""What a classic group does when the client of a parked JoinGroup or SyncGroup closes its connection."""

from __future__ import annotations

import pytest
from tests.unit.coordinator.classic_room import DELAY_S, SESSION_MS, ClassicRoom

from ottla.coordinator.journal import CauseKind
from ottla.model.errors import ErrorCode


@pytest.fixture
def room() -> ClassicRoom:
    return ClassicRoom()


def stable(room: ClassicRoom, *instances: str | None) -> list[str]:
    """Make a stable group with one member per entry, static where the entry is an instance id; return the ids."""
    tickets = [room.join(instance=instance) for instance in instances]
    room.pass_time(2 * DELAY_S)
    ids = [room.joined(ticket).member_id for ticket in tickets]
    for member_id in reversed(ids):  # the leader comes last
        room.sync(member_id)
    assert room.group.state == "Stable"
    return ids


def test_only_member_of_a_new_group_leaves_and_the_group_with_it(room: ClassicRoom) -> None:
    ticket = room.join()
    room.disconnect(ticket)
    assert room.joined(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert room.group.is_disposable


def test_member_that_joined_with_a_pending_id_leaves(room: ClassicRoom) -> None:
    member_id = room.joined(room.join(version=4)).member_id
    ticket = room.join(member_id, version=4)
    room.disconnect(ticket)
    assert room.group.is_disposable
    assert room.joined(room.join(member_id, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_are_left_do_not_wait_for_a_new_member_that_disconnected(room: ClassicRoom) -> None:
    (old,) = stable(room, None)
    room.disconnect(room.join())
    rejoined = room.join(old)
    assert rejoined not in room.waiting
    assert list(room.group.members) == [old]


def test_rebalance_completes_when_the_only_member_without_a_join_disconnects(room: ClassicRoom) -> None:
    first, second = stable(room, None, None)
    new = room.join()
    room.disconnect(new)
    tickets = [room.join(first), room.join(second)]
    assert not room.waiting.intersection(tickets)


def test_disconnect_of_a_new_member_is_a_cause_of_the_rebalance(room: ClassicRoom) -> None:
    first, second = stable(room, None, None)
    room.disconnect(room.join())
    for ticket in (room.join(first), room.join(second)):
        room.joined(ticket)
    room.sync(second)
    room.sync(first)
    causes = room.rebalances[-1].causes
    assert [cause.kind for cause in causes] == [CauseKind.JOINED, CauseKind.LEFT]
    assert "connection closed" in causes[1].detail


def test_known_member_keeps_its_session_and_may_rejoin(room: ClassicRoom) -> None:
    first, second = stable(room, None, None)
    ticket = room.join(first)
    room.disconnect(ticket)
    assert room.joined(ticket).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert room.group.state == "PreparingRebalance"
    again, other = room.join(first), room.join(second)
    assert {room.joined(again).member_id, room.joined(other).member_id} == {first, second}


def test_known_member_that_does_not_come_back_expires_after_its_session_timeout(room: ClassicRoom) -> None:
    first, second = stable(room, None, None)
    room.disconnect(room.join(first))
    waiting = room.join(second)
    room.pass_time(SESSION_MS / 1000)
    assert room.joined(waiting).error_code == ErrorCode.NONE
    assert list(room.group.members) == [second]


def test_static_member_keeps_its_place_for_its_session_timeout(room: ClassicRoom) -> None:
    ticket = room.join(instance="i")
    room.disconnect(ticket)
    assert list(room.group.members) == ["i-1"]
    replacing = room.join(instance="i")
    room.pass_time(2 * DELAY_S)
    assert room.joined(replacing).member_id == "i-2"


def test_static_member_that_does_not_come_back_expires(room: ClassicRoom) -> None:
    room.disconnect(room.join(instance="i"))
    room.pass_time(SESSION_MS / 1000)
    assert not room.group.members


def test_member_whose_sync_was_parked_keeps_its_session(room: ClassicRoom) -> None:
    first, second = room.join(), room.join()
    room.pass_time(2 * DELAY_S)
    leader, follower = room.joined(first).member_id, room.joined(second).member_id
    ticket = room.sync(follower)
    room.disconnect(ticket)
    assert room.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[attr-defined]
    room.sync(leader, assignments={follower: b"mine"})
    assert room.group.members[follower].assignment == b"mine"
    room.heartbeat(leader)
    room.pass_time(SESSION_MS / 1000)
    assert follower not in room.group.members


def test_disconnect_after_the_answer_changes_nothing(room: ClassicRoom) -> None:
    ticket = room.join()
    room.pass_time(2 * DELAY_S)
    member_id = room.joined(ticket).member_id
    room.disconnect(ticket)
    assert list(room.group.members) == [member_id]
