"""One round of readings of a cluster, typed: what metrics, Burrow's routes, the pages and the rules of alerts use.

A `ClusterReading` is never changed. The reading of a round that failed has its `problem`, and no figures of its own:
the figures that it does have are those of the last round that succeeded, and `read_at_ms` says when that was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ottla.admin.topic_state import PartitionState
from ottla.health.findings import Finding
from ottla.health.types import ClusterPicture
from ottla.lag.burrow import GroupStatus, Status
from ottla.lag.forecast import Forecast
from ottla.lag.types import GroupLag
from ottla.model.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """A group: its lag, Burrow's verdict about it, and when it will have caught up."""

    lag: GroupLag
    verdict: GroupStatus
    forecast: Forecast
    #: commits of the group that were seen since the monitor started
    commits: int = 0

    @property
    def group_id(self) -> str:
        return self.lag.group_id

    @property
    def state(self) -> str:
        """Kafka's word, such as Stable; Unknown if the group could not be described."""
        return self.lag.state

    @property
    def members(self) -> int | None:
        """Return the number of members; None if the group could not be described."""
        return None if self.lag.group is None else len(self.lag.group.members)

    @property
    def records(self) -> int | None:
        """Return the lag of all partitions in records, at least 0; None if it is not known."""
        return self.lag.total

    @property
    def seconds(self) -> float | None:
        """Return the longest time lag of a partition, at least 0; None if it is not known."""
        return None if self.lag.time_lag_ms is None else self.lag.time_lag_ms / 1000

    @property
    def status(self) -> Status:
        return self.verdict.status


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReading:
    """A broker that the metadata name, or named in an earlier round."""

    id: int
    host: str
    port: int
    rack: str | None = None
    #: whether the metadata of this round name it
    is_registered: bool = True
    is_controller: bool = False
    #: why it gave no answer when it was last asked; empty if it answered
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """What one round found. The mappings have the order of their names."""

    #: the name of the cluster in the settings of the monitor
    cluster: str
    #: the number of the round, from 1 on; 0 before the first one
    number: int = 0
    #: when the figures were read, by the clock of this machine; 0 if no round has succeeded yet
    read_at_ms: int = 0
    #: how long the round took, and the requests that it sent
    seconds: float = 0.0
    requests: int = 0
    #: why the round failed as a whole, such as that no broker answers; empty if it did not
    problem: str = ""
    #: why some of the figures are missing; a round with notes has succeeded
    notes: tuple[str, ...] = ()
    cluster_id: str = ""
    controller_id: int | None = None
    groups: Mapping[str, GroupReading] = field(default_factory=dict)
    brokers: Mapping[int, BrokerReading] = field(default_factory=dict)
    #: the replicas of all partitions of all topics
    partitions: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    internal_topics: frozenset[str] = frozenset()
    #: partitions that did not answer have no offsets here
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: the last reading of what `ottla.health` checks, which is made less often; None before the first one
    picture: ClusterPicture | None = None
    #: what is wrong by that picture, the worst first
    findings: tuple[Finding, ...] = ()
    #: why the last picture could not be read; empty if it could
    picture_problem: str = ""

    @property
    def is_fresh(self) -> bool:
        """Return whether the figures are those of this round."""
        return bool(self.number) and not self.problem

    def offline(self) -> Iterator[PartitionState]:
        """Yield the partitions without a leader."""
        return (each for each in self.partitions.values() if each.leader is None)

    def under_replicated(self) -> Iterator[PartitionState]:
        """Yield the partitions with fewer in-sync replicas than replicas, offline ones included."""
        return (each for each in self.partitions.values() if each.is_under_replicated)

    def below_min_insync(self) -> Iterator[PartitionState]:
        """Yield the partitions with fewer in-sync replicas than min.insync.replicas, as far as settings are known."""
        if self.picture is None:
            return
        for each in self.partitions.values():
            topic = self.picture.topics.get(each.name.topic)
            if topic is not None and len(each.isr) < topic.number("min.insync.replicas", 1):
                yield each

    def lost_brokers(self) -> Iterator[BrokerReading]:
        """Yield the brokers that were in the metadata of an earlier round and are not in these."""
        return (each for each in self.brokers.values() if not each.is_registered)
