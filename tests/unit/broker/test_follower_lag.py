"""How far followers are behind: the metrics of the leader, and the lag that a follower reports itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata, make_view
from tests.unit.broker.request_fixtures import request_context
from tests.unit.broker.test_leader_fetch import EPOCH, LeaderFixture, row
from tests.unit.log.log_fixtures import batch, topic

from ottla.broker.cluster.metrics import ClusterMetrics, lag_bytes
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.metadata.view import PartitionView
from ottla.env.metrics import Page
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest


@pytest.fixture
def leader(tmp_path: Path) -> LeaderFixture:
    return LeaderFixture(tmp_path)


def metrics_of(leader: LeaderFixture) -> dict[str, float]:
    store: Any = SimpleNamespace(on_session=lambda listener: None)
    membership: Any = SimpleNamespace(controller=SimpleNamespace(is_active=False))
    metrics, page = ClusterMetrics(
        metadata=make_metadata(make_view(), store=store), replicas=leader.manager, clock=leader.clock,
        membership=membership, requests=UNUSED,
    ), Page(1000)  # fmt: skip
    for _ in [*metrics._count_replicas(page), *metrics.detailed_metrics(page)]:
        pass
    lines = [line for piece in page.pieces() for line in piece.decode().splitlines()]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_lag_of_each_follower_is_shown_in_records_bytes_and_seconds(leader: LeaderFixture) -> None:
    partition = leader.partition
    partition.log.configure(topic(index_interval_bytes=0))
    leader.fetch({partition: row(0)}, full=True)
    for _ in range(4):
        leader.write(partition, 2)
    leader.clock.now = 5.0
    leader.fetch({partition: row(6, last_epoch=EPOCH)})
    size = len(batch(2))
    assert lag_bytes(partition, partition.followers[2]) in (size, 2 * size)
    shown = metrics_of(leader)
    assert shown['ottla_follower_lag_records{replica="2"}'] == shown['ottla_follower_lag_records_max{replica="2"}'] == 2
    assert shown['ottla_follower_lag_records{replica="3"}'] == 8
    assert shown['ottla_follower_lag_bytes{replica="3"}'] == shown['ottla_follower_lag_bytes_max{replica="3"}']
    assert shown['ottla_follower_lag_bytes{replica="3"}'] == partition.log.size_bytes == 4 * size
    assert shown['ottla_follower_lag_seconds_max{replica="3"}'] == 5
    assert shown["ottla_replication_max_lag_records"] == 8
    where = '{topic="orders",partition="0",replica="3"}'
    assert shown[f"ottla_replication_lag_bytes{where}"] == 4 * size
    leader.fetch({partition: row(8, last_epoch=EPOCH)})
    shown = metrics_of(leader)
    names = ("records", "records_max", "bytes", "bytes_max", "seconds_max")
    assert [shown[f'ottla_follower_lag_{name}{{replica="2"}}'] for name in names] == [0] * 5


def test_lag_in_bytes_counts_all_segments(leader: LeaderFixture) -> None:
    partition = leader.partition
    partition.log.configure(topic(segment_bytes=len(batch(2))))
    for _ in range(4):
        leader.write(partition, 2)
    assert len(partition.log.segments) == 4
    partition.note_follower(2, 4, 4)
    assert lag_bytes(partition, partition.followers[2]) == 2 * len(batch(2))


def test_follower_reports_the_committed_records_that_it_lacks(leader: LeaderFixture) -> None:
    def lag() -> int:
        request = DescribeLogDirsRequest(topics=None)
        (directory,) = topics.describe_log_dirs(request, request_context(4)).results
        return int(directory.topics[0].partitions[0].offset_lag)

    log_moves: Any = SimpleNamespace(copies=lambda directory: [])
    topics = TopicApis(
        metadata=leader.metadata, replicas=leader.manager, clock=leader.clock, log_moves=log_moves, tasks=UNUSED
    )
    leader.write(leader.partition, 3)
    assert lag() == 0
    state = PartitionView(leader=2, leader_epoch=EPOCH + 1, replicas=(1, 2, 3), isr=(2, 3), partition_epoch=1)
    leader.manager.apply_state(leader.partition, state)
    leader.partition.follow_high_watermark(10)
    assert lag() == 7
    leader.lead(leader.partition, EPOCH + 2)
    assert lag() == 0
