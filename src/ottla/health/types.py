"""The state of a cluster as one reading found it. The checks are functions of it."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.admin.acls import Acl
from ottla.admin.group_state import GroupListing
from ottla.admin.topic_state import PartitionState
from ottla.admin.transactions import OpenTransaction, Transaction
from ottla.client.protocol.metadata import Node
from ottla.lag.types import GroupLag
from ottla.model.types import TopicPartition

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"


class Part(enum.StrEnum):
    """A part of a picture that may fail alone. The value is its name in messages."""

    REASSIGNMENTS = "reassignments"
    TOPIC_SETTINGS = "settings of topics"
    BROKER_SETTINGS = "settings of brokers"
    DIRECTORIES = "log directories"
    VERSIONS = "versions of APIs and features"
    GROUPS = "groups"
    MEMBERS = "members of groups"
    OFFSETS = "offsets of partitions"
    TIMESTAMPS = "newest timestamps of partitions"
    TRANSACTIONS = "transactions"
    QUOTAS = "quotas"
    ACLS = "ACLs"
    CERTIFICATES = "certificates"
    LAG = "lag of groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPicture:
    """A log directory of a broker."""

    broker_id: int
    path: str
    #: 0, or Kafka's code of the reason why it cannot be used
    error_code: int = 0
    #: of its file system; None if the broker does not say
    total_bytes: int | None = None
    usable_bytes: int | None = None
    #: of all replicas in it
    size_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.broker_id}:{self.path}"


class Feature(NamedTuple):
    """The highest level of a feature that a broker supports, and the level that the cluster uses."""

    supported: int
    finalized: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPicture:
    """A registered broker. Parts that it did not report are empty."""

    node: Node
    rack: str | None = None
    #: why it gives no answer to this client; empty if it does
    problem: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[DirectoryPicture, ...] = ()
    #: of its replicas, by topic
    topic_bytes: Mapping[str, int] = field(default_factory=dict)
    #: lowest and highest version of each API
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    features: Mapping[str, Feature] = field(default_factory=dict)

    @property
    def id(self) -> int:
        return self.node.broker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPicture:
    """A topic. Without its settings the mapping is empty."""

    name: str
    internal: bool = False
    partitions: tuple[PartitionState, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def number(self, setting: str, default: int) -> int:
        """Return a setting that is a whole number; the default if it is not known."""
        return parse_number(self.settings.get(setting), default)

    @property
    def replication_factor(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)

    @property
    def policies(self) -> set[str]:
        """Return the cleanup policies: delete, compact, both or neither."""
        return {word for word in self.settings.get("cleanup.policy", "").split(",") if word}


class Offsets(NamedTuple):
    """The offsets of a partition."""

    start: int
    #: the high watermark
    end: int
    #: the last stable offset, read after the high watermark: if it is lower, a transaction is open
    stable: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPicture:
    """A member of a group."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    #: None if it is not known, as for a subscription by pattern
    topics: frozenset[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPicture:
    """A consumer group. Members are described within a budget."""

    listing: GroupListing
    coordinator: int
    #: None if the group was not described
    members: tuple[MemberPicture, ...] | None = None

    @property
    def is_rebalancing(self) -> bool:
        # The states Assigning and Reconciling of the consumer protocol are listed as Unknown.
        unknown = self.listing.group_type == "consumer" and self.listing.state == "Unknown"
        return unknown or self.listing.state in ("PreparingRebalance", "CompletingRebalance")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatePicture:
    """The certificate that a listener of a broker shows."""

    broker_id: int
    listener: str
    host: str
    hosts: tuple[str, ...]
    not_before: datetime.datetime
    not_after: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPicture:
    """One reading of a cluster."""

    read_at_ms: int
    cluster_id: str
    controller_id: int | None
    #: the addresses that the client started with
    bootstrap_hosts: tuple[str, ...] = ()
    brokers: Mapping[int, BrokerPicture]
    topics: Mapping[str, TopicPicture]
    #: bytes of the new replicas of reassignments, by partition and broker
    added_bytes: Mapping[tuple[TopicPartition, int], int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, Offsets] = field(default_factory=dict)
    #: the largest timestamp of a record, by partition
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: Mapping[str, GroupPicture] = field(default_factory=dict)
    #: transactions that their coordinators have not ended yet
    transactions: tuple[Transaction, ...] = ()
    #: transactions that no coordinator knows
    hanging: tuple[OpenTransaction, ...] = ()
    #: rows of `ottla.admin.quotas.describe`
    quotas: tuple[Mapping[str, Any], ...] = ()
    #: None without an authorizer
    acls: frozenset[Acl] | None = frozenset()
    certificates: tuple[CertificatePicture, ...] = ()
    lag: Mapping[str, GroupLag] = field(default_factory=dict)
    #: the parts that could not be read, with the reasons
    unknown: Mapping[Part, str] = field(default_factory=dict)
    #: requests that the reading needed
    requests: int = 0
    #: an earlier reading, for rates and for changes that make no progress
    before: ClusterPicture | None = None

    def partitions(self) -> Iterator[PartitionState]:
        for topic in self.topics.values():
            yield from topic.partitions

    def own_topics(self) -> Iterator[TopicPicture]:
        """Yield the topics of users: not those that begin with two underscores."""
        return (topic for topic in self.topics.values() if not topic.internal)

    def directories(self) -> Iterator[DirectoryPicture]:
        for broker in self.brokers.values():
            yield from broker.directories

    @property
    def elapsed_ms(self) -> int:
        """Return the time since the earlier reading; 0 without one."""
        return self.read_at_ms - self.before.read_at_ms if self.before is not None else 0


def parse_number(text: str | None, default: int) -> int:
    """Return a whole number, the default for another text.

    >>> [parse_number(text, 7) for text in ("5", "-1", None, "x", "")]
    [5, -1, 7, 7, 7]
    """
    try:
        return int(text or "")
    except ValueError:
        return default
