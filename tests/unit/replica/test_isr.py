"""Which replicas a leader wants to be in sync, and when it may lead without the metadata store."""

from __future__ import annotations

import pytest
from tests.unit.log.log_fixtures import batch, write
from tests.unit.replica.test_partition import new_partition, state

from ottla.replica.isr import may_lead_without_store, wanted_isr
from ottla.replica.partition import Partition

LAG_S = 10.0
#: the registered brokers, each with its broker epoch
REGISTERED = {1: 11, 2: 22, 3: 33}


def led(*, isr: int = 3) -> Partition:
    """A partition with five records that broker 1 has led since second 0."""
    return new_partition(replicas=3, isr=isr)


def wanted(partition: Partition, now: float) -> tuple[int, ...]:
    return wanted_isr(partition, REGISTERED, LAG_S, now)


def test_follower_that_never_fetched_leaves_after_the_lag_time() -> None:
    partition = led()
    partition.note_follower(2, 5, 5, broker_epoch=22, now=9.0)
    assert wanted(partition, LAG_S) == (1, 2, 3)
    assert wanted(partition, LAG_S + 1) == (1, 2)


def test_follower_that_has_everything_stays_however_long_ago_it_fetched() -> None:
    partition = led(isr=2)
    partition.note_follower(2, 5, 5, broker_epoch=22, now=1.0)
    assert wanted(partition, 1000.0) == (1, 2)


def test_follower_that_is_always_a_little_behind_stays() -> None:
    """Under load it never has the last record, but always what the leader had when it fetched before."""
    partition = led(isr=2)
    end = 5
    for second in range(30):
        partition.note_follower(2, end, 0, broker_epoch=22, now=float(second))
        end = partition.log.log_end_offset
        write(partition.log, batch(1))
    assert wanted(partition, 30.0) == (1, 2)
    assert wanted(partition, 60.0) == (1,)


def test_replica_joins_when_it_has_everything() -> None:
    partition = led(isr=1)
    partition.note_follower(2, 4, 4, broker_epoch=22, now=1.0)
    assert wanted(partition, 1.0) == (1,)
    partition.note_follower(2, 5, 4, broker_epoch=22, now=2.0)
    assert wanted(partition, 2.0) == (1,), "it has not synced everything"
    partition.note_follower(2, 5, 5, broker_epoch=22, now=3.0)
    assert wanted(partition, 3.0) == (1, 2)


def test_silent_follower_does_not_join_again_while_the_high_watermark_stands_still() -> None:
    """The leader cannot reach its followers: they have every committed record, but would have to leave at once."""
    partition = new_partition(replicas=3, overrides={"min_insync_replicas": 2})
    for number in (2, 3):
        partition.note_follower(number, 5, 5, broker_epoch=11 * number, now=1.0)
    write(partition.log, batch(1))
    assert wanted(partition, LAG_S + 2) == (1,)
    partition.apply_state(state(replicas=3, isr=1, version=1), LAG_S + 2)
    assert wanted(partition, LAG_S + 2.1) == (1,)
    partition.note_follower(2, 6, 6, broker_epoch=22, now=LAG_S + 3)
    assert wanted(partition, LAG_S + 3) == (1, 2)


def test_replica_needs_what_the_log_had_when_the_epoch_began() -> None:
    """The high watermark of a new leader may be old, so it is not enough."""
    partition = new_partition(replicas=3, isr=2, high_watermark=2)
    partition.note_follower(3, 3, 3, broker_epoch=33, now=1.0)
    assert partition.high_watermark == 2
    assert not partition.has_committed_in_epoch
    assert wanted(partition, 1.0) == (1, 2)


@pytest.mark.parametrize("broker_epoch", [21, 23, -1])
def test_replica_of_another_registration_does_not_join(broker_epoch: int) -> None:
    partition = led(isr=1)
    partition.note_follower(2, 5, 5, broker_epoch=broker_epoch, now=1.0)
    assert wanted(partition, 1.0) == (1,)


def test_broker_that_is_not_registered_does_not_join() -> None:
    partition = led(isr=1)
    partition.note_follower(2, 5, 5, broker_epoch=22, now=1.0)
    assert wanted_isr(partition, {1: 11}, LAG_S, 1.0) == (1,)


def test_replica_that_is_being_added_holds_the_high_watermark_back() -> None:
    partition = led(isr=1)
    partition.note_follower(2, 5, 5, broker_epoch=22, now=1.0)
    partition.proposed_isr = (1, 2)
    write(partition.log, batch(1))
    partition.update_high_watermark()
    assert partition.high_watermark == 5
    partition.note_follower(2, 6, 0, broker_epoch=22, now=2.0)
    assert partition.high_watermark == 6


def test_new_state_ends_a_proposal() -> None:
    partition = led(isr=1)
    partition.proposed_isr = (1, 2)
    partition.apply_state(state(replicas=3, isr=2, version=1), 3.0)
    assert partition.proposed_isr is None
    assert partition.followers[2].caught_up_at == 0.0, "the state of a follower survives a change of the replicas"


def test_only_replica_in_sync_may_lead_without_the_store() -> None:
    assert may_lead_without_store(led(isr=1), 1.5, 1000.0)


def test_leader_with_too_few_replicas_in_sync_may_not_lead_without_the_store() -> None:
    """A replica that left the ISR below min.insync.replicas is eligible: it may have been elected."""
    partition = new_partition(replicas=3, isr=1, overrides={"min_insync_replicas": 2})
    assert not may_lead_without_store(partition, 1.5, 0.0)


def test_leader_whose_followers_fetch_may_lead_without_the_store() -> None:
    partition = led(isr=2)
    assert not may_lead_without_store(partition, 1.5, 0.0)
    partition.note_follower(2, 5, 5, broker_epoch=22, now=10.0)
    assert may_lead_without_store(partition, 1.5, 11.5)
    assert not may_lead_without_store(partition, 1.5, 11.6)
