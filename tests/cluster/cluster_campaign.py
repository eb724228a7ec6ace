"""What the campaigns on a cluster share: a topic under load, its leaders and in-sync replicas, and the end of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from cluster_load import CLIENTS, Load, check_replicas, wait
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

TOPIC = "events"
PARTITIONS = 3
REPLICAS = 3
DEADLINE_S = 60.0
_TRANSACTION = 1


class LoadedCluster:
    """A cluster with a topic of three replicas and the load on it."""

    def __init__(
        self, cluster: ClusterProcess, *, clients: Sequence[str] = CLIENTS, request_timeout_ms: int = 0
    ) -> None:
        self.cluster = cluster
        self.brokers = cluster.brokers
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.load = Load(
            cluster.bootstrap, TOPIC, partitions=PARTITIONS, clients=clients, request_timeout_ms=request_timeout_ms
        )

    def start(self) -> None:
        """Create the topic and start the load. Return when all replicas are in sync."""
        self.create_topic(TOPIC)
        self.load.start()
        self.wait_in_sync()

    def create_topic(self, name: str) -> None:
        self.admin.create_topics([NewTopic(name, PARTITIONS, REPLICAS)])[name].result(DEADLINE_S)

    def finish(self) -> list[str]:
        """Stop the load, check what clients saw, stop the brokers and compare their logs. Return what went wrong."""
        self.load.stop()
        self.wait_in_sync()
        problems = [*self.load.check(), *self.stop_brokers()]
        return [*problems, *self.check_replicas(TOPIC, self.load.high_watermarks)]

    def stop_brokers(self) -> list[str]:
        """Stop all brokers. Return what they have logged or ended with that must not be."""
        problems = []
        for number, broker in self.brokers.items():
            if (code := broker.stop()) != 0:
                problems.append(f"broker {number} ended with code {code}: {broker.errors()[-1000:]}")
            if "Traceback" in broker.errors():
                problems.append(f"broker {number} has logged a traceback:\n{broker.errors()[-3000:]}")
        return problems

    def check_replicas(self, topic: str, high_watermarks: dict[int, int]) -> list[str]:
        """Return what differs. All brokers must have been stopped."""
        return check_replicas(
            {number: Path(broker.data) for number, broker in self.brokers.items()}, topic, high_watermarks
        )

    # -- the state of the cluster ---------------------------------------------------------------------------------

    def leader(self, partition: int = 0) -> int:
        return int(self.admin.list_topics(TOPIC, timeout=DEADLINE_S).topics[TOPIC].partitions[partition].leader)

    def controller(self) -> int:
        return int(self.admin.list_topics(timeout=DEADLINE_S).controller_id)

    def group_coordinator(self) -> int:
        group = self.load.group
        return int(self.admin.describe_consumer_groups([group])[group].result(DEADLINE_S).coordinator.id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        running = next(broker for broker in self.brokers.values() if broker.running)
        with RawClient(running.bootstrap) as client:
            answer = client.ask(FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[transactional_id]), 4)
        return int(answer.coordinators[0].node_id)

    def in_sync(self, topic: str = TOPIC) -> list[set[int]]:
        """Return the in-sync replicas of each partition."""
        found = self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return [set(found[number].isrs) for number in sorted(found)]

    def wait_in_sync(self) -> float:
        """Return when all replicas of all topics are in sync. Return how long that took."""
        since = time.monotonic()
        wait(self._is_in_sync, "all replicas in sync", DEADLINE_S)
        return time.monotonic() - since

    def _is_in_sync(self) -> bool:
        try:
            topics = self.admin.list_topics(timeout=5).topics
        except KafkaException:
            return False
        partitions = [each for topic in topics.values() for each in topic.partitions.values()]
        return all(len(each.isrs) == REPLICAS and each.leader >= 0 for each in partitions)
