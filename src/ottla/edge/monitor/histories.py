"""What the monitor remembers from round to round: commits and log ends for Burrow's rules, samples for the forecast.

Pure and bounded. A group that is deleted is forgotten at once, one without commits after `Rules.expire_group_s`. When
there are more partitions with commits than `windows_max`, further ones get no window, and the monitor says how many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.lag.burrow import Commit, GroupHistory, GroupStatus, PartitionHistory, Rules, evaluate_group
from ottla.lag.forecast import Forecast, Sample, forecast
from ottla.lag.types import GroupLag
from ottla.model.types import TopicPartition

#: samples of a group; the forecast looks at this many rounds
_SAMPLES_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit as the topic of offsets has it, or as a round found it."""

    group_id: str
    name: TopicPartition
    #: None if the commit was deleted
    offset: int | None
    timestamp_ms: int


@dataclass(slots=True)
class _Group:
    history: GroupHistory = field(default_factory=GroupHistory)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    commits: int = 0
    #: partitions of the last sample; with others, the sums cannot be compared
    sampled: frozenset[TopicPartition] = frozenset()


class Histories:
    """The histories of all groups of one cluster."""

    def __init__(self, rules: Rules, *, windows_max: int) -> None:
        self.rules = rules
        self._windows_max = windows_max
        self._windows = 0
        #: partitions with commits that have no window, because there are too many
        self.left_out = 0
        self._groups: dict[str, _Group] = {}
        #: the recent ends of the partitions with commits, oldest first
        self._heads: dict[TopicPartition, deque[int]] = {}

    def add_commit(self, commit: SeenCommit, observed_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        """Add a commit, newer than those before. ``ends`` are the log ends at that time, empty if they are not known.

        A commit of a deleted offset ends the window of its partition.
        """
        if commit.offset is None:
            self._forget_partition(commit.group_id, commit.name)
            return
        group = self._groups.get(commit.group_id)
        is_new = group is None or commit.name not in group.history.partitions
        if is_new and self._windows >= self._windows_max:
            self.left_out += 1
            return
        if group is None:
            group = self._groups[commit.group_id] = _Group()
        end = ends.get(commit.name)
        lag = None if end is None else max(end - commit.offset, 0)
        known = len(group.history.partitions)
        group.history.add(
            commit.name,
            Commit(offset=commit.offset, timestamp_ms=commit.timestamp_ms, observed_ms=observed_ms, lag=lag),
            self.rules,
        )
        self._windows += len(group.history.partitions) - known
        group.commits += 1

    def add_heads(self, ends: Mapping[TopicPartition, int]) -> None:
        """Add the log ends of a round, for the topics with commits."""
        topics = {name.topic for group in self._groups.values() for name in group.history.partitions}
        for name in [name for name in self._heads if name.topic not in topics or name not in ends]:
            if name.topic not in topics:
                del self._heads[name]
        for name, end in ends.items():
            if name.topic in topics:
                heads = self._heads.get(name)
                if heads is None:
                    heads = self._heads[name] = deque(maxlen=self.rules.intervals)
                if heads and end < heads[-1]:
                    heads.clear()  # the topic was created again, or has lost records
                heads.append(end)

    def add_sample(self, lag: GroupLag) -> Forecast:
        """Add the position of a group, and return when it will have caught up."""
        group = self._groups.setdefault(lag.group_id, _Group())
        rows = [row for row in lag.partitions.values() if row.lag is not None]
        names = frozenset(row.name for row in rows)
        if names != group.sampled:
            group.samples.clear()
            group.sampled = names
        if rows:
            committed = sum(row.committed or 0 for row in rows)
            group.samples.append(Sample(lag.read_at_ms, committed, committed + sum(row.lag or 0 for row in rows)))
        return forecast(tuple(group.samples))

    def set_owners(self, lag: GroupLag) -> None:
        """Note which member has which partition."""
        group = self._groups.get(lag.group_id)
        if group is None or lag.group is None:
            return
        for name, window in group.history.partitions.items():
            row = lag.partitions.get(name)
            member = row.member if row is not None else None
            window.owner = "" if member is None else member.host
            window.client_id = "" if member is None else member.client_id

    def evaluate(self, group_id: str, now_ms: int) -> GroupStatus:
        """Return Burrow's verdict about a group."""
        group = self._groups.get(group_id)
        history = None if group is None or not group.history.partitions else group.history
        return evaluate_group(group_id, history, self._heads_of(history), now_ms, self.rules)

    def _heads_of(self, history: GroupHistory | None) -> Mapping[TopicPartition, deque[int]]:
        if history is None:
            return {}
        # All partitions of the topics of the group; the table of all topics can be large.
        found: dict[TopicPartition, deque[int]] = {}
        for topic in {name.topic for name in history.partitions}:
            number = 0
            while (heads := self._heads.get(TopicPartition(topic, number))) is not None:
                found[TopicPartition(topic, number)] = heads
                number += 1
        found |= {name: self._heads[name] for name in history.partitions if name in self._heads}
        return found

    def commits(self, group_id: str) -> int:
        """Return how many commits of a group were seen."""
        group = self._groups.get(group_id)
        return 0 if group is None else group.commits

    def window(self, group_id: str, name: TopicPartition) -> PartitionHistory | None:
        group = self._groups.get(group_id)
        return None if group is None else group.history.partitions.get(name)

    @property
    def windows(self) -> int:
        """Return the number of partitions with commits, counted for each group."""
        return self._windows

    def forget(self, group_id: str) -> bool:
        """Forget a group. Return whether it was known."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._windows -= len(group.history.partitions)
        return group is not None

    def forget_topic(self, group_id: str, topic: str) -> bool:
        """Forget the commits of a group in a topic. Return whether there were some."""
        group = self._groups.get(group_id)
        names = [name for name in group.history.partitions if name.topic == topic] if group is not None else []
        for name in names:
            self._forget_partition(group_id, name)
        return bool(names)

    def _forget_partition(self, group_id: str, name: TopicPartition) -> None:
        group = self._groups.get(group_id)
        if group is not None and group.history.partitions.pop(name, None) is not None:
            self._windows -= 1

    def keep(self, existing: Collection[str], now_ms: int, is_young: Callable[[GroupHistory], bool]) -> None:
        """Forget the groups that do not exist and those that have expired. ``is_young``: may not be listed yet."""
        for group_id, group in list(self._groups.items()):
            has_expired = bool(group.history.partitions) and group.history.has_expired(now_ms, self.rules)
            if has_expired or (group_id not in existing and not is_young(group.history)):
                self.forget(group_id)
