"""The brokers of the cluster as clients see them: their addresses on the client's listener, and which are alive."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.metadata.broker_nodes import BrokerView, RegisteredBroker
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.request import RequestContext
from ottla.client.async_connections import PeerUnreachable
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint

#: first version of Metadata whose clients know LISTENER_NOT_FOUND
_LISTENER_ERROR_FROM = 6


def may_lead(replica: Partition | None) -> bool:
    """Return whether this broker leads a partition of which the metadata say so.

    It does not if its disk has failed, its log may lack records, or another broker may have been elected meanwhile.
    """
    return replica is None or replica.role is Role.LEADER


def endpoint_for_brokers(broker: BrokerView, settings: BrokerSettings) -> Endpoint:
    """Return the address of a broker for other brokers. Raise PeerUnreachable if it lacks their secured listener.

    Another listener is used only without encryption and authentication: a password must not go to an address that is
    not meant for it.
    """
    listener = settings.inter_broker_listener
    found = broker.endpoint(listener)
    if found is None and settings.protocol_of(listener) != "PLAINTEXT":
        raise PeerUnreachable(
            f"broker {broker.broker_id} has no listener {listener}; start it with the same inter.broker.listener.name"
        )
    return found or broker.endpoints[0]


class BrokerNode(NamedTuple):
    """A live broker and its address for one client."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class PartitionNodes(NamedTuple):
    """The leader of a partition as a client sees it, and the replicas that it cannot reach."""

    error_code: int
    leader_id: int
    offline_replicas: tuple[int, ...]


def _node(number: int, broker: BrokerView | RegisteredBroker, listener: str) -> BrokerNode | None:
    """Return the address of a broker for clients of this listener, None if it has no such listener."""
    endpoint = broker.endpoint(listener)
    return None if endpoint is None else BrokerNode(number, endpoint.host, endpoint.port, broker.rack)


def send_away_if_cut_off(metadata: ClusterMetadata, context: RequestContext) -> None:
    """Close the connection after the reply if this broker is cut off from the others, which may have elected leaders.

    A client that is connected to this broker alone would ask it again and again for leaders that it does not know.
    """
    if metadata.is_cut_off:
        context.connection.close()


class Nodes:
    """The live brokers that have the listener of one client.

    Before the first broker has registered, this broker answers alone. It then takes no replica for offline, because it
    does not know which brokers are alive.
    """

    def __init__(self, metadata: ClusterMetadata, context: RequestContext) -> None:
        self._own_id = metadata.broker_id
        self._registered = metadata.view.brokers
        self._last_starts = metadata.view.last_starts
        self._listener = context.listener
        #: brokers that have probably ended: their partitions have no leader until the metadata store shows the next one
        self.just_lost = metadata.just_lost()
        host, port = metadata.own_endpoint(context.listener, context.connection.local_address)
        if not self._registered:
            self.by_id = {metadata.broker_id: BrokerNode(metadata.broker_id, host, port, metadata.settings.broker_rack)}
            self.controller_id = metadata.broker_id
            return
        self.by_id = {}
        for broker in self._registered.values():
            if broker.broker_id == metadata.broker_id:
                self.by_id[broker.broker_id] = BrokerNode(broker.broker_id, host, port, broker.rack)
            elif (node := _node(broker.broker_id, broker, context.listener)) is not None:
                self.by_id[broker.broker_id] = node
        controller = metadata.view.controller
        # Every broker handles the requests of administrators, so this broker is a valid answer during an election.
        is_reachable = controller is not None and controller.broker_id in self.by_id
        self.controller_id = controller.broker_id if controller is not None and is_reachable else metadata.broker_id

    def fenced(self) -> list[BrokerNode]:
        """Return the brokers that are registered but not alive, with the addresses of their last start."""
        rows = sorted(self._last_starts.items())
        ended = [row for row in rows if row[0] not in self._registered and row[0] != self._own_id]
        return [node for number, row in ended if (node := _node(number, row, self._listener)) is not None]

    def of_partition(self, view: PartitionView, replica: Partition | None, version: int) -> PartitionNodes:
        """Return the leader and the offline replicas of a partition for Metadata of this version.

        ``replica`` is that of this broker, None if it has none.
        """
        offline_here = replica is not None and replica.offline
        offline = tuple(each for each in view.replicas if self._is_offline(each, offline_here))
        leader = view.leader
        if leader < 0 or leader in self.just_lost or (leader == self._own_id and not may_lead(replica)):
            return PartitionNodes(ErrorCode.LEADER_NOT_AVAILABLE, -1, offline)
        if not self._registered or leader in self.by_id:
            return PartitionNodes(0, leader, offline)
        if leader in self._registered and version >= _LISTENER_ERROR_FROM:
            return PartitionNodes(ErrorCode.LISTENER_NOT_FOUND, -1, offline)
        return PartitionNodes(ErrorCode.LEADER_NOT_AVAILABLE, -1, offline)

    def _is_offline(self, broker_id: int, offline_here: bool) -> bool:
        if broker_id == self._own_id and offline_here:
            return True
        return bool(self._registered) and broker_id not in self.by_id
