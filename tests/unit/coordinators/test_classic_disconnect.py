"""What a classic group does when the client of a parked JoinGroup or SyncGroup closes its connection."""

from __future__ import annotations

import pytest
from tests.unit.coordinators.classic_fixtures import DELAY_S, SESSION_MS, ClassicFixture

from ottla.broker.groups.journal import CauseKind
from ottla.model.errors import ErrorCode


@pytest.fixture
def fixture() -> ClassicFixture:
    return ClassicFixture()


def stable(fixture: ClassicFixture, *instances: str | None) -> list[str]:
    """Make a stable group with one member per entry, static where the entry is an instance id; return the ids."""
    tickets = [fixture.join(instance=instance) for instance in instances]
    fixture.pass_time(2 * DELAY_S)
    ids = [fixture.joined(ticket).member_id for ticket in tickets]
    for member_id in reversed(ids):  # the leader comes last
        fixture.sync(member_id)
    assert fixture.group.state == "Stable"
    return ids


def test_only_member_of_a_new_group_leaves_and_the_group_with_it(fixture: ClassicFixture) -> None:
    ticket = fixture.join()
    fixture.disconnect(ticket)
    assert fixture.joined(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert fixture.group.is_disposable


def test_member_that_joined_with_a_pending_id_leaves(fixture: ClassicFixture) -> None:
    member_id = fixture.joined(fixture.join(version=4)).member_id
    ticket = fixture.join(member_id, version=4)
    fixture.disconnect(ticket)
    assert fixture.group.is_disposable
    assert fixture.joined(fixture.join(member_id, version=4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_are_left_do_not_wait_for_a_new_member_that_disconnected(fixture: ClassicFixture) -> None:
    (old,) = stable(fixture, None)
    fixture.disconnect(fixture.join())
    rejoined = fixture.join(old)
    assert rejoined not in fixture.waiting
    assert list(fixture.group.members) == [old]


def test_rebalance_completes_when_the_only_member_without_a_join_disconnects(fixture: ClassicFixture) -> None:
    first, second = stable(fixture, None, None)
    new = fixture.join()
    fixture.disconnect(new)
    tickets = [fixture.join(first), fixture.join(second)]
    assert not fixture.waiting.intersection(tickets)


def test_disconnect_of_a_new_member_is_a_cause_of_the_rebalance(fixture: ClassicFixture) -> None:
    first, second = stable(fixture, None, None)
    fixture.disconnect(fixture.join())
    for ticket in (fixture.join(first), fixture.join(second)):
        fixture.joined(ticket)
    fixture.sync(second)
    fixture.sync(first)
    causes = fixture.rebalances[-1].causes
    assert [cause.kind for cause in causes] == [CauseKind.JOINED, CauseKind.LEFT]
    assert "connection closed" in causes[1].detail


def test_known_member_keeps_its_session_and_may_rejoin(fixture: ClassicFixture) -> None:
    first, second = stable(fixture, None, None)
    ticket = fixture.join(first)
    fixture.disconnect(ticket)
    assert fixture.joined(ticket).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert fixture.group.state == "PreparingRebalance"
    again, other = fixture.join(first), fixture.join(second)
    assert {fixture.joined(again).member_id, fixture.joined(other).member_id} == {first, second}


def test_known_member_that_does_not_come_back_expires_after_its_session_timeout(fixture: ClassicFixture) -> None:
    first, second = stable(fixture, None, None)
    fixture.disconnect(fixture.join(first))
    waiting = fixture.join(second)
    fixture.pass_time(SESSION_MS / 1000)
    assert fixture.joined(waiting).error_code == ErrorCode.NONE
    assert list(fixture.group.members) == [second]


def test_static_member_keeps_its_place_for_its_session_timeout(fixture: ClassicFixture) -> None:
    ticket = fixture.join(instance="i")
    fixture.disconnect(ticket)
    assert list(fixture.group.members) == ["i-1"]
    replacing = fixture.join(instance="i")
    fixture.pass_time(2 * DELAY_S)
    assert fixture.joined(replacing).member_id == "i-2"


def test_static_member_that_does_not_come_back_expires(fixture: ClassicFixture) -> None:
    fixture.disconnect(fixture.join(instance="i"))
    fixture.pass_time(SESSION_MS / 1000)
    assert not fixture.group.members


def test_member_whose_sync_was_parked_keeps_its_session(fixture: ClassicFixture) -> None:
    first, second = fixture.join(), fixture.join()
    fixture.pass_time(2 * DELAY_S)
    leader, follower = fixture.joined(first).member_id, fixture.joined(second).member_id
    ticket = fixture.sync(follower)
    fixture.disconnect(ticket)
    assert fixture.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[attr-defined]
    fixture.sync(leader, assignments={follower: b"mine"})
    assert fixture.group.members[follower].assignment == b"mine"
    fixture.heartbeat(leader)
    fixture.pass_time(SESSION_MS / 1000)
    assert follower not in fixture.group.members


def test_disconnect_after_the_answer_changes_nothing(fixture: ClassicFixture) -> None:
    ticket = fixture.join()
    fixture.pass_time(2 * DELAY_S)
    member_id = fixture.joined(ticket).member_id
    fixture.disconnect(ticket)
    assert list(fixture.group.members) == [member_id]
