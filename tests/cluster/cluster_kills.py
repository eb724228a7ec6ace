"""kill -9 of brokers of a cluster under load, chosen by their role and by a seed.

    make campaign NAME=cluster-kills KILLS=100 SEED=1 ROLE=leader

Roles: leader (of partition 0), controller, group (coordinator of the consumer group), transaction (coordinator of a
transactional id), any. The load is that of campaign/workload.py: three client libraries with acks=all and idempotence,
three partitions with three replicas, a consumer group. With the role transaction, two more processes copy the topic in
transactions, and the copy must have each record exactly once. A killed broker is started again when the others
acknowledge records. The report names the longest time between two acknowledgements of one partition around each kill,
over all producers and for each of them. With SECURE=1, clients and brokers use TLS and SCRAM, and the brokers get a new
certificate before every fifth kill.
"""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random

from cluster_copy import Copy
from secure_cluster import SecureClusterProcess

from campaign.cluster import PARTITIONS, TOPIC, LoadedCluster
from campaign.report import Report, percentiles
from ottla.testing import ClusterProcess

ALL = "all producers"
COPY_TOPIC = "copies"
#: with TLS, brokers get a new certificate before each kill of this number
_CERTIFICATE_EVERY = 5


class Campaign:
    def __init__(self, cluster: ClusterProcess, role: str, clients: list[str], seed: int, report: Report) -> None:
        self.role = role
        self._report = report
        self.rng = Random(seed)
        self._secure = cluster if isinstance(cluster, SecureClusterProcess) else None
        settings = None if self._secure is None else self._secure.client_settings
        self.loaded = LoadedCluster(cluster, clients=clients, settings=settings, say=report.say)
        self.load = self.loaded.load
        self.copy: Copy | None = None
        if role == "transaction":
            self.copy = Copy(cluster.bootstrap, TOPIC, COPY_TOPIC, PARTITIONS, seed, settings, report.say)
        #: one for each kill: over all producers, of each producer, and between two commits of transactions
        self.gaps: dict[str, list[float]] = defaultdict(list)

    def run(self, kills: int) -> list[str]:
        """Run to the end. Return what went wrong."""
        self.loaded.start()
        if self.copy is not None:
            self.loaded.create_topic(COPY_TOPIC)
            self.copy.start()
        self.loaded.wait_in_sync()
        for number in range(1, kills + 1):
            self._kill(number, kills)
        if self.copy is None:
            return self.loaded.finish()
        return self._finish_copy(self.copy)

    def _finish_copy(self, copy: Copy) -> list[str]:
        self.load.stop()
        self.loaded.wait_in_sync()
        problems = self.load.check()
        copy.finish(self.load.high_watermarks)
        more, high_watermarks = copy.check(self.load.seen)
        problems += [*more, *self.loaded.stop_brokers()]
        problems += self.loaded.check_replicas(TOPIC, self.load.high_watermarks)
        return [*problems, *self.loaded.check_replicas(COPY_TOPIC, high_watermarks)]

    def _kill(self, number: int, kills: int) -> None:
        if self._secure is not None and number % _CERTIFICATE_EVERY == 0:
            self._secure.replace_certificate()
        time.sleep(self.rng.uniform(0.0, 0.5))
        victim = self._victim()
        broker = self.loaded.brokers[victim]
        since = time.monotonic()
        broker.kill()
        killed = time.monotonic()
        # Every producer has found the new leader of every partition when it has a later acknowledgement.
        self.load.wait_acknowledged(killed + 0.1, clients=self.load.clients)
        if self.copy is not None:
            self.copy.wait_committed(killed + 0.1)
        broker.launch()
        in_sync_s = self.loaded.wait_in_sync()
        until = time.monotonic()
        found = {ALL: self.load.longest_gap(since, until)}
        found |= {client: self.load.longest_gap(since, until, client=client) for client in self.load.clients}
        if self.copy is not None:
            found["commits"] = self.copy.longest_gap(since, until)
        for name, gap in found.items():
            self.gaps[name].append(gap)
        by_name = ", ".join(f"{name} {gap:.2f}" for name, gap in found.items())
        self._report.progress(number, kills, "kills")
        self._report.say(
            f"kill {number}/{kills}: broker {victim} ({self.role}), longest gaps in s: {by_name}; in sync "
            f"{in_sync_s:.2f} s after its start, {until - since:.2f} s in all, {self.load.acknowledged} acknowledged"
        )

    def _victim(self) -> int:
        if self.role == "leader":
            return self.loaded.leader()
        if self.role == "controller":
            return self.loaded.controller()
        if self.role == "group":
            return self.loaded.group_coordinator(self.load.group)
        if self.copy is not None:
            return self.loaded.transaction_coordinator(self.copy.transactional_id)
        return self.rng.choice(list(self.loaded.brokers))


def run(report: Report, *, kills: int, seed: int, role: str, secure: bool, clients: str) -> None:
    with (SecureClusterProcess if secure else ClusterProcess).start() as cluster:
        if isinstance(cluster, SecureClusterProcess):
            cluster.create_users()
        campaign = Campaign(cluster, role, clients.split(","), seed, report)
        report.problems_found(campaign.run(kills))
    report.figure(f"{kills} kills, {campaign.load.acknowledged} records acknowledged")
    if campaign.gaps:
        report.say("longest gap between two acknowledgements of one partition")
        for name, gaps in campaign.gaps.items():
            report.say(f"  {name}: {percentiles(gaps)}")
        report.figure(f"longest gap between acknowledgements of a partition: {percentiles(campaign.gaps[ALL])}")
