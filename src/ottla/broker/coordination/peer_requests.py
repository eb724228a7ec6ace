"""Requests of this broker to other brokers, on behalf of its coordinators and of its producers.

Markers have connections of their own, with one request at a time. A marker is therefore never behind a request that
waits, and cannot be delayed until the next transaction of its producer has begun. Dead letters have connections of
their own too, because they wait for replicas and other requests do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.broker.cluster.broker_addresses import endpoint_for_brokers
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.transactions.runtime import REQUEST_TIMEOUT_S
from ottla.client.async_connections import BrokerClients, PeerUnreachable
from ottla.model.types import Endpoint, TopicPartition
from ottla.wire import Message
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

_WRITE_TXN_MARKERS_VERSION = 2
_PRODUCE_VERSION = 9
#: how much longer than the receiver waits for its replicas the sender waits, so that the receiver answers first
_MARGIN_S = 2.0
_MARKERS_TIMEOUT_S = REQUEST_TIMEOUT_S + _MARGIN_S


class PeerRequests:
    """Finds the brokers that lead partitions, and sends requests to them."""

    def __init__(self, metadata: ClusterMetadata, new_clients: Callable[[], BrokerClients]) -> None:
        self._metadata = metadata
        self._clients = new_clients()
        self._marker_clients = new_clients()
        self._produce_clients = new_clients()

    def leader_of(self, name: TopicPartition) -> int | None:
        """Return the live broker that leads a partition; None if there is none, or if it is this broker."""
        view = self._metadata.view
        topic = view.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        leader = topic.partitions[name.partition].leader
        return leader if leader in view.brokers and leader != self._metadata.broker_id else None

    async def ask(self, broker_id: int, request: Message, version: int, *, timeout_s: float = 5.0) -> Any:
        """Send a request to a broker and return the reply. Raise PeerUnreachable."""
        return await self._clients.ask(self._endpoint_of(broker_id), request, version, timeout_s=timeout_s)

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Send markers to a broker and return the reply. Raise PeerUnreachable."""
        reply: Any = await self._marker_clients.ask(
            self._endpoint_of(broker_id), request, _WRITE_TXN_MARKERS_VERSION, timeout_s=_MARKERS_TIMEOUT_S
        )
        return reply  # type: ignore[no-any-return]

    async def produce(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        """Send records to a broker and return the reply. Raise PeerUnreachable."""
        reply: Any = await self._produce_clients.ask(
            self._endpoint_of(broker_id), request, _PRODUCE_VERSION,
            timeout_s=request.timeout / 1000 + _MARGIN_S,
        )  # fmt: skip
        return reply  # type: ignore[no-any-return]

    def _endpoint_of(self, broker_id: int) -> Endpoint:
        """Return the endpoint of a live broker for brokers. Raise PeerUnreachable."""
        broker = self._metadata.view.brokers.get(broker_id)
        if broker is None:
            raise PeerUnreachable(f"broker {broker_id} is not registered")
        return endpoint_for_brokers(broker, self._metadata.started_settings)

    def close(self) -> None:
        self._clients.close()
        self._marker_clients.close()
        self._produce_clients.close()
