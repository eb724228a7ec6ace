"""`ottla cluster` without a cluster: figures, plans and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ottla.admin.cluster import BrokerState, ClusterState, ReplicaLog
from ottla.admin.moves import plan_balance, plan_decommission
from ottla.admin.status import describe_status
from ottla.admin.topic_state import PartitionState
from ottla.cli import cluster_moves
from ottla.cli.cluster_commands import command
from ottla.cli.cluster_moves import parse_targets
from ottla.client.protocol.metadata import Node
from ottla.model.types import TopicPartition


def placement(number: int, leader: int | None, replicas: tuple[int, ...], **fields: Any) -> PartitionState:
    fields.setdefault("isr", replicas)
    return PartitionState(name=TopicPartition("orders", number), leader=leader, replicas=replicas, **fields)


def state(
    *partitions: PartitionState, brokers: tuple[int, ...] = (1, 2, 3), controller: int | None = 1
) -> ClusterState:
    known = {number: BrokerState(node=Node(number, "localhost", 9091 + number), rack=None) for number in brokers}
    return ClusterState(cluster_id="c", controller_id=controller, brokers=known, partitions=list(partitions))


def test_status_counts_each_problem_and_asks_for_min_isr_only_where_replicas_are_missing() -> None:
    asked: list[set[str]] = []

    def min_isr(topics: set[str]) -> dict[str, int]:
        asked.append(topics)
        return {"orders": 2}

    healthy = describe_status(state(placement(0, 1, (1, 2, 3)), placement(1, 3, (2, 3, 1))), min_isr)
    assert healthy["healthy"] and not asked
    assert healthy["not_preferred_leaders"] == 1

    ill = describe_status(
        state(
            placement(0, None, (1, 2, 3), isr=(1,)),
            placement(1, 2, (2, 3, 1), isr=(2,)),
            placement(2, 3, (3, 1, 2), isr=(3, 1)),
            placement(3, 1, (1, 2, 3), isr=(1, 2), adding=(3,)),
        ),
        min_isr,
    )
    assert asked == [{"orders"}]
    assert not ill["healthy"]
    assert (ill["offline_partitions"], ill["under_min_isr_partitions"], ill["under_replicated_partitions"]) == (1, 1, 4)
    assert ill["reassigning_partitions"] == 1
    problems = [row["problem"] for row in ill["problems"]]
    assert problems == ["no leader", "under min.insync.replicas", "replicas not in sync", "replicas added"]


def test_status_shows_the_lag_of_replicas_that_are_not_in_sync() -> None:
    partitions = [
        placement(0, 1, (1, 2, 3), isr=(1,)),
        placement(1, 1, (1, 2), isr=(1,)),
        placement(2, None, (1, 2), isr=(1,)),
        placement(3, 1, (1, 2)),
    ]
    first, second, third, _ = (each.name for each in partitions)
    asked: list[list[TopicPartition]] = []

    def replica_logs(names: Sequence[TopicPartition]) -> dict[tuple[TopicPartition, int], ReplicaLog]:
        asked.append(list(names))
        return {
            (first, 1): ReplicaLog(1000, 0),
            (first, 2): ReplicaLog(400, 60),
            (first, 3): ReplicaLog(1200, 70),  # not compacted yet
            (second, 1): ReplicaLog(1000, 0),
            (third, 2): ReplicaLog(1, 1),
        }

    rows = describe_status(state(*partitions), lambda topics: {}, replica_logs)["problems"]
    assert asked == [[first, second, third]]
    assert [(row["lag_records"], row["lag_bytes"]) for row in rows] == [(70, 600), (None, None), (None, None)]
    assert rows[0]["lag"] == [
        {"replica": 2, "records": 60, "bytes": 600},
        {"replica": 3, "records": 70, "bytes": 0},
    ]


def test_cluster_without_a_controller_is_not_healthy() -> None:
    assert not describe_status(state(controller=None), lambda topics: {})["healthy"]


def test_plans_are_made_from_the_metadata_of_the_cluster() -> None:
    now = state(*(placement(number, 1, (1, 2)) for number in range(4)))
    moves = plan_balance(now)
    load = dict.fromkeys((1, 2, 3), 0)
    for replicas in {
        **{each.name: each.replicas for each in now.partitions},
        **{m.partition: m.new for m in moves},
    }.values():
        for broker in replicas:
            load[broker] += 1
    assert sorted(load.values()) == [2, 3, 3]
    for move in plan_decommission(now, [2]):
        assert move.new == (1, 3) or move.new == (3, 1)


def test_arguments_name_a_partition_and_its_replicas() -> None:
    context, parameter = click.Context(cluster_moves.reassign), cluster_moves.reassign.params[0]
    assert parse_targets(context, parameter, ("orders:0=3,1", "a.b-c:12")) == {
        TopicPartition("orders", 0): (3, 1),
        TopicPartition("a.b-c", 12): None,
    }
    for wrong in ("orders", "orders:x=1", "orders:0=", "orders:0=1,,2", ":0=1"):
        with pytest.raises(click.BadParameter, match="TOPIC:PARTITION=BROKER"):
            parse_targets(context, parameter, (wrong,))


def test_unclean_election_needs_a_topic() -> None:
    result = CliRunner().invoke(command, ["elect", "--unclean"])
    assert result.exit_code == 2
    assert "--unclean needs the names of topics" in result.output
