"""The brokers of the cluster as clients see them: their addresses on the client's listener, and which are alive."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.services import RequestContext, Services
from ottla.cluster.view import PartitionView
from ottla.model.errors import ErrorCode
from ottla.replica.partition import Partition, Role

#: first version of Metadata whose clients know LISTENER_NOT_FOUND
_LISTENER_ERROR_FROM = 6


def may_lead(replica: Partition | None) -> bool:
    """Return whether this broker leads a partition of which the metadata say so.

    It does not if its disk has failed, its log may lack records, or another broker may have been elected meanwhile.
    """
    return replica is None or replica.role is Role.LEADER


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


def send_away_if_cut_off(services: Services, context: RequestContext) -> None:
    """Close the connection after the reply if this broker is cut off from the others, which may have elected leaders.

    A client that is connected to this broker alone would ask it again and again for leaders that it does not know.
    """
    if services.is_cut_off:
        context.connection.close()


class Nodes:
    """The live brokers that have the listener of one client.

    Before the first broker has registered, this broker answers alone. It then takes no replica for offline, because it
    does not know which brokers are alive.
    """

    def __init__(self, services: Services, context: RequestContext) -> None:
        self._own_id = services.broker_id
        self._registered = services.view.brokers
        self._last_starts = services.view.last_starts
        self._listener = context.listener
        #: brokers that have probably ended: their partitions have no leader until the metadata store shows the next one
        self.just_lost = services.just_lost()
        host, port = services.endpoint_for(context)
        if not self._registered:
            self.by_id = {services.broker_id: BrokerNode(services.broker_id, host, port, services.settings.broker_rack)}
            self.controller_id = services.broker_id
            return
        self.by_id = {}
        for broker in self._registered.values():
            if broker.broker_id == services.broker_id:
                self.by_id[broker.broker_id] = BrokerNode(broker.broker_id, host, port, broker.rack)
            elif (endpoint := broker.endpoint(context.listener)) is not None:
                self.by_id[broker.broker_id] = BrokerNode(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
        controller = services.view.controller
        # Every broker handles the requests of administrators, so this broker is a valid answer during an election.
        is_reachable = controller is not None and controller.broker_id in self.by_id
        self.controller_id = controller.broker_id if controller is not None and is_reachable else services.broker_id

    def fenced(self) -> list[BrokerNode]:
        """Return the brokers that are registered but not alive, with the addresses of their last start."""
        found = []
        for number, broker in sorted(self._last_starts.items()):
            if number not in self._registered and number != self._own_id:
                endpoint = broker.endpoint(self._listener)
                if endpoint is not None:
                    found.append(BrokerNode(number, endpoint.host, endpoint.port, broker.rack))
        return found

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
