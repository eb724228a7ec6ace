"""When a leader looks at its in-sync replicas."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from tests.unit.log.log_fixtures import batch, write
from tests.unit.replica.test_partition import new_partition

from ottla.broker.isr_changes import CHECK_S, IsrChanges


def test_replica_that_lags_leaves_at_most_a_tenth_of_the_lag_time_later() -> None:
    partition = new_partition(replicas=3)
    for number in (2, 3):
        partition.note_follower(number, 5, 5, broker_epoch=number, now=0.0)
    write(partition.log, batch(1))
    proposed: list[str] = []

    def start(task: Coroutine[Any, Any, None], name: str) -> None:
        task.close()
        proposed.append(name)

    services: Any = SimpleNamespace(
        settings=SimpleNamespace(replica_lag_time_max_ms=3000), tasks=SimpleNamespace(start=start),
        replicas=SimpleNamespace(replicated=lambda: [partition]), view=SimpleNamespace(brokers={}, registered={}),
    )  # fmt: skip
    changes = IsrChanges(services)
    now = 0.0
    while not proposed:
        now += CHECK_S
        changes.check(now)
    assert 3.0 < now <= 3.0 + 0.3 + 2 * CHECK_S
