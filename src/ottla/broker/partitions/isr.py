"""The leader's decisions about its in-sync replicas, as pure functions. The metadata store applies them by version.

A follower leaves if it has not had all of the leader's records for ``replica.lag.time.max.ms``, or if it lacks records
and has not fetched for ``replica.silence.time.max.ms``. A follower that runs fetches at least every
``replica.fetch.wait.max.ms``, whether there are records or not. So one that is silent is cut off, or its process
stands still, and one that fetches is only slow. The time in which the leader itself stood still does not count. A
replica joins when

- it has synced everything below the high watermark, because it may have to lead after a power failure of all others,
- it has everything that the log had when the leader's epoch began, because the high watermark of a new leader can be
  older than that of the last one,
- it has deleted the records before the log start, so that they do not come back when it leads,
- it does not lag: otherwise it would have to leave again at once. While no follower can reach the leader, the high
  watermark stands still, and all of them have everything below it,
- and the process that fetched is the one that is registered now, because what an earlier one had may be lost (KIP-903),
  and has not announced that it stops: it no longer fetches, and writers would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ottla.broker.partitions.follower import Follower
from ottla.broker.partitions.partition import Partition


class Limits(NamedTuple):
    """How long a follower may lack records."""

    #: while it fetches
    lag_s: float
    #: while it does not fetch
    silence_s: float = math.inf
    #: since when this leader has looked at its followers without a pause
    running_since: float = -math.inf


def wanted_isr(partition: Partition, broker_epochs: Mapping[int, int], limits: Limits, now: float) -> tuple[int, ...]:
    """Return the in-sync replicas as the leader wants them, in the order of the assignment.

    ``broker_epochs`` are the registered brokers without those that stop.
    """
    own = partition.broker_id
    return tuple(
        number for number in partition.replicas
        if number == own or (
            (number in partition.isr or may_join(partition, number, broker_epochs))
            and not _lags(partition, partition.followers[number], limits, now)
        )
    )  # fmt: skip


def _lags(partition: Partition, follower: Follower, limits: Limits, now: float) -> bool:
    if follower.end_offset >= partition.log.log_end_offset:
        return False
    heard_of_at = max(follower.fetched_at, follower.caught_up_at, limits.running_since)
    return now - follower.caught_up_at > limits.lag_s or now - heard_of_at > limits.silence_s


def may_join(partition: Partition, broker_id: int, broker_epochs: Mapping[int, int]) -> bool:
    """Return whether a replica that is not in sync has all records that it needs to become so."""
    follower = partition.followers[broker_id]
    safe = follower.synced_end_offset if partition.log.flush_acks_all else follower.end_offset
    return (
        follower.broker_epoch == broker_epochs.get(broker_id, -2)
        and safe >= partition.high_watermark
        and follower.end_offset >= partition.epoch_start_offset
        and max(follower.log_start_offset, 0) >= partition.log.log_start_offset
    )


def may_lead_without_store(partition: Partition, silence_s: float, now: float) -> bool:
    """Return whether the leader is safe although it cannot reach the metadata store.

    Another leader can only be elected among the in-sync replicas, and stops to fetch from this one. So the leader goes
    on while all of them fetch, or if it is the only one. Those that it has proposed count if it does not know the
    outcome. While fewer than min.insync.replicas are in sync, a replica
    that left the ISR may be elected too (ELR), so the leader stops.
    """
    return len(partition.isr) >= partition.min_in_sync and all(
        now - partition.followers[number].fetched_at <= silence_s
        for number in partition.maximal_isr
        if number in partition.followers
    )


def may_lead_again_without_store(partition: Partition, silence_s: float, now: float) -> bool:
    """Return whether a leader that stopped to lead is as safe as one that did not: see ``may_lead_without_store``.

    All other in-sync replicas have fetched again in the epoch of this leader, which they would not if they knew another
    one. Without any other in-sync replica there is no such proof.
    """
    fetched_at = partition.suspended
    others = [number for number in partition.maximal_isr if number != partition.broker_id]
    return (
        fetched_at is not None
        and bool(others)
        and len(partition.isr) >= partition.min_in_sync
        and all(now - fetched_at.get(number, -math.inf) <= silence_s for number in others)
    )
