"""A partition's own rules: its role, leader epochs, the high watermark, and what writers wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.log.log_fixtures import NAME, batch, new_log, topic, write

from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.partitions.writers import Until
from ottla.model.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    StorageError,
    UnknownLeaderEpoch,
)

ME = 1


class Waiter:
    deadline = 0.0

    def __init__(self) -> None:
        self.answers: list[int] = []

    def on_write_complete(self, error_code: int) -> None:
        self.answers.append(error_code)


class Poll:
    def __init__(self) -> None:
        self.completed = 0

    def on_high_watermark(self, size_bytes: int) -> None: ...
    def on_stable(self) -> None: ...
    def on_changed(self) -> None: ...

    def on_partition_deleted(self) -> None:
        self.completed += 1


def state(*, leader: int = ME, epoch: int = 7, replicas: int = 1, isr: int | None = None, version: int = 0) -> Any:
    """Replicas and in-sync replicas are brokers 1, 2, 3 and so on."""
    return PartitionView(
        leader=leader, leader_epoch=epoch, replicas=tuple(range(1, replicas + 1)), partition_epoch=version,
        isr=tuple(range(1, (replicas if isr is None else isr) + 1)),
    )  # fmt: skip


def new_partition(*, high_watermark: int = 0, overrides: dict[str, object] | None = None, **fields: Any) -> Partition:
    """A partition with five records in its log."""
    log = new_log(**(overrides or {}))
    write(log, batch(5))
    partition = Partition(NAME, bytes(16), log, broker_id=ME, high_watermark=high_watermark)
    partition.apply_state(state(**fields))
    return partition


# -- role and epoch ---------------------------------------------------------------------------------------------------


def test_partition_leads_if_the_store_says_so() -> None:
    assert new_partition().role is Role.LEADER
    assert new_partition(leader=2, replicas=2).role is Role.FOLLOWER
    assert new_partition(leader=-1).role is Role.FOLLOWER


@pytest.mark.parametrize("epoch", [-1, 7])
def test_known_or_no_epoch_passes(epoch: int) -> None:
    new_partition().check_leads(epoch)


@pytest.mark.parametrize(("epoch", "error"), [(6, FencedLeaderEpoch), (8, UnknownLeaderEpoch)])
@pytest.mark.parametrize("leader", [1, 2])
def test_other_epoch_is_refused_before_the_role_is_looked_at(
    leader: int, epoch: int, error: type[KafkaError]
) -> None:  # fmt: skip
    with pytest.raises(error):
        new_partition(leader=leader, replicas=2).check_leads(epoch)


@pytest.mark.parametrize("epoch", [-1, 7])
def test_follower_refuses_clients(epoch: int) -> None:
    partition = new_partition(leader=2, replicas=2)
    with pytest.raises(NotLeaderOrFollower):
        partition.check_leads(epoch)
    assert not partition.writable
    assert partition.refusal().code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_writers_and_readers_are_answered_when_leadership_ends() -> None:
    partition = new_partition(replicas=2)
    waiters = [Waiter() for _ in range(4)]
    partition.writers.written = [waiters[0]]
    for until, waiter in zip((Until.SYNCED, Until.COMMITTED, Until.DURABLE), waiters[1:], strict=True):
        partition.writers.wait(until, 9, waiter)
    poll = Poll()
    partition.park(poll, read_committed=False)
    assert partition.apply_state(state(leader=2, epoch=8, replicas=2))
    assert [waiter.answers for waiter in waiters] == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]] * 4
    assert poll.completed == 1
    assert not partition.writers.has_waiting


def test_new_leader_appends_in_its_epoch() -> None:
    partition = new_partition(leader=2, epoch=3, replicas=2)
    assert partition.apply_state(state(epoch=4, replicas=2))
    assert (partition.role, partition.writable, partition.log.leader_epoch) == (Role.LEADER, True, 4)


@pytest.mark.parametrize("older", [{"epoch": 6}, {"epoch": 7, "version": 3}])
def test_state_that_arrives_late_changes_nothing(older: dict[str, int]) -> None:
    partition = new_partition(replicas=3, isr=2, version=4)
    assert not partition.apply_state(state(leader=2, replicas=3, isr=1, **older))
    assert (partition.role, partition.isr, partition.leader_epoch) == (Role.LEADER, (1, 2), 7)


def test_change_of_the_in_sync_replicas_is_no_new_leadership() -> None:
    partition = new_partition(replicas=2)
    waiter = Waiter()
    partition.writers.wait(Until.COMMITTED, 5, waiter)
    assert not partition.apply_state(state(replicas=2, isr=1, version=1))
    assert (partition.role, partition.high_watermark, waiter.answers) == (Role.LEADER, 5, [0])


def test_offline_partition_stays_offline() -> None:
    partition = new_partition()
    partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)
    partition.apply_state(state(epoch=8))
    assert (partition.role, partition.leader_epoch, partition.writable) == (Role.OFFLINE, 8, False)
    with pytest.raises(StorageError):
        partition.check_leads()


def test_leader_without_room_serves_readers_and_refuses_writers() -> None:
    partition = new_partition()
    partition.set_room(False)
    partition.check_leads()
    assert not partition.writable
    assert partition.refusal().code == ErrorCode.KAFKA_STORAGE_ERROR
    partition.set_room(True)
    assert partition.writable


# -- the high watermark -----------------------------------------------------------------------------------------------


def test_high_watermark_of_the_only_replica_is_the_end_of_what_is_written() -> None:
    assert new_partition().high_watermark == 5


@pytest.mark.parametrize(("checkpointed", "restored"), [(0, 0), (3, 3), (9, 5)])
def test_high_watermark_is_restored_from_its_checkpoint_within_the_log(checkpointed: int, restored: int) -> None:
    assert new_partition(high_watermark=checkpointed, leader=2, replicas=2).high_watermark == restored
    assert new_partition(high_watermark=checkpointed, replicas=2).high_watermark == restored


def test_high_watermark_is_the_smallest_end_of_the_in_sync_replicas() -> None:
    partition = new_partition(replicas=3, isr=2)
    partition.note_follower(3, 5, 5)
    assert partition.high_watermark == 0, "broker 2 is in sync and has not fetched yet"
    partition.note_follower(2, 4, 0)
    assert partition.high_watermark == 4
    partition.note_follower(2, 2, 0)
    assert partition.high_watermark == 4, "it never decreases"


def test_high_watermark_moves_when_a_slow_replica_leaves_the_in_sync_replicas() -> None:
    partition = new_partition(replicas=3)
    partition.note_follower(2, 5, 5)
    partition.note_follower(3, 1, 1)
    assert partition.high_watermark == 1
    partition.apply_state(state(replicas=3, isr=2, version=1))
    assert partition.high_watermark == 5


def test_high_watermark_waits_while_too_few_replicas_are_in_sync() -> None:
    partition = new_partition(replicas=3, isr=1, overrides={"min_insync_replicas": 2})
    assert partition.high_watermark == 0
    partition.apply_state(state(replicas=3, isr=2, version=1))
    partition.note_follower(2, 5, 5)
    assert partition.high_watermark == 5


def test_broker_that_is_no_replica_is_ignored() -> None:
    partition = new_partition(replicas=2)
    partition.note_follower(9, 5, 5)
    assert partition.high_watermark == 0


def test_new_leadership_forgets_what_followers_reported() -> None:
    partition = new_partition(replicas=2)
    partition.note_follower(2, 3, 3)
    partition.apply_state(state(leader=2, epoch=8, replicas=2))
    partition.apply_state(state(epoch=9, replicas=2))
    assert partition.followers[2].end_offset == -1
    assert partition.high_watermark == 3


# -- writers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replicas", "isr", "wanted"), [(3, 2, 2), (3, 3, 1), (1, 1, 1), (1, 1, 2)])
def test_enough_replicas_are_enough(replicas: int, isr: int, wanted: int) -> None:
    new_partition(replicas=replicas, isr=isr, overrides={"min_insync_replicas": wanted}).check_enough_replicas()


def test_too_few_replicas_are_refused() -> None:
    with pytest.raises(NotEnoughReplicas):
        new_partition(replicas=3, isr=1, overrides={"min_insync_replicas": 2}).check_enough_replicas()


def test_changed_settings_count_at_once() -> None:
    partition = new_partition(replicas=3, isr=2, overrides={"min_insync_replicas": 3})
    partition.log.configure(topic(min_insync_replicas=2))
    partition.check_enough_replicas()


def test_write_is_durable_when_all_have_it_and_enough_have_synced_it() -> None:
    partition = new_partition(replicas=3, overrides={"min_insync_replicas": 2})
    waiter = Waiter()
    partition.writers.wait(Until.DURABLE, 5, waiter)
    partition.note_follower(2, 5, 5)
    assert partition.durable_offset == 0, "broker 3 has nothing"
    partition.note_follower(3, 5, 0)
    assert (partition.high_watermark, partition.durable_offset) == (5, 0), "only broker 2 has synced it"
    partition.note_follower(3, 5, 4)
    assert (partition.durable_offset, waiter.answers) == (4, [])
    partition.note_follower(3, 5, 5)
    assert (partition.durable_offset, waiter.answers) == (5, [0])


def test_follower_cannot_have_synced_more_than_it_has() -> None:
    partition = new_partition(replicas=2)
    partition.note_follower(2, 3, 9)
    assert partition.followers[2].synced_end_offset == 3


def test_committed_write_fails_if_too_few_replicas_are_in_sync_by_then() -> None:
    partition = new_partition(replicas=3, isr=2, overrides={"min_insync_replicas": 2})
    partition.note_follower(2, 5, 0)
    committed, beyond = Waiter(), Waiter()
    partition.writers.wait(Until.DURABLE, 5, committed)
    partition.writers.wait(Until.DURABLE, 6, beyond)
    partition.apply_state(state(replicas=3, isr=1, version=1))
    assert (committed.answers, beyond.answers) == ([ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND], [])


@pytest.mark.parametrize(
    ("acks", "overrides", "until"),
    [
        (1, {}, Until.WRITTEN),
        (1, {"flush_messages": 1}, Until.SYNCED),
        (-1, {}, Until.DURABLE),
        (-1, {"flush_acks_all": False}, Until.COMMITTED),
        (-1, {"flush_acks_all": False, "flush_messages": 1}, Until.DURABLE),
    ],
)
def test_what_a_produce_waits_for(acks: int, overrides: dict[str, object], until: Until) -> None:
    assert new_partition(overrides=overrides).until(acks) is until


def test_only_writers_above_the_offset_fail() -> None:
    partition = new_partition()
    kept, lost, turn = Waiter(), Waiter(), Waiter()
    partition.writers._waiting = {Until.DURABLE: [(5, kept), (6, lost)]}
    partition.writers.written = [turn]
    partition.writers.fail(ErrorCode.KAFKA_STORAGE_ERROR, 5)
    assert (kept.answers, lost.answers, turn.answers) == ([], [56], [56])
    assert (partition.writers._waiting, partition.writers.written) == ({Until.DURABLE: [(5, kept)]}, [])


def test_everybody_is_answered_once_when_the_partition_goes() -> None:
    partition = new_partition()
    waiters = [Waiter() for _ in range(3)]
    partition.writers._waiting = {Until.SYNCED: [(1, waiters[0])], Until.DURABLE: [(9, waiters[1])]}
    partition.writers.written = [waiters[2]]
    partition.leave(ErrorCode.KAFKA_STORAGE_ERROR)
    partition.leave(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [waiter.answers for waiter in waiters] == [[56], [56], [56]]


def test_writer_may_wait_again_while_it_is_answered() -> None:
    partition = new_partition(replicas=2)

    class Again(Waiter):
        def on_write_complete(self, error_code: int) -> None:
            super().on_write_complete(error_code)
            partition.writers.wait(Until.SYNCED, 9, self)

    waiter = Again()
    partition.writers.wait(Until.COMMITTED, 5, waiter)
    partition.note_follower(2, 5, 5)
    assert (waiter.answers, partition.writers.has_waiting) == ([0], True)


def test_state_without_changes_is_applied_again_without_effect() -> None:
    partition = new_partition(replicas=2)
    before = replace(state(replicas=2))
    assert not partition.apply_state(before)
