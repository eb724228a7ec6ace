"""The listeners of the broker: their addresses, their security, and their limits on connections."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from ottla.broker.access.listener_security import ListenerSecurity, insecure_listeners
from ottla.broker.access.peer_logins import Peers
from ottla.broker.access.throttling import Throttling
from ottla.broker.component import Component
from ottla.broker.environment import Environment
from ottla.broker.metadata.view import ClusterView
from ottla.client.async_connections import PLAIN, PeerSecurity
from ottla.env.metrics import Page, label_text
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint, FrameBuffer
from ottla.net.connection import Connection, Handler
from ottla.net.network import Listener
from ottla.net.server import ConnectionLimits, Server

log = logging.getLogger(__name__)

_ANY_HOST = ("", "0.0.0.0", "::")


class FrameHandler(Protocol):
    """Handles the frames of one listener."""

    #: handles a login of a client that is authenticated already; None if the listener has no logins
    handle_login: Handler | None

    def handle(self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int, /) -> None:
        """Handle the frame ``buffer[start:end]``."""


class Listening(Component):
    """The sockets that clients and other brokers connect to, and how this broker connects to others."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        environment: Environment,
        server: Server,
        throttling: Throttling,
        view: Callable[[], ClusterView],
        secret: Callable[[], bytes],
        current_settings: Callable[[], BrokerSettings],
    ) -> None:
        """Read keys and certificates. Raise StartError."""
        self._started_settings = settings
        self._network = environment.network
        self._server = server
        self._throttling = throttling
        self._current_settings = current_settings
        #: the listeners that everybody in the network can reach without encryption
        self._insecure = insecure_listeners(settings)
        self.security = {
            endpoint.name: ListenerSecurity(
                endpoint.name, settings, loop=environment.loop, server=server, clock=environment.clock,
                credentials=lambda mechanism: lambda name: view().access.credentials.get(name, {}).get(mechanism),
                shapes=lambda mechanism: view().access.shapes[mechanism],
                secret=secret, tokens=lambda: view().access.tokens, works=lambda: view().access.works,
            )
            for endpoint in settings.endpoints
        }  # fmt: skip
        #: how this broker connects to others; None for a broker that is alone
        self._peers = Peers(settings) if settings.zookeeper_connect else None
        self._reload()  # which begins to read the keys of token issuers, for the first clients
        self.bound: list[tuple[Endpoint, Listener]] = []

    def metrics(self, page: Page) -> Iterator[None]:
        """Add the logins. Labels have values of the settings, never of clients."""
        for name, listener in self.security.items():
            for mechanism, count in listener.accepted().items():
                labels = label_text(listener=name, mechanism=mechanism)
                page.counter("ottla_authentications", "Clients that authenticated.", count, labels)
            for mechanism, count in listener.refused().items():
                labels = label_text(listener=name, mechanism=mechanism)
                page.counter("ottla_authentications_failed", "Clients that failed to authenticate.", count, labels)
        yield

    def bind(self) -> None:
        """Listen on all ports. Raise StartError."""
        settings = self._started_settings
        for endpoint in settings.endpoints:
            listener = self._network.bind(
                endpoint,
                backlog=settings.socket_listen_backlog_size,
                send_buffer_bytes=settings.socket_send_buffer_bytes,
                receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            )
            self.bound.append((endpoint._replace(port=listener.port), listener))

    async def accept(self, handlers: Mapping[str, FrameHandler]) -> list[Endpoint]:
        """Accept connections, whose frames the handler of their listener gets. Return the addresses."""
        for endpoint, listener in self.bound:
            frames, secured = handlers[endpoint.name], self.security[endpoint.name]
            handler = secured.handler(frames.handle)
            if secured.is_sasl:
                frames.handle_login = handler
            await self._server.start(listener, handler, endpoint.name, tls=secured.tls, begin=secured.begin)
        for each in self._insecure:
            log.warning("listener is open to all machines of the network listener=%s", each)
        return [endpoint for endpoint, _ in self.bound]

    def close(self) -> None:
        """Listen no longer, after a start that failed."""
        for _, listener in self.bound:
            listener.close()

    def advertised(self) -> tuple[Endpoint, ...]:
        """Return the addresses under which other brokers and their clients find this broker. Raise StartError."""
        advertised = {endpoint.name: endpoint for endpoint in self._started_settings.advertised_endpoints}
        found = tuple(advertised.get(endpoint.name, endpoint) for endpoint, _ in self.bound)
        if self._peers is not None and any(endpoint.host in _ANY_HOST for endpoint in found):
            raise StartError(
                "a broker of a cluster that listens on all addresses must say how others reach it; "
                "set advertised.listeners"
            )
        return found

    def peer_security(self) -> PeerSecurity:
        return PLAIN if self._peers is None else self._peers.security

    def on_settings(self) -> None:
        settings = self._current_settings()
        self._server.limit_connections(connection_limits(settings))
        self._throttling.limit_connections(*_connection_rates(settings))

    def tick(self, now: float) -> None:
        self._reload()

    def _reload(self) -> None:
        """Use certificates and keys that have been replaced."""
        for secured in self.security.values():
            secured.reload()
        if self._peers is not None:
            self._peers.reload()


def connection_limits(settings: BrokerSettings) -> ConnectionLimits:
    listeners = [endpoint.name for endpoint in settings.endpoints]
    return ConnectionLimits(
        total=settings.max_connections,
        per_host=settings.max_connections_per_ip,
        per_listener={listener: settings.of_listener(listener).max_connections for listener in listeners},
        protected=settings.inter_broker_listener if len(listeners) > 1 else None,
    )


def _connection_rates(settings: BrokerSettings) -> tuple[dict[str, int], str]:
    """Return the limits of new connections per second, and the listener that the common limit does not apply to.

    The common limit has an empty name. As in Kafka it leaves out the listener of other brokers, unless it is the only
    one.
    """
    name = "max.connection.creation.rate"
    rates = {"": settings.max_connection_creation_rate} if settings.is_set(name) else {}
    listeners = [endpoint.name for endpoint in settings.endpoints]
    for listener in listeners:
        if settings.listener_overrides.is_set(listener, name):
            rates[listener] = settings.of_listener(listener).max_connection_creation_rate
    return rates, settings.inter_broker_listener if len(listeners) > 1 else ""
