"""Topics, offsets and settings as a cluster describes them, and the outcome of changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.admin.failure import Failure
from ottla.model.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicas of a partition."""

    name: TopicPartition
    #: None while there is no leader
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    #: replicas that a reassignment adds and removes; only `ClusterAdmin` asks for them
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def preferred(self) -> int:
        """The first replica, which leads if it is in sync."""
        return self.replicas[0]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as the metadata describes it."""

    name: str
    topic_id: str | None
    internal: bool
    partitions: tuple[PartitionState, ...]

    @property
    def has_leaders(self) -> bool:
        return all(partition.leader is not None for partition in self.partitions)

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFound:
    """The result of an offset lookup; None where the cluster has no value."""

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One setting of a topic or broker, with the source of its value."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    #: all sources of the setting, in the order of their precedence
    synonyms: tuple[ConfigValue, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a request for one of several names."""

    name: str
    #: None if the request succeeded
    failure: Failure | None
