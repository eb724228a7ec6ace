"""The figures of groups: what is known of partitions that are removed meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata
from tests.unit.log.log_fixtures import batch
from tests.unit.partitions.test_replica_manager import ManagerFixture

from ottla.broker.coordination.metrics import GroupMetrics
from ottla.broker.groups.records import OffsetCommitValue


@pytest.mark.parametrize("is_removed", [False, True])
def test_timestamps_of_a_partition_that_is_removed_while_they_are_read_are_not_kept(
    tmp_path: Path, is_removed: bool
) -> None:
    fixture = ManagerFixture(tmp_path)
    partition = fixture.add()
    fixture.produce(partition, batch(1))
    fixture.manager.commits.write_turn()
    committed = {("orders", 0): OffsetCommitValue(offset=0, commit_timestamp=0)}
    shard = SimpleNamespace(
        groups={"readers": SimpleNamespace(state="Empty", group_type="classic", protocol_type="consumer")},
        offsets=SimpleNamespace(by_group={"readers": committed}),
    )
    coordination: Any = SimpleNamespace(
        runtime=SimpleNamespace(loaded_shards=lambda: [shard]), transactions=SimpleNamespace(loaded_shards=list)
    )
    clock: Any = fixture.clock
    metrics = GroupMetrics(make_metadata(), fixture.manager, clock, coordination)
    find_timestamp = fixture.manager.opener.find_timestamp

    def find(*arguments: Any, **options: Any) -> Any:
        if is_removed:
            fixture.manager.remove(partition, "removed")
        return find_timestamp(*arguments, **options)

    fixture.manager.opener.find_timestamp = find  # type: ignore[method-assign]
    asyncio.run(metrics.collect_metrics())
    assert list(metrics._timestamps) == ([] if is_removed else [partition])
    fixture.manager.check_invariants()
