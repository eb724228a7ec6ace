"""The health of a cluster: its figures, and the partitions that have a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.admin.cluster import ClusterState, ReplicaLog
from ottla.admin.topic_state import PartitionState
from ottla.model.types import TopicPartition

ReplicaLogs = Callable[[Sequence[TopicPartition]], Mapping[tuple[TopicPartition, int], ReplicaLog]]

#: partitions whose lag `describe_status` asks for
_LAGS_MAX = 1000


def is_healthy(state: ClusterState) -> bool:
    """Return whether there is a controller, every partition has a leader, and all replicas are in sync."""
    is_complete = all(each.leader is not None and not each.is_under_replicated for each in state.partitions)
    return state.controller_id is not None and is_complete


def describe_status(
    state: ClusterState, min_isr: Callable[[set[str]], dict[str, int]], replica_logs: ReplicaLogs = lambda names: {}
) -> dict[str, Any]:
    """Return the figures of the cluster, and a row for each partition with a problem.

    ``min_isr`` returns min.insync.replicas of topics, ``replica_logs`` the logs of partitions. Both are asked only
    about partitions with missing replicas, the second about the first _LAGS_MAX of them.
    """
    missing = [each for each in state.partitions if each.is_under_replicated]
    limits = min_isr({each.name.topic for each in missing}) if missing else {}
    logs = replica_logs([each.name for each in missing[:_LAGS_MAX]]) if missing else {}
    problems = []
    for each in state.partitions:
        problem = _problem(each, limits.get(each.name.topic, 1))
        if problem:
            problems.append({**partition_row(each), "problem": problem, **_lag_row(each, logs)})
    counts = Counter(row["problem"] for row in problems)
    return {
        "cluster_id": state.cluster_id,
        "controller_id": state.controller_id,
        "brokers": len(state.brokers),
        "topics": len(state.topics),
        "partitions": len(state.partitions),
        "offline_partitions": counts["no leader"],
        "under_min_isr_partitions": counts["under min.insync.replicas"],
        "under_replicated_partitions": len(missing),
        "reassigning_partitions": sum(each.is_reassigned for each in state.partitions),
        "not_preferred_leaders": sum(each.leader not in (None, each.preferred) for each in state.partitions),
        "healthy": is_healthy(state),
        "problems": problems,
    }


def _problem(each: PartitionState, min_isr: int) -> str | None:
    if each.leader is None:
        return "no leader"
    if len(each.isr) < min(min_isr, len(each.replicas)):
        return "under min.insync.replicas"
    if each.is_under_replicated:
        return "replicas added" if each.adding else "replicas not in sync"
    return None


def _lag_row(each: PartitionState, logs: Mapping[tuple[TopicPartition, int], ReplicaLog]) -> dict[str, Any]:
    """Return the lag of each replica that is not in sync, and the largest ones; None where it is not known."""
    leader = None if each.leader is None else logs.get((each.name, each.leader))
    lags = []
    for number in each.replicas:
        its_log = logs.get((each.name, number))
        if number not in each.isr and leader is not None and its_log is not None:
            size = max(leader.size_bytes - its_log.size_bytes, 0)
            lags.append({"replica": number, "records": its_log.lag_records, "bytes": size})
    return {
        "lag": lags,
        "lag_records": max((lag["records"] for lag in lags), default=None),
        "lag_bytes": max((lag["bytes"] for lag in lags), default=None),
    }


def partition_row(each: PartitionState) -> dict[str, Any]:
    return {
        "topic_name": each.name.topic,
        "partition_id": each.name.partition,
        "leader": each.leader,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
    }
