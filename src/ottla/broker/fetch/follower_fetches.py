"""What the leader notes of its followers' fetches, and where their logs leave its own."""

from __future__ import annotations

from ottla.broker.fetch.sessions import FetchSession
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.model.errors import KafkaError, OffsetOutOfRange
from ottla.wire.fetch import FetchPartition, FetchRequest


def note_fetch(
    replicas: ReplicaManager,
    request: FetchRequest,
    session: FetchSession | None,
    *,
    by_id: bool,
    now: float,
    is_recent: bool,
) -> None:
    """Note the offsets in a follower's fetch. ``is_recent``: it was not sent before this process was paused."""
    for topic, rows in request.topics:
        for row in rows:
            try:
                partition = replicas.leader_of(topic, row.partition, row.current_leader_epoch, by_id=by_id)
            except KafkaError:
                if is_recent:
                    replicas.note_refused(
                        topic, row.partition, row.current_leader_epoch, request.replica_id, by_id=by_id
                    )
                continue  # the read of the partition answers with this error
            follower = partition.followers.get(request.replica_id)
            if follower is None or request.replica_epoch < follower.broker_epoch:
                continue  # not a replica, or an earlier process of the broker that still runs
            if not _continues_log(partition, row):
                continue
            follower.log_start_offset = row.log_start_offset
            if session is not None and (known := session.partitions.get((topic, row.partition))) is not None:
                known.follow(follower)
            partition.note_follower(
                request.replica_id, row.fetch_offset, row.synced_end_offset,
                broker_epoch=request.replica_epoch, now=now,
            )  # fmt: skip


def diverging(partition: Partition, request: FetchPartition) -> tuple[int, int] | None:
    """Return epoch and end offset of the common history if the log of the reader diverges from ours; None if not.

    Raise OffsetOutOfRange if its last epoch is newer than ours.
    """
    last_epoch = request.last_fetched_epoch
    if last_epoch < 0:
        return None
    epoch, end_offset = partition.epoch_end(last_epoch)
    if epoch < 0:
        raise OffsetOutOfRange(f"leader epoch {last_epoch} is unknown here")
    if epoch < last_epoch or end_offset < request.fetch_offset:
        return epoch, end_offset
    return None


def _continues_log(partition: Partition, row: FetchPartition) -> bool:
    """Return whether a follower has exactly our records below its fetch offset."""
    log = partition.log
    if not log.log_start_offset <= row.fetch_offset <= log.log_end_offset:
        return False
    try:
        return diverging(partition, row) is None
    except OffsetOutOfRange:
        return False
