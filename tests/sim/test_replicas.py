"""Replicas of a partition under faults: what is committed stays, and all replicas become identical.

Bugs of Kafka's history are planted to show that a run finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from sim_planted_cluster import kafka_7164
from sim_replicas import ReplicaWorld

from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.leader_fetcher import LeaderFetcher, _Followed
from ottla.broker.partitions.partition import Partition
from ottla.wire.replica_fetch import FollowerRow

SEEDS = range(1, 9)
#: a planted bug is found within these
PLANTED_SEEDS = range(1, 21)


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_committed_records_survive_and_replicas_become_identical(seed: int) -> None:
    world = ReplicaWorld(seed)
    assert world.run() == {}
    assert len(world.acked) > 20


# -- planted bugs -----------------------------------------------------------------------------------------------------


def plant_truncation_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: a follower truncates to its high watermark, which may be behind, and no epochs are compared."""
    add, row = LeaderFetcher.add, _Followed.row

    def truncate_and_add(self: LeaderFetcher, partition: Partition) -> None:
        self._replicas.followers.begin_truncations([TruncationRequest(partition, partition.high_watermark)])
        add(self, partition)

    def without_epoch(self: _Followed, size_bytes_max: int) -> FollowerRow:
        return row(self, size_bytes_max)._replace(last_fetched_epoch=-1)

    patch.setattr(LeaderFetcher, "add", truncate_and_add)
    patch.setattr(_Followed, "row", without_epoch)


def plant_no_restart_for_the_same_leader(patch: pytest.MonkeyPatch) -> None:
    kafka_7164(patch.setattr)


def plant_high_watermark_of_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """The high watermark moves without the followers."""

    def update(self: Partition) -> None:
        if self.log.written_end_offset > self.high_watermark:
            self.advance_high_watermark(self.log.written_end_offset)

    patch.setattr(Partition, "update_high_watermark", update)


@pytest.mark.parametrize(
    "plant",
    [
        plant_truncation_to_the_high_watermark, plant_no_restart_for_the_same_leader,
        plant_high_watermark_of_the_leader_alone,
    ],
)  # fmt: skip
def test_planted_bug_of_replication_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = next((seed for seed in PLANTED_SEEDS if ReplicaWorld(seed).run()), None)
    assert found is not None, plant.__doc__
