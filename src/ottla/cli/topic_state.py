"""Topics, offsets and settings, as a cluster describes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.cli.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The replicas of a partition."""

    partition: int
    #: None while there is no leader
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


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
