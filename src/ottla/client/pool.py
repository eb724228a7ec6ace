"""The blocking connections of one client, by broker: each is used by one borrower at a time."""

from __future__ import annotations

import itertools
import time
from typing import Final

from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError, ClusterUnreachable, ConnectionLost, Unreachable
from ottla.client.protocol.metadata import Address, KnownCluster, Node
from ottla.client.security import Security

#: idle connections that are kept for each broker
_IDLE_MAX: Final = 4


class ConnectionPool:
    """Opens connections when they are first needed, and keeps them for the next borrower. Not thread safe."""

    def __init__(self, known: KnownCluster, security: Security, *, bootstrap: str, client_id: str) -> None:
        self._known = known
        self._security = security
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._idle: dict[Address, list[BrokerConnection]] = {}
        self._lent: set[BrokerConnection] = set()

    def close(self) -> None:
        """Close all connections, also those that are lent."""
        for connection in itertools.chain(self._lent, *self._idle.values()):
            connection.close()
        self._lent.clear()
        self._idle.clear()

    def borrow(self, node: Node, deadline: float) -> BrokerConnection:
        """Return a connection for the borrower alone, until it is given back or closed. Raise ClientError."""
        idle = self._idle.get(node.address)
        connection = idle.pop() if idle else None
        if connection is None:
            try:
                connection = BrokerConnection(node, self._security, client_id=self._client_id, deadline=deadline)
            except (Unreachable, ConnectionLost):
                self._failed(node)
                raise
            self._known.answered(node)
        self._lent.add(connection)
        return connection

    def give_back(self, connection: BrokerConnection) -> None:
        """Keep a connection for the next borrower. Close one whose replies have not all arrived."""
        self._lent.discard(connection)
        if connection.is_lost:
            self._failed(connection.node)
        if not connection.is_open:
            return
        idle = self._idle.setdefault(connection.node.address, [])
        if connection.in_flight or len(idle) >= _IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)

    def any_node(self, deadline: float) -> Node:
        """Return a broker that accepts connections, if possible one with an idle connection.

        Raise ClusterUnreachable if no broker can be reached, ConnectionLost if one accepts connections and gives no
        answer.
        """
        for address, connections in self._idle.items():
            if connections and not self._known.is_distrusted(address):
                return connections[0].node
        reasons = set()
        failure: ClientError | None = None
        for node in self._known.candidates():
            try:
                self.give_back(self.borrow(node, deadline))
            except (Unreachable, ConnectionLost) as error:
                reasons.add(error.reason)
                failure = error
            else:
                return node
        if isinstance(failure, ConnectionLost):
            raise failure
        raise ClusterUnreachable(self._bootstrap, "; ".join(sorted(reasons)))

    def _failed(self, node: Node) -> None:
        self._known.failed(node, time.monotonic())
        for connection in self._idle.pop(node.address, []):
            connection.close()
