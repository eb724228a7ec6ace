"""A group of the consumer protocol: what its members are told, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinators.consumer_fixtures import SESSION_S, Consumer, ConsumerFixture, join_request, snapshot

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import NEVER
from ottla.broker.groups.consumer import ConsumerGroup
from ottla.broker.groups.journal import CauseKind
from ottla.broker.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    CoordinatorRecord,
)
from ottla.broker.groups.replies import described_consumer_group, read_consumer_heartbeat
from ottla.broker.groups.requests import Sender
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

CLIENT = Client("c", "/10.0.0.1", 1)


@pytest.fixture
def fixture() -> ConsumerFixture:
    made = ConsumerFixture()
    made.topics.create("t", 4)
    return made


def beat(member_id: str, epoch: int, **more: object) -> ConsumerGroupHeartbeatRequest:
    """The shortest heartbeat: nothing changed."""
    fields: dict[str, object] = {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        "topic_partitions": None,
    }
    return ConsumerGroupHeartbeatRequest(**(fields | more))  # type: ignore[arg-type]


# -- requests that are wrong in themselves ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        join_request("", "t"),
        join_request("m", "t", group_id=""),
        join_request("m", "t", instance=""),
        join_request("m", "t", rack_id=" "),
        join_request("m", "t", rebalance_timeout=-1),
        join_request("m", "t", topic_partitions=None),
        join_request(
            "m",
            "t",
            topic_partitions=[ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=bytes(16), partitions=[0])],
        ),
        join_request("m", subscribed_topic_names=None),
        beat("", 3),
        beat("", -1),
        beat("m", -2),
        beat("m", -3),
    ],
    ids=lambda request_: f"{request_.member_id or 'nobody'} at {request_.member_epoch}",
)
def test_invalid_request_is_refused_with_42(fixture: ConsumerFixture, request_: ConsumerGroupHeartbeatRequest) -> None:
    assert fixture.heartbeat(request_).error_code == ErrorCode.INVALID_REQUEST
    assert not fixture.log


def test_unknown_assignor_is_refused(fixture: ConsumerFixture) -> None:
    answer = fixture.join("m", "t", server_assignor="fair")
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert answer.error_message is not None and "uniform, range" in answer.error_message


def test_version_0_without_a_member_id_is_given_one(fixture: ConsumerFixture) -> None:
    answer = fixture.heartbeat(join_request("", "t"), version=0)
    assert (answer.error_code, answer.member_id) == (0, "made-1")


def test_member_joins_with_no_topics_at_all(fixture: ConsumerFixture) -> None:
    answer = fixture.join("m")
    assert (answer.error_code, answer.member_epoch) == (0, 2)
    assert fixture.group.state == "Stable"


# -- a member comes ---------------------------------------------------------------------------------------------------


def test_first_member_gets_everything_in_its_first_answer(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    answer = one.heartbeat()
    assert answer.member_epoch == 2, "a group begins at 1"
    assert answer.heartbeat_interval == 5000
    assert one.owned == {("t", number) for number in range(4)}
    assert fixture.group.state == "Stable"


def test_assignment_is_told_only_when_it_changed(fixture: ConsumerFixture) -> None:
    fixture.join("m", "t")
    assert fixture.heartbeat(beat("m", 2)).assignment is None


def test_full_request_is_answered_in_full(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    answer = fixture.heartbeat(join_request("one", "t", member_epoch=2, topic_partitions=[]))
    assert answer.assignment is not None


def test_heartbeat_that_changes_nothing_writes_nothing(fixture: ConsumerFixture) -> None:
    fixture.join("m", "t")
    written = len(fixture.log)
    fixture.heartbeat(beat("m", 2))
    assert len(fixture.log) == written


def test_second_member_waits_until_the_first_lets_go(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    one.heartbeat()
    two.heartbeat()
    assert (two.epoch, two.owned) == (3, set())
    one.is_stuck = True
    one.heartbeat()
    assert one.epoch == 2, "it still owns what it should give up"
    two.heartbeat()
    assert two.owned == set()
    one.is_stuck = False
    one.heartbeat()
    one.heartbeat()
    assert one.epoch == 3
    two.heartbeat()
    assert (len(one.owned), len(two.owned)) == (2, 2)
    assert fixture.group.state == "Stable"


def test_states_are_told_in_kafkas_words(fixture: ConsumerFixture) -> None:
    states = [fixture.group.state]
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    one.heartbeat()
    states.append(fixture.group.state)
    two.heartbeat()
    states.append(fixture.group.state)
    fixture.become_stable(one, two)
    two.leave()
    states.append(fixture.group.state)
    one.leave()
    states.append(fixture.group.state)
    assert states == ["Dead", "Stable", "Reconciling", "Assigning", "Empty"]


def test_group_settles_within_a_few_rounds_however_many_come(fixture: ConsumerFixture) -> None:
    fixture.topics.create("wide", 50)
    consumers = [Consumer(fixture, f"m{number}", "t", "wide") for number in range(9)]
    assert fixture.become_stable(*consumers) <= 4
    assert sorted(len(each.owned) for each in consumers) == [6] * 9


def test_large_group_computes_its_target_once_a_second(fixture: ConsumerFixture) -> None:
    fixture.topics.create("wide", 2000)
    consumers = [Consumer(fixture, f"m{number}", "wide") for number in range(3)]
    for consumer in consumers:
        consumer.heartbeat()
    assert (fixture.group.group_epoch, fixture.group.stored.assignment_epoch) == (4, 2)
    assert fixture.group.state == "Assigning"
    assert [consumer.epoch for consumer in consumers] == [2, 2, 2]
    fixture.pass_time(1)
    fixture.become_stable(*consumers)
    assert sorted(len(consumer.owned) for consumer in consumers) == [666, 667, 667]


def test_full_group_takes_nobody_else() -> None:
    fixture = ConsumerFixture(group_consumer_max_size="1")
    fixture.topics.create("t", 1)
    fixture.join("one", "t")
    assert fixture.join("two", "t").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert fixture.heartbeat(beat("one", 2)).error_code == 0


def test_assignor_is_the_one_that_most_members_want(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t", server_assignor="range")
    assert fixture.group.assignor_name() == "range"
    fixture.join("two", "t", server_assignor="uniform")
    fixture.join("three", "t", server_assignor="uniform")
    assert fixture.group.assignor_name() == "uniform"


# -- epochs -----------------------------------------------------------------------------------------------------------


def test_stranger_is_unknown(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    assert fixture.heartbeat(beat("two", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_epoch_from_the_future_is_fenced(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    assert fixture.heartbeat(beat("one", 3)).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_previous_epoch_is_accepted_when_nothing_more_is_owned(fixture: ConsumerFixture) -> None:
    """The answer that raised the epoch was lost."""
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    fixture.become_stable(one, two)
    one.leave()
    answer = fixture.heartbeat(beat("two", 3, topic_partitions=[]))
    assert answer.member_epoch == 4
    again = fixture.heartbeat(beat("two", 3, topic_partitions=[]))
    assert (again.error_code, again.member_epoch) == (0, 4)


def test_previous_epoch_is_fenced_when_the_member_does_not_say_what_it_owns(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    fixture.become_stable(one, two)
    one.leave()
    two.heartbeat()
    assert fixture.heartbeat(beat("two", 3)).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_member_that_joins_again_under_its_id_keeps_its_place(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    fixture.become_stable(one, two)
    had = set(one.owned)
    one.epoch, one.owned = 0, set()
    one.heartbeat()
    assert (one.epoch, one.owned) == (3, had)


# -- a member goes ----------------------------------------------------------------------------------------------------


def test_others_get_what_a_leaver_had(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    fixture.become_stable(one, two)
    answer = one.leave()
    assert (answer.member_id, answer.member_epoch) == ("one", -1)
    two.heartbeat()
    assert len(two.owned) == 4


def test_stranger_cannot_leave(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    assert fixture.heartbeat(beat("two", -1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_thrown_out_after_its_session(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    fixture.become_stable(one, two)
    fixture.pass_time(SESSION_S - 1)
    two.heartbeat()
    fixture.pass_time(2)
    assert set(fixture.group.members) == {"two"}
    one.heartbeat()
    assert one.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_with_its_own_timeouts_uses_them_from_the_next_heartbeat_on(fixture: ConsumerFixture) -> None:
    fixture.context.overrides = {"other": {"consumer.session.timeout.ms": "60000"}}
    assert fixture.join("one", "t").heartbeat_interval == 5000
    assert fixture.group.wake_at == fixture.now + SESSION_S
    fixture.context.overrides = {
        "g": {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "7000"}
    }
    assert fixture.heartbeat(beat("one", 2)).heartbeat_interval == 7000
    fixture.pass_time(SESSION_S + 1)
    assert set(fixture.group.members) == {"one"}
    fixture.restart()
    fixture.pass_time(59)
    assert set(fixture.group.members) == {"one"}
    fixture.pass_time(2)
    assert fixture.group.is_empty


def test_heartbeat_moves_only_the_members_own_deadline(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    first = fixture.group.wake_at
    fixture.now += 10
    fixture.heartbeat(beat("one", 2))
    assert fixture.group.wake_at == first, "an early look costs nothing, a search on each heartbeat would"
    fixture.now = first
    assert not fixture.group.expire(fixture.moment).records
    assert fixture.group.wake_at == first + 10


def test_empty_group_wants_no_wake_up(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    fixture.pass_time(SESSION_S + 1)
    assert fixture.group.is_empty
    assert fixture.group.wake_at == NEVER


def test_member_that_does_not_give_up_partitions_is_thrown_out(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    one.heartbeat()
    two.heartbeat()
    one.is_stuck = True
    for _ in range(8):
        one.heartbeat()
        two.heartbeat()
        fixture.pass_time(9)
    assert set(fixture.group.members) == {"two"}
    two.heartbeat()
    assert len(two.owned) == 4
    assert fixture.causes() == [CauseKind.MAX_POLL_INTERVAL]


# -- what a member wants ----------------------------------------------------------------------------------------------


def test_subscription_to_another_topic_takes_the_first_away(fixture: ConsumerFixture) -> None:
    fixture.topics.create("u", 2)
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    one.subscribe("u")
    fixture.become_stable(one)
    assert one.owned == {("u", 0), ("u", 1)}


def test_topic_that_does_not_exist_yet_is_assigned_once_it_does(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "later")
    one.heartbeat()
    assert one.owned == set()
    fixture.topics.create("later", 2)
    one.heartbeat()
    assert one.owned == {("later", 0), ("later", 1)}


def test_new_partitions_are_assigned(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    fixture.topics.grow("t", 6)
    one.heartbeat()
    assert len(one.owned) == 6
    assert fixture.causes() == [CauseKind.TOPICS_CHANGED]
    assert fixture.rebalances[-1].causes[0].detail == "t went from 4 to 6 partitions"


def test_deleted_topic_is_taken_away(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    fixture.topics.delete("t")
    fixture.become_stable(one)
    assert one.owned == set()
    assert fixture.rebalances[-1].causes[0].detail == "t was deleted"


def test_other_peoples_topics_do_not_matter(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    fixture.topics.create("other", 3)
    fixture.heartbeat(beat("one", 2))
    assert fixture.group.group_epoch == 2


def test_topic_change_is_noticed_after_a_restart(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    fixture.topics.grow("t", 5)
    fixture.restart()
    fixture.heartbeat(beat("one", 2))
    assert fixture.group.group_epoch == 3


def test_topic_change_is_noticed_again_when_the_decision_was_not_stored(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    fixture.topics.grow("t", 5)
    lost = fixture.group.heartbeat(read_consumer_heartbeat(beat("one", 2), CLIENT), fixture.moment)
    assert lost.records
    one.heartbeat()
    assert len(one.owned) == 5


# -- regular expressions ----------------------------------------------------------------------------------------------


def test_regular_expression_matches_whole_names(fixture: ConsumerFixture) -> None:
    fixture.topics.create("orders-eu", 1)
    fixture.topics.create("old-orders-eu", 1)
    one = Consumer(fixture, "one", regex="orders-.*")
    one.heartbeat()
    assert one.owned == {("orders-eu", 0)}
    assert fixture.group.is_subscribed("orders-eu")


def test_invalid_regular_expression_is_refused_with_128(fixture: ConsumerFixture) -> None:
    assert fixture.join("one", regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert fixture.group.is_empty


def test_new_topic_that_matches_is_assigned(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", regex="orders-.*")
    one.heartbeat()
    fixture.topics.create("orders-us", 2)
    one.heartbeat()
    assert one.owned == {("orders-us", 0), ("orders-us", 1)}
    assert fixture.causes() == [CauseKind.TOPICS_CHANGED]
    assert "now matches orders-us" in fixture.rebalances[-1].causes[0].detail


def test_expressions_are_not_matched_again_with_every_topic_that_comes(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", regex="orders-.*")
    one.heartbeat()
    fixture.topics.create("orders-us", 1)
    one.heartbeat()
    fixture.topics.create("orders-eu", 1)
    one.heartbeat()
    assert one.owned == {("orders-us", 0)}
    fixture.pass_time(10)
    one.heartbeat()
    assert one.owned == {("orders-us", 0), ("orders-eu", 0)}


def test_names_and_expression_add_up(fixture: ConsumerFixture) -> None:
    fixture.topics.create("orders", 1)
    one = Consumer(fixture, "one", "t", regex="ord.*")
    one.heartbeat()
    assert len(one.owned) == 5


def test_expression_that_nobody_uses_is_removed(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", regex="t"), Consumer(fixture, "two", regex="t")
    fixture.become_stable(one, two)
    one.leave()
    assert set(fixture.group.stored.regexes) == {"t"}
    two.subscribe("t")
    two.heartbeat()
    assert fixture.group.stored.regexes == {}


# -- static members ---------------------------------------------------------------------------------------------------


def test_static_member_that_is_away_keeps_its_partitions(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t", instance="a"), Consumer(fixture, "two", "t", instance="b")
    fixture.become_stable(one, two)
    epoch, had = fixture.group.group_epoch, set(one.owned)
    assert one.leave(for_a_while=True).member_epoch == -2
    two.heartbeat()
    assert len(two.owned) == 2
    back = Consumer(fixture, "one-again", "t", instance="a")
    back.heartbeat()
    assert (back.epoch, back.owned) == (epoch, had)
    assert fixture.group.group_epoch == epoch, "nobody else notices"
    assert set(fixture.group.members) == {"one-again", "two"}


def test_static_member_may_come_back_under_its_old_id(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t", instance="a")
    one.heartbeat()
    one.leave(for_a_while=True)
    one.heartbeat()
    assert (one.epoch, len(one.owned)) == (2, 4)
    fixture.pass_time(SESSION_S - 1)
    assert "one" in fixture.group.members


def test_static_member_that_stays_away_is_thrown_out(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t", instance="a")
    one.heartbeat()
    one.leave(for_a_while=True)
    fixture.pass_time(SESSION_S + 1)
    assert fixture.group.is_empty


def test_instance_id_in_use_is_not_given_away(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t", instance="a")
    assert fixture.join("two", "t", instance="a").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert set(fixture.group.members) == {"one"}


def test_replaced_static_member_is_fenced(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t", instance="a")
    one.heartbeat()
    one.leave(for_a_while=True)
    fixture.join("two", "t", instance="a")
    assert fixture.heartbeat(beat("one", 2, instance_id="a")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.heartbeat(beat("one", -1, instance_id="a")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fixture.heartbeat(beat("one", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_unknown_instance_is_an_unknown_member(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    assert fixture.heartbeat(beat("one", 2, instance_id="a")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_successor_with_another_subscription_rebalances_the_group(fixture: ConsumerFixture) -> None:
    fixture.topics.create("u", 1)
    one = Consumer(fixture, "one", "t", instance="a")
    one.heartbeat()
    one.leave(for_a_while=True)
    back = Consumer(fixture, "two", "u", instance="a")
    fixture.become_stable(back)
    assert back.owned == {("u", 0)}
    assert fixture.causes() == [CauseKind.STATIC_MEMBER_FENCED, CauseKind.SUBSCRIPTION_CHANGED]


# -- offsets ----------------------------------------------------------------------------------------------------------


def refusal_of_commit(fixture: ConsumerFixture, member_id: str, epoch: int, version: int = 9) -> ErrorCode:
    try:
        fixture.group.check_commit(Sender(member_id, None, epoch), has_epoch=version >= 9)
    except Refused as error:
        return error.code
    return ErrorCode.NONE


def test_who_may_commit(fixture: ConsumerFixture) -> None:
    assert refusal_of_commit(fixture, "", -1) == ErrorCode.NONE, "nobody's group"
    fixture.join("one", "t")
    assert refusal_of_commit(fixture, "one", 2) == ErrorCode.NONE
    assert refusal_of_commit(fixture, "one", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert refusal_of_commit(fixture, "one", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal_of_commit(fixture, "two", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal_of_commit(fixture, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_may_fetch_offsets(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    fixture.group.check_fetch(None, -1)
    fixture.group.check_fetch("one", 2)
    for member_id, epoch, code in (("one", 0, ErrorCode.STALE_MEMBER_EPOCH), ("two", 1, ErrorCode.UNKNOWN_MEMBER_ID)):
        with pytest.raises(Refused) as caught:
            fixture.group.check_fetch(member_id, epoch)
        assert caught.value.code == code


# -- the log ----------------------------------------------------------------------------------------------------------


def test_decision_leaves_the_group_alone_until_it_is_replayed(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t", instance="a")
    fixture.become_stable(one, two)
    before = {
        name: value.copy() if hasattr(value, "copy") else value for name, value in snapshot(fixture.group).items()
    }
    outcome = fixture.group.heartbeat(read_consumer_heartbeat(beat("one", -1), CLIENT), fixture.moment)
    assert outcome.records
    assert snapshot(fixture.group) == before


def test_restart_finds_the_same_group_and_gives_fresh_sessions(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", regex="t")
    fixture.become_stable(one, two)
    before = snapshot(fixture.group)
    fixture.pass_time(SESSION_S - 1)
    fixture.restart()
    assert snapshot(fixture.group) == before
    fixture.pass_time(SESSION_S - 1)
    assert len(fixture.group.members) == 2
    fixture.pass_time(2)
    assert fixture.group.is_empty


def test_replaying_the_log_twice_is_as_good_as_once(fixture: ConsumerFixture) -> None:
    fixture.become_stable(Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t"))
    before = snapshot(fixture.group)
    for record in list(fixture.log):
        fixture.group.replay(record)
    assert snapshot(fixture.group) == before


def test_slow_revoker_is_still_watched_after_a_restart(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    one.heartbeat()
    two.heartbeat()
    one.is_stuck = True
    one.heartbeat()
    fixture.restart()
    for _ in range(7):
        fixture.pass_time(9)
        one.heartbeat()
        two.heartbeat()
    assert set(fixture.group.members) == {"two"}


def test_tombstones_remove_the_whole_group(fixture: ConsumerFixture) -> None:
    fixture.become_stable(Consumer(fixture, "one", "t"), Consumer(fixture, "two", regex="t", instance="a"))
    for record in fixture.group.tombstones():
        assert not fixture.group.is_deleted
        fixture.group.replay(record)
    assert fixture.group.is_deleted
    assert fixture.group.state == "Dead"


def test_partition_metadata_of_older_brokers_is_ignored(fixture: ConsumerFixture) -> None:
    group = ConsumerGroup("g", fixture.context)
    group.replay(CoordinatorRecord(ConsumerGroupPartitionMetadataKey("g"), None))
    assert group.is_deleted


def test_unknown_member_state_is_fenced_until_it_owns_nothing(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "one")
    fixture.group.replay(CoordinatorRecord(key, replace(fixture.group.stored.currents["one"], state=9)))
    one.heartbeat()
    assert one.error == ErrorCode.FENCED_MEMBER_EPOCH
    one.heartbeat()
    assert (one.error, len(one.owned)) == (0, 4)


def test_records_of_a_join_start_with_the_member(fixture: ConsumerFixture) -> None:
    fixture.join("one", "t")
    assert fixture.log[0].key == ConsumerGroupMemberMetadataKey("g", "one")


# -- the journal ------------------------------------------------------------------------------------------------------


def test_rebalance_is_told_when_everybody_has_settled(fixture: ConsumerFixture) -> None:
    one, two = Consumer(fixture, "one", "t"), Consumer(fixture, "two", "t")
    one.heartbeat()
    assert [(each.generation, each.members_before, each.members_after) for each in fixture.rebalances] == [(2, 0, 1)]
    two.heartbeat()
    fixture.now += 5
    fixture.become_stable(one, two)
    last = fixture.rebalances[-1]
    assert (last.generation, last.members_before, last.members_after, last.duration_ms) == (3, 1, 2, 5000)
    assert [(cause.kind, cause.member_id, cause.client_host) for cause in last.causes] == [
        (CauseKind.JOINED, "two", "/10.0.0.1")
    ]
    assert last.group_type == "consumer"


def test_rebalance_that_is_overtaken_is_told_too(fixture: ConsumerFixture) -> None:
    one, two, three = (Consumer(fixture, name, "t") for name in ("one", "two", "three"))
    one.heartbeat()
    two.heartbeat()
    three.heartbeat()
    assert [each.generation for each in fixture.rebalances] == [2, 3]


def test_cause_says_who_left_or_fell_silent(fixture: ConsumerFixture) -> None:
    one, two, three = (Consumer(fixture, name, "t") for name in ("one", "two", "three"))
    fixture.become_stable(one, two, three)
    one.leave()
    fixture.become_stable(two, three)
    assert fixture.causes() == [CauseKind.LEFT]
    fixture.pass_time(SESSION_S - 1)
    two.heartbeat()
    fixture.pass_time(2)
    fixture.become_stable(two)
    assert [(cause.kind, cause.member_id) for cause in fixture.rebalances[-1].causes] == [
        (CauseKind.SESSION_TIMEOUT, "three")
    ]


def test_end_of_the_last_member_is_a_finished_rebalance(fixture: ConsumerFixture) -> None:
    one = Consumer(fixture, "one", "t")
    one.heartbeat()
    one.leave()
    assert (fixture.rebalances[-1].generation, fixture.rebalances[-1].members_after) == (3, 0)


def test_description_names_topics_and_both_assignments(fixture: ConsumerFixture) -> None:
    Consumer(fixture, "one", "t", instance="a").heartbeat()
    described = described_consumer_group("g", fixture.group, fixture.topics)
    member = described.members[0]
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    assert (member.member_id, member.instance_id, member.member_epoch, member.member_type) == ("one", "a", 2, 1)
    assert [(each.topic_name, list(each.partitions)) for each in member.assignment.topic_partitions] == [
        ("t", [0, 1, 2, 3])
    ]
    assert member.target_assignment.topic_partitions
