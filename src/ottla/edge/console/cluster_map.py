"""Brokers and topics of a cluster at one moment, from one metadata request: what lists and the palette need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from ottla.admin.client import AdminClient, nodes_of, topic_state_of
from ottla.admin.cluster import ClusterAdmin
from ottla.admin.error_codes import no_such_topic
from ottla.admin.failure import Failure
from ottla.admin.topic_state import PartitionState, TopicState
from ottla.client.protocol.metadata import Node
from ottla.edge.console.clusters import ClusterAccess
from ottla.edge.console.pages import PageRequest

#: a list may be this old; an action of the console reads it again
_AGE_S: Final = 2.0
#: reading 10,000 topics takes a fifth of a second of a processor, for which no page waits
_STALE_PER_TOPIC_S: Final = 0.003
#: topics of each cluster at the last reading
_SIZES: Final[WeakKeyDictionary[ClusterAccess, int]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """The figures of a topic that its metadata have."""

    name: str
    partitions: int
    replication_factor: int
    is_internal: bool
    #: partitions without a leader
    offline: int
    under_replicated: int

    @property
    def severity(self) -> int:
        """0 without a problem; the larger, the worse."""
        return 2 if self.offline else 1 if self.under_replicated else 0

    def row(self) -> dict[str, object]:
        return {
            "name": self.name, "partitions": self.partitions, "replication_factor": self.replication_factor,
            "is_internal": self.is_internal, "offline": self.offline, "under_replicated": self.under_replicated,
        }  # fmt: skip


@dataclass(slots=True)
class BrokerLoad:
    """How many partitions a broker has."""

    leaders: int = 0
    #: partitions whose first replica it has
    preferred: int = 0
    replicas: int = 0
    #: replicas that are not in sync
    behind: int = 0


@dataclass(frozen=True)
class ClusterMap:
    """All brokers and topics."""

    cluster_id: str
    controller_id: int | None
    brokers: Mapping[int, Node]
    racks: Mapping[int, str | None]
    #: by name, in the order of names
    summaries: Mapping[str, TopicSummary]
    #: the topics as the broker has sent them: objects for all partitions would take longer than the request
    rows: Mapping[str, Any]

    @cached_property
    def loads(self) -> Mapping[int, BrokerLoad]:
        """Return the partitions of each broker, also of those that do not run and have replicas."""
        found = {number: BrokerLoad() for number in self.brokers}
        for row in self.rows.values():
            for each in row.partitions:
                isr = each.isr_nodes
                for number in each.replica_nodes:
                    load = found.setdefault(number, BrokerLoad())
                    load.replicas += 1
                    load.behind += number not in isr
                if each.leader_id >= 0:
                    found.setdefault(each.leader_id, BrokerLoad()).leaders += 1
                if each.replica_nodes:
                    found[each.replica_nodes[0]].preferred += 1
        return dict(sorted(found.items()))

    def topic(self, name: str) -> TopicState:
        """Return a topic. Raise NotFound."""
        row = self.rows.get(name)
        if row is None:
            raise no_such_topic(name)
        return topic_state_of(row, internal=_is_internal(name))

    def partitions_on(self, broker: int) -> list[PartitionState]:
        """Return the partitions that have a replica on this broker."""
        return [
            each
            for name, row in self.rows.items()
            if any(broker in partition.replica_nodes for partition in row.partitions)
            for each in self.topic(name).partitions
            if broker in each.replicas
        ]


def summary_of(row: Any) -> TopicSummary:
    """Return the figures of a topic in an answer."""
    partitions = row.partitions
    return TopicSummary(
        name=row.name,
        partitions=len(partitions),
        replication_factor=max((len(each.replica_nodes) for each in partitions), default=0),
        is_internal=_is_internal(row.name),
        offline=sum(each.leader_id < 0 for each in partitions),
        under_replicated=sum(len(each.isr_nodes) < len(each.replica_nodes) for each in partitions),
    )


def read_map(client: AdminClient) -> ClusterMap:
    """Return all brokers and topics. Raise Failure."""
    answer = client.metadata()
    rows = {row.name: row for row in sorted(answer.topics, key=lambda row: row.name or "") if row.name}
    return ClusterMap(
        cluster_id=answer.cluster_id or "",
        controller_id=answer.controller_id if answer.controller_id >= 0 else None,
        brokers=dict(sorted(nodes_of(answer).items())),
        racks={row.node_id: row.rack for row in answer.brokers},
        summaries={name: summary_of(row) for name, row in rows.items()},
        rows=rows,
    )


async def cluster_map(page: PageRequest) -> ClusterMap:
    """Return all brokers and topics as they were at most two seconds ago.

    With thousands of topics they may be older, up to half a minute with 10,000: they are read again meanwhile.
    """
    stale_s = _SIZES.get(page.cluster, 0) * _STALE_PER_TOPIC_S
    found = await page.read("cluster map", read_map, age_s=_AGE_S, stale_s=stale_s)
    _SIZES[page.cluster] = len(found.rows)
    return found


def read_topic(client: AdminClient, name: str) -> TopicState:
    """Return a topic with the moves of its partitions. Raise NotFound."""
    (topic,) = client.describe_topics([name])
    if all(len(each.replicas) < 2 for each in topic.partitions):
        return topic  # a replica that moves is one more
    try:
        moves = ClusterAdmin(client, client.timeout_s).reassignments()
    except Failure:
        return topic  # an earlier Kafka, or a user who may not see it
    partitions = tuple(
        replace(each, adding=moves[each.name][0], removing=moves[each.name][1]) if each.name in moves else each
        for each in topic.partitions
    )
    return replace(topic, partitions=partitions)


async def topic_state(page: PageRequest) -> TopicState:
    """Return the topic that the path names. Raise NotFound."""
    name = page.params["topic"]
    return await page.read(("topic", name), partial(read_topic, name=name), age_s=1.0)


def _is_internal(name: str) -> bool:
    # By convention, and not by the flag of the broker: names that start with two underscores are internal.
    return name.startswith("__")
