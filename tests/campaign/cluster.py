"""A cluster in a campaign: who leads and coordinates, when it is in sync, how it ends; and a topic of it under load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from campaign.checker import check_replicas
from campaign.processes import wait_until
from campaign.workload import CLIENTS, Load
from ottla.testing import BrokerProcess, ClusterProcess
from ottla.testing.raw import Closed, RawClient, batch_of, produce_request
from ottla.wire import Message
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest

TOPIC = "events"
PARTITIONS = 3
REPLICAS = 3
DEADLINE_S = 60.0
_ANSWER_S_MAX = 10.0
_GROUP, _TRANSACTION = 0, 1


class ClusterState:
    """The state of a cluster, as its running brokers answer."""

    def __init__(self, cluster: ClusterProcess, *, deadline_s: float = DEADLINE_S) -> None:
        self.cluster = cluster
        self.brokers = cluster.brokers
        self._deadline_s = deadline_s
        self._paused: set[int] = set()

    def pause(self, number: int) -> None:
        """SIGSTOP a broker. From now on the state of the cluster is asked from the others."""
        self._paused.add(number)
        self.brokers[number].pause()

    def resume(self, number: int) -> None:
        self.brokers[number].resume()
        self._paused.discard(number)

    def ask(self, request: Message, version: int) -> Any:
        """Return the answer of a broker that runs. Raise OSError or Closed if it ends meanwhile."""
        running = [number for number, each in self.brokers.items() if each.running and number not in self._paused]
        return self.ask_broker(running[0], request, version)

    def ask_broker(self, number: int, request: Message, version: int) -> Any:
        """Return the answer of one broker. Raise OSError or Closed if it does not run or ends meanwhile."""
        with RawClient(self.brokers[number].bootstrap, timeout_s=_ANSWER_S_MAX) as client:
            return client.ask(request, version)

    def metadata(self) -> Any:
        return self.ask(MetadataRequest(topics=None), 12)

    def leader(self, partition: int = 0, topic: str = TOPIC) -> int:
        (found,) = (each for each in self.metadata().topics if each.name == topic)
        return next(int(each.leader_id) for each in found.partitions if each.partition_index == partition)

    def controller(self) -> int:
        return int(self.metadata().controller_id)

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(_TRANSACTION, transactional_id)

    def _coordinator(self, kind: int, key: str) -> int:
        answer = self.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
        return int(answer.coordinators[0].node_id)

    def wait_in_sync(self) -> float:
        """Return when all replicas of all topics are in sync. Return how long that took."""
        since = time.monotonic()
        behind: list[str] = []

        def is_in_sync() -> bool:
            try:
                behind[:] = self._partitions_behind()
            except (OSError, Closed) as error:
                behind[:] = [repr(error)]
            return not behind

        wait_until(is_in_sync, lambda: f"all replicas in sync; {behind}", self._deadline_s)
        return time.monotonic() - since

    def _partitions_behind(self) -> list[str]:
        return [
            f"{topic.name}-{row.partition_index}: {list(row.isr_nodes)} of {list(row.replica_nodes)}"
            for topic in self.metadata().topics
            for row in topic.partitions
            if row.leader_id < 0 or len(row.isr_nodes) < len(row.replica_nodes)
        ]

    def stop_brokers(self) -> list[str]:
        """Stop all brokers. Return what they have logged or ended with that must not be."""
        problems = []
        for number, broker in self.brokers.items():
            if (code := broker.stop()) != 0:
                problems.append(f"broker {number} ended with code {code}: {broker.errors()[-1000:]}")
            if "Traceback" in broker.errors():
                problems.append(f"broker {number} has logged a traceback:\n{broker.errors()[-3000:]}")
        return problems

    def check_replicas(self, topic: str, high_watermarks: Mapping[int, int]) -> list[str]:
        """Return what differs. All brokers must have been stopped."""
        directories = {number: Path(broker.data) for number, broker in self.brokers.items()}
        return check_replicas(directories, topic, high_watermarks)

    def check_whole_replicas(self, topic: str, partitions: int) -> list[str]:
        """Return what differs, also above the high watermark. All brokers must have been stopped."""
        return self.check_replicas(topic, dict.fromkeys(range(partitions), sys.maxsize))


class LoadedCluster(ClusterState):
    """A cluster with a topic of three replicas and the load on it."""

    def __init__(
        self, cluster: ClusterProcess, *, clients: Sequence[str] = CLIENTS, request_timeout_ms: int = 0,
        settings: Mapping[str, str] | None = None, say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """``settings`` are those of the clients under load: how they reach the cluster with TLS and SASL."""
        super().__init__(cluster)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        bootstrap = (settings or {}).get("bootstrap.servers", cluster.bootstrap)
        self.load = Load(
            bootstrap, TOPIC, partitions=PARTITIONS, clients=clients, request_timeout_ms=request_timeout_ms,
            settings=settings, say=say,
        )  # fmt: skip

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


class PausedBrokerProbe:
    """Produce requests that a broker finds in its sockets when it continues."""

    def __init__(self, broker: BrokerProcess, topic: str, partitions: int) -> None:
        self._topic, self._partitions = topic, partitions
        self._client = RawClient(broker.bootstrap)
        self._waiting: list[int] = []

    def send(self, acks_settings: Sequence[int] = (1, -1)) -> None:
        """Send a record to each partition with each setting of acks."""
        for partition in range(self._partitions):
            for acks in acks_settings:
                batch = batch_of(b"sent to a paused broker")
                request = produce_request((self._topic, partition, batch), acks=acks, timeout_ms=3000)
                self._waiting.append(self._client.send(request, 9))

    def acknowledged(self) -> int:
        """Return how many of them the broker acknowledges."""
        count = 0
        try:
            for correlation_id in self._waiting:
                answer = self._client.receive(0, 9, correlation_id)
                (row,) = answer.responses[0].partition_responses
                count += row.error_code == 0
        except Closed:
            pass
        self._client.close()
        return count
