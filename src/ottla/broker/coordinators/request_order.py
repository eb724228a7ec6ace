"""The order in which clients before KIP-890 sent their requests, so that a delayed request changes nothing.

A client has one connection to a coordinator at a time, and a connection keeps the order. A request from an older
connection than the latest one, or with an earlier correlation id on the same connection, was therefore sent earlier.
The numbers of connections are those of this process: a request that arrives on a connection from before this broker
became coordinator is refused elsewhere (``ShardRuntime.check_connection``).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Producer
from ottla.model.errors import ErrorCode, Refused

K = TypeVar("K", bound=Hashable)


class SentRequest(NamedTuple):
    """The latest request of a producer."""

    producer: Producer
    connection: int
    correlation_id: int


def check_order(latest: SentRequest | None, producer: Producer, client: Client) -> SentRequest | None:
    """Return the latest request of the client after this one. Raise Refused if this one was sent before ``latest``."""
    if not client.connection:
        return latest
    if latest is not None and latest.producer == producer:
        # Correlation ids may wrap around, and a client may always send the same correlation id.
        is_earlier = (client.correlation_id - latest.correlation_id) & 0xFFFFFFFF > 0x7FFFFFFF
        if client.connection < latest.connection or (client.connection == latest.connection and is_earlier):
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    return SentRequest(producer, client.connection, client.correlation_id)


class RequestOrder(Generic[K]):
    """The latest request of each key. Of more than ``entries_max`` keys the least recently used are evicted."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._latest: dict[K, SentRequest] = {}

    def check(self, key: K, producer: Producer, client: Client) -> None:
        """Raise Refused if the client sent this request before the latest one with the same key."""
        latest = check_order(self._latest.get(key), producer, client)
        if latest is not None:
            self._latest.pop(key, None)
            self._latest[key] = latest
            if len(self._latest) > self._entries_max:
                del self._latest[next(iter(self._latest))]
