"""What the metrics of one cluster are made of: its reading, and the topics that have series of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ottla.admin.topic_state import PartitionState
from ottla.edge.monitor.reading import ClusterReading, GroupReading
from ottla.lag.types import PartitionLag


@dataclass(frozen=True)
class MetricView:
    """One cluster as /metrics shows it."""

    reading: ClusterReading
    #: the most detailed series: partition, topic or group
    granularity: str = "partition"
    #: topics with series of their own
    topics_max: int = 1000

    @cached_property
    def topics(self) -> frozenset[str]:
        """Return the topics with series of their own: those that groups read, then others, then internal ones."""
        reading = self.reading
        read = {name.topic for group in reading.groups.values() for name in group.lag.partitions}
        every = {name.topic for name in reading.partitions} | read
        internal = {name for name in every if name.startswith("__") or name in reading.internal_topics}
        ordered = sorted(every, key=lambda name: (name in internal, name not in read, name))
        return frozenset(ordered[: self.topics_max])

    @cached_property
    def topics_left_out(self) -> int:
        every = {name.topic for name in self.reading.partitions}
        return len(every - self.topics)

    @property
    def shows_partitions(self) -> bool:
        return self.granularity == "partition"

    @property
    def shows_topics(self) -> bool:
        return self.granularity != "group"

    def partitions(self) -> Iterator[PartitionState]:
        """Yield the partitions that have series."""
        if self.shows_partitions:
            for each in self.reading.partitions.values():
                if each.name.topic in self.topics:
                    yield each

    def by_topic(self) -> dict[str, list[PartitionState]]:
        """Return the partitions of the topics that have series."""
        found: dict[str, list[PartitionState]] = {}
        for each in self.reading.partitions.values() if self.shows_topics else ():
            if each.name.topic in self.topics:
                found.setdefault(each.name.topic, []).append(each)
        return found

    def rows(self, group: GroupReading) -> Iterator[PartitionLag]:
        """Yield the partitions of a group that have series."""
        if self.shows_partitions:
            for row in group.lag.partitions.values():
                if row.name.topic in self.topics:
                    yield row

    def topic_rows(self, group: GroupReading) -> dict[str, list[PartitionLag]]:
        """Return the partitions of a group with a lag, by the topics that have series."""
        found: dict[str, list[PartitionLag]] = {}
        for row in group.lag.partitions.values() if self.shows_topics else ():
            if row.name.topic in self.topics and row.lag is not None:
                found.setdefault(row.name.topic, []).append(row)
        return found
