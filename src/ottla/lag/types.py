"""The lag of consumer groups, as it was read at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.admin.group_state import GroupMember, GroupState
from ottla.model.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The offsets of a group in one partition; None where they are not known."""

    name: TopicPartition
    committed: int | None
    log_start: int | None
    #: the high watermark, read after the committed offset, so that a lag is never negative
    log_end: int | None
    #: the member that the partition is assigned to
    member: GroupMember | None = None
    #: now minus the timestamp of the first record that is not consumed yet: 0 if all are, None if it is not known
    time_lag_ms: int | None = None
    #: the timestamp of that record; None if there is none, or if it is not known
    first_unread_ms: int | None = None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets behind the log end; None without a commit, or if the commit is after the end."""
        if self.committed is None or self.log_end is None or self.is_beyond_end:
            return None
        return self.log_end - self.committed

    @property
    def is_beyond_end(self) -> bool:
        """Return whether the commit is after the end: the topic was created again, or has lost records."""
        return self.committed is not None and self.log_end is not None and self.committed > self.log_end


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in all partitions of the topics that it reads."""

    group_id: str
    state: str
    read_at_ms: int
    partitions: Mapping[TopicPartition, PartitionLag]
    #: why the figures may not be complete; empty if they are
    problems: tuple[str, ...] = ()
    #: the group as its coordinator describes it; None if it could not be described
    group: GroupState | None = None

    @property
    def total(self) -> int | None:
        """Return the lag of all partitions with a commit; None if there is no such partition."""
        known = [each.lag for each in self.partitions.values() if each.lag is not None]
        return sum(known) if known else None

    @property
    def time_lag_ms(self) -> int | None:
        """Return the longest time lag of a partition; None if none is known."""
        return max(
            (each.time_lag_ms for each in self.partitions.values() if each.time_lag_ms is not None), default=None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSnapshot:
    """The lag of several groups, and the ends of the partitions that were read for it."""

    read_at_ms: int
    groups: Mapping[str, GroupLag]
    log_starts: Mapping[TopicPartition, int]
    log_ends: Mapping[TopicPartition, int]
    #: how long reading took
    seconds: float
    #: why groups may be missing
    problems: tuple[str, ...] = ()
