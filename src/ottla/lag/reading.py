"""Reads the lag of consumer groups, in records and in time.

The order makes sure that no lag is negative: committed offsets of all groups first, then the ends of the logs, then the
timestamps of the first records that are not consumed, then the clock. The number of requests depends on the number of
brokers, not on that of groups and partitions:

    descriptions and commits    one request per coordinator and 200 groups
    log starts, log ends        one request per leader, each
    timestamps                  one request per leader, more where a batch is large or has no record to consume

Works with Apache Kafka, from version 0.11 on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from ottla.admin.client import AdminClient
from ottla.admin.group_batches import committed_many, describe_many
from ottla.admin.group_state import GroupState
from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import ClientError
from ottla.client.many import ask_many
from ottla.client.protocol.metadata import Node, by_topic
from ottla.lag.first_records import ReadLimits, first_timestamps
from ottla.lag.types import GroupLag, LagSnapshot, PartitionLag
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

#: topics that are named in a request for metadata; more: all topics are asked for
_NAMED_TOPICS_MAX: Final = 200
#: the isolation level is in the request from this version on; the log end is that of all records in any case
_LIST_OFFSETS_MIN: Final = 1
_ATTEMPTS: Final = 2


class LagSource(Protocol):
    """What a lag is made of. `ClusterLagSource` reads it from a cluster."""

    def group_ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of all groups of consumers, and why some may be missing."""

    def describe(self, group_ids: Sequence[str]) -> Mapping[str, GroupState | Exception]: ...

    def committed(self, group_ids: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, int] | Exception]: ...

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        """Return the partitions of these topics, or of all, that have a leader or not; a deleted topic has none."""

    def ranges(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return log start offsets and high watermarks. A partition that cannot be asked is absent."""

    def first_timestamps(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[Mapping[TopicPartition, int | None], Sequence[str]]: ...


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class LagReader:
    """Reads lags from a cluster. Not thread safe, because its client is not."""

    def __init__(
        self,
        client: AdminClient,
        *,
        limits: ReadLimits = ReadLimits(),  # noqa: B008 (it cannot be changed)
        clock_ms: Callable[[], int] = _now_ms,
        source: LagSource | None = None,
    ) -> None:
        self._source: LagSource = ClusterLagSource(client, limits) if source is None else source
        self._clock_ms = clock_ms
        self._limits = limits

    def read(
        self, group_ids: Collection[str] | None = None, *, with_time: bool = True, all_topics: bool = False
    ) -> LagSnapshot:
        """Return the lag of these groups, or of all. A group that does not exist is absent.

        With `all_topics`, starts and ends of all topics are read, not only of those that the groups read.
        """
        began = time.monotonic()
        problems: list[str] = []
        if group_ids is None:
            names, problems = self._source.group_ids()
        else:
            names = list(dict.fromkeys(group_ids))
        states = self._source.describe(names)
        committed = self._source.committed(names)
        lags = {name: found for name in names if (found := _begin(name, states.get(name), committed.get(name)))}
        topics = {tp.topic for each in lags.values() for tp in each.partitions}
        existing = self._source.partitions(None if all_topics else topics) if topics or all_topics else []
        starts, ends = self._source.ranges(existing) if existing else ({}, {})
        lags = {name: _with_ends(each, existing, starts, ends) for name, each in lags.items()}
        if with_time:
            lags = self._with_times(lags)
        now_ms = self._clock_ms()
        return LagSnapshot(
            read_at_ms=now_ms,
            groups={name: _at(each, now_ms, with_time=with_time) for name, each in lags.items()},
            log_starts=starts,
            log_ends=ends,
            seconds=time.monotonic() - began,
            problems=tuple(problems),
        )

    def _with_times(self, lags: Mapping[str, GroupLag]) -> dict[str, GroupLag]:
        """Return the lags with the timestamps of the first records that are not consumed.

        Groups may be behind in the same partition, each at its own offset: each round reads one offset per partition.
        """
        wanted: dict[TopicPartition, dict[int, int]] = {}
        for each in lags.values():
            for name, lag in each.partitions.items():
                if lag.lag and lag.log_end is not None:
                    wanted.setdefault(name, {})[_first_unread(lag)] = lag.log_end
        found: dict[tuple[TopicPartition, int], int | None] = {}
        problems: dict[str, None] = {}
        until = time.monotonic() + self._limits.time_s
        while wanted:
            # The same partition can be in a request once only.
            ranges = {name: offsets.popitem() for name, offsets in wanted.items()}
            wanted = {name: offsets for name, offsets in wanted.items() if offsets}
            times, missing = self._source.first_timestamps(ranges)
            problems |= dict.fromkeys(missing)
            found |= {(name, ranges[name][0]): timestamp_ms for name, timestamp_ms in times.items()}
            if wanted and time.monotonic() >= until:
                problems[f"no time lag for some of the groups within {self._limits.time_s:g} s"] = None
                break
        return {name: _with_timestamps(each, found, tuple(problems)) for name, each in lags.items()}


def _first_unread(lag: PartitionLag) -> int:
    """Return where a consumer that starts at the commit finds its first record."""
    assert lag.committed is not None
    return max(lag.committed, lag.log_start or 0)


def _begin(
    name: str, state: GroupState | Exception | None, committed: Mapping[TopicPartition, int] | Exception | None
) -> GroupLag | None:
    """Return a group with its committed offsets; None if it does not exist."""
    problems = [str(each) for each in (state, committed) if isinstance(each, Exception)]
    group = state if isinstance(state, GroupState) else None
    offsets = committed if isinstance(committed, Mapping) else {}
    if group is not None and not group.exists and not offsets:
        return None
    holders = {tp: member for member in (group.members if group else ()) for tp in member.partitions}
    partitions = {
        tp: PartitionLag(name=tp, committed=offsets.get(tp), log_start=None, log_end=None, member=holders.get(tp))
        for tp in sorted({*offsets, *holders})
    }
    return GroupLag(
        group_id=name,
        state=group.state if group else "Unknown",
        read_at_ms=0,
        partitions=partitions,
        problems=tuple(problems),
        group=group,
    )


def _with_ends(
    lag: GroupLag,
    existing: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> GroupLag:
    """Return the lag with log starts and ends, and with the partitions of its topics that have no commit."""
    topics = {tp.topic for tp in lag.partitions}
    own = lag.partitions
    names = sorted({*own, *(tp for tp in existing if tp.topic in topics)})
    none = PartitionLag(name=TopicPartition("", 0), committed=None, log_start=None, log_end=None)
    rows = {
        tp: replace(own.get(tp, none), name=tp, log_start=starts.get(tp), log_end=ends.get(tp)) for tp in names
    }  # fmt: skip
    return replace(lag, partitions=rows)


def _with_timestamps(
    lag: GroupLag, found: Mapping[tuple[TopicPartition, int], int | None], problems: tuple[str, ...]
) -> GroupLag:
    rows = {}
    is_missing = False
    for tp, each in lag.partitions.items():
        rows[tp] = each
        if each.lag:
            key = tp, _first_unread(each)
            timestamp_ms = found.get(key)
            rows[tp] = replace(
                each, first_unread_ms=timestamp_ms, time_lag_ms=0 if key in found and timestamp_ms is None else None
            )
            is_missing = is_missing or key not in found
    return replace(lag, partitions=rows, problems=(*lag.problems, *(problems if is_missing else ())))


def _at(lag: GroupLag, now_ms: int, *, with_time: bool) -> GroupLag:
    """Return the lag with its time lags at a moment."""
    rows = dict(lag.partitions)
    for tp, each in lag.partitions.items() if with_time else ():
        if each.lag == 0:
            rows[tp] = replace(each, time_lag_ms=0)
        elif each.first_unread_ms is not None:
            # The clock of a producer may be ahead.
            rows[tp] = replace(each, time_lag_ms=max(now_ms - each.first_unread_ms, 0))
    return replace(lag, partitions=rows, read_at_ms=now_ms)


class ClusterLagSource:
    """Reads from a cluster with few requests. Every error is raised as a `Failure`, or is part of the result."""

    def __init__(self, client: AdminClient, limits: ReadLimits) -> None:
        self._client = client
        self._limits = limits

    def group_ids(self) -> tuple[list[str], list[str]]:
        groups, failures = self._client.groups()
        return [each.group_id for each in groups], [failure.message for failure in failures]

    def describe(self, group_ids: Sequence[str]) -> Mapping[str, GroupState | Exception]:
        limit_s = min(self._client.timeout_s, self._limits.time_s)
        return self._client.call(lambda cluster: describe_many(cluster, group_ids, limit_s))

    def committed(self, group_ids: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, int] | Exception]:
        limit_s = min(self._client.timeout_s, self._limits.time_s)
        return self._client.call(lambda cluster: committed_many(cluster, group_ids, limit_s))

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        named = topics if topics is not None and len(topics) <= _NAMED_TOPICS_MAX else None

        def ask(cluster: Cluster) -> list[TopicPartition]:
            answer = cluster.retry("topics", lambda deadline: cluster.metadata(named, deadline))
            return [
                TopicPartition(row.name or "", each.partition_index)
                for row in answer.topics
                if not row.error_code and (topics is None or row.name in topics)
                for each in row.partitions
            ]

        return self._client.call(ask)

    def ranges(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        limit_s = min(self._client.timeout_s, self._limits.time_s)

        def ask(cluster: Cluster) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            starts = list_offsets(cluster, partitions, EARLIEST, limit_s)
            return starts, list_offsets(cluster, partitions, LATEST, limit_s)

        return self._client.call(ask)

    def first_timestamps(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[Mapping[TopicPartition, int | None], Sequence[str]]:
        return self._client.call(lambda cluster: first_timestamps(cluster, ranges, self._limits))


def list_offsets(
    cluster: Cluster, partitions: Sequence[TopicPartition], at: int, timeout_s: float
) -> dict[TopicPartition, int]:
    """Return an offset of each partition, with one request per leader. A partition that cannot be asked is absent."""
    found: dict[TopicPartition, int] = {}
    missing = list(partitions)
    for _ in range(_ATTEMPTS):
        deadline = time.monotonic() + timeout_s / _ATTEMPTS
        by_node: dict[Node, list[TopicPartition]] = {}
        for tp, leader in cluster.leaders(missing, deadline).items():
            by_node.setdefault(leader.node, []).append(tp)
        requests = [(node, _list_offsets(names, at)) for node, names in by_node.items()]
        for node, _, reply in ask_many(cluster, requests, deadline, version_min=_LIST_OFFSETS_MIN):
            if isinstance(reply, ClientError):
                for topic in by_topic(by_node[node]):
                    cluster.forget(topic)
                continue
            for row in reply.topics:
                for each in row.partitions:
                    if each.error_code:
                        cluster.forget(row.name)
                    elif each.offset >= 0:
                        found[TopicPartition(row.name, each.partition_index)] = each.offset
        missing = [tp for tp in missing if tp not in found]
        if not missing:
            break
    return found


def _list_offsets(names: Sequence[TopicPartition], at: int) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=tp.partition, timestamp=at) for tp in rows]
        )
        for topic, rows in by_topic(names).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=Isolation.READ_UNCOMMITTED, topics=topics)
