"""Burrow's evaluation of consumer groups: a verdict from a window of commits, without a limit for the lag. Pure.

A history has the last commits of a group in one partition, with the lag that each had, and the last log ends of the
partition. The rules, in this order; the first that applies decides:

    OK       there is no commit, or the window has less of its commits than ``minimum_complete``
    OK       the current lag is at most ``allowed_lag``
    STOP     the last commit is longer ago than the commits of the window are apart, and no recent log end was reached
    REWIND   the first commit that is before its predecessor has not been made up for
    OK       the lag of one of the commits was at most ``allowed_lag``
    STALL    all commits have the same offset
    WARN     the lag never became smaller from one commit to the next
    OK

A group is as its worst partition, with ERR for STOP, STALL and REWIND.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from ottla.model.types import TopicPartition


class Status(IntEnum):
    """The numbers are those of Burrow's metrics."""

    NOTFOUND = 0
    OK = 1
    WARN = 2
    ERR = 3
    STOP = 4
    STALL = 5
    REWIND = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers of the evaluation; the defaults are Burrow's."""

    #: commits in a window, and log ends that count as recent
    intervals: int = 10
    #: a commit that is closer to the one before it than this takes its place and its time
    min_distance_ms: int = 0
    allowed_lag: int = 0
    #: a window with a smaller share of its commits is not judged
    minimum_complete: float = 0.0
    #: a group without a commit for this long is forgotten
    expire_group_s: int = 604_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a group in one partition."""

    offset: int
    #: when it was made
    timestamp_ms: int
    #: when it was seen
    observed_ms: int
    #: the lag at that time; None if it is not known
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The verdict about a group in one partition."""

    name: TopicPartition
    status: Status
    #: the first and the last commit of the window
    start: Commit | None
    end: Commit | None
    current_lag: int
    #: share of the commits that the window can have
    complete: float
    owner: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """The verdict about a group."""

    group_id: str
    status: Status
    #: share of the partitions with a complete window
    complete: float
    partitions: tuple[PartitionStatus, ...] = ()
    total_lag: int = 0

    @property
    def max_lag(self) -> PartitionStatus | None:
        """Return the partition with the largest lag, which need not be the one with the worst status."""
        return max(self.partitions, key=lambda each: each.current_lag, default=None)


@dataclass(slots=True)
class PartitionHistory:
    """The window of a group in one partition."""

    commits: deque[Commit]
    owner: str = ""
    client_id: str = ""

    def add(self, commit: Commit, rules: Rules) -> None:
        """Add the newest commit. One that follows too soon takes the place of the last one, and keeps its time.

        Otherwise a group that commits more often than the distance would never get a second entry.
        """
        if self.commits and commit.timestamp_ms - self.commits[-1].timestamp_ms < rules.min_distance_ms:
            last = self.commits.pop()
            commit = Commit(
                offset=commit.offset,
                timestamp_ms=last.timestamp_ms,
                observed_ms=commit.observed_ms,
                lag=commit.lag,
            )
        self.commits.append(commit)


@dataclass(slots=True)
class GroupHistory:
    """The windows of a group."""

    partitions: dict[TopicPartition, PartitionHistory] = field(default_factory=dict)
    #: when its last commit was made
    last_commit_ms: int = 0

    def add(self, name: TopicPartition, commit: Commit, rules: Rules) -> None:
        """Add a commit, unless it is so old that the group would be forgotten at once."""
        if commit.timestamp_ms < commit.observed_ms - rules.expire_group_s * 1000:
            return
        history = self.partitions.get(name)
        if history is None:
            history = self.partitions[name] = PartitionHistory(deque(maxlen=rules.intervals))
        history.add(commit, rules)
        self.last_commit_ms = max(self.last_commit_ms, commit.timestamp_ms)

    def has_expired(self, now_ms: int, rules: Rules) -> bool:
        return self.last_commit_ms < now_ms - rules.expire_group_s * 1000


def evaluate_group(
    group_id: str,
    history: GroupHistory | None,
    heads: Mapping[TopicPartition, Sequence[int]],
    now_ms: int,
    rules: Rules,
) -> GroupStatus:
    """Return the verdict about a group; NOTFOUND if it is not known.

    ``heads`` are the recent log ends of all partitions, oldest first. The partitions of a topic that have no commit
    count as OK and incomplete.
    """
    if history is None or history.has_expired(now_ms, rules):
        return GroupStatus(group_id=group_id, status=Status.NOTFOUND, complete=1.0)
    topics = {name.topic for name in history.partitions}
    names = sorted({*history.partitions, *(name for name in heads if name.topic in topics)})
    found = [
        evaluate_partition(name, history.partitions.get(name), heads.get(name, ()), now_ms, rules=rules)
        for name in names
    ]
    return GroupStatus(
        group_id=group_id,
        status=_worst(each.status for each in found),
        complete=sum(each.complete == 1.0 for each in found) / len(found) if found else 0.0,
        partitions=tuple(found),
        total_lag=sum(each.current_lag for each in found),
    )


def _worst(statuses: Iterable[Status]) -> Status:
    return min(max(statuses, default=Status.OK), Status.ERR)


def evaluate_partition(
    name: TopicPartition, history: PartitionHistory | None, heads: Sequence[int], now_ms: int, *, rules: Rules
) -> PartitionStatus:
    """Return the verdict about a group in one partition."""
    commits = tuple(history.commits) if history is not None else ()
    if not commits:
        return PartitionStatus(name=name, status=Status.OK, start=None, end=None, current_lag=0, complete=0.0)
    assert history is not None
    # A log end that was read before the commit may be smaller.
    current_lag = max(heads[-1] - commits[-1].offset, 0) if heads else 0
    complete = min(len(commits) / rules.intervals, 1.0)
    status = Status.OK
    if complete >= rules.minimum_complete and current_lag > rules.allowed_lag:
        status = _judge(commits, heads, now_ms, rules.allowed_lag)
    return PartitionStatus(
        name=name,
        status=status,
        start=commits[0],
        end=commits[-1],
        current_lag=current_lag,
        complete=complete,
        owner=history.owner,
        client_id=history.client_id,
    )


def _judge(commits: Sequence[Commit], heads: Sequence[int], now_ms: int, allowed_lag: int) -> Status:
    """Return the verdict about a partition whose lag is above the allowed one."""
    if _has_stopped(commits, now_ms) and not any(head <= commits[-1].offset for head in heads):
        return Status.STOP
    if _is_rewound(commits):
        return Status.REWIND
    lags = [each.lag for each in commits if each.lag is not None]
    if any(lag <= allowed_lag for lag in lags):
        return Status.OK
    if all(each.offset == commits[0].offset for each in commits):
        return Status.STALL
    if all(before <= after for before, after in pairwise(lags)):
        return Status.WARN
    return Status.OK


def _has_stopped(commits: Sequence[Commit], now_ms: int) -> bool:
    first, last = commits[0].timestamp_ms, commits[-1].timestamp_ms
    # The clock has a resolution of one second.
    return now_ms // 1000 * 1000 - last > last - first


def _is_rewound(commits: Sequence[Commit]) -> bool:
    """Return whether the first step back has not been made up for. Later steps back are not looked at."""
    for index, (before, after) in enumerate(pairwise(commits), 1):
        if after.offset < before.offset:
            return all(each.offset < before.offset for each in commits[index:])
    return False
