"""`make cluster-kills`: kill -9 of brokers of a cluster under load, chosen by their role and by a seed.

    python tests/cluster/cluster_kills.py --kills 100 --seed 1 --role leader

Roles: leader (of partition 0), controller, group (coordinator of the consumer group), any. The load is that of
cluster_load.py: three client libraries with acks=all and idempotence, three partitions with three replicas, a consumer
group. A killed broker is started again when other brokers acknowledge records. The report names the longest time
between two acknowledgements of one partition around each kill, over all producers and for each of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random

from cluster_load import CLIENTS, Load, check_replicas, wait
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import ClusterProcess

TOPIC = "events"
PARTITIONS = 3
_DEADLINE_S = 60.0


class Campaign:
    def __init__(self, cluster: ClusterProcess, role: str, clients: list[str], rng: Random) -> None:
        self.cluster, self.role, self.rng = cluster, role, rng
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.load = Load(cluster.bootstrap, TOPIC, partitions=PARTITIONS, clients=clients)
        #: one for each kill: over all producers, and by producer
        self.gaps: list[float] = []
        self.client_gaps: dict[str, list[float]] = {client: [] for client in self.load.clients}

    def run(self, kills: int) -> list[str]:
        """Run to the end. Return what went wrong."""
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(_DEADLINE_S)
        self.load.start()
        self._wait_in_sync()
        for number in range(1, kills + 1):
            self._kill(number, kills)
        self.load.stop()
        self._wait_in_sync()
        problems = self.load.check()
        for broker in self.cluster.brokers.values():
            broker.stop()
        directories = {number: Path(broker.data) for number, broker in self.cluster.brokers.items()}
        return [*problems, *check_replicas(directories, TOPIC, self.load.high_watermarks)]

    def _kill(self, number: int, kills: int) -> None:
        time.sleep(self.rng.uniform(0.0, 0.5))
        victim = self._victim()
        broker = self.cluster.brokers[victim]
        since = time.monotonic()
        broker.kill()
        # Every producer has found the new leader of every partition when it has a later acknowledgement.
        self.load.wait_acknowledged(time.monotonic() + 0.1, clients=self.load.clients)
        elected = time.monotonic()
        broker.launch()
        self._wait_in_sync()
        until = time.monotonic()
        self.gaps.append(self.load.longest_gap(since, until))
        by_client = []
        for client, gaps in self.client_gaps.items():
            gaps.append(self.load.longest_gap(since, until, client=client))
            by_client.append(f"{client} {gaps[-1]:.2f}")
        print(
            f"kill {number}/{kills}: broker {victim} ({self.role}), longest gap {self.gaps[-1]:.2f} s "
            f"({', '.join(by_client)}), in sync {until - elected:.2f} s after its restart, "
            f"{self.load.acknowledged} acknowledged", flush=True,
        )  # fmt: skip

    def _victim(self) -> int:
        found = self.admin.list_topics(timeout=_DEADLINE_S)
        if self.role == "leader":
            return int(found.topics[TOPIC].partitions[0].leader)
        if self.role == "controller":
            return int(found.controller_id)
        if self.role == "group":
            group = self.load.group
            return int(self.admin.describe_consumer_groups([group])[group].result(_DEADLINE_S).coordinator.id)
        return self.rng.choice(list(self.cluster.brokers))

    def _wait_in_sync(self) -> None:
        wait(self._is_in_sync, "all replicas in sync", _DEADLINE_S)

    def _is_in_sync(self) -> bool:
        try:
            topics = self.admin.list_topics(timeout=5).topics
        except KafkaException:
            return False
        return all(len(each.isrs) == 3 for topic in topics.values() for each in topic.partitions.values())


def describe_gaps(name: str, gaps: list[float]) -> str:
    gaps = sorted(gaps)
    p99 = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
    return f"{name}: p50 {gaps[len(gaps) // 2]:.2f} s, p99 {p99:.2f} s, max {gaps[-1]:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--role", choices=("leader", "controller", "group", "any"), default="any")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="names separated by commas")
    options = parser.parse_args()
    with ClusterProcess.start() as cluster:
        campaign = Campaign(cluster, options.role, options.clients.split(","), Random(options.seed))
        problems = campaign.run(options.kills)
    if campaign.gaps:
        print("longest gap between two acknowledgements of one partition")
        for name, gaps in {"all producers": campaign.gaps, **campaign.client_gaps}.items():
            print(describe_gaps(f"  {name}", gaps))
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
