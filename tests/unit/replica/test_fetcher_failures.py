"""A follower's connection to a leader after exceptions that its code does not expect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.types import Endpoint, TopicPartition
from ottla.replica import fetcher
from ottla.replica.fetcher import ReplicaFetchers
from ottla.replica.partition import Role


class _Clients:
    """Fails as uvloop does when a connection is reset while it is opened; the second call is only noted."""

    def __init__(self) -> None:
        self.opened_again = asyncio.Event()
        self._calls = 0

    async def open(self, endpoint: Endpoint) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise AttributeError("'NoneType' object has no attribute 'setsockopt'")
        self.opened_again.set()
        await asyncio.Future()


class _Partition:
    topic_id = b"t" * 16
    name = TopicPartition("t", 0)
    leader_epoch = 1
    role = Role.FOLLOWER


def test_connection_to_a_leader_is_opened_again_after_an_unexpected_exception(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "RETRY_S", 0)

    async def scenario() -> None:
        clients: Any = _Clients()
        replicas: Any = SimpleNamespace(write_fetched=lambda partition: None)
        clock: Any = SimpleNamespace(wall_ms=lambda: 0)
        settings: Any = None
        fetchers = ReplicaFetchers(
            loop=asyncio.get_running_loop(), clients=clients, replicas=replicas, clock=clock, broker_id=1,
            broker_epoch=lambda: 1, settings=lambda: settings,
        )  # fmt: skip
        partition: Any = _Partition()
        fetchers.follow(partition, Endpoint("PLAINTEXT", "localhost", 9092))
        async with asyncio.timeout(10):
            await clients.opened_again.wait()
        fetchers.stop()

    asyncio.run(scenario())
    assert "Traceback" in caplog.text and "setsockopt" in caplog.text
