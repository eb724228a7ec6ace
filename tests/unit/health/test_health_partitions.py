"""Checks of partitions: each names its fault in a picture, and says what to do."""

from __future__ import annotations

import pytest
from pictures import broker, broker_settings, brokers, found, healthy, later, only, partition, topic, topics

from ottla.health.evaluation import evaluate
from ottla.health.findings import Severity
from ottla.health.types import Part
from ottla.model.types import TopicPartition


def test_healthy_cluster_has_no_findings() -> None:
    assert evaluate(healthy()) == []
    assert evaluate(later(healthy(), healthy())) == []


def test_partition_without_leader_is_an_error_that_names_the_broker_to_start() -> None:
    lost = topic("orders", partition("orders", 0), partition("orders", 1, leader=None, replicas=(4, 5), isr=(4,)))
    finding = only("offline-partitions", healthy(topics=topics(lost)))
    assert (finding.severity, finding.kind, finding.names) == (Severity.ERROR, "partition", ("orders-1",))
    assert finding.text == "1 partition without a leader (orders-1)"
    assert finding.advice.startswith("start brokers 4, 5; only if data is lost: 'ottla cluster elect --unclean")


def test_offline_partition_of_an_internal_topic_says_what_stops() -> None:
    lost = topic("__consumer_offsets", partition("__consumer_offsets", 0, leader=None))
    finding = only("coordinators-offline", healthy(topics=topics(lost)))
    assert finding.text == "1 of 1 partitions of __consumer_offsets without a leader: their groups stop"
    lost = topic("__transaction_state", partition("__transaction_state", 0, leader=None))
    assert "their transactional ids stop" in only("coordinators-offline", healthy(topics=topics(lost))).text


@pytest.mark.parametrize(("isr", "name"), [((1,), "under-min-isr"), ((1, 2), "at-min-isr"), ((1, 2, 3), None)])
def test_only_the_worst_problem_of_a_partition_with_missing_replicas_is_reported(
    isr: tuple[int, ...], name: str | None
) -> None:
    ill = topic("orders", partition("orders", 0, isr=isr))
    names = found(healthy(topics=topics(ill))).keys() & {"under-min-isr", "at-min-isr", "under-replicated"}
    assert names == ({name} if name else set())


def test_missing_replicas_above_the_minimum_are_a_warning() -> None:
    ill = topic("orders", partition("orders", 0, isr=(1, 2)), min_insync_replicas="1")
    assert only("under-replicated", healthy(topics=topics(ill))).names == ("orders-0",)
    # Without settings it is not known which of the three checks applies.
    ill = topic("orders", partition("orders", 0, isr=(1,)))
    unknown = healthy(topics=topics(ill), unknown={Part.TOPIC_SETTINGS: "not allowed"})
    assert "under-replicated" in found(unknown) and "under-min-isr" not in found(unknown)


def test_replicas_that_a_move_adds_are_no_problem() -> None:
    moving = topic("orders", partition("orders", 0, replicas=(1, 2, 3), isr=(1, 2), adding=(3,)))
    assert found(healthy(topics=topics(moving))) == {}


def test_single_replica_is_reported_in_a_cluster_of_several_brokers() -> None:
    single = topic("orders", partition("orders", 0, replicas=(1,), isr=(1,)), min_insync_replicas="1")
    assert only("single-replica", healthy(topics=topics(single))).names == ("orders",)
    alone = healthy(topics={"orders": single}, brokers={1: broker(1)})
    assert "single-replica" not in found(alone)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topic_with_fewer_replicas_than_brokers_is_reported(name: str) -> None:
    single = topic(name, partition(name, 0, replicas=(1,), isr=(1,)))
    finding = only("internal-topic-replicas", healthy(topics=topics(single)))
    assert finding.text == f"{name} has 1 replica, 3 brokers could hold one each"


def test_minimum_equal_to_the_replicas_is_reported() -> None:
    strict = topic("orders", min_insync_replicas="3")
    assert only("no-failure-tolerated", healthy(topics=topics(strict))).names == ("orders",)


def test_minimum_of_one_with_three_replicas_is_reported() -> None:
    loose = topic("orders", min_insync_replicas="1")
    assert only("min-isr-one", healthy(topics=topics(loose))).names == ("orders",)


def test_different_numbers_of_replicas_in_a_topic_are_reported() -> None:
    uneven = topic("orders", partition("orders", 0), partition("orders", 1, replicas=(1, 2), isr=(1, 2), leader=1))
    assert only("uneven-replication", healthy(topics=topics(uneven))).names == ("orders",)


def test_leaders_that_are_not_preferred_are_reported_above_a_tenth() -> None:
    moved = topic("orders", *(partition("orders", number, leader=(number + 1) % 3 + 1) for number in range(3)))
    finding = only("leaders-not-preferred", healthy(topics=topics(moved)))
    assert finding.text == "3 of 12 partitions are not led by their preferred replicas"


def test_broker_with_more_leaders_and_replicas_than_its_share_is_reported() -> None:
    many = topic("orders", *(partition("orders", n, replicas=(2, 3, 1), isr=(1, 2, 3), leader=2) for n in range(40)))
    finding = only("leaders-skewed", healthy(topics=topics(many)))
    assert finding.names == ("2",) and finding.text == "broker 2 has 43 leaders, a fair share are 16"
    few = topic("orders", *(partition("orders", n, replicas=(1, 2), isr=(1, 2), leader=1) for n in range(60)))
    four = {**brokers(), 4: broker(4, rack="a")}
    finding = only("replicas-skewed", healthy(topics={"orders": few}, brokers=four))
    assert finding.names == ("1", "2")


def test_replicas_in_one_rack_are_reported_if_there_are_several_racks() -> None:
    racks = {number: broker(number, rack="a" if number < 4 else "b") for number in (1, 2, 3, 4)}
    assert only("one-rack", healthy(brokers=racks)).names[0] == "orders-0"
    one = {number: broker(number, rack="a") for number in (1, 2, 3)}
    assert "one-rack" not in found(healthy(brokers=one))


def test_move_to_a_broker_that_does_not_run_is_stuck() -> None:
    moving = topic("orders", partition("orders", 0, replicas=(1, 2, 9), isr=(1, 2), adding=(9,)))
    finding = only("stuck-reassignment", healthy(topics=topics(moving)))
    assert finding.text == "1 move of replicas without progress (orders-0)"


def test_move_that_copies_nothing_between_two_readings_is_stuck() -> None:
    moving = topics(topic("orders", partition("orders", 0, isr=(1, 2), adding=(3,))))
    key = TopicPartition("orders", 0), 3
    before = healthy(topics=moving, added_bytes={key: 500})
    finding = only("stuck-reassignment", later(before, before))
    assert finding.text == "1 move of replicas without progress in 1m00s (orders-0)"
    assert "stuck-reassignment" not in found(later(before, healthy(topics=moving, added_bytes={key: 501})))


def test_throttle_is_reported_once_no_move_is_in_progress() -> None:
    throttled = topic("orders", leader_replication_throttled_replicas="0:1")
    assert only("throttle-left-behind", healthy(topics=topics(throttled))).names == ("orders",)
    moving = topic("payments", partition("payments", 0, isr=(1, 2), adding=(3,)))
    assert "throttle-left-behind" not in found(healthy(topics=topics(throttled, moving)))
    rates = broker_settings({}, {"leader.replication.throttled.rate": "1000000"})
    assert only("throttle-left-behind", healthy(brokers=rates)).names == ("1",)


def test_broker_with_replicas_that_is_not_registered_is_named_with_the_count() -> None:
    two = {number: broker(number) for number in (1, 2)}
    finding = only("missing-brokers", healthy(brokers=two))
    assert finding.names == ("3",)
    assert finding.text == "brokers with replicas that do not run: 3 (12 replicas)"
    assert "ottla cluster decommission 3" in finding.advice
