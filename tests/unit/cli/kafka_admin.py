"""A cluster that answers the requests of Kafka's commands with prepared replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from ottla.client.protocol.metadata import Node
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseBroker


class FakeAdmin:
    """Answers each type of request with the reply that a test has prepared for it."""

    def __init__(self, *replies: Any, brokers: Iterable[Node] = (Node(0, "127.0.0.1", 9092),)) -> None:
        self._replies = {type(reply).__name__.removesuffix("Response"): reply for reply in replies}
        self._brokers = list(brokers)
        #: all requests, oldest first
        self.requests: list[Any] = []

    def ask(self, node: Node, request: Any, version_min: int = 0, *, timeout_s: float | None = None) -> Any:
        self.requests.append(request)
        return self._replies[type(request).__name__.removesuffix("Request")]

    def ask_any(self, request: Any, version_min: int = 0) -> Any:
        return self.ask(self._brokers[0], request)

    def brokers(self) -> list[Node]:
        return self._brokers

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        rows = [
            MetadataResponseBroker(node_id=node.broker_id, host=node.host, port=node.port) for node in self._brokers
        ]
        return MetadataResponse(cluster_id="RSkj6C1QN6o7n2j7HpD-qw", brokers=rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@contextmanager
def connected(monkeypatch: pytest.MonkeyPatch, module: Any, admin: FakeAdmin) -> Iterator[FakeAdmin]:
    """Let a command use this cluster."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "connect", lambda *_, **__: admin)
        yield admin
