"""Fetch from the closest replica (KIP-392): which replica a consumer of a rack should read from. Pure.

The leader answers a consumer of another rack with the id of a follower in the consumer's rack, and the consumer fetches
from that broker until it is sent back: the follower does not have the fetch offset, is no longer in sync, or the
consumer asks the leader again after ``metadata.max.age.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.partitions.partition import Partition, Role

#: no other replica is closer
NO_REPLICA = -1


def closest_replica(
    partition: Partition, brokers: Mapping[int, BrokerView], rack: str, listener: str, fetch_offset: int
) -> int:
    """Return the follower that a consumer in ``rack`` should read from, NO_REPLICA if that is the leader.

    The follower is in sync, has the fetch offset and the consumer's listener. Of several, the one that is furthest
    ahead is chosen, as Kafka's RackAwareReplicaSelector does.
    """
    leader = brokers.get(partition.broker_id)
    if partition.role is not Role.LEADER or leader is None or leader.rack == rack:
        return NO_REPLICA
    if not partition.log.log_start_offset <= fetch_offset <= partition.high_watermark:
        return NO_REPLICA  # the leader answers with the error, or lets the consumer wait
    found = [
        (follower.end_offset, follower.caught_up_at, number)
        for number, follower in partition.followers.items()
        if number in partition.isr
        and follower.log_start_offset <= fetch_offset <= follower.end_offset
        and (broker := brokers.get(number)) is not None
        and broker.rack == rack
        and broker.endpoint(listener) is not None
    ]
    return max(found)[2] if found else NO_REPLICA
