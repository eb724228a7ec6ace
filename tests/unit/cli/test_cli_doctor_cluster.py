"""`ottla doctor`: what it says about a cluster."""

from __future__ import annotations

from typing import Any

from ottla.admin.cluster import BrokerState, ClusterState
from ottla.admin.topic_state import PartitionState
from ottla.cli.doctor import Check
from ottla.cli.doctor_cluster import judge
from ottla.client.protocol.metadata import Node
from ottla.model.types import TopicPartition


def placement(number: int, leader: int | None, isr: tuple[int, ...] = (1, 2, 3), **fields: Any) -> PartitionState:
    return PartitionState(name=TopicPartition("orders", number), leader=leader, replicas=(1, 2, 3), isr=isr, **fields)


def checks(
    *partitions: PartitionState, brokers: tuple[int, ...] = (1, 2, 3), controller: int | None = 2
) -> dict[str, Check]:
    known = {number: BrokerState(node=Node(number, "localhost", 9092), rack=None) for number in brokers}
    state = ClusterState(cluster_id="c", controller_id=controller, brokers=known, partitions=list(partitions))
    return {check.name: check for check in judge(state, lambda topics: dict.fromkeys(topics, 2))}


def test_healthy_cluster_passes() -> None:
    found = checks(placement(0, 1))
    assert {name: check.verdict for name, check in found.items()} == {"controller": "ok", "partitions": "ok"}


def test_missing_controller_fails_and_names_zookeeper() -> None:
    found = checks(placement(0, 1), controller=None)["controller"]
    assert found.verdict == "fail" and "ZooKeeper" in found.remedy


def test_worst_problem_of_the_partitions_decides() -> None:
    slow = placement(0, 1, (1, 2))
    few = placement(1, 1, (1,))
    lost = placement(2, None, (1,))
    for partitions, verdict, words in (
        ([slow], "warn", "1 with replicas that are not in sync (orders:0)"),
        ([slow, few], "fail", "refuse acks=all (orders:1)"),
        ([slow, few, lost], "fail", "1 without a leader (orders:2)"),
    ):
        found = checks(*partitions, brokers=(1, 2))
        assert found["brokers"].detail == "brokers with replicas that do not run: 3"
        assert "ottla cluster decommission 3" in found["brokers"].remedy
        assert found["partitions"].verdict == verdict
        assert words in found["partitions"].detail
        assert "start the brokers that do not run" in found["partitions"].remedy


def test_long_lists_of_partitions_are_shortened() -> None:
    found = checks(*(placement(number, None, (1,)) for number in range(5)))["partitions"]
    assert found.detail == "5 without a leader (orders:0, orders:1, orders:2 and 2 more)"
    assert "see the logs of the brokers" in found.remedy


def test_leaders_that_are_not_preferred_are_reported() -> None:
    assert "ottla cluster elect" in checks(placement(0, 2))["leaders"].remedy
