"""Requests about leaders, replicas, features and brokers to a cluster of one, for the comparison with Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ottla.wire import Message
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

TIMEOUT_MS = 5000
UPGRADE, SAFE_DOWNGRADE = 1, 2


def requests() -> Iterator[tuple[str, Message, tuple[int, ...]]]:
    """Yield a name, a request and the versions in which it is sent. None of them changes anything."""
    for kind in (0, 1, 5):
        for rows in ([("one", [0, 9]), ("nowhere", [0])], []):
            yield f"elect {kind} {rows}", _elect(kind, rows), (1, 2)
    for replicas in ([], [99], [-5], None):
        yield f"reassign {replicas}", _reassign("one", 0, replicas), (0, 1)
    yield "reassign unknown partition", _reassign("one", 9, [99]), (0, 1)
    yield "reassign unknown topic", _reassign("nowhere", 0, None), (0, 1)
    yield "reassign other factor", _reassign("one", 0, [98, 99], allow_replication_factor_change=False), (1,)
    yield "reassignments", ListPartitionReassignmentsRequest(topics=None, timeout=TIMEOUT_MS), (0,)
    asked = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9]) for name in ("one", "nowhere")]
    yield "reassignments of", ListPartitionReassignmentsRequest(topics=asked, timeout=TIMEOUT_MS), (0,)
    yield "unregister", UnregisterBrokerRequest(broker_id=99), (0,)
    for name, level, kind in (
        ("transaction.version", 2, UPGRADE), ("transaction.version", 9, UPGRADE), ("transaction.version", 1, UPGRADE),
        ("transaction.version", -1, UPGRADE), ("transaction.version", 2, 9), ("transaction.version", 9, SAFE_DOWNGRADE),
        ("nowhere", 1, UPGRADE),
    ):  # fmt: skip
        yield f"feature {name} {level} {kind}", _update((name, level, kind)), (0, 1, 2)
    yield "features", _update(("transaction.version", 2, UPGRADE), ("nowhere", 1, UPGRADE)), (0, 1, 2)
    yield "no feature", _update(), (0, 1, 2)


def _elect(kind: int, rows: Sequence[tuple[str, list[int]]]) -> Message:
    partitions = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in rows]
    return ElectLeadersRequest(election_type=kind, topic_partitions=partitions, timeout=TIMEOUT_MS)


def _reassign(topic: str, number: int, replicas: list[int] | None, **fields: Any) -> Message:
    rows = [ReassignablePartition(partition_index=number, replicas=replicas)]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=rows)], timeout=TIMEOUT_MS, **fields
    )


def _update(*changes: tuple[str, int, int]) -> Message:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in changes
    ]
    return UpdateFeaturesRequest(feature_updates=updates, timeout=TIMEOUT_MS)
