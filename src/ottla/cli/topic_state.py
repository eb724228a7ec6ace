"""Topics, offsets and settings as a cluster describes them, and the outcome of changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from ottla.cli.failure import Failure, exit_if_failed
from ottla.cli.output import TABLE, print_rows, shown
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


def report_outcomes(outcomes: Sequence[Outcome], done: str, output: str, *, noun: str, name_field: str) -> None:
    """Print what was done. If names have failed, print why, and end the command with the exit code of the first."""
    succeeded = [outcome.name for outcome in outcomes if outcome.failure is None]
    if output == TABLE:
        for name in succeeded:
            click.echo(f"{done} {noun} {shown(name)}")
    else:
        print_rows([{name_field: name, "result": done} for name in succeeded], (), output, name_field)
    exit_if_failed(outcome.failure for outcome in outcomes if outcome.failure is not None)
