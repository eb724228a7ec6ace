"""Which replicas a leader wants to be in sync, and when it may lead without the metadata store."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.log.log_fixtures import batch, sync, write
from tests.unit.partitions.test_partition import new_partition, state

from ottla.broker.partitions.group_commit import AwaitedWrite
from ottla.broker.partitions.isr import Limits, may_lead_again_without_store, may_lead_without_store, wanted_isr
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until

LAG_S = 10.0
#: the registered brokers, each with its broker epoch
REGISTERED = {1: 11, 2: 22, 3: 33}


def led(*, isr: int = 3) -> Partition:
    """A partition with five records that broker 1 has led since second 0."""
    return new_partition(replicas=3, isr=isr)


def wanted(partition: Partition, now: float) -> tuple[int, ...]:
    return wanted_isr(partition, REGISTERED, Limits(LAG_S), now)


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
    assert wanted_isr(partition, {1: 11}, Limits(LAG_S), 1.0) == (1,)


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


def test_proposed_replica_counts_while_the_outcome_is_unknown() -> None:
    """It may be in the ISR by now, and elected: what it does not fetch is no proof."""
    partition = led(isr=2)
    partition.note_follower(2, 5, 5, broker_epoch=22, now=10.0)
    partition.note_follower(3, 5, 5, broker_epoch=33, now=1.0)
    partition.set_lease(is_over=True)
    loop = asyncio.new_event_loop()
    first, second = AwaitedWrite(loop, 60.0), AwaitedWrite(loop, 60.0)
    partition.confirm_leadership(first, 9.0)
    partition.proposed_isr = (1, 2, 3)
    partition.confirm_leadership(second, 9.0)
    assert (first.code.done(), second.code.done()) == (True, False)
    assert not may_lead_without_store(partition, 1.5, 10.0)
    partition.note_follower(3, 5, 5, broker_epoch=33, now=10.0)
    partition.complete_confirmed()
    assert second.code.result() == 0
    assert may_lead_without_store(partition, 1.5, 10.0)
    loop.close()


@pytest.mark.parametrize("flush_messages", [1, 2**63 - 1])
@pytest.mark.parametrize("lease_ends", ["before the produce", "before its acknowledgement"])
def test_acks_1_waits_for_the_in_sync_replicas_after_the_lease(flush_messages: int, lease_ends: str) -> None:
    """Another leader may have been elected, with ``flush.messages`` or without."""
    partition = new_partition(replicas=3, isr=2, overrides={"flush_messages": flush_messages})
    loop = asyncio.new_event_loop()
    writer = AwaitedWrite(loop, 60.0)
    if lease_ends == "before the produce":
        partition.set_lease(is_over=True)
    write(partition.log, batch(1))
    if (until := partition.until(1)) is Until.WRITTEN:
        partition.writers.written.append(writer)
    else:
        partition.writers.wait(until, 6, writer)
    partition.set_lease(is_over=True)
    sync(partition.log)
    partition.complete_writers()
    assert not partition.writers.written
    assert not writer.code.done()
    partition.note_follower(2, 6, 6, broker_epoch=22, now=1.0)
    partition.complete_writers()
    assert writer.code.result() == 0
    loop.close()


def test_acks_1_waits_after_the_lease_if_too_few_replicas_are_in_sync() -> None:
    """A replica that left the ISR below min.insync.replicas is eligible: it may have been elected."""
    partition = new_partition(replicas=3, isr=1, overrides={"min_insync_replicas": 2})
    loop = asyncio.new_event_loop()
    writer = AwaitedWrite(loop, 60.0)
    partition.writers.written.append(writer)
    partition.set_lease(is_over=True)
    assert not partition.writers.written
    assert partition.writers.has_waiting
    loop.close()


def suspended(*, isr: int, **fetched_at: float) -> Partition:
    """A partition that broker 1 has stopped to lead, with the fetches of other brokers since then."""
    partition = led(isr=isr)
    partition.suspend()
    partition.suspended = {int(name[1:]): time_s for name, time_s in fetched_at.items()}
    return partition


def test_leader_leads_again_without_the_store_when_all_in_sync_replicas_have_fetched() -> None:
    assert may_lead_again_without_store(suspended(isr=3, b2=10.0, b3=11.0), 1.5, 11.5)
    assert not may_lead_again_without_store(suspended(isr=3, b2=9.9, b3=11.0), 1.5, 11.5)
    assert not may_lead_again_without_store(suspended(isr=3, b2=11.0), 1.5, 11.5)
    assert not may_lead_again_without_store(led(isr=3), 1.5, 0.0), "it has not stopped"


def test_leader_leads_again_without_the_store_only_with_a_proof_of_another_replica() -> None:
    assert not may_lead_again_without_store(suspended(isr=1), 1.5, 11.5)
    assert not may_lead_again_without_store(suspended(isr=1, b2=11.5), 1.5, 11.5)


def test_leader_with_too_few_replicas_in_sync_does_not_lead_again_without_the_store() -> None:
    partition = new_partition(replicas=3, isr=2, overrides={"min_insync_replicas": 3})
    partition.suspend()
    partition.suspended = {2: 11.0}
    assert not may_lead_again_without_store(partition, 1.5, 11.0)


def test_proposed_replica_must_fetch_before_the_leader_leads_again() -> None:
    partition = suspended(isr=2, b2=11.0)
    partition.proposed_isr = (1, 2, 3)
    assert not may_lead_again_without_store(partition, 1.5, 11.0)


def test_leader_that_leads_again_knows_when_its_followers_fetched() -> None:
    """Else it would stop again with the next check."""
    partition = suspended(isr=2, b2=11.0)
    partition.apply_state(state(replicas=3, isr=2), 11.1)
    assert partition.suspended is None
    assert may_lead_without_store(partition, 1.5, 11.5)
