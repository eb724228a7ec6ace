"""What the cluster's client does when brokers say no, go away or speak of the past."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import Cut, FakeCluster, Silence

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation, OffsetAt
from ottla.client.errors import (
    BrokerError,
    ClusterUnreachable,
    PropertyRefused,
    TimedOut,
    UnsupportedByBroker,
)
from ottla.client.protocol.metadata import parse_bootstrap
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from ottla.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def latest(cluster: Cluster) -> dict[TopicPartition, OffsetAt]:
    return cluster.list_offsets({P0: LATEST, P1: LATEST}, isolation=Isolation.READ_COMMITTED)


def test_a_topic_that_does_not_exist_is_absent(cluster: Cluster) -> None:
    assert set(cluster.topics(["t", "gone"])) == {"t"}


def test_topic_is_absent_only_if_no_broker_knows_it(fake: FakeCluster, cluster: Cluster) -> None:
    # The first broker that is asked has not heard of the topic.
    fake.plan("Metadata", 3)
    assert cluster.topics(["t"])["t"].partitions == 2
    assert not cluster.topics(["gone"])
    assert [broker for broker, api, _, _ in fake.asked if api == "Metadata"] == [1, 2, 1, 2]


def test_paused_broker_does_not_decide_whether_a_topic_exists(
    fake: FakeCluster, cluster: Cluster, clock: list[float]
) -> None:
    fake.paused = {2}
    assert set(cluster.topics(["t", "gone"])) == {"t"}
    assert clock[0] < 1006


def test_offsets_are_asked_of_each_leader(fake: FakeCluster, cluster: Cluster) -> None:
    fake.leaders["t", 1] = 2
    assert latest(cluster) == {P0: OffsetAt(100, -1), P1: OffsetAt(101, -1)}
    assert {broker for broker, api, _, _ in fake.asked if api == "ListOffsets"} == {1, 2}


def test_earliest_and_latest_may_be_asked_at_once(cluster: Cluster) -> None:
    found = cluster.list_offsets({P0: EARLIEST, P1: LATEST}, isolation=Isolation.READ_UNCOMMITTED)
    assert (found[P0].offset, found[P1].offset) == (5, 101)


def test_metadata_is_asked_once_while_it_is_right(fake: FakeCluster, cluster: Cluster) -> None:
    latest(cluster)
    latest(cluster)
    assert len(fake.requests("Metadata")) == 1


def test_a_leader_that_has_moved_is_found(fake: FakeCluster, cluster: Cluster) -> None:
    latest(cluster)
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    assert latest(cluster)[P0].offset == 100


def test_a_partition_that_was_answered_is_not_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    latest(cluster)
    fake.leaders["t", 1] = 2
    fake.asked.clear()
    latest(cluster)
    asked = [[row.partition_index for row in request.topics[0].partitions] for request in fake.requests("ListOffsets")]
    assert asked == [[0, 1], [1]]


@pytest.mark.parametrize("code", [5, 6, 7, 9, 56, 74, 75, 78])
def test_codes_that_pass_are_asked_again(fake: FakeCluster, cluster: Cluster, code: int) -> None:
    fake.plan("ListOffsets", code, code)
    assert latest(cluster)[P0].offset == 100


def test_a_code_that_stays_ends_with_the_timeout_and_its_cause(
    fake: FakeCluster, cluster: Cluster, clock: list[float]
) -> None:
    fake.plan("ListOffsets", *[6] * 10_000)
    with pytest.raises(TimedOut, match="no success within 30 s; last: offsets of t-0: NOT_LEADER_OR_FOLLOWER") as told:
        latest(cluster)
    assert isinstance(told.value.__cause__, BrokerError)
    assert 1029 < clock[0] <= 1030


def test_a_code_that_nothing_cures_is_raised_at_once(fake: FakeCluster, cluster: Cluster, clock: list[float]) -> None:
    fake.plan("ListOffsets", 29)
    with pytest.raises(BrokerError, match="does not let this client use the topic") as told:
        latest(cluster)
    assert (told.value.code, told.value.retriable, clock[0]) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False, 1000.0)


def test_a_wrong_name_does_not_cost_the_whole_timeout(cluster: Cluster, clock: list[float]) -> None:
    with pytest.raises(BrokerError, match="check the topic's name") as told:
        cluster.list_offsets({TopicPartition("gone", 0): LATEST}, isolation=Isolation.READ_COMMITTED)
    assert told.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert clock[0] <= 1005


def test_a_partition_that_does_not_exist_is_unknown(cluster: Cluster) -> None:
    with pytest.raises(BrokerError, match="t-9: UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.list_offsets({TopicPartition("t", 9): LATEST}, isolation=Isolation.READ_COMMITTED)


def test_a_topic_that_was_just_made_is_waited_for(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("Metadata", 3, 3)
    assert latest(cluster)[P1].offset == 101


@pytest.mark.parametrize("failure", [Cut, Silence])
def test_a_lost_connection_is_opened_again(fake: FakeCluster, cluster: Cluster, failure: type[Exception]) -> None:
    fake.plan("ListOffsets", failure)
    assert latest(cluster)[P0].offset == 100


def test_a_bootstrap_server_that_is_down_is_passed_over(fake: FakeCluster, cluster: Cluster) -> None:
    fake.down = {1}
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    assert latest(cluster)[P0].offset == 100


def test_a_cluster_without_an_answer_is_named_with_the_reason(
    fake: FakeCluster, cluster: Cluster, clock: list[float]
) -> None:
    fake.down = {1, 2}
    with pytest.raises(ClusterUnreachable, match=r"the cluster at fake:9001,fake:9002 cannot be .*connection refused"):
        cluster.topics()
    assert 1029 < clock[0] <= 1030


def test_paused_leader_is_not_asked_who_leads_now(fake: FakeCluster, cluster: Cluster, clock: list[float]) -> None:
    latest(cluster)
    fake.paused = {1}
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    # One attempt ends at the paused leader. The next one asks the other broker, and needs no time.
    assert latest(cluster)[P0].offset == 100
    assert clock[0] < 1016


def test_paused_leader_takes_one_attempt_of_a_long_timeout(fake: FakeCluster, clock: list[float]) -> None:
    with Cluster("fake:9001,fake:9002", timeout_s=120.0) as patient:
        latest(patient)
        fake.paused = {1}
        fake.leaders = {("t", 0): 2, ("t", 1): 2}
        assert latest(patient)[P0].offset == 100
    assert clock[0] < 1016


def test_paused_bootstrap_server_costs_a_part_of_the_timeout_once(
    fake: FakeCluster, cluster: Cluster, clock: list[float]
) -> None:
    fake.paused = {1}
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    assert latest(cluster)[P0].offset == 100
    assert 1009 < clock[0] < 1011
    latest(cluster)
    assert clock[0] < 1011


def test_broker_that_answers_again_is_asked_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.paused = {1}
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    latest(cluster)
    fake.paused, fake.down = set(), {2}
    fake.leaders = {("t", 0): 1, ("t", 1): 1}
    assert latest(cluster)[P0].offset == 100


def test_paused_coordinator_leaves_time_for_its_successor(
    fake: FakeCluster, cluster: Cluster, clock: list[float]
) -> None:
    cluster.commit("g", {P0: 4})
    fake.paused, fake.coordinator = {2}, 1
    cluster.commit("g", {P0: 5})
    assert clock[0] < 1016


def test_topic_is_created_by_the_next_controller(fake: FakeCluster, cluster: Cluster, clock: list[float]) -> None:
    cluster.topics(["t"])
    fake.down, fake.controller = {1}, 2
    fake.leaders = {("t", 0): 2, ("t", 1): 2}
    fake.plan("CreateTopics", lambda _, request: CreateTopicsResponse(topics=[CreatableTopicResult(name="t")]))
    assert cluster.create_topic("t", 2)
    assert clock[0] < 1001


def test_a_coordinator_that_moves_is_looked_up_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("OffsetCommit", 14, 16, Cut)
    cluster.commit("g", {P0: 4})
    assert len(fake.requests("OffsetCommit")) == 4
    assert len(fake.requests("FindCoordinator")) == 4


def test_a_commit_into_a_group_with_members_says_so(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("OffsetCommit", 25)
    with pytest.raises(BrokerError, match="the group has active members"):
        cluster.commit("g", {P0: 4})


def test_distrusted_leader_is_the_last_one_that_is_asked_who_leads(fake: FakeCluster, cluster: Cluster) -> None:
    latest(cluster)

    def name_itself(broker_id: int, request: Any) -> Any:
        fake.leaders = {("t", 0): broker_id, ("t", 1): broker_id}
        return fake._Metadata(broker_id, request, 0)

    fake.plan("Metadata", name_itself, name_itself)
    cluster.distrust_leader(P0)
    assert cluster.leader(P0, time.monotonic() + 30).node.broker_id == 2


def test_distrusted_leader_is_asked_when_no_other_broker_answers(fake: FakeCluster, cluster: Cluster) -> None:
    latest(cluster)
    fake.down = {2}
    cluster.distrust_leader(P0)
    assert cluster.leader(P0, time.monotonic() + 30).node.broker_id == 1


def test_settings_of_a_topic_are_read_again_while_the_topic_is_unknown(fake: FakeCluster, cluster: Cluster) -> None:
    def settings(code: int) -> Callable[[int, Any], Any]:
        def answer(broker_id: int, request: Any) -> Any:
            (resource,) = request.resources
            assert (resource.resource_type, resource.resource_name) == (2, "t")
            configs = [
                DescribeConfigsResourceResult(name=name, value="7") for name in resource.configuration_keys if not code
            ]
            return DescribeConfigsResponse(results=[DescribeConfigsResult(error_code=code, configs=configs)])

        return answer

    fake.plan("DescribeConfigs", settings(3), settings(0))
    assert cluster.topic_config("t", ["retention.ms"]) == {"retention.ms": "7"}


def test_coordinators_are_asked_one_by_one_where_the_broker_is_old(fake: FakeCluster, cluster: Cluster) -> None:
    fake.versions[10] = (0, 3)
    cluster.commit("g", {P0: 4})
    assert fake.requests("FindCoordinator")[0].key == "g"


def test_a_broker_that_is_too_old_is_named(fake: FakeCluster, cluster: Cluster) -> None:
    fake.versions[2] = (0, 1)
    with pytest.raises(UnsupportedByBroker, match=r"ListOffsets in version 2 or newer, and broker at .* 0 to 1"):
        latest(cluster)


def test_a_broker_older_than_the_first_question_is_asked_in_its_version(fake: FakeCluster, cluster: Cluster) -> None:
    fake.plan("ApiVersions", 35)
    assert latest(cluster)[P0].offset == 100
    assert [version for _, api, version, _ in fake.asked if api == "ApiVersions"][:2] == [3, 0]


def test_bootstrap_servers_are_parsed_as_people_write_them() -> None:
    assert parse_bootstrap("PLAINTEXT://a:1, [::1]:2,b") == [("a", 1), ("::1", 2), ("b", 9092)]
    with pytest.raises(PropertyRefused, match="not of the form HOST:PORT"):
        parse_bootstrap("a b")
