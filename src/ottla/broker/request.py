"""One request of a client: its connection, its version, and what the client may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.broker.access.permissions import ALL_ALLOWED, DEAD_LETTERS, Access
from ottla.broker.access.throttling import UNCOUNTED, Usage
from ottla.broker.client import Client
from ottla.broker.metadata.schema_settings import new_dead_letter_topic
from ottla.model.errors import ErrorCode, Refused
from ottla.net.connection import Connection
from ottla.security.acls import ResourceType


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The connection, the client and the version of one request."""

    api_key: int
    version: int
    client_id: str
    listener: str
    connection: Connection
    correlation_id: int = 0
    access: Access = ALL_ALLOWED
    usage: Usage = UNCOUNTED

    def may(self, resource: ResourceType, name: str, purpose: str = "", *, quiet: bool = False) -> bool:
        """Return whether the client may use this API with a resource; ``quiet`` if that refuses nothing."""
        return self.access.may(self.connection, self.api_key, resource, name, purpose, quiet=quiet)

    def check_topic(self, name: str) -> None:
        """Raise the KafkaError for a topic that the client may not use this API with."""
        self.access.check_topic(self.connection, self.api_key, name)

    def check_dead_letters(self, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raise Refused if a change of a topic's settings chooses a dead-letter topic that the client may not write."""
        chosen = new_dead_letter_topic(topic, before, after)
        if chosen is not None and not self.may(ResourceType.TOPIC, chosen, DEAD_LETTERS):
            text = f"choose a dead-letter topic that you may write to: the broker writes to {chosen} for you"
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)

    def may_cluster(self, purpose: str = "", *, quiet: bool = False) -> bool:
        """Return whether the client may use this API, if that depends on the cluster; ``quiet`` as in ``may``."""
        return self.access.may_cluster(self.connection, self.api_key, purpose, quiet=quiet)

    def operations(self, resource: ResourceType, name: str) -> int:
        """Return what the client may do with a resource, as bits."""
        return self.access.operations(self.connection, resource, name)

    @property
    def client(self) -> Client:
        # Java prints an address without a host name with a leading slash. Tools show it, or remove it.
        host = f"/{self.connection.peer_host}"
        return Client(self.client_id, host, self.version, self.connection.number, self.correlation_id)
