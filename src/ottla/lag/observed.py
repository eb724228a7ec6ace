"""What readings of groups, one after the other, say about them: verdicts, rates, and what happened. Pure.

Burrow reads the records of commits, which have the time of each commit. A reader of committed offsets sees their
values only. So an offset that has changed counts as a commit at the time of the reading, and one that has not changed
counts as a commit while a member has the partition: consumers commit again and again. Without a member there is none.
The verdicts then follow Burrow's rules (`burrow.py`) without a change. Works with every Kafka cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.lag.burrow import Commit, GroupHistory, GroupStatus, Rules, evaluate_group
from ottla.lag.forecast import Forecast, Sample, forecast
from ottla.lag.types import GroupLag, LagSnapshot
from ottla.model.figures import format_count, format_first
from ottla.model.types import TopicPartition

#: commits are at least this far apart, so that a window of ten is a minute. A window with less than half of its commits
#: is not judged: a group that commits seldom would stall
RULES: Final = Rules(min_distance_ms=6000, minimum_complete=0.5)
#: readings that are kept of each partition, and those of the group
_SAMPLES: Final = 30
_GROUP_SAMPLES: Final = 150
_EVENTS: Final = 50
#: a partition whose end moves and whose commit does not for this long is not consumed
_STOPPED_MS: Final = 15_000
#: partitions of all groups that are followed; further groups have no verdict
PARTITIONS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a group between two readings."""

    at_ms: int
    #: joined, left, state, moved, stopped, resumed, rewound, lost
    kind: str
    text: str


@dataclass(slots=True)
class _Partition:
    """A partition of a group."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    heads: deque[int] = field(default_factory=lambda: deque(maxlen=RULES.intervals))
    #: since when the commit is the same, and the end at that time
    since_ms: int = 0
    end_then: int = 0
    is_stopped: bool = False


@dataclass(slots=True)
class ObservedGroup:
    """The last readings of one group."""

    first_ms: int
    history: GroupHistory = field(default_factory=GroupHistory)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_GROUP_SAMPLES))
    partitions: dict[TopicPartition, _Partition] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    last: GroupLag | None = None

    def status(self, group_id: str, now_ms: int) -> GroupStatus | None:
        """Return the verdict; None if the readings are too few for one."""
        # A group without members will not commit again: there is nothing to wait for.
        has_members = self.last is None or self.last.group is None or bool(self.last.group.members)
        rules = RULES if has_members else replace(RULES, minimum_complete=0.0)
        heads = {name: each.heads for name, each in self.partitions.items()}
        status = evaluate_group(group_id, self.history, heads, now_ms, rules)
        judged = [each for each in status.partitions if each.complete >= rules.minimum_complete]
        return status if judged or not any(each.current_lag for each in status.partitions) else None

    def forecast(self, name: TopicPartition | None = None) -> Forecast:
        """Return rates and the time of catching up, of one partition or of the group."""
        if name is None:
            return forecast(list(self.samples))
        found = self.partitions.get(name)
        return forecast(list(found.samples) if found is not None else ())


class ObservedGroups:
    """The last readings of all groups of a cluster."""

    def __init__(self) -> None:
        self._groups: dict[str, ObservedGroup] = {}
        #: verdicts since the last reading, by group
        self._verdicts: dict[str, GroupStatus | None] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def get(self, group_id: str) -> ObservedGroup | None:
        return self._groups.get(group_id)

    def status(self, group_id: str, now_ms: int) -> GroupStatus | None:
        """Return the verdict about a group; None if its readings are too few. It holds until the next reading."""
        if group_id not in self._verdicts:
            group = self._groups.get(group_id)
            self._verdicts[group_id] = None if group is None else group.status(group_id, now_ms)
        return self._verdicts[group_id]

    def add(self, reading: LagSnapshot) -> None:
        """Add a reading of all groups."""
        self._verdicts.clear()
        for name in self._groups.keys() - reading.groups.keys():
            del self._groups[name]
        followed = sum(len(each.partitions) for each in self._groups.values())
        for name, lag in reading.groups.items():
            group = self._groups.get(name)
            if group is None:
                followed += len(lag.partitions)
                if followed > PARTITIONS_MAX:
                    continue
                group = self._groups[name] = ObservedGroup(first_ms=reading.read_at_ms)
            if lag.problems:
                continue  # a group that could not be read has neither left members nor stopped
            group.events.extend(_membership(group.last, lag))
            _add(group, lag)
            group.last = lag


def _add(group: ObservedGroup, lag: GroupLag) -> None:
    now_ms, committed, ends = lag.read_at_ms, 0, 0
    for name in group.partitions.keys() - lag.partitions.keys():
        del group.partitions[name]
        group.history.partitions.pop(name, None)
    stopped, resumed, rewound = [], [], []
    for name, each in lag.partitions.items():
        if each.log_end is None:
            continue
        known = group.partitions.setdefault(name, _Partition())
        known.heads.append(each.log_end)
        if each.committed is None:
            continue
        committed, ends = committed + each.committed, ends + each.log_end
        before = known.samples[-1].committed if known.samples else None
        if before is None or before != each.committed or each.member is not None:
            commit = Commit(offset=each.committed, timestamp_ms=now_ms, observed_ms=now_ms, lag=each.lag)
            group.history.add(name, commit, RULES)
            history = group.history.partitions[name]
            history.owner = each.member.host if each.member else ""
            history.client_id = each.member.client_id if each.member else ""
        if before is not None and each.committed < before:
            rewound.append((name, before, each.committed))
        known.samples.append(Sample(now_ms, each.committed, each.log_end))
        if before != each.committed:
            if known.is_stopped:
                resumed.append(name)
            known.since_ms, known.end_then, known.is_stopped = now_ms, each.log_end, False
        elif not known.is_stopped and now_ms - known.since_ms >= _STOPPED_MS and each.log_end > known.end_then:
            known.is_stopped = True
            stopped.append(name)
    group.samples.append(Sample(now_ms, committed, ends))
    group.events.extend(_progress(now_ms, stopped, resumed, rewound))


def _progress(
    now_ms: int,
    stopped: Sequence[TopicPartition],
    resumed: Sequence[TopicPartition],
    rewound: Sequence[tuple[TopicPartition, int, int]],
) -> Iterator[Event]:
    if stopped:
        seconds = _STOPPED_MS // 1000
        yield Event(now_ms, "stopped", f"no commit for {seconds} s although records arrive: {format_first(stopped)}")
    if resumed:
        yield Event(now_ms, "resumed", f"commits again: {format_first(resumed)}")
    for name, before, after in rewound[:1]:
        more = f", and {len(rewound) - 1} more partitions" if len(rewound) > 1 else ""
        yield Event(now_ms, "rewound", f"the commit of {name} went back from {before:,} to {after:,}{more}")


def _membership(before: GroupLag | None, now: GroupLag) -> Iterator[Event]:
    """Yield what has changed among the members since the last reading."""
    if before is None or before.group is None or now.group is None:
        return
    if before.state != now.state:
        yield Event(now.read_at_ms, "state", f"{before.state} → {now.state}")
    old = {each.member_id: each for each in before.group.members}
    new = {each.member_id: each for each in now.group.members}
    for kind, ids, members in (("left", old.keys() - new.keys(), old), ("joined", new.keys() - old.keys(), new)):
        if ids:
            names = format_first(sorted(f"{members[each].client_id} at {members[each].host}" for each in ids))
            yield Event(now.read_at_ms, kind, f"{format_count(len(ids), 'member')} {kind}: {names}")
    moved = _moved({each: old[each].partitions for each in old.keys() & new.keys()}, new)
    if moved:
        yield Event(now.read_at_ms, "moved", f"{format_count(moved, 'partition')} moved between members that stayed")


def _moved(before: Mapping[str, Sequence[TopicPartition]], now: Mapping[str, object]) -> int:
    return sum(len(set(rows) - set(getattr(now[each], "partitions", ()))) for each, rows in before.items())
