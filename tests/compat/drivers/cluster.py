"""What the brokers of a cluster know, asked without a client of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from campaign.processes import wait_until
from ottla.testing import BrokerProcess, ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

_METADATA_V = 12
_REASSIGN_V = 0


@dataclass(frozen=True)
class Described:
    """One partition."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()

    @property
    def is_in_sync(self) -> bool:
        return set(self.replicas) == set(self.isr) and self.leader >= 0


class ClusterState:
    """The topics, as each running broker shows them."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster

    @property
    def running(self) -> Sequence[BrokerProcess]:
        return [broker for broker in self.cluster.brokers.values() if broker.running]

    def topic(self, name: str, broker: BrokerProcess) -> list[Described]:
        """Return the partitions of a topic as one broker knows them; none if it does not know the topic."""
        with RawClient(broker.bootstrap) as client:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            answer: Any = client.ask(asked, _METADATA_V)
        rows = sorted(answer.topics[0].partitions, key=lambda row: row.partition_index)
        return [
            Described(row.leader_id, tuple(row.replica_nodes), tuple(row.isr_nodes), tuple(row.offline_replicas))
            for row in rows
        ]

    def reassign(self, name: str, partition: int, replicas: Sequence[int] | None) -> None:
        """Start to move a partition, or cancel that with None. Brokers that are down are allowed."""
        row = ReassignablePartition(partition_index=partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[row])])
        with RawClient(self.running[0].bootstrap) as client:
            answer: Any = client.ask(request, _REASSIGN_V)
        assert answer.responses[0].partitions[0].error_code == 0, answer

    def wait(self, name: str, condition: Callable[[list[Described]], bool]) -> list[Described]:
        """Return the partitions when the condition holds at every running broker: they learn a change by watching."""
        found: list[Described] = []

        def is_shown() -> bool:
            nonlocal found
            for broker in self.running:
                found = self.topic(name, broker)
                if not condition(found):
                    return False
            return True

        wait_until(is_shown, lambda: f"{name}: {found}")
        return found

    def wait_in_sync(self, name: str, partitions: int) -> list[Described]:
        return self.wait(name, lambda found: len(found) == partitions and all(each.is_in_sync for each in found))
