"""Leader hints (KIP-951): the leaders that Produce and Fetch replies name with NOT_LEADER_OR_FOLLOWER.

A client that gets them sends its next request to the new leader without a Metadata request in between. They are
computed only for replies with such an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.cluster.broker_addresses import Nodes
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.request import RequestContext
from ottla.net.connection import Connection
from ottla.wire.leader_hints import LeaderHint, NodeAddress

NO_HINT = LeaderHint(-1, -1)


class LeaderHints:
    """Finds leaders, as far as this broker knows them."""

    def __init__(self, metadata: ClusterMetadata, replicas: ReplicaManager) -> None:
        self._metadata = metadata
        self._replicas = replicas

    def leader_of(self, topic: bytes, number: int, *, by_id: bool) -> LeaderHint:
        """Return the leader of a partition; NO_HINT for a partition that is unknown here."""
        replicas, view = self._replicas, self._metadata.view
        replica = (replicas.topics_by_id if by_id else replicas.topics).get(topic, {}).get(number)
        if replica is not None:
            return LeaderHint(replica.leader_id, replica.leader_epoch)
        found = view.topics_by_id.get(topic) if by_id else view.topics.get(topic.decode(errors="replace"))
        if found is None or not 0 <= number < len(found.partitions):
            return NO_HINT
        return LeaderHint(found.partitions[number].leader, found.partitions[number].leader_epoch)

    def addresses(self, hints: Iterable[LeaderHint], connection: Connection) -> list[NodeAddress]:
        """Return the addresses of these leaders for a client, each once; live brokers with its listener only."""
        context = RequestContext(
            api_key=-1, version=0, client_id="", listener=connection.listener, connection=connection
        )
        known = Nodes(self._metadata, context).by_id
        return [
            NodeAddress(*known[leader_id])
            for leader_id in dict.fromkeys(hint.leader_id for hint in hints)
            if leader_id in known
        ]
