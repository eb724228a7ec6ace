"""When a leader looks at its in-sync replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata
from tests.unit.log.log_fixtures import batch, write
from tests.unit.partitions.test_partition import new_partition

import ottla.broker.cluster.isr_changes as isr_changes_module
from ottla.broker.cluster.isr_changes import CHECK_S, IsrChanges
from ottla.broker.partitions.partition import Partition


def isr_changes(replicas: Any, *, lag_ms: int = 3000, fetch_wait_ms: int = 500) -> tuple[IsrChanges, list[str]]:
    """Return the checks, and the names of the tasks that they have started."""
    proposed: list[str] = []

    def start(task: Coroutine[Any, Any, None], name: str) -> None:
        task.close()
        proposed.append(name)

    replicas.note_isr = lambda partition: None
    metadata = make_metadata(properties={
        "replica.lag.time.max.ms": str(lag_ms), "replica.silence.time.max.ms": "3000",
        "replica.fetch.wait.max.ms": str(fetch_wait_ms),
    })  # fmt: skip
    tasks: Any = SimpleNamespace(start=start)
    return IsrChanges(metadata=metadata, replicas=replicas, tasks=tasks), proposed


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


def silent_after(
    *, fetches: float = 0.0, lag_ms: int = 30_000, fetch_wait_ms: int = 500, pause_s: float = 0.0
) -> float:
    """Return when a follower leaves that fetches until ``fetches`` without getting the last record."""
    partition = new_partition(replicas=2)
    partition.note_follower(2, 5, 5, broker_epoch=2, now=0.0)
    write(partition.log, batch(1))
    replicas = SimpleNamespace(replicated=lambda: [partition], unsettled=list)
    changes, proposed = isr_changes(replicas, lag_ms=lag_ms, fetch_wait_ms=fetch_wait_ms)
    now = 0.0
    while not proposed:
        changes.check(now)
        now += CHECK_S if now < 2.0 or now > 2.0 + pause_s else pause_s + CHECK_S
        if now <= fetches:
            partition.note_follower(2, 5, 5, broker_epoch=2, now=now)
    assert partition.proposed_isr == (1,)
    return now - CHECK_S


def test_silent_follower_that_lacks_records_leaves_before_a_slow_one() -> None:
    assert 3.0 < silent_after() <= 3.0 + 0.3 + 2 * CHECK_S
    assert 13.0 < silent_after(fetches=10.0) <= 13.0 + 0.3 + 2 * CHECK_S
    assert 30.0 < silent_after(fetches=100.0) <= 33.0 + 2 * CHECK_S, "it fetches, but has not had all records"


def test_follower_that_may_wait_longer_for_records_may_be_silent_for_longer() -> None:
    assert 6.0 < silent_after(fetch_wait_ms=5000) <= 6.0 + 0.6 + 2 * CHECK_S
    assert 2.0 < silent_after(lag_ms=2000) <= 2.0 + 0.3 + 2 * CHECK_S


def test_time_in_which_the_leader_stood_still_is_no_silence_of_its_followers() -> None:
    """Their fetches wait in its sockets."""
    assert silent_after(pause_s=20.0) > 2.0 + 20.0 + 3.0


def test_silent_follower_with_all_records_stays() -> None:
    partition = new_partition(replicas=2)
    partition.note_follower(2, 5, 5, broker_epoch=2, now=0.0)
    changes, proposed = isr_changes(SimpleNamespace(replicated=lambda: [partition], unsettled=list), lag_ms=30_000)
    for tenth in range(1000):
        changes.check(tenth / 10)
    assert proposed == []


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


def joining_replica(monkeypatch: pytest.MonkeyPatch) -> tuple[IsrChanges, Partition]:
    """Return a partition whose third replica has everything that is committed, and is about to join the ISR."""
    partition = new_partition(replicas=3, isr=2)
    for number in (2, 3):
        partition.note_follower(number, 5, 5, broker_epoch=number, now=0.0)
    assert partition.high_watermark == 5
    changes, proposed = isr_changes(SimpleNamespace(replicated=lambda: [partition], unsettled=lambda: [partition]))
    brokers = {number: SimpleNamespace(broker_id=number, epoch=number) for number in (1, 2, 3)}
    monkeypatch.setattr(
        changes._metadata, "view", SimpleNamespace(brokers=brokers, registered={}, leaving=set(), topics={})
    )
    changes.check(0.0)
    assert proposed and partition.proposed_isr == (1, 2, 3)
    return changes, partition


def test_records_are_not_committed_without_a_replica_once_its_join_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The write begins later. A record that is acknowledged in between would be missing on a replica in sync."""
    _, partition = joining_replica(monkeypatch)
    write(partition.log, batch(1))
    partition.note_follower(2, 6, 6, broker_epoch=2, now=0.1)
    assert partition.high_watermark == 5
    partition.note_follower(3, 6, 6, broker_epoch=3, now=0.1)
    assert partition.high_watermark == 6


def test_join_is_not_written_if_another_change_was_applied_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    changes, partition = joining_replica(monkeypatch)
    partition.proposed_isr = None  # as when the watch brings another state
    topic = SimpleNamespace(topic_id=partition.topic_id)
    view: Any = SimpleNamespace(topics={partition.name.topic: topic})
    written: list[Any] = []

    async def write_ops(decide: Any) -> None:
        written.append(decide(view)[0])

    monkeypatch.setattr(changes._metadata, "write", write_ops)
    monkeypatch.setattr(isr_changes_module, "ops_change_isr", lambda view, topics, registered: list(topics))
    asyncio.run(changes._write({partition: (1, 2, 3)}, {}, set()))
    assert written == [[]]


def test_replica_of_a_broker_that_stops_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without new records it does not lag, although it no longer fetches."""
    partition = new_partition(replicas=3, isr=2)
    for number in (2, 3):
        partition.note_follower(number, 5, 5, broker_epoch=number, now=0.0)
    changes, proposed = isr_changes(SimpleNamespace(replicated=lambda: [partition], unsettled=lambda: [partition]))
    brokers = {number: SimpleNamespace(broker_id=number, epoch=number) for number in (1, 2, 3)}
    view = SimpleNamespace(brokers=brokers, registered={}, leaving={3})
    monkeypatch.setattr(changes._metadata, "view", view)
    changes.check(0.0)
    assert not proposed
    view.leaving.clear()
    changes.check(CHECK_S)
    assert proposed and partition.proposed_isr == (1, 2, 3)


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
    monkeypatch.setattr(changes._metadata, "view", SimpleNamespace(brokers=brokers, registered={}, leaving=set()))
    changes.check(0.0)
    looked_at.clear()
    changes.check(CHECK_S)
    assert looked_at == ([partition] if registered else [])
