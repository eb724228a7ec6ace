"""The commit protocol of Spark's sink on three brokers, one of which is killed between two steps of a commit.

`make test` runs four pairs of step and role; OTTLA_COMMIT_STEPS=all runs all of them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter

import pytest
from spark_commit_fixtures import PARTITIONS, TIMEOUT_S, connect_to, rows_of, stage, visible_rows

from ottla.client.cluster import Cluster
from ottla.client.protocol.metadata import CoordinatorType
from ottla.model.types import TopicPartition
from ottla.spark.commit import TRANSACTIONAL_ID_PREFIX, CommitProtocol, CommitSettings
from ottla.spark.tokens import TOKEN_TOPIC, token_partition
from ottla.testing import ClusterProcess

pytestmark = pytest.mark.broker

COORDINATOR, TOKEN_LEADER, OUTPUT_LEADER = "transaction coordinator", "leader of the token", "leader of the output"
STEPS = ("start", "fenced others", "claimed", "read token", "sending", "sent", "sent token", "decided")
PAIRS = (
    ("claimed", TOKEN_LEADER),
    ("sending", OUTPUT_LEADER),
    ("sent token", COORDINATOR),
    ("decided", COORDINATOR),
)
if os.environ.get("OTTLA_COMMIT_STEPS") == "all":
    PAIRS = tuple(itertools.product(STEPS, (COORDINATOR, TOKEN_LEADER, OUTPUT_LEADER)))
SETTINGS = CommitSettings(transaction_timeout_ms=60_000)


def broker_of(bootstrap: str, role: str, name: str, topic: str) -> int:
    """Return the id of the broker with this role for a commit of this name."""
    with Cluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        if role == COORDINATOR:
            key, kind = TRANSACTIONAL_ID_PREFIX + name, CoordinatorType.TRANSACTION
            return cluster.retry(key, lambda by: cluster.coordinators(kind, [key], by))[key].broker_id
        if role == TOKEN_LEADER:
            partition = TopicPartition(TOKEN_TOPIC, token_partition(name))
        else:
            partition = TopicPartition(topic, 0)
        return cluster.retry(str(partition), lambda by: cluster.leader(partition, by)).node.broker_id


def wait_in_sync(bootstrap: str) -> None:
    """Return when all replicas of all partitions are in sync."""
    deadline = time.monotonic() + TIMEOUT_S
    with Cluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        while any(
            len(row.isr_nodes) < len(row.replica_nodes)
            for topic in cluster.retry("replicas", lambda by: cluster.metadata(None, by)).topics
            for row in topic.partitions
        ):
            assert time.monotonic() < deadline, "replicas are not in sync"
            time.sleep(0.05)


@pytest.mark.parametrize(("step", "role"), PAIRS)
def test_batch_is_written_once_when_a_broker_is_killed_at_a_step_of_its_commit(
    ottla_cluster: ClusterProcess, step: str, role: str
) -> None:
    bootstrap = ottla_cluster.bootstrap
    topic = name = f"{step}-{role}".replace(" ", "-")
    with Cluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        cluster.create_topic(topic, PARTITIONS, replication_factor=3)
    killed: list[int] = []

    def kill_at(reached: str) -> None:
        if reached == step and not killed:
            killed.append(broker_of(bootstrap, role, name, topic))
            ottla_cluster.brokers[killed[0]].kill()

    # The first batch creates the topics of tokens and of transactions, which need all brokers.
    with CommitProtocol(connect_to(bootstrap), name, SETTINGS) as first:
        first.commit(0, [stage(topic, rows_of(0))])
    try:
        with CommitProtocol(connect_to(bootstrap), name, SETTINGS, checkpoint=kill_at) as driver:
            assert not driver.commit(1, [stage(topic, rows_of(1))]).again
        assert killed
        # A driver that starts again without the broker finds the batch, and writes the next one.
        with CommitProtocol(connect_to(bootstrap), name, SETTINGS) as successor:
            assert successor.commit(1, [stage(topic, rows_of(1))]).again
            assert not successor.commit(2, [stage(topic, rows_of(2))]).again
        assert visible_rows(bootstrap, topic) == Counter([row for number in range(3) for row in rows_of(number)])
    finally:
        for number in killed:
            ottla_cluster.brokers[number].launch()
        wait_in_sync(bootstrap)
