"""When a leader looks at its in-sync replicas."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.log.log_fixtures import batch, write
from tests.unit.replica.test_partition import new_partition

import ottla.broker.isr_changes as isr_changes_module
from ottla.broker.isr_changes import CHECK_S, IsrChanges
from ottla.replica.partition import Partition


def isr_changes(replicas: Any) -> tuple[IsrChanges, list[str]]:
    """Return the checks, and the names of the tasks that they have started."""
    proposed: list[str] = []

    def start(task: Coroutine[Any, Any, None], name: str) -> None:
        task.close()
        proposed.append(name)

    services: Any = SimpleNamespace(
        settings=SimpleNamespace(replica_lag_time_max_ms=3000), tasks=SimpleNamespace(start=start), replicas=replicas,
        view=SimpleNamespace(brokers={}, registered={}),
    )  # fmt: skip
    return IsrChanges(services), proposed


def test_replica_that_lags_leaves_at_most_a_tenth_of_the_lag_time_later() -> None:
    partition = new_partition(replicas=3)
    for number in (2, 3):
        partition.note_follower(number, 5, 5, broker_epoch=number, now=0.0)
    write(partition.log, batch(1))
    changes, proposed = isr_changes(SimpleNamespace(replicated=lambda: [partition], unsettled=list))
    now = 0.0
    while not proposed:
        now += CHECK_S
        changes.check(now)
    assert 3.0 < now <= 3.0 + 0.3 + 2 * CHECK_S


def test_partitions_whose_isr_is_complete_are_looked_at_in_full_checks_only() -> None:
    full_checks = []

    def replicated() -> list[Any]:
        full_checks.append(now)
        return []

    changes, _ = isr_changes(SimpleNamespace(replicated=replicated, unsettled=list))
    now = 0.0
    while now < 3.0:
        now += CHECK_S
        changes.check(now)
    assert 5 <= len(full_checks) <= 10


@pytest.mark.parametrize("registered", [False, True])
def test_replica_of_a_broker_that_does_not_run_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    partition = new_partition(replicas=3, isr=2)
    changes, _ = isr_changes(SimpleNamespace(replicated=list, unsettled=lambda: [partition]))
    brokers = {
        number: SimpleNamespace(broker_id=number, epoch=number) for number in (1, 2, *([3] if registered else []))
    }
    looked_at: list[Partition] = []
    monkeypatch.setattr(isr_changes_module, "wanted_isr", lambda each, *_: looked_at.append(each) or each.isr)
    monkeypatch.setattr(changes._services, "view", SimpleNamespace(brokers=brokers, registered={}))
    changes.check(0.0)
    looked_at.clear()
    changes.check(CHECK_S)
    assert looked_at == ([partition] if registered else [])
