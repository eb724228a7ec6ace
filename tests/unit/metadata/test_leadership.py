"""Elections, ISR changes, unclean starts and controlled shutdown, one rule per test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest
from tests.unit.metadata.metadata_store_fixtures import Simulated

from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.leadership import (
    BelowMin,
    balance_leaders,
    change_isr,
    elect,
    elect_partition,
    elect_preferred,
    elect_unclean,
    imbalance,
    leave,
    ops_change_isr,
    ops_elect,
    replace_partition,
    set_min_isr,
)
from ottla.broker.metadata.nodes import (
    CONTROLLER_EPOCH,
    TOPICS,
    broker_json,
    broker_path,
    controller_epoch_json,
    count_change,
    ops_create_skeleton,
    registered_json,
    registered_path,
    state_path,
)
from ottla.broker.metadata.store import Changed, Check, Create, MetadataStore, Node, Put, VersionConflict
from ottla.broker.metadata.topic_plans import ops_create_topic
from ottla.broker.metadata.unclean_marks import mark_offline, mark_unclean, ops_mark_unclean
from ottla.broker.metadata.view import (
    LOG_LOST,
    LOG_OFFLINE,
    NO_LEADER,
    ClusterView,
    LogEnd,
    PartitionView,
    TopicView,
    _states_of,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.types import Endpoint

HOST = Endpoint("PLAINTEXT", "h", 9092)


def part(leader: int = 1, isr: Iterable[int] = (1, 2, 3), **fields: object) -> PartitionView:
    options = {"leader_epoch": 5, "replicas": (1, 2, 3), "partition_epoch": 9, **fields}
    return PartitionView(leader=leader, isr=tuple(isr), **options)  # type: ignore[arg-type]


def topic_with(*partitions: PartitionView, name: str = "orders") -> TopicView:
    return TopicView(name=name, topic_id=name.encode().ljust(16, b"0"), partitions=partitions)


def view_of(*topics: TopicView, alive: Iterable[int]) -> ClusterView:
    view = ClusterView()
    value = broker_json([HOST], rack=None, incarnation=b"a", timestamp_ms=0)
    view.apply(Changed(broker_path(each), Node(value, 0, each)) for each in alive)
    view.topics = {topic.name: topic for topic in topics}
    return view


def two(_: TopicView) -> int:
    return 2


def refused(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


# -- elections --------------------------------------------------------------------------------------------------------


def test_nothing_changes_while_all_members_are_alive() -> None:
    partition = part()
    assert elect_partition(partition, {1, 2, 3}, 2) is partition
    assert elect(view_of(topic_with(partition), alive=[1, 2, 3]), min_isr=two) == []


def test_first_live_in_sync_replica_in_assignment_order_is_elected() -> None:
    after = elect_partition(part(replicas=(1, 3, 2)), {2, 3}, 2)
    assert (after.leader, after.leader_epoch, after.isr, after.partition_epoch) == (3, 6, (2, 3), 10)


def test_dead_follower_leaves_the_isr_and_the_leader_epoch_rises() -> None:
    after = elect_partition(part(), {1, 3}, 2)
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (1, 6, (1, 3), ())


def test_replicas_that_leave_a_too_small_isr_become_eligible() -> None:
    after = elect_partition(part(isr=(1, 2)), {1}, 2)
    assert (after.leader, after.isr, after.elr) == (1, (1,), (2,))
    after = elect_partition(part(), {3}, 2)
    assert (after.leader, after.isr, after.elr) == (3, (3,), (1, 2))


def test_without_a_live_member_there_is_no_leader_and_the_isr_stays() -> None:
    after = elect_partition(part(isr=(1, 2)), {3}, 2)
    assert (after.leader, after.leader_epoch, after.isr) == (NO_LEADER, 6, (1, 2))
    assert elect_partition(after, {3}, 2) is after, "decided again, nothing changes"
    assert elect_partition(after, {2, 3}, 2).leader == 2


def test_eligible_leader_replica_is_elected_if_no_in_sync_replica_is_alive() -> None:
    after = elect_partition(part(isr=(1,), elr=(3, 2)), {2, 3}, 2)
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 6, (2,), (1, 3))


def test_replica_outside_of_isr_and_elr_is_never_elected() -> None:
    assert elect_partition(part(isr=(1,)), {2, 3}, 1).leader == NO_LEADER


def test_unclean_replica_is_not_elected_while_another_one_is_electable() -> None:
    after = elect_partition(part(leader=NO_LEADER, isr=(1, 2), unclean=(LogEnd(1, 5, 90),)), {1, 2}, 1)
    assert (after.leader, after.isr, after.elr, after.unclean) == (2, (2,), (), ())


def test_unclean_replica_stays_eligible_until_the_isr_is_large_enough() -> None:
    marked = part(leader=NO_LEADER, isr=(1, 2), unclean=(LogEnd(1, 5, 90),))
    after = elect_partition(marked, {1, 2}, 2)
    assert (after.leader, after.isr, after.elr, after.unclean) == (2, (2,), (1,), (LogEnd(1, 5, 90),))
    assert elect_partition(after, {1}, 2).leader == NO_LEADER, "it may lack records that broker 2 has in memory"
    joined = change_isr(
        topic_with(after), 0, leader=2, leader_epoch=6, isr=(2, 1), alive={1, 2}, min_isr=2
    )  # fmt: skip
    assert (joined.isr, joined.elr, joined.unclean, joined.leader_epoch) == ((2, 1), (), (), 6)


def test_lost_log_does_not_stay_eligible() -> None:
    after = elect_partition(part(isr=(1, 2), unclean=(LogEnd(2, -1, LOG_LOST),)), {1, 2}, 2)
    assert (after.leader, after.isr, after.elr, after.unclean) == (1, (1,), (), ())


def test_highest_end_is_elected_when_all_members_are_back_unclean() -> None:
    ends = (LogEnd(1, 4, 120), LogEnd(2, 5, 90), LogEnd(3, 5, 80))
    after = elect_partition(part(leader=NO_LEADER, isr=(1, 2), elr=(3,), unclean=ends), {1, 2, 3}, 2)
    assert (after.leader, after.isr, after.elr, after.unclean) == (2, (2,), (), ()), (
        "the epoch counts before the offset"
    )


def test_first_replica_is_elected_if_the_ends_are_equal() -> None:
    ends = (LogEnd(2, 5, 90), LogEnd(3, 5, 90))
    assert elect_partition(part(leader=NO_LEADER, isr=(3, 2), unclean=ends), {1, 2, 3}, 2).leader == 2


@pytest.mark.parametrize(
    ("alive", "unclean"),
    [
        ({1, 2}, (LogEnd(1, 5, 90), LogEnd(2, 5, 80), LogEnd(3, 5, 95))),
        ({1, 2}, (LogEnd(1, 5, 90), LogEnd(2, 5, 80))),
        ({1, 2, 3}, (LogEnd(1, 5, 90), LogEnd(2, -1, LOG_LOST), LogEnd(3, 5, 80))),
    ],
)
def test_unclean_replicas_wait_for_all_members(alive: set[int], unclean: tuple[LogEnd, ...]) -> None:
    partition = part(leader=NO_LEADER, unclean=unclean)
    assert elect_partition(partition, alive, 2) is partition


def test_only_replica_leads_again_after_an_unclean_stop() -> None:
    topic = mark_unclean(topic_with(part(replicas=(1,), isr=(1,))), 1, {0: LogEnd(1, 5, 7)})
    assert topic is not None and topic.partitions[0].leader == NO_LEADER
    after = elect_partition(topic.partitions[0], {1}, 1)
    assert (after.leader, after.leader_epoch, after.unclean) == (1, 7, ())


def test_elr_is_emptied_if_the_setting_is_lowered() -> None:
    after = elect_partition(part(isr=(1,), elr=(2,)), {1, 2, 3}, 1)
    assert (after.elr, after.leader_epoch, after.partition_epoch) == ((), 5, 10)


def test_elr_does_not_count_if_the_setting_was_lowered_before_the_leader_died() -> None:
    after = elect_partition(part(isr=(1,), elr=(2,)), {2, 3}, 1)
    assert (after.leader, after.isr, after.elr, after.partition_epoch) == (NO_LEADER, (1,), (), 10)


def test_setting_larger_than_the_number_of_replicas_means_all() -> None:
    after = elect_partition(part(replicas=(1, 2), isr=(1, 2)), {1}, 9)
    assert after.elr == (2,)


def test_unclean_setting_elects_a_live_replica_except_in_internal_topics() -> None:
    lost = part(isr=(1,))
    view = view_of(topic_with(lost), topic_with(lost, name="__transaction_state"), alive=[2, 3])
    changed = {each.name: each for each in elect(view, min_isr=two, unclean_allowed=lambda _: True)}
    assert changed["orders"].partitions[0].leader == 2
    assert changed["__transaction_state"].partitions[0].leader == NO_LEADER


def test_only_the_given_topics_are_looked_at() -> None:
    view = view_of(topic_with(part()), topic_with(part(), name="b"), alive=[1])
    assert [topic.name for topic in elect(view, ["b", "deleted"], min_isr=two)] == ["b"]


# -- leaders that keep too few replicas in sync -----------------------------------------------------------------------


def test_leader_with_a_small_isr_is_replaced_after_three_seconds() -> None:
    cut = part(isr=(1,), elr=(2,))
    view, below = view_of(topic_with(cut), alive=[1, 2, 3]), BelowMin()
    assert elect(view, min_isr=two, below_min=below, now=10.0) == []
    assert elect(view, min_isr=two, below_min=below, now=12.9) == []
    (topic,) = elect(view, min_isr=two, below_min=below, now=13.0)
    after = topic.partitions[0]
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 6, (2,), (1,))


def test_time_begins_again_when_the_isr_was_large_enough() -> None:
    view, below = view_of(topic_with(part(isr=(1,), elr=(2,))), alive=[1, 2, 3]), BelowMin()
    elect(view, min_isr=two, below_min=below, now=0.0)
    elect(view_of(topic_with(part()), alive=[1, 2, 3]), min_isr=two, below_min=below, now=1.0)
    assert elect(view, min_isr=two, below_min=below, now=3.5) == []


def test_leaders_change_more_and_more_slowly_while_none_helps() -> None:
    partition, below, times = part(isr=(1,), elr=(2,)), BelowMin(), []
    for tick in range(240):
        changed = elect(view_of(topic_with(partition), alive=[1, 2, 3]), min_isr=two, below_min=below, now=tick / 4)
        if changed:
            partition = changed[0].partitions[0]
            times.append(tick / 4)
    assert len(times) == 4 and times[0] == 3.0, times


def test_leader_is_not_replaced_if_the_others_are_too_few() -> None:
    view, below = view_of(topic_with(part(isr=(1,), elr=(2,))), alive=[1, 2]), BelowMin()
    assert [elect(view, min_isr=two, below_min=below, now=now) for now in (0.0, 9.0)] == [[], []]


def test_leader_is_not_replaced_by_an_unclean_replica() -> None:
    partition = part(isr=(1,), elr=(2,), unclean=(LogEnd(2, 5, 9),))
    view, below = view_of(topic_with(partition), alive=[1, 2, 3]), BelowMin()
    assert [elect(view, min_isr=two, below_min=below, now=now) for now in (0.0, 9.0)] == [[], []]


# -- changes by leaders -----------------------------------------------------------------------------------------------


def propose(partition: PartitionView, isr: Iterable[int], **fields: object) -> PartitionView:
    options = {"leader": 1, "leader_epoch": 5, "alive": {1, 2, 3}, "min_isr": 2, **fields}
    return change_isr(topic_with(partition), 0, isr=tuple(isr), **options)  # type: ignore[arg-type]


def test_isr_change_by_the_leader_keeps_the_leader_epoch() -> None:
    after = propose(part(), (1, 3))
    assert (after.isr, after.elr, after.leader_epoch, after.partition_epoch) == ((1, 3), (), 5, 10)
    after = propose(after, (1,))
    assert (after.isr, after.elr) == ((1,), (3,))
    after = propose(after, (1, 2))
    assert (after.isr, after.elr) == ((1, 2), ()), "the ISR is large enough again"


def test_same_isr_is_no_change() -> None:
    partition = part()
    assert propose(partition, (3, 2, 1)) is partition


def test_dead_member_may_stay_until_the_controller_removes_it_and_cannot_join() -> None:
    assert propose(part(), (1, 3), alive={1}).isr == (1, 3)
    with pytest.raises(KafkaError) as error:
        propose(part(isr=(1,)), (1, 2), alive={1, 3})
    assert refused(error) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"leader": 2}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 4)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_proposals_are_refused(fields: dict[str, object], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as error:
        propose(part(), **{"isr": (1, 2), **fields})  # type: ignore[arg-type]
    assert refused(error) is code


def test_isr_of_an_unknown_partition_is_refused() -> None:
    with pytest.raises(KafkaError) as error:
        change_isr(topic_with(part()), 1, leader=1, leader_epoch=5, isr=(1,), alive={1}, min_isr=2)
    assert refused(error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_member_that_stays_in_the_isr_stays_unclean() -> None:
    partition = part(unclean=(LogEnd(2, 5, 9),))
    assert propose(partition, (1, 2)).unclean == (LogEnd(2, 5, 9),)


# -- brokers that start and stop --------------------------------------------------------------------------------------


def test_starting_broker_marks_only_partitions_of_which_it_is_a_member() -> None:
    topic = topic_with(part(), part(leader=2, isr=(2, 3)), part(leader=2, isr=(2,), elr=(1,)))
    marked = mark_unclean(topic, 1, {0: LogEnd(1, 5, 90), 1: LogEnd(1, 5, 80)})
    assert marked is not None
    assert [each.unclean for each in marked.partitions] == [(LogEnd(1, 5, 90),), (), (LogEnd(1, -1, LOG_LOST),)]
    assert [each.leader for each in marked.partitions] == [NO_LEADER, 2, 2]
    assert [each.leader_epoch for each in marked.partitions] == [6, 5, 6]
    assert mark_unclean(topic_with(part(isr=(2, 3), leader=2)), 1, {}) is None


def test_starting_broker_leaves_the_isr_of_another_leader_and_stays_eligible() -> None:
    marked = mark_unclean(topic_with(part()), 3, {0: LogEnd(3, 5, 90)})
    assert marked is not None
    (after,) = marked.partitions
    assert (after.leader, after.isr, after.elr, after.unclean) == (1, (1, 2), (3,), (LogEnd(3, 5, 90),))
    assert after.leader_epoch == 6, "the leader cannot serve its next fetches before it knows of this"
    assert elect_partition(after, {1, 2, 3}, 2) == after.changed(elr=(), unclean=()), "the ISR is large enough"


def test_second_unclean_start_replaces_the_end_of_the_log() -> None:
    marked = mark_unclean(topic_with(part(unclean=(LogEnd(2, 5, 90),))), 2, {0: LogEnd(2, 5, 85)})
    assert marked is not None and marked.partitions[0].unclean == (LogEnd(2, 5, 85),)


def test_lost_log_stays_lost_when_the_broker_starts_again() -> None:
    lost = topic_with(part(leader=NO_LEADER, isr=(2,), unclean=(LogEnd(2, -1, LOG_LOST),)))
    marked = mark_unclean(lost, 2, {0: LogEnd(2, -1, 0)})
    assert marked is not None and marked.partitions[0].unclean == (LogEnd(2, -1, LOG_LOST),)
    assert elect(view_of(marked, alive=[1, 2, 3]), min_isr=two) == []


@pytest.mark.parametrize(
    ("unclean", "run", "expected"),
    [
        ((), 7, LogEnd(2, 5, 90)),  # it is the log of the last run
        ((), 6, LogEnd(2, 7, LOG_LOST)),  # records were committed after its directory was removed
        ((LogEnd(2, 5, 90),), 6, LogEnd(2, 5, 90)),  # the start that marked it was interrupted
        ((LogEnd(2, 6, LOG_LOST),), 6, LogEnd(2, 5, 90)),  # its directory has come back
        ((LogEnd(2, 6, LOG_LOST),), 7, LogEnd(2, 6, LOG_LOST)),  # it was begun anew
        ((LogEnd(2, 6, LOG_LOST),), 5, LogEnd(2, 6, LOG_LOST)),  # it is older than the one that was lost
        ((LogEnd(2, 7, LOG_LOST),), 7, LogEnd(2, 5, 90)),  # its directory was absent in an interrupted start only
        ((LogEnd(2, -1, LOG_LOST),), -1, LogEnd(2, -1, LOG_LOST)),
    ],
)
def test_log_of_a_directory_that_was_absent_counts_only_if_it_is_the_one_that_was_lost(
    unclean: tuple[LogEnd, ...], run: int, expected: LogEnd
) -> None:
    topic = topic_with(part(leader=NO_LEADER, isr=(2,), unclean=unclean))
    marked = mark_unclean(topic, 2, {0: LogEnd(2, 5, 90)}, runs={0: run}, last_run=7)
    assert marked is not None and marked.partitions[0].unclean == (expected,)


def test_leader_whose_disk_failed_is_replaced_and_leaves_the_isr() -> None:
    marked = mark_offline(topic_with(part(), part(), part(leader=2, isr=(2, 3))), 1, {0: -1, 2: -1})
    assert marked is not None
    assert [each.unclean for each in marked.partitions] == [(LogEnd(1, -1, LOG_OFFLINE),), (), ()]
    assert [each.leader for each in marked.partitions] == [NO_LEADER, 1, 2]
    assert mark_offline(marked, 1, {0: -1, 2: -1}) is None, "it is marked already"
    after = elect_partition(marked.partitions[0], {1, 2, 3}, 2)
    assert (after.leader, after.isr, after.elr, after.unclean) == (2, (2, 3), (), ())


def test_mark_of_an_offline_log_gets_the_run_when_its_whole_directory_fails() -> None:
    alone = mark_offline(topic_with(part(isr=(1,))), 1, {0: -1})
    assert alone is not None
    marked = mark_offline(alone, 1, {0: 7})
    assert marked is not None and marked.partitions[0].unclean == (LogEnd(1, 7, LOG_OFFLINE),)
    assert marked.partitions[0].last_run_of(1) == 7
    assert mark_offline(marked, 1, {0: 8}) is mark_offline(marked, 1, {0: -1}) is None, "the first run had it last"


def test_replica_whose_disk_failed_never_leads_but_may_be_the_only_complete_one() -> None:
    offline = (LogEnd(1, -1, LOG_OFFLINE),)
    alone = part(leader=NO_LEADER, isr=(1,), unclean=offline)
    assert elect_partition(alone, {1, 2, 3}, 2) == alone
    assert elect_partition(alone, {1, 2, 3}, 2, unclean_allowed=True).leader == 2
    assert elect_partition(alone, {1}, 2, unclean_allowed=True).leader == NO_LEADER
    eligible = part(leader=2, isr=(2,), elr=(1,), unclean=offline)
    assert elect_partition(eligible, {1, 2, 3}, 2) == eligible, "it stays eligible"
    both = part(leader=NO_LEADER, isr=(1, 2), unclean=(*offline, LogEnd(2, 5, 90)))
    assert elect_partition(both, {1, 2, 3}, 2) == both, "broker 1 may have records that broker 2 lost"


def test_log_that_was_offline_is_judged_by_its_end_after_the_next_start() -> None:
    marked = mark_unclean(topic_with(part(isr=(1,), unclean=(LogEnd(1, -1, LOG_OFFLINE),))), 1, {0: LogEnd(1, 5, 90)})
    assert marked is not None and marked.partitions[0].unclean == (LogEnd(1, 5, 90),)
    lost = topic_with(part(isr=(1,), unclean=(LogEnd(1, -1, LOG_LOST),)))
    assert mark_offline(lost, 1, {0: 7}) is None, "it stays lost"


@pytest.mark.parametrize(
    ("before", "run", "end", "after"),
    [
        (LogEnd(1, 6, LOG_OFFLINE), 6, LogEnd(1, 5, 90), LogEnd(1, 5, 90)),  # its directory can be used again
        (LogEnd(1, 6, LOG_OFFLINE), 6, LogEnd(1, -1, LOG_OFFLINE), LogEnd(1, -1, LOG_OFFLINE)),  # but not the log
        (LogEnd(1, 6, LOG_OFFLINE), 5, LogEnd(1, 5, 90), LogEnd(1, 6, LOG_LOST)),  # it is an older log
        (LogEnd(1, 6, LOG_OFFLINE), 7, LogEnd(1, 5, 90), LogEnd(1, 6, LOG_LOST)),  # it was begun anew
        (LogEnd(1, 6, LOG_OFFLINE), -1, LogEnd(1, -1, LOG_LOST), LogEnd(1, 6, LOG_LOST)),  # the directory was removed
        (LogEnd(1, 6, LOG_OFFLINE), -1, LogEnd(1, 7, LOG_OFFLINE), LogEnd(1, 6, LOG_OFFLINE)),  # still unusable
        (
            LogEnd(1, -1, LOG_OFFLINE),
            -1,
            LogEnd(1, 7, LOG_OFFLINE),
            LogEnd(1, 7, LOG_OFFLINE),
        ),  # failed in the last run
        (LogEnd(1, 6, LOG_LOST), -1, LogEnd(1, 7, LOG_OFFLINE), LogEnd(1, 6, LOG_LOST)),  # it was lost before
        (LogEnd(1, 5, 90), 6, LogEnd(1, 5, 80), LogEnd(1, 7, LOG_LOST)),  # it was not offline since
    ],
)
def test_log_of_an_unusable_directory_counts_only_if_it_has_been_offline_since(
    before: LogEnd, run: int, end: LogEnd, after: LogEnd
) -> None:
    topic = topic_with(part(isr=(1,), unclean=(before,)))
    marked = mark_unclean(topic, 1, {0: end}, runs={0: run}, last_run=7)
    assert marked is not None and marked.partitions[0].unclean == (after,)


def test_stopping_broker_hands_over_leaders_and_leaves_isrs() -> None:
    led, followed, other = part(), part(leader=2), part(leader=2, isr=(2, 3))
    alone, last = part(isr=(1,)), part(isr=(1, 2), replicas=(1, 2))
    view = view_of(topic_with(led, followed, other, alone, last), alive=[1, 2, 3])
    (topic,) = leave(view, 1, min_isr=two)
    states = [(each.leader, each.leader_epoch, each.isr, each.elr) for each in topic.partitions]
    assert states[:2] == [(2, 6, (2, 3), ()), (2, 5, (2, 3), ())], "the leader epoch rises where the leader changes"
    assert topic.partitions[2] is other
    assert topic.partitions[3] is alone, "no other member can lead"
    assert states[4] == (2, 6, (2,), (1,))
    assert leave(view_of(topic_with(alone, other), alive=[1, 2, 3]), 1, min_isr=two) == []


def test_stopping_broker_hands_over_to_a_live_and_clean_member() -> None:
    partition = part(unclean=(LogEnd(2, 5, 9),))
    (topic,) = leave(view_of(topic_with(partition), alive=[1, 2, 3]), 1, min_isr=two)
    assert topic.partitions[0].leader == 3
    assert leave(view_of(topic_with(part(isr=(1, 2))), alive=[1, 3]), 1, min_isr=two) == []


# -- ElectLeaders and balance -----------------------------------------------------------------------------------------


def test_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    after = elect_preferred(topic_with(part(leader=2)), 0, {1, 2, 3})
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (1, 2, 3))


@pytest.mark.parametrize(
    ("partition", "alive", "code"),
    [
        (part(), {1, 2, 3}, ErrorCode.ELECTION_NOT_NEEDED),
        (part(leader=2), {2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (part(leader=2, isr=(2, 3)), {1, 2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (part(leader=2, unclean=(LogEnd(1, 5, 9),)), {1, 2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ],
)
def test_preferred_leader_that_cannot_lead_is_refused(
    partition: PartitionView, alive: set[int], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as error:
        elect_preferred(topic_with(partition), 0, alive)
    assert refused(error) is code


@pytest.mark.parametrize(
    ("unclean", "alive", "leader"),
    [
        ((LogEnd(1, 5, 90), LogEnd(2, 5, 95)), {1, 3}, 1),
        ((LogEnd(1, 5, 90), LogEnd(2, 5, 95)), {1, 2, 3}, 2),
        ((LogEnd(1, -1, LOG_LOST),), {1, 3}, 3),
        ((LogEnd(1, -1, LOG_LOST),), {1}, 1),
        ((LogEnd(1, 5, 90),), {1, 2, 3}, 2),
    ],
)
def test_requested_unclean_election_loses_as_little_as_possible(
    unclean: tuple[LogEnd, ...], alive: set[int], leader: int
) -> None:
    partition = part(leader=NO_LEADER, isr=(1, 2), unclean=unclean)
    after = elect_unclean(topic_with(partition), 0, alive, min_isr=1)
    assert (after.leader, after.leader_epoch, after.isr, after.elr, after.unclean) == (leader, 6, (leader,), (), ())


def test_unclean_election_is_refused_with_a_leader_or_without_live_replicas() -> None:
    with pytest.raises(KafkaError) as error:
        elect_unclean(topic_with(part()), 0, {1}, min_isr=2)
    assert refused(error) is ErrorCode.ELECTION_NOT_NEEDED
    with pytest.raises(KafkaError) as error:
        elect_unclean(topic_with(part(leader=NO_LEADER)), 0, {4}, min_isr=2)
    assert refused(error) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_leaders_move_back_when_more_than_a_tenth_is_led_elsewhere() -> None:
    here, elsewhere = part(), part(leader=2)
    moving = part(leader=2, adding=(3,))
    topic = topic_with(*[here] * 17, elsewhere, moving, part(leader=2, isr=(2, 3)))
    view = view_of(topic, alive=[1, 2, 3])
    assert imbalance(view) == {1: 15.0, 2: 0.0, 3: 0.0}
    (balanced,) = balance_leaders(view)
    assert [number for number, each in enumerate(balanced.partitions) if each != topic.partitions[number]] == [17]
    assert balanced.partitions[17].leader == 1
    assert balance_leaders(view, percentage=15) == []


# -- operations -------------------------------------------------------------------------------------------------------


def play(scenario: Callable[[MetadataStore, ClusterView], Awaitable[None]], topic: TopicView) -> None:
    """Run a scenario on a store with three registered brokers and a topic; its view is not kept current."""
    servers = Simulated()

    async def main() -> None:
        store = await servers.open()
        await store.multi(ops_create_skeleton(()))
        for each in (1, 2, 3):
            value = broker_json([HOST], rack=None, incarnation=b"a", timestamp_ms=0)
            await store.multi([Create(registered_path(each), registered_json(b"a")), Create(broker_path(each), value)])
        await store.multi(ops_create_topic(await load_view(store), topic))
        await scenario(store, await load_view(store))

    servers.run(main())


def test_decisions_of_a_former_controller_conflict() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        (changed,) = leave(view, 1, min_isr=two)
        await store.multi([Put(CONTROLLER_EPOCH, controller_epoch_json(2), 0)])
        with pytest.raises(VersionConflict, match=CONTROLLER_EPOCH):
            await store.multi(ops_elect(view, [changed], controller_epoch=0))
        await store.multi(ops_elect(view, [changed], controller_epoch=1))
        assert (await load_view(store)).topics["orders"] == changed

    play(scenario, topic_with(part(partition_epoch=0)))


def test_decision_about_a_state_that_has_changed_conflicts() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        (changed,) = leave(view, 1, min_isr=two)
        await store.multi(ops_elect(view, [changed]))
        with pytest.raises(VersionConflict, match=state_path("orders")):
            await store.multi(ops_elect(view, [changed]))
        await store.multi([count_change(TOPICS, 0, b"deleted")])
        with pytest.raises(VersionConflict, match=TOPICS):
            await store.multi(ops_elect(view, [changed]))

    play(scenario, topic_with(part()))


def test_follower_that_was_started_again_cannot_join_by_earlier_fetches() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        topic = view.topics["orders"]
        joined = replace_partition(topic, 0, propose(topic.partitions[0], (1, 2)))
        assert joined is not None
        ops = ops_change_isr(view, [joined], view.registered)
        assert Check(registered_path(2), 0) in ops
        await store.multi([Put(registered_path(2), registered_json(b"b"), 0)])
        with pytest.raises(VersionConflict, match=registered_path(2)):
            await store.multi(ops)
        later = await load_view(store)
        with pytest.raises(KafkaError) as error:
            ops_change_isr(later, [joined], view.registered)
        assert refused(error) is ErrorCode.INELIGIBLE_REPLICA
        assert list(later.brokers) == [1, 3], "the node of its earlier process does not count"

    play(scenario, topic_with(part(isr=(1,))))


def test_election_of_an_eligible_replica_checks_its_latest_start() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        view.brokers.pop(1)
        ops = ops_elect(view, elect(view, min_isr=two), controller_epoch=0)
        assert Check(registered_path(2), 0) in ops and ops_elect(view, [], controller_epoch=0) == []
        await store.multi(ops)

    play(scenario, topic_with(part(isr=(1,), elr=(2,))))


def test_earlier_process_of_a_broker_cannot_mark_the_logs_of_the_current_one() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        marked = mark_unclean(view.topics["orders"], 2, {0: LogEnd(2, 5, 90)})
        assert marked is not None and ops_mark_unclean(view, [], 2) == []
        await store.multi([Put(registered_path(2), registered_json(b"b"), 0)])
        with pytest.raises(VersionConflict, match=registered_path(2)):
            await store.multi(ops_mark_unclean(view, [marked], 2))
        await store.multi(ops_mark_unclean(await load_view(store), [marked], 2))
        assert (await load_view(store)).topics["orders"] == marked

    play(scenario, topic_with(part(partition_epoch=0)))


# -- min.insync.replicas in the state ----------------------------------------------------------------------------------


def test_smaller_value_removes_the_replicas_that_were_eligible_because_of_the_larger_one() -> None:
    below = part(isr=(1,), elr=(2, 3), min_isr=2, unclean=(LogEnd(1, 5, 90), LogEnd(2, 5, 80)))
    changed = set_min_isr(ClusterView(), topic_with(below), lambda view, topic, count: 1)
    assert changed is not None
    (after,) = changed.partitions
    assert (after.min_isr, after.elr, after.unclean) == (1, (), (LogEnd(1, 5, 90),))
    assert after.partition_epoch == below.partition_epoch + 1
    assert after.leader_epoch == below.leader_epoch


def test_larger_value_keeps_the_eligible_replicas_and_the_same_value_changes_nothing() -> None:
    below = topic_with(part(isr=(1,), elr=(2,), min_isr=2))
    changed = set_min_isr(ClusterView(), below, lambda view, topic, count: 3)
    assert changed is not None
    assert (changed.partitions[0].min_isr, changed.partitions[0].elr) == (3, (2,))
    assert set_min_isr(ClusterView(), below, lambda view, topic, count: 2) is None


def test_value_in_the_state_counts_and_not_the_setting() -> None:
    below = part(isr=(1,), elr=(2,), min_isr=2)
    assert elect_partition(below, {1, 2, 3}, 1) is below
    assert elect_partition(replace(below, min_isr=0), {1, 2, 3}, 1).elr == ()


def test_smaller_number_of_replicas_counts_while_replicas_are_added() -> None:
    growing = part(replicas=(1, 2, 3), adding=(2, 3), isr=(1,))
    changed = set_min_isr(ClusterView(), topic_with(growing), lambda view, topic, count: count)
    assert changed is not None
    assert changed.partitions[0].min_isr == 1


def test_state_keeps_one_value_or_one_for_each_partition() -> None:
    for values in ((2, 2), (2, 1), (0, 0), (2, 0)):
        topic = topic_with(*(part(min_isr=value) for value in values))
        assert [row.min_isr for row in _states_of(topic.state_json())] == list(values)
