"""The lag of a group, in records and in time.

Committed offsets are read before log end offsets, so that no group is shown ahead of the log. The time lag is the age
of the first record that is not consumed. It is read from the log, not estimated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from ottla.admin.failure import Failure
from ottla.cli.duration import current_time_ms
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.group_state import GroupMember, GroupState
    from ottla.admin.topic_state import TopicState
    from ottla.cli.cluster import ClusterClient
    from ottla.cli.records import Reader
#: small fetches, because one record of each partition is enough
_READER: Mapping[str, str | int | float | bool] = {
    "isolation.level": "read_uncommitted",
    "max.partition.fetch.bytes": 16_384,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 4096,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 20,
}
_READ_COUNT = 500
_POLL_S = 0.1
_PROGRESS_EVERY_S = 2.0
#: the type of a missing timestamp
_TIMESTAMP_NOT_AVAILABLE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The offsets of a group in one partition; None where they are not known."""

    name: TopicPartition
    committed: int | None
    log_end: int | None
    #: the member that the partition is assigned to
    member: GroupMember | None
    time_lag_ms: int | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.log_end is None or self.is_beyond_end:
            return None
        return self.log_end - self.committed

    @property
    def is_beyond_end(self) -> bool:
        """Return whether the commit is after the end: the topic was created again, or has lost records."""
        return self.committed is not None and self.log_end is not None and self.committed > self.log_end


def measure_lag(cluster: ClusterClient, group: GroupState, *, time_limit_s: float | None) -> list[PartitionLag]:
    """Return the lag of every partition of the topics in which the group has commits or assigned partitions.

    Partitions without a commit are included, because none of their records may have been read. Without `time_limit_s`
    no time lag is read.
    """
    committed = cluster.committed_offsets(group.group_id)
    holders = {name: member for member in group.members for name in member.partitions}
    topics = cluster.topics() if committed or holders else {}
    read = {name.topic for name in (*committed, *holders)} & topics.keys()
    every = [each.name for topic in read for each in topics[topic].partitions]
    names = sorted({*committed, *holders, *every})
    ends = _log_ends(cluster, topics, names)
    found = [
        PartitionLag(name=name, committed=committed.get(name), log_end=ends.get(name), member=holders.get(name))
        for name in names
    ]
    if time_limit_s is None:
        return found
    behind = {lag.name: lag.committed for lag in found if lag.committed is not None and lag.lag}
    timestamps = read_first_timestamps(cluster, behind, time_limit_s)
    now_ms = current_time_ms()
    return [replace(lag, time_lag_ms=_time_lag_ms(lag, timestamps, now_ms)) for lag in found]


def read_first_timestamps(
    cluster: ClusterClient, starts: Mapping[TopicPartition, int], time_limit_s: float
) -> dict[TopicPartition, int | None]:
    """Return the timestamp of the first record at or after each offset; None if the log has no such record.

    A partition without an answer in time, or whose record has no timestamp, is absent.
    """
    if not starts:
        return {}
    found: dict[TopicPartition, int | None] = {}
    with cluster.reader(_READER) as reader:
        try:
            reader.assign(starts)
            _read_each_once(reader, starts, found, time_limit_s)
        except Failure as failure:
            # A user who may not read the records still gets the other columns.
            click.echo(f"warning: time lag not read: {failure.message}", err=True)
    return found


def _read_each_once(
    reader: Reader,
    starts: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int | None],
    time_limit_s: float,
) -> None:
    unread = set(starts)
    began = reported = time.monotonic()
    while unread:
        now = time.monotonic()
        if now - began >= time_limit_s:
            left_out = f"{len(unread)} of {len(starts)} partitions"
            click.echo(f"warning: no time lag for {left_out} within {time_limit_s:g} s; raise --timeout", err=True)
            return
        if now - reported >= _PROGRESS_EVERY_S:
            reported = now
            click.echo(f"reading time lag: {len(starts) - len(unread)} of {len(starts)} partitions", err=True)
        messages, ends = reader.read(_READ_COUNT, min(_POLL_S, time_limit_s))
        for message in messages:
            name = TopicPartition(str(message.topic()), message.partition() or 0)
            if name not in unread or (message.offset() or 0) < starts[name]:
                continue
            kind, timestamp_ms = message.timestamp()
            if kind != _TIMESTAMP_NOT_AVAILABLE:
                found[name] = timestamp_ms
            unread.remove(name)
            reader.pause(name)
        for name in unread.intersection(ends):
            # The offsets up to the end are transaction markers or were compacted: there is no record to consume.
            found[name] = None
            unread.remove(name)


def _time_lag_ms(lag: PartitionLag, timestamps: Mapping[TopicPartition, int | None], now_ms: int) -> int | None:
    if lag.lag == 0:
        return 0
    if lag.name not in timestamps:
        return None
    timestamp_ms = timestamps[lag.name]
    # The clock of a producer may be ahead.
    return 0 if timestamp_ms is None else max(now_ms - timestamp_ms, 0)


def _log_ends(
    cluster: ClusterClient, topics: Mapping[str, TopicState], names: list[TopicPartition]
) -> dict[TopicPartition, int]:
    # A commit may be older than the deletion of its topic, and a partition without a leader cannot be asked.
    led = {each.name for topic in topics.values() for each in topic.partitions if each.leader is not None}
    found = cluster.find_offsets([name for name in names if name in led], "latest")
    return {name: at.offset for name, at in found.items() if at.offset is not None}
