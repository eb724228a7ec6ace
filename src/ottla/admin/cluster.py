"""The requests of `ottla cluster`: brokers, partitions, reassignments and elections.

Works with Ottla and with Apache Kafka. Commands import this file when they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.admin.client import AdminClient, nodes_of, topic_state_of
from ottla.admin.error_codes import check, failure_of
from ottla.admin.failure import Failure
from ottla.admin.topic_state import PartitionState
from ottla.client.protocol.metadata import Node, by_topic
from ottla.model.errors import ErrorCode
from ottla.model.printable import shown
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

_MIN_ISR = "min.insync.replicas"
_POLL_S = 0.1


class Election(IntEnum):
    """ElectLeaders' election types."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A broker that is alive."""

    node: Node
    rack: str | None


class ReplicaLog(NamedTuple):
    """The log of one replica, as its broker describes it."""

    size_bytes: int
    #: committed records that it does not have, as far as the broker knows; always 0 in Apache Kafka
    lag_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All brokers and partitions at one moment."""

    cluster_id: str
    controller_id: int | None
    brokers: dict[int, BrokerState]
    partitions: list[PartitionState]

    @property
    def topics(self) -> set[str]:
        return {each.name.topic for each in self.partitions}


class ClusterAdmin:
    """Requests about a cluster as a whole. Every error is raised as a `Failure`."""

    def __init__(self, client: AdminClient, timeout_s: float) -> None:
        self.client = client
        self._timeout_ms = int(timeout_s * 1000)

    # Reading

    def state(self) -> ClusterState:
        """Return all brokers and partitions, with the reassignments that are in progress."""
        metadata = self.client.metadata()
        ongoing = self._reassignments(self._controller(metadata)) if len(metadata.brokers) > 1 else {}
        partitions = []
        for topic in sorted(metadata.topics, key=lambda row: row.name or ""):
            for each in topic_state_of(topic, internal=topic.is_internal).partitions:
                adding, removing = ongoing.get(each.name, ((), ()))
                partitions.append(replace(each, adding=adding, removing=removing))
        nodes = nodes_of(metadata)
        return ClusterState(
            cluster_id=metadata.cluster_id or "",
            controller_id=metadata.controller_id if metadata.controller_id >= 0 else None,
            brokers={
                row.node_id: BrokerState(node=nodes[row.node_id], rack=row.rack)
                for row in sorted(metadata.brokers, key=lambda row: row.node_id)
            },
            partitions=partitions,
        )

    def wait_for(self, is_reached: Callable[[ClusterState], bool]) -> ClusterState:
        """Return the state when it is reached, or the last one when --timeout is over.

        A broker may show a change a moment after another one has made it.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        while not is_reached(state := self.state()) and time.monotonic() + _POLL_S < deadline:
            time.sleep(_POLL_S)
        return state

    def min_isr(self, topics: Iterable[str]) -> dict[str, int]:
        """Return min.insync.replicas of these topics; a topic that was deleted meanwhile is absent."""
        values = self.client.topic_values(topics, [_MIN_ISR])
        return {topic: int(found[_MIN_ISR]) for topic, found in values.items() if _MIN_ISR in found}

    def replica_logs(self, partitions: Iterable[TopicPartition]) -> dict[tuple[TopicPartition, int], ReplicaLog]:
        """Return the logs of these partitions on the brokers that are alive, by partition and broker."""
        names = list(partitions)
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=[name.partition for name in rows])
            for topic, rows in by_topic(names).items()
        ]
        found: dict[tuple[TopicPartition, int], ReplicaLog] = {}
        for node in self.client.brokers() if topics else ():
            reply = self.client.ask(node, DescribeLogDirsRequest(topics=topics))
            rows = [(topic.name, row) for each in reply.results for topic in each.topics for row in topic.partitions]
            found |= {
                (TopicPartition(name, row.partition_index), node.broker_id): ReplicaLog(
                    row.partition_size, row.offset_lag
                )
                for name, row in rows
                if not row.is_future_key
            }
        return found

    def reassigned(self) -> set[TopicPartition]:
        """Return the partitions whose reassignment is in progress."""
        return set(self.reassignments())

    def reassignments(self) -> dict[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the added and the removed replicas of each partition that is reassigned."""
        return self._reassignments(self._controller(self.client.metadata([])))

    def _reassignments(self, node: Node) -> dict[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the added and the removed replicas of each partition that is reassigned."""
        reply = self.client.ask(node, ListPartitionReassignmentsRequest(timeout=self._timeout_ms, topics=None))
        check(reply.error_code, "reassignments", reply.error_message)
        return {
            TopicPartition(topic.name, row.partition_index): (tuple(row.adding_replicas), tuple(row.removing_replicas))
            for topic in reply.topics
            for row in topic.partitions
        }

    def _controller(self, metadata: Any) -> Node:
        nodes = nodes_of(metadata)
        # All brokers of Ottla, and of Kafka without ZooKeeper, accept requests for the controller.
        return nodes.get(metadata.controller_id) or min(nodes.values())

    # Changing

    def _ask_controller(self, request: Message) -> Any:
        return self.client.ask(self._controller(self.client.metadata([])), request)

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, Failure]:
        """Start to move the replicas of these partitions; None cancels a move. Return the failures."""
        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=name.partition, replicas=None if (to := targets[name]) is None else list(to)
                    )
                    for name in names
                ],
            )
            for topic, names in by_topic(targets).items()
        ]
        reply = self._ask_controller(AlterPartitionReassignmentsRequest(timeout=self._timeout_ms, topics=topics))
        check(reply.error_code, "reassignment", reply.error_message)
        return _failures(
            (TopicPartition(topic.name, row.partition_index), row)
            for topic in reply.responses
            for row in topic.partitions
        )

    def elect(self, kind: Election, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Failure]:
        """Elect the leaders of these partitions. Return the failures; a partition that needs no election is none."""
        names = list(partitions)
        if not names:
            return {}
        topics = [
            TopicPartitions(topic=topic, partitions=[name.partition for name in rows])
            for topic, rows in by_topic(names).items()
        ]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout=self._timeout_ms)
        reply = self._ask_controller(request)
        check(reply.error_code, "election")
        return _failures(
            (TopicPartition(topic.topic, row.partition_id), row)
            for topic in reply.replica_election_results
            for row in topic.partition_result
        )


def _failures(rows: Iterable[tuple[TopicPartition, Any]]) -> dict[TopicPartition, Failure]:
    return {
        name: failure_of(row.error_code, f"partition {name.partition} of topic {shown(name.topic)}", row.error_message)
        for name, row in rows
        if row.error_code not in (0, ErrorCode.ELECTION_NOT_NEEDED)
    }
