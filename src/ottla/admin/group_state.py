"""Consumer groups and their members, as a cluster lists and describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.protocol.metadata import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as the list of groups shows it."""

    group_id: str
    #: the group has committed offsets, and never had a member
    is_simple: bool
    #: Kafka's word, such as Stable
    state: str
    #: classic, consumer or share
    group_type: str
    #: what the members are, in Kafka's words, such as consumer or connect; empty for a simple group
    protocol_type: str = "consumer"

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type in ("", "consumer") and self.group_type in ("classic", "consumer", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group, with the partitions that are assigned to it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(GroupListing):
    """A group as its coordinator describes it."""

    assignor: str | None
    coordinator: Node
    members: tuple[GroupMember, ...]

    @property
    def exists(self) -> bool:
        # Coordinators describe an unknown group as a dead one.
        return self.state != "Dead"
